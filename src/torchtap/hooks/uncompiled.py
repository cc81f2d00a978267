"""Lets all that is compiled run as it is written, for the length of a block."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch

from torchtap.core.shared_state import new_lock
from torchtap.core.torch_private import DYNAMO

_lock = new_lock()  # The collector may end a block, in a generator that was dropped.
_num_blocks = 0
_stance: Any = None


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Inside, compiled modules, parts of them and functions run uncompiled.

    The stance of the compiler is one for all threads: the first block sets it, the last one puts
    it back. Two blocks in two threads that each did so would leave the compiler off.

    Example:
        >>> import torch
        >>> from torchtap.hooks.uncompiled import uncompiled
        >>> with uncompiled():
        ...     y = torch.compile(torch.nn.ReLU(), backend="eager")(torch.ones(1))
    """
    if DYNAMO not in sys.modules:
        yield
        return
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def _count(change: int) -> None:
    global _num_blocks, _stance
    with _lock:
        if _num_blocks == 0:
            _stance = torch.compiler.set_stance("force_eager")  # Sets it now.
        _num_blocks += change
        if _num_blocks == 0:
            _stance.__exit__(None, None, None)
            _stance = None

"""Hears of optimizers as they are made: PyTorch has hooks for their steps, and none for this."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from torchtap.hooks.module_hook import keep_dynamo_out


def listen_to_new_optimizers(made: Callable[[Optimizer], None]) -> Callable[[], None]:
    """Call a function with each optimizer, of any class, when PyTorch's part of it is made.

    Takes the place of ``Optimizer.__init__``, which every optimizer of ``torch.optim``'s kind runs.

    Args:
        made: takes the optimizer. It must not raise.

    Returns:
        what ends it; safe to call twice.
    """
    original = Optimizer.__init__
    keep_dynamo_out(made_by := _calling(original, made))

    def off() -> None:
        if Optimizer.__init__ is made_by:
            Optimizer.__init__ = original  # type: ignore[method-assign]

    Optimizer.__init__ = made_by  # type: ignore[method-assign]
    return off


def _calling(
    original: Callable[..., None], made: Callable[[Optimizer], None]
) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Optimizer, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        made(self)

    return __init__

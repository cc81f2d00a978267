"""Offloading taken off for a while in one thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torchtap.hooks.saved_hooks_scope import SavedHooksScope
from torchtap.hooks.saved_pairs import Pair, push, remove, top

open_scopes: list[SavedHooksScope] = []
"""Scopes of all offloads that are on."""


@contextmanager
def suspend_offload() -> Iterator[None]:
    """Take all offloading off in this thread while the block runs.

    ``torch.func`` (``grad``, ``vjp``, ``jacrev``, ...) raises where any saved-tensor hooks are on;
    other people's stay on, so where there are any it still raises.

    Example:
        >>> import torch, torchtap as tt
        >>> with tt.offload("disk"):
        ...     with tt.suspend_offload():
        ...         torch.func.grad(torch.sin)(torch.tensor(0.0))
        tensor(1.)
    """
    pairs = {id(scope.pair[0]): scope.pair for scope in open_scopes if scope.pair is not None}
    above: list[tuple[Pair, bool]] = []
    stack: list[Pair] = []
    while (found := top()) is not None:
        remove(found)
        stack.append(found)
    # All are taken off and the others put on again, since PyTorch can pop the top alone.
    for pair in reversed(stack):
        is_ours = id(pair[0]) in pairs
        above.append((pair, is_ours))
        if not is_ours:
            push(pair)
    paused = list(open_scopes)
    for one in paused:
        one.pause()
    try:
        yield
    finally:
        for one in paused:
            one.resume()
        for pair, is_ours in above:
            if not is_ours:
                remove(pair)
        for pair, _ in above:
            push(pair)

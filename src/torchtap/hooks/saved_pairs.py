"""Pairs of saved-tensor hooks: the only file that pushes them on PyTorch's stack.

PyTorch keeps a stack of hook pairs for each thread and asks only the one on top. So what we do not
handle ourselves is handed to the pair below, and a pair is taken off by what it is, not by where it
stands: another library may have pushed a pair on top of it.

Any pair of hooks switches off autograd's own check for saved tensors that are overwritten; a
:func:`versioned_alias` is checked in its place.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from torchtap.core.torch_frames import is_left_open
from torchtap.core.torch_private import pop_saved_hooks, push_saved_hooks, top_saved_hooks

Pack = Callable[[Tensor], Any]
Unpack = Callable[[Any], Tensor]
Pair = tuple[Pack, Unpack]
_CHECKPOINT_FILE = torch.utils.checkpoint.__file__
VersionedAlias = tuple[Tensor, int]
"""An alias of a saved tensor, and the version at which it was saved."""


class _Below(threading.local):
    """
    Attributes:
        pair: that the pair of a pack hook stands on in this thread, while it is on.
    """

    def __init__(self) -> None:
        self.pair: Pair | None = None


class _PackHook:
    """A pack hook that selective checkpoints pass by where the program does not say otherwise.

    Since 2.15 such a checkpoint warns when it finds hooks of a user around it and was not told
    whether to call them. By default it does not, and the warning is about a choice that the
    program has not made: it would end a training that runs with ``-W error``. A pair that says it
    is the checkpoint's own is skipped in silence, for the one below it; where the program passes
    ``respect_saved_tensors_hooks``, it does not say so.
    """

    __slots__ = ("_pack", "below")

    def __init__(self, pack: Pack) -> None:
        self._pack = pack
        self.below = _Below()

    def __call__(self, tensor: Tensor) -> Any:
        return self._pack(tensor)

    @property
    def _checkpoint_internal(self) -> bool:
        return is_left_open(sys._getframe(1))

    @property
    def _user_hooks(self) -> Pair | None:
        return self.below.pair


def make_pair(pack: Pack, unpack: Unpack) -> Pair:
    """Return the pair of hooks of one owner."""
    return _PackHook(pack), unpack


def top() -> Pair | None:
    """Return the pair that is asked now."""
    pair: Pair | None = top_saved_hooks(True)
    return pair


def push(pair: Pair) -> None:
    """Put a pair on top."""
    if isinstance(pair[0], _PackHook):
        pair[0].below.pair = top()
    push_saved_hooks(*pair)


def remove(pair: Pair) -> bool:
    """Take a pair off, wherever it stands; says whether it was there."""
    above: list[Pair] = []
    was_there = False
    while (found := top()) is not None:
        pop_saved_hooks()
        # By identity: hooks are any callables, and comparing them may run code of the user's.
        if found[0] is pair[0] and found[1] is pair[1]:
            was_there = True
            if isinstance(pair[0], _PackHook):
                pair[0].below.pair = None  # Held on, it would keep what the user's hooks hold.
            break
        above.append(found)
    # By push() and not by PyTorch's function alone: a pair of ours learns here what it stands on
    # now.
    for other in reversed(above):
        push(other)
    return was_there


def is_of_checkpoint(pair: Pair | None) -> bool:
    """Return whether a pair belongs to a non-reentrant checkpoint, which then keeps nothing."""
    home = "" if pair is None else getattr(pair[0], "__module__", None) or ""
    return home == "torch.utils.checkpoint"


def versioned_alias(tensor: Tensor) -> VersionedAlias:
    """Return a saved tensor that stays where it is, watched for being overwritten."""
    # Detached, since the graph would otherwise hold itself; it shares the version counter.
    alias = tensor.detach()
    return alias, alias._version


def checked(saved: VersionedAlias) -> Tensor:
    """Return the tensor again.

    Raises:
        RuntimeError: it was overwritten, in autograd's own words.
    """
    alias, version = saved
    if alias._version != version:
        raise overwritten(alias, alias.shape, version)
    return alias


def overwritten(tensor: Tensor, size: Sequence[int], expected: int) -> RuntimeError:
    """Make the error that autograd raises when a tensor that it needs was overwritten."""
    kind = tensor.type() if tensor.layout is torch.strided else type(tensor).__name__
    return RuntimeError(
        f"one of the variables needed for gradient computation has been modified by an inplace "
        f"operation: [{kind} {list(size)}] is at version {tensor._version}; expected "
        f"version {expected} instead. Hint: enable anomaly detection to find the operation that "
        f"failed to compute its gradient, with torch.autograd.set_detect_anomaly(True)."
    )


def is_for_checkpoint() -> bool:
    """Return whether an activation checkpoint saves the tensor: its file is a few frames up.

    Between are the functions of ours that autograd called, and ``Function.apply``. Code inside a
    checkpoint never gets here: it has hooks of its own on top, or is in a backward.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(8):
        if frame is not None and frame.f_code.co_filename == _CHECKPOINT_FILE:
            return True
        frame = None if frame is None else frame.f_back
    return False

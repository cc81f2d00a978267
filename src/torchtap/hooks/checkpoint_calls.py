"""Finds which call of the original forward an activation checkpoint is recomputing.

:func:`backward_runner` walks Python's stack to see whether a checkpoint is recomputing. A
recomputed segment starts from the same storage as the original forward, so its first call is found
by the storage of its first argument. The following calls come in the original order. Each
recomputation runs under its own autograd node.

Where the first call of a segment is not watched, a reentrant checkpoint is recognised by its node,
which is made (and numbered) just before the segment first runs, and under which it runs again. For
another checkpoint a node of the segment itself runs then, which was made after the call was
entered: the call is known where only one of the module's calls that are still to be computed again
was entered before that.

Any other ``autograd.Function`` may be a checkpoint of its own kind, the inverse of a reversible
block, or the adjoint of a solver. Its backward computes the forward again only if it begins with
the first call of that forward, on the same memory with the same content, and as long as it goes on
with the next one on the same content. The content is compared by a few elements.
"""

from __future__ import annotations

import bisect
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from torchtap.core.tensors import storage_id
from torchtap.core.torch_frames import (
    CHECKPOINT_FORWARD,
    CHECKPOINTS,
    FUNCTION_BACKWARD,
    RUN_BACKWARD,
)
from torchtap.core.torch_nodes import CHECKPOINT
from torchtap.core.torch_private import (
    current_node,
    current_task,
    num_dispatch_modes,
    sequence_number,
    transform_running,
)
from torchtap.core.tree import leaves

NON_REENTRANT, REENTRANT, FUNCTION, OTHER = "non-reentrant", "reentrant", "function", "other"
"""Kinds of code that run modules inside a backward: a checkpoint of either kind, another custom
function, or something else, such as a hook."""

_NEVER = -1
"""Graph task id of a call that was not recomputed yet."""
_HISTORY = 1 << 16
"""Calls that are remembered, so that a loop without steps stays flat in memory."""
_MOST_COPIES = 256
"""Number of copies above which those of freed storages are removed."""
_SAMPLE = 16
"""Elements of an argument that stand for its content."""


def backward_runner(node: Any) -> str:
    """Return what runs a module inside the innermost backward of this thread.

    Args:
        node: the one that is running.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code is FUNCTION_BACKWARD:
            is_checkpoint = type(node).__name__ == CHECKPOINT
            return REENTRANT if is_checkpoint else FUNCTION
        # By its name: it is made inside of _checkpoint_hook.__init__, where no other file can reach
        # it.
        if code.co_name == "unpack_hook" and frame.f_globals.get("__name__") == CHECKPOINTS:
            return NON_REENTRANT
        if code in RUN_BACKWARD:
            return OTHER
        frame = frame.f_back
    return OTHER  # A thread of autograd's engine.


def is_graph_discarded() -> bool:
    """Return whether a non-reentrant checkpoint recomputes, only for its saved tensors.

    To be called inside a backward.
    """
    return backward_runner(current_node()) is NON_REENTRANT


class ArgumentSample(NamedTuple):
    """The content of an argument: its place in memory, its shape and a sample of its elements."""

    storage: int
    offset: int
    shape: torch.Size
    sample: Tensor

    def is_in_memory_of(self, other: ArgumentSample) -> bool:
        """Return whether both are the same elements of one storage."""
        return self[:3] == other[:3]

    def equals(self, other: ArgumentSample) -> bool:
        """Return whether both have the same elements, as far as is known."""
        mine, others = self.sample, other.sample
        return (
            self.shape == other.shape
            and mine.dtype == others.dtype
            and mine.device == others.device
            and torch.equal(mine.view(torch.uint8), others.view(torch.uint8))
        )


ArgumentSamples = tuple[ArgumentSample, ...]
"""Samples of all arguments of one call; empty if one could not be looked at."""


def samples_of(arguments: Sequence[Tensor]) -> ArgumentSamples:
    """Look at the arguments of a call; empty if one of them cannot be looked at."""
    if transform_running() is not None or num_dispatch_modes():
        return ()  # What we ask of the tensors would be seen.
    looked_at = []
    for argument in arguments:
        storage = original_storage(argument)
        if not storage or not argument.is_contiguous() or not _has_readable_content(argument):
            return ()
        shape, offset = argument.shape, int(argument.storage_offset())
        size = shape.numel()
        num, stride = min(size, _SAMPLE), max(1, size // _SAMPLE)
        # Evenly spaced, and copied: the caller may overwrite the argument before backward.
        sample = argument.detach().as_strided((num,), (stride,), offset).clone()
        looked_at.append(ArgumentSample(storage, offset, shape, sample))
    return tuple(looked_at)


def _has_readable_content(tensor: Tensor) -> bool:
    is_odd = tensor.is_conj() or tensor.is_neg() or tensor.is_meta or tensor.is_quantized
    # What is compared is waited for, which a CUDA graph that is being captured cannot.
    return not is_odd and not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


class OriginalCall(NamedTuple):
    """One call of the first pass.

    Attributes:
        next_node: sequence number that the next node had as the call was entered, -1 where
            gradients were off.
    """

    tap: Any
    call: int
    phase: str
    samples: ArgumentSamples
    next_node: int


class CheckpointCalls:
    """The order of calls of one thread within one step, and where recomputation stands in it.

    Args:
        first_node: number of the thread's first node in this step, 0 if unknown. Each thread
            numbers its nodes by itself.
    """

    __slots__ = (
        "_by_memory",
        "_calls",
        "_first_node",
        "_has_diverged",
        "_held_storages",
        "_last_recomputed",
        "_node_numbers",
        "_node_positions",
        "_recomputation",
        "_to_recompute",
    )

    def __init__(self, first_node: int) -> None:
        self._calls: list[OriginalCall] = []
        self._by_memory: dict[tuple[Any, int], int] = {}
        # Weak references that keep the ids of freed storages from being used again.
        self._held_storages: list[StorageWeakRef] = []
        # Calls with grad disabled: the next node's sequence number, ascending, and their positions.
        self._node_numbers: list[int] = []
        self._node_positions: list[int] = []
        # Of each module, positions that were not computed again in an earlier backward, with the
        # backward that did it now.
        self._to_recompute: dict[Any, dict[int, int]] = {}
        self._last_recomputed = -1
        self._has_diverged = False
        self._recomputation: tuple[Any, int, str] = (None, -1, OTHER)
        self._first_node = first_node

    def begin_again(self, first_node: int) -> bool:
        """Begin a step if no call is remembered, and nothing was computed again; else refuse.

        Args:
            first_node: as of a new object.
        """
        is_new = not self._calls and not self._has_diverged and self._recomputation[0] is None
        if is_new:
            self._first_node = first_node
        return is_new

    def remember(
        self,
        tap: Any,
        call: int,
        phase: str,
        arguments: Sequence[Tensor],
        *,
        may_differentiate: bool,
    ) -> None:
        """Write down a call of the first pass (or of an outer recomputation).

        Args:
            tap: of the module.
            call: its number.
            phase: of the call.
            arguments: of the call.
            may_differentiate: whether a function around it may be differentiated.
        """
        if len(self._calls) >= _HISTORY:
            self._calls.clear()
            self._by_memory.clear()
            self._held_storages.clear()
            self._node_numbers.clear()
            self._node_positions.clear()
            self._to_recompute.clear()
            self._last_recomputed = -1
        position = len(self._calls)
        next_node = sequence_number() if torch.is_grad_enabled() else -1
        self._calls.append(OriginalCall(tap, call, phase, (), next_node))
        if next_node >= 0:
            self._to_recompute.setdefault(tap, {})[position] = _NEVER
        self._note_memory(tap, arguments, position)
        self._note_node_number(position, arguments if may_differentiate else ())

    def find(self, tap: Any, arguments: Sequence[Tensor], runner: str) -> OriginalCall | None:
        """Find the call of ``tap`` that is running again; ``None`` if it is not known.

        Args:
            tap: of the module.
            arguments: of the call.
            runner: what :func:`backward_runner` said.
        """
        node: Any = current_node()
        recomputation = node, current_task(), runner
        # One recomputation is one node in one backward: with retain_graph the same node runs again,
        # in another graph task, and starts from the segment's first call again.
        if recomputation != self._recomputation:
            self._recomputation, self._last_recomputed = recomputation, -1
            self._has_diverged = False
        if node._sequence_nr() < self._first_node:
            return None  # Made in an earlier step.
        if runner is FUNCTION:
            position = self._in_function(tap, node, arguments)
        else:
            position = self._in_checkpoint(tap, node, arguments, runner)
        if position is None:
            return None
        self._last_recomputed = position
        if position in self._to_recompute.get(tap, ()):
            self._to_recompute[tap][position] = current_task()
        # Checkpoints inside this one will start from memory, and under nodes, that are new now.
        if (tap, _storage(arguments)) not in self._by_memory:
            self._note_memory(tap, arguments, position)
        self._note_node_number(position, arguments)
        return self._calls[position]

    def knows(self, tap: Any, arguments: Sequence[Tensor], runner: str) -> bool:
        """Return whether a call that runs again is known to be one of this thread's."""
        recomputation = current_node(), current_task(), runner
        return recomputation == self._recomputation or (tap, _storage(arguments)) in self._by_memory

    def _note_memory(self, tap: Any, arguments: Sequence[Tensor], position: int) -> None:
        storage = _storage(arguments)
        if storage:
            for argument in filter(storage_id, arguments):
                held = StorageWeakRef(argument.untyped_storage())  # type: ignore[no-untyped-call]
                self._held_storages.append(held)
            self._by_memory[tap, storage] = position

    def _note_node_number(self, position: int, arguments: Sequence[Tensor]) -> None:
        if torch.is_grad_enabled():
            return
        number = sequence_number()
        self._node_numbers.append(number)
        self._node_positions.append(position)
        if arguments and number != self._first_node:  # Or no node was made, so no function can run.
            self._calls[position] = self._calls[position]._replace(samples=samples_of(arguments))

    # ------------------------------------------------------------------ in a checkpoint

    def _in_checkpoint(
        self, tap: Any, node: Any, arguments: Sequence[Tensor], runner: str
    ) -> int | None:
        position = self._next_call(tap)
        if position is None and runner is REENTRANT:
            position = self._next_of_segment(tap, node)
        if position is None:
            position = self._by_memory.get((tap, _storage(arguments)))
        if position is None and runner is NON_REENTRANT:
            position = self._only_entered_before(tap, node._sequence_nr())
        return self._only_call(tap) if position is None else position

    def _next_call(self, tap: Any) -> int | None:
        position = self._last_recomputed + 1
        if 0 < position < len(self._calls) and self._calls[position].tap is tap:
            return position
        return None

    def _next_of_segment(self, tap: Any, node: Any) -> int | None:
        """Return the next call of ``tap`` since the reentrant checkpoint of that node was made."""
        start = bisect.bisect_right(self._node_numbers, node._sequence_nr())
        for number in range(start, len(self._node_positions)):
            position = self._node_positions[number]
            if position > self._last_recomputed and self._calls[position].tap is tap:
                return position
        return None

    def _only_entered_before(self, tap: Any, number: int) -> int | None:
        """Return the one call still to be computed again that was entered before that node."""
        task = current_task()
        waiting = self._to_recompute.get(tap, {})
        earlier = [at for at, recomputed in waiting.items() if recomputed not in (_NEVER, task)]
        for position in earlier:
            del waiting[position]
        before = [position for position in waiting if self._calls[position].next_node <= number]
        return before[0] if len(before) == 1 else None

    def _only_call(self, tap: Any) -> int | None:
        positions = [position for position, call in enumerate(self._calls) if call.tap is tap]
        return positions[0] if len(positions) == 1 else None

    # ------------------------------------------------------------------ in a custom function

    def _in_function(self, tap: Any, node: Any, arguments: Sequence[Tensor]) -> int | None:
        position = None if self._has_diverged else self._expected_of_function(node)
        original = None if position is None else self._calls[position]
        given = samples_of(arguments) if original is not None and original.tap is tap else ()
        is_recomputed = original is not None and _are_equal(original.samples, given)
        if is_recomputed and original is not None and self._last_recomputed < 0:
            # Only at the first call: what follows gets results of the calls before it, in new
            # memory.
            is_recomputed = _share_memory(original.samples, given)
        self._has_diverged = not is_recomputed
        return position if is_recomputed else None

    def _expected_of_function(self, node: Any) -> int | None:
        """Return the call that comes next if the custom function of that node is a checkpoint."""
        if self._last_recomputed >= 0:
            position = self._last_recomputed + 1
            return position if position < len(self._calls) else None
        # It was made just before its forward ran, and that ran without grad, so it made none.
        # autograd.Function.apply makes the node before it calls forward (THPFunction_apply in
        # torch/csrc/autograd/python_function.cpp), so the numbers are neighbours.
        number = node._sequence_nr() + 1
        start = bisect.bisect_left(self._node_numbers, number)
        is_there = start < len(self._node_numbers) and self._node_numbers[start] == number
        return self._node_positions[start] if is_there else None


def _storage(arguments: Sequence[Tensor]) -> int:
    return original_storage(arguments[0]) if arguments else 0


# Number of a storage -> a reference that keeps the number from being given again, and the number
# of the storage that it was copied from.
_copies: dict[int, tuple[StorageWeakRef, int]] = {}


def note_copy(tensor: Tensor, original: int) -> None:
    """Note that a saved tensor came back in other memory than it was saved in.

    Args:
        tensor: as it came back.
        original: :func:`storage_id` of it when it was saved.
    """
    number = storage_id(tensor)
    if not number or not original:
        return
    if len(_copies) >= _MOST_COPIES:
        for old, (ref, _) in list(_copies.items()):
            if ref.expired():  # type: ignore[no-untyped-call]
                _copies.pop(old, None)
    reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
    _copies[number] = reference, original


def original_storage(tensor: Tensor) -> int:
    """:func:`storage_id`, and of what :func:`note_copy` knows, that of the original."""
    number = storage_id(tensor)
    copied = _copies.get(number)
    if copied is None or copied[0].expired():  # type: ignore[no-untyped-call]
        return number
    return copied[1]


def _are_equal(first: ArgumentSamples, second: ArgumentSamples) -> bool:
    pairs = zip(first, second, strict=False)
    return (
        bool(first) and len(first) == len(second) and all(one.equals(other) for one, other in pairs)
    )


def _share_memory(first: ArgumentSamples, second: ArgumentSamples) -> bool:
    return all(one.is_in_memory_of(other) for one, other in zip(first, second, strict=True))


def is_in_reentrant_checkpoint() -> bool:
    """Return whether a reentrant checkpoint around this call runs it without the graph it needs.

    Grad mode that is off does not tell, since a model may also switch it off. PyTorch makes no
    graph either where nothing that is given to the checkpoint requires grad.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not CHECKPOINT_FORWARD:
        frame = frame.f_back
    given = leaves(frame.f_locals["args"]) if frame is not None else ()
    return any(tensor.requires_grad for _, tensor in given)

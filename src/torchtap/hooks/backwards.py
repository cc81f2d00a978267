"""Numbers the backward passes of a step, and says when one has ended."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType

from torch import Tensor

from torchtap.core.stack_frames import innermost_frames
from torchtap.core.tensors import storage_id
from torchtap.core.torch_frames import RUN_BACKWARD, given_to_backward
from torchtap.core.torch_private import call_after_backward, current_task
from torchtap.hooks.module_hook import keep_dynamo_out

_REMEMBERED = 1024


def given_storages() -> set[int]:
    """Storages of the gradients that the caller handed to the backward that is running.

    Autograd's hooks do not get to know them; the frames of ``torch.autograd.backward`` and
    ``torch.autograd.grad`` hold them. On other devices hooks run in threads of autograd's
    engine, while the caller waits in its own: then all threads are looked through.
    """
    found = _given(sys._getframe())
    if found is None:
        stacks = [_given(frame) for frame in innermost_frames().values()]
        found = [tensor for stack in stacks for tensor in stack or ()]
    return {storage_id(tensor) for tensor in found} - {0}


def _given(frame: FrameType | None) -> list[Tensor] | None:
    """Gradients that the backwards on one Python stack were given; ``None`` if there is none."""
    found: list[Tensor] | None = None
    while frame is not None:
        given = given_to_backward(frame)
        if given is not None:
            found = [*(found or ()), *given]
        frame = frame.f_back
    return found


_ROOTS = ("t_outputs", "tensors", "outputs")
"""Parameters of the functions of ``RUN_BACKWARD`` that hold what a backward begins from."""


def root_of_backward() -> Tensor | None:
    """Return the tensor from which the backward that runs on this stack began.

    ``None`` where it began from several, or where the frame that began it is one of another thread:
    the backward of a GPU runs in threads of the engine.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code in RUN_BACKWARD:
            held = frame.f_locals
            found = next((held[name] for name in _ROOTS if name in held), None)
            found = found[0] if isinstance(found, list | tuple) and len(found) == 1 else found
            return found if isinstance(found, Tensor) else None
        frame = frame.f_back
    return None


class Backwards:
    """The backward passes seen so far in the running step.

    A backward inside another (a reentrant checkpoint runs one per segment) is part of it.

    Args:
        ended: called at the end of each outermost backward. ``None`` where only numbers are wanted:
            ``given`` stays empty then, since finding it takes a walk over Python's stack.

    Attributes:
        numbers: task of autograd -> number of its backward.
        given: storages of the gradients that the caller of the running backward handed in. They
            are the caller's own, and may be written into again where autograd does not count it:
            pipelines receive into the same buffers for every microbatch.
    """

    def __init__(self, ended: Callable[[], None] | None = None) -> None:
        self.given: set[int] = set()
        self._ended = ended
        self.numbers: dict[int, int] = {}
        self._last = -1
        self._thread = _Thread()

    def number(self) -> int:
        """Number, from 0, of the backward that is running; outside of any, of the last one.

        Gradients are accumulated after a backward where FSDP2 reduces those of a pipeline: its
        schedule has that done once, after the last microbatch.
        """
        task = current_task()
        if task == -1:
            return max(self._last, 0)
        number = self.numbers.get(task)
        return self._begin(task) if number is None else number

    def restart(self) -> None:
        """Start the numbers again, for a new step."""
        self.numbers.clear()
        self._last = -1
        self.given = set()
        self._thread.running.clear()

    def forget_failed(self) -> None:
        """Forget backwards that raised and so never ended. To be called outside of any backward."""
        self.given = set()
        self._thread.running.clear()

    def _begin(self, task: int) -> int:
        running = self._thread.running
        # A reentrant checkpoint calls torch.autograd.backward inside its own backward
        # (CheckpointFunction in torch/utils/checkpoint.py), as a task of its own.
        outer = self.numbers.get(running[0]) if running else None
        # Another thread may have begun a step since the outer one began.
        number = self._last + 1 if outer is None else outer
        self._last = max(self._last, number)
        if len(self.numbers) >= _REMEMBERED:  # A program that never steps stays flat in memory.
            for old in list(self.numbers)[: _REMEMBERED // 2]:
                del self.numbers[old]
        self.numbers[task] = number
        if self._ended is not None:
            self.given |= given_storages()
        running.append(task)
        # The list goes with the callback: for another device than the CPU a thread of
        # autograd's engine calls it, in which ``running`` is another list.
        call_after_backward(partial(self._end, running, task))
        return number

    def _end(self, running: list[int], task: int) -> None:
        # Autograd's engine calls back only after a backward that completed; one that raised leaves
        # its task in the list until forget_failed() clears it.
        if task in running:
            running.remove(task)
        if not running and self._ended is not None:
            self.given = set()
            self._ended()


class _Thread(threading.local):
    """
    Attributes:
        running: tasks of the backwards that this thread has begun, the outermost first.
    """

    def __init__(self) -> None:
        self.running: list[int] = []


keep_dynamo_out(Backwards._end)

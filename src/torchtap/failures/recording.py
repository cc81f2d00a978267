"""Notes which line writes in place, while ``tt.explain_errors(record=True)`` is on.

Code that ``torch.compile`` compiles is left as it is: Dynamo traces through the recording and puts
nothing of it into the graph. Writes of such code are noted with the function that was compiled,
where PyTorch runs its operations one by one, and else not at all; versions tell how many writes
were not seen.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from torchtap.core.source_files import is_of_library
from torchtap.core.torch_private import run_uncompiled, without_torch_functions

_MOST_STORAGES = 10_000
_MOST_WRITES = 8
_GENERATED = ("<eval_with_key>", "torchinductor_", f"{os.sep}torch{os.sep}_dynamo{os.sep}")
"""Parts of the names of files whose frames stand between a compiled function and an operation."""


class WriteAt(NamedTuple):
    """A write in place that was seen.

    Attributes:
        before: version of the tensor before it.
        version: of the tensor, after it.
        file: of the line.
        line: its number.
        module: id of the module in whose method it ran; ``None`` outside of modules.
        compiled: the name of the compiled function that made it; empty of other code.
    """

    before: int
    version: int
    file: str
    line: int
    module: int | None
    compiled: str


class WriteRecording(TorchFunctionMode):
    """Notes the lines of writes in place of one thread, by the memory that they write into."""

    def __init__(self) -> None:
        super().__init__()
        self._writes: dict[int, list[WriteAt]] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operation, and look which of its arguments it has written into."""
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():  # Dynamo traces what stands here into its graph.
            return func(*args, **kwargs)
        with without_torch_functions():
            # The version counter tells of a write, whatever the operation is called.
            before = [(one, one._version) for one in _tensors(args, kwargs)]
        result = func(*args, **kwargs)
        with without_torch_functions():
            for tensor, version in before:
                if tensor._version != version:
                    self._note(tensor, version, sys._getframe(1))
        return result

    def _note(self, tensor: Tensor, before: int, frame: FrameType | None) -> None:
        address = _address(tensor)
        if address is None:
            return
        writes = self._writes.setdefault(address, [])
        if writes and tensor._version <= writes[-1].version:
            writes.clear()  # The memory belongs to another tensor now.
        writes.append(_write(before, tensor._version, frame))
        # A buffer that is written in each step must not let the record grow.
        del writes[:-_MOST_WRITES]
        if len(self._writes) > _MOST_STORAGES:
            # Dicts keep the order of insertion: the memory that was first written.
            del self._writes[next(iter(self._writes))]

    def writes_into(self, tensor: Tensor, *, since: int) -> list[WriteAt]:
        """Return the writes into the memory of a tensor after it had a version."""
        address = _address(tensor)
        return [one for one in self._writes.get(address or 0, ()) if one.version > since]

    def stop(self) -> None:
        """Note no more; what was noted is still asked."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def forget(self) -> None:
        """It is asked no more."""
        _running.recording = None


# Operations between two compiled parts of a function call it, and are not compiled themselves.
run_uncompiled(WriteRecording.__torch_function__)


class _Running(threading.local):
    """The recording of a thread."""

    def __init__(self) -> None:
        self.recording: WriteRecording | None = None


_running = _Running()


def start_recording() -> WriteRecording | None:
    """Begin to note the writes of this thread; ``None`` where a block outside of this one does.

    Dynamo compiles anew for each number of recordings, so there is one.
    """
    if _running.recording is not None:
        return None
    recording = WriteRecording()
    recording.__enter__()  # type: ignore[no-untyped-call]
    _running.recording = recording
    return recording


def recorded_writes(tensor: Tensor, *, since: int) -> list[WriteAt]:
    """Return the writes into a tensor's memory that the recording of this thread saw."""
    recording = _running.recording
    return [] if recording is None else recording.writes_into(tensor, since=since)


def num_unseen(tensor: Tensor, *, since: int, now: int) -> int:
    """Return how many writes into a tensor the recording missed; 0 where there is no recording.

    Args:
        tensor: what was overwritten.
        since: its version when it was saved.
        now: its version.
    """
    if _running.recording is None:
        return 0
    seen = {
        version
        for write in recorded_writes(tensor, since=since)
        for version in range(max(write.before, since), write.version)
    }
    return now - since - len(seen)


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    for value in (*args, *kwargs.values()):
        for one in value if type(value) in (list, tuple) else (value,):
            if isinstance(one, Tensor) and not one.is_inference():
                yield one


def _address(tensor: Tensor) -> int | None:
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):  # Of sparse tensors, for instance.
        return None


def _write(before: int, version: int, frame: FrameType | None) -> WriteAt:
    """Return the innermost line of the program, and the module that was running."""
    file, line, module, compiled = "", 0, None, ""
    is_compiled = False
    while frame is not None and (not file or module is None):
        name = frame.f_code.co_filename
        is_generated = any(part in name for part in _GENERATED)
        is_compiled |= is_generated and not file
        if not file and not is_generated and not is_of_library(name):
            file, line = name, frame.f_lineno
            compiled = frame.f_code.co_name if is_compiled else ""
        if module is None and frame.f_code.co_varnames[:1] == ("self",):
            owner = frame.f_locals.get("self")
            module = id(owner) if isinstance(owner, nn.Module) else None
        frame = frame.f_back
    return WriteAt(before, version, file, line, module, compiled)

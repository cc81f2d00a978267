"""Notes which line writes in place, while ``tt.explain_errors(record=True)`` is on."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from torchtap.core.torch_private import without_torch_functions
from torchtap.failures.frame import is_of_library

_MOST_STORAGES = 10_000
_MOST_WRITES = 8


class WriteAt(NamedTuple):
    """A write in place that was seen.

    Attributes:
        version: of the tensor, after it.
        file: of the line.
        line: its number.
        module: id of the module in whose method it ran; ``None`` outside of modules.
    """

    version: int
    file: str
    line: int
    module: int | None


class Recording(TorchFunctionMode):
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
        with without_torch_functions():
            before = [(one, one._version) for one in _tensors(args, kwargs)]
        result = func(*args, **kwargs)
        with without_torch_functions():
            for tensor, version in before:
                if tensor._version != version:
                    self._note(tensor, sys._getframe(1))
        return result

    def _note(self, tensor: Tensor, frame: FrameType | None) -> None:
        address = _address(tensor)
        if address is None:
            return
        writes = self._writes.setdefault(address, [])
        if writes and tensor._version <= writes[-1].version:
            writes.clear()  # The memory belongs to another tensor now.
        writes.append(_write(tensor._version, frame))
        del writes[:-_MOST_WRITES]
        if len(self._writes) > _MOST_STORAGES:
            del self._writes[next(iter(self._writes))]

    def writes_into(self, tensor: Tensor, *, since: int) -> list[WriteAt]:
        """The writes into the memory of a tensor after it had a version."""
        address = _address(tensor)
        return [one for one in self._writes.get(address or 0, ()) if one.version > since]

    def stop(self) -> None:
        """Note no more; what was noted is still asked."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def forget(self) -> None:
        """It is asked no more."""
        _running.recordings.remove(self)


class _Running(threading.local):
    """The recordings of a thread, outermost first."""

    def __init__(self) -> None:
        self.recordings: list[Recording] = []


_running = _Running()


def start_recording() -> Recording:
    """Begin to note the writes of this thread."""
    recording = Recording()
    recording.__enter__()  # type: ignore[no-untyped-call]
    _running.recordings.append(recording)
    return recording


def recorded_writes(tensor: Tensor, *, since: int) -> list[WriteAt]:
    """What the recordings of this thread saw of writes into the memory of a tensor."""
    for recording in reversed(_running.recordings):
        found = recording.writes_into(tensor, since=since)
        if found:
            return found
    return []


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


def _write(version: int, frame: FrameType | None) -> WriteAt:
    """The innermost line of the program, and the module that was running."""
    file, line, module = "", 0, None
    while frame is not None and (not file or module is None):
        name = frame.f_code.co_filename
        if not file and not is_of_library(name):
            file, line = name, frame.f_lineno
        if module is None and frame.f_code.co_varnames[:1] == ("self",):
            owner = frame.f_locals.get("self")
            module = id(owner) if isinstance(owner, nn.Module) else None
        frame = frame.f_back
    return WriteAt(version, file, line, module)

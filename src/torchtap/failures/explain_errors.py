"""``tt.explain_errors``: PyTorch's exceptions get a note: where, why, and what to do."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType

import torch
from torch import nn

from torchtap.core.doors import require
from torchtap.core.errors import InputError, TorchtapError
from torchtap.core.source_files import is_of_library, shown_file
from torchtap.core.text import clean, wrap
from torchtap.core.torch_private import run_uncompiled, without_torch_functions
from torchtap.failures.call_numbers import call_number
from torchtap.failures.catalogue import SITUATIONS
from torchtap.failures.failure import Explanation, Failure, place_of
from torchtap.failures.message_patterns import KnownMessage, is_from_torch, recognise
from torchtap.failures.recording import WriteRecording, start_recording
from torchtap.failures.traceback_frame import forget

HEAD = "torchtap:"
"""How every note of ours begins."""
_LABEL = 11
_LINE = re.compile(
    r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)\n(?P<source>[^\n]*)'
)
_FROM_USER = re.compile(r'from user code:\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (\S+)')


def explain_errors(
    model: nn.Module | None = None, *, record: bool = False
) -> AbstractContextManager[None]:
    """Add a note to the exceptions that PyTorch raises inside the block, and change nothing else.

    The exception keeps its type and its message and goes on as without the block. Its note, which
    Python prints below the message, says in one sentence what happened, at which module, call and
    source line, with which tensors and what made them, and the ways out, best first. Exceptions
    that are not PyTorch's get no note, nor do those that were raised before the block began. An
    exception that was raised from another one, or while another one was handled, is looked at
    together with that one. Where blocks stand inside each other, the innermost adds the note.

    Nothing is attached to the model and nothing runs until something is raised: the note is read
    from the frames of the traceback, the source, and the autograd graph. No code of the program
    runs for it. Where the source alone does not decide, the note says so ("perhaps by", "one of").
    Where a module is called several times in one forward, it says which call it was, counted from
    the 1st, if the source of the caller tells: its lines, and loops over ``range`` and
    ``enumerate``.
    An error that is not known gets a note with its place and no more. An error of a compiled
    function is explained by its line alone, since its frames hold no modules.

    Args:
        model: whose modules are named; by default all modules that the frames hold, with the name
            of their variable before the path where there are several.
        record: note at each write in place which line made it, for errors of backward that need
            what was overwritten. Each operation of this thread then takes some microseconds more,
            and PyTorch's fused encoder kernel is not used; a frame of torchtap stands in the
            traceback below the operation. For looking for an error, not for training. Code
            that ``torch.compile`` compiles stays whole, and is compiled once more for such blocks
            (a stance of ``torch.compiler`` that forbids that is kept to); its writes are told by
            the name of the compiled function, without a line. Writes that were not seen, such as
            those of other threads, are counted in the note.

    Raises:
        InputError: ``model`` is no module.

    Example:
        >>> import torch, torchtap as tt
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(8, 2))
        >>> try:
        ...     with tt.explain_errors(net):
        ...         net(torch.ones(5, 4))
        ... except RuntimeError as error:
        ...     print(error.__notes__[0].splitlines()[0])
        torchtap: 1 (Linear) takes 8 features in the last dimension of its input, which has 3.
    """
    require("tt.explain_errors")
    if model is not None and not isinstance(model, nn.Module):
        raise InputError(
            f"model is {type(model).__name__}; expected an nn.Module whose modules are to be "
            f"named, or nothing."
        )
    return _Block(model, record)


@dataclass
class _Block:
    """The block of one ``with``."""

    model: nn.Module | None
    record: bool
    entered: list[tuple[BaseException | None, WriteRecording | None]] = field(default_factory=list)

    def __enter__(self) -> None:
        if torch.compiler.is_compiling():  # What is raised in a graph has no frames to look at.
            return
        recording = start_recording() if self.record else None
        self.entered.append((sys.exception(), recording))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if torch.compiler.is_compiling():
            return
        handled, recording = self.entered.pop()
        if recording is not None:
            recording.stop()
        if error is not None:
            add_notes(error, self.model, before=handled)
        if recording is not None:
            recording.forget()


# A function of which Dynamo compiles parts may enter a block between them: that is not compiled.
run_uncompiled(_Block.__enter__)
run_uncompiled(_Block.__exit__)


def add_notes(
    error: BaseException, model: nn.Module | None = None, *, before: BaseException | None = None
) -> None:
    """Add the note to an exception and to those that led to it, where they are PyTorch's.

    Args:
        error: the exception.
        model: as of :func:`explain_errors`.
        before: the exception that was being handled when the block began.
    """
    if sys.is_finalizing():  # Nothing can be looked up any more.
        return
    seen = {id(before)}
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        waiting += [one.__cause__, one.__context__]
        waiting += one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        held = getattr(one, "__notes__", ())
        if not any(isinstance(text, str) and text.startswith(HEAD) for text in held):
            note = _note(one, model)
            forget(one)
            if note:
                one.add_note(note)


def explain(
    error: BaseException, model: nn.Module | None = None
) -> tuple[Failure, KnownMessage | None, Explanation | None]:
    """Return the failure of an exception, the message that was recognised, and what it means."""
    failure = Failure(error, model)
    found = recognise(failure)
    if found is None:
        return failure, None, None
    return failure, found, SITUATIONS[found.name](failure, found.match)


def _note(error: BaseException, model: nn.Module | None) -> str:
    """The note of one exception; empty if it gets none."""
    if not isinstance(error, Exception) or isinstance(error, TorchtapError):
        return ""
    try:
        with without_torch_functions():  # Reading a tensor is to run no code of its class.
            failure, found, explanation = explain(error, model)
            # What PyTorch's own code handled or wrapped says nothing that its line would add to.
            is_inside = not any(frame.is_user for frame in failure.frames)
            if found is None and (is_inside or not is_from_torch(failure)):
                return ""
            return note_of(failure, explanation)
    except Exception as fault:  # noqa: BLE001 - the user's exception goes on, and this is said in it
        at = traceback.extract_tb(fault.__traceback__)[-1]
        return (
            f"{HEAD} no explanation, because of a fault of torchtap itself: "
            f"{type(fault).__name__}: {fault} ({at.filename}:{at.lineno})"
        )


def note_of(failure: Failure, explanation: Explanation | None) -> str:
    """The note: what happened, where, with what, and the ways out."""
    if explanation is None:
        explanation = Explanation(
            "this error of PyTorch is not in the catalogue; below is where it was raised.", ()
        )
    lines = wrap(explanation.what, first=HEAD, rest="  ")
    for label, text in _rows(failure, explanation):
        lines += wrap(clean(text), first=f"  {label:<{_LABEL}}", rest=" " * (_LABEL + 2))
    if explanation.ways:
        lines.append("  ways out")
    for number, way in enumerate(explanation.ways, 1):
        lines += wrap(way, first=f"    {number}.", rest="       ")
    return "\n".join(lines)


def _rows(failure: Failure, explanation: Explanation) -> Iterator[tuple[str, str]]:
    """The place: module, call, operation and line, as far as they are known."""
    user = failure.user
    module = explanation.module or failure.names.module(failure.module)
    if module:
        yield "module", module
    if failure.call:
        yield "call", ", ".join(filter(None, (failure.call, call_number(failure))))
    compiled = _FROM_USER.search(failure.text)
    if compiled is not None:
        yield "line", f"{compiled['file']}:{compiled['line']}, compiled: modules are not known"
    elif user is not None:
        yield "line", place_of(user)
    if "in DataLoader worker process" in failure.text.partition("\n")[0]:
        yield from _line_of_worker(failure.text)
    outermost = next((one for one in failure.frames if one.is_user), None)
    if outermost is not None and outermost is not user:
        yield "from", place_of(outermost)
    if failure.operation and (user is None or failure.operation not in user.text):
        yield "operation", failure.operation
    yield from explanation.details


def _line_of_worker(text: str) -> Iterator[tuple[str, str]]:
    """The innermost line of the program in what a worker of a DataLoader raised."""
    lines = [one.groups() for one in _LINE.finditer(text) if not is_of_library(one["file"])]
    for file, line, name, source in lines[-1:]:
        yield "in worker", f"{shown_file(file)}:{line}, in {name}: {source.strip()}"

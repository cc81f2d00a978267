"""The notes: what an exception of PyTorch means, where it came, with what, and the ways out."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterator

from torch import nn

from torchtap.core.errors import TorchtapError
from torchtap.core.source_files import is_of_library, shown_file
from torchtap.core.text import clean, wrap
from torchtap.core.torch_private import without_torch_functions
from torchtap.failures.catalogue import SITUATIONS
from torchtap.failures.counted_sizes import counted_elsewhere
from torchtap.failures.exchanged_operands import exchanged_operands
from torchtap.failures.failed_call import which_call
from torchtap.failures.failure import Explanation, Failure, place_of
from torchtap.failures.lost_results import dropped_result
from torchtap.failures.message_patterns import KnownMessage, is_from_torch, recognise
from torchtap.failures.misfit_sizes import single_join
from torchtap.failures.misplaced_members import misplaced
from torchtap.failures.other_names import exchanged_arguments
from torchtap.failures.parsed_source import forget_old_trees
from torchtap.failures.traceback_frame import forget
from torchtap.failures.tried_ways import without_refused
from torchtap.failures.unread_members import unread_layer
from torchtap.failures.value_chains import placed, rows_of

HEAD = "torchtap:"
"""How every note of ours begins."""
_LABEL = 11
_LINE = re.compile(
    r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)\n(?P<source>[^\n]*)'
)
_FROM_USER = "from user code:"


def add_notes(
    error: BaseException, model: nn.Module | None = None, *, before: BaseException | None = None
) -> list[str]:
    """Add the note to an exception and to those that led to it, where they are PyTorch's.

    Args:
        error: the exception.
        model: as of :func:`explain_errors`.
        before: the exception that was being handled when the block began.

    Returns:
        the notes that were added now.
    """
    if sys.is_finalizing():  # Nothing can be looked up any more.
        return []
    added = []
    seen = {id(before)}
    waiting: list[tuple[BaseException | None, str]] = [(error, "")]
    while waiting:
        one, noted = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        held = getattr(one, "__notes__", ())
        is_noted = any(isinstance(text, str) and text.startswith(HEAD) for text in held)
        # The compiler raises its error anew, as an exception of another class with the same text.
        if not is_noted and not _is_said_in(noted, str(one)):
            forget_old_trees()
            note = _note(one, model)
            forget(one)
            if note:
                is_noted = True
                one.add_note(note)
                added.append(note)
        said = str(one) if is_noted else noted
        waiting += [(one.__cause__, said), (one.__context__, said)]
        if isinstance(one, BaseExceptionGroup):
            waiting += [(part, "") for part in one.exceptions]
    return added


def _is_said_in(noted: str, text: str) -> bool:
    """Return whether an exception has the text of the one that it led to, which has a note."""
    first = text.partition("\n")[0]
    return bool(first) and (text in noted or noted.startswith(first))


def explain(
    error: BaseException, model: nn.Module | None = None
) -> tuple[Failure, KnownMessage | None, Explanation | None]:
    """Return the failure of an exception, the message that was recognised, and what it means."""
    failure = Failure(error, model)
    known = recognise(failure)
    if known is None:
        return failure, None, None
    explanation = SITUATIONS[known.name](failure, known.match)
    way = misplaced(failure) or exchanged_arguments(failure) or exchanged_operands(failure)
    way = way or dropped_result(failure) or counted_elsewhere(failure)
    way = way or single_join(failure, explanation.ways)
    way = way or unread_layer(failure, explanation.ways)
    if way:
        explanation = explanation._replace(ways=(way, *explanation.ways))
    tried = without_refused(failure, explanation.ways)
    ways = tuple(placed(failure, one) for one in tried)
    explanation = explanation._replace(ways=ways)
    return failure, known, explanation


def _note(error: BaseException, model: nn.Module | None) -> str:
    """Return the note of one exception; empty if it gets none."""
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
    """Return the note: what happened, where, with what, and the ways out."""
    if explanation is None:
        explanation = Explanation(
            "this error of PyTorch is not in the catalogue; below is where it was raised.", ()
        )
    lines = wrap(explanation.what, first=HEAD, rest="  ")
    rows = dict.fromkeys(_rows(failure, explanation))
    rows |= dict.fromkeys(rows_of(failure, " ".join(text for _, text in rows)))
    for label, text in rows:
        lines += wrap(clean(text), first=f"  {label:<{_LABEL}}", rest=" " * (_LABEL + 2))
    if explanation.ways:
        lines.append("  ways out")
    for number, way in enumerate(explanation.ways, 1):
        lines += wrap(way, first=f"    {number}.", rest="       ")
    return "\n".join(lines)


def _rows(failure: Failure, explanation: Explanation) -> Iterator[tuple[str, str]]:
    """Yield the place: module, call, operation and line, as far as they are known."""
    user = failure.user
    module = explanation.module or failure.names.module(failure.module)
    if module:
        yield "module", module
    if failure.call:
        yield "call", ", ".join(filter(None, (failure.call, which_call(failure))))
    compiled = _lines_of_program(failure.text.partition(_FROM_USER)[2])
    if compiled:
        file, line, *_ = compiled[-1]
        yield "line", f"{shown_file(file)}:{line}, compiled: modules are not known"
    elif user is not None:
        yield "line", place_of(user)
    if "in DataLoader worker process" in failure.text.partition("\n")[0]:
        yield from _line_of_worker(failure.text)
    outermost = next((frame for frame in failure.frames if frame.is_user), None)
    if outermost is not None and outermost is not user:
        yield "from", place_of(outermost)
    if failure.operation and (user is None or failure.operation not in user.text):
        yield "operation", failure.operation
    yield from explanation.details


def _line_of_worker(text: str) -> Iterator[tuple[str, str]]:
    """Yield the innermost line of the program in what a worker of a DataLoader raised."""
    for file, line, name, source in _lines_of_program(text)[-1:]:
        yield "in worker", f"{shown_file(file)}:{line}, in {name}: {source.strip()}"


def _lines_of_program(traceback: str) -> list[tuple[str, ...]]:
    """Return file, line, function and source of the program's lines in the text of a traceback."""
    lines = [one.groups() for one in _LINE.finditer(traceback)]
    return [line for line in lines if not is_of_library(line[0])]

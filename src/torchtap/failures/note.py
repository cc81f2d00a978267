"""The note that is added to an exception, as text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torchtap.core.text import clean, wrap
from torchtap.failures.failure import Explanation, Failure
from torchtap.failures.frame import is_of_library, shown_file

HEAD = "torchtap:"
"""How every note of ours begins."""
_LABEL = 11
_LINE = re.compile(
    r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)\n(?P<source>[^\n]*)'
)
_FROM_USER = re.compile(r'from user code:\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (\S+)')


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
    if explanation.module:
        yield "module", explanation.module
    elif failure.module is not None:
        yield "module", failure.module_text
    if failure.module is not None and failure.call:
        yield "call", ", ".join(filter(None, (failure.call, failure.call_number)))
    compiled = _FROM_USER.search(failure.text)
    if compiled is not None:
        yield "line", f"{compiled['file']}:{compiled['line']}, compiled: modules are not known"
    elif failure.user is not None:
        yield "line", failure.place(failure.user)
    worker = _line_of_worker(failure.text)
    if worker:
        yield "in worker", worker
    caller = _caller(failure)
    if caller:
        yield "from", caller
    if failure.operation and (failure.user is None or failure.operation not in failure.user.text):
        yield "operation", failure.operation
    yield from explanation.details


def _line_of_worker(text: str) -> str:
    """The innermost line of the program in what a worker of a DataLoader raised."""
    if "in DataLoader worker process" not in text.partition("\n")[0]:
        return ""
    lines = [one for one in _LINE.finditer(text) if not is_of_library(one["file"])]
    if not lines:
        return ""
    file, line, name, source = lines[-1].groups()
    return f"{shown_file(file)}:{line}, in {name}: {source.strip()}"


def _caller(failure: Failure) -> str:
    """The outermost line of the program, where that is not the one that is shown."""
    first = next((one for one in failure.frames if one.is_user), None)
    if first is None or first is failure.user:
        return ""
    return failure.place(first)


def has_note(error: BaseException) -> bool:
    """Return whether an exception has a note of ours."""
    return any(
        isinstance(one, str) and one.startswith(HEAD) for one in getattr(error, "__notes__", ())
    )

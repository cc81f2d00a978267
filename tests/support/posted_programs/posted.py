"""One program that was posted with PyTorch's error, and the verdict on the note it gets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from error_programs.program import Program, error_of, run

from torchtap.failures.failure import Failure
from torchtap.failures.message_patterns import recognise


@dataclass(frozen=True, slots=True)
class Posted:
    """A program from a forum page or an issue thread, made small, that PyTorch refuses.

    Attributes:
        name: what it is about, in a few words.
        url: the page on which it was posted.
        message: the name of PyTorch's message (``torchtap.failures.messages``).
        source: the program.
        cause: a pattern of what the note must say happened.
        way: a pattern of the first way out, as it was applied.
        changes: what is replaced in the source, to apply it.
        purpose: code that fails unless the repaired program does what it is for.
        wrong: a pattern of a statement that would be false.
    """

    name: str
    url: str
    message: str
    source: str
    cause: str
    way: str
    changes: tuple[tuple[str, str], ...]
    purpose: str
    wrong: str = r"(?!)"

    @property
    def program(self) -> Program:
        """The program in the form that raises and runs."""
        return Program(
            self.name, self.message, self.source, "", "", self.changes, purpose=self.purpose
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """The worth of the note of one program.

    Attributes:
        posted: the program.
        word: ``helpful``, ``right``, ``silent`` or ``wrong``.
        why: what was found, where it is not helpful.
        note: all of it.
        message: the name of PyTorch's message that was recognised; empty if none was.
    """

    posted: Posted
    word: str
    why: str
    note: str
    message: str


def verdict(posted: Posted, folder: Path) -> Verdict:
    """Run a program, read its note, and apply the first way out.

    A note is ``helpful`` if it says the cause and its first way out is the one that was applied,
    after which the program does what it is for; ``right`` if it says the cause and offers nothing
    else; ``silent`` if there is none, or it only says where. Everything else is ``wrong``: another
    cause, and a first way out that nobody has seen to work.
    """
    error = error_of(posted.program, folder)
    note = "\n".join(getattr(error, "__notes__", ()))
    known = recognise(Failure(error))
    word, why = _judged(posted, note, folder)
    if word == "silent":
        why = f"{type(error).__name__}: {error}".strip().split("\n")[0]
    return Verdict(posted, word, why, note, "" if known is None else known.name)


def _judged(posted: Posted, note: str, folder: Path) -> tuple[str, str]:
    """The word, and what was found."""
    said, _, ways = " ".join(note.split()).partition(" ways out 1. ")
    first = re.split(r" 2\. (?=[A-Z])", ways)[0]
    if not note or "not in the catalogue" in said:
        return "silent", ""
    if re.search(posted.wrong, said) or not re.search(posted.cause, said):
        return "wrong", f"says: {said}"
    if not first:
        return "right", "no way out"
    if not re.search(posted.way, first):
        return "wrong", f"first way out: {first}"
    if posted.program.fixed == posted.program.text:
        return "wrong", "the way out changes nothing"
    try:
        names = run(posted.program.fixed, folder)
        exec(posted.purpose, names)
    except Exception as failed:  # noqa: BLE001 - whatever the repaired program raises is told
        return "wrong", f"repaired: {type(failed).__name__}: {failed}"
    return "helpful", ""

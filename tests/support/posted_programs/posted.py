"""One program that was posted with PyTorch's error, and the verdict on the note it gets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from error_programs.program import Program, error_of, run


@dataclass(frozen=True, slots=True)
class Posted:
    """A program from a forum page or an issue thread, made small, that PyTorch refuses.

    Attributes:
        name: what it is about, in a few words.
        url: the page on which it was posted.
        source: the program.
        cause: a pattern of what the note must say happened.
        way: a pattern of the first way out, as it was applied.
        changes: what is replaced in the source, to apply it.
        purpose: code that fails unless the repaired program does what it is for.
        wrong: a pattern of a statement that would be false.
    """

    name: str
    url: str
    source: str
    cause: str
    way: str
    changes: tuple[tuple[str, str], ...]
    purpose: str
    wrong: str = r"(?!)"

    @property
    def program(self) -> Program:
        """As one that raises and runs."""
        return Program(self.name, "", self.source, "", "", self.changes, purpose=self.purpose)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the note of one program was worth.

    Attributes:
        posted: the program.
        word: ``helpful``, ``right``, ``silent`` or ``wrong``.
        why: what was found, where it is not helpful.
        note: all of it.
    """

    posted: Posted
    word: str
    why: str
    note: str


def verdict(posted: Posted, folder: Path) -> Verdict:
    """Run a program, read its note, and apply the first way out.

    A note is ``helpful`` if it says the cause and its first way out is the one that was applied,
    after which the program does what it is for; ``right`` if it says the cause and offers nothing
    else; ``silent`` if there is none, or it only says where. Everything else is ``wrong``: another
    cause, and a first way out that nobody has seen to work.
    """
    error = error_of(posted.program, folder)
    note = "\n".join(getattr(error, "__notes__", ()))
    said, _, ways = " ".join(note.split()).partition(" ways out 1. ")
    first = re.split(r" 2\. (?=[A-Z])", ways)[0]
    if not note or "not in the catalogue" in said:
        return Verdict(posted, "silent", f"{type(error).__name__}: {error}".split("\n")[0], note)
    if re.search(posted.wrong, said) or not re.search(posted.cause, said):
        return Verdict(posted, "wrong", f"says: {said}", note)
    if not first:
        return Verdict(posted, "right", "no way out", note)
    if not re.search(posted.way, first):
        return Verdict(posted, "wrong", f"first way out: {first}", note)
    if posted.program.fixed == posted.program.text:
        return Verdict(posted, "wrong", "the way out changes nothing", note)
    try:
        names = run(posted.program.fixed, folder)
        exec(posted.purpose, names)
    except Exception as failed:  # noqa: BLE001 - whatever the repaired program raises is told
        return Verdict(posted, "wrong", f"repaired: {type(failed).__name__}: {failed}", note)
    return Verdict(posted, "helpful", "", note)

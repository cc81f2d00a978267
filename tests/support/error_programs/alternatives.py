"""A way out among several of a note, applied to the program whose condition it states."""

from __future__ import annotations

from pathlib import Path

from error_programs.program import PRELUDE, Program, error_of, run

NAMES = ("source", "way", "old", "new", "meaning")
"""Program, a part of its note, what is replaced by what, and code that fails unless it is right."""


def note_of(source: str, folder: Path) -> str:
    """Return the note of a program that raises, in one line."""
    error = error_of(Program("of a test", "", source, "", "", ()), folder)
    return " ".join(error.__notes__[0].split())


def assert_repaired(source: str, way: str, old: str, new: str, meaning: str, folder: Path) -> None:
    """Assert that a note has a way out, and that the program does with it what it is for."""
    note = note_of(source, folder)
    assert way in note, note
    assert old in source, old
    run(f"{PRELUDE}{source.replace(old, new)}\n{meaning}\n", folder)

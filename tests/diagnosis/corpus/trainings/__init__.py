"""Small trainings, healthy and broken on purpose, on which the rules of diagnosis are measured."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from trainings.case import Case

HALVES = ("tuning", "held_out")
# Two more sets, written later with the rules unseen.
SETS = (*HALVES, "second", "third")


def cases(half: str) -> list[Case]:
    """All cases of one half, in the order of their files."""
    names = sorted(path.stem for path in Path(__file__).parent.glob(f"{half}_*.py"))
    return [case for name in names for case in import_module(f"trainings.{name}").CASES]

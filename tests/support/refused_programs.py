"""Short programs that PyTorch refuses, and each with a way out of its note applied."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).parents[1] / "scripts" / "refused_programs.txt"
"""A program a block: ``=== message | way out``, the program, ``---``, and the repaired one, which
fails unless it does what it is for."""


class Refused(NamedTuple):
    """A program that PyTorch refuses, and the same with a way out applied.

    Attributes:
        message: the name of PyTorch's message.
        way: a part of the way out that is applied.
        source: the program.
        repaired: the program that follows it, with assertions.
    """

    message: str
    way: str
    source: str
    repaired: str


def programs() -> list[Refused]:
    """Return them in the order of their file."""
    blocks = re.split(r"^=== ", FILE.read_text(), flags=re.M)[1:]
    found = []
    for block in blocks:
        head, _, rest = block.partition("\n")
        message, _, way = head.partition(" | ")
        source, _, repaired = rest.partition("\n---\n")
        found.append(Refused(message, way, source + "\n", repaired))
    return found

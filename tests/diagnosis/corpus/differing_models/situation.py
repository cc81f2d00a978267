"""Two models that differ in one thing, and what a comparison has to say first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn


class Two(NamedTuple):
    """A reference, a candidate, and what both are called with."""

    a: nn.Module
    b: nn.Module
    inputs: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Situation:
    """The planted cause; ``paths`` are those of the reference."""

    name: str
    build: Callable[[], Two]
    # Accepted paths and causes of the first difference; empty where there is none.
    paths: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    map: dict[str, str] | None = None


def wrong(situation: Situation, comparison: Any) -> list[str]:
    """Everything that a comparison says otherwise than planted; empty if all is right."""
    first = comparison.first
    if not situation.paths:
        return [] if first is None else [f"{first.path} ({first.cause}), where nothing differs"]
    if first is None:
        return ["nothing found"]
    found = []
    if first.path not in situation.paths:
        found.append(f"path {first.path}, planted {' or '.join(situation.paths)}")
    if first.cause not in situation.causes:
        found.append(f"cause {first.cause}, planted {' or '.join(situation.causes)}")
    return found

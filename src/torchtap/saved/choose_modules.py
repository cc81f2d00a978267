"""Chooses the modules to offload; how and why is in the docstring of ``tt.advise_offload``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import nn

from torchtap.core.errors import InputError
from torchtap.saved.profile import SavedMemory


def choose(saved: Sequence[SavedMemory], budget: int) -> set[str]:
    """Return the paths of the modules to offload. Offloading a module offloads those in it.

    Raises:
        InputError: with everything offloaded, more stays than the budget allows.
    """
    paths = paths_of(saved)
    total = sum(one.nbytes for one in saved)

    def needed(moved: set[str]) -> int:
        leaving = [one.nbytes for one in saved if one.leaves(moved)]
        return total - sum(leaving) + 2 * max(leaving, default=0)

    moved: set[str] = set()
    for one in saved:
        if needed(moved) <= budget:
            break
        if one.is_movable and not one.leaves(moved):
            moved |= {path for path in paths if path in one.paths or _above(path, one.paths)}
    if (least := needed(moved)) > budget:
        raise InputError(
            f"budget_bytes is {budget:,}; with everything offloaded {least:,} bytes still are in "
            f"memory: what is small or cannot be moved, and two of the largest tensors on their "
            f"way. Give at least {least:,}, or a smaller batch."
        )
    for path in reversed(paths):
        is_outermost = path in moved and not _above(path, moved)
        if is_outermost and needed(moved - {path}) <= budget:
            moved.remove(path)
    return moved


def paths_of(saved: Iterable[SavedMemory]) -> list[str]:
    """Return modules that save anything, in the order in which they first do."""
    return list(dict.fromkeys(path for one in saved for path in one.paths))


def _is_in(path: str, other: str) -> bool:
    return path != other and (not other or path.startswith(f"{other}."))


def _around(path: str) -> set[str]:
    """Return a path, and those of all modules around it."""
    parts = path.split(".")
    return {"", *(".".join(parts[:depth]) for depth in range(1, len(parts) + 1))}


def _above(path: str, moved: Iterable[str]) -> bool:
    """Return whether a module around it is moved."""
    return any(_is_in(path, other) for other in moved)


def wait_seconds(moved: Iterable[SavedMemory], cost: float) -> float:
    """Seconds that backward waits; the formula of :func:`advise_offload`."""
    busy = wait = 0.0
    for one in sorted(moved, key=lambda one: -one.saved_at):
        busy += one.nbytes * cost
        wait = max(wait, busy - one.gap)
    return wait


def patterns_for(
    saved: Sequence[SavedMemory], modules: dict[str, nn.Module], moved: set[str]
) -> tuple[str, ...]:
    """Return the outermost paths in which every module that saves anything is moved."""
    by_place: dict[str, set[str]] = {}
    for path in paths_of(saved):
        for place in _around(path):
            by_place.setdefault(place, set()).add(path)
    chosen: list[str] = []
    for path in modules:
        inside = by_place.get(path)
        if inside and moved.issuperset(inside) and not _above(path, chosen):
            chosen.append(path)
    return tuple(path or "." for path in chosen)

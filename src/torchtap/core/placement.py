"""Placement labels, read back: which part of the whole a rank held.

Labels that :func:`torchtap.core.distributed.placement` writes stand in records and notes, also in
files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

_SHARD = re.compile(r"shard (\d+) of (\d+) \((\w+)\((?:dim=(-?\d+))?.*\)\)(?: on .+)?")
_REPLICA = re.compile(r"replica of (\d+)(?: on .+)?")
_PARTIAL = re.compile(r"partial .+ of (\d+), not reduced(?: on .+)?")
_ELSEWHERE = "of a mesh that this rank is not in"


@dataclass(frozen=True, slots=True)
class Axis:
    """A tensor's placement along one dim of a mesh of ranks.

    Attributes:
        kind: what each rank has of it.
        size: how many ranks the mesh has along this dim.
        place: which of the shards this rank has.
        dim: along which dim of the tensor it was cut; ``None`` where that is not known.
        is_inner: whether it was cut after the dims of the mesh behind this one cut it.
    """

    kind: Literal["shard", "replica", "partial", "elsewhere"]
    size: int = 0
    place: int = 0
    dim: int | None = None
    is_inner: bool = False


Placement = tuple[Axis, ...]
"""One :class:`Axis` for each dim of the mesh."""


def read_placement(label: str) -> Placement | None:
    """Return the placement that a label says; ``None`` for a label of another kind.

    Example:
        >>> [axis] = read_placement("shard 1 of 2 (Shard(dim=0)) on dp")
        >>> axis.place, axis.size, axis.dim
        (1, 2, 0)
        >>> read_placement("total") is None
        True
    """
    axes = [_axis(part) for part in label.split("; ")]
    return None if None in axes else tuple(axis for axis in axes if axis is not None)


def split_labels(labels: Iterable[str]) -> tuple[list[Placement], tuple[str, ...]]:
    """Return the placements among some labels, and the labels that are none."""
    read = [(label, read_placement(label)) for label in dict.fromkeys(labels)]
    others = tuple(label for label, placement in read if placement is None)
    return [placement for _, placement in read if placement is not None], others


def _axis(text: str) -> Axis | None:
    if text == _ELSEWHERE:
        return Axis("elsewhere")
    shard = _SHARD.fullmatch(text)
    if shard is not None:
        place, size, name, dim = shard.groups()
        is_inner = name == "_StridedShard"
        return Axis("shard", int(size), int(place), None if dim is None else int(dim), is_inner)
    replica = _REPLICA.fullmatch(text)
    if replica is not None:
        return Axis("replica", int(replica[1]))
    partial = _PARTIAL.fullmatch(text)
    return None if partial is None else Axis("partial", int(partial[1]))

"""Records and runs that are written out by hand, for tests of what is made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchtap.core.absence import Absence
from torchtap.core.record import FORWARD, UNVERSIONED, Record
from torchtap.core.site import Site
from torchtap.runs.run import Meta, Run
from torchtap.runs.source import HeldSource, as_records


def record(
    path: str = "fc",
    value: Tensor | None = None,
    *,
    port: str = "output",
    leaf: str = "",
    step: int = 0,
    call: int = 0,
    phase: str = FORWARD,
    backward: int | None = None,
    labels: tuple[str, ...] = (),
    version: int = UNVERSIONED,
) -> Record:
    """A record of zeros float32[2, 3], unless ``value`` is given."""
    if value is None:
        value = torch.zeros(2, 3)
    if backward is None:
        backward = 0 if port.startswith("grad") else -1
    return Record(Site(path, port, leaf), step, call, phase, backward, labels, value, version)


def run_of(
    *records: Record,
    absent: Sequence[Absence] = (),
    types: Mapping[str, tuple[str, ...]] | None = None,
) -> Run:
    """A run of these records; every module is a ``Linear``, unless ``types`` are given."""
    if types is None:
        types = {row.site.path: ("Linear",) for row in records}
    return held_run(records, Meta(model="Net", modules=dict(types)), absent=list(absent))


def held_run(records: Iterable[Record], meta: Meta, **parts: Any) -> Run:
    """A run of these records and of further parts of a source: ``series=``, ``notes=``, ..."""
    return Run(HeldSource(as_records(records), meta, **parts))

"""Writes a run into one safetensors file: no pickle, readable by any program without the model.

Each value is a tensor named ``SITE#step.call.backward.phase``; the keys, labels and what is known
of the model stand as JSON in the header's metadata under ``torchtap``. All of it is under checksums
(see :mod:`~torchtap.runs.single_file.header`), and docs/reference/format.md lays it out.
"""

from __future__ import annotations

import json
from collections.abc import Container
from dataclasses import asdict
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchtap.core.errors import RunError
from torchtap.core.record import Record
from torchtap.core.site import Site
from torchtap.runs.contents import Contents
from torchtap.runs.records import overwritten
from torchtap.runs.scalars import Scalars
from torchtap.runs.single_file.file_tensors import write_tensors
from torchtap.runs.single_file.header import (
    CHECKSUMS,
    EVALUATION,
    FORMAT,
    NOTES,
    PREFIX,
    SCALARS,
    renamed,
)
from torchtap.runs.single_file.packed_series import pack
from torchtap.runs.sparse import dtype_of, is_sparse, packed
from torchtap.runs.step_notes import StepNotes
from torchtap.runs.strided import COMPLEX_WITHOUT_NAME, storable
from torchtap.stats.series import Series


def save_run(held: Contents, path: Path) -> Path:
    """Write a run to ``path``; the file appears whole or not at all.

    Args:
        held: the contents of the run.
        path: of the file.

    Raises:
        RunError: there is a directory.
        OSError: it cannot be written there.
    """
    if path.is_dir():
        name = str(path / "run.safetensors")
        raise RunError(f"{path} is a directory; expected a file to write. Save it to {name!r}.")
    source = held.source
    tensors, headers = _packed_records(held)
    measured, series, unwritten = pack(held.series)
    evaluated, evaluation, more = pack(held.series.evaluation or Series(1))
    tensors.update(measured)
    tensors.update(renamed(evaluated, PREFIX, EVALUATION))
    tensors.update(_packed_scalars(source.scalars))
    tensors.update(_packed_notes(source.notes))
    of_ranks, ranks = ({}, None) if source.ranks is None else source.ranks.pack()
    tensors.update(of_ranks)
    body: dict[str, Any] = {
        "format": FORMAT,
        "checksums": CHECKSUMS,
        "series": series,
        "evaluation": evaluation,
        "scalars": source.scalars.names,
        "ranks": ranks,
        "meta": asdict(held.meta),
        "records": headers,
        "absent": [
            [*_parts(entry.site), entry.reason] for entry in (*source.absent, *unwritten, *more)
        ],
    }
    write_tensors(path, tensors, json.dumps(body), lambda: _refuse_overwritten(held))
    return path


def with_rank(path: Path, rank: int) -> Path:
    """Return the file of one of several ranks: ``run.rank0.safetensors``."""
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


def _packed_scalars(scalars: Scalars) -> dict[str, Tensor]:
    """Steps and numbers of each name, numbered: a name may be any text."""
    tensors = {}
    for place, name in enumerate(scalars.names):
        steps, values = scalars.of(name)
        tensors[f"{SCALARS}.{place}.steps"] = torch.tensor(steps, dtype=torch.int64)
        tensors[f"{SCALARS}.{place}.values"] = torch.tensor(values, dtype=torch.float64)
    return tensors


def _packed_notes(notes: StepNotes) -> dict[str, Tensor]:
    """Steps and their times, and ids and labels of those that have some."""
    steps, times = notes.times
    if not steps:
        return {}
    told = [[step, *found] for step in steps if any(found := notes.of(step))]
    text = np.frombuffer(json.dumps(told).encode("ascii"), dtype=np.uint8).copy()
    return {
        NOTES: torch.from_numpy(text),
        f"{NOTES}.steps": torch.tensor(steps, dtype=torch.int64),
        f"{NOTES}.times": torch.tensor(times, dtype=torch.float64),
    }


def _packed_records(held: Contents) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """The values by the names that they have in the file, and what is to be known of each."""
    headers: list[dict[str, Any]] = []
    tensors: dict[str, Tensor] = {}
    for record in held.records(phase=None):
        name = _unused_name(record, tensors)
        if record.kept.is_meta:
            raise RunError(
                f"{record.site} (step {record.step}, call {record.call}) is a meta tensor, which "
                f"has no values to write. Run the model on a device that has memory."
            )
        tensor, labels = _storable(record)
        dtype, more = str(tensor.dtype).removeprefix("torch."), {}
        if is_sparse(tensor):
            dtype, more = dtype_of(tensor), {"shape": list(tensor.shape)}
            tensor = packed(tensor)
        tensors[name] = tensor
        headers.append(
            {
                "name": name,
                "site": [record.site.path, record.site.port, record.site.leaf],
                "step": record.step,
                "call": record.call,
                "phase": record.phase,
                "backward": record.backward,
                "labels": labels,
                "real_view": tensor.dtype in COMPLEX_WITHOUT_NAME,
                "dtype": dtype,
                **more,
            }
        )
    return tensors, headers


def _unused_name(record: Record, used: Container[str]) -> str:
    """The name of a value; numbered where one key has several (a recomputation that is repeated,
    two leaves whose names are alike)."""
    site = str(record.site).encode("utf-8", "backslashreplace").decode()  # No lone surrogates.
    name = f"{site}#{record.step}.{record.call}.{record.backward}.{record.phase}"
    names = chain([name], (f"{name}.{number}" for number in count(1)))
    return next(one for one in names if one not in used)


def _parts(site: Site) -> tuple[str, str, str]:
    return site.path, site.port, site.leaf


def _storable(record: Record) -> tuple[Tensor, list[str]]:
    try:
        return storable(record.value, record.labels)
    except RunError as error:
        raise RunError(
            f"{record.site} (step {record.step}, call {record.call}) is {error}, and so cannot be "
            f"written. Leave it out: watch with a pattern '!{record.site}'."
        ) from error


def _refuse_overwritten(held: Contents) -> None:
    """See that no value was overwritten while it was written to the file.

    Raises:
        OverwrittenError: one was, by another thread.
    """
    for record in overwritten(held.recorded):
        _ = record.value

"""A run in one safetensors file: no pickle, readable by any program, opened without the model.

Each value is a tensor named ``SITE#step.call.backward.phase``; the keys, labels and what is known
of the model stand as JSON in the header's metadata under ``torchtap``. All of it is under checksums
(see :mod:`~torchtap.runs.single_file.header`), and docs/format.md lays it out.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from torchtap.core.absence import Absence
from torchtap.core.errors import RunError
from torchtap.core.record import Record
from torchtap.core.site import Site
from torchtap.runs.contents import Contents
from torchtap.runs.listing import PREFIX
from torchtap.runs.merging.rank_numbers import RankNumbers
from torchtap.runs.meta import Meta, meta_of
from torchtap.runs.records import Records
from torchtap.runs.scalars import Scalars
from torchtap.runs.single_file.header import (
    CHECKSUMS,
    FORMAT,
    UNPROTECTED,
    Header,
    Value,
    describing,
    read_header,
)
from torchtap.runs.single_file.packed import is_small, pack, unpack
from torchtap.runs.single_file.tensors import Tensors, write_tensors
from torchtap.runs.sparse import dtype_of, is_sparse, packed
from torchtap.runs.step_notes import StepNotes
from torchtap.runs.store.history import WHOLE_RUN
from torchtap.runs.store.index import DTYPES, Index, Tables, number_of
from torchtap.runs.store.mapped import MappedFiles, MappedValues
from torchtap.runs.strided import COMPLEX_WITHOUT_NAME, storable
from torchtap.stats.series import Series

T = TypeVar("T")
NOTES = "torchtap.notes"
"""Names of the tensors of what is known of each step begin so. Under this very name stand ids and
labels, as JSON in UTF-8: they grow with the samples, and a header may not."""
SCALARS = "torchtap.scalars"
"""Names of the tensors of what was logged begin so."""
EVALUATION = "torchtap.evaluation"
"""Names of the tensors of what was measured in evaluation forwards begin so."""


def save_run(held: Contents, scalars: Scalars, path: Path, notes: StepNotes | None = None) -> Path:
    """Write a run to ``path``; the file appears whole or not at all.

    Args:
        held: what is in it.
        scalars: numbers that were logged.
        path: of the file.
        notes: times, sample ids and labels of the steps.

    Raises:
        RunError: there is a directory.
        OSError: it cannot be written there.
    """
    if path.is_dir():
        name = str(path / "run.safetensors")
        raise RunError(f"{path} is a directory; expected a file to write. Save it to {name!r}.")
    tensors, headers = _packed_records(held)
    measured, series, unwritten = pack(held.series)
    evaluated, evaluation, more = pack(held.series.evaluation or Series(1))
    tensors.update(measured)
    tensors.update(_renamed(evaluated, PREFIX, EVALUATION))
    tensors.update(_packed_scalars(scalars))
    tensors.update(_packed_notes(notes or StepNotes()))
    of_ranks, ranks = ({}, None) if held.ranks is None else held.ranks.pack()
    tensors.update(of_ranks)
    body: dict[str, Any] = {
        "format": FORMAT,
        "checksums": CHECKSUMS,
        "series": series,
        "evaluation": evaluation,
        "scalars": scalars.names,
        "ranks": ranks,
        "meta": asdict(held.meta),
        "records": headers,
        "absent": [
            [*_parts(entry.site), entry.reason] for entry in (*held.absent(), *unwritten, *more)
        ],
    }
    write_tensors(path, tensors, json.dumps(body), lambda: _refuse_overwritten(held))
    return path


def with_rank(path: Path, rank: int) -> Path:
    """The file of one of several ranks: ``run.rank0.safetensors``."""
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


class Stored(NamedTuple):
    """The contents of a file, as :class:`~torchtap.runs.run.Run` takes them."""

    records: Records
    meta: Meta
    absent: Callable[[], Sequence[Absence]]
    series: Callable[[], Series]
    scalars: Scalars
    ranks: RankNumbers | None
    notes: Callable[[], StepNotes]


def read_run(path: str | Path, *, verify: bool = True) -> Stored:
    """Read what :func:`save_run` wrote; see :func:`~torchtap.runs.open_run.open_run`."""
    header = read_header(path, verify=verify)
    body = header.body()
    with describing(header.path):
        return _stored(header, body, verify=verify)


def _stored(header: Header, body: dict[str, Any], *, verify: bool) -> Stored:
    path, files = header.path.resolve(), MappedFiles()
    # Another file may take the place of this one while the run is open.
    files.bytes_of(path, 0, path.stat().st_size)
    tensors = Tensors(header, files, path, verify=verify)
    absent = [Absence(Site(path, port, leaf), why) for path, port, leaf, why in body["absent"]]
    absent += [Absence(WHOLE_RUN, why) for why in _doubts(header) if why not in _reasons(absent)]
    series = _series(tensors, body.get("series"), PREFIX)
    if body.get("evaluation"):
        series.evaluation = _series(tensors, body["evaluation"], EVALUATION)
    index = _index(header, header.values(body), path.name)
    is_verified = verify and header.crc32 is not None
    values = MappedValues(index, [path], files, verify=is_verified)
    own = index.tables
    records = Records.of_columns(values, index.columns, own.site, own.labels, own.phase)
    scalars = _scalars(tensors, body.get("scalars", ()))
    flat = body.get("ranks")
    ranks = None if flat is None else RankNumbers.unpack(flat, tensors.get)
    meta, notes = meta_of(body["meta"]), functools.cache(lambda: _notes(header.path, tensors))
    return Stored(records, meta, lambda: absent, lambda: series, scalars, ranks, notes)


def _doubts(header: Header) -> list[str]:
    """Why what is read may not be what was written."""
    if header.crc32 is None:
        return [UNPROTECTED]
    return [f"the file is damaged: {header.problem}"] if header.problem else []


def _reasons(absent: Iterable[Absence]) -> set[str]:
    return {entry.reason for entry in absent}


def _index(header: Header, values: Sequence[Value], file: str) -> Index:
    """The values of the file as the index of a folder has them."""
    tables = Tables(file=[file])
    entries: dict[str, tuple[list[Any], list[Any]]] = {
        "site": ([one.site for one in values], tables.site),
        "labels": ([one.labels for one in values], tables.labels),
        "shape": ([one.shape for one in values], tables.shape),
        "dtype": ([one.dtype for one in values], tables.dtype),
        "phase": ([one.phase for one in values], tables.phase),
    }
    stored = [header.tensors[one.name] for one in values]
    found: dict[str, Sequence[int]] = {
        "step": [one.step for one in values],
        "call": [one.call for one in values],
        "backward": [one.backward for one in values],
        "offset": [one.start for one in stored],
        "nbytes": [one.nbytes for one in stored],
        "row": [0] * len(values),
        "file": [0] * len(values),
        **{name: _coded(column, table) for name, (column, table) in entries.items()},
    }
    if header.crc32 is not None and not header.problem:
        found["crc32"] = [header.crc32[one.name] for one in values]
    return Index({name: np.array(one, dtype=DTYPES[name]) for name, one in found.items()}, tables)


def _coded(column: Sequence[T], table: list[T]) -> list[int]:
    """The numbers of some entries in a table, to which new ones are added."""
    known = {entry: number for number, entry in enumerate(table)}
    return [number_of(entry, known, table) for entry in column]


def _series(tensors: Tensors, body: dict[str, Any] | None, prefix: str) -> Series:
    """One of the series of a file, whose tensors have names that begin with ``prefix``."""
    found = (name for name in tensors.names() if name.startswith(f"{prefix}."))
    names = _renamed({name: name for name in found}, prefix, PREFIX)
    small = {to: tensors.get(name) for to, name in names.items() if is_small(to)}
    return unpack(small, body, lambda name, start, end: tensors.part(names[name], start, end))


def _renamed(by_name: Mapping[str, T], prefix: str, other: str) -> dict[str, T]:
    return {f"{other}{name.removeprefix(prefix)}": value for name, value in by_name.items()}


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


def _notes(path: Path, tensors: Tensors) -> StepNotes:
    """Read the notes on the steps; files that were written before they held notes have none."""
    found = StepNotes()
    if NOTES not in tensors:
        return found
    with describing(path):
        steps, times = (tensors.get(f"{NOTES}.{name}") for name in ("steps", "times"))
        for step, time in zip(steps.tolist(), times.tolist(), strict=True):
            found.note(step, time, (), {})
        for step, ids, labels in json.loads(tensors.get(NOTES).numpy().tobytes()):
            found.tell(step, ids, labels)
    return found


def _scalars(tensors: Tensors, names: Iterable[str]) -> Scalars:
    scalars = Scalars()
    for place, name in enumerate(names):
        steps, values = (tensors.get(f"{SCALARS}.{place}.{k}") for k in ("steps", "values"))
        for step, value in zip(steps.tolist(), values.tolist(), strict=True):
            scalars.log(step, {name: value})
    return scalars


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
    for record in held.kept.overwritten():
        _ = record.value

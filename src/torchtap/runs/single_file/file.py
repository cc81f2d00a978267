"""A run in one safetensors file: no pickle, readable by any program, opened without the model.

Each value is a tensor named ``SITE#step.call.backward.phase``; the keys, labels and what is known
of the model stand as JSON in the header's metadata under ``torchtap``.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from torchtap.core.absence import Absence
from torchtap.core.errors import RunError
from torchtap.core.record import Record
from torchtap.core.site import Site, nearest, one_of
from torchtap.runs.contents import Contents
from torchtap.runs.listing import FORMAT, PREFIX, check_format
from torchtap.runs.merging.rank_numbers import RankNumbers
from torchtap.runs.meta import Meta, meta_of
from torchtap.runs.records import Records
from torchtap.runs.scalars import Scalars
from torchtap.runs.single_file.packed import is_small, pack, unpack
from torchtap.runs.single_file.values import ALL
from torchtap.runs.step_notes import StepNotes
from torchtap.runs.strided import COMPLEX_WITHOUT_NAME, as_dtype, nameable, strided
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
    _write(path, tensors, json.dumps(body))
    return path


def with_rank(path: Path, rank: int) -> Path:
    """The file of one of several ranks: ``run.rank0.safetensors``."""
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


def _write(path: Path, tensors: dict[str, Tensor], text: str) -> None:
    half = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        half.touch()
        mode = half.stat().st_mode  # As the user's umask wants it; safetensors makes it private.
        save_file(tensors, half, metadata={"torchtap": text})
        half.chmod(mode)
        half.replace(path)
    except (OSError, SafetensorError) as error:
        if isinstance(error, OSError) and error.filename == str(half):
            error.filename, error.filename2 = str(path), None  # The one that the user knows.
        error.add_note(f"The run was not written to {path}. Save it where there is room for it.")
        raise
    finally:
        with suppress(OSError):  # What went wrong before is the one to see.
            half.unlink()


class Stored(NamedTuple):
    """What a file holds, as :class:`~torchtap.runs.run.Run` takes it."""

    records: Records
    meta: Meta
    absent: Callable[[], Sequence[Absence]]
    series: Callable[[], Series]
    scalars: Scalars
    ranks: RankNumbers | None
    notes: Callable[[], StepNotes]


def read_run(path: str | Path) -> Stored:
    """Read what :func:`save_run` wrote; see :func:`~torchtap.runs.run.open_run`."""
    file = Path(path)
    if not file.exists():
        raise FileNotFoundError(f"There is no run at {file}{_others(file)}")
    if file.is_dir():
        raise RunError(f"{file} is a directory; expected a file{_others(file / 'run')}")
    try:
        opened: Any = safe_open(file, framework="pt")
        text = (opened.metadata() or {}).get("torchtap")
    except (SafetensorError, OSError) as error:
        raise RunError(f"{file} {_no_safetensors(file, error)}") from error
    if text is None:
        names = sorted(opened.keys())
        first = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise RunError(
            f"{file} is a safetensors file, but torchtap did not write it: it holds {first}. "
            f"Its tensors are read by safetensors.torch.load_file({str(file)!r})."
        )
    try:
        body = json.loads(text)
        check_format(file, body)
        return _stored(opened, body)
    except (ValueError, TypeError, LookupError) as error:
        if isinstance(error, RunError):
            raise
        raise RunError(
            f"{file} has the name of a run of torchtap in its header and none there that can be "
            f"read ({type(error).__name__}: {error}). Write it again with run.save."
        ) from error


def _others(file: Path) -> str:
    """The end of a sentence: what a file in the same directory may have been meant."""
    home = file.parent
    if not home.is_dir():
        return f": there is no directory {home} either."
    found = sorted(one.name for one in home.glob("*.safetensors") if one.is_file())
    return one_of([str(home / name) for name in nearest(file.name, found) or found[:3]])


def _no_safetensors(file: Path, error: Exception) -> str:
    """What is wrong with a file that safetensors does not read."""
    try:
        nbytes = file.stat().st_size
        with file.open("rb") as opened:
            start = opened.read(16)
    except OSError as failed:
        return f"cannot be read: {failed.strerror}."
    if not nbytes:
        return "is not a safetensors file: it is empty. Expected one that run.save wrote."
    if start.startswith((b"PK", b"\x80")):
        return (
            f"is not a safetensors file but a pickle or a zip, as torch.save writes them. Weights "
            f"are read by torch.load({str(file)!r})."
        )
    if start[8:].startswith(b"{"):
        return (
            f"is not a safetensors file that can be read: it breaks off or was damaged, with "
            f"{nbytes:,} bytes left ({error}). Copy it again, or save the run again."
        )
    return f"is not a safetensors file: {error}. Expected one that run.save wrote."


def _stored(opened: Any, body: dict[str, Any]) -> Stored:
    absent = [Absence(Site(path, port, leaf), why) for path, port, leaf, why in body["absent"]]
    series = _series(opened, body.get("series"), PREFIX)
    if body.get("evaluation"):
        series.evaluation = _series(opened, body["evaluation"], EVALUATION)
    records = _records(opened, body["records"])
    scalars = _scalars(opened, body.get("scalars", ()))
    flat = body.get("ranks")
    ranks = None if flat is None else RankNumbers.unpack(flat, opened.get_tensor)
    meta, notes = meta_of(body["meta"]), functools.cache(lambda: _notes(opened))
    return Stored(records, meta, lambda: absent, lambda: series, scalars, ranks, notes)


def _series(opened: Any, body: dict[str, Any] | None, prefix: str) -> Series:
    """One of the series of a file, whose tensors have names that begin with ``prefix``."""
    found = (name for name in opened.keys() if name.startswith(f"{prefix}."))  # noqa: SIM118
    names = _renamed({name: name for name in found}, prefix, PREFIX)
    small = {to: opened.get_tensor(name) for to, name in names.items() if is_small(to)}
    return unpack(small, body, lambda name, start, end: _read(opened, names[name], start, end))


def _renamed(by_name: Mapping[str, T], prefix: str, other: str) -> dict[str, T]:
    return {f"{other}{name.removeprefix(prefix)}": value for name, value in by_name.items()}


def _read(opened: Any, name: str, start: int, end: int) -> Tensor:
    """Elements of a flat tensor of the file, without the others."""
    if (start, end) == (0, ALL):
        whole: Tensor = opened.get_tensor(name)
        return whole
    part: Tensor = opened.get_slice(name)[start:end]
    return part


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


def _notes(opened: Any) -> StepNotes:
    """What is known of the steps; nothing in files that were written before they held it."""
    found = StepNotes()
    if NOTES not in opened.keys():  # noqa: SIM118 - the file is no mapping
        return found
    steps, times = (opened.get_tensor(f"{NOTES}.{name}") for name in ("steps", "times"))
    for step, time in zip(steps.tolist(), times.tolist(), strict=True):
        found.note(step, time, (), {})
    for step, ids, labels in json.loads(opened.get_tensor(NOTES).numpy().tobytes()):
        found.tell(step, ids, labels)
    return found


def _scalars(opened: Any, names: Iterable[str]) -> Scalars:
    scalars = Scalars()
    for place, name in enumerate(names):
        steps, values = (opened.get_tensor(f"{SCALARS}.{place}.{k}") for k in ("steps", "values"))
        for step, value in zip(steps.tolist(), values.tolist(), strict=True):
            scalars.log(step, {name: value})
    return scalars


class _Values(Sequence[Tensor]):
    """The values of an open file, each loaded when it is first read."""

    def __init__(
        self, opened: Any, names: list[str], real_views: list[bool], dtypes: list[str | None]
    ) -> None:
        self._opened = opened
        self._names = names
        self._real_views = real_views
        self._dtypes = dtypes
        self._loaded: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, place: Any) -> Any:
        if place not in self._loaded:
            # Memory-mapped by safetensors: bytes are read when they are touched.
            tensor = self._opened.get_tensor(self._names[place])
            if self._real_views[place]:
                tensor = torch.view_as_complex(tensor)
            self._loaded[place] = tensor = as_dtype(tensor, self._dtypes[place])
        return self._loaded[place]


def _records(opened: Any, headers: list[dict[str, Any]]) -> Records:
    if not headers:
        return Records()

    def column(name: str) -> list[Any]:
        return [entry[name] for entry in headers]

    dtypes = [entry.get("dtype") for entry in headers]  # Older files have none.
    records = Records(_Values(opened, column("name"), column("real_view"), dtypes))
    sites = [Site(*parts) for parts in column("site")]
    numbers = (column(name) for name in ("step", "call", "phase", "backward"))
    records.append_columns(sites, *numbers, [tuple(labels) for labels in column("labels")])
    return records


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
        tensor, labels = _strided(record)
        tensors[name] = _own(nameable(tensor))
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
                "dtype": str(tensor.dtype).removeprefix("torch."),
            }
        )
    return tensors, headers


def _unused_name(record: Record, used: Container[str]) -> str:
    """The name of a value; numbered where one key has several (a recomputation that is repeated,
    two leaves whose names are alike)."""
    name = f"{record.site}#{record.step}.{record.call}.{record.backward}.{record.phase}"
    names = chain([name], (f"{name}.{number}" for number in count(1)))
    return next(one for one in names if one not in used)


def _parts(site: Site) -> tuple[str, str, str]:
    return site.path, site.port, site.leaf


def _strided(record: Record) -> tuple[Tensor, list[str]]:
    try:
        return strided(record.value, record.labels)
    except RunError as error:
        raise RunError(
            f"{record.site} (step {record.step}, call {record.call}) is {error}, and so cannot be "
            f"written. Leave it out: watch with a pattern '!{record.site}'."
        ) from error


def _own(tensor: Tensor) -> Tensor:
    """Contiguous, on the CPU, and in memory of its own: safetensors refuses tensors that share."""
    tensor = tensor.resolve_conj().resolve_neg()
    return tensor.to("cpu").clone(memory_format=torch.contiguous_format)

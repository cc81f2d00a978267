"""A run as files of other formats."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchtap.core.errors import InputError, RunError
from torchtap.runs.run import Run, contents_of
from torchtap.runs.select import Where
from torchtap.runs.sparse import about, is_sparse, parts_of
from torchtap.runs.strided import nameable
from torchtap.runs.tables.statistics_columns import unicode_names
from torchtap.runs.tables.statistics_rows import arrow_table, statistics_rows
from torchtap.stats.statistics import NUMBERS

_NO_VALUES = "The run has no values; its statistics are exported to csv or parquet."
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")


def export_run(run: Run, kind: str, path: Path, where: Where = None) -> list[Path]:
    """Write the values of a run, or its statistics, in another format.

    Args:
        run: what to write.
        kind: ``npz`` (an archive of arrays, one per value, named
            ``SITE_STEP.CALL.BACKWARD.PHASE``), ``safetensors`` (one tensor per site,
            its values joined along dim 0), or ``csv`` and ``parquet`` (statistics, one row per site
            and step). The first two have times, sample ids and labels of the steps too, as JSON:
            in the array ``steps``, and in the metadata under ``notes``.
        path: of the file.
        where: which sites.

    Returns:
        the files that were written.

    Raises:
        InputError: there is no such format.
        RunError: the values of a site do not fit together.
    """
    if kind not in KINDS:
        raise InputError(f"--format is {kind!r}; expected one of {', '.join(KINDS)}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.part")
    try:
        KINDS[kind](run, half, where)
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
    return [path]


def _write_npz(run: Run, path: Path, where: Where) -> None:
    arrays: dict[str, Any] = {}
    for record in run.records(where, phase=None):
        name = f"{record.site}#{record.step}.{record.call}.{record.backward}.{record.phase}"
        # Names are of files in the archive: none may lead out of where it is unpacked.
        value = record.value
        for part, one in _parts_of(value).items():
            safe = unused(_UNSAFE.sub("_", name).lstrip(".") + part, arrays)
            arrays[safe] = _array(one, str(record.site))
        if is_sparse(value):
            arrays[f"{safe.rpartition('.')[0]}.about"] = np.array(json.dumps(about(value)))
    if not arrays:
        raise RunError(_NO_VALUES)
    notes = _notes(run)
    if notes:
        arrays[unused("steps", arrays)] = np.array(json.dumps(notes))
    with path.open("wb") as stream:
        np.savez(stream, **arrays)


def _write_safetensors(run: Run, path: Path, where: Where) -> None:
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    steps: dict[str, list[int]] = {}
    dtypes: dict[str, str] = {}
    sparse: dict[str, dict[str, Any]] = {}
    sites, held = run.select(where), contents_of(run)
    for site, name in zip(sites, unicode_names(sites), strict=True):
        if site in run.series and not any(True for _ in run.records(site)):
            continue
        joined = run.cat(site)
        dtypes[name] = str(joined.dtype).removeprefix("torch.")
        if is_sparse(joined):
            sparse[name] = about(joined)
        for part, value in _parts_of(joined).items():
            tensors[unused(f"{name}{part}", tensors)] = nameable(value).contiguous()
        steps[name] = held.site_rows(site).steps.tolist()
    if not tensors:
        raise RunError(_NO_VALUES)
    said = {"steps": steps, "dtypes": dtypes, "notes": _notes(run)}
    said |= {"sparse": sparse} if sparse else {}
    path.touch()
    mode = path.stat().st_mode  # As the user's umask wants it; safetensors makes it private.
    save_file(tensors, path, metadata={name: json.dumps(one) for name, one in said.items()})
    path.chmod(mode)


def _parts_of(tensor: Tensor) -> dict[str, Tensor]:
    """Return a tensor under no name; the indices and values of a sparse one under theirs."""
    if not is_sparse(tensor):
        return {"": tensor}
    return {f".{name}": part for name, part in parts_of(tensor).items()}


def _notes(run: Run) -> list[dict[str, Any]]:
    """Return the notes on each step."""
    notes = run.source.notes
    entries = []
    for step, time in zip(*notes.times, strict=True):
        ids, labels = notes.of(step)
        entries.append({"step": step, "time": time, "ids": ids, "labels": labels})
    return entries


def _write_csv(run: Run, path: Path, where: Where) -> None:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, ["site", "step", "dtype", *NUMBERS])
        writer.writeheader()
        writer.writerows(statistics_rows(contents_of(run), where))


def _write_parquet(run: Run, path: Path, where: Where) -> None:
    table = arrow_table(contents_of(run), where)  # Says what is to be installed.
    import pyarrow.parquet

    pyarrow.parquet.write_table(table, path)


KINDS: Mapping[str, Callable[[Run, Path, Where], None]] = {
    "npz": _write_npz,
    "safetensors": _write_safetensors,
    "csv": _write_csv,
    "parquet": _write_parquet,
}


def unused(name: str, used: Mapping[str, Any]) -> str:
    """Return a name that is not there yet."""
    number, found = 1, name
    while found in used:
        found, number = f"{name}.{number}", number + 1
    return found


def _array(tensor: Tensor, site: str) -> Any:
    """A tensor as numpy has it; a dtype that numpy lacks as float32, which holds it exactly."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    if plain.dtype is torch.bfloat16 or "float8" in str(plain.dtype):
        plain = plain.float()
    try:
        return plain.numpy()
    except TypeError as error:
        raise RunError(
            f"{site} is {str(plain.dtype).removeprefix('torch.')}, which numpy does not have. "
            f"Export to safetensors."
        ) from error

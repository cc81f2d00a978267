"""The source of a run in a file, which :mod:`~torchtap.runs.single_file.write_run` wrote."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from torchtap.runs.merging.rank_numbers import RankNumbers
from torchtap.runs.records import Records
from torchtap.runs.scalars import Scalars
from torchtap.runs.single_file.description import read_description
from torchtap.runs.single_file.file_tensors import Tensors
from torchtap.runs.single_file.header import (
    EVALUATION,
    NOTES,
    PREFIX,
    SCALARS,
    describing,
    renamed,
)
from torchtap.runs.single_file.packed_series import is_small, unpack
from torchtap.runs.source import SourceDefaults
from torchtap.runs.step_notes import StepNotes
from torchtap.runs.store.mapped import MappedFiles, MappedValues
from torchtap.stats.catalogue.protocol import Statistic
from torchtap.stats.series import Series


class FileSource(SourceDefaults):
    """The run in a file: statistics are read when it is opened, values when they are asked for.

    Args:
        path: of the file.
        verify: compare tensors with their checksums when they are read.
        own: user-defined statistics, needed to unpack their saved states.

    Raises:
        FileNotFoundError: there is no such file.
        RunError: it is not a run of torchtap, or is damaged.
    """

    expected = ()

    def __init__(
        self, path: str | Path, *, verify: bool = True, own: Sequence[Statistic] = ()
    ) -> None:
        described = read_description(path, verify=verify)
        header, body = described.header, described.body
        self._path = header.path
        with describing(self._path):
            file, files = self._path.resolve(), MappedFiles()
            # Another file may take the place of this one while the run is open.
            files.bytes_of(file, 0, file.stat().st_size)
            self._tensors = Tensors(header, files, file, verify=verify)
            self.meta, self.absent = described.meta, described.absent
            self.series = _series(self._tensors, body.get("series"), PREFIX, own)
            if body.get("evaluation"):
                evaluation = _series(self._tensors, body["evaluation"], EVALUATION, own)
                self.series.evaluation = evaluation
            is_verified = verify and header.crc32 is not None
            values = MappedValues(described.index, [file], files, verify=is_verified)
            self.records = Records.from_index(values, described.index)
            self.scalars = _scalars(self._tensors, body.get("scalars", ()))
            flat = body.get("ranks")
            self.ranks = None if flat is None else RankNumbers.unpack(flat, self._tensors.get)

    @property
    def statistics(self) -> Sequence[Statistic] | None:
        """Return the further statistics; ``None`` of a run that measured nothing."""
        return self.series.statistics if self.series.measured else None

    @cached_property
    def notes(self) -> StepNotes:
        """Times, ids and labels; files that were written before they held notes have none."""
        found, tensors = StepNotes(), self._tensors
        if NOTES not in tensors:
            return found
        with describing(self._path):
            steps, times = (tensors.get(f"{NOTES}.{name}") for name in ("steps", "times"))
            for step, time in zip(steps.tolist(), times.tolist(), strict=True):
                found.note(step, time, (), {})
            for step, ids, labels in json.loads(tensors.get(NOTES).numpy().tobytes()):
                found.tell(step, ids, labels)
        return found


def _series(
    tensors: Tensors, body: dict[str, Any] | None, prefix: str, own: Sequence[Statistic]
) -> Series:
    """Return one of the series of a file, whose tensors have names that begin with ``prefix``."""
    own_names = (name for name in tensors.names() if name.startswith(f"{prefix}."))
    names = renamed({name: name for name in own_names}, prefix, PREFIX)
    small = {to: tensors.get(name) for to, name in names.items() if is_small(to)}
    return unpack(small, body, lambda name, start, end: tensors.part(names[name], start, end), own)


def _scalars(tensors: Tensors, names: Iterable[str]) -> Scalars:
    scalars = Scalars()
    for place, name in enumerate(names):
        steps, values = (tensors.get(f"{SCALARS}.{place}.{k}") for k in ("steps", "values"))
        for step, value in zip(steps.tolist(), values.tolist(), strict=True):
            scalars.log(step, {name: value})
    return scalars

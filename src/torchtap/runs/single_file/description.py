"""The description of a run in the header of its file: all but the tensors. Knows nothing of torch.

It is the one reader of what a header says, for ``tt.open`` and for ``torchtap ls``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtap.core.absence import WHOLE_RUN, Absence
from torchtap.core.site import Site
from torchtap.runs.inventory import MeasuredEntry
from torchtap.runs.meta import Meta, meta_of
from torchtap.runs.single_file.header import (
    PREFIX,
    UNPROTECTED,
    Header,
    Value,
    describing,
    read_header,
)
from torchtap.runs.store.index import Index


@dataclass(frozen=True, slots=True)
class Description:
    """The description of a run.

    Attributes:
        header: that it stands in.
        meta: of the model.
        absent: what was selected and not seen, and what of the file cannot be checked.
        index: of the values, as the index of a folder.
        measured: the sites that were measured.
        num_measured_steps: in how many steps.
        body: all of it, as the file has it.
    """

    header: Header
    meta: Meta
    absent: Sequence[Absence]
    index: Index
    measured: Sequence[MeasuredEntry]
    num_measured_steps: int
    body: dict[str, Any]


def read_description(path: str | Path, *, verify: bool = True) -> Description:
    """Read the description of the run in a file.

    Args:
        path: of the file.
        verify: raise where the header does not have its checksum; else ``absent`` says so.

    Raises:
        FileNotFoundError: there is no such file.
        RunError: it is not a run of torchtap, or is damaged.
    """
    header = read_header(path, verify=verify)
    body = header.body()
    with describing(header.path):
        absent = [Absence(Site(path, port, leaf), why) for path, port, leaf, why in body["absent"]]
        known = {entry.reason for entry in absent}
        absent += [Absence(WHOLE_RUN, why) for why in _doubts(header) if why not in known]
        index = _index(header, header.values(body))
        series = body.get("series") or {"sites": ()}
        measured = [_measured(entry) for entry in series["sites"] if entry["dtype"]]
        steps = header.tensors[f"{PREFIX}.steps"].shape[0] if body.get("series") else 0
        return Description(
            header=header,
            meta=meta_of(body["meta"]),
            absent=absent,
            index=index,
            measured=measured,
            num_measured_steps=steps,
            body=body,
        )


def _measured(entry: Mapping[str, Any]) -> MeasuredEntry:
    shape = None if entry["shape"] is None else tuple(entry["shape"])
    return MeasuredEntry(Site(*entry["site"]), entry["dtype"], shape)


def _doubts(header: Header) -> Iterator[str]:
    """Reasons why what is read may not be what was written."""
    if header.crc32 is None:
        yield UNPROTECTED
    elif header.problem:
        yield f"the file is damaged: {header.problem}"


def _index(header: Header, values: Sequence[Value]) -> Index:
    """Return the values of the file as the index of a folder has them."""
    stored = [header.tensors[value.name] for value in values]
    columns: dict[str, Sequence[Any]] = {
        name: [getattr(value, name) for value in values]
        for name in ("site", "step", "call", "phase", "backward", "labels", "dtype", "shape")
    }
    columns["offset"] = [one.start for one in stored]
    columns["nbytes"] = [one.nbytes for one in stored]
    columns["row"] = [0] * len(values)
    columns["file"] = [header.path.name] * len(values)
    if header.crc32 is not None and not header.problem:
        columns["crc32"] = [header.crc32[value.name] for value in values]
    return Index.from_values(columns)

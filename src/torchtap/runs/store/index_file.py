"""The index of an attempt that was closed, in a safetensors file that is read in place.

Opening a journal means looking at each of its batches; the columns of this file are mapped, and
take memory as far as they are looked at.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from torchtap.runs.store.checksum import crc32, crc32_of_file
from torchtap.runs.store.index import DTYPES, Index, Tables
from torchtap.runs.store.site_text import site_of, site_text

_CODES = {np.int64: "I64", np.int32: "I32", np.int16: "I16", np.int8: "I8", np.uint32: "U32"}
_COMMITS = "commits"


def write_index(path: Path, index: Index, commits: Sequence[bytes]) -> dict[str, int]:
    """Write the columns, and the commits as lines of JSON.

    Returns:
        bytes and checksum of the file, by which it is believed.
    """
    text = np.frombuffer(b"\n".join(commits), dtype=np.uint8)
    arrays = {name: np.ascontiguousarray(index.columns[name]) for name in DTYPES}
    header: dict[str, Any] = {
        "__metadata__": {
            "torchtap": "index",
            "tables": json.dumps(
                {
                    "site": [site_text(site) for site in index.tables.site],
                    **{n: found for n, found in index.tables.items() if n != "site"},
                    "ends": _ends(index),
                }
            ),
        }
    }
    end = 0
    for name, array in arrays.items():
        code = _CODES[DTYPES[name]]
        header[name] = _entry(code, len(array), end, end := end + array.nbytes)
    header[_COMMITS] = _entry("U8", len(text), end, end + len(text))
    head = json.dumps(header).encode("ascii")
    head = head.ljust(-(-(len(head) + 8) // 64) * 64 - 8)
    found, nbytes = 0, 0
    half = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with half.open("wb") as stream:
            parts: list[Any] = [struct.pack("<Q", len(head)), head, *arrays.values(), text]
            for part in parts:
                data = memoryview(part).cast("B") if len(part) else b""
                stream.write(data)
                found, nbytes = crc32(data, found), nbytes + len(data)
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
    return {"nbytes": nbytes, "crc32": found}


def _ends(index: Index) -> list[int]:
    """Of each file, how many bytes it must have."""
    ends = np.zeros(len(index.tables.file), dtype=np.int64)
    np.maximum.at(ends, index.columns["file"], index.columns["offset"] + index.columns["nbytes"])
    found: list[int] = ends.tolist()
    return found


def _entry(code: str, length: int, start: int, end: int) -> dict[str, Any]:
    return {"dtype": code, "shape": [length], "data_offsets": [start, end]}


class Sealed(NamedTuple):
    """What the file holds.

    Attributes:
        entries: the columns.
        lines: of the commits.
        ends: name of a file of values -> how many bytes it must have.
    """

    entries: Index
    lines: list[str]
    ends: dict[str, int]


def read_index(path: Path, expected: Any) -> Sealed | None:
    """The index and the lines of its commits; ``None`` if the file is not as it was written.

    Args:
        path: of the file.
        expected: what :func:`write_index` returned.
    """
    try:
        if crc32_of_file(path) != expected:
            return None
    except OSError:
        return None
    raw = np.memmap(path, dtype=np.uint8, mode="r")
    length = struct.unpack("<Q", raw[:8].tobytes())[0]
    header = json.loads(raw[8 : 8 + length].tobytes())
    body = json.loads(header["__metadata__"]["tables"])
    tables = Tables(
        site=[site_of(text) for text in body["site"]],
        labels=[tuple(one) for one in body["labels"]],
        shape=[tuple(one) for one in body["shape"]],
        file=body["file"],
        dtype=body["dtype"],
        phase=body["phase"],
    )

    def column(name: str, kind: Any) -> Any:
        start, end = header[name]["data_offsets"]
        return np.asarray(raw[8 + length + start : 8 + length + end]).view(kind)

    columns = {name: column(name, kind) for name, kind in DTYPES.items()}
    lines = column(_COMMITS, np.uint8).tobytes().decode("ascii")
    ends = dict(zip(tables.file, body["ends"], strict=True))
    return Sealed(Index(columns, tables), lines.split("\n") if lines else [], ends)

"""The index of an attempt that was closed, in a safetensors file that is read in place.

Opening a journal means looking at each of its batches. This file has what repeats from step to step
once (:mod:`~torchtap.runs.store.blocks`): 4 bytes for each value of a run whose steps are alike,
which is its checksum, and about 40 where no step resembles another.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtap.core.errors import RunError
from torchtap.runs.store.blocks import (
    GROWING,
    BlockColumn,
    Blocks,
    blocks_of,
    grows_safely,
    growth_of,
    narrow,
)
from torchtap.runs.store.checksum import crc32, crc32_of_file
from torchtap.runs.store.index import (
    CODED,
    DTYPES,
    Index,
    Tables,
    expected_bytes,
    parse_dtype,
)
from torchtap.runs.store.layout import parse_file
from torchtap.runs.store.site_text import site_of, site_text

_CODES = {"<i8": "I64", "<i4": "I32", "<i2": "I16", "|i1": "I8", "<u4": "U32", "|u1": "U8"}
_KINDS = {code: np.dtype(kind) for kind, code in _CODES.items()}
_COMMITS = "commits"
_CHECKSUMS = "crc32"
_BLOCKS = ("blocks.starts", "blocks.periods")
MOST_EXPANDED = 1 << 18
"""Up to so many rows columns are expanded when they are read, to be looked at quickly."""

Arrays = Mapping[str, NDArray[Any]]


def write_index(path: Path, index: Index, commits: Sequence[bytes]) -> dict[str, int]:
    """Write the columns, and the commits as lines of JSON.

    Returns:
        bytes and checksum of the file, by which it is believed.
    """
    whole = {name: np.asarray(index.columns[name]) for name in DTYPES}
    blocks, kept = blocks_of(whole)
    text = np.frombuffer(b"\n".join(commits), dtype=np.uint8)
    arrays = {name: narrow(whole[name][kept]) for name in DTYPES if name != _CHECKSUMS}
    arrays |= {f"{name}.growth": narrow(growth_of(blocks, kept, whole[name])) for name in GROWING}
    arrays |= dict(zip(_BLOCKS, (blocks.starts, blocks.periods), strict=True))
    arrays |= {_CHECKSUMS: np.ascontiguousarray(whole[_CHECKSUMS]), _COMMITS: text}
    # The widest first, so that each is aligned.
    arrays = dict(sorted(arrays.items(), key=lambda item: -item[1].itemsize))
    site = [site_text(one) for one in index.tables.site]
    tables = {**dict(index.tables.items()), "site": site}
    header: dict[str, Any] = {
        "__metadata__": {"torchtap": "index", "tables": json.dumps(tables)},
    }
    end = 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": _CODES[array.dtype.str],
            "shape": [len(array)],
            "data_offsets": [end, end := end + array.nbytes],
        }
    head = json.dumps(header).encode("ascii")
    head = head.ljust(-(-(len(head) + 8) // 64) * 64 - 8)
    return _write(path, [struct.pack("<Q", len(head)), head, *arrays.values()])


def _write(path: Path, parts: Sequence[Any]) -> dict[str, int]:
    found, nbytes = 0, 0
    half = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with half.open("wb") as stream:
            for part in parts:
                data = memoryview(part).cast("B") if len(part) else b""
                stream.write(data)
                found, nbytes = crc32(data, found), nbytes + len(data)
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
    return {"nbytes": nbytes, "crc32": found}


class Sealed(NamedTuple):
    """The contents of the file.

    Attributes:
        entries: the columns.
        lines: of the commits.
        kept: the rows that are kept of the columns.
        last: where the bytes of each of them begin in the last repetition.
    """

    entries: Index
    lines: list[str]
    kept: Index
    last: NDArray[np.int64]

    def fits(self, sizes: Mapping[str, int]) -> bool:
        """Return whether every value has the bytes of its dtype and shape, and its file has these.

        Args:
            sizes: name of a file -> its bytes.
        """
        columns = self.kept.columns
        if not len(self.kept):
            return True
        ends = np.array([sizes[name] for name in self.kept.tables.file])[columns["file"]]
        nbytes = columns["nbytes"]
        if nbytes.min() < 0 or (nbytes != expected_bytes(self.kept)).any():
            return False
        ends -= nbytes
        given = (columns["offset"], self.last)
        return all(one.min() >= 0 and bool((one <= ends).all()) for one in given)


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
    try:
        return _read(np.memmap(path, dtype=np.uint8, mode="r"))
    except (ValueError, LookupError, TypeError, AttributeError, struct.error, RunError):
        return None  # The checksum is right, and yet it was never written by torchtap.


def _read(raw: NDArray[np.uint8]) -> Sealed | None:
    length = struct.unpack("<Q", raw[:8].tobytes())[0]
    header = json.loads(raw[8 : 8 + length].tobytes())
    body = json.loads(header.pop("__metadata__")["tables"])
    tables = Tables(
        site=[site_of(text) for text in body["site"]],
        labels=[tuple(map(str, one)) for one in body["labels"]],
        shape=[tuple(map(int, one)) for one in body["shape"]],
        file=[parse_file(text) for text in body["file"]],
        dtype=[parse_dtype(text) for text in body["dtype"]],
        phase=[str(text) for text in body["phase"]],
    )
    arrays: dict[str, NDArray[Any]] = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        part = np.asarray(raw[8 + length + start : 8 + length + end])
        arrays[name] = part.view(_KINDS[entry["dtype"]])
    starts, periods = (arrays[name].astype(np.int64) for name in _BLOCKS)
    blocks = Blocks(starts, periods, np.cumsum(periods) - periods)
    kept = {name: arrays[name] for name in DTYPES if name != _CHECKSUMS}
    growth = {name: arrays[f"{name}.growth"] for name in GROWING}
    if not _is_sound(blocks, kept, growth, tables) or len(arrays[_CHECKSUMS]) != len(blocks):
        return None
    columns: dict[str, Any] = {
        name: BlockColumn(blocks, one, growth.get(name), DTYPES[name]) for name, one in kept.items()
    }
    last = columns["offset"].last()
    if len(blocks) <= MOST_EXPANDED:
        columns = {name: np.asarray(one) for name, one in columns.items()}
    columns[_CHECKSUMS] = arrays[_CHECKSUMS]
    lines = arrays[_COMMITS].tobytes().decode("ascii")
    entries = Index({name: columns[name] for name in DTYPES}, tables)
    return Sealed(entries, lines.split("\n") if lines else [], Index(kept, tables), last)


def _is_sound(blocks: Blocks, kept: Arrays, growth: Arrays, tables: Tables) -> bool:
    """Return whether the columns fit together, and all their numbers have entries in the tables."""
    num_kept = len(kept["step"])
    if {len(one) for one in (*kept.values(), *growth.values())} != {num_kept}:
        return False
    if not blocks.is_sound(num_kept):
        return False
    if not num_kept:
        return True
    codes = ((kept[name], len(getattr(tables, name))) for name in CODED)
    is_known = all(one.min() >= 0 and one.max() < many for one, many in codes)
    return is_known and grows_safely(blocks, growth.values())

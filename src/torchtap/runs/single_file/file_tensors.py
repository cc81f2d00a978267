"""The tensors of a run in a file: written with their checksums, and read by them."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchtap.core.errors import RunError
from torchtap.core.tensors import as_bytes
from torchtap.runs.single_file.header import (
    CHECKSUMS,
    CODES,
    DTYPES,
    MOST_HEADER_BYTES,
    FlatTensor,
    Header,
)
from torchtap.runs.single_file.nested_json import ALL
from torchtap.runs.store.checksum import crc32
from torchtap.runs.store.mapped import MappedFiles
from torchtap.runs.strided import nameable

_ALIGNMENT = 64


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], text: str, written: Callable[[], None]
) -> None:
    """Write a safetensors file with checksums; it appears whole or not at all.

    Args:
        path: of the file.
        tensors: by name, strided, of any dtype that a run can hold.
        text: the description of the run, which stands in the metadata under ``torchtap``.
        written: is called when all bytes were read, and raises where they are not to be believed.

    Raises:
        RunError: the header would be larger than safetensors allows.
        OSError: it cannot be written there.
    """
    half = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with half.open("wb") as stream:
            _write(stream, tensors, text)
        written()
        half.replace(path)
    except OSError as error:
        if error.filename == str(half):
            error.filename, error.filename2 = str(path), None  # The one that the user knows.
        error.add_note(f"The run was not written to {path}. Save it where there is room for it.")
        raise
    finally:
        with suppress(OSError):  # What went wrong before is the one to see.
            half.unlink()


def _write(stream: Any, tensors: Mapping[str, Tensor], text: str) -> None:
    table = torch.zeros(len(tensors) + 2, dtype=torch.uint32)
    # The widest elements first, so that each tensor is aligned.
    every = sorted({**tensors, CHECKSUMS: table}.items(), key=lambda item: -item[1].element_size())
    head = _header(dict(every), text)
    stream.write(head)
    found, place = [crc32(head)], 0
    for name, tensor in every:
        if name == CHECKSUMS:
            place = stream.tell()
        data = _bytes_of(tensor)
        stream.write(data)
        if name != CHECKSUMS:
            found.append(crc32(data))
    numbers = np.array(found, dtype="<u4").tobytes()
    stream.seek(place)
    stream.write(numbers + struct.pack("<I", crc32(numbers)))


def _header(tensors: Mapping[str, Tensor], text: str) -> bytes:
    """Return the header with its length, as the file begins."""
    body: dict[str, Any] = {"__metadata__": {"torchtap": text}}
    end = 0
    for name, tensor in tensors.items():
        stored = nameable(tensor)
        body[name] = {
            "dtype": CODES[str(stored.dtype).removeprefix("torch.")],
            "shape": list(stored.shape),
            "data_offsets": [end, end := end + tensor.numel() * tensor.element_size()],
        }
    head = json.dumps(body).encode("ascii")
    head = head.ljust(-(-(len(head) + 8) // _ALIGNMENT) * _ALIGNMENT - 8)
    if len(head) > MOST_HEADER_BYTES:
        raise RunError(
            f"The run has {len(tensors):,} tensors, and a safetensors file that names them all "
            f"would need a header of {len(head):,} bytes; {MOST_HEADER_BYTES:,} are allowed. Save "
            f"fewer sites or steps, or record with tt.Disk, whose folders have no such limit."
        )
    return struct.pack("<Q", len(head)) + head


def _bytes_of(tensor: Tensor) -> memoryview:
    plain = nameable(tensor).detach().resolve_conj().resolve_neg().cpu().contiguous()
    if not plain.numel():
        return memoryview(b"")
    data: Any = as_bytes(plain).numpy()
    return memoryview(data)


class Tensors:
    """The tensors of an open file, mapped into memory; each is checked when it is first read.

    Args:
        header: of the file.
        files: has the file mapped.
        path: of the file, as it is mapped.
        verify: compare each with its checksum.
    """

    def __init__(self, header: Header, files: MappedFiles, path: Path, *, verify: bool) -> None:
        self._header = header
        self._files = files
        self._path = path
        self._is_checked = verify and header.crc32 is not None
        self._checked: set[str] = set()

    def names(self) -> list[str]:
        """Return all names."""
        return list(self._header.tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._header.tensors

    def get(self, name: str) -> Tensor:
        """Return one of them.

        Raises:
            RunError: there is none of that name, or its bytes do not have their checksum.
        """
        return self.part(name, 0, ALL)

    def part(self, name: str, start: int, end: int) -> Tensor:
        """Return rows of one, in memory of their own; for :data:`ALL`, the whole as mapped."""
        entry = self._header.tensors.get(name)
        if entry is None or entry.code not in DTYPES:
            raise RunError(
                f"{self._header.path} is damaged: it has no tensor {name!r} that can be read. Copy "
                f"it again, or save the run again."
            )
        raw = self._raw(name, entry)
        dtype: torch.dtype = getattr(torch, DTYPES[entry.code])
        if raw.storage_offset() % dtype.itemsize:  # As in files of other programs.
            raw = raw.clone()
        whole = raw.view(dtype).view(entry.shape)
        return whole if end == ALL else whole[start:end].clone()

    def _raw(self, name: str, entry: FlatTensor) -> Tensor:
        if not entry.nbytes:
            return torch.empty(0, dtype=torch.uint8)
        raw = self._files.bytes_of(self._path, entry.start, entry.nbytes)
        if self._is_checked and name not in self._checked:
            assert self._header.crc32 is not None
            if crc32(raw.numpy()) != self._header.crc32[name]:
                raise RunError(
                    f"{self._header.path} is damaged: its tensor {name!r} does not have its "
                    f"checksum. Copy it again; torchtap doctor says what is whole."
                )
            self._checked.add(name)
        return raw

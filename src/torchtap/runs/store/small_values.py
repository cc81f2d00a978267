"""Small values, one batch per commit in an Arrow stream: a file per site would be mostly air."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchtap.core.errors import RunError
from torchtap.core.tensors import as_bytes
from torchtap.runs.store.journal import Template, array_of
from torchtap.runs.store.streams import StreamWriter, crc_of

SCHEMA = pa.schema(
    [
        pa.field("site", pa.string(), nullable=False),
        pa.field("step", pa.int64(), nullable=False),
        pa.field("dtype", pa.string(), nullable=False),
        pa.field("shape", pa.string(), nullable=False),
        pa.field("data", pa.large_binary(), nullable=False),
    ]
)
_BINARY, _INT64 = pa.large_binary(), pa.int64()
_ALIGNED = 8
"""Buffers of Arrow streams begin at multiples of so many bytes; that of the data is the last."""
_LOOKED_AT = 64
"""Bytes at either end of the data that are compared with what was written."""


def joined_bytes(values: Sequence[Tensor | memoryview]) -> Any:
    """Return the bytes of some values, one after the other."""
    parts: list[Any] = []
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
            continue
        parts += [*map(stacked, _alike(tensors)), value]
        tensors = []
    parts += map(stacked, _alike(tensors))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _alike(tensors: list[Tensor]) -> list[list[Tensor]]:
    return [list(group) for _, group in groupby(tensors, _kind_of)]


def _kind_of(tensor: Tensor) -> tuple[torch.dtype, torch.Size]:
    return tensor.dtype, tensor.shape


def stacked(tensors: list[Tensor]) -> Any:
    """Return the bytes of tensors of one dtype and shape: that takes a tenth of looking at each."""
    whole = tensors[0] if len(tensors) == 1 else torch.stack(tensors)
    flat: Any = as_bytes(whole).numpy()
    return memoryview(flat)


class SmallWriter:
    """Appends the small values of commits.

    Args:
        path: of the file, which it makes.
    """

    def __init__(self, path: Path) -> None:
        self.stream = StreamWriter(path, SCHEMA)
        self._expected: list[tuple[int, int, bytes, bytes]] = []

    def add(self, template: Template, steps: NDArray[np.int64], data: memoryview) -> int:
        """Make one batch ready to be written with others.

        Args:
            template: of its values.
            steps: of each.
            data: their bytes.

        Returns:
            where the data will begin in the file.
        """
        buffers = [None, template.ends_buffer, pa.py_buffer(data)]
        values = pa.Array.from_buffers(_BINARY, len(steps), buffers)
        batch = template.batch(SCHEMA, {"step": array_of(steps, _INT64), "data": values})
        numbers: dict[str, list[Any]] = {"step": [steps], "data": [template.ends, data]}
        self.stream.add(batch, b"", crc_of(template.parts_with(SCHEMA, numbers)))
        nbytes = len(data)
        place = self.stream.next - -(-nbytes // _ALIGNED) * _ALIGNED
        # Copies: the memory of the values is used again before they are written.
        ends = bytes(data[:_LOOKED_AT]), bytes(data[-_LOOKED_AT:])
        self._expected.append((place, nbytes, *ends))
        return place

    def write(self) -> None:
        """Write what waits.

        Raises:
            RunError: a value does not stand where the journal is to say it does.
        """
        start, expected = self.stream.end, self._expected
        self._expected = []
        whole = self.stream.write()
        for place, nbytes, first, last in expected:
            written = whole[place - start :][:nbytes]
            if (bytes(written[:_LOOKED_AT]), bytes(written[-_LOOKED_AT:])) != (first, last):
                raise RunError(f"pyarrow {pa.__version__} writes batches in another layout.")

    def forget(self) -> None:
        """Forget the values that wait, so that they are not written."""
        self._expected = []
        self.stream.forget()

"""Small values, one batch per commit in an Arrow stream: a file per site would be mostly air."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc

from torchtap.runs.store.journal import batch_of
from torchtap.runs.store.streams import StreamWriter

SCHEMA = pa.schema(
    [
        pa.field("site", pa.string(), nullable=False),
        pa.field("step", pa.int64(), nullable=False),
        pa.field("dtype", pa.string(), nullable=False),
        pa.field("shape", pa.string(), nullable=False),
        pa.field("data", pa.large_binary(), nullable=False),
    ]
)


class SmallWriter:
    """Appends the small values of commits.

    Args:
        path: of the file, which it makes.
    """

    def __init__(self, path: Path) -> None:
        self.stream = StreamWriter(path, SCHEMA)

    def append(self, rows: Sequence[tuple[str, int, str, str, bytes | memoryview]]) -> list[int]:
        """Write site, step, dtype, shape and bytes of some values as one batch.

        Returns:
            where the bytes of each begin, from the start of the file.
        """
        start, written = self.stream.append(batch_of(rows, SCHEMA))
        buffer = pa.py_buffer(written)
        reader = pa.BufferReader(buffer)
        message = pa.ipc.read_message(reader)
        if message.type == "schema":  # It stands before the first batch.
            message = pa.ipc.read_message(reader)
        data = pa.ipc.read_record_batch(message, SCHEMA).column("data")
        content = data.buffers()[2]
        # Where all values are empty their buffer is nowhere.
        place = start + (content.address - buffer.address if content.size else 0)
        ends = memoryview(data.buffers()[1]).cast("B").cast("q")
        return [place + ends[number] for number in range(len(rows))]

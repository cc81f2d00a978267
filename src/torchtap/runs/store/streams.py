"""Append-only Arrow streams, and reading them past what is damaged. Needs pyarrow.

A stream is what ``pyarrow.ipc.open_stream`` reads: a schema, then batches. Each batch carries the
CRC-32 of its columns and of what is said beside them, so that a flipped bit is noticed. A reader
that finds something else than a whole batch looks for the next one, eight bytes by eight bytes.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from torchtap.core.errors import MissingExtraError
from torchtap.runs.store.checksum import crc32
from torchtap.runs.store.lane import write_all

try:
    import pyarrow as pa
    import pyarrow.ipc
except ImportError as error:
    raise MissingExtraError(
        "A run that is written into a folder needs pyarrow. Install it with: "
        "pip install 'torchtap[store]'"
    ) from error

_MARK = b"\xff\xff\xff\xff"
"""Every message of a stream begins so, at a multiple of eight bytes."""
_ENDING = _MARK + bytes(4)
_NO_BATCH = (pa.ArrowException, OSError, EOFError, ValueError, OverflowError)
"""What pyarrow raises for bytes that are no batch."""
CRC = b"crc"
INFO = b"info"


class Found(NamedTuple):
    """One whole batch of a stream.

    Attributes:
        batch: its columns.
        info: what is said beside them.
        end: where the next message begins, in bytes.
    """

    batch: Any
    info: bytes
    end: int


class Damage(NamedTuple):
    """Bytes of a stream that are no whole batch.

    Attributes:
        start: the first of them.
        end: the first after them.
        is_tail: whether nothing comes behind them, as when the writer was killed.
    """

    start: int
    end: int
    is_tail: bool


class _Chunk:
    """What pyarrow writes a batch into."""

    closed = False

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: Any) -> int:
        self.data += data
        return len(data)

    def flush(self) -> None:
        """Nothing waits."""

    def take(self) -> bytes:
        taken = bytes(self.data)
        self.data.clear()
        return taken


class StreamWriter:
    """Appends batches to a file that it makes.

    Args:
        path: where; nothing may be there.
        schema: of the batches.
    """

    def __init__(self, path: Path, schema: Any) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._chunk = _Chunk()
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._chunk, mode="w"), schema)
        self.end = 0

    @property
    def file(self) -> int:
        """Its descriptor."""
        return self._file

    def append(self, batch: Any, info: bytes = b"") -> tuple[int, bytes]:
        """Write one batch.

        Returns:
            where its bytes begin, and they themselves.
        """
        start = self.end
        said = {INFO: info, CRC: b"%08x" % batch_crc(batch, info)}
        self._writer.write_batch(batch, custom_metadata=said)
        written = self._chunk.take()
        write_all(self._file, memoryview(written), start)
        self.end = start + len(written)
        return start, written

    def back_to(self, end: int) -> None:
        """Forget the batches behind a place."""
        self.end = end
        os.ftruncate(self._file, end)

    def sync(self) -> None:
        """See that it is on the disk."""
        os.fdatasync(self._file)

    def finish(self) -> None:
        """Say that nothing more comes."""
        if self._file < 0:
            return
        self._writer.close()
        ending = self._chunk.take()
        write_all(self._file, memoryview(ending), self.end)
        self.end += len(ending)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def batch_crc(batch: Any, info: bytes) -> int:
    """The checksum of all values of a batch, however they lie in memory."""
    found = crc32(info)
    for column in batch.columns:
        found = crc32_of_array(column, found)
    return found


def crc32_of_array(column: Any, before: int) -> int:
    """The checksum of a column without nulls: of numbers, texts or bytes."""
    length, buffers = len(column), column.buffers()
    if not length:
        return before
    first = column.offset
    if pa.types.is_primitive(column.type):
        width = column.type.bit_width // 8
        return crc32(memoryview(buffers[1])[first * width : (first + length) * width], before)
    width = 8 if pa.types.is_large_binary(column.type) else 4
    ends = memoryview(buffers[1]).cast("B")[first * width : (first + length + 1) * width]
    where = ends.cast("q" if width == 8 else "i")
    data = memoryview(buffers[2])[where[0] : where[-1]] if buffers[2] is not None else b""
    return crc32(data, crc32(ends, before))


def read_stream(
    path: Path, schema: Any, start: int = 0, end: int | None = None
) -> Iterator[Found | Damage]:
    """The batches of a stream from a place on, and what is no batch.

    Args:
        path: of the file.
        schema: that its batches must have; the one in the file is not believed.
        start: a place where a message begins.
        end: what is behind it is not read.
    """
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        size = size if end is None else min(size, end)
        if size <= start:
            return
        view = mmap.mmap(stream.fileno(), size, access=mmap.ACCESS_READ)
    yield from _messages(view, pa.py_buffer(view), schema, start, size)


def _messages(
    view: mmap.mmap, whole: Any, schema: Any, start: int, size: int
) -> Iterator[Found | Damage]:
    place = start
    while place < size:
        for found in _in_sequence(whole, schema, place):
            yield found
            place = found.end
        if place >= size or view[place:] == _ENDING or (not place and _is_empty(whole, schema)):
            return
        following = _next_batch(view, whole, schema, place, size)
        yield Damage(place, size if following is None else following, following is None)
        if following is None:
            return
        place = following


def _is_empty(whole: Any, schema: Any) -> bool:
    """Whether it is a stream that was closed without a batch."""
    source = pa.BufferReader(whole)
    try:
        with pa.ipc.open_stream(source) as reader:
            is_known = reader.schema.equals(schema)
            return is_known and not list(reader) and source.tell() == len(whole)
    except _NO_BATCH:
        return False


def _in_sequence(whole: Any, schema: Any, start: int) -> Iterator[Found]:
    """Whole batches from a place on, up to the first that is not."""
    head = b"" if start == 0 else schema.serialize().to_pybytes()
    rest = whole.slice(start)
    source = pa.BufferReader(rest if not head else pa.py_buffer(head + rest.to_pybytes()))
    shift = start - len(head)
    try:
        with pa.ipc.open_stream(source) as reader:
            if not reader.schema.equals(schema):
                return
            while True:
                batch, said = reader.read_next_batch_with_custom_metadata()
                found = _checked(batch, said, shift + source.tell())
                if found is None:
                    return
                yield found
    except StopIteration:
        return
    except _NO_BATCH:
        return


def _checked(batch: Any, said: Any, end: int) -> Found | None:
    """A batch whose checksum is right."""
    if said is None or INFO not in said or CRC not in said:
        return None
    batch.validate(full=True)
    info = said[INFO]
    is_whole = said[CRC] == b"%08x" % batch_crc(batch, info)
    return Found(batch, info, end) if is_whole else None


def _next_batch(view: mmap.mmap, whole: Any, schema: Any, start: int, size: int) -> int | None:
    """Where the next whole batch begins behind something that is none."""
    head = schema.serialize().to_pybytes()
    place = start
    while True:
        place = view.find(_MARK, place + 1)
        if place < 0:
            return None
        if place % 8:
            continue
        try:
            source = pa.BufferReader(whole.slice(place))
            if pa.ipc.read_message(source).type != "record batch":
                continue
            message = whole.slice(place, source.tell()).to_pybytes()
            if any(_in_sequence(pa.py_buffer(head + message), schema, 0)):
                return place
        except _NO_BATCH:
            continue

"""Append-only Arrow streams, and reading them past what is damaged. Needs pyarrow.

A stream is what ``pyarrow.ipc.open_stream`` reads: a schema, then batches. Each batch carries the
CRC-32 of its columns and of what is said beside them, so that a flipped bit is noticed. A reader
that finds something else than a whole batch looks for the next one, eight bytes by eight bytes.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from torchtap.core.errors import MissingExtraError
from torchtap.runs.store.checksum import crc32, crc32_of_file
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
"""The exceptions that pyarrow raises for bytes that are no batch."""
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


class StreamWriter:
    """Appends batches to a file that it makes.

    Args:
        path: where; nothing may be there.
        schema: of the batches.

    Attributes:
        end: where the file ends.
    """

    def __init__(self, path: Path, schema: Any) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._schema = schema
        self._sink: Any = None
        self._stream: Any = None
        self._skipped = 0
        self.end = 0
        self._crc = 0

    @property
    def file(self) -> int:
        """Return its descriptor."""
        return self._file

    @property
    def next(self) -> int:
        """Return the place where the file will end when what waits is written."""
        return self.end + self.num_waiting

    @property
    def num_waiting(self) -> int:
        """Return the number of bytes that wait to be written."""
        return 0 if self._sink is None else self._sink.tell() - self._skipped

    def append(self, batch: Any, info: bytes = b"") -> None:
        """Write one batch."""
        self.add(batch, info, batch_crc(batch, info))
        self.write()

    def add(self, batch: Any, info: bytes, crc: int) -> None:
        """Make one batch ready to be written with others.

        Args:
            batch: its columns.
            info: what is said beside them.
            crc: of both, see :func:`batch_crc`.
        """
        if self._sink is None:
            self._sink = pa.BufferOutputStream()
            self._stream = pa.ipc.new_stream(self._sink, self._schema)
            # Each part begins with the schema, which stands in the file once.
            self._skipped = self._schema.serialize().size if self.end else 0
        # With a checksum of ours: Arrow's format has none.
        self._stream.write_batch(batch, custom_metadata={INFO: info, CRC: b"%08x" % crc})

    def write(self) -> memoryview:
        """Write what waits, by one call, and return it."""
        if self._sink is None:
            return memoryview(b"")
        whole = memoryview(self._sink.getvalue()).cast("B")[self._skipped :]
        self.forget()
        write_all(self._file, whole, self.end)
        self.end += len(whole)
        self._crc = crc32(whole, self._crc)
        return whole

    def forget(self) -> None:
        """Forget the batches that wait, so that they are not written."""
        self._sink = self._stream = None

    def back_to(self, end: int) -> None:
        """Forget the batches behind a place."""
        self.end = end
        # Or the bytes after a shorter stream would be read as damage in its middle.
        os.ftruncate(self._file, end)

    def sync(self) -> None:
        """See that it is on the disk."""
        os.fdatasync(self._file)

    def finish(self) -> None:
        """Say that nothing more comes."""
        if self._file < 0:
            return
        ending = _ENDING
        if not self.end:
            sink = pa.BufferOutputStream()
            pa.ipc.new_stream(sink, self._schema).close()
            ending = sink.getvalue().to_pybytes()
        write_all(self._file, memoryview(ending), self.end)
        self.end += len(ending)
        self._crc = crc32(ending, self._crc)

    def batches(self, path: Path) -> list[tuple[Any, bytes]]:
        """Return the batches of the finished file, and what is said beside them.

        Where all of its bytes are those that were written, which their checksum says, the batches
        are not looked at one by one.
        """
        if crc32_of_file(path) != {"nbytes": self.end, "crc32": self._crc}:
            complete = (one for one in read_stream(path, self._schema) if isinstance(one, Found))
            return [(one.batch, one.info) for one in complete]
        with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
            whole = reader.iter_batches_with_custom_metadata()
            return [(batch, said[INFO]) for batch, said in whole]

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def batch_crc(batch: Any, info: bytes) -> int:
    """Return the checksum of all values of a batch, however they lie in memory."""
    crc = crc32(info)
    if not batch.num_rows:
        return crc
    for column, width in zip(batch.columns, _widths_of(batch.schema), strict=True):
        for part in _parts(column, width):
            crc = crc32(part, crc)
    return crc


@lru_cache(maxsize=16)
def _widths_of(schema: Any) -> tuple[int, ...]:
    """Bytes of a number of each column; less than 0 of an end, where it has texts or bytes."""
    return tuple(_width(one.type) for one in schema)


def _width(kind: Any) -> int:
    if pa.types.is_primitive(kind):
        return int(kind.bit_width // 8)
    return -8 if pa.types.is_large_binary(kind) else -4


def crc_of(parts: Iterable[Any]) -> int:
    """Return the checksum of bytes that follow one another."""
    crc = 0
    for part in parts:
        crc = crc32(part, crc)
    return crc


def parts_of(column: Any) -> list[Any]:
    """The bytes of a column without nulls: of numbers, or ends and data of texts or bytes."""
    return list(_parts(column, _width(column.type))) if len(column) else []


def _parts(column: Any, width: int) -> tuple[Any, ...]:
    length, first, buffers = len(column), column.offset, column.buffers()
    values = memoryview(buffers[1])
    if width > 0:
        return (values[first * width : (first + length) * width],)
    # The width of an end is given as a negative number, which makes these slices positive.
    ends = values.cast("B")[-first * width : -(first + length + 1) * width]
    where = ends.cast("q" if width == -8 else "i")
    return ends, memoryview(buffers[2])[where[0] : where[-1]] if buffers[2] is not None else b""


def read_stream(
    path: Path, schema: Any, start: int = 0, end: int | None = None
) -> Iterator[Found | Damage]:
    """Yield the batches of a stream from a place on, and what is no batch.

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
        # A stream that was finished ends with a mark and four zeros, which are no damage.
        if place >= size or view[place:] == _ENDING or (not place and _is_empty(whole, schema)):
            return
        # What is between is one damage, however many batches stood there.
        following = _next_batch(view, whole, schema, place, size)
        yield Damage(place, size if following is None else following, following is None)
        if following is None:
            return
        place = following


def _is_empty(whole: Any, schema: Any) -> bool:
    """Return whether the bytes are a stream that was closed without a batch."""
    source = pa.BufferReader(whole)
    try:
        with pa.ipc.open_stream(source) as reader:
            is_known = reader.schema.equals(schema)
            return is_known and not list(reader) and source.tell() == len(whole)
    except _NO_BATCH:
        return False


def _in_sequence(whole: Any, schema: Any, start: int) -> Iterator[Found]:
    """Whole batches from a place on, up to the first that is not."""
    # pyarrow reads a stream from its schema on: a copy is put before a batch in the middle, and its
    # bytes are taken off again from the ends of messages.
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
                checked = _checked(batch, said, shift + source.tell())
                if checked is None:
                    return
                yield checked
    except StopIteration:
        return
    except _NO_BATCH:
        return


def _checked(batch: Any, said: Any, end: int) -> Found | None:
    """Return a batch whose checksum is right."""
    if said is None or INFO not in said or CRC not in said:
        return None
    # Offsets of a damaged batch may point anywhere, and reading them would end the process.
    batch.validate(full=True)
    info = said[INFO]
    is_whole = said[CRC] == b"%08x" % batch_crc(batch, info)
    return Found(batch, info, end) if is_whole else None


def _next_batch(view: mmap.mmap, whole: Any, schema: Any, start: int, size: int) -> int | None:
    """Find where the next whole batch begins behind something that is none."""
    head = schema.serialize().to_pybytes()
    place = start
    while True:
        place = view.find(_MARK, place + 1)
        if place < 0:
            return None
        # Messages of an Arrow stream begin at multiples of 8 bytes; the mark elsewhere is data.
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

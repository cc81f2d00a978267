"""The values of an index: mapped into memory, and checked against their checksums when read."""

from __future__ import annotations

import math
import os
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchtap.core.errors import RunError
from torchtap.runs.records import Fact
from torchtap.runs.sparse import unpacked
from torchtap.runs.store.checksum import crc32
from torchtap.runs.store.dtypes import STORED
from torchtap.runs.store.index import Index
from torchtap.runs.store.layout import SMALL

_MOST_MAPS = 4096
_WORTH_A_THREAD = 4 << 20
"""From so many bytes on a thread checks values ahead of the reader."""
_WORTH_ASKING = 512 << 10
"""From so many bytes on it checks a value: asking it to takes as long as a smaller one."""
_PART, _MOST_PARTS = 1024, 512
"""Numbers of a column that are computed together, and how often that is remembered."""
_MOST_AHEAD = 32 << 20
"""Bytes that it is ahead of the reader."""


class MappedFiles:
    """Files of values that are mapped into memory, of which the last ones used are kept.

    Pages are read when they are touched. A mapping is private: writing into a tensor
    changes no file.
    """

    def __init__(self, most: int = _MOST_MAPS) -> None:
        self._most = most
        self._maps: OrderedDict[Path, Any] = OrderedDict()

    def bytes_of(self, path: Path, offset: int, nbytes: int) -> Tensor:
        """Some bytes of a file, as ``uint8[nbytes]`` without a copy.

        Raises:
            RunError: the file is not there, or shorter.
        """
        # A file that grew since it was mapped has values behind the end of the map.
        whole = self._maps.get(path)
        if whole is None or whole.nbytes() < offset + nbytes:
            whole = self._map(path, offset + nbytes)
        else:
            self._maps.move_to_end(path)
        # set_() makes a view of the mapped storage, and no copy.
        flat: Tensor = torch.empty(0, dtype=torch.uint8)
        return flat.set_(whole, offset, (nbytes,), (1,))

    def _map(self, path: Path, least: int) -> Any:
        try:
            size = _size_of(path)
        except OSError as error:
            raise RunError(f"{path} cannot be read: {error.strerror}.") from error
        if size < least:  # Touching what is not there would kill the process.
            raise RunError(
                f"{path} breaks off after {size:,} bytes; its run has {least:,} in it. "
                f"torchtap doctor says what is whole."
            )
        whole: Any = torch.UntypedStorage.from_file(str(path), False, size)
        self._maps[path] = whole
        self._maps.move_to_end(path)
        if len(self._maps) > self._most:
            self._maps.popitem(last=False)
        return whole


def _size_of(path: Path) -> int:
    """Bytes of a file that is no link to somewhere else."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return os.fstat(file).st_size
    finally:
        os.close(file)


class MappedValues(Sequence[Tensor]):
    """The values of an index.

    Args:
        index: of them.
        paths: of the files that its table names, in the same order.
        files: maps them.
        verify: compare each value with its checksum when it is first read.
    """

    def __init__(
        self, index: Index, paths: Sequence[Path], files: MappedFiles, *, verify: bool
    ) -> None:
        self.entries = index
        self._paths = paths
        self._files = files
        self._stored = [STORED[name] for name in index.tables.dtype]
        self._dtypes: list[torch.dtype] = [getattr(torch, one.dtype) for one in self._stored]
        is_small = [path.name == SMALL for path in paths]
        self._is_small = np.array(is_small, dtype=bool)
        self._known: dict[tuple[str, int], NDArray[Any]] = {}
        self._is_verified: NDArray[np.bool_] = np.zeros(len(index), dtype=bool)
        if not verify:
            self._is_verified[:] = True

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, place: Any) -> Any:
        self._refuse_lie(place)
        raw = self._raw(place)
        if not self._is_verified[place]:
            if not self._has_checksum(place, raw):
                raise self._damaged(place)
            self._is_verified[place] = True
        return self._shaped(place, raw)

    def _at(self, name: str, place: int) -> int:
        """One number of the index; those beside it are computed with it, where they are computed.

        One by one they would take ten times as long in a large run as reading the values.
        """
        column = self.entries.columns[name]
        if isinstance(column, np.ndarray):
            return int(column[place])
        part, within = divmod(place, _PART)
        found = self._known.get((name, part))
        if found is None:
            if len(self._known) >= _MOST_PARTS:
                self._known.clear()
            found = column[np.arange(part * _PART, min((part + 1) * _PART, len(self)))]
            self._known[name, part] = found
        return int(found[within])

    def in_order(self, places: Sequence[int]) -> Iterator[Tensor]:
        """Values one after the other.

        While the caller works on one, a thread reads the next ones and compares them with their
        checksums. An error is raised when its value is asked for, not before.
        """
        # Values that are small or known to be whole are read directly: a thread would only cost
        # time.
        chosen = np.asarray(places, dtype=np.intp)
        sizes = self.entries.columns["nbytes"][chosen]
        if sizes[~self._is_verified[chosen] & (sizes >= _WORTH_ASKING)].sum() < _WORTH_A_THREAD:
            for place in places:
                yield self[place]
            return
        thread = ThreadPoolExecutor(1, "torchtap-check")
        try:
            for place, check in self._ahead(places, thread):
                if check is not None and not self._is_verified[place]:
                    if not check.result():
                        raise self._damaged(place)
                    self._is_verified[place] = True
                yield self[place]
        finally:
            thread.shutdown(wait=False, cancel_futures=True)

    def _ahead(
        self, places: Sequence[int], thread: ThreadPoolExecutor
    ) -> Iterator[tuple[int, Future[bool] | None]]:
        """Each place, with what comes of its check; the checks of the next ones have begun."""
        sizes = self.entries.columns["nbytes"][places].tolist()
        begun: deque[tuple[int, Future[bool] | None]] = deque()
        nbytes = 0
        for number, size in enumerate(sizes):
            while begun and nbytes + size > _MOST_AHEAD:
                # The size of the oldest check that has begun, which is yielded next.
                nbytes -= sizes[number - len(begun)]
                yield begun.popleft()
            is_large = size >= _WORTH_ASKING
            check = self._check_begun(places[number], thread) if is_large else None
            begun.append((places[number], check))
            nbytes += size
        yield from begun

    def _check_begun(self, place: int, thread: ThreadPoolExecutor) -> Future[bool] | None:
        if self._is_verified[place]:
            return None
        try:
            self._refuse_lie(place)
            return thread.submit(self._has_checksum, place, self._raw(place))
        except (RunError, RuntimeError):  # Raised again when its turn comes; or Python ends.
            return None

    def _shaped(self, place: int, raw: Tensor) -> Tensor:
        tables, code = self.entries.tables, self._at("dtype", place)
        dtype, shape = self._dtypes[code], tables.shape[self._at("shape", place)]
        if self._stored[code].is_sparse:
            return unpacked(raw, tables.dtype[code], shape, str(self.path_of(place)))
        is_small = self._is_small[self._at("file", place)]
        if is_small or raw.storage_offset() % self._stored[code].itemsize:
            raw = raw.clone()  # It may begin anywhere; and a page is not kept for a few bytes.
        return raw.view(dtype).view(shape)

    def gather(self, places: Any, within: Any) -> Tensor | None:
        """Rows of several values at once, if they stand in one lane.

        Args:
            places: for each row, of the value in which it stands.
            within: for each row, where in that value.

        Returns:
            ``None`` where they stand in several files, or differ in shape or dtype.
        """
        columns, tables = self.entries.columns, self.entries.tables
        files, first = columns["file"][places], int(places[0])
        if (files != files[0]).any():
            return None
        if any(self._stored[code].is_sparse for code in set(columns["dtype"][places].tolist())):
            return None
        path, shape = self._paths[int(files[0])], tables.shape[columns["shape"][first]]
        others = {tables.shape[code][1:] for code in set(columns["shape"][places].tolist())}
        if len(others) > 1 or not shape or not columns["nbytes"][first]:
            return None  # The lane has elements and no rows; or the values have no dims.
        for place in np.unique(places[~self._is_verified[places]]).tolist():
            if not self._has_checksum(place, self._raw(place)):
                raise self._damaged(place)
            self._is_verified[place] = True
        if self._is_small[files[0]]:
            return self._gathered_singly(places, within)
        row_bytes = int(columns["nbytes"][first]) // shape[0]
        starts = columns["offset"][places] - columns["row"][places] * row_bytes
        start = int(starts[0])
        # In a lane, offset less row times bytes is where row 0 begins, the same for all values.
        if start < 0 or (starts != start).any() or (columns["row"][places] < 0).any():
            return self._gathered_singly(places, within)  # Each value has a place of its own.
        rows = columns["row"][places] + within
        num = int(rows.max()) + 1
        raw = self._files.bytes_of(path, start, num * row_bytes)
        # As bytes, of which rows of any dtype are made; indexing takes twice the time.
        chosen = raw.view(num, row_bytes).index_select(0, torch.from_numpy(rows))
        dtype = self._dtypes[columns["dtype"][first]]
        return chosen.view(-1).view(dtype).view(len(rows), *shape[1:])

    def _gathered_singly(self, places: Any, within: Any) -> Tensor | None:
        """Gather rows of values that stand alone, as small ones and those of one file do."""
        columns, tables = self.entries.columns, self.entries.tables
        dtypes, first = columns["dtype"][places], int(places[0])
        if (dtypes != dtypes[0]).any():
            return None
        for place in np.unique(places).tolist():
            self._refuse_lie(place)
        trailing = tables.shape[columns["shape"][first]][1:]
        row_bytes = math.prod(trailing) * self._stored[dtypes[0]].itemsize
        starts = columns["offset"][places] + within * row_bytes
        end = int((columns["offset"][places] + columns["nbytes"][places]).max())
        whole: Any = self._files.bytes_of(self.path_of(first), 0, end).numpy()
        rows = np.empty((len(places), row_bytes), dtype=np.uint8)
        for own, start in zip(rows, starts.tolist(), strict=True):
            own[:] = whole[start : start + row_bytes]
        kind = self._dtypes[int(dtypes[0])]
        return torch.from_numpy(rows).view(-1).view(kind).view(len(places), *trailing)

    def fact(self, place: int) -> Fact:
        """Dtype, shape and bytes of a value, without reading it."""
        shape = self.entries.tables.shape[self._at("shape", place)]
        stored = self._stored[self._at("dtype", place)]
        return Fact(stored.dtype, shape, self._at("nbytes", place))

    @property
    def nbytes(self) -> int:
        """Bytes of all."""
        return int(np.asarray(self.entries.columns["nbytes"]).sum())

    def path_of(self, place: int) -> Path:
        """The file in which a value stands."""
        return self._paths[self._at("file", place)]

    def is_whole(self, place: int) -> bool:
        """Return whether a value has its checksum."""
        try:
            return self._has_checksum(place, self._raw(place))
        except RunError:
            return False

    def _raw(self, place: int) -> Tensor:
        offset, nbytes = self._at("offset", place), self._at("nbytes", place)
        if not nbytes:
            return torch.empty(0, dtype=torch.uint8)
        return self._files.bytes_of(self.path_of(place), offset, nbytes)

    def _refuse_lie(self, place: int) -> None:
        """An index is looked at value by value when they are read."""
        fact = self.fact(place)
        expected = math.prod(fact.shape) * STORED[fact.dtype].itemsize
        if self._stored[self._at("dtype", place)].is_sparse:
            expected = max(fact.nbytes, 0)
        if fact.nbytes != expected or self._at("offset", place) < 0:
            raise RunError(
                f"The index of {self.path_of(place)} says that a value {fact.dtype}"
                f"{list(fact.shape)} has {fact.nbytes:,} bytes; it is damaged."
            )

    def _has_checksum(self, place: int, raw: Tensor) -> bool:
        data: Any = raw.numpy() if raw.numel() else b""
        return crc32(data) == self._at("crc32", place)

    def _damaged(self, place: int) -> RunError:
        columns = self.entries.columns
        site = self.entries.tables.site[columns["site"][place]]
        return RunError(
            f"The value of {site} in step {columns['step'][place]}, call "
            f"{columns['call'][place]}, is damaged in {self.path_of(place)}: its bytes do not "
            f"have their checksum. torchtap doctor says what is whole."
        )

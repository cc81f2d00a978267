"""The values of an index: mapped into memory, and checked against their checksums when read."""

from __future__ import annotations

import math
import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchtap.core.errors import RunError
from torchtap.runs.records import Fact
from torchtap.runs.store.checksum import crc32
from torchtap.runs.store.dtypes import STORED
from torchtap.runs.store.index import Index
from torchtap.runs.store.layout import SMALL

_MOST_MAPS = 4096


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
        whole = self._maps.get(path)
        if whole is None or whole.nbytes() < offset + nbytes:
            whole = self._map(path, offset + nbytes)
        else:
            self._maps.move_to_end(path)
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
        self._dtypes: list[torch.dtype] = [getattr(torch, name) for name in index.tables.dtype]
        is_small = [path.name == SMALL for path in paths]
        self._is_small = np.array(is_small, dtype=bool)
        self._is_verified: NDArray[np.bool_] = np.zeros(len(index), dtype=bool)
        if not verify:
            self._is_verified[:] = True

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, place: Any) -> Any:
        columns, tables = self.entries.columns, self.entries.tables
        file = int(columns["file"][place])
        self._refuse_lie(place)
        raw = self._raw(place)
        if not self._is_verified[place]:
            self._verify(place, raw)
        if self._is_small[file]:
            raw = raw.clone()  # It may begin anywhere; and a page is not kept for a few bytes.
        dtype = self._dtypes[columns["dtype"][place]]
        return raw.view(dtype).view(tables.shape[columns["shape"][place]])

    def gather(self, places: Any, which: Any, within: Any) -> Tensor | None:
        """Rows of several values at once, if they stand in one lane.

        Args:
            places: of the values.
            which: for each row, in which of these it stands.
            within: for each row, where in that value.

        Returns:
            ``None`` where they stand in several files, or are small.
        """
        columns, tables = self.entries.columns, self.entries.tables
        files = np.unique(columns["file"][places])
        if len(files) > 1 or self._is_small[files[0]]:
            return None
        path, first = self._paths[int(files[0])], int(places[0])
        shape = tables.shape[columns["shape"][first]]
        others = {tables.shape[code][1:] for code in np.unique(columns["shape"][places]).tolist()}
        if len(others) > 1 or not shape or not columns["nbytes"][first]:
            return None  # The lane has elements and no rows; or the values have no dims.
        for place in places[~self._is_verified[places]].tolist():
            self._verify(place, self._raw(place))
        row_bytes = int(columns["nbytes"][first]) // shape[0]
        starts = columns["offset"][places] - columns["row"][places] * row_bytes
        start = int(starts[0])
        if start < 0 or (starts != start).any() or (columns["row"][places] < 0).any():
            return None  # What the journal says of rows and of bytes does not fit together.
        last = columns["row"][places[which]] + within
        num = int(last.max()) + 1
        raw = self._files.bytes_of(path, start, num * row_bytes)
        rows = raw.view(self._dtypes[columns["dtype"][first]]).view((num, *shape[1:]))
        return rows[torch.from_numpy(last)]

    def fact(self, place: int) -> Fact:
        """Dtype, shape and bytes of a value, without reading it."""
        columns, tables = self.entries.columns, self.entries.tables
        shape = tables.shape[columns["shape"][place]]
        return Fact(tables.dtype[columns["dtype"][place]], shape, int(columns["nbytes"][place]))

    @property
    def nbytes(self) -> int:
        """Bytes of all."""
        return int(np.asarray(self.entries.columns["nbytes"]).sum())

    def path_of(self, place: int) -> Path:
        """The file in which a value stands."""
        return self._paths[int(self.entries.columns["file"][place])]

    def is_whole(self, place: int) -> bool:
        """Whether a value has its checksum."""
        try:
            return self._has_checksum(place, self._raw(place))
        except RunError:
            return False

    def _raw(self, place: int) -> Tensor:
        columns = self.entries.columns
        offset, nbytes = int(columns["offset"][place]), int(columns["nbytes"][place])
        if not nbytes:
            return torch.empty(0, dtype=torch.uint8)
        return self._files.bytes_of(self.path_of(place), offset, nbytes)

    def _refuse_lie(self, place: int) -> None:
        """An index is looked at value by value when they are read."""
        fact = self.fact(place)
        expected = math.prod(fact.shape) * STORED[fact.dtype].itemsize
        if fact.nbytes != expected or int(self.entries.columns["offset"][place]) < 0:
            raise RunError(
                f"The index of {self.path_of(place)} says that a value {fact.dtype}"
                f"{list(fact.shape)} has {fact.nbytes:,} bytes; it is damaged."
            )

    def _has_checksum(self, place: int, raw: Tensor) -> bool:
        data: Any = raw.numpy() if raw.numel() else b""
        return crc32(data) == int(self.entries.columns["crc32"][place])

    def _verify(self, place: int, raw: Tensor) -> None:
        if not self._has_checksum(place, raw):
            columns = self.entries.columns
            site = self.entries.tables.site[columns["site"][place]]
            raise RunError(
                f"The value of {site} in step {columns['step'][place]}, call "
                f"{columns['call'][place]}, is damaged in {self.path_of(place)}: its bytes do not "
                f"have their checksum. torchtap doctor says what is whole."
            )
        self._is_verified[place] = True

"""The lanes of an attempt: one file for the values of a site, made when the first of them comes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import NamedTuple

from torchtap.core.site import Site
from torchtap.runs.store.dtypes import STORED
from torchtap.runs.store.lane import FULL, Lane, OpenFiles
from torchtap.runs.store.layout import LANES, lane_name
from torchtap.runs.store.site_text import site_text

Ends = Mapping[Lane, tuple[int, int]]
"""Lane -> its end in bytes, and its rows."""


class Value(NamedTuple):
    """One value to be written.

    Attributes:
        site: where.
        step: the user's counter.
        call: within the step.
        phase: of the call.
        backward: which backward of the step, -1 for forward values.
        labels: what else is to be known of it.
        dtype: of its elements, without ``torch.``.
        shape: of the tensor.
        data: its bytes, in the order of the elements.
    """

    site: Site
    step: int
    call: int
    phase: str
    backward: int
    labels: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    data: memoryview


class Lanes:
    """All lanes of an attempt.

    Args:
        folder: of the attempt, in which it makes a folder for them.

    Attributes:
        header_bytes: of all files; they do not grow.
        has_new_files: whether files were made whose names may not be on the disk.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / LANES
        self.folder.mkdir()
        self.header_bytes = 0
        self.has_new_files = True
        self._files = OpenFiles()
        self._lanes: dict[tuple[Site, str, tuple[int, ...] | None], Lane] = {}
        self._kinds: dict[tuple[Site, str], tuple[int, ...]] = {}
        self._committed: dict[Lane, tuple[int, int]] = {}

    def has(self, site: Site, dtype: str) -> bool:
        """Return whether values of a site and dtype stand in lanes, however small they are."""
        return (site, dtype) in self._kinds

    @property
    def is_empty(self) -> bool:
        """Return whether no value stands in a lane."""
        return not self._kinds

    def append(self, value: Value) -> tuple[Lane, int, int]:
        """Write a value behind the others of its lane; the lane, the place, and the row."""
        lane, num_rows = self._lane_of(value)
        try:
            return lane, *lane.append(value.data, num_rows)
        except OSError as error:
            if error.errno not in FULL:
                raise
            for one in self._lanes.values():  # What is reserved for others may be enough.
                one.stop_reserving()
            return lane, *lane.append(value.data, num_rows)

    def ends(self) -> Ends:
        """Lane -> the byte and the row where it ends now."""
        return {lane: (lane.end, lane.num_rows) for lane in self._lanes.values()}

    def commit(self, ends: Ends) -> None:
        """Note that the values up to these ends are committed."""
        self._committed.update(ends)

    def make_room(self, ends: Ends) -> None:
        """Give back what stands behind these ends, and what is reserved."""
        for lane, (end, num_rows) in ends.items():
            lane.back_to(end, num_rows)
            lane.stop_reserving()

    def cut(self) -> None:
        """Leave in the files what was committed, and say so in their headers."""
        for lane in self._lanes.values():
            lane.back_to(*self._committed[lane])
        self._files.each([(one.path, one.cut) for one in self._lanes.values() if one.has_more])
        self.write_headers()

    def write_headers(self) -> None:
        """Make the files readable for others."""
        for lane in self._lanes.values():
            lane.write_header()

    def sync(self, *, every: bool = False) -> None:
        """See that the values are on the disk: those that are not committed yet, or ``every``."""
        changed = [lane for lane, (end, _) in self._committed.items() if every or lane.end != end]
        self._files.each([(lane.path, os.fdatasync) for lane in changed])

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    def _lane_of(self, value: Value) -> tuple[Lane, int]:
        """The lane of a value, and how many rows of it the value takes."""
        kind, trailing = (value.site, value.dtype), value.shape[1:]
        if STORED[value.dtype].is_sparse:
            self._kinds.setdefault(kind, trailing)
            return self._lane(*kind, None), len(value.data)
        if trailing == self._kinds.setdefault(kind, trailing):
            num_rows = value.shape[0] if value.shape else 1
            return self._lane(*kind, trailing), num_rows
        # Of other dims than the first value of its kind: no rows of one tensor, so its elements
        # stand one after the other in a second lane.
        return self._lane(*kind, None), prod(value.shape)

    def _lane(self, site: Site, dtype: str, trailing: tuple[int, ...] | None) -> Lane:
        known = self._lanes.get((site, dtype, trailing))
        if known is None:
            text = site_text(site)
            path = self.folder / lane_name(len(self._lanes), text)
            known = Lane(path, text, dtype, trailing, self._files)
            self._lanes[site, dtype, trailing] = known
            self.has_new_files = True
            self._committed[known] = known.end, 0
            self.header_bytes += known.end
        return known

"""What is wanted of one module or mark, and the tally of what was seen there."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torchtap.site import Site

if TYPE_CHECKING:
    from torchtap.plan import Filter


class Spot:
    """The tally of one site.

    Attributes:
        seen: values delivered.
        armed: gradients waited for.
        arrived: of these, the ones that came.
        reason: why the last value could not be had.
        copies: whether values must be copied because somebody overwrites them; ``None`` until
            that is known.
    """

    __slots__ = ("armed", "arrived", "copies", "reason", "seen", "site")

    def __init__(self, site: Site) -> None:
        self.site = site
        self.seen = self.armed = self.arrived = 0
        self.reason: str | None = None
        self.copies: bool | None = None


class Tap:
    """Our attachment to one module (or mark).

    Attributes:
        filters: port -> which of its leaves are wanted.
        spots: (port, leaf) -> its tally, or ``None`` if it is not wanted.
        calls: numbers the calls of the running step.
        num_calls: calls seen so far, of all steps.
        reason: why calls were not recorded.
    """

    __slots__ = ("calls", "filters", "num_calls", "path", "reason", "spots")

    def __init__(self, path: str, filters: Mapping[str, Filter]) -> None:
        self.path = path
        self.filters = filters
        self.spots: dict[tuple[str, str], Spot | None] = {}
        self.calls = itertools.count()
        self.num_calls = 0
        self.reason: str | None = None

    def spot(self, port: str, leaf: str) -> Spot | None:
        """The spot of one site, or ``None`` if it is not wanted."""
        try:
            return self.spots[port, leaf]
        except KeyError:
            wanted = port in self.filters and self.filters[port].accepts(leaf)
            spot = Spot(Site(self.path, port, leaf)) if wanted else None
            self.spots[port, leaf] = spot
            return spot

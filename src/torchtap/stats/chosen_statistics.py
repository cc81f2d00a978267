"""The further statistics of ``tt.Stats``, and at which sites each is wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from torchtap.core.errors import InputError
from torchtap.core.site import Pattern, Site
from torchtap.stats.catalogue.protocol import OfSlices, Statistic, check_statistics
from torchtap.stats.catalogue.results import Missing

Wanted: TypeAlias = Sequence[Statistic] | Mapping[str, Sequence[Statistic]]
"""Statistics for all sites, or by the patterns of their sites."""
NOT_ASKED = "it was not asked for at this site: see tt.Stats(statistics={pattern: [...]})."


class ChosenStatistics:
    """Tells which of the further statistics are wanted at a site.

    Args:
        wanted: statistics for all sites, or ``{pattern: statistics}``; a site has those of all
            patterns that it fits.

    Attributes:
        every: all of them, each once.
        types: path -> class names of the modules, for patterns with a type.

    Raises:
        InputError: one is no statistic, two of a name differ, or a pattern takes away.
    """

    def __init__(self, wanted: Wanted) -> None:
        self.types: dict[str, tuple[str, ...]] = {}
        self._patterns: list[tuple[Pattern, frozenset[str]]] | None = None
        self._lost: dict[Site, Mapping[str, Missing]] = {}
        if not isinstance(wanted, Mapping):
            self.every = tuple(wanted)
        else:
            self._patterns = [
                (_checked(text), frozenset(one.name for one in own)) for text, own in wanted.items()
            ]
            every = [one for own in wanted.values() for one in own]
            self.every = tuple(one for number, one in enumerate(every) if one not in every[:number])
        check_statistics(self.every)

    def know(self, types: Mapping[str, tuple[str, ...]]) -> None:
        """Take the class names of a model's modules, by path."""
        self.types |= types
        self._lost.clear()

    def lost_at(self, site: Site) -> Mapping[str, Missing]:
        """Return the statistics that a site has not, by name, each with the reason."""
        if self._patterns is None:
            return {}
        if site not in self._lost:
            own = self.types.get(site.path)
            fitting = [names for one, names in self._patterns if one.matches(site, own)]
            asked = frozenset().union(*fitting)
            self._lost[site] = {
                one.name: Missing(NOT_ASKED) for one in self.every if one.name not in asked
            }
        return self._lost[site]

    def of_slices(self, site: Site) -> Sequence[OfSlices | Missing]:
        """Return all statistics, in their order, if those of a site are all of slices; or none."""
        lost = self.lost_at(site)
        found = [lost.get(one.name, one) for one in self.every]
        fitting = [one for one in found if isinstance(one, OfSlices | Missing)]
        return fitting if len(fitting) == len(found) and self.has_any(site) else ()

    def has_any(self, site: Site) -> bool:
        """Return whether any further statistic is wanted at a site."""
        return len(self.lost_at(site)) < len(self.every)


def _checked(text: str) -> Pattern:
    pattern = Pattern.parse(text)
    if pattern.negate:
        raise InputError(
            f"statistics has the pattern {text!r}, which takes away; expected patterns of the "
            f"sites that are to have the statistics."
        )
    return pattern

"""Selection of the sites of a run by text, and messages where a run has none that fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torchtap.core.absence import Absence
from torchtap.core.did_you_mean import did_you_mean
from torchtap.core.errors import SiteError
from torchtap.core.ports import PORTS
from torchtap.core.site import Pattern, Site, leaf_matches

Where = str | Site | Callable[[Site], bool] | Sequence["str | Site | Callable[[Site], bool]"] | None


class Selection:
    """The sites of a run, and how they are looked up.

    Args:
        known: those with a record or a measurement, in the order in which calls have them.
        modules: path -> class names in MRO order, in the order of ``named_modules()``.
        aliases: second path of a shared module -> its first.
        absent: asks what was selected and not seen.
        watched: the patterns that were watched, as text; none where that is not known.

    Attributes:
        sites: by module, port and leaf: leaves that are numbers (positional arguments, items of a
            tuple) first, then those with names in the order in which calls have them.
    """

    def __init__(
        self,
        known: Iterable[Site],
        modules: Mapping[str, tuple[str, ...]],
        aliases: Mapping[str, str],
        absent: Callable[[], Sequence[Absence]],
        *,
        watched: Sequence[str] = (),
    ) -> None:
        self._modules = modules
        self._aliases = aliases
        self._absent = absent
        self._watched = watched
        self._paths: dict[str, list[str]] = {}
        for alias, first in aliases.items():
            self._paths.setdefault(first, [first]).append(alias)
        places = {path: place for place, path in enumerate(modules)}
        ports = {port: place for place, port in enumerate(PORTS)}

        def rank(site: Site) -> tuple[int, int, float]:
            return places.get(site.path, len(places)), ports[site.port], _number(site.leaf)

        self.sites = sorted(known, key=rank)
        self._known = frozenset(self.sites)

    def __contains__(self, site: Site) -> bool:
        return site in self._known

    def select(self, where: Where) -> list[Site]:
        """Return the sites that fit ``where``; all for ``None``.

        Raises:
            SiteError: nothing fits; the message names what is near.
        """
        if where is None:
            return list(self.sites)
        if isinstance(where, Site):
            return [self.resolve(where)]
        chosen = self.fitting(where)
        if not chosen:
            items: Sequence[Any] = [where] if isinstance(where, str) or callable(where) else where
            raise SiteError(self._nothing_at(", ".join(map(str, items))))
        return chosen

    def fitting(self, where: Where) -> list[Site]:
        """Return the sites that fit, which may be none."""
        if where is None or isinstance(where, Site):
            return [site for site in self.sites if where in (None, site)]
        if not isinstance(where, str | Sequence) and not callable(where):
            raise _no_site(where)
        items: Sequence[Any] = [where] if isinstance(where, str) or callable(where) else where
        patterns = [Pattern.parse(item) for item in items if isinstance(item, str)]
        sites = {item for item in items if isinstance(item, Site)}
        functions = [item for item in items if not isinstance(item, str | Site)]
        adding = [pattern for pattern in patterns if not pattern.negate]
        every = not adding and not sites and not functions

        def fits(site: Site) -> bool:
            wanted = every or site in sites or any(function(site) for function in functions)
            wanted = wanted or any(self._fits(pattern, site) for pattern in adding)
            return wanted and not any(p.negate and self._fits(p, site) for p in patterns)

        return [site for site in self.sites if fits(site)]

    def _fits(self, pattern: Pattern, site: Site) -> bool:
        types = self._modules.get(site.path)
        paths = self._paths.get(site.path)
        if paths is None:
            return pattern.matches(site, types)
        return any(pattern.matches(Site(path, site.port, site.leaf), types) for path in paths)

    def resolve(self, site: str | Site) -> Site:
        """Return the one site that is meant.

        Raises:
            SiteError: there is none, or several.
        """
        if not isinstance(site, str | Site):
            raise _no_site(site)
        wanted = site if isinstance(site, Site) else Site.parse(site)
        if wanted.path in self._aliases:
            wanted = Site(self._aliases[wanted.path], wanted.port, wanted.leaf)
        if wanted in self._known:
            return wanted
        near = [
            other
            for other in self.sites
            if (other.path, other.port) == (wanted.path, wanted.port)
            and leaf_matches(wanted.leaf, other.leaf)
        ]
        if len(near) == 1:
            return near[0]
        if near:
            names = ", ".join(repr(str(other)) for other in near)
            raise SiteError(f"{wanted} stands for several tensors. Name one of {names}.")
        raise SiteError(self._nothing_at(str(wanted)))

    def _nothing_at(self, text: str) -> str:
        place = text.rsplit(":", 1)[0] if ":" in text else text
        reasons = [entry for entry in self._absent() if (entry.site.path or ".") == place]
        exact = [entry for entry in reasons if str(entry.site).startswith(text)]
        if exact or reasons:
            entry = (exact or reasons)[0]
            return f"Nothing was recorded at {text}: {entry.site} is absent because {entry.reason}."
        if not self.sites:
            return f"The run is empty: nothing was recorded, at {text} or elsewhere."
        if self._is_unwatched(text):
            return self._not_watched(Site.parse(text))
        known = [str(site) for site in self.sites]
        if ":" not in text:
            known = list(dict.fromkeys(site.path or "." for site in self.sites))
        near = did_you_mean(text, known)
        ways = "" if near.endswith("?") else " run.sites, or torchtap ls RUN, lists the sites."
        return f"Nothing was recorded at {text!r}{near}{ways}"

    def _is_unwatched(self, text: str) -> bool:
        """Return whether a text is a port of a module that is there, and no pattern had it."""
        try:
            site = Site.parse(text)
            patterns = [Pattern.parse(one) for one in self._watched]
        except SiteError:  # A pattern, or what was watched is a function.
            return False
        if not patterns or ":" not in text or site.path not in self._modules:
            return False
        adding = [pattern for pattern in patterns if not pattern.negate] or [Pattern("*")]
        is_chosen = any(self._fits(one, site) for one in adding)
        return not is_chosen or any(
            self._fits(pattern, site) for pattern in patterns if pattern.negate
        )

    def _not_watched(self, site: Site) -> str:
        """Return the message for such a port."""
        ports = list(dict.fromkeys(one.port for one in self.sites if one.path == site.path))
        place = site.path or "."
        there = f"; at {place!r} there is {', '.join(ports)}" if ports else ""
        wanted = f"{place}:{','.join(dict.fromkeys([*ports, site.port]))}"
        return (
            f"Nothing was recorded at {str(site)!r}, which was not watched: the run was watched at "
            f"{', '.join(map(repr, self._watched))}{there}. Watch {wanted!r}."
        )


def _no_site(found: object) -> SiteError:
    """Return the error for something else in the place of a site, such as the number of a step."""
    is_number = isinstance(found, int)
    step = f" Step {found} is read by run.get('PATH:output', step={found})." if is_number else ""
    return SiteError(
        f"A site was expected as text, such as run['layer1:output'], and {type(found).__name__} "
        f"was found.{step} run.sites lists the sites, run.records() gives all values."
    )


def _number(leaf: str) -> float:
    """Return the position that a leaf begins with; names come after all positions."""
    head = leaf.partition(".")[0]
    return int(head) if head.isdecimal() else float("inf") if leaf else -1.0

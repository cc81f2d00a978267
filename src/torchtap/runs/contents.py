"""What a run holds at one moment, and how it is looked up.

A run of a live watch is read while it fills, and reading it brings the statistics up to date. So
every operation of :class:`~torchtap.runs.run.Run` asks for the contents once and works on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from operator import index
from typing import TYPE_CHECKING, Any

from torchtap.core.absence import Absence
from torchtap.core.errors import RunError, SiteError
from torchtap.core.record import FORWARD, Record, steps_there
from torchtap.core.site import PORTS, Pattern, Site, did_you_mean, leaf_matches
from torchtap.stats.names import NAMES, further_of, value_of
from torchtap.stats.series import Series, part_of, without_ratio
from torchtap.stats.statistics import Statistics, other_shape, why_no_ratio

if TYPE_CHECKING:
    from torch import Tensor

Step = int | Iterable[int] | str | None
Where = str | Site | Callable[[Site], bool] | Sequence["str | Site | Callable[[Site], bool]"] | None


@dataclass(frozen=True, slots=True)
class Meta:
    """What a run knows of its model and of how it was made.

    Attributes:
        model: class name of the model.
        modules: path -> class names in MRO order, in the order of ``named_modules()``.
        aliases: second path of a shared module -> its first.
        where: the patterns that were watched, as text.
        torch: version of PyTorch.
        torchtap: version of torchtap.
        created: UTC time in ISO form.
        labels: anything else that the maker wrote down, text to text.
    """

    model: str = ""
    modules: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    where: tuple[str, ...] = ()
    torch: str = ""
    torchtap: str = ""
    created: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def type_name(self, path: str) -> str:
        """Class name of the module at ``path``, or ``""`` where there is none (a mark)."""
        names = self.modules.get(path)
        return names[0] if names else ""

    def paths_of(self, path: str) -> tuple[str, ...]:
        """All paths of the module at ``path``: the first, then the further ones if shared."""
        return (path, *(alias for alias, first in self.aliases.items() if first == path))


class Contents:
    """What a run holds at one moment.

    Args:
        rows: its records in the order of their arrival.
        by_site: the same by site.
        series: what was measured.
        meta: what is known of the model.
        absent: asks what was selected and not seen.
    """

    def __init__(
        self,
        rows: Sequence[Record],
        by_site: Mapping[Site, list[Record]],
        series: Series,
        meta: Meta,
        absent: Callable[[], Sequence[Absence]],
    ) -> None:
        self.rows = rows
        self.by_site = by_site
        self.series = series
        self.meta = meta
        self.absent = absent
        self._grouped: dict[Site, dict[int, list[Record]]] = {}

    @cached_property
    def known(self) -> Mapping[Site, None]:
        """Sites that were recorded or measured, by arrival."""
        return dict.fromkeys([*self.by_site, *self.series.sites])

    @cached_property
    def sites(self) -> Sequence[Site]:
        """The same by module, port and leaf."""
        modules = {path: place for place, path in enumerate(self.meta.modules)}
        # Sorting keeps the order of arrival among leaves.
        return sorted(
            self.known,
            key=lambda site: (modules.get(site.path, len(modules)), PORTS.index(site.port)),
        )

    @property
    def steps(self) -> list[int]:
        """Steps in which anything was recorded or measured, ascending."""
        return sorted({*(row.step for row in self.rows), *self.series.steps})

    @cached_property
    def _paths(self) -> Mapping[str, Sequence[str]]:
        """First path of a shared module -> all its paths."""
        paths: dict[str, list[str]] = {}
        for alias, first in self.meta.aliases.items():
            paths.setdefault(first, [first]).append(alias)
        return paths

    # ------------------------------------------------------------------ selection

    def select(self, where: Where) -> list[Site]:
        """See :meth:`Run.select <torchtap.runs.run.Run.select>`."""
        if where is None:
            return list(self.sites)
        if isinstance(where, Site):
            return [self.resolve(where)]
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

        chosen = [site for site in self.sites if fits(site)]
        if not chosen:
            raise SiteError(self._nothing_at(", ".join(map(str, items))))
        return chosen

    def _fits(self, pattern: Pattern, site: Site) -> bool:
        types = self.meta.modules.get(site.path)
        return any(
            pattern.matches(Site(path, site.port, site.leaf), types)
            for path in self._paths.get(site.path, (site.path,))
        )

    def resolve(self, site: str | Site) -> Site:
        """The one site that is meant.

        Raises:
            SiteError: there is none, or several.
        """
        wanted = site if isinstance(site, Site) else Site.parse(site)
        if wanted.path in self.meta.aliases:
            wanted = Site(self.meta.aliases[wanted.path], wanted.port, wanted.leaf)
        if wanted in self.known:
            return wanted
        near = [
            other
            for other in self.known
            if (other.path, other.port) == (wanted.path, wanted.port)
            and leaf_matches(wanted.leaf, other.leaf)
        ]
        if len(near) == 1:
            return near[0]
        if near:
            names = ", ".join(repr(str(other)) for other in near)
            raise SiteError(f"{wanted} stands for several tensors. Name one of {names}.")
        raise SiteError(self._nothing_at(str(wanted)))

    # ------------------------------------------------------------------ values

    def last(self, site: str | Site) -> Record:
        """The record of the last step, last call (and last backward)."""
        place = self.resolve(site)
        self._refuse_measured(place)
        rows = [row for row in self.by_site[place] if row.phase == FORWARD]
        return _latest(rows) if rows else self.record(place)  # Says what is missing.

    def record(
        self,
        site: str | Site,
        *,
        step: int | None = None,
        call: int | None = None,
        backward: int | None = None,
        phase: str = FORWARD,
    ) -> Record:
        """See :meth:`Run.record <torchtap.runs.run.Run.record>`."""
        place = self.resolve(site)
        self._refuse_measured(place)
        rows = [
            row
            for row in self.by_site[place]
            if row.phase == phase
            and step in (None, row.step)
            and call in (None, row.call)
            and backward in (None, row.backward)
        ]
        if not rows:
            raise SiteError(self._nothing_like(place, step, call, backward, phase))
        return _latest(rows)

    def records(
        self,
        where: Where = None,
        *,
        steps: int | Iterable[int] | None = None,
        phase: str | None = FORWARD,
    ) -> list[Record]:
        """See :meth:`Run.records <torchtap.runs.run.Run.records>`."""
        wanted = None if steps is None else {steps} if isinstance(steps, int) else set(steps)
        chosen = None if where is None else self.select(where)
        rows: Iterable[Record] = self.rows
        if chosen is not None and len(chosen) == 1:
            rows = self.by_site.get(chosen[0], ())
        elif chosen is not None:
            among = set(chosen)
            rows = (row for row in self.rows if row.site in among)
        return [
            row
            for row in rows
            if phase in (None, row.phase) and (wanted is None or row.step in wanted)
        ]

    def cat(self, site: str | Site, *, steps: int | Iterable[int] | None = None) -> Tensor:
        """See :meth:`Run.cat <torchtap.runs.run.Run.cat>`."""
        import torch

        place = self.resolve(site)
        self._refuse_measured(place)
        last = {(row.step, row.call): row for row in self.records(place, steps=steps)}
        if not last:
            missing = steps if isinstance(steps, int) else None
            own = sorted({row.step for row in self.records(place)})
            if not own:
                raise SiteError(self._nothing_like(place, None, None, None, FORWARD))
            raise SiteError(
                f"{place} has no record in steps {steps!r}. {steps_there(own, missing)}"
            )
        values = [row.value for _, row in sorted(last.items(), key=lambda item: item[0])]
        try:
            return torch.cat([value.reshape(1) if value.dim() == 0 else value for value in values])
        except RuntimeError as error:
            shapes = sorted({str(tuple(value.shape)) for value in values})
            raise RunError(
                f"The {len(values)} values of {place} cannot be joined along dim 0: their shapes "
                f"are {', '.join(shapes)}. Read them one by one with run.records({str(place)!r})."
            ) from error

    def mean_norm(self, where: Where) -> dict[str, float]:
        """See :meth:`Run.mean_norm <torchtap.runs.run.Run.mean_norm>`."""
        import torch

        chosen = self.select(where)
        paths = [site.path for site in chosen]
        by_path = len(set(paths)) == len(paths)
        norms = {}
        for site in chosen:
            if site in self.by_site:
                joined = self.cat(site)
                joined = joined if joined.layout is torch.strided else joined.to_dense()
                wide = joined.to(torch.complex128 if joined.is_complex() else torch.float64)
                norm = float(torch.linalg.vector_norm(wide.mean(dim=0)))
            else:
                norm = self.series.of(site).mean_norm()
            norms[(site.path or ".") if by_path else str(site)] = norm
        return norms

    # ------------------------------------------------------------------ statistics

    def stats(self, site: str | Site, *, step: Step = None) -> Statistics:
        """See :meth:`Run.stats <torchtap.runs.run.Run.stats>`."""
        place, step = self.resolve(site), as_step(step)
        series = self.series
        if place not in series:
            return self._measured_now(place, step)
        if isinstance(step, str):
            return series.whole(place)
        return series.window(place, step) if isinstance(step, list) else series.at(place, step)

    def _measured_now(self, site: Site, step: int | list[int] | str | None) -> Statistics:
        """Of values that were kept."""
        from torchtap.stats.measure import measure_all

        per_step = self._by_step(site)
        if step is None:
            step = max(per_step, default=None)
        if isinstance(step, int):
            rows: Sequence[Record] = per_step.get(step, ())
        else:
            wanted = per_step.keys() if step is None or isinstance(step, str) else set(step)
            rows = [r for r in self.by_site[site] if r.phase == FORWARD and r.step in wanted]
        if not rows:
            only = step if isinstance(step, int) else None
            raise SiteError(self._nothing_like(site, only, None, None, FORWARD))
        found = measure_all(row.value for row in rows)
        notes = dict.fromkeys(chain.from_iterable(row.labels for row in rows))
        if isinstance(step, list):
            found = replace(found, notes=(*found.notes, *part_of({row.step for row in rows}, step)))
        found = replace(found, notes=(*notes, *found.notes))
        if site.port != "update":
            return found
        if len({row.step for row in rows}) > 1:
            return without_ratio(found, site)
        param = Site(site.path, "param", site.leaf)
        before = self._by_step(param).get(rows[0].step)
        norm = measure_all([before[0].value], histogram=False).l2 if before else math.nan
        why = why_no_ratio(norm, str(param))
        if before and found.shape not in (None, shape := tuple(before[0].kept.shape)):
            norm, why = math.nan, other_shape(str(param), shape, found.shape)
        return replace(found, weight_l2=norm, why_no_ratio=why)

    def _by_step(self, site: Site) -> Mapping[int, Sequence[Record]]:
        """The records of a site in each step, but for those that were computed again."""
        found = self._grouped.get(site)
        if found is None:
            found = self._grouped[site] = {}
            for row in self.by_site.get(site, ()):
                if row.phase == FORWARD:
                    found.setdefault(row.step, []).append(row)
        return found

    def over_steps(self, site: str | Site, name: str) -> tuple[list[int], list[Any]]:
        """See :meth:`Run.over_steps <torchtap.runs.run.Run.over_steps>`."""
        series, place = self.series, self.resolve(site)
        further = [one.name for one in series.statistics]
        if name not in NAMES:
            further_of(name, further)
        if place not in series:
            steps = sorted(self._by_step(place))
            if not steps:
                raise SiteError(self._nothing_like(place, None, None, None, FORWARD))
            return steps, [value_of(self.stats(place, step=step), name) for step in steps]
        steps = series.steps_of(place)
        if name in NAMES and not NAMES[name].needs_histogram:
            return steps, [value_of(series.numbers_at(place, step), name) for step in steps]
        kept = [step for step in steps if series.is_kept(step)] or steps[-1:]
        return kept, [value_of(series.at(place, step), name) for step in kept]

    # ------------------------------------------------------------------ what is missing

    def _refuse_measured(self, site: Site) -> None:
        if site not in self.by_site and site in self.series:
            raise RunError(
                f"{site} was measured and its values were not kept. Read run.stats({str(site)!r}), "
                f"or watch with to=[tt.Memory(), tt.Stats()]."
            )

    def _nothing_at(self, text: str) -> str:
        place = text.rsplit(":", 1)[0] if ":" in text else text
        reasons = [entry for entry in self.absent() if (entry.site.path or ".") == place]
        exact = [entry for entry in reasons if str(entry.site).startswith(text)]
        if exact or reasons:
            entry = (exact or reasons)[0]
            return f"Nothing was recorded at {text}: {entry.site} is absent because {entry.reason}."
        known = [str(site) for site in self.sites]
        if not known:
            return f"Nothing was recorded at {text}: the run is empty."
        if ":" not in text:
            known = list(dict.fromkeys(site.path or "." for site in self.sites))
        return f"Nothing was recorded at {text!r}{did_you_mean(text, known)}"

    def _nothing_like(
        self, site: Site, step: int | None, call: int | None, backward: int | None, phase: str
    ) -> str:
        have = sorted({(row.step, row.call) for row in self.by_site[site] if row.phase == phase})
        asked = [
            f"{name} {value}"
            for name, value in (("step", step), ("call", call), ("backward", backward))
            if value is not None
        ]
        shown = ", ".join(f"step {s} call {c}" for s, c in have[:6]) or f"none in phase {phase}"
        more = f" and {len(have) - 6} more" if len(have) > 6 else ""
        others = sorted({row.phase for row in self.by_site[site]} - {phase})
        hint = f" Others have phase={' and '.join(map(repr, others))}." if others else ""
        return (
            f"{site} has no record in {', '.join(asked) or phase}. There are: {shown}{more}.{hint}"
        )


def _latest(rows: Sequence[Record]) -> Record:
    """The record of the last step and call, of several backwards the one that came last."""
    return max(enumerate(rows), key=lambda item: (item[1].step, item[1].call, item[0]))[1]


def as_step(step: Any) -> int | list[int] | str | None:
    """One step, several, or ``all``; whole numbers of any kind, such as numpy's."""
    if step is None or (isinstance(step, str) and step == "all"):
        return step
    try:
        return index(step)
    except TypeError:
        pass
    try:
        return [index(one) for one in step]
    except TypeError:
        raise SiteError(
            f"step is {step!r}; expected a number, several of them, or 'all'."
        ) from None

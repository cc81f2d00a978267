"""The one face of everything that was recorded, in memory or on disk."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtap.errors import RunError, SiteError
from torchtap.record import FORWARD, Absence, Absences, Record, steps_there
from torchtap.site import PORTS, Pattern, Site, did_you_mean, leaf_matches
from torchtap.stats.names import NAMES, further_of, value_of
from torchtap.stats.series import Series, part_of, without_ratio
from torchtap.stats.statistics import Statistics, why_no_ratio

if TYPE_CHECKING:
    from torch import Tensor

    from torchtap.store.table import Table

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


class Run:
    """All that was recorded under one id: a lazy, read-only view of its records.

    A value of the forward pass that activation checkpointing computed again (phase ``recompute``)
    is kept apart: it is read with ``phase="recompute"`` and counted nowhere else. So are the values
    and gradients of other calls inside a backward (phase ``backward``), which adjoint solvers,
    reversible blocks, custom functions and hooks make.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> with tt.watch(model, "*:output,grad_output") as w:
        ...     model(torch.ones(4, 2)).sum().backward()
        >>> w.run["0:output"].shape
        torch.Size([4, 3])
        >>> [str(site) for site in w.run.sites][:2]
        ['.:output', '.:grad_output']
    """

    def __init__(
        self,
        rows: Sequence[Record],
        meta: Meta,
        absent: Callable[[], Sequence[Absence]] = tuple,
        series: Callable[[], Series] = Series,
    ) -> None:
        self._rows = rows
        self._meta = meta
        self._absent = absent
        self._series = series
        self._index: dict[Site, list[Record]] = {}
        self._indexed: tuple[int, Record | None] = (0, None)

    # ------------------------------------------------------------------ what there is

    @property
    def meta(self) -> Meta:
        """What is known of the model and of how the run was made."""
        return self._meta

    @property
    def sites(self) -> list[Site]:
        """Sites that were recorded or measured, by module, port and leaf."""
        modules = {path: place for place, path in enumerate(self._meta.modules)}
        seen = list(dict.fromkeys([*self._sites(), *self.series.sites]))
        arrival = {site: place for place, site in enumerate(seen)}
        return sorted(
            seen,
            key=lambda site: (
                modules.get(site.path, len(modules)),
                PORTS.index(site.port),
                arrival[site],
            ),
        )

    @property
    def steps(self) -> list[int]:
        """Steps in which anything was recorded or measured, ascending."""
        return sorted({*(row.step for row in self._rows), *self.series.steps})

    @property
    def series(self) -> Series:
        """What ``tt.Stats`` measured, up to now."""
        return self._series()

    @property
    def absent(self) -> Absences:
        """What was selected and not seen, with reasons: a list that prints as a table."""
        return Absences(self._absent())

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return sum(row.nbytes for row in self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, site: object) -> bool:
        try:
            self._resolve(site if isinstance(site, Site) else str(site))
        except SiteError:
            return False
        return True

    # ------------------------------------------------------------------ values

    def __getitem__(self, site: str | Site) -> Tensor:
        """The value at ``site`` of the last step, last call (and last backward).

        Raises:
            SiteError: nothing was recorded there; the message says why, or what is near.
        """
        return self._last(self._resolve(site)).value

    def get(
        self,
        site: str | Site,
        *,
        step: int | None = None,
        call: int | None = None,
        backward: int | None = None,
        phase: str = FORWARD,
    ) -> Tensor:
        """One value; what is not given is the last there is.

        Raises:
            SiteError: nothing was recorded at the site, or not in that step and call.
        """
        return self.record(site, step=step, call=call, backward=backward, phase=phase).value

    def record(
        self,
        site: str | Site,
        *,
        step: int | None = None,
        call: int | None = None,
        backward: int | None = None,
        phase: str = FORWARD,
    ) -> Record:
        """The whole record behind :meth:`get`."""
        place = self._resolve(site)
        self._refuse_measured(place)
        rows = [
            row
            for row in self._index[place]
            if row.phase == phase
            and step in (None, row.step)
            and call in (None, row.call)
            and backward in (None, row.backward)
        ]
        if not rows:
            raise SiteError(self._nothing_like(place, step, call, backward, phase))
        return max(enumerate(rows), key=lambda item: (item[1].step, item[1].call, item[0]))[1]

    def records(
        self,
        where: Where = None,
        *,
        steps: int | Iterable[int] | None = None,
        phase: str | None = FORWARD,
    ) -> Iterator[Record]:
        """Records in the order of their arrival, read one by one.

        Args:
            where: patterns as everywhere, sites, or a function of a site; ``None`` for all.
            steps: one step or several; ``None`` for all.
            phase: ``forward``, ``recompute``, ``backward``, or ``None`` for all.

        Raises:
            SiteError: nothing was recorded that fits ``where``.
        """
        chosen = None if where is None else set(self.select(where))
        wanted = None if steps is None else {steps} if isinstance(steps, int) else set(steps)
        for row in list(self._rows):
            if chosen is not None and row.site not in chosen:
                continue
            if phase in (None, row.phase) and (wanted is None or row.step in wanted):
                yield row

    def cat(self, site: str | Site, *, steps: int | Iterable[int] | None = None) -> Tensor:
        """All values of a site over calls and steps, joined along dim 0.

        A bare number (0-d) counts as one row. Of several backwards through one call the last is
        taken.

        Raises:
            RunError: the values do not fit together.
        """
        import torch

        place = self._resolve(site)
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

    def mean_norm(self, where: Where = "*:output") -> dict[str, float]:
        """Norm of the mean over samples, per module.

        Values are joined along dim 0 over calls and steps, averaged over dim 0, and the Euclidean
        norm of that mean is taken, all in float64. NaN and Inf go through. Where values were not
        kept but measured by ``tt.Stats``, its running mean is taken.

        Returns:
            path -> norm. Where the selection holds several sites of one module (ports or leaves),
            the keys are the sites' text forms instead.
        """
        import torch

        chosen = self.select(where)
        paths = [site.path for site in chosen]
        by_path = len(set(paths)) == len(paths)
        norms = {}
        for site in chosen:
            if site in self._sites():
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
        """Statistics of a site over all calls of one step, or of several together.

        Measured while it ran by ``tt.Stats``, or now from the values that were kept.

        Args:
            site: which.
            step: the last one of the site by default; several for them together, of which
                ``notes`` says if there are not all (``3 of 10 steps``); ``"all"`` for all.

        Raises:
            SiteError: nothing was recorded or measured there.
        """
        place, step = self._resolve(site), _as_step(step)
        series = self.series
        if place not in series:
            return self._measured_now(place, step)
        if isinstance(step, str):
            return series.whole(place)
        return series.window(place, step) if isinstance(step, list) else series.at(place, step)

    def _measured_now(self, site: Site, step: int | list[int] | str | None) -> Statistics:
        from torchtap.stats.measure import measure_all

        rows = [row for row in self._index[site] if row.phase == FORWARD]
        if step is None:
            step = max((row.step for row in rows), default=None)
        if not isinstance(step, str):
            wanted = set(step) if isinstance(step, list) else {step}
            rows = [row for row in rows if row.step in wanted]
        if not rows:
            only = step if isinstance(step, int) else None
            raise SiteError(self._nothing_like(site, only, None, None, FORWARD))
        found = measure_all(row.value for row in rows)
        if isinstance(step, list):
            found = replace(found, notes=(*found.notes, *part_of({row.step for row in rows}, step)))
        if site.port != "update":
            return found
        if len({row.step for row in rows}) > 1:
            return without_ratio(found, site)
        param = Site(site.path, "param", site.leaf)
        rows = [row for row in self._index.get(param, ()) if row.step == rows[0].step]
        norm = measure_all([rows[0].value], histogram=False).l2 if rows else math.nan
        return replace(found, weight_l2=norm, why_no_ratio=why_no_ratio(norm, str(param)))

    def quantile(self, site: str | Site, q: float, *, step: Step = None) -> float:
        """One quantile of a site, right to 1/33 (3.1 %); see :meth:`Statistics.quantile`."""
        return self.stats(site, step=step).quantile(q)

    def over_steps(self, site: str | Site, name: str) -> tuple[list[int], list[Any]]:
        """One statistic of a site over the steps.

        Args:
            site: which.
            name: of a number, such as ``l2``, ``p99`` or ``update_ratio``: as the columns of
                :meth:`table` and ``to_frame()``, which docs/statistics.md lists. Or of a further
                statistic (``cosine``), or of a part of its result (``units.zeros``, one
                ``float64[slices]`` per step).

        Returns:
            the steps, ascending, and its value in each. Steps in which the site was not measured
            are left out (an ``update`` that the optimizer passed over; ``absent`` says why). What
            is kept of the last steps only (quantiles, shares and further statistics; see
            ``tt.Stats(keep=...)``) is that of those steps.

        Raises:
            SiteError: there is no such statistic.
            RunError: it was asked for, and cannot be had in any step.
        """
        series, place = self.series, self._resolve(site)
        further = [one.name for one in series.statistics]
        if name not in NAMES:
            further_of(name, further)
        if place not in series:
            steps = sorted({row.step for row in self._index[place] if row.phase == FORWARD})
            if not steps:
                raise SiteError(self._nothing_like(place, None, None, None, FORWARD))
            return steps, [value_of(self.stats(place, step=step), name) for step in steps]
        steps = series.steps_of(place)
        if name in NAMES and not NAMES[name].needs_histogram:
            return steps, [value_of(series.numbers_at(place, step), name) for step in steps]
        kept = [step for step in steps if series.is_kept(step)] or steps[-1:]
        return kept, [value_of(series.at(place, step), name) for step in kept]

    # ------------------------------------------------------------------ tables and files

    def table(
        self,
        where: Where = None,
        *,
        steps: Step = None,
        together: bool = False,
        histogram: bool = False,
        columns: Sequence[str] | None = None,
        sort: str | None = None,
    ) -> Table:
        """One row per site: calls, shape, dtype, bytes, and statistics of the values.

        Reads every selected value once. ``print`` shows it, ``to_frame`` hands it on.

        Args:
            where: as in :meth:`records`.
            steps: of these the last one of each site; ``None`` for the last of all. ``"all"``
                for all of them together, merged as if their values were one.
            together: merge ``steps`` instead of taking the last one of them.
            histogram: also count histograms of values that were kept.
            columns: what is shown of each site: numbers as in :meth:`over_steps`, further
                statistics and parts of them (``cosine``, ``units.mean``), and ``type shape dtype
                calls steps step NaN/Inf histogram``. docs/statistics.md lists them.
            sort: by which column, largest first; ``"-l2"`` for smallest first. NaN comes last.

        Raises:
            SiteError: nothing was recorded or measured that fits ``where``.
            InputError: there is no such column, or it has no order.

        Example:
            >>> import torch, torchtap as tt
            >>> model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh())
            >>> with tt.watch(model, "?", to=tt.Stats()) as w:
            ...     _ = model(torch.tensor([-3.0, 4.0]))
            >>> print(w.run.table(columns=["absmax", "l2"], sort="l2"))
            2 sites, all float32, 16 B, step 0
            <BLANKLINE>
            site      absmax      l2
            0:output       4       4
            1:output  0.9993  0.9993
        """
        from torchtap.store.table import measure_table

        return measure_table(
            self,
            where,
            _as_step(steps),
            together=together,
            histogram=histogram,
            columns=columns,
            sort=sort,
        )

    def to_frame(self, where: Where = None) -> Any:
        """The table as a pandas (or else polars) data frame; needs the extra ``frame``."""
        return self.table(where).to_frame()

    def save(self, path: str | Path) -> Path:
        """Write the run into one safetensors file, which ``tt.open`` reads without the model.

        Written beside the target and renamed, so a crash leaves no half file. A directory that
        is not there is made, and a file that is there replaced.

        Raises:
            RunError: there is a directory of that name, or a tensor has no values.
            OSError: it cannot be written there.
        """
        from torchtap.store.file import save_run

        return save_run(self, Path(path))

    # ------------------------------------------------------------------ selection

    def select(self, where: Where) -> list[Site]:
        """The recorded sites that fit ``where``.

        Raises:
            SiteError: nothing fits; the message names what is near.
        """
        if where is None:
            return self.sites
        if isinstance(where, Site):
            return [self._resolve(where)]
        items: Sequence[Any] = [where] if isinstance(where, str) or callable(where) else where
        texts = [item for item in items if isinstance(item, str)]
        patterns = [Pattern.parse(text) for text in texts]
        sites = [item for item in items if isinstance(item, Site)]
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
        types = self._meta.modules.get(site.path)
        return any(
            pattern.matches(Site(path, site.port, site.leaf), types)
            for path in self._meta.paths_of(site.path)
        )

    def _resolve(self, site: str | Site) -> Site:
        wanted = site if isinstance(site, Site) else Site.parse(site)
        if wanted.path in self._meta.aliases:
            wanted = Site(self._meta.aliases[wanted.path], wanted.port, wanted.leaf)
        known = dict.fromkeys([*self._sites(), *self.series.sites])
        if wanted in known:
            return wanted
        near = [
            other
            for other in known
            if (other.path, other.port) == (wanted.path, wanted.port)
            and leaf_matches(wanted.leaf, other.leaf)
        ]
        if len(near) == 1:
            return near[0]
        if near:
            names = ", ".join(repr(str(other)) for other in near)
            raise SiteError(f"{wanted} stands for several tensors. Name one of {names}.")
        raise SiteError(self._nothing_at(str(wanted)))

    def _refuse_measured(self, site: Site) -> None:
        if site not in self._index and site in self.series:
            raise RunError(
                f"{site} was measured and its values were not kept. Read run.stats({str(site)!r}), "
                f"or watch with to=[tt.Memory(), tt.Stats()]."
            )

    def _last(self, site: Site) -> Record:
        self._refuse_measured(site)
        rows = [row for row in self._index[site] if row.phase == FORWARD]
        if not rows:
            return self.record(site)  # Says what is missing.
        return max(enumerate(rows), key=lambda item: (item[1].step, item[1].call, item[0]))[1]

    def _sites(self) -> Mapping[Site, list[Record]]:
        done, marker = self._indexed
        if done > len(self._rows) or (done and self._rows[done - 1] is not marker):
            self._index, done = {}, 0  # The store forgot old steps.
        for place in range(done, len(self._rows)):
            row = self._rows[place]
            self._index.setdefault(row.site, []).append(row)
        count = len(self._rows)
        self._indexed = (count, self._rows[count - 1] if count else None)
        return self._index

    def _nothing_at(self, text: str) -> str:
        place = text.rsplit(":", 1)[0] if ":" in text else text
        reasons = [entry for entry in self._absent() if (entry.site.path or ".") == place]
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
        have = sorted({(row.step, row.call) for row in self._index[site] if row.phase == phase})
        asked = [
            f"{name} {value}"
            for name, value in (("step", step), ("call", call), ("backward", backward))
            if value is not None
        ]
        shown = ", ".join(f"step {s} call {c}" for s, c in have[:6]) or f"none in phase {phase}"
        more = f" and {len(have) - 6} more" if len(have) > 6 else ""
        others = sorted({row.phase for row in self._index[site]} - {phase})
        hint = f" Others have phase={' and '.join(map(repr, others))}." if others else ""
        return (
            f"{site} has no record in {', '.join(asked) or phase}. There are: {shown}{more}.{hint}"
        )

    # ------------------------------------------------------------------ shown

    def __repr__(self) -> str:
        from torchtap.view.text import show_run

        return show_run(self)

    def _repr_html_(self) -> str:
        from torchtap.view.html import run_html

        return run_html(self)


def _as_step(step: Any) -> int | list[int] | str | None:
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

"""A view of a run that goes on: reads what is new, and makes a frame of what is there."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from torchtap.core.site import Site
from torchtap.runs.meta import Meta
from torchtap.runs.rules.finding import Finding
from torchtap.runs.select import Selection
from torchtap.runs.store.layout import attempts_in, has_statistics, is_attempt, ranks_in
from torchtap.show.live.diagnosed import Diagnosed
from torchtap.show.live.feeds import Feed, RunFeed, follow
from torchtap.show.live.run_state import RunState, state_of
from torchtap.show.live.verdicts import FirstBad, Judge, Rank, Verdict
from torchtap.show.live.window import Scalar, Window, magnitude_of

Key = tuple[str, Site]
"""The name of a feed, and a site of it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One site in a frame.

    Attributes:
        name: of its feed, such as ``rank 1``; empty where it is alone.
        site: which.
        type: class name of its module, empty of a mark.
        verdict: on it.
        window: that it is of.
        change: its magnitude over that in the frame before; NaN where it is not known.
        is_worse: whether its kind of verdict is worse than in the frame before.
    """

    name: str
    site: Site
    type: str
    verdict: Verdict
    window: Window
    change: float
    is_worse: bool

    @property
    def text(self) -> str:
        """Return the site as text, with the name of its feed where there are several."""
        return f"{self.name} {self.site}" if self.name else str(self.site)


@dataclass(frozen=True, slots=True)
class Origin:
    """The first site that was not finite, as a line of the header."""

    entry: str
    first: FirstBad
    row: np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Frame:
    """The content of a live view at one moment.

    Attributes:
        path: of the run.
        model: class name.
        state: of the run.
        step: the last one of which there are statistics; ``None`` for none.
        num_new: steps since the frame before.
        steps_per_second: over the last ones; ``None`` where that is not known.
        scalars: numbers that were logged, by name.
        origins: the first sites that were not finite, forward and backward apart.
        entries: every site, the worst first.
        better: sites that were judged worse in the frame before.
        is_bad: whether something is not finite.
        finite_step: the last step in which all was finite, where something is not now.
        notes: what of the run cannot be read.
        findings: of rules, the root first.
    """

    path: Path
    model: str
    state: RunState
    step: int | None
    num_new: int
    steps_per_second: float | None
    scalars: Mapping[str, Scalar]
    origins: Sequence[Origin]
    entries: Sequence[Entry]
    better: Sequence[str]
    is_bad: bool
    finite_step: int | None
    notes: Sequence[str] = ()
    findings: Sequence[Finding] = ()


@dataclass(slots=True)
class _Part:
    """One feed, and what came of it."""

    name: str
    feed: Feed
    window: Window = field(default_factory=Window)


class View:
    """Follows a run.

    Args:
        path: as of :func:`~torchtap.show.live.feeds.follow`.

    Raises:
        FileNotFoundError: there is nothing.
        RunError: there is something else than a run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parts = [_Part(one.name, one.feed) for one in follow(path)]
        self._diagnosed = Diagnosed(path)
        self._before: dict[Key, tuple[Rank, float]] = {}
        self._steps_before = 0

    @property
    def has_finite(self) -> bool:
        """Return whether a frame is kept in which all was finite."""
        return any(part.window.finite is not None for part in self._parts)

    @property
    def meta(self) -> Meta:
        """Return the metadata of the model."""
        return self._parts[0].feed.meta

    def update(self) -> None:
        """Read what is new; a rank or an attempt that has begun since is followed, too."""
        if self.path.is_dir():
            self._find_new()
        for part in self._parts:
            for new in part.feed.read():
                part.window.take(new)

    def frame(self, *, finite: bool = False) -> Frame:
        """Make a frame of what is there.

        Args:
            finite: as it was after the last step in which all was finite, where that is kept.
        """
        shown = [
            (part, part.window.finite or part.window if finite else part.window)
            for part in self._parts
        ]
        entries: list[Entry] = []
        origins: list[Origin] = []
        is_bad = False
        for part, window in shown:
            judge = Judge(window, _order_of(window, part.feed.meta))
            entries += [self._entry(part, window, verdict) for verdict in judge.verdicts()]
            origins += [_origin(part.name, window, one) for one in judge.first_bad()]
            is_bad |= judge.is_bad
        scalars = {
            name: one.up_to(window.last_step) if finite else one
            for _, window in shown
            for name, one in window.scalars.items()
        }
        is_bad |= any(
            scalar.values and not np.isfinite(scalar.values[-1]) for scalar in scalars.values()
        )
        windows = [window for _, window in shown]
        steps = [one.last_step for one in windows if one.last_step is not None]
        num_steps = max((one.num_steps for one in windows), default=0)
        better = [] if finite else self._note(entries)
        num_new, self._steps_before = num_steps - self._steps_before, num_steps
        return Frame(
            path=self.path,
            model=self.meta.model,
            state=self.state,
            step=max(steps, default=None),
            num_new=num_new,
            steps_per_second=self._rate(),
            scalars=scalars,
            origins=_first_of_each(origins),
            entries=sorted(entries, key=_badness) if len(shown) > 1 else entries,
            better=better,
            is_bad=is_bad,
            finite_step=_finite_step(self._parts),
            notes=[note for part in self._parts for note in part.feed.notes],
            findings=self._diagnosed.findings(),
        )

    @property
    def state(self) -> RunState:
        """Return the state of the run now."""
        times = [list(part.window.times) for part in self._parts]
        longest = max((part.window.longest for part in self._parts), default=0.0)
        own = max(times, key=len, default=[])
        if own and longest:  # The longest gap may be of a step that is kept no longer.
            own = [own[0] - longest, *own]
        return state_of(self.path, times=own, now=time.time())

    def _rate(self) -> float | None:
        own: list[float] = max(
            (list(part.window.times) for part in self._parts), key=len, default=[]
        )
        gaps = np.diff(own[-21:]).tolist()
        usual = median(gaps) if gaps else self.state.usual
        return None if not usual else 1 / usual

    def _entry(self, part: _Part, window: Window, verdict: Verdict) -> Entry:
        site = window.table.sites[verdict.place]
        now = float(magnitude_of(window.table.last[verdict.place][None])[0])
        rank, before = self._before.get((part.name, site), (None, np.nan))
        with np.errstate(all="ignore"):
            change = float(np.float64(now) / before)
        is_worse = rank is not None and verdict.rank < rank and verdict.rank != Rank.FINE
        kind = part.feed.meta.type_name(site.path)
        return Entry(
            name=part.name,
            site=site,
            type=kind,
            verdict=verdict,
            window=window,
            change=change,
            is_worse=is_worse,
        )

    def _note(self, entries: Sequence[Entry]) -> list[str]:
        """Keep what is compared with in the next frame; return the sites that are better now."""
        better = []
        for entry in entries:
            key = entry.name, entry.site
            now = float(magnitude_of(entry.window.table.last[entry.verdict.place][None])[0])
            if key in self._before and entry.verdict.rank > self._before[key][0]:
                better.append(entry.text)
            self._before[key] = entry.verdict.rank, now
        return better

    def _find_new(self) -> None:
        known = {part.name: part for part in self._parts}
        for one in follow(self.path) if self._has_new() else ():
            part = known.get(one.name)
            if part is None:
                self._parts.append(_Part(one.name, one.feed))
            elif part.feed.folder != one.feed.folder or type(part.feed) is not type(one.feed):
                part.feed, part.window = one.feed, Window()

    def _has_new(self) -> bool:
        """Return whether an attempt is not followed, or there are statistics where values were."""
        for part in self._parts:
            folder = part.feed.folder
            if isinstance(part.feed, RunFeed) and folder is not None and has_statistics(folder):
                return True
        if is_attempt(self.path):
            return False
        ranks = [self.path] if attempts_in(self.path) else [*ranks_in(self.path).values()]
        last = {attempts[max(attempts)] for rank in ranks if (attempts := attempts_in(rank))}
        return bool(last - {part.feed.folder for part in self._parts})


def selected(frame: Frame, meta: Meta, where: Sequence[str]) -> list[Entry]:
    """Return the entries of a frame whose sites fit some patterns; all for none.

    Raises:
        SiteError: a pattern has no meaning.
    """
    if not where:
        return list(frame.entries)
    sites = dict.fromkeys(entry.site for entry in frame.entries)
    chosen = set(Selection(sites, meta.modules, meta.aliases, tuple).fitting(list(where)))
    return [entry for entry in frame.entries if entry.site in chosen]


def _order_of(window: Window, meta: Meta) -> list[int]:
    """Return the place of the module of each site in the model."""
    places = {path: place for place, path in enumerate(meta.modules)}
    return [places.get(site.path, len(places)) for site in window.table.sites]


def _origin(name: str, window: Window, first: FirstBad) -> Origin:
    site = window.table.sites[first.place]
    text = f"{name} {site}" if name else str(site)
    return Origin(text, first, window.table.first_bad_row[first.place])


def _first_of_each(origins: Sequence[Origin]) -> list[Origin]:
    """Return the first of each way, over all feeds."""
    first: dict[str, Origin] = {}
    for origin in sorted(origins, key=lambda origin: origin.first.step):
        first.setdefault(origin.first.way, origin)
    return list(first.values())


def _badness(entry: Entry) -> tuple[float, ...]:
    """Sort the entries of several feeds, each of which is sorted."""
    verdict, table = entry.verdict, entry.window.table
    is_bad = verdict.rank in (Rank.NOT_FINITE, Rank.WAS_NOT_FINITE)
    first = float(table.first_bad[verdict.place]) if is_bad else 0.0
    return (verdict.rank, first, -verdict.weight)


def _finite_step(parts: Sequence[_Part]) -> int | None:
    kept = [part.window.finite for part in parts if part.window.finite is not None]
    steps = [one.last_step for one in kept if one.last_step is not None]
    return min(steps, default=None)

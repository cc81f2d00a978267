"""The figure of what becomes of values and gradients on their way through the depth of a model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchtap.core.errors import RunError, SiteError
from torchtap.core.record import steps_there
from torchtap.core.site import Site
from torchtap.core.text import count, number, plural
from torchtap.plot.readings import need_run, shown
from torchtap.plot.scales import Scale, scale_of
from torchtap.plot.style import (
    BAD,
    BLUE,
    GREEN,
    GREY,
    SMALL,
    VERMILION,
    canvas,
    fitted,
    inches_across,
    label,
    plain,
    tidy,
    write_head,
)
from torchtap.plot.thinning import spread
from torchtap.plot.zero_gradients import zero_by_construction, zero_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from torchtap.runs.run import Run

_ROW = 0.165
"""Inches of a row, while there are few."""
_LEAST, _MOST = 3.2, 10.5
"""Inches of the figure."""
_NAMES = 2.6
"""Inches of the names on the left."""
_MOST_NAMED = 60
_PORTS = ("param_grad", "step_grad")


@dataclass(frozen=True, slots=True)
class _Point:
    """The drawn numbers of one site: row, root mean square, share of zeros, non-finite ones."""

    site: Site
    row: int
    rms: float
    zeros: float
    bad: int


@dataclass(frozen=True, slots=True)
class _Kind:
    """One of the lines: how it is named and drawn."""

    name: str
    color: str
    marker: str
    points: tuple[_Point, ...]

    @property
    def words(self) -> str:
        """Return the range of it, with the sites at both ends."""
        finite = [point for point in self.points if math.isfinite(point.rms)]
        bad = [point for point in self.points if point.bad]
        if not finite:
            where = f": NaN or Inf (magenta) in {plural(len(bad), 'site')}" if bad else ""
            return f"{self.name.capitalize()}: no finite value{where}."
        low, high = (pick(finite, key=lambda one: one.rms) for pick in (min, max))
        said = (
            f"{self.name.capitalize()}: {number(low.rms)} ({shown(low.site)}) to "
            f"{number(high.rms)} ({shown(high.site)})."
        )
        if bad:
            first = f" as {shown(bad[0].site)}" if len(bad) > 1 else f" {shown(bad[0].site)}"
            said += f" NaN or Inf (magenta) in {plural(len(bad), 'site')},{first}."
        return said


def gradient_flow(run: Run, step: int | None = None, *, ax: Axes | None = None) -> Figure:
    """Draw the magnitude of values and gradients over the depth of the model, at one step.

    A row for each module, from the first at the top to the last: the root mean square of its
    output (forward, blue) and of the gradient of its output (backward, vermilion), on a
    logarithmic axis with a place of its own for zero. Gradients of parameters are green, hollow
    where they are zero by construction, as of a bias before a batch norm. On the right the share
    of zeros. Rows with NaN or Inf are magenta. Of many modules every n-th is named.

    Args:
        run: any run with gradients.
        step: which; by default the last that has gradients.
        ax: as in :func:`series`.

    Raises:
        RunError: the run has no gradients.
        SiteError: it has no such step.
        MissingExtraError: matplotlib is not installed.

    Example:
        >>> import torch, torchtap as tt
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> with tt.watch(net, "*:output,grad_output") as w:
        ...     net(torch.ones(4, 2)).sum().backward()
        >>> [line.get_label() for line in tt.plot.gradient_flow(w.run).axes[0].lines[:2]]
        ['forward', 'backward']
    """
    need_run(run, "gradient_flow")
    step = _step_of(run, step)
    rows = _rows(run)
    kinds = _kinds(run, rows, step)
    height = min(max(_ROW * len(rows) + 1.5, _LEAST), _MOST)
    figure, axes = canvas(ax, height)
    scale = _scale(kinds)
    tidy(axes, grid="both" if len(rows) <= _MOST_NAMED else "x")
    scale.apply_x(axes)
    _name_rows(run, axes, rows, is_own=ax is None)
    hidden = zero_by_construction(run, [point.site for kind in kinds for point in kind.points])
    for kind in kinds:
        _draw(axes, kind, hidden)
    _draw_zeros(axes, kinds)
    label(axes, "root mean square")
    _legend(axes, kinds)
    said = [*(kind.words for kind in kinds), scale.words, *zero_words(run, list(hidden), step)]
    write_head(axes, f"Values and gradients over depth, step {count(step)}", said, above=13)
    return figure


def _step_of(run: Run, step: int | None) -> int:
    """Return the step that is drawn; the last with gradients where none is asked for."""
    gradients = [site for site in run.sites if site.is_gradient or site.port == "step_grad"]
    if not gradients:
        there = (
            f" It has {', '.join(dict.fromkeys(site.port for site in run.sites))}."
            if run.sites
            else " It is empty."
        )
        raise RunError(
            f"This run has no gradients, so none can be drawn over depth.{there} Watch "
            f"'*:output,grad_output' and call backward(): tt.watch(model, '*:output,grad_output', "
            f"to=tt.Stats())."
        )
    if step is not None:
        if step not in run.steps:
            raise SiteError(f"This run has no step {step}. {steps_there(run.steps, step)}")
        return step
    return max(max(run.over_steps(site, "numel")[0], default=0) for site in gradients)


def _rows(run: Run) -> dict[tuple[str, str], int]:
    """Module and leaf -> number of its row: in the order in which outputs come.

    A module's own output comes after those of the modules in it.
    """
    ports = ("output", "grad_output", *_PORTS)
    sites = [site for site in run.sites if site.port in ports]
    flows = {site.path for site in sites if site.port not in _PORTS}
    keys = dict.fromkeys(
        (site.path, "" if site.port in _PORTS else site.leaf)
        for site in sites
        if site.port not in _PORTS or site.path not in flows
    )
    return {key: row for row, key in enumerate(_after_their_parts(list(keys)))}


def _after_their_parts(keys: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Modules in the order of their outputs, from that of ``named_modules()``."""
    of_path: dict[str, list[tuple[str, str]]] = {}
    for key in keys:
        of_path.setdefault(key[0], []).append(key)
    done: list[str] = []
    waiting: list[str] = []
    for path in of_path:
        while waiting and not _is_in(path, waiting[-1]):
            done.append(waiting.pop())
        waiting.append(path)
    return [key for path in (*done, *reversed(waiting)) for key in of_path[path]]


def _is_in(path: str, outer: str) -> bool:
    return path != outer and (not outer or path.startswith(f"{outer}."))


def _kinds(run: Run, rows: dict[tuple[str, str], int], step: int) -> list[_Kind]:
    def points(ports: Sequence[str]) -> tuple[_Point, ...]:
        sites = [site for site in run.sites if site.port in ports]
        keys = [(site, _row_of(rows, site)) for site in sites]
        all_points = [_point(run, site, row, step) for site, row in keys if row is not None]
        return tuple(
            sorted((one for one in all_points if one is not None), key=lambda one: one.row)
        )

    kinds = [
        _Kind("forward", BLUE, "o", points(["output"])),
        _Kind("backward", VERMILION, "s", points(["grad_output"])),
        _Kind("parameters' gradients", GREEN, "D", points(_port_of_params(run))),
    ]
    return [kind for kind in kinds if kind.points]


def _port_of_params(run: Run) -> list[str]:
    there = {site.port for site in run.sites}
    return [port for port in _PORTS if port in there][:1]


def _row_of(rows: dict[tuple[str, str], int], site: Site) -> int | None:
    if site.port not in _PORTS:
        return rows.get((site.path, site.leaf))
    return next((row for (path, _), row in rows.items() if path == site.path), None)


def _point(run: Run, site: Site, row: int, step: int) -> _Point | None:
    try:
        stats = run.stats(site, step=step)
    except SiteError:  # Not in this step.
        return None
    zeros = stats.zeros / stats.numel if stats.numel else math.nan
    return _Point(site, row, stats.rms, zeros, stats.nonfinite)


def _scale(kinds: Iterable[_Kind]) -> Scale:
    """Always logarithmic: magnitudes are compared by their ratios."""
    values = np.array([point.rms for kind in kinds for point in kind.points])
    scale = scale_of(values)
    positive = values[np.isfinite(values) & (values > 0)]
    if scale.kind != "linear" or not positive.size:
        return scale
    low, high = float(positive.min()), float(positive.max())
    if (values == 0).any():
        return Scale("log and zero", 0.0, high, 10.0 ** math.floor(math.log10(low)))
    return Scale("log", low / 1.5, high * 1.5)


# ---------------------------------------------------------------------- drawn


def _name_rows(run: Run, axes: Axes, rows: dict[tuple[str, str], int], *, is_own: bool) -> None:
    names = [_name(run, path, leaf) for path, leaf in rows]
    ticks = spread(len(names), len(names) if len(names) <= _MOST_NAMED else 40)
    room = _NAMES if is_own else 0.35 * inches_across(axes)
    axes.set_yticks(ticks, [fitted(names[tick], room) for tick in ticks], parse_math=False)
    axes.set_ylim(len(names) - 0.4, -0.6)
    if len(ticks) < len(names):
        label(axes, y=f"{count(len(ticks))} of {count(len(names))} modules named")


def _name(run: Run, path: str, leaf: str) -> str:
    """Return a module with its class, so that rows of numbers tell what they are."""
    place = f"{path or '.'}[{leaf}]" if leaf else path or "."
    return f"{place} {run.meta.type_name(path)}".rstrip()


def _draw(axes: Axes, kind: _Kind, hidden: dict[Site, str]) -> None:
    is_flow = kind.color != GREEN
    rows = np.array([point.row for point in kind.points])
    values = np.array([point.rms for point in kind.points])
    size = 3.6 if len(rows) <= _MOST_NAMED else 1.8
    axes.plot(
        values, rows, marker=kind.marker, markersize=size if is_flow else 0.9 * size,
        color=kind.color, linewidth=1.1, linestyle="-" if is_flow else "none", label=kind.name,
        alpha=1.0 if is_flow else 0.8,
    )  # fmt: skip
    empty = [point for point in kind.points if point.site in hidden]
    if empty:
        axes.plot(
            [one.rms for one in empty], [one.row for one in empty], kind.marker, color="white",
            markersize=size - 1.2, label="zero by construction",
        )  # fmt: skip
    for point in kind.points:
        if point.bad:
            axes.axhspan(point.row - 0.45, point.row + 0.45, color=BAD, alpha=0.22, linewidth=0)
            axes.plot(
                [0.985], [point.row], "X", color=BAD, markersize=5, clip_on=False,
                transform=axes.get_yaxis_transform(),
            )  # fmt: skip


def _draw_zeros(axes: Axes, kinds: Sequence[_Kind]) -> None:
    """The share of zeros of each row, in a narrow panel on the right."""
    beside = axes.inset_axes((1.02, 0, 0.17, 1), sharey=axes)
    tidy(beside, grid="x")
    flows = [kind for kind in kinds if kind.color != GREEN] or list(kinds)
    thick = 0.8 / len(flows)
    for place, kind in enumerate(flows):
        rows = np.array([point.row for point in kind.points]) - 0.4 + (place + 0.5) * thick
        shares = np.nan_to_num([point.zeros for point in kind.points])
        if len(kind.points) > _MOST_NAMED:  # Bars thinner than a pixel flicker.
            beside.plot(shares, rows, color=kind.color, linewidth=0.7, alpha=0.8)
        else:
            beside.barh(rows, shares, height=thick, color=kind.color, linewidth=0)
    beside.set_xlim(0, 1)
    beside.set_xticks([0, 0.5, 1], ["0", "50%", "100%"])
    beside.tick_params(labelleft=False, left=False)
    beside.set_xlabel("zeros", fontsize=SMALL + 1, color=GREY)


def _legend(axes: Axes, kinds: Sequence[_Kind]) -> None:
    by_name = {
        line.get_label(): line for line in axes.lines if not str(line.get_label()).startswith("_")
    }
    handles = [by_name[kind.name] for kind in kinds]
    legend = axes.legend(
        handles, [kind.name for kind in kinds], loc="lower left", bbox_to_anchor=(-0.01, 1.0),
        ncols=3, fontsize=SMALL, frameon=False, labelcolor=GREY, borderaxespad=0.2,
        handlelength=1.4, columnspacing=1.4,
    )  # fmt: skip
    plain(legend.get_texts())

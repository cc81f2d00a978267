"""Figures over the steps of a training: series, and updates against weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from torchtap.core.errors import RunError
from torchtap.core.text import plural
from torchtap.plot.lines import draw_series
from torchtap.plot.readings import Readings, need_run, read
from torchtap.plot.scales import Scale, scale_of
from torchtap.plot.style import (
    GREY,
    canvas,
    label,
    write_head,
)
from torchtap.plot.thinning import thinned_words
from torchtap.plot.zero_gradients import zero_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from torchtap.runs.run import Run
    from torchtap.runs.select import Where

_HEIGHT = 3.7
_USUAL_RATIO = 1e-3


def series(run: Run, where: Where, name: str = "std", *, ax: Axes | None = None) -> Figure:
    """Draw one number of some sites over the steps.

    Up to seven sites have a colour and a name each; more are coloured by depth, from the first
    (dark) to the last (light). The axis is logarithmic where the values span more than two powers
    of ten, and then has a place of its own for zero. Steps in which NaN or Inf came are marked in
    magenta at the lower edge. More than 1,600 steps are drawn as spans, of which the least and the
    largest value stand.

    Args:
        run: any run, in memory or on disk.
        where: patterns as everywhere, sites, or a function of a site.
        name: of the number, as of :meth:`Run.over_steps <torchtap.runs.run.Run.over_steps>`.
        ax: matplotlib axes to draw in; by default a figure of its own.

    Returns:
        the figure, which no global state knows of.

    Raises:
        SiteError: nothing was recorded or measured there, or there is no such number.
        InputError: it is no number, or ``ax`` is no axes.
        MissingExtraError: matplotlib is not installed.

    Example:
        >>> import torch, torchtap as tt
        >>> with tt.watch(relu := torch.nn.ReLU(), to=tt.Stats()) as w:
        ...     for step in range(3):
        ...         _ = relu(torch.full((2,), float(step)))
        ...         w.step()
        >>> tt.plot.series(w.run, "*", "l1").axes[0].lines[0].get_ydata().tolist()
        [0.0, 2.0, 4.0]
    """
    need_run(run, "series")
    numbers = read(run, where, name)
    figure, axes = canvas(ax, _HEIGHT)
    scale = scale_of(numbers.values)
    draw_series(axes, numbers, scale, is_own=ax is None)
    label(axes, "step", name)
    over = plural(len(numbers.steps), "step")
    last = int(numbers.steps[-1]) if len(numbers.steps) else None
    lines = [
        *numbers.words(),
        scale.words,
        thinned_words(len(numbers.steps)),
        *zero_words(run, numbers.sites, last),
    ]
    write_head(axes, f"{name} of {numbers.what} over {over}", lines)
    return figure


def updates(run: Run, *, ax: Axes | None = None) -> Figure:
    """Draw how large each step's update is against its parameter, over the steps.

    The norm of each ``update`` over that of its parameter when the step began, on a logarithmic
    axis. The dashed line at 1e-3 is a rule of thumb for a training with Adam or SGD that goes
    well, and no law.

    Args:
        run: any run in which ``*:update,param`` was watched.
        ax: as in :func:`series`.

    Raises:
        RunError: no update was watched, or no parameter beside one.
        MissingExtraError: matplotlib is not installed.

    Example:
        >>> import torch, torchtap as tt
        >>> net = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        >>> with tt.watch(net, "*:update,param", to=tt.Stats()) as w:
        ...     for _ in range(3):
        ...         net(torch.ones(4, 2)).sum().backward()
        ...         optimizer.step()
        ...         w.step()
        >>> len(tt.plot.updates(w.run).axes[0].lines[0].get_xdata())
        3
    """
    need_run(run, "updates")
    sites = [site for site in run.sites if site.port == "update"]
    if not sites:
        raise RunError(
            "This run has no updates of parameters. Watch '*:update,param' while an optimizer "
            "makes its steps: tt.watch(model, '*:update,param', to=tt.Stats())."
        )
    numbers = read(run, sites, "update_ratio")
    has_ratio = [bool(np.isfinite(value).any()) for value in numbers.values]
    if not any(has_ratio):
        reason = run.stats(sites[0]).why_no_ratio or "there is no ratio in any step"
        raise RunError(
            f"No update of this run can be compared with its parameter: {reason}. Watch both: "
            f"tt.watch(model, '*:update,param', to=tt.Stats())."
        )
    without = [str(site) for site, has in zip(sites, has_ratio, strict=True) if not has]
    numbers = read(
        run, [site for site, has in zip(sites, has_ratio, strict=True) if has], "update_ratio"
    )
    figure, axes = canvas(ax, _HEIGHT)
    positive = numbers.values[np.isfinite(numbers.values) & (numbers.values > 0)]
    scale = _log_scale(numbers, positive)
    draw_series(axes, numbers, scale, is_own=ax is None)
    if scale.kind != "linear":
        axes.axhline(_USUAL_RATIO, color=GREY, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1.5)
    label(axes, "step", "‖update‖ / ‖parameter‖")
    lines = [*numbers.words(), scale.words, thinned_words(len(numbers.steps))]
    if scale.kind != "linear":
        lines.append("Dashed: 1e-3, a rule of thumb.")
    if without:
        lines.append(f"{plural(len(without), 'update')} without a ratio, as {without[0]}.")
    write_head(axes, f"Updates against weights: {plural(len(numbers.sites), 'parameter')}", lines)
    return figure


def _log_scale(found: Readings, positive: Any) -> Scale:
    """Return a logarithmic scale, with a place for zeros where there are any."""
    if not positive.size:
        return Scale("linear", 0.0, 1.0)
    low = min(float(positive.min()), _USUAL_RATIO / 3)
    high = max(float(positive.max()), _USUAL_RATIO * 3)
    if (found.values == 0).any():
        return Scale("log and zero", 0.0, high, 10.0 ** np.floor(np.log10(low)))
    return Scale("log", low, high)

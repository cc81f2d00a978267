"""Pictures of what was recorded, as matplotlib figures that no global state knows of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchtap.core.errors import InputError, SiteError
from torchtap.plot.draw import Scale, draw_lines, draw_mosaic, draw_picture
from torchtap.plot.extras import figure_class
from torchtap.plot.grids import Layout, layout_of, num_rows
from torchtap.plot.prepare import Channels, Maps, take_maps
from torchtap.plot.style import (
    DPI,
    TEXT,
    TITLE,
    WIDTH,
    canvas,
    fitted,
    plain,
    printable,
    wrapped,
    write_head,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from torchtap.core.site import Site
    from torchtap.runs.run import Run

__all__ = ["default_site", "feature_maps", "feature_maps_overview"]

_LEAST_SHARE = 0.5
"""Width of the narrowest panel, in heights."""
_PANEL = 4.2
"""Inches of a square grid in the overview."""
_TILE, _ONE = 1.35, 4.5
"""Most inches of a row of a grid, and of a grid of few."""


def feature_maps(
    run: Run,
    site: str | Site,
    *,
    sample: int = 0,
    channels: Channels = None,
    step: int | None = None,
    call: int | None = None,
    backward: int | None = None,
    layout: Layout | None = None,
    scale: Scale = "shared",
    clip: float = 0.0,
    ax: Axes | None = None,
) -> Figure:
    """The channels of a value as a grid of pictures.

    Values without a sign are drawn in viridis; others in red and blue, white at zero, symmetric.
    The range stands beside the colours. NaN and Inf are magenta and counted; a map that is all
    zero or constant says so.

    Args:
        run: any run.
        site: where; ``conv1`` means ``conv1:output``.
        sample: which of the batch.
        channels: how many from the first, or which; by default up to 64.
        step: which step; the last by default.
        call: which call; the last by default.
        backward: which backward of a gradient; the last by default.
        layout: what the dimensions are, where they do not say so themselves: ``NCHW``, ``NHWC``,
            ``CHW``, ``HWC``, ``NCL`` or ``CL`` (lines in one picture), ``NCDHW`` or ``CDHW`` (the
            middle slice); ``tokens`` of patches on a square grid, as of a ViT, and ``windows`` of a
            Swin transformer, which are put side by side.
        scale: one scale for all maps (``shared``), or ``each`` from its own least to its own
            largest value.
        clip: this share of the largest magnitudes is drawn in the last colour, so that a few
            extremes do not pale the rest; the colour bar then ends in arrows.
        ax: as in :func:`series`.

    Raises:
        SiteError: nothing was recorded there.
        InputError: the value has no maps (it is tokens or a vector), or there is no such sample
            or channel.
        MissingExtraError: matplotlib is not installed.

    Example:
        >>> import torch, torchtap as tt
        >>> with tt.watch(torch.nn.Conv2d(3, 8, 3), ".") as w:
        ...     pass
        >>> # after a forward: tt.plot.feature_maps(w.run, ".").savefig("maps.png")
    """
    if scale not in ("shared", "each"):
        raise InputError(f"scale is {scale!r}; expected 'shared' or 'each'.")
    if not 0 <= clip < 1:
        raise InputError(f"clip is {clip!r}; expected a share from 0 to below 1.")
    record = run.record(site, step=step, call=call, backward=backward)
    layout = layout or layout_of(run, record)
    rows = num_rows(run, record) if layout == "windows" else None
    maps = take_maps(record, layout, sample, channels, clip, rows=rows)
    figure_class()
    if layout in ("NCL", "CL"):
        return draw_lines(ax, maps, scale)
    return draw_maps(ax, maps, scale)


def draw_maps(ax: Axes | None, maps: Maps, scale: Scale = "shared", cols: int = 0) -> Figure:
    """Draw maps as a grid with a heading.

    Args:
        ax: as in :func:`series`.
        maps: to draw.
        scale: of their colours.
        cols: columns of the grid; near a square by default.
    """
    rows, cols = (-(-len(maps.channels) // cols), cols) if cols else grid_shape(len(maps.channels))
    height, width = maps.values.shape[1:]
    inches = min((WIDTH - 0.6) * rows * height / (cols * width), max(_TILE * rows, _ONE))
    figure, axes = canvas(ax, min(max(inches, 1.5), 16) + 1.35)
    axes.set_anchor("N")
    draw_mosaic(axes, maps, cols, scale)
    write_head(axes, maps.title, [maps.remark])
    return figure


def feature_maps_overview(
    run: Run,
    sites: Sequence[str | Site],
    *,
    picture: Any = None,
    caption: str = "",
    title: str = "",
    sample: int = 0,
    clip: float = 0.01,
) -> Figure:
    """Several places of a model side by side, up to 8 by 8 maps each, beside what went in.

    Args:
        run: any run.
        sites: places with maps, from early to late.
        picture: an image ``uint8[H, W, 3]``, drawn on the left.
        caption: text below it, e.g. the classes found.
        title: heading of the figure.
        sample: which of the batch.
        clip: as in :func:`feature_maps`.

    Raises:
        SiteError: nothing was recorded at a site.
        InputError: a value has no maps.
        MissingExtraError: matplotlib is not installed.

    Example:
        >>> import torch, torchtap as tt
        >>> conv = torch.nn.Conv2d(1, 2, 3)
        >>> with tt.watch(conv, "*") as w, torch.no_grad():
        ...     _ = conv(torch.rand(1, 1, 5, 5))
        >>> figure = tt.plot.feature_maps_overview(w.run, ["."], title="Two maps")
        >>> figure.savefig("maps.png")  # doctest: +SKIP
    """
    chosen = []
    for site in sites:
        record = run.record(site)
        layout = layout_of(run, record)
        rows = num_rows(run, record) if layout == "windows" else None
        chosen.append(take_maps(record, layout, sample, None, clip, rows=rows))
    # Few maps are laid out near a square, and no panel is too narrow for its heading.
    counts = [len(maps.channels) for maps in chosen]
    grids = [grid_shape(number, square=8 if number >= 32 else None) for number in counts]
    shares = [max(cols / rows, _LEAST_SHARE) for rows, cols in grids]
    if picture is not None:
        shares = [0.8, *shares]
    figure_of = figure_class()
    parts = shares[-len(chosen) :]
    headings = [_narrow_heading(maps, part) for maps, part in zip(chosen, parts, strict=True)]
    # Headings stand right above their grids; the longest of them sets where all grids begin.
    height = _PANEL + 0.15 * max(len(lines) for _, lines in headings) + 1.4
    width = _PANEL * sum(shares) + 0.4
    figure = figure_of(figsize=(width, height), dpi=DPI, layout="constrained")
    engine: Any = figure.get_layout_engine()
    engine.set(w_pad=0.1, h_pad=0.08, wspace=0.02)
    panels = list(figure.subplots(1, len(shares), width_ratios=shares, squeeze=False)[0])
    if picture is not None:
        draw_picture(panels.pop(0), picture, caption)
    for axes, maps, (_, cols), (head, lines) in zip(panels, chosen, grids, headings, strict=True):
        draw_mosaic(axes, maps, cols, "shared")
        axes.set_anchor("N")
        write_head(axes, head, lines, room=99)
    if title:
        plain([figure.suptitle(printable(title), fontsize=14, x=0.01, ha="left")])
    return figure


def default_site(run: Run) -> Site:
    """The first convolution's output in a run, else the first output with maps.

    Raises:
        SiteError: no output has maps.

    Example:
        >>> import torch, torchtap as tt
        >>> conv = torch.nn.Conv2d(1, 2, 3)
        >>> with tt.watch(conv, "*") as w, torch.no_grad():
        ...     _ = conv(torch.ones(1, 1, 5, 5))
        >>> str(tt.plot.default_site(w.run))
        '.:output'
    """
    outputs = [site for site in run.sites if site.port == "output"]
    for site in outputs:
        if any(name.startswith("Conv") for name in run.meta.modules.get(site.path, ())):
            return site
    for site in outputs:
        if run.record(site).kept.dim() in (4, 5):
            return site
    raise SiteError(
        "No output in this run has maps (N, C, H, W). Record a convolution, e.g. '*@Conv2d'."
    )


def grid_shape(number_of_maps: int, *, square: int | None = None) -> tuple[int, int]:
    """Rows and columns: near a square, with few empty places.

    With ``square``, so many rows, so that grids stand side by side.

    Example:
        >>> grid_shape(64), grid_shape(32), grid_shape(7), grid_shape(32, square=8)
        ((8, 8), (4, 8), (2, 4), (8, 4))
    """
    n = max(number_of_maps, 1)
    if square is not None and n >= square:
        return square, -(-n // square)
    root = math.ceil(math.sqrt(n))

    def cost(cols: int) -> float:
        rows = -(-n // cols)
        return (rows * cols - n) / n + 0.1 * (cols / rows - 1)

    cols = min(range(root, min(2 * root, n) + 1), key=cost)
    return -(-n // cols), cols


def _narrow_heading(maps: Maps, part: float) -> tuple[str, list[str]]:
    """Return the heading of a panel of the overview: the site, and lines below it."""
    room = 0.9 * _PANEL * part
    site, kind, when = maps.title.rsplit("  ", 2)
    return fitted(site, room, TITLE), [kind, when, *wrapped(maps.remark, room, TEXT)]

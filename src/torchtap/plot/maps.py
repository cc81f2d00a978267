"""Pictures of what was recorded, as matplotlib figures that no global state knows of."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from torchtap.core.errors import InputError, MissingExtraError, SiteError
from torchtap.core.text import clean, count, elide, number, plural, typed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray
    from torch import Tensor

    from torchtap.core.record import Record
    from torchtap.core.site import Site
    from torchtap.runs.run import Run

    Array = NDArray[Any]

__all__ = ["default_site", "feature_maps", "feature_maps_overview"]

Layout = Literal["NCHW", "NHWC", "CHW", "HWC", "NCL", "CL", "NCDHW", "CDHW"]
Scale = Literal["shared", "each"]
Channels = int | Sequence[int] | None

_MOST_MAPS = 64
_BAD = (0.85, 0.0, 0.85, 1.0)
"""Magenta stands in neither colour map: it marks NaN and Inf."""
_MAGNITUDE, _SIGNED = "viridis", "RdBu_r"
_TILE = 48
"""Fewest pixels of a tile's side; small maps are repeated up to it."""
_GREY = "#555555"
_LEAST_SHARE = 0.5
"""Width of the narrowest panel, in heights."""
_PANEL = 4.2
"""Inches of a square grid in the overview."""
_LAYOUTS: dict[Layout, str] = {
    "NCHW": "(N, C, H, W)",
    "NHWC": "(N, H, W, C)",
    "CHW": "(C, H, W)",
    "HWC": "(H, W, C)",
    "NCL": "(N, C, L)",
    "CL": "(C, L)",
    "NCDHW": "(N, C, D, H, W)",
    "CDHW": "(C, D, H, W)",
}
_TOKEN_TYPES = ("Attention", "Embedding", "Encoder", "Decoder", "LayerNorm", "Linear", "RMSNorm")


@dataclass(frozen=True, slots=True)
class _Maps:
    """The maps of one sample, ready to draw.

    Attributes:
        values: float64[C, H, W].
        channels: their numbers.
        total: how many channels there are.
        title: site, shape, step, call.
        notes: what else is to be said.
        low: smallest finite value.
        high: largest finite value.
        reach: largest magnitude that has a colour of its own.
    """

    values: Array
    channels: tuple[int, ...]
    total: int
    title: str
    notes: tuple[str, ...]
    low: float
    high: float
    reach: float

    @property
    def signed(self) -> bool:
        return self.low < 0

    @property
    def remark(self) -> str:
        shown = f"range {number(self.low)} to {number(self.high)}"
        bottom, top = _limits(self)
        if self.low < bottom or self.high > top:
            shown += f", colours {number(bottom)} to {number(top)}"
        return ", ".join([*self.notes, shown])


# ---------------------------------------------------------------------- public


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
            middle slice).
        scale: one scale for all maps (``shared``), or ``each`` from its own least to its own
            largest value.
        clip: this share of the largest magnitudes is drawn in the last colour, so that a few
            extremes do not pale the rest; the colour bar then ends in arrows.

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
    layout = layout or _layout_of(record, run.meta.modules.get(record.site.path, ()))
    maps = _take_maps(record, layout, sample, channels, clip)
    figure_class = _figure_class()
    if layout in ("NCL", "CL"):
        return _draw_lines(figure_class, maps, scale)
    rows, cols = grid_shape(len(maps.channels))
    height, width = maps.values.shape[1:]
    inch = 7.5 * rows * height / (cols * width)
    figure = figure_class(
        figsize=(8.5, min(max(inch, 1.5), 16) + 0.9), dpi=150, layout="constrained"
    )
    axes = figure.add_subplot()
    _draw_mosaic(axes, maps, cols, scale)
    _write_heading(axes, [elide(maps.title, 92), *textwrap.wrap(maps.remark, 92)])
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
    """
    chosen = []
    for site in sites:
        record = run.record(site)
        layout = _layout_of(record, run.meta.modules.get(record.site.path, ()))
        chosen.append(_take_maps(record, layout, sample, None, clip))
    # Few maps are laid out near a square, and no panel is too narrow for its heading.
    counts = [len(maps.channels) for maps in chosen]
    grids = [grid_shape(number, square=8 if number >= 32 else None) for number in counts]
    shares = [max(cols / rows, _LEAST_SHARE) for rows, cols in grids]
    if picture is not None:
        shares = [0.8, *shares]
    figure_class = _figure_class()
    parts = shares[-len(chosen) :]
    headings = [_narrow_heading(maps, part) for maps, part in zip(chosen, parts, strict=True)]
    # Headings stand right above their grids; the longest of them sets where all grids begin.
    height = _PANEL + 0.17 * max(map(len, headings)) + 0.9
    figure = figure_class(
        figsize=(_PANEL * sum(shares) + 0.4, height), dpi=110, layout="constrained"
    )
    panels = list(figure.subplots(1, len(shares), width_ratios=shares, squeeze=False)[0])
    if picture is not None:
        _draw_picture(panels.pop(0), picture, caption)
    for axes, maps, (_, cols), lines in zip(panels, chosen, grids, headings, strict=True):
        _draw_mosaic(axes, maps, cols, "shared")
        axes.set_anchor("N")
        _write_heading(axes, lines)
    if title:
        figure.suptitle(title, fontsize=14, x=0.01, ha="left")
    return figure


def default_site(run: Run) -> Site:
    """The first convolution's output in a run, else the first output with maps.

    Raises:
        SiteError: no output has maps.
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


# ---------------------------------------------------------------------- from record to maps


def _layout_of(record: Record, types: Sequence[str]) -> Layout:
    """What the dimensions are, from their number and the module's class; never a guess."""
    dims = record.kept.dim()
    where = f"{record.site} is {_typed(record.kept)}"
    one_d = any(name.endswith("1d") for name in types)
    two_d = any(name.endswith("2d") for name in types)
    three_d = any(name.endswith("3d") for name in types)
    if dims == 5:
        return "NCDHW"
    if dims == 4:
        return "CDHW" if three_d else "NCHW"
    if dims == 3 and one_d:
        return "NCL"
    if dims == 3 and two_d:
        return "CHW"
    if dims == 2 and one_d and any(name.startswith("Conv") for name in types):
        return "CL"
    if dims == 3 and any(part in name for part in _TOKEN_TYPES for name in types):
        raise InputError(
            f"{where}: tokens (B, T, C). Feature maps need channels with a picture each: "
            f"(N, C, H, W) or (C, H, W). Name a convolution."
        )
    if dims == 3:
        raise InputError(
            f"{where}, which may be (C, H, W), (N, C, L) or tokens (B, T, C). Say which: "
            f"layout='CHW' or layout='NCL'."
        )
    raise InputError(f"{where}; feature maps need (N, C, H, W) or (C, H, W).")


def _take_maps(
    record: Record, layout: Layout, sample: int, channels: Channels, clip: float
) -> _Maps:
    import numpy

    if layout not in _LAYOUTS:
        raise InputError(f"layout is {layout!r}; expected one of {', '.join(_LAYOUTS)}.")
    value = record.value
    where = f"{record.site} is {_typed(value)}"
    if value.dim() != len(layout):
        raise InputError(f"{where}; layout {layout!r} means {_LAYOUTS[layout]}.")
    notes = []
    if layout.startswith("N"):
        if not -len(value) <= sample < len(value):
            raise InputError(f"{where}; there is no sample {sample}.")
        value, layout = value[sample], layout[1:]  # type: ignore[assignment]
        if len(record.value) > 1:
            notes.append(f"sample {sample % len(record.value)}")
    if layout == "HWC":
        value = value.movedim(-1, 0)
    if layout == "CDHW":
        notes.append(f"slice {value.shape[1] // 2} of {value.shape[1]}")
        value = value[:, value.shape[1] // 2]
    if layout == "CL":
        value = value[:, None]
    chosen = _choose(where, value.shape[0], channels)
    if not value[0].numel():
        raise InputError(f"{where}: there is nothing to draw.")
    if value.is_complex():
        notes.append("magnitude")
    picked = (value.abs() if value.is_complex() else value)[list(chosen)]
    array = picked.detach().to("cpu").double().numpy()
    finite = array[numpy.isfinite(array)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    reach = float(numpy.quantile(abs(finite), 1 - clip)) if finite.size else 0.0
    title = f"{record.site}  {_typed(record.value)}  step {record.step} call {record.call}"
    maps = _Maps(array, chosen, value.shape[0], title, tuple(notes), low, high, reach)
    return replace(maps, notes=(*notes, *_remarks(maps)))


def _choose(where: str, total: int, channels: Channels) -> tuple[int, ...]:
    if not total:
        raise InputError(f"{where}: it has no channel.")
    if channels is None:
        return tuple(range(min(total, _MOST_MAPS)))
    if isinstance(channels, int):
        if channels < 1:
            raise InputError(f"channels is {channels}; expected a count from 1, or numbers.")
        return tuple(range(min(total, channels)))
    wrong = [channel for channel in channels if not 0 <= channel < total]
    if wrong or not channels:
        raise InputError(f"{where}: there is no channel {wrong[0] if wrong else '(none named)'}.")
    return tuple(channels)


def _remarks(maps: _Maps) -> list[str]:
    """What the eye might miss: where there is nothing, and what is not a number."""
    said = [f"{len(maps.channels)} of {plural(maps.total, 'channel')}"]
    if len(maps.channels) == maps.total:
        said = [plural(maps.total, "channel")]
    bad = _bad_words(maps.values)
    if bad:
        said.append(f"{bad} (magenta)")
    states = [_state(one) for one in maps.values]
    zero, constant = states.count("0"), len([s for s in states if s and s != "0"])
    if zero:
        said.append(f"{count(zero)} all zero")
    if constant:
        said.append(f"{count(constant)} constant")
    return said


def _bad_words(values: Array) -> str:
    import numpy

    counts = (int(numpy.isnan(values).sum()), "NaN"), (int(numpy.isinf(values).sum()), "Inf")
    return " and ".join(f"{count(n)} {word}" for n, word in counts if n)


def _state(one: Array) -> str:
    """``0`` or the constant that a map consists of; empty if it varies."""
    import numpy

    first = one.flat[0]
    if not numpy.isfinite(first) or not (one == first).all():
        return ""
    return number(float(first))


# ---------------------------------------------------------------------- from maps to ink


def _narrow_heading(maps: _Maps, part: float) -> list[str]:
    room = max(16, int(0.94 * _PANEL * part / 0.076))
    site, kind, when = maps.title.rsplit("  ", 2)
    parts = maps.remark.split(", ")
    if max(map(len, parts)) < room:  # Break between the parts alone.
        bound = ", ".join(part.replace(" ", "\xa0") for part in parts)
        lines = [line.replace("\xa0", " ") for line in textwrap.wrap(bound, room)]
    else:
        lines = textwrap.wrap(maps.remark, room)
    return [elide(site, room), kind, when, *lines]


def _write_heading(axes: Axes, lines: Sequence[str]) -> None:
    text = "\n".join(_printable(line) for line in lines)
    axes.set_title(text, fontsize=9, loc="left", family="monospace", parse_math=False)


def _printable(text: str) -> str:
    """Escapes for what the font of the figure does not have."""
    return clean(text).encode("latin-1", "backslashreplace").decode("latin-1")


def _draw_mosaic(axes: Axes, maps: _Maps, cols: int, scale: Scale) -> None:
    import numpy

    tiles = _colored(maps, scale)
    height, width = tiles.shape[1:3]
    gap = max(2, round(0.05 * width))
    rows = -(-len(tiles) // cols)
    shape = (rows * (height + gap) - gap, cols * (width + gap) - gap, 4)
    canvas = numpy.zeros(shape, dtype="uint8")
    for place, tile in enumerate(tiles):
        top, left = (place // cols) * (height + gap), (place % cols) * (width + gap)
        canvas[top : top + height, left : left + width] = tile
        _label(axes, maps, place, left, top, (height, width))
    axes.imshow(canvas, interpolation="auto", aspect="equal")
    axes.set_axis_off()
    _colorbar(axes, maps, scale)


def _label(axes: Axes, maps: _Maps, place: int, left: int, top: int, size: tuple[int, int]) -> None:
    """The channel's number in the corner; a frame or a word where the map needs one."""
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    height, width = size
    halo = [withStroke(linewidth=1.5, foreground="white")]
    axes.text(
        left + 0.03 * width,
        top + 0.03 * height,
        str(maps.channels[place]),
        fontsize=5,
        va="top",
        color="black",
        path_effects=halo,
    )
    one = maps.values[place]
    bad = _bad_words(one)
    word = bad or (f"all {_state(one)}" if _state(one) else "")
    if bad:
        frame = Rectangle(
            (left, top), width, height, fill=False, edgecolor=_BAD, linewidth=1.2, clip_on=False
        )
        axes.add_patch(frame)
    spot = (left + width / 2, top + (0.97 if bad else 0.5) * height)
    side = "bottom" if bad else "center"
    axes.text(*spot, word, fontsize=5.5, ha="center", va=side, path_effects=halo, color="black")


def _colored(maps: _Maps, scale: Scale) -> Array:
    """RGBA tiles, small ones enlarged by repeating pixels."""
    import numpy
    from matplotlib import colormaps

    values = maps.values
    if scale == "each":
        low = numpy.where(numpy.isfinite(values), values, numpy.inf).min((1, 2), keepdims=True)
        high = numpy.where(numpy.isfinite(values), values, -numpy.inf).max((1, 2), keepdims=True)
        span = numpy.where(high > low, high - low, 1.0)
        cmap, unit = colormaps[_MAGNITUDE], (values - numpy.where(high >= low, low, 0)) / span
    else:
        bottom, top = _limits(maps)
        cmap = colormaps[_SIGNED if maps.signed else _MAGNITUDE]
        unit = (values - bottom) / (top - bottom)
    finite = numpy.isfinite(unit)
    tiles = cmap(numpy.where(finite, unit, 0.5), bytes=True)
    tiles[~numpy.isfinite(values)] = [round(255 * part) for part in _BAD]
    factor = max(1, -(-_TILE // max(values.shape[1:])))
    return tiles.repeat(factor, axis=1).repeat(factor, axis=2)


def _limits(maps: _Maps) -> tuple[float, float]:
    if maps.signed:
        most = maps.reach or max(abs(maps.low), abs(maps.high))
        return -most, most
    if maps.reach > maps.low:
        return maps.low, maps.reach
    return (0.0, maps.high) if maps.high > 0 else (0.0, 1.0)


def _colorbar(axes: Axes, maps: _Maps, scale: Scale) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    signed = maps.signed and scale == "shared"
    limits = _limits(maps) if scale == "shared" else (0.0, 1.0)
    colors = ScalarMappable(Normalize(*limits), _SIGNED if signed else _MAGNITUDE)
    figure = axes.get_figure()
    assert figure is not None
    bar = figure.colorbar(
        colors,
        ax=axes,
        location="bottom",
        shrink=0.6,
        aspect=40,
        pad=0.02,
        extend=_extend(maps, limits) if scale == "shared" else "neither",
    )
    bar.ax.tick_params(labelsize=7, colors=_GREY)
    bar.outline.set_visible(False)
    if scale == "each":
        bar.set_ticks([0, 1], labels=["its least", "its largest"])


def _extend(maps: _Maps, limits: tuple[float, float]) -> Literal["neither", "both", "min", "max"]:
    below, above = maps.low < limits[0], maps.high > limits[1]
    if below and above:
        return "both"
    return "min" if below else "max" if above else "neither"


def _draw_lines(figure_class: type[Figure], maps: _Maps, scale: Scale) -> Figure:
    """Channels of a 1d convolution: one line of pixels each."""
    flat = replace(maps, values=maps.values.reshape(len(maps.values), 1, -1))
    tiles = _colored(flat, scale)
    figure = figure_class(figsize=(8.5, 2 + 0.09 * len(tiles)), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    rows = tiles[:, 0]
    axes.imshow(rows, interpolation="nearest", aspect="auto", extent=_extent(flat))
    axes.set_xlabel("position", fontsize=8)
    axes.set_ylabel("channel", fontsize=8)
    axes.tick_params(labelsize=7)
    ticks = range(0, len(flat.channels), max(1, len(flat.channels) // 16))
    axes.set_yticks(ticks, [str(flat.channels[tick]) for tick in ticks])
    _write_heading(axes, [elide(maps.title, 92), *textwrap.wrap(maps.remark, 92)])
    _colorbar(axes, flat, scale)
    return figure


def _extent(maps: _Maps) -> tuple[float, float, float, float]:
    return -0.5, maps.values.shape[-1] - 0.5, len(maps.channels) - 0.5, -0.5


def _draw_picture(axes: Axes, picture: Any, caption: str) -> None:
    axes.imshow(picture, interpolation="auto")
    axes.set_axis_off()
    axes.set_anchor("N")
    _write_heading(axes, ["input"])
    axes.text(
        0,
        -0.04,
        caption,
        transform=axes.transAxes,
        va="top",
        fontsize=10,
        family="monospace",
        parse_math=False,
    )


def _typed(tensor: Tensor) -> str:
    return typed(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


def _figure_class() -> type[Figure]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "Pictures need matplotlib. Install it: pip install 'torchtap[plot]'."
        ) from error
    return Figure

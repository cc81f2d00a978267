"""The figure of the filters of a convolution, or of the matrix of a linear layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from torchtap.core.errors import InputError
from torchtap.core.text import count, plural
from torchtap.plot.extras import figure_class
from torchtap.plot.heat import colored, limits_of, range_of
from torchtap.plot.maps import draw_maps, grid_shape
from torchtap.plot.prepare import Maps, bad_words
from torchtap.plot.readings import shown
from torchtap.plot.site_heat import columns_of, furthest
from torchtap.plot.style import (
    BAD,
    SIGNED,
    WIDTH,
    canvas,
    color_bar,
    label,
    tidy,
    write_head,
)
from torchtap.plot.weights import as_float64, kind_words, parameter

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import nn

    from torchtap.core.site import Site
    from torchtap.runs.run import Run

    Array = Any

_MOST = 64
_MOST_ROWS, _MOST_COLS = 12, 16
_TILE = 24
_MOST_CELLS = 400


def filters(module_or_run: nn.Module | Run, site: str | Site, *, ax: Axes | None = None) -> Figure:
    """Draw the filters of a convolution, or the matrix of a linear layer.

    Filters of three input channels are drawn as colours, mid-grey at zero; of one channel as a
    grid; of more as a table, a row for each output and a column for each input, up to 12 by 16.
    All are in one symmetric scale, red above and blue below zero, and NaN and Inf magenta. A
    filter of three dimensions shows its middle slice. Large matrices are drawn as blocks, of which
    the element furthest from zero stands.

    Args:
        module_or_run: a model, or a run that kept the parameter (its last value is drawn).
        site: of the parameter; ``conv1`` means ``conv1:param[weight]``.
        ax: as in :func:`series`.

    Raises:
        SiteError: there is no such parameter.
        RunError: the run kept no values of parameters.
        InputError: the parameter is a vector, or empty.
        MissingExtraError: matplotlib is not installed.

    Example:
        >>> import torch, torchtap as tt
        >>> figure = tt.plot.filters(torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3)), "0")
    """
    found, value = parameter(module_or_run, site, "filters")
    where = f"{found} is {kind_words(value)}"
    if value.dim() < 2 or not value.numel():
        raise InputError(f"{where}: filters have two or more dimensions and an element.")
    figure_class()
    weights = as_float64(value)
    title = f"Filters of {shown(found)}"
    if weights.ndim <= 3:
        return _matrix(ax, weights, f"Weights of {shown(found)}", kind_words(value))
    notes = [kind_words(value)]
    if weights.ndim == 5:
        notes.append(f"slice {weights.shape[2] // 2} of {weights.shape[2]}")
        weights = weights[:, :, weights.shape[2] // 2]
    if weights.shape[1] == 3:
        return _in_color(ax, weights, title, notes)
    return _in_grid(ax, weights, title, notes)


def _in_grid(ax: Axes | None, weights: Array, title: str, notes: list[str]) -> Figure:
    """Return one tile for each pair of output and input."""
    outputs, inputs = weights.shape[:2]
    if inputs == 1:
        kept = weights[:_MOST, 0]
        names: list[int | str] = list(range(len(kept)))
        notes.append(_of(len(kept), outputs, "filter"))
        return draw_maps(ax, _maps(kept, names, title, notes))
    rows, cols = min(outputs, _MOST_ROWS), min(inputs, _MOST_COLS)
    kept = weights[:rows, :cols].reshape(rows * cols, *weights.shape[2:])
    names = [_corner(place, cols) for place in range(rows * cols)]
    notes += [
        f"rows: {_of(rows, outputs, 'output')}",
        f"columns: {_of(cols, inputs, 'input')}",
    ]
    return draw_maps(ax, _maps(kept, names, title, notes), cols=cols)


def _corner(place: int, cols: int) -> str:
    """Return the text in a tile: its row in the first column, its column in the first row."""
    row, col = divmod(place, cols)
    if not row:
        return f"{col}"
    return "" if col else f"{row}"


def _maps(values: Array, names: list[int | str], title: str, notes: list[str]) -> Maps:
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    bad = bad_words(values)
    said = (*notes, *((f"{bad} (magenta)",) if bad else ()))
    # Weights have signs: the scale is symmetric, also where none happens to be negative.
    reach = max(abs(low), abs(high))
    return Maps(
        values=values,
        channels=tuple(names),
        total=len(values),
        title=title,
        notes=said,
        low=min(low, -1e-300),
        high=high,
        reach=reach,
    )


def _in_color(ax: Axes | None, weights: Array, title: str, notes: list[str]) -> Figure:
    """Filters of red, green and blue: grey is zero."""
    kept = weights[:_MOST]
    finite = kept[np.isfinite(kept)]
    reach = float(np.abs(finite).max()) if finite.size else 1.0
    pixels = 0.5 + 0.5 * np.nan_to_num(kept) / (reach or 1.0)
    pixels[np.broadcast_to(~np.isfinite(kept).all(1, keepdims=True), kept.shape)] = 0
    bad = ~np.isfinite(kept).all(1)
    tiles = np.moveaxis(np.clip(pixels, 0, 1), 1, -1)
    tiles[bad] = BAD[:3]
    rows, cols = grid_shape(len(tiles))
    height, width = tiles.shape[1:3]
    factor = max(1, -(-_TILE // max(height, width)))
    tiles = tiles.repeat(factor, 1).repeat(factor, 2)
    side = (
        tiles.shape[1] + max(2, tiles.shape[1] // 12),
        tiles.shape[2] + max(2, tiles.shape[2] // 12),
    )
    page = np.ones((rows * side[0], cols * side[1], 3))
    for place, tile in enumerate(tiles):
        top, left = place // cols * side[0], place % cols * side[1]
        page[top : top + tile.shape[0], left : left + tile.shape[1]] = tile
    inches = (WIDTH - 0.6) * page.shape[0] / page.shape[1]
    figure, axes = canvas(ax, min(max(inches, 1.5), 16) + 0.9)
    axes.set_anchor("N")
    axes.imshow(page, interpolation="auto")
    axes.set_axis_off()
    said = [*notes, _of(len(kept), len(weights), "filter"), range_of(weights)]
    write_head(
        axes, title, [", ".join(said), "The three channels as red, green and blue; grey is 0."]
    )
    return figure


def _matrix(ax: Axes | None, weights: Array, title: str, kind: str) -> Figure:
    """Weights of a linear layer, an embedding or a 1d convolution as a picture."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    matrix = weights.reshape(len(weights), -1)
    limits = limits_of([matrix])
    limits = (-limits[1], limits[1])
    rows, cols = columns_of(matrix.shape[0], _MOST_CELLS), columns_of(matrix.shape[1], _MOST_CELLS)
    blocks = furthest(furthest(matrix, cols).T, rows).T
    ratio = min(max(len(blocks) / blocks.shape[1], 0.25), 1.6)
    figure, axes = canvas(ax, 0.7 * WIDTH * ratio + 1.6)
    is_bad = np.logical_or.reduceat(
        np.logical_or.reduceat(~np.isfinite(matrix), cols[:-1], axis=1), rows[:-1], axis=0
    )
    axes.imshow(
        colored(np.where(is_bad, np.nan, blocks), limits), interpolation="nearest", aspect="auto",
        extent=(-0.5, matrix.shape[1] - 0.5, matrix.shape[0] - 0.5, -0.5),
    )  # fmt: skip
    tidy(axes, grid="")
    label(axes, "input" if weights.ndim == 2 else "input and position", "output")
    color_bar(axes, ScalarMappable(Normalize(*limits), SIGNED))
    said = [f"{kind}, {range_of(matrix)}"]
    if blocks.shape != matrix.shape:
        said.append(
            f"Drawn as {count(blocks.shape[0])} by {count(blocks.shape[1])} blocks, of each the "
            f"element furthest from zero."
        )
    write_head(axes, title, said)
    return figure


def _of(shown_: int, total: int, noun: str) -> str:
    return plural(total, noun) if shown_ == total else f"{count(shown_)} of {plural(total, noun)}"

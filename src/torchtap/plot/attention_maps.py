"""The figure of attention weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchtap.core.did_you_mean import did_you_mean
from torchtap.core.errors import InputError, SiteError
from torchtap.core.site import WILDCARDS, Pattern
from torchtap.core.text import plural
from torchtap.plot.attention_calls import Attention, see_attention
from torchtap.plot.extras import figure_class
from torchtap.plot.heat import colored, limits_of, range_of
from torchtap.plot.panels import panels, shared_bar, title_above
from torchtap.plot.site_heat import columns_of, furthest
from torchtap.plot.style import WIDTH, inches_across, label, on_two_lines, say, tidy, write_head
from torchtap.plot.thinning import spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import nn

    Array = Any

_MOST_PANELS = 12
_MOST_CELLS = 256
_SMALL = 8.5
_ONE = 6.4
"""Inches of a figure of one panel."""


def attention(
    model: nn.Module,
    *inputs: Any,
    layer: str | None = None,
    ax: Axes | None = None,
    **kwargs: Any,
) -> Figure:
    """Run a model once and draw its attention weights: a row for each query, a column for each key.

    Without ``layer`` a panel for each attention, the mean over its heads, up to 12 of them spread
    over the depth; with it a panel for each head. Drawn is the first row of the batch. Where a
    model gives no weights (``scaled_dot_product_attention``, ``nn.MultiheadAttention`` called with
    ``need_weights=False``) they are computed again from q and k; dropout is left out. An attention
    of which nothing can be seen has a panel that says why. The model is not changed, and its
    buffers and the random state are put back.

    Args:
        model: any module; it runs in the mode it is in, without grad.
        *inputs: what it is called with.
        layer: path of a module, or a pattern; of a block all attentions in it.
        ax: as in :func:`series`.
        **kwargs: what the model is called with.

    Raises:
        InputError: no attention was seen in the model.
        SiteError: no attention is at ``layer``.
        MissingExtraError: matplotlib is not installed.

    Example:
        >>> import torch, torchtap as tt
        >>> net = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
        >>> figure = tt.plot.attention(net, torch.randn(1, 5, 8))
    """
    figure_class()
    seen = see_attention(model, inputs, kwargs)
    if not seen:
        raise InputError(
            f"No attention was seen in {type(model).__name__}: it has no module named so, and "
            f"neither scaled_dot_product_attention ran, nor a softmax that is multiplied with "
            f"values."
        )
    if layer is None:
        return _layers(ax, seen, type(model).__name__)
    return _heads(ax, _at(seen, layer), layer)


def _at(found: Sequence[Attention], layer: str) -> list[Attention]:
    """Return the attentions at a path, in a block, or of a pattern."""
    if WILDCARDS & set(layer) or layer.startswith("re:"):
        pattern = Pattern.parse(layer)
        chosen = [one for one in found if pattern.matches_module(one.path)]
    else:
        path = "" if layer == "." else layer
        chosen = [one for one in found if one.path == path or one.path.startswith(f"{path}.")]
        chosen = chosen if path else list(found)
    if not chosen:
        known = list(dict.fromkeys(one.path or "." for one in found))
        there = ", ".join(map(repr, known[:6]))
        near = did_you_mean(layer, known)
        raise SiteError(f"No attention was seen at {layer!r}{near} It is at {there}.")
    return chosen


def _layers(ax: Axes | None, found: Sequence[Attention], model: str) -> Figure:
    """Return a panel for each attention."""
    chosen = [found[place] for place in spread(len(found), _MOST_PANELS)]
    maps = [
        None if one.weights is None else one.weights[0].double().mean(0).numpy() for one in chosen
    ]
    heads = {one.weights.shape[1] for one in chosen if one.weights is not None}
    of = "mean of the heads"
    if len(heads) == 1:
        (num,) = heads
        of = "1 head" if num == 1 else f"mean of {num} heads"
    names = [_name(one) for one in chosen]
    title = f"Attention of {model}, {of}"
    if len(chosen) < len(found):
        title += f": {len(chosen)} of {plural(len(found), 'layer')}, spread over the depth"
    return _draw(ax, title, names, maps, chosen)


def _heads(ax: Axes | None, found: Sequence[Attention], layer: str) -> Figure:
    """Return a panel for each head."""
    maps: list[Array | None] = []
    names: list[str] = []
    of: list[Attention] = []
    for one in found:
        name = f"{_name(one)} " if len(found) > 1 else ""
        if one.weights is None:
            maps, names, of = [*maps, None], [*names, name or _name(one)], [*of, one]
            continue
        for head, weights in enumerate(one.weights[0].double().numpy()):
            maps, names, of = [*maps, weights], [*names, f"{name}head {head}"], [*of, one]
    places = spread(len(maps), _MOST_PANELS)
    title = f"Attention of {found[0].path or '.'}" if len(found) == 1 else f"Attention in {layer}"
    if len(places) < len(maps):
        title += f": {len(places)} of {plural(len(maps), 'head')}"
    return _draw(
        ax, title, [names[p] for p in places], [maps[p] for p in places], [of[p] for p in places]
    )


def _name(one: Attention) -> str:
    return f"{one.path or '.'}{f' call {one.call}' if one.call else ''}"


def _draw(
    ax: Axes | None,
    title: str,
    names: Sequence[str],
    maps: Sequence[Array | None],
    of: Sequence[Attention],
) -> Figure:
    width = _ONE if len(maps) == 1 else min(WIDTH, 2.8 * len(maps) + 0.6)
    figure, axes = panels(ax, len(maps), height=2.75, most_cols=4, one_height=5.2, width=width)
    limits = limits_of([map_ for map_ in maps if map_ is not None])
    for place, (panel, name, values, source) in enumerate(zip(axes, names, maps, of, strict=True)):
        room = inches_across(panel)
        if values is None:
            say(panel, f"not available: {source.how}")
            lines = []
        else:
            _draw_map(panel, values, limits)
            lines = [f"{range_of(values)}"]
        points = 10.5 if len(maps) == 1 else _SMALL
        head = f"{title}, {name}" if len(maps) == 1 else on_two_lines(name, room, points)
        write_head(panel, head, lines, points=points, room=None if len(maps) == 1 else 1.4 * room)
        if not place and values is not None:
            label(panel, "key", "query")
    shared_bar(figure, axes, limits)
    if len(maps) > 1:
        hows = dict.fromkeys(one.how for one in of if one.weights is not None)
        title_above(figure, ax, title, f"Weights {' or '.join(hows)}." if hows else "")
    return figure


def _draw_map(axes: Axes, values: Array, limits: tuple[float, float]) -> None:
    rows, cols = (columns_of(num, _MOST_CELLS) for num in values.shape)
    shown = furthest(furthest(values, cols).T, rows).T
    axes.imshow(
        colored(shown, limits), interpolation="nearest",
        extent=(-0.5, values.shape[1] - 0.5, values.shape[0] - 0.5, -0.5),
        aspect="equal" if 0.3 < values.shape[0] / values.shape[1] < 3 else "auto",
    )  # fmt: skip
    tidy(axes, grid="")
    from matplotlib.ticker import MaxNLocator

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(4, integer=True))

"""The figure of tokens: how large each is, what it is like, and where it lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtap.core.errors import InputError
from torchtap.core.text import number, plural, typed
from torchtap.plot.grids import grid_of, sees_pictures
from torchtap.plot.heat import colored, limits_of, range_of
from torchtap.plot.panels import panels, title_above
from torchtap.plot.picture import pixels_of
from torchtap.plot.readings import need_run, shown
from torchtap.plot.style import (
    BAD,
    BLUE,
    MAGNITUDE,
    color_bar,
    inches_across,
    label,
    tidy,
    write_head,
)
from torchtap.plot.thinning import thinned

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from torchtap.core.site import Site
    from torchtap.runs.run import Run

    Array = Any

_POINTS = 8.5
_MOST_COMPARED = 512


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one sample.

    Attributes:
        values: ``float64[T, C]``.
        extra: how many stand in front of those on the grid.
        side: of the grid; 0 where they lie in a row.
    """

    values: Array
    extra: int
    side: int

    @property
    def norms(self) -> Array:
        """Euclidean norm of each token, ``float64[T]``; NaN where one of its elements is."""
        return np.sqrt((self.values**2).sum(1))

    @property
    def similarity(self) -> Array:
        """Cosine of the angle between any two tokens, ``float64[T, T]``; NaN of a zero token."""
        with np.errstate(invalid="ignore", divide="ignore"):
            unit = self.values / self.norms[:, None]
            return np.clip(unit @ unit.T, -1, 1)

    def laid(self, values: Array) -> Array:
        """Numbers of the tokens on the grid, ``float64[side, side]``."""
        return values[self.extra :].reshape(self.side, self.side)

    @property
    def components(self) -> Array:
        """The first three principal components of the tokens on the grid as red, green and blue.

        Each from its least (0) to its largest (1), ``float64[side, side, 3]``.
        """
        own = self.values[self.extra :]
        own = np.nan_to_num(own - own.mean(0), posinf=0.0, neginf=0.0)
        left, sizes, _ = np.linalg.svd(own, full_matrices=False)
        axes = np.zeros((len(own), 3))
        num = min(3, len(sizes))
        axes[:, :num] = left[:, :num] * sizes[:num]
        low, high = axes.min(0), axes.max(0)
        scaled = (axes - low) / np.where(high > low, high - low, 1.0)
        return scaled.reshape(self.side, self.side, 3)


def tokens(run: Run, site: str | Site, image: Any = None, *, ax: Axes | None = None) -> Figure:
    """Draw the tokens ``(B, T, C)`` of the first sample of the last step.

    Of patches of a picture, on their grid: the norm of each token, its likeness to the class token
    (or to the mean of all), and the first three principal components as colours: patches of like
    colour are alike for the model. Of words: the norm of each over its position, and the likeness
    of any two, a cosine.

    Tokens are taken for patches where a two-dimensional convolution is in the model, or an image is
    given, and so many tokens fill a square grid with 0, 1, 2 or 5 more in front.

    Args:
        run: any run that kept the value.
        site: where; ``blocks.3`` means ``blocks.3:output``.
        image: what the model was shown: a PIL image, an array ``[H, W, 3]`` or a tensor.
        ax: as in :func:`series`; the panels share its place.

    Raises:
        SiteError: nothing was recorded there.
        InputError: the value is not ``(B, T, C)``, or the image is no picture.
        MissingExtraError: matplotlib is not installed.

    Example:
        >>> import torch, torchtap as tt
        >>> net = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
        >>> with tt.watch(net, ".") as w:
        ...     _ = net(torch.randn(1, 6, 8))
        >>> figure = tt.plot.tokens(w.run, ".")
    """
    need_run(run, "tokens")
    record = run.record(site)
    token_texts = _tokens_of(
        record.value, str(record.site), is_picture=image is not None or sees_pictures(run)
    )
    kind = typed(str(record.kept.dtype).removeprefix("torch."), tuple(record.kept.shape))
    title = f"Tokens of {shown(record.site)}, {kind}, step {record.step}"
    draw = _on_grid if token_texts.side else _in_row
    return draw(ax, token_texts, title, None if image is None else pixels_of(image))


def _tokens_of(value: Tensor, where: str, *, is_picture: bool) -> Tokens:
    if value.dim() != 3 or not value.numel():
        kind = typed(str(value.dtype).removeprefix("torch."), tuple(value.shape))
        raise InputError(
            f"{where} is {kind}; expected tokens (B, T, C) with an element. Draw a convolution "
            f"with tt.plot.feature_maps."
        )
    first = value[0].detach().cpu()
    array = (first.abs() if first.is_complex() else first).double().numpy()
    grid = grid_of(len(array)) if is_picture else None
    return Tokens(array, *(grid or (0, 0)))


# ---------------------------------------------------------------------- patches


def _on_grid(ax: Axes | None, found: Tokens, title: str, picture: Array | None) -> Figure:
    num = 3 if picture is None else 4
    figure, axes = panels(ax, num, height=8.6 / num + 0.7, most_cols=num, width=9.4)
    places = list(axes)
    if picture is not None:
        panel = places.pop(0)
        panel.imshow(picture)
        _head(panel, "picture", f"{picture.shape[0]}x{picture.shape[1]}")
    norms = found.laid(found.norms)
    _map(places[0], norms, "norm", bar=True)
    if found.extra:
        name, likeness = "likeness to the first token", found.similarity[0]
    else:
        mean = found.values.mean(0)
        with np.errstate(invalid="ignore", divide="ignore"):
            likeness = found.values @ mean / (found.norms * np.linalg.norm(mean))
        name = "likeness to the mean"
    _map(places[1], found.laid(likeness), name, limits=(-1.0, 1.0), bar=True)
    places[2].imshow(found.components, interpolation="nearest")
    _head(places[2], "three components", "as red, green, blue")
    for axis in axes:
        axis.set_xticks([])
        axis.set_yticks([])
        axis.spines[:].set_visible(False)
    said = f"{found.side}x{found.side} patches"
    if found.extra:
        norms_in_front = ", ".join(number(float(norm)) for norm in found.norms[: found.extra])
        said += f", {plural(found.extra, 'token')} in front with a norm of {norms_in_front}"
    title_above(figure, ax, title, f"{said}. The likeness is a cosine.")
    return figure


def _map(
    axes: Axes, values: Array, name: str, *, limits: tuple[float, float] | None = None, bar: bool
) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    reach = limits or limits_of([values])
    axes.imshow(colored(values, reach), interpolation="nearest")
    if bar:
        colors = ScalarMappable(Normalize(*reach), "RdBu_r" if reach[0] < 0 else MAGNITUDE)
        color_bar(axes, colors, location="bottom", aspect=26, pad=0.03, shrink=0.9)
    _head(axes, name, range_of(values))


def _head(axes: Axes, name: str, said: str) -> None:
    write_head(axes, name, [said], points=_POINTS, room=1.1 * inches_across(axes))


# ---------------------------------------------------------------------- words


def _in_row(ax: Axes | None, found: Tokens, title: str, picture: Array | None) -> Figure:
    if picture is not None:
        raise InputError(
            f"{len(found.values)} tokens are no square grid with 0, 1, 2 or 5 more in front, so it "
            f"is not known where they lie in the image. Leave image= out."
        )
    figure, axes = panels(ax, 2, height=3.9, most_cols=2)
    norms, num = found.norms, len(found.values)
    tidy(axes[0])
    x, y = thinned(np.arange(num), norms)
    axes[0].plot(x, y, color=BLUE, linewidth=1.2, marker="." if num <= 64 else None, markersize=4)
    for place in np.flatnonzero(~np.isfinite(norms)).tolist():
        axes[0].axvline(place, color=BAD, linewidth=1)
    finite = norms[np.isfinite(norms)]
    axes[0].set_ylim(0, 1.08 * float(finite.max()) if finite.size and finite.max() else 1.0)
    label(axes[0], "token")
    _head(axes[0], "norm of each token", range_of(norms))
    shown_tokens = found if num <= _MOST_COMPARED else Tokens(found.values[:_MOST_COMPARED], 0, 0)
    name = "likeness of any two (cosine)"
    if num > _MOST_COMPARED:
        name += f", the first {_MOST_COMPARED}"
    _map(axes[1], shown_tokens.similarity, name, limits=(-1.0, 1.0), bar=True)
    tidy(axes[1], grid="")
    label(axes[1], "token", "token")
    title_above(figure, ax, title)
    return figure

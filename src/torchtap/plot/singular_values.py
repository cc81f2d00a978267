"""The figure of the singular values of weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtap.core.errors import InputError
from torchtap.core.site import Site
from torchtap.core.text import count, number, plural
from torchtap.plot.lines import depth_bar, depth_colors, name_lines
from torchtap.plot.readings import shown
from torchtap.plot.scales import Scale, scale_of
from torchtap.plot.style import CATEGORIES, canvas, label, tidy, write_head
from torchtap.plot.weights import as_float64, parameters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor, nn

    from torchtap.runs.run import Run
    from torchtap.runs.select import Where

    Array = Any

_HEIGHT = 3.9
_ROUNDING = np.finfo(np.float32).eps


@dataclass(frozen=True, slots=True)
class Spectrum:
    """The singular values of one weight.

    Attributes:
        site: of the weight.
        values: from the largest to the least, ``float64[min(rows, columns)]``.
        shape: of the matrix: the first dimension, and all others.
    """

    site: Site
    values: Array
    shape: tuple[int, int]

    @property
    def rank(self) -> int:
        """How many are above rounding: ``numpy.linalg.matrix_rank`` with float32's epsilon."""
        if not len(self.values):
            return 0
        return int((self.values > self.values[0] * max(self.shape) * _ROUNDING).sum())


def spectra(
    model_or_run: nn.Module | Run, where: Where = "*:param", *, ax: Axes | None = None
) -> Figure:
    """Draw the singular values of weights, each from its largest to its least.

    A weight with more than two dimensions, as of a convolution, is a matrix of its first dimension
    by all others. The values are computed in float64. Over the x axis lies the share of them, so
    that weights of any size stand beside one another. Biases and other vectors have none, and are
    counted in words, as are weights with NaN or Inf.

    Args:
        model_or_run: a model, or a run that kept parameters (the last value of each is taken).
        where: patterns as everywhere.
        ax: as in :func:`series`.

    Raises:
        SiteError: no parameter fits.
        RunError: the run kept no values of parameters.
        InputError: no weight has two dimensions and is finite, or the source is neither.
        MissingExtraError: matplotlib is not installed.

    Example:
        >>> import torch, torchtap as tt
        >>> net = torch.nn.Linear(3, 2, bias=False)
        >>> _ = torch.nn.init.eye_(net.weight)
        >>> tt.plot.spectra(net).axes[0].lines[0].get_ydata().tolist()
        [1.0, 1.0]
    """
    chosen = parameters(model_or_run, where, "spectra")
    matrices = {site: value for site, value in chosen.items() if value.dim() > 1 and value.numel()}
    finite = {site: as_float64(value) for site, value in matrices.items()}
    finite = {site: value for site, value in finite.items() if np.isfinite(value).all()}
    if not finite:
        raise InputError(_no_weight(chosen, matrices))
    spectra_of_sites = [spectrum_of(site, value) for site, value in finite.items()]
    figure, axes = canvas(ax, _HEIGHT)
    scale = scale_of([one.values for one in spectra_of_sites])
    _draw(axes, spectra_of_sites, scale, is_own=ax is None)
    lines = [*_words(spectra_of_sites), scale.words, _left_out(chosen, matrices, finite)]
    title = f"Singular values of {plural(len(spectra_of_sites), 'weight')}"
    write_head(
        axes,
        title
        if len(spectra_of_sites) > 1
        else f"Singular values of {shown(spectra_of_sites[0].site)}",
        lines,
    )
    return figure


def spectrum_of(site: Site, value: Array) -> Spectrum:
    """Compute the singular values of a weight in float64.

    Args:
        site: of the weight.
        value: ``float64`` of two or more dimensions.
    """
    matrix = value.reshape(len(value), -1)
    return Spectrum(site, np.linalg.svd(matrix, compute_uv=False), matrix.shape)


def _draw(axes: Axes, found: Sequence[Spectrum], scale: Scale, *, is_own: bool) -> None:
    tidy(axes)
    scale.apply_y(axes)
    is_named = len(found) <= len(CATEGORIES)
    colors = CATEGORIES if is_named else depth_colors(len(found))
    for one, color in zip(found, colors, strict=False):
        num = len(one.values)
        x = np.arange(num) / max(num - 1, 1)
        marker = "." if num <= 40 else None
        axes.plot(
            x, one.values, color=color, marker=marker, markersize=4,
            linewidth=1.3 if is_named else 0.9, alpha=1.0 if is_named else 0.8,
        )  # fmt: skip
    axes.set_xlim(-0.02, 1.02)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["largest", "25%", "50%", "75%", "least"])
    label(axes, "singular values, in order", "singular value")
    names = [
        f"{one.site.path or '.'}{_leaf(one.site)} {one.shape[0]}x{one.shape[1]}" for one in found
    ]
    if is_named and len(found) > 1:
        name_lines(axes, names, is_own=is_own)
    elif not is_named:
        depth_bar(axes, names)


def _leaf(site: Site) -> str:
    return "" if site.leaf == "weight" else f"[{site.leaf}]"


def _words(found: Sequence[Spectrum]) -> list[str]:
    """Return the largest of all, and the weight with the least rank against its size."""
    top = max(found, key=lambda one: one.values[0])
    said = [f"Largest: {number(float(top.values[0]))} ({shown(top.site)})."]
    short = [one for one in found if one.rank < len(one.values)]
    if short:
        worst = min(short, key=lambda one: one.rank / len(one.values))
        said.append(
            f"{plural(len(short), 'weight')} below full rank up to float32's rounding, first "
            f"{shown(worst.site)}: {count(worst.rank)} of {count(len(worst.values))}."
        )
    else:
        least = min(found, key=lambda one: one.values[-1] / one.values[0])
        ratio = float(least.values[0] / least.values[-1])
        said.append(f"Largest over least: at most {number(ratio)} ({shown(least.site)}).")
    return said


def _left_out(
    chosen: dict[Site, Tensor], matrices: dict[Site, Tensor], finite: dict[Site, Array]
) -> str:
    said = []
    if len(matrices) < len(chosen):
        said.append(f"{plural(len(chosen) - len(matrices), 'vector')} (biases, norms) left out.")
    if len(finite) < len(matrices):
        first = next(str(site) for site in matrices if site not in finite)
        said.append(
            f"{plural(len(matrices) - len(finite), 'weight')} with NaN or Inf left out, as {first}."
        )
    return " ".join(said)


def _no_weight(chosen: dict[Site, Tensor], matrices: dict[Site, Tensor]) -> str:
    if matrices:
        first = next(iter(matrices))
        return (
            f"All {plural(len(matrices), 'weight')} have NaN or Inf, as {first}: they have no "
            f"singular values."
        )
    return (
        f"None of {plural(len(chosen), 'parameter')} has two dimensions and an element, so none "
        f"has singular values."
    )

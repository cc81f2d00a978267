"""How the dimensions of a value lie over a picture: channels, tokens on a grid, windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from torchtap.core.errors import InputError
from torchtap.core.text import typed

if TYPE_CHECKING:
    from torch import Tensor

    from torchtap.core.record import Record
    from torchtap.runs.run import Run

Layout = Literal["NCHW", "NHWC", "CHW", "HWC", "NCL", "CL", "NCDHW", "CDHW", "tokens", "windows"]

MEANS: dict[Layout, str] = {
    "NCHW": "(N, C, H, W)",
    "NHWC": "(N, H, W, C)",
    "CHW": "(C, H, W)",
    "HWC": "(H, W, C)",
    "NCL": "(N, C, L)",
    "CL": "(C, L)",
    "NCDHW": "(N, C, D, H, W)",
    "CDHW": "(C, D, H, W)",
    "tokens": "(B, T, C) of patches on a grid",
    "windows": "(B * windows, T, C) of square windows of a picture",
}
DIMS = {"tokens": 3, "windows": 3}
_TOKEN_TYPES = ("Attention", "Embedding", "Encoder", "Decoder", "LayerNorm", "Linear", "RMSNorm")
_LAST = ("Linear", "LayerNorm", "RMSNorm")
"""Modules whose channels are the last dimension."""
_EXTRA = (0, 1, 2, 5)
"""None, a class token, one for distillation, and four registers."""


def layout_of(run: Run, record: Record) -> Layout:
    """Return the layout, from the number of dimensions and the classes of modules; never a guess.

    Raises:
        InputError: the value has no maps, or it is not known which dimension is what.
    """
    types = run.meta.modules.get(record.site.path, ())
    dims = record.kept.dim()
    one_d, two_d, three_d = (
        any(name.endswith(end) for name in types) for end in ("1d", "2d", "3d")
    )
    if dims == 5:
        return "NCDHW"
    if dims == 4:
        if three_d:
            return "CDHW"
        return "NHWC" if not two_d and _is_channels_last(run, record, types) else "NCHW"
    if dims == 3 and one_d:
        return "NCL"
    if dims == 3 and two_d:
        return "CHW"
    if dims == 2 and one_d and any(name.startswith("Conv") for name in types):
        return "CL"
    if dims == 3 and sees_pictures(run):
        layout = _of_patches(run, record, types)
        if layout is not None:
            return layout
    raise InputError(_no_layout(record, types))


def _is_channels_last(run: Run, record: Record, types: Sequence[str]) -> bool:
    """Return whether a linear layer or a norm of the last dimension is as wide as that, here or
    beside it, as in a Swin transformer.
    """
    if any(name in _LAST for name in types):
        return _is_of_last(run, record.site.path, record.kept.shape)
    parent = record.site.path.rpartition(".")[0]
    beside = [
        site
        for site in run.sites
        if site.port == record.site.port
        and site.path.rpartition(".")[0] == parent
        and any(name in _LAST for name in run.meta.modules.get(site.path, ()))
    ]
    return any(
        one.kept.shape == record.kept.shape and _is_of_last(run, one.site.path, one.kept.shape)
        for site in beside
        for one in run.records(site, steps=record.step)
    )


def _is_of_last(run: Run, path: str, shape: Sequence[int]) -> bool:
    """Return whether the parameters of a norm are as many as the last dimension is wide."""
    if "Linear" in run.meta.modules.get(path, ()):
        return True
    num = run.meta.num_parameters.get(path, 0)
    return num in (0, shape[-1], 2 * shape[-1])


def sees_pictures(run: Run) -> bool:
    """Return whether a convolution cuts the input into patches: else tokens are words."""
    return any("Conv2d" in names for names in run.meta.modules.values())


def _of_patches(run: Run, record: Record, types: Sequence[str]) -> Layout | None:
    shape = tuple(record.kept.shape)
    around = [record.site.path, record.site.path.rpartition(".")[0]]
    names = [name for path in around for name in run.meta.modules.get(path, ())]
    has_windows = any("Window" in name or "Swin" in name for name in names)
    rows = num_rows(run, record)
    if has_windows and rows and is_windows(shape, rows):
        return "windows"
    if any(part in name for part in _TOKEN_TYPES for name in types) or has_windows:
        return "tokens" if grid_of(shape[1]) is not None else None
    return "tokens" if rows == shape[0] and grid_of(shape[1]) is not None else None


def num_rows(run: Run, record: Record) -> int | None:
    """Rows of the batch in the step of a record: of a convolution's output, or of the model's."""
    sites = [site for site in run.sites if site.port in ("input", "output")]
    first = [site for site in sites if "Conv2d" in run.meta.modules.get(site.path, ())]
    for site in (*first, *(site for site in sites if not site.path)):
        for one in run.records(site, steps=record.step):
            if one.kept.dim() == 4 or (not site.path and one.kept.dim() > 1):
                return int(one.kept.shape[0])
    return None


def grid_of(tokens: int) -> tuple[int, int] | None:
    """Tokens in front of a square grid, and the side of the grid; none where there is no square.

    Example:
        >>> grid_of(197), grid_of(196), grid_of(201), grid_of(12)
        ((1, 14), (0, 14), (5, 14), None)
    """
    for extra in _EXTRA:
        side = math.isqrt(max(tokens - extra, 0))
        if side > 1 and side * side == tokens - extra:
            return extra, side
    return None


def is_windows(shape: Sequence[int], rows: int) -> bool:
    """Return whether a value has a square number of square windows for each row of the batch."""
    num, left = divmod(shape[0], rows)
    squares = (math.isqrt(num) ** 2 == num, math.isqrt(shape[1]) ** 2 == shape[1])
    return not left and num > 1 and all(squares)


def laid_out(value: Tensor, layout: Layout, rows: int | None) -> tuple[Tensor, list[str]]:
    """Tokens and windows as ``[B, C, H, W]``, and what is to be said of them.

    Args:
        value: ``[B, T, C]``.
        layout: ``tokens`` or ``windows``.
        rows: of the batch; needed for windows.

    Raises:
        InputError: they do not fill a square.
    """
    if layout == "windows":
        return _joined(value, rows)
    grid = grid_of(value.shape[1])
    if grid is None:
        raise InputError(
            f"{value.shape[1]} tokens are no square grid with 0, 1, 2 or 5 more in front. Draw "
            f"them with tt.plot.tokens."
        )
    extra, side = grid
    maps = value[:, extra:].movedim(1, -1).reshape(len(value), -1, side, side)
    notes = [f"tokens on a grid of {side}x{side}"]
    return maps, notes + ([f"{extra} in front left out"] if extra else [])


def _joined(value: Tensor, rows: int | None) -> tuple[Tensor, list[str]]:
    if rows is None or not is_windows(tuple(value.shape), rows):
        raise InputError(
            f"{_typed(value)} is no square number of square windows for each of the "
            f"{rows or '(unknown)'} rows of the batch. Record '.:input' too, so that the rows are "
            f"known."
        )
    across, side = math.isqrt(value.shape[0] // rows), math.isqrt(value.shape[1])
    tiles = value.reshape(rows, across, across, side, side, -1)
    maps = tiles.permute(0, 5, 1, 3, 2, 4).reshape(rows, -1, across * side, across * side)
    return maps, [f"{across}x{across} windows of {side}x{side} side by side, a shift is not undone"]


def _no_layout(record: Record, types: Sequence[str]) -> str:
    where = f"{record.site} is {_typed(record.kept)}"
    dims = record.kept.dim()
    if dims == 3 and any(part in name for part in _TOKEN_TYPES for name in types):
        return (
            f"{where}: tokens (B, T, C). Feature maps need channels with a picture each: "
            f"(N, C, H, W) or (C, H, W). Name a convolution, say layout='tokens' where they are "
            f"patches on a square grid, or draw them with tt.plot.tokens."
        )
    if dims == 3:
        return (
            f"{where}, which may be (C, H, W), (N, C, L) or tokens (B, T, C). Say which: "
            f"layout='CHW', layout='NCL' or layout='tokens'."
        )
    return f"{where}; feature maps need (N, C, H, W) or (C, H, W)."


def _typed(tensor: Tensor) -> str:
    return typed(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))

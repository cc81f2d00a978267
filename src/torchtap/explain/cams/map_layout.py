"""Find which dimensions of a layer's value are channels, and which lie over the input."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtap.core.errors import InputError
from torchtap.core.site import Site
from torchtap.core.tensors import kind_of
from torchtap.explain.extents import Extent, extents_of, is_about_as_wide, is_like, widths
from torchtap.explain.subject import Subject

CHANNELS_FIRST = "channels_first"
CHANNELS_LAST = "channels_last"
TOKENS = "tokens"
WINDOWS = "windows"
LAYOUTS = (CHANNELS_FIRST, CHANNELS_LAST, TOKENS, WINDOWS)
_EXTRA_TOKENS = (0, 1, 2, 5)
"""None, a class token, one for distillation, and four registers."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The meaning of the dimensions of a layer's value.

    Attributes:
        name: ``channels_first`` (``[B, C, *grid]``), ``channels_last`` (``[B, *grid, C]``),
            ``tokens`` (``[B, extra + positions, C]``) or ``windows`` (``[B * windows, positions of
            one, C]``).
        grid: size of the map.
        extra: tokens before those that lie on the grid.
        window: size of one window.
        shift: by how much the grid was rolled before it was cut into windows.
    """

    name: str
    grid: tuple[int, ...]
    extra: int = 0
    window: tuple[int, ...] = ()
    shift: tuple[int, ...] = ()

    @property
    def channel_dim(self) -> int:
        """Return the dimension of the value that counts channels."""
        return 1 if self.name == CHANNELS_FIRST else -1

    def maps(self, value: Tensor) -> Tensor:
        """Return the value, or its gradient, as ``[B, C, *grid]``."""
        if self.name == CHANNELS_FIRST:
            return value
        if self.name == TOKENS:
            value = value[:, self.extra :].reshape(-1, *self.grid, value.shape[-1])
        elif self.name == WINDOWS:
            value = self._joined(value)
        return value.movedim(-1, 1)

    def _joined(self, value: Tensor) -> Tensor:
        """Windows put side by side again (Liu et al. 2021, Swin Transformer, section 3.2)."""
        num = tuple(all_ // one for all_, one in zip(self.grid, self.window, strict=True))
        dims = len(num)
        value = value.reshape(-1, *num, *self.window, value.shape[-1])
        order = [
            dim for pair in zip(range(dims), range(dims, 2 * dims), strict=True) for dim in pair
        ]
        value = value.permute(0, *(1 + dim for dim in order), 1 + 2 * dims)
        value = value.reshape(value.shape[0], *self.grid, value.shape[-1])
        return value.roll(self.shift, tuple(range(1, 1 + dims)))

    def __str__(self) -> str:
        grid = " x ".join(map(str, self.grid))
        extra = f" and {self.extra} more in front" if self.extra else ""
        if self.name == WINDOWS:
            window, shift = (" x ".join(map(str, one)) for one in (self.window, self.shift))
            return f"{grid} tokens in windows of {window}, shifted by {shift}"
        return f"{grid} tokens{extra}" if self.name == TOKENS else f"{grid}, {self.name}"


@dataclass(frozen=True, slots=True)
class Wish:
    """The caller's settings of the layout.

    Attributes:
        layout: one of :data:`LAYOUTS`, ``None`` to find it.
        grid: size of the map of tokens.
        over: name of the input that the map lies over.
    """

    layout: str | None = None
    grid: tuple[int, ...] | None = None
    over: str | None = None

    def __post_init__(self) -> None:
        if self.layout is not None and self.layout not in LAYOUTS:
            raise InputError(f"layout is {self.layout!r}; expected one of {', '.join(LAYOUTS)}.")
        is_grid = self.grid is None or (
            isinstance(self.grid, tuple)
            and bool(self.grid)
            and all(isinstance(one, int) and one > 0 for one in self.grid)
        )
        if not is_grid:
            raise InputError(
                f"grid is {self.grid!r}; expected the size of the map of tokens, as in "
                f"grid=(14, 14)."
            )


@dataclass(frozen=True, slots=True)
class Fit:
    """A layout of a value over an input.

    Attributes:
        layout: of the value.
        extent: of the input; ``None`` where the map lies over none of them, as that of a
            spectrogram over a waveform.
    """

    layout: Layout
    extent: Extent | None

    @property
    def size(self) -> tuple[int, ...]:
        """Return the size of the input."""
        return () if self.extent is None else self.extent.size

    @property
    def is_exact(self) -> bool:
        """Return whether the map lies over the input, with a token for each place of a sequence."""
        is_of_tokens = self.layout.name == TOKENS and len(self.size) == 1
        return self.extent is not None and (not is_of_tokens or self.layout.grid == self.size)

    def lying(self) -> Fit:
        """Return the fit without an input of other dimensions, which the map cannot lie over."""
        extent = self.extent
        if extent is None or len(extent.size) != len(self.layout.grid):
            return Fit(self.layout, None)
        if not extent.is_told and self.layout.name == TOKENS:
            return Fit(self.layout, extent.turned())  # Positions of a signal, not its features.
        return self


class Layouts:
    """Finds the layout of values in one model, and which of its inputs they lie over.

    Args:
        subject: the model and its inputs.
        wish: what the caller says.

    Raises:
        InputError: the caller names an input that is none, or has no places.
    """

    def __init__(self, subject: Subject, wish: Wish) -> None:
        extents: list[Extent | None] = [*_chosen_extents(subject, wish.over)]
        self._readers = [
            _Reader(
                subject.modules,
                wish,
                extent,
                subject.num_rows if extent is None else extent.rows,
            )
            for extent in extents or [None]
        ]

    def of(self, path: str, value: Tensor) -> Layout | str:
        """Return the layout of what a module returned, or why it is no map."""
        fits = self.fits(path, value)
        return fits[0].layout if fits else self._why(path, value)

    def fits(self, path: str, value: Tensor) -> list[Fit]:
        """Return how a value may lie over the inputs; several where sizes do not tell which."""
        fitting = []
        for reader in self._readers:
            layout = reader.of(path, value)
            if isinstance(layout, Layout):
                fitting.append(Fit(layout, reader.extent).lying())
        exact = [one for one in fitting if one.is_exact]
        return exact or [one for one in fitting if one.extent is not None] or fitting[:1]

    def _why(self, path: str, value: Tensor) -> str:
        reasons = {reader.of(path, value): None for reader in self._readers}
        return "; ".join(reason for reason in reasons if isinstance(reason, str))


def _chosen_extents(subject: Subject, over: str | None) -> list[Extent]:
    """Return the extents of all inputs, or that of the one that the caller names."""
    inputs = subject.inputs
    if over is None:
        return extents_of(subject.modules, inputs)
    name = over
    if over not in inputs and over.startswith(".:input"):
        name = Site.parse(over).leaf
    extents = extents_of(subject.modules, {name: inputs[name]}) if name in inputs else []
    if not extents:
        shown = ", ".join(f"{one!r} ({kind_of(tensor)})" for one, tensor in inputs.items())
        raise InputError(
            f"over is {over!r}; expected the name of an input with places (a picture, a volume, a "
            f"signal or token numbers): the inputs are {shown}."
        )
    return extents


class _Reader:
    """Reads layouts as of values that lie over one input.

    Types of modules decide it, those around where the module itself has no channels: a convolution
    or batch norm as wide as dimension 1 means that channels come first, a linear layer or layer
    norm as wide as the last dimension that they come last.

    Args:
        modules: of the model.
        wish: what the caller says.
        extent: the input; ``None`` where no input has places.
        rows: how many rows a value has; ``None`` where that is not known.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        wish: Wish,
        extent: Extent | None,
        rows: int | None,
    ) -> None:
        self.extent = extent
        self._wish = wish
        self._modules = modules
        self._rows = rows
        self._widths: dict[tuple[str, int], tuple[set[int], set[int]]] = {}

    def of(self, path: str, value: Tensor) -> Layout | str:
        """Return the layout of what a module returned, or why it is no map."""
        if value.is_nested or value.layout is not torch.strided:
            return "it is no dense tensor"
        if not value.is_floating_point():
            return "it is not floating"
        return self.of_shape(path, tuple(value.shape))

    def of_shape(self, path: str, shape: tuple[int, ...]) -> Layout | str:
        """Return the layout of a dense floating value of a shape, or why it is no map."""
        if len(shape) not in (3, 4, 5):
            return "a map has 3 dimensions (1-d, tokens), 4 (pictures) or 5 (volumes)"
        if not math.prod(shape):
            return "it is empty"
        layout = self._found(path, shape)
        if isinstance(layout, Layout) and math.prod(layout.grid) == 1:
            return "its map is one pixel"
        return layout

    def _found(self, path: str, shape: tuple[int, ...]) -> Layout | str:
        name = self._wish.layout
        if name == WINDOWS or (name is None and self._are_windows(shape)):
            return self._windows(path, shape)
        if self._rows is not None and shape[0] != self._rows:
            return f"its dimension 0 is {shape[0]}, and the inputs have {self._rows} rows"
        if name is None and self._wish.grid is not None and len(shape) == 3:
            name = TOKENS
        name = name or self._name(path, shape)
        if name == CHANNELS_FIRST:
            return Layout(name, shape[2:])
        if name == CHANNELS_LAST and len(shape) > 3:
            return Layout(name, shape[1:-1])
        if name in (TOKENS, CHANNELS_LAST):
            return self._tokens(shape) if len(shape) == 3 else "tokens have 3 dimensions"
        return (
            "its channels may be dimension 1 or the last, and the modules around do not tell: give "
            "layout='channels_first', 'channels_last' or 'tokens'"
        )

    # ------------------------------------------------------------------ which dimension

    def _name(self, path: str, shape: tuple[int, ...]) -> str | None:
        rank, last = len(shape), CHANNELS_LAST if len(shape) > 3 else TOKENS
        place: str | None = path
        while place is not None:
            of_first, of_last = self._widths_in(place, rank)
            is_first, is_last = shape[1] in of_first, shape[-1] in of_last
            if is_first is not is_last:
                if is_last and self._is_doubtful(path, shape):
                    return self._by_size(shape)
                return CHANNELS_FIRST if is_first else last
            if is_first and is_last:
                return self._by_size(shape)
            place = None if not place else place.rpartition(".")[0]
        return self._by_size(shape)

    def _widths_in(self, path: str, rank: int) -> tuple[set[int], set[int]]:
        """Return numbers of channels of the modules at a path and below: first, and last."""
        if (path, rank) not in self._widths:
            first: set[int] = set()
            last: set[int] = set()
            for one, module in self._modules.items():
                if not path or one == path or one.startswith(f"{path}."):
                    for width, is_first in widths(module, rank):
                        (first if is_first else last).add(width)
            self._widths[path, rank] = first, last
        return self._widths[path, rank]

    def _is_doubtful(self, path: str, shape: tuple[int, ...]) -> bool:
        """Return whether only linear layers around say that channels are last, and sizes do not.

        Linear layers of a head or of a squeeze may be as wide as a map by chance.
        """
        if self.extent is None or len(shape) - 2 != len(self.extent.size) or len(shape) == 3:
            return False
        if path in self._modules and any(widths(self._modules[path], len(shape))):
            return False
        return is_about_as_wide(shape[2:], shape[1:-1], self.extent.size)

    def _by_size(self, shape: tuple[int, ...]) -> str | None:
        """Told by the input: maps keep its ratios."""
        if self.extent is None:
            return None
        size, rank = self.extent.size, len(shape)
        if rank == 3 and len(size) > 1:
            return TOKENS
        if rank == 3 and self.extent.channel_dim is None:
            return TOKENS if shape[1] == size[0] else None
        if rank - 2 != len(size):
            return None
        first, last = (is_like(one, size) for one in (shape[2:], shape[1:-1]))
        if first is last or rank == 3:
            return None
        return CHANNELS_FIRST if first else CHANNELS_LAST

    # ------------------------------------------------------------------ tokens

    def _tokens(self, shape: tuple[int, ...]) -> Layout | str:
        num, grid = shape[1], self._wish.grid
        if grid is not None:
            extra = num - math.prod(grid)
            if extra < 0:
                return f"grid={grid} has {math.prod(grid)} places, and there are {num} tokens"
            return Layout(TOKENS, grid, extra)
        if self.extent is None or len(self.extent.size) == 1:
            return Layout(TOKENS, (num,))
        size = self.extent.size
        for find in (_patches, _cube):
            for extra in _EXTRA_TOKENS:
                grid = find(num - extra, size)
                if grid is not None:
                    return Layout(TOKENS, grid, extra)
        return (
            f"its {num} tokens are no grid over {' x '.join(map(str, size))} with 0, 1, 2 or 5 "
            f"more in front: give grid=(height, width)"
        )

    def _are_windows(self, shape: tuple[int, ...]) -> bool:
        if self._rows is None or self.extent is None or len(self.extent.size) != 2:
            return False
        is_multiple = shape[0] > self._rows and shape[0] % self._rows == 0
        return is_multiple and len(shape) == 3 and math.isqrt(shape[1]) ** 2 == shape[1]

    def _windows(self, path: str, shape: tuple[int, ...]) -> Layout | str:
        if not self._are_windows(shape) or self.extent is None or self._rows is None:
            return (
                "windows are [rows * windows, positions, channels], square, of a model that is "
                "given a picture"
            )
        side, num = math.isqrt(shape[1]), shape[0] // self._rows
        windows = _patches(num, self.extent.size) or _cube(num, self.extent.size)
        if windows is None:
            return f"its {num} windows are no grid over the picture"
        shift = self._shift(path)
        if shift is None:
            return "it is cut into windows, and no module around it has a shift_size"
        grid = windows[0] * side, windows[1] * side
        return Layout(WINDOWS, grid, 0, (side, side), shift)

    def _shift(self, path: str) -> tuple[int, int] | None:
        """Return ``shift_size`` (as of timm and transformers) of the nearest module with one."""
        while True:
            shift = getattr(self._modules.get(path), "shift_size", None)
            if isinstance(shift, int):
                return shift, shift
            if isinstance(shift, Sequence) and len(shift) == 2:
                return int(shift[0]), int(shift[1])
            if not path:
                return None
            path = path.rpartition(".")[0]


def _patches(num: int, size: Sequence[int]) -> tuple[int, ...] | None:
    """Return the grid of so many equal square patches that fill a picture, if there is one."""
    common = math.gcd(*size)
    for side in range(1, common + 1):
        if common % side == 0 and math.prod(size) == num * side ** len(size):
            return tuple(one // side for one in size)
    return None


def _cube(num: int, size: Sequence[int]) -> tuple[int, ...] | None:
    """Return a square (or cube) of so many positions, if there is one."""
    if num < 1:
        return None
    side = round(num ** (1 / len(size)))
    return (side,) * len(size) if side ** len(size) == num else None


def no_map(path: str, value: Tensor, reason: str) -> str:
    """Return the beginning of a message: a layer gave no map."""
    return f"Layer {path or '.'!r} returned {kind_of(value)}, which is no map: {reason}."

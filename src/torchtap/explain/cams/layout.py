"""Which dimensions of a layer's value are channels, and which lie over the input."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtap.core.errors import InputError
from torchtap.core.tensors import kind_of
from torchtap.explain.subject import Subject

CHANNELS_FIRST = "channels_first"
CHANNELS_LAST = "channels_last"
TOKENS = "tokens"
WINDOWS = "windows"
LAYOUTS = (CHANNELS_FIRST, CHANNELS_LAST, TOKENS, WINDOWS)
_EXTRA_TOKENS = (0, 1, 2, 5)
"""None, a class token, one for distillation, and four registers."""
_MOST_IMAGE_CHANNELS = 4
_CONVOLUTIONS = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
_NORMS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)


@dataclass(frozen=True, slots=True)
class Layout:
    """What the dimensions of a layer's value are.

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
        """Which dimension of the value counts channels."""
        return 1 if self.name == CHANNELS_FIRST else -1

    def maps(self, value: Tensor) -> Tensor:
        """The value, or its gradient, as ``[B, C, *grid]``."""
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
class Extent:
    """What a map lies over.

    Attributes:
        name: of the input.
        rows: how many rows it has.
        size: its length, height and width, or depth, height and width.
        channel_dim: which of its dimensions counts channels; ``None`` for token numbers.
    """

    name: str
    rows: int
    size: tuple[int, ...]
    channel_dim: int | None


def extent_of(subject: Subject) -> Extent | None:
    """What the maps of a model lie over: its first picture, volume, signal or sequence of tokens.

    Pictures are ``[B, C, H, W]``, or ``[B, H, W, C]`` where only the last dimension is one to
    four.
    """
    for name, one in subject.inputs.items():
        if one.is_nested or one.layout is not torch.strided:
            continue
        is_signal = one.is_floating_point() and one.dim() == 3
        if is_signal or (not one.is_complex() and one.dim() in (4, 5)):
            last = one.dim() - 1
            is_last = one.shape[-1] <= _MOST_IMAGE_CHANNELS < one.shape[1] and one.dim() > 3
            spatial = one.shape[1:-1] if is_last else one.shape[2:]
            return Extent(name, one.shape[0], tuple(spatial), last if is_last else 1)
        if not (one.is_floating_point() or one.is_complex()) and one.dim() == 2:
            return Extent(name, one.shape[0], (one.shape[1],), None)
    return None


@dataclass(frozen=True, slots=True)
class Wish:
    """What the caller says of the layout.

    Attributes:
        layout: one of :data:`LAYOUTS`, ``None`` to find it.
        grid: size of the map of tokens.
    """

    layout: str | None = None
    grid: tuple[int, ...] | None = None

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


class Layouts:
    """Finds the layout of values in one model.

    Types of modules decide it, those around where the module itself has no channels: a convolution
    or batch norm as wide as dimension 1 means that channels come first, a linear layer or layer
    norm as wide as the last dimension that they come last.

    Args:
        subject: the model and its inputs.
        wish: what the caller says.
    """

    def __init__(self, subject: Subject, wish: Wish) -> None:
        self.extent = extent_of(subject)
        self._wish = wish
        self._modules = subject.modules
        self._rows = subject.num_rows if self.extent is None else self.extent.rows
        self._widths: dict[tuple[str, int], tuple[set[int], set[int]]] = {}

    def of(self, path: str, value: Tensor) -> Layout | str:
        """The layout of what a module returned, or why it is no map."""
        if value.is_nested or value.layout is not torch.strided:
            return "it is no dense tensor"
        if not value.is_floating_point():
            return "it is not floating"
        return self.of_shape(path, tuple(value.shape))

    def of_shape(self, path: str, shape: tuple[int, ...]) -> Layout | str:
        """The same of a dense floating value of a shape."""
        if len(shape) not in (3, 4, 5):
            return "a map has 3 dimensions (1-d, tokens), 4 (pictures) or 5 (volumes)"
        if not math.prod(shape):
            return "it is empty"
        found = self._found(path, shape)
        if isinstance(found, Layout) and math.prod(found.grid) == 1:
            return "its map is one pixel"
        return found

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
                return CHANNELS_FIRST if is_first else last
            if is_first and is_last:
                return self._by_size(shape)
            place = None if not place else place.rpartition(".")[0]
        return self._by_size(shape)

    def _widths_in(self, path: str, rank: int) -> tuple[set[int], set[int]]:
        """Numbers of channels of the modules at a path and below: first, and last."""
        if (path, rank) not in self._widths:
            first: set[int] = set()
            last: set[int] = set()
            for one, module in self._modules.items():
                if not path or one == path or one.startswith(f"{path}."):
                    for width, is_first in _widths(module, rank):
                        (first if is_first else last).add(width)
            self._widths[path, rank] = first, last
        return self._widths[path, rank]

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
        first, last = (_is_like(one, size) for one in (shape[2:], shape[1:-1]))
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
                found = find(num - extra, size)
                if found is not None:
                    return Layout(TOKENS, found, extra)
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
        found = _patches(num, self.extent.size) or _cube(num, self.extent.size)
        if found is None:
            return f"its {num} windows are no grid over the picture"
        shift = self._shift(path)
        if shift is None:
            return "it is cut into windows, and no module around it has a shift_size"
        grid = found[0] * side, found[1] * side
        return Layout(WINDOWS, grid, 0, (side, side), shift)

    def _shift(self, path: str) -> tuple[int, int] | None:
        """The ``shift_size`` of the nearest module that has one, as timm and transformers say."""
        while True:
            found = getattr(self._modules.get(path), "shift_size", None)
            if isinstance(found, int):
                return found, found
            if isinstance(found, Sequence) and len(found) == 2:
                return int(found[0]), int(found[1])
            if not path:
                return None
            path = path.rpartition(".")[0]


def _widths(module: nn.Module, rank: int) -> Iterator[tuple[int, bool]]:
    """Numbers of channels that a module takes or gives, and whether they come first."""
    if isinstance(module, _CONVOLUTIONS):
        if module.weight.dim() == rank:
            yield from ((module.in_channels, True), (module.out_channels, True))
    elif isinstance(module, _NORMS):
        suffix = type(module).__name__[-2:]  # "2d"; that of a SyncBatchNorm says nothing.
        if suffix == f"{rank - 2}d" or not suffix[0].isdigit():
            yield module.num_features, True
    elif isinstance(module, nn.GroupNorm):
        yield module.num_channels, True
    elif isinstance(module, nn.Linear):
        yield from ((module.in_features, False), (module.out_features, False))
    elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
        if len(module.normalized_shape) == 1:
            yield module.normalized_shape[0], False
    elif isinstance(module, nn.Embedding | nn.EmbeddingBag):
        yield module.embedding_dim, False
    elif isinstance(module, nn.MultiheadAttention):
        yield module.embed_dim, False


def _is_like(grid: Iterable[int], size: Sequence[int]) -> bool:
    """Whether a map may be a smaller picture: about the same factor in each dimension."""
    factors = [whole / one for whole, one in zip(size, grid, strict=True)]
    return min(factors) >= 1 and max(factors) <= 1.5 * min(factors)


def _patches(num: int, size: Sequence[int]) -> tuple[int, ...] | None:
    """The grid of so many equal square patches that fill a picture, if there is one."""
    common = math.gcd(*size)
    for side in range(1, common + 1):
        if common % side == 0 and math.prod(size) == num * side ** len(size):
            return tuple(one // side for one in size)
    return None


def _cube(num: int, size: Sequence[int]) -> tuple[int, ...] | None:
    """A square (or cube) of so many positions, if there is one."""
    if num < 1:
        return None
    side = round(num ** (1 / len(size)))
    return (side,) * len(size) if side ** len(size) == num else None


def no_map(path: str, value: Tensor, reason: str) -> str:
    """The beginning of a message: a layer gave no map."""
    return f"Layer {path or '.'!r} returned {kind_of(value)}, which is no map: {reason}."

"""The values of a map, and what is known of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from torchtap.core.errors import InputError
from torchtap.core.text import typed as typed_text

if TYPE_CHECKING:
    from torchtap.explain.recipe import Recipe

_MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}
_COLORS = (1, 3, 4)


@dataclass(frozen=True, eq=False, repr=False)
class MapValues:
    """Values with a method, a place and a target: all that a check, a file or a page reads.

    Its fields are described where they are read, in :class:`torchtap.Map`.
    """

    values: Tensor
    method: str
    layer: str
    target: tuple[int, ...] | None
    target_text: str
    scores: Tensor
    notes: tuple[str, ...] = ()
    gap: Tensor | None = None
    size: tuple[int, ...] = ()
    again: Recipe[Any] | None = None
    names: tuple[str, ...] = ()
    tokens: tuple[tuple[str, ...], ...] = ()

    # ------------------------------------------------------------------ rows

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Self]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, row: int | slice) -> Self:
        """Return the map of one row, or of some."""
        if isinstance(row, slice):
            rows = row
        elif -len(self) <= row < len(self):
            rows = slice(row % len(self), row % len(self) + 1)
        else:
            raise IndexError(f"row {row} of a map of {len(self)} rows")
        is_all = len(range(len(self))[rows]) == len(self)
        target = self.target[rows] if self.target and self.is_per_row else self.target
        text = self.target_text
        if target and len(set(target)) == 1 and text.startswith("classes"):
            text = f"class {target[0]}{''.join(text.partition(' at ')[1:])}"
        return replace(
            self,
            values=self.values[rows],
            target=target,
            target_text=text,
            scores=self.scores[rows] if self.is_per_row else self.scores,
            gap=self.gap if self.gap is None or not self.is_per_row else self.gap[rows],
            again=self.again if is_all else None,
            names=self.names[rows],
            tokens=self.tokens[rows],
        )

    @property
    def is_per_row(self) -> bool:
        """Return whether there are as many scores as rows."""
        return len(self.scores) == len(self.values)

    @property
    def faults(self) -> list[str]:
        """Why a row means nothing to the eye: empty, constant, one pixel, nothing finite; or ""."""
        from torchtap.plot.heat import fault_of

        return [next(filter(None, map(fault_of, self.arrays(row))), "") for row in range(len(self))]

    # ------------------------------------------------------------------ values

    def numpy(self) -> Any:
        """Return the raw values as an array, ``float32`` where NumPy has no such dtype."""
        values = self.values
        return (values.float() if values.dtype == torch.bfloat16 else values).numpy()

    def resize(self, size: int | Sequence[int] | None = None) -> Self:
        """Return the map with another number of places, between which values are linear.

        Linear, bilinear or trilinear with ``align_corners=False``, without antialiasing. NaN
        and infinite values spread to their neighbours.

        Args:
            size: of the last dimensions, ``(H, W)`` for pictures; one number for all of them; by
                default that of what the map lies over.

        Raises:
            InputError: the map has no such dimensions.
        """
        if not self.size and is_channels_last(self.values.shape):
            raise InputError(
                f"The map is {self.typed} with its channels last; resize a map of one number for "
                f"each pixel, such as dataclasses.replace(found, values=found.values.sum(-1))."
            )
        num = len(self.size) or min(max(self.values.dim() - 1, 1), 3)
        wanted = self.size if size is None else (size,) * num if isinstance(size, int) else size
        target = tuple(int(one) for one in wanted)
        shape = tuple(self.values.shape)
        if not 1 <= len(target) <= 3 or len(target) >= len(shape) or min(target) < 1:
            raise InputError(
                f"size is {size!r}, and the map is {self.typed}; expected a positive number for "
                f"each of its last {num} dimensions."
            )
        if not self.values.numel():
            raise InputError(f"The map is {self.typed}: there is nothing to resize.")
        kept, space = shape[: -len(target)], shape[-len(target) :]
        values = self.values.reshape(-1, 1, *space)
        if not values.is_floating_point() or values.dtype in (torch.float16, torch.bfloat16):
            values = values.float()
        return replace(self, values=resized(values, target).reshape(*kept, *target))

    def with_names(self, names: Sequence[str]) -> Self:
        """Return the map with the names of its classes, for titles.

        Args:
            names: of all classes, by their number.

        Raises:
            InputError: the target is no class, or there are fewer names.
        """
        if self.target is None:
            raise InputError(f"The target is {self.target_text}, which is no class to name.")
        if max(self.target, default=-1) >= len(names):
            raise InputError(
                f"There are {len(names)} names, and a target is class {max(self.target)}."
            )
        return replace(self, names=tuple(str(names[one]) for one in self.target))

    def with_tokens(self, tokens: Sequence[str] | Sequence[Sequence[str]]) -> Self:
        """Return the map with the texts of its tokens: it prints as coloured tokens.

        Dimensions behind that of the tokens are added up for each token. Colours stand on a
        terminal (not with ``NO_COLOR``) and in a notebook; elsewhere each weight stands behind
        its token.

        Args:
            tokens: texts, one for each place of dimension 1; a list of such for several rows.

        Raises:
            InputError: there are not as many.
        """
        is_one = all(isinstance(token, str) for token in tokens)
        rows = (tuple(map(str, tokens)),) if is_one else tuple(tuple(map(str, t)) for t in tokens)
        if self.values.dim() < 2 or len(rows) != len(self):
            raise InputError(
                f"There are tokens of {len(rows)} rows, and the map is {self.typed}; expected a "
                f"list of texts for each row."
            )
        for row in rows:
            if len(row) != self.values.shape[1]:
                raise InputError(
                    f"There are {len(row)} tokens, and the map is {self.typed}; expected "
                    f"{self.values.shape[1]}."
                )
        return replace(self, tokens=rows)

    def detached(self) -> Self:
        """Return the map without what makes it anew: it holds no model, and may be pickled."""
        return replace(self, again=None)

    @property
    def typed(self) -> str:
        """Dtype and shape, for messages."""
        return typed_text(str(self.values.dtype).removeprefix("torch."), self.values.shape)

    @property
    def num_stacked(self) -> int:
        """Return how many layers are stacked in dimension 1; 0 if it is none of layers."""
        layers = len(self.layer.split(", "))
        beside = self.values.dim() - 1 - len(self.size)
        is_stack = bool(self.size) and beside == 1 and layers == self.values.shape[1]
        return layers if is_stack and layers > 1 else 0

    def arrays(self, row: int) -> list[Any]:
        """Return a row's maps as float64 arrays of space alone: of each layer, channels summed."""
        values = self.values[row].detach().double()
        if self.num_stacked:
            return [value.numpy() for value in values]
        if self.tokens or (not self.size and values.dim() == 2):
            return [token_weights(values).numpy()]
        if not self.size and is_channels_last(self.values.shape):
            values = values.movedim(-1, 0)
        space = len(self.size) or min(values.dim(), 2)
        beside = values.dim() - space
        if beside > 0:
            values = added_up(values.flatten(0, beside - 1), 0)
        return [(values if values.dim() else values[None]).numpy()]


def resized(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Return ``[B, C, *grid]`` at another size; linear, ``align_corners=False``."""
    return torch.nn.functional.interpolate(
        maps, size=tuple(size), mode=_MODES[maps.dim() - 2], align_corners=False
    )


def is_channels_last(shape: Sequence[int]) -> bool:
    """Return whether a shape is that of pictures ``[B, H, W, C]`` and can be no other.

    Example:
        >>> is_channels_last((2, 224, 224, 3)), is_channels_last((2, 3, 224, 224))
        (True, False)
    """
    return len(shape) == 4 and shape[3] in _COLORS and shape[1] not in _COLORS and shape[2] > 4


def token_weights(values: Tensor) -> Tensor:
    """Return one number for each token: what follows the tokens' dimension is added up."""
    return added_up(values.double().flatten(1), 1) if values.dim() > 1 else values.double()


def added_up(values: Tensor, dim: int) -> Tensor:
    """Return the sum over a dimension, or where all numbers along it are the same, that number.

    Perturbation gives each element of a window the change that the whole window makes: a window
    over all channels has made it once and not once for each of them.
    """
    first = values.narrow(dim, 0, 1)
    if values.shape[dim] and bool((values == first).all()):
        return first.squeeze(dim)
    return values.sum(dim)

"""The target that is explained: one number of each row of a model's output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchtap.core.errors import InputError, SiteError
from torchtap.core.site import Site
from torchtap.core.tensors import kind_of
from torchtap.explain.logits import Logits, logits_of

Index = int | Sequence[int] | Sequence[tuple[int, ...]]
Given = Index | Tensor | Callable[[Any], Tensor] | str | Site | None
"""Types of ``target=``."""
ClassDim = Callable[[Sequence[int]], int | None]
"""Shape -> the dimension that counts classes of logits; ``None`` where that is not known."""


def of_matrix(shape: Sequence[int]) -> int | None:
    """Return the dimension of classes where there is no other: the last of two."""
    return 1 if len(shape) == 2 else None


UNBATCHED = (
    "Where the call has no batch dimension, add one (x[None]); else give target= a function of the "
    "output, as in target=lambda out: out.sum()."
)


class Target:
    """Makes one number of each row of an output.

    The first output decides what ``None`` means, the class that has won in each row, and later
    ones are scored by the same classes.

    Args:
        given: a class number for all rows; a list or an integer tensor with one for each; a
            tuple that indexes all dimensions after the rows, as in ``(position, class)``, or a
            list with such a tuple for each row; a floating tensor of the logits' shape that weighs
            them; a function of the model's output; a site of the model, whose elements are summed;
            ``None`` for the class with the largest logit.

    Attributes:
        site: the site whose value is scored in place of the output, if any.
        classes: class of each row, once an output was scored; ``None`` where no class is meant, or
            it is not known which index is the class.
        text: how it reads in a title.
        notes: what the reader should know of it.
        is_flat: whether the elements of an output of one dimension were taken for those of rows.
        has_probability: whether the classes are some of several, once an output was scored.
    """

    def __init__(self, given: Given) -> None:
        self.site: Site | None = None
        self.classes: tuple[int, ...] | None = None
        self.text = ""
        self.notes: tuple[str, ...] = ()
        self.is_flat = False
        self.has_probability = False
        self._given: Any = _plain(given)
        self._index: list[list[int]] | None = None
        self._class_dim: int | None = None
        if isinstance(given, str | Site):
            self.site = given if isinstance(given, Site) else _site(given)
            self.text = f"sum of {self.site}"
        elif callable(given) and not isinstance(given, Tensor):
            self.text = getattr(given, "__name__", None) or repr(given)

    def scores(self, output: Any, class_dim: ClassDim = of_matrix) -> Tensor:
        """Return the number of each row, ``float[rows]``, with its graph.

        Args:
            output: of the model, or the value at :attr:`site`; its rows may be a multiple of those
                of the first output that was scored, repeated as ``Tensor.repeat`` does.
            class_dim: tells which dimension of the logits counts classes.

        Raises:
            InputError: the target does not fit the output; the message names what would.
        """
        if self.site is not None:
            return _per_row(output, f"The target {self.site}")
        if callable(self._given) and not isinstance(self._given, Tensor):
            return self._called(output)
        logits = logits_of(output)
        self.notes = (logits.note,) if logits.note else ()
        if isinstance(self._given, Tensor) and self._given.is_floating_point():
            return self._weighed(logits.values)
        return self._chosen(logits, class_dim)

    def probabilities(self, output: Any) -> Tensor:
        """Return the softmax of each row at its class, ``float64[rows]``.

        It is taken over the classes alone, at the position of the target where the logits have
        positions. Logits that are probabilities already (from 0 to 1, with a sum of 1) are taken as
        they are.

        Args:
            output: as of :meth:`scores`, of a target of :attr:`classes` that has scored.
        """
        assert self.classes is not None
        logits = self._at_position(logits_of(output).values).detach().double()
        is_done = bool((logits >= 0).all()) and bool(((logits.sum(1) - 1).abs() < 1e-3).all())
        shares = logits if is_done else logits.softmax(1)
        return shares.gather(1, _repeated(self.classes, shares)[:, None])[:, 0]

    def _called(self, output: Any) -> Tensor:
        given = self._given(output)
        if not isinstance(given, Tensor) or not given.is_floating_point() or given.dim() > 1:
            raise InputError(
                f"target {self.text} returned {kind_of(given)}; expected a floating tensor with "
                f"one number, or with one for each row."
            )
        scores: Tensor = given.reshape(-1)
        return scores

    def _weighed(self, logits: Tensor) -> Tensor:
        weights: Tensor = self._given.to(logits)
        times = logits.shape[0] // max(weights.shape[0], 1) if weights.dim() else 0
        if not weights.dim() or (times * weights.shape[0], *weights.shape[1:]) != logits.shape:
            raise InputError(
                f"target is {kind_of(self._given)}, and the logits are {kind_of(logits)}; a "
                f"floating target weighs the logits and must have their shape."
            )
        self.text = "weighed logits"
        weights = weights.repeat(times, *[1] * (weights.dim() - 1))
        return (logits * weights).flatten(1).sum(1) if logits.dim() > 1 else logits * weights

    # ------------------------------------------------------------------ by index

    def _chosen(self, logits: Logits, class_dim: ClassDim) -> Tensor:
        values = logits.values
        if values.dim() < 2:
            return self._flat(logits)
        if self._index is None:
            self._settle(logits, class_dim)
        assert self._index is not None
        chosen = self._at_position(values)
        last = self._index[self._dim(values) - 1]
        return chosen.gather(1, _repeated(last, chosen)[:, None])[:, 0]

    def _flat(self, logits: Logits) -> Tensor:
        """Return one number for each row: there is nothing to choose."""
        if self._given is not None:
            raise InputError(
                f"target is {self._given!r}, and the model returned {kind_of(logits.values)}, one "
                f"number for each row. Leave target away, or where these are the classes of a "
                f"call without a batch dimension, add one to the inputs (x[None])."
            )
        self.is_flat = True
        self.text = self.text or logits.text
        return logits.values.reshape(-1)

    def _settle(self, logits: Logits, class_dim: ClassDim) -> None:
        """Settle the index of each row, and which of its parts is the class."""
        values = logits.values
        self._class_dim = class_dim(values.shape)
        given = self._given
        is_each = isinstance(given, list) and bool(given) and isinstance(given[0], tuple)
        if values.dim() > 2 and not is_each and not isinstance(given, tuple):
            raise InputError(_way_to_index(logits, given, self._class_dim))
        if is_each or isinstance(given, tuple):
            parts = list(_turned(given, values)) if is_each else list(given)
            if len(parts) != values.dim() - 1:
                raise InputError(
                    f"target is {given!r}, with {len(parts)} indices. "
                    f"{_way_to_index(logits, given, self._class_dim)}"
                )
        elif given is None:
            parts = [values.detach().argmax(1).tolist()]
        else:
            parts = [given]
        self._index = [
            _of_rows(part, values, dim, given, self._class_dim) for dim, part in enumerate(parts, 1)
        ]
        self._name(logits)

    def _name(self, logits: Logits) -> None:
        """Say what the index means."""
        assert self._index is not None
        values, dim = logits.values, self._class_dim
        if dim is None:
            shared = all(len(set(part)) == 1 for part in self._index)
            index = ", ".join(str(part[0]) for part in self._index) if shared else "..."
            self.text = f"{logits.text}[:, {index}]"
            self.notes += (
                f"the target is called by its index, since nothing tells whether dimension 1 or "
                f"the last of the logits ({kind_of(values)}) counts classes",
            )
            return
        self.classes = tuple(self._index[dim - 1])
        self.has_probability = values.shape[dim] > 1
        self.text = _class_text(self.classes)
        places = [part for place, part in enumerate(self._index, 1) if place != dim]
        if places:
            self.text += f" at {_place_text(places)}"

    def _dim(self, values: Tensor) -> int:
        return values.dim() - 1 if self._class_dim is None else self._class_dim

    def _at_position(self, values: Tensor) -> Tensor:
        """Return the logits of the classes at the position of each row, ``[rows, classes]``."""
        assert self._index is not None
        dim = self._dim(values)
        places = [part for place, part in enumerate(self._index, 1) if place != dim]
        values = values.movedim(dim, -1) if dim != values.dim() - 1 else values
        for part in places:
            if len(set(part)) == 1:
                values = values[:, part[0]]
            else:
                rows = torch.arange(len(values), device=values.device)
                values = values[rows, _repeated(part, values)]
        return values


def refuse_other_rows(scores: Tensor, inputs: Mapping[str, Tensor]) -> None:
    """Refuse an output of one dimension whose elements cannot be the scores of rows.

    Raises:
        InputError: there are several, and no input has as many rows: they are the classes of a
            call without a batch dimension.
    """
    lengths = {len(one) for one in inputs.values() if one.dim() and not one.is_nested}
    if len(scores) > 1 and lengths and len(scores) not in lengths:
        shown = ", ".join(kind_of(one) for one in inputs.values())
        raise InputError(
            f"The model returned {len(scores)} numbers in one dimension, one for each row of a "
            f"batch, and no input has {len(scores)} rows ({shown}). {UNBATCHED}"
        )


# ---------------------------------------------------------------------- what was given


def _plain(given: Any) -> Any:
    """Return numbers of NumPy as Python's, and arrays of integers as lists."""
    if isinstance(given, list | tuple):
        return type(given)(map(_plain, given)) if type(given) in (list, tuple) else given
    dtype = getattr(given, "dtype", None)
    is_numpy = type(given).__module__ == "numpy" and getattr(dtype, "kind", "") in "iu"
    return given.tolist() if is_numpy else given


def _site(text: str) -> Site:
    try:
        return Site.parse(text)
    except SiteError as error:
        raise InputError(f"target is {text!r}, which is no site: {error}") from error


def _turned(given: Sequence[Any], values: Tensor) -> list[list[Any]]:
    """Return a list with a tuple for each row as a list for each dimension."""
    lengths = {len(one) if isinstance(one, tuple) else -1 for one in given}
    if len(given) != len(values) or len(lengths) != 1:
        raise InputError(
            f"target is {given!r}, and the output has {len(values)} rows; expected a tuple for "
            f"each row, all of one length."
        )
    return [list(part) for part in zip(*given, strict=True)]


def _of_rows(part: Any, values: Tensor, dim: int, given: Any, class_dim: int | None) -> list[int]:
    """Return the index of each row in one dimension, from 0."""
    rows, num = values.shape[0], values.shape[dim]
    if isinstance(part, Tensor):
        part = part.tolist()
    several = list(part) if isinstance(part, list) else [part] * rows
    if len(several) != rows:
        raise InputError(
            f"target has {len(several)} classes, and the output {rows} rows; expected one "
            f"class for each row, or one number for all."
        )
    for one in several:
        if isinstance(one, bool) or not isinstance(one, int):
            raise InputError(
                f"target is {given!r}; expected a class number, one for each row, a "
                f"tensor, a function of the output, a site of the model, or None."
            )
        if not -num <= one < num:
            if dim == class_dim:
                raise InputError(
                    f"target is class {one}, and the model has {num} classes; expected 0 to "
                    f"{num - 1}."
                )
            raise InputError(
                f"target is {given!r}: index {one} is out of range for dimension {dim} of the "
                f"logits, {kind_of(values)}."
            )
    return [one % num for one in several]


def _repeated(index: Sequence[int], values: Tensor) -> Tensor:
    """Return an index of each row, as often as there are copies of the rows."""
    times = len(values) // max(len(index), 1)
    return torch.tensor(list(index) * times, dtype=torch.long, device=values.device)


def _per_row(value: Any, what: str) -> Tensor:
    if not isinstance(value, Tensor) or not value.is_floating_point() or not value.dim():
        raise InputError(f"{what} is {kind_of(value)}; expected a floating tensor with rows.")
    return value.flatten(1).sum(1) if value.dim() > 1 else value


# ---------------------------------------------------------------------- in words


def _way_to_index(logits: Logits, given: Any, class_dim: int | None) -> str:
    """Return a text that says what the logits are, with a target that fits them."""
    values = logits.values
    shape = tuple(values.shape)
    head = f"The logits are {kind_of(values)}; expected rows x classes. Give an index for each "
    if class_dim is None:
        example = ", ".join("0" for _ in shape[1:])
        return (
            f"{head}dimension after the rows, as in target=({example}), or a function of the "
            f"output; nothing tells whether dimension 1 or the last counts classes."
        )
    number = given if isinstance(given, int) and 0 <= given < shape[class_dim] else 0
    places = [size // 2 for dim, size in enumerate(shape[1:], 1) if dim != class_dim]
    is_first, dims = class_dim == 1, tuple(range(1, len(shape) - 1))
    if not is_first and len(places) == 1:
        places = [-1]  # In text, the position that says what comes next.
    parts = [number, *places] if is_first else [*places, number]
    tuple_text, index = ", ".join(map(str, parts)), f":, {number}" if is_first else f"..., {number}"
    at = "the last position" if places == [-1] else _place_text([[place] for place in places])
    shown = str(dims) if len(dims) > 1 else str(dims[0])
    return (
        f"{head}further dimension, as in target=({tuple_text}) for class {number} at {at}, or a "
        f"function of the output, as in target=lambda out: {logits.code}[{index}].mean({shown}) "
        f"for the mean of that class over all positions."
    )


def _class_text(classes: tuple[int, ...]) -> str:
    if len(set(classes)) == 1:
        return f"class {classes[0]}"
    shown = ", ".join(map(str, classes[:6]))
    return f"classes {shown}{', ...' if len(classes) > 6 else ''}"


def _place_text(places: Sequence[Sequence[int]]) -> str:
    if any(len(set(part)) > 1 for part in places):
        return "a position of each row"
    if len(places) == 1:
        return f"position {places[0][0]}"
    return f"({', '.join(str(part[0]) for part in places)})"

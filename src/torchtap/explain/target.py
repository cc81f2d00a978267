"""What is explained: one number of each row of a model's output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchtap.core.errors import InputError, SiteError
from torchtap.core.site import Site
from torchtap.core.tensors import kind_of
from torchtap.core.tree import leaves

Given = int | Sequence[int] | Tensor | Callable[[Any], Tensor] | str | Site | None
"""What ``target=`` takes."""


class Target:
    """Makes one number of each row of an output.

    The first output decides what ``None`` means, the class that has won in each row, and later
    ones are scored by the same classes.

    Args:
        given: a class number for all rows; a list or an integer tensor with one for each row; a
            tuple that indexes further dimensions, as in ``(position, class)``; a floating tensor
            of the logits' shape that weighs them; a function of the model's output; a site of the
            model, whose elements are summed; ``None`` for the class with the largest logit.

    Attributes:
        site: the site whose value is scored in place of the output, if any.
        classes: class of each row, once an output was scored; ``None`` where no class is meant.
        text: how it reads in a title.
        is_flat: whether the elements of an output of one dimension were taken for those of rows.
    """

    def __init__(self, given: Given) -> None:
        self.site: Site | None = None
        self.classes: tuple[int, ...] | None = None
        self.text = ""
        self.is_flat = False
        self._given: Any = _plain(given)
        if isinstance(given, str | Site):
            self.site = given if isinstance(given, Site) else _site(given)
            self.text = f"sum of {self.site}"
        elif callable(given) and not isinstance(given, Tensor):
            self.text = getattr(given, "__name__", None) or repr(given)

    def scores(self, output: Any) -> Tensor:
        """The number of each row, ``float[rows]``, with its graph.

        Args:
            output: of the model, or the value at :attr:`site`; its rows may be a multiple of those
                of the first output that was scored, repeated as ``Tensor.repeat`` does.

        Raises:
            InputError: the target does not fit the output; the message names what would.
        """
        if self.site is not None:
            return _per_row(output, f"The target {self.site}")
        if callable(self._given) and not isinstance(self._given, Tensor):
            return self._called(output)
        name, logits = logits_of(output)
        if isinstance(self._given, Tensor) and self._given.is_floating_point():
            return self._weighed(logits)
        return self._chosen(name, logits)

    def probabilities(self, output: Any) -> Tensor:
        """The softmax of each row at its class, ``float64[rows]``.

        Logits that are probabilities already (from 0 to 1, with a sum of 1) are taken as they are.

        Args:
            output: as of :meth:`scores`, of a target of :attr:`classes` that has scored.
        """
        assert self.classes is not None
        _, logits = logits_of(output)
        if isinstance(self._given, tuple):
            logits = _indexed(logits, self._given[:-1], self._given)
        logits = logits.detach().double()
        is_done = bool((logits >= 0).all()) and bool(((logits.sum(1) - 1).abs() < 1e-3).all())
        shares = logits if is_done else logits.softmax(1)
        places = torch.tensor(self.classes * (len(shares) // max(len(self.classes), 1)))
        return shares.gather(1, places.to(shares.device)[:, None])[:, 0]

    def _called(self, output: Any) -> Tensor:
        found = self._given(output)
        if not isinstance(found, Tensor) or not found.is_floating_point() or found.dim() > 1:
            raise InputError(
                f"target {self.text} returned {kind_of(found)}; expected a floating tensor with "
                f"one number, or with one for each row."
            )
        scores: Tensor = found.reshape(-1)
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

    def _chosen(self, name: str, logits: Tensor) -> Tensor:
        index = self._given if isinstance(self._given, tuple) else None
        if index is not None:
            logits = _indexed(logits, index[:-1], self._given)
        if logits.dim() < 2:  # One number for each row: there is nothing to choose.
            if self._given is not None:
                raise InputError(
                    f"target is {self._given!r}, and the model returned {kind_of(logits)}, one "
                    f"number for each row. Leave target away, or where these are the classes of a "
                    f"call without a batch dimension, add one to the inputs (x[None])."
                )
            self.is_flat = index is None
            self.text = self.text or f"output{f'[{name}]' if name else ''}"
            return logits.reshape(-1)
        if logits.dim() > 2:
            raise InputError(
                f"The logits are {kind_of(logits)}; expected rows x classes. Give an index for "
                f"each further dimension, as in target=(-1, 42) for class 42 at the last "
                f"position, or a function of the output."
            )
        if self.classes is None:
            self.classes = self._classes(logits, None if index is None else index[-1])
            self.text = _class_text(self.classes)
        times = logits.shape[0] // max(len(self.classes), 1)
        places = torch.tensor(self.classes * times, device=logits.device)
        return logits.gather(1, places[:, None])[:, 0]

    def _classes(self, logits: Tensor, last: Any) -> tuple[int, ...]:
        rows, num = logits.shape
        given = self._given if last is None else last
        if given is None:
            return tuple(logits.detach().argmax(1).tolist())
        if isinstance(given, Tensor):
            given = given.tolist()
        several = list(given) if isinstance(given, list) else [given] * rows
        if len(several) != rows:
            raise InputError(
                f"target has {len(several)} classes, and the output {rows} rows; expected one "
                f"class for each row, or one number for all."
            )
        for one in several:
            if isinstance(one, bool) or not isinstance(one, int):
                raise InputError(
                    f"target is {self._given!r}; expected a class number, one for each row, a "
                    f"tensor, a function of the output, a site of the model, or None."
                )
            if not -num <= one < num:
                raise InputError(
                    f"target is class {one}, and the model has {num} classes; expected 0 to "
                    f"{num - 1}."
                )
        return tuple(one % num for one in several)


def logits_of(output: Any) -> tuple[str, Tensor]:
    """The logits in a model's output, and where they stand in it.

    They are the tensor called ``logits``, or else the first floating one.

    Raises:
        InputError: there is no floating tensor.
    """
    floating = [(name, one) for name, one in leaves(output) if one.is_floating_point()]
    for name, one in floating:
        if name.rpartition(".")[2] == "logits":
            return name, one
    if not floating:
        raise InputError(
            f"The model returned {kind_of(output)} without a floating tensor, so no class can have "
            f"won. Give target= a function of the output."
        )
    return floating[0]


def _plain(given: Any) -> Any:
    """With numbers of NumPy as Python's, and arrays of integers as lists."""
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


def _indexed(logits: Tensor, index: tuple[Any, ...], given: Any) -> Tensor:
    for one in index:
        if logits.dim() < 3 or not isinstance(one, int):
            raise InputError(
                f"target is {given!r}, and the logits are {kind_of(logits)}; expected an index for "
                f"each dimension after the rows."
            )
        if not -logits.shape[1] <= one < logits.shape[1]:
            raise InputError(
                f"target is {given!r}: index {one} is out of range for {kind_of(logits)}."
            )
        logits = logits[:, one]
    return logits


def _per_row(value: Any, what: str) -> Tensor:
    if not isinstance(value, Tensor) or not value.is_floating_point() or not value.dim():
        raise InputError(f"{what} is {kind_of(value)}; expected a floating tensor with rows.")
    return value.flatten(1).sum(1) if value.dim() > 1 else value


def _class_text(classes: tuple[int, ...]) -> str:
    if len(set(classes)) == 1:
        return f"class {classes[0]}"
    shown = ", ".join(map(str, classes[:6]))
    return f"classes {shown}{', ...' if len(classes) > 6 else ''}"

"""One operation as it is dispatched: the tensors that it takes, returns and writes into."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchtap.core.tensors import storage_id
from torchtap.diagnosis.origins.values import badness, holds_numbers

_OF_LISTS = ("_foreach_", "_fused_", "_amp_foreach_")
"""Beginnings of names of operations that do the same at each place of some lists."""
_OVERWRITE = frozenset(
    {"copy_", "fill_", "zero_", "set_", "normal_", "uniform_", "random_", "bernoulli_"}
    | {"exponential_", "log_normal_", "cauchy_", "geometric_", "_local_scalar_dense"}
)
"""Operations whose result does not depend on what the tensor held before."""
_UNDECLARED = "batch_norm"
"""Part of the names of operations that write into running statistics without declaring it."""
_MOST_COPIED = 8
"""Tensors that an operation writes into, and that are copied for the text of an origin."""
Taken = tuple[Tensor, int]
"""A tensor that an operation takes, and how bad it was before."""


@dataclass(frozen=True, slots=True)
class Result:
    """A tensor that an operation returned or wrote into.

    Attributes:
        tensor: as it is now.
        place: in the lists of the operation; ``None`` where it takes none.
    """

    tensor: Tensor
    place: int | None = None


class Operation:
    """One operation.

    Args:
        function: of PyTorch's dispatcher.
        args: that it is called with.
        kwargs: likewise.

    Attributes:
        name: ATen's, without overload.
        written: the tensors that it writes into.
        before: copies of those, where they are few: what the operation took.
    """

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.function = function
        self.name: str = getattr(function, "overloadpacket", function).__name__
        self._args = args
        self._kwargs = kwargs
        self.written = list(written_by(function, args, kwargs))
        self._ignored = set(_outs(function, kwargs))
        if self.name in _OVERWRITE:
            self._ignored.update(id(one) for one in self.written)
        self._taken = {
            id(tensor): (tensor, badness(tensor))
            for tensor in _tensors(args, kwargs)
            if self._counts(tensor)
        }
        few = self.written if len(self.written) <= _MOST_COPIED else ()
        self.before = {id(one): one.clone() for one in few if id(one) in self._taken}

    def _counts(self, tensor: Any) -> bool:
        return id(tensor) not in self._ignored and holds_numbers(tensor)

    def is_new(self, result: Tensor) -> bool:
        """Return whether a result is in memory that none of the arguments is in."""
        key = storage_id(result)
        return key not in {storage_id(tensor) for tensor in _tensors(self._args, self._kwargs)}

    @property
    def is_collective(self) -> bool:
        """Return whether it takes what other ranks sent."""
        return "c10d" in str(getattr(self.function, "namespace", ""))

    @property
    def is_of_lists(self) -> bool:
        """Return whether it does the same at each place of some lists."""
        return self.name.startswith(_OF_LISTS)

    @property
    def is_pointwise(self) -> bool:
        """Return whether each element of the result is made of elements at the same index."""
        return torch.Tag.pointwise in getattr(self.function, "tags", ())

    def results(self, returned: Any) -> Iterator[Result]:
        """Yield what was returned and what was written into, each tensor once."""
        seen: set[int] = set()
        for value in (returned, *self._written_arguments()):
            listed = self.is_of_lists and isinstance(value, list | tuple)
            for place, tensor in enumerate(tree_leaves(value)):
                if holds_numbers(tensor) and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield Result(tensor, place if listed else None)

    def _written_arguments(self) -> Iterator[Any]:
        own = {id(one) for one in self.written}
        for value in (*self._args, *self._kwargs.values()):
            if own.intersection(map(id, tree_leaves(value))):
                yield value

    def taken_for(self, result: Result) -> list[Taken]:
        """Return the tensors from which a result is made, and how bad they were."""
        if result.place is None:
            return list(self._taken.values())
        taken: list[Taken] = []
        for value in (*self._args, *self._kwargs.values()):
            if isinstance(value, list | tuple):
                value = value[result.place] if result.place < len(value) else None
            if id(value) in self._taken:
                taken.append(self._taken[id(value)])
        return taken

    def numbers(self) -> list[float]:
        """Return the plain numbers among its arguments that are not finite."""
        values = tree_leaves((self._args, dict(self._kwargs)))
        return [value for value in values if isinstance(value, float) and not math.isfinite(value)]


def _tensors(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterable[Any]:
    return (leaf for leaf in tree_leaves((args, dict(kwargs))) if isinstance(leaf, Tensor))


def written_by(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yield the tensors that an operation writes into."""
    schema = getattr(function, "_schema", None)
    if schema is None or not (schema.is_mutable or _UNDECLARED in schema.name):
        return
    for place, argument in enumerate(schema.arguments):
        alias = argument.alias_info
        is_running = _UNDECLARED in schema.name and argument.name.startswith("running_")
        if not is_running and (alias is None or not alias.is_write):
            continue
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        yield from (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))


def _outs(function: Any, kwargs: Mapping[str, Any]) -> Iterator[int]:
    """Yield ids of the tensors that are given as ``out``: what they held before does not count."""
    schema = getattr(function, "_schema", None)
    for argument in () if schema is None else schema.arguments:
        if argument.is_out and kwargs.get(argument.name) is not None:
            yield id(kwargs[argument.name])

"""Classes that hold tensors, for the specimens of ``nested_values``."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree


class Pair(NamedTuple):
    """A named tuple of tensors."""

    first: Tensor
    second: Tensor


@dataclass
class Outcome:
    """A dataclass with tensors, a nested tuple, nothing, and text."""

    hidden: Tensor
    pair: tuple[Tensor, Tensor]
    nothing: Tensor | None = None
    label: str = "outcome"


class OrderedOutput(OrderedDict[str, Any]):
    """Like the ``ModelOutput`` of transformers: read by key, by attribute, and by position."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, key: Any) -> Any:
        return tuple(self.values())[key] if isinstance(key, int) else super().__getitem__(key)


class Box:
    """A plain object, known by its attributes only."""

    def __init__(self, first: Tensor, rest: tuple[Tensor, ...]) -> None:
        self.first = first
        self.rest = rest


class Bundle:
    """Registered as a node of PyTorch's trees."""

    def __init__(self, first: Tensor, second: Tensor) -> None:
        self.first = first
        self.second = second


_pytree.register_pytree_node(
    Bundle,
    lambda bundle: ([bundle.first, bundle.second], None),
    lambda parts, _: Bundle(*parts),
    serialized_type_name="torchtap.testing.Bundle",
    flatten_with_keys_fn=lambda bundle: (
        [(_pytree.GetAttrKey(name), part) for name, part in vars(bundle).items()],
        None,
    ),
)


class Cache:
    """Like the caches of transformers: one object that every layer writes into."""

    def __init__(self) -> None:
        self.layers: list[Box] = []

    def grown(self, layer: int, new: Tensor) -> Tensor:
        """All that a layer has seen so far."""
        if layer == len(self.layers):
            self.layers.append(Box(new, ()))
        else:
            held = self.layers[layer]
            held.first = torch.cat([held.first, new])
        return self.layers[layer].first

"""The tensors inside a tuple, dict or output class, as the program reads them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchtap.failures.operands import shape_text
from torchtap.failures.parsed_source import grouped

_MOST = 4


class Part(NamedTuple):
    """A tensor inside a value.

    Attributes:
        text: how the program reads it, such as ``out['logits']``.
        value: it.
    """

    text: str
    value: Tensor

    @property
    def shown(self) -> str:
        """Return the text with dtype and shape."""
        return f"{self.text} ({shape_text(self.value)})"


def parts_of(text: str, value: Any) -> list[Part]:
    """Return the tensors that a value holds itself, without tensors of values inside it.

    Args:
        text: the value as the program writes it.
        value: it.
    """
    found = ((key, one) for key, one in _items_of(value) if isinstance(one, Tensor))
    return [Part(f"{grouped(text)}{key}", one) for key, one in found]


def fitting(parts: list[Part], module: nn.Module | None) -> list[Part]:
    """Return the parts that may be the input of a module, or all where none may."""
    takes_indices = isinstance(module, nn.Embedding | nn.EmbeddingBag)
    held = [
        one
        for one in parts
        if one.value.dim() and (takes_indices or one.value.is_floating_point())
        if not takes_indices or one.value.dtype in (torch.int64, torch.int32)
        if _has_features(one.value, module)
    ]
    return held or parts


def joined(text: str, value: Any) -> list[str]:
    """Return how the tensors of a list are joined, by what their shapes allow."""
    is_list = type(value) in (list, tuple) and len(value) > 1
    if not is_list or not all(isinstance(one, Tensor) for one in value):
        return []
    shapes = [tuple(one.shape) for one in value]
    is_even = len(set(shapes)) == 1
    is_row = all(shapes) and len({shape[1:] for shape in shapes}) == 1
    of_rows = [f"torch.cat({text})"] if is_row else []
    return [f"torch.stack({text})", *of_rows] if is_even else of_rows


def listed(parts: list[Part]) -> str:
    """Return parts as words: ``out[0] (float32[2, 3]), or out[1] (int64[2])``."""
    return ", or ".join(one.shown for one in parts[:_MOST])


def _items_of(value: Any) -> Iterator[tuple[str, Any]]:
    fields = getattr(type(value), "_fields", ())
    if isinstance(value, tuple) and fields:
        yield from ((f".{name}", one) for name, one in zip(fields, value, strict=False))
    elif isinstance(value, list | tuple):
        yield from ((f"[{at}]", one) for at, one in enumerate(value))
    elif isinstance(value, Mapping):
        yield from ((f"[{key!r}]", one) for key, one in value.items())
    elif dataclasses.is_dataclass(value) or isinstance(value, SimpleNamespace):
        yield from ((f".{name}", one) for name, one in vars(value).items())


def _has_features(value: Tensor, module: nn.Module | None) -> bool:
    """Return whether a tensor has the features or channels that a layer takes."""
    match module:
        case nn.Linear():
            return value.shape[-1] == module.in_features
        case nn.Conv1d() | nn.Conv2d() | nn.Conv3d():
            dims = {nn.Conv1d: 3, nn.Conv2d: 4, nn.Conv3d: 5}.get(type(module), value.dim())
            at = 1 if value.dim() == dims else 0
            return value.dim() in (dims, dims - 1) and value.shape[at] == module.in_channels
    return True

"""Tells the nodes of autograd that are rectifiers from those that only look like one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchtap.core.torch_nodes import (
    CHECKPOINT,
    CLAMPS,
    COMPILED,
    COPY_SLICES,
    HARDTANH,
    RELU,
    SOFT_RECTIFIERS,
    THRESHOLD,
    family,
)

_OPAQUE = {
    COMPILED: "a compiled graph, which hides its nodes; run the model eagerly",
    CHECKPOINT: ("a reentrant checkpoint, which hides its nodes; use use_reentrant=False"),
    COPY_SLICES: (
        "an in-place operation on a view, which hides what it computed; give the rectifier "
        "inplace=False"
    ),
}


def judge_rectifier(node: Any) -> bool | str:
    """Return whether a node is that of a rectifier; a text says why that is not known."""
    kind = COPY_SLICES if node.name() == COPY_SLICES else type(node).__name__
    if kind in _OPAQUE:
        return _OPAQUE[kind]
    name = SOFT_RECTIFIERS.get(family(kind))
    if name is not None:
        return f"{name}, which lets negative values through: guided ReLU has no meaning"
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return f"{kind}, a function of the model's own, of which nothing is known"
    return is_rectifier(node)


def is_rectifier(node: Any) -> bool:
    """Return whether a node is known to let nothing negative through."""
    kind = family(type(node).__name__)
    if kind == RELU:
        return True
    if kind == THRESHOLD:
        return bool(node._saved_threshold >= 0)
    if kind == HARDTANH:
        return bool(node._saved_min_val >= 0)
    return kind in CLAMPS and _is_rectifying(node._saved_min)


def _is_rectifying(limit: float | Tensor | None) -> bool:
    """Return whether a lower limit lets nothing negative through."""
    if isinstance(limit, Tensor):
        return limit.numel() > 0 and bool((limit >= 0).all())
    return limit is not None and limit >= 0

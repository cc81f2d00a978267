"""Guided backpropagation, through the nodes of rectifiers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

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
from torchtap.edits.catalogue.ready import Ready, expect
from torchtap.edits.edit_engine import EditEngine, WantsCall
from torchtap.edits.node_edits import NodeEdit

if TYPE_CHECKING:
    from torchtap.core.plan import Plan
    from torchtap.core.record import Record
    from torchtap.edits.checked_edit import CheckedEdit
    from torchtap.edits.missed_edits import OneEdit


class GuidedRelu(Ready):
    """See :func:`guided_relu`."""

    __slots__ = ("_nodes",)

    def __init__(self, others: str) -> None:
        super().__init__("guided_relu", {"others": None if others == "refuse" else others}, _flow)
        self._nodes = NodeEdit(
            lambda gradient: gradient.clamp(min=0),
            judge_rectifier if others == "refuse" else _lenient,
        )

    def editor(self, plan: Plan, change: CheckedEdit, *, wants_call: WantsCall) -> OneEdit:
        """Works on autograd's nodes."""
        return EditEngine(plan, change, wants_call=wants_call, nodes=self._nodes)


def guided_relu(*, others: Literal["refuse", "leave"] = "refuse") -> GuidedRelu:
    """Guided backpropagation: only positive gradients flow back through rectifiers.

    Works on autograd's own nodes of the selected modules, so ``nn.ReLU``, ``F.relu``, ReLU6,
    ``nn.Threshold`` and ``clamp(min=...)`` from zero on are all covered, in place or not, whatever
    they are called in the model.

    Args:
        others: what to do about what stands in a rectifier's place and lets negative values
            through (SiLU, GELU, ELU, SELU, CELU, PReLU, leaky and randomised ReLU, softplus, Mish,
            hardswish), and about functions of other libraries, of which nothing is known:
            ``refuse`` or ``leave`` them alone.

    All else keeps its ordinary gradient, as in the paper: what is no rectifier (tanh, sigmoid and
    the gates made of them, softmax, hardtanh below zero, shrinking), and arithmetic that amounts
    to one (``torch.where``, ``torch.maximum``, a product with a mask).

    Source: Springenberg et al., "Striving for Simplicity: The All Convolutional Net" (2015),
    section 3.4.

    Raises:
        InputError: ``others`` is something else.
    """
    is_known = others in ("refuse", "leave")
    expect(is_known, "guided_relu", "others", others, "'refuse' or 'leave'")
    return GuidedRelu(others)


def _flow(tensor: Tensor, record: Record) -> Tensor:
    return tensor


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
    return _lenient(node)


def _lenient(node: Any) -> bool:
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

"""Guided backpropagation, through the nodes of rectifiers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from torch import Tensor

from torchtap.core.rectifier_nodes import is_rectifier, judge_rectifier
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
            judge_rectifier if others == "refuse" else is_rectifier,
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

    Example:
        >>> import torch, torchtap as tt
        >>> relu = torch.nn.ReLU()
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> with tt.edit(relu, ".:grad_input", tt.edits.guided_relu()):
        ...     (relu(x) * torch.tensor([3.0, -3.0])).sum().backward()
        >>> x.grad
        tensor([3., 0.])
    """
    is_known = others in ("refuse", "leave")
    expect(is_known, "guided_relu", "others", others, "'refuse' or 'leave'")
    return GuidedRelu(others)


def _flow(tensor: Tensor, record: Record) -> Tensor:
    return tensor

"""Guided backpropagation and deconvolution: rectifiers let gradients back by other rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from torchtap.core.errors import InputError
from torchtap.core.rectifier_nodes import judge_rectifier
from torchtap.explain.attributions.attribution_result import AttributionResult, wide
from torchtap.explain.attributions.operations import Operations, nodes_between
from torchtap.explain.attributions.rectifier_lookalikes import RECORDED, why_like_rectifier
from torchtap.explain.attributions.variable import Variable

Hook = Callable[[Any], object]
Gradients = tuple[Tensor | None, ...]


def guided_backprop(variable: Variable) -> AttributionResult:
    """Springenberg et al., "Striving for Simplicity" (2015), section 3.4.

    A rectifier lets a gradient back where its input was positive and the gradient is.
    """
    return _found(variable, "guided_backprop", lambda node: node.register_prehook(_positive))


def deconvolution(variable: Variable) -> AttributionResult:
    """Zeiler and Fergus, "Visualizing and Understanding Convolutional Networks" (2014), section 2.

    A rectifier lets a gradient back where the gradient is positive, whatever its input was.
    """
    return _found(variable, "deconvolution", lambda node: node.register_hook(_deconvolved))


def _positive(gradients: Gradients) -> Gradients:
    return tuple(None if gradient is None else gradient.clamp(min=0) for gradient in gradients)


def _deconvolved(grad_inputs: Gradients, grad_outputs: Gradients) -> Gradients:
    return (*_positive(grad_outputs[:1]), *grad_inputs[1:])


def _found(variable: Variable, method: str, hook: Hook) -> AttributionResult:
    operations = Operations(inputs=RECORDED)

    def before_backward(scores: Tensor, values: Tensor) -> None:
        num = 0
        nodes = list(nodes_between(scores, values))
        on_way = {*nodes, get_gradient_edge(values).node}
        for node in nodes:
            verdict = judge_rectifier(node) or why_like_rectifier(node, on_way, operations)
            if isinstance(verdict, str) and verdict:
                raise InputError(
                    f"{method} met {verdict}. Use the method gradient or integrated_gradients."
                )
            if verdict:
                num += 1
                hook(node)
        if not num:
            raise InputError(
                f"{method} changes how rectifiers let gradients back, and met none between the "
                f"value and the score. Use the method gradient."
            )

    gradient = variable.gradient(
        variable.value, before_backward=before_backward, recorder=operations
    )
    return AttributionResult(wide(gradient))

"""Layer-wise relevance propagation and DeepLift, where every operation on the way has a rule.

Both are gradients in which some nodes hand back something else. Propagation runs over relevance
divided by activation: through a linear operation that is the gradient, up to the stabiliser, and
an activation ``a = f(z)``, which relevance passes as it is, multiplies it by ``a / z``. DeepLift's
multipliers pass linear operations as gradients do, and an activation multiplies them by the
difference of its outputs over that of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchtap.core.errors import InputError
from torchtap.core.text import number
from torchtap.explain.attributions.attribution_result import AttributionResult, wide
from torchtap.explain.attributions.operations import (
    Key,
    Operation,
    Operations,
    name_of_node,
    nodes_between,
)
from torchtap.explain.attributions.variable import Variable


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MOVING = _names(
    """
    view unsafeview reshapealias alias transpose permute t clone expand squeeze unsqueeze select
    slice index indexselect gather split splitwithsizes unsafesplit unbind cat stack constantpadnd
    tocopy flip roll repeat diagonal pixelshuffle pixelunshuffle nativedropout upsamplenearest1d
    upsamplenearest2d upsamplenearest3d neg
    """
)
"""They move elements, and neither mix nor bend them: the gradient is the rule."""

_SUMS = _names("add sub rsub")
"""Linear in several operands at once."""

_LINEAR = _SUMS | _names(
    """
    addmm addmv mm bmm mv baddbmm dot convolution mkldnnconvolution linear mul div sum mean
    avgpool2d avgpool3d adaptiveavgpool2d adaptiveavgpool3d mkldnnadaptiveavgpool2d nativebatchnorm
    cudnnbatchnorm upsamplelinear1d upsamplebilinear2d
    """
)
"""Linear in the one operand that depends on the value."""

_THROUGH_ZERO = _names(
    "relu threshold hardtanh clamp clampmin leakyrelu elu celu silu gelu tanh mish hardswish"
)
"""Activations that may be zero at zero, so that activation over input stays finite."""

_ACTIVATIONS = _THROUGH_ZERO | _names(
    "sigmoid softplus hardsigmoid logsigmoid exp log sqrt rsqrt reciprocal pow abs"
)
"""Functions of each element by itself."""

_MAXIMA = _names("maxpool2dwithindices maxpool3dwithindices max amax")
"""The largest takes all."""

_NO_DIFFERENCE = 1e-10
_ULPS_OF_INPUT = 8
"""Inputs of an activation that differ by less, or by rounding, have its derivative as multiplier:
the quotient of two differences that are 0 is none, and that of two roundings is any number."""

_TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-3}
_HALF = 0.1
"""Rounding of a completeness gap, as a share of all that the map of a row adds up."""
_ULPS = 64
"""Rounding of the scores, whose difference it is."""

Gradients = tuple[Tensor | None, ...]
Rule = Callable[[Any, Key], None]


def lrp(variable: Variable, *, epsilon: float = 1e-9) -> AttributionResult:
    """Bach et al., "On Pixel-Wise Explanations for Non-Linear Classifier Decisions" (2015), eq. 58.

    The epsilon rule for linear operations; activations hand relevance through; of a maximum the
    largest takes all. Biases keep their share.

    Args:
        variable: what it is made of.
        epsilon: the stabiliser, in units of the activations. Where it is small and all activations
            are rectifiers, relevance is input x gradient (Ancona et al. 2018, proposition 1).
    """
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or epsilon < 0:
        raise InputError(f"epsilon is {epsilon!r}; expected a number from 0.")
    operations = Operations(inputs=_THROUGH_ZERO, outputs=_LINEAR)

    def rule(node: Any, key: Key) -> None:
        operation, name = operations.found[key], key[1]
        out = operation.output
        if out is None:
            return
        out = wide(out)  # In half precision a small epsilon is 0, and 0 / 0 is no share.
        # A linear node hands its gradient on times the weights: with out / stabilised in front, the
        # relevance of an output is shared out by the contributions of its inputs.
        if name in _LINEAR and epsilon:
            stabilised = out + torch.where(out >= 0, epsilon, -epsilon).to(out)
            node.register_prehook(_times(out / stabilised))
        elif name in _THROUGH_ZERO and operation.input is not None:
            # Relevance through an activation stays as it is, so as a gradient it is output over
            # input.
            ratio = out / wide(operation.input)
            node.register_hook(_in_place_of_derivative(ratio.masked_fill(operation.input == 0, 0)))

    known = _MOVING | _LINEAR | _THROUGH_ZERO | _MAXIMA

    def before_backward(scores: Tensor, values: Tensor) -> None:
        _follow(scores, values, operations, "lrp", known, rule)

    gradient = variable.gradient(
        variable.value, before_backward=before_backward, recorder=operations
    )
    return AttributionResult(wide(variable.value) * wide(gradient))


def deeplift(variable: Variable, *, baselines: float | Tensor | None = None) -> AttributionResult:
    """Shrikumar et al., "Learning Important Features" (2017), section 3.5.1: the rescale rule.

    Args:
        variable: what it is made of.
        baselines: the reference: a number, or a tensor that broadcasts to the value; 0.
    """
    baseline = variable.spread(baselines, "baselines")
    reference = Operations(inputs=_ACTIVATIONS)
    # The activations at the baseline; its gradient is not needed.
    variable.gradient(baseline, recorder=reference)
    operations = Operations(inputs=_ACTIVATIONS)
    pairs: dict[Key, tuple[Operation, Operation]] = {}

    def rule(node: Any, key: Key) -> None:
        if key in pairs:
            one, two = pairs[key]
            assert one.input is not None and one.output is not None
            assert two.input is not None and two.output is not None
            rise_in = wide(one.input) - wide(two.input)
            rise_out = wide(one.output) - wide(two.output)
            is_same = _are_same(one.input, two.input)
            # The rescale rule: a multiplier is the rise of the output over that of the input.
            node.register_hook(_in_place_of_derivative(rise_out / rise_in, but_for=is_same))

    def before_backward(scores: Tensor, values: Tensor) -> None:
        pairs.update(_pairs(operations, reference))
        _follow(scores, values, operations, "deeplift", _MOVING | _LINEAR | _ACTIVATIONS, rule)

    multipliers = variable.gradient(
        variable.value, before_backward=before_backward, recorder=operations
    )
    values = wide(multipliers) * (wide(variable.value) - wide(baseline))
    rise = variable.base_scores.double() - variable.scores(baseline).double()
    gap = variable.gap(values, rise)
    _refuse_incomplete(gap, (values.double().abs().sum() + rise.abs().sum()) / len(gap), variable)
    return AttributionResult(values, gap)


def _are_same(one: Tensor, two: Tensor) -> Tensor:
    """Return where two inputs of an activation differ by nothing, or by rounding."""
    eps = torch.finfo(one.dtype).eps
    first, second = wide(one), wide(two)
    slack = _ULPS_OF_INPUT * eps * torch.maximum(first.abs(), second.abs())
    return (first - second).abs() <= slack.clamp(min=_NO_DIFFERENCE)


def _refuse_incomplete(gap: Tensor, size: Tensor, variable: Variable) -> None:
    """Refuse a map that does not add up: with right rules for all operations it does.

    Args:
        gap: completeness gap of each row.
        size: of what the map of a row adds up.
        variable: what it is made of.

    Raises:
        InputError: it does not add up, beyond rounding.
    """
    scores = variable.base_scores
    share = max(_TOLERANCE.get(one, _HALF) for one in (variable.value.dtype, scores.dtype))
    if torch.is_autocast_enabled(scores.device.type):
        share = _HALF
    worst = gap.abs().max()
    slack = share * size + _ULPS * torch.finfo(scores.dtype).eps * scores.double().abs().max()
    if not bool(worst > slack):
        return
    raise InputError(
        f"deeplift does not add up: the map's sum and the rise of the score differ by "
        f"{number(float(worst))}. The model computes something from the value that autograd does "
        f"not see: a mask as in h * (h > 0), an index, detach. Use the method integrated_gradients."
    )


def _times(factor: Tensor) -> Callable[[Gradients], Gradients]:
    def hook(gradients: Gradients) -> Gradients:
        first = gradients[0]
        return (None if first is None else _scaled(first, factor), *gradients[1:])

    return hook


def _scaled(gradient: Tensor, factor: Tensor) -> Tensor:
    """Return the product in the wider of both dtypes, as a gradient of the own."""
    return (wide(gradient) * factor.to(wide(gradient))).to(gradient)


def _in_place_of_derivative(
    factor: Tensor, *, but_for: Tensor | None = None
) -> Callable[[Gradients, Gradients], Gradients]:
    def hook(grad_inputs: Gradients, grad_outputs: Gradients) -> Gradients:
        own, arrived = grad_inputs[0], grad_outputs[0]
        if own is None or arrived is None:
            return grad_inputs
        new = _scaled(arrived, factor)
        # Other operands, such as the weight of a PReLU, get their own gradient.
        return (new if but_for is None else torch.where(but_for, own, new), *grad_inputs[1:])

    return hook


def _pairs(operations: Operations, reference: Operations) -> dict[Key, tuple[Operation, Operation]]:
    """Key of a node -> its activation at the value, and that at the baseline."""

    def activations(found: Operations) -> list[tuple[Key, Operation]]:
        return [(key, one) for key, one in found.found.items() if one.input is not None]

    ours, theirs = activations(operations), activations(reference)
    if [_kind(one) for _, one in ours] != [_kind(one) for _, one in theirs]:
        raise InputError(
            "deeplift compares the activations at the value and at the baseline, and the model "
            "runs other operations there. Use the method integrated_gradients."
        )
    return {key: (one, two) for (key, one), (_, two) in zip(ours, theirs, strict=True)}


def _kind(operation: Operation) -> tuple[str, torch.Size | None]:
    return operation.name, None if operation.input is None else operation.input.shape


# ---------------------------------------------------------------------- the way


def _follow(
    scores: Tensor,
    values: Tensor,
    operations: Operations,
    method: str,
    known: frozenset[str],
    rule: Rule,
) -> None:
    """Apply a rule to all nodes on the way, in the order of the forward.

    Raises:
        InputError: an operation has no rule; the first one is named.
    """
    # In the order of the forward, so that the first operation without a rule is the one that is
    # named.
    nodes = sorted(nodes_between(scores, values), key=lambda node: node._sequence_nr())
    on_way = set(nodes)
    for node in nodes:
        name = name_of_node(node)
        why = _why_none(node, name, known, on_way, values)
        key = operations.key(node)
        if not why and name not in _MOVING | _MAXIMA and key is None:
            why = "which ran out of sight"
        if why:
            raise InputError(
                f"{method} met {node.name()}, {why}. Use the method integrated_gradients."
            )
        if key is not None:
            rule(node, key)


def _why_none(node: Any, name: str, known: frozenset[str], on_way: set[Any], values: Tensor) -> str:
    """Return why a node has no rule; empty if it has one."""
    if name not in known:
        return "an operation that it has no rule for"
    if name in ("nativebatchnorm", "cudnnbatchnorm") and node._saved_training:
        return "which normalises over the batch: it is in training mode"
    if name in _ACTIVATIONS and len(_operands(node, on_way, values)) > 1:
        return "of which a limit or an exponent depends on the value too"
    if name in _LINEAR - _SUMS:
        operands = _operands(node, on_way, values)
        if len(operands) > 1:
            return "of which several operands depend on the value, so it is not linear in it"
        if name == "div" and operands != [0]:
            return "whose divisor depends on the value, so it is not linear in it"
    return ""


def _operands(node: Any, on_way: set[Any], values: Tensor) -> list[int]:
    """Return places of the operands that depend on the value."""
    end = torch.autograd.graph.get_gradient_edge(values).node
    # By node and not by edge: a node on the way depends on the value, whichever of its outputs is
    # used.
    following = [one for one, _ in node.next_functions]
    return [place for place, one in enumerate(following) if one in on_way or one is end]

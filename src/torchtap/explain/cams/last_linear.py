"""Weights of the last linear layer, for CAM: taken where the score is the mean over a map."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchtap.core.errors import InputError
from torchtap.core.tensors import kind_of
from torchtap.explain.subject import Subject
from torchtap.explain.target import Target

_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4}
_HALF = 3e-2


def class_weights(
    subject: Subject, target: Target, value: Tensor, scores: Tensor, layer: str
) -> Tensor:
    """Return the weights of the classes, ``float[B, C]`` (Zhou et al. 2016, equation 1).

    A model is of that form (layer, mean over the map, linear layer) where its numbers show it:
    the score is the product of the weights with the mean over the map, plus the
    bias.

    Args:
        subject: the model.
        target: has scored, by class.
        value: ``float[B, C, *grid]`` of the layer.
        scores: ``float[B]``.
        layer: name, for messages.

    Raises:
        InputError: no class is explained, or the model has another form.
    """
    if target.classes is None:
        raise InputError(
            f"cam takes the weights of a class, and the target is {target.text}. Give a class "
            f"number, or use method='gradcam'."
        )
    means = value.flatten(2).mean(-1).double()
    seen = []
    for path, linear in reversed(list(subject.modules.items())):
        if not isinstance(linear, nn.Linear):
            continue
        if linear.in_features != value.shape[1] or linear.out_features <= max(target.classes):
            seen.append(f"{path!r} is {kind_of(linear.weight)}")
            continue
        weights = linear.weight.detach()[list(target.classes)].double()
        bias = 0.0 if linear.bias is None else linear.bias.detach()[list(target.classes)].double()
        terms = weights * means
        gap = (terms.sum(1) + bias - scores.double()).abs()
        scale = terms.abs().sum(1) + scores.double().abs()
        if bool((gap <= _TOLERANCE.get(linear.weight.dtype, _HALF) * scale).all()):
            return weights.to(value)
        seen.append(f"{path!r} of the mean gives another score, by {float(gap.max()):.4g}")
    others = f"; {', '.join(seen[:4])}" if seen else ", and there is none"
    raise InputError(
        f"cam needs a model in which an nn.Linear turns the mean over the map of {layer!r} "
        f"(float[{value.shape[0]}, {value.shape[1]}]) into the score{others}. Name the layer that "
        f"is averaged, or use method='gradcam', which is proportional to it where the form holds."
    )

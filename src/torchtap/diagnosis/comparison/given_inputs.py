"""The inputs of a call of the reference, in the form in which the candidate's module takes them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchtap.diagnosis.calls.capture import Captured
from torchtap.diagnosis.calls.copies import Arguments
from torchtap.diagnosis.calls.standalone.run_again import arguments_by_name, tensors_in


def given_inputs(one: Captured, two: Captured, *, dtypes: bool = False) -> Arguments | None:
    """The arguments of the candidate's call with the tensors of the reference's in their places.

    Tensors are matched by name where the names are the same, else in their order, those of floating
    point among themselves and the others among themselves. Dtype and shape become those that the
    candidate's module was given; what is one tensor in several places stays one. What the reference
    has nothing for (a mask, a position) stays.

    Args:
        one: of the reference.
        two: of the candidate.
        dtypes: whether tensors keep the dtypes of the reference.

    Returns:
        ``None`` where a number of floating-point tensors has no counterpart.
    """
    mine, theirs = (tensors_in(arguments_by_name(*each.arguments)) for each in (one, two))
    memo: dict[int, Any] = {}
    for is_float in (True, False):
        left = {name: one for name, one in mine.items() if _rounds(one) is is_float}
        right = {name: one for name, one in theirs.items() if _rounds(one) is is_float}
        if is_float and right and not left:
            return None
        for name, own in right.items():
            value = _take(left, name, own)
            if value is None and is_float and not memo:
                return None
            if value is not None:
                memo[id(own)] = _in_form_of(value, own, value.dtype if dtypes else own.dtype)
    args, kwargs = copy.deepcopy(two.arguments, {**_kept(theirs), **memo})
    return args, kwargs


def changed_tensors(arguments: Arguments, change: Callable[[Tensor], Tensor]) -> Arguments:
    """The arguments with each tensor changed, also those inside of objects, such as caches."""
    memo: dict[int, Any] = {
        id(one): change(one) for one in tensors_in(arguments_by_name(*arguments)).values()
    }
    args, kwargs = copy.deepcopy(arguments, memo)
    return args, kwargs


def _rounds(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _take(left: dict[str, Tensor], name: str, own: Tensor) -> Tensor | None:
    """Take the counterpart of a tensor out of those of the reference."""
    if name in left and left[name].numel() == own.numel():
        return left.pop(name)
    fitting = [other for other, value in left.items() if value.numel() == own.numel()]
    return left.pop(fitting[0]) if fitting else None


def _in_form_of(value: Tensor, own: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the value with shape and strides as the candidate was given."""
    if value.is_nested or own.is_nested or value.layout != own.layout:
        return value
    made = value.detach().reshape(own.shape).to(dtype)
    if made.stride() != own.stride() and _is_dense(own):
        made = made.new_empty_strided(own.shape, own.stride()).copy_(made)
    return made.requires_grad_(own.requires_grad)


def _kept(theirs: dict[str, Tensor]) -> dict[int, Any]:
    return {id(one): one for one in theirs.values()}


def _is_dense(tensor: Tensor) -> bool:
    """Return whether strides leave no gap: only a permutation of a contiguous tensor."""
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    return tensor.permute(order).is_contiguous()

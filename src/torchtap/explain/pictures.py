"""Models that take a list of pictures and return a list of what is in each, as detectors do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchtap.core.errors import InputError
from torchtap.core.tensors import kind_of


def may_be_pictures(args: Sequence[Any], inputs: Mapping[str, Tensor]) -> bool:
    """Return whether a model was called with a list of pictures ``[C, H, W]``, no other tensor."""
    held = args[0] if args else None
    if type(held) not in (list, tuple) or not held or len(inputs) != len(held):
        return False
    return all(isinstance(one, Tensor) and one.dim() == 3 for one in held) and all(
        one.is_floating_point() for one in held
    )


def are_pictures(args: Sequence[Any], output: Any) -> bool:
    """Return whether the model returned a dict for each of the pictures."""
    if type(output) not in (list, tuple) or len(output) != len(args[0]):
        return False
    return all(isinstance(one, Mapping) for one in output)


def as_batch(args: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments with the pictures as one tensor, whose rows they are.

    Raises:
        InputError: they have different sizes.
    """
    pictures = args[0]
    if len({one.shape for one in pictures}) > 1:
        shown = ", ".join(map(kind_of, pictures[:4]))
        raise InputError(
            f"The model takes a list of pictures, and these have different sizes ({shown}), so "
            f"there is no map of one size. Explain them one at a time, each as a list of one."
        )
    return (torch.stack(list(pictures)), *args[1:])


def as_list(args: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments as the model takes them: copies, since it may write into one after another."""
    return ([one.clone() for one in args[0]], *args[1:])

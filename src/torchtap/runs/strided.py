"""Tensors of every kind as dense, strided ones, and what is to be said of that."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchtap.core.distributed import readable


def strided(tensor: Tensor, labels: Sequence[str]) -> tuple[Tensor, list[str]]:
    """The numbers of a tensor as a dense, strided tensor, detached; without a copy where it is one.

    Args:
        tensor: of any kind; of a distributed one what this rank holds of it is taken.
        labels: what is known of it.

    Returns:
        the tensor, and the labels with what was changed.
    """
    tensor, more = readable(tensor)
    said = [*labels, *more]
    if tensor.is_quantized:
        tensor = tensor.dequantize()
        said.append("dequantized")
    elif tensor.is_nested:
        tensor = tensor.values()
        said.append("values of a nested tensor")
    elif tensor.layout is not torch.strided:
        said.append(f"dense from {str(tensor.layout).removeprefix('torch.')}")
        tensor = tensor.to_dense()
    return tensor.detach(), said

"""Sparse tensors: indices and sizes that do not belong together, and what takes none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchtap.failures.failure import Failure
from torchtap.failures.operands import shape_text
from torchtap.failures.situation_row import Situation, SituationRow


def _indices(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The indices of a sparse tensor, and whether they fit when they are turned round."""
    wanted = int(found["size"])
    tensors = [one for one in failure.tensors if one.value.dim() == 2]
    indices = next((one for one in tensors if not one.value.is_floating_point()), None)
    name = "the indices" if indices is None else failure.name_of(indices)
    shape = None if indices is None else tuple(indices.value.shape)
    is_turned = shape is not None and shape[1] == wanted
    return {
        "indices": name,
        "given": f" ({shape_text(indices.value)})" if indices is not None else "",
        "rows": found["sparse"],
        "wanted": wanted,
        "is_turned": is_turned,
        "is_other": not is_turned,
    }


def _product(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    sparse = [one for one in failure.tensors if _is_sparse(one.value)]
    name = failure.name_of(sparse[0]) if sparse else "the sparse matrix"
    least = min(int(found["wanted"]), int(found["given"]))
    is_short = int(found["wanted"]) == least
    return {"matrix": name, "is_short": is_short, "is_other": not is_short}


def _is_sparse(tensor: Tensor) -> bool:
    return tensor.layout is not torch.strided


SITUATIONS: dict[str, Situation] = {
    "indices of a sparse tensor": SituationRow(
        "{indices}{given} has {rows} rows, and a tensor of {wanted} dimensions was asked for: the "
        "indices have a row for each dimension and a column for each value.",
        ("is_turned", "Turn them round: {indices_it}.t()."),
        ("is_other", "Give indices of shape [{wanted}, number of values], or the size to match."),
        facts=_indices,
    ),
    "product of a sparse matrix": SituationRow(
        "{matrix} has {wanted} columns, and what it is multiplied with has {given} rows.",
        (
            "is_short",
            "If {matrix} was made without a size: give it, torch.sparse_coo_tensor(indices, "
            "values, (n, {given})). Without it, the largest index that occurs is the last.",
        ),
        "If the other matrix is meant to be turned round: .t() of it.",
        ("is_other", "Make both of the same set of {wanted}."),
        about="tensors",
        facts=_product,
    ),
    "parameters of SparseAdam": SituationRow(
        "SparseAdam takes dense parameters, whose gradients are sparse, and was given sparse ones.",
        "If the parameter is a table of rows: keep it dense, nn.Embedding(..., sparse=True) makes "
        "the gradients sparse.",
        "If the parameter is to stay sparse: torch.optim.SGD takes it.",
    ),
}

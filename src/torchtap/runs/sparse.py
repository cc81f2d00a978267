"""Sparse tensors as bytes: their parts as a safetensors file of its own, without the zeros.

A file of values has one such small file for each sparse value, in the place of its elements.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from torchtap.core.errors import RunError
from torchtap.runs.store.dtypes import SPARSE, STORED
from torchtap.runs.strided import COMPLEX_WITHOUT_NAME, nameable

_LAYOUTS: dict[torch.layout, str] = {getattr(torch, name): name for name in SPARSE}
_ROWS = {"crow_indices": Tensor.crow_indices, "col_indices": Tensor.col_indices}
_COLUMNS = {"ccol_indices": Tensor.ccol_indices, "row_indices": Tensor.row_indices}
_INDICES: dict[str, Any] = {
    "sparse_coo": {"indices": lambda tensor: tensor._indices()},
    "sparse_csr": _ROWS,
    "sparse_bsr": _ROWS,
    "sparse_csc": _COLUMNS,
    "sparse_bsc": _COLUMNS,
}


def is_sparse(tensor: Tensor) -> bool:
    """Return whether a tensor is of a layout that is written as it is."""
    return tensor.layout in _LAYOUTS


def dtype_of(tensor: Tensor) -> str:
    """The dtype of a sparse tensor with its layout, as files have it: ``float32.sparse_coo``."""
    return f"{str(tensor.dtype).removeprefix('torch.')}.{_LAYOUTS[tensor.layout]}"


def about(tensor: Tensor) -> dict[str, Any]:
    """Return the layout and shape of a sparse tensor: all that is not indices or values."""
    facts: dict[str, Any] = {"layout": _LAYOUTS[tensor.layout], "shape": list(tensor.shape)}
    if tensor.layout is torch.sparse_coo:
        facts["is_coalesced"] = tensor.is_coalesced()
    return facts


def packed(tensor: Tensor) -> Tensor:
    """A sparse tensor as bytes, ``uint8[n]``."""
    from safetensors.torch import save

    facts = {**about(tensor), "dtype": str(tensor.dtype).removeprefix("torch.")}
    said = {name: one if isinstance(one, str) else json.dumps(one) for name, one in facts.items()}
    parts = {
        name: nameable(part.resolve_conj().resolve_neg()).cpu().contiguous()
        for name, part in parts_of(tensor).items()
    }
    return torch.frombuffer(bytearray(save(parts, said)), dtype=torch.uint8)


def unpacked(raw: Tensor, dtype: str, shape: tuple[int, ...], where: str) -> Tensor:
    """Read what :func:`packed` wrote.

    Args:
        raw: the bytes.
        dtype: that the value has, with its layout.
        shape: that it has.
        where: for messages.

    Raises:
        RunError: the bytes are no such tensor.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    kind: torch.dtype = getattr(torch, STORED[dtype].dtype)
    layout = dtype.partition(".")[2]
    try:
        whole: Any = raw.numpy()
        # safetensors parses Python bytes, and nothing that only shares memory with a map.
        data = whole.tobytes()
        parts, said = load(data), _said(data)
        key = f"{said['dtype']}.{said['layout']}", tuple(json.loads(said["shape"]))
        if key != (dtype, shape):
            raise ValueError(f"it is {key[0]}{list(key[1])}")
        values = parts["values"]
        if kind in COMPLEX_WITHOUT_NAME:
            values = torch.view_as_complex(values)
        elif values.dtype is not kind:
            values = values.view(kind)
        return _built(layout, [parts[name] for name in _INDICES[layout]], values, shape, said)
    except (SafetensorError, ValueError, LookupError, TypeError, RuntimeError) as error:
        first = str(error).partition("\n")[0]
        raise RunError(
            f"{where} holds no value {dtype}{list(shape)} ({type(error).__name__}: {first}); it "
            f"is damaged. torchtap doctor says what is whole."
        ) from error


def parts_of(tensor: Tensor) -> dict[str, Tensor]:
    """The indices and values of a sparse tensor, by name."""
    values = tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()
    indices = _INDICES[_LAYOUTS[tensor.layout]]
    return {
        **{name: of(tensor).detach() for name, of in indices.items()},
        "values": values.detach(),
    }


def _said(data: bytes) -> dict[str, str]:
    length = int.from_bytes(data[:8], "little")
    return dict(json.loads(data[8 : 8 + length])["__metadata__"])


def _built(
    layout: str, indices: list[Tensor], values: Tensor, shape: tuple[int, ...], said: dict[str, str]
) -> Tensor:
    """The tensor; what is no such tensor is refused, whatever a file says."""
    if layout != "sparse_coo":
        build: Any = torch.sparse_compressed_tensor
        kind = getattr(torch, layout)
        whole: Tensor = build(*indices, values, shape, layout=kind, check_invariants=True)
        return whole
    # Indices of a damaged file would be read as addresses by the first kernel.
    built = torch.sparse_coo_tensor(indices[0], values, shape, check_invariants=True)
    if json.loads(said["is_coalesced"]) is not True:
        return built
    return torch.sparse_coo_tensor(
        indices[0], values, shape, is_coalesced=True, check_invariants=True
    )

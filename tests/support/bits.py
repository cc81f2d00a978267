"""Everything that is seen of a run from outside, bit for bit, as plain values for ``==``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import torchtap as tt
from torchtap.core.tree import leaves

Facts = dict[str, Any]
"""Name of something that was looked at -> what was found."""

_GLOBAL_TABLES = [
    (name, table)
    for name, table in vars(torch.nn.modules.module).items()
    if name.startswith("_global_") and isinstance(table, dict)
]


def bits(tensor: Tensor | None) -> Any:
    """Dtype, layout, shape, strides and bytes."""
    if tensor is None:
        return None
    tensor = tensor.detach()
    if tensor.is_sparse:
        return "sparse", tensor.shape, bits(tensor._indices()), bits(tensor._values())
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        indices = bits(tensor.crow_indices()), bits(tensor.col_indices())
        return tensor.layout, tensor.shape, indices, bits(tensor.values())
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        indices = bits(tensor.ccol_indices()), bits(tensor.row_indices())
        return tensor.layout, tensor.shape, indices, bits(tensor.values())
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    content = flat.as_strided(flat.shape, (1,)).view(torch.uint8).numpy(force=True).tobytes()
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), content


def content(tensor: Tensor | None) -> Any:
    """Dtype, shape and bytes; a clone may have other strides."""
    if tensor is None or tensor.layout != torch.strided:
        return bits(tensor)
    dtype, shape, _, data = bits(tensor)
    return dtype, shape, data


def same(left: Any, right: Any) -> bool:
    """Return whether tensors, or tuples and lists of them, are equal to the bit, with strides.

    NaN equals NaN, and -0 is not 0.
    """
    if isinstance(left, tuple | list):
        return len(left) == len(right) and all(map(same, left, right))
    return bits(left) == bits(right)


def value_bits(value: Any) -> Any:
    """A value as something that ``==`` compares to the bit: NaN equals NaN, -0 is not 0."""
    if isinstance(value, Tensor):
        return content(value)
    if isinstance(value, np.ndarray | np.generic):
        return type(value), value.dtype, value.shape, value.tobytes()
    if isinstance(value, float):
        return np.float64(value).tobytes()
    if isinstance(value, complex):
        return value_bits(value.real), value_bits(value.imag)
    if isinstance(value, tt.stats.Slices):
        return "Slices", value_bits(value.rows), value_bits(value.saturated_elements), value.notes
    if isinstance(value, dict):
        return "dict", [(value_bits(key), value_bits(one)) for key, one in value.items()]
    if isinstance(value, list | tuple):
        return (
            type(value).__name__,
            getattr(value, "_fields", ()),
            [value_bits(one) for one in value],
        )
    return value


def nature(tensor: Tensor) -> Any:
    """Autograd's facts of a tensor."""
    version = None if tensor.is_inference() else tensor._version
    made_by = None if tensor.grad_fn is None else tensor.grad_fn.name()
    return version, tensor.requires_grad, tensor.is_leaf, tensor._is_view(), made_by


def observe(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    loss: Callable[[Any], Tensor | None],
) -> Facts:
    """Run forward and backward; what that has made of everything within reach.

    An exception of the model's is one of the facts.
    """
    found: Facts = {}
    try:
        output = model(*args, **kwargs)
    except ValueError as error:
        found["raised"] = repr(error)
    else:
        for leaf, tensor in leaves([output]):
            found[f"output {leaf}"] = bits(tensor), nature(tensor)
        value = loss(output)
        if value is not None:
            found["loss"] = bits(value)
            value.backward()
    for leaf, tensor in leaves([args, kwargs]):
        found[f"argument {leaf}"] = bits(tensor), nature(tensor)
        found[f"gradient of argument {leaf}"] = bits(tensor.grad if tensor.is_leaf else None)
    return found | state(model)


def state(model: nn.Module) -> Facts:
    """Parameters, their gradients, buffers, modes, and the random numbers to come."""
    found: Facts = {"random numbers": torch.get_rng_state().numpy().tobytes()}
    for name, param in model.named_parameters():
        found[f"parameter {name}"] = bits(param), nature(param)
        found[f"gradient of {name}"] = bits(param.grad)
    for name, buffer in model.named_buffers():
        found[f"buffer {name}"] = bits(buffer), nature(buffer)
    for path, module in model.named_modules():
        found[f"mode of {path}"] = module.training
    return found


def hooks(model: nn.Module, tensors: Iterable[Tensor] = ()) -> Facts:
    """Every hook table of the model, its parameters, these tensors, and of all modules at once.

    Also the names of the attributes that each module has.
    """
    found: Facts = {name: list(table.values()) for name, table in _GLOBAL_TABLES}
    for path, module in model.named_modules():
        found[f"attributes of {path}"] = sorted(vars(module))
        for name, table in vars(module).items():
            if "hooks" in name and isinstance(table, dict):
                found[f"{name} of {path}"] = list(table.items())
    for name, tensor in (*model.named_parameters(), *_numbered(tensors)):
        for table in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            found[f"{table} of {name}"] = list((getattr(tensor, table) or {}).values())
    return found


def _numbered(tensors: Iterable[Tensor]) -> Iterator[tuple[str, Tensor]]:
    for number, tensor in enumerate(tensors):
        yield f"tensor {number}", tensor


def without_nature(facts: Facts) -> Facts:
    """An edit may hand on a view; what is in the tensors has to be the same all the more."""
    return {
        name: fact[0] if name.startswith(("output", "argument")) else fact
        for name, fact in facts.items()
    }


def differences(left: Facts, right: Facts) -> list[str]:
    """Names of the facts that are not the same."""
    return [name for name in {**left, **right} if left.get(name) != right.get(name)]

"""Traits that tell a module from another: class, sizes and norms of parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtap.core.distributed import local
from torchtap.core.equality import has_memory

_DIGITS = 5
_Norms = tuple[int, float, float]


@dataclass(frozen=True, slots=True)
class Traits:
    """Traits that tell a module from another, whatever it is called.

    Attributes:
        type: class name.
        sizes: elements of each parameter, ascending.
        norms: of each size, norm and sum, rounded: they survive a transpose and another name. Equal
            ones do not prove equal parameters. ``None`` where values are not known.
        terms: of its longest sum, as far as the parameters tell; 0 where they do not.
        dtypes: of the parameters.
    """

    type: str = ""
    sizes: tuple[int, ...] = ()
    norms: tuple[tuple[int, float, float], ...] | None = None
    terms: int = 0
    dtypes: tuple[str, ...] = ()


def traits_of(
    type_name: str, params: Iterable[Tensor], known: dict[int, _Norms] | None = None
) -> Traits:
    """Return the traits of a module with these parameters, its own and those of its parts.

    Args:
        type_name: of its class.
        params: each once.
        known: id of a parameter -> what was computed of it; more is added.
    """
    held = list(params)
    known = {} if known is None else known
    for param in held:
        if id(param) not in known and has_memory(param):
            known[id(param)] = _norms(local(param.detach())[0])
    own_params = [local(param.detach())[0] for param in held]
    are_known = all(id(param) in known for param in held)
    return Traits(
        type_name,
        tuple(sorted(param.numel() for param in own_params)),
        tuple(sorted(known[id(param)] for param in held)) if are_known else None,
        max((num_terms(tuple(param.shape)) for param in own_params), default=0),
        tuple({str(param.dtype).removeprefix("torch."): None for param in own_params}),
    )


def traits_of_modules(modules: Mapping[str, nn.Module]) -> dict[str, Traits]:
    """Path -> traits."""
    known: dict[int, _Norms] = {}
    return {
        path: traits_of(type(module).__name__, module.parameters(), known)
        for path, module in modules.items()
    }


def num_terms(shape: tuple[int, ...]) -> int:
    """Terms that one number is the sum of, where this is the shape of a weight."""
    return math.prod(shape[1:]) if len(shape) > 1 else 0


def _norms(param: Tensor) -> _Norms:
    if not param.numel() or not (param.is_floating_point() or param.is_complex()):
        return param.numel(), 0.0, 0.0
    wide = param.abs().double() if param.is_complex() else param.double()
    if wide.layout is not torch.strided:
        wide = wide.to_dense()
    return param.numel(), _rounded(float(wide.norm())), _rounded(float(wide.sum()))


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")

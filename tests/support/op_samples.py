"""The operators of ``torch.testing``'s ``op_db``, each inside a small module, with inputs.

Needs ``expecttest``, which torch's own test helpers import.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from module_db import Built, detached, seeded_by, spread
from torch import nn
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

DTYPES = (torch.float32, torch.float64, torch.complex64)
OTHERS = (torch.complex128, torch.int64, torch.bool)
"""For operators of integers only, and the few that know none of the others."""


class Op(nn.Module):
    """A module whose forward is one operator.

    Args:
        function: the operator.
        in_place: it overwrites its first argument.
    """

    def __init__(self, function: Callable[..., Any], *, in_place: bool = False) -> None:
        super().__init__()
        self.function = function
        self.in_place = in_place

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The results of the operator."""
        return self.function(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class OpSample:
    """One operator with arguments.

    Args:
        id: readable and unique: ``linalg.svd-float32-0``.
        build: makes module and arguments anew, the same every time.
        process: makes of the output what may be differentiated (singular vectors are only unique
            up to a phase).
        has_gradgrad: the operator can be differentiated twice.
    """

    id: str
    build: Callable[[], Built]
    process: Callable[[Any], Any]
    has_gradgrad: bool

    def __str__(self) -> str:
        return self.id


def operators() -> dict[str, OpInfo]:
    """Every operator that runs on the CPU, by its name and variant (the jiterator needs a GPU)."""
    return {
        info.full_name: info
        for info in op_db
        if info.supported_dtypes("cpu") and not info.name.startswith("jiterator")
    }


def samples(
    info: OpInfo, *, most: int, num_dtypes: int = 1, in_place: bool = False
) -> Iterator[OpSample]:
    """Samples of one operator, in the first dtypes that it has.

    Args:
        info: the operator.
        most: at most so many per dtype, evenly spread.
        num_dtypes: at most so many of ``DTYPES``, or one of ``OTHERS``.
        in_place: of the variant that overwrites its first argument; none, if it has none.
    """
    function = info.inplace_variant if in_place else info.op
    if function is None:
        return
    known = info.supported_dtypes("cpu")
    for dtype in [d for d in DTYPES if d in known][:num_dtypes] or [
        d for d in OTHERS if d in known
    ]:
        differentiable = info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
        prefix = f"{info.full_name}{'_' * in_place}-{str(dtype).removeprefix('torch.')}"

        def made(dtype: torch.dtype = dtype, grad: bool = differentiable) -> list[SampleInput]:
            return list(info.sample_inputs("cpu", dtype, requires_grad=grad))

        given = seeded_by(prefix, made)
        for position in spread(len(given), most):
            sample = given[position]
            if in_place and sample.broadcasts_input:
                continue
            yield OpSample(
                f"{prefix}-{position}",
                functools.partial(_build, function, sample, in_place),
                sample.output_process_fn_grad,
                info.supports_gradgrad,
            )


def _build(function: Callable[..., Any], sample: SampleInput, in_place: bool) -> Built:
    args, kwargs = detached((sample.input, *sample.args)), detached(sample.kwargs)
    return Op(function, in_place=in_place), args, kwargs

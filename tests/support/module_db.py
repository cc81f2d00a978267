"""The ready-made samples of ``torch.testing``: every module of ``torch.nn``, with inputs.

Needs ``expecttest``, which torch's own test helpers import.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from random_numbers import fixed_seed
from torch import Tensor, nn
from torch.testing._internal.common_modules import ModuleInfo, ModuleInput, module_db

DTYPES = (torch.float32, torch.float64)
WARNINGS = (
    "reduction: 'mean' divides the total loss",
    "linear_cross_entropy: ``options`` ignored",
    "LSTM with projections is not supported",
    "enable_nested_tensor is True",
)
"""How the warnings begin that the modules of torch give on these samples."""
T = TypeVar("T")
Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Sample:
    """One module with arguments.

    Args:
        id: readable and unique: ``BatchNorm1d-float32-train-0``.
        name: of the module class.
        build: makes module and arguments anew, the same every time; lazy modules have seen their
            arguments once, so their parameters are there. Draws no global random numbers.
        training: the mode of the module.
        dtype: of the parameters and the floating arguments.
        is_lazy: the class started out as a lazy module.
    """

    id: str
    name: str
    build: Callable[[], Built]
    training: bool
    dtype: torch.dtype
    is_lazy: bool

    def __str__(self) -> str:
        return self.id


def samples(
    dtypes: Sequence[torch.dtype] = DTYPES, *, most: int | None = None, requires_grad: bool = True
) -> Iterator[Sample]:
    """Every sample that runs on the CPU; all of them run forward, and backward if they can.

    Training mode is only tried where it makes a difference.

    Args:
        dtypes: float32 and float64.
        most: at most so many per module, dtype and mode (``LinearCrossEntropyLoss`` alone has
            hundreds), spread evenly; ``None`` for all.
        requires_grad: whether floating arguments require grad.
    """
    for info in module_db:
        for dtype in dtypes:
            if dtype not in info.dtypes:
                continue
            for training in (True, False) if info.train_and_eval_differ else (False,):
                yield from _of_module(info, dtype, training, most, requires_grad)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Inside, the warnings that are known to come are skipped; others still come."""
    with warnings.catch_warnings():
        for start in WARNINGS:
            warnings.filterwarnings("ignore", message=start)
        yield


def _of_module(
    info: ModuleInfo, dtype: torch.dtype, training: bool, most: int | None, requires_grad: bool
) -> Iterator[Sample]:
    name = info.name.removeprefix("nn.")
    mode = "train" if training else "eval"
    prefix = f"{name}-{str(dtype).removeprefix('torch.')}-{mode}"

    def make_inputs() -> list[ModuleInput]:
        return list(info.module_inputs_func(info, "cpu", dtype, requires_grad, training))

    inputs = seeded_by(prefix, make_inputs)
    for position in spread(len(inputs), most):
        build = functools.partial(
            _build, info, inputs[position], dtype, training, f"{prefix}-{position}"
        )
        yield Sample(f"{prefix}-{position}", name, build, training, dtype, info.is_lazy)


def spread(num: int, most: int | None) -> Sequence[int]:
    """Places of at most ``most`` of ``num``, evenly spread."""
    if most is None or num <= most:
        return range(num)
    return [position * num // most for position in range(most)]


def _build(
    info: ModuleInfo, given: ModuleInput, dtype: torch.dtype, training: bool, seed: str
) -> Built:
    def make() -> Built:
        made, called = given.constructor_input, given.forward_input
        module = info.module_cls(*copy.deepcopy(made.args), **copy.deepcopy(made.kwargs))
        module = module.to(dtype).train(training)
        args, kwargs = detached(called.args), detached(called.kwargs)
        if info.is_lazy:
            with torch.no_grad():
                module(*args, **kwargs)
        return module, args, kwargs

    with quiet():
        return seeded_by(seed, make)


def seeded_by(text: str, make: Callable[[], T]) -> T:
    """The result of ``make`` with random numbers that this text fixes, and no others drawn."""
    with fixed_seed(zlib.crc32(text.encode())):
        return make()


def detached(value: Any) -> Any:
    """Copies of all tensors as leaves, and of generators; some ready-made ones hang on a graph."""
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, tuple | list):
        return type(value)(detached(part) for part in value)
    if isinstance(value, Mapping):
        return {key: detached(part) for key, part in value.items()}
    if isinstance(value, torch.Generator):
        return value.clone_state()
    return value

"""Runs operations in float64 in place of what a program asks for, and notes how they were hard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

NARROW = (torch.float32, torch.float16, torch.bfloat16)
_WIDE = {**dict.fromkeys(NARROW, torch.float64), torch.complex64: torch.complex128}
_DIFFERENCES = frozenset({"add", "add_", "sub", "sub_", "rsub", "addcmul", "addcdiv"})
_SUMS = frozenset({"sum", "mean", "var", "var_mean", "std", "norm", "linalg_vector_norm"})
_PRODUCTS = {"mm": 0, "addmm": 1, "bmm": 0, "baddbmm": 1, "addmv": 1, "mv": 0, "dot": 0}
_CONVOLUTIONS = frozenset({"convolution", "_convolution", "mkldnn_convolution"})


def widened(tensor: Tensor) -> Tensor:
    """Return the values in float64 (or complex128); a tensor of whole numbers as it is."""
    wide = _WIDE.get(tensor.dtype)
    return tensor if wide is None else tensor.to(wide)


@dataclass(slots=True)
class Difficulty:
    """The properties of a call that make rounding count, as its float64 run shows them.

    Attributes:
        cancelled: the largest ratio of what was added or subtracted to what it left (norms).
        operation: of that ratio.
        terms: most terms of one sum, also of one that is made of additions one after the other.
        largest: largest finite magnitude that any operation made.
    """

    cancelled: float = 1.0
    operation: str = ""
    terms: int = 1
    largest: float = 0.0


class Wide(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While open, floats that a program asks for in a narrower dtype are made in float64.

    Random numbers are drawn in the dtype that the program draws them in, so that a dropout drops
    the same elements.

    Args:
        drawn_as: dtype of random numbers.

    Attributes:
        difficulty: what was seen.
    """

    def __init__(self, drawn_as: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.difficulty = Difficulty()
        self._drawn_as = drawn_as
        self._additions: Counter[torch.Size] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one operation."""
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        # PyTorch tags every operation that draws from a generator so.
        if torch.Tag.nondeterministic_seeded in func.tags:
            return self._drawn(func, name, args, kwargs)
        if kwargs.get("dtype") in _WIDE:
            kwargs = {**kwargs, "dtype": _WIDE[kwargs["dtype"]]}
        before = _magnitudes(args) if name in _DIFFERENCES else []
        result = func(*args, **kwargs)
        self._note(name, args, before, result)
        return result

    def _drawn(self, func: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        def narrow(value: Any) -> Any:
            is_wide = isinstance(value, Tensor) and value.dtype is torch.float64
            return value.to(self._drawn_as) if is_wide else value

        if name in ("native_dropout", "_fused_dropout"):
            _, mask = func(narrow(args[0]), *args[1:], **kwargs)
            # The mask is that of the narrow run; the division is done in float64.
            keep = 1 - args[1]
            return (args[0] * mask / keep if keep else args[0] * 0), mask
        drawn = func(*tree_map(narrow, args), **tree_map(narrow, kwargs))
        # x.normal_() must fill the program's own tensor, and not a narrowed copy.
        if name.endswith("_") and isinstance(drawn, Tensor):
            return args[0].copy_(drawn)
        return tree_map(lambda one: widened(one) if isinstance(one, Tensor) else one, drawn)

    def _note(self, name: str, args: tuple[Any, ...], before: list[float], result: Any) -> None:
        seen = self.difficulty
        if not isinstance(result, Tensor) or not result.is_floating_point() or result.is_nested:
            return
        if result.layout is not torch.strided or result.is_meta or not result.numel():
            return
        finite = result.detach().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        seen.largest = max(seen.largest, float(finite.abs().max()))
        if name in ("add", "add_"):
            # A sum that a loop makes term by term is no single operation; additions of one shape
            # count together.
            self._additions[result.shape] += 1
        terms = num_terms(name, args, result)
        seen.terms = max(seen.terms, terms, self._additions[result.shape])
        after = float(finite.norm())
        if len(before) > 1 and after > 0 and min(before) > 0:
            ratio = max(before) / after
            if ratio > seen.cancelled:
                seen.cancelled, seen.operation = ratio, name.rstrip("_")


def _magnitudes(args: tuple[Any, ...]) -> list[float]:
    """Norms of the two sides of an addition or subtraction, over the shape of the result."""
    sides = [arg for arg in args[:2] if isinstance(arg, Tensor | int | float)]
    tensors = [side for side in sides if isinstance(side, Tensor)]
    is_plain = all(
        tensor.is_floating_point() and tensor.layout is torch.strided for tensor in tensors
    )
    if len(sides) < 2 or not tensors or not is_plain or any(tensor.is_nested for tensor in tensors):
        return []
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))  # type: ignore[no-untyped-call]
    every = shape.numel() ** 0.5
    return [
        float(side.detach().expand(shape).norm()) if isinstance(side, Tensor) else abs(side) * every
        for side in sides
    ]


def num_terms(name: str, args: tuple[Any, ...], result: Tensor) -> int:
    """Return how many terms each element of a result is the sum of."""
    if name in _PRODUCTS:
        return int(args[_PRODUCTS[name]].shape[-1])
    if name in _CONVOLUTIONS:
        return int(args[1][0].numel())
    if name in _SUMS and isinstance(args[0], Tensor):
        return max(args[0].numel() // max(result.numel(), 1), 1)
    return 1

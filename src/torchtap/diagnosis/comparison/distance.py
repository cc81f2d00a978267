"""How far two values are from each other: of tensors, or as far as statistics can tell."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtap.core.equality import has_memory, kind, same, wide
from torchtap.core.record import Record
from torchtap.core.tensors import kind_of
from torchtap.core.text import typed
from torchtap.stats.measure import measure
from torchtap.stats.statistics import Statistics

Value = Tensor | Record | Statistics
"""A value, a record that is read when it is asked for, or what was measured of it."""
Values = Mapping[str, Value]
"""Leaf -> value."""


@dataclass(frozen=True, slots=True)
class Distance:
    """How far two values are from each other.

    Attributes:
        error: ``|x - y|`` over all elements.
        scale: the larger of ``|x|`` and ``|y|``, of the finite elements.
        leaf: where most of it is; empty for a bare tensor.
        why: what makes it infinite, or what was found beside it.
        is_bound: whether it is of statistics, and so at least this far.
        num_nan: elements that are NaN on both sides, which counts as equal.
    """

    error: float = 0.0
    scale: float = 0.0
    leaf: str = ""
    why: str = ""
    is_bound: bool = False
    num_nan: int = 0

    @property
    def relative(self) -> float:
        """The error relative to the scale; 0 where there is none, ``inf`` where both cannot be
        subtracted.
        """
        if self.error == 0:
            return 0.0
        return self.error / self.scale if self.scale > 0 else math.inf


EQUAL = Distance()


def distance(one: Values, two: Values) -> Distance:
    """Return the distance of nested values, leaf by leaf.

    Leaves are matched by their names, and what is left over by its number of elements, in order.
    Where one side has more tensors, such as a cache beside the logits, those of the other side are
    compared. NaN at the same place on both sides is equal, and so is the same infinity.
    """
    pairs = matched(one, two)
    if len(pairs) < min(len(one), len(two)):
        sides = (", ".join(map(_kind, side.values())) or "nothing" for side in (one, two))
        return Distance(math.inf, 1.0, why=_of_kinds(next(sides), next(sides)))
    return overall_distance(_of_leaf(leaf, one[leaf], two[other]) for leaf, other in pairs)


def matched(one: Values, two: Values) -> list[tuple[str, str]]:
    """Pairs of leaves that stand for each other: of one name, else of one number of elements."""
    if one.keys() == two.keys():
        return [(leaf, leaf) for leaf in one]
    if len(one) == len(two) == 1:
        return [(next(iter(one)), next(iter(two)))]
    mine, theirs = (dict(zip(side, numel_of(side), strict=True)) for side in (one, two))
    pairs = []
    for leaf, numel in mine.items():
        by_name = [leaf] if theirs.get(leaf) == numel else []
        fitting = by_name or [other for other, size in theirs.items() if size == numel]
        if fitting:
            pairs.append((leaf, fitting[0]))
            del theirs[fitting[0]]
    return pairs


def _kind(value: Value) -> str:
    value = _read(value)
    return kind_of(value) if isinstance(value, Tensor) else _typed(value)


def overall_distance(parts: Iterable[Distance]) -> Distance:
    """Return the distance of all parts together."""
    distances = list(parts)
    if not distances:
        return EQUAL
    worst = max(distances, key=lambda part: part.error)
    return Distance(
        math.hypot(*(part.error for part in distances)),
        math.hypot(*(part.scale for part in distances)),
        worst.leaf,
        worst.why,
        any(part.is_bound for part in distances),
        sum(part.num_nan for part in distances),
    )


def _of_leaf(leaf: str, one: Value, two: Value) -> Distance:
    one, two = _read(one), _read(two)
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        return _of_tensors(leaf, one, two)
    left, right = (_measured(value) for value in (one, two))
    return _of_statistics(leaf, left, right)


def _read(value: Value) -> Tensor | Statistics:
    return value.value if isinstance(value, Record) else value


def _measured(value: Tensor | Statistics) -> Statistics:
    return measure(value, histogram=False) if isinstance(value, Tensor) else value


def _of_tensors(leaf: str, one: Tensor, two: Tensor) -> Distance:
    if same(one, two):
        return _of_equal(leaf, one)
    if one.is_meta or two.is_meta:
        said = "" if kind(one) == kind(two) else _of_kinds(kind_of(one), kind_of(two))
        return Distance(math.inf if said else 0.0, 1.0, leaf, said)
    left, right = wide(one), wide(two)
    if left.shape != right.shape:
        return Distance(math.inf, 1.0, leaf, _of_kinds(kind_of(one), kind_of(two)))
    if left.is_complex() or right.is_complex():
        left, right = (torch.view_as_real(each.to(torch.complex128)) for each in (left, right))
    right = right.to(left.device)
    nan = left.isnan() & right.isnan()
    is_odd = ((left != right) & ~nan) & ~(left.isfinite() & right.isfinite())
    if bool(is_odd.any()):
        why = f"{int(is_odd.sum()):,} elements are NaN or infinite on one side alone"
        return Distance(math.inf, 1.0, leaf, why, num_nan=int(nan.sum()))
    difference = torch.where(left == right, 0.0, left - right).masked_fill(nan, 0.0)
    scale = max(_norm(torch.where(each.isfinite(), each, 0.0)) for each in (left, right))
    reshaped = one.dim() > 1 and two.dim() > 1 and _sizes(one) != _sizes(two)
    why = _of_kinds(kind_of(one), kind_of(two)) if reshaped else ""
    return Distance(_norm(difference), scale, leaf, why, num_nan=int(nan.sum()))


def _of_equal(leaf: str, tensor: Tensor) -> Distance:
    """No distance; the scale and the NaN of a value that is the same on both sides."""
    is_plain = tensor.is_floating_point() and tensor.layout is torch.strided
    if not is_plain or tensor.is_nested or not has_memory(tensor) or tensor.dtype.itemsize == 1:
        return Distance(scale=1.0, leaf=leaf)
    norm = _norm(tensor.detach())
    if math.isfinite(norm):
        return Distance(scale=norm, leaf=leaf)
    finite = torch.where(tensor.isfinite(), tensor, 0.0).double()
    return Distance(scale=_norm(finite), leaf=leaf, num_nan=int(tensor.isnan().sum()))


def _sizes(tensor: Tensor) -> list[int]:
    return [] if tensor.is_nested else [size for size in tensor.shape if size != 1]


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor)) if tensor.numel() else 0.0


def _of_kinds(one: str, two: str) -> str:
    return f"{one} in the reference and {two} in the candidate"


def _of_statistics(leaf: str, one: Statistics, two: Statistics) -> Distance:
    """A lower bound: no number may differ by more than the values do.

    For vectors of n elements, the differences of norms, of maxima, of minima, of ``sqrt(n) mean``,
    of ``sqrt(n) std`` and of ``l1 / sqrt(n)`` are each at most ``|x - y|`` (by the inequalities of
    the triangle and of Cauchy and Schwarz).
    """
    if one.numel != two.numel:
        return Distance(math.inf, 1.0, leaf, _of_kinds(_typed(one), _typed(two)), is_bound=True)
    if (one.nan, one.posinf, one.neginf) != (two.nan, two.posinf, two.neginf):
        why = f"{one.nonfinite:,} elements are NaN or infinite on one side, {two.nonfinite:,} on"
        return Distance(math.inf, 1.0, leaf, f"{why} the other", is_bound=True)
    scale = max(one.l2, two.l2)
    if not one.num_finite or not scale < math.inf:
        return Distance(0.0, 1.0, leaf, is_bound=True, num_nan=one.nan)
    root = math.sqrt(one.num_finite)
    bounds = [
        one.l2 - two.l2,
        one.max - two.max,
        one.min - two.min,
        (one.mean - two.mean) * root,
        (one.std - two.std) * root,
        (one.l1 - two.l1) / root,
    ]
    error = max((abs(bound) for bound in bounds if not math.isnan(bound)), default=0.0)
    # Sums in float64 in another order differ by this much.
    error = 0.0 if error <= 1e-11 * scale * root else error
    return Distance(error, scale, leaf, is_bound=True, num_nan=one.nan)


def _typed(stats: Statistics) -> str:
    return typed(stats.dtype, stats.shape) if stats.shape is not None else f"{stats.numel} elements"


def dtypes_of(values: Values) -> list[str]:
    """Names of the dtypes, without ``torch.``."""
    dtypes = []
    for value in values.values():
        if isinstance(value, Statistics):
            dtypes.append(value.dtype)
        else:
            dtypes.append(str(_tensor(value).dtype).removeprefix("torch."))
    return dtypes


def shapes_of(values: Values) -> list[Sequence[int]]:
    """Shapes of the values, of those that have one."""
    shapes: list[Sequence[int]] = []
    for value in values.values():
        if isinstance(value, Statistics):
            shapes += [] if value.shape is None else [value.shape]
        else:
            tensor = _tensor(value)
            shapes += [] if tensor.is_nested else [tuple(tensor.shape)]
    return shapes


def numel_of(values: Values) -> list[int]:
    """Numbers of elements."""
    return [
        value.numel if isinstance(value, Statistics) else _tensor(value).numel()
        for value in values.values()
    ]


def _tensor(value: Record | Tensor) -> Tensor:
    kept: Tensor = value.kept if isinstance(value, Record) else value
    return kept

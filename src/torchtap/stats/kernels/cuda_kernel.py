"""The Triton kernels behind :mod:`torchtap.stats.kernels.cuda`; import that one.

A tensor is cut into parts. One program measures one part: each of its lanes keeps sums over the
elements that it meets, in float64 and relative to the first finite one of them, and at the end
the lanes are merged. So a lane loses no more of a variance to rounding than ``k * 2^-53`` of it,
``k`` being its number of elements, whatever the mean: the element that all others are compared to
is one of them. A further program merges the parts. Everything is merged in a fixed order, and the
parts depend on nothing but the number of elements: the same tensor always gives the same bits.

Addresses come as integers. Without Triton this file can be imported, and its kernels are None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    import triton
    import triton.language as tl
except ImportError:  # pragma: no cover - depends on what is installed
    triton = tl = None

IS_THERE = triton is not None
"""True where Triton can be imported."""


def _kernel(function: Callable[..., Any]) -> Any:
    """Return a kernel, compiled once per dtype: not for every kind of length and address."""
    if triton is None:
        return None
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    numbers = [name for name in names if "constexpr" not in function.__annotations__[name]]
    return triton.jit(function, do_not_specialize=numbers)


def _helper(function: Callable[..., Any]) -> Any:
    return None if triton is None else triton.jit(function)


# ---------------------------------------------------------------------- the kernels


@_kernel
def measure_parts(
    data: tl.int64,
    numel: tl.int64,
    row: tl.int64,
    histogram: tl.int64,
    sample: tl.int64,
    partials: tl.int64,
    num_parts: tl.int64,
    blocks: tl.int64,
    DTYPE: tl.constexpr,
    WORK: tl.constexpr,
    TINY: tl.constexpr,
    IS_ALIGNED: tl.constexpr,
    COUNTS_ALL: tl.constexpr,
    IS_ONE_PART: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Measure one part of a tensor of ``num_parts`` parts, of ``blocks`` blocks each.

    Writes into ``partials``, ``float64[16, num_parts]``; if there is one part, merges it into the
    row at once.
    """
    numel, num_parts, blocks = numel.to(tl.int64), num_parts.to(tl.int64), blocks.to(tl.int64)
    part = tl.program_id(0).to(tl.int64)
    numbers = _measure_part(
        data,
        numel,
        histogram,
        sample,
        part,
        num_parts,
        blocks,
        DTYPE,
        WORK,
        TINY,
        IS_ALIGNED,
        COUNTS_ALL,
        BLOCK,
    )
    if IS_ONE_PART:
        _merge(row, numbers)
    else:
        _put(partials, part, num_parts, numbers)


@_kernel
def merge_parts(
    row: tl.int64, partials: tl.int64, num_parts: tl.int64, PARTS: tl.constexpr
) -> None:
    """Merge the parts of one tensor into its row."""
    _merge(row, _merged_parts(partials, num_parts, PARTS))


@_helper
def _at(address: tl.tensor, DTYPE: tl.constexpr) -> Any:
    """Return an address as a pointer."""
    return address.to(tl.int64).to(tl.pointer_type(DTYPE))


# ---------------------------------------------------------------------- one part


@_helper
def _measure_part(
    data: tl.tensor,
    numel: tl.tensor,
    histogram: tl.tensor,
    sample: tl.tensor,
    part: tl.tensor,
    num_parts: tl.tensor,
    blocks: tl.tensor,
    DTYPE: tl.constexpr,
    WORK: tl.constexpr,
    TINY: tl.constexpr,
    IS_ALIGNED: tl.constexpr,
    COUNTS_ALL: tl.constexpr,
    BLOCK: tl.constexpr,
) -> Any:
    """Return a row of numbers of one part, and its elements in the histogram."""
    pointer = _at(data, DTYPE)
    if IS_ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    lanes = tl.arange(0, BLOCK)
    begin = part * blocks
    end = tl.minimum(begin + blocks, (numel + BLOCK - 1) // BLOCK)
    # Whole blocks are read without asking whether an element is there: several at once.
    end_whole = tl.minimum(end, numel // BLOCK)
    state = _nothing(BLOCK, WORK)
    for block in tl.range(begin, end_whole, loop_unroll_factor=2):
        x = _widened(tl.load(pointer + block * BLOCK + lanes), WORK)
        state = _added(state, x, tl.full([BLOCK], True, tl.int1), TINY)
        if COUNTS_ALL:
            _count(histogram, x, tl.abs(x) < float("inf"))
    if end_whole < end:
        inside = lanes < numel - end_whole * BLOCK
        x = _widened(tl.load(pointer + end_whole * BLOCK + lanes, mask=inside, other=0), WORK)
        state = _added(state, x, inside, TINY)
        if COUNTS_ALL:
            _count(histogram, x, inside & (tl.abs(x) < float("inf")))
    if COUNTS_ALL:
        _count_zeros(histogram, tl.sum(state[8].to(tl.int64), 0))
        num_counted = _sum(state[0])
    else:
        strata = tl.where(histogram != 0, sample, 0)
        num_counted = _count_sample(pointer, numel, histogram, strata, part, num_parts, BLOCK)
    return _finished(state, num_counted)


@_helper
def _widened(x: tl.tensor, WORK: tl.constexpr) -> Any:
    """Elements in a dtype that holds them."""
    if x.dtype == tl.bfloat16:
        # It is the upper half of a float32. So no conversion can take its subnormals for zero.
        x = (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return x.to(WORK)


@_helper
def _nothing(BLOCK: tl.constexpr, WORK: tl.constexpr) -> Any:
    """Return the state of the lanes before they have met an element; see :func:`_added`."""
    none = tl.zeros([BLOCK], tl.float64)
    no = tl.zeros([BLOCK], tl.int32)
    infinite = tl.full([BLOCK], float("inf"), WORK)
    return no, none, none, none, none, none, infinite, -infinite, no, no, no, no, no


@_helper
def _added(state: tl.tuple, x: tl.tensor, inside: tl.tensor, TINY: tl.constexpr) -> Any:
    """Return the state of the lanes after one more element each, where there is one."""
    (
        num_finite,
        shift,
        first,
        second,
        l1,
        squares,
        low,
        high,
        zeros,
        nan,
        posinf,
        neginf,
        subnormal,
    ) = state
    finite = inside & (tl.abs(x) < float("inf"))
    narrow = tl.where(finite, x, 0.0)
    value, size = narrow.to(tl.float64), tl.abs(narrow)
    shift = tl.where(num_finite == 0, value, shift)
    deviation = tl.where(finite, value - shift, 0.0)
    return (
        num_finite + finite.to(tl.int32),
        shift,
        first + deviation,
        second + deviation * deviation,
        l1 + tl.abs(value),
        squares + value * value,
        tl.minimum(low, tl.where(finite, x, float("inf"))),
        tl.maximum(high, tl.where(finite, x, float("-inf"))),
        zeros + (inside & (x == 0)).to(tl.int32),
        nan + (inside & (x != x)).to(tl.int32),
        posinf + (inside & (x == float("inf"))).to(tl.int32),
        neginf + (inside & (x == float("-inf"))).to(tl.int32),
        subnormal + ((size > 0) & (size < TINY)).to(tl.int32),
    )


@_helper
def _finished(state: tl.tuple, num_counted: tl.tensor) -> Any:
    """Return the lanes together: the numbers of a row."""
    (
        num_finite,
        shift,
        first,
        second,
        l1,
        squares,
        low,
        high,
        zeros,
        nan,
        posinf,
        neginf,
        subnormal,
    ) = state
    count = num_finite.to(tl.float64)
    mean = first / tl.maximum(count, 1.0)
    m2 = tl.maximum(second - first * mean, 0.0)
    # Inf - Inf where squares exceed float64: that is Inf, not NaN.
    m2 = tl.where(second == float("inf"), second, m2)
    total, mean, m2 = _combined(count, shift + mean, m2)
    return (
        _sum(num_finite + nan + posinf + neginf),
        total,
        mean,
        m2,
        _sum(l1),
        _sum(squares),
        tl.min(low, 0).to(tl.float64),
        tl.max(high, 0).to(tl.float64),
        _sum(zeros),
        _sum(nan),
        _sum(posinf),
        _sum(neginf),
        _sum(subnormal),
        1.0,
        num_counted,
    )


@_helper
def _sum(x: tl.tensor) -> Any:
    return tl.sum(x.to(tl.float64), 0)


@_helper
def _combined(count: tl.tensor, mean: tl.tensor, m2: tl.tensor) -> Any:
    """Moments of many groups together: their number, mean and sum of squared deviations.

    Chan, Golub & LeVeque 1979, eq. 2.1, for more than two groups at once: the deviations within
    the groups, and those of the groups' means from the common one, which is computed twice so
    that its own rounding does not matter. Weights are at most one: nothing overflows.
    """
    total = _sum(count)
    weight = count / tl.maximum(total, 1.0)
    rough = tl.sum(weight * mean, 0)
    common = rough + tl.sum(weight * tl.where(count > 0, mean - rough, 0.0), 0)
    distance = tl.where(count > 0, mean - common, 0.0)
    return total, common, tl.sum(m2 + count * distance * distance, 0)


# ---------------------------------------------------------------------- histograms


@_helper
def _count(histogram: tl.tensor, x: tl.tensor, counted: tl.tensor) -> Any:
    """Add elements to a histogram, but for zeros.

    They are counted together at the end: after a ReLU a million additions to one place would
    wait for each other.
    """
    bins = _at(histogram, tl.int64)
    one = tl.full(x.shape, 1, tl.int64)
    tl.atomic_add(bins + _bin(x), one, mask=counted & (x != 0), sem="relaxed")


@_helper
def _count_zeros(histogram: tl.tensor, number: tl.tensor) -> Any:
    tl.atomic_add(_at(histogram, tl.int64), number, sem="relaxed")


@_helper
def _bin(x: tl.tensor) -> Any:
    """Return the bin of finite elements, as :func:`torchtap.stats.kernels.stock.accumulate` has it.

    That is the upper 13 bits of the float32, rounded towards zero. They stand in the float64
    too: only the exponent is counted from elsewhere (127 in place of 1023). Below 2^-126, where
    float32 has no exponent any more, bins are 2^-130 wide.
    """
    x = x.to(tl.float64)
    size = tl.abs(x)
    upper = size.to(tl.int64, bitcast=True) >> 48
    is_small = size < 1.1754943508222875e-38  # 2^-126
    small = tl.where(is_small, size, 0.0) * 1.361129467683754e39  # 2^130
    normal = tl.minimum(upper - 14336, 4079)  # 896 << 4; the bin of the largest float32.
    magnitude = tl.where(is_small, small.to(tl.int64), normal)
    # What becomes -0 counts as 0: all that is below the smallest float32.
    is_negative = x <= -1.401298464324817e-45  # 2^-149
    return magnitude + tl.where(is_negative, 4096, 0)


@_helper
def _count_sample(
    pointer: tl.tensor,
    numel: tl.tensor,
    histogram: tl.tensor,
    sample: tl.tensor,
    part: tl.tensor,
    num_parts: tl.tensor,
    BLOCK: tl.constexpr,
) -> Any:
    """Count one element of each of ``sample`` strata of a tensor; the parts share the strata.

    Its place in the stratum is a multiple of the golden ratio, modulo one: spread evenly, without
    a period (Weyl). In integers, so that it is the same place everywhere.
    """
    num_counted = tl.full([], 0.0, tl.float64)
    for start in range(part * BLOCK, sample, num_parts * BLOCK):
        number = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = number < sample
        low = number * numel // sample
        length = (number + 1) * numel // sample - low
        place = low + ((length * (number * 2654435769 & 4294967295)) >> 32)
        x = _widened(tl.load(pointer + place, mask=inside, other=0), tl.float64)
        counted = inside & (tl.abs(x) < float("inf"))
        _count(histogram, x, counted)
        _count_zeros(histogram, tl.sum((counted & (x == 0)).to(tl.int64), 0))
        num_counted += _sum(counted)
    return num_counted


# ---------------------------------------------------------------------- merging


@_helper
def _put(partials: tl.tensor, part: tl.tensor, num_parts: tl.tensor, numbers: tl.tuple) -> Any:
    """Write a part's numbers into a column of ``float64[16, num_parts]``."""
    place = _at(partials, tl.float64) + part
    for number in tl.static_range(15):
        tl.store(place + number * num_parts, numbers[number])


@_helper
def _merged_parts(partials: tl.tensor, num_parts: tl.tensor, PARTS: tl.constexpr) -> Any:
    """Return the numbers of all parts of a tensor together."""
    lanes = tl.arange(0, PARTS)
    there = lanes < num_parts
    place = _at(partials, tl.float64) + lanes
    total, mean, m2 = _combined(
        tl.load(place + num_parts, there, 0.0),
        tl.load(place + 2 * num_parts, there, 0.0),
        tl.load(place + 3 * num_parts, there, 0.0),
    )
    return (
        tl.sum(tl.load(place, there, 0.0), 0),
        total,
        mean,
        m2,
        tl.sum(tl.load(place + 4 * num_parts, there, 0.0), 0),
        tl.sum(tl.load(place + 5 * num_parts, there, 0.0), 0),
        tl.min(tl.load(place + 6 * num_parts, there, float("inf")), 0),
        tl.max(tl.load(place + 7 * num_parts, there, float("-inf")), 0),
        tl.sum(tl.load(place + 8 * num_parts, there, 0.0), 0),
        tl.sum(tl.load(place + 9 * num_parts, there, 0.0), 0),
        tl.sum(tl.load(place + 10 * num_parts, there, 0.0), 0),
        tl.sum(tl.load(place + 11 * num_parts, there, 0.0), 0),
        tl.sum(tl.load(place + 12 * num_parts, there, 0.0), 0),
        1.0,
        tl.sum(tl.load(place + 14 * num_parts, there, 0.0), 0),
    )


@_helper
def _merge(row: tl.tensor, numbers: tl.tuple) -> Any:
    """Merge a tensor's numbers into a row (Chan, Golub & LeVeque 1979, eq. 2.1)."""
    place = _at(row, tl.float64)
    own, more = tl.load(place + 1), numbers[1]
    share = more / tl.maximum(own + more, 1.0)
    mean = tl.load(place + 2)
    delta = tl.where((own > 0) & (more > 0), numbers[2] - mean, 0.0)
    tl.store(place + 2, tl.where(own > 0, mean + delta * share, numbers[2]))
    tl.store(place + 3, tl.load(place + 3) + numbers[3] + delta * delta * own * share)
    tl.store(place + 6, tl.minimum(tl.load(place + 6), numbers[6]))
    tl.store(place + 7, tl.maximum(tl.load(place + 7), numbers[7]))
    tl.store(place + 13, tl.load(place + 13) + 1)
    tl.store(place, tl.load(place) + numbers[0])
    tl.store(place + 1, own + more)
    tl.store(place + 4, tl.load(place + 4) + numbers[4])
    tl.store(place + 5, tl.load(place + 5) + numbers[5])
    for number in tl.static_range(8, 13):
        tl.store(place + number, tl.load(place + number) + numbers[number])
    tl.store(place + 14, tl.load(place + 14) + numbers[14])
    # Which bins are in use is not kept account of here; see LEAST_BIN.
    tl.store(place + 15, tl.where(numbers[14] > 0, 1.0, tl.load(place + 15)))

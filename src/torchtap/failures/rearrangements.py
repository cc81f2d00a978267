"""Ways to bring a size to the dimension in which an operation takes it, each with its condition.

A size that is asked for may stand elsewhere in a tensor. Each way says what the dimensions would
have to be, since their sizes alone do not tell what they mean.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from torchtap.failures.failure import Failure
from torchtap.failures.operands import Operand
from torchtap.failures.parsed_source import expression_of, grouped

_RESHAPES = ("view", "reshape", "flatten", "view_as", "reshape_as")
_RESHAPED = re.compile(r"\b(view|reshape|flatten)\(")
RESHAPING = ("ViewBackward0", "ReshapeAliasBackward0", "UnsafeViewBackward0")
"""Classes of the nodes of a graph that a reshape makes."""


def to_the_end(name: str, shape: Sequence[int], wanted: int) -> Iterator[str]:
    """Yield the ways to bring a size to the last dimension.

    Args:
        name: of the tensor, in the program.
        shape: of the tensor.
        wanted: the size that its last dimension is to have.
    """
    it, num = grouped(name), len(shape)
    fitting = [at for at in range(1, num - 1) if math.prod(shape[at:]) == wanted]
    if fitting:
        at = fitting[0]
        yield (
            f"If {_sizes(shape[at:])} are what belongs to one row, flatten them: "
            f"{it}.flatten({at}), or nn.Flatten({'' if at == 1 else at}) before the module."
        )
        return
    if num == 4 and shape[1] * shape[3] == wanted and 1 not in (shape[1], shape[3]):
        yield (
            "If dimension 1 holds the heads of an attention, join them behind the positions: "
            f"{it}.transpose(1, 2).flatten(2)."
        )
    yield from moved(it, shape, wanted, num - 1)


def moved(it: str, shape: Sequence[int], wanted: int, place: int) -> Iterator[str]:
    """Yield the ways to move a dimension of a size to the place where it is taken."""
    for at in range(len(shape)):
        if at == place or shape[at] != wanted or shape[place] == wanted:
            continue
        if len(shape) == 2:
            yield f"If its {wanted} rows are the features, transpose it: {it}.mT."
        elif at or place != 1:
            new = f"{it}.mT" if {at, place} == {len(shape) - 1, len(shape) - 2} else ""
            new = new or f"{it}.movedim({at}, {place})"
            yield f"If dimension {at}, of {wanted}, holds the features, move it: {new}."


def _sizes(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def reshaped_from(failure: Failure, operand: Operand) -> list[int] | None:
    """Return the shape that a tensor had before the program reshaped it; ``None`` if not known."""
    value, user = operand.value, failure.user
    if not isinstance(value, Tensor):
        return None
    name, origin = failure.name_of(operand), failure.origin(operand)
    match expression_of(name):
        case ast.Call(func=ast.Attribute(value=base, attr=attr)) if (
            attr in _RESHAPES and user is not None
        ):
            held = user.value_of(base)
            if isinstance(held, Tensor) and held.numel() == value.numel():
                return list(held.shape)
    is_flat = isinstance(origin.module, nn.Flatten)
    if not is_flat and not _RESHAPED.search(f"{name} {origin.text}"):
        return None
    saved = getattr(value.grad_fn, "_saved_self_sym_sizes", None)
    if saved is not None and type(value.grad_fn).__name__ in RESHAPING:
        return [int(size) for size in saved]
    # A Flatten in front of all layers: what the program gave has as many elements.
    if not is_flat or user is None or not isinstance(user.expression, ast.Call):
        return None
    for one in user.expression.args:
        held = user.value_of(one)
        if isinstance(held, Tensor) and held.numel() == value.numel():
            return list(held.shape)
    return None


def broadcasts(one: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether two shapes are repeated to each other."""
    ends = zip(reversed(one), reversed(other), strict=False)
    return all(a == b or 1 in (a, b) for a, b in ends)


def aligned(name: str, low: Sequence[int], other: str, high: Sequence[int]) -> Iterator[str]:
    """Yield where the dimensions of a tensor may stand among those of one that has more."""
    it, num = grouped(name), len(high)
    every = list(itertools.combinations(range(num), len(low)))[:-1]  # The last is the usual one.
    exact = [
        one
        for one in every
        if all(size in (1, high[at]) for size, at in zip(low, one, strict=True))
    ]
    repeated = [one for one in every if broadcasts(low, [high[at] for at in one])]
    for chosen in (exact or repeated)[:3]:
        index = [":" if at in chosen else "None" for at in range(chosen[0], num)]
        which = " and ".join(map(str, chosen))
        if len(chosen) == 1:
            said = f"If {name} has one number for each of the {low[0]} in dimension {which} of "
            yield f"{said}{other}, say so: {it}[{', '.join(index)}]."
        else:
            said = f"If its dimensions are the dimensions {which} of {other}, say so: "
            yield f"{said}{it}[{', '.join(index)}]."


def exchanged(name: str, shape: Sequence[int], other: Sequence[int]) -> Iterator[str]:
    """Yield the exchange of two dimensions that makes a tensor fit another one, if one alone."""
    if len(shape) != len(other):
        return
    fitting = []
    for one, two in itertools.combinations(range(len(shape)), 2):
        new = list(shape)
        new[one], new[two] = new[two], new[one]
        # A size that fits because it is repeated is no evidence.
        is_sure = all(new[at] == other[at] > 1 for at in (one, two))
        if new != list(shape) and is_sure and broadcasts(new, other):
            fitting.append((one, two))
    if len(fitting) == 1:
        one, two = fitting[0]
        new_text = f"{grouped(name)}.transpose({one}, {two})"
        if len(shape) > 1 and (one, two) == (len(shape) - 2, len(shape) - 1):
            new_text = f"{grouped(name)}.mT"
        yield (
            f"If dimensions {one} and {two} of {name} stand in another order than in the other, "
            f"exchange them: {new_text}."
        )


def turned_channels(a: str, one: Sequence[int], b: str, other: Sequence[int]) -> Iterator[str]:
    """Yield the way out where one of two batches of pictures has its channels last.

    The other may have one channel, which is repeated, or as many.
    """
    for name, here, there in ((a, one, other), (b, other, one)):
        if len(here) != 4 or len(there) != 4 or here[0] != there[0]:
            continue
        is_last = list(here[1:3]) == list(there[2:]) and there[1] in (1, here[3])
        if is_last and list(here[2:]) != list(there[2:]):
            yield (
                f"If the channels of {name} stand last, put them behind the batch: "
                f"{grouped(name)}.movedim(-1, 1)."
            )
            return


def maps_of_one_size(a: str, one: Sequence[int], b: str, other: Sequence[int]) -> Iterator[str]:
    """Yield the ways to bring two maps of one input to one size."""
    if len(one) != len(other) or len(one) not in (3, 4, 5) or one[0] != other[0]:
        return
    pairs = list(zip(one[2:], other[2:], strict=True))
    # A sequence of vectors has three dimensions as well: its features differ by more.
    is_near = all(abs(x - y) <= max(2, x // 8) for x, y in pairs)
    if all(x == y for x, y in pairs) or not (is_near or len(one) > 3):
        return
    name, large = (a, b) if math.prod(one[2:]) < math.prod(other[2:]) else (b, a)
    index = ", ".join(f":{min(pair)}" for pair in pairs)
    if is_near:
        yield (
            "If both are maps of one input, whose size a stride has rounded, resize one: "
            f"F.interpolate({name}, size={grouped(large)}.shape[2:]); or cut the other: "
            f"{grouped(large)}[:, :, {index}]."
        )
        yield (
            "Or round alike where they are made: output_padding of a transposed convolution, "
            "ceil_mode=True of a pool, padding of a convolution; inputs whose sides are multiples "
            "of all strides together are not rounded at all, and fewer levels round less."
        )
    else:
        yield (
            "If both are maps of one input, make convolutions keep its size, with padding of half "
            f"the kernel, and strides and scales undo each other; or resize one: F.interpolate("
            f"{name}, size={grouped(large)}.shape[2:]); or crop the other around its middle."
        )


def several_for_one(name: str, low: int, high: int) -> Iterator[str]:
    """Yield the way out where one of a tensor may stand for several of the other."""
    if 0 < low < high and high % low == 0:
        yield (
            f"If one of {name} stands for {high // low} of the other, as one text for several "
            f"pictures, repeat it where it is made: x.repeat({high // low}, 1, ...) in the order "
            f"of the others, or repeat_interleave({high // low}, 0)."
        )


def samples_of_one_batch(sizes: Sequence[int]) -> str:
    """Return the way out where two tensors have different numbers of samples."""
    low, high = sorted(sizes)
    return (
        f"If the samples of a batch stand there, give both the same ones; the last batch of a "
        f"loader may be smaller ({low} for {high}): take the number from it, len(x), wherever a "
        "number stands in its place, or leave that batch out, drop_last=True."
    )


def without_the_call(failure: Failure, operand: Operand, wanted: int) -> Iterator[str]:
    """Yield the way out where a method took away a last dimension that would fit."""
    frame, node = failure.user, expression_of(failure.name_of(operand))
    if frame is None or not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    base = frame.value_of(node.func.value)
    if isinstance(base, Tensor) and base.dim() and base.shape[-1] == wanted:
        text = ast.unparse(node.func.value)
        yield (
            f"{text}, {list(base.shape)}, ends with {wanted}, and .{node.func.attr}(...) took that "
            "away: give it another dimension, or leave it out."
        )

"""Tensors that are put together, whose shapes do not fit."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from torchtap.failures.derived_shapes import shaped_operands
from torchtap.failures.failure import Failure
from torchtap.failures.lost_dimensions import kept_dimension
from torchtap.failures.operands import Operand
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.rearrangements import maps_of_one_size, samples_of_one_batch
from torchtap.failures.situation_row import Situation, SituationRow


def _concatenation(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    names = [failure.name_of(one) for one in failure.operands]
    at = int(found["at"])
    first = names[0] if names else "the first"
    other = names[at] if at < len(names) else f"tensor {at}"
    pair = [failure.operands[0], failure.operands[at]] if at < len(names) else []
    shapes = [list(one.value.shape) for one in pair if isinstance(one.value, Tensor)]
    return {
        "ways": tuple(_ways_to_concatenate(failure, found, first, other, shapes)),
        "first": first,
        "other": other,
    }


def _ways_to_concatenate(
    failure: Failure, found: re.Match[str], first: str, other: str, shapes: list[list[int]]
) -> Iterator[str]:
    """Yield the ways out of sizes that differ beside the dimension of a concatenation."""
    dim = int(found["dim"])
    repeated = _repeated(failure, dim, int(found["at"]))
    if repeated:
        yield repeated
    if len(shapes) != 2 or len(shapes[0]) != len(shapes[1]):
        return
    one, two = shapes
    differing = [at for at, (a, b) in enumerate(zip(one, two, strict=True)) if a != b]
    turned = list(_turned_channels(first, one, other, two)) if dim == 1 else []
    is_sized = min([*one[2:], *two[2:], 2]) > 1  # A side of one is a step or a token, and no map.
    is_of_maps = dim == 1 and is_sized and not turned
    maps = list(maps_of_one_size(first, one, other, two)) if is_of_maps else []
    yield from (*turned, *maps)
    if dim == 0 and differing == [1] and len(one) == 3:
        yield _filled_up(first, one[1], other, two[1])
    if len(differing) == 1 and not maps:
        yield (
            f"If they are parts that follow each other in dimension {differing[0]}, concatenate "
            f"along it: dim={differing[0]}."
        )
    if 0 in differing and dim != 0 and not repeated:
        yield samples_of_one_batch((one[0], two[0]))


def _turned_channels(first: str, one: list[int], other: str, two: list[int]) -> Iterator[str]:
    """Yield the way out where one of two batches of pictures has its channels last."""
    for name, here, there in ((first, one, two), (other, two, one)):
        if (
            len(here) == 4
            and [here[0], *here[1:3]] == [there[0], *there[2:]]
            and here[2:] != there[2:]
        ):
            yield (
                f"If the channels of {name} stand last, put them behind the batch: "
                f"{grouped(name)}.movedim(-1, 1)."
            )


def _filled_up(first: str, one: int, other: str, two: int) -> str:
    """The way to pad the shorter of two batches of sequences, [batch, length, features]."""
    name, short, long = (first, one, two) if one < two else (other, two, one)
    times, rest = divmod(long, short) if short else (0, 1)
    repeated = f"; or repeat it: {grouped(name)}.repeat(1, {times}, 1)" if not rest else ""
    return (
        f"If both are sequences of one batch, {name} is shorter: fill it up to {long} in dimension "
        f"1, F.pad({name}, (0, 0, 0, {long - short})), and mask the padding{repeated}."
    )


def _repeated(failure: Failure, dim: int, at: int) -> str:
    """The way to repeat a tensor of one, such as a token, for each sample; empty if it is none."""
    pair = [failure.operands[0], failure.operands[at]] if at < len(failure.operands) else []
    for one, other in (pair, pair[::-1]) if pair else ():
        if not isinstance(one.value, Tensor) or not isinstance(other.value, Tensor):
            return ""
        here, there = one.value.shape, other.value.shape
        if len(here) != len(there):
            return ""
        differing = [n for n in range(len(here)) if n != dim and here[n] != there[n]]
        if differing and all(here[n] == 1 for n in differing):
            sizes = ", ".join(str(there[n]) if n in differing else "-1" for n in range(len(here)))
            name = failure.name_of(one)
            return (
                f"If {name} has one for all of the other, repeat it along that: "
                f"{grouped(name)}.expand({sizes})."
            )
    return ""


def _concatenation_dims(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    wanted, given = int(found["wanted"]), int(found["given"])
    names = [failure.name_of(one) for one in failure.tensors if one.value.dim() == given]
    low = next((one for one in failure.tensors if one.value.dim() == min(wanted, given)), None)
    squeezed = kept_dimension(failure, low, max(wanted, given)) if low is not None else ""
    way = squeezed or _dims_given(failure, wanted, given)
    return {
        "which": f" ({names[0]})" if names else "",
        "way": way or "Give all of them one number of dimensions.",
    }


def _one_taken(name: str, there: list[int], here: list[int], at: int) -> str:
    """Say how one is taken of a dimension that is all that differs; empty where more does."""
    if [*there[:at], *there[at + 1 :]] != here:
        return ""
    if there[at] == 1:
        return (
            f"If the dimension of one of {name} is left over, take it away: "
            f"{grouped(name)}.squeeze({at}). "
        )
    taken = f"{grouped(name)}[{':, ' * at}i]"
    return f"If one of the {there[at]} in dimension {at} of {name} is meant, take it: {taken}. "


def _dims_given(failure: Failure, *dims: int) -> str:
    """Return how the tensor with fewer dimensions can stand beside the other; empty if unknown."""
    low = next((one for one in failure.tensors if one.value.dim() == min(dims)), None)
    high = next((one for one in failure.tensors if one.value.dim() == max(dims)), None)
    along = _dim_given(failure)
    if low is None or high is None or along is None:
        return ""
    if max(dims) - min(dims) != 1:
        return _at_each_place(failure, low, high)
    name, here, there = failure.name_of(low), list(low.value.shape), list(high.value.shape)
    along %= len(there)
    for is_repeated in (False, True):
        for at in range(len(there)):
            new = [*here[:at], 1, *here[at:]]
            differs = [one for one in range(len(new)) if one != along and new[one] != there[one]]
            if not differs and not is_repeated:
                longer = "" if at == 0 else _one_taken(failure.name_of(high), there, here, at)
                return (
                    f"{longer}If {name} is one more along dimension {along}, add the dimension "
                    f"that it lacks: {grouped(name)}.unsqueeze({at})."
                )
            if differs == [at] and is_repeated:
                sizes = ", ".join(str(there[one]) if one == at else "-1" for one in range(len(new)))
                text = f"{grouped(name)}.unsqueeze({at}).expand({sizes})"
                return f"If {name} goes with each of the {there[at]}, repeat it: {text}."
    return ""


def _at_each_place(failure: Failure, low: Operand, high: Operand) -> str:
    """Return how the numbers of each sample stand at each place of a map; empty if they do not."""
    here, there = list(low.value.shape), list(high.value.shape)
    if len(here) != 2 or len(there) < 3 or here[0] != there[0]:
        return ""
    ones, sizes = ", None" * (len(there) - 2), ", ".join(map(str, there[2:]))
    name = failure.name_of(low)
    return (
        f"If {name} has numbers for each sample, put them at each place: {grouped(name)}[:, :"
        f"{ones}].expand(-1, -1, {sizes})."
    )


def _dim_given(failure: Failure) -> int | None:
    """The dimension along which tensors are concatenated, where the call tells."""
    if not failure.operands:
        return None
    frame = failure.frames[failure.operands[0].depth]
    node = frame.expression
    if not isinstance(node, ast.Call):
        return None
    given = [one.value for one in node.keywords if one.arg in ("dim", "axis")]
    value = frame.value_of(given[0] if given else node.args[1]) if given or node.args[1:] else 0
    return value if type(value) is int else None


def _arguments(failure: Failure) -> list[str]:
    """The arguments of the program's call, as they are written."""
    node = None if failure.user is None else failure.user.expression
    return [written(one) for one in node.args] if isinstance(node, ast.Call) else []


def _joined(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    frame = failure.user
    given = _arguments(failure)
    node = None if frame is None else frame.expression
    values = [frame.value_of(one) for one in getattr(node, "args", []) if frame is not None]
    tensors = [text for text, one in zip(given, values, strict=True) if isinstance(one, Tensor)]
    first = next((one for one in values if isinstance(one, Tensor)), None)
    return {
        "several": f"torch.{found['op']}([{', '.join(tensors)}])" if len(tensors) > 1 else "",
        "one": tensors[0] if len(tensors) == 1 and first is not None and first.dim() > 1 else "",
        "call": f"torch.{found['op']}",
    }


def _numbers(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Tell numbers alone, which are stacked, from one that is put behind a tensor."""
    every = [one for one in shaped_operands(failure) if isinstance(one.value, Tensor)]
    single = [failure.name_of(one) for one in every if not one.value.dim()]
    # PyTorch names the first that has none: those before it have dimensions.
    is_mixed = int(found["at"]) > 0 or len(single) < len(every) or not every
    node = None if failure.user is None else failure.user.expression
    given = node.args[0] if isinstance(node, ast.Call) and node.args else None
    parts = given.elts if isinstance(given, ast.Tuple | ast.List) else []
    at = int(found["at"])
    number = written(parts[at]) if at < len(parts) else next(iter(single), "x")
    return {
        "number": number,
        "is_mixed": is_mixed,
        "listed": "" if is_mixed or given is None else f"torch.stack({written(given)})",
    }


SITUATIONS: dict[str, Situation] = {
    "concatenation": SituationRow(
        "{other} has {given} where {first} has {wanted}, in a dimension other than {dim}, along "
        "which they are concatenated.",
        "If {other} is to have {wanted} there, make what produces it give that, pad it or cut it.",
        about="tensors",
        facts=_concatenation,
    ),
    "concatenation of dimensions": SituationRow(
        "Tensors that are concatenated have one number of dimensions; these have {wanted} and "
        "{given}{which}.",
        "{way}",
        about="tensors",
        facts=_concatenation_dims,
    ),
    "one tensor to join": SituationRow(
        "{call} takes a list or tuple of tensors, and got a tensor.",
        ("several", "Put them into a list: {several}."),
        (
            "one",
            "{one} is joined already; to put its rows one behind the other: "
            "{one_it}.flatten(0, 1).",
        ),
        facts=_joined,
    ),
    "numbers to concatenate": SituationRow(
        "{number} is one number, a tensor of 0 dimensions, and torch.cat joins along a dimension "
        "that each has.",
        ("listed", "Stack them, which makes the dimension: {listed}."),
        (
            "is_mixed",
            "If it is one more element behind the others, give it the dimension: "
            "{number_it}.unsqueeze(0).",
        ),
        (
            "is_mixed",
            "If all are numbers, stack them, which makes the dimension: torch.stack(...).",
        ),
        about="tensors",
        facts=_numbers,
    ),
}

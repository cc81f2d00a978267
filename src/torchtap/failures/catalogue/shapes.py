"""Shapes that do not fit: broadcasting, concatenation, views, dimensions."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from torchtap.failures.failure import Explanation, Failure
from torchtap.failures.lost_dimensions import kept_dimension
from torchtap.failures.operands import Operand, bounds_of, parts_of_expression, shape_text
from torchtap.failures.out_of_place import out_of_place, statement_of
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.situation_row import Situation, SituationRow
from torchtap.failures.traceback_frame import MISSING


def _broadcast(failure: Failure, found: re.Match[str]) -> Explanation:
    chosen = _disagreeing(failure, found)
    state = _state_of_optimizer(failure)
    if state is not None:
        return state
    sizes = (
        f"{found['a']} and {found['b']} elements in dimension {found['dim']} of the result, and "
        f"only a size of 1 is repeated"
    )
    if not chosen:
        return Explanation(
            f"Two of the operands have {sizes}.",
            (
                *_tables(failure, found, None),
                "Give all operands one size there, or size 1, which is repeated.",
            ),
            failure.details(),
        )
    a, b = (failure.name_of(one) for one in chosen)
    shapes = " and ".join(filter(None, (shape_text(one.value) for one in chosen)))
    ways = [
        f"Make what produces {a} or {b} give both one size there, or size 1, which is repeated."
    ]
    ways = [*_cut_masks(found, a, b), *_tables(failure, found, chosen), *ways]
    classes = list(_numbers_of_classes(failure, found, chosen))
    ways = [*classes, *_for_each_sample(failure, found, chosen), *ways]
    if all(isinstance(one.value, Tensor) for one in chosen) and not classes:
        ways = [*_fitting(failure, a, b, chosen[0].value, chosen[1].value), *ways]
    return Explanation(
        f"{a} and {b} have {sizes}{f' ({shapes})' if shapes else ''}.",
        tuple(ways),
        failure.details(),
    )


def _state_of_optimizer(failure: Failure) -> Explanation | None:
    """The explanation, where an optimizer's state has another shape than its parameter."""
    owner = next((one.owner for one in failure.frames if isinstance(one.owner, Optimizer)), None)
    if owner is None or not failure.frames[-1].is_torch:
        return None
    for parameter, held in owner.state.items():
        wrong = [
            (key, one)
            for key, one in held.items()
            if isinstance(one, Tensor) and one.dim() and one.shape != parameter.shape
        ]
        if wrong:
            state = failure.names.state(parameter)
            name = "a parameter" if state is None else state.name
            return Explanation(
                f"The state that the {type(owner).__name__} holds of {name} ({wrong[0][0]}, "
                f"{shape_text(wrong[0][1])}) does not have the shape of the parameter, "
                f"{list(parameter.shape)}: the state was saved of parameters in another order, or "
                "of another model.",
                (
                    "Make the optimizer of the same parameters, in the same order, as the one that "
                    "was saved: an optimizer knows them by their number alone.",
                    "Begin with an empty state: do not load that of the optimizer.",
                ),
            )
    return None


def _disagreeing(failure: Failure, found: re.Match[str]) -> list[Operand]:
    """The two operands of the two sizes, in the order of the message; none if that is not sure."""
    sizes, dim = (int(found["a"]), int(found["b"])), int(found["dim"])
    num = max((one.value.dim() for one in failure.tensors), default=0)

    def size(one: Operand) -> int | None:
        at = dim - (num - one.value.dim())
        return one.value.shape[at] if 0 <= at < one.value.dim() else None

    pairs = itertools.permutations(failure.tensors, 2)
    fitting = [list(pair) for pair in pairs if tuple(map(size, pair)) == sizes]
    if len(fitting) == 1:
        return fitting[0]
    node = failure.frames[failure.operands[0].depth].expression if failure.operands else None
    is_pair = isinstance(node, ast.BinOp | ast.AugAssign) and len(failure.operands) == 2
    is_known = len(failure.tensors) == 2 and not fitting
    return list(failure.operands) if is_pair and not is_known else []


def _numbers_of_classes(
    failure: Failure, found: re.Match[str], chosen: Sequence[Operand]
) -> Iterator[str]:
    """Yield the way to give each class a place, where one operand holds their numbers."""
    for one, other in (chosen, chosen[::-1]):
        value, sizes = one.value, [int(found["a"]), int(found["b"])]
        is_vector = isinstance(value, Tensor) and value.dim() == 1 and int(found["dim"]) == 1
        if not is_vector or value.is_floating_point() or value.dtype is torch.bool:
            continue
        classes = sizes[1 if one is chosen[0] else 0]
        known = bounds_of(value)
        if known is not None and known[0] >= 0 and known[1] < classes:
            name, scores = failure.name_of(one), failure.name_of(other)
            if _compares(failure):
                greatest = f"{grouped(scores)}.argmax(1)"
                yield f"If {scores} holds scores, take the class of the greatest: {greatest}."
                return
            yield (
                f"If {name} holds the number of a class for each row of {scores}, give each class "
                f"a place of its own: F.one_hot({name}, {classes})."
            )


def _compares(failure: Failure) -> bool:
    node = failure.frames[failure.operands[0].depth].expression if failure.operands else None
    return isinstance(node, ast.Compare)


def _for_each_sample(
    failure: Failure, found: re.Match[str], chosen: Sequence[Operand]
) -> Iterator[str]:
    """Yield the way to multiply each sample by a number that is computed in the expression."""
    for one, other in (chosen, chosen[::-1]):
        size = int(found["a" if one is chosen[0] else "b"])
        shape = list(other.value.shape) if isinstance(other.value, Tensor) else []
        is_last = len(shape) > 1 and int(found["dim"]) == len(shape) - 1
        if one.value is MISSING and is_last and size == shape[0] != shape[-1]:
            ones = ", ".join(["None"] * (len(shape) - 1))
            yield (
                f"If it is one number for each sample, say so: {grouped(failure.name_of(one))}[:, "
                f"{ones}]."
            )


def _tables(
    failure: Failure, found: re.Match[str], chosen: Sequence[Operand] | None
) -> Iterator[str]:
    """Yield the ways out where one operand is a table of positions, or a part of one."""
    node = failure.frames[failure.operands[0].depth].expression if failure.operands else None
    frame = failure.frames[failure.operands[0].depth] if failure.operands else None
    sizes, dim = (int(found["a"]), int(found["b"])), int(found["dim"])
    for part in parts_of_expression(node) if frame is not None else ():
        for inner in ast.walk(part):
            is_named = isinstance(inner, ast.Attribute)
            state = failure.names.state(frame.value_of(inner)) if is_named and frame else None
            if state is None or frame is None:
                continue
            shape, text = list(state.tensor.shape), written(part, frame.file)
            is_square = len(shape) > 1 and shape[-1] == shape[-2]
            yield from _turned_table(shape, text, inner is part, chosen, found)
            num = _dims_of_result(failure, shape)
            is_position = is_square or (dim == num - 2 < 2 and shape[-1] > 1)
            length = next((one for one in sizes if one in shape and one > 1), 0)
            longer = sum(sizes) - length
            if is_position and length and longer > length:
                table = written(inner, frame.file)
                yield (
                    f"Give an input of at most {length} there, or make {table} longer: it has "
                    f"{length} positions."
                )
            elif is_position and length and inner is part and dim - num + len(shape) >= 0:
                cut = f"{':, ' * (dim - num + len(shape))}:{longer}"
                yield f"Take as many of {text} as there are: {text}[{cut}]."
            return


def _dims_of_result(failure: Failure, shape: Sequence[int]) -> int:
    return max([int(one.value.dim()) for one in failure.tensors] + [len(shape)])


def _turned_table(
    shape: Sequence[int],
    text: str,
    is_whole: bool,
    chosen: Sequence[Operand] | None,
    found: re.Match[str],
) -> Iterator[str]:
    """Yield the way out where the positions stand first in a table, and second in the input."""
    others = [one.value for one in chosen or () if isinstance(one.value, Tensor)]
    other = next((one for one in others if list(one.shape) != list(shape)), None)
    is_column = len(shape) == 3 and shape[1] == 1 and int(found["dim"]) == 0 and not is_whole
    if other is None or other.dim() != 3 or not is_column:
        return
    if sorted(other.shape[:2]) == sorted((int(found["a"]), int(found["b"]))):
        yield (
            f"If the batch stands first in the input, bring the positions to the second place: "
            f"{grouped(text)}.transpose(0, 1)."
        )


def _cut_masks(found: re.Match[str], a: str, b: str) -> Iterator[str]:
    """Yield the way to cut a mask that covers more than there is."""
    sizes = {a: int(found["a"]), b: int(found["b"])}
    for name, other in ((a, b), (b, a)):
        if "mask" in name and "mask" not in other and sizes[name] > sizes[other] > 1:
            part = f"{':, ' * int(found['dim'])}:{sizes[other]}"
            yield (
                f"If {other} was cut to the first {sizes[other]}, cut the mask as well: "
                f"{grouped(name)}[{part}]."
            )


def _fitting(failure: Failure, a: str, b: str, one: Tensor, other: Tensor) -> Iterator[str]:
    """Yield the ways to make two tensors fit each other."""
    if one.dim() != other.dim():
        low, name = (one, a) if one.dim() < other.dim() else (other, b)
        high = other if low is one else one
        placed = list(_placed(failure, name, low, high))
        is_loss = any(one.code.co_name.endswith("_loss") for one in failure.frames if one.is_torch)
        if low.dim() + 1 == high.dim() and _broadcasts((*low.shape, 1), high.shape):
            it = grouped(name)
            if is_loss:
                yield (
                    f"A loss compares element by element: make the model return one number for "
                    f"each of {name}, by a last layer of one feature and .squeeze(-1)."
                )
            else:
                yield f"Say where the missing dimension is: {it}.unsqueeze(-1), or {it}[..., None]."
        else:
            yield from placed
    elif _is_turned(one, other):
        yield (
            f"If batch and time stand in another order in one of them, turn it round: "
            f"{grouped(b)}.transpose(0, 1)."
        )
    elif one.dim() > 1 and one.shape == other.mT.shape:
        yield f"Bring them into one order: {grouped(b)}.mT."
    elif one.numel() == other.numel():
        reshaped = f"{grouped(b)}.reshape({grouped(a)}.shape)"
        yield f"Bring them to one shape, if the order is the same: {reshaped}."
    else:
        yield from _of_a_block(a, b, one, other)


def _is_turned(one: Tensor, other: Tensor) -> bool:
    """Return whether batch and time of two tensors of three dimensions are exchanged."""
    if one.dim() != 3 or 1 in (*one.shape, *other.shape):
        return False
    return one.shape == other.transpose(0, 1).shape != other.shape


def _of_a_block(a: str, b: str, one: Tensor, other: Tensor) -> Iterator[str]:
    """Yield the way to bring the shortcut of a block to the shape of its output."""
    if one.dim() != 4 or other.dim() != 4 or one.shape[0] != other.shape[0]:
        return
    (name, large), small = ((a, one), other) if one.shape[2] > other.shape[2] else ((b, other), one)
    steps = [-(-have // want) for have, want in zip(large.shape[2:], small.shape[2:], strict=True)]
    fits = steps[0] == steps[1] and all(
        (have - 1) // steps[0] + 1 == want
        for have, want in zip(large.shape[2:], small.shape[2:], strict=True)
    )
    if fits and (steps[0] > 1 or large.shape[1] != small.shape[1]):
        stride = f", stride={steps[0]}" if steps[0] > 1 else ""
        yield (
            f"If {name} is the shortcut of a block, bring it to the shape of the other by a "
            f"convolution of its own: nn.Conv2d({large.shape[1]}, {small.shape[1]}, 1{stride})."
        )


def _placed(failure: Failure, name: str, low: Tensor, high: Tensor) -> Iterator[str]:
    """Yield where the dimensions of a tensor stand among those of one that has more."""
    here, there = tuple(low.shape), tuple(high.shape)
    it, num = grouped(name), low.dim()
    if any(one.code.co_name.endswith("_loss") for one in failure.frames if one.is_torch):
        return  # The elements of a loss are compared, and not repeated.
    if num == 2 and high.dim() > 2 and here == (there[0], there[-1]) and "mask" in name:
        middle = ", ".join(["None"] * (high.dim() - 2))
        yield (
            f"If it says which places of each sample are hidden, say where they stand: "
            f"{it}[:, {middle}, :]."
        )
        return
    fitting = [at for at in range(high.dim() - num) if there[at : at + num] == here]
    between = [
        at for at in range(1, num) if here[:at] == there[:at] and here[at:] == there[at + 1 :]
    ]
    if num + 1 == high.dim() and len(between) == 1 and not fitting:
        yield f"Say where the missing dimension is: {it}.unsqueeze({between[0]})."
    for at in fitting:
        ones = ", ".join(["None"] * (high.dim() - num - at))
        which = "If its first is the batch, say" if at == 0 and len(fitting) > 1 else "Say"
        yield f"{which} where the missing dimensions are: {it}[{':, ' * num}{ones}]."


def _broadcasts(one: Sequence[int], other: Sequence[int]) -> bool:
    ends = zip(reversed(one), reversed(other), strict=False)
    return all(a == b or 1 in (a, b) for a, b in ends)


def _concatenation(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    names = [failure.name_of(one) for one in failure.operands]
    at = int(found["at"])
    return {
        "repeated": _repeated(failure, int(found["dim"]), int(found["at"])),
        "first": names[0] if names else "the first",
        "other": names[at] if at < len(names) else f"tensor {at}",
    }


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
            return f"Repeat {name} along what it has one of: {grouped(name)}.expand({sizes})."
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


def _dims_given(failure: Failure, *dims: int) -> str:
    """Return how the tensor with fewer dimensions can stand beside the other; empty if unknown."""
    low = next((one for one in failure.tensors if one.value.dim() == min(dims)), None)
    high = next((one for one in failure.tensors if one.value.dim() == max(dims)), None)
    along = _dim_given(failure)
    if low is None or high is None or along is None or max(dims) - min(dims) != 1:
        return ""
    name, here, there = failure.name_of(low), list(low.value.shape), list(high.value.shape)
    along %= len(there)
    for is_repeated in (False, True):
        for at in range(len(there)):
            new = [*here[:at], 1, *here[at:]]
            differs = [one for one in range(len(new)) if one != along and new[one] != there[one]]
            if not differs and not is_repeated:
                return f"Give {name} the dimension that it lacks: {grouped(name)}.unsqueeze({at})."
            if differs == [at] and is_repeated:
                sizes = ", ".join(str(there[one]) if one == at else "-1" for one in range(len(new)))
                text = f"{grouped(name)}.unsqueeze({at}).expand({sizes})"
                return f"Repeat {name} along the dimension that it lacks: {text}."
    return ""


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


def _of_attention(failure: Failure) -> Explanation | None:
    """The explanation, where query and key of an attention have their batches elsewhere."""
    names = [one.code.co_name for one in failure.frames]
    if "multi_head_attention_forward" not in names or not failure.module_text:
        return None
    held = failure.frames[names.index("multi_head_attention_forward")].frame.f_locals
    query, key = held.get("query"), held.get("key")
    if not isinstance(query, Tensor) or not isinstance(key, Tensor) or query.dim() != key.dim():
        return None
    is_first = getattr(failure.module, "batch_first", True)
    if is_first or query.dim() != 3 or query.shape[1] == key.shape[1]:
        return None
    given = f"{query.shape[1]} in the query, {list(query.shape)}, and {key.shape[1]} in the key"
    return Explanation(
        f"{failure.module_text} takes [time, batch, features], and dimension 1, the batch, has "
        f"{given}, {list(key.shape)}.",
        (
            "If the batch stands first, say so where it is made: "
            f"{failure.names.variable(failure.module)} = nn.MultiheadAttention(..., "
            "batch_first=True).",
            "Or turn query, key and value, x.transpose(0, 1), and the output back.",
        ),
        failure.details(),
    )


def _reshape(failure: Failure, found: re.Match[str]) -> Explanation:
    attention = _of_attention(failure)
    if attention is not None:
        return attention
    operand = failure.argument()
    name, value = failure.name_of(operand), operand.value
    given, it = shape_text(value), grouped(name)
    ways = ["Let one dimension be computed: -1 in its place, and check that the others divide."]
    sizes = [int(one) for one in re.findall(r"-?\d+", found["shape"])]
    ones = len(sizes) - value.dim() if isinstance(value, Tensor) else 0
    if isinstance(value, Tensor) and ones > 0 and sizes[:ones] == [1] * ones and -1 not in sizes:
        added = ", ".join(["None"] * ones)
        ways = [
            f"If dimensions of one are to be put in front, keep its own sizes: {it}[{added}].",
            f"Give sizes whose product is {found['numel']}; it is {math.prod(sizes)}.",
        ]
    elif -1 in sizes and not (isinstance(value, Tensor) and value.dim() > 1 and sizes[0] == -1):
        known = math.prod(one for one in sizes if one != -1)
        ways = [
            f"Give sizes that {found['numel']} can be divided by: -1 stands for what is left, and "
            f"{found['numel']} is no multiple of {known}."
        ]
    elif isinstance(value, Tensor) and value.dim() > 1 and -1 in sizes:
        ways = [
            f"Keep the batch and flatten the rest: {it}.flatten(1); then fit what follows to it."
        ]
    elif not _can_be_computed(sizes, int(found["numel"])):
        ways = [f"Give sizes whose product is {found['numel']}; it is {math.prod(sizes)}."]
    elif isinstance(value, Tensor) and sizes[:1] == list(value.shape[:1]):
        ways.insert(0, f"Give sizes whose product is {found['numel']}; it is {math.prod(sizes)}.")
    elif isinstance(value, Tensor) and value.dim() > 1:
        ways.insert(0, f"Keep the batch: {it}.flatten(1), or {it}.view({it}.size(0), -1).")
    return Explanation(
        f"{name} ({f'{given}, ' if given else ''}{found['numel']} elements) cannot take the shape "
        f"{found['shape']}.",
        tuple(ways),
        failure.details(operand),
    )


def _can_be_computed(sizes: Sequence[int], numel: int) -> bool:
    """Return whether -1 in the place of one of the sizes would give a shape that fits."""
    others = [math.prod(sizes[:at]) * math.prod(sizes[at + 1 :]) for at in range(len(sizes))]
    return any(one and numel % one == 0 for one in others)


def _in_place(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    new = "" if failure.user is None else out_of_place(statement_of(failure.user))
    given, wanted = (
        [int(one) for one in re.findall(r"\d+", found[key])] for key in ("given", "wanted")
    )
    is_repeated = len(given) == len(wanted) and all(
        a in (b, 1) for a, b in zip(given, wanted, strict=True)
    )
    return {"new": new, "is_other": not new, "is_repeated": is_repeated}


def _expand(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say whether what is expanded is a part of a buffer or parameter, such as of positions."""
    operand = failure.argument()
    value = operand.value
    if value is MISSING and failure.operands:  # A slice has no value of its own to be read.
        frame = failure.frames[operand.depth]
        node = frame.expression
        whole = (
            node.func.value
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            else None
        )
        value = frame.value_of(whole.value) if isinstance(whole, ast.Subscript) else MISSING
    state = failure.names.state(value)
    given, dim = int(found["given"]), int(found["dim"])
    is_all = isinstance(value, Tensor) and state is not None and given in state.tensor.shape
    is_table = is_all and 1 < given < int(found["wanted"]) and dim > 0
    name = state.name if state is not None and is_table else ""
    part = _written_part(failure)
    sentence = (
        f"{part['part']} has the shape {part['there']}, and is given a value of "
        f"{part['given_sizes']}."
        if part["part"]
        else f"{failure.name_of(operand)} has {given} in dimension {dim}, which was to be "
        f"{found['wanted']}: expand repeats a size of 1 alone."
    )
    return {
        "table": name,
        "is_free": not name and not part["part"],
        "sentence": sentence,
        **part,
    }


def _written_part(failure: Failure) -> Mapping[str, Any]:
    """The part of a tensor that a statement writes into, and its shape and that of the value."""
    statement = None if failure.user is None else statement_of(failure.user)
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    sizes = [
        [int(one) for one in re.findall(r"\d+", part)]
        for part in re.findall(r"(?:Target|Tensor) sizes: \[(.*?)\]", failure.text)
    ]
    words = {"part": "", "there": [], "given_sizes": [], "cut": ""}
    if not isinstance(target, ast.Subscript) or len(sizes) != 2:
        return words
    there, given = sizes
    value = grouped(written(statement.value))  # type: ignore[union-attr]
    is_longer = len(there) == len(given) and all(a >= b for a, b in zip(given, there, strict=True))
    index = ", ".join(f":{b}" if a > b else ":" for a, b in zip(given, there, strict=False))
    return {
        "part": written(target),
        "there": there,
        "given_sizes": given,
        "cut": f"{value}[{index}]" if is_longer else "",
    }


def _strides(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value = failure.argument().value
    return {"stride": f" (stride {tuple(value.stride())})" if isinstance(value, Tensor) else ""}


def _dimension(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    operand, value = failure.argument(), failure.argument().value
    dim = int(found["dim"])
    wanted = dim + 1 if dim >= 0 else -dim
    return {
        "num": value.dim() if isinstance(value, Tensor) else int(found["high"]) + 1,
        "squeezed": kept_dimension(failure, operand, wanted),
    }


def _letters(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    at = int(found["at"])
    tensors = failure.tensors
    operand = tensors[at] if at < len(tensors) else Operand(f"operand {at}")
    wanted = int(found["letters"])
    return {
        "name": failure.name_of(operand) if at < len(tensors) else operand.text,
        "squeezed": kept_dimension(failure, operand, wanted),
        "is_more": wanted > int(found["dims"]),
    }


def _repeat(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value = failure.argument().value
    counts = [one.value for one in failure.operands if type(one.value) is int]
    if not isinstance(value, Tensor) or not counts:
        return {"dims": "more", "is_known": False}
    whole = [1] * (value.dim() - len(counts)) + counts
    return {"dims": value.dim(), "is_known": True, "whole": ", ".join(map(str, whole))}


SITUATIONS: dict[str, Situation] = {
    "letters of an einsum": SituationRow(
        "The equation has {letters} letters for {name}, which has {dims} dimensions.",
        ("squeezed", "{squeezed}"),
        "Write one letter for each dimension of it, or ... for those that only go along.",
        (
            "is_more",
            "If a dimension is missing, make it first: {name_it}.unsqueeze(0) for a batch of one, "
            "{name_it}.unflatten(-1, (heads, -1)) for heads.",
        ),
        about="tensors",
        facts=_letters,
    ),
    "dimensions of a repeat": SituationRow(
        "{name} has {dims} dimensions, and repeat was given fewer numbers: it takes one for each.",
        ("is_known", "Give 1 for those that stay: {name_it}.repeat({whole})."),
        about="argument",
        facts=_repeat,
    ),
    "broadcast": _broadcast,
    "dimensions of a permutation": SituationRow(
        "{name} has {given} dimensions, and {wanted} were given an order.",
        ("is_less", "Give {name} the dimension that it lacks before: {name_it}.unsqueeze(-1)."),
        "Name every dimension of it once, {given} of them.",
        about="argument",
        facts=lambda failure, found: {"is_less": int(found["given"]) + 1 == int(found["wanted"])},
    ),
    "broadcast in place": SituationRow(
        "{name} is written into in place and has the shape {given}; the result has {wanted}.",
        (
            "is_repeated",
            "If it is to keep its shape, as a grey picture, give what is computed with it a "
            "size of "
            "1 there: one number, and not one for each of several channels.",
        ),
        ("new", "Make a new tensor of that shape: {new}."),
        ("is_other", "Make a new tensor of that shape: x = x + y for x += y."),
        about="tensors",
        facts=_in_place,
    ),
    "concatenation": SituationRow(
        "{other} has {given} where {first} has {wanted}, in a dimension other than {dim}, along "
        "which they are concatenated.",
        ("repeated", "{repeated}"),
        "Make what produces {other} give {wanted} there (padding, stride, interpolate), or cut it.",
        "Concatenate along the dimension in which they differ: dim=...",
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
    "reshape": _reshape,
    "view of strides": SituationRow(
        "{name} does not lie in memory in the order of its dimensions{stride}, after a transpose, "
        "permute or slice, so that no view of this shape exists.",
        "Copy if necessary: {name_it}.reshape(...) in place of view.",
        "Copy first: {name_it}.contiguous().view(...).",
        about="argument",
        facts=_strides,
    ),
    "expand": SituationRow(
        "{sentence}",
        ("cut", "If the first of them are meant, cut the rest off: {part} = {cut}."),
        ("part", "Give {part} a value of {there}, or of sizes of 1 that are repeated."),
        (
            "table",
            "Give an input of at most {given} there, cut before: {given} are all that {table} has.",
        ),
        ("table", "Make {table} as long as the longest input."),
        ("is_free", "Give a size that is there, or -1 to keep it: {name_it}.expand(-1, ...)."),
        ("is_free", "Copy it several times: {name_it}.repeat(...), or repeat_interleave."),
        about="argument",
        facts=_expand,
    ),
    "no such dimension": SituationRow(
        "Dimension {dim} was asked of {name}, which has {num} dimensions, counted from 0.",
        ("squeezed", "{squeezed}"),
        "Give a dimension from {low} to {high}; -1 is the last.",
        "Keep the dimension where it was lost: keepdim=True of a reduction, x[:1] for x[0].",
        about="argument",
        facts=_dimension,
    ),
}

"""Products of matrices and convolutions whose operands do not fit."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from torchtap.failures.convolution_inputs import explained_channels, explained_dimensions
from torchtap.failures.derived_shapes import shaped_operands
from torchtap.failures.failure import Explanation, Failure
from torchtap.failures.linear_inputs import explained
from torchtap.failures.operands import Operand
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.rearrangements import (
    broadcasts,
    samples_of_one_batch,
    several_for_one,
)
from torchtap.failures.situation_row import Situation, SituationRow


def _matrices(failure: Failure, found: re.Match[str]) -> Explanation:
    module = failure.module
    if isinstance(module, nn.Linear) and failure.running and failure.running.is_torch:
        return explained(failure, module)
    left, right = int(found["left"]), int(found["right"])
    attention = _of_attention(failure, left, right) or _of_batches(failure, found)
    if attention is not None:
        return attention
    chosen, is_linear = _factors(failure, left, right)
    if not chosen:
        return Explanation(
            f"A product sums over a dimension of {left} in one operand and {right} in the other.",
            ("Make what produces one of them so wide that the two numbers are equal.",),
            failure.details(),
        )
    names, values = [failure.name_of(one) for one in chosen], [one.value for one in chosen]
    vectors = [] if is_linear else _vectors(names, values)
    where = "the last" if is_linear else "the first (of matrices: the last but one)"
    return Explanation(
        f"A product sums over the last dimension of {names[0]}, which is {left}, and {where} of "
        f"{names[1]}, which is {right}.",
        (
            *vectors,
            *undone_transpose(failure),
            *(
                _transposed(names, values, is_linear=is_linear)
                if all(isinstance(one, Tensor) for one in values)
                else _transposed_batches(names, values, found)
            ),
            f"Make what produces {names[0]} or {names[1]} so wide that the two numbers are equal.",
        ),
        failure.details(),
    )


def _of_batches(failure: Failure, found: re.Match[str]) -> Explanation | None:
    """Explain a product of batches, where the batches differ and the matrices fit."""
    parts = found.groupdict()
    if not parts.get("n") or parts["n"] == parts["m"] or parts["left"] != parts["right"]:
        return None
    names = [failure.name_of(one) for one in failure.tensors[:2]]
    a, b = names if len(names) == 2 else ("the first", "the second")
    return Explanation(
        f"bmm multiplies each matrix of {a} by one of {b}, and there are {parts['n']} and "
        f"{parts['m']}.",
        (
            samples_of_one_batch((int(parts["n"]), int(parts["m"]))),
            *several_for_one(a if int(parts["n"]) < int(parts["m"]) else b, *_sorted(parts)),
        ),
        failure.details(),
    )


def _sorted(parts: Mapping[str, str]) -> list[int]:
    return sorted((int(parts["n"]), int(parts["m"])))


def _of_attention(failure: Failure, left: int, right: int) -> Explanation | None:
    """Explain an attention whose query, key or value has another width than it was made with."""
    module = failure.module
    if not isinstance(module, nn.MultiheadAttention) or left == module.embed_dim:
        return None
    held = {name: failure.operand(name).value for name in ("query", "key", "value")}
    wrong = [
        name for name, one in held.items() if isinstance(one, Tensor) and one.shape[-1] == left
    ]
    if not wrong:
        return None
    name, it = failure.module_text, failure.names.variable(module)
    heads = "" if left % module.num_heads == 0 else f", with heads that divide {left}"
    ways = [
        f"If {left} is the width of all, make it so: {it} = nn.MultiheadAttention({left}, ..."
        f"){heads}.",
        f"If {right} is, bring them to it before: nn.Linear({left}, {right}).",
    ]
    if "query" not in wrong:
        ways.insert(
            0,
            f"If keys and values are of another width, as of another encoder, say so: {it} = "
            f"nn.MultiheadAttention({module.embed_dim}, ..., kdim={left}, vdim={left}).",
        )
    said = " and ".join(wrong)
    return Explanation(
        f"{name} was made with a width of {right}, and {said} {'have' if wrong[1:] else 'has'} "
        f"{left} features.",
        tuple(ways),
        failure.details(),
    )


def _factors(failure: Failure, left: int, right: int) -> tuple[list[Operand], bool]:
    """The two factors of a product, and whether the second is transposed, as in F.linear.

    None where several operands fit, or one of them is not known.
    """
    operands = [one for one in shaped_operands(failure) if not _is_number(one)]
    tensors = [one for one in operands if isinstance(one.value, Tensor)]
    node = failure.frames[operands[0].depth].expression if operands else None
    name = getattr(getattr(node, "func", None), "attr", "")
    if len(tensors) < len(operands):
        is_pair = len(operands) == 2 and name != "linear"
        return (operands if is_pair else []), False
    if name == "linear":
        return tensors[:2], True
    pairs = [
        [one, other]
        for at, one in enumerate(tensors)
        for other in tensors[at + 1 :]
        if one.value.dim() and other.value.dim()
        if one.value.shape[-1] == left and other.value.shape[-2:][0] == right
    ]
    return (pairs[0] if len(pairs) == 1 else []), False


def _is_number(operand: Operand) -> bool:
    return isinstance(operand.value, int | float | str)


def _vectors(names: list[str], values: list[object]) -> list[str]:
    """Return the way out where the second operand has a vector for each matrix of the first."""
    one, other = values if len(values) == 2 else (None, None)
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return []
    if one.dim() != 3 or tuple(other.shape) != (one.shape[0], one.shape[2]):
        return []
    product = f"({grouped(names[0])} @ {grouped(names[1])}[..., None])[..., 0]"
    return [f"If {names[1]} has a vector for each sample, make it a matrix: {product}."]


def _transposed(names: list[str], values: list[object], *, is_linear: bool) -> Iterator[str]:
    """Yield the transposes of one operand that fit, each with what is then summed over."""
    one, other = values if len(values) == 2 else (None, None)
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return
    left, right = (grouped(name) for name in names)
    last = other.shape[0] if is_linear else other.shape[-1]
    if other.dim() > 1 and last == one.shape[-1]:
        if is_linear:
            yield f"If {names[1]} is [in, out], turn it: F.linear takes [out, in], {right}.mT."
        else:
            shape = _shape_of_product(one, other.mT)
            yield f"To sum over the last dimensions, transpose {names[1]}: {right}.mT{shape}."
    if not is_linear and one.dim() > 1 and one.shape[-2] == other.shape[max(0, other.dim() - 2)]:
        shape = _shape_of_product(one.mT, other)
        rows = "rows of both" if other.dim() > 1 else f"rows of {names[0]}"
        yield f"To sum over the {rows}, transpose {names[0]}: {left}.mT{shape}."


def _transposed_batches(
    names: list[str], values: list[object], found: re.Match[str]
) -> Iterator[str]:
    """Yield the transposes that fit where the message tells the sizes of the other operand."""
    left, right = int(found["left"]), int(found["right"])
    one, other = values if len(values) == 2 and "m" in found.groupdict() else (None, None)
    if isinstance(one, Tensor) and one.dim() == 3 and one.shape[1] == right:
        yield f"To sum over dimension 1 of both, transpose {names[0]}: {grouped(names[0])}.mT."
    if isinstance(other, Tensor) and other.dim() == 3 and other.shape[2] == left:
        yield f"To sum over the last dimensions, transpose {names[1]}: {grouped(names[1])}.mT."


def undone_transpose(failure: Failure) -> Iterator[str]:
    """Yield the transpose of the last dimensions, where a product has one of two others."""
    node = failure.frames[failure.operands[0].depth].expression if failure.operands else None
    match node:
        case ast.BinOp(left=left, op=ast.MatMult(), right=right):
            pass
        case ast.Call(func=ast.Attribute(attr="matmul"), args=[left, right]):
            pass
        case _:
            return
    frame = failure.frames[failure.operands[0].depth]
    one = frame.value_of(left)
    match right:
        case ast.Call(func=ast.Attribute(value=base, attr="transpose" | "permute" | "swapaxes")):
            held = frame.value_of(base)
            if not isinstance(held, Tensor) or not isinstance(one, Tensor):
                return
            fits = min(held.dim(), one.dim()) > 2 and held.shape[-1] == one.shape[-1]
            if fits and broadcasts(held.shape[:-2], one.shape[:-2]):
                text = grouped(written(base, frame.file))
                shape = _shape_of_product(one, held.mT)
                yield (
                    "To sum over the last dimensions, transpose the last two alone: "
                    f"{text}.mT{shape}."
                )


def _shape_of_product(one: Tensor, other: Tensor) -> str:
    """Return the shape of a product, as a part of a sentence; empty where the batches differ."""
    if other.dim() < 2:
        return f", which gives {list(one.shape[:-1])}"
    if not broadcasts(one.shape[:-2], other.shape[:-2]):
        return ""
    batch = one.shape[:-2] if one.dim() >= other.dim() else other.shape[:-2]
    return f", which gives {[*batch, one.shape[-2], other.shape[-1]]}"


def _kernel(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    pairs = zip(found["kernel"].split(" x "), found["given"].split(" x "), strict=False)
    lacking = max(int(kernel) - int(given) for kernel, given in pairs)
    held = getattr(failure.module, "padding", 0)
    padding = max(held) if type(held) is tuple else 0
    sides = [int(one) for one in found["given"].split(" x ")]
    value = failure.argument().value
    last = int(value.shape[-1]) if isinstance(value, Tensor) and value.dim() > 2 else 0
    is_input = failure.origin(failure.argument()).module is None
    is_last = len(sides) > 1 and 0 < last <= 4 and 4 * last <= max(sides) and is_input
    return {
        "padding": padding + (lacking + 1) // 2,
        "last": last if is_last else "",
        "is_line": is_last and last == 1,
    }


def _bare_kernel(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    operand = failure.operands[1] if len(failure.operands) > 1 else Operand("the kernel")
    dims = operand.value.dim() if isinstance(operand.value, Tensor) else "fewer"
    return {
        "kernel": failure.name_of(operand) if failure.operands else operand.text,
        "count": dims,
        "is_map": dims in (1, 2, "fewer"),
    }


def _lettered(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    low, high = sorted((int(found["wanted"]), int(found["given"])))
    return {
        "turned": _turned_equation(failure),
        "several": next(several_for_one("the smaller", low, high), "") if low > 0 else "",
    }


def _turned_equation(failure: Failure) -> str:
    """The equation with the letters of one operand in another order, if one alone fits."""
    frame = failure.user
    node = None if frame is None else frame.expression
    if frame is None or not isinstance(node, ast.Call) or not node.args:
        return ""
    equation = frame.value_of(node.args[0])
    shapes = [tuple(one.value.shape) for one in failure.tensors]
    if not isinstance(equation, str) or "." in equation:
        return ""
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    parts = inputs.split(",")
    if [len(one) for one in parts] != [len(one) for one in shapes] or max(map(len, parts)) > 4:
        return ""
    fitting = {
        ",".join([*parts[:at], "".join(letters), *parts[at + 1 :]])
        for at, part in enumerate(parts)
        for letters in itertools.permutations(part)
        if _fit([*parts[:at], "".join(letters), *parts[at + 1 :]], shapes)
    }
    return f"{fitting.pop()}{arrow}{output}" if len(fitting) == 1 else ""


def _fit(parts: list[str], shapes: list[tuple[int, ...]]) -> bool:
    """Return whether each letter stands for one size."""
    sizes: dict[str, int] = {}
    pairs = (
        pair
        for part, shape in zip(parts, shapes, strict=True)
        for pair in zip(part, shape, strict=True)
    )
    return all(sizes.setdefault(letter, size) == size for letter, size in pairs)


_LARGER = (
    "If the network is for larger pictures or sequences, give it a larger input; else make it with "
    "fewer pools and strides before it."
)
SITUATIONS: dict[str, Situation] = {
    "matrix product": _matrices,
    "matrix and vector": _matrices,
    "dot product": _matrices,
    "batched product": _matrices,
    "einsum": SituationRow(
        "einsum was given the letter {letter!r} for two sizes: {wanted}, and {given} in operand "
        "{at}.",
        ("turned", "If the letters of one operand stand in another order: {turned!r}."),
        ("several", "{several}"),
        "If they are two dimensions, give each a letter of its own; if they are one, make what "
        "produces the operands give both one size.",
        about="tensors",
        facts=_lettered,
    ),
    "kernel without channels": SituationRow(
        "A kernel has the shape [out, in, ...], with the sizes of its window last, and {kernel} "
        "has {count} dimensions.",
        ("is_map", "If it is one kernel for one channel, give it both: {kernel_it}[None, None]."),
        about="tensors",
        facts=_bare_kernel,
    ),
    "number into a linear layer": SituationRow(
        "{module} takes features in the last dimension, and {name} is one number, without any.",
        "If it is one sample of one feature: {name_it}.reshape(1, 1), of a batch of one.",
        about="argument",
    ),
    "channels": explained_channels,
    "dimensions of a convolution": explained_dimensions,
    "kernel too large": SituationRow(
        "{module} has a kernel of {kernel}, and its input with padding is only {given}.",
        (
            "is_line",
            "If it is a sequence, whose last dimension of one is no side, take that out, "
            "{name_it}.squeeze(-1), and use nn.Conv1d.",
        ),
        (
            "last",
            "If the {last} in the last dimension are channels, put them behind the batch: "
            "{name_it}.movedim(-1, 1).",
        ),
        _LARGER,
        "Pad it: {variable} with padding={padding} or more, or a smaller kernel.",
        about="argument",
        facts=_kernel,
    ),
    "pooled away": SituationRow(
        "{module} would leave nothing of its input ({given}): its output would be {out}.",
        _LARGER,
        "Pool to a size and not by a factor: nn.AdaptiveAvgPool2d(1), nn.AdaptiveMaxPool2d(1).",
        about="argument",
    ),
}

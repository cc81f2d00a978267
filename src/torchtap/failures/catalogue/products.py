"""Products of matrices and convolutions whose operands do not fit."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from torchtap.failures.failure import Explanation, Failure
from torchtap.failures.operands import Operand
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.situation_row import Situation, SituationRow

_LAST = {3: "NLC", 4: "NHWC", 5: "NDHWC"}
"""How a batch with its channels last is called, of as many dimensions."""


_CONVOLUTIONS = nn.Conv1d | nn.Conv2d | nn.Conv3d


def _maker(failure: Failure, operand: Operand) -> str:
    """The module that made what came in; empty where none did."""
    module = failure.origin(operand).module
    if module is None or not any(True for _ in module.parameters()):
        return ""  # A Flatten or an activation returns what it is given.
    return failure.names.module(module)


def _matrices(failure: Failure, found: re.Match[str]) -> Explanation:
    module = failure.module
    if isinstance(module, nn.Linear) and failure.running and failure.running.is_torch:
        return _linear(failure, module)
    left, right = int(found["left"]), int(found["right"])
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
            *([] if is_linear else _transposed(names, values)),
            f"Make what produces {names[0]} or {names[1]} so wide that the two numbers are equal.",
        ),
        failure.details(),
    )


def _factors(failure: Failure, left: int, right: int) -> tuple[list[Operand], bool]:
    """The two factors of a product, and whether the second is transposed, as in F.linear.

    None where several operands fit, or one of them is not known.
    """
    operands = [one for one in failure.operands if not isinstance(one.value, int | float | str)]
    node = failure.frames[operands[0].depth].expression if operands else None
    name = getattr(getattr(node, "func", None), "attr", "")
    if len(failure.tensors) < len(operands):
        is_pair = len(operands) == 2 and name != "linear"
        return (operands if is_pair else []), False
    if name == "linear":
        return failure.tensors[:2], True
    pairs = [
        [one, other]
        for at, one in enumerate(failure.tensors)
        for other in failure.tensors[at + 1 :]
        if one.value.dim() and other.value.dim()
        if one.value.shape[-1] == left and other.value.shape[-2:][0] == right
    ]
    return (pairs[0] if len(pairs) == 1 else []), False


def _vectors(names: list[str], values: list[object]) -> list[str]:
    """Return the way out where the second operand has a vector for each matrix of the first."""
    one, other = values if len(values) == 2 else (None, None)
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return []
    if one.dim() != 3 or tuple(other.shape) != (one.shape[0], one.shape[2]):
        return []
    product = f"({grouped(names[0])} @ {grouped(names[1])}[..., None])[..., 0]"
    return [f"If {names[1]} has a vector for each sample, make it a matrix: {product}."]


def _transposed(names: list[str], values: list[object]) -> list[str]:
    """Return a way out for each operand that would fit if it were transposed."""
    ways = []
    if len(values) == 2 and all(isinstance(one, Tensor) for one in values):
        left, right = (tuple(one.shape) for one in values)  # type: ignore[attr-defined]
        inner = right[-2] if len(right) > 1 else right[-1]
        if len(right) > 1 and right[-1] == left[-1]:
            ways.append(f"Transpose {names[1]}: {grouped(names[1])}.mT.")
        if len(left) > 1 and left[-2] == inner:
            ways.append(f"Transpose {names[0]}: {grouped(names[0])}.mT.")
    return ways


def _linear(failure: Failure, module: nn.Linear) -> Explanation:
    operand = failure.argument()
    value = operand.value
    given = value.shape[-1] if isinstance(value, Tensor) and value.dim() else "none"
    name = failure.module_text
    short = failure.names.variable(failure.module)
    if given == module.in_features:  # Its weight is another one than it was made with.
        return Explanation(
            f"The weight of {name} does not fit: its input has {given} features.",
            (f"Give it a weight of shape [{module.out_features}, {given}].",),
            failure.details(operand),  # The weight itself is put back by now.
        )
    ways = [f"Make it take {given}: {short} = nn.Linear({given}, {module.out_features})."]
    maker = _maker(failure, operand)
    if maker:
        ways.append(f"Make {maker} return {module.in_features} features.")
    if isinstance(value, Tensor) and value.dim() > 2:
        flat = int(value[0].numel()) if value.shape[0] else 0
        if flat == module.in_features:
            ways.insert(0, "Flatten it: x.flatten(1), or nn.Flatten() before the module.")
        elif value.dim() == 4 and _has_channels_first(failure.origin(operand).module):
            ways.insert(
                0,
                "Flatten each picture, if it is to give one row: x.flatten(1), and "
                f"{short} = nn.Linear({flat}, {module.out_features}).",
            )
    if isinstance(value, Tensor) and value.dim() == 2 and value.numel() == module.in_features:
        ways.insert(0, _batch_of_one(failure, operand, list(value.shape)))
    if isinstance(value, Tensor) and value.dim() >= 2 and value.shape[-2] == module.in_features:
        ways.append("Transpose it: the features stand in the last dimension but one.")
    return Explanation(
        f"{name} takes {module.in_features} features in the last dimension of its input, which has "
        f"{given}.",
        tuple(ways),
        failure.details(operand),
    )


def _batch_of_one(failure: Failure, operand: Operand, shape: list[int]) -> str:
    """The way out where a whole input has as many elements as one sample is to have."""
    maker = failure.origin(operand).module
    where = "x.unsqueeze(0).flatten(1) before the module"
    if isinstance(maker, nn.Flatten):
        where = f"x.unsqueeze(0) before {failure.names.module(maker)}"
    given = _without_batch(failure)
    if given is not None:
        name, text = given
        return f"Give the model a batch of one: {name}.unsqueeze(0), of {name}, {text}."
    return f"Add the batch, if {shape} is one sample and no batch of {shape[0]}: {where}."


def _without_batch(failure: Failure) -> tuple[str, str] | None:
    """The input of the program's call that its first convolution takes as one sample, if so."""
    frame = failure.user
    node = None if frame is None else frame.expression
    if frame is None or not isinstance(node, ast.Call) or len(node.args) != 1:
        return None
    value = frame.value_of(node.args[0])
    model = frame.value_of(node.func)
    layers = model.modules() if isinstance(model, nn.Module) else ()
    first = next((one for one in layers if isinstance(one, _CONVOLUTIONS)), None)
    is_one = isinstance(value, Tensor) and first is not None
    if not is_one or first is None or value.dim() != first.weight.dim() - 1:
        return None
    return grouped(written(node.args[0], frame.file)), f"a picture {list(value.shape)}"


def _has_channels_first(maker: nn.Module | None) -> bool:
    """Return whether a module certainly returns its channels behind the batch."""
    if type(maker) is nn.Sequential:  # An activation returns the shape that it is given.
        members = reversed(list(maker._modules.values()))
        shaping = (one for one in members if not type(one).__module__.endswith("activation"))
        return _has_channels_first(next(shaping, None))
    home = type(maker).__module__
    return home in {f"torch.nn.modules.{one}" for one in ("conv", "pooling", "batchnorm")}


def _channels(failure: Failure, found: re.Match[str]) -> Explanation:
    operand = failure.argument()
    name, module = failure.module_text, failure.module
    short = failure.names.variable(failure.module)
    wanted, given = found["wanted"], found["given"]
    ways = []
    shape = [int(one) for one in re.findall(r"\d+", found["input"])]
    weight = [int(one) for one in re.findall(r"\d+", found["weight"])]
    value = operand.value
    is_single = isinstance(value, Tensor) and value.dim() == len(shape) - 1
    name_in = grouped(failure.name_of(operand))
    is_last = len(shape) == len(weight) and shape[-1] == int(wanted)
    if is_last and not _has_channels_first(failure.origin(operand).module):
        order = _LAST.get(len(shape), "N...C")
        ways.append(
            f"Put the channels first: {name_in}.movedim(-1, 0), of an input in {order[1:]}."
            if is_single
            else f"Put the channels behind the batch: {name_in}.movedim(-1, 1), of a batch in "
            f"{order}."
        )
    if isinstance(value, Tensor) and not ways:
        ways += _given_channels(failure, operand, name_in, int(wanted))
    kind = type(module).__name__
    if hasattr(module, "in_channels"):
        ways.append(f"Make it take {given} channels: {short} = nn.{kind}({given}, ...).")
    else:
        ways.append(f"Make the weight take {given} channels, where it takes {wanted}.")
    maker = _maker(failure, operand)
    if maker:
        ways.append(f"Make {maker} return {wanted} channels.")
    what = f"its input {found['input']} has {given}"
    if isinstance(value, Tensor) and is_single:
        what = f"its input {list(value.shape)}, without a batch, has {given} in dimension 0"
    return Explanation(
        f"{name} takes {wanted} channels, and {what}.",
        tuple(ways),
        failure.details(operand),
    )


def _given_channels(failure: Failure, operand: Operand, name: str, wanted: int) -> list[str]:
    """Return the ways to give an input of the program the channels that the model was made for."""
    value = operand.value
    if _maker(failure, operand) or not isinstance(value, Tensor):
        return []
    dims = getattr(failure.module, "weight", value).dim()
    shape = list(value.shape)
    if value.dim() == dims - 1 and wanted == 1:
        return [f"Give each its channel: {name}.unsqueeze(1), of a batch of {shape[0]}."]
    if value.dim() != dims:
        return []
    rest = ", ".join(["-1"] * (dims - 2))
    if shape[1] == 1 and wanted == 3:
        grey = f"{name}.expand(-1, 3, {rest})"
        if shape[0] == wanted:
            return [
                f"If it is a batch of {shape[0]} grey pictures, give each three channels: {grey}.",
                f"If it is one picture of {wanted} channels: {name}.transpose(0, 1), or "
                "unsqueeze(0) where unsqueeze(1) stands.",
            ]
        return [f"Give grey pictures three channels: {grey}."]
    if shape[1] == 4 and wanted == 3:
        return [f"Leave the alpha channel out: {name}[:, :3], or .convert('RGB') of the picture."]
    if dims == 4 and shape[1] == 3 and wanted == 1:
        grey = f"{name}.mean(1, keepdim=True), or .convert('L') of the picture"
        return [f"If it is a picture in colours, make it grey: {grey}."]
    if shape[0] == wanted > 1:
        return ["Give it a batch: x.unsqueeze(0), and not x.unsqueeze(1)."]
    return []


def _of_rows(
    failure: Failure, operand: Operand, shape: list[int], channels: int | None, high: int
) -> str:
    """The way out where each row is a vector of channels, or a picture in one row; else empty."""
    if high != 4 or len(shape) != 2 or not channels:
        return ""
    name = grouped(failure.name_of(operand))
    side = math.isqrt(shape[1] // channels)
    maker = failure.origin(operand).module
    if isinstance(maker, nn.Flatten):
        return f"Put {failure.module_text} before {failure.names.module(maker)}, which joins them."
    if shape[1] == channels > 1:
        if isinstance(maker, nn.Linear):
            return (
                f"Make each row a picture of one point before it: nn.Unflatten(1, ({channels}, 1, "
                "1))."
            )
        return f"Make each row a picture of one point: {name}[:, :, None, None]."
    if side > 3 and channels * side * side == shape[1]:
        return (
            f"If each row is a picture of {side} x {side}: {name}.reshape(-1, {channels}, {side}, "
            f"{side})."
        )
    return ""


def _dimensions(failure: Failure, found: re.Match[str]) -> Explanation:
    operand = failure.argument()
    low, high = int(found["low"]), int(found["high"])
    num = len(re.findall(r"\d+", found["given"]))
    short = grouped(failure.name_of(operand))
    shape = [int(one) for one in re.findall(r"\d+", found["given"])]
    channels = getattr(failure.module, "in_channels", None)
    way = f"Give it [batch, channels, ...] in {high} dimensions."
    flat = _of_rows(failure, operand, shape, channels, high)
    if flat:
        way = flat
    elif num == low - 1 and channels == 1:
        way = (
            f"Add the channel: {short}.unsqueeze(0), or the batch and the channel: "
            f"{short}[None, None]."
        )
    elif num == low - 1 and channels:
        sizes = ", ".join(map(str, [channels, *shape]))
        way = f"Give it its {channels} channels in front: an input of [{sizes}], or a batch of it."
    elif num > high:
        if num == high + 1 and shape[0] == 1:
            way = f"Take out the first dimension, of one: {short}.squeeze(0)."
        if channels == shape[1]:
            way = f"Join the dimensions behind the channels: {short}.flatten({high - 1})."
        elif channels == shape[num - high + 1]:
            way = f"Join the dimensions of the batch: {short}.flatten(0, {num - high})."
    return Explanation(
        f"{failure.module_text} takes [batch, channels, ...] in {high} dimensions (or {low} "
        f"without batch), and its input {found['given']} has {num}.",
        (way,),
        failure.details(operand),
    )


def _kernel(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    pairs = zip(found["kernel"].split(" x "), found["given"].split(" x "), strict=False)
    lacking = max(int(kernel) - int(given) for kernel, given in pairs)
    held = getattr(failure.module, "padding", 0)
    padding = max(held) if type(held) is tuple else 0
    return {"padding": padding + (lacking + 1) // 2}


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


_LARGER = "Give a larger input, or fewer pools and strides before it."
SITUATIONS: dict[str, Situation] = {
    "matrix product": _matrices,
    "matrix and vector": _matrices,
    "dot product": _matrices,
    "batched product": _matrices,
    "einsum": SituationRow(
        "einsum was given the letter {letter!r} for two sizes: {wanted}, and {given} in operand "
        "{at}.",
        ("turned", "If the letters of one operand stand in another order: {turned!r}."),
        "Give the two dimensions letters of their own, or the tensors one size.",
        "Check the order of the letters against the shapes below.",
        about="tensors",
        facts=lambda failure, found: {"turned": _turned_equation(failure)},
    ),
    "channels": _channels,
    "dimensions of a convolution": _dimensions,
    "kernel too large": SituationRow(
        "{module} has a kernel of {kernel}, and its input with padding is only {given}.",
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

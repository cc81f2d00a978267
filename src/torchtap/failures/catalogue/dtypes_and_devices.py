"""Tensors of different dtypes or on different devices in one operation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from torchtap.failures.assignments import assignments_of
from torchtap.failures.failure import UNNAMED, Explanation, Failure
from torchtap.failures.looped_states import is_one_of_several_dtypes
from torchtap.failures.operands import Operand, bounds_of, dtype_text, dtype_word, operands_of
from torchtap.failures.parsed_source import expression_of, grouped, last_name, replaced, written
from torchtap.failures.situation_row import Situation, SituationRow, first_of
from torchtap.failures.traceback_frame import MISSING
from torchtap.failures.unreached_layers import way_to_reach
from torchtap.failures.unread_members import unread_value

_MOST_HELD = 64
_TABLES = frozenset({"_modules", "_parameters", "_buffers"})
_CONVOLUTIONS = nn.Conv1d | nn.Conv2d | nn.Conv3d
_VIEWS = (
    *("unsqueeze", "squeeze", "view", "reshape", "flatten", "expand", "expand_as", "view_as"),
    *("permute", "transpose", "t", "contiguous", "detach", "repeat"),
)
"""Methods whose result has the dtype of the tensor that they are called on."""
_WHOLE = ("int8", "int16", "int32", "int64", "uint8", "bool")


def _devices(failure: Failure, found: re.Match[str]) -> Explanation:
    tensors = failure.tensors
    if len({one.value.device for one in tensors}) < 2:
        tensors = _of_user(failure) or tensors
    names = [(one, failure.names.state(one.value)) for one in tensors]
    by_device: dict[str, list[str]] = {}
    for one, state in names:
        name = failure.name_of(one) if state is None else state.name
        by_device.setdefault(str(one.value.device), []).append(name)
    said = ", and ".join(f"{', '.join(held)} on {device}" for device, held in by_device.items())
    inputs = [one for one, state in names if state is None]
    states = [one for one, state in names if state is not None]
    ways = []
    if inputs and states:
        name, move = failure.name_of(inputs[0]), f"to('{states[0].value.device}')"
        ways = [
            f"Move the input to the module: {replaced(name, move)}.",
            f"Move the model before its optimizer is made: model.to('{inputs[0].value.device}').",
        ]
    elif len(inputs) > 1:
        name, move = failure.name_of(inputs[-1]), f"to('{inputs[0].value.device}')"
        ways = [
            f"Bring them to one device: {replaced(name, move)}.",
            "Make new tensors where the others are: torch.zeros(..., "
            f"device={grouped(failure.name_of(inputs[0]))}.device).",
        ]
    hidden = way_to_reach(failure) or _unregistered(failure, tensors)
    if hidden:  # It stays where it is when the model is moved.
        ways = [hidden, *(one for one in ways if not one.startswith("Move the model"))]
    elif states and states[0].value.is_meta:  # What is on meta has no values that could be moved.
        model = "Give the model values: model.to_empty(device='cpu'), then load its weights."
        ways = [*ways[:1], model]
    return Explanation(
        f"The operands are on different devices: {said or failure.text.rstrip('!.')}.",
        tuple(ways) or ("Bring all operands to one device by .to(device).",),
        failure.details(*tensors),
    )


def _unregistered(failure: Failure, tensors: list[Operand]) -> str:
    """Return a way out for what a module holds in a plain attribute, so ``.to`` leaves it there."""
    for _, module in failure.names.modules():
        for name, value in vars(module).items():
            if name not in _TABLES and _holds_one(value, tensors, registered=module):
                kind = "ModuleDict" if type(value) is dict else "ModuleList"
                return (
                    f"Register the modules in {name!r} of {failure.names.module(module)}, so that "
                    f".to(device) moves them: self.{name} = nn.{kind}(...)."
                )
            if isinstance(value, Tensor) and any(one.value is value for one in tensors):
                where = failure.names.module(module)
                return (
                    f"Register the tensor {name!r} of {where}, so that .to(device) moves it: "
                    f"self.register_buffer({name!r}, ...)."
                )
    return ""


def _holds_one(held: Any, tensors: list[Operand], *, registered: nn.Module) -> bool:
    """Return whether a list or dict has an unregistered module that owns one of the tensors."""
    if type(held) not in (list, tuple, dict):
        return False
    inside = list(held.values() if type(held) is dict else held)[:_MOST_HELD]
    modules = [one for one in inside if isinstance(one, nn.Module)]
    known = {id(one) for one in registered.modules()} if modules else set()
    wanted = {id(one.value) for one in tensors}
    return any(
        id(param) in wanted for one in modules if id(one) not in known for param in one.parameters()
    )


def _of_user(failure: Failure) -> list[Operand]:
    """The tensors of the program's own line."""
    depth = -1 if failure.user is None else failure.user.depth
    found = operands_of(failure.frames[: depth + 1])
    return [one for one in found if isinstance(one.value, Tensor)]


def _product(failure: Failure, found: re.Match[str]) -> Explanation:
    operand = failure.argument()
    value, name = operand.value, failure.name_of(operand)
    weight = next((one.value for one in failure.tensors if failure.origin(one).is_state), None)
    if isinstance(weight, Tensor) and isinstance(value, Tensor):
        if weight.device != value.device:  # Of convolutions, the message speaks of types alone.
            return _devices(failure, found)
        return _weighted(failure, name, value, weight)
    chosen = failure.pair
    names = [failure.name_of(one) for one in chosen]
    kinds = [dtype_text(one.value) for one in chosen]
    groups = (one for one in found.groupdict().values() if one)
    told = [dtype_word(one.rpartition("::")[2]) for one in groups]
    if "?" in kinds:  # Its value is not known, but PyTorch tells both dtypes.
        others = [one for one in told if one not in kinds]
        kinds = [others[0] if one == "?" and len(others) == 1 else one for one in kinds]
    said = " and ".join(f"{a} ({b})" for a, b in zip(names, kinds, strict=True))
    said = said.replace(" (?)", "") or failure.text
    names = names if len(names) > 1 else [*names, "the other"][-2:]
    kept, other = (grouped(name) for name in (names if len(names) == 2 else ["x", *names]))
    if kinds[:1] and kinds[0] in _WHOLE and kinds[-1] not in _WHOLE:
        kept, other = other, kept  # Floats as whole numbers would lose what stands behind the dot.
    ways = [f"Convert one: {other}.to({kept}.dtype)."]
    if {"float16", "bfloat16"} & {*kinds, *told}:
        ways.append("Run it under torch.autocast, which converts them.")
    return Explanation(
        f"A product takes operands of one dtype, and these have two: {said}.",
        tuple(ways),
        failure.details(),
    )


def _ways_of_kinds(name: str, value: Tensor, module: str) -> list[str]:
    """Return the ways out of an input that a conversion would spoil: quantized, or complex."""
    it = grouped(name)
    if value.is_quantized:
        return [
            f"If {module} is to compute in floats, leave the quantized numbers before it: "
            f"{it}.dequantize(), or DeQuantStub() there.",
            "If it was to be quantized as well, give it a qconfig before the model is prepared and "
            "converted.",
        ]
    if value.is_complex():
        return [
            f"If the magnitude is meant: {it}.abs(); if the real part alone: {it}.real.",
            f"To keep both parts, as two real numbers: torch.view_as_real({it}), with a layer that "
            "takes twice as many features.",
            "If the model is to compute with complex numbers, make the layer so: "
            f"dtype={value.dtype}.",
        ]
    return []


def _weighted(failure: Failure, name: str, value: Tensor, weight: Tensor) -> Explanation:
    mine, theirs = dtype_text(value), dtype_text(weight)
    special = _ways_of_kinds(name, value, failure.module_text)
    if special:
        return Explanation(
            f"{failure.module_text} has parameters of {theirs}, and its input is {mine}.",
            tuple(special),
            failure.details(),
        )
    converted = replaced(name, f"to(torch.{theirs})")
    ways = [f"Convert the input: {converted}."]
    reach = way_to_reach(failure)
    if mine == "uint8" and isinstance(failure.module, _CONVOLUTIONS):
        ways.append("If it is a picture of 0 to 255, bring it to 0 to 1 as well: / 255.")
    elif mine in _WHOLE and isinstance(failure.module, nn.Linear):
        ways = [
            f"If the numbers count or measure, convert them: {converted}.",
            "If they are numbers of tokens or classes, look their vectors up first, by an "
            "nn.Embedding, or give each a place of its own by F.one_hot.",
        ]
    if mine == "float64":
        ways.append(
            "Make it float32 where it is made: numpy's floats are float64, so torch.from_numpy(a)"
            ".float()."
        )
    given = [one.value for one in failure.tensors if not failure.origin(one).is_state]
    if mine not in _WHOLE and len(given) > 1 and all(dtype_text(one) == mine for one in given):
        ways.insert(
            0, f"Convert the model, to which all is given as {mine}: model.to(torch.{mine})."
        )
    elif mine not in _WHOLE and not reach:
        ways.append(f"Convert the model: model.to(torch.{mine}).")
    if reach:
        ways.insert(0, reach)
    ways = [*_odd_states(failure, mine, theirs), *ways]
    if {"float16", "bfloat16"} & {mine, theirs}:
        ways.append(
            "Run the forward under torch.autocast, which converts what each operation needs."
        )
    return Explanation(
        f"{failure.module_text} has parameters of {theirs}, and its input is {mine}.",
        tuple(ways),
        failure.details(),
    )


def _odd_states(failure: Failure, mine: str, theirs: str) -> Iterator[str]:
    """Yield the way out where a few parameters of the model hold the dtype of the input alone.

    What a module computes with such a one has its dtype, and the layer behind it refuses that.
    """
    by_dtype: dict[str, list[str]] = {}
    for _, module in failure.names.modules():
        for name, one in (*module._parameters.items(), *module._buffers.items()):
            if one is not None and one.is_floating_point():
                text = f"{failure.names.variable(module)}.{name}"
                by_dtype.setdefault(dtype_text(one), []).append(text)
    odd, others = by_dtype.get(mine, []), by_dtype.get(theirs, [])
    if odd and mine not in _WHOLE and 3 * len(odd) < len(others):
        said = f"{', '.join(odd[:2])}{' and more' if len(odd) > 2 else ''}"
        yield (
            f"{said} hold{'s' if len(odd) == 1 else ''} {mine}, the others {theirs}: what is "
            f"computed with it becomes {mine}. Make it {theirs} where it is made: "
            f"dtype=torch.{theirs}."
        )


def _index(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    operand = failure.operand("input")
    value = operand.value
    is_read = isinstance(value, Tensor) and bounds_of(value) is not None
    is_broken = is_read and not bool((value == value.round()).all())
    is_embedding = isinstance(failure.module, nn.Embedding | nn.EmbeddingBag)
    first = failure.origin(operand).module if is_embedding else None
    is_second = isinstance(first, nn.Embedding) and first is not failure.module
    return {
        "meant": unread_value(failure, lambda one: dtype_text(one) in ("int32", "int64")),
        "is_embedding": is_embedding and not is_second,
        "first": failure.names.module(first) if is_second else "",
        "is_whole": not is_broken and not is_second,
        "is_broken": is_broken and not is_second,
        "so": ", the vectors of another embedding" if is_second else "",
    }


def _float_index(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    is_of_brackets = failure.text.startswith("tensors used as indices")
    index = _index_of(failure, is_of_brackets) or Operand(UNNAMED)
    expected = "int64" if "one_hot" in failure.text[:40] else "int32 or int64"
    return {
        "name": failure.name_of(index),
        "held": _held_dtype(failure, index),
        "expected": "int64, int32, uint8, or a mask of bool" if is_of_brackets else expected,
        **_meaning(failure, index, is_of_brackets=is_of_brackets),
    }


def _held_dtype(failure: Failure, index: Operand) -> str:
    """Return the words for the dtype of an index: its own, or that of what it is a view of."""
    value, node = index.value, expression_of(index.text)
    while value is MISSING and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr not in _VIEWS:
            break
        node = node.func.value
        value = failure.frames[index.depth].value_of(node)
    return f" and holds {dtype_text(value)}" if isinstance(value, Tensor) else ""


def _meaning(failure: Failure, index: Operand, *, is_of_brackets: bool) -> Mapping[str, Any]:
    """Say whether an index of floats may be a mask, from its values and its shape."""
    value, held = index.value, failure.operands[0].value if failure.operands else None
    bounds = bounds_of(value)
    is_known = bounds is not None and isinstance(value, Tensor)
    is_whole = is_known and bool((value == value.round()).all())
    fits = isinstance(held, Tensor) and is_known and value.shape == held.shape[: value.dim()]
    node = failure.frames[failure.operands[0].depth].expression if failure.operands else None
    is_alone = not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Tuple)
    is_mask = is_of_brackets and is_alone and fits and is_whole and bounds is not None
    is_mask = is_mask and bounds[0] >= 0 and bounds[1] <= 1  # type: ignore[index]
    is_one_hot = is_whole and value.dim() == 2 and value.shape[1] > 1 and bounds == (0, 1)
    is_one_hot = is_one_hot and not is_mask and bool((value.sum(1) == 1).all())
    may_fit = fits or not isinstance(held, Tensor) or not is_known
    is_scores = is_known and not is_whole and value.dim() > 1 and value.shape[-1] > 1
    return {
        "is_scores": is_scores and not is_of_brackets,
        "is_mask": is_mask,
        "quotient": _quotient(failure, index),
        "is_one_hot": is_one_hot,
        "is_position": not is_mask and not is_one_hot and (is_whole or not is_known),
        "is_position_too": is_mask,
        "may_be_mask": is_of_brackets and not is_mask and may_fit,
    }


def _quotient(failure: Failure, index: Operand) -> str:
    """Return the division that made an index, as one without a rest; empty where none did."""
    frame = failure.frames[index.depth]
    made = assignments_of(frame, index.text) if index.text.isidentifier() else []
    nodes = [one.value for one in made] or [expression_of(index.text)]
    for node in nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            return f"{written(node.left, frame.file)} // {written(node.right, frame.file)}"
    return ""


def _index_of(failure: Failure, is_of_brackets: bool) -> Operand | None:
    """The operand that is the index; ``None`` where the source does not tell which it is."""
    if not failure.operands:
        return None
    operands, frame = failure.operands, failure.frames[failure.operands[0].depth]
    node = frame.expression
    if is_of_brackets:
        unfit = [one for one in operands[1:] if _may_be_unfit(one.value)]
        unfit = [one for one in unfit if not one.text.startswith("torch.arange(")]
        return unfit[0] if len(unfit) == 1 else None
    if not isinstance(node, ast.Call):
        return None
    named = [one.value for one in node.keywords if one.arg in ("index", "tensor")]
    if named:
        text = written(named[0], frame.file)
        return next((one for one in operands if one.text == text), None)
    is_first = last_name(node.func) == "one_hot"
    return operands[0] if is_first else next(iter(operands[2:3]), None)


def _may_be_unfit(value: object) -> bool:
    """Return whether an index in brackets may be the one that PyTorch refused."""
    is_fitting = dtype_text(value) in ("int32", "int64", "uint8", "bool")
    return value is MISSING or (isinstance(value, Tensor) and not is_fitting)


def _of_dtype(failure: Failure, kind: str) -> Operand | None:
    """The operand that holds a dtype: a tensor of it, or else the only one of unknown value."""
    found = next((one for one in failure.tensors if dtype_text(one.value) == kind), None)
    unknown = [one for one in failure.candidates if one.value is MISSING]
    return unknown[0] if found is None and len(unknown) == 1 else found


def _result(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    functions = [one.code.co_name for one in failure.frames]
    if any(one.startswith("binary_cross_entropy") for one in functions):
        target = failure.name_of(failure.operand("target", "the target"))
        return {"target": target, "clamped": "", "item": ""}
    first = _written_into(failure) or _of_dtype(failure, dtype_word(found["wanted"]))
    first = first or Operand(UNNAMED)
    name = failure.name_of(first)
    whole = name.partition("[")[0]  # To assign to a part of it keeps the dtype of the whole.
    floats = replaced(whole, "float()")
    clamped = _clamped(failure, name)
    is_whole = dtype_word(found["wanted"].removesuffix(" int")) in _WHOLE
    if is_whole and is_one_of_several_dtypes(failure, first):
        return {"target": "", "clamped": "", "item": name, **_of_item(failure, first)}
    return {
        "target": "",
        "item": "",
        "name": name,
        "whole": whole,
        "floats": floats,
        "clamped": clamped,
        "divided": is_whole and _divides(failure),
        "is_added": is_whole and not _divides(failure),
    }


def _of_item(failure: Failure, item: Operand) -> Mapping[str, Any]:
    """The tensor that is written into an item of a loop, and how it is converted for that."""
    others = [one for one in failure.tensors if one.text != item.text]
    name = failure.name_of(others[0]) if len(others) == 1 else ""
    return {"fitted": replaced(name, f"to({grouped(item.text)}.dtype)") if name else ""}


def _written_into(failure: Failure) -> Operand | None:
    """Return what ``out=`` names, where the operation has one."""
    if not failure.operands:
        return None
    frame = failure.frames[failure.operands[0].depth]
    keywords = frame.expression.keywords if isinstance(frame.expression, ast.Call) else []
    names = [written(one.value, frame.file) for one in keywords if one.arg == "out"]
    return next((one for one in failure.operands if one.text in names), None)


def _divides(failure: Failure) -> bool:
    node = None if failure.user is None else failure.user.expression
    if isinstance(node, ast.BinOp | ast.AugAssign):
        return isinstance(node.op, ast.Div)
    name = getattr(getattr(node, "func", None), "attr", "")
    return name in ("div", "div_", "true_divide", "divide")


def _clamped(failure: Failure, name: str) -> str:
    """The call of ``clamp_`` that failed, with bounds made whole numbers; empty if it is none."""
    frame = failure.user
    node = None if frame is None else frame.expression
    func = node.func if isinstance(node, ast.Call) else None
    if frame is None or not isinstance(func, ast.Attribute) or func.attr not in ("clamp_", "clip_"):
        return ""
    assert isinstance(node, ast.Call)
    bounds = [_as_whole(frame.value_of(one), written(one, frame.file)) for one in node.args]
    return f"{grouped(name)}.{func.attr}({', '.join(bounds)})" if not node.keywords else ""


def _as_whole(value: Any, text: str) -> str:
    if type(value) is int or text.lstrip("-").isdigit():
        return text
    return f"{grouped(text)}.long()" if isinstance(value, Tensor) else f"int({text})"


def _kernel(failure: Failure, found: re.Match[str]) -> Explanation:
    kind = dtype_word(found["dtype"])
    target = failure.operand("target", "")
    is_swapped = bool(target.text) and dtype_text(target.value) not in _WHOLE and kind in _WHOLE
    if "log_softmax" in found["kernel"] and is_swapped:
        given = failure.operand("input", "")
        name = failure.name_of(given if given.text else failure.argument())
        other = failure.name_of(target)
        return Explanation(
            f"The loss takes logits first and the target second: its first argument, {name}, holds "
            f"{kind}, and its second, {other}, {dtype_text(target.value)}.",
            (f"Swap them: loss({other}, {name}).",),
            failure.details(),
        )
    given = failure.operand("input", "")
    is_whole = "softmax" in found["kernel"] and kind in _WHOLE and dtype_text(given.value) == kind
    if is_whole and any(one.code.co_name == "cross_entropy" for one in failure.frames):
        return _without_scores(failure, failure.name_of(given), kind)
    wrong = _of_dtype(failure, kind)
    name = UNNAMED if wrong is None else failure.name_of(wrong)
    which = "" if wrong is None else f", which {name} holds,"
    return Explanation(
        f"{found['kernel']} is not there for {kind}{which} on this device.",
        _converted(name, kind, found["kernel"]),
        failure.details(),
    )


def _without_scores(failure: Failure, name: str, kind: str) -> Explanation:
    """Explain a loss of classes whose first argument holds whole numbers."""
    return Explanation(
        f"The loss takes scores, floats with a dimension for the classes, as its first argument; "
        f"{name} holds {kind}.",
        (
            f"If {name} holds classes, as of argmax, give the scores before it: argmax has no "
            "gradient.",
            f"If it holds scores, convert them: {grouped(name)}.float().",
        ),
        failure.details(),
    )


def _converted(name: str, kind: str, kernel: str) -> tuple[str, ...]:
    """Return the ways to convert an operand, for a kernel that is not there for its dtype."""
    name = grouped(name)
    if "bitwise" in kernel and kind not in _WHOLE:
        return (
            f"Compare it, where it stands for yes and no: {name} > 0, or {name}.bool().",
            f"Convert it, where its bits are meant: {name}.long().",
        )
    if kind.startswith("complex"):  # .float() would drop the imaginary part.
        return (
            f"Take what is meant of it: {name}.abs() for its magnitude, or {name}.real.",
            f"To keep both parts, as two real numbers in a last dimension: "
            f"torch.view_as_real({name}).",
        )
    if kind in ("float32", "float64"):
        return (f"Convert it first: {name}.long(), since there is none for floats.",)
    return (f"Convert it first: {name}.float().",)


def _scattered(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The tensor that is scattered into, and the values."""
    tensors = [one for one in failure.tensors if dtype_text(one.value) not in _WHOLE]
    whole = failure.operands[0] if failure.operands else Operand(UNNAMED)
    others = [one for one in failure.candidates if one is not whole]
    given = [one for one in others if one.value is MISSING or one in tensors]
    name = failure.name_of(whole)
    values = failure.name_of(given[-1]) if given else "src"
    value = given[-1].value if given else MISSING
    return {
        "name": values,
        "whole": name,
        "held": dtype_text(whole.value) if isinstance(whole.value, Tensor) else "another dtype",
        "given": "" if value is MISSING else f" ({dtype_text(value)})",
        "dtype_of": f"{grouped(name)}.dtype",
    }


SITUATIONS: dict[str, Situation] = {
    "dtypes of a scatter": SituationRow(
        "Values are scattered into {whole}, which holds {held}, and {name}{given} have another "
        "dtype: scatter converts none.",
        "Convert what is scattered: {name_it}.to({dtype_of}).",
        about="tensors",
        facts=_scattered,
    ),
    "dtype without numpy": SituationRow(
        "numpy has no {given_dtype}, which {name} holds.",
        "Convert it first: {name_it}.float().numpy().",
        about="argument",
    ),
    "devices": _devices,
    "dtypes of a product": _product,
    "dtypes of a convolution": _product,
    "mixed dtypes": _product,
    "index dtype": SituationRow(
        "{module} takes whole numbers as indices, and got {dtype}{so}.",
        (
            "first",
            "Give each its own column of the indices, and put what they return together: "
            "torch.stack([one(x[:, at]) for at, one in enumerate(embeddings)], 1).",
        ),
        ("meant", "{meant}"),
        ("is_whole", "If it holds the numbers of rows, convert it: {name_it}.long()."),
        (
            "is_embedding",
            "Where the input is floats by nature, use nn.Linear in place of the embedding.",
        ),
        ("is_broken", "If its floats stand for whole numbers, convert it: {name_it}.long()."),
        about="input",
        facts=_index,
    ),
    "index of floats": SituationRow(
        "{name} is used as an index{held}; expected {expected}.",
        ("is_mask", "If 1 marks what is chosen, make a mask of it: {name_it} > 0."),
        (
            "is_one_hot",
            "If each row marks one of several, as one-hot, take its place: {name_it}.argmax(1).",
        ),
        (
            "is_scores",
            "It holds numbers between whole ones: if each row holds the scores of classes, take "
            "the class of the greatest: {name_it}.argmax(-1).",
        ),
        ("quotient", "If it is a quotient of whole numbers, divide without a rest: {quotient}."),
        ("is_position", "Convert it: {name_it}.long()."),
        ("is_position_too", "If it holds positions, convert it: {name_it}.long()."),
        ("may_be_mask", "Compare, if it is to be a mask: {name_it} > 0."),
        about="tensors",
        facts=_float_index,
    ),
    "result dtype": first_of(
        SituationRow(
            "The target of a binary cross-entropy is a probability, and {target} holds {dtype}.",
            "Convert it: {target_it}.float().",
            when="target",
            about="target",
        ),
        SituationRow(
            "{name} holds {wanted_dtype}, and a bound that it is clamped to is {given_dtype}.",
            "Give whole numbers as bounds: {clamped}.",
            "Clamp out of place, where the result may be floats: clamp for clamp_.",
            when="clamped",
        ),
        SituationRow(
            "The result is {given_dtype}, and {item}, which is written into, holds {wanted_dtype}: "
            "the loop goes over items of several dtypes, such as the counts of a batch norm beside "
            "its weights.",
            "Go by the dtype of each item, and leave whole numbers out: if "
            "{item_it}.is_floating_point(), before this line; copy them, if they are to follow: "
            "{item_it}.copy_(...).",
            ("fitted", "If whole numbers are to change, too, cut to whole ones: {fitted}."),
            when="item",
            about="tensors",
        ),
        SituationRow(
            "The result is {given_dtype}, and {name}, which is written into, holds {wanted_dtype}.",
            (
                "divided",
                "If the quotient is to be whole, say so: //, or rounding_mode='floor' of "
                "torch.div.",
            ),
            (
                "is_added",
                "If {whole} is to hold whole numbers, convert what is written: .long(), or "
                "int(...) of one number.",
            ),
            "If {whole} is to hold floats, make it so where it is made: {floats}.",
            "Compute out of place: x = x + y for x += y.",
            about="tensors",
        ),
        facts=_result,
    ),
    "mean of integers": SituationRow(
        "A mean of whole numbers has no dtype of its own, and {name} holds whole numbers.",
        "Convert it first: {name_it}.float().mean(), or {name_it}.mean(dtype=torch.float32).",
        about="argument",
    ),
    "kernel not implemented": _kernel,
}

"""Numbers, options and objects of other kinds that stand where PyTorch takes its own."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader

from torchtap.failures.assignments import assignments_of, looped_over
from torchtap.failures.failure import Failure
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.situation_row import Situation, SituationRow, first_of
from torchtap.failures.traceback_frame import TracebackFrame

_OPTIONS = {
    "rnn": ("nonlinearity", ("tanh", "relu")),
    "gain": ("nonlinearity", ("linear", "sigmoid", "tanh", "relu", "leaky_relu", "selu")),
    "reduce": ("reduce", ("sum", "prod", "mean", "amax", "amin")),
}
_MEANT = {"add": "sum", "max": "amax", "min": "amin", "multiply": "prod", "avg": "mean"}


def _expression(failure: Failure) -> tuple[TracebackFrame, ast.AST | None]:
    frame = failure.user or failure.frames[-1]
    return frame, frame.expression


def _option(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    kind = next(one for one in _OPTIONS if found[one])
    name, values = _OPTIONS[kind]
    given = found[kind]
    close = [_MEANT[given]] if _MEANT.get(given) in values else []
    close = close or difflib.get_close_matches(given, values, n=1, cutoff=0.6)
    return {
        "name": name,
        "given": given,
        "values": ", ".join(values),
        "close": next(iter(close), ""),
        "is_smooth": kind == "gain" and given in ("gelu", "silu", "swish", "elu", "mish"),
    }


def number_before(failure: Failure) -> str:
    """The number on which a method of tensors was called, as it is written."""
    frame, node = _expression(failure)
    base = node.value if isinstance(node, ast.Attribute) else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        base = node.func.value
    return grouped(written(base, frame.file)) if isinstance(base, ast.expr) else "x"


def modules_in(failure: Failure) -> list[tuple[str, nn.Module]]:
    """The modules that stand as operands of an operator, as they are written."""
    frame, node = _expression(failure)
    parts = [node.left, node.right] if isinstance(node, ast.BinOp) else []
    held = [(written(one, frame.file), frame.value_of(one)) for one in parts]
    return [(text, one) for text, one in held if isinstance(one, nn.Module)]


def _operand(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    text, module = modules_in(failure)[0]
    return {"text": text, "kind": type(module).__name__}


def tensors_in(failure: Failure) -> list[tuple[str, Any]]:
    """The tuples and lists of tensors in the expression that failed, as they are written."""
    frame, node = _expression(failure)
    parts = [node.left, node.right] if isinstance(node, ast.BinOp) else []
    if isinstance(node, ast.AugAssign):
        parts = [node.target, node.value]
    if isinstance(node, ast.Attribute):
        parts = [node.value]
    held = [(written(one, frame.file), frame.value_of(one)) for one in parts]
    return [
        (text, one)
        for text, one in held
        if isinstance(one, list | tuple) and one and all(isinstance(part, Tensor) for part in one)
    ]


def _several(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    text, held = tensors_in(failure)[0]
    frame, _ = _expression(failure)
    over = looped_over(frame, text) if text.isidentifier() else None
    is_batch = over is not None and isinstance(frame.value_of(over), DataLoader)
    names = ["x", "y", *(f"part{at}" for at in range(2, len(held)))][: len(held)]
    return {
        "parts": f"{', '.join(names)} = {text}" if is_batch and len(held) > 1 else "",
        "text": text,
        "kind": type(held).__name__,
        "count": "one tensor" if len(held) == 1 else f"{len(held)} tensors",
        "is_one": len(held) == 1,
        "is_several": len(held) > 1,
        "is_tuple": isinstance(held, tuple) and len(held) > 1,
    }


def compared_in(failure: Failure) -> list[tuple[str, Any]]:
    """The two sides of a comparison whose answer was to be counted, as they are written."""
    frame = failure.frames[-1]
    node = frame.expression
    base = node.func if isinstance(node, ast.Call) else node
    base = base.value if isinstance(base, ast.Attribute) else None
    if isinstance(base, ast.Name):
        made = assignments_of(frame, base.id)
        base = made[-1].value if len(made) == 1 else None
    parts = [base.left, *base.comparators] if isinstance(base, ast.Compare) else []
    held = [(written(one, frame.file), frame.value_of(one)) for one in parts]
    return held if any(_is_of_tensors(one) for _, one in held) else []


def _is_of_tensors(value: Any) -> bool:
    is_several = isinstance(value, list | tuple) and any(isinstance(one, Tensor) for one in value)
    return isinstance(value, Tensor) or is_several


def _compared(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    (left, one), (right, other) = compared_in(failure)[:2]
    several = [
        (text, held) for text, held in ((left, one), (right, other)) if type(held) is not Tensor
    ]
    text, held = several[0] if several else (left, one)
    is_pair = isinstance(held, tuple) and len(held) == 2 and type(held) is not tuple
    part = f"{grouped(text)}.indices, or {grouped(text)}.values" if is_pair else ""
    is_listed = not part and isinstance(held, list | tuple) and bool(held)
    is_listed = is_listed and all(isinstance(item, int | float) for item in held)
    if is_listed:
        part = f"torch.tensor({text})"
    if not part and isinstance(held, list | tuple) and held:
        part = f"{grouped(text)}[0]"
    return {
        "left": left,
        "right": right,
        "why": f"{text} is no tensor, but a {type(held).__name__}"
        if several
        else "one is no tensor",
        "part": "" if is_listed else part,
        "listed": part if is_listed else "",
        "is_other": not part,
    }


def _lists(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    frame, node = _expression(failure)
    parts = [node.left, node.right] if isinstance(node, ast.BinOp) else []
    texts = [f"list({written(one, frame.file)})" for one in parts]
    return {"lists": " + ".join(texts) or "list(a.parameters()) + list(b.parameters())"}


def adds_parameters(failure: Failure) -> bool:
    """Return whether generators of parameters were added."""
    node = failure.frames[-1].expression
    calls = [one for one in ast.walk(node) if isinstance(one, ast.Attribute)] if node else []
    return any(one.attr.endswith("parameters") for one in calls)


def checkpoint_of(failure: Failure) -> tuple[str, dict[Any, Any]] | None:
    """A dict of tensors that was asked for a key that it has not, as it is written."""
    frame = failure.frames[-1]
    node = frame.expression
    if not isinstance(failure.error, KeyError) or not isinstance(node, ast.Subscript):
        return None
    held: Any = frame.value_of(node.value)
    if not frame.is_user or not isinstance(held, dict):
        return None
    values = list(held.values())
    values += [part for one in values if isinstance(one, dict) for part in one.values()]
    named = [one for one in values if isinstance(one, Tensor)]
    return (written(node.value, frame.file), held) if named else None


def _checkpoint(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    name, held = checkpoint_of(failure) or ("state", {})
    nested = [key for key, one in held.items() if isinstance(one, dict)]
    is_state = bool(held) and all(isinstance(one, Tensor) for one in held.values())
    names = [one for one in held if isinstance(one, str)]
    close = difflib.get_close_matches(found["key"], names, n=1)
    return {
        "name": name,
        "keys": ", ".join(map(repr, list(held)[:6])),
        "is_state": is_state and not close,
        "nested": nested[0] if len(nested) == 1 else "",
        "close": close[0] if close and not nested else "",
    }


def _floating(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The size that is a float, as it is written, and how it is made whole."""
    frame, node = _expression(failure)
    parts: list[ast.expr] = list(node.args) if isinstance(node, ast.Call) else []
    parts += [one for part in parts if isinstance(part, ast.Tuple | ast.List) for one in part.elts]
    for one in parts:
        value = frame.value_of(one)
        text = written(one, frame.file)
        if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Div):
            left, right = written(one.left, frame.file), written(one.right, frame.file)
            return {"text": text, "way": f"{left} // {right}"}
        if isinstance(value, float):
            return {"text": text, "way": f"int({text})"}
        if value is None:
            return {"none": text}
        if isinstance(value, str):
            return {"text": text, "way": f"int({text})", "kind": "text"}
    return {"text": "A size", "way": "int(...), or // in place of /"}


def _inverted(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    frame, node = _expression(failure)
    base = node.operand if isinstance(node, ast.UnaryOp) else None
    return {"text": grouped(written(base, frame.file)) if base is not None else "x"}


def encoding_of(failure: Failure) -> str:
    """The encoding of a tokenizer that was given in place of tensors, as it is written."""
    for frame in failure.frames:
        for name, value in frame.own_names.items():
            if type(value).__name__ == "BatchEncoding" and frame.is_user:
                return name
    return ""


def _rounded(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    frame, node = _expression(failure)
    args = node.args if isinstance(node, ast.Call) else []
    texts = [written(one, frame.file) for one in args] or ["x"]
    digits = f", decimals={texts[1]}" if len(texts) > 1 else ""
    return {"text": texts[0], "digits": digits, "short": f", {texts[1]}" if texts[1:] else ""}


SITUATIONS: dict[str, Situation] = {
    "option that is none": SituationRow(
        "{name} is one of {values}, and got {given!r}.",
        ("close", "Say {close!r}: {name}={close!r}."),
        ("is_smooth", "Take that of the function that it resembles: 'relu'."),
        facts=_option,
    ),
    "tuple of gradients": SituationRow(
        "{text} is a {kind} of {count}, as torch.autograd.grad returns it, and no tensor.",
        ("is_one", "Take the tensor out of it: {text_it}[0]."),
        ("is_several", "Compute with each of them: [... for one in {text}]."),
        ("is_several", "If they are to be one tensor: torch.stack({text})."),
        facts=_several,
    ),
    "answer of a comparison": SituationRow(
        "The comparison of {left} and {right} gave one answer, and not one for each element: "
        "{why}.",
        ("listed", "Make a tensor of it: {listed}."),
        ("part", "Take the tensor that is meant: {part}."),
        ("is_other", "Compare two tensors."),
        facts=_compared,
    ),
    "values and indices": SituationRow(
        "{kind} along a dimension returns two tensors, the values and their indices.",
        "Say which is meant: .values.{name} or .indices.{name}.",
    ),
    "generators that are added": SituationRow(
        "parameters() returns a generator, and + is for lists.",
        "Make lists of them: {lists}.",
        facts=_lists,
    ),
    "list that is moved": SituationRow(
        "{text} is a {kind} of {count}, and has no {name}: each of them has.",
        ("is_one", "Take the tensor out of it: {text_it}[0]."),
        ("parts", "It is a batch of the loader: name its parts, {parts}."),
        ("is_tuple", "Take the one that is meant: {text_it}[0], or {text_it}[1]."),
        "Go through it: [one.{name}(...) for one in {text}].",
        facts=_several,
    ),
    "number that is one already": SituationRow(
        "{text} is a number ({kind}) already and no tensor: it has no {name}().",
        "Leave .{name}() out: {text}.",
        facts=lambda failure, found: {"text": number_before(failure)},
    ),
    "module among tensors": SituationRow(
        "{text} is a module ({kind}) and no tensor, and stands in a computation.",
        "Call it: {text_it}(...).",
        facts=_operand,
    ),
    "key of a checkpoint": SituationRow(
        "{name} has no key {key!r}; it has {keys}.",
        ("close", "Did you mean {close!r}?"),
        (
            "is_state",
            "It is the state itself, names and tensors: load it without [{key!r}].",
        ),
        ("nested", "Take the state that is there: {name_it}[{nested!r}]."),
        facts=_checkpoint,
    ),
    "forward of a function": SituationRow(
        "forward of a torch.autograd.Function gets its ctx from apply, and was called itself.",
        "Call {kind}.apply(...) in place of {kind}.forward(...).",
    ),
    "attribute of a context": SituationRow(
        "backward of {kind} read ctx.{name}, which its forward did not set.",
        "Keep it in forward: ctx.{name} = ...; tensors by ctx.save_for_backward(...), read as "
        "ctx.saved_tensors.",
    ),
    "rounded by Python": SituationRow(
        "{text} is a tensor, which Python's round does not take.",
        "Round the tensor: torch.round({text}{digits}).",
        "For one number: round({text_it}.item(){short}).",
        facts=_rounded,
    ),
    "size that is no integer": first_of(
        SituationRow(
            "{none} is None, and a size is a whole number.",
            "If it is an option: set it, or replace None by a default size.",
            "If not: check what gave None, such as a function without return.",
            when="none",
        ),
        SituationRow(
            "{text} is a text, and a size is a whole number.",
            "Make a number of it: {way}.",
            when="kind",
        ),
        SituationRow(
            "{text} is a float, and a size is a whole number: / gives floats.",
            "Make it whole: {way}.",
        ),
        facts=_floating,
    ),
    "inverse of floats": SituationRow(
        "~ turns masks of booleans round, and {text} holds floats.",
        "Make a mask of it first: ~({text} > 0), or 1 - {text} for numbers from 0 to 1.",
        facts=_inverted,
    ),
    "encoding of a tokenizer": SituationRow(
        "{name} is all that a tokenizer returns, and the model takes its tensors by their names.",
        "Unpack it: model(**{name}).",
        facts=lambda failure, found: {"name": encoding_of(failure)},
    ),
    "closure without a loss": SituationRow(
        "The closure returned None, and the optimizer needs the loss.",
        "Return the loss at the end of the closure: return loss.",
    ),
    "milestones of a scheduler": SituationRow(
        "milestones is a list of steps, and got a {kind}.",
        "Put it into a list: milestones=[{text}].",
        facts=lambda failure, found: {"text": failure.operand("milestones").value},
    ),
    "function of a scheduler": SituationRow(
        "lr_lambda is a function of the number of the step, and got a {kind}.",
        "Give a function that returns the factor: lambda epoch: 0.95 ** epoch.",
    ),
    "two of a distribution": SituationRow(
        "A distribution is given {one} or {other}, and got both.",
        "Give one by its name: {one}=..., or {other}=...",
    ),
    "shape of a sample": SituationRow(
        "sample takes the shape of what is drawn, a tuple, and got a number.",
        "Put it into a tuple: .sample((n,)).",
    ),
    "sample without a gradient": SituationRow(
        "{kind} has no rsample: its samples are not differentiable by its parameters.",
        "Draw by sample(), and weight with the logarithm: -(reward * dist.log_prob(action)).",
        "Or use a distribution that has one, such as RelaxedOneHotCategorical or F.gumbel_softmax.",
        facts=lambda failure, found: {"kind": type(failure.frames[-1].owner).__name__},
    ),
}

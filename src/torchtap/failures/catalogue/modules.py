"""Modules: attributes, parameters, state dicts."""

from __future__ import annotations

import ast
import difflib
import os
import re

from torch import Tensor, nn

from torchtap.failures.failure import UNNAMED, Explanation, Failure
from torchtap.failures.frame import MISSING
from torchtap.failures.operands import shape_of
from torchtap.failures.source import grouped, written


def _no_forward(failure: Failure, found: re.Match[str]) -> Explanation:
    kind = found["kind"]
    own = [name for name in vars(type(failure.module)) if not name.startswith("_")]
    close = difflib.get_close_matches("forward", own, n=1, cutoff=0.6)
    ways = ["Define forward(self, ...) in the class, at the level of its other methods."]
    if close:
        ways.insert(0, f"Call it forward: the class defines {close[0]!r}.")
    if kind in ("ModuleList", "ModuleDict"):
        ways = [
            "Call its members one after the other: for layer in layers: x = layer(x).",
            "Use nn.Sequential, which has a forward.",
        ]
    return Explanation(f"{kind} has no forward, and was called.", tuple(ways))


def _before_init(failure: Failure, found: re.Match[str]) -> Explanation:
    return Explanation(
        f"A {found['what'].rstrip('s')} was assigned to a module before nn.Module.__init__ had "
        f"run.",
        ("Call super().__init__() on the first line of __init__.",),
    )


def _attribute(failure: Failure, found: re.Match[str]) -> Explanation:
    name = found["name"]
    owner = failure.frames[-1].owner if failure.frames[-1].is_torch else None
    if isinstance(owner, nn.Module):
        known = [*dir(type(owner)), *vars(owner), *owner._modules, *owner._parameters]
        known += list(owner._buffers)
        where = failure.names.module(owner)
    else:
        known, where = dir(Tensor), f"A {found['kind']}"
    close = difflib.get_close_matches(name, [one for one in known if one[:1] != "_"], n=2)
    ways = [f"Did you mean {' or '.join(map(repr, close))}?"] if close else []
    if isinstance(owner, nn.Module):
        ways.append(f"Assign self.{name} in __init__, before it is read.")
        if type(owner).__name__ in ("DistributedDataParallel", "DataParallel"):
            ways.insert(0, f"Read it of the model that is wrapped: model.module.{name}.")
    return Explanation(
        f"{where} has no attribute {name!r}.",
        tuple(ways) or ("Check the name in PyTorch's documentation.",),
        (),
        where if isinstance(owner, nn.Module) else "",
    )


def _parameter(failure: Failure, found: re.Match[str]) -> Explanation:
    name = found["name"]
    return Explanation(
        f"{failure.module_text} has the parameter {name!r}, and a plain tensor was assigned to it.",
        (
            "Wrap it: nn.Parameter(tensor).",
            f"Copy the values: with torch.no_grad(): module.{name}.copy_(tensor).",
            "To train something else that computes it, register it by "
            "torch.nn.utils.parametrize, or delete the parameter first.",
        ),
        failure.details(),
    )


def _state_dict(failure: Failure, found: re.Match[str]) -> Explanation:
    text = failure.text
    missing = re.findall(r'"([^"]+)"', _between(text, "Missing key(s) in state_dict:"))
    unexpected = re.findall(r'"([^"]+)"', _between(text, "Unexpected key(s) in state_dict:"))
    sizes = re.findall(
        r"size mismatch for ([\w.]+): copying a param with shape torch\.Size\((.*?)\) from "
        r"checkpoint, the shape in current model is torch\.Size\((.*?)\)",
        text,
    )
    prefix = _prefix(missing, unexpected)
    ways, what = [], ""
    if prefix:
        kind, front = prefix
        what = f"all its names {'begin' if kind == 'more' else 'do not begin'} with {front!r}"
        if kind == "more":
            ways.append(
                "Take it off: "
                f"{{key.removeprefix({front!r}): value for key, value in state.items()}}."
            )
        else:
            ways.append(
                f"Put it in front: {{{front!r} + key: value for key, value in state.items()}}."
            )
    elif sizes:
        name, there, here = sizes[0]
        what = f"{len(sizes)} of its tensors have other shapes, {name} first: {there} for {here}"
        ways += [
            f"Build the model as it was saved: {name} has the shape {there}.",
            "Leave these out and train them anew: pop them from the state and give strict=False.",
        ]
    else:
        what = f"{_names(len(missing))} missing and {_names(len(unexpected))} not known"
        ways += [
            "Build the model as it was saved.",
            "Load what there is: strict=False, and look at what it returns.",
        ]
    nested = [one for one in ("state_dict", "model", "model_state_dict") if one in unexpected]
    if nested:
        ways.insert(0, f"Load what stands inside: state[{nested[0]!r}].")
    module = sizes[0][0].rpartition(".")[0] if sizes else (missing or [""])[0].rpartition(".")[0]
    owner = dict(failure.names.modules()).get(module)
    return Explanation(
        f"The state does not fit {found['kind']}: {what}.",
        tuple(ways),
        (
            *((("missing", ", ".join(missing[:4])),) if missing else ()),
            *((("unknown", ", ".join(unexpected[:4])),) if unexpected else ()),
        ),
        failure.names.module(owner) if owner is not None and module else "",
    )


def _names(number: int) -> str:
    return "1 name is" if number == 1 else f"{number} names are"


def _between(text: str, head: str) -> str:
    return text.partition(head)[2].partition("\n")[0]


def _prefix(missing: list[str], unexpected: list[str]) -> tuple[str, str] | None:
    """Return the prefix of all names, and whether the state has it (``more``) or lacks it."""
    if not missing or len(missing) != len(unexpected):
        return None
    short, long = sorted((sorted(missing), sorted(unexpected)), key=lambda one: len(one[0]))
    front = long[0].removesuffix(short[0])
    fits = front != long[0] and all(b == front + a for a, b in zip(short, long, strict=True))
    if not fits or not front:
        return None
    return ("more" if sorted(unexpected) == long else "less"), front


def _lazy(failure: Failure, found: re.Match[str]) -> Explanation:
    return Explanation(
        "A lazy module has parameters without a shape until its first forward, and one was used.",
        ("Run one batch through the model first, before its parameters are counted or trained.",),
        failure.details(),
    )


def _truth(failure: Failure, found: re.Match[str]) -> Explanation:
    if failure.frames[-1].file.endswith(os.path.join("nn", "_reduction.py")):
        kind = type(failure.module).__name__ if failure.module is not None else "the loss"
        return Explanation(
            f"Tensors were given to {kind} where it is made; it takes them when it is called.",
            (f"Make it first, then call it: nn.{kind}()(input, target).",),
        )
    operand = failure.tensors[0] if failure.tensors else None
    name = UNNAMED if operand is None else failure.name_of(operand)
    given = "" if operand is None else f" ({shape_of(operand.value)})"
    return Explanation(
        f"A tensor with several elements{given} was used where one answer, yes or no, is needed: "
        "if, and, or, not.",
        (
            f"Say which is meant: ({_condition(failure) or name}).all(), or .any().",
            "Compute element by element: torch.where(condition, a, b), and & | ~ for and or not.",
        ),
        failure.details(),
    )


def _condition(failure: Failure) -> str:
    node = failure.frames[-1].expression
    return ast.unparse(node) if isinstance(node, ast.Compare) else ""


def _number(failure: Failure, found: re.Match[str]) -> Explanation:
    operand = failure.argument()
    name = UNNAMED if operand is None else failure.name_of(operand)
    value = None if operand is None else operand.value
    numel = found["numel"] or (value.numel() if isinstance(value, Tensor) else "several")
    ways = (
        f"Reduce it first: {grouped(name)}.mean().item().",
        f"Take all: {grouped(name)}.tolist().",
    )
    whole = _made_a_tensor(failure)
    if whole:
        ways = (
            f"Join them: torch.stack({whole}), or torch.cat({whole}) where their shapes differ.",
            f"Reduce each to one number first, if one is meant: {grouped(name)}.mean().item().",
        )
    return Explanation(
        f"{name} has {numel} elements, and one number was to be made of it.",
        ways,
        failure.details(operand),
    )


def _made_a_tensor(failure: Failure) -> str:
    """The list of tensors that was given to ``torch.tensor`` or the like, as it is written."""
    frame = failure.user
    node = None if frame is None else frame.expression
    if frame is None or not isinstance(node, ast.Call) or not node.args:
        return ""
    maker = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    is_maker = maker in ("tensor", "as_tensor", "array", "asarray") or maker.endswith("Tensor")
    held = frame.value_of(node.args[0])
    is_list = type(held) in (list, tuple) and any(
        isinstance(one, Tensor) or one is MISSING for one in held
    )
    return written(node.args[0], frame.file) if is_maker and is_list else ""


def _meta(failure: Failure, found: re.Match[str]) -> Explanation:
    operand = failure.argument()
    name = UNNAMED if operand is None else failure.name_of(operand)
    return Explanation(
        f"{name} is on the meta device: it has a shape and no values.",
        ("Make the model with values: model.to_empty(device='cpu'), then load its weights.",),
        failure.details(operand),
    )


SITUATIONS = {
    "no forward": _no_forward,
    "before init": _before_init,
    "no such attribute": _attribute,
    "no parameter": _parameter,
    "state dict": _state_dict,
    "lazy parameter": _lazy,
    "truth of many": _truth,
    "number of many": _number,
    "item of meta": _meta,
}

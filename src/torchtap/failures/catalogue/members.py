"""Members of modules, files, and what is pickled: names and kinds that are refused."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader

from torchtap.failures.failure import Failure
from torchtap.failures.parsed_source import written
from torchtap.failures.situation_row import Situation, SituationRow, first_of


def _owner(failure: Failure) -> Any:
    return failure.frames[-1].owner


def _taken(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    owner, name = _owner(failure), found["name"]
    is_registered = isinstance(owner, nn.Module) and name in (
        *owner._buffers, *owner._parameters, *owner._modules
    )  # fmt: skip
    is_assigned = name in vars(owner) if hasattr(owner, "__dict__") else False
    is_dict = isinstance(owner, nn.ModuleDict | nn.ParameterDict)
    return {
        "kind": type(owner).__name__,
        "is_key": is_dict and not is_assigned,
        "is_assigned": is_assigned,
        "is_registered": is_registered,
        "is_method": not is_dict and not is_assigned and not is_registered,
    }


def _value(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    frame = failure.user
    node = None if frame is None else frame.expression
    args = node.args if isinstance(node, ast.Call) else []
    text = written(args[1], frame.file) if frame is not None and len(args) > 1 else "value"
    value = failure.operand("param").value
    is_parameter = found["what"] == "parameter"
    is_tensor = isinstance(value, Tensor)
    return {
        "text": text,
        "is_leaf": is_parameter and is_tensor and value.grad_fn is None,
        "is_computed": is_parameter and is_tensor and value.grad_fn is not None,
        "is_number": is_parameter and not is_tensor,
        "is_buffer": not is_parameter,
    }


def _assigned(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    is_module = found["what"] == "child module"
    value = failure.operand("value").value
    return {
        "is_module": is_module,
        "is_buffer": not is_module,
        "kind": "module" if is_module else "buffer",
        "is_function": is_module and callable(value) and not isinstance(value, type),
        "is_class": is_module and isinstance(value, type),
        "is_tensor": is_module and isinstance(value, Tensor),
    }


def _dotted(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    return {"plain": found["name"].replace(".", "_")}


def _member(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    owner = next(
        (one.owner for one in failure.frames[::-1] if isinstance(one.owner, nn.Module)), None
    )
    many = len(owner) if isinstance(owner, nn.Sequential | nn.ModuleList | nn.ParameterList) else 0
    frame = failure.user
    node = None if frame is None else frame.expression
    text = written(node.value) if isinstance(node, ast.Subscript) else "the list"
    is_loop = frame is not None and frame.loop is not None
    return {
        "kind": type(owner).__name__,
        "many": many,
        "last": many - 1,
        "looped": text if is_loop else "",
    }


def _pickled(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say what cannot be pickled, and what it was pickled for: a file or a worker."""
    is_file = any(one.code.co_name == "save" for one in failure.frames if one.is_torch)
    name = found["local"] or found["function"] or found["other"] or ""
    is_lambda = "<lambda>" in name
    short = name.rpartition(".")[2]
    kind = found["object"] or found["kind"] or ""
    return {
        "what": "A lambda"
        if is_lambda
        else f"{short}, which stands in a function or is hidden,"
        if name
        else f"An object of type {kind}",
        "target": "a file" if is_file else "another process",
        "is_file": is_file,
        "is_named": bool(name),
        "is_object": not name,
        "is_worker": not is_file
        and any(isinstance(one.owner, DataLoader) for one in failure.frames),
    }


def _norm(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say where the norm stands that was to be taken off: a parametrization, or a module inside."""
    held = failure.frames[-1].frame.f_locals
    module = held.get("module")
    tensor = found["name"] or found["tensor"]
    is_module = isinstance(module, nn.Module)
    tables = getattr(module, "parametrizations", {}) if is_module else {}
    computed = [type(one).__name__ for one in tables[tensor]] if tensor in tables else []
    inner = list(module.named_modules())[1:] if isinstance(module, nn.Module) else []
    normed = [
        name for name, one in inner
        if one._forward_pre_hooks or hasattr(one, "parametrizations")
    ]  # fmt: skip
    return {
        "what": found["norm"] or "a parametrization",
        "kind": found["kind"] or found["other"],
        "tensor": tensor,
        "computed": ", ".join(computed).lstrip("_"),
        "module": failure.called(module, "module"),
        "inside": ", ".join(normed[:3]),
    }


def _folder(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    return {"name": repr(found["folder"])}


def _saved(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    frame = failure.user
    node = None if frame is None else frame.expression
    args = node.args if isinstance(node, ast.Call) else []
    texts = [written(one, frame.file) for one in args] if frame is not None else []
    first = frame.value_of(args[0]) if frame is not None and args else None
    is_turned = len(texts) > 1 and isinstance(first, str)
    return {
        "turned": f"torch.save({texts[1]}, {texts[0]})" if is_turned else "",
        "is_other": not is_turned,
    }


SITUATIONS: dict[str, Situation] = {
    "name that is taken": SituationRow(
        "{kind} has an attribute {name!r} already, and another was to be registered by that name.",
        ("is_key", "Choose another key: {name!r} is a method of {kind}."),
        (
            "is_assigned",
            "Register it alone, without self.{name} = ... before; assigned afterwards, "
            "self.{name} = tensor goes into the buffer.",
        ),
        ("is_registered", "Register it once, or change its value: self.{name} = ..."),
        ("is_method", "Choose another name: {name!r} is an attribute of the class."),
        facts=_taken,
    ),
    "no buffer or parameter": SituationRow(
        "{given} was to be registered as the {what} {name!r}.",
        ("is_leaf", "Make a parameter of it: nn.Parameter({text})."),
        (
            "is_computed",
            "Register the parameter that it is computed from, and compute it in forward.",
        ),
        ("is_number", "Make a parameter of it: nn.Parameter(torch.tensor({text}))."),
        ("is_buffer", "Make a tensor of it: torch.tensor({text})."),
        facts=_value,
    ),
    "no module or buffer": SituationRow(
        "The {kind} {name!r} was to be replaced by {given}.",
        (
            "is_tensor",
            "If it is what the module returned: give it a name of its own, out = self.{name}(...), "
            "so that the module stays.",
        ),
        ("is_class", "Make an object of the class: self.{name} = ...(), with its arguments."),
        ("is_function", "Make a module of it: a class with a forward that calls it."),
        ("is_module", "Give a module, or None to take it away; keep other values by another name."),
        (
            "is_buffer",
            "Give a tensor: torch.tensor(...), or change the values: module.{name}.fill_(...).",
        ),
        facts=_assigned,
    ),
    "dot in a name": SituationRow(
        "The name {name!r} has a dot, which stands between the names of a module and of its parts.",
        "Use another sign: {plain!r}.",
        facts=_dotted,
    ),
    "number as a name": SituationRow(
        "The name of a {what} is a text, and {given} was given.",
        "Make a text of it: str(key), where it is stored and where it is read.",
    ),
    "member out of range": SituationRow(
        "{kind} has {many} members, 0 to {last}, and number {value} was asked for.",
        ("looped", "If a loop goes over all of them: for layer in {looped}."),
        "If it should have more: make it of more, where it is made.",
        "If a member of it is meant: give a number below {many}; -1 is the last.",
        facts=_member,
    ),
    "function that cannot be pickled": SituationRow(
        "{what} cannot be pickled, and was to go to {target}.",
        (
            "is_file",
            "Save the state alone, which is tensors: torch.save(model.state_dict(), path).",
        ),
        (
            "is_named",
            "Define it at the level of the file, a function by def, where other processes find it "
            "by its name; functools.partial gives it arguments.",
        ),
        (
            "is_worker",
            "If the DataLoader can do without workers: num_workers=0, which pickles nothing.",
        ),
        (
            "is_object",
            "Keep such an object out of what is given over: open or make it in the "
            "worker, when it is first used.",
        ),
        facts=_pickled,
    ),
    "folder that is missing": SituationRow(
        "The file was to be saved in {name}, a folder that is not there.",
        "Make it before: os.makedirs({name}, exist_ok=True).",
        facts=_folder,
    ),
    "arguments of save turned round": SituationRow(
        "torch.save takes what is saved, then where, and the second is no path.",
        ("turned", "Turn them round: {turned}."),
        ("is_other", "Give a path, or a file that is opened by open(path, 'wb')."),
        facts=_saved,
    ),
    "file of a script": SituationRow(
        "The file was saved by torch.jit.save: it holds a program beside the weights.",
        "Load it by torch.jit.load(path).",
    ),
    "file of no script": SituationRow(
        "torch.jit.load reads files of torch.jit.save, and this one is of torch.save.",
        "Load it by torch.load(path), a state into a model that is made first.",
    ),
    "shape of a parametrization": SituationRow(
        "A parametrization computes a tensor of the shape that it is given, and this one changes "
        "it.",
        "Return a tensor of the same shape from its forward.",
        "Allow another shape: register_parametrization(..., unsafe=True).",
    ),
    "modules of a dict": SituationRow(
        "nn.ModuleDict takes a dict of modules by name, and got a list.",
        "Give each a name: nn.ModuleDict({{'first': ..., 'last': ...}}).",
        "If they have numbers alone: nn.ModuleList of the list.",
    ),
    "norm that is not there": first_of(
        SituationRow(
            "{what} was to be taken off {kind}, which has {tensor} by a parametrization "
            "({computed}), as torch.nn.utils.parametrizations makes it.",
            "Take that off: torch.nn.utils.parametrize.remove_parametrizations({module}, "
            "{tensor!r}).",
            when="computed",
        ),
        SituationRow(
            "{what} was to be taken off {kind}, whose {tensor} has none.",
            ("inside", "It stands further in: take it off {inside}."),
            "If it may have been taken off before, or never applied: ask first, if "
            "torch.nn.utils.parametrize.is_parametrized(module), or hasattr(module, "
            "'{tensor}_g') of the older weight_norm.",
        ),
        facts=_norm,
    ),
    "pruned nothing": SituationRow(
        "{name} of this module is not pruned.",
        "Ask before: if prune.is_pruned(module); and give the module that was pruned.",
    ),
    "share of a pruning": first_of(
        SituationRow(
            "{given} elements were to be pruned of {most}.",
            "Give a share from 0.0 to 1.0 with its point, amount=0.5, or a whole number up to "
            "{most}.",
            when="most_too",
        ),
        SituationRow(
            "A share of a pruning is from 0.0 to 1.0, and got {given}.",
            "Give a share, amount=0.5, or a whole number of elements.",
        ),
        facts=lambda failure, found: {"most_too": bool(found["most"])},
    ),
    "normed twice": SituationRow(
        "{name} of this layer has a weight norm already.",
        "Apply it once; take it off before another: nn.utils.remove_weight_norm(layer).",
    ),
}

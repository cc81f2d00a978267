"""torch.func, TorchScript, torch.export and torch.fx: what they cannot take over."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Mapping
from typing import Any

from torchtap.failures.failure import Failure
from torchtap.failures.parsed_source import written
from torchtap.failures.situation_row import Situation, SituationRow


def _script(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    is_inferred = "inferred" in found["wanted"]
    given = found["given"]
    is_number = given in ("int", "float", "bool", "str")
    kinds = {"list": "List[torch.Tensor]", "dict": "Dict[str, torch.Tensor]"}
    annotation = given if is_number else kinds.get(given, "")
    return {
        "annotation": annotation if is_inferred else "",
        "is_inferred": is_inferred,
        "is_given": not is_inferred,
        "wanted_text": found["wanted"].replace(" (inferred)", ""),
    }


def _backend(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    names = ["inductor", "eager", "aot_eager", "cudagraphs", "onnxrt", "tensorrt"]
    close = difflib.get_close_matches(found["given"], names, n=1)
    return {"close": next(iter(close), "")}


def _exported(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    frame = failure.user
    node = None if frame is None else frame.expression
    args = node.args if isinstance(node, ast.Call) else []
    text = written(args[1], frame.file) if frame is not None and len(args) > 1 else "x"
    return {"text": text}


def _recorded_sizes(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Tell what sizes the recorded graph holds for; a 0 or 1 in an example is a constant."""
    constants = re.findall(r"specialized it to be a constant \((\d+)\)", failure.text)
    small = next((one for one in constants if one in ("0", "1")), "")
    some = f"one size alone: a size of {small} in the example is taken for a constant"
    return {
        "is_one": bool(small),
        "is_constant": bool(constants),
        "is_range": not constants,
        "holding": some if small else "one size alone" if constants else "a part of its range",
    }


def _mapped(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    return {"dims": found.groupdict().get("dims") or ""}


def _functional(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    missing = re.search(r"Missing key\(s\): (.*)\.", failure.text)
    unknown = re.search(r"Unexpected key\(s\): (.*)\.", failure.text)
    parts = [f"lacks {missing[1]}" if missing else "", f"has {unknown[1]}" if unknown else ""]
    return {"what": " and ".join(filter(None, parts)) or "does not fit"}


def _fake(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    return {"why": found["why"].rstrip(".")}


SITUATIONS: dict[str, Situation] = {
    "outputs of a gradient": SituationRow(
        "torch.func.grad differentiates one number, and the function returned a {given}.",
        "If the first of them is the loss, say that the rest goes along: has_aux=True.",
        "Otherwise return the loss alone.",
    ),
    "dimensions of a map": SituationRow(
        "in_dims has not one entry for each argument of the mapped function.",
        "Give one number for each argument, None for what is not mapped: in_dims=(0, None).",
    ),
    "map of no tensor": SituationRow(
        "vmap goes through tensors, and an argument is a {given}.",
        "Say that it is the same for all samples: in_dims=(0, None), with None in its place.",
    ),
    "dimension of a map": SituationRow(
        "vmap was to go through dimension {dim} of an argument, which has {dims}.",
        "Give a dimension below {dims}: in_dims=0 for the first.",
        facts=_mapped,
    ),
    "statistics in a transform": SituationRow(
        "{module} updates its running statistics in place, which vmap cannot where all samples "
        "share them.",
        "If running statistics are not needed, leave them out: track_running_stats=False.",
        "If each model has its own, map the buffers along with the parameters: "
        "functional_call(model, (params, buffers), x), with in_dims=0 for both.",
        "Or use a norm of each sample: nn.GroupNorm or nn.LayerNorm.",
    ),
    "output of a map": SituationRow(
        "A function inside of vmap returned a {given}, and its outputs are stacked to tensors.",
        "Return tensors alone: without .item(), float() and .tolist().",
    ),
    "shape that depends on values": SituationRow(
        "{op} inside of vmap gives as many elements as values allow: each sample would "
        "have another "
        "shape.",
        "Keep the shape, and choose by element: torch.where(mask, x, 0).",
        "Or compute it outside of vmap, in a loop over the samples.",
    ),
    "backward in a transform": SituationRow(
        "backward was called inside of a transform of torch.func, which has a graph of its own.",
        "Return the loss, and differentiate the function: torch.func.grad(f), inside of vmap for "
        "each sample.",
    ),
    "primals of a transform": SituationRow(
        "torch.func.jvp takes inputs and tangents as tuples, one entry for each argument, and got "
        "another kind of {which}.",
        "Put them into tuples: jvp(f, (x,), (v,)).",
    ),
    "size of a tangent": SituationRow(
        "A tangent has the shape of the input that it belongs to, and this one has another.",
        "Give a tangent of that shape: torch.ones_like(x), or the direction that is meant.",
        about="tensors",
    ),
    "argument of a transform": SituationRow(
        "The derivative was asked for by argument {at}, counted from 0, and the function got "
        "{count}.",
        "Give a number below {count}, and what is differentiated by position, not by name.",
    ),
    "models of one class": SituationRow(
        "stack_module_state stacks the parameters of models of one class, and got several.",
        "Give models of one class and one size; run others one by one.",
    ),
    "names of a functional call": SituationRow(
        "The dict of a functional call {what}: its keys are the names of the {kind}'s parameters.",
        "Give the names of named_parameters(): {{**dict(model.named_parameters()), name: value}}.",
        facts=_functional,
    ),
    "index of a scripted list": SituationRow(
        "TorchScript unrolls a ModuleList, so that its index must be a number in the source.",
        "Go through it, and take the one: for at, layer in enumerate(self.layers): "
        "if at == index: x = layer(x).",
        "If a choice at run time is not needed, trace it: torch.jit.trace(model, x).",
    ),
    "argument of a script": SituationRow(
        "{call} takes a {wanted_text} as {name!r}, and got a {given}.",
        (
            "annotation",
            "Say its type in the definition, which is Tensor where none is said: "
            "{name}: {annotation}.",
        ),
        ("is_given", "Give a {wanted_text}, or say another type in the definition."),
        facts=_script,
    ),
    "keywords of a script": SituationRow(
        "TorchScript needs every argument by its name: *args and **kwargs are none.",
        "Write the arguments out, with their types.",
    ),
    "name in one branch": SituationRow(
        "{name} is given a value in one branch alone, and TorchScript needs it in both.",
        "Give it a value before the if, or in the {branch} branch.",
    ),
    "types of two branches": SituationRow(
        "{name} is {a} in one branch and {b} in the other, and a name has one type in TorchScript.",
        "Use two names, or values of one type.",
    ),
    "syntax of a script": SituationRow(
        "TorchScript has no {what}.",
        "Leave it out of the scripted function, or keep the function out: @torch.jit.ignore.",
    ),
    "dict of a trace": SituationRow(
        "The model returns a dict, and a trace would keep the keys that it had this time.",
        "If the keys are always the same: torch.jit.trace(model, x, strict=False).",
        "Or return a tuple or a NamedTuple.",
    ),
    "output of a trace": SituationRow(
        "A traced function returns tensors, and something else was returned.",
        "Return tensors alone: torch.tensor(...) of a number.",
    ),
    "constant with grad": SituationRow(
        "A tensor that requires grad is used in what is traced, and is neither argument nor "
        "parameter.",
        "Make it a parameter of the module, or an argument.",
        "If it is not trained, take it out of the graph before: w = w.detach().",
        about="tensors",
    ),
    "backend of a compiler": SituationRow(
        "torch.compile has no backend {given!r}.",
        ("close", "Did you mean {close!r}?"),
        "See torch.compiler.list_backends().",
        facts=_backend,
    ),
    "values in an export": SituationRow(
        "The model decides by the value of a tensor, and an export has shapes and no values.",
        "Choose element by element: torch.where(condition, a, b); or torch.cond for two functions.",
        "If the condition does not depend on the input, make it a number in __init__.",
    ),
    "arguments of an export": SituationRow(
        "torch.export takes the inputs of the model as a tuple, and got a {given}.",
        "Put it into a tuple: ({text},).",
        facts=_exported,
    ),
    "module of an export": SituationRow(
        "torch.export takes a module, and got a {given}.",
        "Make a module of the function: a class whose forward calls it.",
    ),
    "size of an export": SituationRow(
        "{dims} was said to be dynamic, and what export recorded holds for {holding}.",
        ("is_one", "Export with an example that has a size of 2 or more there."),
        (
            "is_constant",
            "If the model's code has the number, take it from the input: x.shape[0], or -1 in a "
            "view, in place of a number.",
        ),
        ("is_constant", "If it is always the same, leave it out of dynamic_shapes."),
        ("is_range", "Take the range that the message suggests, if all your inputs are in it."),
        facts=_recorded_sizes,
    ),
    "input of an export": SituationRow(
        "The exported model was made for other sizes than it was given: {guard} does not hold.",
        "Export it with that dimension dynamic: dynamic_shapes=({{0: torch.export.Dim.AUTO}},).",
        "Give inputs of the shape that it was exported with.",
    ),
    "branch of a symbol": SituationRow(
        "torch.fx runs the function with symbols in place of tensors, and an if needs a value.",
        "Choose element by element: torch.where(condition, a, b).",
        "If the condition is an argument that stays, fix it: concrete_args={{'name': value}}; or "
        "keep the module whole: a Tracer whose is_leaf_module says so.",
    ),
    "loop over a symbol": SituationRow(
        "torch.fx runs the function with symbols in place of tensors, and a loop over one has no "
        "end.",
        "Compute without a loop over the tensor, or over a range whose length is a number.",
    ),
    "fake tensors that do not fit": SituationRow(
        "Compiling runs the function with shapes alone, and an operation of it failed: {why}.",
        "Run it without torch.compile: the note then names the tensors of the operation.",
        facts=_fake,
    ),
}

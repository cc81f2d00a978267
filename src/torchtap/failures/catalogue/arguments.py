"""Arguments of operations and of forwards: None, tuples, and the wrong number."""

from __future__ import annotations

import ast
import difflib
import inspect
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.failures.assignments import assignments_of
from torchtap.failures.failure import Explanation, Failure
from torchtap.failures.operands import Operand
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.situation_row import Situation, SituationRow
from torchtap.failures.traceback_frame import MISSING
from torchtap.failures.unread_members import unread_tensors
from torchtap.failures.value_chains import chain_of

_FUNCTIONS = ("builtin_function_or_method", "method", "function")


def _argument(failure: Failure, found: re.Match[str]) -> Explanation:
    given, name = found["given"], found["name"]
    kind = given.split(".")[-1]
    named = failure.operand(name, "")
    fitting = [named] if named.text else []
    fitting += [one for one in failure.operands if type(one.value).__name__ == kind]
    unknown = [one for one in failure.candidates if one.value is MISSING]
    chosen = fitting or (unknown if len(unknown) == 1 else [])
    operand = next(iter(chosen), None) or _given_at(failure, int(found["at"])) or Operand(name)
    text, maker = failure.name_of(operand), failure.origin(operand).module
    made = _made_of_a_tensor(failure, operand)
    is_embedding = isinstance(failure.module, nn.Embedding)
    ways = _uncalled(failure, operand, name) or _ways(
        given, text, maker, operand.value, is_embedding
    )
    return Explanation(
        f"{failure.module_text} takes a tensor as {name!r}, and got {given}"
        f"{f', which {failure.names.module(maker)} returned' if maker is not None else ''}.",
        (made, *ways[1:]) if made else ways,
        failure.details(operand) or tuple(("operand", one.text) for one in chosen[:1]),
    )


def _uncalled(failure: Failure, operand: Operand, name: str) -> tuple[str, ...]:
    """Return the ways out of a module or function that was given in place of its result."""
    value = operand.value
    is_module = isinstance(value, nn.Module)
    if not is_module and type(value).__name__ not in _FUNCTIONS:
        return ()
    chain = chain_of(failure, operand)
    text, user = failure.name_of(operand), failure.user
    if chain and isinstance(chain[-1].node, ast.Attribute):
        text = chain[-1].text
    for made in assignments_of(user, text) if user is not None else ():
        if isinstance(made.value, ast.Attribute):  # labels = labels.to
            text = written(made.value)
    ways = [f"If its result is meant, call it: {grouped(text)}(...)."]
    unread = unread_tensors(user) if user is not None and is_module else []
    if len(unread) == 1:
        ways.insert(0, f"If {unread[0]}, which no line reads, is meant as {name!r}: give that.")
    elif is_module:
        ways.append(f"If it is to be another tensor: give that as {name!r}.")
    return tuple(ways)


def _given_at(failure: Failure, at: int) -> Operand | None:
    """The argument of the program's call at a position, where PyTorch's own code has no name."""
    frame = failure.frames[-1]
    node = frame.expression
    if not frame.is_user or not isinstance(node, ast.Call) or len(node.args) < at:
        return None
    given = node.args[at - 1]
    return Operand(written(given, frame.file), frame.value_of(given), frame.depth)


def _made_of_a_tensor(failure: Failure, operand: Operand) -> str:
    """The way out where a module was made with what it was to be called with."""
    if not isinstance(operand.value, nn.Module):
        return ""
    for frame in failure.frames:
        if frame.is_torch or frame.own_names.get(failure.name_of(operand)) is not operand.value:
            continue
        for one in assignments_of(frame, failure.name_of(operand)):
            if isinstance(one.value, ast.Call) and one.value.args:
                if isinstance(frame.value_of(one.value.func), nn.Module):
                    continue  # A module that is made already returned another one.
                kind = written(one.value.func, frame.file)
                given = ", ".join(written(part, frame.file) for part in one.value.args)
                return f"Make the module first, then call it: {kind}()({given})."
    return ""


def _ways(
    given: str, text: str, maker: nn.Module | None, value: Any, is_embedding: bool
) -> tuple[str, ...]:
    if isinstance(value, dict):
        held = [key for key, one in value.items() if isinstance(one, Tensor)]
        short = [f"{grouped(text)}[{key!r}]" for key in held[:3]]
        return (f"Take a tensor out of it: {' or '.join(short) or f'{grouped(text)}[...]'}.",)
    if given in ("tuple", "list"):
        is_first = type(value) in (tuple, list) and value and isinstance(value[0], Tensor)
        if type(value) in (tuple, list) and value and not is_first:
            return (f"Make a tensor of it: torch.tensor({text}).",)
        if type(value) is list and maker is None and all(isinstance(one, Tensor) for one in value):
            return (
                f"If all are meant: make a tensor of them, torch.stack({text}), or "
                f"torch.cat({text}).",
                f"If one is meant: {grouped(text)}[0].",
            )
        ways = [f"Take the tensor out of it: {grouped(text)}[0]."]
        if isinstance(maker, nn.LSTM | nn.GRU | nn.RNN | nn.MultiheadAttention):
            ways.append(
                "It returns (output, state): output, _ = module(x), also inside a Sequential."
            )
        elif maker is not None and maker._forward_hooks:
            ways.append(
                "A forward hook of it returned that: return the tensor, or None to keep it."
            )
        return (*ways, f"Make a tensor of it: torch.stack({text}), or torch.cat({text}).")
    if given == "NoneType":
        return (
            f"Return a value from what makes {text}: a function without return gives None.",
            f"Guard it: if {grouped(text)} is not None.",
        )
    if "ndarray" in given:
        kind = getattr(getattr(value, "dtype", None), "kind", "f")
        end = ".float()" if kind == "f" and not is_embedding else ""
        return (f"Convert it: torch.from_numpy({text}){end}.",)
    if given == "str" and not is_embedding:
        return (
            f"If {text} comes of a dict, or of an output of a model that is one, take the value by "
            "its key: iterating or unpacking gives the keys.",
        )
    if given == "str":
        return (
            f"Give numbers: those of tokens, as a tokenizer returns them, in place of the text "
            f"{text}.",
        )
    if given in ("int", "float", "bool", "complex"):
        return (f"Give a tensor: torch.as_tensor({text}).",)
    return (f"Give the tensor that {text} holds, and not {text} itself.",)


def _meant(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say what was meant by a call with other arguments, as far as it tells."""
    unknown = re.search(r"unexpected keyword argument '(\w+)'", found["what"])
    frame = failure.user
    node = None if frame is None else frame.expression
    args = node.args if isinstance(node, ast.Call) and frame is not None else []
    value = frame.value_of(args[0]) if len(args) == 1 and frame is not None else None
    is_chain = any(isinstance(one.owner, nn.Sequential) for one in failure.frames)
    unpacked = ""
    if isinstance(value, dict | tuple) and not is_chain and isinstance(node, ast.Call):
        stars = "**" if isinstance(value, dict) else "*"
        unpacked = f"{written(node.func)}({stars}{written(args[0])})"
    is_stars = isinstance(node, ast.Call) and any(one.arg is None for one in node.keywords)
    return {
        "unknown": unknown[1] if unknown else "",
        "unpacked": unpacked,
        "chain": is_chain and not unknown,
        "stars": unknown[1] if unknown and is_stars else "",
    }


def _forward(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    words = dict(_meant(failure, found))
    none = dict.fromkeys(("takes", "lacking", "beyond", "close", "is_selfless", "replicas"), "")
    if failure.module is None:
        return {**none, **words}
    signature = inspect.signature(failure.module.forward)
    plain = signature.replace(return_annotation=inspect.Signature.empty)
    names = list(signature.parameters)
    is_own = not words["chain"] and not words["unpacked"]
    missing = re.findall(r"'(\w+)'", found["what"]) if found["what"].startswith("missing") else []
    close = difflib.get_close_matches(words["unknown"], names, n=1) if words["unknown"] else []
    tree = type(failure.module).forward
    is_selfless = inspect.isfunction(tree) and tree.__code__.co_varnames[:1] != ("self",)
    is_wrapped = any(type(one.owner).__name__ == "DataParallel" for one in failure.frames)
    return {
        **none,
        "takes": f" It takes {plain}.",
        **words,
        "lacking": ", ".join(f"{one}=..." for one in missing) if is_own else "",
        "names": " and ".join(missing),
        "beyond": found["what"].startswith("takes") and is_own and not is_selfless,
        "own": f"({', '.join(names)})",
        "close": f"{close[0]}=..." if close else "",
        "is_selfless": is_selfless,
        "replicas": is_wrapped and bool(missing),
        "is_chained": words["chain"] and not words["unknown"],
        "called": failure.names.variable(failure.module),
    }


def _form(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say which arguments were given, and what is meant where that is plain."""
    given = [one.strip() for one in found["given"].split(",")]
    values = [one.value for one in failure.operands]
    modules = [one for one in failure.operands if isinstance(one.value, nn.Module)]
    numbers = [one.text for one in failure.operands if type(one.value) in (int, float)]
    tensors = [failure.name_of(one) for one in failure.tensors]
    is_bound = found["op"] in ("max", "min") and len(tensors) == len(numbers) == 1
    return {
        "is_bound": is_bound and given == ["Tensor", "float"] and len(values) == 2,
        "side": "min" if found["op"] == "max" else "max",
        "tensor": grouped(tensors[0]) if tensors else "",
        "number": numbers[0] if numbers else "",
        "is_module": bool(modules),
        "layer": failure.name_of(modules[0]) if modules else "",
    }


def _minus(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say which operand is the mask, and whether it is taken from 1."""
    masks = [one for one in failure.tensors if one.value.dtype is torch.bool]
    mask = masks[0] if masks else Operand("mask")
    name = failure.name_of(mask) if masks else "mask"
    expression = None if failure.user is None else failure.user.expression
    if failure.user is not None and masks and failure.frames[mask.depth].is_torch:
        # PyTorch's own frame of 1 - x calls its operand self.
        part = expression.right if isinstance(expression, ast.BinOp) else None
        name = "mask" if part is None else written(part, failure.user.file)
    left = expression.left if isinstance(expression, ast.BinOp) else None
    is_one = isinstance(left, ast.Constant) and left.value == 1
    is_two = "two" in failure.text.partition(" bool")[0]
    is_loss = any(one.code.co_name.startswith("binary_cross_entropy") for one in failure.frames)
    if is_loss:
        name = failure.name_of(failure.operand("target", "the target"))
    return {
        "mask": grouped(name),
        "is_inverse": not is_loss and (is_one or isinstance(expression, ast.UnaryOp)),
        "is_pair": is_two and not is_loss,
        "is_number": not is_two and not is_loss,
        "is_loss": is_loss,
    }


def _first_argument(failure: Failure) -> list[ast.expr]:
    node = failure.frames[-1].expression
    return node.args[:1] if isinstance(node, ast.Call) else []


def _joined(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    node = failure.frames[-1].expression
    names = [written(one) for one in getattr(node, "args", [])[:1]]
    kind = found["given"].rpartition(".")[2]
    is_array = kind == "ndarray"
    is_one = kind in ("int", "float", "bool", "str", "NoneType", "dict")
    return {
        "whole": names[0] if names else "tensors",
        "is_array": is_array,
        "is_one": is_one,
        "is_several": not is_array and not is_one,
    }


def _listed(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    given = found["given"]
    is_number = given in ("int", "float", "bool")
    is_collated = failure.frames[-1].is_torch and failure.frames[-1].file.endswith("collate.py")
    names = [written(one) for one in getattr(failure.frames[-1].expression, "args", [])[:1]]
    values = [failure.frames[-1].value_of(one) for one in _first_argument(failure)]
    held = values[0] if values and isinstance(values[0], list | tuple) else ()
    inner = held[0] if len(held) == 1 else ()
    is_tuple = isinstance(inner, list | tuple) and any(isinstance(one, Tensor) for one in inner)
    return {
        "is_collated": is_collated,
        "is_number": is_number and bool(names) and not is_collated,
        "is_array": given == "ndarray" and bool(names),
        "is_list": given in ("list", "tuple") and not is_tuple,
        "is_tuple": is_tuple,
        "whole": names[0] if names else "",
    }


SITUATIONS: dict[str, Situation] = {
    "argument that is no tensor": _argument,
    "tensors to join": SituationRow(
        "torch.{op} takes a list or tuple of tensors, and got {given}.",
        ("is_several", "Make a list of it: torch.{op}(list({whole}))."),
        ("is_array", "Make tensors of it: [torch.as_tensor(one) for one in {whole}]."),
        ("is_one", "Put the tensors into a list: torch.{op}([a, b])."),
        facts=_joined,
    ),
    "no such form": SituationRow(
        "{op} has no form that takes ({given}).",
        ("is_bound", "Bound a tensor by a number with clamp: {tensor}.clamp({side}={number})."),
        ("is_module", "{layer} is a module and no tensor: call it, {layer}(...)."),
        "Give the arguments of one of the forms that PyTorch lists above.",
        facts=_form,
    ),
    "minus of a mask": SituationRow(
        "{mask} is a mask of True and False, and - is not defined for it.",
        ("is_inverse", "Turn it round with ~: ~{mask} is True where it was False."),
        ("is_loss", "The loss computes with 0 and 1: give it {mask}.float()."),
        ("is_pair", "Where they differ: a ^ b. Where the first alone is True: a & ~b."),
        ("is_number", "If it stands for 0 and 1, make numbers of it: {mask}.float()."),
        about="tensors",
        facts=_minus,
    ),
    "no tensor in a list": SituationRow(
        "Element {at} of the list is of type {given}, and each has to be a tensor.",
        (
            "is_collated",
            "Return the same kind for every sample from the data set, a tensor: this part is a "
            "tensor for some and {given} for others.",
        ),
        (
            "is_number",
            "Make tensors of the numbers: [torch.as_tensor(one) for one in {whole}]; of losses "
            "that are added up, sum({whole}) takes numbers, too.",
        ),
        ("is_array", "Make tensors of the arrays: [torch.as_tensor(one) for one in {whole}]."),
        (
            "is_tuple",
            "It holds one tuple, whose parts are the tensors: give that itself, {whole_it}[0].",
        ),
        ("is_list", "Make it a tensor first, or put the lists together before."),
        facts=_listed,
    ),
    "arguments of forward": SituationRow(
        "{module} was called with arguments that its forward does not take: {what}.{takes}",
        (
            "chain",
            "A Sequential hands one value on: call its modules one after the other in a forward of "
            "a class of your own, or let the module that needs several take a tuple, "
            "def forward(self, inputs): x, y = inputs.",
        ),
        (
            "is_selfless",
            "Give its forward the module as the first parameter: def forward(self, x).",
        ),
        ("unpacked", "Unpack it: {unpacked}."),
        ("close", "If {unknown} is another name of it: {close}"),
        (
            "stars",
            "If the dict has more than the forward needs: take {unknown} out of it before, "
            "batch.pop({unknown!r}).",
        ),
        ("unknown", "If the forward does not need {unknown}: leave it out of the call."),
        ("unknown", "If it is to use it: add it to the parameters of its forward."),
        (
            "replicas",
            "DataParallel gives a replica no positional arguments where a batch has fewer samples "
            "than there are devices: leave such a batch out, drop_last=True of the loader.",
        ),
        ("lacking", "If it needs {names}: give what is missing in the call, {lacking}"),
        (
            "lacking",
            "If it can do without: give {names} a default in its forward, such as None.",
        ),
        ("beyond", "If the forward does not need the others: call it with {own} alone."),
        ("beyond", "If it is to use them: add them to the parameters of its forward."),
        facts=_forward,
    ),
}

"""Arguments of operations and of forwards: None, tuples, and the wrong number."""

from __future__ import annotations

import ast
import difflib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.failures.assignments import assignments_of
from torchtap.failures.container_parts import Part, fitting, joined, listed, parts_of
from torchtap.failures.failure import Explanation, Failure
from torchtap.failures.none_sources import explained_none
from torchtap.failures.operands import Operand
from torchtap.failures.out_of_place import statement_of
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.situation_row import Situation, SituationRow
from torchtap.failures.traceback_frame import MISSING
from torchtap.failures.uncalled_modules import way_to_call
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
    if given == "NoneType":
        needs = f"{failure.module_text} takes a tensor as {name!r}"
        return explained_none(failure, found, text, needs, maker)
    ways = _uncalled(failure, operand, name) or _ways(
        name, given, text, maker, operand.value, failure
    )
    return Explanation(
        f"{failure.module_text} takes a tensor as {name!r}, and got {given}"
        f"{f', which {failure.names.module(maker)} returned' if maker is not None else ''}.",
        ways,
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
    if is_module:
        way = way_to_call(failure, value, text)
        if not way.startswith("If "):
            return (way,)
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


def _ways(
    name: str, given: str, text: str, maker: nn.Module | None, value: Any, failure: Failure
) -> tuple[str, ...]:
    taker = failure.module
    is_embedding = isinstance(taker, nn.Embedding)
    parts = parts_of(text, value)
    if parts:
        fit = fitting(parts, taker) if name == "input" else parts
        return tuple(_ways_of_parts(text, maker, value, fit, failure))
    op = failure.text.partition("(")[0]
    if op.endswith("_like") and given in ("tuple", "list"):
        return (f"If it is a shape: torch.{op.removesuffix('_like')}({text}).",)
    if isinstance(value, dict):
        return (f"Take a tensor out of it: {grouped(text)}[...].",)
    if given in ("tuple", "list"):
        if type(value) in (tuple, list) and value:
            return (f"If it holds numbers: make a tensor of it, torch.tensor({text}).",)
        return (f"If a part of it is meant: {grouped(text)}[0].",)
    if "ndarray" in given:
        kind = getattr(getattr(value, "dtype", None), "kind", "f")
        is_wanted = taker is not None and not is_embedding and kind in "fiub"
        end = ".float()" if (kind == "f" and not is_embedding) or is_wanted else ""
        moved = ".movedim(-1, -3)" if _has_channels_last(value, taker) else ""
        if type(taker).__module__ == "torch.nn.modules.loss" and name == "input":
            return (
                f"The loss takes the output of a model here, whose graph no array has: if {text} "
                "is that, give it before it became an array; if another variable is, give that.",
                f"If only the value of the loss is meant: torch.from_numpy({text}).",
            )
        return (f"Convert it: torch.from_numpy({text}){moved}{end}.",)
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
        return (f"If the number is meant: give a tensor, torch.as_tensor({text}).",)
    return (f"If {text} holds a tensor: give that, and not {text} itself.",)


def _has_channels_last(value: Any, layer: nn.Module | None) -> bool:
    """Return whether an array is a picture with its channels behind, as files of pictures are."""
    shape: Sequence[int] = getattr(value, "shape", ())
    if not isinstance(layer, nn.Conv2d) or len(shape) not in (3, 4):
        return False
    return shape[-1] == layer.in_channels != shape[-3]


def _ways_of_parts(
    text: str, maker: nn.Module | None, value: Any, parts: list[Part], failure: Failure
) -> Iterator[str]:
    """Yield the ways out of a container that holds tensors."""
    chain = any(isinstance(one.owner, nn.Sequential) for one in failure.frames[-4:])
    is_pair = isinstance(maker, nn.RNNBase | nn.MultiheadAttention)
    if is_pair and chain:
        yield (
            f"{failure.names.module(maker)} returns (output, state), and a Sequential hands on "
            "all that a module returns: call the modules in a forward of a class of your own, and "
            "take the output, module(x)[0]; or put a module between that returns that."
        )
        return
    if type(value) is list and maker is None and joined(text, value):
        yield f"If all are meant: make a tensor of them, {', or '.join(joined(text, value))}."
        yield f"If one is meant: {grouped(text)}[0]."
        return
    if len(parts) == 1:
        yield f"Take the tensor out of it: {parts[0].text}."
    elif is_pair:
        yield f"Take the tensor out of it: {grouped(text)}[0]; it returns (output, state)."
    else:
        yield f"Take the part out of it that is meant: {listed(parts)}."
    if maker is not None and maker._forward_hooks:
        yield "A forward hook returned it: return a tensor from it, or None to keep the output."
    if joined(text, value) and not is_pair:
        yield f"If all are meant: make a tensor of them, {', or '.join(joined(text, value))}."


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


def _read_as_module(failure: Failure) -> str:
    """Return a call of a module without arguments as the module itself; empty of any other.

    ``net.module().state_dict()`` reads a member of a module of the result of a call.
    """
    frame = failure.user
    node = None if frame is None else frame.expression
    if frame is None or not isinstance(node, ast.Call) or node.args or node.keywords:
        return ""
    text = written(node.func, frame.file)
    whole = list(ast.walk(statement_of(frame) or node))
    called = {ast.dump(one.func) for one in whole if isinstance(one, ast.Call)}
    for one in whole:
        is_its = isinstance(one, ast.Attribute) and ast.dump(one.value) == ast.dump(node)
        if is_its and isinstance(one, ast.Attribute) and hasattr(nn.Module, one.attr):
            return f"{text}.{one.attr}{'()' if ast.dump(one) in called else ''}"
    return ""


_WORDS = (
    *("itself", "takes", "lacking", "beyond", "close", "is_selfless", "replicas"),
    *("is_changeable", "is_extended", "is_extended_by_name", "layer"),
)


def _forward(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    words = dict(_meant(failure, found))
    none = dict.fromkeys(_WORDS, "")
    if failure.module is None:
        return {**none, **words}
    signature = inspect.signature(failure.module.forward)
    plain = signature.replace(return_annotation=inspect.Signature.empty)
    names = list(signature.parameters)
    itself = _read_as_module(failure)
    is_own = not words["chain"] and not words["unpacked"] and not itself
    missing = re.findall(r"'(\w+)'", found["what"]) if found["what"].startswith("missing") else []
    close = difflib.get_close_matches(words["unknown"], names, n=1) if words["unknown"] else []
    tree = type(failure.module).forward
    is_selfless = inspect.isfunction(tree) and tree.__code__.co_varnames[:1] != ("self",)
    is_of_torch = type(failure.module).__module__.startswith("torch.")
    is_wrapped = any(type(one.owner).__name__ == "DataParallel" for one in failure.frames)
    return {
        **none,
        "takes": f" It takes {plain}.",
        **words,
        "itself": itself,
        "lacking": ", ".join(f"{one}=..." for one in missing) if is_own else "",
        "names": " and ".join(missing),
        "beyond": found["what"].startswith("takes") and is_own and not is_selfless,
        "own": f"({', '.join(names)})",
        "close": f"{close[0]}=..." if close else "",
        "is_selfless": is_selfless,
        "is_changeable": is_own and bool(missing) and not is_of_torch,
        "is_extended": found["what"].startswith("takes")
        and is_own
        and not is_of_torch
        and not is_selfless,
        "is_extended_by_name": bool(words["unknown"]) and not is_of_torch,
        "layer": type(failure.module).__name__
        if is_of_torch and is_own and (found["what"].startswith("takes") or words["unknown"])
        else "",
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
        **_slip(failure),
        **_whole(failure),
        "is_module": bool(modules),
        "layer": failure.name_of(modules[0]) if modules else "",
    }


def _slip(failure: Failure) -> dict[str, str]:
    """Words of an argument that is None, a text of a number, or a quotient, in a call."""
    words = dict.fromkeys(("none", "digits", "quotient", "whole"), "")
    frame = failure.user
    node = None if frame is None else frame.expression
    if frame is None or not isinstance(node, ast.Call) or not frame.is_user:
        return words
    for one in (*node.args, *(keyword.value for keyword in node.keywords)):
        value, text = frame.value_of(one), written(one, frame.file)
        if value is None and not isinstance(one, ast.Constant):
            words["none"] = words["none"] or text
        if isinstance(value, str) and value.strip().isdigit():
            words["digits"] = words["digits"] or text
        if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Div):
            words["quotient"] = text
            words["whole"] = f"{written(one.left, frame.file)} // {written(one.right, frame.file)}"
    return words


def _wrong_input(failure: Failure, found: re.Match[str]) -> Explanation | None:
    """The explanation where a layer was given no tensor, and PyTorch lists its forms."""
    given = found["given"].split(",")[0].strip()
    layer = failure.module
    is_of_layer = failure.frames[-1].is_torch and layer is not None
    if not is_of_layer or given in ("Tensor", "Parameter") or not isinstance(layer, _CONVOLUTIONS):
        return None
    operand = failure.operand("input")
    text, maker = failure.name_of(operand), failure.origin(operand).module
    if given == "NoneType":
        needs = f"{failure.module_text} takes a tensor"
        return explained_none(failure, found, text, needs)
    return Explanation(
        f"{failure.module_text} takes a tensor, and got {given}.",
        _ways("input", given, text, maker, operand.value, failure),
        failure.details(operand),
    )


_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d)


_NO_FORM = SituationRow(
    "{op} has no form that takes ({given}).",
    ("is_bound", "Bound a tensor by a number with clamp: {tensor}.clamp({side}={number})."),
    ("is_module", "{layer} is a module and no tensor: call it, {layer}(...)."),
    ("digits", "{digits} is a text: make a number of it, int({digits})."),
    (
        "quotient",
        "If a whole number is needed: / gives floats, {whole} in place of {quotient}.",
    ),
    (
        "none",
        "{none} is None: check what gave it, such as an option that is off, or a function "
        "without return.",
    ),
    (
        "sizes",
        "{sizes} holds all sizes: if one of them is meant, say which, {sizes}[0]; if all, put a "
        "star before it, *{sizes}.",
    ),
    ("uncalled", "{uncalled} is a method and was not called: {uncalled}(...)."),
    "Give the arguments of one of the forms that PyTorch lists above.",
    facts=_form,
)


def _no_form(failure: Failure, found: re.Match[str]) -> Explanation:
    return _wrong_input(failure, found) or _NO_FORM(failure, found)


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
    given = found.groupdict().get("given") or "NoneType"
    is_number = given in ("int", "float", "bool")
    is_collated = failure.frames[-1].is_torch and failure.frames[-1].file.endswith("collate.py")
    names = [written(one) for one in getattr(failure.frames[-1].expression, "args", [])[:1]]
    values = [failure.frames[-1].value_of(one) for one in _first_argument(failure)]
    held = values[0] if values and isinstance(values[0], list | tuple) else ()
    inner = held[0] if len(held) == 1 else ()
    is_tuple = isinstance(inner, list | tuple) and any(isinstance(one, Tensor) for one in inner)
    inside = [part for one in held[:1] for part in parts_of("one", one)] if len(held) > 1 else []
    return {
        "is_collated": is_collated,
        "is_number": is_number and bool(names) and not is_collated,
        "is_array": given == "ndarray" and bool(names),
        "is_list": given in ("list", "tuple") and not is_tuple and not inside,
        "inside": inside[0].text if inside else "",
        "is_tuple": is_tuple,
        "whole": names[0] if names else "the list",
        "whole_is": bool(names),
    }


def _size(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say which of several sizes is no number, and whether it is a method or None."""
    frame = failure.user
    node = None if frame is None else frame.expression
    args = node.args if isinstance(node, ast.Call) else []
    args = args[0].elts if len(args) == 1 and isinstance(args[0], ast.Tuple | ast.List) else args
    at = int(found["at"]) - (args is getattr(node, "args", None))
    text = written(args[at], frame.file) if frame is not None and at < len(args) else ""
    text = text or f"size {at + 1}"
    is_method = found["given"] in _FUNCTIONS
    return {
        "text": text,
        "is_method": is_method,
        "is_none": found["given"] == "NoneType",
        "is_other": not is_method and found["given"] != "NoneType",
    }


def _whole(failure: Failure) -> dict[str, str]:
    """Words of sizes that stand among others, ``x.view(x.shape, -1)``, and of methods there."""
    words, frame = {"sizes": "", "uncalled": ""}, failure.user
    node = None if frame is None else frame.expression
    if frame is None or not isinstance(node, ast.Call):
        return words
    for one in node.args:
        value, text = frame.value_of(one), written(one, frame.file)
        is_member = isinstance(one, ast.Attribute)
        owner = frame.value_of(one.value) if isinstance(one, ast.Attribute) else None
        if isinstance(value, torch.Size) or (is_member and text.endswith(".shape")):
            return {**words, "sizes": text}
        is_method = isinstance(owner, Tensor) and inspect.isroutine(
            getattr(Tensor, text.rpartition(".")[2], None)
        )
        if is_method or type(value).__name__ in _FUNCTIONS:
            return {**words, "uncalled": text}
    return words


SITUATIONS: dict[str, Situation] = {
    "size of another kind": SituationRow(
        "{op} takes whole numbers as sizes, and {text} is of type {given}.",
        ("is_method", "It is a method and was not called: {text}(...)."),
        ("is_none", "Give it a number where it comes from: an option without a default is None."),
        ("is_other", "Give a whole number in its place."),
        facts=_size,
    ),
    "size in a tuple": SituationRow(
        "{op} takes whole numbers as sizes, and element {at} of them, {text}, is of type {given}.",
        ("is_method", "It is a method and was not called: {text}(...)."),
        ("is_none", "Give it a number where it comes from: an option without a default is None."),
        ("is_other", "Give a whole number in its place: // for /, int(...) of another number."),
        facts=_size,
    ),
    "argument of another kind": SituationRow(
        "{op} takes {wanted} as {name!r}, and got {given}.",
        "Give {wanted} there, and check the order of the arguments.",
    ),
    "argument that is no tensor": _argument,
    "tensors to join": SituationRow(
        "torch.{op} takes a list or tuple of tensors, and got {given}.",
        ("is_several", "Make a list of it: torch.{op}(list({whole}))."),
        ("is_array", "Make tensors of it: [torch.as_tensor(one) for one in {whole}]."),
        ("is_one", "Put the tensors into a list: torch.{op}([a, b])."),
        facts=_joined,
    ),
    "no such form": _no_form,
    "None in a list": SituationRow(
        "Element {at} of {whole} is None, and each has to be a tensor.",
        (
            "whole_is",
            "If it may be missing: leave it out, [one for one in {whole} if one is not None].",
        ),
        "If not: check what was put there: a function without return, or a branch that gives "
        "nothing.",
        facts=_listed,
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
        (
            "inside",
            "If one part of each is meant, such as the first: [{inside} for one in {whole}].",
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
        ("itself", "Leave the parentheses out, to read a member of the module itself: {itself}."),
        ("unpacked", "Unpack it: {unpacked}."),
        ("close", "If {unknown} is another name of it: {close}"),
        (
            "stars",
            "If the dict has more than the forward needs: take {unknown} out of it before, "
            "batch.pop({unknown!r}).",
        ),
        ("unknown", "If the forward does not need {unknown}: leave it out of the call."),
        (
            "is_extended_by_name",
            "If it is to use it: add it to the parameters of its forward.",
        ),
        (
            "replicas",
            "DataParallel gives a replica no positional arguments where a batch has fewer samples "
            "than there are devices: leave such a batch out, drop_last=True of the loader.",
        ),
        ("lacking", "If it needs {names}: give what is missing in the call, {lacking}"),
        (
            "is_changeable",
            "If it can do without: give {names} a default in its forward, such as None.",
        ),
        ("beyond", "If the forward does not need the others: call it with {own} alone."),
        ("is_extended", "If it is to use them: add them to the parameters of its forward."),
        (
            "layer",
            "If they are options of the layer: give them by their names where it is made, "
            "{layer}(...).",
        ),
        facts=_forward,
    ),
}

"""Operations that refuse a size, an index, a dtype or a value."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.failures.catalogue.creation import first_argument
from torchtap.failures.failure import Failure
from torchtap.failures.lost_dimensions import kept_dimension
from torchtap.failures.operands import Operand, dtype_word, shape_text
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.situation_row import Situation, SituationRow
from torchtap.failures.traceback_frame import MISSING


def _arguments(failure: Failure) -> list[str]:
    """The arguments of the program's call, as they are written."""
    node = None if failure.user is None else failure.user.expression
    return [written(one) for one in node.args] if isinstance(node, ast.Call) else []


def _pair(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    names = [failure.name_of(one) for one in failure.tensors[:2]]
    names += ["a", "b"][len(names) :]
    shapes = " and ".join(shape_text(one.value) for one in failure.tensors[:2])
    return {"a_name": names[0], "b_name": names[1], "shapes": shapes}


def _product(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    frame = failure.user
    node = None if frame is None else frame.expression
    if not isinstance(node, ast.BinOp):
        return {"way": "a * b"}
    return {"way": f"{written(node.left)} * {written(node.right)}"}


def _joined(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    frame = failure.user
    given = _arguments(failure)
    node = None if frame is None else frame.expression
    values = [frame.value_of(one) for one in getattr(node, "args", []) if frame is not None]
    tensors = [text for text, one in zip(given, values, strict=True) if isinstance(one, Tensor)]
    first = next((one for one in values if isinstance(one, Tensor)), None)
    return {
        "several": f"torch.{found['op']}([{', '.join(tensors)}])" if len(tensors) > 1 else "",
        "one": tensors[0] if len(tensors) == 1 and first is not None and first.dim() > 1 else "",
        "call": f"torch.{found['op']}",
    }


def _sizes(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value = failure.argument().value
    lacking = int(found["wanted"]) - int(found["given"])
    kept = ", ".join(["-1"] * lacking) if isinstance(value, Tensor) else "-1"
    return {"kept": kept}


def _indexed(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say what is indexed, and what made it lose its dimensions."""
    frame = failure.user
    node = None if frame is None else frame.expression
    if frame is None or not isinstance(node, ast.Subscript):
        return {"name": "the tensor", "shape": "", "count": "more", "squeezed": ""}
    value = frame.value_of(node.value)
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    count = len([one for one in parts if not _is_new(one)])
    shape = f", {shape_text(value)}" if isinstance(value, Tensor) else ""
    name = written(node.value, frame.file)
    squeezed = kept_dimension(failure, Operand(name, value, frame.depth), count)
    return {"name": name, "shape": shape, "count": count, "squeezed": squeezed}


def _is_new(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in (None, Ellipsis)


def _grid(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The indices of one place each, and how all their combinations are written."""
    frame = failure.user
    node = None if frame is None else frame.expression
    parts = node.slice.elts if _is_tuple(node) else []  # type: ignore[union-attr]
    if len(parts) != 2 or frame is None:
        return {"grid": "x[rows[:, None], columns]"}
    base = written(node.value, frame.file)  # type: ignore[union-attr]
    first, other = (written(one, frame.file) for one in parts)
    return {"grid": f"{base}[{grouped(first)}[:, None], {other}]"}


def _is_tuple(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple)


def _assigned(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    frame = failure.user
    text = "" if frame is None else frame.text.partition("#")[0].strip()
    target, _, value = text.partition(" = ")
    whole = target.partition("[")[0]
    given = found["given"].rpartition(".")[2]
    is_plain = ";" not in text
    node = None if frame is None else frame.expression
    base = node.value if isinstance(node, ast.Subscript) else None
    held = frame.value_of(base) if frame is not None and base is not None else None
    is_element = (
        isinstance(held, Tensor)
        and held.dim() == 1
        and isinstance(getattr(node, "slice", None), ast.Constant)
    )
    target, value = (target, value) if is_plain else ("x[...]", "values")
    return {
        "is_element": is_element,
        "is_part": given in ("list", "tuple", "ndarray") and not is_element,
        "target": target or "x[...]",
        "value": value or "values",
        "whole": whole or "x",
        "is_other": given not in ("list", "tuple", "ndarray"),
    }


def _gathered(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    along = int(found["along"])
    index, whole = (
        [int(one) for one in re.findall(r"\d+", found[key])] for key in ("index", "whole")
    )
    large = [at for at, (a, b) in enumerate(zip(index, whole, strict=False)) if a > b]
    others = [at for at in large if at != along]
    return {"along": along, "dim": others[0] if others else "another"}


def _overflow(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    name = found["type"].rpartition(":")[2].strip()
    dtype = getattr(torch, dtype_word(name), None)
    is_float = isinstance(dtype, torch.dtype) and dtype.is_floating_point
    bounds = ""
    if isinstance(dtype, torch.dtype):
        info = torch.finfo(dtype) if is_float else torch.iinfo(dtype)
        bounds = (
            f", which holds {info.min:g} to {info.max:g}"
            if is_float
            else (f", which holds {info.min} to {info.max}")
        )
    is_wide = dtype in (torch.float32, torch.float64)
    is_mask = "masked_fill" in (failure.user.text if failure.user else "")
    return {
        "dtype_name": dtype_word(name),
        "bounds": bounds,
        "is_mask": is_float and is_mask,
        "is_float": is_float and not is_wide,
        "is_wide": is_wide,
        "is_whole": not is_float,
    }


def _inferred(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    kind = found["given"].rpartition(".")[2]
    name = first_argument(failure)
    kinds = ("NoneType", "dict", "Image", "Tensor")
    node = None if failure.user is None else failure.user.expression
    given = node.args[0] if isinstance(node, ast.Call) and node.args else None
    value: Any = None if failure.user is None or given is None else failure.user.value_of(given)
    is_pair = kind == "dict" and type(value) is tuple
    return {
        "is_pair": is_pair,
        "kind": kind,
        "name": name,
        "is_none": kind == "NoneType",
        "is_dict": kind == "dict" and isinstance(value, dict),
        "is_image": "Image" in kind,
        "is_other": kind not in kinds and "Image" not in kind,
    }


_METHODS = {"long int": "long", "int": "int", "float": "float", "double": "double"}


def _classes(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    name = first_argument(failure)
    method = _METHODS.get(found["wanted"] or "", "")
    return {
        "name": name,
        "converted": f"{grouped(name)}.{method}()" if method else "",
        "number": found["number"] or "",
        "what": f"one {found['number']}" if found["number"] else f"a tensor of {found['given']}",
    }


def _dtype(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    node = None if failure.user is None else failure.user.expression
    keywords = getattr(node, "keywords", [])
    given = next((one.value for one in keywords if one.arg == "dtype"), None)
    text = written(given) if given is not None else found["name"] or ""
    word = text.strip("\"'").rpartition(".")[2]
    return {"text": text or "another object", "meant": word if hasattr(torch, word) else "float32"}


def _device(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    given = found["given"].rpartition(":")[0] or found["given"]
    return {"is_gpu": given.lower() in ("gpu", "cude", "cuda", "nvidia", "cudda")}


def _formatted(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value = failure.argument().value
    many = value.numel() if isinstance(value, Tensor) else 0
    return {"is_many": many > 1, "numel": many or "several", "base": _base(failure)}


def _base(failure: Failure) -> str:
    """Return what an operator or a format of the program takes first, as it is written."""
    frame = failure.user
    node = None if frame is None else frame.expression
    match node:
        case ast.BinOp(left=base) | ast.FormattedValue(value=base):
            return written(base, "" if frame is None else frame.file)
        case ast.JoinedStr(values=parts):
            held = [one.value for one in parts if isinstance(one, ast.FormattedValue)]
            return ast.unparse(held[0]) if len(held) == 1 else "x"
        case ast.Call(args=[base, *_]):
            return written(base, "" if frame is None else frame.file)
    return "x"


def _moved(failure: Failure) -> str:
    """Return what a method of the program's call was called on, as it is written."""
    frame = failure.user
    node = None if frame is None else frame.expression
    called = node.func if isinstance(node, ast.Call) else None
    is_method = isinstance(called, ast.Attribute) and frame is not None
    return written(called.value, frame.file) if is_method else "The tensor"  # type: ignore[union-attr]


def _on_meta(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Return what was moved, and its buffers on meta, if these alone are there and in no state."""
    base, buffers = _moved(failure), []
    frame = failure.user
    node = None if frame is None else frame.expression
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    module = frame.value_of(node.func.value) if frame is not None and is_method else None  # type: ignore[union-attr]
    if isinstance(module, nn.Module) and not any(
        one.is_meta for one in module.state_dict().values()
    ):
        buffers = [name for name, one in module.named_buffers() if one.is_meta]
    return {"base": base, "buffers": ", ".join(buffers[:4]), "is_whole": not buffers}


def _window(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    return {"name": first_argument(failure)}


def _equation(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    names = [failure.name_of(one) for one in failure.tensors[:2]]
    return {"a_name": names[0] if names else "A", "b_name": names[1] if names[1:] else "B"}


def _einsum(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    frame = failure.user
    node = None if frame is None else frame.expression
    equation: Any = MISSING
    if frame is not None and isinstance(node, ast.Call) and node.args:
        equation = frame.value_of(node.args[0])
    text = equation if isinstance(equation, str) else ""
    inputs = text.partition("->")[0].split(",") if text else []
    return {"equation": repr(text) if text else "The equation", "count": len(inputs) or "others"}


def _layout(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    backend = found["backend"]
    is_quantized_op = found["op"].startswith("quantized")
    return {
        "op_name": found["op"],
        "kind": backend.removesuffix("CPU").removesuffix("CUDA").lower() or "plain",
        "is_sparse": "Sparse" in backend,
        "is_nested": "Nested" in backend,
        "is_quantized": "Quantized" in backend,
        "is_plain": is_quantized_op,
    }


SITUATIONS: dict[str, Situation] = {
    "vectors alone": SituationRow(
        "torch.dot takes two vectors, and got tensors of {given} and {other} dimensions.",
        "For a product of matrices: {a_name_it} @ {b_name_it}.",
        "For one product for each row: ({a_name_it} * {b_name_it}).sum(-1).",
        about="tensors",
        facts=_pair,
    ),
    "columns of distances": SituationRow(
        "torch.cdist measures between points of one number of coordinates, the last dimension, and "
        "got {a} and {b}.",
        "Give both the same coordinates: check which dimension of {a_name} and {b_name} they are, "
        "and bring it to the end with .mT.",
        about="tensors",
        facts=_pair,
    ),
    "rows of distances": SituationRow(
        "torch.cdist takes sets of points, [points, coordinates], and {which} has {given} "
        "dimension.",
        "If it is one point: {name_it}[None, :]. If it holds points of one coordinate: "
        "{name_it}[:, None].",
        about="tensors",
    ),
    "transpose of many": SituationRow(
        "t() turns matrices round, and {name} has {given} dimensions.",
        "Turn the last two dimensions round: {name_it}.mT; others by {name_it}.transpose(0, 1).",
        about="argument",
    ),
    "product of numbers": SituationRow(
        "@ is the product of matrices and vectors, and one side is a number.",
        "Multiply with *: {way}.",
        about="tensors",
        facts=_product,
    ),
    "one tensor to join": SituationRow(
        "{call} takes a list or tuple of tensors, and got a tensor.",
        ("several", "Put them into a list: {several}."),
        (
            "one",
            "{one} is joined already; to put its rows one behind the other: "
            "{one_it}.flatten(0, 1).",
        ),
        facts=_joined,
    ),
    "numbers to concatenate": SituationRow(
        "A tensor without dimensions cannot be concatenated: it has nothing along which.",
        "Stack them, which makes the dimension: torch.stack(...).",
        "Give it a dimension, beside tensors that have one: x[None].",
        about="tensors",
    ),
    "several unknown sizes": SituationRow(
        "-1 stands for the one size that is computed from the others, and stands twice in the "
        "shape.",
        "Say all sizes but one: {name_it}.size(0) for the batch.",
        about="argument",
    ),
    "parts of a dimension": SituationRow(
        "Dimension {dim} has {given} elements, and the sizes {sizes} have another product.",
        "Give sizes whose product is {given}, or -1 for one of them, if the others divide it.",
        about="argument",
    ),
    "fewer sizes than dimensions": SituationRow(
        "{name} has {wanted} dimensions, and expand was given {given}.",
        "Give a size for each, -1 for those that stay: the others behind, {kept}, if the first are "
        "expanded.",
        about="argument",
        facts=_sizes,
    ),
    "repeats of a dimension": SituationRow(
        "There are {given} numbers of repeats, and {wanted} elements in dimension {dim}.",
        "Give one number for each of the {wanted}, or one for all.",
        "Say the dimension that is meant: dim=...",
        about="tensors",
    ),
    "part past the end": SituationRow(
        "A part from {start} of length {length} ends behind the {size} elements.",
        "Take what there is: a slice, x[{start}:{start} + {length}], ends where the tensor ends.",
        "Give a length of at most {size} - {start}.",
        about="argument",
    ),
    "choice out of range": SituationRow(
        "Element {value} was taken of dimension {dim} of {name}, whose shape is {looks}.",
        "Give a number below the size of that dimension; -1 is the last.",
        "Say the dimension that is meant.",
        about="argument",
    ),
    "too many indices": SituationRow(
        "{name}{shape} has {dims} dimensions, and was given {count} indices.",
        ("squeezed", "{squeezed}"),
        "Give at most {dims}, one for each dimension.",
        "If a dimension was lost before, keep it there: keepdim=True, or x[:1] for x[0].",
        facts=_indexed,
    ),
    "indices that differ": SituationRow(
        "Indices are taken together, one place for each pair of numbers, and have the shapes "
        "{shapes}.",
        "For every combination of them, make a column of the first: {grid}.",
        "For one place each, give as many of the one as of the other.",
        facts=_grid,
        about="tensors",
    ),
    "step backwards": SituationRow(
        "A slice of a tensor goes forwards: its step is at least 1.",
        "Turn the dimension round: {name_it}.flip(0), with the number of the dimension.",
        about="argument",
    ),
    "value that is no tensor": SituationRow(
        "{value} is a {given}, and elements of a tensor are given numbers and tensors.",
        ("is_part", "Make a tensor of it: {target} = torch.as_tensor({value})."),
        (
            "is_element",
            "{target} is one element, which takes one number: give {whole} a dimension for the "
            "others, such as torch.zeros(n, m).",
        ),
        ("is_other", "Give a number or a tensor; keep others in a list."),
        facts=_assigned,
    ),
    "size of an index": SituationRow(
        "gather takes one element for each of the index, whose shape {index} is larger than "
        "{whole} in dimension {dim}: only dimension {along} may be.",
        "If whole rows are meant, by number: x[index], or torch.index_select.",
        "If the index goes along another dimension, say it: dim={dim}.",
        about="tensors",
        facts=_gathered,
    ),
    "size of a scatter": SituationRow(
        "scatter puts one element for each of the index, {index}: it is no larger than what is "
        "written into, {whole}, apart from dimension {along}, and no larger than src.",
        "Give an index and a src of one shape, with the sizes of {whole} but in dimension {along}.",
        about="tensors",
        facts=_gathered,
    ),
    "rows of an index": SituationRow(
        "{op} takes one row for each number of the index: {given} numbers, and {wanted} rows.",
        "Give as many numbers as rows.",
        "Say the dimension in which the rows stand: dim=...",
        about="tensors",
    ),
    "rows that are added": SituationRow(
        "The rows that are added have the shape {given}, and go into {whole}: they differ beside "
        "the dimension of the index.",
        "Give rows as long as those of {whole}.",
        about="tensors",
    ),
    "vector of indices": SituationRow(
        "index_select takes a vector of numbers, and its index has more dimensions.",
        "Index with it, which keeps its shape: x[index].",
        "Or make a vector of it: index.flatten().",
        about="tensors",
    ),
    "filled with many": SituationRow(
        "masked_fill puts one number everywhere, and got a tensor with {dims} dimensions.",
        "Choose element by element: torch.where(mask, values, x).",
        "To put values one after the other where the mask is True: x.masked_scatter(mask, values).",
        about="tensors",
    ),
    "too few for a mask": SituationRow(
        "masked_scatter takes one value for each True of the mask, and source has fewer.",
        "Give a source with at least mask.sum() elements.",
        "If values stand at their places already: torch.where(mask, values, x).",
        about="tensors",
    ),
    "place out of range": SituationRow(
        "Element {value} was taken of {size} elements, counted over all dimensions from 0.",
        "Give numbers below {size}.",
        "If it is a number in one dimension: torch.gather, or x[index].",
        about="tensors",
    ),
    "counts of numbers": SituationRow(
        "torch.bincount counts integers from 0 in one dimension, and {name} is {looks}, or holds "
        "negative ones.",
        "Give it such: {name_it}.flatten().long(), without values below 0.",
        about="argument",
    ),
    "nothing to reduce": SituationRow(
        "{name} has no elements, and {op} of none is not defined.",
        "Leave out what is empty: if {name_it}.numel() > 0.",
        "Find why it is empty: a mask that is True nowhere, or a filter that leaves nothing.",
        about="argument",
    ),
    "floats alone": SituationRow(
        "This is defined for floating point numbers, and {name} holds {kept}.",
        "Convert it: {name_it}.float().",
        about="argument",
    ),
    "power of integers": SituationRow(
        "{base} holds integers, whose negative powers are no integers.",
        "Convert it: {base_it}.float().",
        about="argument",
        facts=lambda failure, found: {"base": _base(failure)},
    ),
    "no bounds": SituationRow(
        "clamp was given no bound.",
        "Say one at least: {name_it}.clamp(min=0), or max=...",
        about="argument",
    ),
    "number too large": SituationRow(
        "A number does not fit into {dtype_name}{bounds}.",
        (
            "is_mask",
            "To hide scores before a softmax, take the least number of the dtype: "
            "torch.finfo(x.dtype).min; or float('-inf'), where no row is hidden whole.",
        ),
        ("is_float", "Compute in float32 there: x.float()."),
        (
            "is_wide",
            "If it is complex, say which part is meant: x.real, or x.abs(); if it is too "
            "large, give "
            "a wider dtype.",
        ),
        ("is_whole", "Give a wider dtype: torch.int64."),
        about="tensors",
        facts=_overflow,
    ),
    "parts of complex numbers": SituationRow(
        "view_as_complex takes real and imaginary part in the last dimension, of size 2, "
        "and {name} "
        "is {looks}.",
        "Give them there: torch.stack([real, imaginary], -1), or torch.complex(real, imaginary).",
        about="argument",
    ),
    "no complex numbers": SituationRow(
        "{name} holds {kept}, and complex numbers are needed.",
        "If its last dimension, of size 2, holds real and imaginary part: "
        "torch.view_as_complex({name}).",
        "Otherwise make them complex where they come from: torch.stft(..., return_complex=True).",
        about="argument",
    ),
    "complex loss": SituationRow(
        "A loss is a real number, and this one is {given}.",
        "Make it real, as it is meant: its size, .abs(), or its real part, .real.",
        about="argument",
    ),
    "range turned round": SituationRow(
        "A range goes from its start to its end by its step, and the step has the other sign.",
        "Give a step of the other sign, or exchange start and end.",
    ),
    "nothing to choose from": SituationRow(
        "Random integers are from {low} to below {high}, and there are none.",
        "Check what gave {high}: a length of 0, such as of an empty list or data set.",
    ),
    "negative deviation": SituationRow(
        "A standard deviation is not negative.",
        "Make it positive where it comes from: std = F.softplus(x), or (0.5 * logvar).exp() of the "
        "logarithm of a variance.",
        about="tensors",
    ),
    "no probabilities": SituationRow(
        "Probabilities are from 0 to 1, and {name} has others.",
        "If they are logits: torch.bernoulli({name_it}.sigmoid()).",
        "If they are to be from 0 to 1 already: {name_it}.clamp(0, 1), against rounding.",
        about="argument",
    ),
    "dimensions of a draw": SituationRow(
        "torch.multinomial takes weights in one or two dimensions, a distribution for "
        "each row, and "
        "{name} is {looks}.",
        "Join the others: torch.multinomial({name_it}.flatten(0, -2), n).unflatten(0, "
        "{name_it}.shape[:-1]).",
        about="argument",
    ),
    "draws by integers": SituationRow(
        "torch.multinomial takes floating point weights, and {name} holds {kept}.",
        "Convert them: {name_it}.float().",
        about="argument",
    ),
    "value of no dtype": SituationRow(
        "A tensor holds numbers, and {name} holds a {kind}.",
        (
            "is_none",
            "Check what gave None: a function without return, or a value that is missing; "
            "float('nan') stands for one.",
        ),
        (
            "is_pair",
            "It is a tuple whose other part is a dict, as env.reset() returns it: {name_it}[0].",
        ),
        ("is_dict", "Take out what is meant: {name_it}[key], or list({name_it}.values())."),
        (
            "is_image",
            "Convert the picture: torch.from_numpy(numpy.array({name})), or "
            "transforms.ToTensor()({name}).",
        ),
        ("is_other", "Give numbers, or an array of them."),
        facts=_inferred,
    ),
    "class of a tensor": SituationRow(
        "An old class of tensors, such as torch.FloatTensor, takes sizes, lists and tensors of its "
        "own dtype, and got {what}.",
        ("converted", "Convert it: {converted}."),
        ("number", "Make a tensor of it: torch.tensor({name})."),
        facts=_classes,
    ),
    "name of a dtype": SituationRow(
        "A dtype is an object of torch, and got {text}.",
        "Give that of torch: torch.{meant}.",
        facts=_dtype,
    ),
    "name of a device": SituationRow(
        "There is no device named {given!r}.",
        ("is_gpu", "A GPU of NVIDIA is 'cuda', or 'cuda:0' with its number."),
        "Take one that is there: 'cuda' if torch.cuda.is_available() else 'cpu'.",
        facts=_device,
    ),
    "values of meta": SituationRow(
        "{base} is on the meta device, or has parts that are: a shape, and no values to be moved.",
        (
            "buffers",
            "What is left there are buffers that no state holds (persistent=False), {buffers}: "
            "compute them anew before the move, or make their module outside of "
            "torch.device('meta').",
        ),
        (
            "is_whole",
            "Make the model with memory, then load its weights: model.to_empty(device='cpu'), "
            "model.load_state_dict(state).",
        ),
        (
            "is_whole",
            "Or put the loaded tensors in its place: model.load_state_dict(state, assign=True).",
        ),
        facts=_on_meta,
    ),
    "format of a tensor": SituationRow(
        "{base} has {numel} elements, and a format such as :.2f is for one number.",
        ("is_many", "Say which number is meant: {base_it}.mean().item()."),
        "Print all of them: {base_it}.tolist().",
        about="argument",
        facts=_formatted,
    ),
    "tensor as an index": SituationRow(
        "An integer is needed, and a tensor of several elements or of floats was given.",
        "Take the number out of a tensor of one: int(x).",
        "To multiply a list with a tensor, make a tensor of the list first: torch.tensor(...).",
        about="tensors",
    ),
    "size of a kept tensor": SituationRow(
        "{name} requires grad, and cannot be given another size in place.",
        "Make a new tensor: {name_it}.reshape(...) of as many elements, or a slice of it.",
        about="argument",
    ),
    "dtype of a gradient": SituationRow(
        "A gradient has the dtype of its tensor, and {what} was assigned.",
        ("given_too", "Convert it: x.grad = gradient.to(x.dtype)."),
        ("kind_too", "Give a tensor: torch.zeros_like(x), or None for none."),
        facts=lambda failure, found: {
            "what": found["given"] or f"a value of type {found['kind']}",
            "given_too": found["given"] or "",
            "kind_too": found["kind"] or "",
        },
    ),
    "tensor for a process": SituationRow(
        "A tensor with a graph was given to another process, and graphs do not go along.",
        "Give its values alone: x.detach().",
        "In a data set, compute it without a graph: with torch.no_grad().",
        about="argument",
    ),
    "window of a transform": SituationRow(
        "The window has {given} elements, and win_length={wanted}.",
        "Make the window of that length: torch.hann_window({wanted}), or give win_length={given}.",
    ),
    "kind of a spectrum": SituationRow(
        "torch.stft returns complex numbers, and must be told so.",
        "Give return_complex=True: the result is complex, and torch.view_as_real of it is what "
        "older programs got, with real and imaginary part in a last dimension of 2.",
    ),
    "real input": SituationRow(
        "{op} is for real numbers, and {name} holds complex ones.",
        "Use the transform of complex numbers: torch.fft.fft.",
        "If the imaginary part is 0: {name_it}.real.",
        about="argument",
    ),
    "dtype of a spectrum": SituationRow(
        "The transform has no form for {given} here.",
        "Convert it around: torch.fft.fft({name_it}.float()).",
        "Under autocast, leave it out: with torch.autocast(device_type, enabled=False).",
        about="argument",
    ),
    "sizes of an equation": SituationRow(
        "The right side has to have as many rows as the matrix, and they are {a} and {b}.",
        "Give a right side of that many rows: check whether {b_name} is to be turned round, "
        "{b_name_it}.mT.",
        about="tensors",
        facts=_equation,
    ),
    "dtypes of an equation": SituationRow(
        "Both sides have one dtype, and hold {a_dtype} and {b_dtype}.",
        "Convert the right side: {b_name_it}.to({a_name_it}.dtype).",
        about="tensors",
        facts=_equation,
    ),
    "few dimensions of a matrix": SituationRow(
        "{op} takes matrices, and {name} is {looks}.",
        "Give it two dimensions at least: {name_it}.diag() for a diagonal matrix of a vector.",
        about="argument",
    ),
    "operands of an einsum": SituationRow(
        "{equation} is for {count} operands, and {what} were given.",
        "Give one operand for each group of letters, with commas between them.",
        facts=_einsum,
        about="tensors",
    ),
    "output of an einsum": SituationRow(
        "The letter {letter!r} stands behind the arrow and in none of the operands.",
        "Use a letter of an operand, or leave it out; a dimension of one is made by unsqueeze.",
        about="tensors",
    ),
    "sign of an einsum": SituationRow(
        "{equation} has something else than a letter in place {at}.",
        "Write one letter for each dimension, a to z or A to Z, and ... for several.",
        facts=_einsum,
    ),
    "layout without a kernel": SituationRow(
        "{op_name} has no form for {kind} tensors.",
        ("is_sparse", "Make it dense for this operation: {name_it}.to_dense()."),
        ("is_nested", "Make it one tensor for this operation: {name_it}.to_padded_tensor(0)."),
        ("is_quantized", "Make it a tensor of floats for this operation: {name_it}.dequantize()."),
        (
            "is_plain",
            "Quantize its input, and make floats of the output: "
            "torch.ao.quantization.QuantWrapper(model) around the model, or QuantStub() at its "
            "begin and DeQuantStub() at its end, before it is prepared and converted.",
        ),
        about="argument",
        facts=_layout,
    ),
    "sparse without a view": SituationRow(
        "{name} is sparse, and an array is dense.",
        "Make it dense first: {name_it}.to_dense().numpy().",
        about="argument",
    ),
    "values that may repeat": SituationRow(
        "A place may stand several times in {name}, and its values are then added.",
        "Add them first: {name_it}.coalesce().{what}().",
        about="argument",
    ),
    "sparse gradients": SituationRow(
        "A gradient is sparse, as of nn.Embedding(..., sparse=True), and {kind} needs dense ones.",
        "Leave sparse=True out of the embedding.",
        "Or train the embedding by an optimizer of its own: torch.optim.SparseAdam, or SGD.",
    ),
    "dense gradients": SituationRow(
        "{kind} is for sparse gradients, as of nn.Embedding(..., sparse=True), and got a "
        "dense one.",
        "Give it the sparse embeddings alone, and the rest to another: torch.optim.Adam.",
        "If nothing is sparse: torch.optim.Adam for all.",
    ),
    "shape of a nested tensor": SituationRow(
        "A nested tensor holds tensors of several shapes, and has no shape of its own.",
        "Ask its parts: [one.shape for one in {name_it}.unbind()].",
        "Make one tensor of it: {name_it}.to_padded_tensor(0).",
        about="argument",
    ),
    "not deterministic": SituationRow(
        "{op} has no form that gives the same bits each time, and "
        "torch.use_deterministic_algorithms(True) allows no other.",
        "Allow it, with a warning: torch.use_deterministic_algorithms(True, warn_only=True).",
        about="tensors",
    ),
}

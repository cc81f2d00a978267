"""Values, dtypes and devices that a tensor is not made of."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchtap.failures.catalogue.creation import first_argument
from torchtap.failures.failure import Failure
from torchtap.failures.operands import (
    dtype_word,
)
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.situation_row import Situation, SituationRow, first_of
from torchtap.failures.traceback_frame import TracebackFrame


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
    frame = failure.user
    node = None if frame is None else frame.expression
    is_given = frame is not None and isinstance(node, ast.Call) and bool(node.args)
    value = frame.value_of(node.args[0]) if is_given else None  # type: ignore[union-attr]
    is_number = isinstance(value, Tensor) and value.dim() == 0
    return {
        "name": name,
        "converted": f"{grouped(name)}.{method}()" if method and not is_number else "",
        "size": f"{grouped(name)}.item()" if is_number else "",
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


def _chosen(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Return how a list gives the elements of which a tensor holds the numbers."""
    frame = failure.user
    node = None if frame is None else frame.expression
    if frame is None or not isinstance(node, ast.Subscript):
        return {"chosen": "", "is_other": True, "is_nested": False, **_rows(frame, node)}
    index, held = frame.value_of(node.slice), frame.value_of(node.value)
    is_several = isinstance(index, Tensor) and index.numel() > 1 and isinstance(held, list | tuple)
    name, at = written(node.value, frame.file), grouped(written(node.slice, frame.file))
    chosen = f"[{name}[at] for at in {at}.tolist()]" if is_several else ""
    return {"chosen": chosen, "is_other": not is_several, "is_nested": False}


_MAKERS = ("tensor", "as_tensor", "asarray", "FloatTensor", "LongTensor", "IntTensor", "Tensor")


def _rows(frame: TracebackFrame | None, node: ast.AST | None) -> Mapping[str, Any]:
    """Return how a list of tensors becomes a tensor: rows of one length, or of several."""
    if frame is None or not isinstance(node, ast.Call) or not node.args:
        return {}
    call, rows = written(node.func, frame.file), frame.value_of(node.args[0])
    if call.rpartition(".")[2] not in _MAKERS or type(rows) not in (list, tuple):
        return {}
    several = [one for one in rows if isinstance(one, Tensor)]
    if len(several) != len(rows):  # Lists in a list, or values that are not known.
        return {"is_nested": True, "is_other": False}
    if all(one.numel() == 1 for one in several):
        return {}
    text = written(node.args[0], frame.file)
    is_even = len({one.shape for one in several}) == 1
    padded = f"torch.nn.utils.rnn.pad_sequence({text}, batch_first=True)"
    is_padded = not is_even and len({one.shape[1:] for one in several if one.dim()}) == 1
    return {
        "rows": text,
        "call": call,
        "stacked": f"torch.stack({text})" if is_even else "",
        "padded": padded if is_padded else "",
    }


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


SITUATIONS: dict[str, Situation] = {
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
        ("size", "If it is a size, give the number itself: {size}."),
        ("size", "If it is the one element, make a tensor of it: {name_it}.reshape(1).float()."),
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
    "format of a tensor": SituationRow(
        "{base} has {numel} elements, and a format such as :.2f is for one number.",
        ("is_many", "If one number is meant, say which: {base_it}.mean().item() for the mean."),
        "Print all of them: {base_it}.tolist().",
        about="argument",
        facts=_formatted,
    ),
    "tensor as an index": first_of(
        SituationRow(
            "{call} makes a tensor of numbers, and {rows} holds tensors of several elements.",
            ("stacked", "Put them together, one behind the other in a new dimension: {stacked}."),
            ("padded", "Fill them up to one length and put them together: {padded}."),
            "To join them in a dimension that they have: torch.cat({rows}).",
            when="rows",
            about="tensors",
        ),
        SituationRow(
            "An integer is needed, and a tensor of several elements or of floats was given.",
            (
                "chosen",
                "If a list is to give the elements of several numbers, go through them: {chosen}.",
            ),
            (
                "is_nested",
                "A list of tensors that have several elements is put together by torch.stack, and "
                "a list of such lists from the innermost outwards.",
            ),
            ("is_other", "If it is a tensor of one, take the number out of it: int(x)."),
            (
                "is_other",
                "If a list is to be multiplied with a tensor, make a tensor of the list first: "
                "torch.tensor(...).",
            ),
            about="tensors",
        ),
        facts=_chosen,
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
}

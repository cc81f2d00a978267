"""Arguments that a module, optimizer, DataLoader or operation refuses by its own check."""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.core.text import typed
from torchtap.failures.catalogue.creation import first_argument
from torchtap.failures.catalogue.modules import members
from torchtap.failures.derived_shapes import shaped_operands
from torchtap.failures.failure import Explanation, Failure
from torchtap.failures.none_sources import explained_none
from torchtap.failures.operands import Operand, dtype_text
from torchtap.failures.out_of_place import statement_of
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.situation_row import Situation, SituationRow, first_of


def _optimized(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """How the parameters of what was given to an optimizer are written."""
    name = first_argument(failure, "model")
    node = None if failure.user is None else failure.user.expression
    given = node.args[0] if isinstance(node, ast.Call) and node.args else None
    value = None if given is None or failure.user is None else failure.user.value_of(given)
    inner = given.elts[0] if isinstance(given, ast.List) and len(given.elts) == 1 else given
    text = name if inner is None else written(inner)
    nested = _nested(failure, given)
    is_state = inner is not None and written(inner).endswith("state_dict()")
    is_method = inspect.ismethod(_method_of(failure, given))
    held = _method_of(failure, given)
    is_class = isinstance(held, type) and not issubclass(held, nn.Module)
    is_function = is_class or (inspect.isroutine(held) and not is_method)
    return {
        "name": name,
        "is_method": is_method,
        "is_function": is_function,
        "parameters": f"{grouped(text)}.parameters()",
        "nested": nested,
        "is_module": not any((nested, is_method, is_function, is_state))
        and not isinstance(value, dict | Tensor | str),
        "is_dict": is_state or isinstance(value, dict),
        "is_other": isinstance(value, str),
        "is_tensor": isinstance(value, Tensor),
    }


def _method_of(failure: Failure, given: ast.expr | None) -> Any:
    """The method that was given without a call: PyTorch's own frame holds it."""
    last = failure.frames[-1]
    held = last.frame.f_locals if last.is_torch else {}
    return held.get("params") if given is not None else None


def _nested(failure: Failure, given: ast.expr | None) -> str:
    """The list of iterables of parameters that was given as a member; empty if none was."""
    last, frame = failure.frames[-1], failure.user
    member = last.frame.f_locals.get("param") if last.is_torch else None
    if not isinstance(member, list | tuple) and not inspect.isgenerator(member):
        return ""
    if given is None or frame is None:
        return "members"
    for node in ast.walk(given):
        value: Any = frame.value_of(node) if isinstance(node, ast.Name) else None
        if type(value) in (list, tuple) and any(one is member for one in value):
            return ast.unparse(node)
    return ast.unparse(given) if isinstance(given, ast.List | ast.Tuple) else "members"


def _state_of(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    name, kind = first_argument(failure), found["given"].rpartition(".")[2].strip("'<>")
    value = failure.operand("state_dict").value
    is_path = kind in ("str", "PosixPath", "Path", "BytesIO")
    return {
        "name": name,
        "is_path": is_path,
        "is_method": kind in ("method", "function"),
        "is_module": isinstance(value, nn.Module),
        "is_other": not is_path
        and kind not in ("method", "function", "NoneType")
        and not isinstance(value, nn.Module),
        "state": f"{grouped(name)}.state_dict()",
    }


def _sequential(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    kind = found["kind"]
    name = kind.rpartition(".")[2]
    held = failure.frames[-1].frame.f_locals
    value = next((held[one] for one in ("module", "value") if one in held), None)
    layers = {"relu": "nn.ReLU()", "tanh": "nn.Tanh()", "sigmoid": "nn.Sigmoid()"}
    layer = layers.get(name, "")
    is_list = kind in ("list", "tuple") or "genexpr" in kind or kind == "generator"
    is_class = isinstance(value, type)
    is_tensor = isinstance(value, Tensor)
    node = None if failure.user is None else failure.user.expression
    base, given = "", ""
    if is_list and isinstance(node, ast.Call) and node.args:
        func, given = written(node.func), written(node.args[-1])
        base = func.rpartition(".")[0] if func.endswith(".append") else ""
        given = "" if base or len(node.args) > 1 else f"{func}(*{given})"
    known = {"is_list": is_list, "is_class": is_class, "is_tensor": is_tensor, "layer": layer}
    return {
        **known,
        "base": base,
        "starred": given,
        "is_placed": is_list and not base and not given,
        "short": f"the class {name}" if is_class else "a generator" if "genexpr" in kind else name,
        "made": f"{name}()",
        "is_other": not any(known.values()),
    }


def _groups(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    num, groups = int(found["num"]), int(found["groups"])
    divisors = [one for one in range(1, num + 1) if num % one == 0]
    return {"divisors": ", ".join(map(str, divisors[-8:])), "num": num, "groups": groups}


def _split(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    return {"name": failure.name_of(failure.argument())}


def _called(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The attribute that was called though it is no method, and how it is written."""
    frame = failure.user
    node = None if frame is None else frame.expression
    called = node.func if isinstance(node, ast.Call) else None
    index = ""
    if frame is not None and isinstance(node, ast.Call) and node.args:
        index = f"[{written(node.args[0], frame.file)}]"
    text = written(called, frame.file) if called is not None and frame is not None else "x.shape"
    return {"text": text, "way": f"{text}{index}"}


def _listed(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The list of modules that was called, and how its members can be called."""
    frame = failure.user
    node = None if frame is None else frame.expression
    called = node.func if isinstance(node, ast.Call) else None
    text = written(called, frame.file) if called is not None and frame is not None else "layers"
    held: Any = frame.value_of(called) if called is not None and frame is not None else ()
    layers = [one for one in held if isinstance(one, nn.Module)] if type(held) is list else []
    return {"text": text, **members(nn.ModuleList(layers), text)}


def _mismatch(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    frame = failure.user
    text = "" if frame is None else frame.text.partition("#")[0].strip()
    target, _, value = text.partition(" = ")
    return {
        "target": target or "the index",
        "value": value or "what is written",
        "chosen": _chosen_values(failure),
    }


def _chosen_values(failure: Failure) -> str:
    """Return the values at the same mask, where there is one for each element of the whole."""
    frame, statement = failure.user, None if failure.user is None else statement_of(failure.user)
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if frame is None or not isinstance(target, ast.Subscript):
        return ""
    value = statement.value  # type: ignore[union-attr]
    whole, mask, given = (frame.value_of(one) for one in (target.value, target.slice, value))
    is_each = isinstance(whole, Tensor) and isinstance(given, Tensor) and isinstance(mask, Tensor)
    if not is_each or mask.dtype is not torch.bool or given.shape != whole.shape:
        return ""
    return f"{grouped(written(value, frame.file))}[{written(target.slice, frame.file)}]"


def _class_weights(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    given = [int(one) for one in re.findall(r"\d+", found["given"])]
    is_row = len(given) > 1 and math.prod(given) == int(found["num"])
    return {"is_row": is_row, "is_other": not is_row}


def _dims(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The operands of a product that takes exactly matrices."""
    every = [one for one in shaped_operands(failure) if isinstance(one.value, Tensor)]
    shapes = [
        f"{failure.name_of(one)} is {typed(dtype_text(one.value), tuple(one.value.shape))}"
        for one in every
    ]
    first = failure.name_of(every[0]) if every else "a"
    other = failure.name_of(every[1]) if len(every) > 1 else "b"
    sizes = [tuple(one.value.shape) for one in every[:2]]
    a, b = sizes if len(sizes) == 2 else ((), ())
    # A row of weights for each sample: the product of any number of dimensions would repeat it.
    is_weights = len(a) == 2 and len(b) == 3 and a == b[:2]
    is_of_samples = len(a) == 3 and len(b) == 2 and b == (a[0], a[2])
    is_of_rows = len(a) == 2 and a == b
    vectors = f"({grouped(first)} @ {grouped(other)}[..., None])[..., 0]" if is_of_samples else ""
    is_known = not vectors and not is_of_rows and not is_weights
    return {
        "shapes": " and ".join(shapes),
        "first": first,
        "other": other,
        "vectors": vectors,
        "rows": is_of_rows,
        "weights": f"({grouped(first)}.unsqueeze(1) @ {grouped(other)}).squeeze(1)"
        if is_weights
        else "",
        "way": f"{grouped(first)} @ {grouped(other)}" if is_known else "",
    }


def _state_pair(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    operand = next(
        (one for one in failure.operands if isinstance(one.value, nn.Module)), Operand("")
    )
    return {"module": failure.module_text or operand.text}


def _drawn(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The sampler that was told to draw nothing, of data that has samples."""
    held = failure.frames[-1].frame.f_locals
    data = getattr(held.get("self"), "data_source", held.get("data_source"))
    has_samples = data is None or (hasattr(data, "__len__") and len(data) > 0)
    return {"sampler": type(held.get("self")).__name__ if has_samples else ""}


def _lengths(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The lengths that were given, their sum, and how the last one is the rest."""
    held = failure.frames[-1].frame.f_locals
    data: Any = held.get("dataset")
    lengths = held.get("lengths")
    if not isinstance(lengths, list | tuple) or not hasattr(data, "__len__"):
        return {"sums": "", "rest": "", "shares": "", "is_whole": True}
    lacking = len(data) - sum(lengths)
    first = ", ".join(map(str, lengths[:-1]))
    return {
        "sums": f": {' + '.join(map(str, lengths))} is {sum(lengths)}, for {len(data)}",
        "rest": f"len(dataset) - {first.replace(', ', ' - ')}"
        if 0 < lacking < 5 and all(type(one) is int for one in lengths)
        else "",
        "shares": _shares(lengths),
        "is_whole": not _shares(lengths),
    }


def _shares(lengths: Sequence[float]) -> str:
    """Return the way to shares of the sum 1, of shares that have another one; else empty."""
    if not any(type(one) is float and 0 < one < 1 for one in lengths) or max(lengths) > 1:
        return ""
    total, others = sum(lengths), sum(lengths[:-1])
    if math.isclose(total, 1, rel_tol=1e-6):
        return (
            f"Their sum is {total!r}, by rounding, and is to be 1 at most: give lengths, each "
            "int(share * len(dataset)), and the last one the rest of len(dataset)."
        )
    last = f", such as {1 - others:.6g} for the last one" if others < 1 else ""
    return f"They are shares, whose sum is to be 1, and is {total:.6g}: change one{last}."


def _alone(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say what needs a process group: a sampler, a wrapper, a norm, or another call."""
    frame = failure.user
    node = None if frame is None else frame.expression
    call = written(node.func) if isinstance(node, ast.Call) else "the call"
    owners = {type(one.owner).__name__ for one in failure.frames}
    is_sampler = "DistributedSampler" in owners
    is_wrapper = bool(owners & {"DistributedDataParallel", "FullyShardedDataParallel"})
    is_norm = "SyncBatchNorm" in owners
    return {
        "call": call.rpartition(".")[2],
        "is_sampler": is_sampler,
        "is_wrapper": is_wrapper and not is_sampler,
        "is_norm": is_norm and not is_wrapper,
        "is_asked": not is_sampler and not is_wrapper and not is_norm,
    }


def _file(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say what a file begins with that is no pickle: the sign, and what such a file is."""
    sign = re.search(r"invalid load key, '(.)'|Unsupported operand (\d+)", failure.text)
    first = "" if sign is None else sign[1] or chr(int(sign[2]))
    return {
        "first": first if first.isprintable() else "",
        "is_page": first == "<",
        "is_pointer": first == "v",
    }


def _asked_for(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say how many were asked for, in which dimension, and which other one has as many."""
    frame = failure.user
    node = None if frame is None else frame.expression
    args = node.args if isinstance(node, ast.Call) else []
    func = node.func if isinstance(node, ast.Call) else None
    is_function = isinstance(func, ast.Attribute) and written(func.value) == "torch"
    args = args[1:] if is_function else args
    named = {one.arg: one.value for one in getattr(node, "keywords", ())}
    number = named.get("k") or next(iter(args), None)
    given = named.get("dim") or next(iter(args[1:]), None)
    dim = frame.value_of(given) if frame is not None and given is not None else -1
    count = frame.value_of(number) if frame is not None and number is not None else None
    value = failure.argument().value
    shape = list(value.shape) if isinstance(value, Tensor) else []
    own = dim % len(shape) if shape and type(dim) is int else 0
    enough = type(count) is int and [
        at for at, size in enumerate(shape) if at != own and size >= count
    ]
    return {
        "dim": dim if type(dim) is int else -1,
        "number": written(number) if number is not None else "k",
        "other": str(enough[0]) if enough and given is not None else "",
        "more": shape[enough[0]] if enough else "",
    }


def _mask_of_numbers(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say what a mask of numbers may mark: masked_fill takes a mask of what is not kept."""
    mask, is_where = _mask_name(failure), failure.text.startswith("where")
    is_filled = not is_where and "masked_select" not in failure.text
    is_of_tokens = is_filled and "attention" in mask
    return {
        "what": "torch.where" if is_where else "masked_fill" if is_filled else "The operation",
        "kind": (found["given"] or found["other"] or "numbers").lower(),
        "mask": mask,
        "seen": f"{grouped(mask)} == 0",
        "is_seen": is_of_tokens,
        "is_filled": is_filled,
        "may_be_seen": is_filled and not is_of_tokens,
        "is_chosen": not is_filled,
    }


def _mask_name(failure: Failure) -> str:
    """The mask among the operands: the last tensor of masked_fill, the first of where."""
    tensors = failure.tensors
    if not tensors:
        return "mask"
    at = 0 if failure.text.startswith("where") else min(1, len(tensors) - 1)
    return failure.name_of(tensors[at])


def _no_state(failure: Failure, found: re.Match[str]) -> Explanation:
    """The explanation of what load_state_dict was given in place of a state."""
    if failure.operand("state_dict").value is None:
        name, needs = first_argument(failure), "load_state_dict takes a state, a dict of tensors"
        return explained_none(failure, found, name, needs)
    return SituationRow(
        "load_state_dict takes a state, a dict of tensors by name, and got {given}.",
        ("is_path", "Load the file first: load_state_dict(torch.load({name}))."),
        (
            "is_method",
            "Call the method, which was given itself: {name}(). If the file holds it: save "
            "model.state_dict(), with its parentheses.",
        ),
        ("is_module", "{name} is a module: give its state, {state}."),
        ("is_other", "If {name} is a module: give its state, {state}."),
        facts=_state_of,
    )(failure, found)


_CLOSED = SituationRow(
    "{op} has no form for a tensor and {given}.",
    ("is_list", "Make a tensor of it: torch.tensor(...)."),
    ("is_text", "Make a number of it: float(...), or format the tensor into the text."),
    facts=lambda failure, found: {
        "given": found["given"] or found["other"],
        "is_list": (found["given"] or found["other"]) in ("list", "tuple"),
        "is_text": (found["given"] or found["other"]) == "str",
    },
)


def _closed(failure: Failure, found: re.Match[str]) -> Explanation:
    """The explanation of an operator between a tensor and an object of Python."""
    frame = failure.user
    node = None if frame is None else frame.expression
    parts = [node.left, node.right] if isinstance(node, ast.BinOp) else []
    parts = [node.target, node.value] if isinstance(node, ast.AugAssign) else parts
    is_left = found["other"] is not None
    if "NoneType" not in (found["given"], found["other"]) or frame is None or not parts:
        return _CLOSED(failure, found)
    text = written(parts[0 if is_left else 1], frame.file)
    return explained_none(failure, found, text, f"{found['op']} needs a tensor or a number")


SITUATIONS: dict[str, Situation] = {
    "state of a module": _no_state,
    "parameters of an optimizer": SituationRow(
        "An optimizer takes an iterable of tensors, or of dicts with 'params', and got {name}.",
        (
            "nested",
            "A member of it holds several parameters, as model.parameters() does: go over these "
            "too, [p for one in {nested} for p in one], or put a star before: *{nested} in "
            "itertools.chain.",
        ),
        ("is_method", "Call the method, which was given itself: {name}()."),
        ("is_function", "Call it, with what it is to go over: {name}(...)."),
        ("is_module", "Give it the parameters: {parameters}."),
        (
            "is_dict",
            "A dict gives its names. If it is the state of a module: give its parameters, "
            "model.parameters(); if it holds parameters: {name_it}.values().",
        ),
        ("is_tensor", "Put the tensor into a list: [{name}]."),
        ("is_other", "Give what holds the parameters: model.parameters()."),
        facts=_optimized,
    ),
    "member of a sequential": SituationRow(
        "A container of modules takes modules alone, and got {short}.",
        (
            "base",
            "If its members belong together as one entry, make a module of them: {base}.append("
            "nn.ModuleList([...])).",
        ),
        ("base", "If each is to be an entry of its own: {base}.extend([...])."),
        ("starred", "Unpack it with a star where it stands: {starred}."),
        (
            "is_placed",
            "Unpack it with a star where it stands, as in nn.Sequential(first, *layers); behind a "
            "container that is there already: net.extend(layers).",
        ),
        ("is_class", "Make an object of the class: {made}, with its arguments."),
        (
            "is_tensor",
            "If it is to be trained: make a parameter, self.name = nn.Parameter(tensor). If not: "
            "self.register_buffer(name, tensor).",
        ),
        ("layer", "Use the module of that function: {layer}."),
        ("is_other", "Make a module of it: a class with a forward that calls it."),
        facts=_sequential,
    ),
    "groups that do not divide": SituationRow(
        "{num} channels cannot be shared out among {groups} groups.",
        "Choose a number of groups that divides them: {divisors}.",
        facts=_groups,
    ),
    "sizes of a split": SituationRow(
        "{name} has {given} in the dimension that is split, and the sizes have another sum.",
        "Give sizes whose sum is {given}, or one number: {name_it}.split(size, dim).",
        about="argument",
        facts=_split,
    ),
    "more than there are": SituationRow(
        "More elements were asked for than {name} has in that dimension ({shape}).",
        ("other", "If dimension {other} is meant, which has {more}, say so: dim={other}."),
        "Ask for fewer: min({number}, {name_it}.size({dim})).",
        about="argument",
        facts=_asked_for,
    ),
    "mask of numbers": SituationRow(
        "{what} takes a mask of booleans, and got {kind}.",
        ("is_seen", "If 1 marks what is kept, as a tokenizer says it, fill the rest: {seen}."),
        ("is_filled", "If 1 marks what is filled, make booleans of it: {mask_it} > 0."),
        ("may_be_seen", "If 1 marks what is kept, fill the rest: {seen}."),
        ("is_chosen", "Make booleans of it: {mask_it} > 0, or {mask_it}.bool()."),
        facts=_mask_of_numbers,
    ),
    "values of an index": SituationRow(
        "Values of shape {given} are written at an index that has the shape {wanted}.",
        (
            "chosen",
            "If there is a value for each element of the whole, take those at the same places: "
            "{target} = {chosen}.",
        ),
        "Give values of shape {wanted}, or such as can be repeated to it.",
        about="tensors",
        facts=_mismatch,
    ),
    "no matrices": SituationRow(
        "torch.mm and torch.bmm take a fixed number of dimensions: {shapes}.",
        ("vectors", "If {other} has a vector for each sample, make it a matrix: {vectors}."),
        (
            "rows",
            "For one number for each row: ({first_it} * {other_it}).sum(-1). For a matrix for each "
            "row: {first_it}[:, :, None] * {other_it}[:, None].",
        ),
        (
            "weights",
            "If {first} has a weight for each place of each sample, make a matrix of one row of "
            "it: {weights}.",
        ),
        ("way", "Use the product of any number of dimensions: {way}."),
        facts=_dims,
    ),
    "singular": SituationRow(
        "The matrix has no inverse: it is singular, as where two rows or columns depend on each "
        "other.",
        "If it is so but for rounding or too few samples, add a small multiple of the identity: "
        "A + 1e-5 * torch.eye(A.size(-1)).",
        "Solve by least squares, or with torch.linalg.pinv.",
        about="tensors",
    ),
    "no square matrix": SituationRow(
        "The operation takes square matrices, and {name} holds matrices of {rows} x {columns}.",
        "For others, use the pseudo-inverse, torch.linalg.pinv, or least squares, "
        "torch.linalg.lstsq.",
        about="argument",
    ),
    "not finite in a matrix": SituationRow(
        "{name} holds NaN or Inf, and has no such decomposition.",
        "Find the operation that made the first NaN or Inf: tt.locate(model, step, *batch), or "
        "tt.guard(model) around the training.",
        about="argument",
    ),
    "share that is none": SituationRow(
        "A dropout probability is from 0 to 1, and got {given}.",
        "Give the share of what is dropped: 0.5 for half.",
    ),
    "empty data set": first_of(
        SituationRow(
            "{sampler} was to draw 0 samples: num_samples=0.",
            "Give the number that is drawn in one round: num_samples=len(dataset).",
            when="sampler",
        ),
        SituationRow(
            "The data set has no samples: its length is 0.",
            "Check what it was made of (a folder, a pattern of file names, a filter) before the "
            "DataLoader: len(dataset).",
        ),
        facts=_drawn,
    ),
    "tensors of a data set": SituationRow(
        "TensorDataset takes tensors with one number of rows, and got tensors with others.",
        "Give tensors whose first sizes are equal: as many targets as inputs.",
        about="tensors",
    ),
    "lengths of a split": SituationRow(
        "The lengths of random_split have another sum than the data set has samples{sums}.",
        (
            "rest",
            "If they are shares that int(...) cut off: give the last one the rest, {rest}.",
        ),
        ("shares", "{shares}"),
        (
            "is_whole",
            "If shares are meant: random_split(dataset, [0.8, 0.2]), which gives the rest out.",
        ),
        ("is_whole", "If lengths are meant: give lengths of that sum, len(dataset)."),
        facts=_lengths,
    ),
    "order of a sampler": SituationRow(
        "A DataLoader was given a sampler and shuffle=True, which is a sampler of its own.",
        "Leave shuffle=True out: the sampler says the order.",
    ),
    "no process group": SituationRow(
        "torch.distributed was used in a process without a process group: {call} needs one.",
        (
            "is_sampler",
            "If this is the only process: leave the DistributedSampler out, with shuffle=True of "
            "the DataLoader, or give it num_replicas=1, rank=0.",
        ),
        ("is_wrapper", "If this is the only process: use the module itself, without {call}."),
        (
            "is_norm",
            "If this is the only process: nn.BatchNorm2d in place of nn.SyncBatchNorm.",
        ),
        (
            "is_asked",
            "If the program is to run alone, too: ask first, if "
            "torch.distributed.is_initialized(); alone, the rank is 0 of 1.",
        ),
        "If several processes train together: make it first, "
        "torch.distributed.init_process_group('gloo'), or 'nccl' on GPUs, and start the script by "
        "torchrun.",
        facts=_alone,
    ),
    "scalar of a transform": SituationRow(
        "torch.func.grad differentiates one number, and the function returned a tensor with "
        "{dims} dimensions.",
        "Return one number from it: .sum(), or .mean() where a mean is meant.",
        "For the derivatives of each element: torch.func.jacrev, or torch.func.vmap around grad.",
    ),
    "random in a transform": SituationRow(
        "A function inside of vmap draws random numbers, and vmap was not told whether each sample "
        "has its own.",
        "Give randomness='different' to vmap for numbers of its own for each sample, or 'same'.",
    ),
    "shape in a transform": SituationRow(
        "A function inside of vmap computes something whose shape depends on values, such as "
        "x[mask]: each sample would have another shape.",
        "Keep the shape, and choose by element: torch.where(mask, x, 0).",
    ),
    "sizes in a transform": SituationRow(
        "vmap goes through its arguments together, and they have {given} in that dimension.",
        "Give arguments of one size there; in_dims=None for one that is not gone through.",
    ),
    "no method": SituationRow(
        "{text} is an attribute and no method: it cannot be called.",
        "Leave the parentheses out: {way}.",
        facts=_called,
    ),
    "list of modules": SituationRow(
        "{text} is a list of modules, and was called.",
        (
            "row",
            "If they follow each other: make an nn.Sequential of them, which has a forward and "
            "registers them: nn.Sequential(*{text}).",
        ),
        (
            "heads",
            "If each takes the same input: [layer(x) for layer in {text}], with nn.ModuleList for "
            "the list, which registers them.",
        ),
        facts=_listed,
    ),
    "value of a distribution": SituationRow(
        "{kind} was asked for the probability of a value that it does not have: {support}.",
        "Give values of that range; check that the distribution and the values belong together.",
    ),
    "too many draws": SituationRow(
        "multinomial was to draw more elements than there are, without drawing one twice.",
        "Draw at most as many as the last dimension of the weights has; of rows, draw numbers: "
        "x[torch.randperm(len(x))[:n]].",
        "Draw with replacement=True, if an element may come twice.",
        about="tensors",
    ),
    "more steps than planned": SituationRow(
        "The scheduler was made for {total} steps and is at step {step}.",
        "Call scheduler.step() once for what the total counts, batches or epochs, and make it with "
        "that number: total_steps=epochs * len(loader) for one step a batch.",
    ),
    "batch of a grid": SituationRow(
        "The grid and the input of grid_sample have different batches.",
        "Give one grid for each sample: grid.expand(len(input), -1, -1, -1).",
        about="tensors",
    ),
    "weight of classes": SituationRow(
        "The loss has {num} classes, and the weight {given}.",
        (
            "is_row",
            "They stand in a row or column: make a vector of them where the loss is made, "
            "weight.flatten().",
        ),
        ("is_other", "Give one weight for each of the {num} classes."),
        about="weight",
        facts=_class_weights,
    ),
    "both sizes": SituationRow(
        "F.interpolate was given size and scale_factor, of which one says the other.",
        "Leave one of the two out.",
    ),
    "fusion in training": SituationRow(
        "fuse_modules folds a batch norm into the layer before it, for use and not for training.",
        "If the model is to be used: call model.eval() before.",
        "If it is to be trained with quantization in mind: torch.ao.quantization.fuse_modules_qat.",
    ),
    "divergence of distributions": SituationRow(
        "PyTorch has no formula for the divergence of a {p} from a {q}.",
        "Estimate it from samples: x = p.rsample((n,)), then (p.log_prob(x) - "
        "q.log_prob(x)).mean(0).",
        "If both should be of one kind, make them so: there are formulas for pairs such as two "
        "Normals.",
    ),
    "dtype of a mask": SituationRow(
        "The mask of an attention is of booleans, or of the dtype of the query, and got {given}.",
        "Make booleans of it, True where attention is allowed: mask.bool().",
        "If its values are added to the scores, convert it: mask.to(query.dtype).",
    ),
    "pair of states": SituationRow(
        "{module} has two states, (h, c), and was given one tensor.",
        "Give both: (h, c), such as (h, torch.zeros_like(h)).",
        facts=_state_pair,
    ),
    "file that is none": first_of(
        SituationRow(
            "The file is no file of torch.save: it begins with {first!r}.",
            (
                "is_pointer",
                "If it is a pointer of Git LFS, which begins with 'version https://git-lfs': fetch "
                "the file itself, git lfs pull.",
            ),
            (
                "is_page",
                "If it is a page of the web, as a download that was refused: fetch it anew.",
            ),
            "Look at its beginning, open(path, 'rb').read(100), and check the path.",
            when="first",
        ),
        SituationRow(
            "The file is empty or cut off, or no file of torch.save.",
            "Save it again, or fetch it whole; read a file object from its beginning: "
            "file.seek(0).",
        ),
        facts=_file,
    ),
    "closed to numbers": _closed,
}

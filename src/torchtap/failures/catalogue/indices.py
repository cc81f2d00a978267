"""Indices out of range, and masks that do not fit."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.failures.counted_sizes import size_of
from torchtap.failures.failure import Explanation, Failure
from torchtap.failures.lost_dimensions import computed_from
from torchtap.failures.operands import Operand, bounds_of
from torchtap.failures.parsed_source import expression_of, grouped, written
from torchtap.failures.situation_row import Situation, SituationRow
from torchtap.failures.traceback_frame import TracebackFrame
from torchtap.failures.unread_members import unread_value
from torchtap.failures.value_chains import source_of


def _span(operand: Operand) -> str:
    """``from 1 to 9``, of indices that can be read."""
    bounds = bounds_of(operand.value)
    return "" if bounds is None else f"from {int(bounds[0])} to {int(bounds[1])}"


def _embedding(failure: Failure, found: re.Match[str]) -> Explanation:
    if not any(one.code.co_name.startswith("embedding") for one in failure.frames):
        return _selected(failure)
    operand, weight = failure.operand("input"), failure.operand("weight")
    name = failure.name_of(operand)
    module = failure.module
    rows = module.num_embeddings if isinstance(module, nn.Embedding | nn.EmbeddingBag) else None
    if rows is None and isinstance(weight.value, Tensor):
        rows = len(weight.value)
    span = _span(operand)
    high = int(span.rpartition(" ")[2]) + 1 if span else None
    table = failure.module_text if isinstance(module, nn.Embedding) else "The table"
    has = f"has {rows} rows, for indices from 0 to {rows - 1}" if rows else "was indexed"
    ways = _ways_of_rows(failure, operand, rows, high)
    return Explanation(
        f"{table} {has}, and {name} holds indices {span or 'beyond them'}.",
        tuple(ways),
        failure.details(operand),
    )


def _ways_of_rows(
    failure: Failure, operand: Operand, rows: int | None, high: int | None
) -> Iterator[str]:
    """Yield the ways out of indices that a table of vectors does not have."""
    name, module = failure.name_of(operand), failure.module
    low = None if (bounds := bounds_of(operand.value)) is None else int(bounds[0])
    meant = unread_value(failure, lambda one: _are_rows(one, rows))
    if meant:
        yield meant
    is_position = "pos" in name or "arange(" in f"{name} {failure.origin(operand).text}"
    if low is not None and low < 0:
        number, more = (rows, rows + 1) if rows else ("N", "N + 1")
        yield (
            "If negative numbers stand for padding, give it a row of its own, of zeros: "
            f"nn.Embedding({more}, ..., padding_idx={number}) and "
            f"{grouped(name)}.masked_fill({name} < 0, {number}); or the number that pads already."
        )
    if high is not None and rows is not None and high <= rows:
        return
    if is_position and rows is not None:
        yield from _counted_elsewhere(failure, rows)
        yield f"Give shorter sequences: {rows} positions at most (truncation=True)."
    if low == 1 and high == (rows or 0) + 1:
        yield f"If they are counted from 1, count them from 0: {name} - 1."
    text = f"{name} {failure.origin(operand).text}"
    if rows and re.search(r"\.(argmax|multinomial|topk|argsort|sample)\(", text):
        yield (
            f"If the model chooses them by its scores, make the layer of the scores give {rows}, "
            "one for each row of the table."
        )
    owner = _of_vocabulary(failure, rows, name)
    if owner:
        yield (
            "If the tokenizer was given more tokens, give them rows, which keeps those that "
            f"are there: {owner}.resize_token_embeddings({high or 'len(tokenizer)'})."
        )
    else:
        made = f"{failure.names.variable(module)} = nn.Embedding({high or 'N'}, ...)"
        made = made if isinstance(module, nn.Embedding) else "a row for each"
        of_all = "" if is_position else ", by the greatest number in all data, not in this batch"
        yield f"If there are as many, give it a row for each{of_all}: {made}."
    if _has_gaps(operand.value, rows):
        yield (
            "If the numbers have gaps, as of users or products, count them anew from 0, by a dict "
            "of their numbers for all data."
        )
    if not is_position:
        yield "If they are tokens, check the vocabulary of the tokenizer against that of the model."


def _are_rows(value: Tensor, rows: int | None) -> bool:
    """Return whether a tensor holds numbers of rows that a table has."""
    span = None if value.is_floating_point() else bounds_of(value)
    return span is not None and rows is not None and 0 <= span[0] <= span[1] < rows


def _counted_elsewhere(failure: Failure, rows: int) -> Iterator[str]:
    """Yield the dimension that positions may count, where arange counts another of a tensor."""
    for frame, node in computed_from(failure):
        match node:
            case ast.Call(func=ast.Attribute(attr="arange"), args=[count, *_]):
                base, dim = size_of(count)
            case _:
                continue
        held = frame.value_of(base) if base is not None else None
        if base is None or not isinstance(held, Tensor) or held.dim() < 2:
            continue
        own = dim % held.dim()
        other = next((at for at in (1, 0) if at != own and 1 < held.shape[at] <= rows), None)
        if other is not None and held.shape[own] > rows:
            text = written(base, frame.file)
            yield (
                f"{written(node, frame.file)} counts dimension {own} of {text}: if the positions "
                f"stand in dimension {other}, torch.arange({grouped(text)}.size({other}))."
            )
            return


def _has_gaps(value: Any, rows: int | None) -> bool:
    """Return whether there are no more different numbers than rows."""
    if rows is None or bounds_of(value) is None:
        return False
    return len(set(value.flatten()[:4096].tolist())) <= rows and bounds_of(value)[1] > 2 * rows  # type: ignore[index]


def _of_vocabulary(failure: Failure, rows: int | None, name: str) -> str:
    """The outermost running model that resizes its tables of tokens, if this may be one."""
    if rows is None or "pos" in name or "pos" in failure.module_text:
        return ""
    for frame in failure.frames:
        model = frame.module
        config = getattr(vars(model).get("config"), "__dict__", {}) if model is not None else {}
        if hasattr(type(model), "resize_token_embeddings") and config.get("vocab_size") == rows:
            return failure.names.variable(model)
    return ""


def _selected(failure: Failure) -> Explanation:
    """Explain ``index_select`` and its like, whose message says neither dimension nor index."""
    name = failure.name_of(failure.operands[0]) if failure.operands else "the tensor"
    whole = (one for one in failure.tensors[1:] if not one.value.is_floating_point())
    index = next(whole, None)
    given = "An index was given" if index is None else f"{failure.name_of(index)} holds an index"
    span = "" if index is None else _span(index)
    return Explanation(
        f"{given} that {name} does not have{f': it goes {span}' if span else ''}.",
        ("Give indices from 0 to the size of that dimension - 1; check where they come from.",),
        failure.details(),
    )


def _index(failure: Failure, found: re.Match[str]) -> Explanation:
    if isinstance(failure.module, nn.LSTM) and failure.frames[-1].file.endswith("rnn.py"):
        return Explanation(
            f"{failure.module_text} has two states, (h, c), and was given one tensor.",
            ("Give both: (h, c), such as (h, torch.zeros_like(h)); or none, if they are zeros.",),
            failure.details(),
        )
    size, value = int(found["size"]), int(found["value"])
    tensors = failure.operands
    name = failure.name_of(tensors[0]) if tensors else "the tensor"
    dim = _dimension(failure, int(found["dim"]), size)
    where = "a dimension" if dim is None else f"dimension {dim}"
    # Of an index in brackets negative ones count from the end; gather and its like take none.
    low = -size if isinstance(failure.frames[-1].expression, ast.Subscript) else 0
    ways = [
        *_ways_of_an_index(failure, dim, size),
        *_read_as_another(value),
        f"Give indices from {low} to {size - 1}; check where they come from.",
    ]
    if not size:
        ways = ["Check why it is empty, or leave the index out where it is."]
    return Explanation(
        f"Index {value} was asked of {where} of {name}, which has "
        + (f"{size} elements there, from 0 to {size - 1}." if size else "no elements there."),
        tuple(ways),
        failure.details(),
    )


def _read_as_another(value: int) -> Iterator[str]:
    """Yield the way out of an index that no table has: the bits of two numbers as one."""
    if abs(value) >= 1 << 31:
        yield (
            "If such a number was never given, its bits were read in another dtype: make the "
            "indices anew, torch.tensor(values, dtype=torch.int64)."
        )


def _ways_of_an_index(failure: Failure, dim: int | None, size: int) -> Iterator[str]:
    """Yield what an index that is too large may mean, from its values and the other dimensions."""
    held, *rest = failure.operands or [Operand("")]
    index = next((one for one in rest if isinstance(one.value, Tensor)), None)
    frame = failure.frames[held.depth] if failure.operands else None
    node = None if frame is None else frame.expression
    if index is None and frame is not None:
        index = _viewed(rest, frame)
    if index is None:
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name):
            text = written(node.value)
            yield f"If a loop counts {node.slice.id}, let it end where {text} does: len({text})."
        return
    name, text = failure.name_of(held), failure.name_of(index)
    span = bounds_of(index.value)
    is_marked = getattr(getattr(node, "func", None), "attr", "").startswith("scatter")
    if is_marked and span is not None and span[0] >= 1 and span[1] == size:
        yield f"If {text} counts from 1, count from 0: {grouped(text)} - 1."
    if is_marked and span is not None and span[0] >= 0 and dim is not None:
        yield (
            f"If {text} holds classes, give each a place: {int(span[1]) + 1} or more in dimension "
            f"{dim} of {name}, by the greatest number in all data, and as many outputs of the "
            "model."
        )
        return
    if span is not None and span[0] >= 1 and span[1] == size:
        yield f"If {text} counts from 1, count from 0: {grouped(text)} - 1."
    shape = list(held.value.shape) if isinstance(held.value, Tensor) else []
    others = [at for at in range(len(shape)) if at != dim and span and shape[at] > span[1]]
    if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Tuple) and 1 in others:
        if index.value.dim() == 1 and len(index.value) == shape[0]:
            yield (
                f"If {text} has one number for each row, of dimension 1, take one of each row: "
                f"{grouped(name)}[torch.arange(len({name})), {text}]."
            )
        yield f"If {text} counts in dimension 1, of {shape[1]}: {grouped(name)}[:, {text}]."
    maker = failure.origin(held).module
    if maker is not None and span is not None and span[0] >= 0 and dim is not None:
        yield (
            f"If {text} counts what {failure.names.module(maker)} gives in dimension {dim}, make "
            f"it give {int(span[1]) + 1} or more, by the greatest number in all data."
        )
    elif others and dim is not None:
        yield f"Check that dimension {dim} is the one that is meant, and not {others[0]}."


def _viewed(operands: list[Operand], frame: TracebackFrame) -> Operand | None:
    """Return an index with the value of what it is a view of, as ``y`` of ``y.unsqueeze(1)``."""
    for one in operands:
        match expression_of(one.text):
            case ast.Call(func=ast.Attribute(value=base, attr="unsqueeze" | "view" | "reshape")):
                value = frame.value_of(base)
            case ast.Subscript(value=base, slice=ast.Tuple()):
                value = frame.value_of(base)
            case _:
                continue
        if isinstance(value, Tensor) and not value.is_floating_point():
            return one._replace(value=value)
    return None


def _dimension(failure: Failure, said: int, size: int) -> int | None:
    """The dimension of the tensor: of several indices, PyTorch counts the indexed ones alone."""
    node = failure.frames[-1].expression
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Tuple):
        return said
    value = failure.operands[0].value if failure.operands else None
    shape = value.shape if isinstance(value, Tensor) else ()
    fitting = [at for at, one in enumerate(shape) if one == size]
    return fitting[0] if len(fitting) == 1 else None


def _bytes_of_places(failure: Failure, found: re.Match[str]) -> Explanation | None:
    """The explanation where an index of uint8 holds numbers of places: it is read as a mask."""
    shape = [int(one) for one in re.findall(r"\d+", found["given"])]
    for one in failure.tensors[1:]:
        bounds = bounds_of(one.value) if one.value.dtype is torch.uint8 else None
        if bounds is not None and bounds[1] > 1 and list(one.value.shape) == shape:
            name, source = failure.name_of(one), source_of(failure, one)
            return Explanation(
                f"{name} holds uint8, which PyTorch reads as a mask, not as places: it goes "
                f"{_span(one)}.",
                (
                    f"It holds numbers of places, since a mask has 0 and 1 alone: "
                    f"{grouped(name)}.long(){f', where it is made ({source})' if source else ''}.",
                ),
                failure.details(),
            )
    return None


def _mask(failure: Failure, found: re.Match[str]) -> Explanation:
    of_places = _bytes_of_places(failure, found)
    if of_places is not None:
        return of_places
    tensors = failure.operands
    name = failure.name_of(tensors[-1]) if tensors else "mask"
    whole = grouped(failure.name_of(tensors[0])) if len(tensors) == 2 else "x"
    mask, shape = (re.findall(r"\d+", found[one]) for one in ("given", "wanted"))
    fitting = [at for at in range(1, len(shape)) if shape[at : at + len(mask)] == mask]
    at = int(found["at"]) - int(found["of"])
    met = shape[at : at + len(mask)]
    where = f"dimensions of its own size, and meets {' x '.join(met)} there"
    where = where if at else "the first dimensions"
    ways = []
    if fitting and not at:
        there = f"{whole}[{':, ' * fitting[0]}{name}]"
        dims = " and ".join(map(str, range(fitting[0], fitting[0] + len(mask))))
        ways.append(f"If its dimensions are the dimensions {dims} of {whole}, say so: {there}.")
    sizes = [int(one) for one in mask], [int(one) for one in shape]
    ways += _masks_that_fit(whole, name, *sizes, is_placed=at > 0)
    ways.append(
        f"Make {name} of their size, {' x '.join(met)}, where it is made or resized."
        if len(met) == len(mask)
        else f"Make {name} of no more dimensions than {whole} has."
    )
    return Explanation(
        f"A mask {found['given']} was used on a tensor {found['wanted']}: a mask stands for "
        f"{where}.",
        tuple(ways),
        failure.details(),
    )


def _masks_that_fit(
    whole: str, name: str, mask: list[int], shape: list[int], *, is_placed: bool
) -> Iterator[str]:
    """Yield the forms of a mask that stand for the first dimensions, or for all."""
    it = grouped(name)
    if len(mask) > 1 and mask[-1] == 1 and mask[:-1] == shape[: len(mask) - 1]:
        yield f"If it chooses rows, take its dimension of one out: {whole}[{it}.squeeze(-1)]."
    if len(mask) == len(shape) and all(a in (1, b) for a, b in zip(mask, shape, strict=True)):
        yield f"If it is repeated along its dimensions of one: {whole}[{it}.expand_as({whole})]."
    if len(mask) == 1 < len(shape) and mask[0] == math.prod(shape):
        shaped = f"{whole}[{it}.reshape({whole}.shape)]"
        yield f"If {whole} was flattened where the mask was made: {shaped}."
    if len(mask) == 2 and mask[::-1] == shape[:2] and mask != shape[:2]:
        yield f"If its dimensions stand in the other order: {whole}[{it}.mT]."
    yield from _shifted(whole, name, mask, shape)
    yield from _of_another_picture(whole, it, mask, shape, is_placed=is_placed)
    if len(mask) > 1 and mask[0] == shape[0] and 1 < mask[1] < shape[1] and len(shape) == 3:
        yield (
            f"If the model put further places into the sequence, such as those of a picture, make "
            f"{name} of what it computed with, {shape[1]} long, and not of the {mask[1]} that were "
            "given."
        )
    if len(mask) == len(shape) == 1 and abs(mask[0] - shape[0]) == 1:
        yield "If one of them counts a class or a token more, count it in both, or in neither."
    if len(mask) > 1 and math.prod(mask) == shape[0]:
        yield f"If {whole} was flattened, flatten it as well: {whole}[{it}.flatten()]."


def _of_another_picture(
    whole: str, it: str, mask: list[int], shape: list[int], *, is_placed: bool
) -> Iterator[str]:
    """Yield the way to bring the mask of a picture to the size of another."""
    is_picture = (len(shape) == 3 and shape[0] in (1, 3, 4)) or len(shape) == 4
    if is_picture and len(mask) == 2 and mask != shape[-2:] and min(mask) > 1:
        height, width = shape[-2:]
        resized = f"F.interpolate({it}[None, None].float(), size=({height}, {width}))[0, 0] > 0.5"
        if is_placed:
            yield f"If it is the mask of a picture of another size, resize it: {resized}."
            return
        yield (
            "If it is the mask of a picture of another size, resize it, and choose in the last two "
            f"dimensions: {whole}[..., {resized}]."
        )


def _shifted(whole: str, name: str, mask: list[int], shape: list[int]) -> Iterator[str]:
    """Yield the cut where one of two sequences has one place more than the other."""
    if len(mask) != 2 or len(shape) < 2 or mask[0] != shape[0] or abs(mask[1] - shape[1]) != 1:
        return
    larger, other = (whole, name) if shape[1] > mask[1] else (name, whole)
    it = grouped(larger)
    yield (
        f"If {larger} has one position more than {other}, since each predicts the next, leave out "
        f"the last, {it}[:, :-1], or the first, {it}[:, 1:]."
    )


def _picked(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say which index was given, and whether it picks one element of each row of a matrix."""
    words: dict[str, Any] = {"is_flat": False, "index": "the index", "dim": ""}
    words |= {"is_written": False, "is_step": False, "row": "", "expanded": ""}
    held, *rest = failure.operands or [Operand("")]
    index = next((one for one in rest if isinstance(one.value, Tensor)), None)
    dims = [one.value for one in rest if type(one.value) is int]
    if index is None or not dims:
        return words
    # A tensor that the program computes in the same expression is not known, its dim is.
    is_matrix = not isinstance(held.value, Tensor) or held.value.dim() == 2
    is_flat = index.value.dim() == 1 and is_matrix and dims[0] in (1, -1)
    name = failure.name_of(index)
    shape = list(held.value.shape) if isinstance(held.value, Tensor) else []
    node = failure.frames[held.depth].expression
    is_gather = getattr(getattr(node, "func", None), "attr", "") == "gather"
    is_step = (
        is_gather and len(shape) > 2 and dims[0] == 1 and list(index.value.shape) == [shape[0]]
    )
    return {
        "is_flat": is_flat and is_gather,
        "is_written": is_flat and not is_gather,
        "index": name,
        "dim": dims[0],
        "expanded": _expanded(name, list(index.value.shape), shape, dims[0]) if is_gather else "",
        "row": f"{grouped(failure.name_of(held))}[torch.arange(len({name})), {name}]",
        "is_step": is_step,
    }


def _expanded(name: str, index: list[int], shape: list[int], dim: int) -> str:
    """Return an index with the dimensions of the vectors that it takes; empty if it takes none."""
    rest = shape[len(index) :]
    is_prefix = len(index) == dim + 1 and index[:dim] == shape[:dim] and bool(rest)
    if not is_prefix or dim < 1:
        return ""
    ones = ", ".join(["..."] + ["None"] * len(rest))
    sizes = ", ".join(["-1"] * len(index) + [str(one) for one in rest])
    return f"{grouped(name)}[{ones}].expand({sizes})"


def _written(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The statement that writes, if it is a plain assignment at an index."""
    text = "" if failure.user is None else failure.user.text.partition("#")[0]
    target, _, value = text.partition(" = ")
    name = target.strip().partition("[")[0]
    is_name = all(one.isidentifier() for one in name.split("."))
    is_plain = bool(value) and target.strip().endswith("]") and is_name
    way = f"{target.strip()} = {grouped(value.strip())}.to({name}.dtype)" if is_plain else ""
    return {"is_plain": is_plain, "is_other": not is_plain, "statement": way}


def _one_hot(failure: Failure, found: re.Match[str]) -> Explanation:
    operand = failure.argument()
    name, span = failure.name_of(operand), _span(operand)
    it, high = grouped(name), int(span.rpartition(" ")[2]) if span else None
    counts = [one.value for one in failure.operands[1:] if type(one.value) is int]
    num = counts[0] if counts else None
    what = f"one_hot was given class numbers {span} in {name}".replace("  ", " ")
    if "negative" in found["what"]:
        ways = [
            "If negative numbers stand for no class, give them none of the places: "
            f"F.one_hot({it}.clamp(min=0), {num or 'num_classes'}) * ({it} >= 0)[..., None].",
            f"Or leave them out: {it}[{it} >= 0].",
        ]
        what = f"{what}, and takes them from 0 on"
        return Explanation(f"{what}.", tuple(ways), failure.details(operand))
    ways, bounds = [], bounds_of(operand.value)
    if high == 255 and _is_flag(operand.value, high):
        ways.append(f"If {high} is class 1, give its number: one_hot(({it} == {high}).long()).")
    if bounds is not None and bounds[0] >= 1 and high == num:
        ways.append(f"If the classes are counted from 1, count them from 0: {it} - 1.")
    if high in (254, 255):
        classes = num or "num_classes"
        ways.append(
            f"If {high} stands for no class, give it none of the places: F.one_hot("
            f"{it}.masked_fill({it} == {high}, 0), {classes}) * ({it} != {high})[..., None]."
        )
    given = f"num_classes={'N' if high is None else high + 1}"
    ways.append(f"If all of them are classes, give {given}, of the greatest number in all data.")
    said = f"{what}, and num_classes={num}" if num else f"{what}, and fewer classes"
    return Explanation(f"{said}.", tuple(ways), failure.details(operand))


def _is_flag(value: Any, high: int) -> bool:
    """Return whether a tensor of numbers holds 0 and a larger one alone, as a picture of 255."""
    return bool(((value == 0) | (value == high)).all())


SITUATIONS: dict[str, Situation] = {
    "index of an embedding": _embedding,
    "index": _index,
    "mask": _mask,
    "one-hot range": _one_hot,
    "dimensions of an index": SituationRow(
        "gather and scatter take an index with as many dimensions as the tensor, and {index} has "
        "fewer or more.",
        (
            "is_flat",
            "To pick one element of each row, give the index that dimension and take it away "
            "again: gather({dim}, {index_it}.unsqueeze({dim})).squeeze({dim}).",
        ),
        (
            "is_written",
            "If each row is written at one place, give the index that dimension: "
            "{index_it}.unsqueeze({dim}).",
        ),
        (
            "expanded",
            "If whole vectors are to be taken, give the index their dimension: {expanded}.",
        ),
        ("is_step", "If one step of each sample is meant: {row}."),
        "Give the index every dimension of the tensor; along the gathered one it may be of any "
        "size.",
        about="tensors",
        facts=_picked,
    ),
    "dtypes of a written index": SituationRow(
        "Values of {given_dtype} are written at an index into a tensor of {wanted_dtype}: writing "
        "at an index converts none. Under autocast, products come out in the smaller dtype.",
        ("is_plain", "Convert what is written: {statement}."),
        ("is_other", "Convert what is written to the dtype of the tensor: value.to(tensor.dtype)."),
        facts=_written,
    ),
}

"""Shapes that are to be repeated to each other: broadcasting."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchtap.core.text import typed
from torchtap.failures.catalogue.products import undone_transpose
from torchtap.failures.derived_shapes import shaped_operands, tensors_inside
from torchtap.failures.failure import Explanation, Failure
from torchtap.failures.lost_dimensions import batch_taken_out
from torchtap.failures.operands import (
    Operand,
    bounds_of,
    dtype_text,
    parts_of_expression,
    shape_text,
)
from torchtap.failures.out_of_place import out_of_place, statement_of
from torchtap.failures.parsed_source import expression_of, grouped, last_name, written
from torchtap.failures.rearrangements import (
    aligned,
    broadcasts,
    exchanged,
    maps_of_one_size,
    samples_of_one_batch,
    several_for_one,
    turned_channels,
)
from torchtap.failures.reductions import over_another_dimension, with_its_dimension
from torchtap.failures.situation_row import Situation, SituationRow
from torchtap.failures.traceback_frame import MISSING

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, *_NORMS)
"""Layers whose parameters are no tables of positions."""
_DISTANCES = {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"}


def _broadcast(failure: Failure, found: re.Match[str]) -> Explanation:
    chosen = _disagreeing(failure, found)
    state = _state_of_optimizer(failure)
    if state is not None:
        return state
    said = (
        f"{found['a']} and {found['b']} elements in dimension {found['dim']} of the result, and "
        f"only a size of 1 is repeated"
    )
    if not chosen:
        return Explanation(
            f"Two of the operands have {said}.",
            (
                *_weights_of_a_loss(failure),
                *_mask_of_attention(failure),
                *_tables(failure, found, None),
                "Give all operands one size there, or size 1, which is repeated.",
            ),
            failure.details(*failure.tensors, *tensors_inside(failure)),
        )
    a, b = (failure.name_of(one) for one in chosen)
    known = [typed(dtype_text(one.value), tuple(one.value.shape)) for one in _tensors(chosen)]
    shapes = " and ".join(known)
    return Explanation(
        f"{a} and {b} have {said}{f' ({shapes})' if shapes else ''}.",
        tuple(_ways(failure, found, chosen)),
        failure.details(*failure.tensors, *tensors_inside(failure)),
    )


def _ways(failure: Failure, found: re.Match[str], chosen: Sequence[Operand]) -> list[str]:
    """Return the ways to give two operands one size, those with evidence first."""
    a, b = (failure.name_of(one) for one in chosen)
    ways = [
        f"Make what produces {a} or {b} give both one size there, or size 1, which is repeated."
    ]
    ways = [*_cut_masks(failure, found, a, b), *_tables(failure, found, chosen), *ways]
    classes = list(_numbers_of_classes(failure, found, chosen))
    ways = [*_result_that_is_lost(failure), *ways]
    if found["dim"] == "0" and "1" not in (found["a"], found["b"]):
        sizes = sorted((int(found["a"]), int(found["b"])))
        smaller, larger = (a, b) if int(found["a"]) == sizes[0] else (b, a)
        of_channels = list(_of_channels(larger, sizes, chosen))
        is_similarity = "cosine_similarity" in failure.operation
        pairs = list(_pairs_of_points(a, b, chosen, is_similarity=is_similarity))
        of_batches = [
            *_one_more(larger, sizes, chosen),
            *([] if _is_of_a_loss(failure) else pairs),
            samples_of_one_batch(sizes),
            *several_for_one(smaller, *sizes),
        ]
        ways = [*ways[:-1], *(of_channels or of_batches), ways[-1]]
    ways = [*classes, *_for_each_sample(failure, found, chosen), *ways]
    ways = [
        *_kept_from_before(failure, found, chosen),
        *_channels_of_a_block(found, a, b, chosen),
        *ways,
    ]
    if all(isinstance(one.value, Tensor) for one in chosen) and not classes:
        fitting = list(_fitting(failure, a, b, chosen[0].value, chosen[1].value))
        ways = list(dict.fromkeys([*fitting, *ways]))
        lost = batch_taken_out(failure) if not fitting else ""
        ways = [*ways[:-1], *([lost] if lost else []), ways[-1]]
    return [*_reductions(failure, chosen), *_padded_block(failure, chosen), *ways]


def _weights_of_a_loss(failure: Failure) -> Iterator[str]:
    """Yield where the weights of a binary loss may stand among the dimensions of its input."""
    given = failure.operand("input")
    is_loss = any(one.code.co_name.startswith("binary_cross_entropy") for one in failure.frames)
    for name in ("pos_weight", "weight") if is_loss else ():
        one = failure.operand(name)
        if not isinstance(one.value, Tensor) or not isinstance(given.value, Tensor):
            continue
        shape, whole = list(one.value.shape), list(given.value.shape)
        if not broadcasts(shape, whole):
            text = failure.name_of(one)
            yield from aligned(text, shape, failure.name_of(given), whole)
            yield f"If {text} is for the last dimension, give it {whole[-1]} numbers."


def _mask_of_attention(failure: Failure) -> Iterator[str]:
    """Yield where a mask of the places of each sample stands among the scores of an attention."""
    frame = failure.user
    node = None if frame is None else frame.expression
    called = getattr(getattr(node, "func", None), "attr", "")
    if frame is None or not isinstance(node, ast.Call) or called != "scaled_dot_product_attention":
        return
    shapes = {one.text: list(one.value.shape) for one in _tensors(shaped_operands(failure))}
    query, key = (shapes.get(written(one, frame.file), []) for one in (*node.args, node)[:2])
    named = [one.value for one in node.keywords if one.arg == "attn_mask"]
    for one in (*named, *node.args[3:4]):
        text = written(one, frame.file)
        if len(query) == 4 and key and shapes.get(text) == [query[0], key[-2]]:
            yield (
                "If it says which keys of each sample are seen, say where they stand: "
                f"{grouped(text)}[:, None, None, :]."
            )


def _reductions(failure: Failure, chosen: Sequence[Operand]) -> Iterator[str]:
    """Yield the way to keep the dimension that a reduction took out of one of two operands."""
    for one, other in (chosen, chosen[::-1]):
        if isinstance(other.value, Tensor):
            shape = list(one.value.shape) if isinstance(one.value, Tensor) else None
            wanted = list(other.value.shape)
            way = with_its_dimension(failure, one, wanted, shape)
            way = way or over_another_dimension(failure, one, wanted)
            if way:
                yield way
                return


def _tensors(operands: Sequence[Operand]) -> list[Operand]:
    return [one for one in operands if isinstance(one.value, Tensor)]


def _state_of_optimizer(failure: Failure) -> Explanation | None:
    """The explanation, where an optimizer's state has another shape than its parameter."""
    owner = next((one.owner for one in failure.frames if isinstance(one.owner, Optimizer)), None)
    if owner is None or not failure.frames[-1].is_torch:
        return None
    for parameter, held in owner.state.items():
        wrong = [
            (key, one)
            for key, one in held.items()
            if isinstance(one, Tensor) and one.dim() and one.shape != parameter.shape
        ]
        if wrong:
            state = failure.names.state(parameter)
            name = "a parameter" if state is None else state.name
            return Explanation(
                f"The state that the {type(owner).__name__} holds of {name} ({wrong[0][0]}, "
                f"{shape_text(wrong[0][1])}) does not have the shape of the parameter, "
                f"{list(parameter.shape)}: the state was saved of parameters in another order, or "
                "of another model.",
                (
                    "Make the optimizer of the same parameters, in the same order, as the one that "
                    "was saved: an optimizer knows them by their number alone.",
                    "Begin with an empty state: do not load that of the optimizer.",
                ),
            )
    return None


def _disagreeing(failure: Failure, found: re.Match[str]) -> list[Operand]:
    """The two operands of the two sizes, in the order of the message; none if that is not sure."""
    sizes, dim = (int(found["a"]), int(found["b"])), int(found["dim"])
    operands = shaped_operands(failure)
    tensors = _tensors(operands)
    num = max((one.value.dim() for one in tensors), default=0)

    def size(one: Operand) -> int | None:
        at = dim - (num - one.value.dim())
        return one.value.shape[at] if 0 <= at < one.value.dim() else None

    # Operands with a value of their own say more than what is computed from them.
    for known in (failure.tensors, tensors):
        pairs = itertools.permutations(known, 2)
        fitting = [list(pair) for pair in pairs if tuple(map(size, pair)) == sizes]
        if len(fitting) == 1:
            return fitting[0]
    node = failure.frames[operands[0].depth].expression if operands else None
    is_pair = isinstance(node, ast.BinOp | ast.AugAssign | ast.Compare) and len(operands) == 2
    is_known = len(tensors) == 2 and not fitting
    return operands if is_pair and not is_known else []


def _numbers_of_classes(
    failure: Failure, found: re.Match[str], chosen: Sequence[Operand]
) -> Iterator[str]:
    """Yield the way to give each class a place, where one operand holds their numbers."""
    for one, other in (chosen, chosen[::-1]):
        value, sizes = one.value, [int(found["a"]), int(found["b"])]
        yield from _classes_of_places(failure, one, other)
        is_vector = isinstance(value, Tensor) and value.dim() == 1 and int(found["dim"]) == 1
        if not is_vector or value.is_floating_point() or value.dtype is torch.bool:
            continue
        classes = sizes[1 if one is chosen[0] else 0]
        known = bounds_of(value)
        if known is not None and known[0] >= 0 and known[1] < classes:
            name, scores = failure.name_of(one), failure.name_of(other)
            if _compares(failure):
                greatest = f"{grouped(scores)}.argmax(1)"
                yield f"If {scores} holds scores, take the class of the greatest: {greatest}."
                return
            is_class = f"If {name} holds the number of a class for each row of {scores}"
            if _is_of_a_distance(failure):
                yield (
                    f"{is_class}, the loss of classes takes both as they are: F.cross_entropy("
                    f"{scores}, {name}), of scores without a softmax before."
                )
            yield (
                f"{is_class}, and each class is to have a place of its own: "
                f"F.one_hot({name}, {classes}).float()."
            )


def _is_of_a_distance(failure: Failure) -> bool:
    """Return whether a loss failed that takes numbers, and no classes: MSE and its like."""
    names = {one.code.co_name for one in failure.frames if one.is_torch}
    kinds = nn.MSELoss | nn.L1Loss | nn.SmoothL1Loss | nn.HuberLoss
    return isinstance(failure.module, kinds) or bool(names & _DISTANCES)


def _classes_of_places(failure: Failure, one: Operand, other: Operand) -> Iterator[str]:
    """Yield the way to give each class a place, where one holds their numbers at each place."""
    value, scores = one.value, other.value
    if not isinstance(value, Tensor) or not isinstance(scores, Tensor) or value.dim() < 2:
        return
    known = None if value.is_floating_point() or value.dtype is torch.bool else bounds_of(value)
    is_map = scores.dim() == value.dim() + 1 and scores.shape[0] == value.shape[0]
    if known is None or not is_map or scores.shape[2:] != value.shape[1:]:
        return
    classes = scores.shape[1]
    if 0 <= known[0] <= known[1] < classes and classes > 1:
        yield (
            f"If {failure.name_of(one)} holds the number of one of {classes} classes for each "
            f"place, give each class a place of its own: F.one_hot({failure.name_of(one)}, "
            f"{classes}).movedim(-1, 1)."
        )


def _one_more(larger: str, sizes: Sequence[int], chosen: Sequence[Operand]) -> Iterator[str]:
    """Yield the way out where one of two sequences counts a step more."""
    shapes = [list(one.value.shape) for one in _tensors(chosen)]
    if len(shapes) == 2 and all(len(one) == 1 for one in shapes) and sizes[1] == sizes[0] + 1 > 3:
        it = grouped(larger)
        yield (
            f"If {larger} has one step more, such as the state after the last step, leave that "
            f"out: {it}[:-1], or {it}[1:] where it is the first."
        )


def _of_channels(larger: str, sizes: Sequence[int], chosen: Sequence[Operand]) -> Iterator[str]:
    """Yield the ways out where one operand has a number for each channel of a picture."""
    shapes = [list(one.value.shape) for one in _tensors(chosen)]
    is_of_channels = any(len(one) == 3 and one[1:] == [1, 1] for one in shapes)
    if len(shapes) != 2 or not is_of_channels or any(len(one) != 3 for one in shapes):
        return
    low, high = sizes
    last = next((one for one in shapes if one[1:] != [1, 1] and one[-1] == low), None)
    if last is not None and last[0] == high:
        yield (
            f"If the channels of {larger} stand last, put them first: "
            f"{grouped(larger)}.movedim(-1, 0)."
        )
        yield "If they are to stay there, give the numbers without dimensions of one behind them."
        return
    channels = next((one[0] for one in shapes if one[1:] != [1, 1]), high)
    if channels == high == 4:
        yield (
            f"If the fourth channel of the picture is alpha, leave it out: "
            f"{grouped(larger)}[:{low}], or .convert('RGB') of the picture."
        )
    yield f"Give as many numbers, of mean and deviation, as the picture has channels: {channels}."


def _result_that_is_lost(failure: Failure) -> Iterator[str]:
    """Yield the way out of a line that computes what nothing keeps."""
    statement = None if failure.user is None else statement_of(failure.user)
    match statement:
        case ast.Expr(value=ast.BinOp(left=ast.Name(id=name), right=ast.Call() as right)):
            yield (
                f"The line keeps no result: if an assignment was meant, {name} = {written(right)}."
            )


def _is_product(failure: Failure) -> bool:
    """Return whether the sizes are those of the batches of a product of matrices."""
    node = failure.frames[failure.operands[0].depth].expression if failure.operands else None
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult)
    return isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("matmul", "bmm")


def _is_of_a_loss(failure: Failure) -> bool:
    return any(one.code.co_name.endswith("_loss") for one in failure.frames if one.is_torch)


def _pairs_of_points(
    a: str, b: str, chosen: Sequence[Operand], *, is_similarity: bool
) -> Iterator[str]:
    """Yield the way to compare each point or box of one tensor with each of another."""
    shapes = [list(one.value.shape) for one in _tensors(chosen)]
    is_pair = len(shapes) == 2 and shapes[0][1:] == shapes[1][1:]
    if is_pair and len(shapes[0]) == 2 and is_similarity:
        yield (
            f"If each of {a} is to meet each of {b}: F.cosine_similarity({grouped(a)}[:, None], "
            f"{grouped(b)}[None], dim=-1)."
        )
    elif is_pair and shapes[0][1:] in ([2], [3], [4]):
        yield (
            f"If each of {a} is to meet each of {b}, as points or boxes in pairs, give the pairs "
            f"two dimensions: {grouped(a)}[:, None] and {grouped(b)}[None]."
        )


def _kept_from_before(
    failure: Failure, found: re.Match[str], chosen: Sequence[Operand]
) -> Iterator[str]:
    """Yield the way out where a module kept one operand from an earlier call, of another batch."""
    for one in _tensors(chosen) if found["dim"] == "0" else ():
        head, _, name = one.text.partition(".")
        owner = failure.frames[one.depth].own_names.get(head)
        if isinstance(owner, nn.Module) and vars(owner).get(name) is one.value:
            size = found["a"] if one is chosen[0] else found["b"]
            yield (
                f"If {one.text} was kept from an earlier call, with a batch of {size}, make it "
                f"anew for each that begins: {one.text} = None between them, and zeros of len(x) "
                "where it is None."
            )


def _channels_of_a_block(
    found: re.Match[str], a: str, b: str, chosen: Sequence[Operand]
) -> Iterator[str]:
    """Yield the convolution of a shortcut, where what a module returns has other channels."""
    for one, other in (chosen, chosen[::-1]):
        is_map = isinstance(one.value, Tensor) and one.value.dim() == 4
        is_made = other.value is MISSING or (
            is_map and _is_computed(other) and other.value.shape[2:] == one.value.shape[2:]
        )
        if is_map and is_made and found["dim"] == "1" and not _is_computed(one):
            mine, theirs = (
                (found["a"], found["b"]) if one is chosen[0] else (found["b"], found["a"])
            )
            name, made = (a, b) if one is chosen[0] else (b, a)
            yield (
                f"If {name} is the shortcut around {made}, bring it to its channels by a "
                f"convolution of its own: nn.Conv2d({mine}, {theirs}, 1)."
            )


def _is_computed(operand: Operand) -> bool:
    """Return whether the shape of an operand is known, and not its value."""
    return isinstance(operand.value, Tensor) and operand.value.is_meta


def _compares(failure: Failure) -> bool:
    node = failure.frames[failure.operands[0].depth].expression if failure.operands else None
    return isinstance(node, ast.Compare)


def _padded_block(failure: Failure, chosen: Sequence[Operand]) -> Iterator[str]:
    """Yield the padding of a convolution that made a map smaller than the one it is added to."""
    for one, other in (chosen, chosen[::-1]):
        frame, node = failure.frames[one.depth], expression_of(one.text)
        layer = frame.value_of(node.func) if isinstance(node, ast.Call) else None
        if not isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) or not _tensors([one, other]):
            continue
        is_odd = all(size % 2 for size in layer.kernel_size)
        pairs = [list(held.value.shape[2:]) for held in _tensors([other, one])]
        lost = [
            step * (size - 1) for step, size in zip(layer.dilation, layer.kernel_size, strict=True)
        ]
        is_cut = len(pairs) == 2 and [a - b for a, b in zip(*pairs, strict=False)] == lost
        if is_odd and is_cut and set(layer.stride) == {1}:
            variable = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            yield (
                f"If {variable} is to keep the size of its input, pad it: {variable} with "
                "padding='same'."
            )


def _for_each_sample(
    failure: Failure, found: re.Match[str], chosen: Sequence[Operand]
) -> Iterator[str]:
    """Yield the way to multiply each sample by a number that is computed in the expression."""
    for one, other in (chosen, chosen[::-1]):
        if other.value is MISSING and isinstance(one.value, Tensor) and one.value.dim() == 1:
            if int(found["dim"]) > 0:
                name = failure.name_of(one)
                yield f"If {name} has one for each row of the other: {grouped(name)}[:, None]."
            continue
        size = int(found["a" if one is chosen[0] else "b"])
        shape = list(other.value.shape) if isinstance(other.value, Tensor) else []
        is_last = len(shape) > 1 and int(found["dim"]) == len(shape) - 1
        if one.value is MISSING and is_last and size == shape[0] != shape[-1]:
            ones = ", ".join(["None"] * (len(shape) - 1))
            yield (
                f"If it is one number for each sample, say so: {grouped(failure.name_of(one))}[:, "
                f"{ones}]."
            )


def _tables(
    failure: Failure, found: re.Match[str], chosen: Sequence[Operand] | None
) -> Iterator[str]:
    """Yield the ways out where one operand is a table of positions, or a part of one."""
    node = failure.frames[failure.operands[0].depth].expression if failure.operands else None
    frame = failure.frames[failure.operands[0].depth] if failure.operands else None
    sizes, dim = (int(found["a"]), int(found["b"])), int(found["dim"])
    for part in parts_of_expression(node) if frame is not None else ():
        for inner in ast.walk(part):
            is_named = isinstance(inner, ast.Attribute)
            state = failure.names.state(frame.value_of(inner)) if is_named and frame else None
            if state is None or frame is None or isinstance(state.module, _LAYERS):
                continue
            shape, text = list(state.tensor.shape), written(part, frame.file)
            is_square = len(shape) > 1 and shape[-1] == shape[-2]
            yield from _turned_table(shape, text, inner is part, chosen, found)
            num = _dims_of_result(failure, shape)
            is_position = is_square or (dim == num - 2 < 2 and shape[-1] > 1)
            length = next((one for one in sizes if one in shape and one > 1), 0)
            longer = sum(sizes) - length
            if is_position and length and longer > length:
                table = written(inner, frame.file)
                yield (
                    f"If {table} holds positions, there are {length}: give an input of at most "
                    f"{length} there (pictures of the size that the model was made for), or make "
                    f"{table} longer."
                )
            elif is_position and length and inner is part and dim - num + len(shape) >= 0:
                cut = f"{':, ' * (dim - num + len(shape))}:{longer}"
                yield (
                    f"If {text} has a row for each position, take as many of them as there are: "
                    f"{text}[{cut}]."
                )
            return


def _dims_of_result(failure: Failure, shape: Sequence[int]) -> int:
    return max([int(one.value.dim()) for one in failure.tensors] + [len(shape)])


def _turned_table(
    shape: Sequence[int],
    text: str,
    is_whole: bool,
    chosen: Sequence[Operand] | None,
    found: re.Match[str],
) -> Iterator[str]:
    """Yield the way out where the positions stand first in a table, and second in the input."""
    others = [one for one in _tensors(chosen or ()) if one.text != text]
    is_column = len(shape) == 3 and shape[1] == 1 and int(found["dim"]) == 0 and not is_whole
    if len(others) != 1 or others[0].value.dim() != 3 or not is_column:
        return
    batch, length, _ = others[0].value.shape
    if sorted((batch, length)) == sorted((int(found["a"]), int(found["b"]))):
        yield (
            f"If the batch stands first in the input, bring the positions to the second place: "
            f"{grouped(text)}.transpose(0, 1)."
        )
    elif length <= shape[0]:
        table = text.partition("[")[0]
        yield (
            f"If the batch stands first in the input, take as many positions as its second "
            f"dimension has, and bring them there: {table}[:{length}].transpose(0, 1)."
        )


def _calls(failure: Failure, function: str) -> bool:
    """Return whether a function of the program, that the exception passed, calls another one."""
    trees = (one.function for one in failure.frames if one.is_user)
    names = (
        last_name(node.func)
        for tree in trees
        if tree is not None
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    )
    return function in names


def _cut_masks(failure: Failure, found: re.Match[str], a: str, b: str) -> Iterator[str]:
    """Yield the way to cut a mask that covers more than there is."""
    sizes = {a: int(found["a"]), b: int(found["b"])}
    for name, other in ((a, b), (b, a)):
        if "mask" in name and "mask" not in other and sizes[name] > sizes[other] > 1:
            part = f"{':, ' * int(found['dim'])}:{sizes[other]}"
            if _calls(failure, "pad_packed_sequence"):
                yield (
                    "If pad_packed_sequence cut it to the longest of this batch, say the length: "
                    f"total_length={sizes[name]}."
                )
            yield (
                f"If {other} was cut to the first {sizes[other]}, cut the mask as well: "
                f"{grouped(name)}[{part}]."
            )


def _fitting(failure: Failure, a: str, b: str, one: Tensor, other: Tensor) -> Iterator[str]:
    """Yield the ways to make two tensors fit each other."""
    if one.dim() != other.dim():
        (name, low), (whole, high) = sorted(((a, one), (b, other)), key=lambda pair: pair[1].dim())
        if _is_of_a_loss(failure):
            yield from _of_a_loss(name, low, whole, high)
        else:
            hidden = list(_hidden_places(name, low, high))
            hidden = hidden or list(_pictures_of_two_sizes(name, low, whole, high))
            yield from hidden or aligned(name, low.shape, whole, high.shape)
        return
    if _is_product(failure):
        yield from undone_transpose(failure)
        yield from exchanged(b, other.shape, [*one.shape[:-2], one.shape[-1], other.shape[-1]])
        yield from exchanged(a, one.shape, [*other.shape[:-2], one.shape[-2], other.shape[-2]])
        return
    ways = [*turned_channels(a, one.shape, b, other.shape)]
    blocks = [] if _is_of_a_loss(failure) else [*_of_a_block(a, b, one, other)]
    ways = ways or [*exchanged(b, other.shape, one.shape), *blocks]
    if not ways and one.numel() == other.numel():
        reshaped = f"{grouped(b)}.reshape({grouped(a)}.shape)"
        ways = [f"Bring them to one shape, if the order is the same: {reshaped}."]
    yield from ways or maps_of_one_size(a, one.shape, b, other.shape)


def _of_a_loss(name: str, low: Tensor, whole: str, high: Tensor) -> Iterator[str]:
    """Yield the ways out where a target has one number for each row of several."""
    if low.dim() != 1 or high.dim() != 2 or len(low) != len(high):
        return
    known = bounds_of(low)
    is_whole = known is not None and bool((low == low.round()).all())
    if is_whole and known is not None and known[0] >= 0 and known[1] < high.shape[1]:
        yield (
            f"If {name} holds numbers of classes and {whole} a score for each class, the loss of "
            f"classes takes them: F.cross_entropy({whole}, {grouped(name)}.long())."
        )
    yield (
        f"If the model is to give one number for each of {name}, a loss compares element by "
        "element: give it a last layer of one feature, and .squeeze(-1) behind it."
    )


def _pictures_of_two_sizes(name: str, low: Tensor, whole: str, high: Tensor) -> Iterator[str]:
    """Yield how one picture is brought to the size of those of a batch."""
    is_pair = low.dim() == 3 and high.dim() == 4 and low.shape[0] == high.shape[1]
    if is_pair and not broadcasts(low.shape, high.shape):
        height, width = high.shape[2:]
        yield (
            f"If both are pictures, resize one: F.interpolate({name}[None], size=({height}, "
            f"{width}))[0]; or make {whole} for the size of {name}."
        )


def _hidden_places(name: str, low: Tensor, high: Tensor) -> Iterator[str]:
    """Yield where a mask of the places of each sample stands among scores of attention."""
    is_mask = "mask" in name and low.dim() == 2 and high.dim() > 2
    if is_mask and tuple(low.shape) == (high.shape[0], high.shape[-1]):
        middle = ", ".join(["None"] * (high.dim() - 2))
        yield (
            f"If it says which places of each sample are hidden, say where they stand: "
            f"{grouped(name)}[:, {middle}, :]."
        )


def _of_a_block(a: str, b: str, one: Tensor, other: Tensor) -> Iterator[str]:
    """Yield the way to bring the shortcut of a block to the shape of its output."""
    if one.dim() != 4 or other.dim() != 4 or one.shape[0] != other.shape[0]:
        return
    (name, large), small = ((a, one), other) if one.shape[2] > other.shape[2] else ((b, other), one)
    steps = [-(-have // want) for have, want in zip(large.shape[2:], small.shape[2:], strict=True)]
    fits = steps[0] == steps[1] and all(
        (have - 1) // steps[0] + 1 == want
        for have, want in zip(large.shape[2:], small.shape[2:], strict=True)
    )
    is_known = steps[0] > 1 or not (one.is_meta or other.is_meta)
    if fits and is_known and (steps[0] > 1 or large.shape[1] != small.shape[1]):
        stride = f", stride={steps[0]}" if steps[0] > 1 else ""
        yield (
            f"If {name} is the shortcut of a block, bring it to the shape of the other by a "
            f"convolution of its own: nn.Conv2d({large.shape[1]}, {small.shape[1]}, 1{stride})."
        )


def _in_place(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    new = "" if failure.user is None else out_of_place(statement_of(failure.user))
    given, wanted = (
        [int(one) for one in re.findall(r"\d+", found[key])] for key in ("given", "wanted")
    )
    is_repeated = len(given) == len(wanted) and all(
        a in (b, 1) for a, b in zip(given, wanted, strict=True)
    )
    return {"new": new, "is_other": not new, "is_repeated": is_repeated}


SITUATIONS: dict[str, Situation] = {
    "broadcast": _broadcast,
    "broadcast in place": SituationRow(
        "{name} is written into in place and has the shape {given}; the result has {wanted}.",
        (
            "is_repeated",
            "If it is to keep its shape, give what is computed with it a size of 1 there: one "
            "number, such as a mean or a sum, and not one for each of several channels or samples.",
        ),
        ("new", "Make a new tensor of that shape: {new}."),
        ("is_other", "Make a new tensor of that shape: x = x + y for x += y."),
        about="tensors",
        facts=_in_place,
    ),
}

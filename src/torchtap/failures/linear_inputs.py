"""An input of ``nn.Linear`` whose last dimension has another size than the layer takes."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from torchtap.failures.failure import Explanation, Failure
from torchtap.failures.lost_dimensions import batch_taken_out
from torchtap.failures.misfit_sizes import (
    of_a_part_left_out,
    of_a_view_turned,
    of_exchanged_sizes,
)
from torchtap.failures.operands import Operand, bounds_of, has_channels_first
from torchtap.failures.other_names import other_layer
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.rearrangements import reshaped_from, to_the_end, without_the_call
from torchtap.failures.unread_members import uncalled_layer, unread_value

_POOLS = tuple(
    one
    for one in vars(nn.modules.pooling).values()
    if isinstance(one, type) and one.__module__ == nn.modules.pooling.__name__
)
_CONVOLUTIONS = nn.Conv1d | nn.Conv2d | nn.Conv3d


def explained(failure: Failure, module: nn.Linear) -> Explanation:
    """Return the explanation of an ``nn.Linear`` that was given another width than it takes."""
    operand = failure.argument()
    value, wanted, name = operand.value, module.in_features, failure.module_text
    given = value.shape[-1] if isinstance(value, Tensor) and value.dim() else "none"
    if given == wanted:  # Its weight is another one than it was made with.
        return Explanation(
            f"The weight of {name} does not fit: its input has {given} features.",
            (f"Give it a weight of shape [{module.out_features}, {given}].",),
            failure.details(operand),  # The weight itself is put back by now.
        )
    before = reshaped_from(failure, operand)
    if isinstance(value, Tensor) and before == list(value.shape):
        before = None
    from_sizes = f", a reshape of {before}" if before else ""
    return Explanation(
        f"{name} takes {wanted} features in the last dimension of its input, which has "
        f"{given}{from_sizes}.",
        tuple(dict.fromkeys(_ways(failure, module, operand, before))),
        failure.details(operand),
    )


def _ways(
    failure: Failure, module: nn.Linear, operand: Operand, before: Sequence[int] | None
) -> Iterator[str]:
    value, wanted = operand.value, module.in_features
    if not isinstance(value, Tensor) or not value.dim():
        yield f"Give it {wanted} features in the last dimension."
        return
    name, given = failure.name_of(operand), value.shape[-1]
    meant = unread_value(failure, lambda one: one.dim() > 0 and one.shape[-1] == wanted)
    if meant:
        yield meant
    another = other_layer(failure, lambda one: vars(one)["in_features"] == given)
    if another:
        yield another
        yield (
            f"If {name} is to go through this layer too, give {name} {wanted} features where it is "
            "made."
        )
        return
    if before is not None:
        yield from _kept_batch_or_pool(failure, module, value, before)
        if math.prod(before[1:]) == wanted:
            return
    yield from _arranged_otherwise(failure, module, operand, before)
    yield from _of_another_width(failure, module, operand, before)


def _kept_batch_or_pool(
    failure: Failure, module: nn.Linear, value: Tensor, before: Sequence[int]
) -> Iterator[str]:
    """Yield the ways out where the input is a reshape: a pool that was left out, another view."""
    pool = uncalled_layer(failure, _POOLS) if len(before) > 2 else ""
    if pool:
        yield f"{pool} is called nowhere in forward: if it is to shrink the input, call it first."
    yield from _kept_batch(list(value.shape), before, module, _made(failure, module))


def _made(failure: Failure, module: nn.Linear) -> str:
    return f"{failure.names.variable(module)} = nn.Linear"


def _arranged_otherwise(
    failure: Failure, module: nn.Linear, operand: Operand, before: Sequence[int] | None
) -> Iterator[str]:
    """Yield the ways out where the features are there, in another dimension or in other parts."""
    value, wanted, name = operand.value, module.in_features, failure.name_of(operand)
    shape, given = list(value.shape), value.shape[-1]
    if len(shape) == 1 and wanted == 1:
        yield f"If {name} holds {given} samples of one number each: {grouped(name)}.unsqueeze(-1)."
    if len(before or shape) == 3 or (before is None and not _maker(failure, operand)):
        yield from _single(failure, operand, before or shape, wanted)
    turned = list(of_a_view_turned(failure, operand, wanted))
    yield from turned or to_the_end(name, shape, wanted)
    yield from of_a_part_left_out(failure, operand, given, wanted)
    yield from without_the_call(failure, operand, wanted)
    yield from _joined_parts(name, value, wanted)
    if len(shape) == 4 and has_channels_first(failure.origin(operand).module):
        yield (
            "Flatten each picture, if it is to give one row: x.flatten(1), and "
            f"{_made(failure, module)}({math.prod(shape[1:])}, {module.out_features})."
        )
    yield from of_exchanged_sizes(failure, given, wanted)


def _of_another_width(
    failure: Failure, module: nn.Linear, operand: Operand, before: Sequence[int] | None
) -> Iterator[str]:
    """Yield the ways out where one of two widths is not the one that is meant."""
    value, wanted, name = operand.value, module.in_features, failure.name_of(operand)
    given, maker = value.shape[-1], _maker(failure, operand)
    wider = f"{_made(failure, module)}({given}, {module.out_features})"
    is_of_network = maker or value.grad_fn is not None or failure.origin(operand).module is not None
    if not is_of_network:
        yield from _of_data(name, value, wanted)
        yield f"If a width of {given} is right, make the layer take it: {wider}."
        if before is not None and len(before) > 2:
            yield from other_pictures(before, wanted)
        yield (
            f"If the layer's width of {wanted} is right, as of loaded weights, make {name} that "
            "wide, where it is made: by the encoder or the choice of columns that the layer was "
            "made for."
        )
        return
    both = _directions(failure, operand, given)
    if both:
        yield f"Make it take {given}, both directions of {both}: {wider}."
        return
    pictures = list(other_pictures(before, wanted)) if before is not None else []
    yield f"If a width of {given} is right, make the layer take it: {wider}."
    yield from pictures
    if maker and value.dim() == 2:
        yield f"If the layer's width of {wanted} is right, make {maker} return {wanted} features."
    elif not pictures:
        yield (
            f"If the layer's width of {wanted} is right, as of loaded weights, take the encoder, "
            "the size of pictures or the settings that it was made for."
        )


def _kept_batch(
    shape: Sequence[int], before: Sequence[int], module: nn.Linear, made: str
) -> Iterator[str]:
    """Yield the way out where a reshape changed the number of rows."""
    rows = math.prod(shape[:-1])
    flat = math.prod(before[1:])
    if len(before) < 2 or rows == before[0]:
        return
    said = f"The reshape made {rows} of {before[0]} rows: keep those, .flatten(1) in its place"
    if flat == module.in_features:
        yield f"{said}."
    elif shape[-1] != before[-1]:
        yield f"{said}, if {before[0]} is the batch, and {made}({flat}, {module.out_features})."


def _joined_parts(name: str, value: Tensor, wanted: int) -> Iterator[str]:
    """Yield the way out where parts were joined one below the other, and not side by side."""
    node = value.grad_fn
    count = len(node.next_functions) if node is not None else 0
    is_joined = type(node).__name__ == "CatBackward0" and value.dim() > 1
    if is_joined and count > 1 and wanted == count * value.shape[-1]:
        yield (
            f"If the {count} parts of {name} belong to one row, join them side by side: "
            f"torch.cat(..., dim=-1), which gives {wanted}."
        )


def _single(failure: Failure, operand: Operand, shape: Sequence[int], wanted: int) -> Iterator[str]:
    """Yield the way out where a whole input has as many elements as one sample is to have."""
    if len(shape) < 2 or math.prod(shape) != wanted or 1 in shape[:1]:
        return
    kept = batch_taken_out(failure)
    if kept:
        yield kept
        return
    given = _without_batch(failure)
    if given is not None:
        yield f"Give the model a batch of one: {given[0]}.unsqueeze(0), of {given[0]}, {given[1]}."
        return
    maker = failure.origin(operand).module
    where = "x.unsqueeze(0).flatten(1) before the module"
    if isinstance(maker, nn.Flatten):
        where = f"x.unsqueeze(0) before {failure.names.module(maker)}"
    yield f"If {list(shape)} is one sample, and no batch of {shape[0]}, add the batch: {where}."


def _without_batch(failure: Failure) -> tuple[str, str] | None:
    """The input of the program's call that its first convolution takes as one sample, if so."""
    frame = failure.user
    node = None if frame is None else frame.expression
    if frame is None or not isinstance(node, ast.Call) or len(node.args) != 1:
        return None
    value = frame.value_of(node.args[0])
    model = frame.value_of(node.func)
    layers = model.modules() if isinstance(model, nn.Module) else ()
    first = next((one for one in layers if isinstance(one, _CONVOLUTIONS)), None)
    is_one = isinstance(value, Tensor) and first is not None
    if not is_one or first is None or value.dim() != first.weight.dim() - 1:
        return None
    return grouped(written(node.args[0], frame.file)), f"a picture {list(value.shape)}"


def _maker(failure: Failure, operand: Operand) -> str:
    """The layer that made what came in, and whose width is its own choice; empty if none did."""
    module = failure.origin(operand).module
    if not isinstance(module, nn.Linear | nn.Embedding):
        return ""
    return failure.names.module(module)


def _directions(failure: Failure, operand: Operand, given: int) -> str:
    """Return the recurrence of which both directions stand beside each other; empty if none."""
    for _, module in failure.names.modules():
        sizes = vars(module)
        is_of_both = isinstance(module, nn.RNNBase) and sizes["bidirectional"]
        if is_of_both and 2 * sizes["hidden_size"] == given:
            name = failure.names.module(module)
            return name if name in failure.origin(operand).text else ""
    return ""


def _of_data(name: str, value: Tensor, wanted: int) -> Iterator[str]:
    """Yield the ways out of an input that no layer made."""
    given, it = value.shape[-1], grouped(name)
    if value.dim() == 2 and given > wanted > 1 and given % wanted == 0:
        count = given // wanted
        yield (
            f"If each row holds {count} vectors of {wanted}, one behind the other, keep "
            f"them apart: {it}.unflatten(-1, ({count}, {wanted}))."
        )
    span = bounds_of(value)
    is_class = given == 1 and span is not None and span[0] >= 0 and span[1] < wanted
    if is_class and bool((value == value.round()).all()):
        yield (
            f"If it holds numbers of {wanted} classes, give each a place of its own: "
            f"F.one_hot({it}.squeeze(-1).long(), {wanted}).float()."
        )


def other_pictures(before: Sequence[int], wanted: int) -> Iterator[str]:
    """Yield the way out where the width belongs to pictures of another size, or more channels."""
    rest = math.prod(before[2:])
    side = math.isqrt(wanted // before[1]) if wanted % before[1] == 0 else 0
    is_square = len(before) == 4 and side * side * before[1] == wanted
    if is_square and side == 1:
        yield (
            f"If one number for each of the {before[1]} channels is meant, pool to one place: "
            "nn.AdaptiveAvgPool2d(1), or x.mean((2, 3))."
        )
    elif is_square and side != before[-1]:
        yield (
            f"If the pictures have another size than the layer was made for, resize them before "
            f"the model: {wanted} is {before[1]} x {side} x {side}, and here they are "
            f"{' x '.join(map(str, before[1:]))}."
        )
    elif len(before) == 4 and wanted % rest and wanted % before[1] == 0:
        yield (
            f"If the pictures have another size than the layer was made for, resize them before "
            f"the model: {wanted} is {before[1]} channels of {wanted // before[1]} places, and "
            f"here they are {' x '.join(map(str, before[1:]))}."
        )
    elif len(before) == 4 and wanted % rest == 0:
        yield (
            f"If it is to have {wanted // rest} channels, as the layer was made for, give it "
            f"those: {wanted} is {wanted // rest} x {' x '.join(map(str, before[2:]))}."
        )

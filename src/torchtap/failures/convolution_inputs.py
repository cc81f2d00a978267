"""Why a convolution refuses its input: its channels or its dimensions, and the ways out."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator

from torch import Tensor, nn

from torchtap.failures.failure import Explanation, Failure
from torchtap.failures.followed_values import steps_of
from torchtap.failures.lost_dimensions import kept_dimension
from torchtap.failures.misfit_sizes import of_a_part_left_out, of_exchanged_sizes
from torchtap.failures.operands import Operand, has_channels_first, parts_of_expression
from torchtap.failures.other_names import other_layer
from torchtap.failures.parsed_source import grouped
from torchtap.failures.scopes import Expression, scope_of
from torchtap.failures.unread_members import unread_value

_LAST = {3: "NLC", 4: "NHWC", 5: "NDHWC"}
"""How a batch with its channels last is called, of as many dimensions."""


def _maker(failure: Failure, operand: Operand) -> str:
    """The module that made what came in; empty where none did."""
    module = failure.origin(operand).module
    if module is None or not any(True for _ in module.parameters()):
        return ""  # A Flatten or an activation returns what it is given.
    return failure.names.module(module)


def _kernel_of_each(failure: Failure, found: re.Match[str]) -> Explanation | None:
    """Explain a function that was given one kernel of one channel for an input of several."""
    given, weight = int(found["given"]), [int(one) for one in re.findall(r"\d+", found["weight"])]
    is_function = failure.module is None and len(failure.operands) > 1
    if not is_function or weight[1:2] != [1] or given < 2:
        return None
    name, kernel = (failure.name_of(one) for one in failure.operands[:2])
    ones, rest = ", ".join(["-1"] * (len(weight) - 1)), ", 1" * (len(weight) - 2)
    repeated = kernel if weight[0] == given else f"{grouped(kernel)}.expand({given}, {ones})"
    ways = (
        []
        if weight[0] not in (1, given)
        else [
            f"If each channel is filtered by itself: {repeated} as the kernel, with groups={given}."
        ]
    )
    return Explanation(
        f"The kernel {kernel}, {weight}, is for one channel, and {name} has {given}.",
        (*ways, f"If all channels are to be added: {grouped(kernel)}.repeat(1, {given}{rest})."),
        failure.details(),
    )


def explained_channels(failure: Failure, found: re.Match[str]) -> Explanation:
    """Explain a convolution that was given another number of channels than it takes."""
    of_each = _kernel_of_each(failure, found)
    if of_each is not None:
        return of_each
    operand = failure.argument()
    name, wanted, given = failure.module_text, int(found["wanted"]), int(found["given"])
    shape = [int(one) for one in re.findall(r"\d+", found["input"])]
    value = operand.value
    is_single = isinstance(value, Tensor) and value.dim() == len(shape) - 1
    what = f"its input {found['input']} has {given}"
    if isinstance(value, Tensor) and is_single:
        what = f"its input {list(value.shape)}, without a batch, has {given} in dimension 0"
    return Explanation(
        f"{name} takes {wanted} channels, and {what}.",
        tuple(_ways_of_channels(failure, operand, shape, wanted, given)),
        failure.details(operand),
    )


def _ways_of_channels(
    failure: Failure, operand: Operand, shape: list[int], wanted: int, given: int
) -> Iterator[str]:
    """Yield the ways out of a convolution that was given another number of channels."""
    value, module = operand.value, failure.module
    is_single = isinstance(value, Tensor) and value.dim() == len(shape) - 1
    meant = unread_value(failure, lambda one: one.dim() == len(shape) and one.shape[1] == wanted)
    if meant:
        yield meant
    another = other_layer(failure, lambda one: vars(one)["in_channels"] == given)
    if another:
        yield another
        name = failure.name_of(operand)
        yield (
            f"If {name} is to go through this layer too, give {name} {wanted} channels where it is "
            "made."
        )
        return
    is_first = has_channels_first(failure.origin(operand).module)
    yield from [] if is_first else _moved_channels(failure, operand, shape, wanted)
    if isinstance(value, Tensor) and (is_first or shape[-1] != wanted):
        yield from _given_channels(failure, operand, wanted, is_single)
    kind, variable = type(module).__name__, failure.names.variable(module)
    it = f"it take them: {variable} = nn.{kind}({given}, ...)"
    if not hasattr(module, "in_channels"):
        it = f"the weight take them, where it takes {wanted}"
    left_out = list(of_a_part_left_out(failure, operand, given, wanted))
    yield from left_out or of_exchanged_sizes(failure, given, wanted)
    yield f"If {given} is the right number, make {it}."
    is_made = failure.origin(operand).module is not None or getattr(value, "grad_fn", None)
    if is_made and wanted > given and wanted % given == 0 and not left_out:
        yield (
            f"If {wanted // given} maps of {given} channels are to be put together before it: "
            "torch.cat((a, b), 1)."
        )
    made = failure.origin(operand).module
    name = failure.name_of(operand)
    if made is not None:
        yield f"If {wanted} is right, make {failure.names.module(made)} return {wanted}."
    else:
        yield (
            f"If {wanted} is right, as of loaded weights, give {name} that many, where it is made: "
            "by the encoder, the way of reading or the order of dimensions that the model was made "
            "for."
        )


def _moved_channels(
    failure: Failure, operand: Operand, shape: list[int], wanted: int
) -> Iterator[str]:
    """Yield the way out where the channels stand last."""
    value, name = operand.value, grouped(failure.name_of(operand))
    if shape[-1] != wanted or wanted == 1:
        return
    text = f"{name} {failure.origin(operand).text}"
    if re.search(r"\b(permute|transpose|movedim|swapaxes)\(", text):
        yield (
            f"If the {wanted} in the last dimension are the channels, order the dimensions so that "
            "they stand behind the batch, in the permute or transpose that made this order."
        )
        return
    order = _LAST.get(len(shape), "N...C")
    is_single = isinstance(value, Tensor) and value.dim() == len(shape) - 1
    yield (
        f"If the channels stand last ({order[1:]}), put them first: {name}.movedim(-1, 0)."
        if is_single
        else f"If the channels stand last ({order}), put them behind the batch: "
        f"{name}.movedim(-1, 1)."
    )


def _given_channels(
    failure: Failure, operand: Operand, wanted: int, is_single: bool
) -> Iterator[str]:
    """Yield the ways to give an input of the program the channels that a model was made for."""
    value, name = operand.value, grouped(failure.name_of(operand))
    if _maker(failure, operand) or not isinstance(value, Tensor):
        return
    shape, dims = list(value.shape), value.dim() + is_single
    if is_single:
        yield from _without_a_dimension(failure, operand, wanted)
        return
    if shape[1] == 1 and wanted == 3:
        grey = f"{name}.expand(-1, 3, {', '.join(['-1'] * (dims - 2))})"
        if shape[0] == wanted:
            yield f"If it is a batch of 3 grey pictures, give each three channels: {grey}."
            yield (
                f"If it is one picture of {wanted} channels: {name}.transpose(0, 1), or "
                "unsqueeze(0) where unsqueeze(1) stands."
            )
        else:
            yield f"Give grey pictures three channels: {grey}."
    elif shape[1] == 4 and wanted == 3:
        cut = f"{name}[:, :3], or .convert('RGB') of the picture"
        yield f"If the fourth is the alpha channel, leave it out: {cut}."
    elif dims == 4 and shape[1] == 3 and wanted == 1:
        grey = f"{name}.mean(1, keepdim=True), or .convert('L') of the picture"
        yield f"If it is a picture in colours, make it grey: {grey}."
    elif dims == 4 and wanted > 4 and 0 < shape[1] - wanted <= min(2, shape[1] // 4):
        more = shape[1] - wanted
        yield (
            f"If it is put together of pictures, {more} of which may have an alpha channel: "
            ".convert('RGB') of each."
        )
    elif shape[0] == wanted > 1:
        yield "Give it a batch: x.unsqueeze(0), and not x.unsqueeze(1)."


def _without_a_dimension(failure: Failure, operand: Operand, wanted: int) -> Iterator[str]:
    """Yield ways out of a convolution whose input has one dimension less than a batch."""
    value, name = operand.value, grouped(failure.name_of(operand))
    kept = kept_dimension(failure, operand, value.dim() + 1)
    if kept:
        yield kept
        return
    parts = value.shape[0] // wanted
    if parts > 1 and value.shape[0] % wanted == 0 and _is_joined(failure):
        yield (
            f"If torch.cat joined {parts} pictures of {wanted}, give them a batch: torch.stack in "
            "its place."
        )
    if wanted == 1:
        yield (
            f"If it is a batch of {value.shape[0]} with one channel each, give them that: "
            f"{name}.unsqueeze(1)."
        )
        if value.shape[0] == 3:
            yield (
                f"If it is one picture in colours, make it grey: {name}.mean(0, keepdim=True), or "
                ".convert('L') of the picture."
            )


def _is_joined(failure: Failure) -> bool:
    """Return whether the input of a module was put together by torch.cat in its first dimension."""
    frame = failure.user
    scope = None if frame is None else scope_of(frame, failure.frames)
    for node in parts_of_expression(frame.expression) if frame is not None else ():
        one = None if scope is None else Expression(node, scope)
        for step in (one, *steps_of(one)) if one is not None else ():
            match step.node:
                case ast.Call(func=ast.Attribute(attr="cat"), args=[_], keywords=[]):
                    return True
                case ast.Call(func=ast.Attribute(attr="cat"), args=[_, ast.Constant(value=0)]):
                    return True
    return False


def _of_rows(
    failure: Failure, operand: Operand, shape: list[int], channels: int | None, high: int
) -> str:
    """The way out where each row is a vector of channels, or a picture in one row; else empty."""
    if high != 4 or len(shape) != 2 or not channels:
        return ""
    name = grouped(failure.name_of(operand))
    side = math.isqrt(shape[1] // channels)
    maker = failure.origin(operand).module
    if isinstance(maker, nn.Flatten):
        return f"Put {failure.module_text} before {failure.names.module(maker)}, which joins them."
    if shape[1] == channels > 1:
        if isinstance(maker, nn.Linear):
            return (
                f"Make each row a picture of one point before it: nn.Unflatten(1, ({channels}, 1, "
                "1))."
            )
        return f"Make each row a picture of one point: {name}[:, :, None, None]."
    if side > 3 and channels * side * side == shape[1]:
        return (
            f"If each row is a picture of {side} x {side}: {name}.reshape(-1, {channels}, {side}, "
            f"{side})."
        )
    return ""


def explained_dimensions(failure: Failure, found: re.Match[str]) -> Explanation:
    """Explain a convolution that was given another number of dimensions than it takes."""
    operand = failure.argument()
    low, high = int(found["low"]), int(found["high"])
    shape = [int(one) for one in re.findall(r"\d+", found["given"])]
    ways = list(_ways_of_dimensions(failure, operand, shape, low, high))
    return Explanation(
        f"{failure.module_text} takes [batch, channels, ...] in {high} dimensions (or {low} "
        f"without batch), and its input {found['given']} has {len(shape)}.",
        tuple(ways or [f"Give it [batch, channels, ...] in {high} dimensions."]),
        failure.details(operand),
    )


def _ways_of_dimensions(
    failure: Failure, operand: Operand, shape: list[int], low: int, high: int
) -> Iterator[str]:
    """Yield the ways out of a convolution that was given too few or too many dimensions."""
    name, num = grouped(failure.name_of(operand)), len(shape)
    channels = getattr(failure.module, "in_channels", None)
    flat = _of_rows(failure, operand, shape, channels, high)
    kept = kept_dimension(failure, operand, high) if num < low else ""
    if kept:
        yield kept
    elif flat:
        yield flat
    elif num == low - 1 and channels == 1:
        yield (
            f"Add the channel: {name}.unsqueeze(0), or the batch and the channel: "
            f"{name}[None, None]."
        )
    elif num == low - 1 and num > 2 and channels == shape[0]:
        yield f"If it is [channels, ...], use the convolution for it: nn.Conv{num - 1}d."
    elif num == low - 1 and channels:
        sizes = ", ".join(map(str, [channels, *shape]))
        yield f"Give it its {channels} channels in front: an input of [{sizes}], or a batch of it."
    elif num > high:
        yield from _joined_dimensions(name, shape, high, channels)


def _joined_dimensions(
    name: str, shape: list[int], high: int, channels: int | None
) -> Iterator[str]:
    """Yield what dimensions that are too many may be, by where the channels stand."""
    num = len(shape)
    single = [at for at in range(num - high + 1) if shape[at] == 1]
    left = [*shape[: single[0]], *shape[single[0] + 1 :]] if single else []
    # A way that is refused again, for its channels, is none.
    if single and num == high + 1 and channels in (None, left[1]):
        yield (
            f"If dimension {single[0]}, of one, was added besides, as by unsqueeze, take it out: "
            f"{name}.squeeze({single[0]})."
        )
    if num == high + 1 == 5 and channels == shape[1]:
        yield (
            f"If dimension 2 counts {shape[2]} frames, which are taken one by one, join them to "
            f"the batch: {name}.transpose(1, 2).flatten(0, 1)."
        )
    if channels == shape[num - high + 1]:
        count = num - high + 1
        each = " x ".join(map(str, shape[:count]))
        yield (
            f"If the first {count} dimensions, {each}, count the inputs, join them: "
            f"{name}.flatten(0, {count - 1}); the output is taken apart again by .unflatten(0, "
            f"({', '.join(map(str, shape[:count]))}))."
        )
    if channels == shape[1] and high < 5 and num == high + 1 == 5:
        yield "If the kernels are to go over the frames as well: nn.Conv3d."
    elif channels == shape[1] and high < 5:
        yield (
            f"If what stands behind the channels is one row, join it: {name}.flatten({high - 1}); "
            f"if it has {num - 2} dimensions of its own, nn.Conv{num - 2}d takes them."
        )

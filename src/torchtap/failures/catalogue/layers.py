"""Layers that refuse their sizes: convolutions, pools, shuffles, embeddings and activations."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from torchtap.failures.failure import Failure
from torchtap.failures.situation_row import Situation, SituationRow


def _number(failure: Failure, name: str) -> int:
    """The number that a function of PyTorch has under a name; 0 where it has none."""
    value = failure.operand(name).value
    value = value[0] if isinstance(value, tuple) and value else value
    return value if type(value) is int else 0


def _dims(failure: Failure) -> int:
    value = failure.argument().value
    return value.dim() if isinstance(value, Tensor) else 0


def _groups(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    one, other = _number(failure, "in_channels"), _number(failure, "out_channels")
    both = math.gcd(one, other)
    fitting = [number for number in range(1, both + 1) if both % number == 0]
    groups, channels = _number(failure, "groups"), one if found["what"] == "in_channels" else other
    is_near = found["what"] == "out_channels" and channels > groups > 1
    low = channels // groups * groups if is_near else 0
    return {
        "channels": channels,
        "groups": groups,
        "depthwise": str(one) if groups == other != one else "",
        "fitting": ", ".join(map(str, fitting[-8:])),
        "near": f"{low} or {low + groups}" if is_near else "",
        "is_far": not is_near,
    }


_BOUNDS = (("low", "few", "least"), ("high", "many", "most"))
"""The groups of the messages of pools that say the least and the greatest number of dimensions."""


def _pool(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    low, high = (int(next(found[name] for name in names if found[name])) for names in _BOUNDS)
    dims, kind = _dims(failure), type(failure.module).__name__
    is_of_pool = kind[-2:-1].isdigit() and kind[-1:] == "d"
    fitting = f"nn.{kind[:-2]}{dims - 2}d" if is_of_pool and dims in (3, 4, 5) else ""
    return {
        "low": low,
        "high": high,
        "dims": dims or "another number of",
        "fitting": fitting if dims > high else "",
        "is_picture": dims == low - 1,
    }


def _shuffled(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    given = int(found["given"] or found["channels"])
    wanted = int(found["wanted"] or found["groups"])
    return {"channels": given, "factor": wanted, "more": -(-given // wanted) * wanted}


def _unpooled(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    return {"kind": "the size before the pool"}


def _initialised(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value = failure.operand("tensor").value
    state = failure.names.state(value)
    return {
        "it": "a tensor" if state is None else state.name,
        "dims": value.dim() if isinstance(value, Tensor) else "too few",
    }


def _rectified(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value = failure.argument().value
    shape = value.shape if isinstance(value, Tensor) else ()
    return {"is_last": len(shape) > 2 and shape[-1] == int(found["wanted"])}


SITUATIONS: dict[str, Situation] = {
    "channels of groups": SituationRow(
        "A convolution with groups={groups} shares its channels out among them, and {what}, "
        "{channels}, is no multiple of that.",
        (
            "near",
            "If {groups} groups are wanted, make {what} a multiple of {groups}, where it is "
            "computed: {near}.",
        ),
        (
            "depthwise",
            "If each channel is to have kernels of its own, make as many groups: "
            "groups={depthwise}, and out_channels a multiple of it.",
        ),
        "Choose a number of groups that divides in_channels and out_channels: {fitting}.",
        ("is_far", "Or make in_channels and out_channels multiples of {groups}."),
        facts=_groups,
    ),
    "padding of a stride": SituationRow(
        "padding='same' keeps the size, and a stride of more than 1 makes it smaller.",
        "Give the padding as a number, half of the kernel: padding={half}, for a size divided by "
        "the stride and rounded up.",
        "If the size is to stay, leave the stride out.",
        facts=lambda failure, found: {"half": _number(failure, "kernel_size_") // 2},
    ),
    "padding of a pool": SituationRow(
        "A pool of kernel {kernel} may be padded by half of that at most, and was given {pad}: a "
        "window would lie in the padding alone.",
        "Give a padding of at most {most}, or a larger kernel.",
        facts=lambda failure, found: {"most": int(found["kernel"]) // 2},
        about="argument",
    ),
    "dimensions of a pool": SituationRow(
        "The pool takes {low} dimensions, [channels, ...], or {high} with a batch, and its input "
        "has {dims}.",
        ("fitting", "Use the pool of that many dimensions: {fitting}."),
        (
            "is_picture",
            "If it is one map, give it the channel, and take it out behind: pool({name_it}[None])"
            "[0].",
        ),
        (
            "is_picture",
            "If its rows are vectors, as of nn.Flatten or nn.Linear, put the pool before those.",
        ),
        about="argument",
        facts=_pool,
    ),
    "padding of an output": SituationRow(
        "output_padding chooses among the sizes that a stride (or dilation) leaves open, and is "
        "smaller than it; with a stride of 1 there is one size.",
        "Give an output_padding below the stride: none (0) for a stride of 1, 1 at most for 2.",
    ),
    "size of an unpool": SituationRow(
        "No pool of this kernel and stride makes the input of the unpool from a size of {given}: "
        "each is from {low} to {high}.",
        "Give the size that the pool had as its input: output_size=x.size(), kept before the pool.",
    ),
    "blocks of a fold": SituationRow(
        "A fold to {out} puts {wanted} blocks together, and its input has {given} in dimension 2.",
        "Give the output_size, kernel, stride and padding that unfold was given.",
        "Give an input of [batch, channels * kernel elements, {wanted}].",
        about="argument",
    ),
    "no block": SituationRow(
        "A block of {kernel} does not fit into a picture of {given}.",
        "Give a larger picture, a smaller kernel, or padding.",
        about="argument",
    ),
    "channels of a shuffle": SituationRow(
        "{channels} channels cannot be shared out: {module} needs a multiple of {factor}.",
        "Make the layer before it return {more} channels, or another multiple of {factor}.",
        about="argument",
        facts=_shuffled,
    ),
    "size of a shuffle": SituationRow(
        "{module} makes blocks of {wanted}, and the {side} of its input is {given}.",
        "Give a {side} that is a multiple of {wanted}: pad it with F.pad, or cut it.",
        about="argument",
    ),
    "one place in a picture": SituationRow(
        "{module} subtracts the mean of each channel of each sample, and its input {given} has one "
        "value there: only zeros would be left.",
        "Leave it out where the picture has become one point, behind the last pool.",
        "Give a larger input, or fewer pools and strides before it.",
        "Normalise over the channels of a sample: nn.GroupNorm(1, channels).",
        about="argument",
    ),
    "channels of a group norm": SituationRow(
        "{module} has {groups} groups, and the channels of its input {given}, dimension 1, cannot "
        "be shared out among them.",
        "Give it the channels that it was made for, in dimension 1, behind the batch.",
        about="argument",
    ),
    "one value in a group": SituationRow(
        "{module} has one value in each group of its input {given}: nothing is left of it without "
        "its mean.",
        "Make it with fewer groups, nn.GroupNorm(1, channels): each has more channels then.",
        about="argument",
    ),
    "row of the padding": SituationRow(
        "padding_idx={row} is a row of the embedding, and it has the rows 0 to {last}.",
        "Give the padding a row of its own: nn.Embedding({more}, ..., padding_idx={row}).",
        "Or give the number of the row that pads: 0 in most tokenizers.",
        facts=lambda failure, found: {
            "row": _number(failure, "padding_idx"),
            "last": _number(failure, "num_embeddings") - 1,
            "more": _number(failure, "padding_idx") + 1,
        },
    ),
    "bags without beginnings": SituationRow(
        "{module} was given one row of numbers and no offsets, which say where each bag begins.",
        "Give a row for each bag, of one length: an input of [bags, numbers], {name_it}[None] for "
        "one bag.",
        "Or say where the bags begin: offsets=torch.tensor([0, ...]).",
        about="argument",
    ),
    "bags with two beginnings": SituationRow(
        "Each row of a two-dimensional input is a bag, and offsets, which say where bags begin, "
        "were given besides.",
        "Leave the offsets out.",
        about="argument",
    ),
    "half that is odd": SituationRow(
        "GLU multiplies one half of dimension {dim} by the other, and it has {given} elements.",
        "Make the layer before it return an even number: twice what is to come out.",
        "Say which dimension is halved: dim=1 for that of the channels.",
        about="argument",
    ),
    "channels of a prelu": SituationRow(
        "{module} has {wanted} slopes, one for each channel, and its input has {given} channels in "
        "dimension 1.",
        ("is_last", "Put the channels behind the batch: {name_it}.movedim(-1, 1)."),
        "Make it with a slope for each: nn.PReLU({given}), or one for all: nn.PReLU().",
        about="argument",
        facts=_rectified,
    ),
    "fans of a vector": SituationRow(
        "This initialisation is for matrices, and {it} has {dims} dimensions, as a bias or the "
        "weight of a norm.",
        "Leave such out: if p.dim() > 1, and keep what the layer began with, or nn.init.zeros_ for "
        "a bias.",
        facts=_initialised,
    ),
}

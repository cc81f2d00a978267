"""Normalization, recurrence and attention: inputs of the wrong width."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from torchtap.failures.failure import Failure
from torchtap.failures.parsed_source import grouped
from torchtap.failures.situation_row import Situation, SituationRow

_BY_DIMS = {2: "BatchNorm1d", 3: "BatchNorm1d", 4: "BatchNorm2d", 5: "BatchNorm3d"}


def _kind(failure: Failure, found: re.Match[str], otherwise: str = "LSTM") -> Mapping[str, Any]:
    return {"kind": otherwise if failure.module is None else type(failure.module).__name__}


def _layer(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    given, wanted = (re.findall(r"\d+", found[one]) for one in ("given", "wanted"))
    is_earlier = len(wanted) == 1 and wanted[0] in given[:-1]
    return {
        "last": ", ".join(given[-len(wanted) :]),
        "is_earlier": is_earlier,
        "at": given.index(wanted[0]) if is_earlier else "",
    }


def _group(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    return {"channels": [*re.findall(r"\d+", found["given"]), "?", "?"][1]}


def _features(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value = failure.argument().value
    is_last = isinstance(value, Tensor) and value.shape[-1] == int(found["wanted"])
    return {**_kind(failure, found, "BatchNorm1d"), "is_last": is_last}


def _dimensions(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value, given = failure.argument().value, int(found["given"])
    shape = list(value.shape) if isinstance(value, Tensor) else []
    channels = [getattr(failure.module, "num_features", None)]
    fitting = _BY_DIMS.get(given) if shape[1:2] == channels else None
    is_single = shape[:1] == channels and f"{given + 1}D" in found["wanted"]
    return {"fitting": fitting, "is_single": is_single and not fitting}


def _state(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """In which dimension the state differs, and whether the input has its batch elsewhere."""
    wanted, given = (
        [int(one) for one in re.findall(r"\d+", found[key])] for key in ("wanted", "given")
    )
    operand = failure.operand("input")
    value, name = operand.value, failure.name_of(operand)
    is_first = getattr(failure.module, "batch_first", None) is True
    is_known = len(wanted) == len(given) == 3 and isinstance(value, Tensor) and value.dim() == 3
    differs = [at for at in range(3) if wanted[at] != given[at]] if is_known else []
    other = value.shape[1 if is_first else 0] if is_known else None
    is_turned = differs == [1] and other == given[1]
    size = f"{name}.size({0 if is_first else 1})" if name.isidentifier() else wanted[1]
    return {
        "batch": wanted[1] if is_known else "its own",
        "is_turned": is_turned and not is_first,
        "is_turned_too": is_turned and is_first,
        "may_be_first": not is_first and not is_turned and differs == [1],
        "input": grouped(name),
        "is_batch": differs == [1] and not (is_turned and not is_first),
        "made": f"{wanted[0]}, {size}, {wanted[2]}" if is_known else "",
        "is_other": differs != [1],
    }


def _query(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value, given, wanted = failure.operand("query").value, int(found["given"]), int(found["wanted"])
    times = given // wanted if wanted and given % wanted == 0 else 0
    return {
        "is_whole": isinstance(value, Tensor) and not value.is_floating_point(),
        "times": times if times > 1 else 0,
    }


SITUATIONS: dict[str, Situation] = {
    "layer norm": SituationRow(
        "{module} normalizes the last dimensions {wanted}, and its input is {given}.",
        (
            "is_earlier",
            "Move dimension {at} to the end, normalize, and move it back: x.movedim({at}, -1).",
        ),
        "Make it take that width: {variable} = nn.LayerNorm([{last}]).",
        about="argument",
        facts=_layer,
    ),
    "group norm": SituationRow(
        "{module} takes {wanted} channels, and its input {given} has {channels}.",
        "Make it take that many: {variable} = nn.GroupNorm(groups, {channels}).",
        about="argument",
        facts=_group,
    ),
    "features of a batch norm": SituationRow(
        "{module} takes {wanted} channels, and its input has {given} in dimension 1.",
        ("is_last", "Put the channels behind the batch: x.movedim(-1, 1), and back after it."),
        "Make it take that many: {variable} = nn.{kind}({given}).",
        about="argument",
        facts=_features,
    ),
    "one value per channel": SituationRow(
        "{module} is in training mode and its input {given} has one value per channel: a variance "
        "needs two.",
        "Give batches of more than one: drop_last=True of the DataLoader leaves out a last batch "
        "of one.",
        "Call model.eval() before the forward, if it is not to train: it then uses the running "
        "statistics.",
        "Use a norm over the features of one sample: {variable} = nn.LayerNorm or nn.GroupNorm.",
        about="argument",
    ),
    "dimensions of a norm": SituationRow(
        "{module} takes an input of {wanted}, and got one of {given}D.",
        ("fitting", "Use the class for {given} dimensions: {variable} = nn.{fitting}(...)."),
        ("is_single", "Give the model a batch, also of one sample: unsqueeze(0) of its input."),
        "Give the input the dimensions [batch, channels, ...] that it takes.",
        about="argument",
        facts=_dimensions,
    ),
    "input of a recurrence": SituationRow(
        "{module} takes {wanted} features in the last dimension, and its input has {given}.",
        "Make it take that many: {variable} = nn.{kind}({given}, ...).",
        "Check the order: [time, batch, features], or [batch, time, features] with "
        "batch_first=True.",
        about="input",
        facts=_kind,
    ),
    "state of a recurrence": SituationRow(
        "{module} takes a hidden state of shape ({wanted}), [layers * directions, batch, hidden], "
        "for this input, a batch of {batch}, and got ({given}).",
        (
            "is_turned",
            "The batch of the state stands in the other dimension of the input: turn the input, "
            "{input}.transpose(0, 1), or make the module with batch_first=True.",
        ),
        (
            "is_batch",
            "Make the state for the batch that comes, of which the last may be smaller: "
            "torch.zeros({made}).",
        ),
        (
            "is_turned_too",
            "Or turn the input, {input}.transpose(0, 1), if its batch stands in dimension 1.",
        ),
        ("may_be_first", "If the batch stands first in the input, set batch_first=True."),
        ("is_batch", "Or leave such a batch out: drop_last=True of the DataLoader."),
        ("is_other", "Make the state of that shape: torch.zeros({wanted})."),
        "If it is to be zeros, leave the state out.",
        about="input",
        facts=_state,
    ),
    "embedding dimension": SituationRow(
        "{module} takes vectors of {wanted}, and the query has {given} in its last dimension.",
        (
            "is_whole",
            "If it holds the numbers of tokens, look their vectors up first: nn.Embedding(num, "
            "{wanted}).",
        ),
        (
            "times",
            "If it holds {times} vectors of {wanted}, one behind the other, keep them apart: "
            "x.unflatten(-1, ({times}, {wanted})), [batch, {times}, {wanted}] with "
            "batch_first=True.",
        ),
        "Make it take that many: embed_dim={given}, which num_heads must divide.",
        "Project the input first: nn.Linear({given}, {wanted}).",
        about="query",
        facts=_query,
    ),
}

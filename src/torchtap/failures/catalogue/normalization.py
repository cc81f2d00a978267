"""Normalization, recurrence and attention: inputs of the wrong width."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from torchtap.failures.failure import Failure
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.rearrangements import moved
from torchtap.failures.situation_row import Situation, SituationRow

_BY_DIMS = {2: "BatchNorm1d", 3: "BatchNorm1d", 4: "BatchNorm2d", 5: "BatchNorm3d"}


def _kind(failure: Failure, found: re.Match[str], otherwise: str = "LSTM") -> Mapping[str, Any]:
    return {"kind": otherwise if failure.module is None else type(failure.module).__name__}


def _recurrent(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The ways to bring the features to the end, and how the module is made for those given."""
    operand, wanted = failure.operand("input"), int(found["wanted"])
    value, name = operand.value, failure.name_of(operand)
    node = None if failure.user is None else failure.user.expression
    if failure.user is not None and isinstance(node, ast.Call) and node.args:
        # The module makes a batch of one itself: the program's own shape is meant.
        given = failure.user.value_of(node.args[0])
        is_single = (
            isinstance(given, Tensor) and given.dim() == 2 and given.shape[-1:] == value.shape[-1:]
        )
        value, name = (given, written(node.args[0])) if is_single else (value, name)
    shape = list(value.shape) if isinstance(value, Tensor) else []
    ways = list(moved(grouped(name), shape, wanted, 2)) if len(shape) == 3 else []
    if len(shape) == 2 and wanted == 1:
        ways.append(
            f"If each row is a sequence of numbers, give each step its feature: "
            f"{grouped(name)}.unsqueeze(-1)."
        )
    return {**_kind(failure, found), "ways": tuple(ways)}


def _layer(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    given, wanted = ([int(one) for one in re.findall(r"\d+", found[key])] for key in _SIZES)
    name, places = failure.name_of(failure.argument()), range(len(given) - 1)
    at = next((at for at in places if len(wanted) == 1 and given[at] == wanted[0]), None)
    text = f"{grouped(name)}.movedim({at}, -1)"
    return {
        "last": ", ".join(map(str, given[-len(wanted) :])),
        "moved": "" if at is None else text,
        "at": at,
    }


def _group(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    return {"channels": [*re.findall(r"\d+", found["given"]), "?", "?"][1]}


def _features(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value = failure.argument().value
    is_last = isinstance(value, Tensor) and value.shape[-1] == int(found["wanted"])
    is_last = is_last and isinstance(value, Tensor) and value.dim() > 2
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
        "is_first": sorted(wanted) == sorted(given) and given == [*wanted[1::-1], *wanted[2:]],
        "is_of_another": is_known and differs != [1],
        "made": f"{wanted[0]}, {size}, {wanted[2]}" if is_known else "",
        "is_other": differs != [1],
    }


def _query(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value, given, wanted = failure.operand("query").value, int(found["given"]), int(found["wanted"])
    times = given // wanted if wanted and given % wanted == 0 else 0
    shape = _as_given(failure, value)
    name = grouped(failure.name_of(failure.operand("query")))
    return {
        "is_second": len(shape) == 3 and shape[1] == wanted != shape[2],
        "turned": f"{name}.mT",
        "is_whole": isinstance(value, Tensor) and not value.is_floating_point(),
        "times": times if times > 1 else 0,
    }


def _as_given(failure: Failure, query: Any) -> list[int]:
    """Return the shape of a query as the program gave it: inside, its time stands first."""
    shape = list(query.shape) if isinstance(query, Tensor) else []
    is_turned = len(shape) == 3 and getattr(failure.module, "batch_first", False)
    return [shape[1], shape[0], shape[2]] if is_turned else shape


_SIZES = ("given", "wanted")
SITUATIONS: dict[str, Situation] = {
    "layer norm": SituationRow(
        "{module} normalizes the last dimensions {wanted}, and its input is {given}.",
        (
            "moved",
            "If dimension {at} is to be normalized, move it to the end, normalize, and move it "
            "back: {moved}.",
        ),
        "If [{last}] is the width that is meant, make it take that: {variable} = "
        "nn.LayerNorm([{last}]).",
        "If {wanted} is, give an input that ends with it.",
        about="argument",
        facts=_layer,
    ),
    "group norm": SituationRow(
        "{module} takes {wanted} channels, and its input {given} has {channels}.",
        "If {channels} is the right number, make it take that many: {variable} = "
        "nn.GroupNorm(groups, {channels}).",
        "If {wanted} is, give it that many channels, in dimension 1.",
        about="argument",
        facts=_group,
    ),
    "features of a batch norm": SituationRow(
        "{module} takes {wanted} channels, and its input has {given} in dimension 1.",
        (
            "is_last",
            "If the last dimension, of {wanted}, holds the channels, put them behind the batch: "
            "{name_it}.movedim(-1, 1), and back after it.",
        ),
        "If {given} is the right number, make it take that many: {variable} = nn.{kind}({given}).",
        "If {wanted} is, give it that many, from the layer before it.",
        about="argument",
        facts=_features,
    ),
    "one value per channel": SituationRow(
        "{module} is in training mode and its input {given} has one value per channel: a variance "
        "needs two.",
        "If it trains, give batches of more than one: drop_last=True of the DataLoader leaves out "
        "a last batch of one.",
        "If it is not to train now, call model.eval() before: it then uses the running statistics.",
        "If it is to train on one sample, use a norm over its features: {variable} = nn.LayerNorm "
        "or nn.GroupNorm.",
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
        "If a width of {given} is right, make it take that: {variable} = nn.{kind}({given}, ...).",
        "If {wanted} is, bring the input to it, which ends with the features whether batch_first "
        "or not: nn.Linear({given}, {wanted}) of each step, or the layer before it.",
        about="input",
        facts=_recurrent,
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
            "If it begins with zeros, make it for the batch that comes, of which the last may be "
            "smaller: torch.zeros({made}), or leave the state out.",
        ),
        (
            "is_turned_too",
            "Or turn the input, {input}.transpose(0, 1), if its batch stands in dimension 1.",
        ),
        ("may_be_first", "If the batch stands first in the input, set batch_first=True."),
        (
            "is_batch",
            "If it is carried from batch to batch, leave a smaller last batch out: drop_last=True "
            "of the DataLoader.",
        ),
        (
            "is_first",
            "If the batch stands first in the state, turn it: .transpose(0, 1); a state has its "
            "layers first, also with batch_first=True.",
        ),
        (
            "is_other",
            "If it begins with zeros, make it of that shape: torch.zeros({wanted}), or leave the "
            "state out.",
        ),
        (
            "is_of_another",
            "If it is the state of another module, as of an encoder, bring it to that shape: as "
            "many layers (and 2 directions), h[-1:] for the last, and nn.Linear for another width.",
        ),
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
        ("is_second", "If dimension 1 holds the features, put them last: {turned}."),
        "If a width of {given} is right, make it take that: embed_dim={given}, which num_heads "
        "must divide.",
        "If {wanted} is, project the input first: nn.Linear({given}, {wanted}).",
        about="query",
        facts=_query,
    ),
}

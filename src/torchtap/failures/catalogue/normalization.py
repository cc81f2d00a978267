"""Normalization, recurrence and attention: inputs of the wrong width."""

from __future__ import annotations

import re

from torch import Tensor

from torchtap.failures.failure import Explanation, Failure


def _layer(failure: Failure, found: re.Match[str]) -> Explanation:
    given = re.findall(r"\d+", found["given"])
    num = len(re.findall(r"\d+", found["wanted"]))
    last = ", ".join(given[-num:])
    ways = [f"Make it take that width: {failure.variable} = nn.LayerNorm([{last}])."]
    wanted = re.findall(r"\d+", found["wanted"])
    if num == 1 and wanted[0] in given[:-1]:
        at = given.index(wanted[0])
        ways.insert(
            0, f"Move dimension {at} to the end, normalize, and move it back: x.movedim({at}, -1)."
        )
    return Explanation(
        f"{failure.module_text} normalizes the last dimensions {found['wanted']}, and its input is "
        f"{found['given']}.",
        tuple(ways),
        failure.details(failure.argument()),
    )


def _group(failure: Failure, found: re.Match[str]) -> Explanation:
    given = re.findall(r"\d+", found["given"])
    channels = given[1] if len(given) > 1 else "?"
    return Explanation(
        f"{failure.module_text} takes {found['wanted']} channels, and its input {found['given']} "
        f"has {channels}.",
        (f"Make it take that many: {failure.variable} = nn.GroupNorm(groups, {channels}).",),
        failure.details(failure.argument()),
    )


def _features(failure: Failure, found: re.Match[str]) -> Explanation:
    kind = type(failure.module).__name__ if failure.module is not None else "BatchNorm1d"
    operand = failure.argument()
    value = None if operand is None else operand.value
    ways = [f"Make it take that many: {failure.variable} = nn.{kind}({found['given']})."]
    if isinstance(value, Tensor) and value.shape[-1] == int(found["wanted"]):
        ways.insert(0, "Put the channels behind the batch: x.movedim(-1, 1), and back after it.")
    return Explanation(
        f"{failure.module_text} takes {found['wanted']} channels, and its input has "
        f"{found['given']} in dimension 1.",
        tuple(ways),
        failure.details(operand),
    )


def _one_value(failure: Failure, found: re.Match[str]) -> Explanation:
    return Explanation(
        f"{failure.module_text} is in training mode and its input {found['given']} has one value "
        "per channel: a variance needs two.",
        (
            "Give batches of more than one: drop_last=True of the DataLoader leaves out a last "
            "batch of one.",
            "Call model.eval() before the forward, if it is not to train: it then uses the running "
            "statistics.",
            f"Use a norm over the features of one sample: {failure.variable} = nn.LayerNorm or "
            f"nn.GroupNorm.",
        ),
        failure.details(failure.argument()),
    )


def _dimensions(failure: Failure, found: re.Match[str]) -> Explanation:
    operand, given = failure.argument(), int(found["given"])
    value = None if operand is None else operand.value
    channels = getattr(failure.module, "num_features", None)
    shape = list(value.shape) if isinstance(value, Tensor) else []
    ways = ["Give the input the dimensions [batch, channels, ...] that it takes."]
    fitting = {2: "BatchNorm1d", 3: "BatchNorm1d", 4: "BatchNorm2d", 5: "BatchNorm3d"}.get(given)
    if fitting and shape[1:2] == [channels]:
        ways.insert(
            0, f"Use the class for {given} dimensions: {failure.variable} = nn.{fitting}(...)."
        )
    elif shape[:1] == [channels] and f"{given + 1}D" in found["wanted"]:
        ways.insert(0, "Give the model a batch, also of one sample: unsqueeze(0) of its input.")
    return Explanation(
        f"{failure.module_text} takes an input of {found['wanted']}, and got one of {given}D.",
        tuple(ways),
        failure.details(operand),
    )


def _recurrence(failure: Failure, found: re.Match[str]) -> Explanation:
    kind = type(failure.module).__name__ if failure.module is not None else "LSTM"
    return Explanation(
        f"{failure.module_text} takes {found['wanted']} features in the last dimension, and its "
        f"input has {found['given']}.",
        (
            f"Make it take that many: {failure.variable} = nn.{kind}({found['given']}, ...).",
            "Check the order: [time, batch, features], or [batch, time, features] with "
            "batch_first=True.",
        ),
        failure.details(failure.operand("input")),
    )


def _state(failure: Failure, found: re.Match[str]) -> Explanation:
    ways = [
        f"Make the state [layers * directions, batch, hidden]: torch.zeros({found['wanted']}).",
        "Leave the state out: it is zeros then.",
    ]
    if getattr(failure.module, "batch_first", None) is False:
        ways.append("If the batch stands first in the input, set batch_first=True.")
    return Explanation(
        f"{failure.module_text} takes a hidden state of shape ({found['wanted']}) for this input, "
        f"and got ({found['given']}).",
        tuple(ways),
        failure.details(failure.operand("input")),
    )


def _embedding(failure: Failure, found: re.Match[str]) -> Explanation:
    return Explanation(
        f"{failure.module_text} takes vectors of {found['wanted']}, and the query has "
        f"{found['given']} in its last dimension.",
        (
            f"Make it take that many: embed_dim={found['given']}, which num_heads must divide.",
            f"Project the input first: nn.Linear({found['given']}, {found['wanted']}).",
        ),
        failure.details(failure.operand("query")),
    )


SITUATIONS = {
    "layer norm": _layer,
    "group norm": _group,
    "features of a batch norm": _features,
    "one value per channel": _one_value,
    "dimensions of a norm": _dimensions,
    "input of a recurrence": _recurrence,
    "state of a recurrence": _state,
    "embedding dimension": _embedding,
}

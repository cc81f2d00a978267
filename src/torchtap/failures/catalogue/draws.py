"""Ranges, and what random numbers are drawn by."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torchtap.failures.failure import Failure
from torchtap.failures.rearrangements import samples_of_one_batch
from torchtap.failures.situation_row import Situation, SituationRow


def _values(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say which dimension the values of a distribution have besides, or which size differs."""
    given, wanted = (
        [int(one) for one in re.findall(r"\d+", found[key])] for key in ("given", "wanted")
    )
    is_batch = len(given) == len(wanted) and given[1:] == wanted[1:] and bool(given)
    return {
        "is_column": given == [*wanted, 1],
        "is_vector": [*given, 1] == wanted or (len(wanted) == 2 and given == wanted[:1]),
        "batch": samples_of_one_batch((given[0], wanted[0])) if is_batch else "",
    }


SITUATIONS: dict[str, Situation] = {
    "range turned round": SituationRow(
        "A range goes from its start to its end by its step, and the step has the other sign.",
        "Give a step of the other sign, or exchange start and end.",
    ),
    "nothing to choose from": SituationRow(
        "Random integers are from {low} to below {high}, and there are none.",
        "Check what gave {high}: a length of 0, such as of an empty list or data set.",
    ),
    "negative deviation": SituationRow(
        "A standard deviation is not negative.",
        "Make it positive where it comes from: std = F.softplus(x), or (0.5 * logvar).exp() of the "
        "logarithm of a variance.",
        about="tensors",
    ),
    "shape of a distribution": SituationRow(
        "Values of shape {given} do not broadcast to the shape of the distribution, {wanted}.",
        (
            "is_column",
            "If each element has one value, take out the last dimension: .squeeze(-1).",
        ),
        ("is_vector", "If each row has one value, add a last dimension: .unsqueeze(-1)."),
        ("batch", "{batch}"),
        "Make the distribution of the batch that the values belong to.",
        about="tensors",
        facts=_values,
    ),
    "no probabilities": SituationRow(
        "Probabilities are from 0 to 1, and {name} has others.",
        "If they are logits: torch.bernoulli({name_it}.sigmoid()).",
        "If they are to be from 0 to 1 already: {name_it}.clamp(0, 1), against rounding.",
        about="argument",
    ),
    "dimensions of a draw": SituationRow(
        "torch.multinomial takes weights in one or two dimensions, a distribution for "
        "each row, and "
        "{name} is {looks}.",
        "Join the others: torch.multinomial({name_it}.flatten(0, -2), n).unflatten(0, "
        "{name_it}.shape[:-1]).",
        about="argument",
    ),
    "draws by integers": SituationRow(
        "torch.multinomial takes floating point weights, and {name} holds {kept}.",
        "Convert them: {name_it}.float().",
        about="argument",
    ),
}

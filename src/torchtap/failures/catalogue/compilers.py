"""torch.func, torch.compile and TorchScript: code that a transform or compiler does not take."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torchtap.failures.failure import Failure
from torchtap.failures.situation_row import Situation, SituationRow


def _captured(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    is_norm = getattr(failure.module, "track_running_stats", False) is True
    return {"is_norm": is_norm, "is_other": not is_norm}


def _graph_break(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    said = found["why"].strip().rstrip(".")
    is_branch = "data-dependent" in failure.text.lower()
    return {"said": said[:1].lower() + said[1:], "is_branch": is_branch}


def _types(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    said = re.search(
        r"Expected a value of type '(?P<wanted>[^']+)' for argument '(?P<name>\w+)' but instead "
        r"found type '(?P<given>[^']+)'",
        failure.text,
    )
    given = said["given"] if said else ""
    where = f": '{said['name']}' takes {said['wanted']}, and is {given}" if said else ""
    return {"mismatch": where, "is_optional": given.startswith("Optional[")}


SITUATIONS: dict[str, Situation] = {
    "branch in a transform": SituationRow(
        "A function inside of vmap asks one sample for its value, to branch on it or as a number: "
        "vmap runs it once, for all samples together.",
        "Compute both sides and choose by element: torch.where(condition, a, b).",
        "Take that part out of the function: compute it for the whole batch before or behind vmap.",
    ),
    "write in a transform": SituationRow(
        "A function inside of a torch.func transform writes in place ({op}) into a tensor that it "
        "was not given: the derivative would not see it.",
        (
            "is_norm",
            "Let the norms keep no running statistics: "
            "torch.func.replace_all_batch_norm_modules_(model), before the parameters are taken.",
        ),
        (
            "is_other",
            "Return the new value from the function, and take the old one as an argument.",
        ),
        facts=_captured,
    ),
    "graph break": SituationRow(
        "One graph was asked for (fullgraph=True, or an export), and torch.compile cannot take "
        "this line into it: {said}.",
        (
            "is_branch",
            "Compute both sides and choose by element: torch.where(condition, a, b), or "
            "torch.cond(condition, f, g, operands).",
        ),
        "Leave fullgraph=True out: PyTorch then runs that line by itself, between two graphs.",
        "Move the line out of the compiled function.",
        facts=_graph_break,
    ),
    "types of a script": SituationRow(
        "TorchScript has no form of the operation for these types{mismatch}.",
        (
            "is_optional",
            "Assign the attribute to a local variable and compare that with None: TorchScript "
            "knows of variables, and not of attributes, that they are not None behind an if.",
        ),
        "Say the types of arguments and attributes in annotations.",
        facts=_types,
    ),
}

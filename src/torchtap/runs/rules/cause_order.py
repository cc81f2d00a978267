"""Sorts findings by cause before effect: the first is the diagnosis, the others follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchtap.runs.rules.finding import Finding
from torchtap.runs.rules.rule_view import View

_IN_WORDS = (
    "bad_batch",
    "not_in_optimizer",
    "symmetric double_softmax no_zero_grad detached frozen bn_eval underflow stale_low_precision",
    "dropout_high data_scale large_init collapsed dead saturated small_init final_activation",
    "nonfinite vanishing exploding",
    "decay_high",
    "lr_high",
    "updates_stop",
    "steps_too_small",
    "no_activation too_good",
    "loss_rises labels",
)
GROUPS = tuple(frozenset(words.split()) for words in _IN_WORDS)
"""Rules by cause before effect; within one group the earliest module of the forward comes first."""
_RANKS = {rule: rank for rank, group in enumerate(GROUPS) for rule in group}
_OF_USER = len(GROUPS)
_NOT_YET = 1e-2
"""How far rows of a batch miss to be equal where they are not."""
_BLOWS_UP = {"large_init", "exploding", "lr_high", "data_scale"}


def in_order(view: View, found: Sequence[Finding]) -> list[Finding]:
    """Return findings sorted: alarms before notes, causes before effects, earliest module first.

    The first one names those after it as what it explains.
    """
    rules = {one.rule for one in found if one.is_alarm}
    is_climbed = any(one.rule == "loss_rises" and "is_exact" in one.evidence for one in found)

    def key(one: Finding) -> tuple[bool, float, int, int]:
        path = "" if one.path == "." else one.path
        place = view.modules.order.get(path, 0)
        return (
            not one.is_alarm,
            _rank(one, rules, view.first, is_climbed=is_climbed),
            place,
            one.steps[0] if one.steps else 0,
        )

    ordered = sorted(found, key=key)
    if len(ordered) < 2 or not ordered[0].is_alarm:
        return ordered
    explained = tuple(one for one in ordered[1:] if _explains(ordered[0], one))
    return [replace(ordered[0], follows=explained), *ordered[1:]]


def _rank(one: Finding, rules: set[str], first: int, *, is_climbed: bool) -> float:
    """Return the rank of a finding among those of the other rules; consequences come later."""
    is_late = bool(one.steps) and one.steps[0] > first
    is_late |= one.evidence.get("at_start", 1) < one.evidence.get("share", 0) / 2
    after = _follows(one, rules, is_late=is_late)
    if one.rule == "nonfinite":
        return _RANKS["lr_high"] + 0.6 if rules & _BLOWS_UP or is_climbed else 0.5
    if after:
        return _RANKS[after] + 0.5
    if one.rule == "dead" and one.evidence.get("share", 0) > 0.95 and not is_late:
        return _RANKS["data_scale"] - 0.5
    if one.rule in ("loss_rises", "final_activation") and one.evidence.get("is_exact"):
        return _RANKS["symmetric"]
    if one.rule == "updates_stop" and one.evidence.get("optimizer_steps") == 0:
        return _RANKS["not_in_optimizer"]
    return _RANKS.get(one.rule, _OF_USER)


def _follows(one: Finding, rules: set[str], *, is_late: bool) -> str:
    """Return the rule after which a finding comes, where it may follow from what that found."""
    evidence = one.evidence
    is_of_few_steps = evidence.get("at_start", 0) > _NOT_YET or "last" in evidence
    is_weak = evidence.get("update_ratio", 1.0) < 0.6
    causes: dict[str, list[tuple[str, bool]]] = {
        "vanishing": [("lr_high", True), ("steps_too_small", True)],
        "exploding": [("lr_high", True)],
        "dead": [
            ("dropout_high", True),
            ("large_init", is_late),
            ("steps_too_small", evidence.get("share", 1) < 0.95),
            ("labels", is_late),
            ("lr_high", is_late),
        ],
        "data_scale": [("steps_too_small", not evidence.get("is_direct", True))],
        "saturated": [("labels", is_late), ("lr_high", is_late)],
        "frozen": [("steps_too_small", not evidence.get("has_matrix", True))],
        "final_activation": [("lr_high", "mean_square" in evidence)],
        "collapsed": [("decay_high", True), ("lr_high", is_of_few_steps), ("vanishing", True)],
        "stale_low_precision": [("underflow", True)],
        "detached": [("labels", not one.is_alarm)],
        "lr_high": [("no_activation", is_weak), ("labels", is_weak)],
    }
    always = {"frozen", "detached"}
    for rule, may_follow in causes.get(one.rule, ()):
        if may_follow and (rule in rules or one.rule in always):
            return rule
    return "lr_high" if one.rule == "collapsed" and "last" in evidence else ""


def _explains(root: Finding, other: Finding) -> bool:
    """Return whether a finding may follow from another: of a later rank, and of no earlier step."""
    if root.rule == other.rule or not root.steps or not other.steps:
        return False
    return other.steps[0] >= root.steps[0] or other.rule in ("loss_rises", "labels")

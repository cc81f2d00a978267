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
    if one.rule == "nonfinite":
        return _RANKS["lr_high"] + 0.6 if rules & _BLOWS_UP or is_climbed else 0.5
    if one.rule in ("vanishing", "exploding") and "lr_high" in rules:
        return _RANKS["lr_high"] + 0.5
    is_late = bool(one.steps) and one.steps[0] > first
    if one.rule == "dead" and "dropout_high" in rules:
        return _RANKS["dropout_high"] + 0.3
    if one.rule in ("dead", "saturated") and is_late and "labels" in rules:
        return _RANKS["labels"] + 0.5
    if one.rule in ("dead", "saturated") and is_late and "lr_high" in rules:
        return _RANKS["lr_high"] + 0.7
    if one.rule == "dead" and one.evidence.get("share", 0) > 0.95 and not is_late:
        return _RANKS["data_scale"] - 0.5
    if one.rule == "frozen" and not one.evidence.get("has_matrix", True):
        return _RANKS["steps_too_small"] + 0.5
    if one.rule == "final_activation" and "mean_square" in one.evidence and "lr_high" in rules:
        return _RANKS["lr_high"] + 0.5
    if one.rule == "vanishing" and "steps_too_small" in rules:
        return _RANKS["steps_too_small"] + 0.5
    if one.rule == "collapsed" and "decay_high" in rules:
        return _RANKS["decay_high"] + 0.5
    if one.rule == "collapsed" and "lr_high" in rules and one.evidence.get("at_start", 0) > 1e-2:
        return _RANKS["lr_high"] + 0.5
    if one.rule == "collapsed" and "last" in one.evidence:
        return _RANKS["lr_high"] + 0.8
    if one.rule == "collapsed" and "vanishing" in rules:
        return _RANKS["vanishing"] + 0.5
    if one.rule == "stale_low_precision" and "underflow" in rules:
        return _RANKS["underflow"] + 0.5
    if one.rule in ("loss_rises", "final_activation") and one.evidence.get("is_exact"):
        return _RANKS["symmetric"]
    if one.rule == "detached" and not one.is_alarm:
        return _RANKS["labels"] + 0.5
    if one.rule == "updates_stop" and one.evidence.get("optimizer_steps") == 0:
        return _RANKS["not_in_optimizer"]
    if one.rule == "lr_high" and "no_activation" in rules and one.evidence["update_ratio"] < 0.6:
        return _RANKS["no_activation"] + 0.5
    return _RANKS.get(one.rule, _OF_USER)


def _explains(root: Finding, other: Finding) -> bool:
    """Return whether a finding may follow from another: of a later rank, and of no earlier step."""
    if root.rule == other.rule or not root.steps or not other.steps:
        return False
    return other.steps[0] >= root.steps[0] or other.rule in ("loss_rises", "labels")

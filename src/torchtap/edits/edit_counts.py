"""Counts where an edit was asked, and where it replaced what it was given."""

from __future__ import annotations

from collections import Counter

from torchtap.hooks.tap import SiteState

MOST_CALLS = 1 << 16
"""Calls of one site that are counted apart; a program that never steps stays flat in memory."""


class EditCounts:
    """How often an edit was asked, and how often it replaced a value, by site and call.

    Attributes:
        reached: site -> call -> how often the function was asked.
        fired: site -> call -> how often it replaced the tensor.
    """

    def __init__(self) -> None:
        self.reached: dict[SiteState, Counter[int]] = {}
        self.fired: dict[SiteState, Counter[int]] = {}

    def add(self, state: SiteState, call: int, has_replaced: bool) -> None:
        """Count that the function was asked at a site."""
        if state not in self.reached:
            # In this order: another thread that finds the second one needs the first one too.
            self.fired.setdefault(state, Counter())
            self.reached.setdefault(state, Counter())
            state.seen = True
        if call >= MOST_CALLS:
            call = MOST_CALLS
        self.reached[state][call] += 1
        if has_replaced:
            self.fired[state][call] += 1

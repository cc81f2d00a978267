"""The free list of a spill file, against a plain list of places."""

from __future__ import annotations

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from torchtap.saved.free_list import FreeList

LENGTH = 40


class FreeListMachine(RuleBasedStateMachine):
    """A free list against a plain list of places that are free or not."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges = FreeList()
        self.free = [False] * LENGTH
        self.taken = [(0, LENGTH)]

    def free_ranges(self) -> list[tuple[int, int]]:
        found, start = [], None
        for place, is_free in enumerate([*self.free, False]):
            if is_free and start is None:
                start = place
            elif not is_free and start is not None:
                found.append((start, place - start))
                start = None
        return found

    @rule(length=st.integers(1, LENGTH))
    def take(self, length: int) -> None:
        fitting = [found for found in self.free_ranges() if found[1] >= length]
        start = self.ranges.take(length)
        if not fitting:
            assert start is None
            return
        shortest = min(found[1] for found in fitting)
        assert start in [place for place, free in fitting if free == shortest]
        assert all(self.free[start : start + length])
        self.free[start : start + length] = [False] * length
        self.taken.append((start, length))

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        start, length = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        cut = data.draw(st.integers(1, length))
        if cut < length:
            self.taken.append((start + cut, length - cut))
        self.ranges.give(start, cut)
        self.free[start : start + cut] = [True] * cut

    @invariant()
    def neighbours_are_one(self) -> None:
        assert self.ranges._free == self.free_ranges()


FreeListMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_a_free_list_is_a_list_of_places = FreeListMachine.TestCase

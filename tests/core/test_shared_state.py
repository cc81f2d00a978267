"""State that several threads share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from weakref import WeakSet

import pytest

from torchtap.core.shared_state import members, once


class Member:
    """Something that takes weak references."""


def in_threads(*functions: Callable[[], object]) -> None:
    threads = [threading.Thread(target=one) for one in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.usefixtures("switches_often")
def test_members_are_read_while_others_come_and_go() -> None:
    stays, over = [Member() for _ in range(10)], threading.Event()
    weak, raised = WeakSet(stays), list[RuntimeError]()

    def change() -> None:
        while not over.is_set():
            weak.add(one := Member())
            weak.add(Member())  # The collector takes it out.
            weak.discard(one)

    def read() -> None:
        try:
            for _ in range(3000):
                assert len({*members(weak)} & {*stays}) == 10
        except RuntimeError as error:
            raised.append(error)
        over.set()

    in_threads(read, change, change)
    assert raised == []


def test_threads_that_call_at_the_same_moment_run_it_once() -> None:
    begin, runs, results = threading.Barrier(4), list[int](), list[object]()

    @once
    def made() -> object:
        runs.append(1)
        time.sleep(0.01)  # Others come meanwhile.
        return object()

    def ask() -> None:
        begin.wait()
        results.append(made())

    in_threads(*[ask] * 4)
    assert len(runs) == len(set(results)) == 1


def test_what_failed_once_is_tried_again() -> None:
    runs: list[int] = []

    @once
    def made() -> int:
        runs.append(1)
        if len(runs) == 1:
            raise ValueError("not yet")
        return 3

    with pytest.raises(ValueError, match="not yet"):
        made()
    assert made() == made() == 3
    assert len(runs) == 2

"""Threads that do something again and again while a test goes on, for as many rounds as it asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def other_threads(*actions: Callable[[], object]) -> Iterator[Callable[[], None]]:
    """Have each action repeated by a thread of its own, until the block ends.

    A loaded machine may run one thread alone for a long time. What is yielded waits until each
    action was begun and ended since: a test calls it where the others are to come in between.

    Raises:
        BaseException: the first that an action raised, as the block ends.
    """
    done, raised, over = [0] * len(actions), list[BaseException](), threading.Event()

    def work(number: int) -> None:
        try:
            while not over.is_set():
                actions[number]()
                done[number] += 1
        except BaseException as error:  # noqa: BLE001 - raised in the thread of the test
            raised.append(error)

    def wait() -> None:
        wanted = [number + 2 for number in done]  # One of them may be running now.
        while not raised and any(map(int.__lt__, done, wanted)):
            time.sleep(0)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(actions))]
    for thread in threads:
        thread.start()
    try:
        yield wait
    finally:
        over.set()
        for thread in threads:
            thread.join()
    if raised:
        raise raised[0]

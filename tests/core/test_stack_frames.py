"""Python's stacks, of this thread and of all others."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import pytest

from torchtap.core.stack_frames import innermost_frames, is_on_stack

LOOP = """
import gc, threading
from torchtap.core.stack_frames import innermost_frames

class Garbage:
    def __init__(self):
        self.me, self.local = self, threading.local()
        self.local.value = 1

def work():
    while not over.is_set():
        sum(range(100))

over = threading.Event()
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
gc.set_threshold(1)
for _ in range(300):
    Garbage()
    innermost_frames()
over.set()
print("ended")
"""


def test_garbage_with_thread_locals_does_not_make_it_wait_for_ever() -> None:
    """With ``sys._current_frames`` alone Python 3.11 hangs here."""
    done = subprocess.run(
        [sys.executable, "-c", LOOP], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "ended\n"


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_collector_is_left_as_it_was(is_enabled: bool) -> None:
    was_enabled = gc.isenabled()
    try:
        (gc.enable if is_enabled else gc.disable)()
        assert is_on_stack([sys._getframe()], innermost_frames()[threading.get_ident()])
        assert gc.isenabled() is is_enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()


def test_a_frame_is_on_the_stack_until_its_function_returns() -> None:
    mine = sys._getframe()

    def inner() -> bool:
        return is_on_stack([mine], sys._getframe())

    assert inner()
    assert not is_on_stack([mine], None)

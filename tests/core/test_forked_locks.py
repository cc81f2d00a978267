"""Processes that fork while another thread measures, or holds a lock of ours."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

import torchtap as tt
from torchtap.core.shared_state import _locks, members, new_lock
from torchtap.stats.histogram import NUM_BINS
from torchtap.stats.kernels import native
from torchtap.stats.rows import empty_rows

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system forks no process")


def in_child(action: Callable[[], object]) -> None:
    """Run a function in a child process, which is ended where it waits for ever."""
    process = os.fork()
    if not process:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        status = 1
        try:
            action()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(process, 0)[1] == 0, "in the child"


def train(watch: tt.Watch, model: nn.Module) -> None:
    model(torch.ones(2, 3)).sum().backward()
    watch.step()
    assert watch.run.stats("0:output").numel
    with tt.edit(model, "0:output", tt.edits.scale(2.0)), tt.freeze(model, "0"):
        model(torch.ones(2, 3))


@pytest.mark.usefixtures("kernel")
def test_a_child_waits_for_no_thread_of_its_parent() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in locks:
            assert lock.acquire(timeout=60)
        held.set()
        over.wait()
        for lock in locks:
            lock.release()

    with tt.watch(model, "*:*", to=[tt.Memory(), tt.Stats()]) as w:
        train(w, model)
        locks = members(_locks)
        assert len(locks) > 10
        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        in_child(lambda: train(w, model))
        over.set()
        thread.join()
        train(w, model)


def test_a_lock_that_the_forking_thread_holds_stays_its_own() -> None:
    lock = new_lock()
    with lock:
        in_child(lock.release)
    with pytest.raises(RuntimeError, match="un-acquired"):
        lock.release()


@pytest.mark.skipif(not native.available(), reason="no native kernel")
def test_a_child_counts_histograms_while_a_thread_of_its_parent_did() -> None:
    """A fork in the middle of a count would leave the kernel's own lock locked in the child."""
    big, over, counted = torch.randn(1 << 14 | 1), threading.Event(), 0

    def count(tensor: torch.Tensor) -> None:
        native.accumulate(tensor, empty_rows(1)[0], torch.zeros(NUM_BINS, dtype=torch.int64))

    def count_on() -> None:
        nonlocal counted
        while not over.is_set():
            count(big)
            counted += 1

    thread = threading.Thread(target=count_on)
    thread.start()
    try:
        for _ in range(15):
            before = counted
            while counted == before:  # It runs without the interpreter's lock at this moment.
                pass
            in_child(lambda: count(torch.ones(64)))
    finally:
        over.set()
        thread.join()

"""Hooks that are put on and taken off while other threads call the modules."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from torch import nn

import torchtap as tt


@pytest.mark.usefixtures("switches_often")
def test_attaching_and_closing_raise_nothing_in_calls_of_other_threads() -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), torch.ones(1, 3)
    expected = model(x)
    failures: list[Exception] = []
    over = threading.Event()

    def call() -> None:
        while not over.is_set():
            try:
                assert torch.equal(model(x), expected)
            except Exception as error:  # noqa: BLE001 - whatever it is
                failures.append(error)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 3
    while time.monotonic() < until:
        with tt.watch(model, "*:*"):
            pass
        with tt.watch(model, "*:output", to=tt.Stats()):
            pass
        with tt.edit(model, "*:input,output", lambda _: None, missing="ignore"):
            pass
    over.set()
    for thread in threads:
        thread.join()
    assert not failures

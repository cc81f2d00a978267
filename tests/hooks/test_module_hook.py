"""Hooks that are put on and taken off while other threads call the modules."""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import torchtap as tt
from other_threads import other_threads


@pytest.mark.usefixtures("switches_often")
def test_attaching_and_closing_raise_nothing_in_calls_of_other_threads() -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), torch.ones(1, 3)
    expected = model(x)

    def call() -> None:
        assert torch.equal(model(x), expected)

    with other_threads(call, call, call) as wait:
        for _ in range(20):
            with tt.watch(model, "*:*"):
                wait()
            with tt.watch(model, "*:output", to=tt.Stats()):
                wait()
            with tt.edit(model, "*:input,output", lambda _: None, missing="ignore"):
                wait()


@pytest.mark.usefixtures("switches_often")
@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_model_is_copied_while_another_thread_closes_what_is_attached(is_frozen: bool) -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), torch.ones(1, 3)
    model[0].register_forward_hook(lambda *_: None)
    expected, begin = model(x), threading.Barrier(3)

    def copied() -> None:
        begin.wait()
        for _ in range(2):
            twin = copy.deepcopy(model)
            assert torch.equal(twin(x), expected)
            assert all(param.requires_grad for param in twin.parameters())

    with ThreadPoolExecutor(2) as pool:
        for _ in range(150):
            attached = tt.freeze(model) if is_frozen else tt.watch(model, "*:*")
            copies = [pool.submit(copied) for _ in range(2)]
            begin.wait()
            attached.close()
            for one in copies:
                one.result()

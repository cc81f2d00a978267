"""The setting of Dynamo that makes it look at hook tables."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchtap as tt
from torchtap.hooks.dynamo_hooks import DynamoHookSetting


def skips() -> bool:
    return bool(torch._dynamo.config.skip_nnmodule_hook_guards)


def in_a_thread(function: Callable[[], object]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def blocks() -> nn.Module:
    return nn.Sequential(*[nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(3)])


@pytest.mark.usefixtures("fresh_compiler")
def test_a_watch_that_was_never_closed_puts_the_compilers_setting_back() -> None:
    before = torch._dynamo.config.skip_nnmodule_hook_guards
    model = nn.Sequential(nn.Linear(2, 2))
    w = tt.watch(model, "0")
    model(torch.ones(1, 2))
    assert torch._dynamo.config.skip_nnmodule_hook_guards is False
    del w, model
    gc.collect()
    assert torch._dynamo.config.skip_nnmodule_hook_guards is before


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("end", ["closed", "collected"])
def test_a_watch_that_ends_in_another_thread_puts_the_setting_back_in_all(end: str) -> None:
    before, opened = skips(), list[Any]([nn.Sequential(nn.Linear(2, 2))])
    opened.append(tt.watch(opened[0], "0"))
    opened[0](torch.ones(1, 2))
    seen: list[bool] = []
    in_a_thread(lambda: seen.append(skips()))
    assert seen == [False]  # A model may be compiled in any thread.

    def close() -> None:
        if end == "closed":
            opened[1].close()
        opened.clear()
        gc.collect()
        seen.append(skips())

    in_a_thread(close)
    assert skips() is before and seen == [False, before]


@pytest.mark.usefixtures("fresh_compiler")
def test_blocks_that_are_compiled_in_another_thread_are_each_measured() -> None:
    model = blocks()
    for block in model.children():
        block.compile(backend="aot_eager")
    with tt.watch(model, "*.0:output", to=tt.Stats()) as watched:
        in_a_thread(lambda: model(torch.ones(2, 3)))
        watched.step()
        assert [str(site) for site in watched.run.sites] == [f"{n}.0:output" for n in range(3)]


@pytest.mark.usefixtures("fresh_compiler")
def test_a_value_that_the_program_has_set_is_changed_and_put_back() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=True):
        with tt.watch(model, "0"):
            model(torch.ones(1, 2))
            assert not skips()
        assert skips()


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
def test_threads_that_enter_a_model_at_once_ask_once() -> None:
    before, interval = skips(), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(300):
            setting, start = DynamoHookSetting(), threading.Barrier(4)
            threads = [
                threading.Thread(target=lambda held=setting, s=start: (s.wait(), held.hold()))
                for _ in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            setting.release()
            setting.hold()  # By a call that was running when the watch was closed.
            assert skips() is before
    finally:
        sys.setswitchinterval(interval)

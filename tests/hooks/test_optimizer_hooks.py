"""Listeners of optimizers, which come and go while optimizers step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from other_threads import other_threads
from torchtap.hooks.optimizer_hooks import OptimizerHandle, listen_to_optimizers

NONE = (0, 0)


class Listener:
    """Notes what it hears, and does something as a step begins."""

    def __init__(self, heard: list[str], name: str = "", act: Callable[[], object] = str) -> None:
        self.heard, self.name, self.act = heard, name, act

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.heard.append(f"before {self.name}")
        self.act()

    def after_step(self, optimizer: Any) -> None:
        self.heard.append(f"after {self.name}")


def num_hooks() -> tuple[int, int]:
    return len(_global_optimizer_pre_hooks), len(_global_optimizer_post_hooks)


def step() -> None:
    SGD([nn.Parameter(torch.ones(1))], lr=0.1).step()


def test_a_step_goes_on_where_listeners_come_and_go_in_the_middle_of_it() -> None:
    heard: list[str] = []
    handles: list[OptimizerHandle] = []
    late = Listener(heard, "late")

    def act() -> None:
        handles.pop().remove()
        handles.extend(listen_to_optimizers(late))

    listeners = Listener(heard, "first", act), Listener(heard, "off"), Listener(heard, "second")
    own = [handle for one in listeners for handle in listen_to_optimizers(one)]
    handles.append(own.pop(1))
    step()
    assert heard == ["before first", "before second", "after first", "after second", "after late"]
    for handle in [*own, *handles]:
        handle.remove()
    assert num_hooks() == NONE


def test_a_listener_that_is_to_be_last_hears_of_the_end_last() -> None:
    heard: list[str] = []
    first, second = Listener(heard, "first"), Listener(heard, "second")
    handles = [*listen_to_optimizers(first, is_last=True), *listen_to_optimizers(second)]
    step()
    assert heard == ["before first", "before second", "after second", "after first"]
    for handle in handles:
        handle.remove()


def test_a_listener_that_is_dropped_is_heard_of_no_more() -> None:
    heard: list[str] = []
    listen_to_optimizers(Listener(heard))  # No name keeps it: it goes at once.
    step()
    assert heard == []
    assert num_hooks() == NONE


def test_hooks_beside_those_of_others_go_when_the_step_is_over() -> None:
    heard: list[str] = []
    listeners = [Listener(heard)]

    def drop(*_: Any) -> None:
        listeners.clear()

    others = [register_optimizer_step_pre_hook(drop)]
    listen_to_optimizers(listeners[0])
    others.append(register_optimizer_step_pre_hook(lambda *_: None))
    step()  # PyTorch goes on to the hooks behind the one that drops.
    assert heard == []
    listen_to_optimizers(Listener(heard))
    assert num_hooks() == (2, 0)
    for handle in others:
        handle.remove()


@pytest.mark.usefixtures("switches_often")
def test_threads_step_while_others_begin_and_end_to_listen() -> None:
    heard = list[str]()
    listener = Listener(heard)
    handles = listen_to_optimizers(listener)
    optimizer = SGD([nn.Parameter(torch.ones(1))], lr=0.1)

    def listen() -> None:
        own = Listener([])
        for handle in listen_to_optimizers(own):
            handle.remove()
        listen_to_optimizers(Listener([]))

    with other_threads(listen, listen) as wait:
        for _ in range(30):
            for _ in range(10):
                optimizer.step()
            wait()
    handles[0].remove()
    assert len(heard) == 600
    assert num_hooks() == NONE


@pytest.mark.parametrize("left", [0, 1])
def test_an_interrupt_while_the_hooks_are_removed_leaves_none_behind(
    monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    remove, heard = RemovableHandle.remove, list[str]()
    removed: list[RemovableHandle] = []

    def interrupted(handle: RemovableHandle) -> None:
        if len(removed) == left:
            raise KeyboardInterrupt
        removed.append(handle)
        remove(handle)

    first, listener = Listener([]), Listener(heard)
    handles = listen_to_optimizers(first)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(RemovableHandle, "remove", interrupted)
        handles[0].remove()
    handles = listen_to_optimizers(listener)
    step()
    handles[0].remove()
    assert heard == ["before ", "after "]
    assert num_hooks() == NONE

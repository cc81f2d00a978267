"""One class puts hooks on modules and knows which calls run, whatever they are left by."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
import torch
from torch import nn

from torchtap.hooks.call_follower import CallFollower, EntryHook, FollowedCall
from torchtap.hooks.module_hook import TapHook
from torchtap.hooks.tap import Tap
from torchtap.testing import Net

Calls = CallFollower[FollowedCall]


class Enter(TapHook[Calls]):
    def __call__(self, module: nn.Module, args: Any) -> None:
        self.owner.running.stack.append(FollowedCall(self.tap, sys._getframe(1)))


class Leave(TapHook[Calls]):
    always_call = True

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        self.owner.running.leave(self.tap)


class Raises(nn.Module):
    """Raises what it is given."""

    def forward(self, error: BaseException | None) -> None:
        if error is not None:
            raise error


def followed(model: nn.Module) -> Calls:
    follower = Calls()
    for path, module in model.named_modules():
        tap = Tap(path, {})
        follower.put_on(module, pre_hook=Enter(follower, tap), post_hook=Leave(follower, tap))
    return follower


def paths(follower: Calls) -> list[str]:
    return [call.tap.path for call in follower.running.stack]


def test_calls_are_known_while_they_run_in_their_thread() -> None:
    seen: dict[str, list[str]] = {}

    def look(module: nn.Module, _: torch.Tensor) -> None:
        seen["own"] = paths(follower)
        other = threading.Thread(target=lambda: seen.update(other=paths(follower)))
        other.start()
        other.join()

    model = Net(lambda m, x: m.a(x), a=Net(look))
    follower = followed(model)
    model(torch.ones(1))
    assert seen == {"own": ["", "a"], "other": []}
    assert not paths(follower)


def test_an_exception_leaves_no_call_and_an_interrupt_leaves_those_that_are_over() -> None:
    model = nn.Sequential(Raises())
    follower = followed(model)
    with pytest.raises(ValueError, match="no"):
        model(ValueError("no"))
    assert not paths(follower)
    with pytest.raises(KeyboardInterrupt):
        model(KeyboardInterrupt())
    assert paths(follower) == ["", "0"]
    assert follower.running.is_stale()
    assert all(call.is_over() for call in follower.running.stack)
    outer = follower.running.stack[0].tap
    assert [call.tap.path for call in follower.running.leave(outer)] == ["0", ""]


def test_release_takes_off_all_and_release_entries_only_the_pre_hooks() -> None:
    linear = nn.Linear(2, 2)
    follower = followed(linear)
    entered: list[nn.Module] = []
    follower.put_on(linear, pre_hook=EntryHook(entered.append))
    linear(torch.ones(1, 2))
    assert entered == [linear]
    follower.remove_pre_hooks()
    assert (len(linear._forward_pre_hooks), len(linear._forward_hooks)) == (0, 1)
    follower.release()
    assert not linear._forward_hooks


def test_a_script_module_takes_no_hooks() -> None:
    scripted: Any = torch.jit.script(nn.Linear(2, 2))
    assert not Calls().put_on(scripted, pre_hook=EntryHook(print))

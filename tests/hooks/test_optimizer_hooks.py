"""Hooks of listeners that are gone, removed by several threads at once."""

from __future__ import annotations

from typing import Any, SupportsIndex

import pytest
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils.hooks import RemovableHandle

from torchtap.hooks import optimizer_hooks


class _Listener:
    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        return None

    def after_step(self, optimizer: Any) -> None:
        return None


class _EmptiedInBetween(list[RemovableHandle]):
    """Another thread, or the collector, removes what is listed just before this one does."""

    def pop(self, index: SupportsIndex = -1) -> RemovableHandle:
        while self:
            super().pop().remove()
        return super().pop(index)


def test_hooks_that_another_thread_removes_in_between_are_gone_and_nothing_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raised: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", raised.append)
    monkeypatch.setattr(optimizer_hooks, "_gone", _EmptiedInBetween())
    before = len(_global_optimizer_pre_hooks), len(_global_optimizer_post_hooks)

    optimizer_hooks.listen_to_optimizers(_Listener())  # No name keeps it: it goes at once.

    assert raised == []
    assert (len(_global_optimizer_pre_hooks), len(_global_optimizer_post_hooks)) == before

"""Keeps watches and guards of a model out while a function of torchtap runs it for itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Protocol
from weakref import WeakSet

from torch import nn

from torchtap.capture.watch_handle import watches_of
from torchtap.core.module_paths import unwrapped
from torchtap.core.shared_state import members


class Observer(Protocol):
    """Notes the calls of a model, and can leave some out."""

    @property
    def model(self) -> nn.Module:
        """Return the model, wrappers looked through."""

    def pause(self) -> AbstractContextManager[object]:
        """Take note of nothing inside of a context."""


_observers: WeakSet[Observer] = WeakSet()


def note_observer(observer: Observer) -> None:
    """Have an observer paused too; it is held weakly."""
    _observers.add(observer)


def forget_observer(observer: Observer) -> None:
    """It is closed."""
    _observers.discard(observer)


@contextmanager
def unobserved(model: nn.Module) -> Iterator[None]:
    """Inside, no watch and no guard of a model takes note of what it does."""
    root = unwrapped(model)
    with ExitStack() as pauses:
        for watch in watches_of(model):
            pauses.enter_context(watch.pause())
        for one in [observer for observer in members(_observers) if observer.model is root]:
            pauses.enter_context(one.pause())
        yield

"""Hears of the training of one model: where its forwards begin, and when it was updated."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from torchtap.core.distributed import sharded_parameters
from torchtap.core.module_paths import mode_of
from torchtap.core.torch_private import current_task
from torchtap.hooks.call_follower import CallFollower, EntryHook
from torchtap.hooks.optimizer_hooks import listen_to_optimizers


class ModelSteps:
    """Calls back when a training forward of a model begins, and after each update of it.

    Args:
        model: which, kept weakly.
        begins: called before a forward with gradients, in training mode, outside of any backward.
        updated: called after a step of an optimizer that holds a parameter of the model.
    """

    def __init__(
        self, model: nn.Module, *, begins: Callable[[], None], updated: Callable[[], None]
    ) -> None:
        self._model = weakref.ref(model)
        self._begins, self._updated = begins, updated
        self._calls: CallFollower[Any] = CallFollower()

    def attach(self, *others: Any) -> None:
        """Put the hooks on.

        Args:
            *others: further handles, which :meth:`release` removes too.
        """
        model = self._model()
        assert model is not None  # It was just given.
        self._calls.put_on(model, pre_hook=EntryHook(self._enter))
        self._calls.hold([*others, *listen_to_optimizers(self)])

    def release(self) -> None:
        """Take them off."""
        self._calls.release()

    def _enter(self, module: nn.Module) -> None:
        if current_task() == -1 and torch.is_grad_enabled() and mode_of(module) is not False:
            self._begins()

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """An optimizer begins its step."""

    def after_step(self, optimizer: Optimizer) -> None:
        """An optimizer made its step."""
        if self._holds_any(one for group in optimizer.param_groups for one in group["params"]):
            self._updated()

    def _holds_any(self, params: Iterable[Any]) -> bool:
        model = self._model()
        shards = sharded_parameters()
        own = {
            id(shards.get(id(one), one)) for one in (() if model is None else model.parameters())
        }
        return any(id(param) in own for param in params)

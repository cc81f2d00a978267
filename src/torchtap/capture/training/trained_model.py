"""A model that a program trains, and the hooks that tell of its forwards and backwards."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.capture.training.optimizer_cycle import ModelState
from torchtap.capture.watch_handle import Watch
from torchtap.core.module_paths import modules_of, unwrapped
from torchtap.hooks.call_follower import CallFollower, EntryHook
from torchtap.hooks.calls import outermost_parts
from torchtap.hooks.dynamo_hooks import shared_key
from torchtap.hooks.module_hook import keep_dynamo_out

Entered = Callable[["TrainedModel", nn.Module], None]


class TrainedModel:
    """One model, without keeping it alive.

    Args:
        root: the model, wrappers taken off.
        variable: the name of a variable that holds it, or nothing.
        is_certain: whether an optimizer trains it. Else it was only seen to run.

    Attributes:
        kind: its class.
        watch: of it, once there is one.
        state: where it stands in the running step.
        num_steps: how many of its steps have ended.
        first_step: the number of the first.
        has_trained: whether a training forward, or a step of an optimizer, was seen.
        was_in_training_mode: whether any of its forwards was. A model may be trained in eval mode.
        params: the ids of its parameters.
    """

    def __init__(self, root: nn.Module, variable: str, *, is_certain: bool) -> None:
        self.kind = type(root).__name__
        self.variable = variable
        self.is_certain = is_certain
        # Weakly: a program that drops its model must be able to free it in the middle of the run.
        self.root = weakref.ref(root)
        # Ids and no references: torch.utils.swap_tensors refuses a parameter that anything refers
        # to, even weakly.
        self.params = {id(param) for param in root.parameters()}
        self.watch: Watch | None = None
        self.state = ModelState()
        self.num_steps = self.first_step = 0
        self.has_trained = self.was_in_training_mode = self.is_paused = False
        self._entry = EntryHook(lambda module: None)
        self._calls, self._calls_of_parts = CallFollower[Any](), CallFollower[Any]()
        self._handles_of_params: list[Any] = []

    def holds(self, module: nn.Module) -> bool:
        """Return whether a module is the model, or a part of it."""
        root = self.root()
        return root is not None and any(one is module for one in root.modules())

    def listen(self, entered: Entered) -> None:
        """Call a function with each forward of the model, or of a part that is called alone."""
        root = self.root()
        assert root is not None
        modules, _ = modules_of(root)
        key = shared_key(modules.values())
        self._entry = EntryHook(partial(entered, self))
        for path in ("", *outermost_parts(modules)):
            # Apart from the others, since a model that is called as a whole needs none on its
            # parts.
            calls = self._calls_of_parts if path else self._calls
            calls.put_on(modules[path], pre_hook=self._entry, key=key)

    def listen_at(self, wrapper: nn.Module) -> None:
        """Hear of the calls of a wrapper too: what it compiles calls no hooks of the model."""
        self._calls.put_on(wrapper, pre_hook=self._entry)

    def listen_to_backwards(self) -> None:
        """Note in ``state`` that a backward reached a parameter."""
        root = self.root()
        hook = _backward_hook(self.state)
        for param in () if root is None else root.parameters():
            # FSDP puts views of its flat parameter in the place of leaves, and hooks on those
            # refuse.
            if param.requires_grad and param.is_leaf:
                made = param.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                self._handles_of_params.append(made)

    def ignore_parts(self) -> None:
        """The model itself is called, so nothing is to be known of its parts."""
        self._calls_of_parts.release()

    def ignore_backwards(self) -> None:
        """An optimizer tells of its steps."""
        while self._handles_of_params:
            self._handles_of_params.pop().remove()

    def release(self) -> None:
        """Take all hooks off, but not those of the watch."""
        self._calls.release()
        self._calls_of_parts.release()
        self.ignore_backwards()

    def trains(self, module: nn.Module) -> bool | None:
        """Return whether a forward that begins is of the training; ``None`` if that is open.

        Args:
            module: the model, or the part of it that is called alone. A part that runs without
                gradients may be frozen, and belong to the training all the same.
        """
        root = self.root()
        mode = bool(getattr(root, "training", True))
        if not torch.is_grad_enabled():
            return None if mode and self.is_part(module) else False
        # A model that was never in training mode may be trained in eval mode, as for fine-tuning
        # with frozen batch norms.
        self.was_in_training_mode = self.was_in_training_mode or mode
        return mode or not self.was_in_training_mode

    def is_part(self, module: nn.Module) -> bool:
        """Return whether a module is neither the model nor a wrapper of it."""
        return unwrapped(module) is not self.root()

    def pause(self) -> None:
        """Record nothing: an evaluation before the training."""
        if not self.is_paused and self.watch is not None:
            self.is_paused = True
            self.watch.pause()

    def resume(self) -> None:
        """The training has begun."""
        self.has_trained = True
        if self.is_paused and self.watch is not None:
            self.is_paused = False
            self.watch.resume()

    def close(self) -> None:
        """Take everything off. All that was recorded stays readable.

        Raises:
            Exception: what the watch still had to say.
        """
        self.release()
        if self.watch is not None:
            self.watch.close()


def _backward_hook(state: ModelState) -> Callable[[Tensor], None]:
    def hook(param: Tensor) -> None:
        state.has_backward = True

    keep_dynamo_out(hook)
    return hook

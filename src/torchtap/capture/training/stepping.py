"""Watches what a program trains, without a word of it in the program.

PyTorch is told to call back when an optimizer is made and when it steps. The models are those that
hold the optimizers' parameters; each is watched from then on, before it first runs. Hooks on all
modules of the process are there only until a model is found, and never while one is compiled: the
compiler would trace them.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_pre_hook,
    register_module_module_registration_hook,
)
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from torchtap.capture.training.live_models import models_holding
from torchtap.capture.training.optimizer_cycle import ModelState, OptimizerCycle, OptimizerState
from torchtap.capture.training.scalers import Scalers
from torchtap.capture.training.trained_model import TrainedModel
from torchtap.capture.watch import watch
from torchtap.core.after_import import after_import
from torchtap.core.blame import is_own_fault, own_fault
from torchtap.core.modules import unwrapped
from torchtap.core.record import Sink
from torchtap.core.torch_private import (
    before_compiling,
    current_task,
    tracing_state,
    transform_running,
)
from torchtap.hooks.module_hook import keep_dynamo_out
from torchtap.hooks.new_optimizers import listen_to_new_optimizers
from torchtap.hooks.optimizer_hooks import has_closure
from torchtap.stats.sink import Stats

MOST_MODELS = 16
"""A search over settings may train hundreds of models, one after the other."""
_SEARCH_SECONDS, _SEARCH_SHARE = 1.0, 0.01
"""The most time that looking for models in vain takes: so much, and a share of all."""


class Keeper(Protocol):
    """Keeps what is recorded of each model."""

    def sinks(self, model: TrainedModel) -> list[Sink]:
        """The sinks of a model that is to be watched."""

    def begin(self, model: TrainedModel) -> int:
        """The training of a model begins; returns the number of its first step."""

    def drop(self, model: TrainedModel) -> None:
        """A model only ran, and another one is trained: nothing of it is to be kept."""


class _Measured:
    """Measures each model, and keeps the statistics in memory."""

    def sinks(self, model: TrainedModel) -> list[Sink]:
        """``tt.Stats``; means over samples would take a copy of each output."""
        return [Stats(sample_mean=())]

    def begin(self, model: TrainedModel) -> int:
        """Steps count from 0."""
        return 0

    def drop(self, model: TrainedModel) -> None:
        """They are gone with the watch."""


class Stepping:
    """Finds what a program trains, watches it, and closes its steps.

    What goes wrong in here ends the watching, and never the training; ``faults`` says what.

    Args:
        where: what to watch of each model.
        every: record every so many steps.
        backwards: end a step after so many backwards, instead of by the optimizers.
        keeper: gives the sinks of each model; by default ``tt.Stats``.
        ended: called after each step.
        faulty: called with what went wrong, at once: a training may take days.

    Attributes:
        models: that are watched.
        faults: what went wrong.
        num_left_out: optimizers whose models are not watched, since there were too many.
        num_optimizers: how many optimizers were seen.
    """

    def __init__(
        self,
        where: Sequence[str],
        *,
        every: int = 1,
        backwards: int | None = None,
        keeper: Keeper | None = None,
        ended: Callable[[], None] = lambda: None,
        faulty: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.models: list[TrainedModel] = []
        self.faults: list[str] = []
        self.num_left_out = self.num_optimizers = 0
        self._where = list(where)
        self._keeper: Keeper = _Measured() if keeper is None else keeper
        self._every = every
        self._ended = ended
        self._faulty = faulty
        self._counts_backwards = backwards is not None
        self._cycle = OptimizerCycle(self._end_step, backwards=backwards)
        self._optimizers: dict[int, tuple[weakref.ref[Optimizer], OptimizerState]] = {}
        self._scalers = Scalers()
        self._lock = threading.RLock()
        self._is_on = False
        self._off: list[Callable[[], None]] = []
        self._off_forwards: list[Callable[[], None]] = []
        self._passed: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._began = time.perf_counter()
        self._searched = 0.0

    # ------------------------------------------------------------------ on, off

    def attach(self) -> None:
        """Begin to listen to PyTorch."""
        self._is_on = True
        self._off = [
            listen_to_new_optimizers(self._made),
            register_module_module_registration_hook(self._registered).remove,
            register_optimizer_step_pre_hook(self._before_step).remove,
            register_optimizer_step_post_hook(self._after_step).remove,
        ]
        self._off_forwards = [register_module_forward_pre_hook(self._first_forward).remove]
        self._off_forwards.append(after_import("torch._dynamo", self._dynamo_came))

    def _dynamo_came(self) -> None:
        if self._off_forwards:  # Not taken off with them: Dynamo is going through its callbacks.
            self._off.insert(0, before_compiling(self._ignore_forwards))

    def _listen_last(self) -> None:
        """A step may end with an optimizer's, but not before the watches have seen its update."""
        self._off.pop()()
        self._off.append(register_optimizer_step_post_hook(self._after_step).remove)

    def _ignore_forwards(self) -> None:
        """Take the hooks on all modules off."""
        while self._off_forwards:
            self._off_forwards.pop()()

    def detach(self) -> None:
        """Take everything off. What was recorded stays readable."""
        self._is_on = False
        self._ignore_forwards()
        while self._off:
            self._off.pop()()
        for model in self.models:
            try:
                model.close()
            except Exception as error:  # noqa: BLE001 - told at the end, beside what was recorded
                self._fault(error)

    def abandon(self) -> None:
        """Record nothing more. In the child of a fork, whose training is not the parent's."""
        self._is_on = False
        for model in self.models:
            model.pause()

    def _fault(self, error: Exception) -> None:
        text = " ".join(str(error).split())
        said = f"{type(error).__name__}: {text}" if text else type(error).__name__
        said = own_fault(error) if is_own_fault(error) else said
        if said not in self.faults:
            self.faults.append(said)
            self._faulty(said)

    def _guarded(self, action: Callable[..., object], *args: Any) -> None:
        """Run a part of ours inside the program, which must not hear of what goes wrong in it."""
        if not self._is_on:
            return
        with self._lock:
            try:
                action(*args)
            except Exception as error:  # noqa: BLE001 - told at the end; the training goes on
                self._fault(error)
                self.abandon()

    # ------------------------------------------------------------------ optimizers

    def _made(self, optimizer: Optimizer) -> None:
        self._guarded(self._learn, optimizer)

    def _learn(self, optimizer: Optimizer) -> OptimizerState:
        """Know an optimizer, and watch the models that it trains."""
        self._forget_gone()
        ref = weakref.ref(optimizer)
        state = OptimizerState(lambda: _params_of(ref()), lambda: _has_gradients(ref()))
        self._optimizers[id(optimizer)] = ref, state
        self.num_optimizers += 1
        self._cycle.optimizers.append(state)
        params = state.params()
        known: set[int] = set().union(*(model.params for model in self.models))
        if not params <= known and self._may_search():
            for found in self._search(params - known):
                self._watch(found, is_certain=True)
        for model in self.models:
            if params & model.params:
                model.is_certain = True
                self._join(state, model)
        if state.models:
            self._ignore_forwards()
            self._drop_uncertain()
        return state

    def _join(self, state: OptimizerState, model: TrainedModel) -> None:
        state.models.append(model.state)
        model.state.optimizers.append(state)
        if not self._counts_backwards:
            model.ignore_backwards()

    def _forget_gone(self) -> None:
        """Optimizers that are no more, and whose number another one may have."""
        gone = [key for key, (ref, _) in self._optimizers.items() if ref() is None]
        for key in gone:
            _, state = self._optimizers[key]
            if state.has_stepped:  # In the step that is running.
                continue
            del self._optimizers[key]
            self._cycle.optimizers.remove(state)
            for model in state.models:
                model.optimizers.remove(state)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Mapping[str, Any]) -> None:
        self._guarded(self._begin_step_of, optimizer, has_closure(args, kwargs))

    def _begin_step_of(self, optimizer: Optimizer, has_closure: bool) -> None:
        state = self._state_of(optimizer) or self._learn(optimizer)
        for model in self.models:
            if model.state in state.models:
                self._begin(model)
                assert model.watch is not None
                model.watch.log(**_rates(optimizer, self._place_of(state, model)))
        self._cycle.begin(state, has_closure=has_closure)

    def _place_of(self, state: OptimizerState, model: TrainedModel) -> str:
        """Return a suffix that tells optimizers of one model apart; empty for the only one."""
        several = model.state.optimizers
        return f".{several.index(state)}" if len(several) > 1 else ""

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        state = self._state_of(optimizer)
        if state is not None:
            self._guarded(self._cycle.finish, state)

    def _state_of(self, optimizer: Optimizer) -> OptimizerState | None:
        ref, state = self._optimizers.get(id(optimizer), (None, None))
        return state if ref is not None and ref() is optimizer else None

    # ------------------------------------------------------------------ models

    def _may_search(self) -> bool:
        """Programs that optimize their inputs make an optimizer for each, which has no model."""
        if len(self.models) >= MOST_MODELS:
            self.num_left_out += 1
            return False
        passed = time.perf_counter() - self._began
        return self._searched < _SEARCH_SECONDS + _SEARCH_SHARE * passed

    def _search(self, params: set[int]) -> list[nn.Module]:
        began = time.perf_counter()
        found = models_holding(params)
        if not found:
            self._searched += time.perf_counter() - began
        return found

    def _watch(self, found: nn.Module, *, is_certain: bool) -> TrainedModel | None:
        """Watch a model, unless it is watched already, or cannot be."""
        root = unwrapped(found)
        if any(model.root() is root for model in self.models):
            return None
        if len(self.models) >= MOST_MODELS:
            self.num_left_out += 1
            return None
        model = TrainedModel(root, _variable_of((root, found)), is_certain=is_certain)
        model.listen(self._entered)  # Before the watch does: this closes the step before.
        if found is not root:
            model.listen_at(found)
        try:
            sinks = self._keeper.sinks(model)
            model.watch = watch(root, self._where, to=sinks, every=self._every)
        except Exception as error:  # noqa: BLE001 - told at the end; the training goes on
            model.release()
            self._fault(error)
            return None
        if self._counts_backwards or not is_certain:
            model.listen_to_backwards()
        self.models.append(model)
        self._cycle.models.append(model.state)
        self._listen_last()
        return model

    def _drop_uncertain(self) -> None:
        """Forget models that only ran, now that an optimizer has told which are trained."""
        for model in [one for one in self.models if not one.is_certain and not one.num_steps]:
            self.models.remove(model)
            self._cycle.models.remove(model.state)
            for optimizer in model.state.optimizers:
                optimizer.models.remove(model.state)
            model.close()
            self._keeper.drop(model)

    def _first_forward(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or not module.training:
            return
        if self._is_on and module not in self._passed:
            self._guarded(self._watch_running, module)

    def _watch_running(self, module: nn.Module) -> None:
        """Watch a model that no optimizer is known to train: it may be trained by hand."""
        if current_task() != -1 or tracing_state() is not None or transform_running() is not None:
            return
        self._passed.add(module)
        params = {id(param) for param in module.parameters() if param.requires_grad}
        if not params or any(model.holds(module) for model in self.models):
            return
        model = None
        for found in self._search(params) if self._may_search() else ():
            model = self._watch(found, is_certain=False) or model
        if model is None:
            return
        for _, state in self._optimizers.values():
            if not state.models:  # It holds copies of the parameters, in another format.
                self._join(state, model)
        self._enter(model, module)  # Its own hooks were put on too late for this call.

    def _registered(self, module: nn.Module, name: str, child: nn.Module | None) -> None:
        if name == "_orig_mod" and type(module).__name__ == "OptimizedModule" and child is not None:
            self._guarded(self._compiled, module, child)

    def _compiled(self, wrapper: nn.Module, inner: nn.Module) -> None:
        """``torch.compile`` wraps a model: it must not meet hooks on all modules."""
        self._ignore_forwards()
        root = unwrapped(inner)
        watched = [model for model in self.models if model.root() is root]
        if not self.models:  # There may be no optimizer, or it comes later.
            model = self._watch(inner, is_certain=False)
            watched = [] if model is None else [model]
        for model in watched:
            model.listen_at(wrapper)

    # ------------------------------------------------------------------ steps

    def _entered(self, model: TrainedModel, module: nn.Module) -> None:
        if self._is_on and current_task() == -1:
            self._guarded(self._enter, model, module)

    def _enter(self, model: TrainedModel, module: nn.Module) -> None:
        """A forward of a model begins."""
        trains = model.trains(module)
        if trains is None:
            self._cycle.enter(model.state, is_training=False)
            return
        if not trains:
            if not model.has_trained:
                model.pause()
            return
        if not model.is_part(module):
            model.ignore_parts()
        self._begin(model)
        state = model.state
        if state.has_run and not self._cycle.has_ended(state) and self._scalers.were_updated():
            self._cycle.skip(state)
        self._cycle.enter(state)

    def _begin(self, model: TrainedModel) -> None:
        """The training of a model goes on; at its first forward, or step, it begins."""
        if not model.has_trained:
            number = self._keeper.begin(model)
            if number:
                assert model.watch is not None
                model.watch.step(number)
                model.first_step = number
        model.resume()

    def _end_step(self, parts: list[ModelState]) -> None:
        self._scalers.note()
        for model in [one for one in self.models if one.state in parts]:
            assert model.watch is not None
            model.num_steps += 1
            model.watch.step()
        self._ended()


def _params_of(optimizer: Optimizer | None) -> set[int]:
    groups = () if optimizer is None else optimizer.param_groups
    return {id(param) for group in groups for param in group["params"]}


def _rates(optimizer: Optimizer, place: str) -> dict[str, Any]:
    """The learning rates of an optimizer, under the names by which they are logged."""
    groups = optimizer.param_groups
    found = {}
    for number, group in enumerate(groups):
        rate, ending = group.get("lr"), f".{number}" if len(groups) > 1 else ""
        if isinstance(rate, int | float) or (isinstance(rate, torch.Tensor) and rate.numel() == 1):
            found[f"lr{place}{ending}"] = rate
    return found


def _has_gradients(optimizer: Optimizer | None) -> bool:
    groups = () if optimizer is None else optimizer.param_groups
    return any(param.grad is not None for group in groups for param in group["params"])


def _variable_of(models: Sequence[nn.Module]) -> str:
    """The name by which the innermost running function that knows a model calls it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not str(frame.f_globals.get("__name__")).startswith(("torchtap.", "torch.")):
            for name, value in list(frame.f_locals.items()):
                if name != "self" and any(value is model for model in models):
                    return name
        frame = frame.f_back
    return ""


keep_dynamo_out(Stepping._before_step, Stepping._after_step, Stepping._guarded)

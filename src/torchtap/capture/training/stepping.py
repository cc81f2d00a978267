"""Watches what a program trains, without a word of it in the program.

PyTorch is told to call back when an optimizer is made and when it steps. The models are those that
hold the optimizers' parameters; each is watched from then on, before it first runs. Hooks on all
modules of the process are there only until a model is found, and never while one is compiled: the
compiler would trace them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from torchtap.capture.training.known_optimizers import KnownOptimizers, rates_of
from torchtap.capture.training.live_models import ModelSearch
from torchtap.capture.training.optimizer_cycle import ModelState, OptimizerCycle, OptimizerState
from torchtap.capture.training.process_hooks import ProcessHooks
from torchtap.capture.training.scalers import Scalers
from torchtap.capture.training.trained_model import TrainedModel
from torchtap.capture.training.watched_models import Destination, Measured, WatchedModels
from torchtap.capture.watch import watch
from torchtap.capture.watch_handle import Watch
from torchtap.core.blame import is_own_fault, own_fault
from torchtap.core.module_paths import unwrapped
from torchtap.core.shared_state import new_lock
from torchtap.core.torch_private import current_task, tracing_state, transform_running
from torchtap.hooks.module_hook import keep_dynamo_out
from torchtap.hooks.optimizer_hooks import has_closure


class FaultCatcher:
    """Runs parts of ours inside a program, which must not hear of what goes wrong in them.

    Args:
        failed: called when a part has failed.
        faulty: called with what went wrong, at once.

    Attributes:
        is_on: whether they are run.
        faults: what went wrong.
    """

    def __init__(self, failed: Callable[[], None], faulty: Callable[[str], None]) -> None:
        self.is_on = False
        self.faults: list[str] = []
        self._failed = failed
        self._faulty = faulty
        self._lock = new_lock()

    def run(self, action: Callable[..., object], *args: Any) -> None:
        """Run a part, one at a time; an error is noted."""
        if not self.is_on:
            return
        with self._lock:
            try:
                action(*args)
            except Exception as error:  # noqa: BLE001 - told at the end; the training goes on
                self.note(error)
                self._failed()

    def note(self, error: Exception) -> None:
        """Note what went wrong, once."""
        text = " ".join(str(error).split())
        said = f"{type(error).__name__}: {text}" if text else type(error).__name__
        said = own_fault(error) if is_own_fault(error) else said
        if said not in self.faults:
            self.faults.append(said)
            self._faulty(said)


class Stepping:
    """Finds what a program trains, watches it, and closes its steps.

    An error in here ends the watching and never the training; ``faults`` says which.

    Args:
        where: what to watch of each model.
        every: record every so many steps.
        backwards: end a step after so many backwards, instead of by the optimizers.
        destination: gives the sinks of each model; by default ``tt.Stats``.
        ended: called after each step.
        faulty: called with what went wrong, at once: a training may take days.
        found: called with each model that is watched, and with a wrapper that compiles it.

    Attributes:
        models: that are watched.
        faults: what went wrong.
    """

    def __init__(
        self,
        where: Sequence[str],
        *,
        every: int = 1,
        backwards: int | None = None,
        destination: Destination | None = None,
        ended: Callable[[], None] = lambda: None,
        faulty: Callable[[str], None] = lambda _: None,
        found: Callable[[nn.Module], object] = lambda _: None,
    ) -> None:
        self._found = found
        self._where = list(where)
        self._every = every
        self._destination: Destination = Measured() if destination is None else destination
        self._ended = ended
        self._catcher = FaultCatcher(self.abandon, faulty)
        self._hooks = ProcessHooks()
        self._cycle = OptimizerCycle(self._end_step, backwards=backwards)
        self._optimizers = KnownOptimizers(self._cycle)
        counts = backwards is not None
        self._watched = WatchedModels(
            self._open_watch, self._destination, self._cycle, self._entered, counts_backwards=counts
        )
        self._scalers = Scalers()
        self._scalers.begin()
        self._search = ModelSearch()
        self._passed: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.models = self._watched.models
        self.faults = self._catcher.faults

    @property
    def num_left_out(self) -> int:
        """Return the number of optimizers whose models are not watched: there were too many."""
        return self._watched.num_left_out

    @property
    def num_optimizers(self) -> int:
        """Return how many optimizers were seen."""
        return self._optimizers.num_seen

    # ------------------------------------------------------------------ on, off

    def attach(self) -> None:
        """Begin to listen to PyTorch."""
        self._catcher.is_on = True
        self._hooks.put_on(
            made=partial(self._catcher.run, self._learn),
            steps=self,
            registered=self._registered,
            forward=self._first_forward,
        )

    def detach(self) -> None:
        """Take everything off. All that was recorded stays readable."""
        self._catcher.is_on = False
        self._hooks.release()
        for model in self.models:
            try:
                model.close()
            except Exception as error:  # noqa: BLE001 - told at the end, beside what was recorded
                self._catcher.note(error)

    def abandon(self) -> None:
        """Record nothing more. In the child of a fork, whose training is not the parent's."""
        self._catcher.is_on = False
        for model in self.models:
            model.pause()

    # ------------------------------------------------------------------ optimizers

    def _learn(self, optimizer: Optimizer) -> OptimizerState:
        """Know an optimizer, and watch the models that it trains."""
        state = self._optimizers.add(optimizer)
        params = state.params()
        known: set[int] = set().union(*(model.params for model in self.models))
        if not params <= known and self._watched.has_space() and self._search.has_time:
            for found in self._search.models_holding(params - known):
                self._watched.add(found, is_certain=True)
        for model in self.models:
            if params & model.params:
                model.is_certain = True
                self._watched.join(state, model)
        if state.models:
            self._hooks.ignore_forwards()
            self._watched.drop_uncertain()
        return state

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Mapping[str, Any]) -> None:
        """A step begins."""
        self._catcher.run(self._begin_step_of, optimizer, has_closure(args, kwargs))

    def _begin_step_of(self, optimizer: Optimizer, has_closure: bool) -> None:
        state = self._optimizers.state_of(optimizer) or self._learn(optimizer)
        for model in self.models:
            if model.state in state.models:
                self._watched.begin(model)
                assert model.watch is not None
                model.watch.log(**rates_of(optimizer, state, model.state))
        self._cycle.begin(state, has_closure=has_closure)

    def after_step(self, optimizer: Optimizer) -> None:
        """A step ends."""
        state = self._optimizers.state_of(optimizer)
        if state is not None:
            self._catcher.run(self._cycle.finish, state)

    # ------------------------------------------------------------------ models

    def _open_watch(self, root: nn.Module, model: TrainedModel) -> Watch | None:
        try:
            opened = watch(root, self._where, to=self._destination.sinks(model), every=self._every)
        except Exception as error:  # noqa: BLE001 - told at the end; the training goes on
            self._catcher.note(error)
            return None
        self._found(root)
        return opened

    def _first_forward(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or not module.training:
            return
        if self._catcher.is_on and module not in self._passed:
            self._catcher.run(self._watch_running, module)

    def _watch_running(self, module: nn.Module) -> None:
        """Watch a model that no optimizer is known to train: it may be trained by hand."""
        # Modules that run inside a backward, a trace or a transform are not the training's own
        # forward.
        if current_task() != -1 or tracing_state() is not None or transform_running() is not None:
            return
        # Before anything that may return: each module is looked at once, and the hook runs for
        # every call.
        self._passed.add(module)
        params = {id(param) for param in module.parameters() if param.requires_grad}
        if not params or any(model.holds(module) for model in self.models):
            return
        if not (self._watched.has_space() and self._search.has_time):
            return
        model = None
        for found in self._search.models_holding(params):
            model = self._watched.add(found, is_certain=False) or model
        if model is None:
            return
        for state in self._optimizers.without_model():
            self._watched.join(state, model)  # It holds copies of the parameters in another format.
        self._enter(model, module)  # Its own hooks were put on too late for this call.

    def _registered(self, module: nn.Module, name: str, child: nn.Module | None) -> None:
        # By name, since importing the class would import all of the compiler.
        if name == "_orig_mod" and type(module).__name__ == "OptimizedModule" and child is not None:
            self._catcher.run(self._compiled, module, child)

    def _compiled(self, wrapper: nn.Module, inner: nn.Module) -> None:
        """``torch.compile`` wraps a model: it must not meet hooks on all modules."""
        self._hooks.ignore_forwards()
        root = unwrapped(inner)
        watched = [model for model in self.models if model.root() is root]
        if not self.models:  # There may be no optimizer, or it comes later.
            model = self._watched.add(inner, is_certain=False)
            watched = [] if model is None else [model]
        for model in watched:
            model.listen_at(wrapper)
            self._found(wrapper)

    # ------------------------------------------------------------------ steps

    def _entered(self, model: TrainedModel, module: nn.Module) -> None:
        if self._catcher.is_on and current_task() == -1:
            self._catcher.run(self._enter, model, module)

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
        self._watched.begin(model)
        state = model.state
        if state.has_run and not self._cycle.has_ended(state) and self._scalers.were_updated():
            self._cycle.skip(state)
        self._cycle.enter(state)

    def _end_step(self, parts: list[ModelState]) -> None:
        self._scalers.note()
        for model in [one for one in self.models if one.state in parts]:
            assert model.watch is not None
            model.num_steps += 1
            model.watch.step()
        self._ended()


keep_dynamo_out(Stepping.before_step, Stepping.after_step, FaultCatcher.run)

"""One model, run on a batch, with all that is needed to give its calls to another one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.capture.missing import is_compiled
from torchtap.capture.unobserved import unobserved
from torchtap.capture.watch import watch
from torchtap.core.distributed import num_ranks
from torchtap.core.errors import InputError
from torchtap.core.module_paths import every_module, mode_of, modules_of
from torchtap.core.preserved import set_mode
from torchtap.core.rebuild import replace_arguments
from torchtap.core.tree import leaves
from torchtap.core.trial import Trial, default_loss
from torchtap.diagnosis.calls.capture import Capture, Captured
from torchtap.diagnosis.comparison.step_calls import State, StepCalls, step_calls
from torchtap.diagnosis.comparison.traits import Traits, traits_of_modules
from torchtap.hooks.uncompiled import uncompiled
from torchtap.runs.meta import Meta

_WHERE = "*:input,output,grad_input,grad_output,param_grad"


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """The facts that one run of a model showed.

    Attributes:
        calls: of the modules, and parameters and the like.
        meta: what modules were set to.
        captured: (path, call) -> what the call was given; empty where that could not be held.
        why_not: why not.
    """

    calls: StepCalls
    meta: Meta
    captured: Mapping[tuple[str, int], Captured]
    why_not: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class LiveSide:
    """One model with the batch that it is called with.

    Attributes:
        trial: runs it again and again from the same state.
        modules: path -> module.
        traits: path -> what tells the module from another.
        cast: the dtype that the inputs were converted to; empty if they were not.
    """

    trial: Trial
    modules: Mapping[str, nn.Module]
    traits: Mapping[str, Traits]
    cast: str = ""

    @property
    def model(self) -> nn.Module:
        """Return the outermost module, wrappers looked through."""
        return self.modules[""]

    @property
    def is_compiled(self) -> bool:
        """Return whether a compiler made code of it."""
        return is_compiled(every_module(self.trial.model))

    def outputs(self) -> dict[str, Tensor]:
        """Run the forward as it is, also compiled; leaf -> tensor."""
        with self._restored(), torch.set_grad_enabled(torch.is_grad_enabled()):
            self.trial.rewind()
            output = self.trial.model(*self.trial.args, **self.trial.kwargs)
            return {leaf: one.detach().clone() for leaf, one in leaves(output)}

    def see(self, wanted: Sequence[str] | None) -> Seen:
        """Run forward and, where that can be, backward.

        Args:
            wanted: leaves of the output that the loss is made of; ``None`` for no backward.
        """
        with self._restored(), uncompiled():
            with watch(self.trial.model, _WHERE, copy="always") as watching:
                self._run(wanted)
            calls = step_calls(watching.run, 0, self.traits)
        return Seen(self._with_states(calls), watching.run.meta, {})

    def with_given(self, seen: Seen, wanted: Sequence[str] | None) -> Seen:
        """Run it again, and add what calls are given.

        Args:
            seen: of a run before.
            wanted: leaves of the output that the loss is made of; ``None`` for no backward.
        """
        if num_ranks() > 1:
            return replace(seen, why_not="several ranks would have to call it again together")
        held = Capture(self.modules, lambda path, call: True)
        try:
            with self._restored(), uncompiled(), held:
                self._run(wanted)
        except InputError as error:  # A lock, a generator: the rest can be compared.
            return replace(seen, why_not=str(error))
        return replace(seen, captured=dict(held.calls))

    def _run(self, wanted: Sequence[str] | None) -> None:
        self.trial.rewind()
        output = self.trial.model(*self.trial.args, **self.trial.kwargs)
        loss = None if wanted is None else _loss(output, wanted)
        if loss is not None:
            loss.backward()  # type: ignore[no-untyped-call]

    def _with_states(self, calls: StepCalls) -> StepCalls:
        """Add parameters and buffers, which are at hand."""
        states = [*calls.states]
        for path, module in self.modules.items():
            for port, table in (("param", module._parameters), ("buffer", module._buffers)):
                values = {name: one.detach() for name, one in table.items() if one is not None}
                states += [State(path, port, 0, values)] if values else []
        return StepCalls(calls.step, calls.calls, states, calls.is_ordered, calls.num_lost)

    @contextlib.contextmanager
    def _restored(self) -> Iterator[None]:
        modes = [(module, mode_of(module)) for module in self.modules.values()]
        try:
            with self.trial.restored(), unobserved(self.trial.model):
                yield
        finally:
            for module, mode in modes:
                set_mode(module, mode)


def live_side(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LiveSide:
    """Make a side, with inputs in the model's dtype where it cannot be called with others."""
    modules, _ = modules_of(model)
    side = LiveSide(Trial(model, args, kwargs, None), modules, traits_of_modules(modules))
    dtype = _own_dtype(model)
    if dtype is None or all(one.dtype == dtype for _, one in _floating(args, kwargs)):
        return side
    try:
        side.outputs()
    except (RuntimeError, ValueError, TypeError):
        args, kwargs = replace_arguments(
            args, kwargs, lambda _, one: one.to(dtype) if one.is_floating_point() else one
        )
        trial = Trial(model, args, kwargs, None)
        return LiveSide(trial, modules, side.traits, str(dtype).removeprefix("torch."))
    return side


def _own_dtype(model: nn.Module) -> torch.dtype | None:
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    return dtypes.pop() if len(dtypes) == 1 else None


def _floating(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[str, Tensor]]:
    return [each for each in leaves((args, dict(kwargs))) if each[1].is_floating_point()]


def _loss(output: Any, wanted: Sequence[str]) -> Tensor | None:
    return default_loss([one for leaf, one in leaves(output) if leaf in wanted])

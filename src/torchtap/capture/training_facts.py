"""Notes how a model is trained: modes, what requires a gradient, what the optimizers hold."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from torchtap.core.distributed import sharded_parameters
from torchtap.core.model_layout import Layout, Look
from torchtap.core.module_paths import Places, holds, mode_of, num_parameters
from torchtap.core.shared_state import once
from torchtap.hooks.optimizer_hooks import listen_to_optimizers
from torchtap.stats.kernels import native

_LONGEST_TEXT, _PROBED = 60, 8
_PLAIN_TYPES = frozenset({bool, int, float, str})
_NOTHING, _IN_EVAL, IN_TRAINING = range(3)
"""Forwards that have told the modes; native hooks look whether the last kind has."""


@dataclass(slots=True, eq=False, repr=False)
class _Known:
    """An optimizer that was seen.

    Attributes:
        ref: to it.
        number: the first of its groups among those of all.
        size: how many groups it had when they were read.
    """

    ref: weakref.ref[Optimizer]
    number: int
    size: int = -1


@dataclass(slots=True, eq=False, repr=False)
class _Stepped:
    """An optimizer that made a step.

    Attributes:
        ref: to it.
        num_backwards: that began since then.
        is_cleared: whether one of them began without the gradients of that step.
    """

    ref: weakref.ref[Optimizer]
    num_backwards: int = 0
    is_cleared: bool = False


class TrainingFacts:
    """Reads the facts off the modules and the optimizers, and keeps neither alive.

    Args:
        look: at the model.

    Attributes:
        settings: path -> plain attributes by name.
        num_parameters: path -> elements of the parameters that the module itself has, as
            :func:`~torchtap.core.module_paths.num_parameters` counts them.
        has_foreign_steps: whether optimizers made steps that hold no parameter of the model.
        num_made: steps of optimizers since one that holds parameters of the model was seen.
        num_steps: after another of the same optimizer, with a backward in between.
        num_kept: of these, how many were made with the gradients of the step before in them.
    """

    def __init__(self, look: Look) -> None:
        self._modules: Mapping[str, weakref.ref[nn.Module]] = look.layout.refs
        self.has_foreign_steps = False
        self._groups: dict[tuple[int, int], dict[str, Any]] = {}
        self._known: dict[int, _Known] = {}
        self._told_by = _NOTHING
        self._stepped: dict[int, _Stepped] = {}
        self.num_steps = self.num_kept = self.num_made = 0
        self.settings, self.num_parameters = _read_modules(look.modules)
        self._modes: list[Any] = []  # Path and mode, of one module after the other.
        self._params: list[Any] = []  # Path, name, and whether it requires a gradient.
        self.read()

    def attach(self) -> list[Any]:
        """Listen to all optimizers; returns the handles."""
        return [*listen_to_optimizers(self)]

    def note_forward(self, *, is_training: bool) -> None:
        """A forward with gradients begins: the first tells the modes, those of training mode best.

        Args:
            is_training: whether the model is in training mode.
        """
        tells = IN_TRAINING if is_training else _IN_EVAL
        if tells > self._told_by:
            self._told_by = tells
            self.read()

    def read(self) -> None:
        """Read the modes of the modules, and which parameters require a gradient, as they are."""
        kernel = _kernel()
        found = None if kernel is None else kernel.read_state(self._modules)
        if found is not None:
            self._modes, self._params = found
            return
        self._modes, self._params = [], []
        for path, module in self._alive():
            self._modes += path, mode_of(module)
            for name, one in module._parameters.items():
                if one is not None:
                    self._params += path, name, one.requires_grad

    @property
    def modes(self) -> dict[str, bool]:
        """Path -> whether the module was in training mode."""
        pairs = zip(self._modes[::2], self._modes[1::2], strict=True)
        return {path: mode is not False for path, mode in pairs}

    @property
    def requires_grad(self) -> dict[str, bool]:
        """Name of a parameter -> whether it required a gradient."""
        every = (self._params[place::3] for place in range(3))
        return {_dotted(path, name): needs for path, name, needs in zip(*every, strict=True)}

    @property
    def optimizers(self) -> tuple[dict[str, Any], ...]:
        """Return the groups of all optimizers that made a step with parameters of the model."""
        return tuple(self._groups.values())

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """An optimizer is about to make a step; its groups are read once."""
        self._count_step(optimizer)
        known, size = self._known.get(id(optimizer)), len(optimizer.param_groups)
        # The id of an optimizer that is gone may be another one's now.
        if known is None or known.ref() is not optimizer:
            known = self._known[id(optimizer)] = _Known(weakref.ref(optimizer), len(self._groups))
        # Groups may be added later (a layer that is unfrozen): then all are read anew.
        elif known.size == size:
            return
        known.size = size
        shards = sharded_parameters()
        names: dict[int, str] = {}
        for name, one in self._parameters():
            names.setdefault(id(one), name)
            # The optimizer of a sharded model holds shards, which are other objects than the
            # parameters.
            names.setdefault(id(shards.get(id(one), one)), name)
        every = [one for group in optimizer.param_groups for one in group["params"]]
        self.has_foreign_steps |= not any(id(one) in names for one in every)
        for number, group in enumerate(optimizer.param_groups):
            held = [names[id(one)] for one in group["params"] if id(one) in names]
            if held:
                settings = {name: _number(value) for name, value in group.items()}
                self._groups[known.number, number] = {
                    **{name: value for name, value in settings.items() if value is not None},
                    "optimizer": type(optimizer).__name__,
                    "params": held,
                }

    def after_step(self, optimizer: Optimizer) -> None:
        """An optimizer made a step: its gradients are to be cleared before it makes another."""
        if self._groups:
            self.num_made += 1
            self._stepped[id(optimizer)] = _Stepped(weakref.ref(optimizer))

    def begin_backward(self) -> None:
        """A backward begins: look whose gradients of the step before were cleared by now."""
        for one in list(self._stepped.values()):
            optimizer = one.ref()
            one.num_backwards += 1
            if optimizer is not None and not one.is_cleared:
                one.is_cleared = not _has_gradients(optimizer)

    def _count_step(self, optimizer: Optimizer) -> None:
        before = self._stepped.pop(id(optimizer), None)
        if before is not None and before.ref() is optimizer and before.num_backwards:
            self.num_steps += 1
            self.num_kept += not before.is_cleared

    def _alive(self) -> Iterator[tuple[str, nn.Module]]:
        for path, ref in self._modules.items():
            module = ref()
            if module is not None:
                yield path, module

    def _parameters(self) -> Iterator[tuple[str, Tensor]]:
        for path, module in self._alive():
            for name, one in module._parameters.items():
                if one is not None:
                    yield _dotted(path, name), one


def _dotted(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _has_gradients(optimizer: Optimizer) -> bool:
    """Return whether most parameters of an optimizer have a gradient other than 0.

    Looks at some of them, all over. Parameters of the loss itself, as weights of its parts, have
    that of the running backward by now.
    """
    every = [one for group in optimizer.param_groups for one in group["params"]]
    every = [one for one in every if one.requires_grad][:: max(len(every) // _PROBED, 1)]
    known = [one.grad for one in every if type(one.grad) is Tensor]
    known = [one for one in known if one.layout is torch.strided]
    return 2 * sum(bool((one != 0).any()) for one in known) > len(every)


@once
def _bound_kernel() -> Any:
    kernel = native.kernel()
    kernel.bind_facts(nn.Parameter)
    return kernel


def _kernel() -> Any:
    """Return the binary that reads facts, if one is used that can."""
    is_there = native.takes_calls() and hasattr(native.kernel(), "look")
    return _bound_kernel() if is_there else None  # Or the binary is an older one.


def _compare(layout: Layout) -> Any:
    """Look at a model natively, see :attr:`~torchtap.core.model_layout.Layout.compare`."""
    kernel = _kernel()
    return None if kernel is None else kernel.look(*layout.rows())


Layout.compare = _compare


def _are_kept(links: list[Any]) -> bool:
    """Return natively whether modules are where they were, see :attr:`Places.compare`."""
    kernel = _kernel()
    if kernel is None or not hasattr(kernel, "are_kept"):
        return all(map(holds, links))
    kept: bool = kernel.are_kept(links)
    return kept


Places.compare = _are_kept


def _read_modules(
    modules: Mapping[str, nn.Module],
) -> tuple[dict[str, dict[str, Any]], dict[str, int]]:
    """Return settings, and numbers of elements, by path."""
    kernel = _kernel()
    found: tuple[Any, Any] | None = None if kernel is None else kernel.read_modules(modules)
    if found is not None:
        return found
    settings = {path: own for path, one in modules.items() if (own := _plain(one))}
    return settings, num_parameters(modules)


def _plain(module: nn.Module) -> dict[str, Any]:
    """Return the attributes of a module that a file can hold: numbers, truth values, texts."""
    return {
        name: value
        for name, value in vars(module).items()
        if type(value) in _PLAIN_TYPES
        and name[:1] != "_"
        and name != "training"
        and _is_plain(value)
    }


def _is_plain(value: Any) -> bool:
    if type(value) is float:
        return math.isfinite(value)
    if type(value) is str:
        return len(value) <= _LONGEST_TEXT
    return type(value) in (bool, int) and abs(value) < 2**53


def _number(value: Any) -> Any:
    """Return a setting of an optimizer as a plain value, or ``None`` where it is none."""
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        value = value.item()
    if isinstance(value, tuple | list) and len(value) < 5 and all(map(_is_plain, value)):
        return list(value)
    return value if _is_plain(value) else None

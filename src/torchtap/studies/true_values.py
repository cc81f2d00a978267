"""The true values and gradients of one run of a model, by plain hooks.

``verify`` measures the engine against them, so nothing of the engine works here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.core.site import Site
from torchtap.core.torch_private import current_task, transform_running
from torchtap.core.tree import argument_leaves, leaves
from torchtap.core.trial import Trial, copy_of
from torchtap.hooks.backwards import Backwards
from torchtap.studies.plain_hooks import interposed

Place = tuple[Site, int]
"""A site and the call there."""
Accumulated = Mapping[str, list[Tensor]]
"""Name of a parameter -> its ``.grad`` after each backward of one run."""


@contextlib.contextmanager
def accumulated_gradients(trial: Trial) -> Iterator[Accumulated]:
    """Note the ``.grad`` of each parameter after each backward inside the block."""
    backwards = Backwards()
    numbers: dict[str, int] = {}
    accumulated: dict[str, list[Tensor]] = {}

    def note(name: str, param: Tensor) -> None:
        if param.grad is None:  # An optimizer that steps inside the backward used it up.
            return
        parts = accumulated.setdefault(name, [])
        number = backwards.number()
        if numbers.get(name) == number:  # A reentrant checkpoint accumulates several times.
            parts.pop()
        numbers[name] = number
        parts.append(copy_of(param.grad))

    handles = [
        param.register_post_accumulate_grad_hook(partial(note, name))  # type: ignore[no-untyped-call]
        for name, param in trial.parameters()
        if param.requires_grad and param.is_leaf
    ]
    try:
        yield accumulated
    finally:
        for handle in handles:
            handle.remove()


def true_values(trial: Trial, modules: Mapping[str, nn.Module]) -> dict[Place, Tensor]:
    """Return every input and output, cloned by a plain hook at the moment of the call."""
    truth: dict[Place, Tensor] = {}
    calls = Calls()

    def note(place: tuple[str, str, int], tensors: list[tuple[str, Tensor]]) -> None:
        path, port, call = place
        for leaf, tensor in tensors if call >= 0 else ():
            truth[Site(path, port, leaf), call] = copy_of(tensor)

    def enter(path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        note((path, "input", calls.enter(path)), argument_leaves(args, kwargs))

    def leave(path: str, output: Any) -> None:
        note((path, "output", calls.leave(path)), leaves(output))

    fused = {path for path in modules if _is_fused(path, trial)}
    with interposed(modules, enter, leave, fused=fused):
        trial.forward()
    return truth


def is_in_transform() -> bool:
    """Return whether torch.func is transforming what runs."""
    return transform_running() is not None


class Calls:
    """Numbers the calls of each module in the order in which they are entered.

    Attributes:
        recomputed: paths of modules that ran within a backward.
    """

    def __init__(self) -> None:
        self.recomputed: set[str] = set()
        self._next: dict[str, int] = {}
        self._open: dict[str, list[int]] = {}

    def enter(self, path: str) -> int:
        call = -1
        if is_in_transform():  # Where tensors stand for others, and the engine looks away.
            pass
        elif current_task() == -1:
            call = self._next[path] = self._next.get(path, -1) + 1
        else:  # A checkpoint computing again.
            self.recomputed.add(path)
        self._open.setdefault(path, []).append(call)
        return call

    def leave(self, path: str) -> int:
        if not self._open.get(path):
            self.enter(path)  # A fused module is not seen on entering.
        return self._open[path].pop()


def _is_fused(path: str, trial: Trial) -> bool:
    modules = trial.modules
    above = [path[:cut] for cut in range(len(path) + 1) if cut == len(path) or path[cut] == "."]
    return any(
        isinstance(modules.get(one), nn.TransformerEncoderLayer) and not modules[one].training
        for one in {"", *above}
    ) and not any(
        param.requires_grad and torch.is_grad_enabled() for param in trial.model.parameters()
    )

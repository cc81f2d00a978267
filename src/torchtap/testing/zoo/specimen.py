"""A specimen: a tiny model with its inputs, and what usually goes wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Specimen:
    """One tiny model that something usually goes wrong with.

    Args:
        name: unique in the zoo, an identifier.
        build: makes the model anew, with the same weights and the same mode every time. Draws
            nothing from the global random number generator.
        inputs: makes ``(args, kwargs)`` anew, with the same values every time.
        trap: what usually goes wrong, in a few words.
        raises: what the forward raises, or ``None``.
        backward: whether :func:`default_loss` of the output can be back-propagated.
        random: the forward draws random numbers, so seed before each run that is compared.
        recomputes: modules run again during the backward: a checkpoint, a custom function or a
            hook calls them.
        reentrant: a checkpoint of the reentrant kind: its first forward has grad mode off.
        twin: an out-of-place twin (every module handed copies) computes the same; ``False``
            where a later write through one tensor is read through another.
        double: the model means the same in float64 (``False``: casts inside, or narrow dtypes).
        silent: paths of modules that never run.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Arguments]
    trap: str
    raises: type[Exception] | None = None
    backward: bool = True
    random: bool = False
    recomputes: bool = False
    reentrant: bool = False
    twin: bool = True
    double: bool = True
    silent: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


def specimen(
    name: str,
    make: Callable[[], nn.Module],
    inputs: Callable[[], Arguments],
    trap: str,
    **marks: Any,
) -> Specimen:
    """A specimen whose model has the same weights every time; ``marks`` are fields by name."""
    return Specimen(name, _seeded(make), inputs, trap, **marks)


def _seeded(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            # Not torch.manual_seed: that would reseed accelerators, which are not restored.
            torch.default_generator.manual_seed(0)
            return make()

    return build

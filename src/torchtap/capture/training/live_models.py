"""Finds, among all modules that are alive, the models that hold given parameters.

The garbage collector knows every module, however it was made: built, copied, or loaded. A look
takes about 40 ms in a process with 400,000 objects, and leaves nothing on any of them.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Collection, Iterable, Iterator

import torch
from torch import nn

_SECONDS_IN_VAIN, _SHARE_IN_VAIN = 1.0, 0.01
"""The most time that looking for models in vain takes: so much, and a share of all."""


class ModelSearch:
    """Looks for models, as long as looking in vain takes little of the program's time.

    Programs that optimize their inputs make an optimizer for each, which has no model.

    Attributes:
        seconds_in_vain: time that was spent without finding any.
    """

    def __init__(self) -> None:
        self.seconds_in_vain = 0.0
        self._began = time.perf_counter()

    @property
    def has_time(self) -> bool:
        """Return whether looking once more takes no more than is allowed."""
        passed = time.perf_counter() - self._began
        return self.seconds_in_vain < _SECONDS_IN_VAIN + _SHARE_IN_VAIN * passed

    def models_holding(self, params: Collection[int]) -> list[nn.Module]:
        """Return the outermost modules that hold parameters, as few as hold all that any holds.

        Where several outermost modules hold the same parameters (two wrappers of one model), the
        smallest is taken.

        Args:
            params: their ids.
        """
        began = time.perf_counter()
        models = _models_holding(params)
        if not models:
            self.seconds_in_vain += time.perf_counter() - began
        return models


def _models_holding(params: Collection[int]) -> list[nn.Module]:
    modules = _live_modules()
    # A module knows its children and not its parents.
    parents: dict[int, list[nn.Module]] = {}
    for module in modules:
        for child in _children(module):
            parents.setdefault(id(child), []).append(module)
    owned: dict[int, set[int]] = {}
    tops: dict[int, nn.Module] = {}
    for module in modules:
        own = {id(one) for one in vars(module)["_parameters"].values()}.intersection(params)
        for top in _tops(module, parents) if own else ():
            tops[id(top)] = top
            owned.setdefault(id(top), set()).update(own)
    return list(_covering(tops, owned))


def _covering(tops: dict[int, nn.Module], owned: dict[int, set[int]]) -> Iterator[nn.Module]:
    left = set().union(*owned.values())
    sizes = {key: sum(1 for _ in top.modules()) for key, top in tops.items()}
    while left:
        # Greedy: the one that holds most of what is left, and of equals the smallest, which is the
        # model without its wrapper.
        best = max(tops, key=lambda key: (len(owned[key] & left), -sizes[key]))
        yield tops[best]
        left -= owned[best]


def _tops(module: nn.Module, parents: dict[int, list[nn.Module]]) -> Iterable[nn.Module]:
    """Return the modules above, or itself, that stand in no other."""
    seen = {id(module): module}
    waiting = [module]
    tops = []
    while waiting:
        one = waiting.pop()
        above = parents.get(id(one), [])
        if not above:
            tops.append(one)
        for parent in above:
            if id(parent) not in seen:
                seen[id(parent)] = parent
                waiting.append(parent)
    return tops or [module]  # Modules that hold each other in a ring have no top.


def _live_modules() -> list[nn.Module]:
    # Asked of the type: isinstance() would call __class__ of proxies, which may raise.
    modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
    return [
        module
        for module in modules
        if not isinstance(module, torch.jit.ScriptModule)
        and {"_parameters", "_modules"} <= vars(module).keys()  # Else it is being made.
    ]


def _children(module: nn.Module) -> Iterator[nn.Module]:
    return (child for child in vars(module)["_modules"].values() if child is not None)

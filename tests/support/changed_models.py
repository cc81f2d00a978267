"""A small model, and each way in which its structure may change between two looks at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

Change = Callable[[Any], AbstractContextManager[None]]


class Pair(nn.Module):
    """Two layers, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Run both, and what was added."""
        for part in self.children():
            x = part(x)
        return x


class OtherPair(Pair):
    """Two layers of another class name."""


def blocks() -> nn.Sequential:
    """Layers, two pairs next to each other, and a buffer; always of the same numbers."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 4), Pair(), Pair(), nn.BatchNorm1d(4), nn.ReLU())


CHANGES: dict[str, Change] = {}


def change(function: Callable[[Any], object]) -> Callable[[Any], object]:
    """Add a change that stays."""

    @contextmanager
    def lasting(model: Any) -> Iterator[None]:
        function(model)
        yield

    CHANGES[function.__name__] = lasting
    return function


@change
def one_added(model: Any) -> None:
    model.append(nn.Tanh())


@change
def one_removed(model: Any) -> None:
    del model[4]


@change
def one_replaced(model: Any) -> None:
    model[0] = nn.Linear(4, 4)


@change
def one_replaced_by_another_class(model: Any) -> None:
    model[4] = nn.Sigmoid()


@change
def one_renamed(model: Any) -> None:
    pair = model[1]
    pair._modules = {"first": pair.first, "last": pair.second}


@change
def one_moved_to_the_neighbour(model: Any) -> None:
    moved = model[1].second
    del model[1].second
    model[2]._modules = {"second": moved, **model[2]._modules}


@change
def two_exchanged(model: Any) -> None:
    model[1].first, model[1].second = model[1].second, model[1].first


@change
def order_turned(model: Any) -> None:
    model[1]._modules = dict(reversed(model[1]._modules.items()))


@change
def one_shared(model: Any) -> None:
    model[2].first = model[0]


@change
def one_taken_away(model: Any) -> None:
    model[1].extra = nn.Linear(4, 4)
    model[1].extra = None
    del model[1].extra
    model[1].register_module("nothing", None)
    del model[1].nothing
    model[2].second = nn.Identity()


@change
def one_wrapped(model: Any) -> None:
    model[1] = nn.Sequential(model[1])


@change
def one_of_another_class(model: Any) -> None:
    model[2].__class__ = OtherPair


@change
def parametrized(model: Any) -> None:
    parametrizations.orthogonal(model[0])


@change
def weight_normed(model: Any) -> None:
    parametrizations.weight_norm(model[1].second)


@change
def parameter_added(model: Any) -> None:
    model[4].slope = nn.Parameter(torch.ones(4))


@change
def parameter_dropped(model: Any) -> None:
    model[0].bias = None


@change
def buffer_added(model: Any) -> None:
    model[4].register_buffer("mask", torch.ones(4))


@change
def forward_of_its_own(model: Any) -> None:
    pair = model[1]
    pair.forward = lambda x: pair.second(pair.first(x)) * 2


@change
def nested_deeper(model: Any) -> None:
    model[2].first = nn.Sequential(nn.Linear(4, 4), nn.Tanh())


@contextmanager
def class_renamed(model: Any) -> Iterator[None]:
    """A class has another name for a while."""
    Pair.__name__ = "Couple"
    try:
        yield
    finally:
        Pair.__name__ = "Pair"


@contextmanager
def forward_of_the_class(model: Any) -> Iterator[None]:
    """A class has another forward for a while."""
    before = Pair.forward
    Pair.forward = lambda self, x: before(self, x) + 1  # type: ignore[method-assign]
    try:
        yield
    finally:
        Pair.forward = before  # type: ignore[method-assign]


CHANGES |= {"class_renamed": class_renamed, "forward_of_the_class": forward_of_the_class}

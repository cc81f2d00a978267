"""Dynamo loses a write to an object behind a tensor hook, as ``docs/reference/limits.md`` says."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import torchtap as tt


@dataclass
class Parts:
    first: Tensor
    second: Tensor | None = None


class Inner(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Parts]:
        return x * 1.5, Parts(x * 2)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: Tensor) -> tuple[Tensor, bool]:
        y, parts = self.inner(x)
        parts.second = y * 3
        return y, parts.second is None


def is_lost(model: nn.Module) -> bool:
    """Return whether the compiled model reads nothing where it has written a tensor."""
    compiled = torch.compile(model, backend="eager")
    lost: bool = compiled(torch.ones(2, 3, requires_grad=True))[1]
    return lost


def hear(module: nn.Module, args: object, out: tuple[Tensor, Parts]) -> None:
    out[0].register_hook(lambda grad: None)


def test_a_watch_of_gradients_in_a_graph_loses_what_a_bare_hook_loses() -> None:
    bare = Outer()
    bare.inner.register_forward_hook(hear)
    of_pytorch = is_lost(bare)
    torch.compiler.reset()
    with tt.watch(watched := Outer(), "inner:grad_output", to=tt.Stats()):
        assert is_lost(watched) == of_pytorch


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo reads it itself.
def test_a_watch_of_outputs_or_with_values_kept_loses_nothing() -> None:
    with tt.watch(model := Outer(), "inner:output", to=tt.Stats()):
        assert not is_lost(model)
    torch.compiler.reset()
    with tt.watch(model := Outer(), "inner:grad_output", to=tt.Memory()):
        assert not is_lost(model)

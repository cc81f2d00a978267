"""Hooks on tensors are taken off when they are closed."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn

import torchtap as tt
from torchtap.capture.pending_gradient import PendingGradient
from torchtap.edits.gradient_edits import GradientEdit
from torchtap.hooks.tap import GradHook
from torchtap.testing import Net


class Marked(torch.Tensor):
    """A subclass, whose hooks are put on by a handle each."""


SUBCLASSES = {
    "watch": lambda model: tt.watch(model, "*:*"),
    "watch, total": lambda model: tt.watch(model, "*:*", grad_input="total"),
    "edit": lambda model: tt.edit(model, "*:grad_output,grad_input", lambda t: t),
}


@pytest.mark.parametrize("attach", SUBCLASSES.values(), ids=list(SUBCLASSES))
def test_no_hook_stays_on_a_tensor_of_a_subclass(attach: Any) -> None:
    model = Net(lambda net, x: net.b(net.a(x)), a=nn.Linear(2, 2), b=nn.Tanh())
    alive = []
    model.a.register_forward_hook(lambda module, args, output: alive.extend([*args, output]))
    x = (torch.ones(1, 2, requires_grad=True) * 1).as_subclass(Marked)
    with attach(model):
        alive.append(model(x))
        assert type(alive[-1]) is Marked
        assert any(tensor._backward_hooks for tensor in alive)
        alive[-1].sum().backward(retain_graph=True)
    assert len(alive) == 3
    assert not any(tensor._backward_hooks for tensor in alive)
    gc.collect()
    ours = (GradHook, PendingGradient, GradientEdit)
    assert not [held for held in gc.get_objects() if type(held) in ours]

"""Hooks of the user and hooks of torchtap on the same modules, tensors and parameters."""

from __future__ import annotations

from typing import Any

import torch
from bits import same
from models import relu_mlp, rows
from torch import Tensor, nn

import torchtap as tt
from torchtap.testing import Net

ALL = ["*:*", "*:param,param_grad"]


def test_hooks_of_the_user_run_in_their_order() -> None:
    order: list[str] = []
    model = relu_mlp()
    model[0].register_forward_hook(lambda *_: order.append("early"))
    with tt.watch(model, ALL, to=lambda record: order.append(str(record.site))):
        model[0].register_forward_hook(lambda *_: order.append("late"))
        model(rows())
    assert order.index("early") < order.index("0:output") < order.index("late")
    model(rows())
    assert order[-2:] == ["early", "late"]


def test_what_a_hook_of_the_user_replaced_is_what_is_seen() -> None:
    model = relu_mlp()
    model[0].register_forward_hook(lambda module, args, output: torch.zeros_like(output))
    with tt.watch(model, "0:output") as w:
        model(rows())
    assert w.run["0:output"].unique().tolist() == [0.0]


def test_full_backward_hooks_of_the_user_see_what_they_saw() -> None:
    def gradients(watched: bool) -> list[Tensor]:
        seen: list[Tensor] = []
        model = Net(lambda m, x: m.b(m.a(x)), a=nn.Linear(3, 3), b=nn.Tanh())
        for parameter in model.parameters():
            parameter.data.fill_(0.1)
        model.a.register_full_backward_hook(lambda m, gi, go: seen.extend([*gi, *go]))
        model.b.register_full_backward_pre_hook(lambda m, go: seen.extend(go))
        w = tt.watch(model, ALL) if watched else None
        model(rows().requires_grad_()).sum().backward()
        if w is not None:
            w.close()
            assert same(w.run["a:grad_output"], seen[-1])
        return seen

    plain, watched = gradients(False), gradients(True)
    assert len(plain) == 3
    assert all(same(a, b) for a, b in zip(plain, watched, strict=True))


def test_hooks_of_the_user_on_tensors_stay() -> None:
    model = relu_mlp()
    seen: list[Any] = []
    with tt.watch(model, "*:*"):
        out = model(rows())
        out.register_hook(lambda gradient: seen.append(gradient))
    out.sum().backward()
    assert len(seen) == 1


def test_hooks_of_the_user_on_parameters_stay() -> None:
    model = relu_mlp()
    seen: list[Any] = []
    model[0].weight.register_post_accumulate_grad_hook(seen.append)
    with tt.watch(model, ALL):
        model(rows()).sum().backward()
    model(rows()).sum().backward()
    assert len(seen) == 2


def test_retained_gradients_are_those_of_the_unwatched_model() -> None:
    model = relu_mlp()
    with tt.watch(model, "*:*") as w:
        out = model(rows())
        out.retain_grad()
        (out * 3).sum().backward()
    assert out.grad.unique().tolist() == [3.0]
    assert same(w.run["2:grad_output"], out.grad)

"""Edits of compiled models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from edited import close
from models import grads, mlp
from random_numbers import leaf
from torch import Tensor, nn

import torchtap as tt


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.linear(self.norm(x)))


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("where", ["2.norm", "3.norm:input", "re:[02].norm", "re:(0|2).linear"])
def test_of_equal_compiled_blocks_each_is_edited_and_watched(where: str) -> None:
    model, x = nn.Sequential(*(Block() for _ in range(4))), torch.randn(3, 4)
    plain = model(x)
    compiled: Any = torch.compile(model, backend="eager")
    before = torch._dynamo.config.skip_nnmodule_hook_guards
    with tt.edit(model, where, tt.edits.scale(0.5)) as e, tt.watch(model, where) as w:
        found = [compiled(x), compiled(x)]
        fired = dict(e.fired)
        right = model(x)
    assert all(torch.equal(out, right) for out in found) and not torch.equal(plain, right)
    assert set(fired.values()) == {2} and not w.absent
    assert torch._dynamo.config.skip_nnmodule_hook_guards is before
    close(compiled(x), plain)


COMPILED = [
    ("0", tt.edits.scale(2.0)),
    ("1:input", tt.edits.zero(at={-1: 0})),
    ("1:grad_output", tt.edits.clamp(-0.1, 0.1)),
    ("2:grad_input", lambda g: g * g),
    ("*:param_grad", tt.edits.sign()),
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_model_is_edited_as_an_eager_one(backend: str) -> None:
    for where, function in COMPILED:
        torch.compiler.reset()
        eager, model, x = mlp().double(), mlp().double(), leaf(5, 3).detach()
        compiled: Any = torch.compile(model, backend=backend)
        with tt.edit(eager, where, function):  # type: ignore[arg-type]
            right = eager(x)
            right.sum().backward()
        with tt.edit(compiled, where, function) as edit:  # type: ignore[arg-type]
            for _ in range(2):
                model.zero_grad()
                out = compiled(x)
                out.sum().backward()
        close(out, right)
        close(grads(model), grads(eager))
        assert sum(edit.fired.values()) > 0
        close(compiled(x), mlp().double()(x))
    torch.compiler.reset()

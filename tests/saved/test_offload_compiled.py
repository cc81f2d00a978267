"""Offloading around, and inside of, what ``torch.compile`` compiles."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from bits import same
from models import seeded
from offloads import gradients, noise, offloads
from torch import Tensor, nn

import torchtap as tt

Step = Callable[[Tensor], Tensor]

# Dynamo warns, and so does the code that it traces.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh_compiler")]


class Residual(nn.Module):
    def __init__(self, num_blocks: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32))
            for _ in range(num_blocks)
        )
        self.head = nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


Around = Callable[[nn.Module, nn.Module], AbstractContextManager[Any]]
FORMS: dict[str, Around] = {
    "attached inside": lambda model, _: tt.offload("disk", model=model, min_bytes=64),
    "attached to the wrapper": lambda _, compiled: tt.offload(
        "disk", model=compiled, where=".", min_bytes=64
    ),
    "block": lambda model, compiled: tt.offload("disk", min_bytes=64),
}
every_form = pytest.mark.parametrize("form", FORMS)


def trained(
    what: str, form: str | None, backend: str = "aot_eager", **options: Any
) -> tuple[list[float], list[Tensor], int]:
    """Losses and parameters of three steps, and the bytes that were taken in hand."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model, x = Residual(), torch.randn(16, 32)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    options["backend"] = backend
    called: Any = model
    if what == "model":
        called = torch.compile(model, **options)
    elif what == "blocks":
        for block in model.blocks:
            block.compile(**options)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = called(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    run: Step = torch.compile(step, **options) if what == "step" else step
    off = None if form is None else FORMS[form](model, called)
    with tt.suspend_offload() if off is None else off:
        losses = [float(run(x).detach()) for _ in range(3)]
    packed = 0 if off is None else off.report().packed_nbytes  # type: ignore[attr-defined]
    return losses, list(model.parameters()), packed


@pytest.mark.slow
@every_form
@pytest.mark.parametrize("what", ["step", "model", "blocks"])
def test_training_that_is_compiled_is_the_same_to_the_bit(what: str, form: str) -> None:
    """Also where forward, backward and the optimizer are one compiled function."""
    losses, params, _ = trained(what, None)
    found, same, packed = trained(what, form)
    assert found == losses
    assert all(map(torch.equal, same, params))
    assert packed > 0


@pytest.mark.slow
@every_form
@pytest.mark.parametrize("what", ["step", "model", "blocks"])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_training_that_inductor_compiles_is_the_same(what: str, form: str, mode: str) -> None:
    losses, params, _ = trained(what, None, "inductor", mode=mode)
    found, same, packed = trained(what, form, "inductor", mode=mode)
    assert found == pytest.approx(losses, rel=1e-5)
    for one, other in zip(same, params, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert packed > 0


@pytest.mark.parametrize("form", ["attached to the wrapper", "block"])
def test_a_full_graph_is_offloaded_from_outside(form: str) -> None:
    losses, params, _ = trained("model", None, fullgraph=True)
    found, same, packed = trained("model", form, fullgraph=True)
    assert found == losses
    assert all(map(torch.equal, same, params))
    assert packed > 0


@pytest.mark.parametrize("what", ["model", "blocks"])
def test_a_full_graph_with_an_offload_inside_is_an_error_that_names_the_ways_out(what: str) -> None:
    with pytest.raises(torch._dynamo.exc.Unsupported) as caught:
        trained(what, "attached inside", fullgraph=True)
    for part in ("torchtap: tt.offload", "where='.'", "with tt.offload", "fullgraph=False"):
        assert part in str(caught.value)


def test_an_offload_that_is_made_inside_breaks_the_graph_or_says_so() -> None:
    weight = torch.randn(16, 16, requires_grad=True)

    def saving(x: Tensor) -> Tensor:
        with tt.offload("disk", min_bytes=0):
            return (x @ weight).exp().sum()

    x = torch.randn(16, 16)
    right = torch.autograd.grad((x @ weight).exp().sum(), weight)[0]
    loss = torch.compile(saving, backend="aot_eager")(x)
    assert torch.equal(torch.autograd.grad(loss, weight)[0], right)
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"torchtap: tt\.offload is called"):
        torch.compile(saving, backend="aot_eager", fullgraph=True)(x)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Of inductor's own.
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("is_attached", [False, True], ids=["block", "attached"])
@pytest.mark.parametrize("to", ["disk", "cpu"])
@pytest.mark.usefixtures("fresh_compiler")
def test_compiled(backend: str, is_attached: bool, to: str) -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)))
    compiled: Any = torch.compile(model, backend=backend, fullgraph=True)
    x = noise(8, 16)
    expected = gradients(model, compiled(x).sin().sum())
    attached: dict[str, Any] = {"model": compiled, "where": "."} if is_attached else {}
    with offloads(to, **attached) as off:
        for _ in range(3):
            assert same(gradients(model, compiled(x).sin().sum()), expected)
    assert off.report().packed_nbytes > 0

"""The ports `step_grad` and `update`: what a step of an optimizer used, and what it changed."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from absent import reasons_at
from torch import Tensor, nn

import torchtap as tt


class Slow(torch.optim.Optimizer):
    """Lookahead: goes half the way of the optimizer inside."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        params = [p for group in self.param_groups for p in group["params"]]
        before = [p.detach().clone() for p in params]
        self.inner.step()
        with torch.no_grad():
            for param, old in zip(params, before, strict=True):
                param.copy_((param + old) / 2)


def test_the_update_of_a_nested_optimizer_is_that_of_the_outer_one() -> None:
    model = nn.Linear(2, 1)
    optimizer = Slow(torch.optim.SGD(model.parameters(), lr=1.0))
    before = model.weight.detach().clone()
    with tt.watch(model, ".:update") as w:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    (record,) = w.run.records(".:update[weight]")
    assert torch.equal(record.value, model.weight.detach() - before)


def test_tied_weights_have_their_update_at_both_places() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.embed(x))

    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tt.watch(model, "*:update") as w:
        model(torch.tensor([1, 2])).square().sum().backward()
        optimizer.step()
    assert torch.equal(w.run["embed:update[weight]"], w.run["head:update[weight]"])
    assert w.absent == []


@pytest.mark.parametrize(
    ("requires_grad", "right"),
    [
        (False, "it does not require grad, and no optimizer made a step with it"),
        (True, "no optimizer made a step with it in step 0: those that made one do not hold it"),
    ],
    ids=["frozen", "not held"],
)
def test_a_parameter_that_no_optimizer_holds_has_no_update(requires_grad: bool, right: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    model[0].requires_grad_(requires_grad)  # Frozen, as the weights beside those of LoRA.
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    with tt.watch(model, "*:update") as w:
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        w.step()
    assert reasons_at(w, "0:update[weight]") == [right]


# --- the gradient that the step used --------------------------------------------------------------


def used_by(optimizer: torch.optim.Optimizer) -> list[dict[int, Tensor]]:
    """Gradients that a hook of PyTorch sees before each step: id of a parameter -> gradient."""
    seen: list[dict[int, Tensor]] = []

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        held = [param for group in optimizer.param_groups for param in group["params"]]
        seen.append({id(p): p.grad.clone() for p in held if p.grad is not None})

    optimizer.register_step_pre_hook(before)
    return seen


@pytest.mark.parametrize("sink", [tt.Memory, tt.Stats])
def test_the_gradient_of_a_step_is_accumulated_and_clipped(sink: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    seen = used_by(optimizer)
    with tt.watch(model, "*:param_grad,step_grad", to=sink()) as w:
        for _ in range(2):
            for _ in range(3):
                model(10 * torch.randn(5, 3)).square().sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            w.step()
    for step in range(2):
        for path in ("0", "2"):
            expected = seen[step][id(model[int(path)].weight)]
            found = w.run.stats(f"{path}:step_grad[weight]", step=step)
            assert found.num_tensors == 1
            assert found.l2 == pytest.approx(expected.norm().item(), rel=1e-6)
            if sink is tt.Memory:
                assert torch.equal(w.run.get(f"{path}:step_grad[weight]", step=step), expected)
    assert w.run.stats("0:param_grad[weight]").l2 > 1
    assert w.absent == []


@pytest.mark.parametrize("fused", [False, True])
def test_the_gradient_of_a_step_is_unscaled(fused: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x = torch.randn(5, 3)
    expected = torch.autograd.grad(model(x).square().sum(), model.weight)[0]
    with tt.watch(model, ".:param_grad,step_grad") as w:
        scaler.scale(model(x).square().sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert torch.equal(w.run[".:step_grad[weight]"], expected)
    assert torch.equal(w.run[".:param_grad[weight]"], 1024 * expected)
    said = w.run.record(".:step_grad[weight]").labels
    assert said == (("divided by the grad_scale of the optimizer",) if fused else ())


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_a_scaler_skips_has_no_gradient_and_says_so(fused: bool) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with tt.watch(model, ".:step_grad,update") as w:
        scaler.scale(model(torch.full((1, 3), torch.inf)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        w.step()
    assert len(w.run) == 0
    assert "its gradient was not finite" in reasons_at(w, ".:step_grad[weight]")[0]


def test_a_run_that_stops_in_mid_step_blames_no_scaler() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    w = tt.watch(model, ".:step_grad")
    with contextlib.suppress(KeyboardInterrupt), w:
        for number, value in enumerate((1.0, torch.inf, 1.0, torch.inf)):
            optimizer.zero_grad()
            scaler.scale(model(torch.full((1, 3), value)).sum()).backward()
            if number == 3:
                raise KeyboardInterrupt
            scaler.step(optimizer)
            scaler.update()
            w.step()
    assert reasons_at(w, ".:step_grad[weight]") == [
        "no optimizer made a step with it in step 1: GradScaler skipped the step, since its "
        "gradient was not finite; in step 3: the watch was closed in the middle of that step, "
        "before any made one"
    ]


def test_a_scaler_that_was_not_updated_yet_is_seen_to_have_skipped() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with tt.watch(model, ".:update") as w:
        scaler.scale(model(torch.full((1, 3), torch.inf)).sum()).backward()
        scaler.step(optimizer)
        optimizer.zero_grad()
    assert "GradScaler skipped the step, since some gradient" in reasons_at(w, ".:update[bias]")[0]


def test_a_closure_computes_the_gradient_inside_the_step() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x = torch.randn(5, 3)
    evaluated = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (model(x) - 1).square().sum()
        loss.backward()
        evaluated.append(model.weight.grad.clone())
        return loss

    with tt.watch(model, ".:step_grad") as w:
        optimizer.step(closure)
    record = w.run.record(".:step_grad[weight]")
    assert len(evaluated) > 1
    assert torch.equal(record.value, evaluated[-1])
    assert record.labels == ("computed inside the optimizer's step, by its closure",)


def test_a_step_inside_a_step_uses_one_gradient() -> None:
    model = nn.Linear(2, 1)
    optimizer = Slow(torch.optim.SGD(model.parameters(), lr=1.0))
    with tt.watch(model, ".:step_grad") as w:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert len(list(w.run.records(".:step_grad[weight]"))) == 1


def test_parameters_without_a_gradient_are_named() -> None:
    model = nn.ModuleDict({"used": nn.Linear(2, 1), "idle": nn.Linear(2, 1)})
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with tt.watch(model, "*:step_grad") as w:
        model["used"](torch.ones(1, 2)).sum().backward()
        optimizer.step()
    (reason,) = reasons_at(w, "idle:step_grad[weight]")
    assert reason == "no optimizer made a step with it in step 0: it has no gradient"


def test_a_gradient_that_the_optimizer_overwrites_is_kept_as_it_was() -> None:
    class Overwriting(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            super().step()
            for group in self.param_groups:
                for param in group["params"]:
                    param.grad.zero_()

    model = nn.Linear(2, 1, bias=False)
    optimizer = Overwriting(model.parameters(), lr=1.0)
    with tt.watch(model, ".:step_grad") as w:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert torch.equal(w.run[".:step_grad[weight]"], torch.ones(1, 2))


def test_a_gradient_of_a_step_is_not_edited() -> None:
    with pytest.raises(tt.EditError, match=r"edited at '\.:param_grad'"):
        tt.edit(nn.Linear(2, 1), ".:step_grad", tt.edits.zero())

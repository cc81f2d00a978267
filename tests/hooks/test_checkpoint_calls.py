"""Calls that a checkpoint runs again are told from those of the forward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from models import seeded, squares
from random_numbers import leaf
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchtap as tt
from torchtap.testing import Net


def checkpointed(*, reentrant: bool) -> Net:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.after(checkpoint(m.inner, m.before(x), use_reentrant=reentrant))

    inner = Net(lambda m, x: m.b(m.a(x)), a=squares(), b=squares())
    return Net(forward, before=squares(), inner=inner, after=squares())


def thrice(inner: nn.Module, *, reentrant: bool) -> Net:
    """Calls one module three times, each time in a checkpoint."""

    def forward(m: Any, x: Tensor) -> Tensor:
        for _ in range(3):
            x = checkpoint(m.inner, x, use_reentrant=reentrant)
        return x

    return Net(forward, inner=inner)


both_kinds = pytest.mark.parametrize("reentrant", [False, True], ids=["plain", "reentrant"])


@both_kinds
def test_a_checkpointed_call_is_counted_once(reentrant: bool) -> None:
    model, x = checkpointed(reentrant=reentrant), leaf(2)
    with tt.watch(model, "*:*") as w:
        model(x).sum().backward()
    calls = [record.call for record in w.run.records("inner.a:output")]
    assert calls == [0]
    torch.testing.assert_close(w.run["inner.a:output"], x.detach() ** 4)
    torch.testing.assert_close(w.run["inner.b:output"], x.detach() ** 8)


@both_kinds
def test_gradients_inside_a_checkpoint_are_right(reentrant: bool) -> None:
    model, x = checkpointed(reentrant=reentrant), leaf(2)
    with tt.watch(model, "*:grad_output,grad_input") as w:
        model(x).sum().backward()
    value = x.detach()  # The whole is x^16.
    expected = {
        "inner.a:grad_input": 8 * value**14,
        "inner.a:grad_output": 4 * value**12,
        "inner.b:grad_output": 2 * value**8,
        "before:grad_input": 16 * value**15,
    }
    for site, gradient in expected.items():
        torch.testing.assert_close(w.run[site], gradient)
        assert len(list(w.run.records(site))) == 1


@both_kinds
def test_gradients_inside_a_checkpoint_have_phase_forward(reentrant: bool) -> None:
    model = checkpointed(reentrant=reentrant)
    with tt.watch(model, "*:grad_output") as w:
        model(leaf(2)).sum().backward()
    assert {record.phase for record in w.run.records(phase=None)} == {"forward"}


@both_kinds
def test_memory_holds_the_recomputed_values_too(reentrant: bool) -> None:
    model, memory = checkpointed(reentrant=reentrant), tt.Memory()
    with tt.watch(model, "inner.*", to=memory) as w:
        model(leaf(2)).sum().backward()
    phases = [(str(row.site), row.phase) for row in memory.rows]
    assert phases.count(("inner.a:output", "forward")) == 1
    assert phases.count(("inner.a:output", "recompute")) == 1
    again = w.run.get("inner.a:output", phase="recompute")
    assert torch.equal(again, w.run["inner.a:output"])


@both_kinds
def test_a_run_hides_recomputed_values_by_default(reentrant: bool) -> None:
    model = checkpointed(reentrant=reentrant)
    with tt.watch(model, "inner.a") as w:
        model(leaf(2)).sum().backward()
    assert [r.phase for r in w.run.records()] == ["forward"]
    assert [r.phase for r in w.run.records(phase="recompute")] == ["recompute"]
    assert [r.phase for r in w.run.records(phase=None)] == ["forward", "recompute"]
    assert w.run.table().rows[0].calls == 1


@both_kinds
def test_recomputed_calls_keep_the_number_of_the_first_pass(reentrant: bool) -> None:
    model, x = thrice(Net(lambda m, x: 2 * x.sin()), reentrant=reentrant), leaf(2)
    with tt.watch(model, "inner:*") as w:
        model(x).sum().backward()
    for call in range(3):
        again = w.run.get("inner:input", call=call, phase="recompute")
        assert torch.equal(again, w.run.get("inner:input", call=call))
    value = x.detach()
    inner = 2 * value.sin()
    outer = 2 * inner.sin()
    expected = {2: 2 * outer.cos(), 1: 4 * outer.cos() * inner.cos()}
    for call, gradient in expected.items():
        torch.testing.assert_close(w.run.get("inner:grad_input", call=call), gradient)


@both_kinds
def test_a_watched_checkpoint_is_bit_equal_to_unwatched(reentrant: bool) -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        return checkpoint(m.inner, x, use_reentrant=reentrant)

    inner = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4))
    model = Net(forward, inner=inner).double()

    def gradients() -> list[Tensor]:
        model.zero_grad()
        torch.manual_seed(0)
        x = leaf(8, 4)
        model(x).sum().backward()
        return [x.grad, *(p.grad.clone() for p in model.parameters())]  # type: ignore[list-item]

    plain = gradients()
    with tt.watch(model, ["*:*", "*:param_grad"]):
        watched = gradients()
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))


@both_kinds
def test_a_parameter_used_in_several_checkpoints_has_one_gradient(reentrant: bool) -> None:
    model = thrice(nn.Linear(2, 2), reentrant=reentrant).double()
    with tt.watch(model, "*:param_grad") as w:
        model(leaf(1, 2)).sum().backward()
    assert torch.equal(w.run["inner:param_grad[weight]"], model.inner.weight.grad)
    assert len(list(w.run.records("inner:param_grad[weight]"))) == 1


class SharedInCheckpoints(nn.Module):
    """Two modules in three checkpoints, so that only memory tells their calls apart."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def block(self, x: Tensor) -> Tensor:
        found: Tensor = self.b(self.a(x).tanh())
        return found

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = checkpoint(self.block, x, use_reentrant=False)
        return x


def test_calls_are_told_apart_when_an_offload_brings_their_inputs_back_in_other_memory() -> None:
    model, x = seeded(SharedInCheckpoints), torch.randn(5, 6)

    def gradients() -> list[Tensor]:
        return list(torch.autograd.grad(model(x).sum(), list(model.parameters())))

    with tt.edit(model, "a:output", tt.edits.scale(2.0)):
        expected = gradients()
    with (
        tt.edit(model, "a:output", tt.edits.scale(2.0)) as edit,
        tt.watch(model, "a") as w,
        tt.offload("disk", model=model, min_bytes=0) as off,
    ):
        loss = model(x).sum()
        off.flush()
        found = list(torch.autograd.grad(loss, list(model.parameters())))
    assert off.report().moved_nbytes["disk"] > 0
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert edit.fired == {"a:output": 3}
    again = [record.call for record in w.run.records("a:output", phase="recompute")]
    assert again == [2, 1, 0]
    assert not w.absent

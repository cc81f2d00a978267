"""Gradients of arguments: whole where they are recorded, and absent with a reason elsewhere."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from absent import reasons_at
from models import squares
from random_numbers import leaf
from torch import Tensor, nn

import torchtap as tt
from torchtap.testing import Net


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Any) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return gradient * w, gradient * x


class TwoWays(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.full((2,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        return Product.apply(x, self.w) + x * 3


@pytest.mark.parametrize("whole", [True, False])
def test_a_backward_for_other_inputs_brings_no_part_of_a_gradient(whole: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 2), TwoWays())
    with tt.watch(model, "1:grad_input") as w:
        loss = model(torch.ones(1, 2)).sum()
        if whole:
            loss.backward()
        else:
            loss.backward(inputs=[model[1].w])
    if whole:
        assert torch.equal(w.run["1:grad_input"], torch.full((1, 2), 5.0))
    else:
        assert "inputs=" in reasons_at(w, "1:grad_input")[0]


def test_a_gradient_that_was_asked_for_by_name_is_whole() -> None:
    model = TwoWays()
    x = torch.ones(1, 2, requires_grad=True)
    with tt.watch(model, ".:grad_input") as w:
        torch.autograd.grad(model(x).sum(), [x])
    assert torch.equal(w.run[".:grad_input"], torch.full((1, 2), 5.0))


def test_a_second_backward_past_the_module_is_absent() -> None:
    model = Net(lambda net, x: x * x.tanh())
    x = torch.tensor([0.5], requires_grad=True)
    with tt.watch(model, ".:grad_input") as w:
        (gradient,) = torch.autograd.grad(model(x).sum(), [x], create_graph=True)
        gradient.square().sum().backward()
    (record,) = w.run.records(".:grad_input")
    assert torch.equal(record.value, gradient.detach())
    assert "create_graph=True" in reasons_at(w, ".:grad_input")[0]


def test_an_input_that_is_optimised_in_a_loop_gets_one_gradient_per_call() -> None:
    model = nn.Sequential(nn.Identity(), nn.Linear(2, 1, bias=False))
    x = torch.ones(1, 2, requires_grad=True)
    with tt.watch(model, "0:grad_output") as w:
        for _ in range(4):
            x.grad = None
            model(x).sum().backward()
    records = list(w.run.records("0:grad_output"))
    assert [record.call for record in records] == [0, 1, 2, 3]
    assert all(torch.equal(r.value, model[1].weight.detach()) for r in records)


def test_what_the_output_does_not_depend_on_is_reported() -> None:
    model = Net(lambda net, x, y: x * 2)
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    with tt.watch(model, ".:grad_input") as w:
        model(x, y).sum().backward()
    assert [str(site) for site in w.run.sites] == [".:grad_input[0]"]
    assert "does not depend on it" in reasons_at(w, ".:grad_input[1]")[0]


def test_an_interrupted_call_holds_nothing_afterwards() -> None:
    def forward(net: nn.Module, x: Tensor) -> Tensor:
        y = net.linear(x)
        if net.interrupt:
            raise KeyboardInterrupt
        return y.t()

    model = Net(forward, linear=nn.Linear(2, 2))
    model.interrupt = True  # type: ignore[assignment]
    alive = []
    with tt.watch(model, "*:*", to=lambda record: None):
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(1, 2))
        model.interrupt = False  # type: ignore[assignment]
        for _ in range(5):
            y = model(torch.ones(1, 2))
            y.sum().backward()
            alive.append(weakref.ref(y))
            del y
        assert not any(reference() is not None for reference in alive)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_gradient_of_a_nested_argument_is_recorded() -> None:
    rows = [torch.ones(2, 3), torch.ones(1, 3)]
    x = torch.nested.nested_tensor(rows, requires_grad=True)
    model = nn.Linear(3, 1)
    with tt.watch(model, "*:*") as w:
        sum(one.sum() for one in model(x).unbind()).backward()
    for mine, right in zip(w.run[".:grad_input"].unbind(), x.grad.unbind(), strict=True):
        assert torch.equal(mine, right)


_ROWS = [torch.arange(6.0).reshape(2, 3), torch.ones(1, 3)]
_LEAVES = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "jagged": lambda: torch.nested.nested_tensor(_ROWS, layout=torch.jagged),
    "nested": lambda: torch.nested.nested_tensor(_ROWS),
}


def _sum_of_doubled(_: nn.Module, x: Tensor) -> Tensor:
    if x.layout is torch.sparse_coo:
        return torch.sparse.sum(x * 2)
    return (x * 2).values().sum()


def _dense(tensor: Tensor) -> Tensor:
    return tensor.values() if tensor.is_nested else tensor.to_dense()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", _LEAVES)
def test_a_leaf_without_views_is_watched_verified_and_summarised(kind: str) -> None:
    net, plain = Net(_sum_of_doubled), _LEAVES[kind]().requires_grad_()
    net(plain).backward()
    x = _LEAVES[kind]().requires_grad_()
    with tt.watch(net, "*:*") as w:
        net(x).backward()
    assert plain.grad is not None and x.grad is not None
    assert torch.equal(_dense(x.grad), _dense(plain.grad))
    assert torch.equal(_dense(w.run[".:grad_input"]), _dense(plain.grad))
    fresh = _LEAVES[kind]().requires_grad_()
    assert tt.verify(net, fresh)
    assert tt.summary(net, fresh).rows[0].calls == 1
    assert fresh.requires_grad


def test_what_flows_past_the_nodes_of_a_module_is_not_left_out_of_a_record() -> None:
    """An inner backward to a parameter makes a second way back to the module's argument."""
    inner, outer = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(m: nn.Module, x: Tensor) -> Tensor:
        out = m.outer(m.inner(x))
        (down,) = torch.autograd.grad(out.square().sum(), m.outer.weight, create_graph=True)  # type: ignore[arg-type]
        return out.sum() + down.sum()

    model = Net(forward, inner=inner, outer=outer)
    with tt.watch(model, "outer:grad_input") as w:
        model(torch.ones(2, 3)).backward()
    assert len(w.run) == 0
    assert "create_graph=True" in reasons_at(w, "outer:grad_input")[0]


def test_a_backward_that_goes_only_past_the_nodes_of_a_module_is_reported() -> None:
    """A force alone reaches the argument by nodes that the first backward made."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    x = torch.ones(2, 3, requires_grad=True)
    with tt.watch(model, "1:grad_input") as w:
        (force,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        force.square().sum().backward()
    assert [record.backward for record in w.run.records("1:grad_input")] == [0]
    assert "create_graph=True" in reasons_at(w, "1:grad_input")[0]


def two_ways() -> Net:
    """The argument of ``side`` flows through it, and beside it too."""

    def forward(m: Any, x: Tensor) -> Tensor:
        y = 2 * x
        return m.side(y) + 5 * y

    return Net(forward, side=squares())


def test_grad_input_is_what_flows_through_the_module() -> None:
    model, x = two_ways(), leaf(3)
    with tt.watch(model, "side:grad_input") as w:
        model(x).sum().backward()
    record = w.run.record("side:grad_input")
    torch.testing.assert_close(record.value, 4 * x.detach())
    assert record.labels == ()


def test_grad_input_may_be_the_total() -> None:
    model, x = two_ways(), leaf(3)
    with tt.watch(model, "side:grad_input", grad_input="total") as w:
        model(x).sum().backward()
    record = w.run.record("side:grad_input")
    torch.testing.assert_close(record.value, 4 * x.detach() + 5)
    assert record.labels == ("total",)


def test_the_total_of_a_leaf_that_lives_on_collects_no_hooks() -> None:
    model, x = squares(), leaf(3)
    with tt.watch(model, ".:grad_input", grad_input="total") as w:
        for _ in range(5):
            model(x).sum().backward()
            w.step()
        assert not x._backward_hooks
    assert [r.value.tolist() for r in w.run.records()] == [(2 * x).tolist()] * 5


def test_an_input_used_and_returned_is_counted_once() -> None:
    model = Net(lambda m, x: sum(m.inner(x, 2 * x)), inner=Net(lambda m, x, bias: (x + bias, bias)))
    with tt.watch(model, "inner:grad_input") as w:
        model(leaf(1)).sum().backward()
    found = {r.site.leaf: (r.value.item(), r.labels) for r in w.run.records()}
    assert found == {"0": (1.0, ()), "1": (2.0, ("total",))}


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_view_is_freed_with_its_graph_also_where_the_forward_closes_the_watch(
    is_closed: bool,
) -> None:
    views = []

    def forward(m: Any, x: Tensor) -> Tensor:
        view = m.view(x * 2)
        views.append(weakref.ref(view))
        if is_closed:
            w.close()
        return m.last(view).sum()

    model = Net(forward, view=Net(lambda m, x: x.view(-1)), last=nn.Tanh())
    w = tt.watch(model, "*:grad_output", to=lambda record: None)
    model(torch.ones(2, 2, requires_grad=True))
    assert views[0]() is None
    w.close()


@pytest.mark.parametrize("change", [lambda x: x.unsqueeze_(0), lambda x: x.t_()])
def test_the_gradient_of_an_argument_whose_shape_is_changed_in_place_has_the_old_shape(
    change: Any,
) -> None:
    model, x = Net(lambda m, x: change(x).sin()), leaf(3, 4)
    right = x.detach().cos()
    with tt.watch(model, "*:grad_input") as w:
        model(x * 1).sum().backward()
    assert torch.equal(w.run[".:grad_input"], right)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_a_compressed_sparse_argument_can_be_a_leaf() -> None:
    model, dense = Net(lambda m, x: x.to_dense().sin()), torch.eye(3, dtype=torch.float64)
    x = dense.to_sparse_csr().requires_grad_()
    with tt.watch(model, "*:*") as w:
        model(x).sum().backward()
    assert torch.equal(w.run[".:input"].to_dense(), dense)
    gradient = w.run[".:grad_input"]
    assert torch.equal(gradient.to_dense().diagonal(), torch.ones(3).double().cos())

"""Watching through all that autograd can do: several backwards, modes, checkpoints, graphs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from absent import reasons
from models import squares
from random_numbers import leaf, wide
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchtap as tt
from torchtap.core.tensors import storage_id
from torchtap.hooks.backwards import given_storages
from torchtap.testing import Net

# --- several backwards ------------------------------------------------------------------------


def test_two_backwards_through_one_graph_give_two_records() -> None:
    model, x = squares(), leaf(2)
    with tt.watch(model, ".:grad_output,grad_input") as w:
        y = model(x).sum()
        y.backward(retain_graph=True)
        (3 * y).backward()
    found = {record.backward: record.value for record in w.run.records(".:grad_output")}
    assert {number: value.tolist() for number, value in found.items()} == {0: [1, 1], 1: [3, 3]}
    torch.testing.assert_close(w.run.get(".:grad_input", backward=0), 2 * x.detach())
    torch.testing.assert_close(w.run.get(".:grad_input", backward=1), 6 * x.detach())


def test_the_second_order_is_a_backward_of_its_own() -> None:
    model, x = squares(), leaf(2)
    with tt.watch(model, ".:grad_output") as w:
        y = model(x)
        (first,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)  # 4 x^3
        (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, 12 * x.detach() ** 2)
    value = x.detach()
    torch.testing.assert_close(w.run.get(".:grad_output", backward=0), 2 * value**2)
    # The penalty 4 x^3 = 2 y * 2 x is 4 x in y, seen from the graph of the first backward.
    torch.testing.assert_close(w.run.get(".:grad_output", backward=1), 4 * value)


def test_double_backward_is_bit_equal_to_unwatched() -> None:
    def penalty(model: nn.Module, x: Tensor) -> list[Tensor]:
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (gradient**2).sum().backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    plain = [gradient.clone() for gradient in penalty(model, leaf(5, 3))]
    model.zero_grad()
    with tt.watch(model, "*:*"):
        watched = penalty(model, leaf(5, 3))
    assert len(plain) == 3
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))


def test_gradients_are_kept_when_only_asked_for() -> None:
    model, x = squares(), leaf(2)
    with tt.watch(model, ".:grad_output,grad_input") as w:
        (gradient,) = torch.autograd.grad(model(x).sum(), x)
    assert torch.equal(w.run[".:grad_input"], gradient)
    assert x.grad is None


def test_backward_with_chosen_inputs_reaches_what_is_on_the_way() -> None:
    model, x = Net(lambda m, x: m.b(m.a(x)), a=squares(), b=squares()), leaf(2)
    with tt.watch(model, "*:grad_output") as w:
        model(x).sum().backward(inputs=[x])
    torch.testing.assert_close(w.run["a:grad_output"], 2 * x.detach() ** 2)


def test_a_backward_inside_a_backward_is_part_of_it() -> None:
    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                again = x.detach().requires_grad_()
                (again**3).sum().backward()
            return gradient * again.grad

    model, x = Net(lambda m, x: m.a(Inner.apply(x)), a=squares()), leaf(2)
    with tt.watch(model, "*:grad_output,grad_input") as w:
        model(x).sum().backward()
    torch.testing.assert_close(w.run[".:grad_input"], 6 * x.detach() ** 5)
    assert {record.backward for record in w.run.records()} == {0}


def batch_of_backwards(y: Tensor, x: Tensor, eye: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(y, x, eye, is_grads_batched=True)
    return gradient


def vmap_over_backward(y: Tensor, x: Tensor, eye: Tensor) -> Tensor:
    return torch.vmap(lambda g: torch.autograd.grad(y, x, g, retain_graph=True)[0])(eye)


@pytest.mark.parametrize("batched", [batch_of_backwards, vmap_over_backward])
@pytest.mark.parametrize("sink", [tt.Memory, tt.Stats])
def test_a_batch_of_backwards_runs_and_is_said_absent(batched: Any, sink: Any) -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.flat(m.square(x))
        y.mul_(3)
        return y

    model = Net(forward, square=squares(), flat=nn.Flatten(0))
    x, eye = leaf(2, 1), torch.eye(2, dtype=torch.float64)
    with tt.watch(model, "*:grad_output,grad_input", to=sink()) as w:
        jacobian = batched(model(x), x, eye)
    torch.testing.assert_close(jacobian.reshape(2, 2), 6 * torch.diag(x.detach().flatten()))
    assert w.run.sites == []
    assert "batch of gradients" in reasons(w)["square:grad_output"]
    assert "batch of gradients" in reasons(w)[".:grad_input"]


def test_a_jacobian_one_by_one_is_several_backwards() -> None:
    model, x = squares(), wide(2)
    with tt.watch(model, ".:grad_output") as w:
        torch.autograd.functional.jacobian(model, x)
    assert [record.value.tolist() for record in w.run.records()] == [[1.0, 0.0], [0.0, 1.0]]


# --- grad modes -------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_values_are_kept_without_grad(mode: Any) -> None:
    model, x = squares(), wide(3)
    with tt.watch(model, ".:*") as w, mode():
        model(x)
    assert torch.equal(w.run[".:input"], x)
    assert torch.equal(w.run[".:output"], x * x)


@pytest.mark.parametrize(
    ("mode", "reason"), [(torch.no_grad, "grad mode"), (torch.inference_mode, "inference mode")]
)
def test_gradients_without_grad_mode_are_said_absent(mode: Any, reason: str) -> None:
    model = squares()
    with tt.watch(model, ".:grad_output") as w, mode():
        model(leaf(3))
    assert reason in reasons(w)[".:grad_output"]


def test_an_inference_tensor_is_kept_as_a_plain_one() -> None:
    model = squares()
    with tt.watch(model) as w, torch.inference_mode():
        model(wide(3)).mul_(0)
    assert torch.equal(w.run[".:output"], wide(3) ** 2)


def test_an_integer_output_has_no_gradient_and_it_is_said() -> None:
    model = Net(lambda m, x: x.argmax())
    with tt.watch(model, ".:output,grad_output") as w:
        model(leaf(3))
    assert w.run[".:output"].dtype == torch.int64
    assert reasons(w) == {".:grad_output": "int64 carries no gradient"}


def test_an_input_that_needs_no_grad_is_said_absent() -> None:
    model = nn.Linear(2, 2)
    with tt.watch(model, ".:grad_input") as w:
        model(torch.ones(1, 2)).sum().backward()
    assert reasons(w) == {".:grad_input": "it does not require grad"}


def test_a_gradient_that_never_came_is_said_absent() -> None:
    model = squares()
    with tt.watch(model, ".:grad_output") as w:
        model(leaf(3))
    assert "no backward was run" in reasons(w)[".:grad_output"]


def test_a_gradient_that_came_is_not_said_absent() -> None:
    model = squares()
    with tt.watch(model, ".:grad_output") as w:
        model(leaf(3)).sum().backward()
    assert w.absent == []


def test_gradients_that_came_for_some_calls_are_counted() -> None:
    model = squares()
    with tt.watch(model, ".:grad_output") as w:
        model(leaf(3))
        model(leaf(3)).sum().backward()
    assert reasons(w) == {".:grad_output": "no gradient arrived for 1 of 2 calls"}


def test_an_output_outside_of_the_loss_has_no_gradient() -> None:
    model = Net(lambda m, x: (m.used(x), m.unused(x))[0], used=squares(), unused=squares())
    with tt.watch(model, "*used:grad_output") as w:
        model(leaf(3)).sum().backward()
    assert [str(site) for site in w.run.sites] == ["used:grad_output"]
    assert list(reasons(w)) == ["unused:grad_output"]


# --- through or total -------------------------------------------------------------------------


def forked() -> Net:
    return Net(lambda m, x: m.side(2 * x) + 5 * x, side=squares())


def test_grad_input_is_what_flows_through_the_module() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = 2 * x
        return m.side(y) + 5 * y

    model, x = Net(forward, side=squares()), leaf(3)
    with tt.watch(model, "side:grad_input") as w:
        model(x).sum().backward()
    record = w.run.record("side:grad_input")
    torch.testing.assert_close(record.value, 4 * x.detach())
    assert record.labels == ()


def test_grad_input_may_be_the_total() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = 2 * x
        return m.side(y) + 5 * y

    model, x = Net(forward, side=squares()), leaf(3)
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


# --- checkpoints ------------------------------------------------------------------------------


def checkpointed(*, reentrant: bool) -> Net:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.after(checkpoint(m.inner, m.before(x), use_reentrant=reentrant))

    inner = Net(lambda m, x: m.b(m.a(x)), a=squares(), b=squares())
    return Net(forward, before=squares(), inner=inner, after=squares())


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
    def forward(m: Any, x: Tensor) -> Tensor:
        for _ in range(3):
            x = checkpoint(m.inner, x, use_reentrant=reentrant)
        return x

    model, x = Net(forward, inner=Net(lambda m, x: 2 * x.sin())), leaf(2)
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
    def forward(m: Any, x: Tensor) -> Tensor:
        for _ in range(3):
            x = checkpoint(m.inner, x, use_reentrant=reentrant)
        return x

    model = Net(forward, inner=nn.Linear(2, 2)).double()
    with tt.watch(model, "*:param_grad") as w:
        model(leaf(1, 2)).sum().backward()
    assert torch.equal(w.run["inner:param_grad[weight]"], model.inner.weight.grad)
    assert len(list(w.run.records("inner:param_grad[weight]"))) == 1


# --- parameters -------------------------------------------------------------------------------


def test_param_grad_shows_accumulation_as_it_is() -> None:
    model = Net(lambda m, x: x * m.weight, weight=nn.Parameter(wide(1)))
    with tt.watch(model, ".:param_grad") as w:
        for factor in (1.0, 2.0, 4.0):
            model(torch.full((1,), factor, dtype=torch.float64)).sum().backward()
    found = [(record.call, record.value.item()) for record in w.run.records()]
    assert found == [(0, 1.0), (1, 3.0), (2, 7.0)]


def test_param_grad_survives_zero_grad() -> None:
    model = Net(lambda m, x: x * m.weight, weight=nn.Parameter(wide(1)))
    with tt.watch(model, ".:param_grad") as w:
        model(torch.ones(1)).sum().backward()
        model.zero_grad(set_to_none=False)
    assert w.run[".:param_grad[weight]"].item() == 1.0


def test_param_and_buffer_are_those_when_the_step_begins() -> None:
    model = nn.BatchNorm1d(1, momentum=0.5).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    weights, means = [], []
    with tt.watch(model, ".:param,buffer") as w:
        for _ in range(3):
            weights.append(model.weight.item())
            means.append(model.running_mean.item())
            optimizer.zero_grad()
            (model(wide(8, 1)) ** 2).sum().backward()
            optimizer.step()
            w.step()
    assert len(set(weights)) == len(set(means)) == 3
    for step in range(3):
        assert w.run.get(".:param[weight]", step=step).item() == weights[step]
        assert w.run.get(".:buffer[running_mean]", step=step).item() == means[step]


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}])
def test_an_optimizer_cannot_overwrite_a_param_record(options: dict[str, bool]) -> None:
    model = nn.Linear(2, 2).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, **options)  # type: ignore[arg-type]
    weight = model.weight.detach().clone()
    with tt.watch(model, ".:param,param_grad") as w:
        model(wide(3, 2)).sum().backward()
        gradient = model.weight.grad.clone()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    assert torch.equal(w.run[".:param[weight]"], weight)
    assert torch.equal(w.run[".:param_grad[weight]"], gradient)


def test_an_optimizer_inside_the_backward_leaves_the_gradient_to_see() -> None:
    model = nn.Linear(2, 1, bias=False).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def now(parameter: Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad()

    x = wide(3, 2)
    for ours_first in (True, False):
        handle = None if ours_first else model.weight.register_post_accumulate_grad_hook(now)
        with tt.watch(model, ".:param_grad") as w:
            out = model(x)
            if handle is None:
                handle = model.weight.register_post_accumulate_grad_hook(now)
            out.sum().backward()
        handle.remove()
        if ours_first:
            assert torch.equal(w.run[".:param_grad[weight]"], x.sum(0, keepdim=True))
        else:  # Used up before we saw it.
            assert list(reasons(w)) == [".:param_grad[weight]"]


def test_a_replaced_parameter_is_hooked_in_the_next_step() -> None:
    model = nn.Linear(2, 1, bias=False).double()
    with tt.watch(model, ".:param_grad") as w:
        model(wide(1, 2)).sum().backward()
        w.step()
        model.weight = nn.Parameter(wide(1, 2, seed=1))
        model(wide(1, 2, seed=2)).sum().backward()
    assert torch.equal(w.run.get(".:param_grad[weight]", step=0), wide(1, 2))
    assert torch.equal(w.run.get(".:param_grad[weight]", step=1), wide(1, 2, seed=2))


def test_a_frozen_parameter_is_said_absent() -> None:
    model = nn.Linear(2, 1).double()
    model.weight.requires_grad_(False)
    with tt.watch(model, ".:param_grad") as w:
        model(wide(1, 2)).sum().backward()
    assert reasons(w) == {".:param_grad[weight]": "it does not require grad"}
    assert w.run[".:param_grad[bias]"].tolist() == [1.0]


def test_a_lazy_module_is_watched_from_its_first_call() -> None:
    model = nn.Sequential(nn.LazyLinear(2), nn.LazyLinear(1)).double()
    with tt.watch(model, ["*:*", "*:param,param_grad"]) as w:
        model(leaf(4, 3)).sum().backward()
        w.step()
        model(leaf(4, 3)).sum().backward()
    assert w.run.get("1:output", step=0).shape == (4, 1)
    assert torch.equal(w.run.get("1:param_grad[bias]", step=0), torch.full((1,), 4.0).double())
    assert torch.equal(w.run.get("0:param[weight]", step=1), model[0].weight)  # type: ignore[arg-type]


def test_a_parametrized_weight_has_its_original_as_a_site() -> None:
    model = torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 2).double())
    with tt.watch(model, "*:param_grad") as w:
        model(wide(1, 3)).sum().backward()
    for leaf_name in ("original0", "original1"):
        site = f"parametrizations.weight:param_grad[{leaf_name}]"
        true = getattr(model.parametrizations.weight, leaf_name).grad
        assert torch.equal(w.run[site], true)


def test_a_sparse_gradient_of_a_parameter_is_kept() -> None:
    model = nn.Embedding(5, 2, sparse=True)
    with tt.watch(model, ".:param_grad") as w:
        model(torch.tensor([1, 1, 3])).sum().backward()
    gradient = w.run[".:param_grad[weight]"].to_dense()
    assert gradient[:, 0].tolist() == [0.0, 2.0, 0.0, 1.0, 0.0]


# --- gradients that the caller of a backward hands in ------------------------------------------


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.f, self.g = nn.Linear(3, 3), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.g(self.f(x)) + x


def test_gradients_handed_in_are_kept_though_their_buffer_is_used_again() -> None:
    model, x = Residual(), torch.randn(5, 3, requires_grad=True)
    buffer = torch.ones(5, 3)
    backwards: list[Callable[[Tensor], object]] = [
        lambda y: y.backward(buffer),
        lambda y: y.view(-1).backward(buffer.view(-1)),
        lambda y: torch.autograd.backward([y, y.sum()], [buffer, None]),
        lambda y: torch.autograd.grad(y, x, buffer),
    ]
    with tt.watch(model, "*:grad_output,grad_input") as w:
        for _ in range(3):
            for backward in backwards:
                buffer.data.fill_(3)  # What autograd does not count, like a receive of a pipeline.
                backward(model(x))
                buffer.data.fill_(7)
            w.step()
    for record in w.run.records(["*:grad_output", "g:grad_input"]):
        expected = 4 if record.call == 2 else 3
        assert record.value.unique().tolist() == [expected], record
    assert len(list(w.run.records("g:grad_output"))) == 12


def test_gradients_handed_in_are_found_from_threads_of_the_engine() -> None:
    y, buffer = torch.ones(3, requires_grad=True) * 2, torch.ones(3)
    found: list[set[int]] = []

    def look(_: Tensor) -> None:
        thread = threading.Thread(target=lambda: found.append(given_storages()))
        thread.start()
        thread.join()

    y.register_hook(look)
    y.backward(buffer)
    assert found == [{storage_id(buffer)}]
    assert given_storages() == set()


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

"""The ports ``param``, ``buffer`` and ``param_grad``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from absent import reasons, reasons_at
from random_numbers import leaf, wide
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper

import torchtap as tt
from torchtap.testing import Net


def test_a_call_with_borrowed_parameters_has_no_param_grad() -> None:
    model = nn.Linear(2, 2)
    fast = {name: p * 2 for name, p in model.named_parameters()}
    with tt.watch(model, ".:param_grad") as w:
        torch.func.functional_call(model, fast, (torch.ones(1, 2),)).sum().backward()
    assert "another tensor in the parameter's place" in reasons_at(w, ".:param_grad[weight]")[0]


def test_sparse_gradients_are_kept_within_a_budget_and_shown() -> None:
    model = nn.Embedding(10, 3, sparse=True)
    with tt.watch(model, ".:param_grad", to=tt.Memory(max_bytes=1 << 20)) as w:
        model(torch.tensor([1, 2])).sum().backward()
    assert w.run[".:param_grad"].is_sparse
    assert "10x3" in repr(w.run)


def test_param_grad_shows_accumulation_as_it_is() -> None:
    model = Net(lambda m, x: x * m.weight, weight=nn.Parameter(wide(1)))
    with tt.watch(model, ".:param_grad") as w:
        for factor in (1.0, 2.0, 4.0):
            model(torch.full((1,), factor, dtype=torch.float64)).sum().backward()
    found = [(record.call, record.value.item()) for record in w.run.records()]
    assert found == [(0, 1.0), (1, 3.0), (2, 7.0)]


@pytest.mark.parametrize("to", [None, tt.Stats(exact=True, statistics=[tt.stats.along(0)])])
def test_gradients_that_are_accumulated_after_the_backward_are_of_the_last(to: Any) -> None:
    """FSDP2 reduces those of a pipeline after all backwards, and calls their hooks then."""
    model = nn.Linear(2, 1, bias=False)
    with tt.watch(model, ".:param_grad", to=to) as w:
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
        model.weight.grad = torch.full((1, 2), 7.0)
        for hook in model.weight._post_accumulate_grad_hooks.values():
            hook(model.weight)
    if to is None:
        found = [(row.backward, row.value.tolist()) for row in w.run.records()]
        assert found == [(0, [[1.0, 1.0]]), (1, [[2.0, 2.0]]), (1, [[7.0, 7.0]])]
    assert w.run.stats(".:param_grad").max == 7.0


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
        else:  # Used up before the watch saw it.
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


def test_a_frozen_parameter_is_listed_as_absent() -> None:
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


def test_a_parameter_that_is_removed_while_it_is_watched_is_absent() -> None:
    model = nn.Linear(2, 2)
    with tt.watch(model, ".:param[bias]") as w:
        model.bias = None  # type: ignore[assignment]
        model(torch.ones(1, 2))
    assert reasons(w) == {".:param": "the module owns none that fits"}


def test_one_parameter_and_one_buffer_of_a_module_are_taken_without_the_others() -> None:
    model = nn.BatchNorm1d(2)
    model.register_buffer("nothing", None)
    model.register_parameter("none", None)
    with tt.watch(model, [".:param[weight]", ".:buffer[running_var]"]) as w:
        model(torch.randn(4, 2))
    assert sorted(map(str, w.run.sites)) == [".:buffer[running_var]", ".:param[weight]"]
    assert torch.equal(w.run[".:param[weight]"], torch.ones(2))
    assert torch.equal(w.run[".:buffer[running_var]"], torch.ones(2))
    assert not w.absent


@pytest.mark.parametrize("to", [tt.Memory, tt.Stats])
def test_parameters_that_change_between_calls_are_seen_as_they_are(to: Any) -> None:
    """Replaced, frozen, trained again, and new: what the module holds then is taken."""
    model = nn.Linear(1, 1, bias=False).double()
    x = torch.ones(1, 1, dtype=torch.float64, requires_grad=True)
    with tt.watch(model, ".:param,param_grad", to=to()) as w:

        def step() -> None:
            model(x).sum().backward()
            w.step()

        first = model.weight.item()
        step()
        model.weight = nn.Parameter(torch.full((1, 1), 5.0, dtype=torch.float64))
        step()
        model.weight.requires_grad_(False)
        step()
        model.weight.requires_grad_(True)
        model.weight.data = torch.full((1, 1), 6.0, dtype=torch.float64)
        step()
        model.bias = nn.Parameter(torch.full((1,), 7.0, dtype=torch.float64))
        step()
    means = {str(site): w.run.over_steps(site, "mean") for site in w.run.sites}
    assert means == {
        ".:param[weight]": ([0, 1, 2, 3, 4], [first, 5.0, 5.0, 6.0, 6.0]),
        ".:param_grad[weight]": ([0, 1, 3, 4], [1.0, 1.0, 2.0, 3.0]),  # They accumulate.
        ".:param[bias]": ([4], [7.0]),
        ".:param_grad[bias]": ([4], [1.0]),
    }


@pytest.mark.parametrize("ports", ["param,param_grad", "input,param,param_grad"])
def test_lazy_parts_that_are_called_one_by_one_are_taken_from_the_first_step_on(ports: str) -> None:
    model = nn.ModuleDict({"a": nn.Sequential(nn.LazyLinear(3)), "b": nn.LazyLinear(2)})
    with tt.watch(model, f"*:{ports}") as w:
        for _ in range(2):
            model["b"](model["a"](torch.ones(2, 4))).sum().backward()
            w.step()
    for path in ("a.0", "b"):
        assert w.run.over_steps(f"{path}:param_grad[weight]", "mean")[0] == [0, 1]


def test_a_part_that_is_trained_later_in_the_step_has_its_gradient() -> None:
    model = nn.ModuleDict({"a": nn.Linear(4, 3), "b": nn.Linear(3, 2)})
    model["a"].requires_grad_(False)
    with tt.watch(model, "*:param_grad") as w:
        for _ in range(2):
            model["b"](model["a"](torch.ones(2, 4))).sum().backward()
            model["a"].requires_grad_(True)
    expected = model["a"].weight.grad
    assert isinstance(expected, Tensor)
    assert torch.equal(w.run["a:param_grad[weight]"], expected)


@pytest.mark.parametrize("to", [tt.Memory, tt.Stats])
def test_a_module_that_was_replaced_is_said_and_the_old_one_is_not_taken(to: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3)))
    with tt.watch(model, "*:output,param,param_grad", to=to()) as w:
        for step in range(3):
            if step == 1:
                model[1] = nn.Sequential(nn.Linear(3, 3))
            model(torch.ones(2, 3)).sum().backward()
            w.step()
    assert w.run.over_steps("1.0:param[weight]", "mean")[0] == [0]
    assert w.run.over_steps("0:param[weight]", "mean")[0] == [0, 1, 2]
    for path in ("1", "1.0"):
        assert "replaced by another one" in reasons(w)[f"{path}:output"]
    assert not any(str(entry.site).startswith("0:") for entry in w.absent)


def test_a_module_that_is_wrapped_later_is_taken_as_before() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    with tt.watch(model, "0:param") as w:
        for step in range(2):
            if step == 1:
                model[0] = CheckpointWrapper(model[0])
            model(torch.ones(2, 3))
            w.step()
    assert w.run.over_steps("0:param[weight]", "mean")[0] == [0, 1]
    assert not w.absent


class Shares(nn.Module):
    """One module under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b = self.a

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.b(x)
        return found


def test_a_shared_module_that_loses_its_first_path_is_taken_as_before() -> None:
    model = Shares()
    with tt.watch(model, "a:output,param") as w:
        for step in range(2):
            if step == 1:
                del model.a
            model(torch.ones(2, 3))
            w.step()
    for site in ("a:output", "a:param[weight]"):
        assert w.run.over_steps(site, "mean")[0] == [0, 1]
    assert not w.absent


def test_a_module_that_stands_elsewhere_now_is_taken_and_said_to_have_moved() -> None:
    first = nn.Linear(3, 3)
    model = nn.Sequential(first, nn.Linear(3, 3))
    with tt.watch(model, "0:output,param") as w:
        for step in range(2):
            if step == 1:
                model[0], model[1] = model[1], model[0]
            model(torch.ones(2, 3))
            w.step()
    assert w.run.over_steps("0:param[weight]", "mean")[0] == [0, 1]
    assert torch.equal(w.run.get("0:param[weight]", step=1), first.weight)
    assert "stands at 1 now" in reasons(w)["0:output"]


@pytest.mark.parametrize("kind", [tt.Memory, tt.Stats])
def test_parameters_on_meta_are_watched_once_they_have_values(kind: Any) -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    sink = kind()
    with tt.watch(model, "*:output,param,update", to=sink) as watched:
        model(torch.ones(2, 3, device="meta"))
        watched.step()
        model.to_empty(device="cpu")
        for param in model.parameters():
            nn.init.ones_(param)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        watched.step()
    run = watched.run
    assert run.stats("2:output", step=1).max == 17  # 4 times (3 + 1), and 1.
    # Each row gives 4 to the gradient.
    assert run.stats("2:update[weight]", step=1).mean == pytest.approx(-0.8)
    if kind is tt.Stats:
        assert "a meta tensor, which has no values" in str(watched.absent)

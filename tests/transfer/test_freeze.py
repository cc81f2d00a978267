"""Frozen parameters do not move under any optimizer; the others move as without torchtap."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import bits
import pytest
import torch
from models import mlp, rows, seeded
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam, AdamW, optimizer as home
from torch.utils.checkpoint import checkpoint

import torchtap as tt
from torchtap.testing import Net

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: SGD(p, lr=0.1),
    "SGD with momentum and decay": lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "SGD for each": lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, foreach=True),
    "SGD fused": lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, fused=True),
    "Adam": lambda p: Adam(p, lr=0.1, amsgrad=True),
    "AdamW for each": lambda p: AdamW(p, lr=0.1, foreach=True),
    "AdamW fused": lambda p: AdamW(p, lr=0.1, fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, weight_decay=0.1),
}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, *, set_to_none: bool) -> None:
    for step in range(3):
        optimizer.zero_grad(set_to_none=set_to_none)
        model(rows(step)).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("keep_grad", [False, True])
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_is_frozen_stays_and_the_rest_is_trained(
    name: str, set_to_none: bool, keep_grad: bool
) -> None:
    model = mlp()
    optimizer = OPTIMIZERS[name](model.parameters())
    train(model, optimizer, set_to_none=set_to_none)  # Momentum and gradients are there.
    hand = copy.deepcopy(model)
    rest = OPTIMIZERS[name](hand.parameters())
    rest.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    before = [param.detach().clone() for param in model[0].parameters()]
    with tt.freeze(model, "0", keep_grad=keep_grad) as frozen:
        train(model, optimizer, set_to_none=set_to_none)
    assert frozen.params == ("0:param[weight]", "0:param[bias]")
    for param, old in zip(model[0].parameters(), before, strict=True):
        assert torch.equal(param, old)
        assert param.requires_grad
    for step in range(3):  # By hand: no gradient, no step.
        rest.zero_grad(set_to_none=True)
        hand(rows(step)).square().sum().backward()
        for param in hand[0].parameters():
            param.grad = None
        rest.step()
    for ours, right in zip(model.parameters(), hand.parameters(), strict=True):
        assert torch.equal(ours, right)
    # Given back, it moves again.
    train(model, optimizer, set_to_none=set_to_none)
    assert not torch.equal(model[0].weight, before[0])  # type: ignore[arg-type]


def test_a_gradient_that_was_there_is_there_again_and_not_used() -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    model(rows()).sum().backward()
    gradient, before = model[0].weight.grad, model[0].weight.detach().clone()
    kept = gradient.clone()
    with tt.freeze(model, "0:param[weight]"):
        optimizer.step()
        assert model[0].weight.grad is gradient
    assert torch.equal(model[0].weight, before) and torch.equal(model[0].weight.grad, kept)  # type: ignore[arg-type]


def test_without_keep_grad_nothing_is_computed_for_it() -> None:
    model = mlp()
    with tt.freeze(model, "0"):
        model(rows()).sum().backward()
        assert model[0].weight.grad is None and model[2].weight.grad is not None
    with tt.freeze(model, "0", keep_grad=True):
        model(rows()).sum().backward()
    assert model[0].weight.grad is not None


def test_what_did_not_require_grad_does_not_afterwards() -> None:
    model = mlp()
    model[0].bias.requires_grad_(False)
    frozen = tt.freeze(model)
    assert not any(param.requires_grad for param in model.parameters())
    frozen.close()
    frozen.close()
    assert [param.requires_grad for param in model.parameters()] == [True, False, True, True]
    assert "closed" in repr(frozen)


def test_freezes_one_inside_another_give_back_in_turn() -> None:
    model = mlp()
    with tt.freeze(model, "0"):
        with tt.freeze(model, "*"):
            assert not model[2].weight.requires_grad
        assert model[2].weight.requires_grad and not model[0].weight.requires_grad
    assert model[0].weight.requires_grad


def test_freezes_that_overlap_hold_until_the_last_is_closed() -> None:
    model = mlp()
    first, second = tt.freeze(model, "0"), tt.freeze(model, "*")
    first.close()
    assert not model[0].weight.requires_grad
    second.close()
    assert all(param.requires_grad for param in model.parameters())


def test_a_tied_weight_is_held_under_both_names() -> None:
    model = Net(lambda m, x: m.b(m.a(x)), a=nn.Linear(3, 3), b=nn.Linear(3, 3))
    model.b.weight = model.a.weight
    optimizer = SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    before = model.a.weight.detach().clone()
    with tt.freeze(model, "b"):
        train(model, optimizer, set_to_none=True)
    assert torch.equal(model.a.weight, before) and model.a.weight.requires_grad


def closure_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(rows()).square().sum()
        loss.backward()
        return loss

    return closure


CLOSURES: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=4),
    "LBFGS with a search": lambda p: torch.optim.LBFGS(p, line_search_fn="strong_wolfe"),
    "SGD": lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
}


@pytest.mark.parametrize("keep_grad", [False, True])
@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("name", CLOSURES)
def test_a_closure_trains_the_rest_as_if_only_that_required_grad(
    name: str, by_name: bool, keep_grad: bool
) -> None:
    model, twin = mlp(), mlp().requires_grad_(False)
    twin[2].requires_grad_(True)
    optimizer, other = CLOSURES[name](model.parameters()), CLOSURES[name](twin.parameters())
    with tt.freeze(model, "0", keep_grad=keep_grad):
        for _ in range(3):
            closure = closure_of(model, optimizer)
            loss = optimizer.step(closure=closure) if by_name else optimizer.step(closure)  # type: ignore[arg-type]
            assert loss == other.step(closure_of(twin, other))  # type: ignore[arg-type]
    for ours, right in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, right)
    assert (model[0].weight.grad is not None) is keep_grad


def test_a_closure_that_accumulates_finds_its_gradients() -> None:
    model, seen = mlp(), []
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, lr=0.0)

    def closure() -> Tensor:
        loss = model(rows()).sum()
        loss.backward()
        seen.append(model[0].bias.grad.clone())
        return loss

    with tt.freeze(model, "0", keep_grad=True):
        optimizer.step(closure)
        optimizer.step(closure)
    assert len(seen) > 1
    for count, one in enumerate(seen, 1):
        torch.testing.assert_close(one, seen[0] * count)
    assert torch.equal(model[0].bias.grad, seen[-1])  # type: ignore[arg-type]


@pytest.mark.parametrize("keep_grad", [False, True])
def test_lbfgs_that_remembers_is_an_error_and_what_it_moved_is_back(keep_grad: bool) -> None:
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    optimizer.step(closure_of(model, optimizer))
    before = model[0].weight.detach().clone()
    with (
        tt.freeze(model, "0", keep_grad=keep_grad),
        pytest.raises(tt.EditError, match=r"LBFGS moved 0:param\[weight\].*Make a new LBFGS"),
    ):
        optimizer.step(closure_of(model, optimizer))
    assert torch.equal(model[0].weight, before)  # type: ignore[arg-type]


class _DecaysAll(SGD):
    """An optimizer like many published ones: decays what has no gradient, too."""

    through_data = True

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for param in group["params"]:
                (param.data if self.through_data else param).mul_(0.9)
                if param.grad is not None:
                    param.sub_(param.grad, alpha=0.1)


@pytest.mark.parametrize("keep_grad", [False, True])
@pytest.mark.parametrize("through_data", [False, True])
def test_an_optimizer_that_decays_without_a_gradient_moves_nothing(
    through_data: bool, keep_grad: bool
) -> None:
    model, twin = mlp(), mlp()
    with torch.no_grad():
        for one in (model, twin):
            one[0].weight[0, 0] = float("nan")
            one[0].weight[1, 1] = -0.0
    optimizer, other = _DecaysAll(model.parameters()), _DecaysAll(twin[2].parameters())
    optimizer.through_data = through_data
    with tt.freeze(model, "0", keep_grad=keep_grad):
        train(model, optimizer, set_to_none=True)
    train(twin, other, set_to_none=True)
    for ours, right in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours.view(torch.int32), right.view(torch.int32))
    train(model, optimizer, set_to_none=True)
    assert not torch.equal(model[0].bias, twin[0].bias)  # type: ignore[arg-type]


def test_a_step_hook_of_the_user_moves_nothing_either() -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)

    @torch.no_grad()
    def shrink(optimizer: Any, args: Any, kwargs: Any) -> None:
        for param in optimizer.param_groups[0]["params"]:
            param.clamp_(-0.01, 0.01)

    optimizer.register_step_post_hook(shrink)
    before = model[0].weight.detach().clone()
    with tt.freeze(model, "0"):
        train(model, optimizer, set_to_none=True)
    assert torch.equal(model[0].weight, before) and model[2].weight.abs().max() <= 0.01  # type: ignore[arg-type]


def test_a_graph_that_saved_a_frozen_weight_outlives_the_step() -> None:
    model = mlp()
    optimizer = _DecaysAll(model[2].parameters())
    x = rows().requires_grad_()
    with tt.freeze(model, "2"):
        out = model(x).sum()
        (right,) = torch.autograd.grad(out, x, retain_graph=True)
        optimizer.step()
        assert torch.equal(torch.autograd.grad(out, x)[0], right)


def test_pytorchs_own_optimizers_are_not_copied_for(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = []
    monkeypatch.setattr(Tensor, "clone", lambda one: copied.append(one) or one.detach() * 1)  # type: ignore[func-returns-value]
    model = mlp()
    with tt.freeze(model, "0"):
        train(model, AdamW(model.parameters()), set_to_none=True)
        assert copied == []
        train(model, _DecaysAll(model.parameters()), set_to_none=True)
        assert len(copied) == 3 * 2


@pytest.mark.parametrize("frozen_first", [False, True])
def test_a_norm_over_all_is_that_of_what_is_trained(frozen_first: bool) -> None:
    model, twin = mlp(), mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    clip = tt.edits.clip_norm(0.5, over="all")

    def freeze() -> Any:
        return tt.freeze(model, "0", keep_grad=True)

    def edit() -> Any:
        return tt.edit(model, "*:param_grad", clip, missing="ignore")

    first, second = (freeze, edit) if frozen_first else (edit, freeze)
    with first(), second():
        model(rows()).square().sum().backward()
        optimizer.step()
    twin(rows()).square().sum().backward()
    torch.nn.utils.clip_grad_norm_(twin[2].parameters(), 0.5)
    for ours, right in zip(model[2].parameters(), twin[2].parameters(), strict=True):
        torch.testing.assert_close(ours.grad, right.grad)


@pytest.mark.parametrize("keep_grad", [None, True])
def test_a_grad_scaler_whose_optimizer_is_frozen_as_documented(keep_grad: bool | None) -> None:
    model = mlp()
    frozen, free = SGD(model[0].parameters(), lr=0.1), SGD(model[2].parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    before = [param.detach().clone() for param in model.parameters()]
    with tt.freeze(model, "0", keep_grad=keep_grad):
        scaler.scale(model(rows()).sum()).backward()
        if keep_grad:
            scaler.step(frozen)
        else:
            with pytest.raises(AssertionError, match="No inf checks"):
                scaler.step(frozen)
        scaler.step(free)
        scaler.update()
    same = [torch.equal(*pair) for pair in zip(model.parameters(), before, strict=True)]
    assert same == [True, True, False, False]


@pytest.mark.usefixtures("one_process")
def test_under_ddp_what_is_frozen_is_no_part_of_a_norm_over_all() -> None:
    model, twin = mlp(), mlp()
    twin[0].requires_grad_(False)
    wrapped, scaler = DistributedDataParallel(model), torch.amp.GradScaler("cpu", init_scale=64.0)

    def steps(one: nn.Module, run: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
        for step in range(3):
            for optimizer in optimizers:
                optimizer.zero_grad()
            scaler.scale(run(rows(step)).square().sum()).backward()
            for optimizer in optimizers:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(one.parameters(), 0.5)
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()

    with tt.freeze(wrapped, "0"):  # One optimizer is frozen as a whole.
        steps(model, wrapped, [AdamW(part.parameters(), lr=0.1) for part in (model[0], model[2])])
        assert model[0].weight.requires_grad and not model[0].weight.grad.any()
    steps(twin, twin, [AdamW(twin[2].parameters(), lr=0.1)])
    for ours, right in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, right)
    wrapped(rows()).sum().backward()
    assert model[0].weight.grad.any()


def test_a_lazy_module_is_an_error_until_it_has_run() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Linear(4, 1))
    with pytest.raises(
        tt.EditError, match=r"0:param\[bias\] has no values yet.*Run the model once"
    ):
        tt.freeze(model, "0")
    with pytest.raises(tt.EditError, match=r"1:buffer\[running_mean\] has no values yet"):
        tt.freeze(model, "1:buffer")
    assert model[2].weight.requires_grad
    with tt.freeze(model, "2"):
        model(rows())
    with tt.freeze(model):
        assert not model[0].weight.requires_grad


@pytest.mark.parametrize("training", [True, False])
def test_buffers_of_a_batch_norm_are_held_in_training_mode(training: bool) -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))).train(training)
    model(rows(1))
    before = {name: one.clone() for name, one in model.named_buffers()}
    free = copy.deepcopy(model)
    with tt.freeze(model, "*@_BatchNorm:param,buffer") as frozen:
        for step in range(3):
            assert torch.equal(model(rows(step)), free(rows(step)))
    assert frozen.buffers == (
        "1:buffer[running_mean]",
        "1:buffer[running_var]",
        "1:buffer[num_batches_tracked]",
    )
    assert all(torch.equal(before[name], one) for name, one in model.named_buffers())
    if training:
        assert not torch.equal(free[1].running_mean, model[1].running_mean)  # type: ignore[arg-type]
    model(rows())
    assert torch.equal(before["1.running_mean"], model[1].running_mean) is not training  # type: ignore[arg-type]


NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: nn.BatchNorm1d(4),
    "batch norm without momentum": lambda: nn.BatchNorm1d(4, momentum=None),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
    "spectral norm of old": lambda: nn.utils.spectral_norm(nn.Linear(4, 4)),
    "own": lambda: Net(_shifts, count=torch.ones(4)),
}


def _shifts(m: Any, x: Tensor) -> Tensor:
    early = x * m.count  # Autograd saves it, and then it is written.
    m.count = m.count * 2
    m.count.add_(1)
    return early + x.sin() * m.count


def norm_net(name: str) -> nn.Sequential:
    return seeded(lambda: nn.Sequential(nn.Linear(3, 4), NORMS[name](), nn.Linear(4, 2)))


@pytest.mark.filterwarnings("ignore:.*spectral_norm.*deprecated")
@pytest.mark.parametrize("keep_grad", [False, True])
@pytest.mark.parametrize("name", NORMS)
def test_backward_through_held_buffers_is_that_of_a_fresh_copy(name: str, keep_grad: bool) -> None:
    model = norm_net(name)
    originals = dict(model.named_buffers())
    before = {key: (one.clone(), one._version) for key, one in originals.items()}
    with tt.freeze(model, "*:buffer", keep_grad=keep_grad):
        first, second = model(rows(1)), model(rows(2))
        (first * second).sum().backward()
        ours = [param.grad for param in model.parameters()]
        assert dict(model.named_buffers()).keys() == originals.keys()
    for key, one in model.named_buffers():
        assert one is originals[key]
        assert torch.equal(one, before[key][0]) and one._version == before[key][1]
    # Without a freeze: each call on a model of its own, with the same parameters.
    twins = [norm_net(name), norm_net(name)]
    for param, other in zip(*(twin.parameters() for twin in twins), strict=True):
        param.data = other.data
    (twins[0](rows(1)) * twins[1](rows(2))).sum().backward()
    for gradient, *pair in zip(ours, *(twin.parameters() for twin in twins), strict=True):
        torch.testing.assert_close(gradient, pair[0].grad + pair[1].grad)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_runs_again_on_the_same_buffers(use_reentrant: bool) -> None:
    plain, model = norm_net("batch norm"), norm_net("batch norm")
    plain(rows().requires_grad_()).square().sum().backward()
    before = model[1].running_mean.clone()
    with tt.freeze(model, "*:buffer"):
        x = rows().requires_grad_()
        out = checkpoint(model, x, use_reentrant=use_reentrant)
        out.square().sum().backward()
    assert torch.equal(model[1].running_mean, before)  # type: ignore[arg-type]
    for ours, right in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, right.grad)


def _counts(m: Any, x: Tensor) -> Tensor:
    m.count.add_(1)
    return m.inner(x) if hasattr(m, "inner") else x + m.count


ENDS = {"error": ValueError, "interrupt": KeyboardInterrupt}


@pytest.mark.parametrize("name", ENDS)
def test_buffers_are_held_through_a_forward_that_is_left(name: str) -> None:
    def body(m: Any, x: Tensor) -> Tensor:
        m.count.add_(1)
        if x.sum() == 0:
            raise ENDS[name]("no")
        return x + m.count

    model = Net(body, count=torch.zeros(()))
    count = model.count
    with tt.freeze(model, ".:buffer[count]"):
        with pytest.raises(ENDS[name], match="no"):
            model(torch.zeros(2))
        assert model.state_dict()["count"].item() == 0 and model.count is count
        with pytest.raises(ENDS[name], match="no"):
            model(torch.zeros(2))
        model.load_state_dict({"count": torch.tensor(5.0)})
        assert count.item() == 5
        with pytest.raises(ENDS[name], match="no"):
            model(torch.zeros(2))
        assert model(torch.ones(2)).tolist() == [7, 7] and model.count is count
        with pytest.raises(ENDS[name], match="no"):
            model(torch.zeros(2))
    assert model.count is count and count.item() == 5


def test_buffers_are_held_where_features_leave_the_forward() -> None:
    model = Net(_counts, count=torch.zeros(()), inner=nn.Identity())
    count = model.count
    with tt.freeze(model, ".:buffer"):
        tt.features(model, "inner")(rows())
        assert model.count is count and count.item() == 0


def test_a_module_that_calls_itself_writes_into_copies_of_copies() -> None:
    def body(m: Any, x: Tensor) -> Tensor:
        m.count.add_(1)
        inner = m(x[1:]) if len(x) > 1 else x.sum()
        m.count.add_(1)
        return inner + m.count

    model = Net(body, count=torch.zeros(()))
    with tt.freeze(model, ".:buffer"):
        assert model(torch.zeros(3)).item() == 6
    assert model.count.item() == 0


def test_threads_write_into_copies_of_their_own() -> None:
    barrier = threading.Barrier(4)

    def body(m: Any, x: Tensor) -> Tensor:
        m.count.add_(1)
        barrier.wait(30)
        m.count.add_(1)
        return x

    model = Net(body, count=torch.zeros(()))
    count = model.count
    with tt.freeze(model, ".:buffer"), ThreadPoolExecutor(4) as pool:
        list(pool.map(model, [rows()] * 4))
        assert model.count is count
    assert count.item() == 0


def test_a_buffer_with_two_names_is_held_under_both() -> None:
    part = Net(_counts, count=torch.zeros(()))
    model = nn.Sequential(part, Net(_counts, count=torch.zeros(())))
    model[1].register_buffer("count", part.count)
    with tt.freeze(model, "0:buffer") as frozen:
        model(rows())
    assert frozen.buffers == ("0:buffer[count]", "1:buffer[count]")
    assert part.count is model[1].count and part.count.item() == 0
    with pytest.raises(tt.EditError, match=r"the same buffer as 0:buffer\[count\]"):
        tt.freeze(model, ["0:buffer", "!1:buffer"])


def test_a_copy_and_a_replica_of_a_model_with_held_buffers_run() -> None:
    model = norm_net("batch norm")
    with tt.freeze(model, "*:buffer"):
        twin = copy.deepcopy(model)
        nn.DataParallel(model)(rows())
        pickle.loads(pickle.dumps(model))(rows())
    twin(rows())
    assert twin[1].num_batches_tracked.item() == 1 and model[1].num_batches_tracked.item() == 0


def test_nothing_stays_on_modules_whose_buffers_were_held() -> None:
    model = norm_net("batch norm")
    tables = bits.hooks(model)
    with tt.freeze(model, "*:buffer"):
        model(rows()).sum().backward()
        assert bits.differences(tables, bits.hooks(model)) != []
    assert bits.differences(tables, bits.hooks(model)) == []


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_compiled_first", [False, True])
def test_buffers_of_a_compiled_model_are_held(is_compiled_first: bool) -> None:
    model, free = norm_net("batch norm"), norm_net("batch norm").eval()
    compiled: Any = torch.compile(model, backend="aot_eager")
    if is_compiled_first:
        model.eval()
        torch.testing.assert_close(compiled(rows()), free(rows()))
    model.train()
    with tt.freeze(model, "*@_BatchNorm:buffer"):
        for step in range(2):
            compiled(rows(step)).sum().backward()
    assert model[1].num_batches_tracked.item() == 0 and not model[1].running_mean.any()


CHOICES = {
    "*": {"0.weight", "0.bias", "2.weight", "2.bias"},
    "0": {"0.weight", "0.bias"},
    ".": {"0.weight", "0.bias", "2.weight", "2.bias"},
    "!2": {"0.weight", "0.bias"},
    "*:param[bias]": {"0.bias", "2.bias"},
    "2:param[weight]": {"2.weight"},
    "*@Linear": {"0.weight", "0.bias", "2.weight", "2.bias"},
}


@pytest.mark.parametrize("where", CHOICES)
def test_patterns_choose_what_is_held(where: str) -> None:
    model = mlp()
    with tt.freeze(model, where):
        held = {name for name, param in model.named_parameters() if not param.requires_grad}
    assert held == CHOICES[where]


def test_a_module_is_held_with_all_inside_but_what_is_taken_away() -> None:
    model = Net(lambda m, x: m.trunk(x), trunk=mlp())
    with tt.freeze(model, [model.trunk, "!trunk.2:param[bias]"]):
        held = {name for name, param in model.named_parameters() if not param.requires_grad}
    assert held == {"trunk.0.weight", "trunk.0.bias", "trunk.2.weight"}


def test_what_cannot_be_frozen_is_an_error() -> None:
    with pytest.raises(tt.SiteError):
        tt.freeze(mlp(), "7")
    with pytest.raises(tt.EditError, match="cannot be frozen"):
        tt.freeze(mlp(), "0:output")


@pytest.mark.parametrize("where", ["1", ["1", "!0"], ["0", "!0"]])
def test_a_freeze_of_no_parameters_is_an_error_and_not_of_all(where: Any) -> None:
    model = mlp()
    with pytest.raises(tt.SiteError, match="owns no parameters"):
        tt.freeze(model, where)
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("where", [["*", "!2"], ["0", "!2"], ["*", "!0"]])
def test_a_tied_weight_cannot_be_held_by_one_name_and_free_by_the_other(where: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    with pytest.raises(tt.EditError, match=r"weight\].*the same parameter as .*weight\]"):
        tt.freeze(model, where)
    with tt.freeze(model, ["*", "!0:param[bias]"]):
        assert not model[0].weight.requires_grad and model[0].bias.requires_grad


@pytest.mark.slow
def test_a_freeze_whose_handle_is_dropped_lives_as_long_as_the_model() -> None:
    tables = home._global_optimizer_pre_hooks, home._global_optimizer_post_hooks
    gc.collect()
    before = [dict(table) for table in tables]
    model = mlp()
    model(rows()).sum().backward()
    weight = model[0].weight.detach().clone()
    tt.freeze(model, "0", keep_grad=True)
    gc.collect()
    train(model, SGD(model.parameters(), lr=0.1), set_to_none=True)
    assert torch.equal(model[0].weight, weight)  # type: ignore[arg-type]
    del model
    gc.collect()
    assert [dict(table) for table in tables] == before


@pytest.mark.slow
def test_a_frozen_model_may_go_in_the_middle_of_an_optimizer_step() -> None:
    tables = home._global_optimizer_pre_hooks, home._global_optimizer_post_hooks
    before = [dict(table) for table in tables]
    models = [mlp()]
    tt.freeze(models[0])

    def drop(*_: Any) -> None:
        models.clear()
        gc.collect()

    dropping = home.register_optimizer_step_pre_hook(drop)
    trained = mlp()
    with tt.freeze(trained, "0"):  # PyTorch goes on to this hook after the one that drops.
        train(trained, SGD(trained.parameters(), lr=0.1), set_to_none=True)
    dropping.remove()
    tt.freeze(mlp()).close()  # What could not be removed then is removed now.
    assert [dict(table) for table in tables] == before


def test_another_models_optimizer_is_left_alone() -> None:
    model, other = mlp(), mlp()
    with tt.freeze(model):
        train(other, SGD(other.parameters(), lr=0.1), set_to_none=True)
    assert not torch.equal(other[0].weight, model[0].weight)  # type: ignore[arg-type]


def test_no_hook_stays_on_optimizers() -> None:
    tables = home._global_optimizer_pre_hooks, home._global_optimizer_post_hooks
    before = [dict(table) for table in tables]
    with tt.freeze(mlp()):
        assert [dict(table) for table in tables] != before
    assert [dict(table) for table in tables] == before


def test_an_optimizer_step_that_raises_leaves_the_gradient_in_place() -> None:
    class Failing(SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            raise ValueError("no")

    model = mlp()
    model(rows()).sum().backward()
    gradient = model[0].weight.grad
    optimizer, plain = Failing(model.parameters(), lr=0.1), SGD(model.parameters(), lr=0.1)
    with tt.freeze(model, "0"):
        with pytest.raises(ValueError, match="no"):
            optimizer.step()
        plain.step()
    assert model[0].weight.grad is gradient


@pytest.mark.parametrize("where", ["0", "1", "*:param,buffer"])
def test_a_closed_freeze_keeps_nothing_alive(where: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    frozen = tt.freeze(model, where)
    model(torch.randn(3, 4, requires_grad=True)).sum().backward()
    frozen.close()
    alive = [weakref.ref(one) for one in (model, *model.parameters(), *model.buffers())]
    del model
    gc.collect()
    assert [one() for one in alive] == [None] * len(alive)
    assert frozen.params


@pytest.mark.parametrize("keep_grad", [None, True, False])
@pytest.mark.parametrize("how", ["set", "assign"])
def test_what_takes_the_place_of_a_frozen_parameter_is_frozen(
    how: str, keep_grad: bool | None
) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    old = model[0].weight
    frozen = tt.freeze(model, "0", keep_grad=keep_grad)
    if how == "set":
        model[0].weight = nn.Parameter(torch.ones(3, 3))
    else:
        state = {name: torch.ones_like(held) for name, held in model.state_dict().items()}
        model.load_state_dict(state, assign=True)
    assert model[0].weight is not old
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert model[0].weight.eq(1).all()
    frozen.close()
    assert model[0].weight.requires_grad and model[0].bias.requires_grad
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert model[0].weight.ne(1).any(), "it moves again"

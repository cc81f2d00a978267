"""``torchtap run`` finds the models and steps of a program, and leaves nothing behind."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_file
from torch.optim import SGD, Adam, Optimizer, optimizer as optimizer_file

from torchtap.capture.training.stepping import Stepping
from torchtap.capture.training.watched_models import MOST_MODELS

WHERE = ["*:output,grad_output,param,param_grad,update"]


@pytest.fixture
def stepping() -> Iterator[Stepping]:
    gc.collect()  # Models of other tests.
    made = Stepping(WHERE)
    made.attach()
    try:
        yield made
    finally:
        made.detach()
        assert not made.faults


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def loss_of(model: Any, rows: int = 6) -> Tensor:
    return model(torch.randn(rows, 4)).square().mean()


def train(model: Any, optimizer: Optimizer, *, steps: int = 3, micro: int = 1) -> None:
    for _ in range(steps):
        for _ in range(micro):
            (loss_of(model) / micro).backward()
        optimizer.step()
        optimizer.zero_grad()


def steps_of(stepping: Stepping) -> list[list[int]]:
    return [model.watch.run.steps for model in stepping.models]


def tables() -> list[int]:
    """How many hooks PyTorch calls for all modules, and for all optimizers."""
    held: list[Any] = [
        module_file._global_forward_pre_hooks,
        module_file._global_forward_hooks,
        module_file._global_module_registration_hooks,
        optimizer_file._global_optimizer_pre_hooks,
        optimizer_file._global_optimizer_post_hooks,
    ]
    return [len(one) for one in held]


def test_nothing_is_left_behind() -> None:
    before, init = tables(), Optimizer.__init__
    stepping = Stepping(WHERE)
    stepping.attach()
    model = net()
    train(model, SGD(model.parameters(), 0.1))
    assert tables() != before
    stepping.detach()
    assert tables() == before
    assert Optimizer.__init__ is init
    for one in model.modules():
        assert not one._forward_pre_hooks
        assert not one._forward_hooks
    assert not any(param._post_accumulate_grad_hooks for param in model.parameters())


def test_hooks_on_all_modules_are_gone_when_an_optimizer_has_told_of_the_model(
    stepping: Stepping,
) -> None:
    assert module_file._has_any_global_hook()
    model = net()
    SGD(model.parameters(), 0.1)
    assert not module_file._has_any_global_hook()


def test_hooks_on_all_modules_are_gone_before_a_model_is_compiled(stepping: Stepping) -> None:
    torch.compile(net(), backend="eager")
    assert not module_file._has_any_global_hook()


def test_hooks_on_all_modules_are_gone_before_a_function_is_compiled(stepping: Stepping) -> None:
    model = net()
    seen: list[bool] = []

    def backend(graph: Any, inputs: Any) -> Any:
        seen.append(bool(module_file._has_any_global_hook()))
        return graph

    torch.compile(lambda x: model(x).sum(), backend=backend)(torch.ones(1, 4))
    assert seen == [False]


def test_numbers_are_those_of_plain_hooks(stepping: Stepping) -> None:
    model = net()
    optimizer = Adam(model.parameters(), 0.01)
    outputs: list[Tensor] = []
    changes: list[Tensor] = []
    model[0].register_forward_hook(lambda module, args, out: outputs.append(out.detach().clone()))
    for _ in range(3):
        loss_of(model).backward()
        before = model[2].weight.detach().clone()
        optimizer.step()
        changes.append(model[2].weight.detach() - before)
        optimizer.zero_grad()
    (watched,) = stepping.models
    run = watched.watch.run
    assert run.over_steps("0:output", "l2")[1] == pytest.approx(
        [one.double().norm().item() for one in outputs]
    )
    assert run.over_steps("2:update[weight]", "l2")[1] == pytest.approx(
        [one.double().norm().item() for one in changes], rel=1e-6
    )


def test_evaluation_is_kept_apart_also_before_the_first_step(stepping: Stepping) -> None:
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    for _ in range(3):
        model.eval()
        with torch.no_grad():
            loss_of(model, rows=100)
        model.train()
        train(model, optimizer, steps=2)
    assert steps_of(stepping) == [[0, 1, 2, 3, 4, 5]]
    run = stepping.models[0].watch.run
    assert run.stats("0:output", step="all").numel == 6 * 6 * 8
    assert run.stats("0:output", step=0).numel == 6 * 8
    assert not run.absent


def test_an_accumulation_is_one_step(stepping: Stepping) -> None:
    model = net()
    train(model, SGD(model.parameters(), 0.1), micro=3)
    assert steps_of(stepping) == [[0, 1, 2]]
    assert stepping.models[0].watch.run.stats("0:output", step=1).num_tensors == 3


def test_steps_are_counted_by_the_optimizer_where_every_leaves_most_out() -> None:
    stepping = Stepping(WHERE, every=3)
    stepping.attach()
    model = net()
    train(model, SGD(model.parameters(), 0.1), steps=7)
    stepping.detach()
    assert steps_of(stepping) == [[0, 3, 6]]


def test_steps_may_be_so_many_backwards() -> None:
    stepping = Stepping(WHERE, backwards=2)
    stepping.attach()
    model = net()
    train(model, SGD(model.parameters(), 0.1), steps=6)
    stepping.detach()
    assert steps_of(stepping) == [[0, 1, 2]]


def test_a_model_that_is_trained_by_hand_is_found(stepping: Stepping) -> None:
    class Trained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = net()

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x)

    model = Trained()
    seen: list[Tensor] = []
    model.register_forward_hook(lambda module, args, out: seen.append(out.detach().clone()))
    for _ in range(4):
        model.zero_grad()
        loss_of(model).backward()
        for param in model.parameters():
            assert param.grad is not None
            param.data.add_(param.grad, alpha=-0.1)
    assert [one.kind for one in stepping.models] == ["Trained"]
    assert steps_of(stepping) == [[0, 1, 2, 3]]
    run = stepping.models[0].watch.run
    assert run.over_steps(".:output", "l2")[1] == pytest.approx(
        [one.double().norm().item() for one in seen]
    )
    assert run.over_steps("body.0:param[weight]", "l2")[0] == [0, 1, 2, 3]


def test_a_forward_before_there_is_an_optimizer_is_no_training(stepping: Stepping) -> None:
    model, teacher = net(), net()
    loss_of(model)  # To learn a size, as constructors of convolutional nets do.
    loss_of(teacher)
    optimizer = SGD(model.parameters(), 0.1)
    train(model, optimizer)
    assert len(stepping.models) == 1
    assert not any(one._forward_pre_hooks for one in teacher.modules())
    assert steps_of(stepping) == [[0, 1, 2]]


def test_the_parts_of_one_model_may_be_called_alone(stepping: Stepping) -> None:
    both = nn.ModuleDict({"g": nn.Linear(4, 4), "d": nn.Linear(4, 1)})
    of_g, of_d = (SGD(both[name].parameters(), 0.1) for name in "gd")
    for _ in range(3):
        fake = both["g"](torch.randn(6, 4))
        of_d.zero_grad()
        both["d"](fake.detach()).sum().backward()
        of_d.step()
        of_g.zero_grad()
        both["d"](fake).sum().backward()
        of_g.step()
    assert [one.kind for one in stepping.models] == ["ModuleDict"]
    assert steps_of(stepping) == [[0, 1, 2]]
    assert stepping.models[0].watch.run.stats("d:output", step=1).num_tensors == 2


def test_a_frozen_part_that_runs_without_gradients_belongs_to_the_step(stepping: Stepping) -> None:
    both = nn.ModuleDict({"body": nn.Linear(4, 4), "head": nn.Linear(4, 1)})
    optimizer = SGD(both["head"].parameters(), 0.1)
    for _ in range(3):
        with torch.no_grad():
            hidden = both["body"](torch.randn(6, 4))
        both["head"](hidden).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert steps_of(stepping) == [[0, 1, 2]]
    assert stepping.models[0].watch.run.over_steps("body:output", "num_tensors")[1] == [1, 1, 1]


def test_a_model_that_trains_in_eval_mode_is_recorded(stepping: Stepping) -> None:
    model = net().eval()
    train(model, SGD(model.parameters(), 0.1))
    assert steps_of(stepping) == [[0, 1, 2]]


def test_the_outermost_model_is_watched_though_only_its_head_is_trained(
    stepping: Stepping,
) -> None:
    model = net()
    for param in model[0].parameters():
        param.requires_grad_(False)
    train(model, SGD(model[2].parameters(), 0.1))
    assert [one.kind for one in stepping.models] == ["Sequential"]
    assert steps_of(stepping) == [[0, 1, 2]]


def test_copies_and_models_one_after_the_other_have_runs_of_their_own(stepping: Stepping) -> None:
    first = net()
    second = copy.deepcopy(first)
    train(first, SGD(first.parameters(), 0.1), steps=4)
    train(second, SGD(second.parameters(), 0.1), steps=2)
    assert [one.variable for one in stepping.models] == ["first", "second"]
    assert steps_of(stepping) == [[0, 1, 2, 3], [0, 1]]


def test_optimizers_made_in_advance_take_no_part_until_their_model_runs(
    stepping: Stepping,
) -> None:
    models = [net(), net()]
    optimizers = [SGD(model.parameters(), 0.1) for model in models]
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer, steps=4)
    assert steps_of(stepping) == [[0, 1, 2, 3], [0, 1, 2, 3]]


def test_a_skipped_step_of_a_scaler_ends_its_step(stepping: Stepping) -> None:
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for k in range(7):
        for _ in range(2):
            loss = loss_of(model) * (float("inf") if k in (0, 3, 4) else 1)
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert steps_of(stepping) == [[0, 1, 2, 3, 4, 5, 6]]
    run = stepping.models[0].watch.run
    assert run.over_steps("0:update[weight]", "l2")[0] == [1, 2, 5, 6]
    assert run.over_steps("0:output", "num_tensors")[1] == [2] * 7


def test_the_closures_of_one_lbfgs_step_are_one_step(stepping: Stepping) -> None:
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x = torch.randn(6, 4)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    assert steps_of(stepping) == [[0, 1, 2]]
    run = stepping.models[0].watch.run
    assert run.over_steps("0:update[weight]", "l2")[0] == [0, 1, 2]


def test_optimizers_that_step_inside_the_backward_make_one_step(stepping: Stepping) -> None:
    model = net()
    of = {param: SGD([param], 0.1) for param in model.parameters()}

    def step(param: Tensor) -> None:
        of[param].step()
        of[param].zero_grad()

    for param in model.parameters():
        param.register_post_accumulate_grad_hook(step)
    for _ in range(4):
        loss_of(model).backward()
    assert len(stepping.models) == 1
    assert steps_of(stepping) == [[0, 1, 2, 3]]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["wrapper before", "wrapper after", "in place", "function"])
def test_compiled_models_are_stepped_as_eager_ones(stepping: Stepping, how: str) -> None:
    torch.compiler.reset()
    model: Any = net()
    if how == "wrapper before":
        model = torch.compile(model, backend="aot_eager")
    optimizer = SGD(model.parameters(), 0.1)
    if how == "wrapper after":
        model = torch.compile(model, backend="aot_eager")
    elif how == "in place":
        model.compile(backend="aot_eager")
    if how == "function":

        @torch.compile(backend="aot_eager")
        def loss(x: Tensor) -> Tensor:
            return model(x).square().mean()

        for _ in range(3):
            loss(torch.randn(6, 4)).backward()
            optimizer.step()
            optimizer.zero_grad()
    else:
        train(model, optimizer)
    assert steps_of(stepping) == [[0, 1, 2]]
    run = stepping.models[0].watch.run
    assert run.over_steps("0:output", "num_tensors")[1] == [1, 1, 1]
    assert run.over_steps("0:update[weight]", "l2")[0] == [0, 1, 2]


def test_a_copy_and_a_pickle_of_a_model_have_no_hooks(stepping: Stepping) -> None:
    model = net()
    SGD(model.parameters(), 0.1)
    assert model._forward_pre_hooks
    assert not any(one._forward_pre_hooks for one in copy.deepcopy(model).modules())


def test_optimizing_inputs_finds_no_model_and_costs_little(stepping: Stepping) -> None:
    for _ in range(100):
        x = torch.randn(3, requires_grad=True)
        optimizer = SGD([x], 0.1)
        x.sum().backward()
        optimizer.step()
    assert not stepping.models
    # Of a machine that is busy; each look takes 30 to 100 ms.
    assert stepping._search.seconds_in_vain < 3.0


@pytest.mark.slow
def test_no_more_than_a_number_of_models_are_watched(stepping: Stepping) -> None:
    kept = [net() for _ in range(MOST_MODELS + 2)]
    for model in kept:
        train(model, SGD(model.parameters(), 0.1), steps=1)
    assert len(stepping.models) == MOST_MODELS
    assert stepping.num_left_out == 2


def test_what_goes_wrong_while_watching_does_not_reach_the_training() -> None:
    stepping = Stepping(["nowhere:output"])
    stepping.attach()
    model = net()
    twin = copy.deepcopy(model)
    optimizer = SGD(model.parameters(), 0.1)
    torch.manual_seed(0)
    train(model, optimizer)
    stepping.detach()
    torch.manual_seed(0)
    train(twin, SGD(twin.parameters(), 0.1))
    assert "nowhere" in " ".join(stepping.faults)
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, other)

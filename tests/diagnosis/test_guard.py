"""``tt.guard`` notices what is not finite, names its origin, and changes nothing."""

from __future__ import annotations

import gc
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from bits import bits
from planted_faults import PLANTED, Planted
from torch import Tensor, nn

import torchtap as tt
from torchtap.testing import Net, Specimen, default_loss, zoo


def guarded(planted: Planted, num_steps: int = 3) -> tt.Origin | None:
    step = planted.step(planted.optimizer(planted.model.parameters()))
    with tt.guard(planted.model):
        try:
            for _ in range(num_steps):
                step(*planted.batch)
        except tt.NonFiniteError as error:
            assert isinstance(error.origin, tt.Origin)
            return error.origin
    return None


@pytest.mark.parametrize("name", [name for name, make in PLANTED.items() if make().in_model])
def test_a_planted_fault_is_named_without_the_step(name: str) -> None:
    planted = PLANTED[name]()
    origin = guarded(planted)
    assert origin is not None
    assert (origin.phase, origin.operation, origin.module, origin.call) == planted.expected
    assert origin.code.endswith("# fault") == planted.has_line
    if planted.rows is not None:
        assert origin.rows == planted.rows


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_what_a_module_of_pytorch_made_stands_at_the_line_that_called_the_model(phase: str) -> None:
    x = torch.ones(3, 2)
    if phase == "forward":
        model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        x[1] = 3e38
        nn.init.constant_(next(model.parameters()), 2.0)
    else:
        model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
        nn.init.constant_([*model.parameters()][1], 2.0)
    optimizer = torch.optim.SGD(model.parameters())
    with tt.guard(model) as guard, pytest.raises(tt.NonFiniteError):
        out = model(x)  # called
        (out * (out if phase == "forward" else 3e38)).sum().backward()
        optimizer.step()
    assert guard.origin is not None
    assert (guard.origin.phase, guard.origin.module) == (phase, "0" if phase == "forward" else "1")
    assert guard.origin.code == "out = model(x)  # called"
    assert guard.origin.file == __file__


def test_a_fault_in_the_loss_is_said_to_lie_outside_of_the_model() -> None:
    origin = guarded(PLANTED["loss_of_log_zero"]())
    assert origin is not None
    assert (origin.operation, origin.module) == ("", None)
    assert "outside of the model" in origin.text
    assert "loss.backward()" in origin.code


def test_clipping_by_nothing_is_told_from_a_race() -> None:
    origin = guarded(PLANTED["clipping_a_zero_norm"]())
    assert origin is not None
    assert "clipping, or an all-reduce" in origin.text
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    with tt.guard(model, on="warn") as guard, pytest.warns(UserWarning, match="race"):
        model(torch.ones(1, 2)).sum().backward()
        assert model.weight.grad is not None
        model.weight.grad[0, 1] = math.nan  # As a broken memory cell would.
        optimizer.step()
    assert guard.origin is not None
    assert guard.origin.index == (0, 1)


@pytest.mark.parametrize("number", [0.0, math.nan])
def test_an_attribute_that_changed_before_the_replay_is_named_as_a_reason(number: float) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.scale = nn.Linear(2, 2), number

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.fc(x) / self.scale
            return out

    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters())
    with tt.guard(model, on="warn") as guard, pytest.warns(UserWarning):
        model(torch.ones(1, 2)).sum().backward()
        model.scale = 1.0
        optimizer.step()
    assert guard.origin is not None
    assert "an attribute that is no buffer" in guard.origin.text
    assert "were finite after the backward" not in guard.origin.text


def negative() -> nn.Linear:
    linear = nn.Linear(2, 2)
    with torch.no_grad():
        linear.weight.fill_(-1), linear.bias.zero_()
    return linear


def training(model: nn.Module, x: Tensor, lr: float = 0.1) -> Iterator[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    while True:
        optimizer.zero_grad()
        loss: Tensor = model(x).square().mean()
        loss.backward()
        yield loss
        optimizer.step()


def test_a_step_is_left_out_and_the_training_goes_on() -> None:
    torch.manual_seed(0)
    model = Net(lambda m, x: m.fc(x) / m.scale, fc=nn.Linear(2, 2), scale=torch.ones(()))
    steps = training(model, torch.ones(3, 2))
    with tt.watch(model) as w, tt.guard(model, on="skip") as guard:
        for number in range(4):
            next(steps)
            model.scale.fill_(0.0 if number == 0 else 1.0)
            before = [one.clone() for one in model.parameters()]
            if number == 2:
                kept = model.fc.weight.grad
            w.step()
        next(steps)
    assert guard.skipped == [1]
    assert guard.origin is not None
    assert (guard.origin.operation, guard.origin.module) == ("div", ".")
    assert kept is not None
    assert all(one.isfinite().all() for one in (*before, *model.parameters()))
    assert [w.run.labels(step).get("skipped") for step in range(4)].count(True) == 1


def test_a_function_is_called_and_the_training_goes_on() -> None:
    model = Net(lambda m, x: m.fc(x).log(), fc=negative())
    seen: list[tt.Origin] = []
    steps = training(model, torch.ones(3, 2))
    with tt.guard(model, on=seen.append):
        for _ in range(3):
            next(steps)
    assert [one.operation for one in seen] == ["log"]


def test_a_logged_loss_that_is_not_finite_is_found_though_gradients_are() -> None:
    def body(m: Net, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            extra = (x.sum() * 0).log().mean()  # fault
        return m.fc(x), extra

    model = Net(body, fc=nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(log: Callable[..., None], *, is_after: bool) -> None:
        out, extra = model(torch.ones(1, 2))
        loss = out.sum() + extra
        loss.backward()
        if not is_after:
            log(loss=loss)
        optimizer.step()
        if is_after:
            log(loss=loss)

    for is_after in (False, True):
        with tt.guard(model) as guard, pytest.raises(tt.NonFiniteError):
            for _ in range(2):
                step(guard.log, is_after=is_after)
        assert guard.origin is not None
        assert (guard.origin.operation, guard.origin.module) == ("log", ".")
    with tt.watch(model) as w, tt.guard(model) as guard, pytest.raises(tt.NonFiniteError):
        step(w.log, is_after=False)


@pytest.mark.parametrize("is_scaled", [False, True])
def test_a_loss_is_looked_at_where_the_backward_begins(is_scaled: bool) -> None:
    def body(m: Net, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            extra = (x * m.factor).log().mean()  # fault
        return m.fc(x), extra

    model = Net(body, fc=nn.Linear(2, 2), factor=torch.ones(()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=is_scaled)
    with tt.guard(model, on=lambda _: None) as guard:
        for number in range(4):
            model.factor.fill_(-1.0 if number == 2 else 1.0)
            out, extra = model(torch.ones(3, 2))
            optimizer.zero_grad()
            scaler.scale(out.sum() + extra).backward()
            scaler.step(optimizer)
            scaler.update()
    assert all(one.isfinite().all() for one in model.parameters()), "gradients were finite"
    assert list(guard.origins) == [2]
    assert (guard.origins[2].operation, guard.origins[2].module) == ("log", ".")


def test_a_loss_that_is_made_outside_of_the_model_is_said_to_be() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tt.guard(model) as guard, pytest.raises(tt.NonFiniteError, match="by the loss itself"):
        (model(torch.ones(3, 2)).sum() + math.inf).backward()
        optimizer.step()
    assert guard.origin is not None
    assert "number from which the backward began is not finite" in guard.origin.text


def test_a_parameter_that_the_update_ruined_names_the_optimizer_as_cause() -> None:
    model = Net(lambda m, x: m.fc(x), fc=nn.Linear(2, 2))
    nn.init.constant_(model.fc.bias, 100.0)  # Gradients of about 100, so no update is finite.
    steps = training(model, torch.ones(1, 2), lr=1e38)
    with tt.guard(model) as guard, pytest.raises(tt.NonFiniteError):
        for _ in range(5):
            next(steps)
    origin = guard.origin
    assert origin is not None
    assert origin.phase == "parameter"
    assert origin.cause is not None
    assert origin.cause.phase == "optimizer"


def test_of_micro_batches_the_backward_that_made_it_is_named() -> None:
    model = Net(lambda m, x: m.fc(x).sqrt(), fc=nn.Linear(2, 2))
    with torch.no_grad():
        model.fc.weight.fill_(1), model.fc.bias.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tt.guard(model) as guard, pytest.raises(tt.NonFiniteError):
        for number in range(4):
            model(torch.full((2, 2), 1.0 if number != 2 else -1.0)).sum().backward()
        optimizer.step()
    assert guard.origin is not None
    assert (guard.origin.operation, guard.origin.call) == ("sqrt", 2)


def test_a_scaler_of_an_earlier_training_ends_no_step() -> None:
    earlier = nn.Linear(2, 2)
    scaler, first = torch.amp.GradScaler("cpu"), torch.optim.SGD(earlier.parameters(), lr=0.1)
    scaler.scale(earlier(torch.ones(1, 2)).sum()).backward()
    scaler.step(first)
    scaler.update()
    model = Net(lambda m, x: m.fc(x).sqrt(), fc=nn.Linear(2, 2))
    with torch.no_grad():
        model.fc.weight.fill_(1), model.fc.bias.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tt.guard(model) as guard, pytest.raises(tt.NonFiniteError):
        for sign in (1.0, 1.0, -1.0, 1.0):  # Four micro batches of one step.
            model(torch.full((2, 2), sign)).sum().backward()
        optimizer.step()
    assert guard.origin is not None
    assert (guard.origin.operation, guard.origin.call, guard.step) == ("sqrt", 2, 0)


def test_a_model_without_an_optimizer_is_looked_at_after_each_backward() -> None:
    model = Net(lambda m, x: m.fc(x).sqrt(), fc=negative())
    with tt.guard(model) as guard, pytest.raises(tt.NonFiniteError):
        model(torch.ones(2, 2)).sum().backward()
    assert guard.origin is not None
    assert guard.origin.operation == "sqrt"


def test_an_optimizer_with_a_closure_is_looked_at_inside() -> None:
    model = Net(lambda m, x: m.fc(x).log(), fc=negative())
    optimizer: Any = torch.optim.LBFGS(model.parameters())

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(torch.ones(2, 2)).sum()
        loss.backward()
        return loss

    with tt.guard(model) as guard, pytest.raises(tt.NonFiniteError):
        optimizer.step(closure)
    assert guard.origin is not None
    assert guard.origin.operation == "log"


def test_only_optimizers_of_the_model_count() -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    both = torch.optim.SGD(other.parameters()), torch.optim.SGD(model.parameters())
    with tt.guard(model) as guard:
        other(torch.full((1, 2), math.nan)).sum().backward()
        model(torch.ones(1, 2)).sum().backward()
        for one in both:
            one.step()
    assert guard.origin is None
    assert guard.step == 0


def test_a_scaler_that_looks_for_its_scale_is_normal_and_a_scale_below_one_is_not() -> None:
    model = Net(lambda m, x: m.fc(x) * m.factor, fc=nn.Linear(2, 2), factor=torch.ones(()))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=10_000)

    def step() -> None:
        optimizer.zero_grad()
        scaler.scale(model(torch.full((1, 2), 30.0)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    with tt.guard(model) as guard:
        for _ in range(12):
            step()
        assert guard.origin is None
        assert scaler.get_scale() < 2.0**127, "it did look"
        model.factor.fill_(math.inf)
        with pytest.raises(tt.NonFiniteError):
            for _ in range(140):
                step()
    assert guard.origin is not None
    assert (guard.origin.phase, guard.origin.module) == ("parameter", ".")


def test_only_the_scaler_that_steps_the_optimizer_counts() -> None:
    def trained(*, init_scale: float, x: Tensor, others: bool = False) -> tt.Origin | None:
        model, other = nn.Linear(2, 2), nn.Linear(2, 2)
        pairs = [
            (one, torch.optim.SGD(one.parameters(), lr=1e-3), torch.amp.GradScaler("cpu", scale))
            for one, scale in ((model, init_scale), (other, 0.5))
        ]
        with tt.guard(model, on=lambda _: None) as guard:
            for _ in range(12):
                for one, optimizer, scaler in pairs[: 1 + others]:
                    optimizer.zero_grad()
                    scaler.scale(one(x if one is model else x * math.nan).sum()).backward()
                    scaler.step(optimizer)
                    scaler.update()
        return guard.origin

    left = torch.amp.GradScaler("cpu", 0.5)  # By a training that is over.
    left.scale(torch.ones(()))
    x = torch.full((1, 2), 30.0)
    assert trained(init_scale=2.0**127, x=x) is None
    assert trained(init_scale=2.0**127, x=x, others=True) is None
    assert left.get_scale() == 0.5
    assert trained(init_scale=2.0, x=x * math.nan) is not None


def test_a_logged_loss_of_nan_counts_though_a_scaler_leaves_the_step_out() -> None:
    model = Net(lambda m, x: m.fc(x.log()), fc=nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)

    def step(log: Callable[..., None], x: Tensor) -> None:
        loss = scaler.scale(model(x).square().sum())
        log(loss=loss)
        optimizer.zero_grad()
        loss.backward()
        scaler.step(optimizer)
        scaler.update()

    x = torch.full((2, 2), 30.0)
    with tt.guard(model, on=lambda _: None) as guard:
        for number in range(20):
            step(guard.log, x if number != 15 else x * torch.tensor([[1.0], [-1.0]]))
            assert guard.step == number
    assert list(guard.origins) == [15]
    assert guard.origins[15].operation == "log"
    assert guard.origins[15].rows == (1,)


def test_a_logged_inf_counts_where_a_scaler_cannot_have_made_it() -> None:
    model = Net(lambda m, x: m.fc(x) / m.scale, fc=nn.Linear(2, 2), scale=torch.ones(()))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    with tt.guard(model, on=lambda _: None) as guard:
        for number in range(6):
            model.scale.fill_(0.0 if number == 3 else 1.0)
            loss = model(torch.ones(2, 2)).abs().sum()
            guard.log(loss=loss if number % 2 else loss.item())
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert scaler.get_scale() == 2.0**15
    assert list(guard.origins) == [3]
    assert guard.origins[3].operation == "div"


def test_one_step_of_each_of_several_optimizers_is_one_step() -> None:
    model = nn.ModuleDict({"make": nn.Linear(2, 2), "judge": nn.Linear(2, 1)})
    make, judge = (torch.optim.SGD(one.parameters(), lr=1e-3) for one in model.values())
    spare = torch.optim.SGD(model.parameters(), lr=1e-3)  # Never steps.
    for others, num_judged in ((spare, 1), (None, 1), (None, 3)):
        spare = others  # type: ignore[assignment]
        gc.collect()
        with tt.guard(model, on="skip") as guard:
            for number in range(5):
                noise = torch.full((4, 2), math.nan if number == 3 else 1.0)
                for _ in range(num_judged):
                    model["judge"](model["make"](noise).detach()).sum().backward()
                    judge.step()
                    assert guard.step // num_judged == number
                model["judge"](model["make"](noise)).sum().backward()
                make.step()
                for one in (make, judge):
                    one.zero_grad()
        expected = {3} if num_judged == 1 else {9, 10, 11, 12}  # The maker's is the next one's.
        assert set(guard.skipped) == expected
        assert next(iter(guard.origins)) == 3 * num_judged
        assert guard.origins[3 * num_judged].phase == "input"


def test_a_step_of_an_optimizer_that_runs_the_forwards_is_one_step() -> None:
    model = Net(lambda m, x: m.fc(x.log()), fc=nn.Linear(2, 2))
    optimizer: Any = torch.optim.LBFGS(model.parameters(), max_iter=3)
    with tt.guard(model, on=lambda _: None) as guard:
        for number in range(4):
            x = torch.full((2, 2), 3.0 if number != 2 else -1.0)

            def closure(x: Tensor = x) -> Tensor:
                optimizer.zero_grad()
                loss: Tensor = model(x).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)
            assert guard.step == number
    assert next(iter(guard.origins)) == 2


def test_locate_leaves_the_search_of_a_scaler_alone() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)

    def step(x: Tensor) -> Tensor:
        loss = model(x).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    assert tt.locate(model, step, torch.full((1, 2), 30.0)) is None
    assert scaler.get_scale() == 2.0**127
    assert tt.locate(model, step, torch.full((1, 2), math.inf)) is not None


def test_a_compiled_model_is_replayed_as_it_is_written() -> None:
    model = Net(lambda m, x: m.fc(x).log(), fc=negative())
    compiled = torch.compile(model, backend="eager")
    steps = training(compiled, torch.ones(3, 2))  # type: ignore[arg-type]
    with tt.guard(compiled) as guard, pytest.raises(tt.NonFiniteError):  # type: ignore[arg-type]
        next(steps)
        next(steps)
    assert guard.origin is not None
    assert (guard.origin.operation, guard.origin.module) == ("log", ".")


def test_a_scripted_part_takes_no_hooks_and_is_named_by_the_module_around_it() -> None:
    class Log(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.log(x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(Log())
    model = nn.Sequential(negative(), scripted)
    steps = training(model, torch.ones(3, 2))
    with tt.guard(model) as guard, pytest.raises(tt.NonFiniteError):
        next(steps)
        next(steps)
    assert guard.origin is not None
    assert (guard.origin.operation, guard.origin.module) == ("log", ".")


def test_a_part_that_is_called_alone_is_replayed_and_its_input_is_named() -> None:
    model = nn.ModuleDict({"enc": nn.Linear(2, 2), "dec": nn.Linear(2, 2)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tt.guard(model) as guard, pytest.raises(tt.NonFiniteError):
        hidden = model["enc"](torch.ones(3, 2))
        model["dec"](hidden / (hidden - hidden)).sum().backward()
        optimizer.step()
    assert guard.origin is not None
    assert (guard.origin.phase, guard.origin.module) == ("input", "dec")


def test_bad_arguments_are_refused() -> None:
    model: Any = nn.Linear(1, 1)
    with pytest.raises(tt.InputError, match="keep=0"):
        tt.guard(model, keep=0)
    with pytest.raises(tt.InputError, match="'stop'"):
        tt.guard(model, on="stop")  # type: ignore[arg-type]
    with pytest.raises(tt.InputError, match="Linear as optimizer"):
        tt.guard(model, optimizer=model)
    with pytest.raises(tt.InputError, match="got where and ring, which the flight recorder takes"):
        tt.guard(model, where="*", ring=tt.Stats())
    with pytest.raises(tt.InputError, match="int as model"):
        tt.guard(3)  # type: ignore[arg-type]


def test_a_model_that_cannot_be_replayed_says_so_and_does_not_stop_a_training() -> None:
    calls = []

    def body(m: Net, x: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) > 1:
            raise KeyError("only once")
        out: Tensor = m.fc(x).log()
        return out

    model = Net(body, fc=negative())
    steps = training(model, torch.ones(3, 2))
    with tt.guard(model, on="warn"), pytest.warns(UserWarning, match="only once"):
        next(steps)
        with pytest.raises(KeyError):
            next(steps)


def _trained(specimen: Specimen, *, is_guarded: bool) -> Any:
    torch.manual_seed(0)
    model = specimen.build()
    args, kwargs = specimen.inputs()
    params = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.SGD(params, lr=0.01) if params else None
    guard = tt.guard(model, on="warn") if is_guarded else None
    seen = []
    for _ in range(2):
        try:
            out = model(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - that of the specimen, compared below
            seen.append(type(error))
            continue
        loss = default_loss(out) if specimen.backward else None
        if loss is not None and loss.requires_grad:
            loss.backward()
            seen.append(bits(loss))
            if optimizer is not None:
                optimizer.step()
    if guard is not None:
        guard.close()
        guard.close()
    tables = [
        len(table)
        for one in model.modules()
        for table in (one._forward_hooks, one._forward_pre_hooks, one._backward_hooks)
    ]
    values = [bits(one) for one in (*model.parameters(), *model.buffers())]
    gradients = [bits(one.grad) for one in model.parameters()]
    modes = [one.training for one in model.modules()], torch.is_anomaly_enabled()
    return seen, values, gradients, tables, modes, bits(torch.get_rng_state())


@pytest.mark.parametrize("specimen", zoo(), ids=lambda one: one.name)
def test_guarding_changes_nothing(specimen: Specimen) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torchtap: step")  # One specimen is not finite.
        assert _trained(specimen, is_guarded=True) == _trained(specimen, is_guarded=False)

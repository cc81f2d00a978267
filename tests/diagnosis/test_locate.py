"""``tt.locate`` names the operation, and leaves no trace of the step."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from bits import bits
from planted_faults import PLANTED
from random_numbers import normal
from torch import Tensor, nn

import torchtap as tt
from torchtap.diagnosis.origins.origin import origin_of
from torchtap.testing import Net, Specimen, default_loss, zoo


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_located(name: str) -> None:
    planted = PLANTED[name]()
    step = planted.step(planted.optimizer(planted.model.parameters()))
    origin = tt.locate(planted.model, step, *planted.batch)
    assert origin is not None
    assert (origin.phase, origin.operation, origin.module, origin.call) == planted.expected
    assert origin.code.endswith("# fault") == planted.has_line
    assert not np.isfinite(origin.value)
    assert origin.operation in ("", origin.path[0])


def test_a_step_that_is_finite_has_no_origin() -> None:
    model = nn.Linear(2, 2)
    assert tt.locate(model, lambda x: model(x).sum(), torch.ones(1, 2)) is None


def same(value: Any) -> Any:
    if isinstance(value, list):
        return [same(one) for one in value]
    return bits(value) if isinstance(value, torch.Tensor) else value


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    params = list(model.parameters())
    ids = [id(one) for one in params]
    slots = {
        ids.index(id(key)): {name: same(one) for name, one in own.items()}
        for key, own in optimizer.state.items()
    }
    return (
        {name: bits(one) for name, one in model.state_dict().items()},
        [bits(one.grad) for one in params],
        slots,
        [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups],
        [module.training for module in model.modules()],
        bits(torch.get_rng_state()),
        random.getstate(),
        str(np.random.get_state()),
        [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()],
        torch.is_grad_enabled(),
        torch.is_anomaly_enabled(),
    )


@pytest.mark.parametrize("num_before", [0, 2])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.LBFGS, torch.optim.SGD])
def test_everything_is_put_back(
    kind: Callable[..., torch.optim.Optimizer], num_before: int
) -> None:
    torch.manual_seed(0)
    body = Net(
        lambda m, x: m.fc(m.drop(m.norm(x))),
        fc=nn.Linear(3, 2),
        drop=nn.Dropout(),
        norm=nn.BatchNorm1d(3),
    )
    optimizer: Any = kind(body.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    def step(x: torch.Tensor, scale: float) -> torch.Tensor:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = body(x).mul(scale).square().mean()
            loss.backward()
            random.random(), np.random.rand()
            return loss

        body.train()
        loss = closure()
        optimizer.step(closure)
        scheduler.step()
        body.eval()
        return loss

    x = torch.randn(5, 3)
    for _ in range(num_before):
        step(x, 1.0)
    before = _state(body, optimizer), scheduler.state_dict(), x.clone()
    assert tt.locate(body, step, x, 1e30) is not None
    assert (_state(body, optimizer), scheduler.state_dict()) == before[:2]
    assert torch.equal(x, before[2])
    step(x, 1.0)
    assert _state(body, optimizer) != before[0], "what is compared does change"


@pytest.mark.parametrize("specimen", zoo(), ids=lambda one: one.name)
def test_a_step_is_put_back_over_the_zoo(specimen: Specimen) -> None:
    model = specimen.build()
    args, kwargs = specimen.inputs()
    params = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.SGD(params, lr=0.1) if params else None

    def step() -> None:
        out = model(*args, **kwargs)
        loss = default_loss(out) if specimen.backward else None
        if loss is not None and loss.requires_grad:
            loss.backward()
            if optimizer is not None:
                optimizer.step()

    before = [bits(one) for one in (*model.parameters(), *model.buffers())]
    random_state = bits(torch.get_rng_state())
    if specimen.raises is not None:
        with pytest.raises(specimen.raises):
            tt.locate(model, step)
    else:
        tt.locate(model, step)
    assert [bits(one) for one in (*model.parameters(), *model.buffers())] == before
    assert all(one.grad is None for one in model.parameters())
    assert bits(torch.get_rng_state()) == random_state


def test_what_a_step_raises_is_raised_where_nothing_is_wrong() -> None:
    def step() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        tt.locate(nn.Linear(1, 1), step)


def test_a_step_that_raises_over_its_loss_is_located() -> None:
    model = Net(lambda m, x: m.fc(x).log(), fc=nn.Linear(2, 2))

    def step(x: torch.Tensor) -> None:
        loss = model(x).sum()
        if not np.isfinite(loss.item()):
            raise ValueError("the loss is NaN")

    origin = tt.locate(model, step, torch.full((1, 2), -50.0) * model.fc.weight.sign()[:1])
    assert origin is not None
    assert (origin.operation, origin.module) == ("log", ".")


def test_an_origin_is_read_from_json() -> None:
    import json

    from torchtap.diagnosis.origins.origin import origin_of

    planted = PLANTED["log_of_negative"]()
    step = planted.step(planted.optimizer(planted.model.parameters()))
    origin = tt.locate(planted.model, step, *planted.batch)
    assert origin is not None
    again = origin_of(json.loads(json.dumps(origin.as_dict())))
    assert again.text == origin.text
    assert (again.path, again.index, again.file_hash) == (
        origin.path,
        origin.index,
        origin.file_hash,
    )
    assert len(origin.file_hash) == 64


def test_the_way_is_drawn_as_a_graph_and_kept_as_plain_values() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Softmax(-1))
    model.append(nn.Linear(4, 2))

    def step(x: Tensor) -> Tensor:
        return model[2](torch.log(model[1](model[0](x)) - 1.0)).square().mean()

    origin = tt.locate(model, step, normal(5, 3))
    assert origin is not None
    assert origin.path == ("log", "addmm", "pow", "mean")
    graph = origin.graph()
    assert [(node.name, node.kind, node.path) for node in graph.nodes] == [
        ("log", "not finite", ""),
        ("addmm", "operation", "2"),
        ("pow", "operation", ""),
        ("mean", "operation", ""),
    ]
    assert [(edge.source, edge.target) for edge in graph.edges] == [(0, 1), (1, 2), (2, 3)]
    assert "made the first NaN or Inf" in graph.svg()
    kept = origin_of(json.loads(json.dumps(origin.as_dict())))
    assert (kept.way, kept.text) == (origin.way, origin.text)


@pytest.mark.parametrize(
    ("bad", "said"), [((1,), "1 sample of the batch does it"), ((0, 1, 2), "")]
)
def test_samples_are_named_only_where_others_do_not_do_it(bad: tuple[int, ...], said: str) -> None:
    model = nn.Linear(1, 1)
    batch = torch.ones(3, 1)
    batch[list(bad)] = -1.0
    by_step = tt.locate(model, lambda x: (model(x) * 0 + x).sqrt().mean(), batch)
    inside = Net(lambda net, x: (net.fc(x) * 0 + x).sqrt(), fc=model)
    with tt.guard(inside, on=lambda origin: None) as guard:
        inside(batch).mean().backward()
        torch.optim.SGD(inside.parameters()).step()
    for origin in (by_step, guard.origin):
        assert origin is not None
        assert (origin.rows, origin.num_samples) == (bad, 3)
        assert ("of the batch" in origin.text) == bool(said) and said in origin.text
        assert origin_of(origin.as_dict()).text == origin.text


def test_locate_inside_of_a_guard_and_a_watch_is_seen_by_neither() -> None:
    model = Net(lambda m, x: m.fc(x.log()), fc=nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss

    bad = torch.full((2, 2), -1.0)
    with tt.watch(model, ".:output") as w, tt.guard(model) as guard:
        step(torch.ones(2, 2))
        found = tt.locate(model, step, bad)
        assert guard.step == 0
        with pytest.raises(tt.NonFiniteError):  # It would follow from a step that none has taken.
            step(bad)
    assert found is not None
    assert found.operation == "log"
    assert list(guard.origins) == [1]
    assert [record.call for record in w.run.records(".:output")] == [0, 1]


def test_a_step_that_never_calls_the_model_is_refused() -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    with pytest.raises(tt.InputError, match="step called no module of Linear"):
        tt.locate(model, lambda x: other(x).sum().backward(), torch.ones(1, 2))
    with pytest.raises(KeyError):  # What the step itself raises comes first.
        tt.locate(model, lambda x: {}["x"], torch.ones(1, 2))
    origin = tt.locate(model, lambda x: x.log().sum(), torch.full((1, 2), -1.0))
    assert origin is not None and origin.operation == "log"  # Found, though outside of the model.


def test_the_text_says_in_which_module_or_that_it_was_outside() -> None:
    linear = nn.Linear(2, 1)
    nn.init.constant_(linear.weight, 1.0)
    model, batch = nn.Sequential(linear), torch.full((3, 2), -9.0)
    outside = tt.locate(model, lambda x: model(x).log().mean(), batch)
    assert outside is not None
    assert outside.text.startswith("In the forward, log outside the model made the first NaN.")
    inside = tt.locate(model, lambda x: model(x).mean(), batch * 3e37)
    assert inside is not None
    assert inside.text.startswith("In the forward, addmm in 0 made the first Inf.")

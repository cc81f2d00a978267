"""A watch with statistics notes what a loss tells, and changes nothing by it."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import torchtap as tt
from torchtap.capture import loss_facts
from torchtap.runs.rules.loss_operations import LossOperations
from torchtap.runs.rules.rule_view import View

F = nn.functional
WHERE = "*:*,param,param_grad,update"


def _judged(loss: Callable[[Tensor], Tensor], steps: int = 3) -> LossOperations:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    with tt.watch(model, WHERE, to=tt.Stats()) as w:
        for _ in range(steps):
            loss(model(torch.randn(6, 4))).backward()
            w.step()
    return View(w.run).judged


CLASSES = torch.tensor([0, 1, 2, 0, 1, 2])


def test_operations_are_those_between_the_loss_and_the_output() -> None:
    judged = _judged(lambda y: -F.nll_loss(y.log_softmax(1), CLASSES) / 2)
    assert [[one.name for one in graph] for graph in judged.graphs] == [
        ["Div", "Neg", "NllLoss", "LogSoftmax", ""]
    ]
    assert judged.graphs[0][3].settings["dim"] == 1
    assert judged.graphs[0][-1].settings == {"of": "Addmm"}


@pytest.mark.parametrize(
    ("loss", "is_turned"),
    [
        (lambda y: F.mse_loss(y, CLASSES[:, None].expand(6, 3).float()), False),
        (lambda y: -F.mse_loss(y, CLASSES[:, None].expand(6, 3).float()), True),
        (lambda y: -1.0 * F.cross_entropy(y, CLASSES), True),
        (lambda y: -(y.log_softmax(1).gather(1, CLASSES[:, None]).mean()), False),
        (lambda y: F.cross_entropy(y, CLASSES) - F.mse_loss(y, torch.zeros(6, 3)), False),
    ],
)
def test_a_turned_sign_is_that_of_all_errors(
    loss: Callable[[Tensor], Tensor], *, is_turned: bool
) -> None:
    assert _judged(loss, steps=5).is_turned is is_turned


def test_values_are_the_numbers_from_which_backwards_began() -> None:
    losses: list[float] = []

    def loss(y: Tensor) -> Tensor:
        found = F.cross_entropy(y, CLASSES)
        losses.append(float(found.detach()))
        return found

    assert _judged(loss).values[1].tolist() == pytest.approx(losses, rel=1e-6)


def _gradients(*, is_watched: bool) -> list[Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    w = tt.watch(model, WHERE, to=tt.Stats()) if is_watched else None
    F.cross_entropy(model(torch.randn(6, 4)), CLASSES).backward()
    if w is not None:
        w.close()
    return [*(param.grad for param in model.parameters() if param.grad is not None), torch.rand(3)]


def test_gradients_and_random_numbers_are_the_same_to_the_bit() -> None:
    for one, other in zip(_gradients(is_watched=True), _gradients(is_watched=False), strict=True):
        assert torch.equal(one, other)


def test_the_graph_of_a_step_is_freed_without_the_collector() -> None:
    model = nn.Linear(4, 3)
    gc.disable()
    try:
        with tt.watch(model, WHERE, to=tt.Stats()):
            output = model(torch.randn(6, 4))
            freed = weakref.ref(output)
            F.cross_entropy(output, CLASSES).backward()
            del output
            assert freed() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("clears", [True, False])
@pytest.mark.parametrize("is_set_to_none", [True, False])
def test_steps_with_gradients_of_the_step_before_are_counted(
    *, clears: bool, is_set_to_none: bool
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tt.watch(model, WHERE, to=tt.Stats()) as w:
        for _ in range(6):
            loss = F.cross_entropy(model(torch.randn(6, 4)), CLASSES)
            if clears:
                optimizer.zero_grad(set_to_none=is_set_to_none)
            loss.backward()
            optimizer.step()
            w.step()
    judged = View(w.run).judged
    assert (judged.num_kept, judged.num_steps) == (0 if clears else 5, 5)


def test_rivals_clear_their_gradients_each_before_its_own_backward() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    rivals = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model]
    with tt.watch(model, WHERE, to=tt.Stats()) as w:
        for step in range(8):
            optimizer = rivals[step % 2]
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(6, 4)), CLASSES).backward()
            optimizer.step()
            w.step()
    assert View(w.run).judged.num_kept == 0


def test_gradients_that_are_added_up_on_purpose_are_not_left_over() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tt.watch(model, WHERE, to=tt.Stats()) as w:
        for step in range(12):
            F.cross_entropy(model(torch.randn(6, 4)), CLASSES).backward()
            if step % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
            w.step()
    judged = View(w.run).judged
    assert (judged.num_kept, judged.num_steps) == (0, 3)


def test_a_long_training_keeps_steps_at_equal_distances() -> None:
    model = nn.Linear(2, 3)
    with tt.watch(model, WHERE, to=tt.Stats(keep=4)) as w:
        for _ in range(1100):
            F.cross_entropy(model(torch.ones(6, 2)), CLASSES).backward()
            w.step()
    steps = w.run.meta.loss["steps"]
    assert len(steps) <= 32
    assert {after - before for before, after in pairwise(steps)} == {64}


def test_a_step_that_never_ends_is_looked_at_in_part() -> None:
    model = nn.Linear(2, 3)
    with tt.watch(model, WHERE, to=tt.Stats()) as w:
        for _ in range(100):
            F.cross_entropy(model(torch.ones(6, 2)), CLASSES).backward()
        losses = w._engine.calls.losses
        assert losses is not None and sum(map(len, losses._rows.values())) == 32


@pytest.mark.parametrize(("rows", "is_alias"), [(2**4, True), (2**7, False)])
def test_of_a_large_output_a_part_is_kept(rows: int, is_alias: bool) -> None:
    model = nn.Linear(4, 2**10)
    with tt.watch(model, WHERE, to=tt.Stats()) as w:
        out = model(torch.ones(rows, 4))
        kept = loss_facts._sample(out)
        F.cross_entropy(out, torch.arange(rows)).backward()
        w.step()
    assert kept is not None
    assert kept.numel() == 2**14
    assert (kept.data_ptr() == out.data_ptr()) is is_alias
    assert w.run.meta.loss["agreement"] != [None]


def test_an_output_of_which_one_sample_is_too_large_is_not_kept() -> None:
    model = nn.Linear(4, 2**18)
    for param in model.parameters():
        nn.init.zeros_(param)  # All classes are alike: the loss is the logarithm of their number.
    with tt.watch(model, WHERE, to=tt.Stats()) as w:
        F.cross_entropy(model(torch.ones(2, 4)), torch.arange(2)).backward()
        w.step()
    assert w.run.meta.loss["values"] == [pytest.approx(math.log(2**18))]
    assert w.run.meta.loss["agreement"] == [None]


def test_a_fault_of_a_look_leaves_the_backward_alone_and_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def raising(*args: object) -> None:
        raise RuntimeError("no such loss")

    monkeypatch.setattr("torchtap.capture.loss_facts.judge", raising)
    model = nn.Linear(2, 3)
    with tt.watch(model, WHERE, to=tt.Stats()) as w:
        F.cross_entropy(model(torch.ones(6, 2)), CLASSES).backward()
        w.step()
    assert model.weight.grad is not None
    assert w.run.meta.loss["fault"] == "RuntimeError: no such loss"


def test_facts_are_in_a_file(tmp_path: object) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    with tt.watch(model, WHERE, to=tt.Stats()) as w:
        F.cross_entropy(model(torch.randn(6, 4)), CLASSES).backward()
        w.step()
    w.run.save(f"{tmp_path}/one.safetensors")
    assert tt.open(f"{tmp_path}/one.safetensors").meta.loss == w.run.meta.loss


def test_an_output_that_is_overwritten_is_not_measured() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Softplus())
    with tt.watch(model, WHERE, to=tt.Stats()) as w:
        for _ in range(3):
            output = model(torch.randn(6, 4))
            output.mul_(2)
            F.cross_entropy(output, CLASSES).backward()
            w.step()
    assert w.run.meta.loss["agreement"] == [None, None, None]

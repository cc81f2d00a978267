"""The samples of a guarded step that are not finite are named, with their micro batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from models import seeded
from random_numbers import normal
from torch import Tensor, nn

import torchtap as tt
from torchtap.testing import Net


def _log_net() -> Net:
    """Not finite for samples in which any element is not above 0."""
    return seeded(lambda: Net(lambda m, x: m.fc(x.log()), fc=nn.Linear(3, 2)))


def _batch(size: int, *bad: int, seed: int = 0) -> Tensor:
    x = normal(size, 3, seed=seed).abs() + 0.1
    x[list(bad)] = -1.0
    return x


def _accumulated(
    model: nn.Module,
    batches: Sequence[Tensor],
    ids: Callable[[int, int], str] | None = None,
    *,
    is_one_backward: bool = False,
) -> tt.Origin:
    """The origin of one step of several micro batches."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tt.guard(model, on=lambda origin: None) as guard:
        losses = []
        for number, x in enumerate(batches):
            losses.append(model(x).square().mean())
            if ids is not None:
                guard.log(ids=[ids(number, row) for row in range(len(x))])
            if not is_one_backward:
                losses[-1].backward()
        if is_one_backward:
            torch.stack(losses).sum().backward()
        optimizer.step()
    assert guard.origin is not None
    return guard.origin


@pytest.mark.parametrize("is_one_backward", [False, True])
def test_rows_are_those_of_the_micro_batch_that_is_named(is_one_backward: bool) -> None:
    batches = [_batch(4), _batch(5, 1, 3), _batch(3)]
    origin = _accumulated(
        _log_net(), batches, lambda at, row: f"{at}/{row}", is_one_backward=is_one_backward
    )
    assert (origin.operation, origin.micro_batch, origin.rows) == ("log", 1, (1, 3))
    assert origin.ids == ("1/1", "1/3")
    assert "2 samples of micro batch 1 do it alone: 1/1, 1/3." in origin.text


def test_micro_batches_of_one_sample_are_named_and_a_single_batch_has_no_number() -> None:
    origin = _accumulated(_log_net(), [_batch(1), _batch(1), _batch(1, 0)], lambda at, _: f"{at}")
    assert (origin.micro_batch, origin.rows, origin.ids) == (2, (0,), ("2",))
    origin = _accumulated(_log_net(), [_batch(4, 2)])
    assert (origin.micro_batch, origin.rows) == (None, (2,))


def test_calls_whose_gradients_are_not_used_are_no_micro_batches() -> None:
    model = _log_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tt.guard(model, on=lambda origin: None) as guard:
        for x in (_batch(4), _batch(4, 0)):
            model(_batch(2))  # Looked at, and thrown away.
            model(x).square().mean().backward()
        optimizer.step()
    assert guard.origin is not None
    assert (guard.origin.micro_batch, guard.origin.rows) == (1, (0,))


def test_a_mask_that_is_meant_makes_no_sample_bad() -> None:
    def body(m: Net, x: Tensor) -> Tensor:
        hidden: Tensor = m.fc(x.log())
        return torch.where(torch.tensor([True, False]), hidden, -math.inf)

    model = seeded(lambda: Net(body, fc=nn.Linear(3, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tt.guard(model, on=lambda origin: None) as guard:
        for x in (_batch(4), _batch(4, 3)):
            nn.functional.cross_entropy(model(x), torch.zeros(4, dtype=torch.int64)).backward()
            (model(x)[:, 0].mean()).backward()
        optimizer.step()
    assert guard.origin is not None
    assert (guard.origin.operation, guard.origin.micro_batch, guard.origin.rows) == ("log", 2, (3,))


def test_a_loss_that_spreads_a_nan_over_the_batch_makes_one_sample_bad() -> None:
    model = _log_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tt.guard(model, on=lambda origin: None) as guard:
        out = model(_batch(6, 4))
        (out / out.norm()).square().sum().backward()
        optimizer.step()
    assert guard.origin is not None
    assert (guard.origin.operation, guard.origin.rows) == ("log", (4,))


def test_more_micro_batches_than_are_kept_are_said_to_be_gone() -> None:
    batches = [_batch(2, seed=number) for number in range(70)]
    batches[66][1] = -1.0
    origin = _accumulated(_log_net(), batches)
    assert (origin.operation, origin.micro_batch, origin.rows) == ("log", 66, (1,))
    batches[66], batches[2] = batches[2], batches[66]
    origin = _accumulated(_log_net(), batches)
    assert "5 earlier calls of the step, of micro batches, cannot be replayed" in origin.text
    assert "hardware" not in origin.text

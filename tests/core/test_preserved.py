"""Each function that runs the user's model puts every random state back, or says why not."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from models import rows
from torch import Tensor, nn

import torchtap as tt
from torchtap.core.preserved import RandomState, same_states
from torchtap.testing import Net

OWN = {
    "torch": lambda: torch.rand(()).item(),
    "python": random.random,
    "numpy": np.random.rand,
}
HELD: dict[str, Callable[[], tuple[Any, Callable[[Any], float]]]] = {
    "torch.Generator": lambda: (
        torch.Generator().manual_seed(1),
        lambda own: torch.rand((), generator=own).item(),
    ),
    "numpy.random.Generator": lambda: (np.random.default_rng(1), lambda own: own.random()),
    "a generator of another kind": lambda: (
        np.random.Generator(np.random.MT19937(1)),
        lambda own: own.random(),
    ),
    "numpy.random.RandomState": lambda: (np.random.RandomState(1), lambda own: own.rand()),
    "random.Random": lambda: (random.Random(1), lambda own: own.random()),
}


class Draws(nn.Module):
    """Multiplies by a random number of one source."""

    def __init__(self, source: str, place: str = "attribute") -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.draw: Callable[[], float]
        if source in OWN:
            self.draw = OWN[source]
            return
        own, draw = HELD[source]()
        self.own = {"attribute": own, "list": [None, own], "dict": {"x": ({"y": own},)}}[place]
        self.draw = lambda: draw(own)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) * self.draw()


def states(model: nn.Module) -> list[Any]:
    """Read by hand, in the form that each generator has."""
    found: list[Any] = [torch.get_rng_state().tolist(), random.getstate()]
    found.append(str(np.random.get_state()) + str(np.random.get_state()[1].tolist()))
    own = getattr(model, "own", None)
    if isinstance(own, torch.Generator):
        found.append(own.get_state().tolist())
    if isinstance(own, random.Random):
        found.append(own.getstate())
    if isinstance(own, np.random.RandomState):
        found.append([*own.get_state()[1].tolist(), own.get_state()[2]])
    if isinstance(own, np.random.Generator):
        bits = own.bit_generator.state["state"]
        found.append({key: str(np.asarray(value).tolist()) for key, value in bits.items()})
    return found


RUNS: dict[str, Callable[[nn.Module], Any]] = {
    "verify": lambda m: tt.verify(m, rows(num=2)),
    "summary": lambda m: tt.summary(m, rows(num=2)),
    "saved_report": lambda m: tt.saved_report(m, rows(num=2)),
    "sweep": lambda m: tt.sweep(m, rows(num=2), "a", tt.edits.zero(), torch.sum),
    "advise_offload": lambda m: tt.advise_offload(
        m, lambda: m(rows(num=2)).sum().backward(), 1 << 20
    ),
    "offload.verify": lambda m: tt.offload("disk", model=m, min_bytes=0, missing="ignore").verify(
        lambda: m(rows(num=2)).sum()
    ),
    "patch": lambda m: tt.edit(
        m, "a", tt.edits.patch(inputs=rows(num=2)), missing="ignore"
    ).close(),
}


@pytest.mark.parametrize("source", [*OWN, *HELD])
@pytest.mark.parametrize("run", RUNS)
def test_every_random_state_is_as_it_was(run: str, source: str) -> None:
    model = Draws(source)
    before = states(model)
    RUNS[run](model)
    assert states(model) == before


@pytest.mark.parametrize("run", ["verify", "summary", "saved_report", "sweep"])
def test_after_an_exception_too(run: str) -> None:
    model = Draws("numpy")

    def breaks(*_: Any) -> None:
        random.random()
        raise KeyError("mine")

    model.a.register_forward_hook(breaks)
    model.a.register_forward_pre_hook(lambda *_: np.random.rand() and None)
    before = states(model)
    with pytest.raises(KeyError, match="mine"):
        RUNS[run](model)
    assert states(model) == before


@pytest.mark.parametrize("place", ["attribute", "list", "dict"])
@pytest.mark.parametrize("source", HELD)
def test_a_generator_that_a_module_holds_is_found_in_containers(source: str, place: str) -> None:
    model = nn.Sequential(Draws(source, place))
    assert tt.verify(model, rows(num=2))
    table = tt.sweep(model, rows(num=2), "0.a", tt.edits.scale(1.0), torch.sum)
    assert table.rows[0].change["metric"] == 0 and table.note == ""


def test_a_generator_that_the_model_is_given_is_found() -> None:
    own = torch.Generator().manual_seed(1)
    model = Net(lambda m, x, own: m.a(x) * torch.rand((), generator=own), a=nn.Linear(3, 3))
    before = own.get_state()
    assert tt.verify(model, rows(num=2), own)
    tt.summary(model, rows(num=2), own=own)
    tt.saved_report(model, rows(num=2), own)
    table = tt.sweep(model, (rows(num=2), own), "a", tt.edits.scale(1.0), torch.sum)
    assert table.rows[0].change["metric"] == 0
    assert torch.equal(own.get_state(), before)


@pytest.mark.parametrize("source", [*OWN, *HELD])
def test_every_forward_of_a_sweep_finds_the_same_random_numbers(source: str) -> None:
    model = Draws(source)
    table = tt.sweep(model, rows(num=2), ["a", "."], tt.edits.scale(1.0), torch.sum)
    assert [row.change["metric"] for row in table] == [0, 0]
    # By hand: the first forward from here.
    with torch.no_grad():
        assert table.baseline["metric"] == model(rows(num=2)).sum().item()


def hidden() -> nn.Module:
    own = np.random.default_rng(0)
    return Net(lambda m, x: m.a(x) * own.random(), a=nn.Linear(3, 3))


@pytest.mark.parametrize("batch", [1, 2])
def test_a_sweep_says_that_the_model_is_not_steady(batch: int) -> None:
    table = tt.sweep(hidden(), rows(num=2), "a", tt.edits.scale(1.0), torch.sum, batch=batch)
    assert "two runs of the unedited model already differ" in table.note
    assert "a generator of random numbers that torchtap does not know" in table.note
    assert table.batched == 1
    assert "Note: two runs of the unedited model already differ" in repr(table)


def test_verify_says_that_the_model_is_not_steady_and_reports_no_error() -> None:
    result = tt.verify(hidden(), rows(num=2))
    assert not result
    assert "outputs[]" in result.unsteady
    assert not (result.changed or result.wrong)
    text = " ".join(repr(result).split())
    assert "the proof is not possible" in text
    assert "a generator of random numbers that torchtap does not know" in text
    assert "Watching changed" not in text


def test_chance_that_two_runs_do_not_show_is_not_laid_to_watching() -> None:
    draws = iter([1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    model = Net(lambda m, x: m.a(x) * next(draws), a=nn.Linear(3, 3))
    result = tt.verify(model, rows(num=2))
    assert result.unsteady and not (result.changed or result.wrong)


@pytest.mark.parametrize("name", ["cuda", "xpu"])
def test_all_devices_in_use_are_put_back(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    device = getattr(torch, name)
    drawn = [torch.tensor([1]), torch.tensor([2])]
    monkeypatch.setattr(device, "is_initialized", lambda: True)
    monkeypatch.setattr(device, "get_rng_state_all", lambda: [one.clone() for one in drawn])
    monkeypatch.setattr(
        device, "set_rng_state_all", lambda states: drawn.__setitem__(slice(2), states)
    )
    state = RandomState([])
    first = state.read()
    drawn[1] = torch.tensor([3])
    assert not same_states(first, state.read())
    state.put_back()
    assert [one.item() for one in drawn] == [1, 2]
    assert same_states(first, state.read())


def test_a_device_that_is_not_in_use_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def started() -> None:
        raise AssertionError("the device was started")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", started)
    RandomState([]).put_back()


def test_what_cannot_be_put_back_by_nature_is_left_alone() -> None:
    model = nn.Linear(3, 3)
    model.own = random.SystemRandom()  # type: ignore[assignment]
    model.me = model  # Attributes may lead in circles.
    model.rings = [model.__dict__]  # type: ignore[assignment]
    RandomState([model]).put_back()

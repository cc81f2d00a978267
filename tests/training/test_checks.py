"""The checks of the matrix notice what they are there for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from cells import wrong
from networks import vectors
from probe import Probe
from row import Row, refused, said
from torch import Tensor, nn


def trained(probe: Probe, spoil: Callable[[Probe, nn.Module], object]) -> None:
    """Three steps of a small model; ``spoil`` is called after attaching."""
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    probe.attach(model, vectors(0))
    spoil(probe, model)
    for k in range(3):
        optimizer.zero_grad()
        loss = model(vectors(k)).square().mean()
        loss.backward()
        optimizer.step()
        probe.step(loss)


def is_watched(probe: Probe) -> bool:
    return "watch" in probe.made.tool or "stats" in probe.made.tool


def nothing(probe: Probe, model: nn.Module) -> None:
    """The training is as it should be."""


def draw_a_number(probe: Probe, model: nn.Module) -> None:
    if is_watched(probe):
        torch.rand(1)


def leave_a_hook(probe: Probe, model: nn.Module) -> None:
    if is_watched(probe):
        model[0].register_forward_hook(lambda *_: None)


def change_a_parameter(probe: Probe, model: nn.Module) -> None:
    if is_watched(probe):
        with torch.no_grad():
            model[1].bias += 1e-6


def differ_from_the_truth(probe: Probe, model: nn.Module) -> None:
    if "truth" in probe.made.tool:
        with torch.no_grad():
            model[1].weight *= 1.01


def hide_a_parameter(probe: Probe, model: nn.Module) -> None:
    if is_watched(probe):
        model[0].forward = lambda x: nn.functional.linear(x, model[0].weight.clone(), model[0].bias)
        model[0].weight.requires_grad_(False)


def row(spoil: Callable[[Probe, nn.Module], object], **how: object) -> Row:
    name = f"{spoil.__name__} {how}"
    return Row(name, "spoilt", lambda probe: trained(probe, spoil), edited="0", **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("column", ["Memory", "Stats", "together"])
def test_a_cell_that_is_right_has_nothing_wrong(column: str) -> None:
    assert wrong(row(nothing), column) == []


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (draw_a_number, "random numbers"),
        (leave_a_hook, "_forward_hooks of 0"),
        (change_a_parameter, "gradient of 1.bias in 0"),
        (differ_from_the_truth, "1:output|path='1', port='output'"),
        (hide_a_parameter, "gradient of 0.weight in 0"),
    ],
)
@pytest.mark.parametrize("column", ["Memory", "Stats"])
def test_what_is_wrong_is_found(
    spoil: Callable[[Probe, nn.Module], object], what: str, column: str
) -> None:
    found = wrong(row(spoil), column)
    assert any(part in text for text in found for part in what.split("|")), found


def test_an_absence_that_no_row_declares_is_wrong() -> None:
    def unused(probe: Probe) -> None:
        model = nn.ModuleDict({"used": nn.Linear(6, 2), "unused": nn.ReLU()})
        probe.attach(model)
        loss: Tensor = model["used"](vectors(0)).sum()
        loss.backward()
        probe.step(loss)

    found = wrong(Row("unused", "spoilt", unused), "Memory")
    assert any("unexpected reason" in text and "not called" in text for text in found), found


def test_what_was_to_be_said_or_refused_and_was_not_is_wrong() -> None:
    assert wrong(row(nothing, cells={"Memory": said("a reason")}), "Memory")
    assert wrong(row(nothing, cells={"Memory": refused("an error")}), "Memory")


def test_an_edit_that_changes_nothing_is_wrong() -> None:
    def train(probe: Probe) -> None:
        model = nn.Sequential(nn.Linear(6, 4), nn.ReLU())
        with torch.no_grad():
            model[0].weight.zero_()
            model[0].bias.zero_()
        probe.attach(model, vectors(0))
        loss = model(vectors(0)).sum()
        loss.backward()
        probe.step(loss)

    assert wrong(Row("zero", "spoilt", train, edited="0"), "edit") == [
        "as without us? the edit changed nothing"
    ]

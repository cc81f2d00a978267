"""The corpora themselves: broken trainings are worse, healthy ones learn, faulty steps turn bad."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from faulty_steps import FAULTS, FINE, Planted
from torch import nn
from trainings import SETS, cases

OUTCOMES = json.loads((Path(__file__).parent / "corpus" / "outcomes.json").read_text())
CASES = [case for half in SETS for case in cases(half)]


def test_there_are_enough_trainings_with_names_of_their_own() -> None:
    broken = [case for case in CASES if case.is_broken]
    assert len(broken) >= 80
    assert len(CASES) - len(broken) >= 60
    assert len({case.name for case in CASES}) == len(CASES)
    assert {case.sibling for case in broken} <= {case.name for case in CASES if not case.is_broken}
    assert set(OUTCOMES) == {case.name for case in CASES}


def test_nearly_all_faults_cost_something() -> None:
    outcomes = [row["worse"] for row in OUTCOMES.values() if "worse" in row]
    assert sum(outcomes) >= 0.9 * len(outcomes)


def test_healthy_trainings_learn() -> None:
    """But for adversaries, actors and plateaus, whose loss is no measure."""
    odd = ("gan", "adversaries", "ball", "arms", "duel", "returns", "plateau")
    losses = {name: row["loss"] for name, row in OUTCOMES.items() if "loss" in row}
    assert len(losses) >= 60
    assert [n for n, (a, b) in losses.items() if b >= a and not n.startswith(odd)] == []


def _is_bad(model: nn.Module) -> bool:
    tensors = [*model.parameters(), *(p.grad for p in model.parameters() if p.grad is not None)]
    return not all(bool(tensor.isfinite().all()) for tensor in tensors)


# Its loss is infinite, and its gradient is not.
FINITE_GRADIENT = {"huge_target"}


@pytest.mark.filterwarnings("ignore:std:UserWarning")
@pytest.mark.parametrize("planted", [*FAULTS, *FINE], ids=lambda planted: planted.name)
def test_a_faulty_step_spoils_the_model_and_a_fine_one_does_not(planted: Planted) -> None:
    made = planted.build()
    made.step(*made.batch)
    assert _is_bad(made.model) is (planted in FAULTS and planted.name not in FINITE_GRADIENT)
    assert torch.is_grad_enabled()

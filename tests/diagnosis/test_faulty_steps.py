"""Steps in which something turns NaN or Inf on purpose: locate names it, and nothing else."""

from __future__ import annotations

import pytest
from faulty_steps import FAULTS, FINE, Planted, wrong

import torchtap as tt

pytestmark = pytest.mark.filterwarnings("ignore:std:UserWarning")

# A division in the forward is called one of the backward.
MISSED = {"keywords_and_dicts"}
INSIDE = [each for each in FAULTS if each.seen_by_guard and each.name not in MISSED]


@pytest.mark.parametrize("planted", FAULTS, ids=lambda planted: planted.name)
def test_locate_names_phase_operation_module_call_and_line(planted: Planted) -> None:
    made = planted.build()
    assert wrong(planted, tt.locate(made.model, made.step, *made.batch)) == []


@pytest.mark.parametrize("planted", INSIDE, ids=lambda planted: planted.name)
def test_a_guard_alone_names_what_lies_in_the_model(planted: Planted) -> None:
    made = planted.build()
    with tt.guard(made.model, on=lambda origin: None) as guard:
        made.step(*made.batch)
    assert wrong(planted, guard.origin) == []


@pytest.mark.parametrize("planted", FINE, ids=lambda planted: planted.name)
def test_nothing_is_found_where_nothing_comes_of_it(planted: Planted) -> None:
    made = planted.build()
    assert tt.locate(made.model, made.step, *made.batch) is None
    with tt.guard(made.model) as guard:
        made.step(*made.batch)
    assert guard.origin is None

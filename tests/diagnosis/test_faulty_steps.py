"""Steps that others planted: the step function names all, a guard all that lie in the model."""

from __future__ import annotations

import pytest
from faulty_steps import FAULTS, FINE, Planted, wrong

import torchtap as tt


@pytest.mark.filterwarnings("ignore:std:UserWarning")
@pytest.mark.parametrize("planted", FAULTS, ids=lambda planted: planted.name)
def test_a_step_is_located(planted: Planted) -> None:
    made = planted.build()
    origin = tt.locate(made.model, made.step, *made.batch)
    assert origin is not None
    assert not wrong(planted, origin)


@pytest.mark.filterwarnings("ignore:std:UserWarning")
@pytest.mark.parametrize(
    "planted", [one for one in FAULTS if one.seen_by_guard], ids=lambda planted: planted.name
)
def test_a_guard_names_it_without_the_step(planted: Planted) -> None:
    made = planted.build()
    with tt.guard(made.model) as guard, pytest.raises(tt.NonFiniteError):
        for _ in range(3):
            made.step(*made.batch)
    assert guard.origin is not None
    assert not wrong(planted, guard.origin)


@pytest.mark.parametrize("planted", FINE, ids=lambda planted: planted.name)
def test_what_looks_bad_and_is_not_has_no_origin(planted: Planted) -> None:
    made = planted.build()
    assert tt.locate(made.model, made.step, *made.batch) is None
    with tt.guard(made.model) as guard:
        for _ in range(3):
            made.step(*made.batch)
    assert guard.origin is None

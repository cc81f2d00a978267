"""Two modules: the planted cause is named first, and nothing is left on either."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from bits import hooks, state
from compare_situations import SITUATIONS, Situation, gpt, tokens
from torch import Tensor, nn

import torchtap as tt
from torchtap.testing.zoo import Specimen, zoo

_SLOW = {"compiled"}


@pytest.mark.parametrize(
    "situation",
    [
        pytest.param(one, id=one.name, marks=[pytest.mark.slow] if one.name in _SLOW else [])
        for one in SITUATIONS
    ],
)
def test_the_planted_cause_is_named_first(situation: Situation) -> None:
    a, b, args = situation.make()
    found = tt.compare(a, b, *args, **situation.options)
    if situation.path:
        assert found.first is not None and not found.same
        first = found.first
        expected = situation.path, situation.other or situation.path, situation.cause
        assert (first.path, first.other, first.cause) == expected, found
        assert situation.text in first.text
        assert first in found.rows and first.total > first.tolerance
    else:
        assert found.same and found.first is None, found
    assert not situation.note or any(situation.note in note for note in found.notes)


@pytest.mark.parametrize("specimen", zoo(), ids=str)
def test_a_model_does_not_differ_from_itself(specimen: Specimen) -> None:
    model, (args, kwargs) = specimen.build(), specimen.inputs()
    if specimen.raises is not None:
        with pytest.raises(specimen.raises):
            tt.compare(model, model, *args, **kwargs)
        return
    for other in (model, specimen.build()):
        found = tt.compare(model, other, *args, **kwargs)
        assert found.same and not found.rows, found
        assert not (found.only_a or found.only_b)


def _facts(model: nn.Module) -> dict[str, Any]:
    identities = [id(one) for one in (*model.parameters(), *model.buffers())]
    values = {  # Versions grow where a forward writes into a buffer and it is put back.
        name: fact[0] if name.startswith(("parameter", "buffer")) else fact
        for name, fact in state(model).items()
    }
    return {**values, **hooks(model), "identities": identities}


@pytest.mark.parametrize("name", ["weights +50 %", "dropout left on", "running mean", "bf16"])
def test_everything_is_put_back(name: str) -> None:
    situation = next(one for one in SITUATIONS if one.name == name)
    a, b, args = situation.make()
    a(*args).sum().backward()  # A gradient that must stay.
    before = _facts(a), _facts(b)
    tt.compare(a, b, *args)
    assert before == (_facts(a), _facts(b))


class _Raises(nn.Module):
    """A layer that counts its calls in a buffer, and raises in one of them."""

    def __init__(self, when: int) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.when = when
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        self.get_buffer("calls").add_(1)
        if self.seen == self.when:
            raise KeyError("planted")
        return self.fc(x)


@pytest.mark.parametrize("when", [1, 2, 3])
def test_after_an_exception_everything_is_put_back_and_it_keeps_its_type(when: int) -> None:
    a, b = _Raises(99), _Raises(when)
    before = _facts(a), _facts(b)
    try:
        tt.compare(a, b, torch.ones(2, 3))
    except KeyError as error:
        assert error.args == ("planted",)
    else:
        assert when > 2  # By then it is fed, and what it refuses is not fed.
    assert before == (_facts(a), _facts(b))


MIRRORED = ["weights +50 %", "no residual", "port with eps", "dropout left on", "a layer less"]


@pytest.mark.parametrize("name", MIRRORED)
def test_the_other_way_round_is_the_mirror(name: str) -> None:
    situation = next(one for one in SITUATIONS if one.name == name)
    a, b, args = situation.make()
    there, back = tt.compare(a, b, *args), tt.compare(b, a, *args)
    assert there.first is not None and back.first is not None
    assert (there.first.path, there.first.other) == (back.first.other, back.first.path)
    assert there.first.cause == back.first.cause
    assert (there.only_a, there.only_b) == (back.only_b, back.only_a)
    totals = {(row.path, row.other, row.port, row.call): row.total for row in there.rows}
    mirrored = {(row.other, row.path, row.port, row.call): row.total for row in back.rows}
    assert totals == pytest.approx(mirrored, nan_ok=True)


def test_a_distance_is_relative_to_the_larger_norm() -> None:
    one, two = nn.Linear(3, 2, bias=False), nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        two.weight.copy_(one.weight * 1.5)
    row = tt.compare(one, two, torch.randn(4, 3)).first
    assert row is not None
    assert row.total == pytest.approx(0.5 / 1.5, rel=1e-5)
    assert row.inherited == 0 and row.added == pytest.approx(row.total)


def test_added_is_what_the_candidate_makes_of_the_inputs_of_the_reference() -> None:
    a = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    b = copy.deepcopy(a)
    with torch.no_grad():
        b[0].weight.mul_(2)
        b[1].weight.mul_(1.001)
    x = torch.randn(4, 3)
    rows = {(row.path, row.port): row for row in tt.compare(a, b, x).rows}
    with torch.no_grad():
        own, fed = a[1](a[0](x)).double(), b[1](a[0](x)).double()
    expected = (own - fed).norm() / max(own.norm(), fed.norm())
    assert rows["1", "output"].added == pytest.approx(float(expected), rel=1e-6)
    assert rows["1", "output"].total > 10 * rows["1", "output"].added


def test_a_tolerance_is_taken_in_place_of_rounding() -> None:
    a, b = gpt(), gpt(eager=True)
    assert tt.compare(a, b, tokens()).same
    exact = tt.compare(a, b, tokens(), tolerance=0.0)
    assert not exact.same and exact.first is not None and exact.first.path == "blocks.0.attn"
    assert tt.compare(a, b, tokens(), tolerance=0.5).same


def test_weights_are_found_under_autocast_which_keeps_what_it_cast() -> None:
    a = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2))
    b = copy.deepcopy(a)
    with torch.no_grad():
        b[2].weight.mul_(1.5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first = tt.compare(a, b, torch.randn(3, 4)).first
    assert first is not None and (first.path, first.cause) == ("2", "weights")


def test_nan_in_both_is_equal_and_is_said() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    x = torch.tensor([[1.0, float("nan")], [1.0, 2.0]])
    found = tt.compare(model, copy.deepcopy(model), x)
    assert found.same and any("NaN in both" in note for note in found.notes)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[0].bias[0] = float("nan")
    found = tt.compare(model, other, torch.ones(2, 2))
    assert found.first is not None
    assert (found.first.path, found.first.cause, found.first.total) == (
        "0",
        "weights",
        float("inf"),
    )


def test_a_frozen_parameter_has_no_gradient_in_one() -> None:
    a = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    b = copy.deepcopy(a)
    b[1].weight.requires_grad_(False)
    found = tt.compare(a, b, torch.randn(2, 3))
    assert found.first is not None and not found.same
    assert (found.first.path, found.first.port, found.first.cause) == ("1", "param_grad", "missing")


def test_it_prints_in_100_columns_and_as_json_and_html() -> None:
    situation = next(one for one in SITUATIONS if one.name == "port with flipped q")
    a, b, args = situation.make()
    found = tt.compare(a, b, *args)
    assert max(map(len, repr(found).splitlines())) <= 100
    assert "weights" in repr(found) and "<table>" in found._repr_html_()
    plain = found.to_dict()
    assert plain["first"]["cause"] == "weights" and not plain["same"]
    assert plain["rows"][0].keys() >= {"path", "other", "total", "inherited", "added", "tolerance"}


def test_names_that_fit_nothing_are_refused_with_what_is_near() -> None:
    a, b, args = next(one for one in SITUATIONS if one.name == "port").make()
    with pytest.raises(tt.CompareError, match=r"blockz.*did you mean"):
        tt.compare(a, b, *args, map={"blockz.0": "body.layers.0"})
    with pytest.raises(
        tt.CompareError, match=r"body\.layer.*nothing of what it makes; did you mean"
    ):
        tt.compare(a, b, *args, map={"blocks": "body.layer"})
    with pytest.raises(tt.CompareError, match="no regular expression"):
        tt.compare(a, b, *args, map={"(": "x"})


def test_what_is_no_pair_of_runs_or_modules_is_refused() -> None:
    model: Any = nn.Linear(2, 2)
    with pytest.raises(tt.CompareError, match="expected two runs"):
        tt.compare(model, 3)  # type: ignore[arg-type]
    with pytest.raises(tt.CompareError, match="tolerance"):
        tt.compare(model, model, torch.ones(1, 2), tolerance=-1.0)


def test_a_model_that_raises_is_named() -> None:
    torch.manual_seed(0)
    linear, embedding = nn.Linear(4, 4), nn.Embedding(4, 4)
    with pytest.raises(RuntimeError, match="scalar types") as caught:
        tt.compare(linear, embedding, torch.randn(2, 4))
    assert caught.value.__notes__ == ["torchtap: raised by the candidate, Embedding, on the batch."]
    with pytest.raises(RuntimeError) as caught:
        tt.compare(linear, nn.Linear(4, 4), torch.randn(2, 5))
    assert caught.value.__notes__ == ["torchtap: raised by the reference, Linear, on the batch."]

"""``tt.audit`` measures each module's own rounding against float64, and says why."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from untouched import are_same, state_of

import torchtap as tt
from torchtap.testing import Specimen, zoo

ZOO = [one for one in zoo() if one.raises is None]


class Variance(nn.Module):
    """The variance as E[x^2] - E[x]^2."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * x).mean(-1) - x.mean(-1) ** 2


class LongSum(nn.Module):
    """Adds one after the other."""

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(x.shape[1:])
        for row in x:
            total = total + row
        return total


class Overflows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * 1000).square() / 1e6


class InFloat(nn.Module):
    """Computes in float32, whatever it is given, as RMSNorm of language models does."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        return ((wide + 1e4) - 1e4).to(x.dtype)


class Shift(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 30


class Counts(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.argmax(-1)


def row_of(table: tt.Table, module: str) -> Any:
    return next(row for row in table if row.module == module)


def healthy() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Dropout(0.3), nn.Linear(64, 8)
    )


def test_a_healthy_module_has_the_error_of_its_dtype() -> None:
    table = tt.audit(healthy(), torch.randn(16, 32))
    assert table.columns == ("module", "type", "error", "bfloat16", "float16", "why")
    assert len(table) == 6
    for row in table:
        assert row.error < 1e-6
        assert 1e-4 < row["float16"] < 1e-3 < row["bfloat16"] < 1e-2
        assert row.why == "none"


def test_the_error_is_that_against_float64() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(64, 8), torch.randn(4, 64)
    true = x.double() @ model.weight.detach().double().T + model.bias.detach().double()

    def apart(value: Tensor) -> float:
        return float((value.double() - true).norm() / true.norm())

    with torch.no_grad():
        low = nn.functional.linear(x.bfloat16(), model.weight.bfloat16(), model.bias.bfloat16())
        (row,) = tt.audit(model, x)
        assert row.error == pytest.approx(apart(model(x)), rel=1e-9)
        assert row.bfloat16 == pytest.approx(apart(low), rel=1e-9)


def test_a_cancellation_is_first_and_named() -> None:
    model = nn.Sequential(*healthy(), Shift(), Variance())
    table = tt.audit(model, torch.randn(16, 32))
    first = table.rows[0]
    assert (first.module, first.type) == ("6", "Variance")
    assert first.error > 1e-5
    assert first.why.startswith("cancellation: sub leaves 1 of")
    assert table.rows[1].module == "."
    assert row_of(table, ".").why.startswith("inside: 6")
    assert row_of(table, "5").why == "none"


def test_a_cast_inside_hides_nothing() -> None:
    (row,) = tt.audit(InFloat(), torch.randn(8, 8))
    assert row.error > 1e-5
    assert row.why.startswith("cancellation")


def test_a_long_sum_is_named() -> None:
    torch.manual_seed(0)
    (row,) = tt.audit(LongSum(), torch.rand(20_000, 4))
    assert row.error > 2e-6
    assert row.why == "accumulation: sums of 20,000 terms"


def test_what_would_be_lost_in_another_dtype_is_named() -> None:
    torch.manual_seed(0)
    (row,) = tt.audit(LongSum(), torch.rand(2000, 4))
    assert row.error < 1e-6
    assert row.bfloat16 > 0.3
    assert row.why == "accumulation: in bfloat16 sums of 2,000 terms"


def test_what_leaves_the_range_of_a_dtype_is_named() -> None:
    (row,) = tt.audit(Overflows(), torch.randn(8, 8), dtypes=("float16",))
    assert math.isinf(row.float16)
    assert row.why.startswith("range: in float16 it reaches")
    (row,) = tt.audit(Overflows().half(), torch.randn(8, 8).half(), dtypes=())
    assert math.isinf(row.error)
    assert row.why.startswith("range")


def test_each_module_is_given_its_own_inputs() -> None:
    model = nn.Sequential(Shift(), Variance(), nn.Linear(4, 4))
    table = tt.audit(model, torch.randn(4, 64))
    assert row_of(table, "2").error < 1e-6  # It inherits the error of 1, and adds none.


def test_8_bit_dtypes_round_the_values() -> None:
    table = tt.audit(nn.Linear(64, 8), torch.randn(4, 64), dtypes=("fp8", torch.float8_e5m2))
    (row,) = table
    assert table.columns[3:5] == ("fp8", "float8_e5m2")
    assert 1e-2 < row.fp8 < row.float8_e5m2 < 0.2
    assert "8-bit" in str(table)


def test_what_has_no_reference_is_listed_with_the_reason() -> None:
    table = tt.audit(nn.Sequential(nn.Linear(4, 4), Counts(), nn.Embedding(4, 2)), torch.ones(2, 4))
    row = row_of(table, "1")
    assert math.isnan(row.error)
    assert row.why == "no reference: it returns no floating tensor"
    assert row_of(table, "2").error == 0
    assert math.isnan(table.rows[-1].error)


def test_the_same_elements_are_dropped_in_every_dtype() -> None:
    for model in (nn.Dropout(0.5), nn.Dropout(0.5, inplace=True), nn.AlphaDropout(0.5)):
        (row,) = tt.audit(model, torch.randn(64, 8))
        assert row.error < 1e-6, model


def test_the_worst_of_several_calls_is_told() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.variance = Variance()

        def forward(self, x: Tensor) -> Tensor:
            return self.variance(x) + self.variance(x + 50)

    model = Twice()
    once = tt.audit(model.variance, torch.randn(4, 64)).rows[0].error
    torch.manual_seed(0)
    assert row_of(tt.audit(model, torch.randn(4, 64)), "variance").error > 20 * once


def test_a_table_of_an_audit_is_sorted_and_made_a_frame_as_others() -> None:
    table = tt.audit(healthy(), torch.randn(4, 32))
    found = [row.bfloat16 for row in table.sorted("bfloat16", largest_first=False)]
    assert found == sorted(found)
    assert table.as_dicts()[0].keys() == set(table.columns)
    assert list(table.to_frame()["module"]) == [row.module for row in table]
    with pytest.raises(tt.InputError, match="no column"):
        table.sorted("eror")


def test_a_dtype_that_is_none_is_refused() -> None:
    for wrong in ("int8", "float17", torch.int32):
        with pytest.raises(tt.InputError, match="floating dtype"):
            tt.audit(nn.ReLU(), torch.ones(1), dtypes=(wrong,))


@pytest.mark.parametrize("specimen", ZOO, ids=str)
def test_the_zoo_is_audited_and_left_as_it_was(specimen: Specimen) -> None:
    model = specimen.build()
    args, kwargs = specimen.inputs()
    before = state_of(model, args)
    table = tt.audit(model, *args, **kwargs)
    assert len(table)
    assert are_same(before, state_of(model, args))


def test_a_module_that_is_infinite_in_an_asked_dtype_comes_first() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(8, 8) for _ in range(4)]
    model = nn.Sequential(*layers, Overflows())
    table = tt.audit(model, torch.ones(2, 8), dtypes="float16")
    errors = {row.module: row.float16 for row in table}
    assert math.isinf(errors["4"]), "1000 squared is beyond 65504, the largest float16"
    assert table.rows[0].module == "4"
    table = tt.audit(model, torch.ones(2, 8), dtypes="bfloat16")
    worst = [max(row.error, row.bfloat16) for row in table]
    assert worst == sorted(worst, reverse=True)


def test_long_paths_stay_apart_where_they_are_cut() -> None:
    model = nn.Module()
    names = ["first_encoder_of_text", "layers_of_attention", "output_projection_dense"]
    inner = nn.ModuleDict(
        {f"{n}": nn.ModuleDict({names[2]: nn.Sequential(nn.Linear(4, 4))}) for n in range(5)}
    )
    model.add_module(names[0], nn.ModuleDict({names[1]: inner}))

    def forward(x: Tensor) -> Tensor:
        for one in inner.values():
            x = one[names[2]](x)
        return x

    model.forward = forward
    lines = tt.audit(model, torch.randn(2, 4)).to_text(width=60).splitlines()
    shown = [line.split()[0] for line in lines if "Linear" in line]
    assert len(set(shown)) == len(shown) == 5

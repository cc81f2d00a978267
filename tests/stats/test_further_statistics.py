"""``tt.stats``: further statistics against their formulas."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torchtap as tt


def test_statistics_along_a_dim_are_those_of_its_slices() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Tanh())
    with torch.no_grad():
        model[0].bias[2] = -100
    along = tt.stats.along(1, bound=0.5)
    with tt.watch(model, to=[tt.Stats(statistics=[along]), tt.Memory()]) as w:
        for _ in range(4):
            model(torch.randn(2, 3, 6, 6))
            w.step()
    for site in ("0:output", "1:output", "2:output"):
        wide = w.run.get(site, step=3).double()
        slices = w.run.stats(site).extra["along(1)"]
        for name, truth in (
            ("mean", wide.mean((0, 2, 3))),
            ("std", wide.std((0, 2, 3), correction=0)),
            ("absmax", wide.abs().amax((0, 2, 3))),
            ("zeros", (wide == 0).double().mean((0, 2, 3))),
            ("saturated", (wide.abs() >= 0.5).double().mean((0, 2, 3))),
        ):
            torch.testing.assert_close(getattr(slices, name), truth, rtol=1e-12, atol=1e-12)
    window = w.run.stats("1:output", step=range(1, 4)).extra["along(1)"]
    assert window.dead_slices() == [2]
    assert float(window.numel[0]) == 3 * 2 * 16


def test_the_largest_elements_know_their_place() -> None:
    model = nn.Identity()
    tensors = [torch.randn(3, 4), torch.randn(3, 4)]
    tensors[1][2, 1] = -50
    tensors[0][0, 0] = math.nan
    with tt.watch(model, to=tt.Stats(statistics=[tt.stats.top_k(3)])) as w:
        for tensor in tensors:
            model(tensor)
    found = w.run.stats(".:output").extra["top_k"]
    assert (found[0].value, found[0].place, found[0].tensor) == (-50, (2, 1), 1)
    values = torch.stack(tensors).nan_to_num(0).flatten()
    assert [abs(e.value) for e in found] == values.abs().topk(3).values.tolist()
    for element in found:
        assert float(tensors[element.tensor][element.place]) == element.value


@pytest.mark.parametrize(("numel", "tolerance"), [(1000, 1e-9), (300_000, 0.05)])
def test_the_cosine_between_steps(numel: int, tolerance: float) -> None:
    model = nn.Identity()
    tensors = [torch.randn(numel)]
    tensors += [tensors[0] + torch.randn(numel), -tensors[0]]
    with tt.watch(model, to=tt.Stats(statistics=[tt.stats.cosine()])) as w:
        for tensor in tensors:
            model(tensor)
            w.step()
    for number in (0, 1):
        truth = torch.cosine_similarity(
            tensors[number].double(), tensors[number + 1].double(), dim=0
        )
        found = w.run.stats(".:output", step=[number, number + 1]).extra["cosine"]
        assert found == pytest.approx(float(truth), abs=tolerance)
    assert math.isnan(w.run.stats(".:output").extra["cosine"])


def test_the_effective_rank_is_the_participation_ratio_of_the_covariance() -> None:
    model = nn.Identity()
    basis = torch.randn(2, 8, dtype=torch.float64)
    rows = torch.randn(500, 2, dtype=torch.float64) @ basis
    with tt.watch(model, to=tt.Stats(statistics=[tt.stats.effective_rank()])) as w:
        for part in rows.split(100):
            model(part)
            w.step()
    values = np.linalg.eigvalsh(np.cov(rows.numpy().T, bias=True))
    expected = values.sum() ** 2 / (values**2).sum()
    found = w.run.stats(".:output", step="all").extra["effective_rank"]
    assert found == pytest.approx(expected, rel=1e-9)
    assert 1 < found < 2


@pytest.mark.parametrize("offset", [0.0, 1e6, -1e8])
def test_the_effective_rank_does_not_depend_on_where_the_features_lie(offset: float) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(300, 4, dtype=torch.float64, generator=generator) * 0.01 + offset
    statistic = tt.stats.effective_rank()
    state = statistic.init()
    for part in (rows[:7], rows[7:100], rows[:0], rows[100:]):
        state = statistic.update(state, part)
    values = np.linalg.eigvalsh(np.cov(rows.numpy().T, bias=True))
    expected = values.sum() ** 2 / (values**2).sum()
    assert statistic.finish(state) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.bool, torch.uint8], ids=str
)
def test_further_statistics_of_whole_numbers_are_right_at_their_ends(dtype: torch.dtype) -> None:
    is_bool = dtype is torch.bool
    low, high = (0, 1) if is_bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    tensor = torch.tensor([[low, 1], [high, 0]]).to(dtype)
    magnitudes = sorted((abs(int(x)) for x in tensor.flatten()), reverse=True)
    more: list[tt.Statistic] = [tt.stats.top_k(4), tt.stats.along(1, bound=float(high))]
    model = nn.Identity()
    with tt.watch(model, to=tt.Stats(statistics=more)) as w:
        model(tensor)
    found = w.run.stats(".:output").extra
    assert [abs(element.value) for element in found["top_k"]] == [float(x) for x in magnitudes]
    reached = [sum(float(abs(int(x))) >= float(high) for x in column) for column in tensor.T]
    assert found["along(1)"].saturated_elements.tolist() == reached


class _SumOfMagnitudes:
    name = "magnitudes"
    needs_places = False

    def init(self) -> float:
        return 0.0

    def update(self, state: float, tensor: Tensor) -> float:
        return state + float(tensor.abs().sum())

    def merge(self, one: float, two: float) -> float:
        return one + two

    def finish(self, state: float) -> float:
        return state


_DENSE = torch.tensor([[0.0, 0.0], [2.0, -3.0], [0.0, 0.0], [0.0, 4.0]])
_PACKED = {
    "coo": _DENSE.to_sparse,
    "csr": _DENSE.to_sparse_csr,
    "csc": _DENSE.to_sparse_csc,
    "bsr": lambda: _DENSE.to_sparse_bsr((2, 2)),
    "bsc": lambda: _DENSE.to_sparse_bsc((2, 2)),
    "jagged": lambda: torch.nested.nested_tensor([*_DENSE.split(2)], layout=torch.jagged),
}


@pytest.mark.filterwarnings("ignore:Sparse C")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", _PACKED)
def test_packed_values_give_no_statistic_that_depends_on_their_places(
    kind: str, tmp_path: Path
) -> None:
    packed = _PACKED[kind]()
    by_place: list[Any] = [
        tt.stats.cosine(),
        tt.stats.top_k(1),
        tt.stats.along(0),
        tt.stats.effective_rank(),
    ]
    others: list[Any] = [tt.stats.first_nonfinite(), _SumOfMagnitudes()]
    model = nn.Identity()
    with tt.watch(model, to=tt.Stats(statistics=[*by_place, *others])) as w:
        for value in (packed, _DENSE):
            model(value)
            w.step()
        with torch.no_grad():
            model.eval()
            model(packed)
    w.run.save(tmp_path / "run.safetensors")
    for run in (w.run, tt.open(tmp_path / "run.safetensors")):
        for step, phase in ((0, "forward"), ("all", "forward"), (2, "eval")):
            extra = run.stats(".:output", step=step, phase=phase).extra
            for one in by_place:
                with pytest.raises(tt.RunError, match="not where they stand"):
                    extra[one.name]
            assert extra["first_nonfinite"] is None
            assert extra["magnitudes"] == float(_DENSE.abs().sum()) * (2 if step == "all" else 1)
        assert run.stats(".:output", step=1).extra["top_k"][0][:2] == (4.0, (3, 1))
        (absence,) = run.absent
        assert str(absence).startswith(
            ".:output: no 'cosine', 'top_k', 'along(0)', 'effective_rank'"
        )

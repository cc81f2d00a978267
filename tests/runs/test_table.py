"""Tables of statistics, and the names that they share with ``over_steps`` and data frames."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from pages import ROOT
from torch import nn

import torchtap as tt
from torchtap.runs.tables.columns import DEFAULT_COLUMNS, ROW_COLUMNS, TABLE_COLUMNS
from torchtap.stats.named_numbers import NAMES

NUM_SITES = 6
FORMATS = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}


def batch(site: int, step: int) -> torch.Tensor:
    """Different sizes, scales, zeros and holes for each site and step."""
    generator = torch.Generator().manual_seed(100 * site + step)
    scale = 10.0 ** ((site * 7) % 5 - 3 + step)
    value = torch.randn(20 + site, 3, generator=generator) * scale
    value[: site + 1, 0] = 0
    value[0, 1] = math.nan if site % 2 else 1e-7
    value[1, 1] = math.inf if site == 3 else 1e-40
    value[2, 1] = -math.inf if site == 4 else 5e4
    return value


def run_of(*sinks: tt.Sink, steps: int = 3) -> tt.Run:
    model = nn.ModuleList(nn.Identity() for _ in range(NUM_SITES))
    with tt.watch(model, "?:output", to=list(sinks)) as w:
        for step in range(steps):
            for site, module in enumerate(model):
                module(batch(site, step))
            w.step()
    return w.run


def truth_of(name: str, value: torch.Tensor) -> float:
    """The definition in float64."""
    wide = value.double()
    finite = wide[wide.isfinite()]
    quantiles = {"p1": 0.01, "p25": 0.25, "median": 0.5, "p75": 0.75, "p99": 0.99}
    if name in quantiles:
        return float(finite.quantile(quantiles[name]))
    short, _, side = name.partition("_")
    if side in ("underflow", "overflow"):
        if side == "overflow":
            largest = {"fp16": 65520.0, "bf16": 3.39e38, "e4m3": 464.0, "e5m2": 61440.0}[short]
            return float((finite.abs() >= largest).double().mean())
        gone = (finite.to(FORMATS[short]).double() == 0) & (finite.abs() >= 2.0**-130)
        return float(gone.double().mean())  # Of all finite elements, zeros too.
    return float(
        {
            "num_tensors": lambda: 1,
            "nbytes": lambda: value.numel() * 4,
            "numel": lambda: value.numel(),
            "num_finite": lambda: len(finite),
            "zeros": lambda: (value == 0).sum(),
            "subnormal": lambda: ((value.abs() > 0) & (value.abs() < 2.0**-126)).sum(),
            "nan": lambda: value.isnan().sum(),
            "posinf": lambda: (value == math.inf).sum(),
            "neginf": lambda: (value == -math.inf).sum(),
            "nonfinite": lambda: (~value.isfinite()).sum(),
            "mean": lambda: finite.mean(),
            "std": lambda: finite.std(correction=0),
            "rms": lambda: finite.square().mean().sqrt(),
            "l1": lambda: finite.abs().sum(),
            "l2": lambda: finite.norm(),
            "min": lambda: finite.min(),
            "max": lambda: finite.max(),
            "absmax": lambda: finite.abs().max(),
            "update_ratio": lambda: math.nan,
            "weight_l2": lambda: math.nan,
        }[name]()
    )


def tolerance(name: str) -> float:
    return 1 / 32 if NAMES[name].needs_histogram else 1e-9


# ---------------------------------------------------------------------- one set of names


@pytest.mark.parametrize("name", list(NAMES))
@pytest.mark.parametrize("sink", [tt.Stats, tt.Memory])
def test_a_name_means_the_same_everywhere_and_is_what_float64_says(name: Any, sink: Any) -> None:
    run = run_of(sink())
    table = run.table(columns=[name])
    for site, row in enumerate(table.as_dicts()):
        steps, values = run.over_steps(f"{site}:output", name)
        assert steps == [0, 1, 2]
        assert values[-1] == pytest.approx(row[name], nan_ok=True)
        for step, value in zip(steps, values, strict=True):
            truth = truth_of(name, batch(site, step))
            assert value == pytest.approx(truth, rel=tolerance(name), abs=1e-300, nan_ok=True)


@pytest.mark.parametrize("name", list(NAMES))
@pytest.mark.parametrize("sign", ["", "-"])
def test_a_table_is_sorted_by_any_number(name: Any, sign: str) -> None:
    run = run_of(tt.Stats())
    table = run.table(sort=sign + name)
    assert name in table.columns
    truths = [truth_of(name, batch(int(row.site.path), 2)) for row in table]
    numbers = [row[name] for row in table.as_dicts()]
    there = [number for number in numbers if not math.isnan(number)]
    assert there == sorted(there, reverse=not sign)
    assert numbers[: len(there)] == there  # NaN comes last.
    assert numbers == pytest.approx(truths, rel=tolerance(name), abs=1e-300, nan_ok=True)
    if name == "l2":
        order = sorted(range(NUM_SITES), key=lambda n: truth_of("l2", batch(n, 2)))
        found = [int(row.site.path) for row in table]
        assert found == (order if sign else order[::-1]) != list(range(NUM_SITES))


@pytest.mark.parametrize("name", ["mean", "p99", "fp16_underflow", "absmax", "-std", "-max"])
def test_what_has_no_number_comes_last_in_both_directions(name: str) -> None:
    model = nn.ModuleList(nn.Identity() for _ in range(3))
    with tt.watch(model, "?:output", to=tt.Stats()) as w:
        model[0](torch.full((3,), math.nan))
        model[1](torch.tensor([1e-9, 2.0]))
        model[2](torch.tensor([-3.0, 3.0]))
    for key in (name, name[1:] if name[0] == "-" else f"-{name}"):
        assert str(w.run.table(sort=key).rows[-1].site) == "0:output"


def test_a_table_is_sorted_by_words_too_and_not_by_pictures() -> None:
    run = run_of(tt.Stats())
    for key, numbers in (("site", range(NUM_SITES)), ("-site", range(NUM_SITES)[::-1])):
        assert [str(row.site) for row in run.table(sort=key)] == [f"{n}:output" for n in numbers]
    for name in ("type", "shape", "dtype", "calls", "steps", "step", "NaN/Inf"):
        assert len(run.table(sort=name)) == NUM_SITES
    bad = [row.stats.nonfinite for row in run.table(sort="NaN/Inf")]
    assert bad == sorted(bad, reverse=True) != bad[::-1]
    with pytest.raises(tt.InputError, match="'histogram' is a picture and has no order"):
        run.table(sort="histogram")
    with pytest.raises(tt.InputError, match="no column 'absmx'; did you mean 'absmax'"):
        run.table(sort="absmx")
    with pytest.raises(tt.InputError, match="no column 'meen'; did you mean 'mean'"):
        run.table(columns=["meen"])


def test_every_column_can_be_shown_and_has_its_header() -> None:
    run = run_of(tt.Stats())
    for name in (*NAMES, *ROW_COLUMNS):
        assert str(run.table(columns=[name])).split("\n")[2].split() == ["site", name]
    assert {*TABLE_COLUMNS, *DEFAULT_COLUMNS} <= {*NAMES, *ROW_COLUMNS}


def test_a_data_frame_has_these_names() -> None:
    run = run_of(tt.Stats(statistics=[tt.stats.cosine()]))
    row = run.table().as_dicts()[0]
    assert {*NAMES, "cosine"} <= {*row}
    assert {*ROW_COLUMNS} - {*row} == {"NaN/Inf", "histogram"}
    pandas = pytest.importorskip("pandas")
    frame = run.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["p99"].tolist() == [row.stats.quantile(0.99) for row in run.table()]


@pytest.mark.parametrize("saved", [False, True])
def test_a_data_frame_of_each_step_has_the_numbers_of_that_step(
    saved: bool, tmp_path: Path
) -> None:
    pytest.importorskip("pandas")
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    where = [".:output", ".:param,update"]
    with tt.watch(model, where, to=tt.Stats(), every=lambda step: step != 1) as w:
        for step in range(3):
            model.weight.data.fill_(1.0)
            model(torch.full((4, 2), step + 1.0)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            w.step()
    run = tt.open(w.run.save(tmp_path / "run.safetensors")) if saved else w.run
    frame = run.to_frame(steps="each")
    assert frame["step"].tolist() == [0, 0, 0, 2, 2, 2]
    outputs = frame[frame["site"] == ".:output"]
    assert outputs["mean"].tolist() == [2.0, 6.0]
    # Each weight moves by the rate times the sum over the batch: 0.5 * 4 * (step + 1), from 1.
    updates = frame[frame["site"] == ".:update[weight]"]
    assert updates["update_ratio"].tolist() == pytest.approx([2.0, 6.0])
    assert run.to_frame(".:output", steps=0)["mean"].tolist() == [2.0]
    assert run.to_frame(".:output")["step"].tolist() == [2]


def test_pandas_and_polars_hold_the_same() -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    model = nn.Sequential(nn.Linear(2, 2), *(nn.ReLU() for _ in range(120)))
    model.add_module("\ud800", nn.Tanh())  # What UTF-8 does not have.
    slices = tt.stats.cosine()
    with tt.watch(model, "*:output,param", to=tt.Stats(statistics=[slices])) as w:
        for x in (torch.randn(3, 2), torch.tensor([[math.nan, 1.0]])):
            model(x)
            w.step()
    one, other = w.run.to_frame(library="pandas"), w.run.to_frame(library="polars")
    assert isinstance(one, pandas.DataFrame) and isinstance(other, polars.DataFrame)
    assert list(one.columns) == other.columns and len(one) == len(other) == len(w.run.sites)
    for column in other.columns:
        if other[column].dtype.is_numeric():
            found = other[column].to_numpy()
            numpy.testing.assert_array_equal(one[column].to_numpy(), found, column)
            assert one[column].dtype == found.dtype
        else:
            assert one[column].tolist() == other[column].to_list()
    assert isinstance(w.run.to_frame("0:output"), pandas.DataFrame)
    with pytest.raises(tt.InputError, match="library is 'arrow'; expected 'pandas' or 'polars'"):
        w.run.to_frame(library="arrow")  # type: ignore[arg-type]


def test_the_docs_list_every_name_with_its_meaning() -> None:
    text = (ROOT / "docs" / "guides" / "statistics.md").read_text()
    listed = dict(re.findall(r"^\| `([\w/]+)` \| (.*) \|$", text, re.MULTILINE))
    for name, number in NAMES.items():
        assert listed[name] == number.meaning, name
    for name, meaning in ROW_COLUMNS.items():
        assert listed[name] == meaning, name


# ---------------------------------------------------------------------- over steps


def further() -> tt.Run:
    more: list[tt.Statistic] = [
        tt.stats.along(1, name="units"),
        tt.stats.cosine(),
        tt.stats.top_k(1),
    ]
    return run_of(tt.Stats(statistics=more, keep=2))


def test_further_statistics_over_steps_are_those_of_each_step(tmp_path: Path) -> None:
    live = further()
    for run in (live, tt.open(live.save(tmp_path / "run.safetensors"))):
        steps, zeros = run.over_steps("2:output", "units.zeros")
        assert steps == [1, 2]  # What is kept.
        for step, found in zip(steps, zeros, strict=True):
            truth = (batch(2, step) == 0).double().mean(0)
            torch.testing.assert_close(found, truth, rtol=1e-12, atol=0)
        steps, largest = run.over_steps("2:output", "top_k")
        assert [found[0].value for found in largest] == [
            float(batch(2, step).flatten()[batch(2, step).abs().argmax()]) for step in steps
        ]
        assert run.over_steps("2:output", "l2")[0] == [0, 1, 2]
        assert run.over_steps("2:output", "p99")[0] == [1, 2]


def test_a_name_over_steps_that_is_not_there_says_what_is_near() -> None:
    run = further()
    for name, said in (
        ("unit.zeros", "no statistic 'unit.zeros'; did you mean 'zeros' or 'units'"),
        ("units.zeroes", "'units' has no 'zeroes'; did you mean 'zeros'"),
        ("l22", "no statistic 'l22'; did you mean 'l2'"),
    ):
        with pytest.raises(tt.SiteError, match=re.escape(said)):
            run.over_steps("2:output", name)


# ---------------------------------------------------------------------- which step is shown


def staggered(sink: tt.Sink) -> tt.Run:
    """``0`` runs in steps 0 and 1, ``1`` in steps 0 to 2."""
    model = nn.ModuleList([nn.Identity(), nn.Identity()])
    with tt.watch(model, "?:output", to=sink) as w:
        for step in range(3):
            if step < 2:
                model[0](torch.full((2,), float(step)))
            model[1](torch.full((2,), float(step)))
            w.step()
    return w.run


@pytest.mark.parametrize("sink", [tt.Stats, tt.Memory])
def test_a_table_says_which_step_it_shows(sink: Any) -> None:
    run = staggered(sink())

    def title(**how: Any) -> Any:
        return str(run.table(columns=["mean"], **how)).split("\n")[0]

    start = "2 sites, all float32, "
    assert title() == (
        f"{start}40 B in 3 steps. Shown: the last step of each site, which differ: see step."
    )
    head, *rows = str(run.table(columns=["mean"])).split("\n")[2:]
    assert head.split() == ["site", "step", "mean"]
    assert [row.split() for row in rows] == [["0:output", "1", "1"], ["1:output", "2", "2"]]
    assert title(steps=[0, 1]) == f"{start}32 B in 2 steps. Shown: step 1, the last."
    assert title(steps=1) == f"{start}16 B, step 1"
    together = "Shown: all of them together, 0 to 2."
    assert title(steps="all") == f"{start}40 B in 3 steps. {together}"
    assert title(steps=range(10), together=True) == (
        f"{start}40 B in 3 steps (3 of 10 steps). {together}"
    )
    assert title(where="1:output") == (
        "1 site, all float32, 24 B in 3 steps. Shown: step 2, the last."
    )


@pytest.mark.parametrize("sink", [tt.Stats, tt.Memory])
def test_steps_taken_together_are_as_one(sink: Any) -> None:
    table = run_of(sink()).table("2:output", steps=[0, 2], together=True)
    whole = torch.cat([batch(2, 0).flatten(), batch(2, 2).flatten()]).double()
    assert table.rows[0].stats.mean == pytest.approx(float(whole.mean()), rel=1e-9)
    assert table.rows[0].step is None


# ---------------------------------------------------------------------- what is cut


def test_a_table_that_is_cut_says_what_and_how_to_see_it() -> None:
    model = nn.Sequential(*(nn.Identity() for _ in range(60)))
    with tt.watch(model, "?*:output", to=tt.Stats()) as w:
        model(torch.ones(1))
    table = w.run.table()
    lines = str(table).split("\n")
    assert "… 20 more sites …" in lines
    assert lines[-1] == ("Cut: 20 sites left out. table.to_text(limit=None, width=None) shows all.")
    whole = table.to_text(limit=None, width=None)
    assert "Cut" not in whole
    assert all(f"{n}:output" in whole for n in range(60))


def test_names_that_are_shortened_are_reported_too() -> None:
    model = nn.Sequential()
    name = "a_name_that_is_long_" * 6
    model.add_module(name, nn.Identity())
    with tt.watch(model, "?*:output", to=tt.Stats()) as w:
        model(torch.ones(1))
    table = w.run.table()
    assert "Cut: long texts shortened." in str(table)
    assert f"{name}:output" not in str(table)
    assert f"{name}:output" in table.to_text(width=None)
    assert "Cut" not in table.to_text(width=None)
    assert "Cut" not in str(w.run.table().to_text(width=200))


# ---------------------------------------------------------------------- update ratios


def trained(where: str, sink: tt.Sink, steps: int = 2) -> tt.Run:
    model = nn.Linear(3, 2)
    nn.init.ones_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with tt.watch(model, where, to=sink) as w:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            w.step()
    return w.run


@pytest.mark.parametrize("sink", [tt.Stats, tt.Memory])
def test_an_update_without_a_ratio_says_why(sink: Any, tmp_path: Path) -> None:
    live = trained(".:param,update", sink())
    for run in (live, tt.open(live.save(tmp_path / "run.safetensors"))):
        steps, ratios = run.over_steps(".:update[weight]", "update_ratio")
        # Every step takes 0.5 off each of six weights, which begin at 1.
        assert (steps, ratios) == ([0, 1], pytest.approx([0.5, 1.0]))  # type: ignore[comparison-overlap]
        assert run.stats(".:update[weight]").why_no_ratio == ""
        bias = run.stats(".:update[bias]", step=0)
        assert math.isnan(bias.update_ratio)
        assert bias.why_no_ratio == "the parameter was all zero when the step began"
        assert f"no update_ratio: {bias.why_no_ratio}" in repr(bias)
        assert "update_ratio 1" in repr(run.stats(".:update[weight]"))
        assert run.stats(".:param[bias]").why_no_ratio == "only an update has one"
        assert "update_ratio" not in repr(run.stats(".:param[bias]"))
        for several in ([0, 1], "all"):
            found = run.stats(".:update[weight]", step=several)
            assert math.isnan(found.update_ratio)
            assert found.why_no_ratio.startswith("of several steps")
        text = " ".join(str(run.table(steps=0, columns=["update_ratio"])).split())
        assert ".:param[weight] - " in text
        assert ".:update[bias] NaN" in text
        assert ".:update[bias]: no update_ratio: the parameter was all zero when" in text
        assert "the parameter was" not in str(run.table(steps=0, columns=["l2"]))


@pytest.mark.parametrize("sink", [tt.Stats, tt.Memory])
def test_an_update_whose_parameter_was_not_watched_says_so(sink: Any) -> None:
    found = trained(".:update", sink()).stats(".:update[weight]")
    assert math.isnan(found.update_ratio)
    assert found.why_no_ratio == "the port param was not watched beside it in that step"


# ---------------------------------------------------------------------- shares


def test_what_would_underflow_is_a_share_of_all_finite_elements() -> None:
    value = torch.tensor([0.0, 0.0, 1e-9, 1.0, math.nan, math.inf])
    found = tt.measure(value)
    # 1e-9 is the only one that float16 turns into zero; four elements are finite, two of them zero.
    assert value.half().tolist()[2] == 0
    assert found.underflow("float16") == 1 / 4
    assert found.underflow("float16") / (1 - found.zeros / found.num_finite) == 1 / 2
    assert tt.measure(torch.tensor([0.0, 1e6, math.inf, math.nan])).overflow("float16") == 1 / 2

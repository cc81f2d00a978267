"""Values as text and HTML."""

from __future__ import annotations

import math
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from records import record, run_of
from torch import Tensor, nn

from torchtap.capture.watch import watch
from torchtap.core import text as cells
from torchtap.core.absence import Absence
from torchtap.core.record import RECOMPUTE
from torchtap.core.site import Site
from torchtap.runs.run import Meta, Run, inventory_of_run
from torchtap.runs.show import show_inventory, show_module_rows
from torchtap.runs.tables.module_table import module_rows
from torchtap.stats.sink import Stats

ODD_NAMES = [
    "</script><img onerror=alert(1)>",
    "a b",
    "\x1b[31mred",
    "line\nbreak",
    "模型.层",
    "é" * 70,
]


def show_run(run: Any, **options: Any) -> str:
    return show_inventory(inventory_of_run(run), **options).text()


def show_modules(run: Any) -> str:
    return show_module_rows(module_rows(run.table()) if run.sites else ()).text()


# ---------------------------------------------------------------------- a run


def test_an_empty_run_says_so() -> None:
    assert str(Run([], Meta())) == "Run: empty, nothing was recorded."
    assert "empty" in Run([], Meta())._repr_html_()


def test_a_run_shows_its_sites_and_totals() -> None:
    text = show_run(
        run_of(
            record("conv", torch.zeros(2, 3, dtype=torch.float16)),
            record("conv", torch.zeros(2, 3, dtype=torch.float16), call=1),
            record("fc", torch.zeros(4, 256), step=1),
        )
    )
    head, _, titles, conv, fc = text.split("\n")
    assert head == "Run of Net: 2 sites, 3 records, 2 steps (0 to 1), 4.023 KiB"
    assert titles.split() == ["site", "shape", "dtype", "calls", "steps", "bytes"]
    assert conv.split() == ["conv:output", "2x3", "float16", "2", "1", "24", "B"]
    assert fc.split() == ["fc:output", "4x256", "float32", "1", "1", "4", "KiB"]


def test_a_shape_that_changes_is_shown_as_changing() -> None:
    text = show_run(
        run_of(record(value=torch.zeros(2, 3)), record(value=torch.zeros(5, 3), call=1))
    )
    assert "?x3" in text
    text = show_run(run_of(record(value=torch.zeros(2)), record(value=torch.zeros(5, 3), call=1)))
    assert "varies" in text


def test_recomputed_values_are_named_and_not_counted() -> None:
    text = show_run(run_of(record(), record(phase=RECOMPUTE)))
    assert "1 site, 1 record, step 0, 24 B (and 1 record of recomputation)" in text


def test_a_long_run_is_elided_in_the_middle_with_a_count() -> None:
    run = run_of(*(record(f"layer{number}") for number in range(100)))
    lines = show_run(run).split("\n")
    assert "… 60 more sites …" in lines
    assert lines[-1].startswith("layer99:output")
    assert len(show_run(run, limit=None).split("\n")) == 103


@pytest.mark.parametrize("name", ODD_NAMES)
def test_no_line_is_wider_than_100_columns_or_breaks(name: Any) -> None:
    deep = ".".join([name] * 4)
    run = run_of(record(deep, torch.zeros(1, 64, 1, 1024)), absent=[Absence(Site(deep), "x" * 300)])
    for text in (show_run(run), run.table().to_text(), show_modules(run)):
        for line in text.split("\n"):
            assert cells.breadth(line) <= 100, line
            assert "\x1b" not in line
    lines = run.table().to_text().split("\n")
    is_cut = "…" in lines[3]
    assert len(lines) == 4 + 2 * is_cut
    assert any(line.startswith("Cut: long texts shortened.") for line in lines) == is_cut


# ---------------------------------------------------------------------- statistics


def row_of(value: Any) -> Any:
    text = run_of(record("fc", value)).table().to_text()
    return text.split("\n")[-1]


@pytest.mark.parametrize("place", range(6))
def test_a_nan_in_any_place_is_counted_and_changes_no_other_number(place: Any) -> None:
    value = torch.arange(1.0, 7.0)
    value[place] = math.nan
    cells_ = row_of(value.reshape(2, 3)).split()
    assert cells_[-2:] == ["1", "NaN"]
    finite = value[~value.isnan()]
    assert cells_[2] == cells.number(float(finite.mean()))
    assert cells_[4:6] == [cells.number(float(finite.min())), cells.number(float(finite.max()))]


@pytest.mark.parametrize(
    ("value", "end"),
    [
        (torch.tensor([1.0, math.inf, -math.inf]), "1 Inf 1 -Inf"),
        (torch.full((3,), math.nan), "0    3 NaN"),
        (torch.zeros(0, 3), "-        0"),
        (torch.tensor(2.0), "0        0"),
        (torch.tensor([True, False]), "50.0%        0"),
        (torch.tensor([1, -1], dtype=torch.bfloat16), "0        0"),
        (torch.tensor([3 + 4j]), "5    5      0        0"),
        (torch.zeros(3), "0    0    0    0   100%        0"),
    ],
)
def test_values_of_every_kind_have_a_row(value: Tensor, end: str) -> None:
    assert row_of(value).endswith(end)


def test_one_dtype_is_reported_once_and_several_in_each_row() -> None:
    same = run_of(record("a"), record("b")).table().to_text()
    assert "all float32" in same.split("\n")[0]
    mixed = run_of(record("a"), record("b", torch.zeros(3, dtype=torch.int64))).table().to_text()
    assert "int64 3" in mixed
    assert "all float32" not in mixed


# ---------------------------------------------------------------------- modules


def test_a_module_row_holds_the_norm_of_its_gradient() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    with watch(net, "*:output,grad_output") as watching:
        net(torch.randn(5, 4)).pow(2).sum().backward()
    rows = module_rows(watching.run.table())
    assert [row.path for row in rows] == ["", "0", "1", "2"]
    for row in rows:
        expected = float(watching.run[f"{row.path or '.'}:grad_output"].double().norm())
        assert row.grad_norm == pytest.approx(expected, rel=1e-12)
    line = show_modules(watching.run).split("\n")[3]
    assert line.split()[:2] == ["1", "ReLU"]
    assert line.split()[-1] == cells.number(rows[2].grad_norm)  # type: ignore[arg-type]


def test_a_module_without_a_gradient_shows_none_and_a_nan_gradient_shows_nan() -> None:
    grad = torch.tensor([1.0, math.nan])
    run = run_of(record("a"), record("b"), record("b", grad, port="grad_output"))
    _, first, second = show_modules(run).split("\n")
    assert first.endswith("-")
    assert second.endswith("1 NaN")


def test_calls_are_measured_together_and_several_outputs_counted() -> None:
    run = run_of(
        record("a", torch.zeros(2), leaf="0"),
        record("a", torch.ones(3), leaf="1"),
        record("b", torch.zeros(2)),
        record("b", torch.ones(2), call=1),
    )
    first, second = module_rows(run.table())
    assert (first.num_tensors, first.stats.numel, first.stats.zeros) == (2, 5, 2)
    assert (second.calls, second.stats.mean) == (2, 0.5)
    assert "2 +1" in show_modules(run)


def test_no_modules_is_reported() -> None:
    assert show_module_rows([]).text() == "No module has an output in this run."
    assert show_modules(Run([], Meta())) == "No module has an output in this run."


# ---------------------------------------------------------------------- html


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[Any] = []
        self.scopes: list[Any] = []
        self.text: list[Any] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.scopes += [value for name, value in attrs if name == "scope"]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_name_stays_text_in_html(name: Any) -> None:
    run = run_of(record(name), absent=[Absence(Site(name), "<b>why</b>")])
    parser = _Tags()
    parser.feed(run._repr_html_())
    allowed = {"div", "table", "caption", "thead", "tbody", "tr", "th", "td"}
    assert set(parser.tags) <= allowed | {"p"}
    assert parser.scopes == ["col"] * 6 + ["row"] * 2
    assert f"{cells.clean(name)}:output" in parser.text


def test_html_of_a_long_run_says_how_much_it_leaves_out() -> None:
    run = run_of(*(record(f"layer{number}") for number in range(100)))
    assert "… 60 more sites …" in run._repr_html_()


def test_html_of_a_measured_run_names_its_sites() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    with watch(model, "0", to=Stats()) as w:
        model(torch.zeros(4, 3))
    parser = _Tags()
    parser.feed(w.run._repr_html_())
    assert "0:output" in parser.text
    assert "4x2" in parser.text
    assert parser.scopes == ["col"] * 3 + ["row"]
    assert "1 site measured in 1 step" in "".join(parser.text)

"""All that prints is one page: as text, and as a table in a notebook."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchtap as tt
from torchtap.core.printed_page import Grid, Line, Listed, Page, paint
from torchtap.core.text import Cell

ODD = "<script>alert(1)</script>"


class _Reader(HTMLParser):
    """Reads HTML strictly: each tag that opens must close, in its order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.words = ""
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += f"{data} "


class _Odd(nn.Module):
    """A module whose name would be run by a careless page."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module(ODD, nn.Linear(4, 300))
        self.fc = nn.Linear(300, 2)
        self.add_module(f"unused {ODD}", nn.Linear(2, 2))

    def forward(self, x: torch.Tensor) -> Any:
        first = getattr(self, ODD)
        return self.fc(torch.relu(first(x)))


def _run(**how: Any) -> tuple[Any, tt.Run]:
    model = _Odd()
    with tt.watch(model, "*:output,grad_output", **how) as w:
        model(torch.ones(3, 4)).sum().backward()
    return w, w.run


def _statistics() -> Any:
    units = tt.stats.along(-1, name="units")
    _, run = _run(to=tt.Stats(histogram=True, statistics=[units]))
    return run.stats("fc:output")


def _verification() -> Any:
    return tt.verify(_Odd(), torch.ones(3, 4), where="*:output,grad_output", loss=torch.sum)


def _edit() -> Any:
    model = _Odd()
    edit = tt.edit(model, "*:output", tt.edits.scale(2.0), missing="ignore")
    model(torch.ones(3, 4))
    edit.close()
    return edit


def _offload(made: Callable[[Any], Any]) -> Any:
    model, x = _Odd(), torch.randn(3, 4)
    with tt.offload(tt.codecs.fp16(), model=model, min_bytes=0) as off:
        model(x).sum().backward()
        return made((off, model, x))


def _advice() -> Any:
    model, x = _Odd(), torch.ones(64, 4)
    return tt.advise_offload(model, lambda: model(x).sum().backward(), 160_000, min_bytes=0)


PRINTED: dict[str, Callable[[], Any]] = {
    "run": lambda: _run()[1],
    "table": lambda: _run()[1].table(),
    "measured": lambda: _run(to=tt.Stats())[1],
    "absences": lambda: _run()[0].absent,
    "plan": lambda: _run()[0].plan,
    "summary": lambda: tt.summary(_Odd(), torch.ones(3, 4)),
    "saved": lambda: tt.saved_report(_Odd(), torch.ones(3, 4)),
    "statistics": _statistics,
    "slices": lambda: _statistics().extra["units"],
    "sweep": lambda: tt.sweep(_Odd(), torch.ones(3, 4), ["<*", "fc"], tt.edits.zero(), torch.sum),
    "verification": _verification,
    "edit": _edit,
    "features": lambda: tt.features(_Odd(), [".", "<*", "fc"])(torch.ones(3, 4)),
    "offload": lambda: _offload(lambda it: it[0].report()),
    "gradients": lambda: _offload(lambda it: it[0].verify(lambda: it[1](it[2]).sum())),
    "advice": _advice,
}
ONE_TENSOR = {"statistics", "slices"}
"""Texts that name no module."""


@pytest.fixture(params=PRINTED)
def shown(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any]]:
    torch.manual_seed(0)
    yield request.param, PRINTED[request.param]()


def test_all_that_prints_is_a_table_in_a_notebook(shown: tuple[str, Any]) -> None:
    name, value = shown
    text, page = repr(value), _Reader(value._repr_html_())
    assert "table" in page.tags
    numbers = set(re.findall(r"\d+(?:[.,]\d+)*(?:e-?\d+)?", text.replace("…", " … ")))
    assert numbers <= set(re.findall(r"\d+(?:[.,]\d+)*(?:e-?\d+)?", page.words)), name


def test_a_module_name_is_text_and_nothing_is_loaded_or_run(shown: tuple[str, Any]) -> None:
    name, value = shown
    html = value._repr_html_()
    page = _Reader(html)
    assert page.tags <= {"div", "p", "table", "caption", "thead", "tbody", "tr", "th", "td"}
    assert page.attributes <= {"style", "scope", "colspan"}
    if name not in ONE_TENSOR:
        assert "<script" not in html and ODD in page.words


def test_no_line_is_wider_than_asked_but_numbers_are_whole() -> None:
    rows = [("encoder.layer.attention.output" * 4, "1,024", Cell("3 NaN", "bad"))]
    page = Page(Grid(rows, ("site", "bytes", "NaN"), "lrr", elastic={0: 10}))
    assert max(map(len, page.text(width=40).splitlines())) == 40
    assert page.text(width=40).endswith("1,024 3 NaN")
    assert "…" not in page.text(width=None) and "…" not in page.html()


def test_the_middle_is_left_out_and_counted_in_text_and_in_html() -> None:
    grid = Grid([(str(n),) for n in range(9)], ("n",), limit=4, noun="site", way_out="--all")
    page = Page(grid, Listed([(str(n), "why") for n in range(9)], limit=4, noun="reason"))
    lines = page.text().splitlines()
    assert lines[:6] == ["n", "0", "1", "… 5 more sites …", "7", "8"]
    assert "Cut: 5 sites left out. --all shows all." in lines
    assert lines[-3:] == ["  … 5 more reasons …", "  7: why", "  8: why"]
    words = _Reader(page.html()).words
    assert "… 5 more sites …" in words and "… 5 more reasons …" in words


def test_colours_are_codes_that_every_terminal_knows() -> None:
    assert paint("x", "bad", color=True) == "\x1b[1;31mx\x1b[0m"
    assert paint("x", "", color=True) == paint("x", "bad", color=False) == "x"
    painted = Page(Line("a b", "dim", rest="")).text(color=True)
    assert painted == "\x1b[2ma b\x1b[0m"


@pytest.mark.parametrize(
    "code", ["import torchtap", "from torchtap.cli.app import run; run(['--help'])"]
)
def test_rich_is_imported_only_where_something_is_shown(code: str) -> None:
    source = Path(tt.__file__).parents[1]
    code += "; import sys; print('rich' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(source)!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1] == "False"


def test_an_update_without_a_ratio_says_why_in_a_notebook() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tt.watch(model, "*:update", to=tt.Stats()) as w:
        model(torch.ones(3, 2)).sum().backward()
        optimizer.step()
        w.step()
    stats = w.run.stats(".:update[weight]")
    words = _Reader(stats._repr_html_()).words
    assert stats.why_no_ratio and f"update_ratio {stats.why_no_ratio}" in words


def test_what_has_no_rows_leaves_no_empty_table() -> None:
    page = Page(Line("nothing"), Grid([]), Listed([]))
    assert page.text() == "nothing"
    assert "table" not in _Reader(page.html()).tags

"""Notebooks show figures, two sites, and a figure that follows a training."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchtap as tt

pytest.importorskip("matplotlib")


@pytest.fixture
def shell() -> Iterator[Any]:
    """A shell of IPython that shows pictures, as that of a notebook."""
    interactive: Any = pytest.importorskip("IPython.core.interactiveshell")
    yield interactive.InteractiveShell.instance(colors="nocolor")
    interactive.InteractiveShell.clear_instance()


def trained(steps: int = 3) -> tt.Run:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    with tt.watch(model, "*:output,grad_output", to=tt.Stats()) as w:
        for _ in range(steps):
            model(torch.randn(16, 4)).sum().backward()
            w.step()
    return w.run


def test_a_figure_is_a_picture_without_pyplot(shell: Any) -> None:
    run = trained()
    had_pyplot = "matplotlib.pyplot" in sys.modules
    for shown in (tt.plot.series(run, "*"), tt.plot.pair(run, "0:output", "1:output").figure()):
        data, _ = shell.display_formatter.format(shown)
        assert data["image/png"].startswith(b"\x89PNG")
    assert ("matplotlib.pyplot" in sys.modules) == had_pyplot


def test_two_sites_stand_side_by_side() -> None:
    x = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0, float("nan")])
    model = nn.Sequential(nn.Tanh(), nn.ReLU())
    with tt.watch(model, "*:input,output", to=tt.Stats()) as w:
        model(x)
    two = tt.plot.pair(w.run, "0:input", "1:output")
    rows = {line.split()[0]: line.split()[1:] for line in repr(two).splitlines()[1:]}
    assert rows["min"] == ["-2", "0"] and rows["max"] == ["2", f"{np.tanh(2.0):.4g}"]
    assert rows["NaN/Inf"] == ["1", "NaN", "1", "NaN"]
    page = two._repr_html_()
    assert page.count("<table>") == 1 and 'src="data:image/png' in page


def test_histograms_over_one_another_hold_all_elements_in_common_cells() -> None:
    model = nn.Sequential(nn.Tanh(), nn.ReLU())
    x = torch.linspace(-3, 3, 1001)
    with tt.watch(model, "?:output", to=tt.Stats()) as w:
        model(x)
    axes: Any = tt.plot.pair(w.run, "0:output", "1:output").figure().axes[0]
    first, _, second, _ = (one.get_data() for one in axes.patches)
    assert np.array_equal(first.edges, second.edges)
    for found, truth in ((first, x.tanh()), (second, x.tanh().relu())):
        assert found.values.sum() == pytest.approx(1)
        middle = found.edges[20]
        below = (truth < middle).double().mean().item()
        assert found.values[:20].sum() == pytest.approx(below, abs=0.03)
    where_zero = np.searchsorted(second.edges, 0, side="right") - 1
    assert second.values[where_zero] >= 0.5


def outputs_of(shell: Any, code: str) -> list[Any]:
    from IPython.utils.capture import capture_output

    with capture_output() as out:
        shell.run_cell(code).raise_error()
    return [one for one in out.outputs if "image/png" in one.data or "text/html" in one.data]


FOLLOW = """
import time, torch, torchtap as tt
model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(5)])
began = time.perf_counter()
with tt.watch(model, "*:output,grad_output", to=tt.Stats()) as w, {live} as figure:
    while time.perf_counter() - began < {seconds}:
        model(torch.ones(2, 4)).sum().backward()
        w.step()
"""


def test_the_live_figure_follows_and_takes_a_tenth_of_the_time_at_most(shell: Any) -> None:
    tt.plot.series(trained(), "*").savefig("/dev/null", format="png")  # What draws is loaded.
    code = FOLLOW.format(live='tt.plot.live(w, "*:grad_output")', seconds=1.7)
    shown = outputs_of(shell, code)
    figure, w = shell.user_ns["figure"], shell.user_ns["w"]
    assert figure.failure is None and len(shown) == figure.num_drawn >= 2
    assert [one.update for one in shown] == [False] + [True] * (len(shown) - 1)
    assert len({one.transient["display_id"] for one in shown}) == 1  # All in one place.
    assert figure.num_drawn <= 2 + 1.7 / 0.5
    line = figure.figure.axes[0].lines[0]
    assert len(line.get_xdata()) == len(w.run.steps) or len(w.run.steps) > 1600


def test_what_cannot_be_drawn_is_said_and_not_raised(shell: Any) -> None:
    shown = outputs_of(shell, FOLLOW.format(live='tt.plot.live(w, "x:output")', seconds=0.2))
    assert "No picture: SiteError" in shown[-1].data["text/html"]
    assert len(shell.user_ns["w"].run.steps) > 1


def test_without_a_notebook_nothing_is_drawn_and_the_picture_is_there() -> None:
    relu = nn.ReLU()
    with tt.watch(relu, to=tt.Stats()) as w, tt.plot.live(w, "*", "l1") as figure:
        for step in range(3):
            relu(torch.full((2,), float(step)))
            w.step()
    assert (figure.num_drawn, figure.seconds) == (0, 0)
    assert figure.figure.axes[0].lines[0].get_ydata().tolist() == [0, 2, 4]
    with pytest.raises(tt.CaptureError, match="is closed"):
        tt.plot.live(w)
    with pytest.raises(tt.InputError, match="got a Run; expected a watch"):
        tt.plot.live(w.run)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_kernel_shows_them_all() -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    live = FOLLOW.format(live='tt.plot.live(w, "*:grad_output")', seconds=2)
    cells = [live, 'tt.plot.series(w.run, "*")', 'tt.plot.pair(w.run, "0:output", "1:output")']
    cells += ["w.run", "w"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in cells])
    began = time.perf_counter()
    nbclient.NotebookClient(book, timeout=120, kernel_name="python3").execute()
    assert time.perf_counter() - began < 100
    kinds = [[sorted(one.data) for one in cell.outputs] for cell in book.cells]
    picture, page = ["image/png", "text/plain"], ["text/html", "text/plain"]
    assert kinds == [[picture], [picture], [page], [page], [page]]

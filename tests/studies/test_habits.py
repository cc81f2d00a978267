"""Habits from elsewhere: each error says what was found and a way out that exists."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchtap as tt
from torchtap.core.errors import InputError, SiteError
from torchtap.core.text import percent


def net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))


BATCH = torch.ones(2, 1, 8, 8)


@pytest.fixture
def run() -> tt.Run:
    model = net()
    with tt.watch(model, ["*", "!1"]) as w:
        model(BATCH)
    return w.run


@pytest.mark.parametrize("to", ["runs/a.safetensors", Path("runs/a"), ["runs/a"]])
def test_a_path_in_the_place_of_a_sink_names_both_ways_to_write(to: Any) -> None:
    with pytest.raises(InputError) as caught:
        tt.watch(net(), to=to)
    assert "to=tt.Disk('runs/a')" in str(caught.value)
    assert "w.run.save('runs/a.safetensors')" in str(caught.value)


@pytest.mark.parametrize(
    "ask",
    [
        lambda run: run[0],
        lambda run: run.get(0),
        lambda run: [*run],
        lambda run: list(run.records(0)),
    ],
)
def test_a_number_in_the_place_of_a_site_is_taken_for_a_step(
    run: tt.Run, ask: Callable[[tt.Run], object]
) -> None:
    with pytest.raises(SiteError, match=r"int was found.*run.get\('PATH:output', step=0\)"):
        ask(run)
    assert run.get("0:output", step=0) is not None  # The way out.
    assert 0 not in run


@pytest.mark.parametrize(
    ("site", "says"),
    [
        ("0:grad_output", "at '0' there is output. Watch '0:output,grad_output'."),
        (".:input", "at '.' there is output. Watch '.:output,input'."),
        ("1:output", "watched at '*', '!1'. Watch '1:output'."),
    ],
)
def test_a_port_that_was_not_watched_is_called_so(run: tt.Run, site: str, says: str) -> None:
    with pytest.raises(SiteError) as caught:
        run[site]
    assert f"Nothing was recorded at {site!r}, which was not watched" in str(caught.value)
    assert says in str(caught.value)


def test_a_site_that_is_not_there_has_names_near_it(run: tt.Run) -> None:
    with pytest.raises(SiteError, match="did you mean"):
        run["00:output"]


@pytest.mark.parametrize("function", [tt.summary, tt.saved_report])
@pytest.mark.parametrize("shape", [(2, 1, 8, 8), torch.Size((2, 1, 8, 8)), [(2, 1, 8, 8)]])
def test_a_shape_in_the_place_of_a_batch_is_noticed(function: Any, shape: Any) -> None:
    with pytest.raises(InputError, match=r"model, torch.randn\(2, 1, 8, 8\)") as caught:
        function(net(), shape)
    assert isinstance(caught.value.__cause__, TypeError)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"input_size": (2, 1, 8, 8)}, "model, torch.randn(2, 1, 8, 8)"),
        ({"input_data": BATCH}, "model, batch"),
    ],
)
def test_the_keywords_of_other_summaries_are_noticed(given: Any, says: str) -> None:
    with pytest.raises(InputError) as caught:
        tt.summary(net(), **given)
    assert says in str(caught.value)


def test_a_model_that_takes_a_size_gets_it() -> None:
    class Grid(nn.Module):
        def forward(self, input_size: tuple[int, int]) -> torch.Tensor:
            return torch.ones(input_size)

    assert tt.summary(Grid(), (2, 3)).rows
    assert tt.summary(Grid(), input_size=(2, 3)).rows


@pytest.mark.parametrize("ending", [".pt", ".npz", ".PTH"])
def test_a_run_is_not_saved_under_the_name_of_another_kind(
    run: tt.Run, tmp_path: Path, ending: str
) -> None:
    with pytest.raises(InputError, match=r"x\.safetensors"):
        run.save(tmp_path / f"x{ending}")
    assert not [*tmp_path.iterdir()]


def test_one_reason_for_many_updates_is_said_once() -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(5)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with tt.watch(model, "*:update", to=tt.Stats()) as w:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        w.step()
    text = w.run.table(columns=["l2", "update_ratio"]).to_text(width=None)
    assert text.count("no update_ratio") == 1
    assert "and 8 more: no update_ratio: the port param was not watched beside it" in text


@pytest.mark.parametrize(("part", "text"), [(1.4, "140%"), (0.056, "5.6%"), (99.0, "9,900%")])
def test_shares_above_a_hundred_percent_are_plain_numbers(part: float, text: str) -> None:
    assert percent(part) == text

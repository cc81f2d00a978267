"""Figures over the steps: series, heat maps, updates."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drawn import is_whole, measured_run, words_of, x_of, y_of
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from torch import nn

import torchtap as tt
from torchtap.core.site import Site
from torchtap.plot.style import BAD
from torchtap.plot.thinning import thinned

ODD = ["$x_{2}$", "a\nb", "long" * 250, "</script>", "模型"]


def sites(num: int) -> list[Site]:
    return [Site(f"layer{place}") for place in range(num)]


def trained(to: Any = None, steps: int = 5) -> tt.Run:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    where = "*:output,grad_output,param,param_grad,update"
    with tt.watch(net, where, to=tt.Stats() if to is None else to) as w:
        for _ in range(steps):
            optimizer.zero_grad()
            net(torch.randn(16, 3)).square().mean().backward()
            optimizer.step()
            w.step()
    return w.run


def test_a_line_has_the_numbers_of_the_run_in_memory_and_on_disk(tmp_path: Path) -> None:
    run = trained()
    path = run.save(tmp_path / "run.safetensors")
    for one in (run, tt.open(path)):
        lines = tt.plot.series(one, "*@Linear:output", "absmax").axes[0].lines
        for site, line in zip(("0:output", "3:output"), lines[::2], strict=True):
            assert x_of(line).tolist() == one.steps
            assert np.array_equal(y_of(line), one.array(site, "absmax"))


def test_kept_values_are_drawn_as_measured_ones_are() -> None:
    values = trained(to=tt.Memory())
    drawn = y_of(tt.plot.series(values, "0", "std").axes[0].lines[0])
    expected = [float(values.get("0", step=step).double().std(correction=0)) for step in range(5)]
    np.testing.assert_allclose(drawn, expected, rtol=1e-6)


def test_steps_without_a_measurement_are_left_out_and_nan_is_a_gap_with_a_mark() -> None:
    run = measured_run([[1, -1, 2, math.nan, 3]], sites(1), steps=[0, 10, 20, 30, 40])
    axes = tt.plot.series(run, "*", "rms").axes[0]
    assert x_of(axes.lines[0]).tolist() == [0, 20, 30, 40]
    assert "measured in 4 of 5 steps" in words_of(axes.figure)
    (mark,) = [line for line in axes.lines if line.get_color() == BAD]
    assert x_of(mark).tolist() == [30]
    assert "NaN or Inf (magenta) 1 step, first in step 30." in words_of(axes.figure)


def test_all_nan_is_drawn_and_said() -> None:
    run = measured_run(np.full((3, 4), math.nan), sites(3))
    assert "in 3 sites, 4 steps, first in step 0" in words_of(tt.plot.series(run, "*"))
    assert "in 3 sites, 4 steps" in words_of(tt.plot.heatmap(run, "*"))


def test_an_axis_is_logarithmic_where_the_range_asks_for_it_and_zero_has_a_place() -> None:
    scales = {
        "linear": [[1, 2, 50]],
        "log": [[1, 2, 500]],
        "symlog": [[0, 1e-5, 1]],
    }
    for scale, stds in scales.items():
        axes = tt.plot.series(measured_run(stds, sites(1)), "*").axes[0]
        assert axes.get_yscale() == scale
        assert y_of(axes.lines[0]).tolist() == stds[0]
        low, high = axes.get_ylim()
        assert low <= min(stds[0]) <= max(stds[0]) <= high
    assert "0" in [text.get_text() for text in axes.get_yticklabels()]
    assert "Zeros stand at 0" in words_of(axes.figure)


def test_thinning_keeps_every_extreme_and_each_gap_that_is_wider_than_a_span() -> None:
    y = np.random.default_rng(0).standard_normal(10_000)
    y[1234], y[7654], y[5000:5100] = 99, -99, np.nan
    x, kept = thinned(np.arange(10_000), y, most=500)
    assert len(kept) <= 2 * 500 + 2
    assert (x[kept == 99], x[kept == -99]) == (1234, 7654)
    assert np.isnan(kept).any()
    for start in range(0, 10_000, 20):  # The least and the largest of each span of 20.
        if np.isfinite(y[start : start + 20]).any():
            inside = kept[(x >= start) & (x < start + 20)]
            assert np.nanmin(inside) == np.nanmin(y[start : start + 20])
            assert np.nanmax(inside) == np.nanmax(y[start : start + 20])


@pytest.mark.slow
def test_500_sites_and_10000_steps_are_drawn_and_said_to_be_thinned() -> None:
    stds = np.exp(-np.arange(500) / 50)[:, None] * np.ones(10_000)
    stds[3, 4321], stds[7, 7000] = 90, math.nan
    run = measured_run(stds, sites(500))
    line = tt.plot.series(run, "*")
    assert max(float(np.nanmax(y_of(one))) for one in line.axes[0].lines) == 90
    assert "10,000 steps drawn as 770 spans" in words_of(line)
    heat = tt.plot.heatmap(run, "*")
    assert heat.axes[0].images[0].get_array().shape == (500, 589, 4)
    assert heat.get_size_inches()[1] <= 11
    assert "40 of 500 sites named" in words_of(heat)
    assert is_whole(line)
    assert is_whole(heat)


def test_up_to_seven_lines_have_a_name_and_more_a_colour_of_their_depth() -> None:
    few = tt.plot.series(measured_run(np.ones((7, 2)), sites(7)), "*").axes[0]
    assert [text.get_text() for text in few.get_legend().get_texts()][6] == "layer6:output"
    assert len({to_hex(line.get_color()) for line in few.lines}) == 7
    many = tt.plot.series(measured_run(np.ones((30, 2)), sites(30)), "*")
    assert many.axes[0].get_legend() is None
    named = [text.get_text() for text in many.axes[1].get_yticklabels()]
    assert (named[0], named[-1], len(named)) == ("layer0:output", "layer29:output", 10)


@pytest.mark.parametrize("num", [1, 4, 9])
@pytest.mark.parametrize("name", ["series", "heatmap"])
def test_odd_names_are_drawn_as_they_are_and_nothing_is_cut(
    num: int, name: str, recwarn: pytest.WarningsRecorder
) -> None:
    odd = [Site(f"{ODD[place % 5]}{place}") for place in range(num)]
    figure = getattr(tt.plot, name)(measured_run(np.arange(2 * num).reshape(num, 2), odd), "*")
    assert is_whole(figure)
    assert "$x_{2}$" in words_of(figure)
    assert not recwarn.list


def test_rows_of_a_heat_map_have_the_colours_of_their_numbers() -> None:
    from matplotlib import colormaps

    run = measured_run([[1, 2], [4, -1], [math.nan, 3]], sites(3))
    figure = tt.plot.heatmap(run, "*", "absmax")
    pixels = figure.axes[0].images[0].get_array()
    viridis = colormaps["viridis"]
    assert tuple(pixels[0, 1]) == viridis(2 / 4, bytes=True)
    assert tuple(pixels[1, 0]) == viridis(1.0, bytes=True)
    assert pixels[1, 1].tolist() == [255, 255, 255, 255]
    assert pixels[2, 0].tolist() == [round(255 * part) for part in BAD]
    assert "White: not measured." in words_of(figure)


def test_numbers_of_both_signs_have_white_at_zero() -> None:
    run = measured_run([[1, 4]], sites(1))
    pixels = tt.plot.heatmap(run, "*", "min").axes[0].images[0].get_array()
    bar = tt.plot.heatmap(run, "*", "min").axes[1]
    assert bar.get_ylim() == (-4, 4)
    assert pixels[0, 0, 2] > pixels[0, 0, 0]  # Below zero is blue.


def test_updates_are_ratios_of_norms() -> None:
    run = trained()
    axes = tt.plot.updates(run).axes[0]
    ratios = run.array("0:update[weight]", "l2")[1:] / run.array("0:param[weight]", "l2")[1:]
    np.testing.assert_allclose(y_of(axes.lines[0])[1:], ratios, rtol=1e-9)
    assert axes.get_yscale() in ("log", "symlog")


def test_a_bias_before_a_batch_norm_is_said_to_have_no_gradient() -> None:
    run = trained()
    said = "0:param_grad[bias] is zero by construction, up to rounding: the batch norm 1"
    for figure in (
        tt.plot.series(run, "*:param_grad", "l2"),
        tt.plot.heatmap(run, "*:param_grad", "l2"),
        tt.plot.gradient_flow(run),
    ):
        assert said in words_of(figure).replace("\n", " ")
    assert "by construction" not in words_of(tt.plot.series(run, "3:param_grad", "l2"))


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("series", ("0",)),
        ("heatmap", ("*",)),
        ("histograms", ("0",)),
        ("histograms", ("*:output",)),
        ("gradient_flow", ()),
        ("updates", ()),
    ],
)
def test_with_ax_the_figure_is_drawn_there(name: str, args: Any) -> None:
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    assert getattr(tt.plot, name)(trained(), *args, ax=right) is figure
    assert not left.lines
    assert not left.images
    assert right.lines or right.images or right.child_axes
    with pytest.raises(tt.InputError, match="ax is a Figure; expected matplotlib axes"):
        getattr(tt.plot, name)(trained(), *args, ax=figure)


def test_bad_input_names_what_to_do() -> None:
    run = trained()
    with pytest.raises(tt.SiteError, match="did you mean 'absmax'"):
        tt.plot.series(run, "*", "absmx")
    with pytest.raises(tt.SiteError, match="did you mean '3:output'"):
        tt.plot.heatmap(run, "33:output")
    with pytest.raises(tt.SiteError, match="The run is empty"):
        tt.plot.series(tt.Run([]), "*")
    with pytest.raises(tt.InputError, match="draws a run, not a Linear"):
        tt.plot.series(nn.Linear(1, 1), "*")  # type: ignore[arg-type]
    only_outputs = measured_run([[1.0]], sites(1))
    with pytest.raises(tt.RunError, match=r"Watch '\*:update,param'"):
        tt.plot.updates(only_outputs)
    with pytest.raises(tt.RunError, match=r"no gradients.*It has output\. Watch"):
        tt.plot.gradient_flow(only_outputs)
    with pytest.raises(tt.InputError, match="they were not counted"):
        tt.plot.histograms(trained(to=tt.Stats(histogram=False)), "0")

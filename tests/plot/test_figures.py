"""Figures of depth, histograms, weights, tokens and saved bytes, by the numbers in them."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from drawn import is_whole, measured_run, widths_of, words_of, x_of, y_of
from matplotlib.figure import Figure
from torch import Tensor, nn

import torchtap as tt
from torchtap.core.site import Site
from torchtap.plot.ridges import shared_out
from torchtap.plot.style import on_two_lines
from torchtap.plot.token_maps import Tokens


def small_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)
    )


def watched(net: nn.Module, x: Tensor, where: str = "*:output,grad_output") -> tt.Run:
    with tt.watch(net, where) as w:
        net(x).square().sum().backward()
    return w.run


# ---------------------------------------------------------------------- depth


def test_rows_of_the_gradient_flow_are_root_mean_squares_in_the_order_of_outputs() -> None:
    net = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 2))
    run = watched(net, torch.randn(8, 4))
    axes = tt.plot.gradient_flow(run).axes[0]
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert names == ["0.0 Linear", "0.1 ReLU", "0 Sequential", "1 Linear", ". Sequential"]
    forward, backward = axes.lines[:2]
    for line, port in ((forward, "output"), (backward, "grad_output")):
        expected = [
            float(run[f"{name.split()[0]}:{port}"].double().square().mean().sqrt())
            for name in names
        ]
        np.testing.assert_allclose(x_of(line), expected, rtol=1e-6)
        assert y_of(line).tolist() == [0, 1, 2, 3, 4]
    zeros = widths_of(axes.child_axes[0])[:5]
    assert zeros[1] == float((run["0.1"] == 0).double().mean())


def test_a_model_of_two_outputs_comes_after_its_modules_with_both() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"a": self.inner(x), "b": x.square()}

    net = Two()
    with tt.watch(net, "*:output,grad_output", to=tt.Stats()) as w:
        sum(one.sum() for one in net(torch.ones(2, 3)).values()).backward()
    axes = tt.plot.gradient_flow(w.run).axes[0]
    names = [one.get_text() for one in axes.get_yticklabels()]
    assert names == ["inner Linear", ".[a] Two", ".[b] Two"]


def test_a_long_name_is_broken_at_a_dot_and_keeps_its_numbers() -> None:
    name = "decoder.block.11.layer.1.EncDecAttention:output"
    assert "".join(on_two_lines(name, 2.2, 8.5)) == name
    assert len(on_two_lines(name, 2.2, 8.5)) == 2
    assert on_two_lines("fc:output", 2.2, 8.5) == ["fc:output"]
    first, second = on_two_lines("." + "x" * 300, 1.0, 8.5)[0], on_two_lines(".:" + "y" * 300, 1.0)
    assert "…" in first
    assert second[0] == ".:"


def test_nan_and_zero_are_marked_in_the_gradient_flow() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    run = watched(net, torch.tensor([[math.nan, 1.0]]))
    assert "NaN or Inf (magenta) in 3 sites." in words_of(tt.plot.gradient_flow(run))
    nn.init.zeros_(net.get_parameter("1.weight"))
    run = watched(net, torch.ones(1, 2))
    figure = tt.plot.gradient_flow(run)
    assert "Zeros stand at 0" in words_of(figure)
    assert x_of(figure.axes[0].lines[1])[0] == 0  # No gradient arrives at the first.


def test_the_gradient_flow_of_a_step_that_is_not_there_is_refused() -> None:
    run = watched(nn.Linear(2, 2), torch.ones(1, 2))
    with pytest.raises(tt.SiteError, match=r"This run has no step 7\. Its steps are"):
        tt.plot.gradient_flow(run, 7)


def test_500_modules_are_named_in_part() -> None:
    places = [Site(f"m{place}", port) for place in range(500) for port in ("output", "grad_output")]
    run = measured_run(np.ones((1000, 1)), places)
    figure = tt.plot.gradient_flow(run)
    assert "40 of 500 modules named" in words_of(figure)
    assert figure.get_size_inches()[1] <= 11
    assert is_whole(figure)


# ---------------------------------------------------------------------- histograms


def test_a_ridge_is_the_density_of_what_is_not_zero() -> None:
    edges = np.array([0.0, 1.0, 2.0, 4.0])
    low, high, counts = np.array([0.0, 0.5, 3.0]), np.array([1.0, 1.5, 5.0]), np.array([4.0, 2, 2])
    # The first lies in the first cell, the second half in each, the third half in the last.
    assert shared_out(edges, low, high, counts).tolist() == [5.0, 1.0, 1.0]


def test_ridges_say_zeros_range_and_nan() -> None:
    values = torch.linspace(-1, 1, 1000)
    with tt.watch(relu := nn.ReLU(), to=tt.Stats()) as w:
        for step in range(3):
            given = values.clone()
            given[0] = math.nan if step == 2 else 0
            relu(given)
            w.step()
    figure = tt.plot.histograms(w.run, "*")
    said = words_of(figure)
    assert "Range 0 to 1. 1 NaN or Inf." in said
    assert "50% zero" in said
    assert "1 NaN/Inf" in said
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["0", "1", "2"]
    middle = y_of(axes.lines[0])  # Uniform from 0 to 1: as high everywhere within.
    assert middle[10:-10].min() > 0.8 * middle.max()


def test_histograms_of_nothing_but_zeros_or_nan_say_so() -> None:
    for value, said in ((0.0, "every value is 0"), (math.nan, "no finite value but 0: 3 NaN")):
        with tt.watch(nn.Identity(), to=tt.Stats()) as w:
            pass
        run = watched_identity(torch.full((3,), value))
        assert said in words_of(tt.plot.histograms(run, "*")).replace("\n", " ")
        del w


def watched_identity(value: Tensor) -> tt.Run:
    with tt.watch(net := nn.Identity(), to=tt.Stats()) as w:
        net(value)
    return w.run


def test_steps_whose_histograms_are_gone_are_counted_in_words() -> None:
    with tt.watch(relu := nn.ReLU(), to=tt.Stats(keep=4)) as w:
        for _ in range(10):
            relu(torch.randn(50))
            w.step()
    assert "4 of 10 steps; histograms are kept of 4." in words_of(tt.plot.histograms(w.run, "*"))


# ---------------------------------------------------------------------- weights


def test_singular_values_are_those_of_torch_in_float64() -> None:
    net = small_net()
    figure = tt.plot.spectra(net)
    expected = [
        torch.linalg.svdvals(weight.detach().double().flatten(1))
        for weight in (net[0].weight, net[4].weight)
    ]
    for line, values in zip(figure.axes[0].lines, expected, strict=True):
        np.testing.assert_allclose(y_of(line), values.numpy(), rtol=1e-12)
    assert "4 vectors (biases, norms) left out." in words_of(figure)
    run = watched(net, torch.randn(2, 3, 4, 4), "*:param")
    line = tt.plot.spectra(run).axes[0].lines[0]
    np.testing.assert_allclose(y_of(line), expected[0].numpy(), rtol=1e-12)


def test_a_weight_of_low_rank_and_one_with_nan_are_said() -> None:
    net = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False))
    with torch.no_grad():
        net[0].weight.copy_(torch.outer(torch.ones(6), torch.arange(6.0)))
        net[1].weight[0, 0] = math.nan
    said = words_of(tt.plot.spectra(net)).replace("\n", " ")
    assert "first 0:param[weight]: 1 of 6." in said
    assert "1 weight with NaN or Inf left out, as 1:param[weight]." in said


def test_filters_of_colours_are_grey_at_zero_and_others_symmetric() -> None:
    conv = nn.Conv2d(3, 1, 1, bias=False)
    with torch.no_grad():
        conv.weight.copy_(torch.tensor([1.0, 0.0, -1.0]).view(1, 3, 1, 1))
    pixels = tt.plot.filters(nn.Sequential(conv), "0").axes[0].images[0].get_array()
    assert pixels[0, 0].tolist() == [1.0, 0.5, 0.0]
    grey = tt.plot.filters(nn.Sequential(nn.Conv2d(1, 4, 3)), "0")
    low, high = grey.axes[1].get_xlim()
    assert low == -high
    table = tt.plot.filters(nn.Sequential(nn.Conv2d(20, 30, 3)), "0")
    assert "rows: 12 of 30 outputs, columns: 16 of 20 inputs" in words_of(table)


def test_a_matrix_is_drawn_in_blocks_of_which_the_furthest_from_zero_stands() -> None:
    linear = nn.Linear(1000, 3, bias=False)
    with torch.no_grad():
        linear.weight.zero_()
        linear.weight[1, 777] = -5
    pixels = tt.plot.filters(linear, ".").axes[0].images[0].get_array()
    assert pixels.shape == (3, 334, 4)
    (row,), (col,) = np.nonzero((pixels[..., 0] < 50) & (pixels[..., 2] > 60))
    assert (int(row), int(col)) == (1, 777 // 3)


@pytest.mark.parametrize(
    ("site", "error", "said"),
    [
        ("0:param[bias]", tt.InputError, "filters have two or more dimensions"),
        ("7", tt.SiteError, "There is no parameter at '7:param"),
        ("4:param[weigth]", tt.SiteError, "did you mean '4:param"),
    ],
)
def test_a_parameter_without_filters_is_refused(site: str, error: Any, said: str) -> None:
    with pytest.raises(error) as caught:
        tt.plot.filters(small_net(), site)
    assert said in str(caught.value)


def test_a_run_of_statistics_alone_has_no_weights_to_draw() -> None:
    net = nn.Linear(2, 2)
    with tt.watch(net, "*:param", to=tt.Stats()) as w:
        net(torch.ones(1, 2))
    for draw in (tt.plot.spectra, lambda run: tt.plot.filters(run, ".")):
        with pytest.raises(tt.RunError, match="kept no values of parameters"):
            draw(w.run)
    with pytest.raises(tt.InputError, match="takes a model or a run, not a list"):
        tt.plot.spectra([])  # type: ignore[arg-type]


# ---------------------------------------------------------------------- tokens


class Patches(nn.Module):
    """A picture of 16 by 16 as 16 patches, a class token in front."""

    def __init__(self) -> None:
        super().__init__()
        self.cut, self.norm = nn.Conv2d(1, 6, 4, 4), nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.cut(x).flatten(2).mT
        return self.norm(torch.cat([tokens.mean(1, keepdim=True), tokens], 1))


def test_tokens_of_patches_lie_where_the_patches_are() -> None:
    torch.manual_seed(0)
    net, x = Patches(), torch.rand(2, 1, 16, 16)
    run = watched(net, x)
    value = run["norm"][1, 1:].double()
    figure = tt.plot.feature_maps(run, "norm", sample=1, channels=[2])
    tile = np.asarray(figure.axes[0].images[0].get_array())[6::12, 6::12]
    maps = value[:, 2].view(4, 4).numpy()
    reach = abs(maps).max()
    from matplotlib import colormaps

    assert tile.tolist() == colormaps["RdBu_r"]((maps / reach + 1) / 2, bytes=True).tolist()
    assert "tokens on a grid of 4x4, 1 in front left out" in words_of(figure)
    figure = tt.plot.tokens(run, "norm", x[0])
    assert "4x4 patches, 1 token in front" in words_of(figure)
    assert is_whole(figure)


def test_numbers_of_tokens_are_norms_and_cosines() -> None:
    values = np.random.default_rng(0).standard_normal((5, 3))
    found = Tokens(values, 1, 2)
    np.testing.assert_allclose(found.norms, np.linalg.norm(values, axis=1))
    expected = torch.nn.functional.cosine_similarity(
        torch.tensor(values)[:, None], torch.tensor(values)[None], dim=-1
    )
    np.testing.assert_allclose(found.similarity, expected.numpy(), atol=1e-12)
    parts = found.components.reshape(4, 3)
    centred = values[1:] - values[1:].mean(0)
    along = centred @ np.linalg.svd(centred)[2][0]
    assert abs(np.corrcoef(parts[:, 0], along)[0, 1]) == pytest.approx(1)


def test_words_are_no_patches() -> None:
    net = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    run = watched(net, torch.randn(1, 16, 8))
    figure = tt.plot.tokens(run, ".")
    np.testing.assert_allclose(
        y_of(figure.axes[0].lines[0]), run["."][0].double().norm(dim=1).numpy(), rtol=1e-6
    )
    with pytest.raises(tt.InputError, match="layout='tokens'"):
        tt.plot.feature_maps(run, ".")
    with pytest.raises(tt.InputError, match=r"expected tokens \(B, T, C\)"):
        tt.plot.tokens(watched(nn.Linear(2, 2), torch.ones(1, 2)), ".")


def test_windows_are_put_side_by_side() -> None:
    class WindowAttention(nn.Identity):
        """Four windows of 2 by 2."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cut, self.attention = nn.Conv2d(1, 3, 1), WindowAttention()

        def forward(self, x: Tensor) -> Tensor:
            maps = self.cut(x)  # [B, 3, 4, 4]
            cut = maps.unflatten(3, (2, 2)).unflatten(2, (2, 2)).permute(0, 2, 4, 3, 5, 1)
            return self.attention(cut.reshape(-1, 4, 3))

    net = Net()
    run = watched(net, torch.rand(2, 1, 4, 4))
    whole = tt.plot.feature_maps(run, "cut", sample=1)
    cut = tt.plot.feature_maps(run, "attention", sample=1)
    one, two = (np.asarray(f.axes[0].images[0].get_array()) for f in (whole, cut))
    assert np.array_equal(one, two)
    assert "2x2 windows of 2x2 side by side" in words_of(cut)


def test_channels_last_are_known_by_the_norm_beside_them() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.act = nn.LayerNorm(5), nn.GELU()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.norm(x))

    run = watched(Net(), torch.randn(1, 6, 7, 5))
    for site in ("norm", "act"):
        assert "channels last, 5 channels" in words_of(tt.plot.feature_maps(run, site))


# ---------------------------------------------------------------------- saved


def test_bars_are_the_bytes_of_the_report() -> None:
    report = tt.saved_report(small_net(), torch.randn(2, 3, 4, 4))
    figure = tt.plot.saved(report)
    rows = [row for row in report.rows if row.nbytes]
    assert widths_of(figure.axes[0]) == [row.nbytes for row in rows]
    many = nn.Sequential(*(nn.Linear(4, 4) for _ in range(50)))
    report = tt.saved_report(many, torch.ones(2, 4))
    figure = tt.plot.saved(report)
    assert sum(widths_of(figure.axes[0])) == report.nbytes
    assert "14 other modules" in words_of(figure)
    assert is_whole(figure)
    with pytest.raises(tt.InputError, match=r"give tt\.saved_report"):
        tt.plot.saved(small_net())  # type: ignore[arg-type]


# ---------------------------------------------------------------------- all


def test_every_figure_draws_in_axes_that_are_given() -> None:
    net, x = small_net(), torch.randn(2, 3, 4, 4)
    run = watched(net, x, "*:output,grad_output,param")
    words = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    for draw in (
        lambda ax: tt.plot.feature_maps(run, "0", ax=ax),
        lambda ax: tt.plot.filters(net, "0", ax=ax),
        lambda ax: tt.plot.spectra(net, ax=ax),
        lambda ax: tt.plot.saved(tt.saved_report(net, x), ax=ax),
        lambda ax: tt.plot.attention(words, torch.randn(1, 5, 8), ax=ax),
        lambda ax: tt.plot.tokens(watched(words, torch.randn(1, 5, 8)), ".", ax=ax),
    ):
        figure = Figure(figsize=(9, 4), layout="constrained")
        left, right = figure.subplots(1, 2)
        assert draw(right) is figure
        figure.draw_without_rendering()
        assert not (left.lines or left.images or left.child_axes)


def test_without_matplotlib_every_figure_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = small_net(), torch.randn(2, 3, 4, 4)
    run = watched(net, x, "*:output,grad_output,param")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    words = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    for draw in (
        lambda: tt.plot.series(run, "*"),
        lambda: tt.plot.heatmap(run, "*"),
        lambda: tt.plot.histograms(run, "0"),
        lambda: tt.plot.histograms(run, "*"),
        lambda: tt.plot.gradient_flow(run),
        lambda: tt.plot.spectra(net),
        lambda: tt.plot.filters(net, "0"),
        lambda: tt.plot.saved(tt.saved_report(net, x)),
        lambda: tt.plot.attention(words, torch.randn(1, 5, 8)),
    ):
        with pytest.raises(tt.MissingExtraError, match=r"pip install 'torchtap\[plot\]'"):
            draw()


def test_figures_leave_pyplot_alone() -> None:
    code = (
        "import sys, torch, torchtap as tt; net = torch.nn.Linear(3, 4)\n"
        "with tt.watch(net, '*:output,grad_output,param') as w: net(torch.rand(2, 3)).sum()"
        ".backward()\n"
        "tt.plot.series(w.run, '*'); tt.plot.gradient_flow(w.run); tt.plot.heatmap(w.run, '*')\n"
        "tt.plot.histograms(w.run, '.:output'); tt.plot.spectra(w.run)\n"
        "with tt.watch(conv := torch.nn.Conv2d(1, 2, 3), '.') as w: conv(torch.rand(1, 1, 8, 8))\n"
        "tt.plot.feature_maps(w.run, '.')\n"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "False", done.stderr

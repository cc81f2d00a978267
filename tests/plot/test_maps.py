"""Pictures of feature maps."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.text import Annotation
from records import record, run_of
from torch import nn

from torchtap.capture.watch import watch
from torchtap.core.errors import InputError, MissingExtraError, SiteError
from torchtap.core.site import Site
from torchtap.plot.maps import default_site, feature_maps, feature_maps_overview, grid_shape
from torchtap.plot.style import BAD, printable


def run_with(value: Any, kind: str = "Conv2d", path: str = "conv") -> Any:
    return run_of(record(path, value, step=3, call=1), types={path: (kind,)})


def title_of(figure: Any) -> Any:
    return "\n".join([figure.axes[0].get_title(loc="left"), *said_above(figure.axes[0])])


def said_above(axes: Any) -> list[str]:
    texts = [one.get_text() for one in axes.texts if isinstance(one, Annotation)]
    return [one for one in texts if one.strip()]


def pixels_of(figure: Any) -> Any:
    return np.asarray(figure.axes[0].images[0].get_array())


def words_of(figure: Any) -> list[Any]:
    texts = figure.axes[0].texts
    return [one.get_text() for one in texts if not isinstance(one, Annotation)]


def test_the_title_names_site_shape_step_call_and_range() -> None:
    value = torch.arange(2 * 4 * 3 * 3, dtype=torch.float32).reshape(2, 4, 3, 3)
    title = title_of(feature_maps(run_with(value), "conv", sample=1))
    assert title.split("\n")[0] == "conv:output  float32[2, 4, 3, 3]  step 3 call 1"
    assert title.split("\n")[1] == "sample 1, 4 channels, range 36 to 71"


@pytest.mark.parametrize(
    ("maps", "shape"), [(64, (8, 8)), (32, (4, 8)), (1, (1, 1)), (2, (1, 2)), (9, (3, 3))]
)
def test_a_grid_is_near_a_square_and_holds_all(maps: int, shape: tuple[int, ...]) -> None:
    assert grid_shape(maps) == shape


@pytest.mark.parametrize("maps", range(1, 200, 7))
def test_no_grid_is_too_small_or_has_an_empty_row(maps: Any) -> None:
    rows, cols = grid_shape(maps)
    assert rows * cols >= maps
    assert (rows - 1) * cols < maps


def test_every_channel_is_drawn_with_its_own_colours() -> None:
    value = torch.stack([torch.full((4, 4), float(n)) for n in range(4)])[None]
    value[:, :, 0, 0] += 0.5
    pixels = pixels_of(feature_maps(run_with(value), "conv"))
    assert len({tuple(pixel) for pixel in pixels.reshape(-1, 4) if pixel[3]}) >= 8


def test_values_without_sign_are_viridis_and_signed_ones_symmetric() -> None:
    from matplotlib import colormaps

    positive = feature_maps(run_with(torch.tensor([[[[0.0, 1.0]]]])), "conv")
    assert tuple(pixels_of(positive)[0, 0]) == colormaps["viridis"](0.0, bytes=True)
    assert tuple(pixels_of(positive)[0, -1]) == colormaps["viridis"](1.0, bytes=True)
    signed = feature_maps(run_with(torch.tensor([[[[-1.0, 0.0, 4.0]]]])), "conv")
    bar = signed.axes[1]
    assert bar.get_xlim() == (-4.0, 4.0)
    middle = pixels_of(signed)[0, pixels_of(signed).shape[1] // 2]
    assert min(middle[:3]) > 240  # Zero is white.


@pytest.mark.parametrize("place", [(0, 0, 0), (1, 2, 3), (3, 4, 4)])
@pytest.mark.parametrize(
    ("bad", "word"), [(math.nan, "NaN"), (math.inf, "Inf"), (-math.inf, "Inf")]
)
def test_what_is_not_finite_is_magenta_and_counted(
    place: tuple[int, ...], bad: Any, word: str
) -> None:
    value = torch.rand(1, 4, 5, 5)
    value[(0, *place)] = bad
    figure = feature_maps(run_with(value), "conv")
    assert f"1 {word} (magenta)" in title_of(figure)
    assert f"1 {word}" in words_of(figure)
    magenta = [round(255 * part) for part in BAD]
    assert (pixels_of(figure) == magenta).all(-1).any()
    assert len(figure.axes[0].patches) == 1
    clean = feature_maps(run_with(torch.rand(1, 4, 5, 5)), "conv")
    assert not (pixels_of(clean) == magenta).all(-1).any()


def test_maps_of_nothing_but_nan_are_drawn() -> None:
    figure = feature_maps(run_with(torch.full((1, 2, 3, 3), math.nan)), "conv")
    assert "18 NaN (magenta)" in title_of(figure)


def test_zero_and_constant_maps_are_reported() -> None:
    value = torch.rand(1, 4, 5, 5)
    value[0, 1], value[0, 2] = 0, 2.5
    figure = feature_maps(run_with(value), "conv")
    assert "1 all zero, 1 constant" in title_of(figure)
    assert {"all 0", "all 2.5"} <= set(words_of(figure))
    assert "4 all zero" in title_of(feature_maps(run_with(torch.zeros(1, 4, 5, 5)), "conv"))


def test_more_channels_than_64_are_counted_and_can_be_chosen() -> None:
    run = run_with(torch.rand(1, 100, 3, 3))
    assert "64 of 100 channels" in title_of(feature_maps(run, "conv"))
    chosen = feature_maps(run, "conv", channels=[99, 5])
    assert [word for word in words_of(chosen) if word] == ["99", "5"]
    assert "3 of 100 channels" in title_of(feature_maps(run, "conv", channels=3))


def test_each_scale_shows_faint_maps_and_shared_does_not() -> None:
    value = torch.rand(1, 2, 8, 8)
    value[0, 1] /= 1000
    colours = {}
    for scale in ("shared", "each"):
        right = pixels_of(feature_maps(run_with(value), "conv", scale=scale))[:, -48:]
        colours[scale] = len({tuple(pixel) for pixel in right.reshape(-1, 4)})
    assert colours["each"] > 30
    assert colours["shared"] == 1


def test_clip_keeps_an_extreme_from_paling_the_rest_and_says_so() -> None:
    value = torch.rand(1, 1, 20, 20) - 0.5
    value[0, 0, 0, 0] = 100
    title = title_of(feature_maps(run_with(value), "conv", clip=0.01))
    assert "to 100, colours -0." in title.replace("\n", " ")
    assert "colours" not in title_of(feature_maps(run_with(value), "conv"))


@pytest.mark.parametrize(
    ("shape", "kind", "said"),
    [
        ((3, 5, 6), "Conv2d", "3 channels"),
        ((2, 3, 4, 5, 6), "Conv3d", "slice 2 of 4"),
        ((3, 4, 5, 6), "Conv3d", "slice 2 of 4"),
        ((2, 7, 30), "Conv1d", "7 channels"),
        ((7, 30), "Conv1d", "7 channels"),
    ],
)
def test_convolutions_of_every_dimension_are_drawn(
    shape: tuple[int, ...], kind: str, said: str
) -> None:
    assert said in title_of(feature_maps(run_with(torch.rand(shape), kind), "conv"))


@pytest.mark.parametrize(
    ("shape", "kind", "said"),
    [
        ((2, 10, 16), "MultiheadAttention", "tokens (B, T, C)"),
        ((2, 10, 16), "LayerNorm", "tokens (B, T, C)"),
        ((2, 10, 16), "ReLU", "layout='CHW'"),
        ((2, 10), "Linear", "feature maps need (N, C, H, W) or (C, H, W)"),
        ((), "Linear", "float32[]"),
        ((2, 0, 4, 4), "Conv2d", "no channel"),
        ((2, 3, 0, 4), "Conv2d", "nothing to draw"),
        ((0, 3, 4, 4), "Conv2d", "no sample 0"),
    ],
)
def test_a_value_without_maps_is_refused_with_its_shape_and_what_was_expected(
    shape: Any, kind: str, said: str
) -> None:
    with pytest.raises(InputError) as caught:
        feature_maps(run_with(torch.rand(shape), kind), "conv")
    assert said in str(caught.value)
    assert "conv:output is float32" in str(caught.value)


def test_a_layout_can_be_named_and_must_fit() -> None:
    run = run_with(torch.rand(2, 8, 9, 3), "Block")
    assert "3 channels" in title_of(feature_maps(run, "conv", layout="NHWC"))
    with pytest.raises(InputError, match="layout 'CHW' means"):
        feature_maps(run, "conv", layout="CHW")
    with pytest.raises(InputError, match="expected one of"):
        feature_maps(run, "conv", layout="XY")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"sample": 2}, "there is no sample 2"),
        ({"channels": [4]}, "there is no channel 4"),
        ({"channels": 0}, "channels is 0"),
        ({"channels": []}, "no channel"),
        ({"scale": "log"}, "scale is 'log'"),
        ({"clip": 1.0}, "clip is 1.0"),
    ],
)
def test_a_bad_argument_is_named(how: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        feature_maps(run_with(torch.rand(2, 4, 3, 3)), "conv", **how)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.bool])
def test_every_dtype_is_drawn(dtype: torch.dtype) -> None:
    assert feature_maps(run_with(torch.ones(1, 2, 3, 3).to(dtype)), "conv").axes


def test_complex_values_are_drawn_by_magnitude() -> None:
    value = torch.full((1, 1, 2, 2), 3 + 4j)
    assert "magnitude, 1 channel, 1 constant, range 5 to 5" in title_of(
        feature_maps(run_with(value), "conv")
    )


@pytest.mark.parametrize("name", ["$x$", "a_{b}^c", "模型", "Ελλάδα", "\x1b[31m", "</script>"])
def test_odd_names_are_drawn_as_they_are(
    name: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    figure = feature_maps(run_with(torch.rand(1, 2, 3, 3), path=name), Site(name))
    figure.savefig(tmp_path / "maps.png")
    assert not [warning for warning in recwarn if "Glyph" in str(warning.message)]


def test_characters_that_the_font_has_are_kept_and_others_escaped() -> None:
    assert printable("naïve Привет 你好 €") == r"naïve Привет \u4f60\u597d €"


def test_drawing_changes_no_recorded_value() -> None:
    value = torch.randn(1, 4, 5, 5)
    before = value.clone()
    feature_maps(run_with(value), "conv", scale="each")
    assert torch.equal(value, before)


def test_an_overview_puts_places_side_by_side(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 70, 3))
    with watch(net, "*") as watching:
        net(torch.randn(1, 3, 12, 12))
    picture = np.zeros((8, 8, 3), dtype=np.uint8)
    figure = feature_maps_overview(
        watching.run, ["0", "2"], picture=picture, caption="a $cat$", title="t"
    )
    titles = [axes.get_title(loc="left").split("\n")[0] for axes in figure.axes[:3]]
    assert titles == ["Input", "0:output", "2:output"]
    figure.savefig(tmp_path / "overview.png")
    assert (tmp_path / "overview.png").stat().st_size > 10_000


def test_the_default_place_is_the_first_convolution() -> None:
    net = nn.Sequential(nn.Identity(), nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
    with watch(net, "*") as watching:
        net(torch.randn(1, 3, 12, 12))
    assert default_site(watching.run) == Site("1")
    with pytest.raises(SiteError, match="No output in this run has maps"):
        default_site(run_with(torch.rand(2, 3), "Linear"))


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'torchtap\[plot\]'"):
        feature_maps(run_with(torch.rand(1, 2, 3, 3)), "conv")

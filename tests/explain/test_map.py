"""Maps: rows, sizes, overlays, files, text."""

from __future__ import annotations

import dataclasses
import math
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import torchtap as tt
from torchtap.core.errors import InputError, MissingExtraError
from torchtap.explain.maps.map import Map


def made(values: Any, **fields: Any) -> Map:
    """A map of these values, of class 3 in every row."""
    rows = len(values)
    given: dict[str, Any] = {
        "method": "gradcam",
        "layer": "conv",
        "target": (3,) * rows,
        "target_text": "class 3",
        "scores": torch.arange(rows, dtype=torch.float32),
        "size": tuple(values.shape[1:]),
    }
    return Map(values, **{**given, **fields})


def drawn_by_hand(name: str, unit: float) -> tuple[int, ...]:
    from matplotlib import colormaps

    return tuple(round(255 * part) for part in colormaps[name](unit)[:3])


def heights(figure: Any) -> list[float]:
    return [float(bar.get_height()) for bar in figure.axes[0].patches]


def is_near(pixel: Any, wanted: tuple[int, ...]) -> bool:
    return bool((abs(np.asarray(pixel)[:3].astype(int) - wanted) <= 1).all())


# ---------------------------------------------------------------------- rows


def test_rows_of_a_batch_are_maps_with_their_own_target_and_score() -> None:
    batch = made(
        torch.rand(3, 2, 2),
        target=(1, 2, 3),
        target_text="classes 1, 2, 3",
        gap=torch.tensor([0.1, 0.2, 0.3]),
    )
    assert len(batch) == 3
    one = batch[1]
    assert (one.target, one.target_text, one.scores.tolist()) == ((2,), "class 2", [1.0])
    assert one.gap is not None
    assert one.gap.tolist() == [pytest.approx(0.2)]
    assert torch.equal(one.values, batch.values[1:2])
    assert [row.target for row in batch] == [(1,), (2,), (3,)]
    assert torch.equal(batch[-1].values, batch.values[2:])
    assert len(batch[1:]) == 2
    with pytest.raises(IndexError, match="row 3 of a map of 3 rows"):
        batch[3]


# ---------------------------------------------------------------------- sizes


def test_resizing_is_bilinear_between_the_middles_of_pixels() -> None:
    # align_corners=False: the middle of output pixel i stands at (i + 0.5) / 2 - 0.5.
    found = made(torch.tensor([[[0.0, 1.0]]])).resize((1, 4))
    assert found.values.flatten().tolist() == [0.0, 0.25, 0.75, 1.0]
    square = made(torch.tensor([[[0.0, 4.0], [8.0, 12.0]]])).resize((4, 4))
    assert square.values[0, 1].tolist() == [2.0, 3.0, 5.0, 6.0]


def test_lines_and_volumes_are_resized_too() -> None:
    line = made(torch.tensor([[0.0, 2.0]])).resize(4)
    assert line.values.tolist() == [[0.0, 0.5, 1.5, 2.0]]
    volume = made(torch.arange(8.0).reshape(1, 2, 2, 2)).resize(4)
    assert volume.values.shape == (1, 4, 4, 4)
    assert float(volume.values[0, 0, 0, 1]) == 0.25


def test_stacked_layers_and_channels_are_resized_each_for_itself() -> None:
    values = torch.rand(2, 3, 2, 2)
    found = made(values, size=(4, 4)).resize()
    alone = made(values[:, 1], size=(4, 4)).resize()
    assert torch.equal(found.values[:, 1], alone.values)


def test_half_precision_is_resized_in_float32() -> None:
    found = made(torch.tensor([[[0.0, 1.0]]], dtype=torch.bfloat16)).resize((1, 4))
    assert found.values.dtype == torch.float32
    assert found.values.flatten().tolist() == [0.0, 0.25, 0.75, 1.0]


@pytest.mark.parametrize("size", [0, (2, 2, 2, 2), (2, -1), ()])
def test_a_size_that_does_not_fit_is_refused_with_the_shape_of_the_map(size: Any) -> None:
    with pytest.raises(InputError, match=r"the map is float32\[1, 2, 2\]"):
        made(torch.rand(1, 2, 2)).resize(size)


# ---------------------------------------------------------------------- overlays


def test_an_overlay_is_the_share_of_the_colour_map_and_of_the_picture() -> None:
    picture = np.full((2, 2, 3), 100, dtype="uint8")
    found = made(torch.tensor([[[0.0, 1.0], [2.0, 4.0]]])).overlay(picture, alpha=0.25)
    assert isinstance(found, Image.Image)
    pixels = np.asarray(found)
    for place, unit in (((0, 0), 0.0), ((0, 1), 0.25), ((1, 0), 0.5), ((1, 1), 1.0)):
        wanted = [0.75 * 100 + 0.25 * part for part in drawn_by_hand("viridis", unit)]
        assert abs(pixels[place] - wanted).max() <= 1


def test_a_signed_map_is_symmetric_about_white() -> None:
    black = np.zeros((1, 3, 3), dtype="uint8")
    found = made(torch.tensor([[[-1.0, 0.0, 4.0]]])).overlay(black, alpha=1.0)
    pixels = np.asarray(found)[0]
    for pixel, unit in zip(pixels, (0.375, 0.5, 1.0), strict=True):
        assert abs(pixel.astype(int) - drawn_by_hand("RdBu_r", unit)).max() <= 1
    assert pixels[1].min() > 240


def test_maps_are_compared_on_the_same_limits() -> None:
    black = np.zeros((1, 2, 3), dtype="uint8")
    faint = made(torch.tensor([[[0.0, 1.0]]])).overlay(black, alpha=1.0, limits=(0, 4))
    assert abs(np.asarray(faint)[0, 1].astype(int) - drawn_by_hand("viridis", 0.25)).max() <= 1


def test_every_kind_of_picture_gives_the_same_overlay() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype="uint8")
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    map_ = made(torch.rand(1, 3, 4), size=(6, 8))
    wanted = np.asarray(map_.overlay(pixels))
    mean, std = [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]
    light = tensor.double() / 255
    normalised = (light - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    for other in (Image.fromarray(pixels), tensor, tensor[None], light, pixels / 255.0):
        assert np.array_equal(np.asarray(map_.overlay(other)), wanted)
    assert np.array_equal(np.asarray(map_.overlay(normalised, mean=mean, std=std)), wanted)


@pytest.mark.parametrize(
    ("image", "said"),
    [
        ("cat.png", "is a str; expected a PIL image"),
        (np.zeros((5, 4, 7), dtype="uint8"), "expected one picture"),
        (torch.rand(2, 3, 4, 4), "expected one picture"),
        (np.zeros((0, 4, 3), dtype="uint8"), "expected one picture"),
        (np.zeros((4, 4), dtype="int64"), "expected uint8, or floats"),
        (torch.full((3, 4, 4), -2.0), "Give mean= and std="),
        (torch.full((3, 4, 4), math.nan), "48 values that are not finite"),
        (np.zeros((4, 8, 3), dtype="uint8"), "would be stretched"),
    ],
)
def test_a_picture_that_is_none_is_refused_with_what_was_found(image: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        made(torch.rand(1, 4, 4)).overlay(image)


def test_what_an_overlay_cannot_show_is_refused_with_the_way_out() -> None:
    picture = np.zeros((4, 4, 3), dtype="uint8")
    with pytest.raises(InputError, match=r"found\[0\].overlay"):
        made(torch.rand(2, 4, 4)).overlay(picture)
    with pytest.raises(InputError, match="to_figure"):
        made(torch.rand(1, 4)).overlay(picture)
    stacked = made(torch.rand(1, 2, 4, 4), layer="a, b", size=(4, 4))
    with pytest.raises(InputError, match="2 layers are stacked"):
        stacked.overlay(picture)
    alone = made(stacked.values[:, 1], size=(4, 4))
    assert np.array_equal(stacked.overlay(picture, layer=1), alone.overlay(picture))
    with pytest.raises(InputError, match="alpha is 2"):
        made(torch.rand(1, 4, 4)).overlay(picture, alpha=2)


def test_channels_are_summed_before_they_are_drawn() -> None:
    picture = np.zeros((2, 2, 3), dtype="uint8")
    values = torch.rand(1, 3, 2, 2)
    found = made(values, layer="", size=(2, 2)).overlay(picture)
    assert np.array_equal(found, made(values.sum(1).double()).overlay(picture))


# ---------------------------------------------------------------------- maps that mean nothing

FAULTS = [
    (torch.zeros(1, 4, 4), "constant: every value is 0"),
    (torch.full((1, 4, 4), 2.5), "constant: every value is 2.5"),
    (torch.full((1, 4, 4), math.nan), "no finite value: 16 NaN"),
    (torch.ones(1, 1, 1), "one pixel: 1"),
    (torch.zeros(1, 0, 4), "empty: no value"),
]


@pytest.mark.parametrize(("values", "said"), FAULTS)
def test_a_map_without_meaning_is_said_and_not_drawn(values: Any, said: str) -> None:
    map_ = made(values, size=(8, 8))
    assert map_.faults == [said]
    assert said in str(map_)
    figure = map_.to_figure()
    assert not figure.axes[0].images
    words = " ".join(text.get_text() for text in figure.axes[0].texts).replace("\n", " ")
    assert said in words
    drawn = np.asarray(map_.overlay(np.full((240, 240, 3), 90, dtype="uint8")))
    assert (drawn[120:] == 90).all()  # No colour lies over it.
    assert (drawn[:120] < 60).any()  # Words stand on it.


def test_a_map_with_some_nan_is_drawn_and_they_are_magenta_and_counted() -> None:
    values = torch.rand(1, 4, 4)
    values[0, 1, 2] = math.nan
    map_ = made(values)
    assert map_.faults == [""]
    assert "1 NaN" in str(map_)
    figure = map_.to_figure()
    assert "1 NaN (magenta)" in head_of(figure.axes[0])
    pixels = np.asarray(figure.axes[0].images[0].get_array())
    assert pixels[1, 2].tolist() == [217, 0, 217, 255]
    laid = np.asarray(map_.overlay(np.zeros((4, 4, 3), dtype="uint8"), alpha=1.0))
    assert laid[1, 2].tolist() == [217, 0, 217]
    assert abs(laid[0, 0].astype(int) - pixels[0, 0, :3]).max() <= 1


# ---------------------------------------------------------------------- figures


def head_of(axes: Any) -> str:
    """The title above axes, and the grey lines below it."""
    return "\n".join([axes.get_title(loc="left"), *(text.get_text() for text in axes.texts)])


def test_a_figure_shows_the_native_pixels_and_the_range() -> None:
    values = torch.tensor([[[0.0, 1.0], [2.0, 4.0]]])
    figure = made(values, size=(8, 8)).to_figure()
    pixels = np.asarray(figure.axes[0].images[0].get_array())
    assert pixels.shape == (2, 2, 4)
    assert is_near(pixels[0, 1], drawn_by_hand("viridis", 0.25))
    assert "2x2, range 0 to 4" in head_of(figure.axes[0])


def test_a_figure_with_a_picture_shows_it_the_map_and_both() -> None:
    picture = np.full((8, 8, 3), 200, dtype="uint8")
    map_ = made(torch.rand(1, 2, 2), size=(8, 8))
    figure = map_.to_figure(picture)
    shown = [np.asarray(axes.images[0].get_array()) for axes in figure.axes[:3]]
    assert np.array_equal(shown[0], picture)
    assert shown[1].shape == (2, 2, 4)
    assert np.array_equal(shown[2], np.asarray(map_.overlay(picture)))


def test_rows_share_a_scale_unless_each_is_asked_for() -> None:
    values = torch.tensor([[[0.0, 1.0]], [[0.0, 4.0]]])
    shared = made(values).to_figure()
    faint = np.asarray(shared.axes[0].images[0].get_array())[0, 1, :3]
    assert is_near(faint, drawn_by_hand("viridis", 0.25))
    each = made(values).to_figure(scale="each")
    full = np.asarray(each.axes[0].images[0].get_array())[0, 1, :3]
    assert is_near(full, drawn_by_hand("viridis", 1.0))
    assert "range 0 to 1" in head_of(each.axes[0])
    assert "range 0 to 4" in head_of(each.axes[1])
    with pytest.raises(InputError, match="scale is 'log'"):
        made(values).to_figure(scale="log")


def test_more_rows_than_fit_are_counted() -> None:
    figure = made(torch.rand(20, 2, 2)).to_figure()
    assert len([axes for axes in figure.axes if axes.images]) == 8
    assert "8 of 20 rows" in figure.get_supxlabel()
    with pytest.raises(InputError, match="no row"):
        made(torch.rand(0, 2, 2)).to_figure()


def test_lines_are_bars_and_volumes_the_plane_with_the_largest_magnitude() -> None:
    line = made(torch.tensor([[1.0, -2.0, 3.0]])).to_figure()
    assert heights(line) == [1.0, -2.0, 3.0]
    values = torch.rand(1, 5, 3, 3)
    values[0, 2, 1, 1] = -9
    volume = made(values).to_figure()
    assert "plane 2 of 5" in head_of(volume.axes[0])
    assert volume.axes[0].images[0].get_array().shape == (3, 3, 4)


def test_stacked_layers_stand_side_by_side() -> None:
    figure = made(torch.rand(1, 2, 3, 3), layer="a, b", size=(6, 6)).to_figure()
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.images]
    assert [title.split("\n")[0][-1] for title in titles] == ["a", "b"]


def test_pictures_must_be_as_many_as_rows() -> None:
    with pytest.raises(InputError, match="There are 3 pictures for a map of 2 rows"):
        made(torch.rand(2, 4, 4)).to_figure([np.zeros((4, 4, 3), dtype="uint8")] * 3)
    figure = made(torch.rand(2, 4, 4)).to_figure(torch.rand(2, 3, 4, 4))
    assert len([axes for axes in figure.axes if axes.images]) == 6


# ---------------------------------------------------------------------- files


def test_an_array_file_holds_the_raw_values(tmp_path: Path) -> None:
    map_ = made(torch.randn(2, 3, 4))
    assert np.array_equal(np.load(map_.save(tmp_path / "map.npy")), map_.values.numpy())
    half = made(torch.randn(1, 3).to(torch.bfloat16))
    assert half.numpy().dtype == np.float32
    assert np.array_equal(half.numpy(), half.values.float().numpy())


def test_a_saved_map_opens_as_it_was_and_says_that_it_cannot_be_checked(tmp_path: Path) -> None:
    map_ = made(
        torch.randn(2, 3),
        notes=("BatchNorm is training",),
        gap=torch.rand(2),
        names=("cat", "</script>"),
        tokens=(("a", "b", "c"), ("d", "e", "f")),
        size=(3,),
    )
    found = Map.open(map_.save(tmp_path / "map.safetensors"))
    for field in dataclasses.fields(Map):
        ours, theirs = getattr(map_, field.name), getattr(found, field.name)
        same = torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else ours == theirs
        assert same, field.name
    assert str(found) == str(map_)
    with pytest.raises(InputError, match="does not know its model"):
        found.check()


def test_a_target_that_is_no_class_is_saved_as_none(tmp_path: Path) -> None:
    map_ = made(torch.randn(2, 3), target=None, target_text="mean")
    assert Map.open(map_.save(tmp_path / "map.safetensors")).target is None


def test_a_picture_file_is_the_figure(tmp_path: Path) -> None:
    with Image.open(made(torch.rand(1, 4, 4)).save(tmp_path / "map.png")) as image:
        assert image.width > 300


def test_files_that_are_no_maps_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    map_ = made(torch.rand(1, 4, 4))
    with pytest.raises(InputError, match=r"expected one of \.png, \.npy, \.safetensors"):
        map_.save(tmp_path / "map.pt")
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        map_.save(tmp_path / "folder.npy")
    with pytest.raises(InputError, match="There is no file"):
        Map.open(tmp_path / "none.safetensors")
    (tmp_path / "text.safetensors").write_text("nothing")
    with pytest.raises(InputError, match="is not a safetensors file"):
        Map.open(tmp_path / "text.safetensors")
    save_file({"values": torch.rand(2)}, tmp_path / "weights.safetensors")
    with pytest.raises(InputError, match="holds no map of torchtap"):
        Map.open(tmp_path / "weights.safetensors")
    assert sorted(one.name for one in tmp_path.iterdir() if one.name.startswith(".")) == []


def test_a_map_without_its_model_is_pickled() -> None:
    map_ = made(torch.rand(1, 4, 4)).detached()
    assert torch.equal(pickle.loads(pickle.dumps(map_)).values, map_.values)


# ---------------------------------------------------------------------- text


def test_the_table_has_the_numbers_of_each_row() -> None:
    map_ = made(torch.tensor([[[-1.0, 0.0], [0.5, 2.0]]]), gap=torch.tensor([0.25]))
    *_, heads, row = str(map_).splitlines()
    assert heads == "row  target  score  sum  min  max  zeros  NaN/Inf   gap"
    assert row.split() == ["0", "3", "0", "1.5", "-1", "2", "25.0%", "0", "0.25"]


def test_names_of_classes_stand_in_titles_and_are_escaped_in_html() -> None:
    names = ["a", "b", "c", "<img onerror=alert(1)>"]
    map_ = made(torch.rand(1, 4, 4)).with_names(names)
    assert "class 3 <img onerror=alert(1)>" in str(map_)
    html = map_._repr_html_()
    assert "<img onerror" not in html
    assert "&lt;img onerror=alert(1)&gt;" in html
    assert html.count('src="data:image/png;base64,') == 1
    with pytest.raises(InputError, match="There are 2 names, and a target is class 3"):
        map_.with_names(names[:2])
    with pytest.raises(InputError, match="no class to name"):
        made(torch.rand(1, 4), target=None, target_text="mean").with_names(names)


def test_tokens_are_coloured_on_a_terminal_and_not_with_no_color(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    map_ = made(torch.tensor([[1.0, -2.0, 0.0]])).with_tokens(["The", "cat", "\x1b[31mred"])
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    painted = str(map_)
    # -2 of 2 is the first colour of RdBu_r, 0 its white middle.
    assert "48;2;5;48;97mcat" in painted
    assert "48;2;247;247;247m\\x1b[31mred" in painted  # The user's escape is text.
    monkeypatch.setenv("NO_COLOR", "1")
    plain = str(map_)
    assert "\x1b" not in plain
    assert "The(1) cat(-2) \\x1b[31mred(0)" in plain
    assert "\x1b" not in repr(map_)


def test_magnitudes_of_tokens_are_viridis() -> None:
    html = made(torch.tensor([[0.0, 2.0]])).with_tokens(["a", "b"])._repr_html_()
    for unit in (0.0, 1.0):
        assert f"background:rgb{drawn_by_hand('viridis', unit)}" in html


def test_tokens_in_html_are_text() -> None:
    html = made(torch.tensor([[1.0, 2.0]])).with_tokens(["</script>", "<b>"])._repr_html_()
    assert "</script>" not in html
    assert "&lt;/script&gt;" in html


def test_the_weights_of_embedded_tokens_are_summed_over_the_embedding() -> None:
    values = torch.randn(1, 3, 8)
    map_ = made(values, size=()).with_tokens(["a", "b", "c"])
    assert heights(map_.to_figure()) == pytest.approx(values[0].double().sum(1).tolist())


def test_long_texts_are_broken_and_nan_is_magenta() -> None:
    values = torch.ones(1, 200)
    values[0, 7] = math.nan
    map_ = made(values).with_tokens([f"token{n}" for n in range(200)])
    assert max(map(len, map_.to_text(color=False).splitlines())) <= 100
    assert "rgb(217, 0, 217)" in map_._repr_html_()


def test_tokens_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="There are 2 tokens, and the map is float32"):
        made(torch.rand(1, 3)).with_tokens(["a", "b"])
    with pytest.raises(InputError, match="tokens of 1 rows"):
        made(torch.rand(2, 3)).with_tokens(["a", "b", "c"])


# ---------------------------------------------------------------------- extras


def test_without_matplotlib_maps_print_and_pictures_name_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    map_ = made(torch.rand(1, 4, 4))
    with monkeypatch.context() as missing:
        for name in ("matplotlib", "matplotlib.figure"):
            missing.setitem(sys.modules, name, None)
        assert "<img" not in map_._repr_html_()
        assert "gradcam at conv" in map_._repr_html_()
        with pytest.raises(MissingExtraError, match=r"torchtap\[plot\]"):
            map_.to_figure()
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"torchtap\[image\]"):
        map_.overlay(np.zeros((4, 4, 3), dtype="uint8"))


# ---------------------------------------------------------------------- windows over all channels


def test_pictures_with_their_channels_last_are_drawn_as_pictures() -> None:
    class Last(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(6 * 8 * 3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.head(x.flatten(1))
            return scores

    found = tt.attribute(Last(), torch.rand(1, 6, 8, 3), target=0, method="gradient")
    picture = np.zeros((6, 8, 3), dtype="uint8")
    wanted = made(found.values.sum(-1), layer="").overlay(picture)
    assert np.array_equal(found.overlay(picture), wanted)
    with pytest.raises(InputError, match="with its channels last"):
        found.resize((12, 16))
    check = found.check(parts=["deletion"], steps=48, of="score", num_controls=1)
    assert check.deletion is not None
    assert len(check.deletion.shares) == 49  # A pixel for each point.


def test_a_window_over_all_channels_counts_once() -> None:
    drops = torch.rand(1, 1, 4, 4)
    whole = made(drops.expand(1, 3, 4, 4), layer="", size=(4, 4))
    picture = np.zeros((4, 4, 3), dtype="uint8")
    assert np.array_equal(whole.overlay(picture), made(drops[:, 0]).overlay(picture))
    tokens = made(torch.tensor([[2.0, -1.0]])[..., None].expand(1, 2, 128), size=())
    assert "a(2) b(-1)" in tokens.with_tokens(["a", "b"]).to_text(color=False)

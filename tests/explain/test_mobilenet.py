"""A trained model in which every BatchNorm is overwritten by the ReLU6 behind it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mobilenet import MobileNetV2, mobilenet_v2
from torch import Tensor, nn

import torchtap as tt
from torchtap.cli.batch import image_tensor
from torchtap.cli.demo import _cat

CAT = 285
LAYER = "features.18.1"  # The last BatchNorm.


class Guided(torch.autograd.Function):
    """ReLU6 by Springenberg et al. 2015, section 3.4: only positive gradients go back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward((x > 0) & (x < 6))
        return x.clamp(0, 6)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.clamp(min=0) * ctx.saved_tensors[0]


class GuidedReLU6(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Guided.apply(x)


@pytest.fixture(scope="module")
def model() -> MobileNetV2:
    return mobilenet_v2()


@pytest.fixture(scope="module")
def cat() -> Tensor:
    return image_tensor(_cat(), size=224, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def test_the_cat_is_seen_as_its_weights_were_trained(model: MobileNetV2, cat: Tensor) -> None:
    with torch.no_grad():
        found = model(cat).softmax(1)[0].max(0)
    assert found.indices == CAT
    assert found.values > 0.6


@pytest.mark.parametrize("layer", [LAYER, "features.14.conv.0.1"])
def test_grad_cam_is_that_of_a_twin_that_overwrites_nothing(
    model: MobileNetV2, cat: Tensor, layer: str
) -> None:
    twin, kept = mobilenet_v2(nn.ReLU6), list[Tensor]()
    twin.get_submodule(layer).register_forward_hook(lambda _, __, output: kept.append(output))
    score = twin(cat)[0, CAT]
    (gradient,) = torch.autograd.grad(score, kept)
    weights = gradient.mean((2, 3), keepdim=True)  # Selvaraju et al. 2017, equations 1 and 2.
    right = (weights * kept[0].detach()).sum(1).clamp(min=0)
    found = tt.cam(model, cat, layer=layer)
    assert found.target == (CAT,)
    torch.testing.assert_close(found.values, right, rtol=1e-4, atol=1e-6)


def test_guided_backpropagation_goes_by_what_rectifies_and_not_by_its_class(
    model: MobileNetV2, cat: Tensor
) -> None:
    leaf = cat.clone().requires_grad_()
    (right,) = torch.autograd.grad(mobilenet_v2(GuidedReLU6)(leaf)[0, CAT], leaf)
    found = tt.attribute(model, cat, target=CAT, method="guided_backprop")
    torch.testing.assert_close(found.values, right, rtol=1e-4, atol=1e-6)

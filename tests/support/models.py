"""Models for tests: whole networks, written out here and small on demand, and tiny ones.

Nothing of torchvision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from random_numbers import fixed_seed, normal
from torch import Tensor, nn

from torchtap.testing import Net
from torchtap.testing.networks import (
    MLP as MLP,
    Attention as Attention,
    BasicBlock as BasicBlock,
    Block as Block,
    ResNet as ResNet,
    TinyGPT as TinyGPT,
    resnet18 as resnet18,
    resnet34 as resnet34,
)

_M = TypeVar("_M", bound=nn.Module)


def seeded(make: Callable[[], _M], seed: int = 0) -> _M:
    """Make equal weights every time, without a trace in the global random numbers."""
    with fixed_seed(seed):
        return make()


# --- tiny ones --------------------------------------------------------------------------------


def mlp() -> nn.Sequential:
    """Linear, tanh, linear: three numbers to two."""
    return seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))


def relu_mlp() -> nn.Sequential:
    """Linear, in-place ReLU, linear: three numbers to two."""
    return seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)))


def rows(seed: int = 0, num: int = 5) -> Tensor:
    """Inputs of these two: float32[num, 3]."""
    return normal(num, 3, seed=seed)


def scales(factor: float) -> Net:
    """Multiplies by a number."""
    return Net(lambda m, x: x * factor)


def squares() -> Net:
    """Multiplies its argument by itself."""
    return Net(lambda m, x: x * x)


def two_scales() -> nn.Sequential:
    """Doubles, and then triples."""
    return nn.Sequential(scales(2.0), scales(3.0))


def ones() -> Tensor:
    """An input of these that requires grad."""
    return torch.ones(2, requires_grad=True)


def chain(x: Tensor, length: int = 6) -> Tensor:
    """Sine and exponential in turns, and a sum: each saves a tensor for backward."""
    for _ in range(length):
        x = x.sin().exp()
    return x.sum()


def gradient_of_chain(x: Tensor, length: int = 6) -> Tensor:
    """Gradients of ``chain``, by plain autograd."""
    return torch.autograd.grad(chain(x, length), x)[0]


def grads(model: nn.Module) -> dict[str, Tensor | None]:
    """The gradient of each parameter, by its name."""
    return {name: param.grad for name, param in model.named_parameters()}


def scaled_step(
    model: nn.Module,
    x: Tensor,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    between: Callable[[], object] = lambda: None,
) -> None:
    """A step of mixed precision; ``between`` is called before the optimizer's."""
    scaler.scale(model(x).square().sum()).backward()
    between()
    scaler.step(optimizer)
    scaler.update()


# --- DenseNet ---------------------------------------------------------------------------------


class DenseLayer(nn.Module):
    """Takes the list of all features so far, and makes ``growth`` more."""

    def __init__(self, num_in: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(num_in)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(num_in, 2 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(2 * growth)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(2 * growth, growth, 3, padding=1, bias=False)

    def forward(self, features: list[Tensor]) -> Tensor:
        x = self.conv1(self.relu1(self.norm1(torch.cat(features, 1))))
        return self.conv2(self.relu2(self.norm2(x)))


class DenseBlock(nn.ModuleDict):
    """Each layer sees the features of all before it."""

    def __init__(self, num_in: int, growth: int, num_layers: int) -> None:
        super().__init__(
            {
                f"denselayer{i + 1}": DenseLayer(num_in + i * growth, growth)
                for i in range(num_layers)
            }
        )

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.values():
            features.append(layer(features))
        return torch.cat(features, 1)


class DenseNet(nn.Module):
    """Two dense blocks; the last ReLU overwrites what the root's ``features`` returned."""

    def __init__(self, *, num_classes: int = 10, growth: int = 4, num_layers: int = 3) -> None:
        super().__init__()
        width = 2 * growth
        wide = width + num_layers * growth
        half = wide // 2
        self.features = nn.Sequential()
        self.features.add_module("conv0", nn.Conv2d(3, width, 3, padding=1, bias=False))
        self.features.add_module("denseblock1", DenseBlock(width, growth, num_layers))
        self.features.add_module("norm1", nn.BatchNorm2d(wide))
        self.features.add_module("relu1", nn.ReLU(inplace=True))
        self.features.add_module("conv1", nn.Conv2d(wide, half, 1, bias=False))
        self.features.add_module("pool1", nn.AvgPool2d(2))
        self.features.add_module("denseblock2", DenseBlock(half, growth, num_layers))
        self.features.add_module("norm2", nn.BatchNorm2d(half + num_layers * growth))
        self.classifier = nn.Linear(half + num_layers * growth, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.relu(self.features(x), inplace=True)
        x = torch.flatten(nn.functional.adaptive_avg_pool2d(x, (1, 1)), 1)
        return self.classifier(x)


# --- MobileNet --------------------------------------------------------------------------------


class ConvBNReLU(nn.Sequential):
    """Convolution, BatchNorm, in-place ReLU6."""

    def __init__(
        self, num_in: int, num_out: int, kernel: int = 3, stride: int = 1, groups: int = 1
    ) -> None:
        padding = (kernel - 1) // 2
        super().__init__(
            nn.Conv2d(num_in, num_out, kernel, stride, padding, groups=groups, bias=False),
            nn.BatchNorm2d(num_out),
            nn.ReLU6(inplace=True),
        )


class InvertedResidual(nn.Module):
    """Widen, depthwise, narrow; residual where the shapes allow."""

    def __init__(self, num_in: int, num_out: int, *, stride: int, expand: int) -> None:
        super().__init__()
        wide = num_in * expand
        parts: list[nn.Module] = [ConvBNReLU(num_in, wide, 1)] if expand != 1 else []
        parts.append(ConvBNReLU(wide, wide, stride=stride, groups=wide))
        parts += [nn.Conv2d(wide, num_out, 1, bias=False), nn.BatchNorm2d(num_out)]
        self.conv = nn.Sequential(*parts)
        self.has_residual = stride == 1 and num_in == num_out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.has_residual else self.conv(x)


class MobileNetV2(nn.Module):
    """MobileNetV2; ``width`` multiplies the channels, ``stages`` cuts the depth."""

    SETTINGS = (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
        (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    )  # fmt: skip
    """Expansion, channels, repeats, first stride of each stage."""

    def __init__(self, *, num_classes: int = 1000, width: float = 1.0, stages: int = 7) -> None:
        super().__init__()
        num_in = max(1, int(32 * width))
        parts: list[nn.Module] = [ConvBNReLU(3, num_in, stride=2)]
        for expand, channels, repeats, first_stride in self.SETTINGS[:stages]:
            num_out = max(1, int(channels * width))
            for position in range(repeats):
                stride = first_stride if position == 0 else 1
                parts.append(InvertedResidual(num_in, num_out, stride=stride, expand=expand))
                num_in = num_out
        last = max(1, int(1280 * width))
        parts.append(ConvBNReLU(num_in, last, 1))
        self.features = nn.Sequential(*parts)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(last, num_classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean((2, 3)))


# --- Llama ---------------------------------------------------------------------------------


def llama() -> Any:
    """A Llama of two layers for evaluation: tokens int64[B, T] to logits float32[B, T, 20]."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=20,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    return seeded(lambda: transformers.LlamaForCausalLM(config)).eval()


# --- small ones -------------------------------------------------------------------------------


class DigitsCNN(nn.Module):
    """For pictures of 8 by 8 (the digits of scikit-learn): float32[B, 1, 8, 8] to 10 logits."""

    def __init__(self, *, width: int = 8, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.relu2 = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(2)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(2 * width * 16, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu1(self.conv1(x))
        x = self.pool(self.relu2(self.conv2(x)))
        return self.fc(self.flatten(x))


class LSTMClassifier(nn.Module):
    """Embedding, LSTM, a linear layer on the last hidden state; takes tokens int64[B, T]."""

    def __init__(
        self, *, vocab: int = 20, d: int = 8, hidden: int = 12, num_classes: int = 3
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, d)
        self.lstm = nn.LSTM(d, hidden, num_layers=2, batch_first=True)
        self.dropout = nn.Dropout(0.1)
        self.fc = nn.Linear(hidden, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        _, (hidden, _) = self.lstm(self.embedding(tokens))
        return self.fc(self.dropout(hidden[-1]))


# --- small versions with inputs ---------------------------------------------------------------


def small() -> dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]]:
    """Cheap versions of all, with weights and inputs that are the same every time."""

    def image(side: int) -> Tensor:
        return normal(4, 3, side, side, seed=1)

    def tokens(vocab: int, length: int) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        return torch.randint(vocab, (2, length), generator=generator)

    return {
        "resnet18": (lambda: seeded(lambda: resnet18(width=4, num_classes=5)), lambda: image(64)),
        "resnet34": (lambda: seeded(lambda: resnet34(width=4, num_classes=5)), lambda: image(64)),
        "densenet": (lambda: seeded(DenseNet), lambda: image(8)),
        "mobilenet": (
            lambda: seeded(lambda: MobileNetV2(width=0.125, num_classes=5, stages=4)),
            lambda: image(64),
        ),
        "gpt": (
            lambda: seeded(lambda: TinyGPT(vocab=11, d=16, layers=2, heads=2, context=8)),
            lambda: tokens(11, 8),
        ),
        "digits": (lambda: seeded(DigitsCNN), lambda: image(8)[:, :1]),
        "lstm": (lambda: seeded(LSTMClassifier), lambda: tokens(20, 6)),
    }

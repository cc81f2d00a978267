"""Draw the graphs of the docs: ``.venv/bin/python docs/images/make_graphs.py``.

The models have the sizes that their configurations give, with random weights and small inputs: a
graph shows shapes, and needs no trained model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel, ResNetConfig, ResNetForImageClassification

import torchtap as tt

HERE = Path(__file__).parent


class Tagger(nn.Module):
    """An LSTM over words."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 16)
        self.lstm = nn.LSTM(16, 32, batch_first=True)
        self.out = nn.Linear(32, 10)

    def forward(self, words: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embed(words))
        return self.out(hidden)  # type: ignore[no-any-return]


class DenseLayer(nn.Module):
    """Adds channels to those that it is given."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(channels), nn.Conv2d(channels, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(F.relu(self.norm(x)))], 1)


class DenseNet(nn.Sequential):
    """Its parts, one after the other."""


class Generator(nn.Sequential):
    """Makes samples of noise."""


class Critic(nn.Sequential):
    """Tells samples from real ones."""


def densenet() -> nn.Module:
    """Three dense blocks with transitions between them."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1)]
    channels = 16
    for _ in range(3):
        layers.append(nn.Sequential(*(DenseLayer(channels + 8 * n) for n in range(4))))
        half = (channels + 32) // 2
        transition = (nn.BatchNorm2d(channels + 32), nn.Conv2d(channels + 32, half, 1))
        layers.append(nn.Sequential(*transition, nn.AvgPool2d(2)))
        channels = half
    return DenseNet(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def gan_step() -> tt.Graph:
    """Both losses of one step."""
    generator = Generator(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
    critic = Critic(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    real, fake = torch.randn(5, 8), generator(torch.randn(5, 4))
    ones, zeros = torch.ones(5, 1), torch.zeros(5, 1)
    loss = F.binary_cross_entropy_with_logits
    critic_loss = loss(critic(real), ones) + loss(critic(fake.detach()), zeros)
    losses = {"generator loss": loss(critic(fake), ones), "critic loss": critic_loss}
    return tt.graph(losses, model={"generator": generator, "critic": critic})


def double_backward() -> tt.Graph:
    """A penalty on a gradient."""
    x = torch.rand(3, requires_grad=True)
    y = (x.sin() * x).sum()
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    return tt.graph({"y": y, "penalty": (gradient**2).sum()})


def main() -> None:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=1000, bos_token_id=0, eos_token_id=0)
    words = torch.randint(1000, (1, 16))
    image = torch.randn(1, 3, 64, 64)
    lite0 = EfficientNet.from_name("efficientnet-lite0").eval()
    lstm = Tagger()
    sums: dict[str, Any] = {"autograd": True, "loss": torch.sum}
    graphs = {
        "graph_gpt2": tt.graph(GPT2LMHeadModel(config), words, use_cache=False),
        "graph_resnet50": tt.graph(ResNetForImageClassification(ResNetConfig()), image),
        "graph_efficientnet_lite0": tt.graph(lite0, image),
        "graph_densenet": tt.graph(densenet(), image),
        "graph_lstm": tt.graph(lstm, words % 100, **sums),
        "graph_gan_step": gan_step(),
        "graph_double_backward": double_backward(),
    }
    for name, graph in graphs.items():
        graph.save(HERE / f"{name}.svg")


if __name__ == "__main__":
    main()

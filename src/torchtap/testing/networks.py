"""Whole networks, written out and small on demand: for examples, and for tests of hooks.

``torchtap record torchtap.testing:resnet18 --shape 1,3,64,64`` runs where torchtap is installed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def _conv3x3(num_in: int, num_out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(num_in, num_out, 3, stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    """Two convolutions and a residual; one in-place ReLU is called twice."""

    def __init__(self, num_in: int, num_out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = _conv3x3(num_in, num_out, stride)
        self.bn1 = nn.BatchNorm2d(num_out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = _conv3x3(num_out, num_out)
        self.bn2 = nn.BatchNorm2d(num_out)
        self.downsample: nn.Module | None = None
        if stride != 1 or num_in != num_out:
            self.downsample = nn.Sequential(
                nn.Conv2d(num_in, num_out, 1, stride, bias=False), nn.BatchNorm2d(num_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """ResNet of basic blocks, with the attribute names of torchvision."""

    def __init__(self, layers: Sequence[int], *, num_classes: int = 1000, width: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        self.layer1 = self._layer(width, width, layers[0], stride=1)
        self.layer2 = self._layer(width, width * 2, layers[1], stride=2)
        self.layer3 = self._layer(width * 2, width * 4, layers[2], stride=2)
        self.layer4 = self._layer(width * 4, width * 8, layers[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(width * 8, num_classes)

    @staticmethod
    def _layer(num_in: int, num_out: int, num_blocks: int, *, stride: int) -> nn.Sequential:
        rest = (BasicBlock(num_out, num_out) for _ in range(num_blocks - 1))
        return nn.Sequential(BasicBlock(num_in, num_out, stride), *rest)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        x = torch.flatten(self.avgpool(x), 1)
        return self.fc(x)


def resnet18(*, num_classes: int = 1000, width: int = 64) -> ResNet:
    """ResNet-18 with the attribute names of torchvision: 20 convolutions.

    Args:
        num_classes: of the output, ``float32[B, num_classes]``, for ``float32[B, 3, H, W]``.
        width: channels of the first layer.

    Example:
        >>> import torch
        >>> from torchtap.testing import resnet18
        >>> resnet18(num_classes=5, width=4)(torch.ones(2, 3, 64, 64)).shape
        torch.Size([2, 5])
    """
    return ResNet((2, 2, 2, 2), num_classes=num_classes, width=width)


def resnet34(*, num_classes: int = 1000, width: int = 64) -> ResNet:
    """ResNet-34 with the attribute names of torchvision: 36 convolutions; see :func:`resnet18`."""
    return ResNet((3, 4, 6, 3), num_classes=num_classes, width=width)


class Attention(nn.Module):
    """Causal self-attention; the three projections come out of one matrix as views."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, d = x.shape
        split = (batch, length, self.heads, d // self.heads)
        q, k, v = (part.view(split).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(out.transpose(1, 2).reshape(batch, length, d))


class MLP(nn.Module):
    """Widen by four, GELU, narrow; holds its two matrices itself."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(4 * d, d) * d**-0.5)
        self.down = nn.Parameter(torch.randn(d, 4 * d) * (4 * d) ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        wide = nn.functional.gelu(nn.functional.linear(x, self.up))
        return nn.functional.linear(wide, self.down)


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(d)
        self.attn = Attention(d, heads)
        self.ln2 = nn.LayerNorm(d)
        self.mlp = MLP(d)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class TinyGPT(nn.Module):
    """A decoder of plain modules: with four layers 33 that run, and the ``ModuleList``.

    Takes tokens ``int64[B, T]``, returns logits ``float32[B, T, vocab]``.

    Example:
        >>> import torch
        >>> from torchtap.testing import TinyGPT
        >>> TinyGPT()(torch.zeros(2, 16, dtype=torch.int64)).shape
        torch.Size([2, 16, 65])
    """

    def __init__(
        self, *, vocab: int = 65, d: int = 64, layers: int = 4, heads: int = 4, context: int = 64
    ) -> None:
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Embedding(context, d)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tok(tokens) + self.pos(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))

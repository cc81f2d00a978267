"""A small network for pictures, and how two libraries disagree about its parts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from differing_models.situation import Situation, Two
from torch import Tensor, nn

COMPUTED, WEIGHTS = ("computation",), ("weights",)


class Pictures(nn.Module):
    """Down, up and a class: float32[B, 3, 15, 15] to [B, 5]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.act = nn.LeakyReLU(0.01)
        self.pool = nn.MaxPool2d(2)
        self.deep = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.mix = nn.Conv2d(8, 8, 1)
        self.shrink = nn.AdaptiveAvgPool2d(4)
        self.rows = nn.GRU(32, 12, batch_first=True)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Rows of the shrunk picture are read in turn."""
        x = self.pool(self.act(self.bn(self.stem(x))))
        x = self.shrink(self.mix(self.up(self.deep(x))))
        return self.head(self.rows(x.transpose(1, 2).flatten(2))[0][:, -1])


def made() -> Pictures:
    """A network whose norm has seen pictures."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Pictures()
        for step in range(5):
            model(_pictures(step))
    return model.eval()


def _pictures(seed: int = 9) -> Tensor:
    return torch.randn(4, 3, 15, 15, generator=torch.Generator().manual_seed(seed)) + 0.5


def changed(change: Callable[[Pictures], object]) -> Two:
    """A network, and the same after a change."""
    b = made()
    with torch.no_grad():
        change(b)
    return Two(made(), b.eval(), (_pictures(),))


def _set(name: str, make: Callable[[], nn.Module]) -> Two:
    """Another module with the same weights in the place of one."""

    def change(b: Pictures) -> None:
        module = make()
        module.load_state_dict(b.get_submodule(name).state_dict())
        setattr(b, name, module)

    return changed(change)


def _momentum(b: Pictures) -> None:
    b.bn.momentum = 0.9
    b.train()(_pictures(5))


def _no_bias(b: Pictures) -> None:
    b.mix.bias = None


def _gates(b: Pictures) -> None:
    """Reset and update gates in the order of another library."""
    for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
        param = b.rows.get_parameter(name)
        reset, update, new = param.chunk(3)
        param.copy_(torch.cat([update, reset, new]))


def _norm_in_train(b: Pictures) -> None:
    b.eval = lambda: b  # type: ignore[method-assign]
    b.bn.train()


def _channels_last(b: Pictures) -> None:
    for param in b.parameters():
        if param.ndim == 4:
            param.data = param.contiguous(memory_format=torch.channels_last)


def _flipped(b: Pictures) -> None:
    b.stem.weight.copy_(b.stem.weight.flip(-1))


def _blue_first(b: Pictures) -> None:
    b.stem.weight.copy_(b.stem.weight.flip(1))


SITUATIONS = [
    Situation("pictures_itself", lambda: changed(lambda b: None)),
    Situation(
        "channels_last",
        lambda: changed(_channels_last),
    ),
    Situation(
        "nearest", lambda: _set("up", lambda: nn.Upsample(scale_factor=2)), ("up",), COMPUTED
    ),
    Situation(
        "align_corners",
        lambda: _set(
            "up", lambda: nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        ),
        ("up",),
        COMPUTED,
    ),
    Situation("norm_momentum", lambda: changed(_momentum), ("bn",), ("buffers",)),
    Situation(
        "norm_epsilon", lambda: _set("bn", lambda: nn.BatchNorm2d(8, eps=1e-3)), ("bn",), COMPUTED
    ),
    Situation("norm_in_train_mode", lambda: changed(_norm_in_train), ("bn",), ("mode",)),
    Situation(
        "ceil_mode",
        lambda: _set("pool", lambda: nn.MaxPool2d(2, ceil_mode=True)),
        ("pool",),
        COMPUTED,
    ),
    Situation("average_pool", lambda: _set("pool", lambda: nn.AvgPool2d(2)), ("pool",), COMPUTED),
    Situation(
        "padding_mode",
        lambda: _set(
            "deep", lambda: nn.Conv2d(8, 8, 3, padding=1, groups=2, padding_mode="reflect")
        ),
        ("deep",),
        COMPUTED,
    ),
    Situation(
        "bias_missing", lambda: changed(_no_bias), ("mix",), ("weights", "missing", "computation")
    ),
    Situation("slope", lambda: _set("act", lambda: nn.LeakyReLU(0.2)), ("act",), COMPUTED),
    Situation("gates_of_another_library", lambda: changed(_gates), ("rows",), WEIGHTS),
    Situation("kernel_flipped", lambda: changed(_flipped), ("stem",), WEIGHTS),
    Situation("blue_first", lambda: changed(_blue_first), ("stem",), WEIGHTS),
]

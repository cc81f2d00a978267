"""A decoder with rotary places, RMS norm and SwiGLU learns to add numbers."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from trainings.design import Design as D, adam, broken, healthy, pick, sgd
from trainings.faults import frozen, times, without

BASE = 7


def _rotated(x: Tensor) -> Tensor:
    """Pairs of features turned by their place: float32[B, H, T, D]."""
    length, half = x.shape[-2], x.shape[-1] // 2
    angle = torch.arange(length)[:, None] * 100 ** (-torch.arange(half) / half)
    a, b = x.float().chunk(2, -1)
    turned = torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)
    return turned.to(x.dtype)


class Layer(nn.Module):
    """Causal attention, and a gated feed-forward part."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.act = nn.SiLU()
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Add both."""
        q, k, v = (
            p.unflatten(-1, (4, -1)).transpose(1, 2) for p in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        seen = nn.functional.scaled_dot_product_attention(
            _rotated(q), _rotated(k), v, is_causal=True
        )
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(self.act(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    """Tied weights at both ends: int64[B, T] to logits [B, T, BASE + 2]."""

    def __init__(self, width: int = 32, recompute: bool = False, cut: bool = False) -> None:
        super().__init__()
        self.recompute, self.cut = recompute, cut
        self.embed = nn.Embedding(BASE + 2, width)
        nn.init.normal_(self.embed.weight, std=0.3)
        self.layers = nn.ModuleList(Layer(width) for _ in range(2))
        self.norm = nn.RMSNorm(width, eps=1e-5)

    def forward(self, words: Tensor) -> Tensor:
        """Layers, recomputed in backward if asked."""
        x = self.embed(words)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
            x = x.detach() if self.cut and layer is self.layers[0] else x
        return nn.functional.linear(self.norm(x), self.embed.weight)


def _sums(step: int, num: int = 32) -> Tensor:
    a, b = pick(step, BASE, num), pick(step + 1, BASE, num)
    sign = torch.full_like(a, BASE)
    return torch.stack([a, sign, b, sign + 1, (a + b) % BASE, a, (a - b) % BASE, b], 1)


def _next(model: nn.Module, step: int) -> Tensor:
    words = _sums(step)
    logits = model(words[:, :-1])[:, 3:].float()
    return nn.functional.cross_entropy(logits.flatten(0, 1), words[:, 4:].flatten())


def _same(model: nn.Module, step: int) -> Tensor:
    """The aim is the very word that is read."""
    words = _sums(step)
    logits = model(words[:, 1:])[:, 3:]
    return nn.functional.cross_entropy(logits.flatten(0, 1), words[:, 4:].flatten())


def _upwards(model: nn.Module, step: int) -> Tensor:
    return -_next(model, step)


def _unmatched(model: nn.Module, step: int) -> Tensor:
    """The aims of another batch."""
    logits = model(_sums(step)[:, :-1])[:, 3:]
    return nn.functional.cross_entropy(logits.flatten(0, 1), pick(step + 9, BASE, 32 * 4))


def _half() -> nn.Module:
    return Decoder().half()


TEXT = D("decoder", Decoder, _next, adam(5e-3, decay=0.1), clip=1.0)
CHECKPOINTED = D(
    "decoder_checkpointed",
    lambda: Decoder(recompute=True),
    _next,
    adam(5e-3),
    seed=1,
    micro_batches=2,
    steps=40,
)
AUTOCAST = D(
    "decoder_autocast",
    Decoder,
    _next,
    adam(5e-3),
    seed=2,
    clip=1.0,
    logs=False,
    context=lambda: torch.autocast("cpu", torch.bfloat16),
)
HALF = D("decoder_half", _half, _next, sgd(0.3), seed=3, scale=64.0, clip=1.0, steps=40)

CASES = [
    healthy(TEXT),
    healthy(CHECKPOINTED),
    healthy(AUTOCAST),
    healthy(HALF),
    broken(TEXT, "reads_its_aim", replace(TEXT, loss=_same), "too_good"),
    broken(AUTOCAST, "upwards", replace(AUTOCAST, loss=_upwards), "loss_rises", "exploding"),
    broken(TEXT, "aims_of_another", replace(TEXT, loss=_unmatched), "labels"),
    broken(
        TEXT,
        "cut_between",
        replace(TEXT, model=lambda: Decoder(cut=True)),
        "detached",
        places=("layers.0", "layers.0.norm1", "layers.0.qkv"),
    ),
    broken(HALF, "unscaled", replace(HALF, scale=1e-4, clip=None), "underflow", "steps_too_small"),
    broken(
        AUTOCAST,
        "in_bfloat16",
        replace(AUTOCAST, model=lambda: Decoder().bfloat16(), optimizer=sgd(1e-3)),
        "stale_low_precision",
        "steps_too_small",
    ),
    broken(TEXT, "decays", replace(TEXT, optimizer=adam(5e-3, decay=25.0)), "decay_high"),
    broken(
        CHECKPOINTED,
        "no_zero",
        replace(CHECKPOINTED, zeroes_grad=False, optimizer=sgd(0.1)),
        "no_zero_grad",
    ),
    broken(
        TEXT,
        "qkv_frozen",
        replace(TEXT, prepare=frozen("layers.0.qkv", "layers.1.qkv")),
        "frozen",
        places=("layers.0.qkv", "layers.1.qkv"),
    ),
    broken(
        TEXT,
        "embedding_large",
        replace(TEXT, prepare=times("embed", 60.0)),
        "large_init",
        places=("embed", "."),
    ),
    broken(
        AUTOCAST,
        "layer_not_given",
        replace(AUTOCAST, trained=without("layers.0")),
        "not_in_optimizer",
        places=("layers.0", "layers.0.norm1", "layers.0.qkv"),
    ),
]

"""A small decoder with rotary places and shared keys."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

functional = nn.functional
HEADS, SHARED = 4, 2


@dataclass(frozen=True, slots=True)
class Options:
    """Each is a mistake when a port chooses otherwise."""

    theta: float = 100.0
    causal: bool = True
    scale: float | None = None
    head_order: tuple[int, ...] = (0, 1, 2, 3)
    interleaves: bool = True
    norm: Callable[..., nn.Module] = nn.RMSNorm
    eps: float = 1e-5
    norms_before: bool = True
    act: Callable[[], nn.Module] = nn.SiLU
    gate_first: bool = True
    embed_scale: float = 1.0
    first_place: int = 0
    drop: float = 0.0
    temperature: float = 1.0
    eager: bool = False
    halves: bool = True
    extra: bool = False
    last_norm: bool = True


class Rope(nn.Module):
    """Turns pairs of features by their place: float32[B, H, T, D]."""

    def __init__(self, width: int, theta: float, halves: bool) -> None:
        super().__init__()
        self.halves = halves
        speeds = theta ** (-torch.arange(width // 2) / (width // 2))
        self.register_buffer("speeds", speeds, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Pairs are halves of the features, or neighbours."""
        angle = torch.arange(x.shape[-2])[:, None] * self.speeds
        a, b = x.chunk(2, -1) if self.halves else (x[..., ::2], x[..., 1::2])
        turned = a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()
        return torch.cat(turned, -1) if self.halves else torch.stack(turned, -1).flatten(-2)


class Attention(nn.Module):
    """Four heads, two sets of keys and values."""

    def __init__(self, width: int, options: Options) -> None:
        super().__init__()
        self.options = options
        each = width // HEADS
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, SHARED * each, bias=False)
        self.v = nn.Linear(width, SHARED * each, bias=False)
        self.rope = Rope(each, options.theta, options.halves)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Heads of their own order are put together again."""
        o, length = self.options, x.shape[1]
        q, k, v = (
            part.unflatten(-1, (many, -1)).transpose(1, 2)
            for part, many in ((self.q(x), HEADS), (self.k(x), SHARED), (self.v(x), SHARED))
        )
        q, k = self.rope(q), self.rope(k)
        if o.interleaves:
            k, v = (part.repeat_interleave(HEADS // SHARED, 1) for part in (k, v))
        else:
            k, v = (part.repeat(1, HEADS // SHARED, 1, 1) for part in (k, v))
        if o.eager:
            hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
            scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
            seen = scores.softmax(-1) @ v
        else:
            seen = functional.scaled_dot_product_attention(
                q, k, v, is_causal=o.causal, scale=o.scale
            )
        return self.out(seen[:, list(o.head_order)].transpose(1, 2).flatten(2))


class Feed(nn.Module):
    """A gated feed-forward part."""

    def __init__(self, width: int, options: Options) -> None:
        super().__init__()
        self.gate_first = options.gate_first
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.act = options.act()
        self.drop = nn.Dropout(options.drop)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """One of both is squashed."""
        gate, up = self.gate(x), self.up(x)
        gate, up = (gate, up) if self.gate_first else (up, gate)
        return self.down(self.drop(self.act(gate) * up))


class Layer(nn.Module):
    """Both parts, with norms before or after."""

    def __init__(self, width: int, options: Options) -> None:
        super().__init__()
        self.before = options.norms_before
        self.norm1, self.norm2 = (options.norm(width, eps=options.eps) for _ in range(2))
        self.attn, self.feed = Attention(width, options), Feed(width, options)
        self.extra = nn.Tanh() if options.extra else None

    def forward(self, x: Tensor) -> Tensor:
        """Add both."""
        if not self.before:
            x = self.norm1(x + self.attn(x))
            return self.norm2(x + self.feed(x))
        x = x + self.attn(self.norm1(x))
        x = x if self.extra is None else self.extra(x)
        return x + self.feed(self.norm2(x))


class Decoder(nn.Module):
    """Words to scores: int64[B, T] to float32[B, T, 19]."""

    def __init__(self, options: Options, width: int = 32) -> None:
        super().__init__()
        self.options = options
        self.embed = nn.Embedding(19, width)
        self.places = nn.Embedding(16, width)
        self.layers = nn.ModuleList(Layer(width, options) for _ in range(3))
        self.norm = options.norm(width, eps=options.eps)
        self.head = nn.Linear(width, 19, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        """Scores, by a temperature."""
        o = self.options
        at = torch.arange(words.shape[1]) + o.first_place
        x = self.embed(words) * o.embed_scale + self.places(at)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x) if o.last_norm else x
        return self.head(x) / o.temperature


class Renamed(nn.Module):
    """Other names around the parts of a decoder, and q, k and v in one matrix."""

    def __init__(self, decoder: Decoder, order: tuple[int, int, int] = (0, 1, 2)) -> None:
        super().__init__()
        self.wte, self.wpe = copy.deepcopy(decoder.embed), copy.deepcopy(decoder.places)
        self.h = nn.ModuleList(copy.deepcopy(layer) for layer in decoder.layers)
        for layer in self.h:
            layer.attn = Packed(layer.attn, order)  # type: ignore[arg-type]
        self.ln_f, self.lm_head = copy.deepcopy(decoder.norm), copy.deepcopy(decoder.head)

    def forward(self, words: Tensor) -> Tensor:
        """Attention as the decoder computes it."""
        x = self.wte(words) + self.wpe(torch.arange(words.shape[1]))
        for layer in self.h:
            x = layer(x)
        return self.lm_head(self.ln_f(x))


class Packed(nn.Module):
    """Attention by one matrix, equal to that by three."""

    def __init__(self, attention: Attention, order: tuple[int, int, int]) -> None:
        super().__init__()
        parts = [attention.q.weight, attention.k.weight, attention.v.weight]
        self.sizes, self.order = [len(part) for part in parts], order
        self.qkv = nn.Linear(32, sum(self.sizes), bias=False)
        self.qkv.weight.data.copy_(torch.cat(parts))
        self.rope, self.proj = attention.rope, attention.out

    def forward(self, x: Tensor) -> Tensor:
        """Cut apart and go on."""
        parts = self.qkv(x).split(self.sizes, -1)
        parts = tuple(parts[i] for i in self.order)
        q, k, v = (part.unflatten(-1, (-1, 8)).transpose(1, 2) for part in parts)
        q, k = self.rope(q), self.rope(k)
        k, v = (part.repeat_interleave(HEADS // SHARED, 1) for part in (k, v))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(seen.transpose(1, 2).flatten(2))

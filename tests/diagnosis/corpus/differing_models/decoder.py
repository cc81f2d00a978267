"""A small decoder with rotary places and shared keys, and ways in which a port of it goes wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from differing_models.situation import Situation, Two
from torch import Tensor, nn

functional = nn.functional
COMPUTED = ("computation",)
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
        """As the decoder does."""
        x = self.wte(words) + self.wpe(torch.arange(words.shape[1]))
        for layer in self.h:
            x = layer(x)
        return self.lm_head(self.ln_f(x))


class Packed(nn.Module):
    """The same attention by one matrix."""

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


def _words() -> tuple[Tensor]:
    return (torch.randint(19, (3, 9), generator=torch.Generator().manual_seed(3)),)


def made(options: Options | None = None) -> Decoder:
    """A decoder; weights do not depend on the options."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Decoder(Options())
    chosen = Decoder(options or Options())
    chosen.load_state_dict(model.state_dict(), strict=False)
    return chosen


def port(**chosen: Any) -> Two:
    """A decoder, and its port that chooses something else."""
    return Two(made().eval(), made(replace(Options(), **chosen)).eval(), _words())


def changed(change: Callable[[Decoder], object]) -> Two:
    """A decoder, and the same after a change."""
    b = made().eval()
    with torch.no_grad():
        change(b)
    return Two(made().eval(), b, _words())


def _swapped(b: Decoder) -> None:
    b.layers[0], b.layers[1] = b.layers[1], b.layers[0]


def _quantised(b: Decoder) -> None:
    weight = b.get_parameter("layers.1.feed.up.weight")
    scale = weight.abs().amax() / 7
    weight.copy_((weight / scale).round() * scale)


def _speeds_in_half(b: Decoder) -> None:
    for layer in b.layers:
        rope = layer.get_submodule("attn.rope")
        rope.speeds = rope.get_buffer("speeds").bfloat16()


def _dropping() -> Two:
    return Two(made(Options(drop=0.1)).train(), made(Options(drop=0.4)).train(), _words())


def _bf16(change: Callable[[Decoder], object] = lambda b: None, **chosen: Any) -> Two:
    b = made(replace(Options(), **chosen)).eval()
    with torch.no_grad():
        change(b)
    return Two(made().eval(), b.bfloat16(), _words())


def _bf16_quantised() -> Two:
    def change(b: Decoder) -> None:
        weight = b.get_parameter("layers.2.feed.down.weight")
        weight.mul_(1.5)

    return _bf16(change)


def _renamed(order: tuple[int, int, int] = (0, 1, 2)) -> Two:
    a = made().eval()
    return Two(a, Renamed(a, order).eval(), _words())


def _renamed_and_eps() -> Two:
    two = _renamed()
    for layer in two.b.get_submodule("h").children():
        norm = layer.get_submodule("norm2")
        assert isinstance(norm, nn.RMSNorm)
        norm.eps = 0.1
    return two


ATTENTION = ("layers.0.attn", "layers.0.attn.out")
ROPE = ("layers.0.attn.rope",)
WEIGHTS = ("weights",)

SITUATIONS = [
    Situation("itself", lambda: port()),
    Situation("eager_attention", lambda: port(eager=True)),
    Situation("renamed_and_packed", _renamed),
    Situation("bfloat16", lambda: _bf16()),
    Situation("rope_theta", lambda: port(theta=10_000.0), ROPE, ("buffers",)),
    Situation("rope_of_neighbours", lambda: port(halves=False), ROPE, COMPUTED),
    Situation("rope_in_bfloat16", lambda: changed(_speeds_in_half), ROPE, ("buffers", "dtype")),
    Situation("not_causal", lambda: port(causal=False), ATTENTION, COMPUTED),
    Situation("attention_scale", lambda: port(scale=1 / 8), ATTENTION, COMPUTED),
    Situation("head_order", lambda: port(head_order=(0, 2, 1, 3)), ATTENTION, COMPUTED),
    Situation("shared_keys_repeat", lambda: port(interleaves=False), ATTENTION, COMPUTED),
    Situation("layer_norm", lambda: port(norm=nn.LayerNorm), ("layers.0.norm1",), COMPUTED),
    Situation("epsilon", lambda: port(eps=0.03), ("layers.0.norm1",), COMPUTED),
    Situation(
        "norms_after",
        lambda: port(norms_before=False),
        ("layers.0", "layers.0.norm1", "layers.0.attn"),
        ("computation", "order"),
    ),
    Situation(
        "gate_and_up",
        lambda: port(gate_first=False),
        ("layers.0.feed", "layers.0.feed.act"),
        ("computation", "order"),
    ),
    Situation("activation", lambda: port(act=nn.GELU), ("layers.0.feed.act",), COMPUTED),
    Situation(
        "embedding_scale",
        lambda: port(embed_scale=32**0.5),
        (".", "layers.0", "layers.0.norm1"),
        COMPUTED,
    ),
    Situation(
        "places_from_one", lambda: port(first_place=1), (".", "places"), ("computation", "input")
    ),
    Situation("temperature", lambda: port(temperature=0.7), (".",), COMPUTED),
    Situation(
        "extra_module",
        lambda: port(extra=True),
        ("layers.0", "layers.0.extra", "layers.0.norm2"),
        ("computation", "missing"),
    ),
    Situation(
        "last_norm_missing",
        lambda: port(last_norm=False),
        (".", "norm", "head"),
        ("computation", "missing"),
    ),
    Situation("dropout", _dropping, ("layers.0.feed.drop",), ("random", "computation")),
    Situation(
        "layers_swapped",
        lambda: changed(_swapped),
        ("layers.0.attn.q", "layers.0.norm1"),
        ("weights", "order"),
    ),
    Situation("quantised", lambda: changed(_quantised), ("layers.1.feed.up",), WEIGHTS),
    Situation(
        "norm_weight_lost",
        lambda: changed(lambda b: b.get_parameter("layers.2.norm1.weight").mul_(1.02)),
        ("layers.2.norm1",),
        WEIGHTS,
    ),
    Situation(
        "rows_of_head_swapped",
        lambda: changed(lambda b: b.head.weight.copy_(b.head.weight.roll(1, 0))),
        ("head",),
        WEIGHTS,
    ),
    Situation("bfloat16_and_weight", _bf16_quantised, ("layers.2.feed.down",), WEIGHTS),
    Situation("bfloat16_and_not_causal", lambda: _bf16(causal=False), ATTENTION, COMPUTED),
    Situation(
        "packed_in_another_order",
        lambda: _renamed((0, 2, 1)),
        (*ATTENTION, "layers.0.attn.rope"),
        COMPUTED,
    ),
    Situation("renamed_and_epsilon", _renamed_and_eps, ("layers.0.norm2",), COMPUTED),
]

"""Ways in which a port of the decoder goes wrong, or does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from differing_models.decoder import Decoder, Options, Renamed
from differing_models.situation import Situation, Two
from torch import nn

COMPUTED = ("computation",)


def _words() -> tuple[torch.Tensor]:
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

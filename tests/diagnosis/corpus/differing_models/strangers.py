"""Models of transformers, tiny and untrained: two configurations, or one weight that differs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from differing_models.situation import Situation, Two
from torch import Tensor, nn

COMPUTED, WEIGHTS, BUFFERS = ("computation",), ("weights",), ("buffers",)
TINY = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def _words(length: int = 7) -> Tensor:
    return torch.randint(2, 40, (2, length), generator=torch.Generator().manual_seed(1))


def _made(kind: str, config: dict[str, Any], attention: str = "eager") -> nn.Module:
    import transformers

    name, head = kind.split("/")
    settings = getattr(transformers, f"{name}Config")(**config)
    settings._attn_implementation = attention
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return getattr(transformers, f"{name}{head}")(settings).eval()


def _two(
    kind: str,
    config: dict[str, Any],
    *,
    attention: str = "eager",
    change: Callable[[nn.Module], object] = lambda model: None,
    inputs: Callable[[], Tensor] = _words,
    **other: Any,
) -> Two:
    """One set of weights in two configurations; the second is changed."""
    a = _made(kind, config)
    b = _made(kind, {**config, **other}, attention)
    b.load_state_dict(copy.deepcopy(a.state_dict()), strict=False)
    with torch.no_grad():
        change(b)
    return Two(a, b, (inputs(),))


LLAMA = {**TINY, "intermediate_size": 48, "num_key_value_heads": 2}
BERT = {**TINY, "intermediate_size": 48, "max_position_embeddings": 16}
GPT2 = {"vocab_size": 40, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16}
T5 = {"vocab_size": 40, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 16,
    "patch_size": 4,
}


def _picture() -> Tensor:
    return torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(2))


def _times(path: str, factor: float) -> Callable[[nn.Module], object]:
    return lambda model: model.get_parameter(path).mul_(factor)


def _slower(model: nn.Module) -> None:
    model.get_buffer("model.rotary_emb.inv_freq").mul_(0.5)


SITUATIONS = [
    Situation("llama_sdpa", lambda: _two("Llama/ForCausalLM", LLAMA, attention="sdpa")),
    Situation("bert_sdpa", lambda: _two("Bert/Model", BERT, attention="sdpa")),
    Situation("gpt2_sdpa", lambda: _two("GPT2/LMHeadModel", GPT2, attention="sdpa")),
    Situation(
        "llama_epsilon",
        lambda: _two("Llama/ForCausalLM", LLAMA, rms_norm_eps=0.02),
        ("model.layers.0.input_layernorm",),
        COMPUTED,
    ),
    Situation(
        "llama_activation",
        lambda: _two("Llama/ForCausalLM", LLAMA, hidden_act="gelu"),
        ("model.layers.0.mlp.act_fn", "model.layers.0.mlp"),
        COMPUTED,
    ),
    Situation(
        "llama_rope",
        lambda: _two("Llama/ForCausalLM", LLAMA, change=_slower),
        ("model.rotary_emb",),
        BUFFERS,
    ),
    Situation(
        "llama_weight",
        lambda: _two(
            "Llama/ForCausalLM",
            LLAMA,
            change=_times("model.layers.1.self_attn.k_proj.weight", 1.01),
        ),
        ("model.layers.1.self_attn.k_proj",),
        WEIGHTS,
    ),
    Situation(
        "bert_epsilon",
        lambda: _two("Bert/Model", BERT, layer_norm_eps=1e-3),
        ("embeddings.LayerNorm",),
        COMPUTED,
    ),
    Situation(
        "bert_activation",
        lambda: _two("Bert/Model", BERT, hidden_act="relu"),
        ("encoder.layer.0.intermediate.intermediate_act_fn", "encoder.layer.0.intermediate"),
        COMPUTED,
    ),
    Situation(
        "bert_head_untied",
        lambda: _two(
            "Bert/ForMaskedLM",
            {**BERT, "tie_word_embeddings": False},
            change=_times("cls.predictions.decoder.weight", 1.1),
        ),
        ("cls.predictions.decoder",),
        WEIGHTS,
    ),
    Situation(
        "gpt2_activation",
        lambda: _two("GPT2/LMHeadModel", GPT2, activation_function="gelu"),
        ("transformer.h.0.mlp.act", "transformer.h.0.mlp"),
        COMPUTED,
    ),
    Situation(
        "gpt2_unscaled",
        lambda: _two("GPT2/LMHeadModel", GPT2, scale_attn_weights=False),
        ("transformer.h.0.attn", "transformer.h.0.attn.c_proj"),
        COMPUTED,
    ),
    Situation(
        "gpt2_scaled_by_layer",
        lambda: _two("GPT2/LMHeadModel", GPT2, scale_attn_by_inverse_layer_idx=True),
        ("transformer.h.1.attn", "transformer.h.1.attn.c_proj"),
        COMPUTED,
    ),
    Situation(
        "t5_buckets",
        lambda: _two(
            "T5/EncoderModel", T5, relative_attention_max_distance=16, inputs=lambda: _words(30)
        ),
        (
            "encoder.block.0.layer.0.SelfAttention",
            "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
        ),
        ("computation", "input"),
    ),
    Situation(
        "vit_activation",
        lambda: _two("ViT/Model", VIT, hidden_act="gelu_new", inputs=_picture),
        (
            "encoder.layer.0.intermediate.intermediate_act_fn",
            "encoder.layer.0.intermediate",
            "layers.0.mlp.activation_fn",
            "layers.0.mlp",
        ),
        COMPUTED,
    ),
]

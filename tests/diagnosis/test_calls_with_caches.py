"""Calls of models of transformers run again to the bit, with caches among their arguments."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import torchtap as tt
from torchtap.diagnosis.calls.replay import replayed

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
}
T5 = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
BART = {
    "vocab_size": 64,
    "d_model": 32,
    **{f"{part}_layers": 1 for part in ("encoder", "decoder")},
    **{f"{part}_attention_heads": 4 for part in ("encoder", "decoder")},
    **{f"{part}_ffn_dim": 48 for part in ("encoder", "decoder")},
}
MAMBA = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
IDS = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 10]])
Given = tuple[nn.Module, dict[str, Any]]


def _made(name: str, settings: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    kind = name.partition("For")[0]
    return getattr(transformers, name)(getattr(transformers, f"{kind}Config")(**settings))


def _decoder(name: str, cache: str = "", **settings: Any) -> Given:
    model = _made(name, {**SIZES, **settings})
    past: Any
    if cache == "StaticCache":
        past = transformers.StaticCache(config=model.config, max_cache_len=16)
    else:
        past = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        model(IDS[:, :3], past_key_values=past, use_cache=True)
    return model, {"input_ids": IDS[:, 3:], "past_key_values": past, "use_cache": True}


def _seq2seq(name: str, settings: dict[str, Any]) -> Given:
    model = _made(name, settings)
    with torch.no_grad():
        out = model(input_ids=IDS, decoder_input_ids=IDS[:, :2], use_cache=True)
    given = {"decoder_input_ids": IDS[:, 2:3], "past_key_values": out.past_key_values}
    return model, {**given, "encoder_outputs": (out.encoder_last_hidden_state,)}


def _state_space() -> Given:
    model = _made("MambaForCausalLM", MAMBA)
    with torch.no_grad():
        out = model(IDS, use_cache=True)
    return model, {"input_ids": IDS[:, :1], "cache_params": out.cache_params, "use_cache": True}


MODELS = {
    "dynamic": lambda: _decoder("LlamaForCausalLM"),
    "static": lambda: _decoder("LlamaForCausalLM", "StaticCache"),
    "sliding": lambda: _decoder("MistralForCausalLM", sliding_window=2),
    "experts": lambda: _decoder("MixtralForCausalLM", num_local_experts=4),
    "shared key": lambda: _decoder("FalconForCausalLM"),
    "bart": lambda: _seq2seq("BartForConditionalGeneration", BART),
    "t5": lambda: _seq2seq("T5ForConditionalGeneration", T5),
    "state space": _state_space,
}


def _one_of_each_class(model: nn.Module) -> Iterator[str]:
    seen = set()
    for path, module in model.named_modules():
        if type(module) not in seen and not isinstance(module, nn.ModuleList | nn.ModuleDict):
            seen.add(type(module))
            yield path or "."


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_call_with_a_cache_runs_again_from_memory_and_from_a_folder(
    name: str, tmp_path: Path
) -> None:
    model, given = MODELS[name]()
    num_with_gradients = 0
    for path in _one_of_each_class(model):
        try:
            call = tt.record_call(model, path, **copy.deepcopy(given))
        except tt.CaptureError as error:
            assert "was not called" in str(error)
            continue
        assert replayed(call), (path, replayed(call).differing)
        folder = call.save(tmp_path / path)
        assert replayed(folder), (path, replayed(folder).differing)
        num_with_gradients += bool(call.result.parameters)
    # In that cache the model writes over what its own backward needs.
    assert bool(num_with_gradients) == (name != "state space")


class _Twice(nn.Module):
    """Reads the first half of a text into a cache, and then the second half with it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Any:
        cache = transformers.DynamicCache()
        self.model(ids[:, :2], past_key_values=cache, use_cache=True)
        return self.model(ids[:, 2:], past_key_values=cache, use_cache=True).logits


def test_gradients_that_come_through_a_cache_are_repeated() -> None:
    model = _Twice(_made("LlamaForCausalLM", SIZES))
    path = "model.model.layers.0.self_attn"
    first, second = (tt.record_call(model, path, IDS, call=number) for number in (0, 1))
    # What the first call put into the cache gets its gradient by the second call alone.
    assert any("past_key_values" in name for name in first.result.arriving)
    assert any("past_key_values" in name for name in second.result.inputs)
    for call in (first, second):
        again = replayed(call)
        assert again, again.differing
        assert call.result.parameters


def test_a_handle_that_a_model_keeps_of_a_hook_is_no_hindrance(tmp_path: Path) -> None:
    model = _made("LlamaForCausalLM", SIZES)
    model.enable_input_require_grads()  # Its hook is made in a function.
    call = tt.record_call(model, ".", IDS)
    assert replayed(call)
    folder = call.save(tmp_path / "case")
    found = replayed(folder)
    assert found, found.differing
    assert any("is not written" in note for note in found.call.notes)
    assert any("removes nothing" in note for note in found.call.notes)

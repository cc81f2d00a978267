"""Tiny models of many families of ``transformers``, with random weights and inputs.

Each is built from its configuration, offline. The dims are so small that a step takes milliseconds.
"""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from module_db import seeded_by
from torch import Tensor, nn

os.environ["HF_HUB_OFFLINE"] = "1"

SMALL = {
    "vocab_size": 33,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SMALL, "num_key_value_heads": 1, "head_dim": 8}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


@dataclass(frozen=True, slots=True)
class Family:
    """One tiny model.

    Args:
        name: as in ``transformers``, and a word on the variant.
        model: name of the class.
        config: name of the class of its configuration, and what is set there.
        inputs: makes the keyword arguments, the same every time it is seeded.
    """

    name: str
    model: str
    config: Callable[[Any], Any]
    inputs: Callable[[], dict[str, Any]]
    prepare: Callable[[Any], object] = lambda model: None

    def build(self) -> nn.Module:
        """The model in training mode, always with the same weights."""
        import transformers

        def make() -> nn.Module:
            model = getattr(transformers, self.model)(self.config(transformers)).train()
            self.prepare(model)
            return model

        with quiet():
            return seeded_by(self.name, make)

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of one call, always the same."""
        return seeded_by(self.name, self.inputs)

    def __str__(self) -> str:
        return self.name


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Inside, nothing of ``transformers`` is printed, and PyTorch's warnings are skipped."""
    import transformers

    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def loss_of(output: Any) -> Tensor:
    """Its own loss and all that it returns besides, so that every part gets a gradient."""
    from torchtap.testing import default_loss

    loss = default_loss(output.to_tuple())
    assert loss is not None
    return loss


# --- inputs -----------------------------------------------------------------------------------


def _ids(*shape: int) -> Tensor:
    return torch.randint(3, 32, shape or (2, 7))


def _text() -> dict[str, Any]:
    ids = _ids()
    return {"input_ids": ids, "labels": ids}


def _tokens(*shape: int) -> dict[str, Any]:
    return {"input_ids": _ids(*shape)}


def _pairs() -> dict[str, Any]:
    return {"input_ids": _ids(), "labels": _ids(2, 5)}


def _image(size: int = 16) -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, size, size)}


def _wave(length: int = 400) -> dict[str, Any]:
    return {"input_values": torch.randn(2, length)}


def _config(name: str, **given: Any) -> Callable[[Any], Any]:
    return lambda transformers: getattr(transformers, name)(**given)


def _family(
    name: str, model: str, inputs: Callable[[], dict[str, Any]] = _text, /, **given: Any
) -> Family:
    """One whose configuration is called as its model: ``MambaForCausalLM``, ``MambaConfig``."""
    stem = model
    for kind in (
        "ForConditionalGeneration",
        "ForCausalLM",
        "LMHeadModel",
        "ForMaskedLM",
        "ForImageClassification",
        "ForPreTraining",
        "ForCTC",
        "ForSpeechToText",
        "ForPrediction",
        "ForObjectDetection",
        "ForTextToSpeech",
        "ModelWithLMHead",
        "Model",
    ):
        stem = stem.removesuffix(kind)
    return Family(name, model, _config(f"{stem}Config", **given), inputs)


# --- the families -----------------------------------------------------------------------------

WAVE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "conv_dim": (8, 8),
    "conv_stride": (4, 2),
    "conv_kernel": (8, 4),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "mask_time_prob": 0.3,
    "mask_time_length": 2,
    "vocab_size": 33,
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
T5 = {
    "vocab_size": 33,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 2,
    "decoder_start_token_id": 0,
    **SPECIAL,
}
BOTH_SIDES = {
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
}
"""Classes of an encoder and a decoder."""
MAMBA = {
    "vocab_size": 33,
    "hidden_size": 16,
    "state_size": 4,
    "num_hidden_layers": 2,
    "conv_kernel": 3,
    "time_step_rank": 2,
}
SERIES = {
    "prediction_length": 4,
    "context_length": 8,
    "lags_sequence": [1, 2],
    "d_model": 16,
    "num_time_features": 1,
    **BOTH_SIDES,
}
RESNET = {
    "embedding_size": 4,
    "hidden_sizes": [4, 8],
    "depths": [1, 1],
    "layer_type": "basic",
    "out_features": ["stage2"],
}
DETECTION = {
    "d_model": 16,
    **BOTH_SIDES,
    "num_labels": 3,
}


def _series() -> dict[str, Any]:
    return {
        "past_values": torch.randn(2, 10).abs(),
        "past_time_features": torch.randn(2, 10, 1),
        "past_observed_mask": torch.ones(2, 10),
        "future_values": torch.randn(2, 4).abs(),
        "future_time_features": torch.randn(2, 4, 1),
    }


def _checkpointed(reentrant: bool) -> Callable[[Any], object]:
    return lambda model: model.gradient_checkpointing_enable({"use_reentrant": reentrant})


GPT2 = {"vocab_size": 33, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2, **SPECIAL}

FAMILIES = [
    _family("mamba", "MambaForCausalLM", **MAMBA),
    _family(
        "mamba2",
        "Mamba2ForCausalLM",
        vocab_size=33,
        hidden_size=16,
        state_size=4,
        num_hidden_layers=2,
        num_heads=4,
        head_dim=8,
        n_groups=1,
        chunk_size=4,
    ),
    _family("falcon_mamba", "FalconMambaForCausalLM", **MAMBA),
    _family(
        "rwkv",
        "RwkvForCausalLM",
        vocab_size=33,
        hidden_size=16,
        attention_hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        context_length=32,
    ),
    _family(
        "jamba",
        "JambaForCausalLM",
        **SMALL,
        num_key_value_heads=1,
        num_experts=2,
        num_experts_per_tok=1,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        mamba_d_state=4,
        mamba_dt_rank=2,
        use_mamba_kernels=False,
    ),
    _family(
        "zamba2",
        "Zamba2ForCausalLM",
        **{**SMALL, "num_hidden_layers": 3},
        num_key_value_heads=2,
        mamba_d_state=4,
        mamba_ngroups=1,
        n_mamba_heads=4,
        mamba_headdim=8,
        num_mem_blocks=1,
        chunk_size=4,
        adapter_rank=4,
        layers_block_type=["mamba", "hybrid", "mamba"],
        use_mem_rope=True,
    ),
    _family(
        "bamba",
        "BambaForCausalLM",
        **SMALL,
        num_key_value_heads=1,
        mamba_n_heads=4,
        mamba_d_head=8,
        mamba_n_groups=1,
        mamba_d_state=4,
        mamba_chunk_size=4,
        attn_layer_indices=[1],
    ),
    _family(
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        **SMALL,
        num_key_value_heads=2,
        moe_intermediate_size=8,
        n_routed_experts=4,
        n_group=2,
        topk_group=1,
        num_experts_per_tok=2,
        kv_lora_rank=4,
        q_lora_rank=4,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=8,
        first_k_dense_replace=1,
    ),
    _family(
        "mixtral", "MixtralForCausalLM", **GROUPED, num_local_experts=3, output_router_logits=True
    ),
    _family(
        "gpt_oss",
        "GptOssForCausalLM",
        **GROUPED,
        num_local_experts=3,
        num_experts_per_tok=2,
        sliding_window=4,
    ),
    _family(
        "qwen3_next",
        "Qwen3NextForCausalLM",
        **GROUPED,
        linear_key_head_dim=4,
        linear_value_head_dim=4,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        num_experts=3,
        num_experts_per_tok=2,
        moe_intermediate_size=8,
        shared_expert_intermediate_size=8,
        layer_types=["linear_attention", "full_attention"],
    ),
    _family(
        "recurrent_gemma",
        "RecurrentGemmaForCausalLM",
        **{**SMALL, "num_hidden_layers": 3},
        lru_width=16,
        num_key_value_heads=1,
        attention_window_size=4,
    ),
    Family(
        "gemma3n",
        "Gemma3nForCausalLM",
        _config(
            "Gemma3nTextConfig",
            **{**GROUPED, "num_hidden_layers": 3},
            vocab_size_per_layer_input=33,
            hidden_size_per_layer_input=4,
            laurel_rank=4,
            num_kv_shared_layers=1,
            altup_num_inputs=2,
            sliding_window=4,
            activation_sparsity_pattern=[0.5, 0.0, 0.0],
            layer_types=["sliding_attention", "full_attention", "full_attention"],
        ),
        _text,
    ),
    _family(
        "lfm2",
        "Lfm2ForCausalLM",
        **SMALL,
        num_key_value_heads=1,
        layer_types=["conv", "full_attention"],
    ),
    _family(
        "bloom", "BloomForCausalLM", vocab_size=33, hidden_size=16, n_layer=2, n_head=2, **SPECIAL
    ),
    _family("olmo2", "Olmo2ForCausalLM", **SMALL, num_key_value_heads=1),
    _family("cohere2", "Cohere2ForCausalLM", **GROUPED, sliding_window=4),
    _family("phi3", "Phi3ForCausalLM", **SMALL, num_key_value_heads=2),
    Family(
        "gpt2 checkpointed",
        "GPT2LMHeadModel",
        _config("GPT2Config", **GPT2),
        _text,
        _checkpointed(False),
    ),
    Family(
        "gpt2 checkpointed reentrant",
        "GPT2LMHeadModel",
        _config("GPT2Config", **GPT2),
        _text,
        _checkpointed(True),
    ),
    _family("t5", "T5ForConditionalGeneration", _pairs, **T5),
    _family(
        "longt5",
        "LongT5ForConditionalGeneration",
        _pairs,
        **T5,
        local_radius=3,
        global_block_size=2,
        encoder_attention_type="transient-global",
    ),
    _family(
        "switch",
        "SwitchTransformersForConditionalGeneration",
        _pairs,
        **T5,
        num_experts=2,
        num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
        expert_capacity=4,
    ),
    _family(
        "bart",
        "BartForConditionalGeneration",
        _pairs,
        vocab_size=33,
        d_model=16,
        **BOTH_SIDES,
        max_position_embeddings=32,
        **SPECIAL,
        decoder_start_token_id=2,
        forced_eos_token_id=2,
    ),
    _family(
        "longformer",
        "LongformerForMaskedLM",
        functools.partial(_tokens, 2, 8),
        **SMALL,
        attention_window=4,
    ),
    _family(
        "bigbird",
        "BigBirdForMaskedLM",
        functools.partial(_tokens, 2, 24),
        **SMALL,
        block_size=2,
        num_random_blocks=1,
    ),
    _family(
        "reformer",
        "ReformerModelWithLMHead",
        functools.partial(_tokens, 2, 16),
        vocab_size=33,
        hidden_size=16,
        attention_head_size=8,
        num_attention_heads=2,
        feed_forward_size=16,
        attn_layers=["local", "lsh"],
        num_buckets=2,
        num_hashes=1,
        lsh_attn_chunk_length=4,
        local_attn_chunk_length=4,
        axial_pos_shape=(4, 4),
        axial_pos_embds_dim=(8, 8),
        max_position_embeddings=16,
        is_decoder=True,
        hash_seed=0,
        **SPECIAL,
    ),
    _family(
        "perceiver",
        "PerceiverForMaskedLM",
        functools.partial(_tokens, 2, 8),
        vocab_size=33,
        d_model=16,
        d_latents=16,
        num_latents=4,
        num_self_attends_per_block=1,
        num_self_attention_heads=2,
        num_cross_attention_heads=2,
        qk_channels=16,
        v_channels=16,
        max_position_embeddings=8,
    ),
    _family(
        "xlnet",
        "XLNetLMHeadModel",
        vocab_size=33,
        d_model=16,
        n_layer=2,
        n_head=2,
        d_inner=24,
        **SPECIAL,
    ),
    _family(
        "funnel",
        "FunnelForMaskedLM",
        vocab_size=33,
        block_sizes=[1, 1],
        num_decoder_layers=1,
        d_model=16,
        n_head=2,
        d_head=8,
        d_inner=24,
    ),
    _family(
        "deberta_v2",
        "DebertaV2ForMaskedLM",
        **SMALL,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=4,
    ),
    _family(
        "nystromformer",
        "NystromformerForMaskedLM",
        functools.partial(_tokens, 2, 8),
        **SMALL,
        num_landmarks=4,
        segment_means_seq_len=8,
        conv_kernel_size=3,
    ),
    _family(
        "fnet", "FNetForMaskedLM", **{k: v for k, v in SMALL.items() if k != "num_attention_heads"}
    ),
    _family("albert", "AlbertForMaskedLM", **SMALL, embedding_size=8),
    _family(
        "modernbert",
        "ModernBertForMaskedLM",
        **SMALL,
        local_attention=4,
        cls_token_id=1,
        sep_token_id=2,
    ),
    _family("roformer", "RoFormerForMaskedLM", **SMALL, embedding_size=8),
    _family(
        "squeezebert",
        "SqueezeBertForMaskedLM",
        **SMALL,
        embedding_size=16,
        q_groups=2,
        k_groups=2,
        v_groups=2,
        post_attention_groups=1,
        intermediate_groups=2,
        output_groups=2,
    ),
    _family(
        "mobilebert",
        "MobileBertForMaskedLM",
        **SMALL,
        embedding_size=8,
        intra_bottleneck_size=8,
        true_hidden_size=8,
        num_feedforward_networks=2,
    ),
    _family(
        "swin",
        "SwinForImageClassification",
        _image,
        image_size=16,
        patch_size=2,
        embed_dim=8,
        depths=[1, 2],
        num_heads=[1, 2],
        window_size=4,
        output_hidden_states=True,
    ),
    _family(
        "levit",
        "LevitForImageClassification",
        functools.partial(_image, 64),
        image_size=64,
        patch_size=16,
        hidden_sizes=[16, 16, 16],
        num_attention_heads=[1, 1, 1],
        depths=[1, 1, 1],
        key_dim=[8, 8, 8],
        attention_ratio=[1, 1, 1],
        mlp_ratio=[1, 1, 1],
    ),
    _family(
        "convnextv2",
        "ConvNextV2ForImageClassification",
        functools.partial(_image, 32),
        hidden_sizes=[8, 8],
        depths=[1, 1],
        num_stages=2,
        patch_size=4,
        drop_path_rate=0.2,
    ),
    _family(
        "poolformer",
        "PoolFormerForImageClassification",
        functools.partial(_image, 32),
        hidden_sizes=[8, 8, 8, 8],
        depths=[1, 1, 1, 1],
    ),
    _family(
        "dinov2",
        "Dinov2ForImageClassification",
        _image,
        **{k: v for k, v in VISION.items() if k != "intermediate_size"},
        drop_path_rate=0.2,
    ),
    _family(
        "vit_mae",
        "ViTMAEForPreTraining",
        _image,
        **VISION,
        decoder_hidden_size=16,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=16,
    ),
    _family(
        "segformer",
        "SegformerForImageClassification",
        functools.partial(_image, 32),
        hidden_sizes=[8, 8],
        depths=[1, 1],
        num_encoder_blocks=2,
        num_attention_heads=[1, 2],
        sr_ratios=[2, 1],
        patch_sizes=[7, 3],
        strides=[4, 2],
        mlp_ratios=[2, 2],
        decoder_hidden_size=8,
    ),
    _family(
        "clip",
        "CLIPModel",
        lambda: {**_tokens(), **_image(), "return_loss": True},
        text_config=SMALL,
        vision_config=VISION,
        projection_dim=8,
    ),
    _family(
        "siglip",
        "SiglipModel",
        lambda: {**_tokens(), **_image(), "return_loss": True},
        text_config={**SMALL, "projection_size": 16},
        vision_config=VISION,
    ),
    Family(
        "llava",
        "LlavaForConditionalGeneration",
        lambda t: t.LlavaConfig(
            vision_config=t.CLIPVisionConfig(**VISION),
            text_config=t.LlamaConfig(**GROUPED),
            image_token_index=32,
            vision_feature_layer=-1,
        ),
        lambda: {"input_ids": torch.cat([torch.full((2, 4), 32), _ids()], 1), **_image()},
    ),
    Family(
        "qwen2_vl",
        "Qwen2VLForConditionalGeneration",
        lambda t: t.Qwen2VLConfig(
            text_config={
                **SMALL,
                "num_key_value_heads": 1,
                "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]},
            },
            vision_config={
                "depth": 1,
                "embed_dim": 16,
                "hidden_size": 16,
                "num_heads": 2,
                "patch_size": 2,
                "mlp_ratio": 2,
                "spatial_merge_size": 2,
            },
            image_token_id=32,
            video_token_id=31,
            vision_start_token_id=30,
            vision_end_token_id=29,
        ),
        lambda: {
            "input_ids": torch.cat(
                [torch.tensor([[30, 32, 32, 32, 32, 29]]), torch.randint(3, 28, (1, 3))], 1
            ),
            "pixel_values": torch.randn(16, 3 * 2 * 2 * 2),
            "mm_token_type_ids": torch.tensor([[0, 1, 1, 1, 1, 0, 0, 0, 0]]),
            "image_grid_thw": torch.tensor([[1, 4, 4]]),
        },
    ),
    _family(
        "whisper",
        "WhisperForConditionalGeneration",
        lambda: {"input_features": torch.randn(2, 4, 32), "labels": _ids(2, 5)},
        vocab_size=33,
        num_mel_bins=4,
        d_model=16,
        **BOTH_SIDES,
        max_source_positions=16,
        max_target_positions=16,
        **SPECIAL,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    ),
    _family(
        "encodec",
        "EncodecModel",
        lambda: {"input_values": torch.randn(2, 1, 160)},
        num_filters=4,
        hidden_size=8,
        codebook_size=8,
        codebook_dim=8,
        upsampling_ratios=[4, 2],
        target_bandwidths=[12.0],
        num_lstm_layers=1,
        sampling_rate=8000,
    ),
    _family(
        "vits",
        "VitsModel",
        _tokens,
        vocab_size=33,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        ffn_dim=16,
        flow_size=8,
        spectrogram_bins=8,
        duration_predictor_filter_channels=8,
        depth_separable_num_layers=1,
        duration_predictor_num_flows=1,
        prior_encoder_num_flows=1,
        prior_encoder_num_wavenet_layers=1,
        posterior_encoder_num_wavenet_layers=1,
        upsample_initial_channel=8,
        upsample_rates=[2, 2],
        upsample_kernel_sizes=[4, 4],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3]],
    ),
    _family("wavlm", "WavLMForCTC", lambda: {**_wave(), "labels": _ids(2, 3)}, **WAVE),
    _family("hubert", "HubertForCTC", lambda: {**_wave(), "labels": _ids(2, 3)}, **WAVE),
    _family(
        "unispeech_sat", "UniSpeechSatForCTC", lambda: {**_wave(), "labels": _ids(2, 3)}, **WAVE
    ),
    _family(
        "speecht5",
        "SpeechT5ForTextToSpeech",
        lambda: {
            **_tokens(),
            "attention_mask": torch.ones(2, 7, dtype=torch.long),
            "labels": torch.randn(2, 6, 4),
            "decoder_attention_mask": torch.ones(2, 6, dtype=torch.long),
            "speaker_embeddings": torch.randn(2, 4),
        },
        vocab_size=33,
        hidden_size=16,
        **BOTH_SIDES,
        num_mel_bins=4,
        speech_decoder_prenet_units=8,
        speech_decoder_postnet_units=8,
        speech_decoder_postnet_layers=2,
        speaker_embedding_dim=4,
        reduction_factor=2,
        use_guided_attention_loss=False,
        max_text_positions=32,
        max_speech_positions=32,
        encoder_max_relative_position=4,
        **SPECIAL,
    ),
    Family(
        "sam",
        "SamModel",
        lambda t: t.SamConfig(
            vision_config={
                "hidden_size": 16,
                "output_channels": 8,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": 32,
                "patch_size": 8,
                "window_size": 2,
                "global_attn_indexes": [1],
                "mlp_dim": 16,
                "num_pos_feats": 4,
            },
            prompt_encoder_config={
                "hidden_size": 8,
                "image_size": 32,
                "patch_size": 8,
                "mask_input_channels": 4,
            },
            mask_decoder_config={
                "hidden_size": 8,
                "mlp_dim": 8,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "iou_head_hidden_dim": 8,
            },
        ),
        lambda: {**_image(32), "input_points": torch.rand(2, 1, 1, 2) * 32},
    ),
    Family(
        "detr",
        "DetrForObjectDetection",
        lambda t: t.DetrConfig(
            use_timm_backbone=False,
            use_pretrained_backbone=False,
            backbone=None,
            backbone_config=t.ResNetConfig(**RESNET),
            **DETECTION,
            num_queries=3,
        ),
        _image,
    ),
    Family(
        "deformable_detr",
        "DeformableDetrForObjectDetection",
        lambda t: t.DeformableDetrConfig(
            use_timm_backbone=False,
            use_pretrained_backbone=False,
            backbone=None,
            backbone_config=t.ResNetConfig(**{**RESNET, "out_features": ["stage1", "stage2"]}),
            **{**DETECTION, "d_model": 32, "decoder_layers": 2},
            num_queries=3,
            num_feature_levels=2,
            encoder_n_points=2,
            decoder_n_points=2,
        ),
        functools.partial(_image, 32),
    ),
    Family(
        "mask2former",
        "Mask2FormerForUniversalSegmentation",
        lambda t: t.Mask2FormerConfig(
            backbone_config=t.SwinConfig(
                image_size=32,
                patch_size=2,
                embed_dim=8,
                depths=[1, 1, 1, 1],
                num_heads=[1, 1, 1, 1],
                window_size=2,
                out_features=["stage1", "stage2", "stage3", "stage4"],
            ),
            feature_size=32,
            mask_feature_size=32,
            hidden_dim=32,
            encoder_feedforward_dim=8,
            dim_feedforward=8,
            encoder_layers=1,
            decoder_layers=2,
            num_attention_heads=2,
            num_queries=3,
            num_labels=3,
        ),
        functools.partial(_image, 32),
    ),
    _family("time_series", "TimeSeriesTransformerForPrediction", _series, **SERIES),
    _family(
        "autoformer", "AutoformerForPrediction", _series, **SERIES, moving_average=3, label_length=4
    ),
    _family(
        "informer",
        "InformerForPrediction",
        _series,
        **SERIES,
    ),
    _family(
        "patchtst",
        "PatchTSTForPrediction",
        lambda: {"past_values": torch.randn(2, 16, 2), "future_values": torch.randn(2, 4, 2)},
        num_input_channels=2,
        context_length=16,
        patch_length=4,
        patch_stride=4,
        num_hidden_layers=2,
        d_model=16,
        num_attention_heads=2,
        ffn_dim=16,
        prediction_length=4,
    ),
    _family(
        "decision_transformer",
        "DecisionTransformerModel",
        lambda: {
            "states": torch.randn(2, 4, 3),
            "actions": torch.randn(2, 4, 2),
            "rewards": torch.randn(2, 4, 1),
            "returns_to_go": torch.randn(2, 4, 1),
            "timesteps": torch.arange(4).expand(2, 4),
            "attention_mask": torch.ones(2, 4),
        },
        state_dim=3,
        act_dim=2,
        hidden_size=16,
        max_ep_len=16,
        n_layer=1,
        n_head=2,
    ),
]

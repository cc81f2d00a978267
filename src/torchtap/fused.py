"""The fused kernel of ``nn.TransformerEncoderLayer``, which runs only where no hook is.

In eval mode without grad the layer computes everything in one kernel, unless any of its modules
has a hook. A tap would so change the numbers in their last bits. This file says when the kernel
would run; ``hooks`` then steps aside for that call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import TransformerEncoderLayer

REASON = (
    "nn.TransformerEncoderLayer runs as one fused kernel here (eval mode, no grad), which a hook "
    "would switch off and so change the result. To see inside, call "
    "torch.backends.mha.set_fastpath_enabled(False) first"
)


def would_fuse(
    layer: TransformerEncoderLayer, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bool:
    """Whether the layer, free of hooks, would run its fused kernel on these arguments.

    Follows the conditions in ``TransformerEncoderLayer.forward`` of PyTorch 2.11 to 2.13.
    """
    source = args[0] if args else kwargs.get("src")
    if not isinstance(source, Tensor) or layer.training or source.dim() != 3:
        return False
    attention = layer.self_attn
    plain = (
        torch.backends.mha.get_fastpath_enabled()
        and attention.batch_first
        and attention.in_proj_bias is not None
        and attention._qkv_same_embed_dim
        and attention.num_heads % 2 == 0
        and bool(layer.activation_relu_or_gelu)
        and layer.norm1.eps == layer.norm2.eps
        and not torch.is_autocast_enabled()
    )
    if not plain:
        return False
    used = [source, *layer.parameters()]
    if torch.overrides.has_torch_function(tuple(used)):
        return False
    return not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in used))

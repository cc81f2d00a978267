"""Let ``nn.TransformerEncoderLayer`` use its fused kernel in spite of hooks that only read.

In eval mode without grad the layer computes everything in one kernel, unless any of its modules
has a hook. A tap would therefore change the last bits. The layer counts the entries of
the hook tables by ``len``, which it finds among the global names of its own file: as long as a
watch or an offload is open on such a layer, a function of that name stands there that does not
count hooks that only read. The tables themselves stay as they are, for every thread, and nothing is
put on the layer that a copy or a pickle could show.
"""

from __future__ import annotations

import builtins
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import TransformerEncoderLayer
from torch.nn.modules import transformer

from torchtap.core.shared_state import new_lock
from torchtap.core.torch_private import script_as
from torchtap.hooks.hidden_handle import HiddenHandle
from torchtap.hooks.module_hook import (
    EDIT,
    NEEDED,
    Keywords,
    ModuleHook,
    keep_dynamo_out,
)
from torchtap.hooks.tap import Tap

REASON = (
    "nn.TransformerEncoderLayer runs as one fused kernel here (eval mode, no grad), which a hook "
    "would switch off and so change the result. To see inside, call "
    "torch.backends.mha.set_fastpath_enabled(False) first"
)


def would_fuse(
    layer: TransformerEncoderLayer, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bool:
    """Return whether the layer, free of hooks, would run its fused kernel on these arguments.

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
    if not plain or (source.is_nested and _has_mask(args, kwargs)):
        return False
    used = [source, *layer.parameters()]
    if torch.overrides.has_torch_function(tuple(used)):
        return False
    return not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in used))


def _has_mask(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    named = (kwargs.get("src_mask"), kwargs.get("src_key_padding_mask"))
    return any(mask is not None for mask in (*args[1:3], *named))


# ---------------------------------------------------------------------- the layer's look


def _num_hooks(table: Any) -> int:
    """Takes the place of ``len`` where the layer looks at its hooks: those that only read are 0."""
    if type(table) is not OrderedDict:
        return builtins.len(table)
    return builtins.len([hook for hook in table.values() if not _only_reads(hook)])


def _has_hooks(module: nn.Module) -> bool:
    return _num_hooks(module._forward_hooks) + _num_hooks(module._forward_pre_hooks) > 0


def _only_reads(hook: Any) -> bool:
    # The compiler sees no subclass of partial: to it, a NativeHook is the partial that it is.
    if isinstance(hook, partial) and builtins.len(hook.args) == 2:
        hook = hook.args[1]
    return isinstance(hook, ModuleHook) and hook.role not in (EDIT, NEEDED)


# torch.jit.script compiles the layer with whatever stands for ``len`` in its file.
script_as(_num_hooks, "aten::len")
_lock = new_lock()
_num_holders = 0
_names = vars(transformer)


def _count(change: int) -> None:
    global _num_holders
    with _lock:
        _num_holders += change
        # No call between the look and the entry: the collector may run in one, and count down.
        if _num_holders:
            _names["len"] = _num_hooks
        else:
            _names.pop("len", None)


class EncoderFastPath:
    """Keeps the fast path of the encoder layers that hold our hooks open.

    Args:
        taps: path -> tap of the modules that it has hooks on.
    """

    def __init__(self, taps: Mapping[str, Tap]) -> None:
        self._taps = taps
        self._hold: Any = None

    def attach(self, modules: Mapping[str, nn.Module]) -> list[Any]:
        """Follow the encoder layers that hold a tap; returns the handles of the hooks."""
        layers = [one for one in modules.values() if isinstance(one, TransformerEncoderLayer)]
        paths = {id(module): path for path, module in modules.items()} if layers else {}
        handles = []
        for module in layers:
            inner = [self._taps.get(paths.get(id(one), "?")) for one in module.modules()]
            if any(tap is not None for tap in inner):
                self._hold_kernel()
                hook = EncoderFastPathHook([tap for tap in inner[1:] if tap is not None])
                handles.append(
                    HiddenHandle.of(module.register_forward_pre_hook(hook, with_kwargs=True))
                )
        return handles

    def _hold_kernel(self) -> None:
        if self._hold is None:
            _count(1)
            self._hold = weakref.finalize(self, _count, -1)  # Of a watch that is never closed.
            self._hold.atexit = False

    def release(self) -> None:
        """Let the layer count all hooks again, unless another watch is open."""
        if self._hold is not None:
            self._hold()


class EncoderFastPathHook(ModuleHook[list[Tap]]):
    """Pre-hook of an encoder layer: tells the taps inside of it why nothing is seen of them."""

    __slots__ = ()

    with_kwargs = True

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Keywords = None) -> None:
        if not torch.compiler.is_compiling():
            _note(self.owner, module, args, kwargs or {})


def _note(
    inside: list[Tap], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    assert isinstance(module, TransformerEncoderLayer)
    if would_fuse(module, args, kwargs) and not any(map(_has_hooks, module.modules())):
        for tap in inside:
            tap.reason = REASON


keep_dynamo_out(_note)

"""The fused kernel of ``nn.TransformerEncoderLayer``, which runs only where no hook is.

In eval mode without grad the layer computes everything in one kernel, unless any of its modules
has a hook. A tap would so change the numbers in their last bits. Where the kernel would run, we
step aside for that call and see the layer's output only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import TransformerEncoderLayer
from torch.nn.modules.module import register_module_forward_hook

from torchtap.hooks.callbacks import Callback, EditCallback, Handle, Leave, StepAside
from torchtap.hooks.spots import Tap

if TYPE_CHECKING:
    from torchtap.hooks.engine import Engine

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


def _is_ours(hook: Any) -> bool:
    return isinstance(hook, Callback) and not isinstance(hook, EditCallback)


class Aside:
    """Takes our hooks off an encoder layer for one call, and puts them back."""

    def __init__(self, taps: Mapping[str, Tap]) -> None:
        self._taps = taps
        self._paths: dict[int, str] = {}
        self._away: list[tuple[Any, list[tuple[Any, dict[int, Any]]]]] = []

    def attach(self, engine: Engine, modules: Mapping[str, nn.Module]) -> list[Any]:
        """Hook the encoder layers that hold a tap; returns the handles."""
        self._paths = {id(module): path for path, module in modules.items()}
        tapped = {id(modules[path]) for path in ("", *self._taps)}
        handles = []
        for module in modules.values():
            if not isinstance(module, TransformerEncoderLayer):
                continue
            if any(id(inner) in tapped for inner in module.modules()):
                hook = StepAside(engine, Tap("", {}))
                handles.append(Handle(module.register_forward_pre_hook(hook, with_kwargs=True)))
        return handles

    def step_aside(
        self, layer: TransformerEncoderLayer, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Go away for one call, if the layer would then run as one kernel."""
        if not would_fuse(layer, args, kwargs):
            return
        inner = list(layer.modules())
        tables = [table for m in inner for table in (m._forward_pre_hooks, m._forward_hooks)]
        if any(not _is_ours(hook) for table in tables for hook in table.values()):
            return  # An edit's hook, or somebody else's, keeps the kernel off anyway.
        for module in inner:
            tap = self._taps.get(self._paths.get(id(module), "?"))
            if tap is not None and module is not layer:
                tap.reason = REASON
        leave = next((hook for hook in layer._forward_hooks.values() if type(hook) is Leave), None)
        saved = [(table, dict(table)) for table in tables]
        for table in tables:
            table.clear()

        def come_back(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if module is layer:
                self.come_back()
                if leave is not None:
                    leave(module, args, dict(kwargs), output)

        # A global hook does not keep the kernel off.
        handle = register_module_forward_hook(come_back, always_call=True)
        self._away.append((handle, saved))

    def come_back(self) -> None:
        """Put back whatever is away (also after a KeyboardInterrupt, which runs no hooks)."""
        while self._away:
            handle, saved = self._away.pop()
            handle.remove()
            for table, hooks in saved:
                table.update(hooks)

"""The fused kernel of ``nn.TransformerEncoderLayer``, which runs only where no hook is.

In eval mode without grad the layer computes everything in one kernel, unless any of its modules
has a hook. A tap would so change the numbers in their last bits. Where the kernel would run, we
step aside for that call and see the layer's output only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import TransformerEncoderLayer
from torch.nn.modules.module import register_module_forward_hook

from torchtap.hooks.module_hook import EDIT, Handle, ModuleHook
from torchtap.hooks.spots import Tap

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
    if not plain or (source.is_nested and _has_mask(args, kwargs)):
        return False
    used = [source, *layer.parameters()]
    if torch.overrides.has_torch_function(tuple(used)):
        return False
    return not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in used))


def _has_mask(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    named = (kwargs.get("src_mask"), kwargs.get("src_key_padding_mask"))
    return any(mask is not None for mask in (*args[1:3], *named))


def _steps_aside(hook: Any) -> bool:
    return isinstance(hook, ModuleHook) and hook.role != EDIT


class FusedEncoderGuard:
    """Takes its owner's hooks off an encoder layer for one call, and puts them back.

    Every owner has one and takes off its own hooks only, so each can be detached by itself.

    Args:
        owner: of the hooks.
        taps: path -> tap of the modules that it has hooks on.
    """

    def __init__(self, owner: object, taps: Mapping[str, Tap]) -> None:
        self.owner = owner
        self._taps = taps
        self._paths: dict[int, str] = {}
        self._away: list[tuple[Any, list[tuple[Any, dict[int, Any]]]]] = []
        self._spent: list[Any] = []

    def attach(self, modules: Mapping[str, nn.Module]) -> list[Any]:
        """Hook the encoder layers that hold a tap; returns the handles."""
        self._paths = {id(module): path for path, module in modules.items()}
        tapped = {id(modules[path]) for path in self._taps}
        handles = []
        for module in modules.values():
            if not isinstance(module, TransformerEncoderLayer):
                continue
            if any(id(inner) in tapped for inner in module.modules()):
                hook = FusedEncoderHook(self, Tap(self._paths[id(module)], {}))
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
        if not all(_steps_aside(hook) for table in tables for hook in table.values()):
            return  # An edit's hook, or one of another library, keeps the kernel off as well.
        for module in inner:
            tap = self._taps.get(self._paths.get(id(module), "?"))
            if tap is not None and module is not layer:
                tap.reason = REASON
        saved = [(table, self._own(table)) for table in tables]
        leaves = self._own(layer._forward_hooks)
        is_over = False
        for table, own in saved:
            for key in own:
                del table[key]

        def come_back(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            nonlocal is_over
            if module is not layer or is_over:
                return
            is_over = True
            self._put_back()
            if output is None:
                return  # It raised: PyTorch itself calls the hooks that are to be called then.
            self._remove_spent()
            for key, leave in leaves.items():
                with_kwargs = key in layer._forward_hooks_with_kwargs
                leave(module, args, *((dict(kwargs),) if with_kwargs else ()), output)

        self._remove_spent()
        # A global hook does not keep the kernel off.
        handle = register_module_forward_hook(come_back, always_call=True)
        self._away.append((handle, saved))

    def _own(self, table: Mapping[int, Any]) -> dict[int, Any]:
        return {key: hook for key, hook in table.items() if hook.owner is self.owner}

    def come_back(self) -> None:
        """Put back whatever is away (also after a KeyboardInterrupt, which runs no hooks)."""
        self._put_back()
        self._remove_spent()

    def _put_back(self) -> None:
        while self._away:
            handle, saved = self._away.pop()
            self._spent.append(handle)
            for table, hooks in saved:
                table.update(hooks)

    def _remove_spent(self) -> None:
        """Remove the global hooks of calls that are over.

        Not where a call raises: PyTorch is going through the table of global hooks then.
        """
        while self._spent:
            self._spent.pop().remove()


class FusedEncoderHook(ModuleHook[object]):
    """Pre-hook of a ``TransformerEncoderLayer``: takes its owner's hooks off for a fused call."""

    __slots__ = ("_aside",)

    def __init__(self, aside: FusedEncoderGuard, tap: Tap) -> None:
        super().__init__(aside.owner, tap)
        self._aside = aside

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert isinstance(module, nn.TransformerEncoderLayer)
        self._aside.step_aside(module, args, kwargs)

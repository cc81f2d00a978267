"""The fused kernel of ``nn.TransformerEncoderLayer``, which runs only where no hook is.

In eval mode without grad the layer computes everything in one kernel, unless any of its modules
has a hook. A tap would so change the numbers in their last bits. Where the kernel would run, we
step aside for that call and see the layer's output only.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import TransformerEncoderLayer
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from torchtap.hooks.module_hook import EDIT, Handle, ModuleHook
from torchtap.hooks.spots import Tap

REASON = (
    "nn.TransformerEncoderLayer runs as one fused kernel here (eval mode, no grad), which a hook "
    "would switch off and so change the result. To see inside, call "
    "torch.backends.mha.set_fastpath_enabled(False) first"
)

MISSED = (
    "the call began while another thread was inside the fused kernel of this "
    "nn.TransformerEncoderLayer, for which hooks are taken off: of the layer its output is "
    "recorded, and nothing inside"
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


class _Away:
    """The hooks of one owner that are off one layer while fused calls of it run.

    Hook tables belong to all threads: the first fused call takes the hooks off, and the last one
    that ends puts them back.

    Attributes:
        tables: (table, the owner's hooks of it).
        leaves: those of the layer's own forward hooks, which are called by hand.
        calls: thread -> keyword arguments of its call of the layer.
        handles: of the global hooks by which calls are followed.
    """

    def __init__(self, layer: TransformerEncoderLayer, owner: object) -> None:
        inner = list(layer.modules())
        tables: list[dict[int, Any]] = [
            table for m in inner for table in (m._forward_pre_hooks, m._forward_hooks)
        ]
        self.is_alone = all(_steps_aside(hook) for one in tables for hook in [*one.values()])
        self.tables: list[tuple[Any, dict[int, Any]]] = [
            (table, {key: hook for key, hook in table.items() if hook.owner is owner})
            for table in (tables if self.is_alone else ())
        ]
        is_left = (own for table, own in self.tables if table is layer._forward_hooks)
        self.leaves = next(is_left, {})
        self.calls: dict[int, dict[str, Any]] = {}
        self.handles: list[Any] = []

    def take_off(self) -> None:
        """Now."""
        for table, own in self.tables:
            for key in own:
                table.pop(key, None)

    def put_back(self) -> None:
        """Now."""
        for table, own in self.tables:
            table.update(own)


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
        self._away: dict[TransformerEncoderLayer, _Away] = {}
        self._spent: list[Any] = []
        self._lock = threading.Lock()

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
        self._remove_spent()
        with self._lock:
            away = self._away.get(layer)
            if away is None:
                away = _Away(layer, self.owner)
                if not away.is_alone:
                    return  # An edit's hook, or another library's, keeps the kernel off as well.
                # A global hook does not keep the kernel off.
                away.handles += [
                    register_module_forward_pre_hook(partial(self._join, layer)),
                    register_module_forward_hook(partial(self._leave, layer), always_call=True),
                ]
                away.take_off()
                self._away[layer] = away
            away.calls[threading.get_ident()] = dict(kwargs)
        for tap in self._inside(layer):
            tap.reason = REASON

    def _inside(self, layer: TransformerEncoderLayer) -> Iterator[Tap]:
        for module in layer.modules():
            tap = self._taps.get(self._paths.get(id(module), "?"))
            if tap is not None and module is not layer:
                yield tap

    def _join(self, layer: TransformerEncoderLayer, module: nn.Module, args: Any) -> None:
        """A call of the layer begins; if in another thread, without the hooks that are off."""
        if module is not layer:
            return
        with self._lock:
            away, thread = self._away.get(layer), threading.get_ident()
            if away is None or thread in away.calls:
                return
            away.calls[thread] = {}
        own = self._taps.get(self._paths.get(id(layer), "?"))
        for tap in (*self._inside(layer), *(() if own is None else (own,))):
            tap.untold[MISSED] += 1

    def _leave(
        self, layer: TransformerEncoderLayer, module: nn.Module, args: Any, output: Any
    ) -> None:
        """A call of the layer ends."""
        if module is not layer:
            return
        with self._lock:
            away, thread = self._away.get(layer), threading.get_ident()
            if away is None or thread not in away.calls:
                return
            kwargs = away.calls.pop(thread)
            if not away.calls:
                self._put_back(layer)
        if output is None:
            return  # It raised: PyTorch itself calls the hooks that are to be called then.
        self._remove_spent()
        for key, leave in away.leaves.items():
            with_kwargs = key in layer._forward_hooks_with_kwargs
            leave(module, args, *((kwargs,) if with_kwargs else ()), output)

    def come_back(self) -> None:
        """Put back whatever is away (also after a KeyboardInterrupt, which runs no hooks)."""
        with self._lock:
            for layer in list(self._away):
                self._put_back(layer)
        self._remove_spent()

    def _put_back(self, layer: TransformerEncoderLayer) -> None:
        away = self._away.pop(layer)
        self._spent += away.handles
        away.put_back()

    def _remove_spent(self) -> None:
        """Remove the global hooks of calls that are over.

        Not where a call raises: PyTorch is going through the table of global hooks then.
        """
        if not self._spent:
            return
        with self._lock:
            spent, self._spent = self._spent, []
        for handle in spent:
            handle.remove()


class FusedEncoderHook(ModuleHook[object]):
    """Pre-hook of a ``TransformerEncoderLayer``: takes its owner's hooks off for a fused call."""

    __slots__ = ("_aside",)

    def __init__(self, aside: FusedEncoderGuard, tap: Tap) -> None:
        super().__init__(aside.owner, tap)
        self._aside = aside

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert isinstance(module, nn.TransformerEncoderLayer)
        self._aside.step_aside(module, args, kwargs)

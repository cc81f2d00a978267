"""The fused kernel of ``nn.TransformerEncoderLayer``, which runs only where no hook is.

In eval mode without grad the layer computes everything in one kernel, unless any of its modules
has a hook. A tap would so change the numbers in their last bits. Where the kernel would run, our
hooks are hidden from the layer's own look at them, and see its input and output only.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import TransformerEncoderLayer

from torchtap.hooks.module_hook import EDIT, Handle, ModuleHook, keep_dynamo_out
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


def _may_step_aside(hook: Any) -> bool:
    return isinstance(hook, ModuleHook) and hook.role != EDIT


class _QuietModules:
    """Stands for ``layer.modules`` while calls begin that the fused kernel would serve.

    The layer takes its kernel only if no table of hooks in ``self.modules()`` has an entry. Hooks
    taken out of the tables would be missing in every other thread as well. So the tables stay as
    they are, and the layer's own question, which this knows by its frame, is answered without the
    modules that have only hooks that change nothing. Anything else that asks gets them all.
    """

    __slots__ = ("asking", "layer")

    def __init__(self, layer: TransformerEncoderLayer) -> None:
        self.layer = layer
        self.asking: set[tuple[int, int]] = set()  # Thread and guard.

    def __call__(self, *args: Any, **kwargs: Any) -> Iterable[nn.Module]:
        modules = type(self.layer).modules(self.layer, *args, **kwargs)
        # Not by its code object, because Dynamo makes others of it.
        if sys._getframe(1).f_code.co_filename != _FORWARD_CODE.co_filename:
            return modules
        thread = threading.get_ident()
        self.forget(lambda one: one[0] == thread)
        return [module for module in modules if not all(map(_may_step_aside, _hooks(module)))]

    @staticmethod
    def of(layer: TransformerEncoderLayer) -> _QuietModules | None:
        """What stands on the layer now."""
        quiet = vars(layer).get("modules")
        return quiet if isinstance(quiet, _QuietModules) else None

    def forget(self, over: Callable[[tuple[int, int]], bool]) -> None:
        """Calls have asked, or will not; the attribute goes with the last of them."""
        with _lock:
            self.asking = {one for one in self.asking if not over(one)}
            if not self.asking and _QuietModules.of(self.layer) is self:
                del vars(self.layer)["modules"]


keep_dynamo_out(_QuietModules.__call__)
_FORWARD_CODE = TransformerEncoderLayer.forward.__code__
_lock = threading.RLock()


def _hooks(module: nn.Module) -> list[Any]:
    return [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]


class FusedEncoderGuard:
    """Lets the encoder layers that hold our hooks run their fused kernel all the same.

    Args:
        taps: path -> tap of the modules that it has hooks on.
    """

    def __init__(self, taps: Mapping[str, Tap]) -> None:
        self._taps = taps
        self._inside: weakref.WeakKeyDictionary[TransformerEncoderLayer, list[Tap]]
        self._inside = weakref.WeakKeyDictionary()

    def attach(self, modules: Mapping[str, nn.Module]) -> list[Any]:
        """Hook the encoder layers that hold a tap; returns the handles."""
        paths = {id(module): path for path, module in modules.items()}
        handles = []
        for module in modules.values():
            if not isinstance(module, TransformerEncoderLayer):
                continue
            inner = [self._taps.get(paths.get(id(one), "?")) for one in module.modules()]
            if any(tap is not None for tap in inner):
                self._inside[module] = [tap for tap in inner[1:] if tap is not None]
                tap = Tap(paths[id(module)], {})
                hook = FusedEncoderHook(self, tap)
                handles.append(Handle(module.register_forward_pre_hook(hook, with_kwargs=True)))
                if getattr(module.forward, "__code__", None) is not _FORWARD_CODE:
                    end = module.register_forward_hook(_End(self, tap), always_call=True)
                    handles.append(Handle(end))
        return handles

    def begin(
        self, layer: TransformerEncoderLayer, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Hide the hooks from the layer, if it would then run as one kernel."""
        if not would_fuse(layer, args, kwargs):
            return
        with _lock:
            quiet = vars(layer).setdefault("modules", _QuietModules(layer))
            if isinstance(quiet, _QuietModules):  # Or that attribute is the user's.
                quiet.asking.add((threading.get_ident(), id(self)))
        for tap in self._inside[layer]:
            tap.reason = REASON

    def end(self, layer: TransformerEncoderLayer) -> None:
        """A call of the layer ended, maybe without looking at its hooks."""
        quiet, call = _QuietModules.of(layer), (threading.get_ident(), id(self))
        if quiet is not None:
            quiet.forget(lambda one: one == call)

    def release(self) -> None:
        """Hide nothing any more, also in calls that were interrupted."""
        for layer in list(self._inside):
            quiet = _QuietModules.of(layer)
            if quiet is not None:
                quiet.forget(lambda one: one[1] == id(self))


class FusedEncoderHook(ModuleHook[FusedEncoderGuard]):
    """Pre-hook of a ``TransformerEncoderLayer``: hides hooks from a call that would be fused."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert isinstance(module, TransformerEncoderLayer)
        self.owner.begin(module, args, kwargs)


class _End(ModuleHook[FusedEncoderGuard]):
    """Hook of a layer with a forward of its own, which may not look at hooks at all."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        assert isinstance(module, TransformerEncoderLayer)
        self.owner.end(module)

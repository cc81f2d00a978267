"""Attention weights of one forward, read or computed again beside the model, which stays as it is.

A function mode hears of each call of PyTorch's functions. ``scaled_dot_product_attention`` gives no
weights: they are computed of its q and k in float64. ``multi_head_attention_forward`` is called
once more with ``need_weights=True`` and without dropout. A softmax whose result is multiplied from
the left with values is an attention that was written by hand.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from torchtap.core.module_paths import modules_of
from torchtap.core.preserved import preserved
from torchtap.core.torch_private import is_compiled_module
from torchtap.core.tree import argument_leaves
from torchtap.hooks.call_follower import CallFollower, CallStack, FollowedCall
from torchtap.hooks.module_hook import TapHook, run_as_it_is
from torchtap.hooks.tap import Tap

RECOMPUTED, GIVEN = "recomputed from q and k", "as the model computed them"
COMPILED = "it is compiled, and what runs in it is not seen: give the model before torch.compile"
SCRIPTED = "it is scripted, and what runs in it is not seen"
UNSEEN = "no scaled_dot_product_attention ran in it, nor a softmax that is multiplied with values"
_PRODUCTS = frozenset(("matmul", "bmm", "baddbmm", "__matmul__", "einsum"))
_PASSED_ON = frozenset(
    (
        *("to", "type", "type_as", "float", "half", "bfloat16", "masked_fill", "contiguous"),
        *("view", "reshape", "flatten", "expand", "unsqueeze", "squeeze", "clone"),
    )
)
_MOST_BYTES = 1 << 30
"""Bytes of weights of one call that are computed again."""


@dataclass(frozen=True, slots=True)
class Attention:
    """The attention weights of one call.

    Attributes:
        path: of the innermost module that computed them.
        call: which attention of that module, from 0.
        weights: ``float[B, heads, queries, keys]``; none where they are not available.
        how: where they come from, or why they are not available.
    """

    path: str
    call: int
    weights: Tensor | None
    how: str


def see_attention(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Attention, ...]:
    """Run one forward and return its attention weights, in the order of the calls.

    Modules with ``Attention`` in the name of their class of which nothing was seen come last, with
    the reason.

    The model runs in the mode it is in, without grad; buffers and random state are put back.

    Args:
        model: any module.
        args: what it is called with.
        kwargs: likewise.
    """
    modules, _ = modules_of(model)
    tensors = [one for _, one in argument_leaves(args, dict(kwargs))]
    watcher = _Watcher(tensors[0].shape[0] if tensors and tensors[0].dim() else 0)
    with preserved(modules, args, kwargs), torch.no_grad(), watcher.following(modules):
        model(*args, **kwargs)
    return (*watcher.found, *_unseen(model, modules, watcher.found))


def _unseen(
    model: nn.Module, modules: Mapping[str, nn.Module], found: Sequence[Attention]
) -> list[Attention]:
    """Modules that are attentions by their name, and of which no weights were seen."""
    seen = {one.path for one in found}
    compiled = any(type(one).__name__ == "OptimizedModule" for one in model.modules())
    unseen: list[Attention] = []
    for path, module in modules.items():
        name = type(module).__name__
        is_scripted = isinstance(module, torch.jit.ScriptModule)
        is_seen = any(one == path or not path or one.startswith(f"{path}.") for one in seen)
        if "Attention" not in name or is_seen or any(one.path.startswith(path) for one in unseen):
            continue
        compiled_here = compiled or is_compiled_module(module)
        unseen.append(
            Attention(
                path, 0, None, SCRIPTED if is_scripted else COMPILED if compiled_here else UNSEEN
            )
        )
    return unseen


# ---------------------------------------------------------------------- formulas


def weights_of(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return ``softmax(q k^T scale + mask)`` in float64; rows in which all is masked are NaN.

    As PyTorch's ``scaled_dot_product_attention`` does, by its documentation: ``scale`` is
    ``1 / sqrt(E)``, a mask of booleans has False where nothing may be seen, a causal one begins at
    the upper left, and with ``enable_gqa`` each head of the keys serves several of the queries.

    Args:
        query: ``[..., L, E]``.
        key: ``[..., S, E]``.
        mask: broadcast to ``[..., L, S]``: added, or of booleans.
        is_causal: whether query ``i`` sees the keys up to ``i``.
        scale: in place of ``1 / sqrt(E)``.
        enable_gqa: whether there are more heads of queries than of keys.

    Returns:
        ``float64[..., L, S]``.
    """
    query, key = query.detach().double(), key.detach().double()
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query @ key.transpose(-2, -1) * factor
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
    elif mask is not None:
        scores = scores + mask.double()
    return scores.softmax(-1)


# ---------------------------------------------------------------------- followed


class _Watcher:
    """Follows which module runs, and takes the weights of attentions.

    Args:
        rows: of the batch, where the first input tells; else 0.
    """

    def __init__(self, rows: int) -> None:
        self.found: list[Attention] = []
        self._rows = rows
        self._follower: CallFollower[FollowedCall] = CallFollower(CallStack())
        self._calls: dict[str, int] = {}
        # The tensors are kept, so that no other one gets the identity of one that is gone.
        self._softmaxes: dict[int, tuple[Tensor, Tensor]] = {}

    @contextmanager
    def following(self, modules: Mapping[str, nn.Module]) -> Iterator[None]:
        """Follow what runs inside the block."""
        try:
            for path, module in modules.items():
                tap = Tap(path, {})
                self._follower.put_on(
                    module,
                    pre_hook=_Enter(self._follower, tap),
                    post_hook=_Leave(self._follower, tap),
                )
            with _Functions(self):
                yield
        finally:
            self._follower.release()
            self._softmaxes.clear()

    def ran(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> None:
        """A function of PyTorch's has run."""
        if name == "scaled_dot_product_attention":
            self._add(*_of_product(args, kwargs))
        elif name == "multi_head_attention_forward":
            self._add(*_of_multi_head(func, args, kwargs))
        elif name == "softmax" and isinstance(result, Tensor) and result.dim() > 2:
            dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
            if dim in (-1, result.dim() - 1):
                self._softmaxes[id(result)] = result, result
        elif name in _PASSED_ON or name == "dropout":
            self._pass_on(name, func, args, kwargs, result)
        elif name in _PRODUCTS:
            self._multiplied(name, args)

    def _pass_on(
        self, name: str, func: Callable[..., Any], args: Any, kwargs: Any, result: Any
    ) -> None:
        """Follow weights into another type or shape; of dropout those before it are kept."""
        first = args[0] if args else None
        if id(first) not in self._softmaxes or not isinstance(result, Tensor):
            return
        weights = self._softmaxes[id(first)][1]
        if name != "dropout":
            weights = result if weights is first else func(weights, *args[1:], **kwargs)
        self._softmaxes[id(result)] = result, weights

    def _multiplied(self, name: str, args: Any) -> None:
        """Take weights that values are multiplied by, from the left."""
        operands = list(args[1:] if name == "einsum" else args[:1])
        if operands and isinstance(operands[0], list | tuple):
            operands = list(operands[0])
        for operand in operands:
            weights = self._softmaxes.pop(id(operand), None)
            if weights is not None:
                self._add(self._by_heads(weights[1]), GIVEN)

    def _by_heads(self, weights: Tensor) -> Tensor:
        """Return ``[B, heads, L, S]``, where batch and heads may be one dimension."""
        queries, keys = weights.shape[-2:]
        rows = self._rows if self._rows and not weights.shape[0] % self._rows else len(weights)
        return weights.reshape(rows, -1, queries, keys)

    def _add(self, weights: Tensor | None, how: str) -> None:
        stack = self._follower.running.stack
        path = stack[-1].tap.path if stack else ""
        call = self._calls.get(path, 0)
        self._calls[path] = call + 1
        kept = None if weights is None else weights.detach().cpu()
        self.found.append(Attention(path, call, kept, how))


def _of_product(args: Any, kwargs: Mapping[str, Any]) -> tuple[Tensor | None, str]:
    """Return the weights of ``scaled_dot_product_attention``, which gives none."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    query, key = given["query"], given["key"]
    if query.is_nested or key.is_nested:
        return None, "its inputs are nested tensors of rows that differ in length"
    num = math.prod(query.shape[:-1]) * key.shape[-2] * 8
    if num > _MOST_BYTES:
        return None, f"its weights would take {num >> 20:,} MiB"
    weights = weights_of(
        query, key, given.get("attn_mask"), is_causal=given.get("is_causal", False),
        scale=given.get("scale"), enable_gqa=given.get("enable_gqa", False),
    )  # fmt: skip
    while weights.dim() < 4:
        weights = weights[None]
    return weights.flatten(0, -4), RECOMPUTED


def _of_multi_head(
    func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]
) -> tuple[Tensor | None, str]:
    """Return the weights of each head of ``multi_head_attention_forward``, called once more."""
    bound = inspect.signature(func).bind(*args, **kwargs)
    bound.arguments.update(need_weights=True, average_attn_weights=False, training=False)
    _, weights = func(*bound.args, **bound.kwargs)
    return weights if weights.dim() == 4 else weights[None], RECOMPUTED


class _Functions(TorchFunctionMode):
    """Hears of every function of PyTorch that is called with tensors."""

    def __init__(self, watcher: _Watcher) -> None:
        super().__init__()
        self._watcher = watcher

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._watcher.ran(_name_of(func), func, args, kwargs or {}, result)
        return result


def _name_of(func: Any) -> str:
    return str(getattr(func, "__name__", ""))


class _Enter(TapHook[Any]):
    __slots__ = ()

    def __call__(self, module: nn.Module, args: Any) -> None:
        self.owner.running.stack.append(FollowedCall(self.tap, None))


class _Leave(TapHook[Any]):
    __slots__ = ()

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        self.owner.running.leave(self.tap)


run_as_it_is(_Enter.__call__, _Leave.__call__)

"""The hooks of one owner on modules, and the stack of the calls that they follow.

Watches, edits, scopes, traces, extractors and copies of buffers all follow calls. They differ in
the hooks that they put on and in the notes that they keep of a call, see :class:`FollowedCall`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from torchtap.core.stack_frames import innermost_frames, is_on_stack
from torchtap.hooks.dynamo_hooks import new_key
from torchtap.hooks.encoder_fast_path import EncoderFastPath
from torchtap.hooks.hidden_handle import HiddenHandle, OwnEntries, tables_lock
from torchtap.hooks.hook_order import put_by_role
from torchtap.hooks.module_hook import ModuleHook, NativeHook
from torchtap.hooks.tap import Tap


class FollowedCall:
    """One call of a module that has been entered and not yet left.

    Args:
        tap: of the module; hooks of one owner share one for each module.
        caller: the frame of ``nn.Module``'s own call, or ``None`` where it is never asked for.
    """

    __slots__ = ("caller", "tap", "thread")

    def __init__(self, tap: Tap, caller: FrameType | None) -> None:
        self.tap = tap
        self.caller = caller
        self.thread = 0 if caller is None else threading.get_ident()

    def is_over(self) -> bool:
        """Return whether the call ended without a forward hook being called.

        ``nn.Module`` calls forward hooks, also those with ``always_call``, after an ``Exception``
        only (``_call_impl`` in torch/nn/modules/module.py). After a ``KeyboardInterrupt``, or when
        ``tt.features`` stops a forward, the call stays on the stack.
        """
        if self.caller is None:
            return False
        # No variable holds the frames: this one's is among them, and would hold itself.
        return not is_on_stack([self.caller], innermost_frames().get(self.thread))


OneCall = TypeVar("OneCall", bound=FollowedCall)


class CallStack(Generic[OneCall]):
    """The calls that have been entered and not yet left.

    Attributes:
        stack: the outermost first.
    """

    def __init__(self) -> None:
        self.stack: list[OneCall] = []

    def leave(self, tap: Tap) -> list[OneCall]:
        """Pop the innermost running call of ``tap`` and all calls above it.

        Returns:
            the popped calls, innermost first. The last is the call of ``tap``, the others ended
            without a hook. Empty if no call of ``tap`` is running.
        """
        stack = self.stack
        # One comparison in nearly every call of every module.
        if stack and stack[-1].tap is tap:
            return [stack.pop()]
        if not self.has(tap):
            return []
        left = [stack.pop()]
        while left[-1].tap is not tap:
            left.append(stack.pop())
        return left

    def has(self, tap: Tap) -> bool:
        """Return whether a call of ``tap`` is running."""
        return any(call.tap is tap for call in self.stack)

    def is_stale(self) -> bool:
        """Return whether no call with a known caller is on this thread's Python stack any more."""
        callers = [call.caller for call in self.stack if call.caller is not None]
        return bool(callers) and not is_on_stack(callers, sys._getframe(1))


class RunningCalls(threading.local, CallStack[OneCall]):
    """A stack of calls for each thread."""


class EntryHook(ModuleHook[Callable[[nn.Module], None]]):
    """Forward pre-hook that calls a function with the module, except while compiling."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not torch.compiler.is_compiling():
            self.owner(module)


AnyHook = ModuleHook[Any] | NativeHook
Row = tuple[nn.Module, AnyHook | None, AnyHook | None]


class CallFollower(Generic[OneCall]):
    """Puts the hooks of one owner on modules, and takes them off.

    Args:
        running: calls that are followed; by default a stack for each thread.

    Attributes:
        put_natively: does natively what :meth:`put_on` does for each row of :meth:`put_on_all`.
    """

    put_natively: Callable[..., None] | None = None

    def __init__(self, running: CallStack[OneCall] | None = None) -> None:
        self.running: CallStack[OneCall] = RunningCalls() if running is None else running
        self._pre_hooks: list[Any] = []
        self._others: list[Any] = []
        self._on_modules: list[Any] = []
        self._are_resting = False
        self._fast_path: EncoderFastPath | None = None

    def put_on(
        self,
        module: nn.Module,
        *,
        pre_hook: ModuleHook[Any] | NativeHook | None = None,
        post_hook: ModuleHook[Any] | NativeHook | None = None,
        key: int | None = None,
        is_first: bool = False,
    ) -> bool:
        """Put a pair of hooks on a module, or one of them.

        Args:
            module: that is followed. A ``ScriptModule`` takes no hooks.
            pre_hook: forward pre-hook.
            post_hook: forward hook.
            key: of the hooks in the module's tables, see
                :func:`~torchtap.hooks.dynamo_hooks.shared_key`.
            is_first: the pre-hook comes before all others that are on the module now.

        Returns:
            whether the module takes hooks.
        """
        if isinstance(module, torch.jit.ScriptModule):
            return False
        if pre_hook is not None:
            tables: list[Any] = [module._forward_pre_hooks]
            if pre_hook.with_kwargs:
                tables.append(module._forward_pre_hooks_with_kwargs)
            self._pre_hooks.append(self._put_in(tables, pre_hook, key, is_first=is_first))
        if post_hook is not None:
            tables = [module._forward_hooks]
            if post_hook.with_kwargs:
                tables.append(module._forward_hooks_with_kwargs)
            if post_hook.always_call:
                tables.append(module._forward_hooks_always_called)
            self._others.append(self._put_in(tables, post_hook, key))
        return True

    def put_on_all(self, rows: list[Row], key: int, kept: dict[int, OwnEntries]) -> None:
        """Put hooks on many modules, as :meth:`put_on` does for each row.

        Args:
            rows: modules that take hooks, each with a pre-hook and a hook; ``None`` for none.
            key: of all hooks.
            kept: entries of tables by the addresses of these, to be used again.
        """
        if self.put_natively is not None:
            with tables_lock:
                self.put_natively(rows, key, self._pre_hooks, self._others, kept)
            self._on_modules += self._pre_hooks[-1], self._others[-1]
            return
        for module, pre_hook, post_hook in rows:
            self.put_on(module, pre_hook=pre_hook, post_hook=post_hook, key=key)

    def _put_in(
        self, tables: list[Any], hook: Any, key: int | None, *, is_first: bool = False
    ) -> HiddenHandle:
        key = new_key() if key is None else key
        with tables_lock:
            handle = HiddenHandle.put_in(key, hook, tables)
            if is_first:  # Before all others, whatever their roles.
                tables[0].move_to_end(key, last=False)
            elif len(tables[0]) > 1:
                put_by_role(tables[0], key)
        self._on_modules.append(handle)
        return handle

    def keep_fused_kernels(self, taps: Mapping[str, Tap], modules: Mapping[str, nn.Module]) -> None:
        """Let encoder layers with hooks of this owner run their fused kernel all the same.

        Args:
            taps: path -> tap of the modules with hooks.
            modules: path -> module.
        """
        self._fast_path = EncoderFastPath(taps)
        self._pre_hooks += self._fast_path.attach(modules)

    def hold(self, handles: Iterable[Any]) -> None:
        """Remove these handles together with the module hooks."""
        self._others += handles

    def rest(self) -> None:
        """Take the hooks on modules out of their tables, until they are woken."""
        if not self._are_resting:
            self._are_resting = True
            with tables_lock:
                for handle in self._on_modules:
                    handle.rest()

    def wake(self) -> None:
        """Put the hooks that rest back where they belong."""
        if self._are_resting:
            self._are_resting = False
            with tables_lock:
                for handle in self._on_modules:
                    handle.wake()

    def release(self) -> None:
        """Take every hook off."""
        # Pre-hooks go first: a call that another thread begins in between would be entered and
        # never left.
        self.remove_pre_hooks()
        _remove(self._others)
        self._on_modules.clear()
        if self._fast_path is not None:
            self._fast_path.release()

    def remove_pre_hooks(self) -> None:
        """Remove the pre-hooks. New calls are not followed; running calls still end normally."""
        _remove(self._pre_hooks)


def _remove(handles: list[Any]) -> None:
    with tables_lock:
        for handle in handles:
            handle.remove()
    handles.clear()

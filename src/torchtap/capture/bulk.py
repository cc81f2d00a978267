"""The taps and hooks of all modules of a plan, made natively in a few calls: ``bulk.c``.

A watch that is opened for one forward makes a tap, its states and its hooks for each module. Python
makes the first of each kind; the others are copies of it, but for what is their own. Without the
binary, and where hooks of a plan differ in kind, they are made one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from torchtap.capture.callbacks import PostForward
from torchtap.capture.delivery import SinkDispatch
from torchtap.capture.plain_calls import PlainHooks, kernel_with
from torchtap.hooks.call_follower import Row
from torchtap.hooks.hidden_handle import hooked
from torchtap.hooks.module_hook import NativeHook, NativePreHook
from torchtap.hooks.tap import Tap
from torchtap.hooks.tap_follower import CallCounter
from torchtap.stats.kernels import native

if TYPE_CHECKING:
    from torchtap.core.plan import Plan

_ENDS = frozenset({"output", "grad_output"})


def taps_maker(
    plan: Plan, delivery: SinkDispatch, copies: bool | None
) -> Callable[[Tap], list[Tap]] | None:
    """Return what makes the taps of a plan of one that has no sites, if they are made so.

    Args:
        plan: what is wanted.
        delivery: makes meters of sites.
        copies: what the states of the taps start with.
    """
    if kernel_with("make_taps") is None:
        return None
    return partial(_make_taps, plan, delivery, copies)


def _make_taps(plan: Plan, delivery: SinkDispatch, copies: bool | None, first: Tap) -> list[Tap]:
    meters = delivery.meters(plan.bare_sites)
    taps: list[Tap] = native.kernel().make_taps(first, plan.taps, copies, meters)
    return taps


def has_ends_alone(plan: Plan) -> bool:
    """Return whether all that is wanted of any module is what it returns, or its gradient."""
    return plan.ports <= _ENDS


def find_hooked(modules: list[nn.Module]) -> list[nn.Module]:
    """Return the modules that have hooks, as :func:`~torchtap.hooks.hidden_handle.hooked`."""
    kernel = kernel_with("hooked")
    found: list[nn.Module] | None = None if kernel is None else kernel.hooked(modules)
    return hooked(modules) if found is None else found


def make_hooks(
    plainly: PlainHooks, taps: Collection[Tap], modules: list[nn.Module], counted: set[int]
) -> tuple[list[Row], list[Any]] | None:
    """Make the hooks of taps of which only the end of a call is wanted, as one by one.

    Args:
        plainly: makes one of them natively.
        taps: whose hooks are made.
        modules: of these taps.
        counted: ids of modules whose calls are counted as they begin.

    Returns:
        a row for each tap, and the hooks of Python among and behind them; ``None`` where they have
        to be made one by one.
    """
    kernel = kernel_with("make_hooks")
    if kernel is None:
        return None
    listener, root, counts = plainly.listener, plainly.root, plainly.counts
    parts = (
        plainly.leaving(root, None, None),
        plainly.leave,
        NativeHook,
        PostForward(listener, root, has_frame=False),
        counts,
        None if counts is None else NativePreHook,
        CallCounter(listener, root),
    )
    rows: list[Row] = []
    own: list[Any] = []
    kernel.make_hooks(list(taps), modules, counted, parts, rows, own)
    return rows, own

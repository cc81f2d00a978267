"""Why a module that was selected was never seen, as far as a look at the model can tell."""

from __future__ import annotations

import sys

from torch import nn

from torchtap.core.plan import Plan
from torchtap.core.site import FLOW_PORTS
from torchtap.hooks.calls import is_container as has_no_forward
from torchtap.hooks.taps import SiteState


def is_compiler_used() -> bool:
    """Whether anything in this process may have been compiled."""
    return "torch._dynamo" in sys.modules


def why_not_called(plan: Plan, path: str, *, model_ran: bool, verb: str) -> str:
    """A reason for a module without a call.

    Args:
        plan: what was selected.
        path: the module's.
        model_ran: whether the model itself was called.
        verb: what is done to it, ``watch`` or ``edit``.
    """
    if is_container(plan, path):
        return "it has no forward: a container is never called"
    compiled = is_compiler_used()
    first = f"{verb} before the first compiled call, or call torch.compiler.reset()"
    if not model_ran:
        hint = f" (or it was compiled before: {first})" if compiled else ""
        return f"the model was not called in a step that was {verb}ed{hint}"
    hint = (
        f". Or it ran in a graph that was compiled without our hooks, before or for another model "
        f"of this class: {first}"
    )
    return (
        "the module was not called: its parent skipped it, or used its parameters without "
        "calling it (as nn.MultiheadAttention does with out_proj)" + (hint if compiled else "")
    )


def is_container(plan: Plan, path: str) -> bool:
    """Whether the module cannot be called at all, as ``nn.ModuleList``."""
    planned = next((one for one in plan.taps if one.path == path), None)
    module = None if planned is None else planned.module()
    return module is not None and has_no_forward(module)


def _is_untouched(state: SiteState) -> bool:
    """Whether it was made beforehand, for a bare tensor, and no tensor ever came there."""
    return state.site.port in FLOW_PORTS and not (state.seen or state.expected or state.reason)


def _why_missing(state: SiteState) -> str | None:
    """Why a site has nothing, or less than it should; ``None`` if all came."""
    missing = state.expected - state.received
    if state.seen and missing <= 0:
        return None
    if state.reason is not None:
        return state.reason
    if state.seen:
        return f"no gradient arrived for {missing} of {state.expected} calls"
    if missing > 0:
        inside = ", is computed from it inside a compiled graph only" if is_compiler_used() else ""
        return (
            f"no gradient arrived: no backward was run, the loss does not depend on it{inside}, or "
            f"it is a view that was overwritten later"
        )
    if state.site.port in ("step_grad", "update"):
        return "no optimizer made a step with it"
    if state.site.port == "param_grad":
        return "no backward reached the parameter"
    return "it was not seen"


def _is_compiled(model: nn.Module) -> bool:
    modules = [model, *model.modules()]
    return any(
        type(module).__name__ == "OptimizedModule"
        or getattr(module, "_compiled_call_impl", None) is not None
        for module in modules
    )

"""Why a module that was selected was never seen, as far as a look at the model can tell."""

from __future__ import annotations

import sys

from torchtap.core.plan import Plan
from torchtap.hooks.calls import is_container as has_no_forward


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

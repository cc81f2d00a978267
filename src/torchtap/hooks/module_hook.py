"""A hook of ours on a module, and its role.

A copy or a pickle of a model has none of them, see :mod:`torchtap.hooks.hidden_handle`. A hook that
is copied by itself, past its table, becomes a no-op: a bound method of the standard library, so
that a saved model loads where torchtap is not installed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import torch

from torchtap.core.after_import import after_import
from torchtap.core.torch_private import DYNAMO, run_uncompiled
from torchtap.hooks.tap import Tap

Owner = TypeVar("Owner")

VALUES = (
    "torchtap: tt.watch keeps values, and a compiled graph hands none out. Watch with "
    "to=tt.Stats(), compile with fullgraph=False, or export with strict=False"
)


EDITS = (
    "torchtap: tt.edit runs Python between the modules of the model, which a compiled graph "
    "cannot. Compile with fullgraph=False, or export with strict=False"
)


MARKS = (
    "torchtap: a tt.mark that is watched or edited runs Python inside the model, which a compiled "
    "graph cannot. Compile with fullgraph=False, or watch modules with to=tt.Stats()"
)


HOOK = (
    "torchtap: this hook runs Python that a compiled graph cannot contain. Compile with "
    "fullgraph=False; where it is run by backward or by an optimizer, leaving those out of what is "
    "compiled will do"
)
"""Why a graph breaks at a hook of ours, for the error of ``fullgraph=True``."""


Keywords = dict[str, Any] | None
"""Keyword arguments of a call. PyTorch notes apart from a hook that it takes them, and passes none
to a hook that another thread is taking off at this moment. So parameters of hooks have defaults,
and a forward hook is then given the output in the place of the keywords."""
WATCH_BEFORE, EDIT, WATCH_AFTER = "watch before", "edit", "watch after"
"""Roles of a hook: reads values before all edits, replaces them, or reads them after all edits."""
FOLLOW, NEEDED = "follow", "needed"
"""Roles of a hook whose place in the table does not matter. One that is needed must be called: it
keeps a fused kernel from running in place of its module."""


def _as_nothing(hook: object, memo: object = None) -> Callable[..., None]:
    """Return the copy of a hook: a function that does nothing."""
    return contextlib.nullcontext().__exit__


def _reduced(hook: object) -> tuple[Any, ...]:
    """Return the pickle of a hook: of a function that does nothing."""
    return getattr, (contextlib.nullcontext(), "__exit__")


def _without_name(hook: object, name: str) -> Any:
    """Say of an attribute that it is not there."""
    if name == "__name__":  # By which torch.jit.script would look for the source.
        raise AttributeError(
            "torch.jit.script cannot compile the hooks of torchtap: close what is attached to "
            "the model first"
        )
    raise AttributeError(f"{type(hook).__name__!r} object has no attribute {name!r}")


class ModuleHook(Generic[Owner]):
    """A hook of ours on a module.

    Args:
        owner: of the hook, which takes it off. An engine of a watch or of an edit, for instance.
        role: decides the order among our hooks, see :mod:`torchtap.hooks.hook_order`.

    Attributes:
        with_kwargs: as in ``register_forward_hook``: the keyword arguments are passed too.
        always_call: as in ``register_forward_hook``: called also if the module raises.
    """

    __slots__ = ("owner", "role")

    with_kwargs: ClassVar[bool] = False
    always_call: ClassVar[bool] = False

    __call__: Callable[..., Any]  # Of a subclass, as PyTorch calls that kind of hook.

    def __init__(self, owner: Owner, role: str = FOLLOW) -> None:
        self.owner = owner
        self.role = role

    __getattr__ = _without_name
    __deepcopy__ = __copy__ = _as_nothing
    __reduce__ = _reduced


class NativeHook(partial):  # type: ignore[type-arg]
    """A native function as a hook on a module, in front of a hook of ours that does the rest.

    Its second argument is that hook, and the first what the function knows. The compiler traces the
    hook itself, see :func:`trace_hooks_behind`.
    """

    __slots__ = ()

    with_kwargs = always_call = True

    @property
    def role(self) -> str:
        """Return the role of the hook behind it."""
        role: str = self.args[1].role
        return role

    __getattr__ = _without_name
    __deepcopy__ = __copy__ = _as_nothing
    __reduce__ = _reduced


class NativePreHook(NativeHook):
    """A native forward pre-hook."""

    __slots__ = ()

    with_kwargs = always_call = False


OWN_HOOKS = (ModuleHook, NativeHook)
"""The classes of our hooks on modules."""


class TapHook(ModuleHook[Owner]):
    """A hook of ours on a module that is tapped.

    Args:
        tap: of the module.
    """

    __slots__ = ("tap",)

    # All in one: a watch of one forward makes as many hooks as it sees calls.
    def __init__(self, owner: Owner, tap: Tap, role: str = FOLLOW) -> None:
        self.owner = owner
        self.tap = tap
        self.role = role


def _call(hook: Any, *arguments: Any) -> Any:
    return hook(*arguments)


def trace_hooks_behind(
    *functions: Any, find_trace: Callable[[], Callable[..., Any]] = lambda: _call
) -> None:
    """Let the compiler trace the hook behind a :class:`NativeHook` of these functions instead.

    Dynamo cannot look into a C function and would break the graph at each hook.

    Args:
        functions: native ones.
        find_trace: returns what is traced, of a hook and its arguments, once there is a compiler;
            by default a call of the hook.
    """

    def substitute() -> None:
        trace = find_trace()
        for function in functions:

            @torch.compiler.substitute_in_graph(function, skip_signature_check=True)
            def trace_hook(known: Any, hook: Any, *arguments: Any) -> Any:
                return trace(hook, *arguments)

    after_import(DYNAMO, substitute)


def run_as_it_is(*functions: Any) -> None:
    """Let ``torch.compile`` never compile a call of the function, nor of what it calls.

    Where such a call stands inside a function that is compiled, it is traced like any other.
    """
    for function in functions:
        run_uncompiled(function)


def keep_dynamo_out(*functions: Any, reason: str = HOOK) -> None:
    """Let ``torch.compile`` break its graph here and run the function, and all below, as it is.

    Costs nothing in eager mode, which ``torch.compiler.disable`` does not.

    Args:
        functions: plain functions.
        reason: what the error of ``fullgraph=True`` says: whose function it is, and the ways out.
    """
    run_as_it_is(*functions)
    for function in functions:
        # As torch.compiler.disable sets it, less the wrapper that it makes, through which every
        # eager call would go.
        function._torchdynamo_disable = True
        function._torchdynamo_disable_msg = reason

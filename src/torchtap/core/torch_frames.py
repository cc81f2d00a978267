"""Functions of PyTorch that are found on the stack, and what their frames tell.

Each has its purpose in the table of :mod:`~torchtap.core.private_names`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import CodeType, FrameType, FunctionType, MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from torchtap.core.private_names import (
    GONE,
    NEVER_RUNS,
    WATCHING,
    code_of,
    find,
    note,
    private,
)


def _code(
    name: str,
    purpose: str,
    *,
    doors: tuple[str, ...] = (),
    without: str = "",
    variables: tuple[str, ...] = (),
) -> CodeType:
    """Note a function whose frame is looked for on the stack, and give its code."""
    note(name, purpose, doors=doors, without=without, variables=variables)
    return code_of(find(name))


_BACKWARD = _code(
    "torch.autograd.backward",
    "its frame has the gradients that the caller handed in",
    doors=WATCHING,
    variables=("grad_tensors",),
)
_GRAD = _code(
    "torch.autograd.grad",
    "its frame has the gradients that the caller handed in, and what they are asked for",
    doors=WATCHING,
    variables=("grad_outputs", "inputs"),
)
_GIVEN: Mapping[CodeType, str] = MappingProxyType(
    {_BACKWARD: "grad_tensors", _GRAD: "grad_outputs"}
)
_ENGINE = _code(
    "torch.autograd.graph._engine_run_backward",
    "every backward runs through it",
    without="torch.autograd.backward and grad are looked for, which other callers may leave out",
)
RUN_BACKWARD = frozenset({_BACKWARD, _GRAD} if _ENGINE is NEVER_RUNS else {_ENGINE})
"""Codes of which one stands on the stack for every backward that runs there."""

MAKES_GRADIENTS = _code(
    "torch.autograd._make_grads",
    "a backward of a loss that was given no gradient makes the gradient 1 by it",
    without="tt.locate and tt.guard do not know that the tensor is a loss",
)

FUNCTION_BACKWARD = _code(
    "torch.autograd.function.BackwardCFunction.apply",
    "the backward of every custom function runs through it",
    doors=WATCHING,
)
profile_hook_step: Callable[[Any], Any] = private(
    "torch.optim.Optimizer.profile_hook_step",
    "returns the function that stands around each step of an optimizer",
    without="hooks that were left by a watch without close() are removed though a step may run",
    otherwise=lambda step: None,
)
CHECKPOINT_FORWARD = _code(
    "torch.utils.checkpoint.CheckpointFunction.forward",
    "its frame has what a reentrant checkpoint was called with",
    doors=("tt.features",),
    variables=("args",),
)
CHECKPOINTS = "torch.utils.checkpoint"
"""Module of both kinds of checkpoints, whose functions are recognised by its name."""
note(
    "torch.utils.checkpoint._checkpoint_hook",
    "the unpack_hook of a non-reentrant checkpoint, in whose closure is its frame with saved_args",
    without="calls that such a checkpoint computes again have the phase 'backward'",
)


note(
    "torch.utils.checkpoint._current_user_saved_tensors_hooks",
    "asks a pack hook for _checkpoint_internal and _user_hooks, on behalf of a selective "
    "checkpoint with respect_saved_tensors_hooks (2.15)",
    without="a selective checkpoint inside of tt.offload does as PyTorch does around any hooks",
    since=(2, 15),
)


def is_left_open(frame: FrameType) -> bool:
    """Return whether a selective checkpoint asks for user hooks and was not told to call them.

    Args:
        frame: of the function that asks.
    """
    asked_by = frame.f_back
    if asked_by is None or asked_by.f_globals.get("__name__") != CHECKPOINTS:
        return False
    checkpoint = asked_by.f_locals.get("self")
    return getattr(checkpoint, "respect_saved_tensors_hooks", GONE) is None


def adds_to_buffers(node: Any) -> bool:
    """Return whether a node may add its gradients into others' buffers, which no hook may look at.

    The backward of a custom function that reads ``ctx.input_grad_buffers`` (since 2.15) raises
    where its node has a hook. It is told by the names in the code of that backward, and of the
    functions that it calls by a global name.
    """
    kind = getattr(node, "_forward_cls", None)
    if kind is None or not hasattr(torch.autograd.function.FunctionCtx, _BUFFERS):
        return False
    found = _adding.get(kind)
    if found is None:
        found = _adding[kind] = _names_buffers(kind.backward)
    return found


_BUFFERS = "input_grad_buffers"
_adding: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


def _names_buffers(function: Any) -> bool:
    names: set[str] = set()
    for one in _wrapped(function):
        names |= _names_in(code_of(one))
        known = getattr(one, "__globals__", {})
        called = [known[name] for name in names & known.keys()]
        names.update(*(_names_in(code_of(it)) for it in called if isinstance(it, FunctionType)))
    return _BUFFERS in names


def _names_in(code: CodeType) -> set[str]:
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    texts = {one for one in code.co_consts if isinstance(one, str)}  # As getattr is given.
    return {*code.co_names, *texts}.union(*map(_names_in, inner))


def given_to_backward(frame: FrameType) -> list[Tensor] | None:
    """Gradients that a frame, if it runs a backward, was given; ``None`` of any other frame."""
    name = _GIVEN.get(frame.f_code)
    if name is None:
        return None
    given = frame.f_locals[name]
    return [one for one in (given if isinstance(given, Sequence) else [given]) if _is_tensor(one)]


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


def asked_of_backward(frame: FrameType) -> Any:
    """Return the ``inputs`` of ``torch.autograd.grad`` from its frame; ``None`` otherwise."""
    return frame.f_locals.get("inputs") if frame.f_code is _GRAD else None


def is_in_function(*, is_recorded: bool = False) -> bool:
    """Return whether this thread is inside the forward of a custom function.

    A graph that ``torch.compile`` made is run by such a function too, and does not count: in the
    program there is none.

    Since 2.14 ``Function.apply`` is a function of C and has no frame, so the forwards themselves
    are looked for, by their code. Decorators may share theirs with functions of other kinds: such
    a frame counts if it was handed the context, which is the node of the function.

    Args:
        is_recorded: count those alone that autograd records, as far as their context tells: with
            gradients on, of an input that requires one.
    """
    codes = _forwards()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        has_context = codes.get(frame.f_code)
        if has_context is False:
            return True
        context = _given_context(frame) if has_context else None
        if context is not None and (context.next_functions or not is_recorded):
            return True
        frame = frame.f_back
    return False


def _forwards() -> Mapping[CodeType, bool]:
    """Code of the forward of every custom function -> whether it is given a context."""
    global _classes, _codes
    classes: list[Any] = [torch.autograd.Function]
    for kind in classes:
        # While it is walked, so that subclasses of subclasses come too; by type, since a metaclass
        # may define the name.
        classes += type.__subclasses__(kind)
    # Programs make such classes at any time, and this is asked at each evaluation forward.
    if classes != _classes:
        _classes, _codes = classes, dict(_codes_of(classes))
    return _codes


_classes: list[Any] = []
_codes: dict[CodeType, bool] = {}


def _codes_of(classes: Iterable[Any]) -> Iterator[tuple[CodeType, bool]]:
    for kind in classes:
        if (kind.__module__, kind.__name__) == _RUNS_GRAPHS:
            continue
        forward = vars(kind).get("forward")
        has_context = kind.setup_context is torch.autograd.Function.setup_context
        for function in _wrapped(getattr(forward, "__func__", forward)):
            yield code_of(function), has_context


def _wrapped(function: Any) -> Iterable[Any]:
    """Yield a function and those that it wraps."""
    for _ in range(_MOST_WRAPPERS):
        if function is None:
            return
        yield function
        function = getattr(function, "__wrapped__", None)


_MOST_WRAPPERS = 16
_RUNS_GRAPHS = ("torch._functorch._aot_autograd.runtime_wrappers", "CompiledFunction")
"""The module and the name of the functions, one a graph, that run what was compiled."""


def _given_context(frame: FrameType) -> Any:
    code = frame.f_code
    given = frame.f_locals.get(code.co_varnames[0]) if code.co_varnames else None
    if isinstance(given, tuple) and given:  # ``*args`` of a decorator.
        given = given[0]
    return given if isinstance(given, torch.autograd.function.BackwardCFunction) else None

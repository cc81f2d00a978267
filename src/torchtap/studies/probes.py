"""Tries on small examples that each private name of PyTorch still does what torchtap reads in it.

A name may stay and change its meaning, which no look for the name would notice. The table at the
end has a probe for every name of ``torchtap.core.torch_private.NAMES``.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import FrameType, MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from torchtap.core import torch_nodes, torch_private
from torchtap.core.torch_private import NAMES, PrivateName, find, release_of
from torchtap.hooks.saved_pairs import make_pair, push, remove

Probe = Callable[[], bool]
# Classes of torch whose methods have no annotations.
_Function: Any = torch.autograd.Function
_Tensor: Any = Tensor
_DispatchMode: Any = TorchDispatchMode
_FunctionMode: Any = TorchFunctionMode


def trouble_with(name: PrivateName) -> str:
    """Why a private name cannot be relied on here; empty where it can."""
    if not name.is_there():
        return f"torch {torch.__version__} does not have it"
    is_late = release_of(torch.__version__) < name.since
    if is_late or (name.module and name.module not in sys.modules):
        return ""  # Nothing of it runs.
    try:
        holds = PROBES[name.name]()
    except Exception as error:  # noqa: BLE001 - whatever it raises, it is not what it was
        return f"{type(error).__name__}: {error}"
    return "" if holds else "it does something else than in the versions that were tried"


def _in_backward(look: Callable[[], Any]) -> list[Any]:
    """Return the results of a function that a hook of a gradient calls."""
    seen: list[Any] = []
    x: Any = torch.ones(2, requires_grad=True)
    y = x * 3
    y.register_hook(lambda gradient: seen.append(look()))
    y.sum().backward()
    return seen


def _current_task() -> bool:
    return torch_private.current_task() == -1 and _in_backward(torch_private.current_task)[0] >= 0


def _current_node() -> bool:
    return bool(_in_backward(torch_private.current_node)[0].name() == "MulBackward0")


def _will_run() -> bool:
    x: Any = torch.ones(2, requires_grad=True)
    other: Any = torch.ones(2, requires_grad=True)
    y, aside = x * 3, other * 3
    seen: list[bool] = []
    z = y * 2
    z.register_hook(
        lambda gradient: seen.extend(map(torch_private.will_run, (y.grad_fn, aside.grad_fn)))
    )
    z.sum().backward()
    return seen == [True, False]


def _sequence_number() -> bool:
    x: Any = torch.ones(2, requires_grad=True)
    first = torch_private.sequence_number()
    made = x * 3
    return bool(made.grad_fn._sequence_nr() == first)


def _call_after_backward() -> bool:
    x: Any = torch.ones(2, requires_grad=True)
    y = x * 3
    had: list[bool] = []
    y.register_hook(
        lambda gradient: torch_private.call_after_backward(lambda: had.append(x.grad is not None))
    )
    y.sum().backward()
    return had == [True]


def _saved_hooks() -> bool:
    below = torch_private.top_saved_hooks(True)
    pair = (lambda tensor: tensor, lambda packed: packed)
    torch_private.push_saved_hooks(*pair)
    try:
        return tuple(torch_private.top_saved_hooks(True)) == pair
    finally:
        torch_private.pop_saved_hooks()
        assert torch_private.top_saved_hooks(True) == below


def _may_push_saved_hooks() -> bool:
    was_allowed = torch_private.may_push_saved_hooks()
    with torch.autograd.graph.disable_saved_tensors_hooks("a probe"):
        return was_allowed and not torch_private.may_push_saved_hooks()


def _saved_tensor() -> bool:
    x: Any = torch.ones(2, requires_grad=True)
    node: Any = (x * x).grad_fn
    return isinstance(node._raw_saved_self, torch_private.saved_tensor_class)


def _node_hooks() -> bool:
    def hook(*_: Any) -> None:
        pass

    node: Any = (torch.ones(2, requires_grad=True) * 3).grad_fn
    node.register_hook(hook)
    with torch_private.node_hooks() as show:
        return show(node) == ([], [hook])


def _transform_running() -> bool:
    seen: list[bool] = []

    def function(x: Tensor) -> Tensor:
        seen.append(torch_private.transform_running() is not None)
        seen.append(torch_private.is_of_transform(x))
        return x.sum()

    torch.func.grad(function)(torch.ones(2))
    is_outside = torch_private.transform_running() is None
    return is_outside and seen == [True, True] and not torch_private.is_of_transform(torch.ones(1))


def _is_legacy_batched() -> bool:
    x: Any = torch.ones(2, requires_grad=True)
    y = x * 3
    seen: list[bool] = []
    y.register_hook(
        lambda gradient: seen.append(
            torch_private.is_legacy_batched(gradient) or torch_private.is_of_transform(gradient)
        )
    )
    torch.autograd.grad(y, x, torch.eye(2), is_grads_batched=True)
    return seen == [True] and not torch_private.is_legacy_batched(x)


def _tracing_state() -> bool:
    seen: list[bool] = []

    def function(x: Tensor) -> Tensor:
        seen.append(torch_private.tracing_state() is not None)
        return x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch deprecates torch.jit, release by release.
        torch.jit.trace(function, (torch.ones(2),), check_trace=False)  # type: ignore[no-untyped-call]
    return torch_private.tracing_state() is None and seen[:1] == [True]


def _num_dispatch_modes() -> bool:
    class Mode(_DispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return function(*args, **(kwargs or {}))

    before = torch_private.num_dispatch_modes()
    with Mode():
        return torch_private.num_dispatch_modes() == before + 1


class _Counting(_Tensor):  # type: ignore[misc]
    """A subclass that counts what it is asked."""

    num_asked = 0

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        cls.num_asked += 1
        return super().__torch_function__(function, types, args, kwargs or {})


def _without_modes() -> bool:
    seen: list[Any] = []

    class Mode(_DispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Mode():
        with torch_private.without_modes():
            torch.ones(2)
        before = len(seen)
        torch.ones(2)
    return before == 0 and len(seen) == 1


def _without_torch_function() -> bool:
    tensor = torch.ones(2).as_subclass(_Counting)
    before = _Counting.num_asked
    with torch_private.without_torch_function():
        torch.neg(tensor)
    return _Counting.num_asked == before


def _without_torch_functions() -> bool:
    seen: list[Any] = []

    class Mode(_FunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(function)
            return function(*args, **(kwargs or {}))

    with Mode():
        with torch_private.without_torch_functions():
            torch.neg(torch.ones(2))
        inside = list(seen)
        torch.neg(torch.ones(2))
    return not inside and torch.neg in seen


def _no_dispatch() -> bool:
    return torch.Tensor.__torch_dispatch__ is torch_private.NO_DISPATCH


def _is_class(name: str) -> Probe:
    return lambda: isinstance(find(name), type)


def _set_grad_enabled() -> bool:
    with torch.enable_grad():
        torch_private.set_grad_enabled(False)
        return not torch.is_grad_enabled()


def _autocast() -> bool:
    with torch.autocast("cpu"):
        was_on = torch_private.is_any_autocast_enabled()
        with torch_private.without_autocast():
            is_off = not torch.is_autocast_enabled("cpu")
        return was_on and is_off and torch.is_autocast_enabled("cpu")


def _negated_view() -> bool:
    tensor = torch.arange(3.0)
    view = torch_private.negated_view(tensor)
    return torch.equal(view, -tensor) and view.data_ptr() == tensor.data_ptr()


def _mkldnn() -> bool:
    return isinstance(torch_private.MKLDNN, torch.layout)


def _frame_action() -> bool:
    def function() -> None:
        pass

    torch_private.run_uncompiled(function)
    return True


def _callback_handler() -> bool:
    handler = find("torch._dynamo.callback.callback_handler")
    before = len(handler.start_callbacks)
    off = torch_private.before_compiling(lambda: None)
    num = len(handler.start_callbacks)
    off()
    return num == before + 1 and len(handler.start_callbacks) == before


def _dynamo_config() -> bool:
    config, name = find("torch._dynamo.config"), "skip_nnmodule_hook_guards"

    def seen() -> Any:
        # By another thread: what this one has assigned hides the default from it.
        with ThreadPoolExecutor(1) as other:
            return other.submit(getattr, config, name).result()

    was = seen()
    before = torch_private.set_default(config, name, not was)
    try:
        return seen() is not was
    finally:
        torch_private.set_default(config, name, before)


def _is_there(name: str) -> Probe:
    return lambda: find(name) is not torch_private.GONE


def _parametrised() -> bool:
    """A module that is made a parametrised one by hand computes its weight by the modules of it."""
    made: Any = torch.nn.Module()
    weight = torch.full((2,), 3.0)
    made.parametrizations = torch.nn.ModuleDict(
        {"weight": parametrize.ParametrizationList([torch.nn.Softplus()], weight, unsafe=True)}
    )
    find("torch.nn.utils.parametrize._inject_new_class")(made)
    find("torch.nn.utils.parametrize._inject_property")(made, "weight")
    computed = torch.nn.functional.softplus(made.parametrizations["weight"].original)
    return torch.equal(made.weight, computed) and parametrize.is_parametrized(made, "weight")


def _given_to_backward() -> bool:
    x: Any = torch.ones(2, requires_grad=True)
    y = x * 3
    given = torch.full((2,), 5.0)
    seen: list[Any] = []
    y.register_hook(lambda gradient: seen.append(_on_stack(torch_private.given_to_backward)))
    y.backward(given, retain_graph=True)
    torch.autograd.grad(y, x, given)
    return len(seen) == 2 and all(len(one) == 1 and one[0] is given for one in seen)


def _on_stack(ask: Callable[[FrameType], Any]) -> Any:
    """Return a function's answer for the innermost frame for which it has one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found = ask(frame)
        if found is not None:
            return found
        frame = frame.f_back
    return None


def _asked_of_backward() -> bool:
    x: Any = torch.ones(2, requires_grad=True)
    y = x * 3
    seen: list[Any] = []
    y.register_hook(lambda gradient: seen.append(_on_stack(torch_private.asked_of_backward)))
    torch.autograd.grad(y.sum(), [x])
    return len(seen) == 1 and seen[0][0] is x


def _run_backward() -> bool:
    def ask(frame: FrameType) -> Any:
        return frame.f_code in torch_private.RUN_BACKWARD or None

    return _in_backward(lambda: _on_stack(ask)) == [True]


def _make_gradients() -> bool:
    seen: list[Any] = []

    class Mode(_DispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func._opname == "ones_like":
                seen.append(
                    _on_stack(lambda one: one.f_code is torch_private.MAKES_GRADIENTS or None)
                )
            return func(*args, **(kwargs or {}))

    x: Any = torch.ones(2, requires_grad=True)
    loss = (x * 3).sum()
    with Mode():
        loss.backward()
    return seen == [True]


class _Triple(_Function):  # type: ignore[misc]
    """A custom function that notes which frames run it."""

    seen: list[Any]

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        _Triple.seen = [torch_private.is_in_function()]
        return x * 3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        def ask(frame: FrameType) -> Any:
            return frame.f_code is torch_private.FUNCTION_BACKWARD or None

        _Triple.seen += [_on_stack(ask), torch_private.is_in_function()]
        return gradient * 3


def _function_backward() -> bool:
    x: Any = torch.ones(2, requires_grad=True)
    _Triple.apply(x).sum().backward()
    return _Triple.seen == [True, True, False] and not torch_private.is_in_function()


def _profile_hook_step() -> bool:
    code = torch_private.code_of(torch_private.profile_hook_step(lambda: None))
    optimizer = torch.optim.SGD([torch.ones(2, requires_grad=True)])
    seen: list[Any] = []
    optimizer.register_step_pre_hook(
        lambda *_: seen.append(_on_stack(lambda frame: frame.f_code is code or None))
    )
    optimizer.step()
    return seen == [True]


def _checkpoint_forward() -> bool:
    seen: list[Any] = []

    def ask(frame: FrameType) -> Any:
        is_it = frame.f_code is torch_private.CHECKPOINT_FORWARD
        return frame.f_locals["args"] if is_it else None

    def function(x: Tensor) -> Tensor:
        seen.append(_on_stack(ask))
        return x * 3

    x: Any = torch.ones(2, requires_grad=True)
    y = checkpoint(function, x, use_reentrant=True)
    is_named = type(y.grad_fn).__name__ == torch_nodes.CHECKPOINT
    return is_named and seen[0][0] is x


def _user_hooks_of_a_checkpoint() -> bool:
    """Runs as a method of a selective checkpoint would, told nothing, and told to call them."""
    asked = find("torch.utils.checkpoint._current_user_saved_tensors_hooks")
    holder = type("Selective", (), {"respect_saved_tensors_hooks": None, "ask": None})()
    source = "def ask(self, asked): return asked()"
    scope: dict[str, Any] = {"__name__": torch_private.CHECKPOINTS}
    exec(source, scope)  # As a function of PyTorch's file: the hook looks at where it is asked.
    below, pair = torch_private.top_saved_hooks(True), make_pair(lambda one: one, lambda one: one)
    push(pair)
    try:
        is_skipped = scope["ask"](holder, asked) == below
        holder.respect_saved_tensors_hooks = True
        return is_skipped and scope["ask"](holder, asked)[0] is pair[0]
    finally:
        remove(pair)


def _checkpoint_hook() -> bool:
    x: Any = torch.ones(2, requires_grad=True)
    y = checkpoint(lambda one: one * one, x, use_reentrant=False)
    hook = y.grad_fn._raw_saved_self.unpack_hook
    number, inputs = torch_private.checkpoint_inputs(hook)
    return number > 0 and len(inputs) == 1


PROBES: Mapping[str, Probe] = MappingProxyType(
    {
        "torch._C._current_graph_task_id": _current_task,
        "torch._C._current_autograd_node": _current_node,
        "torch._C._will_engine_execute_node": _will_run,
        "torch._C._autograd._get_sequence_nr": _sequence_number,
        "torch.autograd.Variable._execution_engine": _call_after_backward,
        "torch._C._autograd._push_saved_tensors_default_hooks": _saved_hooks,
        "torch._C._autograd._pop_saved_tensors_default_hooks": _saved_hooks,
        "torch._C._autograd._top_saved_tensors_default_hooks": _saved_hooks,
        "torch._C._autograd._saved_tensors_hooks_is_enabled": _may_push_saved_hooks,
        "torch._C._autograd.SavedTensor": _saved_tensor,
        "torch.autograd.function._HookMixin": _node_hooks,
        "torch._C._functorch.peek_interpreter_stack": _transform_running,
        "torch._C._functorch.is_functorch_wrapped_tensor": _transform_running,
        "torch._C._functorch.is_legacy_batchedtensor": _is_legacy_batched,
        "torch._C._get_tracing_state": _tracing_state,
        "torch._C._len_torch_dispatch_stack": _num_dispatch_modes,
        "torch.utils._python_dispatch._disable_current_modes": _without_modes,
        "torch._C.DisableTorchFunctionSubclass": _without_torch_function,
        "torch._C.DisableTorchFunction": _without_torch_functions,
        "torch._C._disabled_torch_dispatch_impl": _no_dispatch,
        "torch._C.ScriptObject": _is_class("torch._C.ScriptObject"),
        "torch._C._set_grad_enabled": _set_grad_enabled,
        "torch._C._is_any_autocast_enabled": _autocast,
        "torch._C._DisableAutocast": _autocast,
        "torch._neg_view": _negated_view,
        "torch._mkldnn": _mkldnn,
        "torch._C._dynamo.eval_frame._FrameAction": _frame_action,
        "torch._C._dynamo.eval_frame._FrameExecStrategy": _frame_action,
        "torch._dynamo.callback.callback_handler": _callback_handler,
        "torch._higher_order_ops.effects._register_effectful_op": _is_there(
            "torch._higher_order_ops.effects._register_effectful_op"
        ),
        "torch._dynamo.config._config": _dynamo_config,
        "torch.distributed._composable_state._module_state_mapping": _is_there(
            "torch.distributed._composable_state._module_state_mapping"
        ),
        "torch.distributed.pipelining.stage.PipelineStage._forward_metadata_inference": _is_there(
            "torch.distributed.pipelining.stage.PipelineStage._forward_metadata_inference"
        ),
        "torch.distributed.pipelining.schedules._PipelineSchedule": _is_there(
            "torch.distributed.pipelining.schedules._PipelineSchedule"
        ),
        "torch.jit._builtins._register_builtin": _is_there("torch.jit._builtins._register_builtin"),
        "torch.nn.utils.parametrize._inject_new_class": _parametrised,
        "torch.nn.utils.parametrize._inject_property": _parametrised,
        "torch.autograd.backward": _given_to_backward,
        "torch.autograd.grad": _asked_of_backward,
        "torch.autograd.graph._engine_run_backward": _run_backward,
        "torch.autograd._make_grads": _make_gradients,
        "torch.autograd.function.BackwardCFunction.apply": _function_backward,
        "torch.optim.Optimizer.profile_hook_step": _profile_hook_step,
        "torch.utils.checkpoint.CheckpointFunction.forward": _checkpoint_forward,
        "torch.utils.checkpoint._checkpoint_hook": _checkpoint_hook,
        "torch.utils.checkpoint._current_user_saved_tensors_hooks": _user_hooks_of_a_checkpoint,
    }
)
"""Name -> what tries it."""


def troubles() -> dict[str, str]:
    """Private names that cannot be relied on here -> why; empty where all can."""
    found = {one.name: trouble_with(one) for one in NAMES.values()}
    return {name: why for name, why in found.items() if why}

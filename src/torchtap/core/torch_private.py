"""The private names of PyTorch that torchtap uses, each with what it is for.

Read against PyTorch 2.13. PyTorch may change any of them without notice, so this is the file to
read against the sources of a new release; a test says where else private names may stand.

Besides these names, attributes of tensors, modules and nodes are read where they are needed:
``Tensor._version``, ``_base``, ``_is_view()`` and ``_backward_hooks``; the tables of a module
(``_parameters``, ``_buffers``, ``_forward_hooks``, ``_forward_pre_hooks``); and ``_sequence_nr()``
and ``metadata`` of a node.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Variable, graph
from torch.jit._builtins import _register_builtin

# ---------------------------------------------------------------------- autograd

current_task: Callable[[], int] = torch._C._current_graph_task_id
"""Number of the backward that this thread is inside of, -1 outside."""

current_node: Callable[[], Any] = torch._C._current_autograd_node
"""The node that runs in this thread; only inside a backward."""

will_run: Callable[[Any], bool] = torch._C._will_engine_execute_node
"""Whether the running backward will run a node. Raises ``RuntimeError`` for a leaf whose gradient
``torch.autograd.grad`` was asked for."""

sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
"""Number that the next node of this thread will get."""

autograd_engine: Any = Variable._execution_engine
"""Its ``queue_callback`` runs a function when the running backward has ended well."""

RUN_BACKWARD = graph._engine_run_backward.__code__
"""Code of the function that every backward runs through, to find its frame on the stack."""

push_saved_hooks: Callable[..., None] = torch._C._autograd._push_saved_tensors_default_hooks
pop_saved_hooks: Callable[[], None] = torch._C._autograd._pop_saved_tensors_default_hooks
top_saved_hooks: Callable[[bool], Any] = torch._C._autograd._top_saved_tensors_default_hooks
"""The stack of pairs of saved-tensor hooks of this thread. The argument of the last: return
``None`` instead of raising where hooks are forbidden."""

may_push_saved_hooks: Callable[[], bool] = torch._C._autograd._saved_tensors_hooks_is_enabled  # type: ignore[attr-defined]
"""Whether saved-tensor hooks are allowed here: ``torch.func``, or the user, may forbid them."""


class _Found(Exception):
    """Carries the table of hooks of a node out of the call that would add to it."""


def _nothing(*_: Any) -> None:
    """Stands for a hook that is never put on."""


@contextmanager
def node_hooks() -> Iterator[Callable[[Any], tuple[list[Any], list[Any]]]]:
    """Yields what tells the functions that stand before and after an autograd node.

    PyTorch shows the hooks of a node to none but the function by which it adds one, and looks that
    up anew for each. So inside the block the function raises where it is asked to add a hook of
    ours, with what it was shown: nothing is added. Hooks that others add meanwhile are added.
    """

    def show(table: Any, hook: Any) -> Any:
        if hook is _nothing:
            raise _Found([] if table is None else list(table.values()))
        return own(table, hook)

    with _adding_hooks:
        own = graph_hooks_class._register_hook
        graph_hooks_class._register_hook = staticmethod(show)
        try:
            yield lambda node: (_shown(node.register_prehook), _shown(node.register_hook))
        finally:
            graph_hooks_class._register_hook = staticmethod(own)


def _shown(register: Callable[[Any], Any]) -> list[Any]:
    try:
        register(_nothing)
    except _Found as found:
        return list(found.args[0])
    raise AssertionError("PyTorch did not ask for the function that adds hooks to nodes")


_adding_hooks = threading.Lock()
graph_hooks_class: Any = torch.autograd.function._HookMixin
"""Its ``_register_hook`` adds a hook to a table of a node."""


saved_tensor_class = torch._C._autograd.SavedTensor
"""Autograd's handle of what a node keeps."""


def checkpoint_inputs(unpack_hook: Any) -> tuple[int, list[Any]]:
    """A number of a non-reentrant checkpoint, and autograd's handles of the inputs that it keeps.

    Args:
        unpack_hook: of a tensor that the checkpoint computes again.
    """
    names = getattr(getattr(unpack_hook, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(unpack_hook, "__closure__", None) or (), strict=False):
        if name == "frame":
            frame = cell.cell_contents
            kept = [one for one in frame.saved_args if isinstance(one, saved_tensor_class)]
            return id(frame), kept
    return 0, []


# ---------------------------------------------------------------------- modes and transforms

transform_running: Callable[[], Any] = torch._C._functorch.peek_interpreter_stack
"""The innermost ``torch.func`` transform that runs in this thread, or ``None``."""

is_of_transform: Callable[[Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor
"""Whether a tensor stands for others inside a ``torch.func`` transform."""

is_legacy_batched: Callable[[Tensor], bool] = torch._C._functorch.is_legacy_batchedtensor
"""Whether a tensor stands for a batch of gradients (``is_grads_batched=True``)."""

tracing_state: Callable[[], Any] = torch._C._get_tracing_state
"""State of the ``torch.jit.trace`` that runs in this thread, or ``None``."""

num_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
"""How many ``TorchDispatchMode`` would see each operator that is called."""

without_torch_function = torch._C.DisableTorchFunctionSubclass
"""Context in which operators do not call ``__torch_function__`` of tensor subclasses."""

without_torch_functions = torch._C.DisableTorchFunction
"""Context in which operators call neither those nor modes of ``__torch_function__``."""

NO_DISPATCH: Any = torch._C._disabled_torch_dispatch_impl
"""``__torch_dispatch__`` of classes that do not override it."""

SCRIPT_OBJECT, FUTURE = torch._C.ScriptObject, torch._C.Future
"""Classes of values that hold tensors, and cannot be looked into."""

# ---------------------------------------------------------------------- tensors

negated_view: Callable[[Tensor], Tensor] = torch._neg_view
"""A view that is read negated, as ``.imag`` of a conjugated tensor is."""

MKLDNN: torch.layout = torch._mkldnn  # type: ignore[attr-defined]
"""Layout of tensors of oneDNN."""


def scale_version(scaler: Any) -> int:
    """How often a ``GradScaler`` has written into its scale; 0 before its first use, or if off."""
    scale = getattr(scaler, "_scale", None)
    return 0 if scale is None else scale._version


# ---------------------------------------------------------------------- the compiler


def run_uncompiled(function: Any) -> None:
    """Let Dynamo compile no call of a function, nor of what it calls.

    Where such a call stands inside a function that is compiled, it is traced like any other.
    """
    from torch._C._dynamo import eval_frame

    skip = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))


def before_compiling(action: Callable[[], None]) -> Callable[[], None]:
    """Call a function before Dynamo traces anything; returns what ends it. Imports Dynamo."""
    from torch._dynamo.callback import callback_handler

    def start(_: object) -> None:
        action()

    def off() -> None:
        if start in callback_handler.start_callbacks:  # torch.compiler.reset() clears them.
            callback_handler.remove_start_callback(start)

    callback_handler.register_start_callback(start)
    return off


def keep_operator_in_order(operator: Any) -> None:
    """Let the compiler neither drop nor move calls of an operator: it has an ordered effect."""
    from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

    _register_effectful_op(operator, _EffectType.ORDERED)


def set_default(config: Any, name: str, value: Any) -> Any:
    """Change the default of a setting of the compiler, for all threads; returns the former one.

    Args:
        config: ``torch._dynamo.config``, or another module of this kind. What is assigned to its
            attributes is seen by the thread that assigns alone.
        name: of the setting.
        value: the new default.
    """
    entry = config._config[name]
    before, entry.default = entry.default, value
    if hasattr(config, "_mark_get_dict_dirty"):  # Copies of the settings are kept from 2.12 on.
        config._mark_get_dict_dirty(name)
    return before


def is_backward_compiled() -> bool:
    """Whether compiled autograd is on, which traces backwards of compiled graphs once more."""
    dynamo: Any = sys.modules.get("torch._dynamo")
    return dynamo is not None and (
        dynamo.config.compiled_autograd or dynamo.compiled_autograd.compiled_autograd_enabled
    )


# ---------------------------------------------------------------------- FSDP2


def fsdp_parameters() -> Iterator[Any]:
    """What FSDP2 knows of each parameter that it shards, of all models.

    Of each, ``sharded_param`` and ``mesh_info.mesh`` are read, and ``_unsharded_param`` and
    ``_sharded_post_forward_param`` where they exist.
    """
    composable: Any = sys.modules.get("torch.distributed._composable_state")
    refs = () if composable is None else composable._module_state_mapping.values()
    for state in [ref() for ref in refs]:
        for group in getattr(state, "_fsdp_param_groups", ()):
            yield from group.fsdp_params


def stage_codes() -> tuple[CodeType, CodeType] | None:
    """Code of what a stage of a pipeline runs its module by: to learn shapes, and in training.

    Of the object that runs the latter, ``stage_index`` and ``num_stages`` are read.

    Returns:
        ``None`` where ``torch.distributed.pipelining`` was not imported.
    """
    stages: Any = sys.modules.get("torch.distributed.pipelining.stage")
    if stages is None:
        return None
    learning = stages.PipelineStage._forward_metadata_inference.__code__
    return learning, stages.PipelineStage.forward_one_chunk.__code__


def num_microbatches_of(schedule: Any) -> int:
    """Into how many parts a schedule of a pipeline cuts a batch; 0 of any other object."""
    schedules: Any = sys.modules.get("torch.distributed.pipelining.schedules")
    is_schedule = schedules is not None and isinstance(schedule, schedules._PipelineSchedule)
    return int(schedule._n_microbatches) if is_schedule else 0


# ---------------------------------------------------------------------- torch.jit


def script_as(function: Any, operator: str) -> None:
    """Let ``torch.jit.script`` make an operator of the calls of a Python function."""
    _register_builtin(function, operator)

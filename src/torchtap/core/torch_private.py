"""Functions and classes of PyTorch that it does not document, each with its purpose.

:mod:`~torchtap.core.private_names` has the table of them. Functions whose code or variables are
looked for on the stack stand in :mod:`~torchtap.core.torch_frames`, names of classes of nodes in
:mod:`~torchtap.core.torch_nodes`, texts in :mod:`~torchtap.core.torch_messages`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import graph

from torchtap.core.after_import import after_import
from torchtap.core.private_names import (
    CALLING,
    DRAWING,
    GONE,
    LOCATING,
    MOVING,
    WATCHING,
    find,
    note,
    private,
)
from torchtap.core.shared_state import new_lock

# ---------------------------------------------------------------------- autograd

current_task: Callable[[], int] = private(
    "torch._C._current_graph_task_id",
    "number of the backward that this thread is inside of, -1 outside",
    doors=(*WATCHING, *MOVING, *DRAWING, *LOCATING),
)

current_node: Callable[[], Any] = private(
    "torch._C._current_autograd_node",
    "the node that runs in this thread, inside a backward",
    doors=(*WATCHING, *LOCATING),
)

will_run: Callable[[Any], bool] = private(
    "torch._C._will_engine_execute_node",
    "whether the running backward will run a node. Raises RuntimeError for a leaf whose gradient "
    "torch.autograd.grad was asked for",
    doors=WATCHING,
)

sequence_number: Callable[[], int] = private(
    "torch._C._autograd._get_sequence_nr",
    "number that the next node of this thread will get",
    doors=(*WATCHING, *MOVING, *DRAWING, *LOCATING, *CALLING),
)


def _queue_of_engine() -> Any:
    name = "torch.autograd.Variable._execution_engine"
    note(
        name,
        "its queue_callback runs a function when the running backward has ended well, in releases "
        "before torch.autograd.graph.queue_callback (2.15)",
        without="torch.autograd.graph.queue_callback, which is public, is called",
    )
    return getattr(find(name), "queue_callback", GONE)


call_after_backward: Callable[[Callable[[], None]], None] = getattr(
    graph, "queue_callback", None
) or (_queue_of_engine())
"""Runs a function when the running backward has ended well. Public since 2.15."""

push_saved_hooks: Callable[..., None] = private(
    "torch._C._autograd._push_saved_tensors_default_hooks",
    "puts a pair on this thread's stack of saved-tensor hooks",
    doors=MOVING,
)
pop_saved_hooks: Callable[[], None] = private(
    "torch._C._autograd._pop_saved_tensors_default_hooks",
    "takes the pair on top off that stack",
    doors=MOVING,
)
top_saved_hooks: Callable[[bool], Any] = private(
    "torch._C._autograd._top_saved_tensors_default_hooks",
    "the pair on top of that stack. Its argument: return None where hooks are forbidden",
    doors=(*WATCHING, *MOVING),
)
may_push_saved_hooks: Callable[[], bool] = private(
    "torch._C._autograd._saved_tensors_hooks_is_enabled",
    "whether saved-tensor hooks are allowed here: torch.func, or the user, may forbid them",
    doors=MOVING,
)

saved_tensor_class: Any = private(
    "torch._C._autograd.SavedTensor",
    "class of autograd's handle of what a node keeps",
    doors=(*MOVING, *DRAWING),
    otherwise=(),
)

graph_hooks_class: Any = private(
    "torch.autograd.function._HookMixin",
    "its _register_hook adds a hook to a table of a node, and so is shown the hooks of the node",
    without="tt.graph draws no hooks of nodes",
    otherwise=None,
)


class _Found(Exception):
    """Carries the table of hooks of a node out of the call that would add to it."""


def _nothing(*_: Any) -> None:
    """Stands for a hook that is never put on."""


Hooks = tuple[list[Any], list[Any]]
"""Functions that stand before and after an autograd node."""


@contextmanager
def node_hooks() -> Iterator[Callable[[Any], Hooks]]:
    """Yields what tells the functions that stand before and after an autograd node.

    PyTorch shows the hooks of a node to none but the function by which it adds one, and looks that
    up anew for each. So inside the block the function raises where it is asked to add a hook of
    ours, with what it was shown: nothing is added. Hooks that others add meanwhile are added.
    """
    own = getattr(graph_hooks_class, "_register_hook", None)
    if own is None:
        yield lambda node: ([], [])
        return

    def show(table: Any, hook: Any) -> Any:
        if hook is _nothing:
            raise _Found([] if table is None else list(table.values()))
        return own(table, hook)

    with _adding_hooks:
        graph_hooks_class._register_hook = staticmethod(show)
        try:
            yield lambda node: (_shown(node.register_prehook), _shown(node.register_hook))
        finally:
            graph_hooks_class._register_hook = staticmethod(own)


def _shown(register: Callable[[Any], Any]) -> list[Any]:
    try:
        handle = register(_nothing)
    except _Found as found:
        return list(found.args[0])
    handle.remove()  # PyTorch did not ask for the function: nothing is known of the hooks.
    return []


_adding_hooks = new_lock()


def checkpoint_inputs(unpack_hook: Any) -> tuple[int, list[Any]]:
    """A number of a non-reentrant checkpoint, and autograd's handles of the inputs that it keeps.

    Args:
        unpack_hook: of a tensor that the checkpoint computes again.
    """
    names = getattr(getattr(unpack_hook, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(unpack_hook, "__closure__", None) or (), strict=False):
        # The hook is a closure of _checkpoint_hook (torch/utils/checkpoint.py), and the frame of
        # the checkpoint one of its variables: nothing else leads to it.
        if name == "frame":
            frame = cell.cell_contents
            kept = [one for one in frame.saved_args if isinstance(one, saved_tensor_class)]
            return id(frame), kept
    return 0, []


# ---------------------------------------------------------------------- modes and transforms

transform_running: Callable[[], Any] = private(
    "torch._C._functorch.peek_interpreter_stack",
    "the innermost torch.func transform that runs in this thread, or None",
    doors=WATCHING,
)

is_of_transform: Callable[[Tensor], bool] = private(
    "torch._C._functorch.is_functorch_wrapped_tensor",
    "whether a tensor stands for others inside a torch.func transform",
    doors=(*WATCHING, *MOVING),
    without="its doors raise a CaptureError; tt.measure takes the tensor for a plain one",
    otherwise=lambda tensor: False,
)

is_legacy_batched: Callable[[Tensor], bool] = private(
    "torch._C._functorch.is_legacy_batchedtensor",
    "whether a tensor stands for a batch of gradients (is_grads_batched=True)",
    doors=WATCHING,
)

tracing_state: Callable[[], Any] = private(
    "torch._C._get_tracing_state",
    "state of the torch.jit.trace that runs in this thread, or None",
    without="torch.jit.is_tracing, which is public and slower, is called",
    otherwise=lambda: find("torch.jit.is_tracing")() or None,
)

num_dispatch_modes: Callable[[], int] = private(
    "torch._C._len_torch_dispatch_stack",
    "how many TorchDispatchModes would see each operator that is called",
    without="a mode is taken to be on: a custom function that checkpoints is not recognised by its "
    "content, and its calls have the phase 'backward'",
    otherwise=lambda: 1,
)

without_modes: Any = private(
    "torch.utils._python_dispatch._disable_current_modes",
    "context in which no TorchDispatchMode sees the operators that are called",
    doors=LOCATING,
)

without_torch_function: Any = private(
    "torch._C.DisableTorchFunctionSubclass",
    "context in which operators do not call __torch_function__ of tensor subclasses",
    without="such classes see the operators that torchtap calls",
    otherwise=nullcontext,
)
without_torch_functions: Any = private(
    "torch._C.DisableTorchFunction",
    "context in which operators call neither those nor modes of __torch_function__",
    without="such classes and modes see the operators that torchtap calls",
    otherwise=nullcontext,
)

NO_DISPATCH: Any = private(
    "torch._C._disabled_torch_dispatch_impl",
    "__torch_dispatch__ of classes that do not override it",
    without="every subclass is taken to override it, and compared by torch.equal alone",
    otherwise=None,
)

SCRIPT_OBJECT: Any = private(
    "torch._C.ScriptObject",
    "class of values that hold tensors, and cannot be looked into",
    without="such a value is taken for one without tensors",
    otherwise=(),
)
FUTURE: Any = torch.futures.Future.__base__
"""Class of values that hold tensors, and cannot be looked into."""

set_grad_enabled: Callable[[bool], Any] = private(
    "torch._C._set_grad_enabled",
    "torch.set_grad_enabled at a third of its price",
    without="torch.set_grad_enabled is called",
    otherwise=torch.set_grad_enabled,
)
is_any_autocast_enabled: Callable[[], bool] = private(
    "torch._C._is_any_autocast_enabled",
    "whether autocast is on for any device",
    without="it is taken to be on",
    otherwise=lambda: True,
)


@contextmanager
def _no_autocast() -> Iterator[None]:
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    states = [(one, torch.is_autocast_enabled(one)) for one in devices]
    for one, _ in states:
        torch.set_autocast_enabled(one, False)
    try:
        yield
    finally:
        for one, was_on in states:
            torch.set_autocast_enabled(one, was_on)


without_autocast: Any = private(
    "torch._C._DisableAutocast",
    "context without autocast, on all devices",
    without="autocast is switched off for the CPU and CUDA by public functions",
    otherwise=_no_autocast,
)

# ---------------------------------------------------------------------- tensors

negated_view: Callable[[Tensor], Tensor] = private(
    "torch._neg_view",
    "a view that is read negated, as .imag of a conjugated tensor is",
    doors=("tt.offload",),
)

MKLDNN: torch.layout | None = private(
    "torch._mkldnn",
    "layout of tensors of oneDNN",
    without="tt.measure refuses such tensors by PyTorch's own error",
    otherwise=None,
)


def has_scaled(scaler: Any) -> bool:
    """Return whether a ``GradScaler`` was ever used: it makes its scale at its first use."""
    return getattr(scaler, "_scale", None) is not None


def scale_version(scaler: Any) -> int:
    """Return how often a ``GradScaler`` wrote into its scale; 0 before its first use, or if off."""
    scale = getattr(scaler, "_scale", None)
    return 0 if scale is None else scale._version


# ---------------------------------------------------------------------- the compiler

note(
    "torch._C._dynamo.eval_frame._FrameAction",
    "tells Dynamo to compile no call of a hook",
    without="Dynamo breaks the graph at hooks all the same, by their attribute",
)
note(
    "torch._C._dynamo.eval_frame._FrameExecStrategy",
    "tells Dynamo to compile no call of a hook",
    without="Dynamo breaks the graph at hooks all the same, by their attribute",
)
note(
    "torch._dynamo.callback.callback_handler",
    "calls torchtap run before anything is compiled",
    without="torchtap run attaches when the first forward begins, and says of compiled models what "
    "was not seen",
    module="torch._dynamo.callback",
)
note(
    "torch._higher_order_ops.effects._register_effectful_op",
    "keeps the operator that feeds tt.Stats in a compiled graph, and in order",
    doors=WATCHING,
    module="torch._higher_order_ops.effects",
)
note(
    "torch._inductor.codegen.custom_extern_kernel_codegen.CUSTOM_EXTERN_KERNEL_CODEGEN",
    "has inductor write a short call where a compiled graph hands over a value",
    without="the graph calls an operator, which takes several times as long",
    module="torch._inductor.codegen.custom_extern_kernel_codegen",
)
note(
    "torch._dynamo.config._config",
    "changes the default of a setting for all threads",
    without="the setting is changed for the thread that begins the watch",
    module="torch._dynamo",
)


def run_uncompiled(function: Any) -> None:
    """Let Dynamo compile no call of a function, nor of what it calls.

    Where such a call stands inside a function that is compiled, it is traced like any other.
    """
    from torch._C._dynamo import eval_frame

    action = getattr(eval_frame, "_FrameAction", None)
    strategy = getattr(eval_frame, "_FrameExecStrategy", None)
    if action is not None and strategy is not None:
        # By the code object: Dynamo decides for each frame that CPython runs, and a frame knows its
        # code alone.
        eval_frame.set_code_exec_strategy(function.__code__, strategy(action.SKIP, action.SKIP))


def before_compiling(action: Callable[[], None]) -> Callable[[], None]:
    """Call a function before Dynamo traces anything; returns what ends it. Imports Dynamo."""
    from torch._dynamo import callback

    handler: Any = getattr(callback, "callback_handler", None)
    if handler is None:
        return lambda: None

    def start(_: object) -> None:
        action()

    def off() -> None:
        if start in handler.start_callbacks:  # torch.compiler.reset() clears them.
            handler.remove_start_callback(start)

    handler.register_start_callback(start)
    return off


def keep_operator_in_order(operator: Any) -> None:
    """Let the compiler neither drop nor move calls of an operator: it has an ordered effect."""
    from torch._higher_order_ops import effects

    register: Any = getattr(effects, "_register_effectful_op", None)
    if register is not None:  # Or tt.watch says that it needs it.
        register(operator, effects._EffectType.ORDERED)


_OPERATOR_CALLS = "torch._inductor.codegen.custom_extern_kernel_codegen"


def write_operator_calls(operator: str, write: Callable[[Any, Any, bool], None]) -> None:
    """Have inductor write the calls of an operator by a function, in the Python code of a graph.

    Args:
        operator: as PyTorch prints its overload, ``torch.ops.library.name.overload``.
        write: is given the node of a call, the writer of the code, and whether nothing writes into
            the first tensor while the graph runs and all others are inputs of the graph.
    """

    def register() -> None:
        module = sys.modules[_OPERATOR_CALLS]
        table = getattr(module, "CUSTOM_EXTERN_KERNEL_CODEGEN", None)
        make = getattr(module, "CustomCodegen", None)
        if table is not None and make is not None:
            table[operator] = make(python=partial(_write_call, write))

    after_import(_OPERATOR_CALLS, register)


def _write_call(write: Callable[[Any, Any, bool], None], node: Any, writeline: Any) -> None:
    try:
        from torch._inductor.codegen.wrapper import PythonWrapperCodegen
        from torch._inductor.virtualized import V

        writer = V.graph.wrapper_code
        inputs, mutated = V.graph.graph_input_names, V.graph.mutated_buffers
        names = [one.get_name() for one in node.inputs]
        # Others write a part of a graph, which imports nothing, or another language.
        can_write = type(writer) is PythonWrapperCodegen and hasattr(writer, "lines")
    except (ImportError, AttributeError):  # Of another inductor: a compilation must not fail.
        can_write = False
    if not can_write:
        writeline(_plain_call(node))
        return
    is_constant = bool(names) and names[0] not in mutated and set(names[1:]) <= set(inputs)
    write(node, writer, is_constant)


def _plain_call(node: Any) -> Any:
    """Return the line that inductor writes by itself."""
    from torch._inductor.codegen import wrapper
    from torch._inductor.virtualized import V

    make = getattr(wrapper, "ExternKernelAllocLine", None)
    if make is not None:
        return make(V.graph.wrapper_code, node)
    return f"{node.python_kernel_name}({', '.join(node.codegen_args())})"


def set_default(config: Any, name: str, value: Any) -> Any:
    """Change the default of a setting of the compiler, for all threads; returns the former one.

    Args:
        config: ``torch._dynamo.config``, or another module of this kind. An assignment to its
            attributes is seen by the thread that assigns alone.
        name: of the setting.
        value: the new default.
    """
    # The entry holds the default; what a thread assigned lies in a ContextVar beside it, and hides
    # the default from that thread.
    entry = getattr(config, "_config", {}).get(name)
    if entry is None:
        before = getattr(config, name)
        setattr(config, name, value)
        return before
    before, entry.default = entry.default, value
    if hasattr(config, "_mark_get_dict_dirty"):  # Copies of the settings are kept from 2.13 on.
        config._mark_get_dict_dirty(name)
    return before


def is_compiled_module(module: nn.Module) -> bool:
    """Return whether a module is one of ``torch.compile(model)``, or had ``compile()`` called."""
    is_wrapper = type(module).__name__ == "OptimizedModule"
    return is_wrapper or getattr(module, "_compiled_call_impl", None) is not None


DYNAMO = "torch._dynamo"
"""Module of the compiler. While nothing imported it, nothing was compiled in this process."""


def imported_dynamo() -> Any:
    """Dynamo, or ``None`` while nothing imported it: then nothing was compiled in this process.

    ``import torch`` leaves it out, and the import takes seconds.
    """
    return sys.modules.get(DYNAMO)


def is_backward_compiled() -> bool:
    """Return whether compiled autograd is on: it traces backwards of compiled graphs once more."""
    dynamo = imported_dynamo()
    return dynamo is not None and (
        dynamo.config.compiled_autograd or dynamo.compiled_autograd.compiled_autograd_enabled
    )


# ---------------------------------------------------------------------- FSDP2 and pipelines

note(
    "torch.distributed._composable_state._module_state_mapping",
    "the state that FSDP2 keeps of each module, with its _fsdp_param_groups",
    doors=WATCHING,
    module="torch.distributed.fsdp",
)
note(
    "torch.distributed.pipelining.stage.PipelineStage._forward_metadata_inference",
    "its frame tells that a stage runs a model to learn shapes",
    doors=WATCHING,
    module="torch.distributed.pipelining.stage",
)
note(
    "torch.distributed.pipelining.schedules._PipelineSchedule",
    "its _n_microbatches: into how many parts a schedule cuts a batch",
    doors=WATCHING,
    module="torch.distributed.pipelining.schedules",
)


def fsdp_parameters() -> Iterator[Any]:
    """Yield FSDP2's own object of each parameter that it shards, of all models.

    Callers read ``sharded_param`` and ``mesh_info.mesh`` of each, and ``_unsharded_param`` and
    ``_sharded_post_forward_param`` where they exist.
    """
    composable: Any = sys.modules.get("torch.distributed._composable_state")
    refs = getattr(composable, "_module_state_mapping", {}).values()
    for state in [ref() for ref in refs]:
        for group in getattr(state, "_fsdp_param_groups", ()):
            yield from group.fsdp_params


STAGES = "torch.distributed.pipelining.stage"
"""Module of the stages of pipelines, which is imported where a program has any."""


def stage_codes() -> tuple[CodeType, CodeType]:
    """Code of what a stage of a pipeline runs its module by: to learn shapes, and in training.

    ``stage_index`` and ``num_stages`` are read of the object that runs the latter. To be called
    where :data:`STAGES` is imported.
    """
    stage: Any = sys.modules[STAGES].PipelineStage
    return stage._forward_metadata_inference.__code__, stage.forward_one_chunk.__code__


def num_microbatches_of(schedule: Any) -> int:
    """Into how many parts a schedule of a pipeline cuts a batch; 0 of any other object."""
    schedules: Any = sys.modules.get("torch.distributed.pipelining.schedules")
    is_schedule = schedules is not None and isinstance(schedule, schedules._PipelineSchedule)
    return int(schedule._n_microbatches) if is_schedule else 0


# ---------------------------------------------------------------------- torch.jit

_register_builtin: Any = private(
    "torch.jit._builtins._register_builtin",
    "lets torch.jit.script make an operator of the calls of a Python function",
    without="torch.jit.script refuses a transformer's encoder layer while a watch is open",
    otherwise=lambda function, operator: None,
)


def script_as(function: Any, operator: str) -> None:
    """Let ``torch.jit.script`` make an operator of the calls of a Python function."""
    _register_builtin(function, operator)


note(
    "torch._C._nn",
    "searched for functions of C, which do not say where they stand, when a call is saved",
    without="a saved call that was given such a function is refused, and the message names it",
)
HOMES_OF_FUNCTIONS = ("torch", "torch.nn.functional", "torch._C._nn", "torch.special")
"""Modules of PyTorch in which functions of C stand, which do not say so themselves."""

# ---------------------------------------------------------------------- parametrised modules

for _part in ("_inject_new_class", "_inject_property"):
    note(
        f"torch.nn.utils.parametrize.{_part}",
        "makes the class of a parametrised module again, when a saved call is read. Called in "
        "diagnosis/calls/standalone/read_call.py, which stands in exported scripts",
        without="a saved call of a parametrised module is not read, and the message names it",
    )

"""The private names of PyTorch that torchtap uses: for what, since when, and what without.

PyTorch may change any of them without notice, so this is the file to read against the sources of a
new release. Each stands here once, with a :class:`PrivateName` in ``NAMES``: where PyTorch has it,
what torchtap uses it for, and what torchtap does where it is gone. Then there is either another
way, or a ``CaptureError`` at the doors that need it (:func:`torchtap.core.doors.require`). Reading
runs needs none of them. ``torchtap selfcheck`` tries each (``core/probes/``), and so do the
tests.

Functions whose code or variables are looked for on the stack stand here too; names of classes of
nodes stand in :mod:`~torchtap.core.torch_nodes`, texts in :mod:`~torchtap.core.torch_messages`.
Attributes of tensors, nodes and modules are listed here (``ATTRIBUTES``) and read where they are
needed, since a function around each would cost more than the read.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType, MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd import graph

TRIED_TORCH = ("2.13.0", "2.14.1", "2.15.0")
"""Releases of PyTorch with which all tests passed."""
TRIED_PYTHON = ("3.11", "3.12", "3.13")

WATCHING = (
    "tt.watch",
    "tt.edit",
    "tt.edit_tensor",
    "tt.attribute",
    "tt.audit",
    "tt.cam",
    "tt.guard",
    "tt.locate",
    "tt.record",
    "tt.record_call",
    "tt.summary",
    "tt.sweep",
    "tt.verify",
)
"""Doors through which hooks go that read or replace what flows."""
MOVING = ("tt.offload", "tt.advise_offload", "tt.saved_report")
"""Doors through which hooks go on what autograd saves."""
DRAWING = ("tt.graph",)
LOCATING = ("tt.locate", "tt.guard")
"""Doors through which each operation is followed."""
CALLING = ("tt.record_call", "tt.replay", "tt.audit")
"""Doors through which calls of modules are made again."""


@dataclass(frozen=True, slots=True)
class PrivateName:
    """One private name of PyTorch.

    Attributes:
        name: dotted, as PyTorch has it.
        purpose: what torchtap uses it for.
        without: what torchtap does where PyTorch does not have it.
        doors: public functions that cannot do their work without it, and say so when called.
        module: name of the module that holds it, where that is not imported with torch. While it
            is not imported, nothing of it is needed.
        variables: of the function of that name, which are read from its frames.
        since: release that brought it; older ones need it for nothing.
    """

    name: str
    purpose: str
    without: str
    doors: tuple[str, ...] = ()
    module: str = ""
    variables: tuple[str, ...] = ()
    since: tuple[int, int] = (2, 13)

    def is_there(self) -> bool:
        """Return whether this PyTorch has the name, or need not have it yet."""
        is_needed = release_of(torch.__version__) >= self.since
        if not is_needed or (self.module and self.module not in sys.modules):
            return True
        found = find(self.name)
        held = code_of(found).co_varnames if self.variables and found is not GONE else ()
        return found is not GONE and set(self.variables) <= set(held)


def release_of(version: str) -> tuple[int, int]:
    """Major and minor number of a release: patches keep what torchtap relies on."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


class _Gone:
    """In the place of what PyTorch does not have; the doors that need it do not open."""

    def __repr__(self) -> str:
        return "<not in this PyTorch>"


GONE = _Gone()
_NO_OTHER_WAY = "its doors raise a CaptureError that names it"
NAMES: dict[str, PrivateName] = {}
"""Every private name that torchtap calls, by its name."""


def find(name: str) -> Any:
    """Return the object of a dotted name; ``GONE`` where PyTorch does not have it."""
    parts = name.split(".")
    at = next((n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in sys.modules), 0)
    found: Any = sys.modules.get(".".join(parts[:at]), GONE)
    for part in parts[at:]:
        found = getattr(found, part, GONE)
    return found


def code_of(function: Any) -> CodeType:
    """Byte code of a function of Python; that of a function of C is one that never runs."""
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else _NEVER_RUNS


def _never_runs() -> None:
    """Its code is on no stack."""


_NEVER_RUNS = _never_runs.__code__


def _note(
    name: str,
    purpose: str,
    *,
    doors: tuple[str, ...] = (),
    without: str = "",
    module: str = "",
    variables: tuple[str, ...] = (),
    since: tuple[int, int] = (2, 13),
) -> None:
    without = without or _NO_OTHER_WAY
    NAMES[name] = PrivateName(name, purpose, without, doors, module, variables, since)


def _private(
    name: str,
    purpose: str,
    *,
    doors: tuple[str, ...] = (),
    without: str = "",
    otherwise: Any = GONE,
) -> Any:
    """Note a private name, and give what PyTorch has there, or what stands in for it."""
    _note(name, purpose, doors=doors, without=without)
    found = find(name)
    return otherwise if found is GONE else found


# ---------------------------------------------------------------------- autograd

current_task: Callable[[], int] = _private(
    "torch._C._current_graph_task_id",
    "number of the backward that this thread is inside of, -1 outside",
    doors=(*WATCHING, *MOVING, *DRAWING, *LOCATING),
)

current_node: Callable[[], Any] = _private(
    "torch._C._current_autograd_node",
    "the node that runs in this thread, inside a backward",
    doors=(*WATCHING, *LOCATING),
)

will_run: Callable[[Any], bool] = _private(
    "torch._C._will_engine_execute_node",
    "whether the running backward will run a node. Raises RuntimeError for a leaf whose gradient "
    "torch.autograd.grad was asked for",
    doors=WATCHING,
)

sequence_number: Callable[[], int] = _private(
    "torch._C._autograd._get_sequence_nr",
    "number that the next node of this thread will get",
    doors=(*WATCHING, *MOVING, *DRAWING, *LOCATING, *CALLING),
)


def _queue_of_engine() -> Any:
    name = "torch.autograd.Variable._execution_engine"
    _note(
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

push_saved_hooks: Callable[..., None] = _private(
    "torch._C._autograd._push_saved_tensors_default_hooks",
    "puts a pair on this thread's stack of saved-tensor hooks",
    doors=MOVING,
)
pop_saved_hooks: Callable[[], None] = _private(
    "torch._C._autograd._pop_saved_tensors_default_hooks",
    "takes the pair on top off that stack",
    doors=MOVING,
)
top_saved_hooks: Callable[[bool], Any] = _private(
    "torch._C._autograd._top_saved_tensors_default_hooks",
    "the pair on top of that stack. Its argument: return None where hooks are forbidden",
    doors=(*WATCHING, *MOVING),
)
may_push_saved_hooks: Callable[[], bool] = _private(
    "torch._C._autograd._saved_tensors_hooks_is_enabled",
    "whether saved-tensor hooks are allowed here: torch.func, or the user, may forbid them",
    doors=MOVING,
)

saved_tensor_class: Any = _private(
    "torch._C._autograd.SavedTensor",
    "class of autograd's handle of what a node keeps",
    doors=(*MOVING, *DRAWING),
    otherwise=(),
)

graph_hooks_class: Any = _private(
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


_adding_hooks = threading.Lock()


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

transform_running: Callable[[], Any] = _private(
    "torch._C._functorch.peek_interpreter_stack",
    "the innermost torch.func transform that runs in this thread, or None",
    doors=WATCHING,
)

is_of_transform: Callable[[Tensor], bool] = _private(
    "torch._C._functorch.is_functorch_wrapped_tensor",
    "whether a tensor stands for others inside a torch.func transform",
    doors=(*WATCHING, *MOVING),
    without="its doors raise a CaptureError; tt.measure takes the tensor for a plain one",
    otherwise=lambda tensor: False,
)

is_legacy_batched: Callable[[Tensor], bool] = _private(
    "torch._C._functorch.is_legacy_batchedtensor",
    "whether a tensor stands for a batch of gradients (is_grads_batched=True)",
    doors=WATCHING,
)

tracing_state: Callable[[], Any] = _private(
    "torch._C._get_tracing_state",
    "state of the torch.jit.trace that runs in this thread, or None",
    without="torch.jit.is_tracing, which is public and slower, is called",
    otherwise=lambda: find("torch.jit.is_tracing")() or None,
)

num_dispatch_modes: Callable[[], int] = _private(
    "torch._C._len_torch_dispatch_stack",
    "how many TorchDispatchModes would see each operator that is called",
    without="a mode is taken to be on: a custom function that checkpoints is not recognised by its "
    "content, and its calls have the phase 'backward'",
    otherwise=lambda: 1,
)

without_modes: Any = _private(
    "torch.utils._python_dispatch._disable_current_modes",
    "context in which no TorchDispatchMode sees the operators that are called",
    doors=LOCATING,
)

without_torch_function: Any = _private(
    "torch._C.DisableTorchFunctionSubclass",
    "context in which operators do not call __torch_function__ of tensor subclasses",
    without="such classes see the operators that torchtap calls",
    otherwise=nullcontext,
)
without_torch_functions: Any = _private(
    "torch._C.DisableTorchFunction",
    "context in which operators call neither those nor modes of __torch_function__",
    without="such classes and modes see the operators that torchtap calls",
    otherwise=nullcontext,
)

NO_DISPATCH: Any = _private(
    "torch._C._disabled_torch_dispatch_impl",
    "__torch_dispatch__ of classes that do not override it",
    without="every subclass is taken to override it, and compared by torch.equal alone",
    otherwise=None,
)

SCRIPT_OBJECT: Any = _private(
    "torch._C.ScriptObject",
    "class of values that hold tensors, and cannot be looked into",
    without="such a value is taken for one without tensors",
    otherwise=(),
)
FUTURE: Any = torch.futures.Future.__base__
"""Class of values that hold tensors, and cannot be looked into."""

set_grad_enabled: Callable[[bool], Any] = _private(
    "torch._C._set_grad_enabled",
    "torch.set_grad_enabled at a third of its price",
    without="torch.set_grad_enabled is called",
    otherwise=torch.set_grad_enabled,
)
is_any_autocast_enabled: Callable[[], bool] = _private(
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


without_autocast: Any = _private(
    "torch._C._DisableAutocast",
    "context without autocast, on all devices",
    without="autocast is switched off for the CPU and CUDA by public functions",
    otherwise=_no_autocast,
)

# ---------------------------------------------------------------------- tensors

negated_view: Callable[[Tensor], Tensor] = _private(
    "torch._neg_view",
    "a view that is read negated, as .imag of a conjugated tensor is",
    doors=("tt.offload",),
)

MKLDNN: torch.layout | None = _private(
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

_note(
    "torch._C._dynamo.eval_frame._FrameAction",
    "tells Dynamo to compile no call of a hook",
    without="Dynamo breaks the graph at hooks all the same, by their attribute",
)
_note(
    "torch._C._dynamo.eval_frame._FrameExecStrategy",
    "tells Dynamo to compile no call of a hook",
    without="Dynamo breaks the graph at hooks all the same, by their attribute",
)
_note(
    "torch._dynamo.callback.callback_handler",
    "calls torchtap run before anything is compiled",
    without="torchtap run attaches when the first forward begins, and says of compiled models what "
    "was not seen",
    module="torch._dynamo.callback",
)
_note(
    "torch._higher_order_ops.effects._register_effectful_op",
    "keeps the operator that feeds tt.Stats in a compiled graph, and in order",
    doors=WATCHING,
    module="torch._higher_order_ops.effects",
)
_note(
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


def imported_dynamo() -> Any:
    """Dynamo, or ``None`` while nothing imported it: then nothing was compiled in this process.

    ``import torch`` leaves it out, and the import takes seconds.
    """
    return sys.modules.get("torch._dynamo")


def is_backward_compiled() -> bool:
    """Return whether compiled autograd is on: it traces backwards of compiled graphs once more."""
    dynamo = imported_dynamo()
    return dynamo is not None and (
        dynamo.config.compiled_autograd or dynamo.compiled_autograd.compiled_autograd_enabled
    )


# ---------------------------------------------------------------------- FSDP2 and pipelines

_note(
    "torch.distributed._composable_state._module_state_mapping",
    "the state that FSDP2 keeps of each module, with its _fsdp_param_groups",
    doors=WATCHING,
    module="torch.distributed.fsdp",
)
_note(
    "torch.distributed.pipelining.stage.PipelineStage._forward_metadata_inference",
    "its frame tells that a stage runs a model to learn shapes",
    doors=WATCHING,
    module="torch.distributed.pipelining.stage",
)
_note(
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

_register_builtin: Any = _private(
    "torch.jit._builtins._register_builtin",
    "lets torch.jit.script make an operator of the calls of a Python function",
    without="torch.jit.script refuses a transformer's encoder layer while a watch is open",
    otherwise=lambda function, operator: None,
)


def script_as(function: Any, operator: str) -> None:
    """Let ``torch.jit.script`` make an operator of the calls of a Python function."""
    _register_builtin(function, operator)


# ---------------------------------------------------------------------- functions on the stack


def _code(
    name: str,
    purpose: str,
    *,
    doors: tuple[str, ...] = (),
    without: str = "",
    variables: tuple[str, ...] = (),
) -> CodeType:
    """Note a function whose frame is looked for on the stack, and give its code."""
    _note(name, purpose, doors=doors, without=without, variables=variables)
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
RUN_BACKWARD = frozenset({_BACKWARD, _GRAD} if _ENGINE is _NEVER_RUNS else {_ENGINE})
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
profile_hook_step: Callable[[Any], Any] = _private(
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
_note(
    "torch.utils.checkpoint._checkpoint_hook",
    "the unpack_hook of a non-reentrant checkpoint, in whose closure is its frame with saved_args",
    without="calls that such a checkpoint computes again have the phase 'backward'",
)


_note(
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


# ---------------------------------------------------------------------- parametrised modules

for _part in ("_inject_new_class", "_inject_property"):
    _note(
        f"torch.nn.utils.parametrize.{_part}",
        "makes the class of a parametrised module again, when a saved call is read. Called in "
        "diagnosis/calls/standalone/read_call.py, which stands in exported scripts",
        without="a saved call of a parametrised module is not read, and the message names it",
    )


# ---------------------------------------------------------------------- attributes

ATTRIBUTES: Mapping[str, str] = MappingProxyType(
    {
        # Tensors, and their storages.
        "_version": "how often a tensor was written into",
        "_base": "the tensor that a view shows",
        "_is_view": "whether a tensor is a view",
        "_cdata": "address of the memory, or of the tensor, that two Python objects share",
        "_backward_hooks": "hooks on the gradient of a tensor or a module",
        "_post_accumulate_grad_hooks": "hooks on a parameter whose .grad is complete",
        "_is_zerotensor": "whether a tensor is zero without memory",
        "_nested_tensor_size": "shapes of the parts of a nested tensor",
        "_indices": "indices of a sparse tensor that is not coalesced",
        "_values": "values of a sparse tensor that is not coalesced",
        # Nodes of the autograd graph.
        "_sequence_nr": "in which order nodes were made",
        "_register_hook_dict": "puts a table of hooks on a tensor, without a handle for each",
        "_input_metadata": "shapes and dtypes of the gradients that a node takes",
        "_forward_cls": "class of a custom function",
        "_saved_": "begins the name of what an operation keeps",
        "_raw_saved_": "begins the name of autograd's handle of what an operation keeps",
        "_saved_dim": "over which dims a reduction goes, or along which an operation",
        "_saved_dims": "in which order a permute puts the dims",
        "_saved_rounding_mode": "whether a division rounds, and so has no gradient",
        "_saved_dim0": "which dims a transpose exchanged",
        "_saved_dim1": "which dims a transpose exchanged",
        "_saved_training": "whether a batch norm was in training mode",
        "_saved_self": "what an operation keeps, by the name of its argument",
        "_saved_self_sym_sizes": "the sizes of the tensor that an operation reduced or widened",
        "_saved_other": "what an operation keeps",
        "_saved_mask": "what an operation keeps",
        "_saved_condition": "what an operation keeps",
        "_saved_max": "bounds of a clamp",
        "_saved_min": "bounds of a clamp",
        "_saved_min_val": "bounds of a hardtanh",
        "_saved_threshold": "where a threshold cuts",
        # Modules.
        "_parameters": "parameters by name",
        "_buffers": "buffers by name",
        "_modules": "children by name",
        "_non_persistent_buffers_set": "buffers that are in no state dict",
        "_forward_hooks": "hooks after a forward",
        "_forward_pre_hooks": "hooks before a forward",
        "_forward_pre_hooks_with_kwargs": "which of them take keywords",
        "_forward_hooks_with_kwargs": "which hooks after a forward take keywords",
        "_forward_hooks_always_called": "which of them run after an exception too",
        "_is_full_backward_hook": "of which kind the hooks after a backward are",
        "_backward_pre_hooks": "hooks before the backward of a module",
        "_qkv_same_embed_dim": "whether attention may run as one fused kernel",
        "_orig_mod": "the model inside torch.compile(model)",
        "_compiled_call_impl": "what model.compile() runs in place of a module's call",
        "_fsdp_wrapped_module": "the model inside FullyShardedDataParallel",
        "_checkpoint_wrapped_module": "the model inside a checkpoint wrapper",
        "_ConvNd": "class of all convolutions, by its name",
        "_DropoutNd": "class of all dropouts, by its name",
        "_NormBase": "class of batch and instance norms, by its name",
        "_BatchNorm": "class of all batch norms, by its name",
        "_InstanceNorm": "class of all instance norms, by its name",
        # Parameters of FSDP, and placements of DTensor.
        "_is_flat_param": "whether a parameter is one of FullyShardedDataParallel's",
        "_unsharded_param": "the parameter that FSDP2 gathers from a shard",
        "_sharded_post_forward_param": "the part of it that stays gathered after a forward",
        "_StridedShard": "class of a shard that is cut by an inner dim of the mesh, by its name",
        # The compiler, optimizers, loss scalers, operators.
        "_torchdynamo_disable": "lets Dynamo break its graph at a function",
        "_torchdynamo_disable_msg": "what the error of fullgraph=True says then",
        "_dynamo_marked_constant": "lets Dynamo evaluate a function while it traces",
        "_optimizer_step_pre_hooks": "hooks before the step of one optimizer",
        "_optimizer_step_post_hooks": "hooks after the step of one optimizer",
        "_per_optimizer_states": "whether a GradScaler found values that are not finite",
        "_growth_tracker": "how many steps in a row a GradScaler did not skip",
        "_opname": "name of an operator without overload",
    }
)
"""Private attribute of an object of PyTorch -> what it is read for."""

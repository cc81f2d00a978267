"""``tt.graph``."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.core.doors import require
from torchtap.core.errors import InputError
from torchtap.core.module_paths import is_container, modules_of
from torchtap.core.preserved import preserved
from torchtap.core.tensors import kind_of
from torchtap.core.torch_private import is_compiled_module
from torchtap.core.tree import argument_leaves, leaves
from torchtap.graphs.autograd import AutogradParts, ModelParts, read_autograd
from torchtap.graphs.gradient_cuts import Cuts
from torchtap.graphs.graph import AUTOGRAD, EXECUTION, Graph
from torchtap.graphs.groups import INFERRED, by_parameters, by_sequence
from torchtap.graphs.node_walk import MOST_IN_A_ROW, MOST_NODES
from torchtap.graphs.nodes import COMPILED, MODULE, Edge, Node
from torchtap.graphs.reached_parameters import reached_parameters
from torchtap.graphs.recorded import RecordedRun, read_run
from torchtap.graphs.trace import Trace, outermost_scripted
from torchtap.hooks.uncompiled import uncompiled

Models = nn.Module | Mapping[str, nn.Module] | None


def graph(
    target: Any,
    *inputs: Any,
    model: Models = None,
    autograd: bool = False,
    loss: Callable[[Any], Any] | None = None,
    **kwargs: Any,
) -> Graph:
    """Return the graph of tensors, or of what a model does, as data and as a picture.

    Nothing is changed: no hook stays, no saved tensor is unpacked where a hook packed it, and the
    result is plain data that keeps no tensor alive. A model is run once, with gradients on and in
    the mode it is in; buffers and random state are put back, and no backward runs.

    Args:
        target: a tensor, or tensors in any nesting: their autograd graph. A module: what it does
            with ``inputs``: which module calls which, in which order, and what flows between. A
            run: the same, from what was recorded in its last step.
        *inputs: what a module is called with.
        model: of a tensor: the model that made it, or name -> model of several. Then parameters
            have their paths, and nodes are grouped by modules.
        autograd: of a module: the autograd graph of what it returns, with the modules that made
            the nodes as they were watched.
        loss: of a module, with ``autograd``: a function of its output; the graph is that of its
            result.
        **kwargs: what a module is called with.

    Returns:
        the graph. Where the forward raises, all up to there, with the exception in ``error``.

    Raises:
        InputError: the target is none of these, none of its tensors has a graph, or the arguments
            do not go together.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
        >>> found = tt.graph(model(torch.ones(3, 4)).sum(), model=model)
        >>> [node.name for node in found.order()][:3]
        ['SumBackward0', 'ReluBackward0', 'AddmmBackward0']
        >>> found.find("0.weight")[0].types[0].shape, found.saved_nbytes
        ((8, 4), 144)
        >>> [node.name for node in tt.graph(model, torch.ones(3, 4)).order()]
        ['input', 'Linear', 'ReLU', 'output']
    """
    require("tt.graph")
    if isinstance(target, nn.Module):
        if model is not None:
            raise InputError("tt.graph got a module and model=; give one of them.")
        return _graph_of_model(target, inputs, kwargs, loss, autograd=autograd or loss is not None)
    if inputs or kwargs or loss is not None or autograd:
        raise InputError(
            f"tt.graph got {kind_of(target)} and arguments to call it with; expected a module "
            f"before them. Of tensors, give tt.graph((a, b), model=model)."
        )
    is_run = isinstance(target, RecordedRun)
    return _graph_of_run(target) if is_run else _graph_of_tensors(target, model)


# ---------------------------------------------------------------------- tensors


def _graph_of_tensors(target: Any, model: Models) -> Graph:
    tensors = leaves(target)
    if not tensors:
        raise InputError(
            f"tt.graph got {kind_of(target)}, in which there is no tensor; expected a tensor, "
            f"tensors in a list or dict, a module, or a run."
        )
    models = _models(model)
    parts = ModelParts(models)
    with torch.inference_mode(False):
        read = read_autograd(tensors, parts)
    _refuse_none(read)
    called = (pair for pair in parts.modules.items() if not is_container(pair[1]))
    types = {path: type(module).__name__ for path, module in called}
    nodes, calls = by_parameters(read.nodes, read.edges, types)
    notes = [*_notes(read), *([INFERRED] if calls else [])]
    return Graph(
        kind=AUTOGRAD,
        title=_title(tensors, models),
        nodes=tuple(nodes),
        edges=tuple(read.edges),
        calls=tuple(calls),
        roots=tuple(read.roots),
        notes=tuple(notes),
        cuts=_cuts(models, tensors),
    )


def _models(model: Models) -> Mapping[str, nn.Module]:
    if model is None:
        return {}
    models = {"": model} if isinstance(model, nn.Module) else model
    if not isinstance(models, Mapping) or not all(
        isinstance(one, nn.Module) for one in models.values()
    ):
        raise InputError(
            f"model is {kind_of(model)}; expected a torch.nn.Module, or a mapping from names to "
            f"modules."
        )
    return models


def _title(tensors: Sequence[tuple[str, Tensor]], models: Mapping[str, nn.Module]) -> str:
    first = kind_of(tensors[0][1])
    what = first if len(tensors) == 1 else f"{len(tensors)} tensors"
    made = " and ".join(type(model).__name__ for model in models.values())
    return f"Autograd graph of {what}" + (f", {made}" if made else "")


def _refuse_none(found: AutogradParts) -> None:
    if any(root.node >= 0 for root in found.roots):
        return
    root = found.roots[0]
    none = "It has no"
    if len(found.roots) > 1:
        none = f"None of the {len(found.roots)} tensors has an"
    raise InputError(
        f"tt.graph got {root.type}{f' ({root.name})' if root.name else ''}: {root.note}. {none} "
        f"autograd graph. Compute it from parameters or inputs that require grad, with grad mode "
        f"on; tt.graph(model, *inputs) shows the modules all the same."
    )


def _notes(found: AutogradParts) -> list[str]:
    notes = [
        f"{root.name or 'the tensor'} ({root.type}) has no graph: {root.note}"
        for root in found.roots
        if root.node < 0
    ]
    compiled = sum(node.kind == COMPILED for node in found.nodes)
    if compiled:
        notes.append(
            f"{compiled} compiled function{'s are' if compiled > 1 else ' is'} one node each: what "
            f"they compute in backward is inside the compiled code"
        )
    if not found.is_whole:
        notes.append(
            f"the graph is cut after {len(found.nodes):,} nodes, {MOST_IN_A_ROW:,} of them in a "
            f"row: bytes and order are of these alone"
            if len(found.nodes) < MOST_NODES
            else f"the graph is cut after {MOST_NODES:,} nodes: bytes and order are of these alone"
        )
    return notes


def _cuts(
    models: Mapping[str, nn.Module],
    tensors: Sequence[tuple[str, Tensor]],
    trace: Trace | None = None,
) -> Cuts:
    trainable, aliases, refs = dict[str, bool](), dict[str, str](), dict[str, Any]()
    first: dict[int, str] = {}
    for prefix, model in models.items():
        for path, module in modules_of(model)[0].items():
            for name, param in module._parameters.items():
                if param is None:
                    continue
                full = ".".join(part for part in (prefix, path, name) if part)
                if id(param) in first:
                    aliases[full] = first[id(param)]
                else:
                    first[id(param)] = full
                    trainable[full] = param.requires_grad
                    refs[full] = weakref.ref(param)
    reached = reached_parameters((one for _, one in tensors), first)
    if trace is None:
        return Cuts(trainable, aliases, reached=reached, refs=refs)
    return Cuts(trainable, aliases, tuple(trace.flow.operations), reached, refs)


# ---------------------------------------------------------------------- a model that is run


def _graph_of_model(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    loss: Callable[[Any], Any] | None,
    *,
    autograd: bool,
) -> Graph:
    modules, _ = modules_of(model)
    trace = Trace(modules)
    fastpath = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(uncompiled())
        # The fused encoder kernel hides the modules in it.
        stack.callback(torch.backends.mha.set_fastpath_enabled, fastpath)
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(preserved(modules, args, kwargs))
        kept = _run(trace, model, args, kwargs, loss)
        tensors = trace.finish(kept)
        cuts = _cuts({"": model}, tensors, trace)
        notes = _notes_of(model)
        if autograd and not trace.error:
            inputs = argument_leaves(args, dict(kwargs))
            found = _watched_autograd(model, trace, tensors, inputs, cuts, notes)
        else:
            found = _execution(model, trace, cuts, notes)
        del kept, tensors
        trace.release()
    return found


def _run(
    trace: Trace,
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    loss: Callable[[Any], Any] | None,
) -> Any:
    """Call the model; an exception of its own ends up in the graph, which then ends there."""
    with trace.following(args, kwargs):
        try:
            output = model(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - it is the model's, and is shown in the graph
            trace.error = f"{type(error).__name__}: {error}"
            return None
        return output if loss is None else loss(output)


def _notes_of(model: nn.Module) -> list[str]:
    compiled = [path for path, module in model.named_modules() if is_compiled_module(module)]
    notes = []
    if compiled:
        notes.append(f"{compiled[0] or 'the model'} is compiled; it ran uncompiled to be seen")
    scripted = [path or "the model" for path in outermost_scripted(modules_of(model)[0])]
    if scripted:
        shown = f"{', '.join(scripted[:3])}{', ...' if len(scripted) > 3 else ''}"
        kind = "are ScriptModules" if len(scripted) > 1 else "is a ScriptModule"
        notes.append(f"{shown} {kind}, shown as one node: what runs inside is not seen")
    return notes


def _watched_autograd(
    model: nn.Module,
    trace: Trace,
    tensors: Sequence[tuple[str, Tensor]],
    inputs: Sequence[tuple[str, Tensor]],
    cuts: Cuts,
    notes: Sequence[str],
) -> Graph:
    if not tensors:
        raise InputError(
            f"{type(model).__name__} returned no tensor, so there is no autograd graph; give "
            f"loss=, a function of what it returns."
        )
    read = read_autograd(tensors, ModelParts({"": model}), inputs)
    _refuse_none(read)
    nodes = by_sequence(read.nodes, read.edges, trace.events, trace.calls)
    return Graph(
        kind=AUTOGRAD,
        title=f"Autograd graph of {type(model).__name__}",
        nodes=tuple(nodes),
        edges=tuple(read.edges),
        calls=tuple(trace.calls),
        roots=tuple(read.roots),
        notes=(*_notes(read), *notes, *cuts.notes()),
        cuts=cuts,
    )


def _execution(model: nn.Module, trace: Trace, cuts: Cuts, notes: Sequence[str]) -> Graph:
    numbers: dict[int, int] = {}
    nodes = list[Node]()
    times = Counter(call.path for call in trace.calls)
    for place, item in enumerate(trace.items):
        if place not in trace.merged:
            number = numbers[place] = len(nodes)
            note = item.note
            if item.kind == MODULE and times[item.path] > 1:
                which = f"call {trace.calls[item.call].number + 1} of {times[item.path]}"
                note = f"{which}; {note}" if note else which
            nodes.append(
                Node(
                    *(number, item.name, item.kind, item.path, item.call, item.types),
                    line=item.line,
                    note=note,
                    cut_slots=item.cut_slots,
                )
            )
    edges: dict[Edge, None] = {}
    for source, target, output, place, kind in trace.edges:
        start = numbers[trace.merged.get(source, source)]
        end = numbers[trace.merged.get(target, target)]
        if start != end:
            edges[Edge(start, end, output, place, kind)] = None
    return Graph(
        EXECUTION,
        f"Execution of {type(model).__name__}",
        tuple(nodes),
        tuple(edges),
        tuple(trace.calls),
        notes=tuple(notes),
        error=trace.error,
        cuts=cuts,
    )


# ---------------------------------------------------------------------- a run


def _graph_of_run(run: RecordedRun) -> Graph:
    nodes, edges, calls, notes = read_run(run)
    title = f"Execution of {run.meta.model or 'the model'}"
    return Graph(EXECUTION, title, tuple(nodes), tuple(edges), tuple(calls), notes=tuple(notes))

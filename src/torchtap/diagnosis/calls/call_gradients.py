"""The gradients of one call in the run in which it is recorded: what arrives and what leaves.

What arrives at its outputs is recorded by ``tt.watch``; what arrives at tensors that it put into an
argument (a cache, a buffer that it wrote into) by hooks on these. What goes out to its arguments
and its parameters through this call alone is added up at the edges of the graph by which they enter
it, part by part as autograd does it, so that other calls of the module and other uses of a tied
weight do not count, and no bit differs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.capture.watch import watch
from torchtap.capture.watch_handle import Watch
from torchtap.core.record import FORWARD
from torchtap.core.site import Pattern
from torchtap.core.torch_private import sequence_number
from torchtap.core.tree import leaves
from torchtap.diagnosis.calls.capture import Captured
from torchtap.diagnosis.calls.copies import Arguments
from torchtap.diagnosis.calls.standalone.run_again import (
    Result,
    arguments_by_name,
    named_arguments,
    tensors_in,
)
from torchtap.hooks.graph_edges import BoundaryEdge, boundary_edges, edge_of, input_edges
from torchtap.hooks.module_hook import keep_dynamo_out
from torchtap.hooks.tap import GradHook

_BY_MEMORY = (
    "it wrote into a view, and gradients came into the call by that memory, not by an output; "
    "so its backward is not repeated"
)
_OFTEN = "the backward came several times to its outputs, and is not repeated"


@dataclass(frozen=True, slots=True)
class _Entering:
    """A tensor that comes into the call from outside: an argument, or a parameter."""

    table: dict[str, Tensor]
    name: str
    shape: torch.Size | None
    dtype: torch.dtype


class CallGradients:
    """Notes where one call's tensors are in the graph, and takes the gradients there.

    Args:
        model: that runs.
        path: of the module.
        call: number of its call.

    Attributes:
        watch: open it around forward and backward.
        notes: what could not be told.
        is_whole: whether the backward came to its end.
    """

    def __init__(self, model: nn.Module, path: str, call: int) -> None:
        where = Pattern(f"re:{re.escape(path)}" if path else ".", ("grad_output",))
        self.watch: Watch = watch(model, where, copy="always")
        self.notes: list[str] = []
        self.is_whole = True
        self._call = call
        self._inputs: dict[str, Tensor] = {}
        self._parameters: dict[str, Tensor] = {}
        self._outputs: dict[str, str] = {}  # Leaf of a site -> name of the output.
        self._handed_on: set[str] = set()
        self._handles: list[Any] = []
        self._first = 0
        self._entering: list[_Entering] = []
        self._edges: Any = {}
        self._given: list[tuple[Tensor, int]] = []
        self._arguments: Arguments = (), {}
        self._arriving: list[tuple[str, Tensor]] = []
        # Names of outputs that are arguments which the call wrote into; None for other arguments.
        self._written: set[str | None] = set()

    def enter(self, module: nn.Module, arguments: Arguments) -> None:
        """The call begins."""
        self.release()
        self._inputs.clear()
        self._parameters.clear()
        self._arriving.clear()
        self._arguments = arguments
        self._first = sequence_number()
        # A call without a graph has no gradients, and its tensors are not to be held.
        if not torch.is_grad_enabled():
            return
        # By identity: a parameter that is handed in as an argument is counted once, as a parameter.
        given = tensors_in(arguments_by_name(*arguments))
        own = {id(parameter) for parameter in module.parameters()}
        tensors = [
            *((self._inputs, name, one) for name, one in given.items() if id(one) not in own),
            *((self._parameters, name, one) for name, one in module.named_parameters()),
        ]
        tensors = [entry for entry in tensors if entry[2].requires_grad]
        self._entering = [
            _Entering(table, name, None if one.is_nested else one.shape, one.dtype)
            for table, name, one in tensors
        ]
        self._edges = input_edges(enumerate(one for _, _, one in tensors))
        self._given = [(one, one._version) for one in given.values()]

    def leave(self, _: Captured, output: Any) -> None:
        """The call ends."""
        tensors = tensors_in(output)
        known = {id(one): name for name, one in tensors.items()}
        names = {leaf: known[id(one)] for leaf, one in leaves(output) if id(one) in known}
        # One tensor in several places of the output has one gradient.
        self._outputs = {leaf: name for name, leaf in {n: at for at, n in names.items()}.items()}
        can = torch.is_grad_enabled()
        made = {name: one for name, one in tensors.items() if can and self._is_made_here(one)}
        self._handed_on = tensors.keys() - made.keys()
        self._written = {
            known.get(id(one))
            for one, version in self._given
            if one.requires_grad and one._version != version and one._is_view()
        }
        put = self._put_into_arguments()
        put = {name: one for name, one in put.items() if id(one) not in known}
        self._given = []
        for name, tensor in put.items():
            note = GradHook(self._arrive, name)
            self._handles.append(tensor.register_hook(note))  # type: ignore[no-untyped-call]
        roots = [*made.values(), *put.values()]
        for node, slots in boundary_edges(roots, self._edges, self._first).items():
            self._handles.append(node.register_hook(partial(self._add, slots)))
        self._edges = {}

    def _put_into_arguments(self) -> dict[str, Tensor]:
        """Tensors of this call that its arguments hold now: what was written, or put in."""
        arguments, self._arguments = self._arguments, ((), {})
        by_name = named_arguments(*arguments) if torch.is_grad_enabled() else {}
        # A view whose base was written into before gets a node of its own when it is looked at.
        as_given = {id(one) for one, version in self._given if one._version == version}
        fresh = {name: one for name, one in by_name.items() if id(one) not in as_given}
        return {name: one for name, one in fresh.items() if self._is_made_here(one)}

    def _arrive(self, name: str, gradient: Tensor) -> None:
        self._arriving.append((name, gradient.detach().clone()))

    def _is_made_here(self, tensor: Tensor) -> bool:
        if not tensor.requires_grad or tensor.is_leaf:
            return False
        return bool(edge_of(tensor)[0]._sequence_nr() >= self._first)

    def _add(self, slots: list[BoundaryEdge], going: tuple[Tensor | None, ...], _: Any) -> None:
        """Node hook: add what goes out of the call here, as the engine is about to do it."""
        for slot, place, geometry in slots:
            part, entering = going[slot], self._entering[place]
            if part is None:
                continue
            part = part.detach() if geometry is None else geometry.cut(part.detach())
            # The engine sums to the shape of the input, and casts, after the hooks of a node.
            if entering.shape is not None and part.shape != entering.shape:
                part = part.sum_to_size(entering.shape)
            part = part.to(entering.dtype)
            before = entering.table.get(entering.name)
            # Cloned: the engine may add to the buffer of a gradient that it hands on.
            entering.table[entering.name] = part.clone() if before is None else before + part

    def release(self) -> None:
        """Take all hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def result(self, captured: Captured) -> Result:
        """Return the results of the call, forward and backward."""
        if not self.is_whole:
            return _forward_of(captured)
        arriving: dict[str, Tensor] = {}
        for name, value in [*self._received(), *self._arriving]:
            if name in arriving:
                self.notes.append(_OFTEN)
                return _forward_of(captured)
            arriving[name] = value
        if (self._inputs or self._parameters) and self._written - arriving.keys():
            self.notes.append(_BY_MEMORY)
            return _forward_of(captured)
        return replace(
            _forward_of(captured),
            arriving={name: one for name, one in arriving.items() if name not in self._handed_on},
            inputs=self._in_order(self._inputs),
            parameters=self._in_order(self._parameters),
        )

    def _in_order(self, table: dict[str, Tensor]) -> dict[str, Tensor]:
        """Sort by the order of arguments and parameters, not by that of the backward."""
        names = [one.name for one in self._entering if one.table is table]
        return {name: table[name] for name in names if name in table}

    def _received(self) -> Iterator[tuple[str, Tensor]]:
        for record in self.watch.run.records(phase=None):
            is_own = record.call == self._call and record.phase == FORWARD
            if is_own and record.site.leaf in self._outputs:
                yield self._outputs[record.site.leaf], record.value


def _forward_of(captured: Captured) -> Result:
    return Result(captured.output, captured.buffers_after, {}, {}, {})


def accumulated(model: nn.Module) -> Mapping[str, Tensor]:
    """Return the gradients of all parameters in a run that is one call of the model."""
    gradients = {name: one.grad for name, one in model.named_parameters()}
    return {name: one.detach().clone() for name, one in gradients.items() if one is not None}


keep_dynamo_out(CallGradients._add, CallGradients._arrive)

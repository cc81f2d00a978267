"""The execution of a model, from what a run recorded of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from torchtap.core.errors import InputError, OverwrittenError
from torchtap.core.record import Record
from torchtap.core.tensors import as_bytes
from torchtap.graphs.autograd import type_of
from torchtap.graphs.nodes import (
    INPUT,
    MODULE,
    OPERATION,
    OUTSIDE,
    Call,
    Edge,
    Node,
    TensorType,
)

BY_BITS = (
    "arrows join an output and an input that have the same bits, the latest output first; "
    "'between' stands for operations outside of modules, which a run does not record "
    "(tt.graph(model, *inputs) follows them)"
)
BY_ORDER = (
    "arrows show the order of the calls alone: the run has no inputs of modules, or no values. "
    "Watch '*:input,output' for the flow of data"
)
_Bits = tuple[str, tuple[int, ...], int]


class RecordedModules(Protocol):
    """Interface of what a run knows of its model."""

    @property
    def model(self) -> str:
        """Return the name of its class."""

    @property
    def modules(self) -> Mapping[str, tuple[str, ...]]:
        """Return path -> names of classes."""

    def type_name(self, path: str) -> str:
        """Return the name of a module's class."""


@runtime_checkable
class RecordedRun(Protocol):
    """Interface of a recorded run, of which a graph is made."""

    @property
    def meta(self) -> RecordedModules:
        """Return what is known of the model."""

    def __len__(self) -> int: ...

    def records(self) -> Iterable[Record]:
        """Return the values that flowed, in the order of their arrival."""


@dataclass(slots=True)
class _Seen:
    """The records of one call."""

    path: str
    number: int
    first: int
    last: int
    inputs: list[Record] = field(default_factory=list)
    outputs: list[Record] = field(default_factory=list)
    has_children: bool = False
    id: int = OUTSIDE
    node: int = OUTSIDE


def read_run(run: RecordedRun) -> tuple[list[Node], list[Edge], list[Call], list[str]]:
    """Nodes, edges, calls and notes of the last step of a run.

    Raises:
        InputError: the run has no values that flowed in a forward.
    """
    records = _records(run)
    if not records:
        raise InputError(
            "The run holds no inputs or outputs of modules, with values, of a forward; expected "
            "one of tt.watch(model, '*:input,output'). (tt.Stats keeps no order of calls.)"
        )
    seen = _calls(records)
    meta = run.meta  # Of a watch it is put together anew each time.
    calls = _nest(seen, meta)
    nodes, edges, is_flow = _Flow(seen, meta).read()
    return nodes, edges, calls, [BY_BITS if is_flow else BY_ORDER]


def _records(run: RecordedRun) -> list[Record]:
    if not len(run):
        return []
    # They come in the order of their arrival, which is that of the calls.
    flowing = [record for record in run.records() if record.site.port in ("input", "output")]
    last = max((one.step for one in flowing), default=0)
    return [one for one in flowing if one.step == last]


def _calls(records: Iterable[Record]) -> list[_Seen]:
    by_call: dict[tuple[str, int], _Seen] = {}
    for place, record in enumerate(records):
        key = record.site.path, record.call
        if key not in by_call:
            by_call[key] = _Seen(*key, first=place, last=place)
        one = by_call[key]
        one.last = place
        (one.inputs if record.site.port == "input" else one.outputs).append(record)
    # Where inputs were not recorded, a call begins before what ran inside of it.
    begun: dict[str, int] = {}
    every = sorted(by_call.values(), key=lambda one: one.last)
    for one in every:
        if not one.inputs:
            inside = [
                other.first
                for other in every
                if _is_inside(other.path, one.path)
                and begun.get(one.path, -1) < other.first < one.first
            ]
            one.first = min([one.first, *inside])
        begun[one.path] = one.last
    return sorted(every, key=lambda one: (one.first, -one.last, one.path.count(".")))


def _is_inside(path: str, outer: str) -> bool:
    return path != outer and (not outer or path.startswith(f"{outer}."))


def _nest(seen: Sequence[_Seen], meta: RecordedModules) -> list[Call]:
    calls, stack = list[Call](), list[_Seen]()
    for one in seen:
        while stack and not (stack[-1].last >= one.last and _is_inside(one.path, stack[-1].path)):
            stack.pop()
        if stack:
            stack[-1].has_children = True
        one.id = len(calls)
        calls.append(
            Call(
                id=one.id,
                path=one.path,
                type=_type_name(meta, one.path),
                number=one.number,
                above=stack[-1].id if stack else OUTSIDE,
                inputs=tuple(type_of(record.kept) for record in one.inputs),
                outputs=tuple(type_of(record.kept) for record in one.outputs),
            )
        )
        stack.append(one)
    return calls


def _type_name(meta: RecordedModules, path: str) -> str:
    return meta.type_name(path) if path in meta.modules else "mark"


class _Flow:
    """Makes a node of each call without calls inside, and joins them by the bits that flow."""

    def __init__(self, seen: Sequence[_Seen], meta: RecordedModules) -> None:
        self._leaves = [one for one in seen if not one.has_children]
        self._outer = [one for one in seen if one.has_children]
        self._meta = meta
        self._nodes: list[Node] = []
        self._edges: list[Edge] = []
        self._made: dict[_Bits, int] = {}

    def read(self) -> tuple[list[Node], list[Edge], bool]:
        """Nodes, edges, and whether these show the flow of data."""
        is_flow = any(leaf.inputs for leaf in self._leaves)
        if is_flow and self._outer:
            for place, record in enumerate(self._outer[0].inputs):
                types = (type_of(record.kept),)
                name = record.site.leaf or str(place)
                number = self._add("input", INPUT, name, OUTSIDE, types)
                self._know(record, number)
        before = OUTSIDE
        for leaf in self._leaves:
            name = _type_name(self._meta, leaf.path)
            kind = MODULE if leaf.path in self._meta.modules else OPERATION
            sources = self._sources(leaf, before) if is_flow else []
            if not is_flow and before != OUTSIDE:
                sources = [(before, None)]
            given = tuple(type_of(record.kept) for record in leaf.outputs)
            leaf.node = self._add(name, kind, leaf.path, leaf.id, given)
            for place, (source, flowing) in enumerate(sources):
                self._edges.append(Edge(source, leaf.node, 0, place, flowing))
            for record in leaf.outputs:
                self._know(record, leaf.node)
            before = leaf.node
        return self._nodes, self._edges, is_flow

    def _sources(self, one: _Seen, before: int) -> list[tuple[int, TensorType | None]]:
        sources: list[tuple[int, TensorType | None]] = []
        for record in one.inputs:
            flowing = type_of(record.kept)
            bits = _bits(record)
            source = self._made.get(bits) if bits is not None else None
            if source is None and before != OUTSIDE:
                source = self._add("between", OPERATION, "", OUTSIDE, (flowing,))
                self._edges.append(Edge(before, source, 0, 0, None))
                self._know(record, source)
            if source is not None:
                sources.append((source, flowing))
        return sources

    def _add(
        self, name: str, kind: str, path: str, call: int, types: tuple[TensorType, ...]
    ) -> int:
        number = len(self._nodes)
        self._nodes.append(Node(number, name, kind, path, call, types))
        return number

    def _know(self, record: Record, node: int) -> None:
        bits = _bits(record)
        if bits is not None:
            self._made[bits] = node


def _bits(record: Record) -> _Bits | None:
    """Return a key that tells a value from others; ``None`` where the value cannot be read."""
    try:
        value: Tensor = record.value
    except OverwrittenError:
        return None
    if value.layout is not torch.strided or value.is_meta or value.is_quantized or value.is_nested:
        return None
    plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    content = as_bytes(plain).numpy().tobytes()
    return str(value.dtype), tuple(value.shape), hash(content)

"""The origin of a value that is not finite: where it was made, and what of."""

from __future__ import annotations

import cmath
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from torchtap.core.source_files import shown_file
from torchtap.core.text import plural
from torchtap.graphs.graph import EXECUTION, Graph
from torchtap.graphs.nodes import NOT_FINITE, OPERATION, Edge, Node

INPUT, PARAMETER, FORWARD = "input", "parameter", "forward"
BACKWARD, OPTIMIZER = "backward", "optimizer"
_MOST_ROWS, _MOST_STEPS = 8, 12


@dataclass(frozen=True, slots=True)
class Passage:
    """An operation that a value which is not finite went through.

    Attributes:
        operation: ATen's name of it, without overload; the phase where no operation made the value.
        module: path of the innermost module that ran, ``"."`` for the model, or ``None``.
        file: of the line of source; empty where there is none.
        line: its number.
    """

    operation: str
    module: str | None = None
    file: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Origin:
    """The place where the first value was made that is not finite: the root of all that follow.

    An operation is the origin if it made an Inf or NaN of finite values, and the loss, a gradient
    or a parameter depends on it. A mask of -Inf that is meant is none.

    Attributes:
        phase: ``input``, ``parameter``, ``forward``, ``backward`` or ``optimizer``. An ``input`` or
            ``parameter`` was not finite when the step began.
        operation: ATen's name of the operation, without overload; empty where no operation of this
            step made the value.
        module: path of the innermost module that ran, ``"."`` for the model; of a backward, the
            module whose forward made the node. ``None`` outside of the model.
        call: number of its call in the step, from 0.
        file: of the line of source; empty where there is none.
        line: its number; of a backward that of the forward, or that in a custom backward.
        code: the line.
        index: of the first element that is not finite.
        value: that element.
        inputs: the values that it was computed from.
        cause: the origin in an earlier step that this one follows from, if that is known.
        rank: the process where it was made; ``None`` without ``torch.distributed``.
        rows: the samples of the batch that are not finite when they are computed alone.
        ids: the ids of those samples, where they are known.
        num_samples: of the batch; 0 where it is not known.
        micro_batch: which of the model's calls in the step had these samples, from 0, of those that
            a backward came to; ``None`` where there is one, or none was replayed.
        path: operations from the origin to the loss, gradient or parameter.
        way: the same operations, each with its module and line; :meth:`graph` draws them.
        text: all of it in one paragraph.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Linear(2, 1)
        >>> _ = torch.nn.init.ones_(model.weight)
        >>> origin = tt.locate(model, lambda x: model(x).log().mean(), torch.full((3, 2), -9.0))
        >>> origin.phase, origin.operation, origin.module, origin.path
        ('forward', 'log', None, ('log', 'mean'))
    """

    phase: str
    operation: str = ""
    module: str | None = None
    call: int = 0
    file: str = ""
    line: int = 0
    code: str = ""
    index: tuple[int, ...] = ()
    value: complex = float("nan")
    inputs: str = ""
    cause: Origin | None = None
    rank: int | None = None
    rows: tuple[int, ...] = ()
    ids: tuple[int | str, ...] = ()
    num_samples: int = 0
    way: tuple[Passage, ...] = ()
    note: str = ""
    file_hash: str = ""
    micro_batch: int | None = None

    @property
    def path(self) -> tuple[str, ...]:
        """Return the operations from the origin to the loss, gradient or parameter."""
        return tuple(one.operation for one in self.way)

    @property
    def passage(self) -> Passage:
        """Return the operation alone, as a part of another origin's way."""
        return Passage(self.operation or self.phase, self.module, self.file, self.line)

    def graph(self) -> Graph:
        """Return the way from the origin to the loss, gradient or parameter as a graph.

        Its first node is marked as the one that is not finite; printing, ``save`` and notebooks
        work as those of ``tt.graph``.
        """
        return graph_of_way(self)

    @property
    def text(self) -> str:
        """Return the origin in one paragraph."""
        return " ".join(part for part in _sentences(self) if part)

    def __str__(self) -> str:
        return self.text

    def as_dict(self) -> dict[str, Any]:
        """Return plain values by name, as JSON holds them; :func:`origin_of` reads them."""
        entry = asdict(self)
        entry["value"] = repr(self.value)
        entry["path"] = list(self.path)
        entry["cause"] = None if self.cause is None else self.cause.as_dict()
        return entry


def origin_of(entry: Mapping[str, Any]) -> Origin:
    """Restore an origin from the values of :meth:`Origin.as_dict`; unknown names are left out."""
    known = {field.name: entry[field.name] for field in fields(Origin) if field.name in entry}
    for name in ("index", "rows", "ids"):
        known[name] = tuple(known.get(name, ()))
    known["way"] = tuple(Passage(**one) for one in known.get("way", ()))
    value = complex(known.get("value", "nan"))
    known["value"] = value if value.imag else value.real
    if known.get("cause") is not None:
        known["cause"] = origin_of(known["cause"])
    return Origin(**known)


def _sentences(origin: Origin) -> list[str]:
    return [
        _made(origin),
        _at_line(origin),
        _element(origin),
        _way(origin),
        _samples(origin),
        origin.note,
        "" if origin.cause is None else f"It follows from this: {origin.cause.text}",
    ]


def _made(origin: Origin) -> str:
    kind = "NaN" if cmath.isnan(origin.value) else "Inf"
    rank = "" if origin.rank is None else f" on rank {origin.rank}"
    if origin.phase == INPUT:
        return f"An input{_place(origin, ' of')} was not finite: {kind}{rank}."
    if origin.phase == PARAMETER and not origin.operation:
        owner = _place(origin, " of")
        return f"A parameter or buffer{owner} was not finite when the step began: {kind}{rank}."
    where = _place(origin, " in") or " outside the model"
    if not origin.operation:
        return f"A value of the {origin.phase}{where} is {kind}{rank}."
    return f"In the {origin.phase}, {origin.operation}{where} made the first {kind}{rank}."


def _place(origin: Origin, before: str) -> str:
    """Return the module with a word before it; empty text if it was made in none."""
    if origin.module is None:
        return ""
    module = "the model" if origin.module == "." else origin.module
    return f"{before} {module}, call {origin.call}" if origin.call else f"{before} {module}"


def _at_line(origin: Origin) -> str:
    if not origin.file:
        return ""
    code = f": `{origin.code}`" if origin.code else ""
    return f"The code is at {shown_file(origin.file)}:{origin.line}{code}."


def _element(origin: Origin) -> str:
    relation = "computed from" if origin.operation else "in"
    made = f", {relation} {origin.inputs}" if origin.inputs else ""
    at = f"Element {list(origin.index)}" if origin.index else "The value"
    if not origin.inputs and not origin.index:
        return ""
    return f"{at} is {origin.value}{made}."


def _way(origin: Origin) -> str:
    if len(origin.path) < 2:
        return ""
    path = list(origin.path)
    if len(path) > _MOST_STEPS:
        left_out = f"{len(path) - _MOST_STEPS + 1} more"
        path = [*path[: _MOST_STEPS // 2], left_out, *path[1 - _MOST_STEPS // 2 :]]
    return f"It then passed through {', '.join(path[1:])}."


def _samples(origin: Origin) -> str:
    batch = "the batch" if origin.micro_batch is None else f"micro batch {origin.micro_batch}"
    # Where each sample does it, none of them is the reason.
    if len(origin.rows) in (0, origin.num_samples):
        return "" if origin.micro_batch is None else f"It came with {batch} of the step."
    named = [str(one) for one in (origin.ids or origin.rows)]
    listed = ", ".join(named[:_MOST_ROWS]) + (", ..." if len(named) > _MOST_ROWS else "")
    count = plural(len(origin.rows), "sample")
    verb = "does" if len(origin.rows) == 1 else "do"
    return f"{count} of {batch} {verb} it alone: {listed}."


def graph_of_way(origin: Origin) -> Graph:
    """Return the graph of an origin: its operations, one after the other."""
    nodes = tuple(
        Node(
            number,
            one.operation,
            OPERATION if number else NOT_FINITE,
            "" if one.module in (None, ".") else one.module,
            line=f"{shown_file(one.file)}:{one.line}" if one.file else "",
            note=f"{list(origin.index)} is {origin.value}" if not number else "",
        )
        for number, one in enumerate(origin.way)
    )
    edges = tuple(Edge(at, at + 1, 0, 0) for at in range(len(nodes) - 1))
    kind = "NaN" if cmath.isnan(origin.value) else "Inf"
    title = f"The way of {kind} from {origin.operation or origin.phase}"
    return Graph(EXECUTION, title, nodes, edges, notes=(origin.text,))

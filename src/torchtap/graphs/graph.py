"""A graph: plain data, what can be asked of it, and its pictures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torchtap.core.did_you_mean import did_you_mean
from torchtap.core.errors import InputError, MissingExtraError
from torchtap.core.printed import Printed
from torchtap.core.printed_page import BLANK, Grid, Line, Page
from torchtap.core.text import NONE, count, elide, plural, shape, size
from torchtap.graphs.backward_order import LEAF, backward_order
from torchtap.graphs.boxes_and_arrows import Picture, make_picture
from torchtap.graphs.call_tree import Part, build_tree, fold_repeats
from torchtap.graphs.gradient_cuts import Cuts
from torchtap.graphs.nodes import (
    AND,
    CHECKPOINT,
    FUNCTION,
    HIDDEN,
    OUTPUT,
    OVERWRITTEN,
    Call,
    Edge,
    Node,
    Root,
)

if TYPE_CHECKING:
    from torch import Tensor

AUTOGRAD, EXECUTION = "autograd", "execution"
_MOST_ROWS = 24


@dataclass(frozen=True, eq=False, repr=False)
class Graph(Printed):
    """The result of ``tt.graph``: plain data that keeps no tensor and no graph alive.

    Printing it shows a table; a notebook shows the picture.

    Attributes:
        kind: ``autograd`` (the graph that backward would walk) or ``execution`` (modules and
            operations of a forward).
        title: what it is the graph of.
        nodes: each with its own number as ``id``.
        edges: between nodes. In an autograd graph they are ``next_functions``, in the direction of
            backward; in an execution they are in the direction of the forward.
        calls: of modules, in the order in which they were entered.
        roots: where backward would start.
        notes: what the reader should know.
        error: type and message of the exception that ended the forward; empty if none did.
        cuts: where gradients were cut off, of a forward that was watched.

    Example:
        >>> import torch, torchtap as tt
        >>> x = torch.ones(3, requires_grad=True)
        >>> found = tt.graph(x.exp().sum())
        >>> [(node.name, node.saved_nbytes) for node in found.order()]
        [('SumBackward0', 0), ('ExpBackward0', 12), ('AccumulateGrad', 0)]
        >>> print(found.mermaid().splitlines()[1])
        flowchart TD
    """

    endings: ClassVar[Sequence[str]] = (
        *(".svg", ".png", ".pdf", ".dot", ".md", ".mmd", ".json", ".html"),
    )
    """Endings of the files that :meth:`save` writes."""
    kind: str
    title: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    calls: tuple[Call, ...] = ()
    roots: tuple[Root, ...] = ()
    notes: tuple[str, ...] = ()
    error: str = ""
    cuts: Cuts = field(default_factory=Cuts)

    # ------------------------------------------------------------------ what can be asked

    @property
    def saved_nbytes(self) -> int:
        """Return bytes that are kept for backward alone, each memory once; a backward frees them.

        Parameters and buffers, which exist anyway, are not counted.
        """
        return sum(node.saved_nbytes for node in self.nodes)

    @property
    def joins(self) -> tuple[Node, ...]:
        """Return nodes that more than one edge leads to: there autograd adds gradients up."""
        times = Counter(edge.target for edge in self.edges)
        return tuple(node for node in self.nodes if times[node.id] > 1)

    def order(self) -> tuple[Node, ...]:
        """Return the nodes in the order in which they run.

        An autograd graph has that of one ``torch.autograd.backward`` of all roots, on the CPU,
        where one thread runs all nodes: the node that was made last goes first, once all
        gradients for it are there, and leaves go as soon as they can. (Each accelerator has a
        thread of its own, which follows the same rule among its nodes.) An execution has the order
        of the forward.
        """
        if self.kind == EXECUTION:
            return self.nodes
        following: dict[int, list[int]] = {}
        for edge in self.edges:
            following.setdefault(edge.source, []).append(edge.target)
        roots = [root.node for root in self.roots if root.node >= 0]
        numbers = [LEAF if node.sequence < 0 else node.sequence for node in self.nodes]
        return tuple(self.nodes[one] for one in backward_order(roots, following, numbers))

    def find(self, name: str) -> tuple[Node, ...]:
        """Return the nodes of a name or of a module.

        Args:
            name: as ``AddmmBackward0``, the path of a module (with all in it), a parameter or an
                input; or a pattern of these, as ``*Conv*`` (in the sense of ``fnmatch``).

        Raises:
            InputError: there is none; the message names what is near.
        """
        inside = f"{name}."
        nodes = tuple(
            node
            for node in self.nodes
            if fnmatchcase(node.name, name)
            or any(
                path and (fnmatchcase(path, name) or path.startswith(inside))
                for path in (node.path, *node.path.split(AND))
            )
        )
        if not nodes:
            known = dict.fromkeys(one for node in self.nodes for one in (node.name, node.path))
            near = did_you_mean(name, [one for one in known if one])
            raise InputError(f"The graph has no node of the name or path {name!r}{near}")
        return nodes

    def why_no_grad(self, parameter: str | Tensor) -> str:
        """Return why a backward of this graph gives a parameter no gradient, or that it gives one.

        Args:
            parameter: its path, as in ``named_parameters()``, or itself.

        Returns:
            sentences. A way on which a hook stands, a custom function, whose backward may return
            none, an operation whose derivative is 0, or one that has none, at which a backward
            raises, is told; a gradient that is 0 by its values alone (a ReLU of negative numbers)
            is not. Where the forward was watched (``tt.graph(model, *inputs)``), they name each
            operation that cuts the way, with its module and its line in the program.

        Raises:
            InputError: the graph does not know the parameter: the model was not given.
        """
        functions = any(node.kind in (FUNCTION, CHECKPOINT) for node in self.nodes)
        return self.cuts.why(parameter, is_autograd=self.kind == AUTOGRAD, has_functions=functions)

    # ------------------------------------------------------------------ pictures

    def picture(self, *, depth: int | None = None) -> Picture:
        """Return the boxes and arrows of a picture, as plain data.

        Args:
            depth: how many modules inside each other are opened (0 for none). ``None`` for as
                many as stay within 60 boxes.

        Raises:
            InputError: ``depth`` is negative.
        """
        if depth is not None and depth < 0:
            raise InputError(f"depth is {depth}; expected a number from 0, or None.")
        root, arrows = self._tree
        error = [f"the forward raised {self.error}"] if self.error else []
        notes = (*error, *self.notes)
        # What a module without modules does by functions is shown where it is asked for.
        opens_leaves = self.kind == AUTOGRAD or depth is not None
        return make_picture(self.title, root, arrows, depth, notes, opens_leaves=opens_leaves)

    def svg(self, *, depth: int | None = None, theme: str = "auto") -> str:
        """Return the picture as SVG, a text that loads nothing and runs nothing.

        Args:
            depth: as of :meth:`picture`.
            theme: ``light``, ``dark``, or ``auto`` for what the reader's system prefers.

        Raises:
            MissingExtraError: fast-sugiyama, of the extra ``graph``, is not installed.
        """
        from torchtap.graphs.pictures.drawing import draw
        from torchtap.graphs.pictures.svg import to_svg

        _check_theme(theme)
        return to_svg(draw(self.picture(depth=depth)), theme)

    def figure(self, *, depth: int | None = None, theme: str = "light") -> Any:
        """Return the picture as a ``matplotlib.figure.Figure``.

        Args:
            depth: as of :meth:`picture`.
            theme: ``light`` or ``dark``.

        Raises:
            MissingExtraError: matplotlib or fast-sugiyama is not installed.
        """
        from torchtap.graphs.pictures.drawing import draw
        from torchtap.graphs.pictures.figure import to_figure

        _check_theme(theme)
        return to_figure(draw(self.picture(depth=depth)), theme)

    def dot(self, *, depth: int | None = None) -> str:
        """Return the picture in the language of Graphviz; ``depth`` as of :meth:`picture`."""
        from torchtap.graphs.pictures.dot_mermaid import to_dot

        return to_dot(self.picture(depth=depth))

    def mermaid(self, *, depth: int | None = None) -> str:
        """Return the picture as a flowchart of Mermaid; ``depth`` as of :meth:`picture`."""
        from torchtap.graphs.pictures.dot_mermaid import to_mermaid

        return to_mermaid(self.picture(depth=depth))

    def save(self, path: str | Path, *, depth: int | None = None, theme: str = "auto") -> Path:
        """Write the graph to a file, by the ending of its name.

        Args:
            path: ``.svg``, ``.html``, ``.png``, ``.pdf``, ``.dot``, ``.md`` or ``.mmd`` (Mermaid,
                in Markdown or alone), or ``.json`` (all of the graph, not what a picture shows).
            depth: as of :meth:`picture`.
            theme: as of :meth:`svg`.

        Returns:
            the path.

        Raises:
            InputError: no file of such an ending can be written.
            MissingExtraError: as of :meth:`svg` and :meth:`figure`.
        """
        path = Path(path)
        kind = path.suffix.lower()
        if kind not in self.endings:
            raise InputError(f"{path} ends in {kind!r}; expected one of {', '.join(self.endings)}.")
        if kind in (".png", ".pdf"):
            self.figure(depth=depth, theme=theme).savefig(path)
            return path
        path.write_text(self._written(kind, depth, theme), encoding="utf-8")
        return path

    def _written(self, kind: str, depth: int | None, theme: str) -> str:
        if kind == ".json":
            return json.dumps(self.as_dict(), ensure_ascii=False)
        if kind == ".dot":
            return self.dot(depth=depth)
        if kind in (".md", ".mmd"):
            text = self.mermaid(depth=depth)
            return f"```mermaid\n{text}```\n" if kind == ".md" else text
        svg = self.svg(depth=depth, theme=theme)
        return f'<!doctype html><meta charset="utf-8">\n{svg}\n' if kind == ".html" else svg

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "kind": self.kind,
            "title": self.title,
            "nodes": [_plain(node) for node in self.nodes],
            "edges": [_plain(edge) for edge in self.edges],
            "calls": [_plain(call) for call in self.calls],
            "roots": [_plain(root) for root in self.roots],
            "saved_nbytes": self.saved_nbytes,
            "notes": list(self.notes),
            "error": self.error,
        }

    def _repr_svg_(self) -> str | None:
        try:
            return self.svg()
        except MissingExtraError:
            return None

    def _repr_html_(self) -> str:
        """Return the picture in a notebook; the table where what lays it out is not installed."""
        svg = self._repr_svg_()
        return super()._repr_html_() if svg is None else f'<div style="overflow:auto">{svg}</div>'

    @cached_property
    def _tree(self) -> tuple[Part, tuple[Edge, ...]]:
        """Return the tree that pictures are made of, and the arrows in the forward direction."""
        order, arrows = list(self.nodes), list(self.edges)
        if self.kind == AUTOGRAD:
            order = _forward_order(self.nodes, self.edges)
            arrows = [
                Edge(edge.target, edge.source, edge.output, edge.slot, edge.type)
                for edge in self.edges
            ]
            for number, end in enumerate(self.roots, len(self.nodes)):
                order.append(Node(number, "output", OUTPUT, end.name, types=(end.type,)))
                if end.node >= 0:
                    arrows.append(Edge(end.node, number, end.output, 0, end.type))
        root = build_tree(order, self.calls)
        fold_repeats(root, arrows)
        return root, tuple(arrows)

    # ------------------------------------------------------------------ as text

    def _page(self) -> Page:
        held = f", {size(self.saved_nbytes)} kept for backward" if self.saved_nbytes else ""
        head = f"{self.title}: {plural(len(self.nodes), 'node')}, {count(len(self.edges))} edges"
        error = [Line(f"The forward raised {self.error}", "bad", "  ")] if self.error else []
        notes = [Line(f"Note: {note}.", rest="  ") for note in (*self._facts(), *self.notes)]
        rows = [_row(node) for node in self.order()]
        table = Grid(
            rows,
            ("node", "kind", "module", "output", "saves"),
            "llllr",
            elastic={0: 14, 2: 16},
            limit=_MOST_ROWS,
            noun="node",
        )
        return Page(Line(head + held, "head"), *error, BLANK, table, BLANK, *notes)

    def _facts(self) -> Iterator[str]:
        if self.kind == EXECUTION:
            return
        states = Counter(one.state for node in self.nodes for one in node.saved)
        if states["freed"]:
            yield (
                f"a backward has freed {plural(states['freed'], 'saved tensor')}; another backward "
                f"through them raises, unless the first has retain_graph=True"
            )
        if states[OVERWRITTEN]:
            yield (
                f"overwritten since they were saved, so that backward will raise: "
                f"{plural(states[OVERWRITTEN], 'saved tensor')}"
            )
        others = [f"{num} {state}" for state, num in states.items() if state in ("packed",)]
        if others:
            yield f"saved tensors that a hook packed: {', '.join(others)}, of unknown size"
        cut = sum(bool(node.cut_slots) for node in self.nodes)
        if cut:
            yield f"inputs through which no gradient flows: at {plural(cut, 'node')}"
        if self.joins:
            yield f"at {plural(len(self.joins), 'node')} gradients of several paths are added up"
        hidden = sum(node.note == HIDDEN for node in self.nodes)
        if hidden:
            yield f"{HIDDEN} at {plural(hidden, 'node')}: these bytes are not counted"
        if self.saved_nbytes:
            yield f"a backward frees the {size(self.saved_nbytes)}, unless retain_graph=True"


def _forward_order(nodes: Sequence[Node], edges: Sequence[Edge]) -> list[Node]:
    """Return nodes as they were made; leaves right before the first node that uses them."""
    first: dict[int, int] = {}
    for edge in edges:
        if nodes[edge.target].sequence < 0:
            made = nodes[edge.source].sequence
            first[edge.target] = min(first.get(edge.target, made), made)

    def key(node: Node) -> tuple[int, int, int]:
        is_made = node.sequence >= 0
        return (node.sequence if is_made else first.get(node.id, -1), int(is_made), node.id)

    return sorted(nodes, key=key)


def _check_theme(theme: str) -> None:
    if theme not in ("auto", "light", "dark"):
        raise InputError(f"theme is {theme!r}; expected 'auto', 'light' or 'dark'.")


def _row(node: Node) -> tuple[str, ...]:
    kinds = [f"{shape(one.shape)} {one.dtype}" for one in node.types[:2]]
    return (
        node.name,
        node.kind,
        node.path or NONE,
        elide(", ".join(kinds), 32) or NONE,
        size(node.saved_nbytes) if node.saved_nbytes else NONE,
    )


_ATOMS = frozenset({str, int, float, bool, type(None)})


def _plain(value: Any) -> Any:
    """Data classes as dicts, tuples as lists; quicker than ``dataclasses.asdict``."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is tuple:
        return [_plain(one) for one in value]
    return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}

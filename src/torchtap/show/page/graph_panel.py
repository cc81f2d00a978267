"""The graph of a run as SVG, whose boxes name the module that they stand for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from torchtap.core.errors import InputError, MissingExtraError
from torchtap.graphs.graph import Graph
from torchtap.graphs.graph_function import graph as graph_of
from torchtap.graphs.nodes import PARAMETER, Node
from torchtap.runs.run import Run

_STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)
_BOX = re.compile(r"<g><title>")


@dataclass(frozen=True, slots=True)
class GraphPanel:
    """A graph on a page.

    Attributes:
        svg: the picture, without a style of its own; empty where there is none.
        light: rules of its style on a light page.
        dark: the same, on a dark page.
        notes: what is to be known, or why there is none.
    """

    svg: str = ""
    light: str = ""
    dark: str = ""
    notes: tuple[str, ...] = ()


def graph_panel(run: Run, graph: Graph | None = None) -> GraphPanel:
    """Draw a graph, or the one that a run recorded; say why where there is none."""
    try:
        drawn = graph_of(run) if graph is None else graph
        dark, light = drawn.svg(theme="dark"), drawn.svg(theme="light")
    except (InputError, MissingExtraError) as error:
        return GraphPanel(notes=(str(error),))
    paths = _paths(drawn)
    svg = _BOX.sub(lambda _: next(paths, "<g><title>"), _STYLE.sub("", light))
    # A picture has no parts for programs that read a page aloud; these boxes are buttons.
    svg = svg.replace('role="img"', 'role="group"', 1)
    return GraphPanel(svg, _rules(light), _rules(dark), tuple(drawn.picture().notes))


def _rules(svg: str) -> str:
    match = _STYLE.search(svg)
    return match.group(1) if match else ""


def _paths(graph: Graph) -> Iterator[str]:
    """Yield the beginning of each box, in the order in which they are drawn."""
    for box in graph.picture().boxes:
        # The outputs of a graph of autograd are numbered after its nodes, and are no modules.
        own = [number for number in box.nodes if number < len(graph.nodes)]
        paths = [_module_of(graph.nodes[number]) for number in own]
        known = [path for path in paths if path]
        if not known:
            yield "<g><title>"
            continue
        path = _shared(known)
        yield f'<g tabindex="0" role="button" data-path="{escape(path)}"><title>'


def _module_of(node: Node) -> str:
    """Return the path of the module that a node is in, which holds a parameter."""
    return node.path.rpartition(".")[0] if node.kind == PARAMETER else node.path


def _shared(paths: list[str]) -> str:
    """Return the path of the module that all of them are in."""
    parts = [path.split(".") for path in paths]
    shared = []
    for names in zip(*parts, strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return ".".join(shared)

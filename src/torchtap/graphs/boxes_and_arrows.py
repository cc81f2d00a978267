"""Choose the boxes of a picture: the tree of a graph cut at a depth, with arrows between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from torchtap.core.text import plural, shape, size
from torchtap.graphs.call_tree import Part
from torchtap.graphs.nodes import INPUT, MODULE, OUTPUT, PARAMETER, RAISED, Edge, Node, TensorType

CALL, GROUP = "call", "group"
"""Kinds of boxes beside those of nodes: calls of modules, and several nodes in one."""
MOST = 60
"""Most boxes of a picture where no depth is asked for."""
_MOST_EVER = 3000
_DEEPEST = 64


@dataclass(frozen=True, slots=True)
class Box:
    """A box of a picture.

    Attributes:
        title: what it is, in its first line.
        detail: where it is, in its second line.
        badges: short facts, in its third line.
        kind: kind of the node, or ``call``, ``group``, ``raised``.
        tooltip: all of it, as lines.
        nodes: numbers of the nodes that it stands for, without those of folded copies.
    """

    title: str
    detail: str
    badges: tuple[str, ...]
    kind: str
    tooltip: tuple[str, ...]
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Arrow:
    """An arrow of a picture, in the direction of the forward pass.

    Attributes:
        start: number of a box.
        end: number of a box; lower than ``start`` where a loop leads back.
        types: shapes and dtypes of what flows.
    """

    start: int
    end: int
    types: tuple[TensorType, ...]


@dataclass(frozen=True, slots=True)
class Frame:
    """Boxes that stand for several that follow each other.

    Attributes:
        boxes: their numbers.
        label: how many times, and which.
    """

    boxes: tuple[int, ...]
    label: str


@dataclass(frozen=True, slots=True)
class Picture:
    """The boxes, arrows and frames that are drawn.

    Attributes:
        title: of the picture.
        boxes: in the order of the forward pass.
        arrows: between them.
        frames: around repeated boxes, the outer ones first.
        notes: what the reader should know, and how to see more.
    """

    title: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    frames: tuple[Frame, ...]
    notes: tuple[str, ...]


def make_picture(
    title: str,
    root: Part,
    arrows: Sequence[Edge],
    depth: int | None,
    notes: Sequence[str] = (),
    *,
    most: int = MOST,
    opens_leaves: bool = True,
) -> Picture:
    """Choose what is shown.

    Args:
        title: of the picture.
        root: the tree, folded.
        arrows: edges between nodes, in the direction of the forward pass.
        depth: how many modules inside each other are opened; ``None`` for as many as ``most``
            boxes allow.
        notes: of the graph.
        most: number of boxes.
        opens_leaves: whether modules without modules in them are opened too.
    """
    deepest = _deepest(root, opens_leaves=opens_leaves)
    limit = most if depth is None else _MOST_EVER
    cut = _Cut(deepest if depth is None else min(depth, deepest), opens_leaves)
    while cut.depth and _count(root, cut, limit) > limit:
        cut = replace(cut, depth=cut.depth - 1)
    tops = root.children
    if _count(root, cut, limit) > limit:
        tops = _chunks(root.children, limit)
    boxes = _Boxes(cut)
    boxes.add_all(tops, 0)
    drawn = [arrow for arrow in _arrows(arrows, boxes.of_node) if not _repeats(arrow, boxes.frames)]
    said = [*notes, *_more(cut.depth, deepest, depth, is_chunked=tops is not root.children)]
    return Picture(title, tuple(boxes.boxes), tuple(drawn), tuple(boxes.frames), tuple(said))


def _more(shown: int, deepest: int, asked: int | None, *, is_chunked: bool) -> Iterator[str]:
    if is_chunked:
        yield (
            "several operations share a box, in the order in which they ran; a picture of a part "
            "shows more: of a tensor further inside, or with model= to group by modules"
        )
    elif shown < deepest and asked is None:
        yield f"drawn to depth {shown} of {deepest}; depth={shown + 1} shows more"
    elif asked is not None and shown < min(asked, deepest):
        yield f"drawn to depth {shown}: deeper there are more than {_MOST_EVER:,} boxes"


@dataclass(frozen=True, slots=True)
class _Cut:
    """The parts that are opened: those above a depth; of modules that call no others, if asked."""

    depth: int
    opens_leaves: bool

    def opens(self, part: Part, level: int) -> bool:
        """Return whether what is in a part is shown."""
        if part.call is None or level >= self.depth or not part.children:
            return False
        return self.opens_leaves or any(child.is_module for child in part.children)


def _deepest(root: Part, *, opens_leaves: bool) -> int:
    """Return the depth at which all is open that ever is."""
    cut = _Cut(_DEEPEST, opens_leaves)
    deepest, todo = 0, [(child, 0) for child in root.children]
    while todo:
        part, level = todo.pop()
        if cut.opens(part, level):
            deepest = max(deepest, level + 1)
            todo += [(child, level + 1) for child in part.children]
    return deepest


def _count(root: Part, cut: _Cut, limit: int) -> int:
    """Number of boxes; any number above the limit where there are more."""
    number, todo = 0, [(child, 0) for child in root.children]
    while todo and number <= limit:
        part, level = todo.pop()
        if cut.opens(part, level):
            todo += [(child, level + 1) for child in part.children]
        else:
            number += 1
    return number


def _chunks(parts: Sequence[Part], limit: int) -> list[Part]:
    """Put parts that follow each other in time together, which makes no cycles."""
    length = -(-len(parts) // limit)
    cut = [parts[start : start + length] for start in range(0, len(parts), length)]
    return [
        group[0] if len(group) == 1 else Part(group[0].number, children=list(group))
        for group in cut
    ]


class _Boxes:
    """Makes the boxes of parts."""

    def __init__(self, cut: _Cut) -> None:
        self.boxes: list[Box] = []
        self.frames: list[Frame] = []
        self.of_node: dict[int, int] = {}
        self._cut = cut

    def add_all(self, parts: Sequence[Part], level: int) -> None:
        """Boxes of parts beside each other, with a frame around those that repeat."""
        place = 0
        while place < len(parts):
            times = parts[place].times
            group = [parts[place]]
            while times > 1 and len(group) < len(parts) - place:
                following = parts[place + len(group)]
                if following.times != times or following.number > group[0].copies[0].number:
                    break
                group.append(following)
            start, at = len(self.boxes), len(self.frames)
            for part in group:
                self._add(part, level)
            if times > 1 and len(self.boxes) - start > 1:
                label = f"x{times}  {_names(group)}"
                self.frames.insert(at, Frame(tuple(range(start, len(self.boxes))), label))
            place += len(group)

    def _add(self, part: Part, level: int) -> None:
        first = len(self.boxes)
        if part.node is not None:
            self.boxes.append(_box_of_node(part.node, part))
        elif self._cut.opens(part, level):
            self.add_all(part.children, level + 1)
        else:
            self.boxes.append(_box_of_group(part))
        made = self._map(part, first)
        for copy in part.copies:
            self._alike(part, copy, made)

    def _map(self, part: Part, first: int) -> dict[int, int]:
        """Node -> box, of a part whose boxes were just made."""
        only = len(self.boxes) - first == 1
        if only:
            for node in _all_nodes(part):
                self.of_node[node.id] = first
        return self.of_node

    def _alike(self, part: Part, copy: Part, made: Mapping[int, int]) -> None:
        """The nodes of a copy stand where those of the first stand, one by one."""
        todo = [(part, copy)]
        while todo:
            one, other = todo.pop()
            if one.node is not None and other.node is not None:
                self.of_node[other.node.id] = made[one.node.id]
            firsts = _unfolded(one.children)
            todo += zip(firsts, _unfolded(other.children), strict=False)


def _unfolded(parts: Sequence[Part]) -> list[Part]:
    """Return parts and their copies in the order in which they ran."""
    every = [copy for part in parts for copy in (part, *part.copies)]
    return sorted(every, key=lambda part: part.number)


def _all_nodes(part: Part) -> Iterator[Node]:
    """Yield the nodes of a part and of all below, with copies inside of it."""
    todo = [part]
    while todo:
        one = todo.pop()
        if one.node is not None:
            yield one.node
        for child in one.children:
            todo += [child, *child.copies]


# ---------------------------------------------------------------------- texts of boxes


def _box_of_node(node: Node, part: Part) -> Box:
    title, detail = _title(node)
    badges = [f"x{part.times}"] if part.times > 1 else []
    if node.saved_nbytes:
        badges.append(f"saves {size(node.saved_nbytes)}")
    if node.kind == MODULE and part.times == 1 and node.note.startswith("call "):
        badges.append(node.note.partition(";")[0])
    badges += ["cuts the gradient"] if node.cut_slots and node.sequence < 0 else []
    states = {one.state for one in node.saved} - {"kept"}
    badges += sorted(states)
    if node.hooks:
        badges.append(plural(len(node.hooks), "hook"))
    return Box(title, detail, tuple(badges), node.kind, tuple(_tooltip(node)), (node.id,))


def _title(node: Node) -> tuple[str, str]:
    kinds = ", ".join(map(_short, node.types[:2]))
    if node.kind in (PARAMETER, INPUT, OUTPUT):
        return node.path or node.kind, kinds
    if node.kind == MODULE:
        last = _last(node.path) or node.name
        return (last, node.name) if last != node.name else (node.name, "")
    return node.name, node.path


def _last(path: str) -> str:
    """Return the last step of a path; with the one before, where it is a number."""
    above, _, last = path.rpartition(".")
    return f"{above.rpartition('.')[2]}.{last}" if last.isdecimal() and above else last


def _short(kind: TensorType) -> str:
    return f"{shape(kind.shape)} {kind.dtype}"


def _tooltip(node: Node) -> Iterator[str]:
    yield f"{node.name} ({node.kind})"
    if node.path:
        yield f"in {node.path}" if node.kind not in (PARAMETER, INPUT, OUTPUT) else node.path
    for kind in node.types:
        yield f"output {kind}"
    for one in node.saved:
        held = one.type if one.type is not None else ""
        note = f", {one.note}" if one.note else ""
        extra = f", {size(one.nbytes)}" if one.nbytes else ""
        yield f"saved {one.name}: {held} {one.role}, {one.state}{extra}{note}"
    for hook in node.hooks:
        yield f"{hook.kind} hook {hook.name}"
    if node.cut_slots:
        yield f"no gradient flows to its inputs {', '.join(map(str, node.cut_slots))}"
    if node.note:
        yield node.note
    if node.line:  # Without folders: a picture is shown to others.
        yield PurePath(node.line).name


def _box_of_group(part: Part) -> Box:
    nodes = list(_all_nodes(part))
    ran = [one for one in nodes if one.kind not in (PARAMETER, INPUT, OUTPUT)]
    nbytes = sum(node.saved_nbytes for node in nodes)
    badges = [f"x{part.times}"] if part.times > 1 else []
    badges += [plural(len(ran), "node")]
    if nbytes:
        badges.append(f"saves {size(nbytes)}")
    hooks = sum(len(node.hooks) for node in nodes)
    if hooks:
        badges.append(plural(hooks, "hook"))
    params = sum(node.kind == PARAMETER for node in nodes)
    tooltip = [f"{plural(len(ran), 'node')}, {plural(params, 'parameter')}"]
    numbers = tuple(node.id for node in nodes)
    if part.call is None:
        names = [node.name for node in nodes]
        title = f"{names[0]} … {names[-1]}"
        return Box(title, "", tuple(badges), GROUP, tuple(tooltip), numbers)
    call = part.call
    tooltip.insert(0, f"{call.path or '.'}: {call.type}, call {call.number}")
    tooltip += [f"input {kind}" for kind in call.inputs]
    tooltip += [f"output {kind}" for kind in call.outputs]
    kind = RAISED if call.has_raised else GROUP if call.is_inferred and not ran else CALL
    title = _last(call.path) or call.type
    if part.times > 1:
        title = _names([part])
    detail = call.type + (f", call {call.number}" if call.number else "")
    return Box(title, detail, tuple(badges), kind, tuple(tooltip), numbers)


def _names(group: Sequence[Part]) -> str:
    """Return names of the first and of the last of what is repeated."""
    first, last = group[0], group[-1].copies[-1]
    one, other = _name(first), _name(last)
    if one == other:
        return f"{one} (the same module)" if first.is_module else one
    return f"{one} … {other}"


def _name(part: Part) -> str:
    if part.call is not None:
        return _last(part.call.path) or part.call.type
    if part.node is not None and part.node.path and part.node.kind == MODULE:
        return _last(part.node.path)
    return part.node.name if part.node is not None else "…"


def _repeats(arrow: Arrow, frames: Sequence[Frame]) -> bool:
    """Return whether an arrow leads from one repetition to the next, which their frame says."""
    if arrow.start < arrow.end:
        return False
    return any(arrow.start in frame.boxes and arrow.end in frame.boxes for frame in frames)


def _arrows(edges: Iterable[Edge], boxes: Mapping[int, int]) -> list[Arrow]:
    types_between: dict[tuple[int, int], dict[TensorType, None]] = {}
    for edge in edges:
        start, end = boxes.get(edge.source), boxes.get(edge.target)
        if start is None or end is None or start == end:
            continue
        types = types_between.setdefault((start, end), {})
        if edge.type is not None:
            types[edge.type] = None
    return [
        Arrow(start, end, tuple(types)) for (start, end), types in sorted(types_between.items())
    ]

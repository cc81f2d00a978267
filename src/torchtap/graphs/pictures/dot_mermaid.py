"""A picture as text that other programs lay out: DOT of Graphviz, and Mermaid."""

from __future__ import annotations

from collections.abc import Sequence

from torchtap.core.text import clean, elide, shape
from torchtap.graphs.boxes_and_arrows import Arrow, Box, Picture
from torchtap.graphs.pictures.colors import LOOKS

_WIDEST = 40


def to_dot(picture: Picture) -> str:
    """Return the picture as a digraph of Graphviz, for ``dot -Tsvg``."""
    lines = [
        "digraph torchtap {",
        f"  label={_quoted([picture.title, *picture.notes])}; labelloc=t;",
        '  node [shape=box, style="filled,rounded", fontname=monospace, fontsize=10];',
        "  edge [fontname=monospace, fontsize=9];",
    ]
    for number, box in enumerate(picture.boxes):
        look = LOOKS[box.kind]
        style = "filled,dashed" if look.dash else "filled,rounded" if look.radius > 3 else "filled"
        lines.append(
            f"  n{number} [label={_quoted(_lines(box))}, tooltip={_quoted(box.tooltip)}, "
            f'style="{style}", fillcolor="{look.light}", color="{look.stroke}"];'
        )
    for arrow in picture.arrows:
        style = ", style=dashed, constraint=false" if arrow.end < arrow.start else ""
        label = f"label={_quoted([_types(arrow)])}{style}"
        lines.append(f"  n{arrow.start} -> n{arrow.end} [{label}];")
    for number, frame in enumerate(picture.frames):
        inside = " ".join(f"n{one};" for one in frame.boxes)
        label = _quoted([frame.label])
        lines.append(f"  subgraph cluster_{number} {{ label={label}; style=dashed; {inside} }}")
    return "\n".join([*lines, "}", ""])


def to_mermaid(picture: Picture) -> str:
    """Return the picture as a flowchart of Mermaid, which GitHub and many wikis draw."""
    lines = [f"%% {clean(picture.title)}", *(f"%% {clean(note)}" for note in picture.notes)]
    lines.append("flowchart TD")
    for number, box in enumerate(picture.boxes):
        label = "<br/>".join(_escaped(one) for one in _lines(box))
        open_, close = ("([", "])") if LOOKS[box.kind].radius > 3 else ("[", "]")
        lines.append(f'  n{number}{open_}"{label}"{close}')
    for number, frame in enumerate(picture.frames):
        lines += [f'  subgraph f{number}["{_escaped(frame.label)}"]']
        lines += [*(f"    n{one}" for one in frame.boxes), "  end"]
    for arrow in picture.arrows:
        line = "-.->" if arrow.end < arrow.start else "-->"
        label = f'|"{_escaped(_types(arrow))}"|' if arrow.types else ""
        lines.append(f"  n{arrow.start} {line}{label} n{arrow.end}")
    kinds = dict.fromkeys(box.kind for box in picture.boxes)
    for place, kind in enumerate(kinds):
        look = LOOKS[kind]
        members = ",".join(f"n{n}" for n, box in enumerate(picture.boxes) if box.kind == kind)
        lines.append(f"  classDef k{place} fill:{look.light},stroke:{look.stroke},color:#1a1a1a")
        lines.append(f"  class {members} k{place}")
    return "\n".join([*lines, ""])


def _lines(box: Box) -> list[str]:
    said = [box.title, box.detail, " · ".join(box.badges)]
    return [elide(clean(one), _WIDEST) for one in said if one]


def _types(arrow: Arrow) -> str:
    said = [f"{shape(one.shape)} {one.dtype}" for one in arrow.types[:2]]
    return ", ".join(said) + (" …" if len(arrow.types) > 2 else "")


def _quoted(lines: Sequence[str]) -> str:
    said = (clean(line).replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return '"' + "\\n".join(said) + '"'


def _escaped(text: str) -> str:
    """Replace all that may mean something in Mermaid by entities in Mermaid's own form."""
    return "".join(
        one if one.isalnum() or one in " ._-+,:/()…·" else f"#{ord(one)};" for one in clean(text)
    )

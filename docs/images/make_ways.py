"""Draw ways.svg, the three ways of a tensor: ``python docs/images/make_ways.py``."""

from __future__ import annotations

from html import escape
from pathlib import Path

WIDTH, BOX, GAP, LANE = 980, 136, 25, 150
LANES = (
    (
        "A value that is watched",
        "capture/",
        "#2b6cb0",
        (
            ("module call", "pre-hook, hook"),
            ("value_ports", "which tensors"),
            ("copy_policy", "alias or copy"),
            ("delivery", "a record, or a meter"),
            ("sink", "Memory, Stats, Disk"),
            ("run", "reads a Source"),
        ),
        "grad_output: a hook on the tensor.  grad_input: the sum at the nodes where it enters.  "
        "The program goes on with its own tensors.",
    ),
    (
        "A value that is edited",
        "edits/",
        "#9c4221",
        (
            ("module call", "pre-hook, hook"),
            ("edit_engine", "site, call, step"),
            ("checked_edit", "your function"),
            ("rebuild", "nested values anew"),
            ("module goes on", "with what it returned"),
            ("report", "happened, or raises"),
        ),
        "The new value is part of the graph, so gradients are exact. A recomputed call is edited "
        "again as the first.",
    ),
    (
        "A tensor that is saved for backward",
        "saved/",
        "#276749",
        (
            ("autograd saves", "pack hook"),
            ("tensor_layout", "storage and version"),
            ("ledger", "resident, evicted, ..."),
            ("tiers", "host, disk, codec"),
            ("prefetch", "before it is asked"),
            ("backward", "unpack hook"),
        ),
        "The graph owns what is packed; the engine refers to it weakly.",
    ),
)
STYLE = """
text{font-family:system-ui,sans-serif;fill:#1a202c}
.head{font-size:16px;font-weight:600}.room{font-size:13px;fill:#4a5568}
.name{font-size:13px;font-weight:600;text-anchor:middle}
.what{font-size:11px;fill:#4a5568;text-anchor:middle}.note{font-size:12px;fill:#4a5568}
.box{fill:#fff;stroke-width:1.5}.page{fill:#fff}
@media(prefers-color-scheme:dark){text{fill:#e2e8f0}.room,.what,.note{fill:#a0aec0}
.box{fill:#1a202c}.page{fill:#0d1117}}
"""


def main() -> None:
    """Entry point of the script."""
    height = LANE * len(LANES) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="Three ways of a tensor through torchtap">',
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="6"/>',
    ]
    for number, lane in enumerate(LANES):
        parts += drawn(number * LANE + 10, *lane)
    path = Path(__file__).parent / "ways.svg"
    path.write_text("\n".join([*parts, "</svg>", ""]))


def drawn(
    top: int, head: str, room: str, color: str, boxes: tuple[tuple[str, str], ...], note: str
) -> list[str]:
    """One lane: its heading, its boxes with arrows between, and a note."""
    left, middle = 16, top + 68
    parts = [
        f'<text class="head" x="{left}" y="{top + 24}">{escape(head)} '
        f'<tspan class="room">{escape(room)}</tspan></text>'
    ]
    for place, (name, what) in enumerate(boxes):
        x = left + place * (BOX + GAP)
        center = x + BOX / 2
        parts += [
            f'<rect class="box" x="{x}" y="{middle - 28}" width="{BOX}" height="52" rx="5" '
            f'stroke="{color}"/>',
            f'<text class="name" x="{center}" y="{middle - 6}">{escape(name)}</text>',
            f'<text class="what" x="{center}" y="{middle + 12}">{escape(what)}</text>',
        ]
        if place:
            parts += arrow(x - GAP, x, middle - 2, color)
    parts.append(f'<text class="note" x="{left}" y="{middle + 50}">{escape(note)}</text>')
    return parts


def arrow(start: float, end: float, y: float, color: str) -> list[str]:
    """An arrow to the right."""
    return [
        f'<line x1="{start + 3}" y1="{y}" x2="{end - 8}" y2="{y}" stroke="{color}" '
        f'stroke-width="1.5"/>',
        f'<path d="M{end - 9} {y - 4} L{end - 2} {y} L{end - 9} {y + 4} Z" fill="{color}"/>',
    ]


if __name__ == "__main__":
    main()

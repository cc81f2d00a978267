"""Draws words.svg: the words of the glossary on one model. ``python docs/images/make_words.py``."""

from __future__ import annotations

from pathlib import Path

WIDTH, HEIGHT = 800, 392
BLUE, GREEN, RED, GREY, INK = "#dbe9f8", "#e1f2df", "#f8e0dc", "#f2f2f2", "#222222"
LINE = f'stroke="{INK}"'
parts: list[str] = []


def box(x: int, y: int, wide: int, high: int, fill: str) -> None:
    parts.append(
        f'<rect x="{x}" y="{y}" width="{wide}" height="{high}" rx="5" fill="{fill}" {LINE}/>'
    )


def text(
    x: int, y: int, words: str, size: int = 13, anchor: str = "middle", bold: bool = False
) -> None:
    weight = ' font-weight="bold"' if bold else ""
    parts.append(
        f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}"{weight}>{words}</text>'
    )


def arrow(x: int, y: int, to_x: int, to_y: int, color: str = INK) -> None:
    parts.append(
        f'<path d="M{x} {y}L{to_x} {to_y}" stroke="{color}" stroke-width="1.6" '
        'marker-end="url(#tip)"/>'
    )


def site() -> None:
    """The upper half: what the text of a site is made of."""
    text(20, 26, "A site: where", 15, "start", bold=True)
    box(250, 52, 300, 96, GREY)
    text(400, 72, "module  blocks.0.lstm", 14)
    text(400, 92, "nn.LSTM", 12)
    box(290, 104, 220, 30, "#ffffff")
    text(400, 124, "param   weight_ih_l0, bias_ih_l0, ...", 11)
    arrow(60, 80, 248, 80)
    text(150, 72, "input")
    arrow(248, 128, 60, 128, "#b03020")
    text(150, 120, "grad_input")
    arrow(552, 80, 740, 80)
    text(645, 72, "output")
    arrow(740, 128, 552, 128, "#b03020")
    text(645, 120, "grad_output")
    for x, wide, fill, part, name in (
        (228, 112, BLUE, "blocks.0.lstm", "path"),
        (346, 66, GREEN, "output", "port"),
        (424, 52, RED, "1.0", "leaf"),
    ):
        box(x, 168, wide, 26, fill)
        text(x + wide // 2, 186, part)
        text(x + wide // 2, 210, name, 12, bold=True)
    text(343, 186, ":", 15)
    text(418, 186, "[", 15)
    text(482, 186, "]", 15)
    text(500, 186, "the first tensor of element 1 that it returned", 12, "start")


def record() -> None:
    """The lower half: what tells two records of a site apart."""
    text(20, 246, "A record: when", 15, "start", bold=True)
    for number, x in ((0, 20), (1, 410)):
        box(x, 258, 370, 118, "#ffffff")
        text(x + 10, 276, f"step {number}", 13, "start", bold=True)
        for place, (call, phase, fill) in enumerate(
            (
                ("call 0", "forward", BLUE),
                ("call 1", "forward", BLUE),
                ("call 0", "recompute", GREEN),
            )
        ):
            left = x + 10 + place * 118
            box(left, 286, 112, 44, fill)
            text(left + 56, 304, call)
            text(left + 56, 322, phase, 12)
        text(x + 185, 352, "the module runs twice; a checkpoint runs a call again", 12)
        text(
            x + 185,
            368,
            "w.step()" if number == 0 else "run[site] is the last call of the last step",
            12,
        )


def main() -> None:
    """Entry point of the script."""
    site()
    record()
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" fill="{INK}">'
        '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{INK}"/></marker></defs>'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    )
    out = Path(__file__).with_name("words.svg")
    out.write_text(head + "\n" + "\n".join(parts) + "\n</svg>\n")


if __name__ == "__main__":
    main()

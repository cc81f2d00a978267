"""Pictures of graphs: what they show, where it stands, and how it is written."""

from __future__ import annotations

import json
import random
import re
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from programs import PROGRAMS, leaf
from torch import Tensor, nn

import torchtap as tt
from torchtap.core.errors import MissingExtraError
from torchtap.graphs.box_layout import lay_out
from torchtap.graphs.pictures.drawing import draw
from torchtap.testing import Specimen, zoo

pytest.importorskip("fast_sugiyama")
_ZOO = [one for one in zoo() if one.raises is None]
ODD = "a<b>\"c\" & 'd'\n-->|]`"


class Block(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(self.norm(x)).relu()


class Stack(nn.Module):
    def __init__(self, num: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(num))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def odd_graph() -> tt.Graph:
    model = nn.ModuleDict({ODD: nn.Linear(2, 2)})
    return tt.graph({ODD: model[ODD](torch.ones(1, 2))}, model=model)


# ---------------------------------------------------------------------- what is shown


@pytest.mark.parametrize("specimen", _ZOO, ids=str)
def test_a_first_picture_has_at_most_60_boxes_and_every_node_has_one(specimen: Specimen) -> None:
    args, kwargs = specimen.inputs()
    found = tt.graph(specimen.build(), *args, **kwargs)
    picture = found.picture()
    assert len(picture.boxes) <= 60
    ElementTree.fromstring(found.svg())


def test_equal_blocks_that_feed_each_other_are_folded() -> None:
    found = tt.graph(Stack(12), torch.ones(1, 4))
    picture = found.picture()
    (frame,) = picture.frames
    assert frame.label == "x12  blocks.0 … blocks.11"
    assert [picture.boxes[n].title for n in frame.boxes] == ["norm", "inner", "relu", "add"]
    closed = found.picture(depth=0)
    assert [box.title for box in closed.boxes] == ["x", "blocks.0 … blocks.11", "output"]
    assert closed.boxes[1].badges[0] == "x12"


def test_blocks_of_other_shapes_are_not_folded() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 8), nn.Linear(8, 16))
    assert tt.graph(model, torch.ones(1, 4)).picture().frames == ()


def test_parallel_branches_are_not_folded() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branches = nn.ModuleList(Block() for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([branch(x) for branch in self.branches])

    assert tt.graph(Branches(), torch.ones(1, 4)).picture().frames == ()


def test_blocks_that_are_wired_otherwise_are_not_folded() -> None:
    class Skipping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            first = self.blocks[0](x)
            return self.blocks[2](self.blocks[1](first)) + first

    picture = tt.graph(Skipping(), torch.ones(1, 4)).picture(depth=0)
    times = [box.badges[0] for box in picture.boxes if box.badges]
    assert "x3" not in times


def test_a_loop_over_one_module_says_that_it_is_the_same() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = Block()

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(5):
                x = self.cell(x)
            return x

    (frame,) = tt.graph(Loop(), torch.ones(1, 4)).picture().frames
    assert frame.label == "x5  cell (the same module)"


def test_depth_opens_modules_and_a_picture_says_how_to_see_more() -> None:
    model = nn.Sequential(*(nn.Sequential(Block(n), nn.Linear(n, n + 1)) for n in range(2, 22)))
    found = tt.graph(model, torch.ones(1, 2))
    assert "drawn to depth 1 of 2; depth=2 shows more" in found.picture().notes
    assert len(found.picture(depth=2).boxes) > 60
    with pytest.raises(tt.InputError, match="depth is -1"):
        found.picture(depth=-1)


@pytest.mark.slow
def test_a_graph_without_modules_and_too_many_nodes_is_put_together() -> None:
    generator, made = random.Random(0), [leaf(2)]
    for _ in range(300):
        made.append(generator.choice(made[-9:]) + generator.choice(made[-9:]).sin())
    picture = tt.graph(made[-1].sum()).picture()
    assert 20 < len(picture.boxes) <= 60
    assert all(one.start < one.end for one in picture.arrows)
    assert "several operations share a box" in picture.notes[-1]


# ---------------------------------------------------------------------- where it stands


@pytest.mark.parametrize("name", PROGRAMS)
def test_boxes_do_not_overlap_and_arrows_point_down(name: str) -> None:
    drawing = draw(tt.graph(PROGRAMS[name]()).picture())
    for one, other in combinations(drawing.boxes, 2):
        beside = one.x + one.width < other.x or other.x + other.width < one.x
        assert beside or one.y + one.height < other.y or other.y + other.height < one.y
    for arrow in drawing.arrows:
        assert all(start[1] < end[1] for start, end in pairwise(arrow.points))
    assert all(box.x >= 0 and box.x + box.width <= drawing.width for box in drawing.boxes)


def test_random_graphs_have_no_box_on_another_and_no_arrow_through_one() -> None:
    generator = random.Random(1)
    for num in (1, 2, 7, 40, 120):
        pairs = [generator.sample(range(num), 2) for _ in range(2 * num) if num > 1]
        arrows: set[tuple[int, int]] = {(min(pair), max(pair)) for pair in pairs}
        widths = [generator.uniform(40, 200) for _ in range(num)]
        found = lay_out(num, arrows, widths)
        taken = [(x, rank, widths[n]) for n, (x, rank) in enumerate(found.places)]
        taken += [(x, rank, 0.0) for route in found.routes.values() for x, rank in route]
        for (x, rank, wide), (other, rank_other, wide_other) in combinations(taken, 2):
            assert rank != rank_other or abs(x - other) > (wide + wide_other) / 2
        for start, end in arrows:
            assert found.places[start][1] < found.places[end][1]


def test_without_the_extra_the_error_names_it_and_a_notebook_gets_a_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fast_sugiyama", None)
    found = tt.graph(PROGRAMS["chain"]())
    with pytest.raises(MissingExtraError, match=r"torchtap\[graph\]"):
        found.svg()
    assert found._repr_svg_() is None
    assert "<table>" in found._repr_html_()
    assert found.dot()


# ---------------------------------------------------------------------- how it is written


def test_svg_is_well_formed_whatever_things_are_called_and_loads_nothing() -> None:
    svg = odd_graph().svg()
    root = ElementTree.fromstring(svg)
    texts = "".join(one.text or "" for one in root.iter() if one.tag.endswith("title"))
    assert "a<b>\"c\" & 'd'\\n-->|]`.weight" in texts
    tags = {one.tag.rpartition("}")[2] for one in root.iter()}
    assert tags <= {"svg", "title", "style", "defs", "marker", "path", "rect", "g", "text"}
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")


def test_long_names_are_cut_in_the_middle_with_the_whole_in_the_tooltip() -> None:
    name = "a_very_long_name_of_a_module_that_nobody_can_read_in_a_box"
    model = nn.ModuleDict({name: nn.Linear(2, 2)})
    root = ElementTree.fromstring(tt.graph(model[name](torch.ones(1, 2)), model=model).svg())
    shown = [one.text or "" for one in root.iter() if one.tag.endswith("text")]
    tips = [one.text or "" for one in root.iter() if one.tag.endswith("title")]
    assert max(map(len, (text for text in shown if "a_very" in text))) <= 27
    assert any("…" in text for text in shown)
    assert any(f"{name}.weight" in text for text in tips)


def test_a_picture_names_files_without_their_folders() -> None:
    svg = tt.graph(Stack(1), torch.ones(1, 4)).svg()
    assert "test_pictures.py:" in svg
    assert str(Path(__file__).parent) not in svg


def test_themes_are_light_dark_and_what_the_reader_prefers() -> None:
    found = tt.graph(PROGRAMS["chain"]())
    light, dark, auto = (found.svg(theme=theme) for theme in ("light", "dark", "auto"))
    assert "#ffffff" in light
    assert "#161616" not in light
    assert "#161616" in dark
    assert "prefers-color-scheme:dark" in auto
    with pytest.raises(tt.InputError, match="theme is 'grey'"):
        found.svg(theme="grey")


def test_dot_quotes_what_things_are_called() -> None:
    dot = odd_graph().dot()
    assert dot.count("{") == dot.count("}")
    for line in dot.splitlines():
        assert len(re.findall(r'(?<!\\)"', line)) % 2 == 0
    assert "\\\"c\\\" & 'd'" in dot


def test_mermaid_names_hold_none_of_its_signs() -> None:
    text = odd_graph().mermaid()
    labels = re.findall(r'\["(.*?)"\]|\(\["(.*?)"\]\)', text)
    assert labels
    for label in ("".join(one) for one in labels):
        assert not set(label.replace("<br/>", "")) & set("<>\"'`|[]{}&")


@pytest.mark.parametrize(
    ("ending", "begins"),
    [
        (".svg", b"<svg "),
        (".html", b"<!doctype html>"),
        (".png", b"\x89PNG"),
        (".pdf", b"%PDF"),
        (".dot", b"digraph"),
        (".md", b"```mermaid"),
        (".mmd", b"%% "),
        (".json", b'{"kind"'),
    ],
)
def test_a_file_is_what_its_name_ends_in(tmp_path: Path, ending: str, begins: bytes) -> None:
    path = odd_graph().save(tmp_path / f"graph{ending}")
    assert path.read_bytes().startswith(begins)


def test_a_file_of_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(tt.InputError, match=r"ends in '\.gif'; expected one of \.svg"):
        odd_graph().save(tmp_path / "graph.gif")


def test_json_has_all_nodes_and_edges() -> None:
    found = tt.graph(Stack(3), torch.ones(1, 4))
    data: dict[str, Any] = json.loads(json.dumps(found.as_dict()))
    assert len(data["nodes"]) == len(found.nodes)
    assert [(one["source"], one["target"]) for one in data["edges"]] == [
        (one.source, one.target) for one in found.edges
    ]


def test_a_notebook_shows_the_picture() -> None:
    found = tt.graph(PROGRAMS["diamond"]())
    assert found._repr_svg_() == found.svg()
    assert "<svg" in found._repr_html_()


def test_parameters_of_what_follows_do_not_break_the_frame_of_a_repeated_block() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.fc = nn.LayerNorm(4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            h: Tensor = self.fc(self.norm(x))
            return x + h

    blocks = nn.Sequential(*(Residual() for _ in range(6)))
    model = nn.Sequential(nn.Linear(4, 4), blocks, nn.LayerNorm(4))
    found = tt.graph(model, torch.ones(2, 4), autograd=True)
    picture = found.picture(depth=3)
    assert [frame.label.partition("  ")[0] for frame in picture.frames] == ["x6"]
    drawn = draw(picture)
    assert len(drawn.frames) == 1
    (frame,) = drawn.frames
    (weight,) = (one for one in drawn.boxes if one.lines[0] == "2.weight")
    assert weight.y >= frame.y + frame.height

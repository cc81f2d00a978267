"""Measures the shape of the source: its map, the ways of a tensor through it, its largest parts.

    .venv/bin/python tools/shape.py            # all of it
    .venv/bin/python tools/shape.py --ways     # what a call enters, alone
    .venv/bin/python tools/shape.py --enters 'tt.open(folder)[site]'

A *box* is a room (a folder at the top of the package), an *arrow* an import from one box into
another, a *floor* the longest chain of arrows. Names that a room takes from the public face, as a
user does, are counted apart. A *way* is one call on a small net: how many files and functions of
torchtap it enters (comprehensions and lambdas belong to their function). The limits that stand here
are held by ``tests/docs/test_shape.py``.
"""

from __future__ import annotations

import argparse
import ast
import os
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchtap as tt

SOURCE = Path(tt.__file__).parent
MOST_METHODS = 18
MOST_BOXES, MOST_ARROWS, MOST_FLOORS = 18, 61, 9
MOST_ENTERED = {
    "watch, forward": (20, 60),
    "tt.open(folder)[site]": (20, 81),
    "tt.cam(layer=)": (35, 220),
    "an explained error": (28, 205),  # Evidence first; ways out are tried before they are offered.
}
"""Way -> most files, and most functions, that it enters."""
ENTRANCES = {"__init__", "__main__"}
"""Files at the top that only lead into the rooms: the lazy face, and ``python -m torchtap``."""
OF_OTHERS = {
    "_apply",
    "_version",
    "_base",
    "_buffers",
    "_modules",
    "_parameters",
    "_backward_hooks",
    "_values",
}
OF_OTHERS |= {"_replace", "_fields"}
"""Names with an underscore of PyTorch's tensors and modules, and of named tuples."""
Entered = set[tuple[str, str, int]]


def main() -> None:
    """Entry point of the script."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ways", action="store_true", help="only what a call enters")
    parser.add_argument("--enters", metavar="WAY", help="list the functions that one way enters")
    asked = parser.parse_args()
    if not asked.ways and asked.enters is None:
        print_map()
        print_sizes()
        print_names()
    print_ways(asked.enters)


# ---------------------------------------------------------------------- the map


def trees() -> dict[Path, ast.Module]:
    """Every file of the package, parsed."""
    return {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


def box_of(path: Path) -> str:
    """The room that a file is in."""
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else path.stem


def arrows_between() -> tuple[set[str], dict[str, set[str]]]:
    """All boxes, and for each those that it imports from."""
    arrows: dict[str, set[str]] = defaultdict(set)
    boxes = {box_of(path) for path in trees()} - ENTRANCES
    for path, tree in trees().items():
        own = box_of(path)
        for name in imported(tree):
            other = name.split(".")[1] if name.startswith("torchtap.") else ""
            if other in boxes and other != own and own not in ENTRANCES:
                arrows[own].add(other)
    return boxes, arrows


def print_map() -> None:
    """Print boxes, arrows, floors, circles, and who uses the public face."""
    boxes, arrows = arrows_between()
    order = floors(arrows, boxes)
    print(f"boxes    {len(boxes)}: {', '.join(sorted(boxes))}")
    print(f"arrows   {sum(map(len, arrows.values()))}")
    print(f"floors   {max(order.values())}")
    print(f"circles  {sum(box in reached(arrows, box) for box in boxes)}")
    for box, names in sorted(users_of_the_face().items()):
        print(f"face     {box}: {', '.join(sorted(names))}")


def users_of_the_face() -> dict[str, set[str]]:
    """Box -> the public names that it calls by ``import torchtap as tt``."""
    found: dict[str, set[str]] = defaultdict(set)
    for path, tree in trees().items():
        for node in ast.walk(tree) if "torchtap" in imported(tree) else ():
            is_read = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
            if is_read and node.value.id == "tt":
                found[box_of(path)].add(node.attr)
    return found


def imported(tree: ast.Module) -> Iterator[str]:
    """Names of the modules that a file imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def reached(arrows: dict[str, set[str]], box: str) -> set[str]:
    """The boxes that arrows lead to from a box."""
    found: set[str] = set()
    left = list(arrows[box])
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left += arrows[one]
    return found


def floors(arrows: dict[str, set[str]], boxes: set[str]) -> dict[str, int]:
    """The floor of each box, from 1; boxes of a circle share the one they would have without it."""
    found: dict[str, int] = {}

    def floor(box: str, above: tuple[str, ...] = ()) -> int:
        if box not in found:
            below = [floor(one, (*above, box)) for one in arrows[box] if one not in above]
            found[box] = 1 + max(below, default=0)
        return found[box]

    return {box: floor(box) for box in sorted(boxes)}


# ---------------------------------------------------------------------- sizes and names


def print_sizes() -> None:
    """Print lines, functions, and the largest classes."""
    lines = sum(len(path.read_text().splitlines()) for path in trees())
    functions = [node for tree in trees().values() for node in ast.walk(tree) if is_function(node)]
    lengths = sorted((node.end_lineno or 0) - node.lineno + 1 for node in functions)
    print(f"lines    {lines:,} in {len(trees())} files")
    middle, most = lengths[len(lengths) // 2], lengths[len(lengths) * 95 // 100]
    print(f"functions {len(functions):,}: median {middle} lines, 95th percentile {most}")
    classes = Counter(
        {
            f"{path.relative_to(SOURCE)}::{node.name}": sum(map(is_function, node.body))
            for path, tree in trees().items()
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
        }
    )
    for name, methods in classes.most_common():
        if methods > MOST_METHODS:
            print(f"  {methods:3} methods  {name}")


def is_function(node: Any) -> bool:
    """Return whether a node is a function or a method."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def print_names() -> None:
    """Print names that several files share, and private names that others read."""
    names = Counter(path.name for path in trees())
    shared = {name: n for name, n in names.items() if n > 1 and not name.startswith("__")}
    print(f"files of a name that others have: {sum(shared.values())}: {', '.join(sorted(shared))}")
    defined: dict[str, set[Path]] = defaultdict(set)
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                defined[node.name].add(path)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                defined[node.attr].add(path)
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno} .{node.attr}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        if node.attr.startswith("_") and not node.attr.startswith("__")
        if node.attr not in OF_OTHERS and defined[node.attr] and path not in defined[node.attr]
        if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    ]
    print(f"private names of ours read from another file: {len(found)}")
    for one in found:
        print(f"  {one}")


# ---------------------------------------------------------------------- ways


def print_ways(listed: str | None) -> None:
    """Print how many files and functions each way enters, of its second time."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        list(ways())
    for name, found in ways():
        if listed is None:
            print(
                f"{name:24} {len({file for file, _, _ in found}):3} files {len(found):4} functions"
            )
        elif listed == name:
            print(*(f"{file} {function}" for file, function, _ in sorted(found)), sep="\n")


def entered(call: Callable[[], Any]) -> tuple[Any, Entered]:
    """Call a function; what it returns, and the functions of torchtap that it entered."""
    found: Entered = set()

    def note(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        is_ours = event == "call" and code.co_filename.startswith(str(SOURCE))
        if is_ours and not code.co_name.startswith("<"):
            file = str(Path(code.co_filename).relative_to(SOURCE))
            found.add((file, code.co_name, code.co_firstlineno))

    sys.setprofile(note)
    try:
        return call(), found
    finally:
        sys.setprofile(None)


def net() -> nn.Sequential:
    """A net of four layers."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))


def ways() -> Iterator[tuple[str, Entered]]:
    """Each way, by its name."""
    batch = torch.ones(2, 3, 8, 8)
    for name, where, to in (
        ("watch", "*:output,grad_output", None),
        ("watch *:*", "*:*", None),
        ("statistics", "*:output,grad_output", tt.Stats()),
    ):
        model = net()
        watch, found = entered(lambda: tt.watch(model, where, to=to))  # noqa: B023
        yield f"{name}, opened", found
        model(batch).sum().backward()
        watch.step()
        loss, found = entered(lambda: model(batch))  # noqa: B023
        yield f"{name}, forward", found
        yield f"{name}, backward", entered(lambda: loss.sum().backward())[1]  # noqa: B023
        watch.close()
    yield from ways_of_runs(batch)
    model = net().eval()
    with tt.edit(model, "1:output", tt.edits.scale(2.0)):
        model(batch)
        yield "edit, forward", entered(lambda: model(batch))[1]
    yield "tt.cam(layer=)", entered(lambda: tt.cam(model, batch, layer="1"))[1]
    yield "tt.attribute", entered(lambda: tt.attribute(model, batch))[1]
    yield "an explained error", entered(lambda: explained(model))[1]


def ways_of_runs(batch: torch.Tensor) -> Iterator[tuple[str, Entered]]:
    """The ways of reading."""
    with tempfile.TemporaryDirectory() as home:
        model, folder = net(), Path(home) / "run"
        with tt.watch(model, "*:output", to=tt.Disk(folder)) as watch:
            for _ in range(2):
                model(batch)
                watch.step()
        yield "tt.open(folder)[site]", entered(lambda: tt.open(folder)["1:output"])[1]
        file = watch.run.save(Path(home) / "run.safetensors")
        yield "tt.open(file)[site]", entered(lambda: tt.open(file)["1:output"])[1]


def explained(model: nn.Module) -> None:
    """Raise an error of PyTorch and have it explained."""
    try:
        with tt.explain_errors():
            model(torch.ones(2, 4, 8, 8))
    except RuntimeError:
        pass


if __name__ == "__main__":
    main()

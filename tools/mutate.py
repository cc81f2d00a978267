"""Small wrong changes to a copy of the code, and whether the tests notice.

    .venv/bin/python tools/mutate.py --num 100 --seed 0 --jobs 2 --minutes 120

Each mutation changes one place of the engines and of what is measured and kept: a comparison,
an ``and``, a ``not``, a constant, a statement left out. The tests nearest by name run first, and
the first that fails or hangs has killed it. What survives wants a look: either no test can see the
difference because there is none, or a test is missing. Begin where all tests pass.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("hooks", "capture", "edits", "saved", "stats", "runs")
NEAR = {
    "hooks": ("hooks", "capture", "edits", "transfer"),
    "capture": ("capture", "hooks"),
    "edits": ("edits",),
    "saved": ("saved",),
    "stats": ("stats", "runs", "docs"),
    "runs": ("runs", "stats"),
}
"""The rooms whose tests are run second; the tests named after the module are first."""
HUNG = "out of time"
"""It hangs, or the time limit is too short."""
LAST = ("testing/test_zoo.py", "laws/test_laws.py", "laws/test_op_db.py")
FLIPPED: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
}


@dataclass(frozen=True)
class Mutation:
    """One change of one file: its bytes from ``start`` to ``end`` are replaced."""

    path: Path
    line: int
    start: int
    end: int
    text: bytes
    what: str


# --- what can be changed ----------------------------------------------------------------------


def mutations(path: Path) -> Iterator[Mutation]:
    """Every mutation of a file that compiles."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    tree = ast.parse(source)
    passed_over = set(_unseen(tree))
    for node in ast.walk(tree):
        if node in passed_over or not hasattr(node, "lineno"):
            continue
        first, last = node.lineno, node.end_lineno  # type: ignore[attr-defined]
        start = starts[first - 1] + node.col_offset  # type: ignore[attr-defined]
        end = starts[last - 1] + node.end_col_offset  # type: ignore[attr-defined]
        for text, what in _changes(node):
            found = Mutation(path, first, start, end, text.encode(), what)
            if _compiles(source, found):
                yield found


def _unseen(tree: ast.AST) -> Iterator[ast.AST]:
    """Parts that no test is to see: annotations, docstrings, the text of errors."""
    for node in ast.walk(tree):
        skipped: list[ast.AST | None] = []
        if isinstance(node, ast.FunctionDef):
            skipped = [node.returns, *(arg.annotation for arg in ast.walk(node.args)
                                       if isinstance(arg, ast.arg))]  # fmt: skip
        elif isinstance(node, ast.AnnAssign):
            skipped = [node.annotation]
        elif _says_something(node) or _is_for_types(node):
            skipped = [node]
        for one in skipped:
            if one is not None:
                yield from ast.walk(one)


def _says_something(node: ast.AST) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _changes(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Replacements of a node, with their names."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in FLIPPED:
            new = ast.Compare(node.left, [FLIPPED[type(op)]()], node.comparators)
            yield f"({ast.unparse(new)})", _said(node, new)
        case ast.BoolOp(op=op):
            new_bool = ast.BoolOp(FLIPPED[type(op)](), node.values)
            yield f"({ast.unparse(new_bool)})", _said(node, new_bool)
        case ast.BinOp(op=ast.Add() | ast.Sub() as op):
            new_bin = ast.BinOp(node.left, FLIPPED[type(op)](), node.right)
            yield f"({ast.unparse(new_bin)})", _said(node, new_bin)
        case ast.UnaryOp(op=ast.Not()):
            yield f"({ast.unparse(node.operand)})", _said(node, node.operand)
        case ast.Constant(value=bool(value)):
            yield str(not value), f"{value} -> {not value}"
        case ast.Constant(value=int(value)):
            yield str(value + 1), f"{value} -> {value + 1}"
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield "pass", f"dropped: {ast.unparse(node)}"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "pass", f"dropped: {ast.unparse(node)}"
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield "return None", f"{ast.unparse(node)} -> return None"


def _said(old: ast.AST, new: ast.AST) -> str:
    return f"{ast.unparse(old)} -> {ast.unparse(new)}"


def _mutated(source: bytes, mutation: Mutation) -> bytes:
    return source[: mutation.start] + mutation.text + source[mutation.end :]


def _compiles(source: bytes, mutation: Mutation) -> bool:
    try:
        ast.parse(_mutated(source, mutation))
    except SyntaxError:
        return False
    return True


# --- running ----------------------------------------------------------------------------------


def stages(tests: Path, path: Path) -> list[list[str]]:
    """Test files in the order in which they are tried: by name, by room, the laws."""
    words = set(path.stem.rstrip("s").split("_"))
    by_name = [f for f in sorted(tests.rglob("test_*.py")) if words & set(_words(f.stem))]
    rooms = NEAR[path.parent.name]
    by_room = [f for room in rooms for f in sorted((tests / room).glob("test_*.py"))]
    laws = [tests / name for name in LAST if (tests / name).exists()]
    tried: set[Path] = set()
    found = []
    for files in (by_name, by_room, laws):
        new = [file for file in dict.fromkeys(files) if file not in tried]
        tried.update(new)
        if new:
            found.append([str(file) for file in new])
    return found


def _words(name: str) -> list[str]:
    return [word.rstrip("s") for word in name.removeprefix("test_").split("_")]


def verdict(tree: Path, mutation: Mutation, timeout: float) -> str:
    """Make the mutation in a copy of the repository, run the tests, and take it back."""
    path = tree / mutation.path.relative_to(ROOT)
    source = path.read_bytes()
    path.write_bytes(_mutated(source, mutation))
    until = time.monotonic() + timeout
    try:
        for files in stages(tree / "tests", path):
            said = _failing(tree, files, until - time.monotonic())
            if said is not None:
                return said if said == HUNG else f"killed by {said}"
        return "SURVIVED"
    finally:
        path.write_bytes(source)


def _failing(tree: Path, files: list[str], timeout: float) -> str | None:
    """The first test that fails, or ``None``; a process that hangs is ended with its children."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow", "--tb=no", "-rfE",
               "-p", "no:cacheprovider", *files]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=max(timeout, 1))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return HUNG
    if process.returncode in (0, 5):  # 5: no test was chosen.
        return None
    named = re.search(r"^(?:FAILED|ERROR) (?:tests/\w+/)?(\S+)", output, re.MULTILINE)
    return named[1] if named else f"a crash with code {process.returncode}"


def copied(folder: Path) -> Path:
    """A copy of what the tests need, the compiled kernel included."""
    shutil.copytree(
        ROOT, folder, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache")
    )
    return folder


def main() -> None:
    """Read the options, make the mutations and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num", type=int, default=100, help="how many mutations")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("-n", "--jobs", type=int, default=1, help="how many at a time")
    parser.add_argument("--minutes", type=float, default=120, help="begin no other after these")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one mutation")
    parser.add_argument("--only", default="", help="only files whose path contains this")
    parser.add_argument("--matching", default="", help="only mutations whose text contains this")
    given = parser.parse_args()
    package = ROOT / "src" / "torchtap"
    files = [file for part in PARTS for file in sorted((package / part).glob("*.py"))]
    every = [
        mutation
        for file in files
        if given.only in str(file.relative_to(package))
        for mutation in mutations(file)
        if given.matching in mutation.what
    ]
    chosen = random.Random(given.seed).sample(every, min(given.num, len(every)))
    until = time.monotonic() + 60 * given.minutes
    print(f"{len(chosen)} of {len(every)} mutations, seed {given.seed}\n", flush=True)
    print("| place | mutation | verdict |\n|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.jobs) as pool:
        trees: SimpleQueue[Path] = SimpleQueue()
        for job in range(given.jobs):
            trees.put(copied(Path(folder) / str(job)))

        def run(mutation: Mutation) -> str:
            if time.monotonic() > until:
                return "not run"
            tree = trees.get()
            said = verdict(tree, mutation, given.timeout)
            trees.put(tree)
            place = f"{mutation.path.relative_to(package)}:{mutation.line}"
            what = " ".join(mutation.what.split()).replace("|", "\\|")
            print(f"| {place} | `{what:.99}` | {said} |", flush=True)
            return said

        said = list(pool.map(run, chosen))
    killed = sum(one.startswith("killed") for one in said)
    rest = ", ".join(f"{said.count(one)} {one}" for one in ("SURVIVED", HUNG, "not run"))
    print(f"\n{killed} killed, {rest}")


if __name__ == "__main__":
    main()

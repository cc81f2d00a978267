"""One slip is planted in a program that works, and the note of ``tt.explain_errors`` is kept.

``python benchmarks/errors_planted.py FOLDER OUT`` reads each ``*.py`` of FOLDER, programs that run
through in a second or so, plants slips one at a time, runs each program again, and writes those
that raise, with their notes, to OUT (JSON lines). It fetches nothing. The cause and the fix are
known exactly: the slip, and the text that it replaced.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import random
import re
import signal
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import torchtap as tt

# Methods that a program forgets, by kind of what is lost.
_SHAPING = {
    "unsqueeze",
    "squeeze",
    "transpose",
    "permute",
    "view",
    "reshape",
    "flatten",
    "t",
    "expand",
}
_SHAPING |= {
    "repeat",
    "mean",
    "sum",
    "max",
    "pow",
    "split",
    "chunk",
    "type",
    "masked_fill",
    "new_zeros",
}
_CASTING = {"float", "long", "double", "int", "bool"}
_GRAPHS = {"detach", "clone", "contiguous", "item", "numpy", "cpu", "tolist", "eval", "zero_grad"}
_WITH_A_DIMENSION = {
    "softmax",
    "log_softmax",
    "cat",
    "stack",
    "sum",
    "mean",
    "max",
    "min",
    "unsqueeze",
}
_WITH_A_DIMENSION |= {"squeeze", "size", "transpose", "permute", "chunk", "split", "norm", "gather"}
_WITH_A_DIMENSION |= {
    "flatten",
    "argmax",
    "cumprod",
    "LayerNorm",
    "Softmax",
    "LogSoftmax",
    "std",
    "view",
}
_IN_PLACE = {
    "relu",
    "dropout",
    "leaky_relu",
    "elu",
    "silu",
    "relu6",
    "ReLU",
    "Dropout",
    "LeakyReLU",
}
_TURNED_IN_PLACE = {"exp", "sigmoid", "tanh", "pow", "clamp", "masked_fill", "squeeze", "unsqueeze"}
_LOSSES = {"CrossEntropyLoss", "NLLLoss", "MSELoss", "BCELoss", "BCEWithLogitsLoss"}
_LOSS_FUNCTIONS = {"cross_entropy", "nll_loss", "mse_loss", "binary_cross_entropy"}
_OTHER_RANK = {"1d": "2d", "2d": "1d", "3d": "2d"}


@dataclass
class Planted:
    """A program with one slip.

    Attributes:
        program: its name.
        kind: of the slip.
        line: of the program where the slip is.
        right: what stood there.
        slip: what stands there now.
        source: of the whole program.
    """

    program: str
    kind: str
    line: int
    right: str
    slip: str
    source: str


Replacement = tuple[ast.AST, str]


@dataclass
class Program:
    """The source of a program, its tree, and what stands around each node."""

    name: str
    source: str

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.source)
        self.parents = {
            child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }
        self._bytes = self.source.encode()
        lengths = [len(line) for line in self._bytes.splitlines(keepends=True)]
        self._begins = [sum(lengths[:index]) for index in range(len(lengths) + 1)]

    def span(self, node: Any) -> slice:
        begin = self._begins[node.lineno - 1] + node.col_offset
        return slice(begin, self._begins[node.end_lineno - 1] + node.end_col_offset)

    def text(self, node: ast.AST) -> str:
        return self._bytes[self.span(node)].decode() if hasattr(node, "lineno") else ""

    def replaced(self, node: ast.AST, text: str) -> str:
        span = self.span(node)
        return (self._bytes[: span.start] + text.encode() + self._bytes[span.stop :]).decode()

    def names_beside(self, name: ast.Name) -> list[str]:
        """The other names that the scope of a name has assigned up to its line."""
        scope: ast.AST = name
        while not isinstance(scope, ast.FunctionDef | ast.Module):
            scope = self.parents[scope]
        found = {a.arg for a in scope.args.args} if isinstance(scope, ast.FunctionDef) else set()
        for node in ast.walk(scope):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                owner: ast.AST = node
                while not isinstance(owner, ast.FunctionDef | ast.ClassDef | ast.Module):
                    owner = self.parents[owner]
                if owner is scope and node.lineno < name.lineno:
                    found.add(node.id)
        return sorted(found - {name.id, "self"})


def called(node: ast.AST) -> str:
    """The last part of the name of what a call calls, or nothing."""
    if not isinstance(node, ast.Call):
        return ""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def is_method(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and not (
            isinstance(node.func.value, ast.Name) and node.func.value.id in {"torch", "F", "nn"}
        )
    )


def dropped(methods: set[str]) -> Callable[[Program, Any], Iterator[Replacement]]:
    """A method that is left out: ``x.f(...)`` becomes ``x``."""

    def drop(program: Program, node: Any) -> Iterator[Replacement]:
        if called(node) in methods and is_method(node):
            yield node, program.text(node.func).rpartition(".")[0].rstrip()

    return drop


def other_dimension(program: Program, node: Any) -> Iterator[Replacement]:
    if called(node) in _WITH_A_DIMENSION:
        values = [*node.args, *(k.value for k in node.keywords if k.arg == "dim")]
        for value in values:
            text = program.text(value)
            for other in {"0": "1", "1": "02", "2": "1", "-1": "01", "3": "1", "-2": "1"}.get(
                text, ""
            ):
                yield value, other


def other_width(program: Program, node: Any) -> Iterator[Replacement]:
    layers = r"Linear|Conv.*|Embedding|LSTM|GRU|RNN|BatchNorm.*|LayerNorm|LSTMCell|InstanceNorm.*"
    if re.fullmatch(layers, called(node)):
        for value in node.args[:2]:
            if isinstance(value, ast.Constant) and isinstance(value.value, int) and value.value > 1:
                yield value, str(value.value * 2)
            elif isinstance(value, ast.Name | ast.Attribute | ast.BinOp):
                yield value, f"{program.text(value)} * 2"


def swapped_arguments(program: Program, node: Any) -> Iterator[Replacement]:
    if isinstance(node, ast.Call) and len(node.args) >= 2:
        first, second = (program.text(argument) for argument in node.args[:2])
        if first != second and not first.startswith("*") and not second.startswith("*"):
            rest = [program.text(a) for a in node.args[2:]]
            rest += [program.text(k) for k in node.keywords]
            yield node, f"{program.text(node.func)}({', '.join([second, first, *rest])})"


def dropped_keyword(program: Program, node: Any) -> Iterator[Replacement]:
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            rest = [program.text(k) for k in node.keywords if k is not keyword]
            arguments = ", ".join([*(program.text(a) for a in node.args), *rest])
            yield node, f"{program.text(node.func)}({arguments})"


def dropped_argument(program: Program, node: Any) -> Iterator[Replacement]:
    if isinstance(node, ast.Call) and len(node.args) >= 2:
        rest = [program.text(a) for a in node.args[:-1]] + [program.text(k) for k in node.keywords]
        yield node, f"{program.text(node.func)}({', '.join(rest)})"


def dropped_statement(program: Program, node: Any) -> Iterator[Replacement]:
    assigned = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    if assigned and any(
        isinstance(part, ast.Name) and part.id == node.targets[0].id
        for part in ast.walk(node.value)
    ):
        yield node, "pass"
    if isinstance(node, ast.Expr) and called(node.value) in {
        "__init__",
        "zero_grad",
        "register_buffer",
    }:
        yield node, "pass"


def doubled_backward(program: Program, node: Any) -> Iterator[Replacement]:
    if isinstance(node, ast.Expr) and called(node.value) == "backward":
        yield node, f"{program.text(node)}; {program.text(node)}"


def written_in_place(program: Program, node: Any) -> Iterator[Replacement]:
    text = program.text(node)
    if called(node) in _IN_PLACE and "inplace" not in text:
        yield node, text[:-1].rstrip(", ") + (", " if text[-2] != "(" else "") + "inplace=True)"
    if called(node) in _TURNED_IN_PLACE and is_method(node):
        method = node.func.attr
        yield (
            node,
            program.text(node.func)[: -len(method)]
            + text[len(program.text(node.func)) - len(method) :].replace(method, method + "_", 1),
        )
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
        target, left = program.text(node.targets[0]), program.text(node.value.left)
        sign = {ast.Add: "+", ast.Mult: "*", ast.Sub: "-", ast.Div: "/"}.get(type(node.value.op))
        if target == left and sign:
            yield node, f"{target} {sign}= {program.text(node.value.right)}"


def plain_list(program: Program, node: Any) -> Iterator[Replacement]:
    if called(node) == "ModuleList":
        yield node, program.text(node.args[0]) if node.args else "[]"
    if (
        called(node) == "Sequential"
        and len(node.args) == 1
        and isinstance(node.args[0], ast.Starred)
    ):
        yield node.args[0], program.text(node.args[0].value)
        yield node, program.text(node.args[0].value)


def not_called(program: Program, node: Any) -> Iterator[Replacement]:
    if isinstance(node, ast.Call) and not isinstance(program.parents[node], ast.Expr):
        on_self = isinstance(node.func, ast.Attribute) and program.text(node.func.value) == "self"
        if on_self or called(node) in _LOSSES or is_method(node):
            yield node, program.text(node.func)


def not_unpacked(program: Program, node: Any) -> Iterator[Replacement]:
    is_unpacked = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)
    if is_unpacked and isinstance(node.value, ast.Call):
        yield node.targets[0], program.text(node.targets[0].elts[0])
    if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
        yield node.value, program.text(node.value.elts[0])
    if isinstance(node, ast.Return) and isinstance(node.value, ast.Name):
        for name in program.names_beside(node.value)[:1]:
            yield node.value, f"{program.text(node.value)}, {name}"


def wrong_variable(program: Program, node: Any) -> Iterator[Replacement]:
    if isinstance(node, ast.Call):
        for argument in node.args:
            if isinstance(argument, ast.Name):
                for name in program.names_beside(argument):
                    yield argument, name
    if isinstance(node, ast.Attribute) and program.text(node.value) == "self":
        parent = program.parents[node]
        if isinstance(parent, ast.Call) and parent.func is node:
            attributes = {
                other.attr
                for other in ast.walk(program.tree)
                if isinstance(other, ast.Attribute)
                and program.text(other.value) == "self"
                and other.lineno > node.lineno - 40
                and other.lineno < node.lineno + 40
            }
            for name in sorted(attributes - {node.attr}):
                yield node, f"self.{name}"


def misspelt(program: Program, node: Any) -> Iterator[Replacement]:
    is_read = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    owner = program.text(node.value) if is_read else ""
    if owner in {"self", "model", "net", "batch"} and len(node.attr) > 3:
        yield node, f"{owner}.{node.attr[:-2]}{node.attr[-1]}{node.attr[-2]}"


def dropped_index(program: Program, node: Any) -> Iterator[Replacement]:
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        yield node, program.text(node.value)
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
            yield node.slice, str(node.slice.value + 1)


def other_dtype(program: Program, node: Any) -> Iterator[Replacement]:
    text = program.text(node)
    other = {
        "torch.LongTensor": "torch.FloatTensor",
        "torch.FloatTensor": "torch.LongTensor",
        "torch.float": "torch.double",
        "torch.double": "torch.float",
        "torch.bool": "torch.long",
        "np.float32": "np.float64",
    }
    if isinstance(node, ast.Attribute) and text in other:
        yield node, other[text]
    if called(node) == "randint" and program.text(node.func) == "torch.randint":
        yield node, f"{text}.float()"
    if called(node) in {"rand", "randn", "from_numpy", "zeros", "ones"} and text.startswith(
        "torch."
    ):
        yield node, f"{text}.double()"


def dropped_item(program: Program, node: Any) -> Iterator[Replacement]:
    if called(node) in {"cat", "stack"} and isinstance(node.args[0], ast.List | ast.Tuple):
        for item in node.args[0].elts[1:2]:
            rest = [program.text(one) for one in node.args[0].elts if one is not item]
            yield node.args[0], f"({', '.join(rest)},)"


def other_layer(program: Program, node: Any) -> Iterator[Replacement]:
    if isinstance(node, ast.Attribute) and program.text(node.value) == "nn":
        rank = node.attr[-2:]
        if rank in _OTHER_RANK and node.attr[:-2]:
            yield node, f"nn.{node.attr[:-2]}{_OTHER_RANK[rank]}"
        for other in sorted(_LOSSES - {node.attr}) if node.attr in _LOSSES else ():
            yield node, f"nn.{other}"
    if isinstance(node, ast.Attribute) and node.attr in _LOSS_FUNCTIONS:
        for name in sorted(_LOSS_FUNCTIONS - {node.attr}):
            yield node, f"{program.text(node.value)}.{name}"


def cut_from_the_graph(program: Program, node: Any) -> Iterator[Replacement]:
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
        name = program.text(node.targets[0])
        if "loss" in name or name.startswith("err") or "output" in name or "logits" in name:
            for end in (".item()", ".detach()", ".data"):
                yield node.value, program.text(node.value) + end


def optimizer_of_something_else(program: Program, node: Any) -> Iterator[Replacement]:
    if called(node) == "parameters" and is_method(node):
        owner = program.text(node.func.value)
        yield node, owner
        yield node, f"{owner}.named_parameters()"


KINDS: dict[str, Callable[[Program, Any], Iterator[Replacement]]] = {
    "a reshape or reduction dropped": dropped(_SHAPING),
    "a cast dropped": dropped(_CASTING),
    "detach, contiguous, item ... dropped": dropped(_GRAPHS),
    "another dimension": other_dimension,
    "another width": other_width,
    "arguments swapped": swapped_arguments,
    "a keyword dropped": dropped_keyword,
    "the last argument dropped": dropped_argument,
    "a statement dropped": dropped_statement,
    "backward twice": doubled_backward,
    "written in place": written_in_place,
    "a plain list": plain_list,
    "not called": not_called,
    "a tuple too many or too few": not_unpacked,
    "another variable": wrong_variable,
    "an attribute misspelt": misspelt,
    "an index dropped or changed": dropped_index,
    "another dtype": other_dtype,
    "an item of cat dropped": dropped_item,
    "another layer or loss": other_layer,
    "cut from the graph": cut_from_the_graph,
    "an optimizer of something else": optimizer_of_something_else,
}


def slips_of(program: Program) -> Iterator[Planted]:
    """Every slip of every kind, in one program."""
    for kind, replacements in KINDS.items():
        for node in program.parents:
            for place, text in replacements(program, node):
                source = program.replaced(place, text)
                yield Planted(program.name, kind, place.lineno, program.text(place), text, source)


def sampled(programs: list[Program], of_each_kind: int, seed: int) -> list[Planted]:
    """Return as many slips of each kind, spread over the programs."""
    chance = random.Random(seed)
    chosen = []
    by_kind: dict[str, dict[str, list[Planted]]] = defaultdict(lambda: defaultdict(list))
    for program in programs:
        for slip in slips_of(program):
            by_kind[slip.kind][slip.program].append(slip)
    for of_programs in by_kind.values():
        for slips in of_programs.values():
            chance.shuffle(slips)
        queue = [slips for _, slips in sorted(of_programs.items())]
        chance.shuffle(queue)
        taken: list[Planted] = []
        while queue and len(taken) < of_each_kind:
            taken += [slips.pop() for slips in queue if slips]
            queue = [slips for slips in queue if slips]
        chosen += taken[:of_each_kind]
    return chosen


def run(source: str, place: Path) -> tuple[BaseException | None, str | None]:
    """Run a program that stands in a file; return what it raises, and the note."""
    place.write_text(source)
    torch.manual_seed(0)
    random.seed(0)
    notes: list[str] = []
    try:
        with contextlib.redirect_stdout(io.StringIO()), tt.explain_errors() as notes:
            signal.setitimer(signal.ITIMER_PROF, 10)
            exec(
                compile(source, str(place), "exec"),
                {"__name__": "__main__", "__file__": str(place)},
            )
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the slip made it raise
        return error, notes[0] if notes else None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return None, None


def give_up(*_: object) -> None:
    raise TimeoutError


def main(folder: Path, out: Path, of_each_kind: int = 60, seed: int = 1) -> None:
    """Plant, run, and write those that raise."""
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, give_up)
    programs = [Program(path.stem, path.read_text()) for path in sorted(folder.glob("*.py"))]
    work = out.with_suffix("")
    work.mkdir(exist_ok=True)
    for program in programs:
        if (failed := run(program.source, work / "whole.py")[0]) is not None:
            raise SystemExit(f"{program.name} does not run: {failed!r}")
    with out.open("w") as lines:
        for number, slip in enumerate(sampled(programs, of_each_kind, seed)):
            place = work / f"{slip.program}_{number}.py"
            error, note = run(slip.source, place)
            # A name that Python does not know is no error of PyTorch.
            if error is None or isinstance(
                error, NameError | SyntaxError | SystemExit | TimeoutError
            ):
                place.unlink()
                continue
            told = {**asdict(slip), "number": number, "error": f"{type(error).__name__}: {error}"}
            lines.write(json.dumps({**told, "place": place.name, "note": note}) + "\n")
            lines.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))

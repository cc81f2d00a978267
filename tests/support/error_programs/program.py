"""One program: its source, the line that raises, the module, and a way out."""

from __future__ import annotations

import ast
import contextlib
import linecache
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest import mock

import torch

from torchtap.failures.added_notes import add_notes

PRELUDE = "import copy\n\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n"
RAISES, WROTE = "  # raises", "  # writes"


@dataclass(frozen=True, slots=True)
class Program:
    """A program that PyTorch refuses.

    Attributes:
        title: the situation, in a few words.
        message: the name of PyTorch's message (``torchtap.failures.messages``).
        source: the program; the line that raises ends in ``# raises``, and one that the note must
            name besides in ``# writes``.
        module: how the note names the module; empty where none took part.
        way: a part of the way out that is applied.
        changes: what is replaced in the source, to apply it.
        says: what else the note must say.
        purpose: code that fails unless the repaired program does what it is for; ``result`` is the
            value of the expression that the program ends with.
    """

    title: str
    message: str
    source: str
    module: str
    way: str
    changes: tuple[tuple[str, str], ...]
    says: tuple[str, ...] = ()
    purpose: str = ""

    @property
    def text(self) -> str:
        """The whole file, with its imports."""
        return PRELUDE + textwrap.dedent(self.source).lstrip("\n")

    @property
    def fixed(self) -> str:
        """The file with the way out applied."""
        text = self.text
        for old, new in self.changes:
            assert old in text, (self.title, old)
            text = text.replace(old, new)
        return text

    @property
    def fixed_with_result(self) -> str:
        """The repaired file, which keeps the value of its last expression as ``result``."""
        last = ast.parse(self.fixed).body[-1]
        if not isinstance(last, ast.Expr):
            return self.fixed
        lines = self.fixed.splitlines()
        lines[last.lineno - 1] = f"result = {lines[last.lineno - 1]}"
        return "\n".join(lines)

    def line(self, mark: str = RAISES) -> int:
        """Number of the line that is marked."""
        found = [at for at, one in enumerate(self.text.splitlines(), 1) if one.endswith(mark)]
        assert len(found) == 1, (self.title, mark)
        return found[0]


def run(text: str, folder: Path) -> dict[str, Any]:
    """Run a file as a program."""
    file = folder / "train.py"
    file.write_text(text)
    linecache.checkcache(str(file))
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(file)}
    # As in a process of its own: a torch.compile before has ended these checks for the whole one.
    with mock.patch.object(torch.distributions.Distribution, "_validate_args", True):
        exec(compile(text, str(file), "exec", dont_inherit=True), names)
    if "DistributedDataParallel" in text or "DDP" in text:
        # A Reducer that is freed joins gloo's threads with the GIL held; a thread that has just
        # ended a collective needs the GIL to free it, and gets it here, before the names go.
        time.sleep(0.05)
    return names


def error_of(program: Program, folder: Path) -> Exception:
    """The exception of a program, with its note, and without the frames of the test."""
    try:
        run(program.text, folder)
    except Exception as error:  # noqa: BLE001 - it is what the program is for
        trace = error.__traceback__
        while trace is not None and not _is_in(trace, folder):
            trace = trace.tb_next
        error = error.with_traceback(trace)
        with contextlib.chdir(folder):
            add_notes(error)
        return error
    raise AssertionError(f"{program.title}: nothing was raised")


def _is_in(trace: TracebackType, folder: Path) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(str(folder))

"""Makes ``docs/reference/errors/`` from the programs: an index of messages, and a page a topic.

``python tests/support/error_programs/page.py`` writes them, and a test compares the two.
"""

from __future__ import annotations

import difflib
import html
import os
import re
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from error_programs import EVERY
from error_programs.program import PRELUDE, Program, error_of
from posted_programs import POSTED

from refused_programs import programs
from torchtap.core.text import elide_end, wrap
from torchtap.failures.catalogue import TOPICS

FOLDER = Path(__file__).parents[3] / "docs" / "reference" / "errors"
_MOST, _MOST_IN_TITLE = 400, 110
_TITLES = {
    "arguments": "Arguments and attributes",
    "attention": "Attention",
    "backward": "Backward",
    "batches": "Samples and batches",
    "binary_losses": "Losses of yes and no",
    "broadcasting": "Broadcasting",
    "compilers": "Transforms and compilers",
    "concatenations": "Concatenation",
    "conversions": "Values, dtypes and devices of a tensor",
    "creation": "Tensors of lists and arrays",
    "dimensions": "Dimensions",
    "draws": "Random numbers",
    "dtypes_and_devices": "Dtypes and devices",
    "elements": "Elements, gather and scatter",
    "equations": "Einsum and linear algebra",
    "expansions": "Tensors that are repeated",
    "functions": "Custom functions",
    "hooks": "Hooks",
    "in_place": "Writes in place",
    "overwritten": "Overwritten values",
    "plain_objects": "Objects of Python among PyTorch's",
    "indices": "Indices and masks",
    "layers": "Layers",
    "inference": "Inference mode",
    "layouts": "Sparse, nested and meta tensors",
    "leaves": "Leaves and parameters",
    "loaders": "Loaders and data sets",
    "loading": "Files",
    "loss_arguments": "Arguments of losses",
    "loss_shapes": "Shapes of losses and targets",
    "losses": "Losses and targets",
    "members": "Members of modules",
    "modules": "Modules and state dicts",
    "none_gradients": "Gradients that are None",
    "normalization": "Normalisation",
    "not_tensors": "Numbers and tuples in place of tensors",
    "numbers": "Values that are refused",
    "objects": "Objects of Python",
    "optimizers": "Optimizers, schedulers and scalers",
    "products": "Products of matrices",
    "ranks": "Ranks",
    "refused": "Arguments that are refused",
    "resampling": "Pictures",
    "reshapes": "Views and reshapes",
    "scripts": "TorchScript",
    "second_backwards": "A second backward",
    "sequences": "Sequences",
    "several_views": "Views of a loop",
    "sparse_tensors": "Sparse tensors",
    "spectra": "Complex numbers and Fourier transforms",
    "state_dicts": "State dicts",
    "systems": "Checkpoints, scalers and ranks",
    "tensor_arguments": "Arguments of operations",
    "trainings": "Steps of a training",
    "transforms": "Transforms of functions",
    "values_given": "Values in place of others",
}
_HEAD = """# Errors in plain words

| where | how |
|---|---|
| around a block | `with tt.explain_errors():` |
| in tests | `pytest --torchtap-explain` |
| in a notebook | `%load_ext torchtap` |
| around a script | `torchtap run --explain train.py` |

`with tt.explain_errors():` adds a note to each exception of PyTorch in the block. The note names
the cause, the module, the line, the tensors and the operations that made them, and the ways out,
best first. The exception keeps its type and its message. torchtap catches nothing, and nothing of
it runs until PyTorch raises.

```python
import torch
from torch import nn

import torchtap as tt

net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(8, 2))
try:
    with tt.explain_errors():
        net(torch.ones(5, 4))
except RuntimeError as error:
    print(error.__notes__[0].splitlines()[0])
# torchtap: 2 (Linear) takes 8 features in the last dimension of its input, which has 3.
```

- Put the block around a training loop, a trainer's `fit`, or a cell of a notebook, on each rank and
  in each thread. If blocks are nested, only one adds a note. `with ... as notes` returns the notes
  as a list, and `@tt.explain_errors()` decorates a function or coroutine function.
- `tt.explain_errors(everywhere=True)` needs no block: it explains each exception that nothing
  catches, until its `close()`. `%load_ext torchtap` does so in a notebook,
  `pytest --torchtap-explain` in tests, and `torchtap run --explain train.py` in a script and its
  threads; that command then watches nothing.
- `tt.explain_errors(model)` names the modules of that model. Without an argument, a note names the
  modules of all models in the frames of the traceback; if there are several, the name of the
  variable comes before the path.
- Exceptions of other libraries stay as they are. An error of PyTorch that is not in the list below
  gets the module, the call, the line and the operands, and nothing else.
- An error that led to another one (`raise ... from`), or came while another one was handled, gets a
  note of its own.
- A block costs less than a microsecond, and a note some milliseconds.

A note is made from the frames of the traceback, the source, and the autograd graph. Its limits
follow from these:

- autograd records that a tensor was written in place, but not the line. torchtap finds the line in
  the source. In a function that still runs, the variable with the same memory decides. For a
  forward that has returned, the note lists all writes of the right kind (`perhaps by`, `one of`).
  `tt.explain_errors(record=True)` records each write as it happens, so the line is certain. Each
  operation then takes some microseconds more, and the fused encoder kernel is not used. Compiled
  code stays compiled, and the note gives the name of its function. Writes that torchtap did not
  see, such as those of other threads, are counted.
- torchtap finds the line that assigned an operand by the order of the lines. If branches leave a
  choice, the note names all.
- A compiled function has no frames of modules, so the note names its line only.
- torchtap reads the local variables of the frames. It drops the copies that CPython makes of them,
  unless the function calls `locals()`.

Each program begins with `import copy, torch`, `import torch.nn.functional as F` and
`from torch import nn`, in {lines} lines of `train.py` that are not shown. There are
{count} programs, and the tests run each with its way out.

## PyTorch's messages

Each leads to the programs that raise it. Sizes, dtypes and names in a message are those of the
first program.
"""


@dataclass(frozen=True, slots=True)
class Shown:
    """A program that is shown.

    Attributes:
        program: that raises.
        repaired: the same with a way out applied.
        url: the page on which it was posted; empty of one that was made up.
    """

    program: Program
    repaired: str
    url: str = ""


@dataclass(frozen=True, slots=True)
class Raised:
    """A program with what it raised.

    Attributes:
        shown: the program.
        said: class and message of the exception, in one line.
        notes: its notes.
    """

    shown: Shown
    said: str
    notes: tuple[str, ...]


def every_shown() -> Iterator[Shown]:
    """Yield the programs of all sets."""
    for program in EVERY:
        yield Shown(program, program.fixed)
    for posted in POSTED:
        yield Shown(posted.program, posted.program.fixed, posted.url)
    for refused in programs():
        title = refused.message[0].upper() + refused.message[1:]
        program = Program(title, refused.message, refused.source, "", refused.way, ())
        yield Shown(program, PRELUDE + refused.repaired)


def pages() -> dict[str, str]:
    """Name of each file -> its text."""
    by_message: dict[str, list[Raised]] = defaultdict(list)
    every = list(every_shown())
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for shown in every:
            torch.manual_seed(0)
            by_message[shown.program.message].append(_raised(shown, Path(folder)))
    written, index = {}, [_HEAD.format(lines=PRELUDE.count("\n"), count=len(every))]
    for topic, names in TOPICS.items():
        found = {name: by_message[name] for name in names if name in by_message}
        if not found:
            continue
        written[f"{topic}.md"] = _topic_page(_title_of(topic), found)
        index.append(f"### {_title_of(topic)}\n")
        index += [
            f"- [`{_title(raised)}`]({topic}.md#{_anchor(name)})" for name, raised in found.items()
        ]
        index.append("")
    return {"README.md": "\n".join(index), **written}


def _raised(shown: Shown, folder: Path) -> Raised:
    error = error_of(shown.program, folder)
    said = " ".join(f"{type(error).__name__}: {_the_same_each_time(str(error), folder)}".split())
    return Raised(shown, said, tuple(_the_same_each_time(one, folder) for one in error.__notes__))


def _the_same_each_time(text: str, folder: Path) -> str:
    """Return a text without the letters of a terminal, places on this machine and addresses.

    Nor with the number of a port that was free, or of a class that TorchScript has compiled.
    """
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    packages = Path(torch.__file__).parents[1]  # Tracebacks of workers name files of PyTorch.
    for place in (folder, packages):
        plain = plain.replace(f"{place}{os.sep}", "")
    plain = re.sub(r"\b___torch_mangle_\d+\.", "", plain)
    plain = re.sub(r"(\b[Pp]ort:? |getsockname\(\).*\()\d{5}\b", r"\g<1>40000", plain)
    return re.sub(r"\b0x[0-9a-f]{6,}", "0x...", plain)


def _topic_page(title: str, found: dict[str, list[Raised]]) -> str:
    parts = [f"# {title}\n", "Programs that raise, and how they run. [All messages](README.md).\n"]
    for name, raised in found.items():
        parts.append(f'<a id="{_anchor(name)}"></a>\n\n## `{_title(raised)}`\n')
        parts += ["\n".join(_section(one)) for one in raised]
    return "\n".join(parts)


def _title_of(topic: str) -> str:
    return _TITLES.get(topic, topic.replace("_", " ").capitalize())


def _title(raised: Sequence[Raised]) -> str:
    """The words that a search engine is asked: the message of the first program."""
    text = raised[0].said.replace("`", "'").replace("](", "] (")  # No code span, no link.
    return elide_end(text, _MOST_IN_TITLE)


def _anchor(name: str) -> str:
    return re.sub(r"\W+", "-", name.lower())


def _section(raised: Raised) -> Iterator[str]:
    program = raised.shown.program
    yield f"<details><summary>{html.escape(program.title)}</summary>\n"
    if raised.shown.url:
        yield f"After [a program that was posted]({raised.shown.url}).\n"
    yield f"```py\n{program.text.removeprefix(PRELUDE).rstrip()}\n```\n"
    lines = wrap(elide_end(raised.said, _MOST))
    yield "```text\n" + "\n".join([*lines, *raised.notes]) + "\n```\n"
    yield "It runs with:\n"
    yield "```diff\n" + "\n".join(_difference(raised.shown)) + "\n```\n"
    yield "</details>\n"


def _difference(shown: Shown) -> list[str]:
    lines = difflib.ndiff(shown.program.text.splitlines(), shown.repaired.splitlines())
    return [line for line in lines if line[:2] in ("- ", "+ ")]


def main() -> None:
    """Write the pages, and take away those that no topic has any more."""
    FOLDER.mkdir(exist_ok=True)
    made = pages()
    for old in FOLDER.glob("*.md"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()

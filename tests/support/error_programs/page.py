"""``docs/errors.md``, made from the programs.

``python tests/support/error_programs/page.py`` writes it, and a test compares the two.
"""

from __future__ import annotations

import difflib
import html
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from error_programs import EVERY, PROGRAMS
from error_programs.program import PRELUDE, Program, error_of

from torchtap.core.text import elide_end, wrap

PAGE = Path(__file__).parents[3] / "docs" / "errors.md"
_MOST = 400
_HEAD = """# Errors in plain words

`with tt.explain_errors():` adds a note to what PyTorch raises inside: what happened, at which
module and line, with which tensors and what made them, and the ways out, best first. The exception
keeps its type and its message, nothing is caught, and nothing runs until something is raised.

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

- Put it around a training loop, a trainer's `fit`, or a cell of a notebook, also on each rank and
  in each thread. Of blocks inside each other, one adds a note. `with ... as notes` hands out the
  notes as a list, `@tt.explain_errors()` decorates a function or coroutine function.
- Without a block: `tt.explain_errors(everywhere=True)` explains whatever nothing catches, until its
  `close()`; `%load_ext torchtap` does so in a notebook, `pytest --torchtap-explain` in tests, and
  `torchtap run --explain train.py` for a script.
- `tt.explain_errors(model)` names the modules of that model. Without it, those of all models that
  the frames of the traceback hold; with several, the variable stands before the path.
- Exceptions that are not PyTorch's stay as they are. An error of PyTorch that is not in the list
  below gets the module, the call, the line and the operands, and nothing else.
- Errors that led to another one (`raise ... from`), or came while another one was handled, get
  notes of their own.
- It costs under a microsecond per block, and some milliseconds where something is raised.

What it knows comes from the frames of the traceback, the source, and the autograd graph. So these
are its limits:

- Of a write in place, autograd keeps that there was one, and not where. The line comes from the
  source: of functions that still run, the variable that stands in the same memory decides; of a
  forward that has ended, all writes of the right kind are listed (`perhaps by`, `one of`).
  `tt.explain_errors(record=True)` notes each write as it is made, so the line is certain. Each
  operation then takes some microseconds more, and the fused encoder kernel is not used. What
  `torch.compile` compiles stays compiled, and is told by the name of its function; writes that were
  not seen, as those of other threads, are counted.
- A line that assigned an operand is found by the order of the lines; where branches leave a choice,
  all are named.
- What a compiled function raises has no frames of modules: its line is told.
- It reads local variables of the frames. The copies that CPython makes of them are dropped again,
  unless the function asks for its `locals()`.

In the programs below, `import copy, torch`, `import torch.nn.functional as F` and
`from torch import nn` stand before, in {lines} lines of `train.py`.
"""


def page() -> str:
    """The whole page."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = [_HEAD.format(lines=PRELUDE.count("\n"))]
        parts += [f"There are {len(EVERY)}, and each is run by the tests, with its way out too.\n"]
        for topic, programs in PROGRAMS.items():
            parts.append(f"## {topic}\n")
            parts += ["\n".join(_section(one, Path(folder))) for one in programs]
    return "\n".join(parts)


def _section(program: Program, folder: Path) -> Iterator[str]:
    error = error_of(program, folder)
    yield f"<details><summary>{html.escape(program.title)}</summary>\n"
    yield f"```py\n{program.text.removeprefix(PRELUDE).rstrip()}\n```\n"
    said = f"{type(error).__name__}: {error}"
    lines = wrap(elide_end(" ".join(said.split()), _MOST))
    yield "```text\n" + "\n".join([*lines, *error.__notes__]) + "\n```\n"
    yield "It runs with:\n"
    yield "```diff\n" + "\n".join(_difference(program)) + "\n```\n"
    yield "</details>\n"


def _difference(program: Program) -> list[str]:
    lines = difflib.ndiff(program.text.splitlines(), program.fixed.splitlines())
    return [line for line in lines if line[:2] in ("- ", "+ ")]


if __name__ == "__main__":
    PAGE.write_text(page())

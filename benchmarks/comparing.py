"""Counts how often ``tt.compare`` names the planted cause first, and measures its price.

    python benchmarks/comparing.py [--markdown FILE]

The pairs are those of tests/support/compare_situations.py. The price is CPU time of the thread, the
median of three, beside that of a forward and backward of both models.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torchtap as tt

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from compare_situations import SITUATIONS, Situation
from report import begin, parser

HEADS = ("situation", "planted", "named first", "right", "distance", "allowed", "CPU", "two steps")


def cpu(function: Callable[[], object]) -> float:
    """Milliseconds of CPU that a function takes."""
    times = []
    for _ in range(3):
        began = time.thread_time()
        function()
        times.append(time.thread_time() - began)
    return 1000 * median(times)


def row(situation: Situation) -> tuple[list[str], bool]:
    """One line of the table, and whether it is right."""
    a, b, args = situation.make()
    found = tt.compare(a, b, *args, **situation.options)
    first = found.first
    planted = f"{situation.path}: {situation.cause}" if situation.path else "nothing"
    named = f"{first.path}: {first.cause}" if first is not None else "nothing"
    is_right = planted == named and (
        first is None or first.other == (situation.other or first.path)
    )
    largest = max((each.total for each in found.rows if each.port == "output"), default=0.0)
    distance = largest if first is None else first.total
    allowed = "" if first is None else f"{first.tolerance:.1e}"

    def steps() -> None:
        for model in (a, b):
            output = model(*args)
            if output.requires_grad:
                output.float().sum().backward()

    took = cpu(lambda: tt.compare(a, b, *args, **situation.options))
    texts = [
        situation.name,
        planted,
        named,
        "yes" if is_right else "NO",
        f"{distance:.1e}",
        allowed,
    ]
    return [*texts, f"{took:.0f} ms", f"{cpu(steps):.0f} ms"], is_right


def main() -> None:
    """Print the table, and write it where asked."""
    warnings.simplefilter("ignore")
    options = begin(parser(str(__doc__)))
    made = [row(one) for one in SITUATIONS]
    num_right = sum(is_right for _, is_right in made)
    lines = [" | ".join(HEADS), " | ".join("---" for _ in HEADS)]
    lines += [" | ".join(texts) for texts, _ in made]
    text = "\n".join(f"| {line} |" for line in lines)
    text += f"\n\n{num_right} of {len(made)} right."
    print(text)
    if options.markdown:
        options.markdown.write_text(text + "\n")


if __name__ == "__main__":
    main()

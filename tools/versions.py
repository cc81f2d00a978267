"""Runs the fast tests on several releases of PyTorch and Python, and writes the README's table.

    .venv/bin/python tools/versions.py
    .venv/bin/python tools/versions.py --environment .venv-torch2.15.0 --environment .venv

Without ``--environment`` each pair of ``PAIRS`` whose Python is installed gets an environment by
``make``. What was counted is kept in ``tests/data/versions.json``; a pair that is not run keeps its
line. ``--table`` writes the table again and runs nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COUNTS = ROOT / "tests" / "data" / "versions.json"
README = ROOT / "README.md"
PAIRS = (
    ("python3.11", "2.13.0"),
    ("python3.11", "2.14.1"),
    ("python3.11", "2.15.0"),
    ("python3.12", "2.14.1"),
    ("python3.13", "2.15.0"),
    ("python3.14", "2.15.0"),
)
"""Python and torch, which are tried together."""
BEGIN, END = "<!-- versions: made by tools/versions.py -->", "<!-- end of versions -->"
Counts = dict[str, dict[str, int]]


def main() -> None:
    """Entry point of the script."""
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    asked.add_argument("--environment", action="append", default=[], metavar="FOLDER", type=Path)
    asked.add_argument("--table", action="store_true", help="run nothing")
    given = asked.parse_args()
    counts: Counts = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    environments = given.environment or ([] if given.table else made_environments())
    failed = False
    for environment in environments:
        name, found = run_tests(environment.resolve() / "bin" / "python")
        print(f"{name}: {found}", file=sys.stderr)
        counts[name] = found
        COUNTS.write_text(json.dumps(dict(sorted(counts.items())), indent=2) + "\n")
        failed |= bool(found["failed"] or not found["passed"])
    write_table(counts)
    sys.exit(1 if failed else 0)


def made_environments() -> list[Path]:
    """Environments that ``make`` sets up for the pairs whose Python is here."""
    found = []
    for python, torch in PAIRS:
        if not is_installed(python):
            print(f"{python} is not installed: left out", file=sys.stderr)
            continue
        own = ["python3"] if python == f"python3.{sys.version_info.minor}" else [python]
        folder = ".venv" + ("" if torch == "2.13.0" else f"-torch{torch}")
        folder += "" if own == ["python3"] else f"-{python}"
        words = [f"PYTHON={own[0]}", f"TORCH={torch}"]
        subprocess.run(["make", f"{folder}/.test", *words], cwd=ROOT, check=True)
        found.append(ROOT / folder)
    return found


def is_installed(python: str) -> bool:
    """Return whether a Python runs here: pyenv has commands of names that it does not run."""
    words = [python, "--version"]
    return bool(shutil.which(python)) and not subprocess.run(words, capture_output=True).returncode


def run_tests(python: Path) -> tuple[str, dict[str, int]]:
    """Run the fast tests; the versions, and how many passed, failed and were skipped."""
    asked = "import platform, torch; print(platform.python_version(), torch.__version__)"
    versions = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True)
    own, torch = versions.stdout.split()
    words = [python, "-m", "pytest", "-q", "-n", "auto", "-m", "not slow"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    print(done.stdout[-3000:], file=sys.stderr)
    last = done.stdout.strip().rpartition("\n")[2]
    found = {word: number_of(last, word) for word in ("passed", "failed", "error", "skipped")}
    found["failed"] += found.pop("error")
    return f"torch {torch.partition('+')[0]}, Python {own}", found


def number_of(line: str, word: str) -> int:
    """The number before a word in the closing line of pytest."""
    found = re.search(rf"(\d+) {word}", line)
    return int(found[1]) if found else 0


def write_table(counts: Counts) -> None:
    """Put the table between its marks in the README."""
    text = README.read_text()
    before, _, rest = text.partition(BEGIN)
    if not rest:
        raise SystemExit(f"README.md has no line {BEGIN}")
    README.write_text(f"{before}{BEGIN}\n{table(counts)}\n{END}{rest.partition(END)[2]}")


def table(counts: Counts) -> str:
    """The table in Markdown."""
    rows = ["", "| fast tests with | passed | failed | skipped |", "|---|---|---|---|"]
    for name, found in counts.items():
        numbers = " | ".join(f"{found[word]:,}" for word in ("passed", "failed", "skipped"))
        rows.append(f"| {name} | {numbers} |")
    return "\n".join([*rows, ""])


if __name__ == "__main__":
    main()

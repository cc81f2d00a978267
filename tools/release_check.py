"""Builds the wheel and tries it in empty environments: the demo, and the README's first example.

    .venv/bin/python tools/release_check.py
    .venv/bin/python tools/release_check.py --python python3.13 --torch 2.15.0

Without arguments, each pair of ``tools/versions.py`` whose Python is installed. A pair installs
torch with what it needs, which for all but 2.13.0 on Python 3.11 are gigabytes.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from versions import PAIRS, ROOT, is_installed


def main() -> None:
    """Entry point of the script."""
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    asked.add_argument("--python", help="which Python, instead of all")
    asked.add_argument("--torch", default="2.13.0", help="which torch, with --python")
    asked.add_argument(
        "--site-packages", help="a folder with torch, which is then not installed again", type=Path
    )
    given = asked.parse_args()
    pairs = [(given.python, given.torch)] if given.python else list(PAIRS)
    with tempfile.TemporaryDirectory() as folder:
        wheel = built(Path(folder))
        for python, torch in pairs:
            if not is_installed(python):
                print(f"{python} is not installed: left out", file=sys.stderr)
                continue
            home = Path(folder) / f"{Path(python).name}-{torch}"
            check(wheel, python, torch, home, given.site_packages)


def built(folder: Path) -> Path:
    """The wheel of this tree, built in a copy of what git tracks."""
    source = folder / "source"
    subprocess.run(["git", "clone", "--quiet", ROOT, source], check=True)
    words = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder]
    subprocess.run([sys.executable, *words, source], check=True)
    (wheel,) = folder.glob("*.whl")
    print(f"built {wheel.name}")
    return wheel


def check(wheel: Path, python: str, torch: str, home: Path, shared: Path | None) -> None:
    """Install the wheel into an environment of its own, and run what a newcomer runs first."""
    subprocess.run([python, "-m", "venv", home], check=True)
    own = home / "bin" / "python"
    constraints = home / "constraints.txt"
    pinned = (ROOT / "constraints.txt").read_text()
    constraints.write_text(re.sub(r"(?m)^torch==.*$", f"torch=={torch}", pinned))
    pip = [own, "-m", "pip", "install", "--quiet", "--constraint", constraints]
    if shared is not None:
        where = subprocess.run(
            [own, "-c", "import site; print(site.getsitepackages()[0])"],
            capture_output=True,
            text=True,
            check=True,
        )
        (Path(where.stdout.strip()) / "shared.pth").write_text(f"{shared.resolve()}\n")
        subprocess.run([*pip, "--no-deps", wheel], check=True)
    else:
        subprocess.run([*pip, f"torch=={torch}", "setuptools"], check=True)
        subprocess.run([*pip, "--no-build-isolation", f"{wheel}[demo]"], check=True)
    empty = home / "empty"
    empty.mkdir()
    for words in (
        ["-c", first_example()],
        ["-m", "torchtap", "demo", "--out", "demo"],
        ["-m", "torchtap", "selfcheck", "--no-compiler"],
    ):
        done = subprocess.run([own, *words], cwd=empty, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
            sys.exit(f"{python} with torch {torch}: {words[:3]} ended with {done.returncode}")
    print(f"{python}, torch {torch}: the README's example, the demo and selfcheck ran")


def first_example() -> str:
    """The first block of Python in the README."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    if found is None:
        raise SystemExit("README.md has no block of Python")
    return found[1]


if __name__ == "__main__":
    main()

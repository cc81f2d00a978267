"""Builds the site: ``python tools/site/build.py [OUT]``, ``site/`` if nothing is named.

The pages are those of the repository; the reference is made from docstrings and from the help of
the commands. A link that leads nowhere, a page that stands in no list and a docstring that Sphinx
cannot read are errors. Nothing is loaded from a network, and the pages open from the disk.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def build(out: Path) -> int:
    """Write the site into ``out``: 0, or how many warnings there were."""
    sys.path.insert(0, str(HERE))
    from gather import gather, llms_text, whole_text
    from sphinx.cmd.build import build_main

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "pages"
        source.mkdir()
        gather(source)
        shutil.copytree(HERE / "static", source / "_static")
        shutil.copyfile(HERE / "conf.py", source / "conf.py")
        options = ["-q", "-W", "--keep-going", "-d", str(Path(folder) / "doctrees")]
        code = build_main([*options, str(source), str(out)])
    (out / "llms.txt").write_text(llms_text())
    (out / "llms-full.txt").write_text(whole_text())
    return code


if __name__ == "__main__":
    goal = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "site"
    code = build(goal)
    if not code:
        print(f"{goal / 'index.html'}: open it in a browser")
    raise SystemExit(code)

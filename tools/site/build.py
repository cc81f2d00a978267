"""Builds the site: ``python tools/site/build.py [OUT] [TAG]...``, ``site/`` if nothing is named.

The pages are those of the repository; the reference is made from docstrings and from the help of
the commands. A link that leads nowhere, a page that stands in no list and a docstring that Sphinx
cannot read are errors. Nothing is loaded from a network, and the pages open from the disk. Each TAG
of an earlier version is built by its own tools into a folder beside, and a menu leads to it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
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


def build_tag(tag: str, out: Path) -> None:
    """Build the site of an earlier version from its own files, with its own package."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(copy), tag], check=True)
        try:
            command = [sys.executable, str(copy / "tools" / "site" / "build.py"), str(out / tag)]
            environment = {**os.environ, "PYTHONPATH": str(copy / "src")}
            subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        finally:
            subprocess.run([*git, "remove", "--force", str(copy)], check=True)


def list_versions(out: Path, tags: list[str]) -> None:
    """Write the list that the menu of each page reads."""
    versions = [{"name": "latest", "path": ""}, *({"name": tag, "path": f"{tag}/"} for tag in tags)]
    (out / "versions.js").write_text(f"window.torchtapVersions = {json.dumps(versions)};\n")


def main() -> int:
    """Build the site, and those of earlier versions; the exit code."""
    goal = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT / "site"
    code = build(goal)
    if tags := sys.argv[2:]:
        for tag in tags:
            build_tag(tag, goal)
        list_versions(goal, tags)
    if not code:
        print(f"{goal / 'index.html'}: open it in a browser")
    return code


if __name__ == "__main__":
    raise SystemExit(main())

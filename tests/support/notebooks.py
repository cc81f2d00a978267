"""The notebooks of the docs: run, and stored with what they print and draw.

``python tests/support/notebooks.py [NAME]`` runs them again and stores them, to be looked at.
"""

from __future__ import annotations

import base64
import io
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from pages import ROOT
from PIL import Image

FOLDER = ROOT / "docs" / "tutorials" / "notebooks"
NAMES = sorted(page.stem for page in FOLDER.glob("*.ipynb"))
_SECONDS = 300
_COLORS = 255


def run(name: str, folder: Path) -> Any:
    """Run a copy of a notebook in ``folder``; what it writes on stderr is left out."""
    book: Any = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(book, timeout=_SECONDS, kernel_name="python3", resources=resources).execute()
    for cell in book.cells:
        cell.get("metadata", {}).pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    return book


def printed(book: Any) -> list[list[str]]:
    """The lines of text that each cell printed or showed."""
    found = []
    for cell in book.cells:
        lines: list[str] = []
        for one in cell.get("outputs", []):
            if "image/png" not in one.get("data", {}):
                lines += (one.get("text") or one["data"]["text/plain"]).splitlines()
        found.append(lines)
    return found


def num_pictures(book: Any) -> int:
    """How many pictures it draws."""
    return sum(
        "image/png" in one.get("data", {}) for cell in book.cells for one in cell.get("outputs", [])
    )


def _small(png: str) -> str:
    """A picture with a palette, as base64."""
    picture = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    out = io.BytesIO()
    picture.thumbnail((600, 600))
    picture.quantize(_COLORS, kmeans=4, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    return base64.b64encode(out.getvalue()).decode()


def store(name: str) -> None:
    """Run a notebook, and keep its outputs in it."""
    with tempfile.TemporaryDirectory() as folder:
        book = run(name, Path(folder))
    for cell in book.cells:
        for one in cell.get("outputs", []):
            data = one.get("data", {})
            data.pop("text/html", None)  # A table as text reads everywhere.
            if "image/png" in data:
                data["image/png"] = _small(data["image/png"])
                data["text/plain"] = "A figure."
    nbformat.write(book, FOLDER / f"{name}.ipynb")


if __name__ == "__main__":
    for one in sys.argv[1:] or NAMES:
        store(one)

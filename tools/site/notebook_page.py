"""A notebook as a page: its text, its code and what it stored."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any


def notebook_page(book: Path, folder: Path) -> str:
    """The Markdown of a notebook; its pictures are written into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    parts: list[str] = []
    for number, cell in enumerate(json.loads(book.read_text())["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for place, output in enumerate(cell["outputs"]):
            name = f"{book.stem}_{number}_{place}.png"
            parts.append(_shown(output, folder / name))
    return "\n\n".join(parts) + "\n"


def _shown(output: dict[str, Any], picture: Path) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        picture.write_bytes(base64.b64decode("".join(data["image/png"])))
        return f"![A figure that the cell above draws]({picture.name})"
    text = "".join(output.get("text") or data.get("text/plain", ""))
    return f"```text\n{text.rstrip()}\n```"

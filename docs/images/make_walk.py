"""Draw the pictures of docs/autograd: ``PYTHONPATH=tests/support python docs/images/make_walk.py``.

Each page is run in this folder, where its ``save`` calls write.
"""

from __future__ import annotations

import os
from pathlib import Path

from pages import ROOT, run_python


def main() -> None:
    os.chdir(Path(__file__).parent)
    for page in sorted((ROOT / "docs" / "explanations" / "autograd").glob("*.md")):
        run_python(page)


if __name__ == "__main__":
    main()

"""Gathers the Markdown pages of the repository into one folder, with links as the site has them."""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import reference
from notebook_page import notebook_page

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]*)(#[^)\s]*)?(\))")
_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
# It has every word, so it would come first in every search.
_UNSEARCHED = "---\nnosearch: true\n---\n\n"
_PLACES = {"README.md": "index.md", "CHANGELOG.md": "changes.md"}
_NAMES, _COMMANDS = "reference/api.md", "reference/commands.md"


def gather(folder: Path) -> list[str]:
    """Write all pages into ``folder``; their names in it."""
    pages = {place_of(page): page for page in sources()}
    made = {**reference.name_pages(), _COMMANDS: reference.command_page(), **_lists(pages)}
    for book in sorted((ROOT / "docs" / "tutorials" / "notebooks").glob("*.ipynb")):
        made[place_of(book)] = notebook_page(book, (folder / place_of(book)).parent)
    for place, page in pages.items():
        text = _linked(page.read_text(), page, folder)
        head = _UNSEARCHED if page.name == "CHANGELOG.md" else ""
        made[place] = head + text + _contents(page)
    made["index.md"] += _side_bar()
    own = [f"/{page}" for page in reference.name_pages()]
    made[_NAMES] = _with_references(made[_NAMES]) + _toctree("", own)
    for place, text in made.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text)
    return sorted(made)


def sources() -> list[Path]:
    """The pages that are written by hand."""
    rooms = (ROOT / "src" / "torchtap").rglob("README.md")
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *rooms]
    return sorted([*found, *(ROOT / "benchmarks").glob("*.md")])


def place_of(page: Path) -> str:
    """Return the place of a page of the repository on the site."""
    name = page.relative_to(ROOT).as_posix().replace(".ipynb", ".md")
    if name.startswith("src/torchtap/"):
        room = name.removeprefix("src/torchtap/").removesuffix("/README.md")
        return f"rooms/{room.replace('/', '_')}.md"
    name = _PLACES.get(name, name.removeprefix("docs/"))
    return name.replace("README.md", "index.md") if "/" in name else name.lower()


# ---------------------------------------------------------------------- links


def _linked(text: str, page: Path, folder: Path) -> str:
    """The text with links between places of the site, and anchors as Sphinx reads them."""

    def place(match: re.Match[str]) -> str:
        before, target, anchor, after = match.groups()
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        return f"{before}{_target(page, target, folder)}{anchor or ''}{after}"

    parts, last = [], 0
    for fence in [*_FENCE.finditer(text), None]:  # Code is left as it is.
        end = fence.start() if fence else len(text)
        own = _LINK.sub(place, text[last:end])
        parts.append(re.sub(r'^<a id="([^"]+)"></a>$', r"(\1)=", own, flags=re.MULTILINE))
        if fence:
            parts.append(fence[0])
            last = fence.end()
    return "".join(parts)


def _target(page: Path, target: str, folder: Path) -> str:
    file = (page.parent / target).resolve()
    if file.suffix in (".md", ".ipynb"):
        goal = place_of(file)
    elif file == ROOT / "benchmarks":
        goal = "benchmarks/index.md"
    else:
        name = file.relative_to(ROOT).as_posix()
        goal = name.removeprefix("docs/") if "images/" in name else f"files/{name}"
        (folder / goal).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, folder / goal)
    return os.path.relpath(goal, Path(place_of(page)).parent)


def _with_references(text: str) -> str:
    """The table of names: each leads to its own page, and its guide stands behind."""
    text = re.sub(
        r"^\| \[`(?:tt\.)?([\w.]+)`\]\(([^)]+)\) \| (.*) \|$",
        lambda m: f"| {_reference(m[1])} | {m[3]} [Guide]({m[2]}) |",
        text,
        flags=re.MULTILINE,
    )
    return re.sub(
        r"^\| `tt\.(\w+Error)` ", lambda m: f"| {_reference(m[1])} ", text, flags=re.MULTILINE
    )


def _reference(name: str) -> str:
    full = f"torchtap.{name}"
    if full not in reference.NAMES:
        return f"{{py:obj}}`{name} <torchtap.integrations.{name}>`"
    return f"{{py:obj}}`tt.{name} <{full}>`"


def llms_text() -> str:
    """``llms.txt``: every page of the side bar with its first sentence, for programs that read."""
    lines = ["# torchtap", "", f"> {_first_sentence(ROOT / 'README.md')}", ""]
    for section in _sections():
        lines += [f"## {section['title']}", ""]
        for name in section["pages"]:
            page = ROOT / name
            if page.exists() and page.suffix == ".md":
                place = place_of(page).replace(".md", ".html")
                lines.append(f"- [{_title(page)}]({place}): {_first_sentence(page)}")
        lines.append("")
    lines += ["## Whole text", "", "- [All pages as one text](llms-full.txt)", ""]
    return "\n".join(lines)


def whole_text() -> str:
    """``llms-full.txt``: all pages that are for users, one after the other."""
    skipped = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
    pages = [page for page in sources() if page.name not in skipped and "src" not in page.parts]
    return "\n\n".join(page.read_text() for page in pages)


def _first_sentence(page: Path) -> str:
    text = _FENCE.sub("", page.read_text())
    for part in text.split("\n\n"):
        line = " ".join(part.split())
        if line and line[0] not in "#|![<-":
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line)
            return re.split(r"(?<=[.:])\s", plain)[0].rstrip(":")
    return ""


# ---------------------------------------------------------------------- tables of contents


def _side_bar() -> str:
    made = {
        "command line": _COMMANDS,
        "benchmarks": "benchmarks/index.md",
        "rooms": "rooms/index.md",
    }
    return "".join(
        _toctree(one["title"], [made.get(page) or place_of(ROOT / page) for page in one["pages"]])
        for one in _sections()
    )


def _sections() -> list[dict[str, Any]]:
    found = tomllib.loads((Path(__file__).parent / "nav.toml").read_text())["section"]
    return list(found)


def _contents(page: Path) -> str:
    """Return the pages that a folder's first page lists, in its order."""
    if page.name != "README.md" or page.parent == ROOT or "src" in page.parts:
        return ""
    named = [target for _, target, _, _ in _LINK.findall(page.read_text())]
    others = {one.name for one in page.parent.iterdir()} - {"README.md"}
    inside = [target for target in dict.fromkeys(named) if target in others]
    return _toctree("", inside)


def _lists(pages: dict[str, Path]) -> dict[str, str]:
    """First pages of the folders that have none of their own."""
    titles = {
        "benchmarks": ("Benchmarks", "Each table stands with its command, versions and machine."),
        "rooms": ("Rooms", "One page for each part of the code, for those who change it."),
    }
    found = {}
    for folder, (title, about) in titles.items():
        inside = sorted(name.partition("/")[2] for name in pages if name.startswith(f"{folder}/"))
        rows = "\n".join(f"- [{_title(pages[f'{folder}/{one}'])}]({one})" for one in inside)
        found[f"{folder}/index.md"] = f"# {title}\n\n{about}\n\n{rows}\n" + _toctree("", inside)
    return found


def _title(page: Path) -> str:
    first = next(line for line in page.read_text().splitlines() if line.startswith("# "))
    return first.removeprefix("# ")


def _toctree(caption: str, pages: list[str]) -> str:
    head = "\n```{toctree}\n:hidden:\n" + (f":caption: {caption}\n" if caption else "")
    return head + "\n" + "\n".join(page.rpartition(".")[0] for page in pages) + "\n```\n"

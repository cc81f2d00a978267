"""How hard the sentences of the pages are, and which break the style.

``python tests/support/prose.py [FOLDER]`` prints a table of the pages of a repository.

The grade is that of Flesch and Kincaid (1975): 0.39 words per sentence + 11.8 syllables per word -
15.59. A piece of code in a sentence counts as one word of one syllable: it is read as a name.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

from pages import ROOT, prose

BAD_OPENERS = ("What", "Of", "Those", "Such", "As", "Whether", "The same", "Which", "Where", "That")
_NAME = "Name"


class Reading(NamedTuple):
    """How a page reads."""

    num_words: int
    num_sentences: int
    grade: float

    @property
    def mean(self) -> float:
        """Words of a sentence."""
        return self.num_words / max(self.num_sentences, 1)


def sentences(text: str) -> list[str]:
    """The sentences of paragraphs and lists, without code, headings, tables and pictures."""
    text = re.sub(r"<!--.*?-->", "", prose(text), flags=re.DOTALL)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]+`", _NAME, text).replace("*", "")
    parts: list[str] = [""]
    for line in text.splitlines():
        bare = line.strip()
        if not bare or bare.startswith(("#", "|", "<", ">", "$")) or line.startswith("    "):
            parts.append("")
        elif re.match(r"(?:[-*]|\d+\.) ", bare):
            parts.append(re.sub(r"^(?:[-*]|\d+\.) ", "", bare))
        else:
            parts[-1] = f"{parts[-1]} {bare}".strip()
    found: list[str] = []
    for part in parts:
        found += re.split(r"(?<=[.!?:])\s+(?=[A-Z\"(])", part)
    return [one for one in found if len(words(one)) > 1]


def words(sentence: str) -> list[str]:
    """Its words, numbers left out."""
    return re.findall(r"[A-Za-z][A-Za-z'-]*", sentence)


def syllables(word: str) -> int:
    """About how many: groups of vowels, without an e that is not heard."""
    word = word.lower().strip("'-")
    count = len(re.findall(r"[aeiouy]+", word))
    silent = word.endswith("e") and not word.endswith(("le", "ee")) and count > 1
    silent |= bool(re.search(r"[^aeioutd]ed$", word)) and count > 1
    return max(count - silent, 1)


def read(text: str) -> Reading:
    """Measure a page."""
    found = sentences(text)
    all_words = [word for one in found for word in words(one)]
    if not all_words:
        return Reading(0, 0, 0.0)
    spoken = sum(1 if word == _NAME else syllables(word) for word in all_words)
    grade = 0.39 * len(all_words) / len(found) + 11.8 * spoken / len(all_words) - 15.59
    return Reading(len(all_words), len(found), grade)


def bad_openers(text: str) -> list[str]:
    """Sentences that begin as those of another language do."""
    pattern = re.compile(rf"(?:{'|'.join(BAD_OPENERS)})\b(?!-)")
    return [one for one in sentences(text) if pattern.match(one) and not one.endswith("?")]


def table(root: Path) -> str:
    """A line for each page of a copy of the repository."""
    files = sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")])
    rows = ["| page | sentences | words of a sentence | grade | openers |", "|---|---|---|---|---|"]
    for page in files:
        name, text = page.relative_to(root).as_posix(), page.read_text()
        if "/errors/" in name:  # Made from programs.
            continue
        one = read(text)
        bad = len(bad_openers(text))
        rows.append(f"| {name} | {one.num_sentences} | {one.mean:.1f} | {one.grade:.1f} | {bad} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT))

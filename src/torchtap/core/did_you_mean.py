"""Known names that resemble a word that names nothing, as the end of a sentence. Needs no torch."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def did_you_mean(word: str, known: Sequence[str], *, limit: int = 3) -> str:
    """Return ``"; did you mean 'a' or 'b'?"``, or ``"."`` when nothing known is near.

    Example:
        >>> did_you_mean("blocks.3.atn", ["blocks.3.attn", "head"])
        "; did you mean 'blocks.3.attn'?"
    """
    return one_of(nearest(word, known, limit=limit))


def nearest(word: str, known: Sequence[str], *, limit: int = 3) -> list[str]:
    """Return known names that look like a word, or have its last part in them."""
    near = difflib.get_close_matches(word, known, n=limit, cutoff=0.6)
    tail = word.rsplit(".", 1)[-1].strip("*?")
    return near or [name for name in known if tail and tail in name][:limit]


def one_of(near: Iterable[object]) -> str:
    """Return the end of a sentence that asks for one of some texts; ``"."`` if there are none."""
    texts = [repr(str(one)) for one in near]
    return f"; did you mean {' or '.join(texts)}?" if texts else "."

"""Turns keys into what a live view shows: order, filter, place, and which frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torchtap.core.errors import SiteError
from torchtap.core.site import Pattern
from torchtap.core.text import clean
from torchtap.show.live.keys import BACK, DOWN, END, ENTER, ESCAPE, HOME, PAGE_DOWN, PAGE_UP, UP
from torchtap.show.live.screen import SORTS

HELP = "q quits, / filters, s sorts, f last finite frame, arrows scroll"


@dataclass(slots=True)
class Controls:
    """The choices that were made by keys.

    Attributes:
        where: patterns of the sites that are shown; none for all.
        sort: one of :data:`~torchtap.show.live.screen.SORTS`.
        first: the number of the first row.
        is_finite: whether the last finite frame is asked for.
        has_quit: whether all is over.
        draft: the filter while it is typed; ``None`` while none is.
        error: why the filter that is typed means nothing.
    """

    where: Sequence[str] = ()
    sort: str = SORTS[0]
    first: int = 0
    is_finite: bool = False
    has_quit: bool = False
    draft: str | None = None
    error: str = ""
    _before: Sequence[str] = field(default=(), repr=False)

    def press(self, key: str, *, page: int, most: int) -> None:
        """Take a key.

        Args:
            key: as :func:`~torchtap.show.live.keys.keys_in` names it.
            page: rows that are seen at once.
            most: rows that there are.
        """
        if self.draft is not None:
            self._type(key)
        elif key == "/":
            self._before, self.draft = self.where, " ".join(self.where)
        elif key in ("q", "Q"):
            self.has_quit = True
        elif key == "s":
            self.sort, self.first = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)], 0
        elif key == "f":
            self.is_finite, self.first = not self.is_finite, 0
        elif key == ESCAPE:
            self.where, self.first, self.is_finite = (), 0, False
        else:
            self._scroll(key, page, most)

    def _type(self, key: str) -> None:
        """Take a key of the filter, which counts as soon as it means something."""
        assert self.draft is not None
        if key == ENTER:
            self.draft = None
        elif key == ESCAPE:
            self.where, self.draft = self._before, None
        elif key == BACK:
            self.draft = self.draft[:-1]
        elif len(key) == 1:
            self.draft += key
        self.error = ""
        if self.draft is None:
            return
        words = self.draft.split()
        try:
            for word in words:
                Pattern.parse(word)
        except SiteError as error:
            self.error = clean(str(error))
            return
        self.where, self.first = words, 0

    def _scroll(self, key: str, page: int, most: int) -> None:
        moves = {UP: -1, DOWN: 1, "k": -1, "j": 1, PAGE_UP: -page, PAGE_DOWN: page, " ": page}
        ends = {HOME: 0, END: most}
        wanted = ends.get(key, self.first + moves.get(key, 0))
        self.first = max(0, min(wanted, most - page))

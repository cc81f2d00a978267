"""The base class of values that print as a page, which is laid out when they are printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchtap.core.printed_page import Page


class Printed:
    """A value that is a page: text where it is printed, a table in a notebook."""

    __slots__ = ()

    def _page(self) -> Page:
        raise NotImplementedError

    def __repr__(self) -> str:
        return self._page().text()

    def _repr_html_(self) -> str:
        return self._page().html()

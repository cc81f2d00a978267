"""The handle of a hook of ours on a module: copies show none of them, and hooks can rest.

``copy.deepcopy`` and pickle ask an object itself how it is copied before they ask its class. So
while a hook table of a module holds a hook of ours (:class:`HiddenHandle`), the table answers as
its twin without ours would.
"""

from __future__ import annotations

import copy
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from torch.utils.hooks import RemovableHandle

from torchtap.hooks.hook_order import order_with, put_back

Table = OrderedDict[int, Any]
_OWN_NAMES = ("__deepcopy__", "__reduce_ex__", "move_to_end")
"""Attributes that stand on a table while entries of it are ours."""


class HiddenHandle:
    """The handle of a hook of ours on a module, which no copy and no pickle of the module has."""

    __slots__ = ("_handle", "_own")

    def __init__(self, handle: RemovableHandle) -> None:
        self._handle = handle
        # That of hooks first. While the key is among its entries, they stay with the table.
        self._own = [_OwnEntries.of(table) or _OwnEntries(table) for table in self._tables()]
        for own in self._own:
            own.keys.add(handle.id)

    @property
    def id(self) -> int:
        """Return the key of the hook in its table."""
        return self._handle.id

    def rest(self) -> None:
        """Take the hook out of its table for a while; its place in the order is kept.

        PyTorch calls a module without hooks by a shorter way. The tables in which it notes how to
        call a hook stay as they are: it looks there only for hooks that it calls.
        """
        if self._own:
            self._own[0].rest(self._handle.id)

    def wake(self) -> None:
        """Put the hook back, unless it has been taken off meanwhile."""
        if self._own:
            self._own[0].wake(self._handle.id)

    def remove(self) -> None:
        """Take the hook off, and with the last one of ours all that was put on the tables."""
        self._handle.remove()
        for own in self._own:
            own.discard(self._handle.id)
        self._own.clear()

    def _tables(self) -> Iterator[Table]:
        """Yield the table of hooks, and those in which PyTorch notes how to call each hook."""
        for ref in (self._handle.hooks_dict_ref, *self._handle.extra_dict_ref):
            table = ref()
            if isinstance(table, OrderedDict):
                yield table


class _OwnEntries:
    """Our own entries of one hook table; its methods stand on the table as attributes."""

    __slots__ = ("_order", "_resting", "_table", "keys")

    def __init__(self, table: Table) -> None:
        self._table = weakref.ref(table)  # No cycle: a model that is dropped is gone at once.
        self.keys: set[int] = set()
        self._resting: dict[int, Any] = {}
        self._order: list[int] = []  # All keys, when a hook was last put to rest.
        vars(table).update(__deepcopy__=self.deepcopy, __reduce_ex__=self.reduce)

    @staticmethod
    def of(table: Table) -> _OwnEntries | None:
        """Return the ``_OwnEntries`` of a table, if any of its entries are ours."""
        own = getattr(vars(table).get("__reduce_ex__"), "__self__", None)
        return own if isinstance(own, _OwnEntries) else None

    def rest(self, key: int) -> None:
        """Take an entry out of the table until it wakes."""
        table = self._table()
        if table is None or key not in table:
            return
        if self._resting:
            self._order = order_with(table, self._resting, self._order)
        else:
            self._order = list(table)
            # PyTorch moves a hook to the front by it. Nothing else tells that hook from others.
            vars(table)["move_to_end"] = self._move_to_end
        self._resting[key] = table.pop(key)

    def wake(self, key: int) -> None:
        """Put an entry back into the table, where it belongs now."""
        table = self._table()
        if table is None or key not in self._resting:
            return
        if table or len(self._resting) > 1:
            order = order_with(table, self._resting, self._order)
            put_back(table, key, self._resting[key], order)
        else:  # It is alone, as nearly every hook of a watch.
            table[key] = self._resting[key]
        self._forget(key)

    def _forget(self, key: int) -> None:
        """An entry rests no longer."""
        table = self._table()
        if self._resting.pop(key, None) is not None and not self._resting and table is not None:
            vars(table).pop("move_to_end", None)

    def _move_to_end(self, key: int, last: bool = True) -> None:
        table = self._table()
        assert table is not None  # It is being asked.
        OrderedDict.move_to_end(table, key, last)
        if not last:
            self._order.insert(0, key)

    def discard(self, key: int) -> None:
        """An entry of ours is gone; with the last one go the attributes."""
        self._forget(key)
        self.keys.discard(key)
        table = self._table()
        if table is not None and not self.keys:
            del vars(table)["__deepcopy__"], vars(table)["__reduce_ex__"]

    def deepcopy(self, memo: dict[int, Any]) -> Any:
        """Copy the table without our entries, for ``copy.deepcopy``."""
        return copy.deepcopy(self._others(), memo)

    def reduce(self, protocol: int) -> Any:
        """Reduce the table without our entries, for pickle."""
        return self._others().__reduce_ex__(protocol)

    def _others(self) -> Table:
        table = self._table()
        assert table is not None  # It is being asked.
        others = OrderedDict((key, hook) for key, hook in table.items() if key not in self.keys)
        attributes = vars(table).items()
        vars(others).update((name, held) for name, held in attributes if name not in _OWN_NAMES)
        return others

"""The handle of a hook of ours on a module: copies show none of them, and hooks can rest.

``copy.deepcopy`` and pickle ask an object itself how it is copied before they ask its class. So
while a hook table of a module holds a hook of ours (:class:`HiddenHandle`), the table answers as
its twin without ours would.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import ref

from torch import nn
from torch.utils.hooks import RemovableHandle

from torchtap.core.shared_state import new_lock
from torchtap.hooks.hook_order import order_with, put_back

Table = OrderedDict[int, Any]
tables_lock = new_lock()
"""Held while hooks of ours are put into tables, moved or taken out: several threads may watch one
model, and those of one watch have one key."""
_OWN_NAMES = ("__deepcopy__", "__reduce_ex__", "move_to_end")
"""Attributes that stand on a table while entries of it are ours."""


def keys_in(table: Table) -> set[int]:
    """Return the keys of all hooks of a table, also of those of ours that rest."""
    own = _own_entries(table)
    return {*table, *(() if own is None else own.keys)}


def hooked(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Return the modules that have hooks in their tables, or of ours that rest."""
    tables = ((one, (one._forward_pre_hooks, one._forward_hooks)) for one in modules)
    return [one for one, both in tables if any(table or table.__dict__ for table in both)]


class HiddenHandle:
    """The handle of a hook of ours on a module, which no copy and no pickle of the module has.

    Args:
        key: of the hook in its tables.
        tables: the table of hooks, then those in which PyTorch notes how to call this one.

    Attributes:
        id: the key.
    """

    __slots__ = ("_own", "id")

    def __init__(self, key: int, tables: Iterable[Table]) -> None:
        self.id = key
        # Tables of hooks first. While the key is among its entries, they stay with the table.
        self._own = [OwnEntries.of(table) for table in tables]
        for own in self._own:
            own.keys += (key,)

    @classmethod
    def of(cls, handle: RemovableHandle) -> HiddenHandle:
        """Hide a hook that was put on by a function of PyTorch."""
        references = (handle.hooks_dict_ref, *handle.extra_dict_ref)
        tables = [table for reference in references if (table := reference()) is not None]
        return cls(handle.id, [table for table in tables if isinstance(table, OrderedDict)])

    @classmethod
    def put_in(cls, key: int, hook: Any, tables: Sequence[Table]) -> HiddenHandle:
        """Put a hook into its table, and note in the others that it is to be called so.

        As ``register_forward_hook`` does, under a key of ours.
        """
        handle = cls(key, tables)
        for notes in tables[1:]:
            notes[key] = True
        # Last: a call in another thread looks at what is noted of each hook.
        tables[0][key] = hook
        return handle

    def rest(self) -> None:
        """Take the hook out of its table for a while; its place in the order is kept.

        PyTorch calls a module without hooks by a shorter way. The tables in which it notes how to
        call a hook stay as they are: it looks there only for hooks that it calls.
        """
        if self._own:
            self._own[0].rest(self.id)

    def wake(self) -> None:
        """Put the hook back, unless it has been taken off meanwhile."""
        if self._own:
            self._own[0].wake(self.id)

    def remove(self) -> None:
        """Take the hook off, and with the last one of ours all that was put on the tables."""
        for own in self._own:
            own.remove(self.id)
        self._own = []


class Resting:
    """The entries of a table that rest, made when the first one does and kept from then on.

    Attributes:
        hooks: key -> hook.
        order: all keys, when a hook was last put to rest.
    """

    __slots__ = ("hooks", "order")

    def __init__(self, hooks: dict[int, Any], order: list[int]) -> None:
        self.hooks = hooks
        self.order = order


class OwnEntries(ref[Table]):
    """Our own entries of one hook table: a weak reference to it, which stands on it.

    It is two attributes of the table, and makes copies of it. No cycle: a model that is dropped is
    gone at once. A watch has them made natively, by ``stats/kernels/tables.c``, and its hooks rest
    natively, by ``resting.c``.

    Attributes:
        keys: of the entries, also of those that rest.
        resting: those that are out of the table for a while; ``None`` until one is.
    """

    __slots__ = ("keys", "resting")

    keys: tuple[int, ...]
    resting: Resting | None

    @classmethod
    def of(cls, table: Table) -> OwnEntries:
        """Return the entries of a table, made where none of its entries was ours."""
        return _own_entries(table) or cls._made(table)

    @classmethod
    def _made(cls, table: Table) -> OwnEntries:
        made = cls(table)
        made.keys, made.resting = (), None
        attributes = table.__dict__
        attributes["__deepcopy__"] = attributes["__reduce_ex__"] = made
        return made

    def table(self) -> Table | None:
        """Return the table, if it is there still."""
        return ref.__call__(self)

    def __call__(self, asked: dict[int, Any] | int) -> Any:  # type: ignore[override]
        """Copy the table without our entries, or reduce it for pickle.

        Args:
            asked: the memo of ``copy.deepcopy``, or the protocol of pickle.
        """
        others = self._others()
        return (
            others.__reduce_ex__(asked) if isinstance(asked, int) else copy.deepcopy(others, asked)
        )

    def rest(self, key: int) -> None:
        """Take an entry out of the table until it wakes."""
        table, resting = self.table(), self.resting
        if table is None or key not in table:
            return
        if resting is None:
            resting = self.resting = Resting({}, [])
            # PyTorch moves a hook to the front by it. Nothing else tells that hook from others.
            vars(table)["move_to_end"] = self._move_to_end
        resting.order = order_with(table, resting.hooks, resting.order)
        resting.hooks[key] = table.pop(key)

    def wake(self, key: int) -> None:
        """Put an entry back into the table, where it belongs now."""
        table, resting = self.table(), self.resting
        if table is None or resting is None or key not in resting.hooks:
            return
        if table or len(resting.hooks) > 1:
            order = order_with(table, resting.hooks, resting.order)
            put_back(table, key, resting.hooks[key], order)
        else:  # It is alone, as nearly every hook of a watch.
            table[key] = resting.hooks[key]
        self.forget(key)

    def forget(self, key: int) -> None:
        """An entry rests no longer."""
        if self.resting is not None:
            self.resting.hooks.pop(key, None)

    def _move_to_end(self, key: int, last: bool = True) -> None:
        table = self.table()
        assert table is not None  # It is being asked.
        OrderedDict.move_to_end(table, key, last)
        if not last and self.resting is not None and self.resting.hooks:
            self.resting.order.insert(0, key)

    def remove(self, key: int) -> None:
        """Take an entry of ours away; with the last one go the attributes."""
        table = self.table()
        if table is None:
            return
        table.pop(key, None)
        self.forget(key)
        self.keys = tuple(other for other in self.keys if other != key)
        if not self.keys:
            for name in _OWN_NAMES:
                vars(table).pop(name, None)

    def _others(self) -> Table:
        table = self.table()
        assert table is not None  # It is being asked.
        with tables_lock:  # Another thread may close a watch meanwhile.
            others = OrderedDict((key, hook) for key, hook in table.items() if key not in self.keys)
            attributes = vars(table).items()
            vars(others).update((name, held) for name, held in attributes if name not in _OWN_NAMES)
        return others


def _own_entries(table: Table) -> OwnEntries | None:
    own = table.__dict__.get("__reduce_ex__")
    return own if isinstance(own, OwnEntries) else None

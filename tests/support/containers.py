"""Values that hold tensors, as arguments and outputs of modules."""

from __future__ import annotations

import os
from collections.abc import ItemsView, Iterator, KeysView, MutableMapping, ValuesView
from typing import Any, NamedTuple

from torch import Tensor


class Pair(NamedTuple):
    """A named tuple of two."""

    first: Any
    second: Any


class Box:
    """An object of a class that torchtap does not know, with one attribute."""

    def __init__(self, held: Any) -> None:
        self.held = held


class RunsCode:
    """Its pickle, when it is loaded, makes a file ``ran_code`` in the current folder."""

    def __reduce__(self) -> Any:
        return os.system, ("touch ran_code",)


class OfRows(MutableMapping[str, Tensor]):
    """A mapping of tensors of two rows that iterates over rows, as ``tensordict.TensorDict`` does.

    It refuses tensors of another length, and copies its tensors itself.
    """

    def __init__(self, **items: Tensor) -> None:
        self.held = items

    def __iter__(self) -> Iterator[Any]:
        return zip(*self.held.values(), strict=True)

    def __contains__(self, key: object) -> bool:
        raise NotImplementedError("ask keys()")

    def __len__(self) -> int:
        return 2

    def __getitem__(self, key: Any) -> Tensor:
        assert isinstance(key, str), "this would read a row"
        return self.held[key]

    def __setitem__(self, key: Any, value: Tensor) -> None:
        assert isinstance(key, str), "this would write into a row"
        if len(value) != len(self):
            raise RuntimeError("batch dimension mismatch")
        self.held[key] = value

    def __delitem__(self, key: str) -> None:
        del self.held[key]

    def keys(self) -> KeysView[str]:
        return self.held.keys()

    def items(self) -> ItemsView[str, Tensor]:
        return self.held.items()

    def values(self) -> ValuesView[Tensor]:
        return self.held.values()

    def __deepcopy__(self, memo: dict[int, Any]) -> OfRows:
        return OfRows(**{key: value.clone() for key, value in self.held.items()})

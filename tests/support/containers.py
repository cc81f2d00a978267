"""Values that hold tensors, as arguments and outputs of modules."""

from __future__ import annotations

import os
from typing import Any, NamedTuple


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

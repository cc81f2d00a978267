"""The modules of a run as rules read them: their order, classes and settings."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtap.runs.rules.rule_view import View

LINEAR = frozenset({"Linear", "_ConvNd"})
RECTIFIERS = frozenset({"ReLU", "ReLU6", "Threshold"})
_NORMS = ("BatchNorm", "LayerNorm", "GroupNorm", "RMSNorm", "InstanceNorm", "SyncBatchNorm")


class Modules:
    """The modules of a run.

    Args:
        view: of the run.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        self.meta = view.meta

    @cached_property
    def order(self) -> dict[str, int]:
        """Path -> its place by first call; modules that were not called come last."""
        paths = dict.fromkeys([*self.meta.order, *self.meta.modules])
        return {path: place for place, path in enumerate(paths)}

    @cached_property
    def leaves(self) -> list[str]:
        """Paths of the modules without modules inside, in the order of their first call."""
        parents = {path.rpartition(".")[0] for path in self.meta.modules if path}
        found = [path for path in self.meta.modules if path not in parents]
        return sorted(found, key=lambda path: self.order[path])

    @cached_property
    def frozen_share(self) -> float:
        """The share of all elements that do not require a gradient; 0 where nothing is known."""
        sizes = {False: 0.0, True: 0.0}
        for name, needs in self.meta.requires_grad.items():
            path, _, leaf = name.rpartition(".")
            size = self._view.start(self._view.site(path, "param", leaf), "numel")
            sizes[needs] += size if size > 0 else 0
        return sizes[False] / max(sum(sizes.values()), 1)

    def is_a(self, path: str, types: Iterable[str]) -> bool:
        """Return whether a module is of one of some classes, or of one that inherits from it."""
        return not frozenset(self.meta.modules.get(path, ())).isdisjoint(types)

    def is_norm(self, path: str) -> bool:
        """Return whether a module normalises: batch, layer, group, RMS or instance norm."""
        return any(one.startswith(_NORMS) for one in self.meta.modules.get(path, ()))

    def setting(self, path: str, name: str) -> Any:
        """Return a plain attribute of a module, or ``None`` where it is not known."""
        return self.meta.settings.get(path, {}).get(name)

    def following(self, path: str) -> str | None:
        """Return the leaf that is called right after another, or ``None`` for none."""
        called = [one for one in self.leaves if self._view.site(one, "input") is not None]
        place = called.index(path) if path in called else len(called)
        return called[place + 1] if place + 1 < len(called) else None

    def feeds(self, path: str) -> str | None:
        """Return the next leaf where the output of a leaf enters it unchanged; else ``None``."""
        after = self.following(path)
        is_fed = after is not None and self._view.are_equal(
            self._view.site(path, "output"), self._view.site(after, "input")
        )
        return after if is_fed else None

    def was_called(self, path: str) -> bool:
        """Return whether anything was seen to flow through a module."""
        ports = ("output", "input")
        return path in self.meta.order or any(
            self._view.site(path, port) is not None for port in ports
        )

    @cached_property
    def end(self) -> str:
        """Path of the leaf whose output is the model's; the model itself where none is."""
        root = self._view.site("", "output")
        called = [path for path in self.leaves if path and self._view.site(path, "output")]
        found = (
            path
            for path in reversed(called)
            if self._view.are_equal(self._view.site(path, "output"), root)
        )
        return next(found, "")

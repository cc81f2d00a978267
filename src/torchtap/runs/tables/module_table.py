"""A table pivoted by port: one row per module, its output beside its gradient."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torchtap.runs.tables.table import Row
from torchtap.stats.statistics import Statistics


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """The output of one module in the last step, and the gradient that came back to it.

    Attributes:
        path: the module, ``""`` for the root.
        type: class name.
        calls: how often it ran in the step.
        shape: of its output; of the first tensor where it returns several.
        dtype: of that tensor.
        num_tensors: how many tensors it returns.
        stats: of all it returned.
        gradient: of all its ``grad_output``; ``None`` if none was recorded.
    """

    path: str
    type: str
    calls: int
    shape: tuple[int, ...] | None
    dtype: str
    num_tensors: int
    stats: Statistics
    gradient: Statistics | None

    @property
    def grad_norm(self) -> float | None:
        """Euclidean norm of the gradient over its finite elements."""
        return None if self.gradient is None else self.gradient.l2

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "path": self.path,
            "type": self.type,
            "calls": self.calls,
            "shape": None if self.shape is None else list(self.shape),
            "dtype": self.dtype,
            "num_tensors": self.num_tensors,
            **self.stats.numbers(),
            "grad_norm": self.grad_norm,
            "grad_nonfinite": None if self.gradient is None else self.gradient.nonfinite,
        }


def module_rows(rows: Iterable[Row]) -> tuple[ModuleRow, ...]:
    """The rows of a table, one per module with an output, in the order of ``named_modules()``."""
    outputs: dict[str, list[Row]] = {}
    gradients: dict[str, list[Row]] = {}
    for row in rows:
        if row.site.port == "output":
            outputs.setdefault(row.site.path, []).append(row)
        elif row.site.port == "grad_output":
            gradients.setdefault(row.site.path, []).append(row)
    return tuple(_module_row(group, gradients.get(path, [])) for path, group in outputs.items())


def _module_row(outputs: list[Row], gradients: list[Row]) -> ModuleRow:
    first = outputs[0]
    return ModuleRow(
        path=first.site.path,
        type=first.type,
        calls=max(row.calls for row in outputs),
        shape=first.shape,
        dtype=first.dtype,
        num_tensors=len(outputs),
        stats=_merged_source(outputs),
        gradient=_merged_source(gradients) if gradients else None,
    )


def _merged_source(rows: Iterable[Row]) -> Statistics:
    merged = Statistics()
    for row in rows:
        merged = merged.merge(row.stats)
    return merged

"""The rows of a site as a ``torch.utils.data.Dataset``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from torchtap.core.errors import RunError
from torchtap.core.site import Site
from torchtap.runs.run import Run, contents_of
from torchtap.runs.site_rows import SiteRows

Item = Any
"""A row, or a row and the id of its sample."""


class RowDataset(Dataset[Item]):
    """The rows of one site over all steps and calls, for probes and autoencoders.

    An item is a row, or with ``ids`` a row and the id of its sample. A list of numbers gives all
    these rows at once, as one tensor (and a list of ids): that is how ``DataLoader`` is fastest,
    with ``sampler=BatchSampler(RandomSampler(dataset), 256, drop_last=False), batch_size=None``.
    The plain ``DataLoader(dataset, batch_size=256, shuffle=True)`` works too. Workers of both kinds
    (fork and spawn) open the files by themselves. The rows are those of the run when it was made:
    of a run that grows, make it again after ``run.refresh()``.

    Args:
        reopen: makes the run again in a worker; ``None`` where the run itself is taken along.
        run: that has the rows.
        site: which.
        ids: whether items have the ids of samples.

    Raises:
        RunError: ids are asked for, and a step has not one for each row.
    """

    def __init__(
        self, run: Run, site: Site, *, ids: bool, reopen: Callable[[], Run] | None = None
    ) -> None:
        self.site = site
        self._has_ids = ids
        self._reopen = reopen
        self._load(run, contents_of(run).site_rows(site))

    def _load(self, run: Run, rows: SiteRows) -> None:
        self._run = run
        self._rows = rows
        self._ids = self._ids_of(run) if self._has_ids else None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int | Sequence[int]) -> Item:
        is_one = isinstance(index, int | np.integer)
        listed: Any = [index] if is_one else index
        chosen: list[int] = list(listed)
        rows = self._rows.gather(chosen)
        ids = None if self._ids is None else [self._ids[one] for one in chosen]
        if is_one:
            return rows[0] if ids is None else (rows[0], ids[0])
        return rows if ids is None else (rows, ids)

    def __getitems__(self, indices: Sequence[int]) -> list[Item]:
        """Several items; ``DataLoader`` asks for all of a batch at once."""
        rows: Sequence[Tensor] = self._rows.gather(indices).unbind()
        if self._ids is None:
            return list(rows)
        ids = self._ids
        return [(row, ids[one]) for row, one in zip(rows, indices, strict=True)]

    def _ids_of(self, run: Run) -> list[int | str]:
        """Return the id of each row."""
        ids: list[int | str] = []
        steps = self._rows.steps
        sizes = np.diff(self._rows.starts)
        for step in dict.fromkeys(steps.tolist()):
            own, many = run.ids(step), int(sizes[steps == step].sum())
            if len(own) != many:
                raise RunError(
                    f"Step {step} has {len(own)} ids for {many} rows of {self.site}. Give one for "
                    f"each, with w.step(ids=...), or leave them out: dataset(..., ids=False)."
                )
            ids += own
        return ids

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if self._reopen is not None:  # A worker maps the files itself.
            state = {"site": self.site, "_has_ids": self._has_ids, "_reopen": self._reopen}
            state["_expected"] = len(self._rows.steps), self._rows.mark
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        count, expected = state.pop("_expected", (0, None))
        self.__dict__.update(state)
        if self._reopen is None:
            return
        run = self._reopen()
        rows = contents_of(run).site_rows(self.site).first(count)  # It may have grown meanwhile.
        if rows.mark != expected:
            raise RunError(
                f"The run has other rows of {self.site} than when this data set was made: a later "
                f"attempt, or gradients of earlier steps, came since. Make it again: "
                f"run.refresh(), then run.dataset({str(self.site)!r})."
            )
        self._load(run, rows)

    def __repr__(self) -> str:
        return f"<RowDataset of {self.site}, {len(self):,} rows>"

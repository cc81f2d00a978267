"""``tt.Run``: one interface to everything that was recorded, in memory or on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torchtap.core.absence import Absence, Absences
from torchtap.core.errors import RunError, SiteError
from torchtap.core.printed import Printed
from torchtap.core.printed_page import Page
from torchtap.core.record import FORWARD, Record
from torchtap.core.site import Site
from torchtap.runs.contents import Contents
from torchtap.runs.meta import Meta
from torchtap.runs.run_statistics import Step
from torchtap.runs.run_steps import RunSteps
from torchtap.runs.run_tables import RunTables
from torchtap.runs.select import Selection, Where
from torchtap.runs.source import HeldSource, Source, as_records
from torchtap.stats.series import Series
from torchtap.stats.statistics import Statistics

if TYPE_CHECKING:
    from torch import Tensor

    from torchtap.runs.inventory import Inventory
    from torchtap.runs.row_dataset import RowDataset

__all__ = ["Meta", "Run", "Step", "Where"]


class Run(RunSteps, RunTables, Printed):
    """The records and statistics of one watch, file or folder: a lazy, read-only view.

    A value of the forward pass that activation checkpointing computed again (phase ``recompute``)
    is kept apart: it is read with ``phase="recompute"`` and counted nowhere else. So are the values
    and gradients of other calls inside a backward (phase ``backward``), which adjoint solvers,
    reversible blocks, custom functions and hooks make, and the values of evaluation forwards of a
    model that trains (phase ``eval``).

    Args:
        source: where it is read from (:class:`~torchtap.runs.source.Source`), or records, as of a
            run that is made of parts of another.
        meta: of records that are given; a source knows its own, as all that follows.
        absent: sites of which there is no record, with reasons, or a function that gives them.
        series: what ``tt.Stats`` measured beside them, or a function that gives it.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> with tt.watch(model, "*:output,grad_output") as w:
        ...     model(torch.ones(4, 2)).sum().backward()
        >>> w.run["0:output"].shape
        torch.Size([4, 3])
        >>> [str(site) for site in w.run.sites][:2]
        ['.:output', '.:grad_output']
    """

    def __init__(
        self,
        source: Source | Iterable[Record],
        meta: Meta | None = None,
        absent: Sequence[Absence] | Callable[[], Sequence[Absence]] = (),
        series: Series | Callable[[], Series] | None = None,
    ) -> None:
        if isinstance(source, Iterable):
            held = HeldSource(as_records(source), Meta() if meta is None else meta)
            held.absent = absent() if callable(absent) else absent
            if series is not None:
                held.series = series() if callable(series) else series
            source = held
        self.source: Source = source
        self._last: Contents | None = None

    def _contents(self) -> Contents:
        """Return what the run holds now. Every other method reads it once, and works on that."""
        records, series = self.source.records, self.source.series
        if self._last is None or not self._last.is_current(records, series):
            self._last = Contents(self.source, records, series)
        return self._last

    # ------------------------------------------------------------------ what there is

    @property
    def meta(self) -> Meta:
        """Return the metadata of the run: its model and how it was made."""
        return self.source.meta

    @property
    def sites(self) -> list[Site]:
        """Sites that were recorded or measured, by module, port and leaf."""
        return list(self._contents().sites)

    @property
    def steps(self) -> list[int]:
        """Steps in which anything was recorded or measured, ascending."""
        return list(self._contents().steps)

    @property
    def series(self) -> Series:
        """Return the series that ``tt.Stats`` measured, up to now."""
        return self.source.series

    @property
    def absent(self) -> Absences:
        """Return the sites that were selected and not seen, with reasons: prints as a table."""
        return Absences(self.source.absent)

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return int(self.source.records.values.nbytes)

    def __len__(self) -> int:
        """Return the number of kept values, in all phases; 0 for a run of statistics alone."""
        return len(self.source.records)

    def __bool__(self) -> bool:
        """Return whether the run holds anything: values, statistics, or logged numbers."""
        series = self.source.series
        return bool(len(self) or series.steps or series.evaluation is not None or self.scalar_names)

    def __contains__(self, site: object) -> bool:
        if not isinstance(site, str | Site):
            return False
        try:
            self._contents().resolve(site)
        except SiteError:
            return False
        return True

    # ------------------------------------------------------------------ values

    def __getitem__(self, site: str | Site) -> Tensor:
        """The value at ``site`` of the last step, last call (and last backward).

        Raises:
            SiteError: nothing was recorded there; the message says why, or what is near.
        """
        return self._contents().record(site).value

    def get(
        self,
        site: str | Site,
        *,
        step: int | None = None,
        call: int | None = None,
        backward: int | None = None,
        phase: str = FORWARD,
    ) -> Tensor:
        """Return one value; ``None`` stands for the last ``step``, ``call`` and ``backward``.

        Raises:
            SiteError: nothing was recorded at the site, or not in that step and call.
        """
        return self.record(site, step=step, call=call, backward=backward, phase=phase).value

    def record(
        self,
        site: str | Site,
        *,
        step: int | None = None,
        call: int | None = None,
        backward: int | None = None,
        phase: str = FORWARD,
    ) -> Record:
        """Return the whole record behind :meth:`get`."""
        return self._contents().record(site, step=step, call=call, backward=backward, phase=phase)

    def records(
        self,
        where: Where = None,
        *,
        steps: int | Iterable[int] | None = None,
        phase: str | None = FORWARD,
    ) -> Iterator[Record]:
        """Records in the order of their arrival, read one by one.

        The gradients of one call come in the order of its arguments (positional ones, then
        keywords) or of what it returned, in whatever order the backward reached them.

        Args:
            where: patterns as everywhere, sites, or a function of a site; ``None`` for all.
            steps: one step or several; ``None`` for all.
            phase: ``forward``, ``recompute``, ``backward``, ``eval``, or ``None`` for all.

        Raises:
            SiteError: nothing was recorded that fits ``where``.
        """
        yield from self._contents().records(where, steps=steps, phase=phase)

    def cat(self, site: str | Site, *, steps: int | Iterable[int] | None = None) -> Tensor:
        """Return all values of a site over calls and steps, joined along dim 0.

        A bare number (0-d) counts as one row. The last of several backwards through one call is
        taken. The rows of a jagged tensor are those of its parts, one after the other.

        Raises:
            RunError: the values do not fit together.
        """
        return self._contents().cat(site, steps=steps)

    def rows(self, site: str | Site, indices: Sequence[int] | Any) -> Tensor:
        """Return some rows of a site over all steps and calls, without reading the others.

        Args:
            site: which.
            indices: numbers of rows, in any order, as :meth:`cat` joins them; a list, an array or
                a tensor of one dim.

        Returns:
            one row per index, in their order: ``rows(site, i) == cat(site)[i]``.

        Raises:
            InputError: there are not so many rows.
            RunError: the rows differ in shape or dtype.

        Example:
            >>> import torch, torchtap as tt
            >>> with tt.watch(relu := torch.nn.ReLU()) as w:
            ...     for step in range(3):
            ...         _ = relu(torch.full((2, 1), float(step)))
            ...         w.step()
            >>> w.run.rows(".:output", [5, 0, 2]).flatten()
            tensor([2., 0., 1.])
        """
        return self._contents().site_rows(site).gather(indices)

    def num_rows(self, site: str | Site) -> int:
        """Return the number of rows of a site over all steps and calls."""
        return len(self._contents().site_rows(site))

    def dataset(self, site: str | Site, *, ids: bool = False) -> RowDataset:
        """Return the rows of a site as a ``torch.utils.data.Dataset``, for probes and autoencoders.

        Args:
            site: which.
            ids: whether an item is a row with the id of its sample, as ``w.step(ids=...)`` was
                given it, or the row alone.

        Raises:
            RunError: ids are asked for, and a step has not one for each row.

        Example:
            >>> import torch, torchtap as tt
            >>> with tt.watch(relu := torch.nn.ReLU()) as w:
            ...     _ = relu(torch.ones(4, 2))
            ...     w.step(ids=["a", "b", "c", "d"])
            >>> w.run.dataset(".:output", ids=True)[2]
            (tensor([1., 1.]), 'c')
        """
        from torchtap.runs.row_dataset import RowDataset

        chosen = self._contents().resolve(site)
        return RowDataset(self, chosen, ids=ids, reopen=self.source.reopen)

    def mean_norm(self, where: Where = "*:output") -> dict[str, float]:
        """Norm of the mean over samples, per module.

        Values are joined along dim 0 over calls and steps, averaged over dim 0, and the Euclidean
        norm of that mean is taken, all in float64. NaN and Inf go through. Where not all values
        were kept that ``tt.Stats`` measured, its running mean is taken.

        Returns:
            path -> norm. Where the selection holds several sites of one module (ports or leaves),
            the keys are the sites' text forms instead.

        Raises:
            RunError: neither the values of all steps nor a running mean of them was kept.
        """
        return self._contents().statistics.mean_norm(where)

    # ------------------------------------------------------------------ statistics

    def stats(self, site: str | Site, *, step: Step = None, phase: str = FORWARD) -> Statistics:
        """Statistics of a site over all calls of one step, or of several together.

        Measured while it ran by ``tt.Stats``; of steps in which it was not, now from the values
        that were kept, which ``notes`` says where both are there. Tables, data frames, exports and
        :meth:`sql` show the same.

        Args:
            site: which.
            step: the last one of the site by default; several for them together, of which
                ``notes`` says if there are not all (``3 of 10 steps``); ``"all"`` for all.
            phase: ``eval`` for the evaluation forwards of a model that trains; see :class:`Run`.

        Raises:
            SiteError: nothing was recorded or measured there.
        """
        return self._contents().in_phase(phase).statistics.stats(site, step=step)

    def quantile(self, site: str | Site, q: float, *, step: Step = None) -> float:
        """Return one quantile of a site, with a relative error of at most 1/33 (3.1 %).

        See :meth:`Statistics.quantile`.
        """
        return self.stats(site, step=step).quantile(q)

    # ------------------------------------------------------------------ on disk

    def refresh(self) -> bool:
        """Read what was committed to the run's folder since it was opened, or refreshed last.

        Returns:
            whether there is anything new. A run in memory, or in a file, is always up to date.
        """
        return self.source.refresh()

    def rank(self, number: int) -> Run:
        """Return the run of one rank, of a folder that several ranks wrote.

        Raises:
            RunError: this run is in no such folder, or that rank wrote nothing.
        """
        source = self.source.rank(number)
        return self if source is self.source else Run(source)

    # ------------------------------------------------------------------ over ranks

    def over_ranks(
        self, site: str | Site, name: str, *, step: int | None = None
    ) -> tuple[list[int], list[float]]:
        """Return one number of a site on each rank of a merged run: which rank is the outlier.

        Also of what cannot be merged: gradients of each rank alone, partial sums, replicas that
        differ, and steps that not all ranks have.

        Args:
            site: which.
            name: of a number, such as ``l2`` or ``update_ratio``, as in :meth:`over_steps`, but
                for those that are read off histograms.
            step: which; by default the last that all ranks have.

        Returns:
            the ranks, ascending, and the number of each; NaN where a rank has none.

        Raises:
            SiteError: no rank has such a site, or not in that step, or there is no such number.
            RunError: this is no merged run.
        """
        ranks, meta = self.source.ranks, self.meta
        if ranks is None:
            raise RunError(
                f"This run is of rank {meta.rank} alone, and of no other. Merge the runs of "
                f"all ranks first: tt.merge([...]).over_ranks({str(site)!r}, {name!r})."
            )
        known = Selection(ranks.sites, meta.modules, meta.aliases, lambda: self.source.absent)
        return ranks.over_ranks(known.resolve(site), name, step)

    # ------------------------------------------------------------------ selection

    def select(self, where: Where) -> list[Site]:
        """Return the recorded sites that fit ``where``.

        Raises:
            SiteError: nothing fits; the message names what is near.
        """
        return self._contents().select(where)

    # ------------------------------------------------------------------ shown

    def _page(self) -> Page:
        from torchtap.runs.show import show_inventory

        return show_inventory(inventory_of_run(self))


def contents_of(run: Run) -> Contents:
    """Return the contents of a run at this moment, for code outside of the public interface."""
    return run._contents()


def inventory_of_run(run: Run) -> Inventory:
    """List the contents of a run, site by site, without its values."""
    from torchtap.runs.inventory import inventory_of_contents

    return inventory_of_contents(contents_of(run))

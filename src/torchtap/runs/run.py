"""The one face of everything that was recorded, in memory or on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from torchtap.core.absence import Absence, Absences
from torchtap.core.errors import RunError, SiteError
from torchtap.core.printed_page import Page, Printed
from torchtap.core.record import FORWARD, Record
from torchtap.core.site import Site
from torchtap.runs.contents import Contents, Step, as_step
from torchtap.runs.file_name import refuse_other_kind
from torchtap.runs.meta import Meta
from torchtap.runs.records import LiveRecords, Records
from torchtap.runs.scalars import Scalars
from torchtap.runs.select import Where
from torchtap.runs.step_notes import StepNotes
from torchtap.stats.series import Series
from torchtap.stats.statistics import Statistics

if TYPE_CHECKING:
    from torch import Tensor

    from torchtap.runs.listing import Listing
    from torchtap.runs.merging.rank_numbers import RankNumbers
    from torchtap.runs.row_dataset import RowDataset
    from torchtap.runs.rows import SiteRows
    from torchtap.runs.tables.table import Table

__all__ = ["Meta", "Run", "Step", "Where"]


T = TypeVar("T")


class Growing(Protocol):
    """A folder of which runs are read."""

    def refresh(self) -> bool:
        """Read what was committed since the last time."""

    def rank(self, number: int) -> Run:
        """The run of one rank."""

    @property
    def opened(self) -> Callable[[], Run]:
        """A function that opens it again, which another process can be sent."""


class Run(Printed):
    """All that was recorded under one id: a lazy, read-only view of its records.

    A value of the forward pass that activation checkpointing computed again (phase ``recompute``)
    is kept apart: it is read with ``phase="recompute"`` and counted nowhere else. So are the values
    and gradients of other calls inside a backward (phase ``backward``), which adjoint solvers,
    reversible blocks, custom functions and hooks make, and the values of evaluation forwards of a
    model that trains (phase ``eval``).

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
        rows: Sequence[Record] | Callable[[], Records],
        meta: Meta | Callable[[], Meta],
        absent: Callable[[], Sequence[Absence]] = tuple,
        series: Callable[[], Series] = Series,
        expected: Callable[[], Sequence[Site]] = tuple,
        scalars: Scalars | Callable[[], Scalars] | None = None,
        ranks: RankNumbers | Callable[[], RankNumbers | None] | None = None,
        notes: StepNotes | Callable[[], StepNotes] | None = None,
        growing: Growing | None = None,
    ) -> None:
        self._find_scalars = _finder(Scalars() if scalars is None else scalars)
        self._find_notes = _finder(StepNotes() if notes is None else notes)
        self._find_ranks = _finder(ranks)
        self._growing = growing
        self._records = rows if callable(rows) else LiveRecords(lambda: rows).read
        self._meta = meta if callable(meta) else lambda: meta
        self._absent = absent
        self._series = series
        self._expected = expected
        self._last: Contents | None = None
        self._last_rows: tuple[Contents, Site, SiteRows] | None = None

    def _contents(self) -> Contents:
        """Return what the run holds now. Every other method reads it once, and works on that."""
        records, series = self._records(), self._series()
        if self._last is None or not self._last.is_of(records, series):
            what = (records, series, self.meta, self._absent, self._expected)
            self._last = Contents(*what, ranks=self._find_ranks())
        return self._last

    # ------------------------------------------------------------------ what there is

    @property
    def meta(self) -> Meta:
        """The metadata of the run: its model and how it was made."""
        return self._meta()

    @property
    def sites(self) -> list[Site]:
        """Sites that were recorded or measured, by module, port and leaf."""
        return list(self._contents().sites)

    @property
    def steps(self) -> list[int]:
        """Steps in which anything was recorded or measured, ascending."""
        return self._contents().steps

    @property
    def series(self) -> Series:
        """The series that ``tt.Stats`` measured, up to now."""
        return self._series()

    @property
    def absent(self) -> Absences:
        """The sites that were selected and not seen, with reasons: prints as a table."""
        return Absences(self._absent())

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return self._contents().nbytes

    def __len__(self) -> int:
        """Return the number of kept values, in all phases; 0 for a run of statistics alone."""
        return len(self._records())

    def __bool__(self) -> bool:
        """Return whether the run holds anything: values, statistics, or logged numbers."""
        series = self._series()
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
        """One value; what is not given is the last there is.

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
        """The whole record behind :meth:`get`."""
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
        """All values of a site over calls and steps, joined along dim 0.

        A bare number (0-d) counts as one row. Of several backwards through one call the last is
        taken. The rows of a jagged tensor are those of its parts, one after the other.

        Raises:
            RunError: the values do not fit together.
        """
        return self._contents().cat(site, steps=steps)

    def rows(self, site: str | Site, indices: Sequence[int] | Any) -> Tensor:
        """Some rows of a site over all steps and calls, without reading the others.

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
        return self._site_rows(site).gather(indices)

    def num_rows(self, site: str | Site) -> int:
        """Return the number of rows of a site over all steps and calls."""
        return len(self._site_rows(site))

    def dataset(self, site: str | Site, *, ids: bool = False) -> RowDataset:
        """The rows of a site as a ``torch.utils.data.Dataset``, for probes and autoencoders.

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

        opened = None if self._growing is None else self._growing.opened
        return RowDataset(self, self._contents().resolve(site), ids=ids, opened=opened)

    def _site_rows(self, site: str | Site) -> SiteRows:
        held = self._contents()
        place = held.resolve(site)
        if self._last_rows is None or self._last_rows[:2] != (held, place):
            self._last_rows = held, place, held.site_rows(place)
        return self._last_rows[2]

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
        return self._contents().mean_norm(where)

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
        return self._contents().in_phase(phase).stats(site, step=step)

    def _steps_of(self, site: Site) -> list[int]:
        """Steps of which there are statistics of a site."""
        return self._contents().steps_of(site)

    def quantile(self, site: str | Site, q: float, *, step: Step = None) -> float:
        """One quantile of a site, right to 1/33 (3.1 %); see :meth:`Statistics.quantile`."""
        return self.stats(site, step=step).quantile(q)

    def over_steps(
        self, site: str | Site, name: str, *, phase: str = FORWARD
    ) -> tuple[list[int], list[Any]]:
        """One statistic of a site over the steps.

        Args:
            site: which.
            name: of a number, such as ``l2``, ``p99`` or ``update_ratio``: as the columns of
                :meth:`table` and ``to_frame()``, which docs/statistics.md lists. Or of a further
                statistic (``cosine``), or of a part of its result (``units.zeros``, one
                ``float64[slices]`` per step).
            phase: as in :meth:`stats`.

        Returns:
            the steps, ascending, and its value in each. Steps in which the site was not measured
            are left out (an ``update`` that the optimizer skipped; ``absent`` says why). What
            is kept of the last steps only (quantiles, shares and further statistics; see
            ``tt.Stats(keep=...)``) is that of those steps.

        Raises:
            SiteError: there is no such statistic.
            RunError: it was asked for, and is not available in any step.
        """
        return self._contents().in_phase(phase).over_steps(site, name)

    @property
    def scalar_names(self) -> list[str]:
        """Names of the numbers that ``w.log`` kept, the first that was logged first."""
        return self._find_scalars().names

    def scalars(self, name: str) -> tuple[list[int], list[float]]:
        """Numbers that ``w.log`` kept: the steps, ascending, and the number of each.

        Raises:
            SiteError: nothing was logged under that name.
        """
        return self._find_scalars().of(name)

    # ------------------------------------------------------------------ steps

    @property
    def times(self) -> tuple[list[int], list[float]]:
        """The steps that were closed, ascending, and when, in seconds since 1970, UTC."""
        return self._find_notes().times

    def ids(self, step: int) -> list[int | str]:
        """Ids of the samples of a step, as ``w.step(ids=...)`` was given them.

        Raises:
            SiteError: the step was not closed.
        """
        return self._find_notes().ids(step)

    def labels(self, step: int) -> dict[str, Any]:
        """Labels of a step, as ``w.step(split="train")`` was given them.

        Raises:
            SiteError: the step was not closed.
        """
        return self._find_notes().labels(step)

    # ------------------------------------------------------------------ on disk

    def refresh(self) -> bool:
        """Read what was committed to the run's folder since it was opened, or refreshed last.

        Returns:
            whether there is anything new. A run in memory, or in a file, is always up to date.
        """
        return self._growing is not None and self._growing.refresh()

    def rank(self, number: int) -> Run:
        """The run of one rank, of a folder that several ranks wrote.

        Raises:
            RunError: this run is in no such folder, or that rank wrote nothing.
        """
        if self._growing is None:
            raise RunError(
                "This run is in no folder of several ranks. Open that: tt.open(FOLDER).rank(0)."
            )
        return self._growing.rank(number)

    # ------------------------------------------------------------------ over ranks

    def over_ranks(
        self, site: str | Site, name: str, *, step: int | None = None
    ) -> tuple[list[int], list[float]]:
        """One number of a site on each rank of a merged run: which rank is the outlier.

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
        return self._contents().over_ranks(site, name, step)

    # ------------------------------------------------------------------ tables and files

    def table(
        self,
        where: Where = None,
        *,
        steps: Step = None,
        together: bool = False,
        histogram: bool = False,
        columns: Sequence[str] | None = None,
        sort: str | None = None,
        phase: str = FORWARD,
    ) -> Table:
        """One row per site: calls, shape, dtype, bytes, and statistics of the values.

        The statistics are those of :meth:`stats`: as they were measured while it ran, else of the
        values that were kept, each of which is read once. ``print`` shows it, ``to_frame`` hands it
        on.

        Args:
            where: as in :meth:`records`.
            steps: of these the last one of each site; ``None`` for the last of all. ``"all"``
                for all of them together, merged as if their values were one.
            together: merge ``steps`` instead of taking the last one of them.
            histogram: also count histograms of values that were kept.
            columns: what is shown of each site: numbers as in :meth:`over_steps`, further
                statistics and parts of them (``cosine``, ``units.mean``), and ``type shape dtype
                calls steps step NaN/Inf histogram``. docs/statistics.md lists them.
            sort: by which column, largest first; ``"-l2"`` for smallest first. NaN comes last.
            phase: as in :meth:`stats`.

        Raises:
            SiteError: nothing was recorded or measured that fits ``where``.
            InputError: there is no such column, or it has no order.

        Example:
            >>> import torch, torchtap as tt
            >>> model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh())
            >>> with tt.watch(model, "?", to=tt.Stats()) as w:
            ...     _ = model(torch.tensor([-3.0, 4.0]))
            >>> print(w.run.table(columns=["absmax", "l2"], sort="l2"))
            2 sites, all float32, 16 B, step 0
            <BLANKLINE>
            site      absmax      l2
            0:output       4       4
            1:output  0.9993  0.9993
        """
        from torchtap.runs.tables.table import measure_table

        return measure_table(
            self._contents().in_phase(phase),
            where,
            as_step(steps),
            together=together,
            histogram=histogram,
            columns=columns,
            sort=sort,
        )

    def to_frame(self, where: Where = None) -> Any:
        """The table as a pandas (or else polars) data frame; needs the extra ``frame``."""
        return self.table(where).to_frame()

    def sql(self, query: str) -> Any:
        """Ask duckdb about the statistics; needs the extra ``sql``.

        Args:
            query: over the table ``statistics``, which has a row for each site and step: ``site
                step dtype`` and the numbers ``numel num_finite mean std rms l1 l2 min max absmax
                zeros nan posinf neginf subnormal``.

        Returns:
            a ``duckdb.DuckDBPyRelation``: print it, or call ``fetchall()`` or ``df()``.

        Raises:
            InputError: ``query`` is no text, or an empty one.
            MissingExtraError: duckdb is not installed.

        Example:
            >>> import torch, torchtap as tt
            >>> with tt.watch(relu := torch.nn.ReLU(), to=tt.Stats()) as w:
            ...     for step in range(3):
            ...         _ = relu(torch.full((2,), float(step)))
            ...         w.step()
            >>> w.run.sql("select step, l1 from statistics where l1 > 1 order by step").fetchall()
            [(1, 2.0), (2, 4.0)]
        """
        from torchtap.runs.tables.statistics_rows import query_statistics

        return query_statistics(self, query)

    def save(self, path: str | Path) -> Path:
        """Write the run into one safetensors file, which ``tt.open`` reads without the model.

        All of it is written: values, statistics, numbers that were logged, and times, sample ids
        and labels of the steps.

        Written beside the target and renamed, so a crash leaves no half file. A directory that
        is not there is made, and a file that is there replaced.

        Raises:
            InputError: the name ends as files of another kind do (``.pt``, ``.npz``).
            RunError: there is a directory of that name, or a tensor has no values.
            OSError: it cannot be written there.
        """
        from torchtap.runs.single_file.file import save_run

        refuse_other_kind(Path(path))
        return save_run(self._contents(), self._find_scalars(), Path(path), self._find_notes())

    # ------------------------------------------------------------------ selection

    def select(self, where: Where) -> list[Site]:
        """The recorded sites that fit ``where``.

        Raises:
            SiteError: nothing fits; the message names what is near.
        """
        return self._contents().select(where)

    # ------------------------------------------------------------------ shown

    def _page(self) -> Page:
        from torchtap.runs.show import show_listing

        return show_listing(list_run(self))


def _finder(found: T | Callable[[], T]) -> Callable[[], T]:
    """A function that gives it, which it may be already."""
    return found if callable(found) else lambda: found


def list_run(run: Run) -> Listing:
    """List the contents of a run, site by site, without its values."""
    from torchtap.runs.list_runs import list_contents

    return list_contents(run._contents())

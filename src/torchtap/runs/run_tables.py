"""The part of a run that hands it on: as a table, a data frame, an answer in SQL, a file."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torchtap.core.record import FORWARD
from torchtap.runs.contents import Contents
from torchtap.runs.file_name import refuse_other_kind
from torchtap.runs.run_statistics import Step, as_step
from torchtap.runs.select import Where

if TYPE_CHECKING:
    from torchtap.runs.tables.table import Table


class RunTables:
    """Tables and files of a run."""

    @abstractmethod
    def _contents(self) -> Contents:
        """Return what the run holds now."""

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
        """Return one row per site: calls, shape, dtype, bytes, and statistics of the values.

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
                calls steps step NaN/Inf histogram``. docs/guides/statistics.md lists them.
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

    def to_frame(
        self,
        where: Where = None,
        *,
        steps: Step | Literal["each"] = None,
        library: Literal["pandas", "polars"] | None = None,
    ) -> Any:
        """Return the table as a data frame of pandas or polars; needs the extra ``frame``.

        Args:
            where: as in :meth:`records`.
            steps: as in :meth:`table`, so without it the last step of each site; ``"each"`` for one
                row per site and step, in the order of the steps.
            library: which of the two; by default pandas, and polars where it alone is installed.

        Returns:
            one row per site, or per site and step: what it is, and every number of
            docs/guides/statistics.md. Both hold the same values; in polars a ``shape`` is a list of
            whole numbers.

        Raises:
            SiteError: nothing was recorded or measured that fits ``where``.
            InputError: there is no such library.
            MissingExtraError: it is not installed.

        Example:
            >>> import torch, torchtap as tt
            >>> with tt.watch(relu := torch.nn.ReLU(), to=tt.Stats()) as w:
            ...     for largest in (3.0, 5.0):
            ...         _ = relu(torch.tensor([-1.0, largest]))
            ...         w.step()
            >>> w.run.to_frame(library="polars")["absmax"].to_list()
            [5.0]
            >>> w.run.to_frame(steps="each")["absmax"].tolist()
            [3.0, 5.0]
        """
        if steps != "each":
            return self.table(where, steps=steps).to_frame(library=library)
        from torchtap.runs.tables.data_frames import make_frame

        tables = (self.table(where, steps=step) for step in self._contents().steps)
        return make_frame([row for table in tables for row in table.as_dicts()], library)

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

        return query_statistics(self._contents(), query)

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
        from torchtap.runs.single_file.write_run import save_run

        refuse_other_kind(Path(path))
        return save_run(self._contents(), Path(path))

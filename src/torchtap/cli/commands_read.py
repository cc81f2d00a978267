"""The commands that read a saved run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchtap.cli.options import all_option, json_option
from torchtap.cli.output import complain_of_absent, print_json, print_page, print_written
from torchtap.cli.parsing import (
    existing_run,
    open_saved,
    order_of,
    rank_paths,
    refuse_target,
    refuse_unknown_steps,
    slices_of,
    step_of,
    writing,
)
from torchtap.core.errors import InputError
from torchtap.core.printed_page import BLANK, Page, Part
from torchtap.core.progress import Progress
from torchtap.core.text import WIDTH

if TYPE_CHECKING:
    from torchtap.runs.run import Run, Step
    from torchtap.runs.tables.table import Table


@click.command()
@click.argument("path", metavar="RUN")
@json_option
@all_option
def ls(path: str, as_json: bool, every: bool) -> None:
    """List the sites of a RUN, from its header or index alone."""
    from torchtap.runs.inventory import inventory_of_file
    from torchtap.runs.show import show_inventory

    inventory = inventory_of_file(existing_run(path))
    if as_json:
        print_json(inventory.as_dict())
        return
    print_page(show_inventory(inventory, limit=None if every else 40))


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="RANK_FILES...")
@click.option(
    "--to",
    required=True,
    metavar="RUN",
    help="Where the merged run goes: a file that ends in .safetensors.",
)
@click.option("--allow-missing", is_flag=True, help="Merge without the ranks that are not given.")
@click.option("--stages", is_flag=True, help="Runs of other modules are stages of one pipeline.")
@json_option
@all_option
def merge(
    files: tuple[str, ...], to: str, allow_missing: bool, stages: bool, as_json: bool, every: bool
) -> int:
    """Merge the runs of all ranks of one training into one run.

    RANK_FILES are the files of the ranks, or a folder of them. Exit code 1 says that replicas
    differ, although they are equal in a sound training. The list of absent sites then begins with
    the site, the step and the ranks.
    """
    from torchtap.runs.merging.merge import merge_all
    from torchtap.runs.run import inventory_of_run
    from torchtap.runs.show import show_inventory

    refuse_target(to, (".safetensors",), "--to")
    if Path(to).resolve() in {Path(file).resolve() for file in files}:
        raise InputError(f"--to is {to}, which is the run of a rank; give another file.")
    with Progress("merging the ranks"):
        given = [existing_run(file) for file in files]
        paths = [path for one in given for path in rank_paths(one)]
        merged = merge_all(paths, allow_missing=allow_missing, stages=stages)
        with writing(to):
            merged.run.save(to)
    inventory = inventory_of_run(merged.run)
    if as_json:
        print_json(inventory.as_dict())
    else:
        print_page(show_inventory(inventory, limit=None if every else 40))
        print_written([to])
    return 1 if merged.differing else 0


@click.command()
@click.argument("path", metavar="RUN")
@click.argument("where", nargs=-1)
@click.option("--modules", is_flag=True, help="One line per module: output beside gradient.")
@click.option("--step", "steps", type=int, multiple=True, help="Only this step (repeatable).")
@json_option
@all_option
def show(
    path: str,
    where: tuple[str, ...],
    modules: bool,
    steps: tuple[int, ...],
    as_json: bool,
    every: bool,
) -> None:
    """Print the values of a saved RUN: shapes and a few numbers.

    The table is of the last step at each site. `torchtap stats` has a choice of columns, sorting
    and all steps together.
    """
    with Progress("reading the run"):
        opened = open_saved(path)
        refuse_unknown_steps(path, opened, steps)
        table = opened.table(list(where) or None, steps=steps or None)
    limit = None if every else 40
    if modules:
        from torchtap.runs.show import show_module_rows
        from torchtap.runs.tables.module_table import module_rows

        rows = module_rows(table)
        page = show_module_rows(rows, limit=limit)
        values = [row.as_dict() for row in rows]
    else:
        page = _page_of(table, every=every)
        values = table.as_dicts()
    if as_json:
        print_json(values)
    else:
        print_page(page, width=None if every else WIDTH)
    complain_of_absent(path, opened)


@click.command()
@click.argument("path", metavar="RUN")
@click.argument("where", nargs=-1)
@click.option("--sort", metavar="KEY", help="Largest first by this column, -KEY for smallest.")
@click.option("--columns", metavar="A,B,...", help="Which; --columns ? lists them.")
@click.option(
    "--step",
    metavar="N, A-B or all",
    help="Which step; A to B, or all of them, together. The last of each site by default.",
)
@click.option(
    "--slices",
    metavar="NAME",
    help="One line per channel, unit or token: what tt.stats.along(..., name=NAME) found.",
)
@json_option
@all_option
def stats(
    path: str,
    where: tuple[str, ...],
    sort: str | None,
    columns: str | None,
    step: str | None,
    slices: str | None,
    as_json: bool,
    every: bool,
) -> None:
    """Print statistics of a saved RUN, with a choice of columns.

    The numbers are those that the training measured. Values that were kept are measured now.
    The table is that of `torchtap show` with columns to choose and to sort by, quantiles and
    histograms. --columns '?' lists the columns, with the further statistics of RUN.
    """
    if columns == "?":
        click.echo("\n".join(_listed_columns(path)))
        return
    names = None if columns is None else columns.split(",")
    with Progress("measuring the run"):
        opened = open_saved(path)
        steps = None if step is None else step_of(path, opened, step)
        if slices is None:
            values, page = _per_site(opened, where, names, sort, steps, every=every)
        else:
            values, page = _per_slice(opened, where, slices, names, sort, steps, every=every)
    if as_json:
        print_json(values)
    else:
        print_page(page, width=None if every else WIDTH)
    complain_of_absent(path, opened)


def _listed_columns(path: str) -> list[str]:
    """Return every column with what it is; of a run that is there also its further statistics."""
    from torchtap.runs.tables.columns import ROW_COLUMNS
    from torchtap.stats.named_numbers import NAMES

    said = {**{name: one.meaning for name, one in NAMES.items()}, **ROW_COLUMNS}
    if Path(path).exists():
        further = [statistic.name for statistic in open_saved(path).series.statistics]
        said |= dict.fromkeys(further, "a further statistic of this run")
    room = max(map(len, said))
    return [f"{name:<{room}}  {what}" for name, what in said.items()]


def _per_site(
    opened: Run,
    where: Sequence[str],
    names: Sequence[str] | None,
    sort: str | None,
    steps: Step,
    *,
    every: bool,
) -> tuple[list[dict[str, Any]], Page]:
    from torchtap.runs.tables.columns import DEFAULT_COLUMNS

    table = opened.table(
        list(where) or None,
        steps=steps,
        together=True,
        histogram=True,
        columns=DEFAULT_COLUMNS if names is None else names,
        sort=sort,
    )
    return table.as_dicts(), _page_of(table, every=every)


def _per_slice(
    opened: Run,
    where: Sequence[str],
    slices: str,
    names: Sequence[str] | None,
    sort: str | None,
    steps: Step,
    *,
    every: bool,
) -> tuple[list[dict[str, Any]], Page]:
    from torchtap.stats.catalogue.show_slices import SLICE_COLUMNS, show_slices

    names = SLICE_COLUMNS if names is None else names
    values: list[dict[str, Any]] = []
    parts: list[Part] = []
    for site in opened.select(list(where) or None):
        found = slices_of(opened.stats(site, step=steps), slices, str(site))
        order = order_of(found, sort, names)
        numbers = found.as_dict()
        values += [
            {"site": str(site), "slice": n, **{key: of[n] for key, of in numbers.items()}}
            for n in order
        ]
        page = show_slices(
            f"{site}: {found!r}",
            numbers,
            names=names,
            order=order,
            limit=None if every else 40,
            way_out="--all",
        )
        parts += [*([BLANK] if parts else []), *page.parts]
    return values, Page(*parts)


def _page_of(table: Table, *, every: bool) -> Page:
    from torchtap.runs.tables.table import page_of_table

    return page_of_table(table, limit=None if every else 40, way_out="--all")

"""The commands that read a saved run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchtap.cli.options import all_option, json_option
from torchtap.cli.output import print_json, wants_color, working
from torchtap.cli.parsing import open_saved, order_of, refuse_unknown_steps, slices_of, step_of

if TYPE_CHECKING:
    from torchtap.runs.run import Run, Step
    from torchtap.runs.table import Table


@click.command()
@click.argument("path", metavar="RUN")
@json_option
@all_option
def ls(path: str, as_json: bool, every: bool) -> None:
    """List the sites of a saved RUN, from the file's header alone."""
    from torchtap.cli.model import existing_file
    from torchtap.runs.listing import list_file
    from torchtap.runs.show import show_listing

    listing = list_file(existing_file(path))
    if as_json:
        print_json(listing.as_dict())
        return
    click.echo(show_listing(listing, limit=None if every else 40, color=wants_color()))


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
    """What came at WHERE in a saved RUN: shapes and a few numbers, of the last step there.

    For a choice of numbers, sorting and all steps together see `torchtap stats`.
    """
    with working("reading the run"):
        opened = open_saved(path)
        refuse_unknown_steps(path, opened, steps)
        table = opened.table(list(where) or None, steps=steps or None)
    limit = None if every else 40
    if modules:
        from torchtap.runs.modules import pivot
        from torchtap.runs.show import show_module_rows

        rows = pivot(table)
        text = show_module_rows(rows, limit=limit, color=wants_color())
        values = [row.as_dict() for row in rows]
    else:
        text = _text_of(table, every=every)
        values = table.as_dicts()
    if as_json:
        print_json(values)
    else:
        click.echo(text)


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
    """Statistics of a saved RUN at WHERE: what was measured, or the kept values measured now.

    The table of `torchtap show` with columns to choose and to sort by, quantiles and histograms.
    Columns to choose from and to sort by are listed with --columns '?', for a RUN that is there
    together with its further statistics.
    """
    if columns == "?":
        click.echo("\n".join(_listed_columns(path)))
        return
    names = None if columns is None else columns.split(",")
    with working("measuring the run"):
        opened = open_saved(path)
        steps = None if step is None else step_of(path, opened, step)
        if slices is None:
            values, text = _per_site(opened, where, names, sort, steps, every=every)
        else:
            values, text = _per_slice(opened, where, slices, names, sort, steps, every=every)
    if as_json:
        print_json(values)
    else:
        click.echo(text)


def _listed_columns(path: str) -> list[str]:
    """Every column with what it is; of a run that is there also its further statistics."""
    from torchtap.runs.table import ROW_COLUMNS
    from torchtap.stats.names import NAMES

    said = {**{name: one.meaning for name, one in NAMES.items()}, **ROW_COLUMNS}
    if Path(path).is_file():
        further = [one.name for one in open_saved(path).series.statistics]
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
) -> tuple[list[dict[str, Any]], str]:
    from torchtap.runs.columns import DEFAULT_COLUMNS

    table = opened.table(
        list(where) or None,
        steps=steps,
        together=True,
        histogram=True,
        columns=DEFAULT_COLUMNS if names is None else names,
        sort=sort,
    )
    return table.as_dicts(), _text_of(table, every=every)


def _per_slice(
    opened: Run,
    where: Sequence[str],
    slices: str,
    names: Sequence[str] | None,
    sort: str | None,
    steps: Step,
    *,
    every: bool,
) -> tuple[list[dict[str, Any]], str]:
    from torchtap.runs.show_table import SLICE_COLUMNS, show_slice_table

    names = SLICE_COLUMNS if names is None else names
    values, texts = [], []
    for site in opened.select(list(where) or None):
        found = slices_of(opened.stats(site, step=steps), slices, str(site))
        order = order_of(found, sort, names)
        numbers = found.as_dict()
        values += [
            {"site": str(site), "slice": n, **{key: of[n] for key, of in numbers.items()}}
            for n in order
        ]
        texts.append(
            show_slice_table(
                str(site),
                found,
                names=names,
                order=order,
                limit=None if every else 40,
                color=wants_color(),
                way_out="--all",
            )
        )
    return values, "\n\n".join(texts)


def _text_of(table: Table, *, every: bool) -> str:
    from torchtap.runs.show_table import show_table

    limit, width = (None, None) if every else (40, 100)
    return show_table(table, limit=limit, width=width, color=wants_color(), way_out="--all")

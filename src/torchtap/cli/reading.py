"""The commands that read a saved run."""

from __future__ import annotations

import click

from torchtap.cli.options import all_option, json_option
from torchtap.cli.saying import print_json, wants_color, working
from torchtap.cli.words import known_columns, open_saved, refuse_unknown_steps, step_of


@click.command()
@click.argument("path", metavar="RUN")
@json_option
@all_option
def ls(path: str, as_json: bool, every: bool) -> None:
    """List the sites of a saved RUN, from the file's header alone."""
    from torchtap.load import existing_file
    from torchtap.store.listing import list_file
    from torchtap.view.text import show_listing

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
        from torchtap.store.modules import pivot
        from torchtap.view.text import show_module_rows

        rows = pivot(table)
        text = show_module_rows(rows, limit=limit, color=wants_color())
        values = [row.as_dict() for row in rows]
    else:
        from torchtap.view.text import show_table

        text = show_table(table, limit=limit, color=wants_color())
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
    metavar="N or all",
    help="Which step, or all of them together; the last of each site by default.",
)
@json_option
@all_option
def stats(
    path: str,
    where: tuple[str, ...],
    sort: str | None,
    columns: str | None,
    step: str | None,
    as_json: bool,
    every: bool,
) -> None:
    """Statistics of a saved RUN at WHERE: what was measured, or the kept values measured now.

    The table of `torchtap show` with columns to choose and to sort by, quantiles and histograms.
    Columns to choose from and to sort by are listed with --columns '?'.
    """
    from torchtap.view.columns import COLUMNS, DEFAULT_COLUMNS

    if columns == "?":
        click.echo("\n".join(COLUMNS))
        return
    names = list(DEFAULT_COLUMNS) if columns is None else known_columns(columns.split(","), COLUMNS)
    sortable = [name for name, column in COLUMNS.items() if column.key is not None]
    key = None if sort is None else COLUMNS[known_columns([sort.lstrip("-")], sortable)[0]].key
    if sort is not None and sort.lstrip("-") not in names:
        names.insert(0, sort.lstrip("-"))
    with working("measuring the run"):
        opened = open_saved(path)
        chosen = None if step is None else step_of(path, opened, step)
        table = opened.table(list(where) or None, steps=chosen, histogram=True)
    if key is not None and sort is not None:
        table = table.sorted(key, largest_first=not sort.startswith("-"))
    if as_json:
        keys = {name: column.key for name, column in COLUMNS.items() if column.key is not None}
        numbers = [{name: key(row.stats) for name, key in keys.items()} for row in table]
        print_json([{**a, **b} for a, b in zip(table.as_dicts(), numbers, strict=True)])
        return
    from torchtap.view.statistics import show_stats_table

    limit = None if every else 40
    click.echo(show_stats_table(table, names, limit=limit, color=wants_color()))

"""The commands that show a run to a person: as a page."""

from __future__ import annotations

import click

from torchtap.cli.options import json_option
from torchtap.cli.output import print_json, print_written
from torchtap.core.errors import InputError
from torchtap.core.progress import Progress
from torchtap.core.text import size


@click.command()
@click.argument("path", metavar="RUN")
@click.argument("other", metavar="[OTHER]", required=False)
@click.option("-o", "--out", metavar="FILE", help="The page; beside RUN by default.")
@click.option("--max-mb", type=float, metavar="MB", help="Lower the resolution to stay below.")
@click.option("--title", default="", help="Of the page; the model's class by default.")
@json_option
def report(
    path: str, other: str | None, out: str | None, max_mb: float | None, title: str, as_json: bool
) -> None:
    """Write a RUN, or two side by side, as one HTML page that opens anywhere.

    The page needs no network: series over the steps, histograms, feature maps, the graph, and what
    stands out, with the data inside.
    """
    from torchtap.cli.parsing import open_saved, refuse_target, writing

    target = out or f"{path.rstrip('/').removesuffix('.safetensors')}.html"
    refuse_target(target, (".html", ".htm"))
    if max_mb is not None and not max_mb > 0:
        raise InputError(f"--max-mb is {max_mb:g}; expected a number above 0.")
    with Progress("writing the page"):
        from torchtap.show.report import report as write_report

        runs = [open_saved(one) for one in (path, other) if one is not None]
        second = runs[1] if len(runs) > 1 else None
        with writing(target):
            page = write_report(runs[0], target, other=second, max_mb=max_mb, title=title)
    nbytes = page.stat().st_size
    if as_json:
        print_json({"file": str(page), "nbytes": nbytes})
    else:
        print_written([f"{page} ({size(nbytes)})"])

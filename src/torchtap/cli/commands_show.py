"""The commands that show a run: as a page, or as it is written."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from torchtap.cli.options import json_option
from torchtap.cli.output import complain, print_json, print_written
from torchtap.core.errors import InputError, SiteError
from torchtap.core.progress import Progress
from torchtap.core.text import WIDTH, size


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
    """Write one RUN, or two side by side, as a single HTML page.

    The page needs no network, since the data are in it: series over the steps, histograms, feature
    maps, the graph, and findings.
    """
    from torchtap.cli.parsing import open_saved, refuse_target, writing

    target = out or f"{path.rstrip('/').removesuffix('.safetensors')}.html"
    refuse_target(target, (".html", ".htm"))
    if max_mb is not None and not max_mb > 0:
        raise InputError(f"--max-mb is {max_mb:g}; expected a number above 0.")
    with Progress("writing the page"):
        from torchtap.show.report_file import report as write_report

        runs = [open_saved(one) for one in (path, other) if one is not None]
        second = runs[1] if len(runs) > 1 else None
        with writing(target):
            page = write_report(runs[0], target, other=second, max_mb=max_mb, title=title)
    nbytes = page.stat().st_size
    if as_json:
        print_json({"file": str(page), "nbytes": nbytes})
    else:
        print_written([f"{page} ({size(nbytes)})"])


@click.command()
@click.argument("path", metavar="RUN")
@click.option("--once", "is_once", is_flag=True, help="Print one frame and end.")
@click.option("--where", multiple=True, metavar="WHERE", help="Only these sites (repeatable).")
@click.option("--rows", type=click.IntRange(1), metavar="N", help="Sites at most; 20 in print.")
@click.option("--wait", is_flag=True, help="Wait for a RUN that is not there yet.")
def top(path: str, is_once: bool, where: tuple[str, ...], rows: int | None, wait: bool) -> int:
    """Follow a RUN while a training writes it, worst sites first.

    RUN is the folder of tt.Disk, of one rank or of several, or a file. Sites with NaN or Inf come
    first, in the order in which they broke. Then come sites that differ from their own past, and
    sites that differ from their neighbours. Keys: / filters by a pattern, s sorts, f shows the last
    frame in which all was finite, arrows scroll, q quits. If stdout is no terminal, frames are
    printed until the run is over.

    Exit code 1 says that something is not finite.
    """
    from torchtap.cli.parsing import existing_run
    from torchtap.core.site import Pattern
    from torchtap.show.live.controls import Controls
    from torchtap.show.live.screen import Shown
    from torchtap.show.live.top import interactive, is_terminal, once, open_view, printed

    for one in where:
        try:
            Pattern.parse(one)
        except SiteError as error:
            raise InputError(f"--where {one!r}: {error}") from error
    if Path(path).exists():
        existing_run(path)  # Reading a pipe would wait for a writer.
    view = open_view(Path(path), wait=wait, say=complain)
    shown = Shown(20 if rows is None else rows, where=where)
    if is_once:
        frame = once(view, shown, click.echo, WIDTH)
    elif is_terminal():
        try:
            frame = interactive(view, Controls(where=where), rows)
        except KeyboardInterrupt:
            frame = view.frame()
    else:
        frame = printed(view, shown, click.echo)
    return 1 if frame.is_bad else 0


@click.command()
@click.argument("path", metavar="RUN_OR_FOLDER")
@click.option("--port", type=click.IntRange(0, 65535), default=8765, show_default=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="An address of this machine.")
def serve(path: str, port: int, host: str) -> None:
    """Serve a live page of a RUN, or of all runs in a FOLDER.

    The command prints the address to open, with a token that each request must have. It writes
    nothing, and no other machine reaches it unless --host says so. Ctrl-C ends it.
    """
    from torchtap.cli.parsing import existing_run
    from torchtap.show.live.serve import make_server

    if Path(path).exists():
        existing_run(path)  # Reading a pipe would wait for a writer.
    try:
        server = make_server(Path(path), host=host, port=port)
    except FileNotFoundError as error:
        raise InputError(
            f"{path} is not there. Give the folder of tt.Disk, a file of run.save, or a folder "
            f"with several of them."
        ) from error
    try:  # From before the address is said: its reader may interrupt at once.
        click.echo(server.address)
        sys.stdout.flush()
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        complain("ended")
    finally:
        server.server_close()

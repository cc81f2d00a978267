"""The commands for runs in folders."""

from __future__ import annotations

import click

from torchtap.cli.options import json_option
from torchtap.cli.output import print_json, print_page
from torchtap.core.progress import Progress


@click.command()
@click.argument("path", metavar="RUN")
@json_option
def doctor(path: str, as_json: bool) -> int:
    """Compare every checksum of a RUN in a folder, and say what is whole.

    Exit code 1 says that something is not: what was committed is damaged, missing, or could not be
    written. A run whose process was killed is whole if all that it committed is there.
    """
    from torchtap.cli.parsing import existing_folder
    from torchtap.runs.store.doctor import examine

    with Progress("comparing checksums"):
        found = examine(existing_folder(path))
    if as_json:
        print_json(found.as_dict())
    else:
        print_page(found._page())
    return 0 if found.is_whole else 1

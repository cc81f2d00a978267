"""The command that runs a saved call of a module again."""

from __future__ import annotations

import click

from torchtap.cli.options import json_option
from torchtap.cli.output import print_json, print_page
from torchtap.core.progress import Progress


@click.command()
@click.argument("case", metavar="CASE")
@json_option
def replay(case: str, as_json: bool) -> int:
    """Run a saved call of a module again, and compare to the bit.

    CASE is a folder of call.save(), or a script of call.export(). The module's class is imported,
    from the current folder too. Exit code 1 says that something differs.
    """
    with Progress("replaying"):
        from torchtap.cli.model import importable_here
        from torchtap.diagnosis.calls.replay import replayed

        with importable_here():
            found = replayed(case)
    if as_json:
        print_json(found.to_dict())
    else:
        print_page(found)
    return 0 if found else 1

"""The command that says what is wrong with a training."""

from __future__ import annotations

import click

from torchtap.cli.options import json_option
from torchtap.cli.output import print_json, print_page
from torchtap.core.progress import Progress


@click.command()
@click.argument("path", metavar="RUN")
@click.option(
    "--since", type=click.IntRange(min=0), metavar="STEP", help="Look at steps from this one on."
)
@json_option
def diagnose(path: str, since: int | None, as_json: bool) -> int:
    """Say what is wrong with the training of a saved RUN, with figures and what to try.

    Rules see most in a run of:

    \b
    torchtap run --where '*:*,param,param_grad,update' --to RUN train.py

    Exit code 1 says that there is an alarm.
    """
    with Progress("looking"):
        from torchtap.cli.parsing import open_saved
        from torchtap.runs.rules.diagnose import diagnose as diagnose_run

        found = diagnose_run(open_saved(path), since=since)
    if as_json:
        print_json(found.as_dict())
    else:
        print_page(found)
    return 1 if found.alarms else 0

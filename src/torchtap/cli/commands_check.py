"""The command that checks the installation."""

from __future__ import annotations

import click

from torchtap.cli.options import json_option
from torchtap.cli.output import print_json, print_page
from torchtap.core.progress import Progress


@click.command()
@click.option("--no-compiler", is_flag=True, help="Leave out the compiled model.")
@json_option
def selfcheck(no_compiler: bool, as_json: bool) -> int:
    """Show that torchtap is right with the PyTorch, Python and machine that are here.

    Runs its laws over a dozen small models and tries each private name of PyTorch, in some seconds.
    A report of a bug should hold what it prints. Exit code 1 says that something does not hold.
    """
    with Progress("checking"):
        from torchtap.studies.selfcheck import selfcheck as check

        found = check(compiler=not no_compiler)
    if as_json:
        print_json(found.to_dict())
    else:
        print_page(found)
    return 0 if found else 1

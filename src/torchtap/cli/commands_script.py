"""The command that runs a training script."""

from __future__ import annotations

import os
from pathlib import Path

import click

from torchtap.cli.parsing import refuse_target
from torchtap.cli.script.as_main import readable_script
from torchtap.cli.script.launch import Launch
from torchtap.core.site import Pattern

_WHERE = "*:output,grad_output,param,param_grad,update"


@click.command(
    # What stands behind the script is the script's, also what looks like an option of ours.
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "--where", multiple=True, metavar="WHERE", help=f"What to watch.  [default: {_WHERE}]"
)
@click.option(
    "--every",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Record every so many steps.",
)
@click.option(
    "--to",
    default="run.safetensors",
    show_default=True,
    metavar="RUN",
    help="The file. Of several models: RUN with a name before its ending, of ranks: with .rank0.",
)
@click.option(
    "--step-every",
    type=click.IntRange(min=1),
    metavar="N",
    help="A step is N backwards. By default it ends with the optimizers' steps, and without "
    "optimizers after each backward.",
)
@click.option(
    "--explain",
    is_flag=True,
    help="Say below an error of PyTorch at which module and line it came, and what to do.",
)
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(
    where: tuple[str, ...],
    every: int,
    to: str,
    step_every: int | None,
    explain: bool,
    script: str,
    args: tuple[str, ...],
) -> Launch:
    """Run the training SCRIPT as python does, and save statistics of what it trains.

    The script is not changed, nor is what it prints; its exit code is kept. Watched are the models
    that its optimizers train, of this process. The file is written after the first step, then at
    least every 30 seconds unless that would take more than 2 % of the time, and at the end, also
    after an exception, Ctrl-C or SIGTERM. One line on stderr says what was recorded.

    Under torchrun, each rank writes a file: torchrun --nproc-per-node 2 -m torchtap run SCRIPT ARGS
    """
    refuse_target(to, (".safetensors",), option="--to")
    patterns = where or (_WHERE,)
    for pattern in patterns:
        Pattern.parse(pattern)
    target = Path(os.path.abspath(to))
    return Launch(readable_script(script), args, patterns, every, step_every, target, explain)

"""The command that runs a training script."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.core import ParameterSource

from torchtap.cli.options import run_option
from torchtap.cli.parsing import refuse_folder, run_target
from torchtap.cli.script.as_main import readable_script
from torchtap.cli.script.folders import FolderSettings
from torchtap.cli.script.launch import Launch, launched_rank
from torchtap.core.errors import InputError
from torchtap.core.site import Pattern

_WHERE = "*:output,grad_output,param,param_grad,update"
_UNWATCHED = {"explain", "script", "args"}
"""Parameters of ``run`` that ask for nothing to be watched; beside ``--explain``, others do."""


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
@run_option(
    "A file that ends in .safetensors, or a folder that is written as it goes on. Of several "
    "models with a name, of ranks in a file with .rank0.  [default: run.safetensors; with --values "
    "or --resume run]"
)
@click.option(
    "--values",
    multiple=True,
    metavar="WHERE",
    help="In a folder: keep the values there, too, beside the statistics.",
)
@click.option(
    "--values-every",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Keep values of every so many steps.",
)
@click.option("--resume", is_flag=True, help="Go on with the run in a folder, after its last step.")
@click.option(
    "--first-step",
    type=click.IntRange(min=0),
    metavar="N",
    help="The number of the first step, such as that of the checkpoint that SCRIPT goes on with: "
    "steps from there on take the place of those in the folder.",
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
    help="Say below an error of PyTorch at which module and line it came, and what to do. Alone, "
    "it watches nothing and writes nothing.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Exit with 3 where SCRIPT ends well and nothing was recorded, or the watching failed.",
)
@click.option(
    "--guard",
    is_flag=True,
    help="End the training at the first NaN or Inf, say which operation made it, and exit with 1.",
)
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def run(
    context: click.Context,
    where: tuple[str, ...],
    every: int,
    to: str | None,
    values: tuple[str, ...],
    values_every: int,
    resume: bool,
    first_step: int | None,
    step_every: int | None,
    explain: bool,
    strict: bool,
    guard: bool,
    script: str,
    args: tuple[str, ...],
) -> Launch:
    """Run a training SCRIPT unchanged, and save statistics of it.

    SCRIPT runs as under python, prints the same and keeps its exit code. torchtap watches the
    models that the optimizers of this process train. A file is written after the first step, then
    every 30 seconds unless that would take more than 2 % of the time, and at the end, also after an
    exception, Ctrl-C or SIGTERM. A folder has each step when it ends. The last line on stderr says
    what was recorded, or why nothing was.

    Under torchrun, each rank writes a file, or its part of the folder:
    torchrun --nproc-per-node 2 -m torchtap run SCRIPT ARGS
    """
    readable_script(script)
    if explain and not _asks_for_watching(context):
        return Launch(script, args, None, explain=True)
    patterns = (where or (_WHERE,)) + tuple(value for value in values if not value.startswith("!"))
    for pattern in (*patterns, *values):
        Pattern.parse(pattern)
    asks_folder = bool(values) or resume or first_step is not None
    path, is_file = run_target(to or ("run" if asks_folder else "run.safetensors"))
    if is_file and asks_folder:
        name = "--values" if values else "--resume" if resume else "--first-step"
        raise InputError(f"{name} needs a folder: --to {path.stem} in place of --to {to}.")
    target = Path(os.path.abspath(path))
    if is_file:
        goes_to: Path | FolderSettings = target
    else:
        goes_to = FolderSettings(target, values, values_every, resume, first_step)
        refuse_folder(path, resume=resume, rank=launched_rank() or 0)
    return Launch(
        script,
        args,
        goes_to,
        where=patterns,
        every=every,
        backwards=step_every,
        explain=explain,
        strict=strict,
        guard=guard,
    )


def _asks_for_watching(context: click.Context) -> bool:
    """Return whether an option of watching was given."""
    asked = set(context.params) - _UNWATCHED
    return any(context.get_parameter_source(name) is not ParameterSource.DEFAULT for name in asked)

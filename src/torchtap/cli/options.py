"""Options that several commands take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def model_options(command: Command) -> Command:
    return _decorate(
        command,
        click.option("--arg", "args", multiple=True, metavar="KEY=VALUE", help="For MODEL."),
        click.option(
            "--weights", metavar="FILE", help="safetensors, or a pickle of tensors alone."
        ),
        click.option("--train", is_flag=True, help="Leave training mode on; else eval()."),
        click.option(
            "--traceback", is_flag=True, help="Show the whole traceback if the model raises."
        ),
        click.option("--seed", default=0, show_default=True, help="For weights and --shape."),
    )


def batch_options(command: Command) -> Command:
    return _decorate(
        command,
        click.option("--image", metavar="FILE", help="A picture: middle square, resized."),
        click.option("--input", "file", metavar="FILE", help="A .npy or .safetensors file."),
        click.option("--shape", metavar="N,C,H,W", help="Random numbers of this shape."),
        click.option("--size", default=224, show_default=True, help="Pixels for --image."),
        click.option("--mean", metavar="R,G,B", help="For --image; ImageNet's by default."),
        click.option("--std", metavar="R,G,B", help="For --image; ImageNet's by default."),
        click.option("--dtype", default="float32", show_default=True, help="For --shape."),
        click.option("--high", type=int, metavar="N", help="For --shape of whole numbers: 0..N-1."),
    )


def loss_option(command: Command) -> Command:
    text = "mean, logit:CLASS or package.module:callable; turns the backward on."
    return click.option("--loss", metavar="LOSS", help=text)(command)


def graph_loss_option(command: Command) -> Command:
    text = "mean, logit:CLASS or package.module:callable; turns --autograd on."
    return click.option("--loss", metavar="LOSS", help=text)(command)


def run_option(text: str) -> Callable[[Command], Command]:
    """``--to RUN``: where what is recorded goes. A file that is made of a run goes to ``--out``."""
    return click.option("--to", metavar="RUN", help=text)


def earlier_spelling(name: str, *options: str) -> Callable[[Command], Command]:
    """Add an option's earlier name: it goes on working, and help does not show it."""
    return click.option(*options, name, hidden=True)


def json_option(command: Command) -> Command:
    text = "Print JSON instead of a table."
    return click.option("--json", "as_json", is_flag=True, help=text)(command)


def all_option(command: Command) -> Command:
    return click.option("--all", "every", is_flag=True, help="Leave no line out.")(command)


def _decorate(command: Command, *options: Callable[[Any], Any]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command

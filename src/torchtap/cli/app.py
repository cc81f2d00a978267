"""The commands of ``torchtap``, and the exit code of each.

Exit codes: 0 fine, 1 alarm or difference, 2 usage or bad input, 3 torchtap could not do its work.
Heavy imports stand inside the commands, so that ``--help`` and ``ls`` answer without waiting for
torch.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

import click

from torchtap.cli import (
    commands_diagnose,
    commands_explain,
    commands_read,
    commands_run,
    commands_script,
    commands_show,
    commands_store,
)
from torchtap.cli.output import complain
from torchtap.cli.raised import print_raised
from torchtap.cli.script.launch import Launch
from torchtap.core.blame import is_own_fault, is_raised_by_torchtap, own_fault
from torchtap.core.errors import TorchtapError
from torchtap.core.version import __version__

FINE, BAD_INPUT, FAILED, INTERRUPTED = 0, 2, 3, 130


def main() -> None:
    """Entry point of ``torchtap``."""
    words = sys.argv[1:]
    if words[:1] != ["run"]:  # What a script of the user's finds must be as Python leaves it.
        # OpenMP's threads spin while they wait. On a machine that is busy with something else (a
        # training, say) that made the demo ten times slower; without, it costs nothing measurable.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        _print_anything()
    answer = _answer(words)
    if isinstance(answer, Launch):
        # Not below click, nor where exceptions are caught: they are the script's.
        answer.start()
        sys.exit()
    sys.exit(answer)


def run(words: Sequence[str]) -> int:
    """Run one command and return its exit code. Prints, and never raises for bad input."""
    _print_anything()
    answer = _answer(words)
    return answer if isinstance(answer, int) else FINE


def _print_anything() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # A captured stream may be of another kind.
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _answer(words: Sequence[str]) -> int | Launch:
    try:
        code = cli.main(args=list(words), prog_name="torchtap", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int | Launch) else FINE
    except click.ClickException as error:
        error.show()
        return BAD_INPUT
    except TorchtapError as error:
        complain(str(error))
        return BAD_INPUT
    except (click.Abort, KeyboardInterrupt):
        complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the pipe has closed it; Python must not complain about it on the way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE
    except Exception as error:  # noqa: BLE001 - told, with whose fault it is
        return _told(error)


def _told(error: Exception) -> int:
    """Print what no one expected, and say whose it is."""
    if is_own_fault(error):
        print_raised(error, whole=True)
        complain(own_fault(error))
        return FAILED
    if is_raised_by_torchtap(error):  # By the system: a file that may not be read, a full disk.
        complain(f"{type(error).__name__}: {error}")
        return BAD_INPUT
    print_raised(error)
    complain("the code that was asked to run raised the above")
    return BAD_INPUT


@click.group(
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
    epilog="MODEL is package.module:callable or file.py:callable, found from the current folder "
    "too. WHERE is [!]PATH[@TYPE][:PORTS[[LEAF]]], e.g. 'layer*@Conv2d:output,grad_output'.",
)
@click.version_option(__version__, prog_name="torchtap", message="%(prog)s %(version)s")
def cli() -> None:
    """See everything that flows through a PyTorch model."""


for command in (
    commands_run.demo,
    commands_run.record,
    commands_run.summary,
    commands_run.maps,
    commands_explain.cam,
    commands_explain.attribute,
    commands_run.graph,
    commands_script.run,
    commands_read.ls,
    commands_diagnose.compare,
    commands_diagnose.diagnose,
    commands_store.doctor,
    commands_store.export,
    commands_read.merge,
    commands_read.show,
    commands_show.report,
    commands_read.stats,
    commands_show.top,
    commands_show.serve,
    commands_diagnose.selfcheck,
    commands_diagnose.replay,
):
    cli.add_command(command)

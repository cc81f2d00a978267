"""``torchtap run``: a training script runs as it is, and what it trains is watched."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from torchtap.cli.script.as_main import run_as_main
from torchtap.cli.script.files import ScriptFiles
from torchtap.core.after_import import after_import

if TYPE_CHECKING:
    from torchtap.capture.training.stepping import Stepping

_PACKAGE = str(Path(__file__).parents[2]) + os.sep
_RETRY_SECONDS, _MOST_RETRIES = 0.01, 200


@dataclass(frozen=True, slots=True)
class Launch:
    """What is to be run, and how it is watched.

    Attributes:
        script: the file, as it was given.
        args: its arguments.
        where: what to watch of each model.
        every: record every so many steps.
        backwards: end a step after so many backwards.
        to: where the run goes.
        explain: add a note to what PyTorch raises.
    """

    script: str
    args: Sequence[str]
    where: Sequence[str]
    every: int
    backwards: int | None
    to: Path
    explain: bool = False

    def start(self) -> None:
        """Run the script.

        Raises:
            BaseException: what ends it.
        """
        watching = Watching(self)
        watching.attach()
        run_as_main(self.script, self.args, explain=self.explain)


class Watching:
    """The watching of one script, from before its first line until the process ends.

    Only in this process: children of a fork go on unwatched, and write nothing.
    """

    def __init__(self, launch: Launch) -> None:
        rank = os.environ.get("RANK", "")
        self._rank = int(rank) if rank.isdecimal() else None
        self._launch = launch
        self._process = os.getpid()
        self._files = ScriptFiles(launch.to, rank=self._rank)
        self._stepping: Stepping | None = None
        self._failure = ""
        self._has_ended = False
        self._num_retries = 0
        self._signal = 0

    def attach(self) -> None:
        """Wait for PyTorch to be imported, and for the end of the process."""
        # The first that is registered is the last to be called: after the script's own, and
        # after its threads have ended.
        atexit.register(self.end)
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminated)
        os.register_at_fork(after_in_child=self._forked)
        after_import("torch", self._torch_came)

    def _torch_came(self) -> None:
        try:
            from torchtap.capture.training.stepping import Stepping

            launch = self._launch
            self._stepping = Stepping(
                launch.where,
                every=launch.every,
                backwards=launch.backwards,
                ended=self._step_ended,
                faulty=self._tell_fault,
            )
            self._stepping.attach()
        except Exception as error:  # noqa: BLE001 - told at the end; the script goes on
            self._failure = f"{type(error).__name__}: {error}"

    def _step_ended(self) -> None:
        assert self._stepping is not None
        if os.getpid() == self._process:
            self._files.save_now_and_then(self._stepping.models)

    def _tell_fault(self, text: str) -> None:
        if not self._has_ended and not self._rank and os.getpid() == self._process:
            _say(f"{text.rstrip('.')}; the script goes on")

    def end(self) -> None:
        """Save what was recorded, and say so, once."""
        if self._has_ended or os.getpid() != self._process:
            return
        self._has_ended = True
        if self._stepping is not None:
            try:
                self._stepping.detach()
                self._files.save(self._stepping.models)
            except Exception as error:  # noqa: BLE001 - told in the line at the end
                self._failure = f"{type(error).__name__}: {error}"
        if not self._rank:
            _say(self._summary())
        if self._signal:
            os.kill(self._process, self._signal)

    def _summary(self) -> str:
        stepping = self._stepping
        notes = [note for note in (self._failure, self._files.failure) if note]
        if stepping is None:
            why = "" if notes else "the script did not import torch"
        else:
            notes += stepping.faults
            if stepping.num_left_out:
                notes.append(
                    f"the models of {stepping.num_left_out} more optimizers were not watched"
                )
            why = "" if notes else "no model of this process was trained"
        written = [f"{_shown(path)}: {text}" for path, text in self._files.written.items()]
        if not written:
            what = "nothing was saved" if self._files.failure else "nothing was watched"
            return f"{what}: " + "; ".join([*notes, *([why] if why else [])])
        return "; ".join([*written, *notes])

    # ------------------------------------------------------------------ signals and forks

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        """Save, then end as by a SIGTERM without a handler."""
        if self._has_ended:  # It is being saved.
            self._signal = number
            signal.signal(number, signal.SIG_DFL)
        elif _is_ours(frame) and self._num_retries < _MOST_RETRIES:
            # Between two lines of ours, where what is measured may be half written.
            self._num_retries += 1
            timer = threading.Timer(_RETRY_SECONDS, os.kill, (self._process, number))
            timer.daemon = True
            timer.start()
        else:
            self._signal = number
            signal.signal(number, signal.SIG_DFL)
            self.end()

    def _forked(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._terminated:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self._stepping is not None:
            self._stepping.abandon()


def _is_ours(frame: FrameType | None) -> bool:
    """Whether a function of ours is running, other than that which runs the script."""
    while frame is not None and frame.f_code is not run_as_main.__code__:
        if frame.f_code.co_filename.startswith(_PACKAGE):
            return True
        frame = frame.f_back
    return False


def _shown(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):  # The folder may be gone.
        return str(path)


def _say(text: str) -> None:
    try:
        print(f"torchtap: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):
        return  # There is no stderr any more.

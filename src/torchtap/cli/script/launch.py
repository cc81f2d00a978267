"""``torchtap run``: a training script runs as it is, and what it trains is watched.

With ``--explain`` alone, nothing is watched: no hook and no handler of signals is set.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from torchtap.cli.script.as_main import run_as_main
from torchtap.cli.script.described import why_empty
from torchtap.cli.script.files import ScriptFiles
from torchtap.cli.script.folders import FolderSettings, ScriptFolders
from torchtap.cli.script.guarding import Guarding
from torchtap.core.after_import import after_import
from torchtap.core.blame import is_own_fault, own_fault
from torchtap.core.signals import Postponing

if TYPE_CHECKING:
    from torchtap.capture.training.stepping import Stepping

FOUND = 1
"""Exit code with ``--guard`` of a script that had a NaN or Inf and ended well all the same."""
UNRECORDED = 3
"""Exit code with ``--strict`` of a script that ended well and of which nothing was recorded, or
whose watching failed."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The script to run, and how it is watched.

    Attributes:
        script: the file, as it was given.
        args: its arguments.
        to: the file of the run, or what is written into a folder; ``None`` where nothing is
            watched.
        where: what to watch of each model.
        every: record every so many steps.
        backwards: end a step after so many backwards.
        explain: add a note to what PyTorch raises.
        strict: end with :data:`UNRECORDED` where there would be nothing to look at.
        guard: end the training at the first NaN or Inf, say where it was made, and exit with 1.
    """

    script: str
    args: Sequence[str]
    to: Path | FolderSettings | None
    where: Sequence[str] = ()
    every: int = 1
    backwards: int | None = None
    explain: bool = False
    strict: bool = False
    guard: bool = False

    def start(self) -> None:
        """Run the script.

        Raises:
            BaseException: what ends it.
        """
        if self.to is None:
            run_as_main(self.script, self.args, explain=self.explain)
        else:
            self._start_watched(Watching(self, self.to))

    def _start_watched(self, watching: Watching) -> None:
        watching.attach()
        try:
            run_as_main(self.script, self.args, explain=self.explain)
        except SystemExit as end:
            if end.code or not (self.strict or watching.has_found):
                watching.note_end(end)
                raise
        except BaseException as error:
            watching.note_end(error)
            raise
        if watching.has_found:  # The script went on in spite of it.
            sys.exit(FOUND)
        if self.strict:
            _wait_for_threads()
            watching.finish()
            if not watching.is_sound:
                sys.exit(UNRECORDED)


class Watching:
    """The watching of one script, from before its first line until the process ends.

    Only in this process: children of a fork go on unwatched, and write nothing.
    """

    def __init__(self, launch: Launch, to: Path | FolderSettings) -> None:
        self._rank = launched_rank()
        self._launch = launch
        self._process = os.getpid()
        self._destination: ScriptFiles | ScriptFolders
        if isinstance(to, Path):
            self._destination = ScriptFiles(to, rank=self._rank)
        else:
            self._destination = ScriptFolders(to, rank=self._rank)
        self._stepping: Stepping | None = None
        self._guarding = Guarding()
        self._failure = ""
        self._how_ended = ""
        self._is_told = False
        self._has_finished = self._has_ended = False
        self._postponing = Postponing()
        self._signal = 0
        self._forks = threading.local()  # The signals that a thread held back before its fork.

    def attach(self) -> None:
        """Wait for PyTorch to be imported, and for the end of the process."""
        # The first that is registered is the last to be called: after the script's own, and
        # after its threads have ended. Finalizers, of which tt.Disk has one, come between: what
        # they would close has been closed by then.
        atexit.register(self.end)
        weakref.finalize(self, _nothing)
        atexit.register(self.finish)
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminated)
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._after_fork,
            after_in_child=self._forked,
        )
        after_import("torch", self._torch_came)

    def _torch_came(self) -> None:
        try:
            from torchtap.capture.training.stepping import Stepping

            launch = self._launch
            self._stepping = Stepping(
                launch.where,
                every=launch.every,
                backwards=launch.backwards,
                destination=self._destination,
                ended=self._step_ended,
                faulty=self._tell_fault,
                found=self._guarding.found if launch.guard else lambda _: None,
            )
            self._stepping.attach()
        except Exception as error:  # noqa: BLE001 - told now and at the end; the script goes on
            self._failure = _said(error)
            self._tell_fault(self._failure)

    def _step_ended(self) -> None:
        assert self._stepping is not None
        if os.getpid() == self._process:
            self._destination.save_now_and_then(self._stepping.models)

    def _tell_fault(self, text: str) -> None:
        if not self._has_ended and not self._rank and os.getpid() == self._process:
            _say(f"{text.rstrip('.')}; the script goes on")

    def note_end(self, error: BaseException) -> None:
        """The script ended by an exception; an exit with a code is one too."""
        self._is_told = type(error).__name__ == "NonFiniteError"  # By the traceback.
        if isinstance(error, SystemExit):
            self._how_ended = f"ended with exit code {error.code}" if error.code else ""
        else:
            self._how_ended = f"ended with {type(error).__name__}"

    def finish(self) -> None:
        """Save what was recorded, once."""
        if self._has_finished or os.getpid() != self._process:
            return
        self._has_finished = True
        if self._stepping is not None:
            try:
                self._guarding.close()
                self._stepping.detach()
                self._destination.save(self._stepping.models)
            except Exception as error:  # noqa: BLE001 - told in the line at the end
                self._failure = _said(error)

    def end(self) -> None:
        """Save what was recorded, and say so, once."""
        if self._has_ended or os.getpid() != self._process:
            return
        self._has_ended = True
        self.finish()
        origin = self._guarding.origin
        if origin is not None and not self._is_told and not self._rank:
            _say(origin.text)
        if not self._rank:
            _say(self._summary())
        elif not self.is_sound:  # The first rank knows nothing of it.
            _say(f"rank {self._rank}: {self._summary()}")
        if self._signal:
            os.kill(self._process, self._signal)

    @property
    def has_found(self) -> bool:
        """Return whether a guard found something that is not finite."""
        return self._guarding.origin is not None

    @property
    def is_sound(self) -> bool:
        """Return whether something was recorded, and nothing of ours went wrong; once finished."""
        return bool(self._destination.written) and not self._notes() and not self._why_nothing()

    def _notes(self) -> list[str]:
        """Return what went wrong."""
        notes = [note for note in (self._failure, self._destination.failure) if note]
        return notes + ([] if self._stepping is None else self._stepping.faults)

    def _summary(self) -> str:
        written = [f"{_shown(path)}: {text}" for path, text in self._destination.written.items()]
        notes = self._notes()
        why = self._why_nothing()
        stepping = self._stepping
        if stepping is not None and stepping.num_left_out:
            notes.append(f"the models of {stepping.num_left_out} more optimizers were not watched")
        if why or not written:
            return f"nothing was recorded: {'; '.join([*notes, *([why] if why else []), *written])}"
        return "; ".join([*written, *notes])

    def _why_nothing(self) -> str:
        """Why nothing was recorded; empty where something was, or where a fault says it."""
        stepping = self._stepping
        if stepping is None:
            return "" if self._failure else self._ended("the script did not import torch")
        trained = [one for one in stepping.models if one.has_trained and one.watch is not None]
        if self._destination.written:
            empty = [why_empty(model) for model in trained]
            return "; ".join(empty) if all(empty) else ""
        if self._notes():
            return ""
        if stepping.models:
            kinds = ", ".join(dict.fromkeys(model.kind for model in stepping.models))
            return self._ended(f"{kinds} was found, and no training forward or step of it was seen")
        if stepping.num_optimizers:
            return self._ended("the optimizers hold parameters of no module that is there")
        return self._ended(
            "no model of this process was trained: no optimizer was made, and no module ran in "
            "training mode with gradients"
        )

    def _ended(self, why: str) -> str:
        return f"{why}; the script {self._how_ended}" if self._how_ended else why

    # ------------------------------------------------------------------ signals and forks

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        """Save, then end as by a SIGTERM without a handler."""
        if self._has_ended:  # It is being saved.
            self._signal = number
            signal.signal(number, signal.SIG_DFL)
        elif not self._postponing.postpones(number, frame):
            self._signal = number
            signal.signal(number, signal.SIG_DFL)
            self.end()

    def _before_fork(self) -> None:
        """Hold SIGTERM back until the child has its own way to end.

        One that comes while the child still has the handler of this process would be lost with it:
        Python only notes the signal, and drops the note where the handler changes.
        """
        self._forks.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def _after_fork(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._forks.mask)

    def _forked(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._terminated:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._after_fork()
        if self._stepping is not None:
            self._stepping.abandon()


def launched_rank() -> int | None:
    """Return the rank of this process under ``torchrun``; ``None`` outside of it."""
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdecimal() else None


def _said(error: Exception) -> str:
    return own_fault(error) if is_own_fault(error) else f"{type(error).__name__}: {error}"


def _wait_for_threads() -> None:
    """Wait for threads as Python does before it ends: what they train is recorded too."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def _shown(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):  # The folder may be gone.
        return str(path)


def _nothing() -> None:
    """Stands for a finalizer; with the first one, Python registers when all of them are called."""


def _say(text: str) -> None:
    try:
        print(f"torchtap: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):
        return  # There is no stderr any more.

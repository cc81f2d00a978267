"""The flight recorder: the last steps of a training, written when something fires."""

from __future__ import annotations

import base64
import json
import os
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from torch import Tensor, nn

from torchtap.capture.watch import watch
from torchtap.capture.watch_handle import Watch, note_of_step
from torchtap.core.distributed import num_ranks, own_rank
from torchtap.core.module_paths import Where
from torchtap.core.record import Sink
from torchtap.core.signals import Postponing
from torchtap.runs.memory import Memory

WHERE = ("*:output,grad_output", ".:input")
"""The batch, what each module returned, and what came back."""
NUM_STEPS = 4


class Recorder:
    """Holds the last steps of a model, and writes them as a run.

    Args:
        model: any module.
        path: of the file, or of one for each rank.
        where: what to keep.
        ring: a sink that keeps the last steps.

    Attributes:
        written: the file, once it is written.
    """

    def __init__(
        self, model: nn.Module, path: str | Path, where: Where | None, ring: Sink | None
    ) -> None:
        self._path = _of_rank(Path(path))
        self._watch: Watch = watch(
            model,
            list(WHERE) if where is None else where,
            to=Memory(max_steps=NUM_STEPS) if ring is None else ring,
        )
        self._term = _OnTerminated(self.terminated)
        self.written: Path | None = None

    def step(self, numbers: Mapping[str, Any], ids: Iterable[int | str]) -> None:
        """A step ended."""
        self._log(numbers)
        self._watch.step(ids=ids)

    def _log(self, numbers: Mapping[str, Any]) -> None:
        self._watch.log(**{name: one for name, one in numbers.items() if _is_number(one)})

    def write(
        self,
        why: str,
        numbers: Mapping[str, Any],
        ids: Iterable[int | str],
        random: Iterable[Any],
        origin: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the file, the first time: what came later follows from it.

        Args:
            why: what fired.
            numbers: that were logged in the running step.
            ids: of its samples.
            random: states of the random generators before its first forward.
            origin: if one was found, as plain values.
        """
        if self.written is not None:
            return
        self._log(numbers)
        labels: dict[str, Any] = {"recorded": why, "random": json.dumps(list(map(_plain, random)))}
        if origin is not None:
            labels["origin"] = json.dumps(origin)
        if ids:
            labels["ids"] = json.dumps(list(ids))
        note_of_step(self._watch, labels)
        self._watch.sync()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._watch.run.save(self._path)
        self.written = self._path

    def listen(self, fired: Callable[[str], None]) -> None:
        """Have a function called when the process is told to end."""
        self._fired = fired
        self._term.attach()

    def terminated(self) -> None:
        """SIGTERM arrived."""
        self._fired("SIGTERM")

    def close(self) -> None:
        """Take everything off. Nothing is written."""
        self._term.detach()
        self._watch.close()


class _OnTerminated:
    """Calls a function on SIGTERM, and then lets the signal do what it does."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self._before: Any = None
        self._postponing = Postponing()

    def attach(self) -> None:
        """Take the signal, in the main thread, where signals arrive."""
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._arrived)

    def detach(self) -> None:
        """Give it back."""
        if self._before is not None and signal.getsignal(signal.SIGTERM) == self._arrived:
            signal.signal(signal.SIGTERM, self._before)
        self._before = None

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        if self._postponing.postpones(number, frame):
            return
        before = self._before
        self.detach()
        try:
            self._function()
        finally:
            if callable(before):
                before(number, frame)
            else:
                os.kill(os.getpid(), number)


def _is_number(value: Any) -> bool:
    return isinstance(value, Tensor | int | float)


def _of_rank(path: Path) -> Path:
    if num_ranks() < 2:
        return path
    return path.with_name(f"{path.stem}.rank{own_rank()[0]}{path.suffix}")


def _plain(state: Any) -> Any:
    """The state of a generator as JSON holds it: bytes in base 64, under the name of their kind."""
    if isinstance(state, Tensor):
        return {"torch": base64.b64encode(state.numpy(force=True).tobytes()).decode()}
    if hasattr(state, "tobytes"):
        kind = str(state.dtype)
        return {"numpy": base64.b64encode(state.tobytes()).decode(), "dtype": kind}
    if isinstance(state, dict):
        return {name: _plain(one) for name, one in state.items()}
    if isinstance(state, list | tuple):
        return [_plain(one) for one in state]
    return state if isinstance(state, str | int | float | bool | None) else repr(state)

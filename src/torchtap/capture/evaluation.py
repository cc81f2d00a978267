"""Tells the evaluation forwards of a training from its training forwards.

A validation between two steps, a rollout, or a pipeline that runs its stages on uninitialised
memory to learn shapes: their values must not be mixed with those of a training step. A model that
is only ever evaluated is recorded as it is.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from types import CodeType, FrameType
from typing import Any

from torchtap.core.record import EVAL, FORWARD
from torchtap.core.torch_frames import is_in_function
from torchtap.core.torch_private import STAGES, num_microbatches_of, stage_codes
from torchtap.hooks.tap import Tap

NO_GRADIENTS = "gradients of evaluation forwards (phase 'eval') are not recorded"


class Evaluations:
    """Decides which outermost calls have phase ``eval``.

    A call *trains* if gradients are enabled and, of the model itself, if it is in training mode.
    Once a module has trained, its outermost calls that do not train have phase ``eval``, with all
    that runs inside of them. Calls inside a call have the phase of the outermost one, so a teacher
    or a frozen part that runs without gradients inside a training forward belongs to it.

    Args:
        root: of the model.
        busy: threads for which the quick way of the hooks is closed.

    Attributes:
        mixed: path -> step, and the number of its evaluation forwards that came before the first
            one that trained. They were recorded as the others.
        pipelining: what is seen of a pipeline that runs the model.
    """

    _TOLD = 0  # Among the threads of ``busy``; no thread has this number.

    def __init__(self, root: Tap, busy: set[int]) -> None:
        self.mixed: dict[str, tuple[int, int]] = {}
        self.pipelining = Pipelining()
        self._root = root
        self._busy = busy
        self._num_told = 0
        self._early: Counter[Tap] = Counter()
        self._have_graphs = False

    @property
    def graph(self) -> _Graph:
        """Return the compiled graph that a thread is inside of; made when it is asked for."""
        # The first of several threads that come here at once makes it.
        if "graph" not in self.__dict__:
            self.__dict__.setdefault("graph", _Graph())
        made: _Graph = self.__dict__["graph"]
        return made

    def phase(self, tap: Tap, *, trains: bool, evaluates: bool = False) -> str:
        """Return the phase of an outermost call.

        Args:
            tap: of the module.
            trains: whether gradients are enabled, and the model is not in eval mode.
            evaluates: whether the model is known to be in eval mode.
        """
        if self.pipelining.infers_shapes() or self._num_told:
            return EVAL
        # Gradients are off in a custom function, as of a reentrant checkpoint, that is recorded.
        if trains or (not evaluates and is_in_function(is_recorded=True)):
            tap.has_run = tap.has_trained = True
            return FORWARD
        if tap.has_trained and (self._root.has_trained or not self._root.has_run):
            return EVAL
        # Whether this was an evaluation is known only when the module has trained: it is recorded,
        # and told at the end of the step.
        self._early[tap] += 1
        return FORWARD

    def begin_told(self) -> None:
        """Count calls from now on as evaluation: the program says so."""
        self._num_told += 1
        self._busy.add(self._TOLD)

    def end_told(self) -> None:
        """Tell evaluation from training by the calls themselves again."""
        self._num_told -= 1
        if not self._num_told:
            self._busy.discard(self._TOLD)

    def phase_in_graph(self, tap: Tap, *, trains: bool) -> str:
        """Return the phase of a value in a compiled graph: of the model's call, if it has begun."""
        return self.graph.phase or self.phase(tap, trains=trains)

    def begin_graph(self, *, trains: bool, evaluates: bool) -> None:
        """Note that a compiled graph enters the model."""
        self._have_graphs = True
        self.graph.phase = self.phase(self._root, trains=trains, evaluates=evaluates)

    def end_graph(self) -> None:
        """Note that the compiled graph leaves the model."""
        self.graph.phase = ""

    def begin(self) -> None:
        """Note that this thread enters an evaluation: calls inside of it ask for their phase."""
        # Negative, since a thread's own number says that a sink runs in it and closes the hooks;
        # any number at all closes their quick way alone.
        self._busy.add(-threading.get_ident())

    def end(self) -> None:
        """Note that this thread leaves the outermost call."""
        self._busy.discard(-threading.get_ident())

    @property
    def are_plain(self) -> bool:
        """Return whether :meth:`end_step` has nothing to do."""
        return not (self._busy or self._early or self._have_graphs)

    def end_step(self, step: int) -> None:
        """End the step, and note which of its evaluations came too early to be told."""
        if self._busy:
            self._busy.discard(-threading.get_ident())
        if self._have_graphs:
            self.graph.phase = ""  # It may have raised.
        if self._early:
            # In place of a ``clear``: a call in another thread may be counted meanwhile.
            early, self._early = self._early, Counter()
            for tap, number in early.items():
                if tap.has_trained:
                    self.mixed[tap.path] = step, number


class _Graph(threading.local):
    """
    Attributes:
        phase: of the compiled call of the model that this thread is inside of, or nothing.
    """

    def __init__(self) -> None:
        self.phase = ""


class Pipelining:
    """Looks at ``torch.distributed.pipelining`` while it runs a model.

    Finds, on the stack of a call, the stage of a pipeline that makes it.

    Nothing on a module tells that it is a stage, and stages are made before or after a watch
    begins, so the calls have to tell.

    Attributes:
        num_stages: of the pipeline; 0 where none has run the model.
        num_microbatches: of its schedule, as it first ran the model.
    """

    def __init__(self) -> None:
        self.num_stages = 0
        self.num_microbatches = 0
        self._stages: set[int] = set()

    @property
    def stages(self) -> tuple[int, ...]:
        """Return the stages that the model was, ascending."""
        return tuple(sorted(self._stages))

    def infers_shapes(self) -> bool:
        """Return whether a stage runs the model to learn shapes; note a stage that trains it."""
        return STAGES in sys.modules and self._look(*stage_codes())

    def _look(self, learning: CodeType, running: CodeType) -> bool:
        frame: FrameType | None = sys._getframe(1)
        # The stage calls its module to learn the shapes of its outputs, below the function that
        # does so.
        while frame is not None and frame.f_code is not learning:
            if frame.f_code is running:
                self._note(frame)
                return False
            frame = frame.f_back
        return frame is not None

    def _note(self, frame: FrameType) -> None:
        stage: Any = frame.f_locals["self"]
        if stage.stage_index in self._stages:
            return
        self._stages.add(stage.stage_index)
        self.num_stages = stage.num_stages
        self.num_microbatches = _num_microbatches(frame)


def _num_microbatches(frame: FrameType | None) -> int:
    """Return the number of microbatches of the schedule among the callers of a stage's frame."""
    while frame is not None:
        number = num_microbatches_of(frame.f_locals.get("self"))
        if number:
            return number
        frame = frame.f_back
    return 1  # A stage that is run by hand.

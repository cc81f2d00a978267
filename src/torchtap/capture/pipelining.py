"""Look at ``torch.distributed.pipelining`` while it runs a model."""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any

from torchtap.core.torch_private import num_microbatches_of, stage_codes


class Pipelining:
    """Finds, on the stack of a call, the stage of a pipeline that makes it.

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
        """The stages that the model was, ascending."""
        return tuple(sorted(self._stages))

    def infers_shapes(self) -> bool:
        """Return whether a stage runs the model to learn shapes; note a stage that trains it."""
        codes = stage_codes()
        return codes is not None and self._look(*codes)

    def _look(self, learning: CodeType, running: CodeType) -> bool:
        frame: FrameType | None = sys._getframe(1)
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

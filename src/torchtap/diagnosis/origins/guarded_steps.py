"""The last steps of a guarded training: the calls of the running one, what was logged of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from torchtap.diagnosis.origins.kept_calls import Kept, KeptCall

_MOST_CALLS, _MOST_WAITING = 64, 16
"""Calls of one step that are kept, and those of them that have no gradient yet."""


@dataclass(slots=True)
class GuardedStep:
    """The parts that are kept of one step.

    Attributes:
        number: from 0.
        calls: of the model, while the step runs.
        numbers: that were logged.
        ids: of its samples.
        has_stepped: whether an optimizer's step ended it.
        was_finite: whether the gradients were, when the optimizer began.
        num_dropped: calls to which a backward came, and which are no longer kept.
    """

    number: int
    calls: list[KeptCall] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    ids: list[int | str] = field(default_factory=list)
    has_stepped: bool = False
    was_finite: bool = False
    num_dropped: int = 0

    @property
    def has_backward(self) -> bool:
        """Return whether any gradient has arrived."""
        return any(call.gradients for call in self.calls)

    def log(self, numbers: Mapping[str, Any], ids: Sequence[int | str] = ()) -> None:
        """Keep numbers, and ids of samples."""
        self.ids.extend(ids)
        for name, one in numbers.items():
            self.numbers[name] = one.detach() if isinstance(one, Tensor) else one

    def forget_calls(self) -> None:
        """Drop the calls, and take the hooks off what they returned."""
        for call in self.calls:
            call.release()
        self.calls.clear()


class GuardedSteps:
    """The steps that are kept, the running one last.

    Args:
        model: whose calls are kept.
        keep: how many steps.
        begun: called before a call is kept.
        arrived: called after a gradient has arrived.

    Attributes:
        kept: notes the calls.
    """

    def __init__(
        self,
        model: nn.Module,
        keep: int,
        *,
        begun: Callable[[], object],
        arrived: Callable[[], object],
    ) -> None:
        self.kept = Kept(model, begun, arrived)
        self._steps = deque([GuardedStep(0)], maxlen=keep)
        self._cycle: set[int] = set()  # Optimizers that stepped since the number of the step began.
        self._of_cycle: set[int] | None = None
        self.kept.calls = self.running.calls

    @property
    def running(self) -> GuardedStep:
        """Return the step that runs."""
        return self._steps[-1]

    @property
    def was_finite_before(self) -> bool:
        """Return whether the step before the running one is known to have been finite."""
        return len(self._steps) > 1 and self._steps[-2].was_finite

    @property
    def knows_optimizers(self) -> bool:
        """Return whether :meth:`note_optimizer` was told which optimizers there are."""
        return self._of_cycle is not None

    def note_optimizer(self, optimizer: int, others: Iterable[int] = ()) -> None:
        """An optimizer's step begins. Each of several steps once in a cycle, as those of a GAN do.

        The calls of a cycle are those of several steps here: each optimizer changes weights, with
        which what came before cannot be replayed. They have one number.

        Args:
            optimizer: its id.
            others: ids of all that train the model; asked for the first time.
        """
        if self._of_cycle is None:
            self._of_cycle = {optimizer, *others}
        if optimizer in self._cycle:  # One that was waited for does not step.
            self._of_cycle = set(self._cycle)
            self._cycle.clear()
            self.running.number += 1
        self._cycle.add(optimizer)

    def begin(self) -> None:
        """A step begins. Of the one before no call is asked for: its memory becomes free."""
        self.running.forget_calls()
        is_whole = not self._cycle or (self._of_cycle or set()) <= self._cycle
        if is_whole:
            self._of_cycle = set(self._cycle) or self._of_cycle
            self._cycle.clear()
        self._steps.append(GuardedStep(self.running.number + is_whole))
        self.kept.calls = self.running.calls

    def trim(self) -> None:
        """Drop calls of the running step that are too many: some trainings never end a step."""
        calls = self.running.calls
        waiting = [call for call in calls if not call.gradients]
        for call in [*waiting[:-_MOST_WAITING], *calls[:-_MOST_CALLS]]:
            if call in calls:
                call.release()
                calls.remove(call)
                self.running.num_dropped += bool(call.gradients)

    def close(self) -> None:
        """Take everything off; the number of the running step stays."""
        self.kept.detach()
        self.running.forget_calls()

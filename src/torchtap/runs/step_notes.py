"""Notes on each step: when it ended, and what the user said of it."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchtap.core.errors import InputError, SiteError
from torchtap.core.record import steps_there

if TYPE_CHECKING:
    from torch import Tensor

_PLAIN = (str, int, float, bool, type(None))


class StepNotes:
    """Times, sample ids and labels by step."""

    def __init__(self) -> None:
        # Of millions of steps: 16 bytes each, where a dict takes 90.
        self._steps, self._ends = array("q"), array("d")
        self._ids: dict[int, list[int | str]] = {}
        self._labels: dict[int, dict[str, Any]] = {}

    def note(
        self, step: int, time: float, ids: Sequence[int | str], labels: Mapping[str, Any]
    ) -> None:
        """Keep what is known of a step; ids of a step that is noted twice are added."""
        steps = self._steps
        if not steps or steps[-1] < step:  # The steps of a training come in their order.
            steps.append(step)
            self._ends.append(time)
        else:
            place = bisect_left(steps, step)
            if steps[place] == step:
                self._ends[place] = time
            else:
                steps.insert(place, step)
                self._ends.insert(place, time)
        if ids or labels:
            self.tell(step, ids, labels)

    def tell(self, step: int, ids: Sequence[int | str], labels: Mapping[str, Any]) -> None:
        """Keep more of a step that is noted."""
        if ids:
            self._ids.setdefault(step, []).extend(ids)
        if labels:
            self._labels.setdefault(step, {}).update(labels)

    def has(self, step: int) -> bool:
        """Return whether anything is noted of a step, even if only when it ended."""
        place = bisect_left(self._steps, step)
        return place < len(self._steps) and self._steps[place] == step

    def of(self, step: int) -> tuple[list[int | str], dict[str, Any]]:
        """Ids and labels of a step; empty where nothing is noted."""
        return list(self._ids.get(step, ())), dict(self._labels.get(step, {}))

    @property
    def times(self) -> tuple[list[int], list[float]]:
        """Return the steps, ascending, and when each ended, in seconds since 1970, UTC."""
        return self._steps.tolist(), self._ends.tolist()

    def ids(self, step: int) -> list[int | str]:
        """Ids of the samples of a step, as given; empty where none were."""
        self._refuse_unknown(step)
        return list(self._ids.get(step, ()))

    def labels(self, step: int) -> dict[str, Any]:
        """Labels of a step, as given."""
        self._refuse_unknown(step)
        return dict(self._labels.get(step, {}))

    def _refuse_unknown(self, step: int) -> None:
        if not self.has(step):
            raise SiteError(f"Nothing is noted of step {step}. {steps_there(self._steps, step)}")


def checked_ids(ids: Iterable[int | str] | Tensor | None) -> list[int | str]:
    """Ids of samples as numbers and texts.

    Raises:
        InputError: one of them is something else.
    """
    if ids is None:
        return []
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        raise InputError(f"ids is {ids!r}; expected one number or text for each sample.")
    listed = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    for number, one in enumerate(listed):
        if not isinstance(one, int | str) or isinstance(one, bool):
            kind = type(one).__name__
            raise InputError(f"ids[{number}] is a {kind}; expected a whole number or a text.")
    return listed


def checked_labels(labels: Mapping[str, Any]) -> dict[str, Any]:
    """Labels of a step, which must be plain: they are written without pickle.

    Raises:
        InputError: one of them is no number, text, truth value or ``None``.
    """
    for name, value in labels.items():
        if not isinstance(value, _PLAIN):
            raise InputError(
                f"step() got {name}={type(value).__name__}; expected a number, a text, a truth "
                f"value or None. Numbers that a tensor holds are logged by log({name}=...)."
            )
    return dict(labels)

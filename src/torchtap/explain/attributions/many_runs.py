"""Many runs of a model, several in one forward: with progress, and until they are stopped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torchtap.core.errors import InputError
from torchtap.core.progress import Progress
from torchtap.core.text import count
from torchtap.explain.attributions.variable import Variable


@dataclass(frozen=True, slots=True)
class Batching:
    """The number of runs, and how many are made at once.

    Args:
        batch_size: most rows of one forward.
        perturbations_per_eval: most copies of the inputs in one forward, in place of it.
        max_evals: most runs of the model on one copy of the inputs; ``None`` for all.
        progress: whether to show it on stderr; by default if that is a terminal.

    Raises:
        InputError: a number is no whole number from 1.
    """

    batch_size: int = 16
    perturbations_per_eval: int | None = None
    max_evals: int | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "perturbations_per_eval", "max_evals"):
            number = getattr(self, name)
            if number is not None or name == "batch_size":
                check_count(name, number)

    def rows(self, variable: Variable) -> int:
        """Return most rows of one forward."""
        if self.perturbations_per_eval is None:
            return self.batch_size
        return self.perturbations_per_eval * variable.num_rows

    def times(self, variable: Variable) -> int:
        """Return how many copies of a variable's rows go into one forward."""
        return variable.times_in(self.rows(variable))


def check_count(name: str, number: object) -> None:
    """Refuse a setting that is no whole number from 1.

    Raises:
        InputError: it is none.
    """
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise InputError(f"{name} is {number!r}; expected a whole number from 1.")


class Many:
    """The runs from 0 to ``num``, in parts that fit into one forward each.

    A context manager, which takes a ``KeyboardInterrupt`` if a part was done before; :attr:`notes`
    say then how much is in it.

    Args:
        variable: what they are run on.
        num: how many runs there are.
        batching: how they are made.
        doing: what takes long, for the progress.
        each: how many runs belong together.

    Attributes:
        was_interrupted: whether it was ended by a ``KeyboardInterrupt``.
    """

    def __init__(
        self, variable: Variable, num: int, batching: Batching, doing: str, *, each: int = 1
    ) -> None:
        self._variable = variable
        self._num = num
        self._doing = doing
        self._times = max(1, batching.times(variable) // each)
        self._end = num
        if batching.max_evals is not None:
            self._end = min(num, max(1, batching.max_evals // each))
        self._num_done = 0
        self.was_interrupted = False
        parts = -(-self._end // self._times)
        self._progress = Progress(doing, parts, wanted=batching.progress)

    def __enter__(self) -> Many:
        self._progress.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *others: Any) -> bool:
        self._progress.__exit__(kind, *others)
        self.was_interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        return self.was_interrupted and self._num_done > 0

    def __iter__(self) -> Iterator[range]:
        for first in range(0, self._end, self._times):
            part = range(first, min(first + self._times, self._end))
            yield part
            self._num_done = part.stop
            self._progress.advance(self._doing)

    @property
    def is_complete(self) -> bool:
        """Return whether all runs are done."""
        return self._num_done == self._num

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes on what was not run, and what ran by itself."""
        said = []
        if not self.is_complete:
            why = "interrupted" if self.was_interrupted else "stopped at max_evals"
            said.append(f"{why}: {count(self._num_done)} of {count(self._num)} runs are in it")
        return (*said, *single(self._variable))


def single(variable: Variable) -> tuple[str, ...]:
    """Return the note that forwards were made one by one, and why."""
    if not variable.why_single:
        return ()
    return (f"one run in each forward, since {variable.why_single}",)


def spread_order(num: int) -> list[int]:
    """Return the numbers below ``num``, so that the first few already lie all over them.

    By multiples of the golden ratio modulo 1, which fill the gaps most evenly (Knuth, The Art of
    Computer Programming, volume 3, section 6.4).

    Example:
        >>> spread_order(5)
        [0, 2, 4, 1, 3]
    """
    return sorted(range(num), key=lambda place: place * 0.6180339887498949 % 1)

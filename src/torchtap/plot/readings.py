"""Numbers of many sites over all steps, and what is to be said of them in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtap.core.errors import InputError
from torchtap.core.text import count, number, plural

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchtap.core.site import Site
    from torchtap.runs.run import Run
    from torchtap.runs.select import Where

    Array = NDArray[Any]

_NOUNS = {
    "input": "inputs",
    "output": "outputs",
    "grad_input": "gradients of inputs",
    "grad_output": "gradients of outputs",
    "param": "parameters",
    "param_grad": "gradients of parameters",
    "step_grad": "gradients that steps used",
    "update": "updates",
    "buffer": "buffers",
    "saved": "saved tensors",
}
_SHOWN = 60
"""Characters of a site in a sentence."""


@dataclass(frozen=True, slots=True)
class Readings:
    """One number of several sites over the steps of a run.

    Attributes:
        name: of the number.
        sites: by module, port and leaf.
        steps: ``int64[S]``.
        values: ``float64[N, S]``; NaN where there is none.
        is_there: where the site was measured, ``bool[N, S]``.
        nonfinite: NaN and infinite elements of the tensors, ``float64[N, S]``; 0 where the site
            was not measured.
    """

    name: str
    sites: tuple[Site, ...]
    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    is_there: NDArray[np.bool_]
    nonfinite: NDArray[np.float64]

    def line(self, place: int) -> tuple[Array, Array]:
        """Steps and values of one site: those in which it was measured, with gaps at NaN."""
        values, bad = self.values[place], self.nonfinite[place] > 0
        kept = np.isfinite(values) | np.isinf(values) | (self.is_there[place] & bad)
        return self.steps[kept], values[kept]

    @property
    def what(self) -> str:
        """Return the sites as a person would name them: ``12 outputs``, or the one by its name."""
        return name_sites(self.sites)

    def words(self) -> list[str]:
        """Sentences: the range, and what is not finite, or not there."""
        return [one for one in (self.range_words(), self.bad_words(), self._gap_words()) if one]

    def range_words(self) -> str:
        """Return the least and the largest value, and where they are."""
        if not np.isfinite(self.values).any():
            return "No finite value."
        low = self._place(np.where(np.isfinite(self.values), self.values, np.inf).argmin())
        high = self._place(np.where(np.isfinite(self.values), self.values, -np.inf).argmax())
        if self.values[low] == self.values[high]:
            return f"Constant: every value is {number(float(self.values[low]))}."
        return f"From {self._said(low)} to {self._said(high)}."

    def bad_words(self) -> str:
        """Say how many sites have NaN or Inf, and name the first."""
        bad = (self.nonfinite > 0) | np.isinf(self.values)
        if not bad.any():
            return ""
        sites, steps = bad.any(1), bad.any(0)
        step = int(steps.argmax())
        first = int(bad[:, step].argmax())
        where = f"in {plural(int(sites.sum()), 'site')}, " if len(self.sites) > 1 else ""
        at = f" at {shown(self.sites[first])}" if len(self.sites) > 1 else ""
        return (
            f"NaN or Inf (magenta) {where}{plural(int(steps.sum()), 'step')}, first in step "
            f"{count(int(self.steps[step]))}{at}."
        )

    def _gap_words(self) -> str:
        measured = self.is_there.sum(1)
        never = int((~np.isfinite(self.values)).all(1).sum())
        least = int(measured.min()) if len(measured) else 0
        said = []
        if least < len(self.steps) and len(self.steps):
            own = f"{count(least)} of {plural(len(self.steps), 'step')}"
            said.append(
                f"{'Some sites were' if len(self.sites) > 1 else 'It was'} measured in {own}."
            )
        known = (np.isfinite(self.values) | (self.nonfinite > 0)).any(0)
        there = self.is_there.any(0)
        if known.sum() < there.sum() and known.any():
            said.append(f"{self.name} is known of {count(int(known.sum()))} steps.")
        if never and len(self.sites) > 1:
            said.append(f"{plural(never, 'site')} without a finite value.")
        return " ".join(said)

    def _place(self, flat: Any) -> tuple[int, int]:
        row, col = divmod(int(flat), len(self.steps))
        return row, col

    def _said(self, place: tuple[int, int]) -> str:
        at = f"{shown(self.sites[place[0]])}, " if len(self.sites) > 1 else ""
        return f"{number(float(self.values[place]))} ({at}step {count(int(self.steps[place[1]]))})"


def read(run: Run, where: Where, name: str) -> Readings:
    """Read one number of the sites that fit.

    Raises:
        SiteError: nothing fits, or there is no such number.
        InputError: it is no number.
    """
    sites = run.select(where)
    steps = np.asarray(run.steps, dtype=np.int64)
    values = np.stack([run.array(site, name) for site in sites])
    tensors = np.stack([run.array(site, "num_tensors") for site in sites])
    bad = np.stack([run.array(site, "nonfinite") for site in sites])
    there = np.isfinite(tensors)
    return Readings(name, tuple(sites), steps, values, there, np.where(there, bad, 0.0))


def name_sites(sites: Sequence[Site]) -> str:
    """Sites as a person would name them.

    Example:
        >>> from torchtap.core.site import Site
        >>> name_sites([Site("fc")]), name_sites([Site("a"), Site("b", "output", "1")])
        ('fc:output', '2 outputs')
    """
    if len(sites) == 1:
        return shown(sites[0])
    ports = {site.port for site in sites}
    return f"{count(len(sites))} {_NOUNS[ports.pop()] if len(ports) == 1 else 'sites'}"


def shown(site: Site) -> str:
    """Return a site in a sentence, shortened where its name is long."""
    text = str(site)
    return text if len(text) <= _SHOWN else f"{text[:24]}…{text[-35:]}"


def need_run(run: object, figure: str) -> None:
    """Refuse what is no run.

    Raises:
        InputError: it is none.
    """
    if not hasattr(run, "select") or not hasattr(run, "meta"):
        raise InputError(
            f"tt.plot.{figure} draws a run, not a {type(run).__name__}: give w.run of a watch, or "
            f"tt.open(PATH)."
        )

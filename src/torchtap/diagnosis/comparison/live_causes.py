"""Why a call of two modules differs: found by experiment, or by what stands beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torchtap.diagnosis.comparison.alignment import Pair
from torchtap.diagnosis.comparison.code_between_calls import Alone, between
from torchtap.diagnosis.comparison.experiments import Found, experiment
from torchtap.diagnosis.comparison.feeding import Feeder
from torchtap.diagnosis.comparison.run_rows import Compared, lacking
from torchtap.diagnosis.comparison.settings import other_settings
from torchtap.runs.meta import Meta


@dataclass(frozen=True, slots=True, eq=False)
class LiveCauses:
    """Finds causes by experiment.

    Attributes:
        feeder: gives what feeds a pair of calls, or ``None``.
        metas: what the modules of both were set to.
        found: calls and states that were compared.
        alone: calls of one side alone.
        homes: path -> path in the candidate.
    """

    feeder: Callable[[Pair, Mapping[str, str]], Feeder | None]
    metas: tuple[Meta, Meta]
    found: Sequence[Compared]
    alone: Alone
    homes: Mapping[str, str]

    def why(self, one: Compared) -> tuple[str, str]:
        """Return the cause of a row that adds a difference, and a sentence."""
        if one.states is not None:
            return self._of_state(one)
        assert one.pair is not None
        name = one.row.name
        if one.row.phase == "backward":
            return "computation", (
                f"The forward agrees; {name} gets the same gradient and gives another one back."
            )
        feeder = self.feeder(one.pair, self.homes)
        shown = None if feeder is None else experiment(feeder, one.row.tolerance)
        head = f"{name} gets the same input and returns another output"
        if shown is not None and shown.cause:
            return shown.cause, f"{head} (by {one.row.added:.2g}): {shown.text}."
        if one.pair.one.is_leaf:
            return self._of_leaf(one, one.pair, shown)
        cause, text = between(one, self.found, self.alone)
        return cause, f"{name}:{one.row.port} is {one.total.why}. {text}" if one.total.why else text

    def _of_leaf(self, one: Compared, pair: Pair, shown: Found | None) -> tuple[str, str]:
        name = one.row.name
        head = f"{name}:{one.row.port} is {one.total.why}. " if one.total.why else ""
        mine, theirs = pair.one.traits, pair.two.traits
        if mine.type == theirs.type and mine.sizes != theirs.sizes:
            sizes = (", ".join(map(str, each.sizes)) for each in (mine, theirs))
            return "weights", f"{head}Its weights have {next(sizes)} elements, and {next(sizes)}."
        settings = other_settings(self.metas, pair.one.path, pair.two.path)
        types = f" ({mine.type} against {theirs.type})" if mine.type != theirs.type else ""
        same = f" from {shown.text}" if shown is not None else ""
        why = f" ({settings})" if settings and not types else ""
        return "computation", f"{head}{name}{types} computes something else{same}{why}."

    def _of_state(self, one: Compared) -> tuple[str, str]:
        leaf, name = one.total.leaf, one.row.name
        if one.states is not None and (lack := lacking(*one.states)):
            return "missing", f"{name}: {lack}. It is frozen, or cut off from the output."
        much = one.total.why or f"differs by {one.row.total:.2g}"
        if one.row.port in ("param", "buffer"):
            cause = "weights" if one.row.port == "param" else "buffers"
            return cause, f"{one.row.port} {leaf} of {name} {much}; no output shows it."
        return "computation", (
            f"The forward agrees, and the gradient of {leaf} of {name} {much}; the calls agree "
            f"when they are given the same, so what stands between them has another backward."
        )

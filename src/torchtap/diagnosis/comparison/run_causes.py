"""Why a call of two runs differs, as far as what was recorded tells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchtap.core.ports import BY_NAME
from torchtap.diagnosis.comparison.code_between_calls import Alone, between
from torchtap.diagnosis.comparison.distance import distance
from torchtap.diagnosis.comparison.rounding import rounding
from torchtap.diagnosis.comparison.run_rows import (
    Compared,
    dtypes_of_pair,
    lacking,
    num_terms_of,
)
from torchtap.diagnosis.comparison.settings import differing, other_mode, other_settings
from torchtap.diagnosis.comparison.step_calls import is_below
from torchtap.runs.run import Run


@dataclass(frozen=True, slots=True, eq=False)
class RunCauses:
    """Finds causes in what two runs hold.

    Attributes:
        found: calls and states that were compared.
        alone: calls of one side alone.
        runs: both.
    """

    found: Sequence[Compared]
    alone: Alone
    runs: tuple[Run, Run]

    def why(self, one: Compared) -> tuple[str, str]:
        """Return the cause of a row that adds a difference, and a sentence."""
        if one.states is not None:
            return self._of_state(one)
        if math.isinf(one.row.total) and one.total.why and not self._differing(one, "param"):
            return "computation", f"{one.row.name}:{one.row.port}: {one.total.why}."
        if one.row.phase == "backward":
            return self._of_gradient(one)
        for port, cause in (("param", "weights"), ("buffer", "buffers")):
            state = self._differing(one, port)
            if state is not None:
                what = (
                    f"{one.row.name}:{one.row.port} is {one.total.why}. " if one.total.why else ""
                )
                return cause, f"{what}{self._head(one)} {_said_state(state)}."
        return self._mode(one) or self._dtype(one) or self._rest(one)

    def _head(self, one: Compared) -> str:
        return f"{one.row.name} gets the same and returns something else:"

    def _of_state(self, one: Compared) -> tuple[str, str]:
        if one.states is not None and (lack := lacking(*one.states)):
            return "missing", f"{one.row.name}: {lack}."
        cause = {"param": "weights", "buffer": "buffers"}.get(one.row.port, "computation")
        said = f"{_said_state(one)}, and no value that flows was seen to differ before."
        if BY_NAME[one.row.port].taken == "optimizer":
            settings = self._optimizers(one)
            said += f" {settings or 'The optimizer, its settings or its state differ'}."
        return cause, said

    def _optimizers(self, one: Compared) -> str:
        """Say which settings of the optimizer differ for a parameter."""
        groups = []
        for run, path in zip(self.runs, (one.row.path, one.row.other), strict=True):
            name = one.total.leaf if path == "." else f"{path}.{one.total.leaf}"
            held = (group for group in run.meta.optimizers if name in group["params"])
            groups.append(next(held, {}))
        return differing(groups[0], groups[1], leave_out=("params",))

    def _of_gradient(self, one: Compared) -> tuple[str, str]:
        if one.row.port == "grad_output":
            outer = "the loss, its target, or what follows the model"
            what = outer if one.row.path == "." else "the backward of what follows"
            return "input", (
                f"The forward agrees, and the gradient that arrives at {one.row.name} differs: "
                f"{what}."
            )
        return "computation", (
            f"The forward agrees, {one.row.name} gets the same gradient and gives another one back."
        )

    def _differing(self, one: Compared, port: str) -> Compared | None:
        """Return the state of a call's module that differs most."""
        path = "" if one.row.path == "." else str(one.row.path)
        own = [
            other
            for other in self.found
            if other.states is not None
            and other.row.port == port
            and other.row.is_beyond
            and (other.states[0].path == path or is_below(other.states[0].path, path))
        ]
        return max(own, key=lambda other: other.row.total, default=None)

    def _mode(self, one: Compared) -> tuple[str, str] | None:
        """Modes as they were recorded; dropout also shows its own: in eval mode it does nothing."""
        assert one.pair is not None
        pair = one.pair
        metas = self.runs[0].meta, self.runs[1].meta
        said = other_mode(metas, pair.one.path, pair.two.path, pair.one.traits.type)
        if said:
            return "mode", f"{self._head(one)} {said}."
        if not all("Drop" in call.traits.type for call in (pair.one, pair.two)):
            return None
        idle = [_hands_on(call.port("input"), call.port("output")) for call in (pair.one, pair.two)]
        if None in idle:
            return None
        if idle[0] == idle[1]:
            return "random", f"{self._head(one)} both draw random numbers, and drew other ones."
        names = ("reference", "candidate") if idle[0] else ("candidate", "reference")
        return "mode", f"{self._head(one)} in the {names[0]} it drops nothing, as in eval mode."

    def _dtype(self, one: Compared) -> tuple[str, str] | None:
        assert one.pair is not None
        sides = [sorted(set(_dtypes(call.values))) for call in (one.pair.one, one.pair.two)]
        explained = rounding(
            dtypes_of_pair(one.pair), num_terms_of(one.pair), num_calls=one.pair.one.num_inside
        )
        if sides[0] == sides[1] or one.row.total > explained:
            return None
        text = f"{self._head(one)} {', '.join(sides[0])} against {', '.join(sides[1])}"
        return "dtype", f"{text}, which explains {explained:.2g}."

    def _rest(self, one: Compared) -> tuple[str, str]:
        assert one.pair is not None
        cause, text = between(one, self.found, self.alone)
        metas = self.runs[0].meta, self.runs[1].meta
        settings = other_settings(metas, one.pair.one.path, one.pair.two.path)
        if settings and cause == "computation":
            return cause, f"{text.removesuffix('.')} ({settings})."
        unseen = [
            port
            for port in ("input", "param", "buffer")
            if not self._recorded(port) and (port != "param" or self._has_parameters(one))
        ]
        if unseen and cause == "computation":
            text += (
                f" Not recorded: {', '.join(unseen)}; watch with '*:input,output,param,buffer' to "
                f"tell what it is given from what it does."
            )
        return cause, text

    def _recorded(self, port: str) -> bool:
        return all(any(site.port == port for site in run.sites) for run in self.runs)

    def _has_parameters(self, one: Compared) -> bool:
        assert one.pair is not None
        counts: Mapping[str, int] = self.runs[0].meta.num_parameters
        return bool(one.pair.one.traits.sizes) or not counts


def _said_state(one: Compared) -> str:
    leaf = one.total.leaf
    port = f"{one.row.port} {leaf}".strip()
    much = one.total.why or f"by {one.row.total:.2g}"
    return f"{port} of {one.row.name} differs {much}"


def _hands_on(inputs: Mapping[str, object], outputs: Mapping[str, object]) -> bool | None:
    if not inputs or len(inputs) != len(outputs):
        return None
    return distance(inputs, outputs).error == 0  # type: ignore[arg-type]


def _dtypes(values: Mapping[str, Mapping[str, object]]) -> list[str]:
    from torchtap.diagnosis.comparison.distance import dtypes_of

    return [dtype for value in values.values() for dtype in dtypes_of(value)]  # type: ignore[arg-type]

"""The results of a check, in a table, with the meaning of each number."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from torchtap.core.errors import InputError, MissingExtraError
from torchtap.core.printed import Printed
from torchtap.core.printed_page import BLANK, Grid, Line, Listed, Page, Part
from torchtap.core.text import NONE, Cell, count, number
from torchtap.explain.maps.map_page import title_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from torchtap.explain.checks.curves import Curve
    from torchtap.explain.maps.map_values import MapValues

Of = Literal["probability", "score"]

SMALL_GAP = 0.01
LITTLE_CHANGE = 0.5
_MEANINGS = {
    "completeness gap": "what the map adds up to, less the difference of the scores that it should "
    "explain, over that difference; 0 is exact.",
    "made again": "rank correlation with the map made anew; below 1 the model, its inputs or the "
    "random numbers have changed since.",
    "deletion area": "below the {of} while the places are replaced, the most important first "
    "(Petsiuk et al. 2018). Good maps lie below the random ones: the same values at random places.",
    "insertion area": "below the {of} while the places come back into what is blurred or empty. "
    "Good maps lie above the random ones.",
    "random weights": "Spearman's rank correlation with the map of a copy with random weights "
    "(Adebayo et al. 2018). Near 0 the map depends on what was learned; near 1 it shows the input.",
    "noise": "largest change of the map under noise too small to see, over its norm (Yeh et al. "
    "2019). Above 1 the map under noise is another map.",
}


@dataclass(frozen=True, eq=False, repr=False)
class Check(Printed):
    """The result of ``Map.check``: a table of what the map is worth, and pictures.

    Attributes:
        map: what was checked.
        of: whether the curves are of the ``probability`` of the class or of the ``score``.
        gap: completeness gap over the difference of the scores that the map should add up to,
            ``float64[B]``; ``None`` where the method promises none.
        repeat: rank correlation with the map made again as it was, ``float64[B]``.
        deletion: the curve when places are taken away; ``None`` where it was not measured.
        insertion: the curve when places are put in.
        random_weights: rank correlation with the map of the model with random weights, the mean
            over the draws, ``float64[B]``; NaN where that map is constant.
        random_map: the map of the first draw.
        noise: the largest relative change of the map under small noise, ``float64[B]``.
        noisy_map: the map that changed most.
        missing: part -> why it was not measured.
        num_evals: how often the model was run, on all rows.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Linear(3, 1, bias=False)
        >>> _ = model.weight.data.copy_(torch.tensor([[3.0, 2.0, 1.0]]))
        >>> found = tt.attribute(model, torch.ones(1, 3), method="input_x_gradient")
        >>> check = found.check(steps=3, of="score")
        >>> check.deletion.scores  # 6, and without the largest, the two largest, all.
        tensor([[6., 3., 1., 0.]], dtype=torch.float64)
    """

    map: MapValues
    of: Of
    gap: Tensor | None = None
    repeat: Tensor | None = None
    deletion: Curve | None = None
    insertion: Curve | None = None
    random_weights: Tensor | None = None
    random_map: MapValues | None = None
    noise: Tensor | None = None
    noisy_map: MapValues | None = None
    missing: tuple[tuple[str, str], ...] = ()
    num_evals: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers of each row, for JSON."""
        curves = {
            f"{name}_{what}": None if one is None else getattr(one, what).tolist()
            for name, one in (("deletion", self.deletion), ("insertion", self.insertion))
            for what in ("area", "control_areas")
        }
        numbers = {
            name: None if value is None else value.tolist()
            for name, value in (
                ("gap", self.gap),
                ("repeat", self.repeat),
                ("random_weights", self.random_weights),
                ("noise", self.noise),
            )
        }
        rest = {"of": self.of, "missing": dict(self.missing), "num_evals": self.num_evals}
        return {**numbers, **curves, **rest}

    def to_figure(self, row: int = 0) -> Figure:
        """Draw the curves, and the map beside that of random weights and that under noise.

        Args:
            row: which.

        Raises:
            InputError: there is no such row.
            MissingExtraError: matplotlib is not installed.
        """
        from torchtap.plot.checked import checked_figure

        if not 0 <= row < len(self.map):
            raise InputError(f"row is {row}, and the map has {len(self.map)} rows.")
        curves = {
            name: (
                one.shares.numpy(),
                one.scores[row].numpy(),
                one.control[:, row].numpy(),
                float(one.area[row]),
            )
            for name, one in (("deletion", self.deletion), ("insertion", self.insertion))
            if one is not None
        }
        maps = {
            name: one.arrays(row)[0]
            for name, one in (
                ("the map", self.map),
                ("random weights", self.random_map),
                ("under noise", self.noisy_map),
            )
            if one is not None
        }
        title = f"Check of {title_of(self.map)}"
        return checked_figure(
            curves, maps, title=title, of=self.of, note=f"row {row}" if len(self.map) > 1 else ""
        )

    def _page(self) -> Page:
        return check_page(self)

    def _repr_html_(self) -> str:
        from torchtap.plot.extras import drawn_tag

        said = super()._repr_html_()
        if not len(self.map):
            return said
        try:
            return said + drawn_tag(self.to_figure(), "curves and maps")
        except MissingExtraError:
            return said


def check_page(check: Check) -> Page:
    """Return the report of a check."""
    several = len(check.map) > 1
    rows = [row for row in _rows(check) if row is not None]
    heads = ["measure", "mean of rows" if several else "value", "beside", "reads as"]
    parts: list[Part] = [Line(f"Check of {title_of(check.map)}", "head"), BLANK]
    if rows:
        parts.append(Grid(rows, heads, "lrle"))
    if check.missing:
        parts += [BLANK, Listed(check.missing, "Not measured:")]
    meanings = [(name, _MEANINGS[name].format(of=check.of)) for name, *_ in rows]
    if meanings:
        parts += [BLANK, Listed(meanings, "What they mean:")]
    parts += [BLANK, Line(f"{count(check.num_evals)} runs of the model", "dim")]
    return Page(*parts)


_Row = tuple[str, str, str, Cell]


def _rows(check: Check) -> list[_Row | None]:
    return [
        _gap(check),
        _repeat(check),
        _area("deletion area", check.deletion, sign=-1),
        _area("insertion area", check.insertion, sign=1),
        _random(check),
        _noise(check),
    ]


def _gap(check: Check) -> _Row | None:
    if check.gap is None:
        return None
    value = _mean(check.gap)
    verdict = Cell("adds up", "good") if value <= SMALL_GAP else Cell("does not add up", "bad")
    return "completeness gap", number(value), _worst(check.gap), verdict


def _repeat(check: Check) -> _Row | None:
    if check.repeat is None:
        return None
    value = _mean(check.repeat)
    is_same = bool((check.repeat == 1).all())
    verdict = Cell("the same map", "good") if is_same else Cell("another map", "bad")
    return "made again", number(value), NONE, verdict


def _area(name: str, curve: Curve | None, *, sign: int) -> _Row | None:
    if curve is None:
        return None
    value, controls = _mean(curve.area), curve.control_areas.nanmean(1).tolist()
    low, high = min(controls), max(controls)
    beside = f"{number(low)} to {number(high)} of random maps"
    if not (math.isfinite(value) and math.isfinite(low)):
        return name, number(value), beside, Cell("not known", "bad")
    if sign * value > max(sign * control for control in controls):
        return name, number(value), beside, Cell("better than random maps", "good")
    return name, number(value), beside, Cell("no better than random maps", "bad")


def _random(check: Check) -> _Row | None:
    if check.random_weights is None:
        return None
    value = _mean(check.random_weights)
    if math.isnan(value):
        verdict = Cell("with random weights the map is constant")
    elif value < LITTLE_CHANGE:
        verdict = Cell("depends on the weights", "good")
    else:
        verdict = Cell("hardly depends on the weights", "bad")
    return "random weights", number(value), _worst(check.random_weights), verdict


def _noise(check: Check) -> _Row | None:
    if check.noise is None:
        return None
    value = _mean(check.noise)
    verdict = Cell("stable", "good") if value < LITTLE_CHANGE else Cell("unstable", "bad")
    return "noise", number(value), _worst(check.noise), verdict


def _mean(values: Tensor) -> float:
    return float(values.nanmean())


def _worst(values: Tensor) -> str:
    return NONE if len(values) < 2 else f"worst row {number(float(values.nan_to_num(0).max()))}"

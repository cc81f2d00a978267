"""Check how far to trust a map, with numbers and the meaning of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchtap.core.errors import CaptureError, InputError
from torchtap.core.progress import Progress
from torchtap.core.text import count
from torchtap.explain.checks.check_result import Check, Of
from torchtap.explain.checks.curves import Orders, curve, num_runs
from torchtap.explain.checks.perturb import Ground, blurred, ground_of, mean_fill, varied
from torchtap.explain.checks.randomise import randomised
from torchtap.explain.checks.rank_agreement import spearman

if TYPE_CHECKING:
    from torchtap.explain.maps.map_values import MapValues
    from torchtap.explain.recipe import Recipe

PARTS = ("repeat", "deletion", "insertion", "random_weights", "noise")
"""Parts of a check, in the order in which they are measured."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of ``Map.check``, which explains them."""

    parts: tuple[str, ...]
    steps: int
    of: Of
    num_controls: int
    num_random: int
    num_noise: int
    noise: float
    baseline: float | Tensor | None
    batch_size: int
    max_evals: int | None
    seed: int

    def __post_init__(self) -> None:
        for part in self.parts:
            if part not in PARTS:
                raise InputError(f"parts has {part!r}; expected some of {', '.join(PARTS)}.")
        least = dict.fromkeys(("steps", "num_controls", "num_random", "num_noise", "batch_size"), 1)
        if self.max_evals is not None:
            least["max_evals"] = 1
        for name, low in least.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise InputError(f"{name} is {value!r}; expected a whole number from {low}.")
        if not 0 < self.noise < float("inf"):
            raise InputError(
                f"noise is {self.noise!r}; expected a share of the input's range above 0."
            )
        if self.of not in ("probability", "score"):
            raise InputError(f"of is {self.of!r}; expected 'probability' or 'score'.")


def check(map_: MapValues, recipe: Recipe[MapValues], how: Settings) -> Check:
    """Check a map, for ``Map.check``.

    Args:
        map_: what is checked.
        recipe: how it is made anew.
        how: the arguments.
    """
    if not len(map_):
        raise InputError("The map has no row: there is nothing to check.")
    checking = _Checking(map_, recipe, how)
    runs = num_runs(1 + how.num_controls, how.steps)
    chunks = -(-runs // max(1, how.batch_size // len(map_)))
    total = 1 + 2 * chunks + how.num_random + how.num_noise
    # A copy that is made in inference mode could not be differentiated.
    with torch.inference_mode(False), Progress("checking", total) as checking.progress:
        checking.part("repeat", checking.repeat, 1)
        checking.part("deletion", lambda: checking.curve("deletion"), runs)
        checking.part("insertion", lambda: checking.curve("insertion"), runs)
        checking.part("random_weights", checking.random, how.num_random)
        checking.part("noise", checking.noise, how.num_noise)
    return checking.result()


@dataclass(frozen=True, eq=False, slots=True)
class _Places:
    """The places that the curves take away and put in.

    Attributes:
        ground: what the map lies over.
        orders: of its places.
        fill: ``[B, ...]``, what is left where places were taken away.
        blur: ``[B, ...]``, what there is before places were put in.
        usable: which rows have an order, ``bool[B]``.
    """

    ground: Ground
    orders: Orders
    fill: Tensor
    blur: Tensor
    usable: Tensor


class _Checking:
    """One check: what was found so far, and what it has cost.

    A part that fails, costs more than is left, or comes after an interrupt is missing, with its
    reason; the others stand.
    """

    def __init__(self, map_: MapValues, recipe: Recipe[MapValues], how: Settings) -> None:
        self.map = map_
        self.recipe = recipe
        self.how = how
        self.progress: Progress | None = None
        self._generator = torch.Generator().manual_seed(how.seed)
        self._num_evals = 0
        self._cost = 1
        self._last_cost = 1
        self._missing: dict[str, str] = {}
        self._found: dict[str, Any] = {}
        self._is_interrupted = False
        self._places: _Places | None = None
        # A class that is the only one has the probability 1 whatever is taken away.
        self._of: Of = how.of if recipe.target.has_probability else "score"

    def part(self, name: str, measure: Callable[[], None], runs: int) -> None:
        """Measure one part, if it may be."""
        if name not in self.how.parts:
            return
        if self._is_interrupted:
            self._missing[name] = "interrupted"
            return
        is_of_maps = name not in ("deletion", "insertion")
        cost = runs * (self._cost if is_of_maps else 1)
        left = None if self.how.max_evals is None else self.how.max_evals - self._num_evals
        if left is not None and cost > left:
            self._missing[name] = (
                f"needs {count(cost)} runs of the model, and max_evals={self.how.max_evals} leaves "
                f"{count(max(left, 0))}"
            )
        else:
            self._generator.manual_seed(self.how.seed)  # No part depends on those before it.
            try:
                measure()
            except (InputError, CaptureError) as error:
                self._missing[name] = str(error).rstrip(".")
            except KeyboardInterrupt:
                self._is_interrupted = True
                self._missing[name] = "interrupted"

    def repeat(self) -> None:
        """Make the map again as it was: measure what it costs, and whether it is the same."""
        values = self._made()
        self._cost = max(self._last_cost, 1)
        self._found["repeat"] = _correlations(self.map, values)
        same = torch.allclose(
            values.values.double(), self.map.values.double(), rtol=1e-3, atol=1e-6, equal_nan=True
        )
        if same:
            self._found["repeat"] = torch.ones(len(self.map), dtype=torch.float64)
        self._advance("repeat")

    def curve(self, name: str) -> None:
        """Deletion or insertion, over what the map lies over."""
        with self._counted(), varied(self.recipe, self._of) as variable:
            if self._places is None:
                self._places = self._ordered(variable.value)
            places = self._places
            base = variable.value
            start, end = (base, places.fill) if name == "deletion" else (places.blur, base)
            deletion = curve(
                variable,
                places.ground,
                places.orders,
                start=start,
                end=end,
                steps=self.how.steps,
                batch_size=self.how.batch_size,
                after_each=lambda: self._advance(name),
            )
        usable = places.usable
        scores = deletion.scores.where(usable[:, None], torch.nan)
        control = deletion.control.where(usable[None, :, None], torch.nan)
        self._found[name] = replace(deletion, scores=scores, control=control)

    def _ordered(self, base: Tensor) -> _Places:
        if self.map.num_stacked:
            raise InputError(
                f"{self.map.num_stacked} layers are stacked, which give no one order; ask for one"
            )
        faults = self.map.faults
        if all(faults):
            raise InputError(f"the map gives no order of places ({faults[0]})")
        ground = ground_of(self.map, self.recipe, base)
        fill, blur = _fills(ground, self.how.baseline)
        controls = [ground.weights(self._shuffled()) for _ in range(self.how.num_controls)]
        orders = Orders.of(ground.weights(self.map), controls, self._generator)
        return _Places(ground, orders, fill, blur, torch.tensor([not fault for fault in faults]))

    def random(self) -> None:
        """Compare with the map of the model with random weights."""
        draws = []
        for number in range(self.how.num_random):
            twin = randomised(self.recipe.subject.model, self._generator)
            values = self._made(model=twin)
            if torch.equal(values.scores, self.map.scores):
                raise InputError(
                    "the copy of the model with random weights gave the same scores: it does not "
                    "use its own parameters"
                )
            self._found.setdefault("random_map", values.detached())
            draws.append(_correlations(self.map, values))
            self._advance(f"random weights {number + 1}")
        self._found["random_weights"] = torch.stack(draws).nanmean(0)

    def noise(self) -> None:
        """Measure the largest relative change of the map under uniform noise (Yeh et al. 2019)."""
        name = self.recipe.over
        base = self.recipe.subject.inputs.get(name)
        if base is None or not base.is_floating_point():
            kind = "none" if base is None else str(base.dtype).removeprefix("torch.")
            raise InputError(f"noise is added to a floating input, and the map's input is {kind}")
        dims = tuple(range(1, base.dim()))
        reach = self.how.noise * (base.detach().amax(dims, True) - base.detach().amin(dims, True))
        own = self.map.values.double().flatten(1)
        worst: Tensor | None = None
        for number in range(self.how.num_noise):
            drawn = torch.rand(base.shape, generator=self._generator, dtype=torch.float64)
            moved = base.detach() + reach * (2 * drawn - 1).to(base)
            values = self._made(inputs={name: moved})
            change = (values.values.double().flatten(1) - own).norm(dim=1) / own.norm(dim=1)
            if worst is None or bool((change > worst).any()):
                self._found["noisy_map"] = values.detached()
            worst = change if worst is None else torch.maximum(worst, change)
            self._advance(f"noise {number + 1}")
        self._found["noise"] = worst

    def result(self) -> Check:
        """Return the numbers that were measured so far."""
        return Check(
            self.map,
            self._of,
            gap=_relative_gap(self.map),
            missing=tuple(self._missing.items()),
            num_evals=self._num_evals,
            **self._found,
        )

    def _made(self, **changes: Any) -> MapValues:
        subject = self.recipe.subject.changed(**changes)
        try:
            values = self.recipe.make(subject, self.recipe.target)
        finally:
            self._last_cost = subject.num_evals
            self._num_evals += subject.num_evals
        if values.values.shape != self.map.values.shape:
            raise InputError(
                f"the map made again is {tuple(values.values.shape)} and was "
                f"{tuple(self.map.values.shape)}"
            )
        return values

    @contextmanager
    def _counted(self) -> Iterator[None]:
        before = self.recipe.subject.num_evals
        try:
            yield
        finally:
            self._num_evals += self.recipe.subject.num_evals - before

    def _shuffled(self) -> MapValues:
        """Return the same values at random places: as coarse as the map, and knowing nothing."""
        values = self.map.values.flatten(1)
        order = torch.rand(values.shape, generator=self._generator).argsort(1)
        return replace(self.map, values=values.gather(1, order).reshape(self.map.values.shape))

    def _advance(self, doing: str) -> None:
        assert self.progress is not None
        self.progress.advance(f"checking: {doing}")


def _fills(ground: Ground, baseline: float | Tensor | None) -> tuple[Tensor, Tensor]:
    base = ground.base
    if baseline is not None:
        given = torch.as_tensor(baseline, dtype=base.dtype, device=base.device)
        try:
            fill = given.expand_as(base)
        except RuntimeError as error:
            raise InputError(
                f"baseline is {tuple(given.shape)}, and the map lies over {tuple(base.shape)}"
            ) from error
        return fill, fill
    if not base.is_floating_point():
        raise InputError(
            f"the map lies over {str(base.dtype).removeprefix('torch.')} numbers, of which none "
            f"means nothing; give baseline=, as the number of a mask token"
        )
    return mean_fill(ground), blurred(ground)


def _correlations(one: MapValues, two: MapValues) -> Tensor:
    pairs = zip(one.values, two.values, strict=True)
    return torch.tensor([spearman(first, second) for first, second in pairs], dtype=torch.float64)


def _relative_gap(map_: MapValues) -> Tensor | None:
    if map_.gap is None:
        return None
    gap = map_.gap.double()
    total = map_.values.double().flatten(1).sum(1)
    share = gap.abs() / (total - gap).abs()
    return share.masked_fill(gap == 0, 0)  # A row that is its baseline is complete: 0 of 0.

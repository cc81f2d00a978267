"""Attribution by the loss of score when a part of the value is taken away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import ceil

import torch
from torch import Tensor

from torchtap.core.errors import InputError
from torchtap.core.tensors import kind_of
from torchtap.explain.attributions.attribution_result import AttributionResult, wide
from torchtap.explain.attributions.feature_mask import features_of
from torchtap.explain.attributions.many_runs import Batching, Many, check_count, spread_order
from torchtap.explain.attributions.noise import Seed, generator_of
from torchtap.explain.attributions.variable import Variable

Lengths = int | Sequence[int]


def occlusion(
    variable: Variable,
    *,
    batching: Batching,
    sliding_window_shapes: Lengths | None = None,
    strides: Lengths | None = None,
    baselines: float | Tensor | None = None,
) -> AttributionResult:
    """Zeiler and Fergus, "Visualizing and Understanding Convolutional Networks" (2014), section 4.

    A window slides over each row of the value and is filled from the baseline. An element gets the
    mean of what the score lost, over all windows that it was in.

    Args:
        variable: what it is made of.
        batching: how the windows are run.
        sliding_window_shapes: shape of the window, without the rows; by default an eighth of each
            length of a picture, all channels at once, and a single token.
        strides: steps of the window; by default half of a picture's window, and 1 elsewhere.
        baselines: what stands in the window: a number, or a tensor that broadcasts; 0.
    """
    shape = tuple(variable.value.shape[1:])
    window, steps = _window(variable.value, sliding_window_shapes, strides)
    windows = _windows(shape, window, steps)
    order = spread_order(len(windows))
    baseline = variable.spread(baselines, "baselines")
    total = torch.zeros(variable.value.shape, dtype=_kind(variable), device=variable.value.device)
    state = total, torch.zeros(shape, device=total.device)
    with Many(variable, len(windows), batching, "occluding") as many:
        for part in many:
            chosen = [windows[order[one]] for one in part]
            lost = _lost(variable, _filled(variable.value, baseline, chosen), len(chosen))
            state = _added(*state, chosen, lost)
    total, times = state
    notes = (*per_batch(variable), *many.notes)
    return AttributionResult(total / times, None, notes)  # NaN where no window has been.


def _kind(variable: Variable) -> torch.dtype:
    return wide(variable.base_scores).dtype


def _filled(value: Tensor, baseline: Tensor, windows: Sequence[tuple[slice, ...]]) -> Tensor:
    """Copies of the rows, each with another window filled from the baseline."""
    copies = value.repeat(len(windows), *[1] * (value.dim() - 1))
    apart = copies.view(len(windows), *value.shape)
    for place, window in enumerate(windows):
        inside = (slice(None), *window)
        apart[place][inside] = baseline[inside]
    return copies


def row_scores(variable: Variable, scores: Tensor, times: int) -> Tensor:
    """Scores of the rows of each copy, ``[times, rows]``; ``[times, 1]``, their sum, where they
    are not those of the rows."""
    scores = wide(scores).view(times, -1)
    return scores if variable.is_per_row else scores.sum(1, keepdim=True)


def per_batch(variable: Variable) -> tuple[str, ...]:
    """Return the note that each row shows the effect on something else than its own score."""
    if variable.is_per_row:
        return ()
    return ("the scores are not those of the rows: each row shows what changes their sum",)


def _lost(variable: Variable, values: Tensor, times: int) -> Tensor:
    """Return the loss of score of each row, ``[times, rows or 1]``."""
    scores = row_scores(variable, variable.scores(values, times), times)
    return row_scores(variable, variable.base_scores, 1) - scores


def _added(
    total: Tensor, times: Tensor, windows: Sequence[tuple[slice, ...]], lost: Tensor
) -> tuple[Tensor, Tensor]:
    """Anew and not in place: an interrupt finds the sum and the number as they belong together."""
    total, times = total.clone(), times.clone()
    ones = [1] * (total.dim() - 1)
    for window, own in zip(windows, lost, strict=True):
        total[(slice(None), *window)] += own.view(-1, *ones)
        times[window] += 1
    return total, times


def _windows(
    shape: Sequence[int], window: Sequence[int], steps: Sequence[int]
) -> list[tuple[slice, ...]]:
    """Return all places of a window; the last of each dimension may be cut off at the end."""
    starts = [
        [step * place for place in range(ceil((length - width) / step) + 1)]
        for length, width, step in zip(shape, window, steps, strict=True)
    ]
    return [
        tuple(
            slice(start, min(start + width, length))
            for start, width, length in zip(place, window, shape, strict=True)
        )
        for place in product(*starts)
    ]


def _window(
    value: Tensor, given: Lengths | None, strides: Lengths | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = tuple(value.shape[1:])
    if not shape:
        raise InputError(f"The value is {kind_of(value)}; expected rows with elements to occlude.")
    if given is not None:
        window = _lengths("sliding_window_shapes", given, shape)
    elif len(shape) == 1:
        window = (1,)
    elif len(shape) > 2:
        window = (shape[0], *(ceil(length / 8) for length in shape[1:]))
    else:
        raise InputError(
            f"The value is {kind_of(value)}, which may be channels by length or tokens by "
            f"features. Give sliding_window_shapes, as in {(shape[0], 1)} for one place of all "
            f"channels, or {(1, shape[1])} for one token."
        )
    if strides is not None:
        steps = _lengths("strides", strides, None, num=len(shape))
    elif given is None and len(shape) > 2:
        steps = tuple(max(1, length // 2) for length in window)
    else:
        steps = (1,) * len(shape)
    for width, step, length in zip(window, steps, shape, strict=True):
        if step > width and width < length:
            raise InputError(
                f"strides are {steps} and the window is {window}: elements between the windows "
                f"would never be occluded. Expected strides no longer than the window."
            )
    return window, steps


def _lengths(
    name: str, given: Lengths, most: Sequence[int] | None, *, num: int = 0
) -> tuple[int, ...]:
    num = num or len(most or ())
    lengths = (given,) * num if isinstance(given, int) else tuple(given)
    for length in lengths:
        check_count(name, length)
    fits = most is None or all(one <= limit for one, limit in zip(lengths, most, strict=False))
    if len(lengths) != num or not fits:
        limit = f", at most {tuple(most)}" if most is not None else ""
        raise InputError(
            f"{name} is {given!r}; expected a number for each of the {num} dimensions after the "
            f"rows{limit}."
        )
    return lengths


# ---------------------------------------------------------------------- permutation

Permute = Callable[[Tensor, Tensor], Tensor]


def feature_permutation(
    variable: Variable,
    *,
    batching: Batching,
    feature_mask: Tensor | None = None,
    n_samples: int = 1,
    seed: Seed = 0,
    perm_func: Permute | None = None,
) -> AttributionResult:
    """Fisher, Rudin and Dominici, "All Models are Wrong" (2019): one feature from other rows.

    Args:
        variable: what it is made of; several rows.
        batching: how the features are run.
        feature_mask: integers that broadcast to the value: elements of one number are permuted
            together; by default each element of a row is a feature.
        n_samples: how often each feature is permuted; the mean is taken.
        seed: of the permutations.
        perm_func: called as ``perm_func(value, mask)`` in place of a random permutation; returns
            the value with the elements where the mask is true taken from other rows.
    """
    check_count("n_samples", n_samples)
    value = variable.value
    if not variable.is_per_row or variable.num_rows < 2:
        raise InputError(
            f"The value is {kind_of(value)} with {len(variable.base_scores)} scores; permuting "
            f"features takes them from other rows: expected two rows or more with a score each."
        )
    features = features_of(value, feature_mask)
    random = _Rows(seed)
    permute = perm_func or random
    runs = [feature for feature in range(features.num) for _ in range(n_samples)]
    order = spread_order(len(runs))
    state = features.nothing(_kind(variable))
    with Many(variable, len(runs), batching, "permuting features") as many:
        for part in many:
            chosen = [runs[order[one]] for one in part]
            copies = torch.cat([permute(value, features.mask(one)) for one in chosen])
            state = features.added(*state, chosen, _lost(variable, copies, len(chosen)))
    return AttributionResult(features.at_elements(features.means(*state)), None, many.notes)


class _Rows:
    """Takes a feature of each row from another one, drawn without replacement."""

    def __init__(self, seed: Seed) -> None:
        self._generator = generator_of(seed)

    def __call__(self, value: Tensor, mask: Tensor) -> Tensor:
        own = self._generator
        order = torch.randperm(len(value), generator=own, device=own.device).to(value.device)
        return torch.where(mask, value[order], value)

"""A map in words: what it is of, and the range of each row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchtap.core.printed_page import BLANK, Grid, Line, Listed, Page, Part
from torchtap.core.printed_tokens import Tokens
from torchtap.core.text import NONE, Cell, clean, nonfinite, number, plural, share, typed
from torchtap.explain.maps.map_values import token_weights

if TYPE_CHECKING:
    from torchtap.explain.maps.map_values import MapValues

_MOST_ROWS = 20
_MOST_TOKENS = 10


def map_page(map_: MapValues) -> Page:
    """Return the report of a map."""
    shape = typed(str(map_.values.dtype).removeprefix("torch."), map_.values.shape)
    over = f", over {'x'.join(map(str, map_.size))}" if map_.size else ""
    parts: list[Part] = [Line(title_of(map_), "head"), Line(f"{shape}{over}"), BLANK]
    if not map_.is_per_row:
        parts.append(Line(_of_all(map_)))
    parts += [_table(map_)] if len(map_) else [Line("empty: no row")]
    for row, tokens in enumerate(map_.tokens or ()):
        parts += _read(map_, row, tokens)
    faults = [(f"row {row}", fault) for row, fault in enumerate(map_.faults) if fault]
    if faults:
        parts += [BLANK, Listed(faults, "Not drawn:", limit=_MOST_ROWS, tone="bad")]
    if map_.notes:
        parts += [BLANK, Listed([("", note) for note in map_.notes], "Notes:")]
    return Page(*parts)


def _of_all(map_: MapValues) -> str:
    """Scores that are not those of the rows."""
    total = number(float(map_.scores.double().sum()))
    gap = map_.gap
    of_all = f", gap {number(float(gap))}" if gap is not None and gap.numel() == 1 else ""
    return f"of all rows: {plural(len(map_.scores), 'score')}, sum {total}{of_all}"


def title_of(map_: MapValues) -> str:
    """Return method, place and target as text."""
    name = f" {map_.names[0]}" if len(map_.names) == 1 else ""
    return clean(f"{map_.method} at {map_.layer or 'the input'}, {map_.target_text}{name}")


def row_title(map_: MapValues, row: int) -> str:
    """Return the title of one row: what was explained, and its number."""
    kind = f"class {map_.target[row]}" if map_.target and map_.is_per_row else map_.target_text
    name = f" {map_.names[row]}" if map_.names else ""
    score = f", score {number(float(map_.scores[row]))}" if map_.is_per_row else ""
    return clean(f"{kind}{name}{score}")


def _table(map_: MapValues) -> Grid:
    heads = ["row", "target", "score", "sum", "min", "max", "zeros", "NaN/Inf"]
    rows = [_row(map_, row) for row in range(len(map_))]
    if map_.gap is not None and len(map_.gap) == len(map_):
        heads.append("gap")
        rows = [
            [*cells, number(float(one))] for cells, one in zip(rows, map_.gap.tolist(), strict=True)
        ]
    return Grid(rows, heads, "rl" + "r" * (len(heads) - 2), elastic={1: 12}, limit=_MOST_ROWS)


def _row(map_: MapValues, row: int) -> list[str | Cell]:
    values = map_.values[row].double()
    finite = values[torch.isfinite(values)]
    name = f" {map_.names[row]}" if map_.names else ""
    own = map_.target is not None and map_.is_per_row
    target = str(map_.target[row]) if own and map_.target else map_.target_text
    nan, inf = int(values.isnan().sum()), values.isinf()
    ends = [NONE, NONE, NONE]
    if finite.numel():
        ends = [number(float(one)) for one in (finite.sum(), finite.min(), finite.max())]
    return [
        str(row),
        f"{target}{name}",
        number(float(map_.scores[row])) if map_.is_per_row else NONE,
        *ends,
        share(int((values == 0).sum()), values.numel()),
        nonfinite(nan, int((inf & (values > 0)).sum()), int((inf & (values < 0)).sum())),
    ]


def _read(map_: MapValues, row: int, tokens: tuple[str, ...]) -> list[Part]:
    weights = token_weights(map_.values[row])
    finite = weights[torch.isfinite(weights)]
    reach = float(finite.abs().max()) if finite.numel() else 0.0
    total = float(finite.abs().sum())
    order = finite_order(weights)[:_MOST_TOKENS]
    rows = [
        [str(place), tokens[place], number(float(weights[place])), _part(weights[place], total)]
        for place in order
    ]
    heads = ("place", "token", "weight", "of all |weights|")
    is_signed = bool((finite < 0).any())
    return [
        BLANK,
        Tokens(tokens, weights.tolist(), reach, is_signed),
        BLANK,
        Grid(rows, heads, "rlrr"),
    ]


def finite_order(weights: Tensor) -> list[int]:
    """Return places of the finite weights, the largest magnitude first."""
    places = [
        n for n, one in enumerate(weights.tolist()) if one == one and abs(one) != float("inf")
    ]
    return sorted(places, key=lambda place: -abs(float(weights[place])))


def _part(weight: Tensor, total: float) -> str:
    return f"{100 * abs(float(weight)) / total:.1f}%" if total else NONE

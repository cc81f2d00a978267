"""Pictures that are resized, sampled and padded: dimensions that do not fit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from torchtap.failures.failure import Failure
from torchtap.failures.situation_row import Situation, SituationRow


def _resized(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value = failure.operand("input").value
    sizes = re.findall(r"\d+(?:\.\d+)?", found["size"])
    asked, dims = len(sizes), value.dim() if isinstance(value, Tensor) else 0
    mode = failure.operand("mode").value
    wanted = _DIMENSIONS.get(mode, 0) if isinstance(mode, str) else 0
    is_colored = asked == 3 == dims - 1 and wanted in (0, dims) and sizes[-1] in ("1", "3", "4")
    is_single = dims == asked + 1 and wanted != dims and not is_colored
    second = _channel_second(value) if is_single else {}
    return {
        "dims": dims,
        "asked": asked,
        "is_colored": is_colored,
        "channels": sizes[-1] if sizes else "",
        "without": f"({', '.join(sizes[:-1])})",
        "is_second": False,
        "is_single": is_single and not second,
        **second,
    }


def _channel_second(value: Any) -> Mapping[str, Any]:
    """Say that a picture may have its channel behind its height, where there is one of one."""
    if (
        not isinstance(value, Tensor)
        or value.dim() != 3
        or not value.shape[0] > value.shape[1] == 1
    ):
        return {}
    return {"is_second": True, "high": value.shape[0], "wide": value.shape[2]}


def _grid(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    given = re.findall(r"\d+", found["given"])
    return {"is_first": len(given) > 2 and given[1] == found["wanted"] != given[-1]}


def _mode(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    is_single = int(found["given"]) + 1 == int(found["wanted"])
    second = _channel_second(failure.operand("input").value) if is_single else {}
    return {"is_second": False, "is_single": is_single and not second, **second}


_DIMENSIONS = {"linear": 3, "bilinear": 4, "bicubic": 4, "trilinear": 5}
"""How many dimensions a mode of F.interpolate takes, with batch and channels."""
_SECOND = (
    "is_second",
    "If it is one picture of {high} x {wide}, its channel stands second: put it first, behind a "
    "batch of one: {name_it}.transpose(0, 1).unsqueeze(0).",
)


SITUATIONS: dict[str, Situation] = {
    "spatial dimensions": SituationRow(
        "F.interpolate was asked for {size}, {asked} dimensions, and {name} has {dims} "
        "dimensions: [batch, channels] stand before those that are resized.",
        (
            "is_colored",
            "If the {channels} of the size is a number of channels, leave it out: size={without}.",
        ),
        _SECOND,
        (
            "is_single",
            "Give it a batch of one and take that away again: F.interpolate({name_it}.unsqueeze(0),"
            " ...)[0].",
        ),
        "Give one number for each dimension behind [batch, channels].",
        about="input",
        facts=_resized,
    ),
    "dimensions of a mode": SituationRow(
        "F.interpolate with mode='{mode}' takes {wanted} dimensions, [batch, channels, ...], and "
        "{name} has {given}.",
        _SECOND,
        (
            "is_single",
            "Give it a batch of one and take that away again: F.interpolate({name_it}.unsqueeze(0),"
            " ...)[0].",
        ),
        "Choose the mode for its dimensions: linear for 3, bilinear or bicubic for 4, trilinear "
        "for 5.",
        about="input",
        facts=_mode,
    ),
    "grid of coordinates": SituationRow(
        "grid_sample takes {wanted} coordinates in the last dimension of the grid, and got a grid "
        "{given}.",
        ("is_first", "Put the coordinates last: grid.movedim(1, -1)."),
        "Make the grid [batch, height, width, 2], x before y, from -1 to 1.",
        about="grid",
        facts=_grid,
    ),
    "too much padding": SituationRow(
        "F.pad was given {count} numbers for a tensor of {dims} dimensions: it takes two for each "
        "dimension, the last one first.",
        "Give two numbers for each dimension that is padded: (left, right, top, bottom, ...).",
        about="input",
    ),
    "reflected too far": SituationRow(
        "A padding that reflects is {pad}, and reaches past the other end of dimension {dim}, "
        "which it pads.",
        "Pad less than the size of that dimension, or with another mode: mode='replicate' or "
        "'constant'.",
        about="input",
    ),
}

"""Pictures that are resized, sampled and padded: dimensions that do not fit."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from torchtap.failures.failure import Failure
from torchtap.failures.parsed_source import written
from torchtap.failures.situation_row import Situation, SituationRow


def _resized(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value = failure.operand("input").value
    sizes = re.findall(r"\d+(?:\.\d+)?", found["size"])
    asked, dims = len(sizes), value.dim() if isinstance(value, Tensor) else 0
    mode = failure.operand("mode").value
    wanted = _DIMENSIONS.get(mode, 0) if isinstance(mode, str) else 0
    is_colored = asked == 3 == dims - 1 and wanted in (0, dims) and sizes[-1] in ("1", "3", "4")
    is_volume = dims == 4 and asked == 3
    is_single = dims == asked + 1 and wanted != dims and not is_colored and not is_volume
    second = _channel_second(value) if is_single else {}
    ones = [at for at in range(1, dims) if value.shape[at] == 1] if dims == asked + 3 else []
    is_one_channel = dims == 5 and asked == 2 and value.shape[1] == 1 and value.shape[-1] in (3, 4)
    return {
        "dims": dims,
        "asked": asked,
        "is_colored": is_colored,
        "channels": sizes[-1] if sizes else "",
        "without": f"({', '.join(sizes[:-1])})",
        "is_second": False,
        "is_single": is_single and not second,
        "is_volume": is_volume and not is_colored,
        "sides": f"({', '.join(sizes[-2:])})",
        "is_last": is_single and _has_channels_last(value),
        "is_plain": dims == asked == 2,
        "is_one_channel": is_one_channel,
        "one": ones[0] if ones and not is_one_channel else "",
        "is_unfit": wanted not in (0, dims) and not is_one_channel and not ones,
        "is_fit": wanted in (0, dims),
        "mode": mode,
        "wanted": wanted,
        **second,
    }


def _has_channels_last(value: Any) -> bool:
    """Return whether a picture may be [height, width, channels]."""
    counts = (1, 3, 4)
    is_picture = isinstance(value, Tensor) and value.dim() == 3
    return is_picture and value.shape[-1] in counts and value.shape[0] not in counts


def _channel_second(value: Any) -> Mapping[str, Any]:
    """Say that a picture may have its channel behind its height, where there is one of one."""
    if (
        not isinstance(value, Tensor)
        or value.dim() != 3
        or not value.shape[0] > value.shape[1] == 1
    ):
        return {}
    return {"is_second": True, "high": value.shape[0], "wide": value.shape[2]}


def _plain(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    is_linear = failure.operand("mode").value == "linear"
    return {"is_linear": is_linear, "is_map": not is_linear}


def _grid(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    given = re.findall(r"\d+", found["given"])
    return {"is_first": len(given) > 2 and given[1] == found["wanted"] != given[-1]}


def _mode(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    is_single = int(found["given"]) + 1 == int(found["wanted"])
    second = _channel_second(failure.operand("input").value) if is_single else {}
    is_last = is_single and _has_channels_last(failure.operand("input").value)
    words = {"is_second": False, "is_last": is_last, "is_single": is_single and not second}
    return {**words, **second}


def _points(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say which dimension a grid or a picture lacks, where its other sizes tell."""
    picture, grid = ([int(one) for one in re.findall(r"\d+", found[key])] for key in _BOTH)
    is_less = len(grid) == len(picture) - 1
    has_batch = is_less and grid[0] == picture[0]
    return {
        "is_list": has_batch,
        "is_shared": is_less and (not has_batch or picture[0] == 1 == grid[0]),
        "is_single": len(picture) == len(grid) - 1,
        "count": len(picture) - 2,
        "ones": ", None" * (len(picture) - 3),
    }


def _second_argument(failure: Failure) -> str:
    node = None if failure.user is None else failure.user.expression
    is_there = isinstance(node, ast.Call) and len(node.args) > 1
    return written(node.args[1]) if is_there else "n"  # type: ignore[union-attr]


def _matrix(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    given = [int(one) for one in re.findall(r"\d+", found["given"])]
    wanted = [int(one) for one in found["wanted"].split("x")[1:]]
    return {
        "is_square": given[-2:] == [wanted[1], wanted[1]] and len(given) == 3,
        "is_single": given == wanted,
    }


def _padded(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    count, dims = int(found["count"]), int(found["dims"])
    return {"is_less": count == 2 * dims, "is_more": dims - 2 > count // 2}


_BOTH = ("input", "grid")
_DIMENSIONS = {"linear": 3, "bilinear": 4, "bicubic": 4, "trilinear": 5}
"""How many dimensions a mode of F.interpolate takes, with batch and channels."""
_LAST = (
    "is_last",
    "If it is one picture, [height, width, channels], put its channels first and back again: "
    "F.interpolate({name_it}.movedim(-1, 0)[None], ...)[0].movedim(0, -1).",
)
_SINGLE = (
    "is_single",
    "If it is one sample, [channels, ...], give it a batch of one and take that away again: "
    "F.interpolate({name_it}.unsqueeze(0), ...)[0].",
)
_MAPS = (
    "is_single",
    "If it is a batch of maps, [batch, height, width], as of labels or depths, give them a channel "
    "and take that away again: F.interpolate({name_it}.unsqueeze(1), ...).squeeze(1).",
)
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
        _LAST,
        _SINGLE,
        _MAPS,
        (
            "is_volume",
            "If it is a batch of pictures, give the size of the two sides: size={sides}.",
        ),
        (
            "is_volume",
            "If it is one volume, [channels, depth, height, width], give it a batch of one: "
            "F.interpolate({name_it}.unsqueeze(0), ...)[0].",
        ),
        (
            "one",
            "If a dimension of one was added besides, as by [:, None] of what has its channel "
            "already, leave that out: {name_it}.squeeze({one}).",
        ),
        (
            "is_plain",
            "If it is one map, [height, width], give it a batch and a channel and take them away "
            "again: F.interpolate({name_it}[None, None], ...)[0, 0].",
        ),
        (
            "is_one_channel",
            "If its last dimension holds the colors of a grey picture, all the same: take one, "
            "{name_it}[..., 0].",
        ),
        (
            "is_one_channel",
            "If its colors differ, they are the channels: {name_it}[:, 0].movedim(-1, 1).",
        ),
        (
            "is_unfit",
            "mode='{mode}' takes {wanted} dimensions, [batch, channels, ...]: bring {name} to as "
            "many, or choose linear for 3, bilinear or bicubic for 4, trilinear for 5.",
        ),
        ("is_fit", "Give one number for each dimension behind [batch, channels]."),
        about="input",
        facts=_resized,
    ),
    "dimensions of a mode": SituationRow(
        "F.interpolate with mode='{mode}' takes {wanted} dimensions, [batch, channels, ...], and "
        "{name} has {given}.",
        _SECOND,
        _LAST,
        _SINGLE,
        _MAPS,
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
    "dimensions of a picture": SituationRow(
        "F.interpolate takes [batch, channels, ...], and {name} has {given} dimensions.",
        (
            "is_linear",
            "If each row is one series, give it a channel and take it away again: "
            "F.interpolate({name_it}.unsqueeze(1), ...).squeeze(1).",
        ),
        (
            "is_map",
            "If it is one map, give it a batch and a channel and take them away again: "
            "F.interpolate({name_it}[None, None], ...)[0, 0].",
        ),
        (
            "is_map",
            "If each row holds the features of a sample, give them their places first: "
            "{name_it}.view({name_it}.size(0), channels, height, width).",
        ),
        about="input",
        facts=_plain,
    ),
    "neither size": SituationRow(
        "F.interpolate was told neither size nor scale_factor.",
        "Say one of the two: size=(height, width), or scale_factor=2.",
    ),
    "corners of a mode": SituationRow(
        "align_corners is a choice of the modes that interpolate, and mode={mode!r} copies.",
        "Leave align_corners out.",
        "If it is to interpolate, say how: mode='bilinear'.",
        facts=lambda failure, found: {"mode": failure.operand("mode").value},
    ),
    "number of scales": SituationRow(
        "scale_factor has other numbers than dimensions that are resized: {scales} for {given}.",
        "Give one number for each of {given}, without batch and channels, or one for all.",
        about="input",
    ),
    "dimensions of a grid": SituationRow(
        "grid_sample takes a grid of as many dimensions as its input, and got {grid} for {input}: "
        "[batch, ..., {count}], with the places as rows and columns.",
        (
            "is_list",
            "If each sample has a list of points, make it a column: grid[:, :{ones}], and take the "
            "dimension away from the output: .squeeze(-1).",
        ),
        (
            "is_shared",
            "If all samples have one grid, give it the batch: grid[None].expand(len({name_it}), "
            "*grid.shape).",
        ),
        ("is_single", "Give the input a batch: {name_it}.unsqueeze(0)."),
        about="input, grid",
        facts=_points,
    ),
    "matrix of a grid": SituationRow(
        "affine_grid takes one matrix for each sample, {wanted}, and got {given}.",
        ("is_square", "Leave the last row out, which is 0 and 1: theta[:, :-1]."),
        ("is_single", "Give it a batch: theta[None]."),
        "Give theta of [batch, {wanted_rest}].",
        about="theta",
        facts=lambda failure, found: {
            **_matrix(failure, found),
            "wanted_rest": found["wanted"][2:].replace("x", ", "),
        },
    ),
    "padding of a mode": SituationRow(
        "A padding that reflects or repeats takes [batch, channels, ...] in front of what is "
        "padded: {count} numbers do not go with {dims} dimensions.",
        (
            "is_less",
            "Give the tensor a channel and take it away again: F.pad({name_it}[None], ...)[0].",
        ),
        (
            "is_more",
            "Say all dimensions behind [batch, channels], 0 for those that stay: (left, right, 0, "
            "0).",
        ),
        about="input",
        facts=_padded,
    ),
    "half a pair": SituationRow(
        "F.pad takes two numbers for each dimension, before and behind, the last dimension first.",
        "Give pairs: (left, right) for the last dimension, (left, right, top, bottom) for two.",
        about="input",
    ),
    "padding of one number": SituationRow(
        "F.pad takes two numbers for each dimension that is padded, and got one number.",
        "Say both sides of each: ({count},) * 2 for the last dimension, ({count},) * 4 for "
        "height and width.",
        facts=lambda failure, found: {"count": _second_argument(failure)},
    ),
}

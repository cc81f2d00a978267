"""Norms whose input has another width, or one value alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from torchtap.failures.assignments import blocks_at
from torchtap.failures.failure import Failure
from torchtap.failures.lost_dimensions import kept_dimension
from torchtap.failures.parsed_source import grouped
from torchtap.failures.rearrangements import without_the_call
from torchtap.failures.situation_row import Situation, SituationRow
from torchtap.failures.traceback_frame import TracebackFrame
from torchtap.failures.unreached_layers import caller_of, way_to_reach

_BY_DIMS = {2: "1d", 3: "1d", 4: "2d", 5: "3d"}
_SIZES = ("given", "wanted")


def _kind(failure: Failure, found: re.Match[str], otherwise: str = "LSTM") -> Mapping[str, Any]:
    return {"kind": otherwise if failure.module is None else type(failure.module).__name__}


def _layer(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    given, wanted = ([int(one) for one in re.findall(r"\d+", found[key])] for key in _SIZES)
    name, places = failure.name_of(failure.argument()), range(len(given) - 1)
    at = next((at for at in places if len(wanted) == 1 and given[at] == wanted[0]), None)
    text = f"{grouped(name)}.movedim({at}, -1)"
    last = ", ".join(map(str, given[-len(wanted) :]))
    made = f"{failure.names.variable(failure.module)} = nn.LayerNorm([{last}])"
    return {
        "ways": tuple(without_the_call(failure, failure.argument(), wanted[-1])),
        "made": made if isinstance(failure.module, nn.LayerNorm) else f"normalized_shape=[{last}]",
        "last": last,
        "moved": "" if at is None else text,
        "at": at,
    }


def _group(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    return {"channels": [*re.findall(r"\d+", found["given"]), "?", "?"][1]}


def _features(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value = failure.argument().value
    is_last = isinstance(value, Tensor) and value.shape[-1] == int(found["wanted"])
    is_last = is_last and isinstance(value, Tensor) and value.dim() > 2
    return {**_kind(failure, found, "BatchNorm1d"), "is_last": is_last}


def _single(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say whether the source tells that nothing is trained now, and whether a pool left one place.

    What is right for a last batch of one does not help where all batches are of one.
    """
    is_read_only = any(_is_without_grad(one) for one in failure.frames if one.is_user)
    given, reach, caller = _mode_given(failure), way_to_reach(failure), caller_of(failure)
    is_off = caller is not None and caller.module is not None and not caller.module.training
    is_done = bool(given) or (
        bool(reach) and is_off
    )  # model.eval() was called, or changes nothing.
    is_read_only = is_read_only and not is_done
    return {
        "ways": tuple(filter(None, (reach, given))),
        "mode": "F.batch_norm was given training=True, and"
        if given
        else f"{failure.module_text} is in training mode and",
        "is_read_only": is_read_only,
        "may_train": not is_read_only and not is_done,
        "is_point": len(re.findall(r"\d+", found["given"])) > 2,
        "is_row": len(re.findall(r"\d+", found["given"])) <= 2,
    }


def _mode_given(failure: Failure) -> str:
    """Return the way out where the program says itself that a norm trains; else empty."""
    call = None if failure.user is None else failure.user.expression
    for keyword in call.keywords if isinstance(call, ast.Call) else ():
        if keyword.arg == "training" and getattr(keyword.value, "value", None) is True:
            return "If it is to follow the mode of the model: training=self.training."
    return ""


def _is_without_grad(frame: TracebackFrame) -> bool:
    """Return whether a line of the program stands where the source says that none is trained."""
    function = frame.function
    if function is None or isinstance(function, ast.Lambda):
        return False
    around = [node for node, _ in blocks_at(function, frame.line)]
    texts = [ast.unparse(one.context_expr) for node in around for one in getattr(node, "items", ())]
    texts += [ast.unparse(one) for one in getattr(function, "decorator_list", ())]
    return any("no_grad" in one or "inference_mode" in one for one in texts)


def _dimensions(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value, given = failure.argument().value, int(found["given"])
    shape = list(value.shape) if isinstance(value, Tensor) else []
    channels = [getattr(failure.module, "num_features", None)]
    kind = re.sub(r"\dd$", "", type(failure.module).__name__)
    is_known = hasattr(nn, f"{kind}1d") and shape[1:2] == channels
    fitting = f"{kind}{_BY_DIMS[given]}" if is_known and given in _BY_DIMS else None
    is_single = shape[:1] == channels and f"{given + 1}D" in found["wanted"]
    squeezed = kept_dimension(failure, failure.argument(), given + 1) if is_single else ""
    return {
        "fitting": fitting,
        "squeezed": squeezed,
        "is_single": is_single and not fitting and not squeezed,
    }


SITUATIONS: dict[str, Situation] = {
    "layer norm": SituationRow(
        "{module} normalizes the last dimensions {wanted}, and its input is {given}.",
        (
            "moved",
            "If dimension {at} is to be normalized, move it to the end, normalize, and move it "
            "back: {moved}.",
        ),
        "If [{last}] is the width that is meant, make it take that: {made}.",
        "If {wanted} is, give an input that ends with it.",
        about="argument",
        facts=_layer,
    ),
    "group norm": SituationRow(
        "{module} takes {wanted} channels, and its input {given} has {channels}.",
        "If {channels} is the right number, make it take that many: {variable} = "
        "nn.GroupNorm(groups, {channels}).",
        "If {wanted} is, give it that many channels, in dimension 1.",
        about="argument",
        facts=_group,
    ),
    "features of a batch norm": SituationRow(
        "{module} takes {wanted} channels, and its input has {given} in dimension 1.",
        (
            "is_last",
            "If the last dimension, of {wanted}, holds the channels, put them behind the batch: "
            "{name_it}.movedim(-1, 1), and back after it.",
        ),
        "If {given} is the right number, make it take that many: {variable} = nn.{kind}({given}).",
        "If {wanted} is, give it that many, from the layer before it.",
        about="argument",
        facts=_features,
    ),
    "one value per channel": SituationRow(
        "{mode} its input {given} has one value per channel: a variance needs two.",
        (
            "is_read_only",
            "If it is not to train now, as no_grad says, call model.eval() before: it then uses "
            "the running statistics, and model.train() after it.",
        ),
        "If it trains, give batches of more than one: batch_size above 1, and drop_last=True of "
        "the DataLoader, which leaves out a last batch of one.",
        (
            "may_train",
            "If it is not to train now, as for one sample or to count sizes, call model.eval() "
            "before: it then uses the running statistics.",
        ),
        (
            "is_point",
            "If it is to train on one sample, use a norm of its own values, or none where a pool "
            "left one place: {variable} = nn.GroupNorm or nn.Identity.",
        ),
        (
            "is_row",
            "If it is to train on one sample, use a norm over its features: {variable} = "
            "nn.LayerNorm.",
        ),
        about="argument",
        facts=_single,
    ),
    "dimensions of a norm": SituationRow(
        "{module} takes an input of {wanted}, and got one of {given}D.",
        (
            "fitting",
            "If its {given} dimensions are right, use the class for them: {variable} = "
            "nn.{fitting}(...).",
        ),
        ("squeezed", "{squeezed}"),
        ("is_single", "Give the model a batch, also of one sample: unsqueeze(0) of its input."),
        "Give the input the dimensions [batch, channels, ...] that it takes.",
        about="argument",
        facts=_dimensions,
    ),
}

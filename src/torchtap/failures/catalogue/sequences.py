"""Recurrences: inputs, states and lengths of sequences that do not fit."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from torchtap.failures.failure import Failure
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.rearrangements import moved
from torchtap.failures.situation_row import Situation, SituationRow


def _state(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    is_batched = found["kind"].startswith("batched")
    is_first = getattr(failure.module, "batch_first", False)
    return {
        "is_unbatched": not is_batched,
        "is_batched": is_batched,
        "at": 0 if is_first else 1,
    }


def _lengths(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value = failure.operand("lengths").value
    return {"is_elsewhere": isinstance(value, Tensor) and value.device.type != "cpu"}


def _empty(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value = failure.operand("lengths").value
    is_readable = isinstance(value, Tensor) and value.device.type == "cpu" and value.dim() == 1
    none = (value <= 0).nonzero().flatten().tolist() if is_readable else []
    return {"which": f" {', '.join(map(str, none[:8]))}" if none else ""}


def _recurrence(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    is_cell = type(failure.module).__name__.endswith("Cell")
    value = failure.argument().value
    shape = list(value.shape) if isinstance(value, Tensor) else []
    size = getattr(failure.module, "input_size", 0)
    is_long = not is_cell and len(shape) > 3
    ones = [at for at in (1, 2, 0) if len(shape) == 4 and shape[at] == 1 and shape[-1] == size]
    return {
        "is_series": len(shape) == 1 and size == 1 and not is_cell,
        "is_cell": is_cell and int(found["given"]) == 3,
        "whole": type(failure.module).__name__.removesuffix("Cell"),
        "is_flat": is_long and math.prod(shape[2:]) == size and not ones,
        "single": str(ones[0]) if ones else "",
        "is_map": is_long and len(shape) == 4 and shape[1] * shape[2] == size != shape[3],
        "is_joined": len(shape) == 4 and shape[-1] == size and not ones,
    }


def _number_of_lengths(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    value = failure.operand("input").value
    shape = value.shape if isinstance(value, Tensor) else ()
    is_first = failure.operand("batch_first").value
    fits = len(shape) > 1 and int(found["given"]) == shape[1 if is_first is True else 0]
    return {
        "is_batch": fits and is_first is False,
        "is_time": fits and is_first is True,
        "is_other": not fits,
    }


def _cell(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    kind, module = type(failure.module).__name__, failure.module
    hidden = getattr(module, "hidden_size", "...")
    is_input = found["what"] == "input"
    made = f"nn.{kind}({found['given']}, {hidden})" if is_input else ""
    return {"made": made, "is_hidden": not is_input}


def _tokens(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    is_whole = found["given"].startswith(("int", "uint"))
    return {"is_whole": is_whole, "is_float": not is_whole}


def _recurrent(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The ways to bring the features to the end, and how the module is made for those given."""
    operand, wanted = failure.operand("input"), int(found["wanted"])
    value, name = operand.value, failure.name_of(operand)
    node = None if failure.user is None else failure.user.expression
    if failure.user is not None and isinstance(node, ast.Call) and node.args:
        # The module makes a batch of one itself: the program's own shape is meant.
        given = failure.user.value_of(node.args[0])
        is_single = (
            isinstance(given, Tensor) and given.dim() == 2 and given.shape[-1:] == value.shape[-1:]
        )
        value, name = (given, written(node.args[0])) if is_single else (value, name)
    shape = list(value.shape) if isinstance(value, Tensor) else []
    if len(shape) == 3 and failure.operand("is_batched").value is False:
        shape = shape[1:]  # PyTorch made a batch of one; the call is a computed expression.
        name = written(node.args[0]) if isinstance(node, ast.Call) and node.args else name
    ways = list(moved(grouped(name), shape, wanted, 2)) if len(shape) == 3 else []
    given = int(found["given"])
    if given > wanted > 1 and given % wanted == 0:
        ways.append(
            f"If each step holds {given // wanted} vectors of {wanted}, which a view joined, keep "
            f"them apart: a last dimension of {wanted}, and one more step or sample for each."
        )
    if len(shape) == 2 and wanted == 1:
        ways.append(
            f"If each row is a sequence of numbers, give each step its feature: "
            f"{grouped(name)}.unsqueeze(-1)."
        )
    return {"kind": type(failure.module).__name__, "ways": tuple(ways)}


def _sizes_of_state(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """In which dimension the state differs, and whether the input has its batch elsewhere."""
    wanted, given = (
        [int(one) for one in re.findall(r"\d+", found[key])] for key in ("wanted", "given")
    )
    operand = failure.operand("input")
    value, name = operand.value, failure.name_of(operand)
    is_first = getattr(failure.module, "batch_first", None) is True
    is_known = len(wanted) == len(given) == 3 and isinstance(value, Tensor) and value.dim() == 3
    differs = [at for at in range(3) if wanted[at] != given[at]] if is_known else []
    other = value.shape[1 if is_first else 0] if is_known else None
    is_turned = differs == [1] and other == given[1]
    layers, directions = (
        getattr(failure.module, "num_layers", 1),
        wanted[0] // given[0] if given else 0,
    )
    is_twice = differs == [0] and given[0] == 2 * wanted[0] and wanted[0] == layers
    both = 2 * getattr(failure.module, "hidden_size", 0)
    is_taken_twice = any(
        isinstance(one, nn.Linear) and one.in_features == both for _, one in failure.names.modules()
    )
    size = f"{name}.size({0 if is_first else 1})" if name.isidentifier() else wanted[1]
    return {
        "batch": wanted[1] if is_known else "its own",
        "is_twice": is_twice and is_taken_twice,
        "may_be_twice": is_twice and not is_taken_twice,
        "is_half": differs == [0] and directions == 2 and wanted[0] == 2 * layers,
        "is_turned": is_turned and not is_first,
        "is_turned_too": is_turned and is_first,
        "may_be_first": not is_first and not is_turned and differs == [1],
        "input": grouped(name),
        "is_batch": differs == [1] and not (is_turned and not is_first),
        "is_first": sorted(wanted) == sorted(given) and given == [*wanted[1::-1], *wanted[2:]],
        "is_of_another": is_known and differs != [1],
        "made": f"{wanted[0]}, {size}, {wanted[2]}" if is_known else "",
        "is_other": differs != [1],
    }


SITUATIONS: dict[str, Situation] = {
    "dimensions of a state": SituationRow(
        "{module} was given an input that is {kind}, and {what} of {given}: a state has a batch "
        "where the input has one.",
        (
            "is_unbatched",
            "Give the input a batch of one, with .unsqueeze({at}); the output then has one, too.",
        ),
        ("is_unbatched", "Or take the batch out of each state, with .squeeze(1)."),
        ("is_batched", "Give each state a batch: [layers * directions, batch, hidden]."),
        facts=_state,
    ),
    "lengths in no order": SituationRow(
        "pack_padded_sequence was given lengths that do not fall from the longest to the shortest.",
        "Give enforce_sorted=False: PyTorch sorts them, and a module that is given the packed "
        "sequence hands its outputs back in your order.",
        about="lengths",
    ),
    "lengths elsewhere": SituationRow(
        "pack_padded_sequence takes lengths as a list, or as an int64 tensor of one dimension on "
        "the CPU, and got {given}.",
        ("is_elsewhere", "Bring them to the CPU: {name_it}.cpu()."),
        "Give one whole number for each sample: a list, or an int64 tensor [batch].",
        about="lengths",
        facts=_lengths,
    ),
    "empty sequence": SituationRow(
        "pack_padded_sequence was given a sequence without elements: a length is 0 at{which}.",
        "Leave samples without elements out of the batch, before they are packed.",
        about="lengths",
        facts=_empty,
    ),
    "dimensions of a recurrence": SituationRow(
        "{module} takes {low} or {high} dimensions, and its input has {given}.",
        ("is_cell", "A cell takes one step: call it in a loop, for step in {name}: ..."),
        ("is_cell", "Or use nn.{whole}, which goes through the whole sequence."),
        (
            "is_map",
            "If the last dimension is the time, as in a map over a line of text, put it second: "
            "{name_it}.permute(0, 3, 1, 2).flatten(2), with batch_first=True.",
        ),
        ("is_flat", "Make one vector of what stands behind the time: {name_it}.flatten(2)."),
        (
            "single",
            "If the dimension of one is left over, take it away: {name_it}.squeeze({single}).",
        ),
        (
            "is_joined",
            "If the first two say which sequence it is, join them: {name_it}.flatten(0, 1), with "
            "batch_first=True.",
        ),
        ("is_series", "If it is one series of numbers: {name_it}.unsqueeze(-1)."),
        "Otherwise bring it to [time, batch, features], or [batch, time, features] with "
        "batch_first=True.",
        about="argument",
        facts=_recurrence,
    ),
    "features of a cell": SituationRow(
        "{module} has {size}={wanted}, and its {what} has {given} in the last dimension.",
        (
            "made",
            "If a width of {given} is right, make it take that: {variable} = {made}.",
        ),
        ("made", "If {wanted} is right, give {name} that many, where it is made."),
        ("is_hidden", "Give a state of [batch, {wanted}], or none: it then begins with zeros."),
        about="argument",
        facts=_cell,
    ),
    "batch of a cell": SituationRow(
        "The input has a batch of {given}, and the state one of {wanted}.",
        "Make the state for this batch: torch.zeros(len(x), hidden_size), anew for each batch.",
        about="tensors",
    ),
    "dtypes of a recurrence": SituationRow(
        "{module} has weights of {wanted}, and its input holds {given}.",
        ("is_float", "Convert the input: {name_it}.to(torch.{wanted})."),
        (
            "is_whole",
            "If the numbers count or measure, convert them: {name_it}.to(torch.{wanted}).",
        ),
        (
            "is_whole",
            "If they are numbers of tokens or classes, look their vectors up first: "
            "nn.Embedding(num, {variable}.input_size).",
        ),
        about="argument",
        facts=_tokens,
    ),
    "number of lengths": SituationRow(
        "There are {given} lengths for a batch of {wanted}.",
        ("is_batch", "The batch stands first: give batch_first=True."),
        ("is_time", "The time stands first: leave batch_first=True out."),
        ("is_other", "Give one length for each sample."),
        about="argument",
        facts=_number_of_lengths,
    ),
    "input of a recurrence": SituationRow(
        "{module} takes {wanted} features in the last dimension, and its input has {given}.",
        "If a width of {given} is right, make it take that: {variable} = nn.{kind}({given}, ...).",
        "If {wanted} is, bring the input to it, which ends with the features whether batch_first "
        "or not: by the embedding or the features that it was made for, or nn.Linear({given}, "
        "{wanted}) of each step.",
        about="input",
        facts=_recurrent,
    ),
    "state of a recurrence": SituationRow(
        "{module} takes a hidden state of shape ({wanted}), [layers * directions, batch, hidden], "
        "for this input, a batch of {batch}, and got ({given}).",
        (
            "is_turned",
            "The batch of the state stands in the other dimension of the input: turn the input, "
            "{input}.transpose(0, 1), or make the module with batch_first=True.",
        ),
        (
            "is_batch",
            "If it begins with zeros, make it for the batch that comes, of which the last may be "
            "smaller: torch.zeros({made}), or leave the state out.",
        ),
        (
            "is_turned_too",
            "Or turn the input, {input}.transpose(0, 1), if its batch stands in dimension 1.",
        ),
        ("may_be_first", "If the batch stands first in the input, set batch_first=True."),
        (
            "is_batch",
            "If it is carried from batch to batch, leave a smaller last batch out: drop_last=True "
            "of the DataLoader.",
        ),
        (
            "is_first",
            "If the batch stands first in the state, turn it: .transpose(0, 1); a state has its "
            "layers first, also with batch_first=True.",
        ),
        (
            "is_twice",
            "If the module is to go in both directions, as this state and an nn.Linear that takes "
            "both say, make it so: bidirectional=True.",
        ),
        (
            "is_half",
            "If the module is to go in one direction, as the state says, leave bidirectional=True "
            "out.",
        ),
        (
            "is_other",
            "If it begins with zeros, make it of that shape: torch.zeros({wanted}), or leave the "
            "state out.",
        ),
        (
            "may_be_twice",
            "If the module is to go in both directions, as a state of twice its layers says: "
            "bidirectional=True.",
        ),
        (
            "is_of_another",
            "If it is the state of another module, as of an encoder, bring it to that shape: as "
            "many layers (and 2 directions), h[-1:] for the last, and nn.Linear for another width.",
        ),
        about="input",
        facts=_sizes_of_state,
    ),
}

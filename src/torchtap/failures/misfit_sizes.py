"""Sizes that a layer does not take, where a call of the program shows how they came about."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from torch import nn

from torchtap.core.source_files import shown_file
from torchtap.failures.failure import Failure
from torchtap.failures.misplaced_members import is_of_shapes
from torchtap.failures.operands import Operand
from torchtap.failures.parsed_source import grouped, last_name, written
from torchtap.failures.scopes import Expression
from torchtap.failures.value_chains import chain_of

_MOST_FRAMES = 4
_JOINING = ("cat", "concat", "concatenate")
_TAKEN = ("in_features", "in_channels", "num_features")
_VIEWING = ("view", "reshape")


def single_join(failure: Failure, told: Sequence[str]) -> str:
    """Return the way out where a join above the line has one tensor alone; else empty.

    Args:
        failure: the exception.
        told: the ways out that are known already, which may name the join.
    """
    if not is_of_shapes(failure):
        return ""
    for frame in [one for one in reversed(failure.frames) if one.is_user][:_MOST_FRAMES]:
        for call in frame.calls_of(*_JOINING):
            parts = call.args[0] if call.args else None
            elements = parts.elts if isinstance(parts, ast.List | ast.Tuple) else []
            is_one = len(elements) == 1 and not isinstance(elements[0], ast.Starred)
            text = written(call, frame.file)
            if is_one and call.lineno <= frame.line and not any(text in way for way in told):
                place = f"{shown_file(frame.file)}:{call.lineno}"
                return (
                    f"{text} of {place} joins one tensor alone: if a part is missing there, join "
                    "that too."
                )
    return ""


def of_exchanged_sizes(failure: Failure, given: int, wanted: int) -> Iterator[str]:
    """Yield the way out where a layer gives as many as its input has: its sizes are exchanged."""
    module = failure.module
    sizes = vars(module) if isinstance(module, nn.Module) else {}
    out = sizes.get("out_features", sizes.get("out_channels"))
    if out == given != wanted and _size_taken_next(failure, module) in (None, wanted):
        more = ", ..." if "out_channels" in sizes else ""
        yield (
            f"If its two sizes stand in the wrong order, exchange them: nn.{type(module).__name__}("
            f"{given}, {wanted}{more})."
        )


def _size_taken_next(failure: Failure, module: nn.Module | None) -> int | None:
    """Return the features or channels that the next layer of a Sequential takes."""
    for _, parent in failure.names.modules():
        members = list(parent._modules.values()) if isinstance(parent, nn.Sequential) else []
        if module in members:
            for one in members[members.index(module) + 1 :]:
                found = [vars(one)[name] for name in _TAKEN if name in vars(one)]
                if found:
                    return int(found[0])
    return None


def of_a_part_left_out(
    failure: Failure, operand: Operand, given: int, wanted: int
) -> Iterator[str]:
    """Yield the way out where parts were joined to what has too few features or channels."""
    for one in chain_of(failure, operand) if wanted > given else ():
        node = one.node
        if isinstance(node, ast.Call) and last_name(node.func) in _JOINING and node.args:
            yield from _along_the_other(one, node, given, wanted)
            yield (
                f"If a part is missing from {_shown(one)}, join that too: one of {wanted - given} "
                f"in the dimension of these {given}."
            )
            return


def _along_the_other(one: Expression, call: ast.Call, given: int, wanted: int) -> Iterator[str]:
    """Yield the way to join along the channels, where as many as fit are joined as samples."""
    dims = [keyword.value for keyword in call.keywords if keyword.arg == "dim"] or call.args[1:2]
    parts = call.args[0].elts if isinstance(call.args[0], ast.List | ast.Tuple) else []
    at = one.scope.value_of(dims[0]) if dims else 0
    if at == 0 and len(parts) > 1 and len(parts) * given == wanted:
        yield (
            f"{_shown(one)} joins them along dimension 0, as samples: if their channels or "
            f"features belong together, torch.cat({ast.unparse(call.args[0])}, 1)."
        )


def of_a_view_turned(failure: Failure, operand: Operand, wanted: int) -> Iterator[str]:
    """Yield the way out where a view put the size that is wanted in front of the -1."""
    for one in chain_of(failure, operand):
        node = one.node
        if isinstance(node, ast.Name):
            continue
        if (
            not isinstance(node, ast.Call)
            or last_name(node.func) not in _VIEWING
            or len(node.args) != 2
        ):
            return
        size, rest = node.args
        if one.scope.value_of(size) == wanted and one.scope.value_of(rest) == -1:
            func = ast.unparse(node.func)
            yield (
                f"If {wanted} is the size of each row, put it last: {grouped(func)}(-1, "
                f"{ast.unparse(size)}), in place of {_shown(one)}."
            )
            return


def _shown(one: Expression) -> str:
    return f"{one.text} of {shown_file(one.scope.file)}:{one.line}"

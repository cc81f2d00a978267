"""``tt.replay``: a held call runs again, and is compared with what it gave, to the bit."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchtap.core.doors import require
from torchtap.core.errors import InputError
from torchtap.core.module_paths import mode_of
from torchtap.core.preserved import set_mode
from torchtap.core.printed import Printed
from torchtap.core.printed_page import Line, Listed, Page, Part
from torchtap.core.text import plural
from torchtap.diagnosis.calls.call import Call, title_of
from torchtap.diagnosis.calls.copies import Arguments, copied_module
from torchtap.diagnosis.calls.standalone.run_again import (
    Result,
    arguments_by_name,
    differences,
    run_again,
    tensors_in,
)


class ReplayWarning(UserWarning):
    """A call that was run again gave other bits than when it was recorded."""


@dataclass(frozen=True, slots=True, repr=False)
class Replay(Printed):
    """The result of a held call that ran again; ``bool()`` says whether it is equal to the bit.

    Attributes:
        call: that ran.
        result: output, buffers afterwards, and gradients of this time.
        compared: name of a tensor -> how it differs; an empty text where it is equal.
        unchecked: gradients of this time that no record was there to compare with.
    """

    call: Call
    result: Result
    compared: dict[str, str]
    unchecked: tuple[str, ...] = ()

    @property
    def output(self) -> Any:
        """Return the output of the module this time."""
        return self.result.output

    @property
    def differing(self) -> dict[str, str]:
        """Return what differs: name of a tensor -> how."""
        return {name: how for name, how in self.compared.items() if how}

    def __bool__(self) -> bool:
        return not self.differing

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "module": self.call.path or ".",
            "call": self.call.call,
            "type": type(self.call.module).__name__,
            "same": bool(self),
            "compared": self.compared,
            "unchecked": list(self.unchecked),
            "notes": list(self.call.notes),
        }

    def _page(self) -> Page:
        return show_replay(self)


def replay(call: Call | str | Path, *, module: nn.Module | None = None) -> Any:
    """Run a held call again, forward and backward, and compare with what it gave, to the bit.

    It runs on a copy of the module as it was, with the arguments, random states, modes and
    settings of the call; nothing of the process is changed by it. Where a bit differs (another
    processor, another version of torch, state that was not held), a warning says what and by how
    much; :func:`replayed` returns the comparison itself.

    Args:
        call: of :func:`tt.record_call <torchtap.record_call>`, or the folder of a saved one.
        module: another module of the same structure, which gets parameters, buffers and modes of
            the call; its own are left as they are.

    Returns:
        the output, as the module returned it.

    Raises:
        InputError: the folder holds no call, its class cannot be imported, or ``module`` does not
            have the parameters of the call.

    Example:
        >>> import torch, torchtap as tt
        >>> call = tt.record_call(torch.nn.Linear(4, 2), ".", torch.ones(1, 4))
        >>> tt.replay(call).shape
        torch.Size([1, 2])
    """
    result = replayed(call, module=module)
    if not result:
        name, how = next(iter(result.differing.items()))
        warnings.warn(
            f"{title_of(result.call)} differs from what was recorded in "
            f"{len(result.differing)} of {plural(len(result.compared), 'tensor')}; {name}: {how}.",
            ReplayWarning,
            stacklevel=2,
        )
    return result.output


def replayed(call: Call | str | Path, *, module: nn.Module | None = None) -> Replay:
    """Run a held call again and return the comparison; see :func:`replay`."""
    require("tt.replay")
    if not isinstance(call, Call | str | Path):
        raise InputError(
            f"call is {type(call).__name__}; expected what tt.record_call returned, or the folder "
            f"of a saved call."
        )
    if not isinstance(call, Call):
        from torchtap.diagnosis.calls.call_folder import load_call

        call = load_call(Path(call))
    twin, arguments = _prepared(call, module)
    result = run_again(twin, arguments, call.around, call.result.arriving)
    return Replay(call, result, differences(call.result, result), _unchecked(call.result, result))


def _unchecked(recorded: Result, again: Result) -> tuple[str, ...]:
    inputs = again.inputs.keys() - recorded.inputs.keys()
    parameters = again.parameters.keys() - recorded.parameters.keys()
    return (
        *(f"gradient of input {name}" for name in sorted(inputs)),
        *(f"gradient of parameter {name}" for name in sorted(parameters)),
    )


def _prepared(call: Call, module: nn.Module | None) -> tuple[nn.Module, Arguments]:
    """Return a module that may be written, and arguments that refer to its parameters."""
    given = copied_module(call.module if module is None else module)
    if module is not None:
        _lend(given, call.module)
    memo: dict[int, Any] = {
        id(one): one for one in tensors_in(arguments_by_name(*call.arguments)).values()
    }
    for table in ("named_parameters", "named_buffers", "named_modules"):
        own = dict(getattr(given, table)())
        memo.update((id(one), own[name]) for name, one in getattr(call.module, table)())
    return given, copy.deepcopy(call.arguments, memo)


def _lend(target: nn.Module, source: nn.Module) -> None:
    """Give a module the parameters, buffers and modes of another one of the same structure."""
    modules = dict(target.named_modules())
    for path, one in source.named_modules():
        if path not in modules:
            raise InputError(_other_structure(path, "module", target))
        twin = modules[path]
        set_mode(twin, mode_of(one))
        for kind in ("_parameters", "_buffers"):
            held = getattr(twin, kind)
            for name, tensor in getattr(one, kind).items():
                place = f"{path}.{name}" if path else name
                if name not in held or (held[name] is None) != (tensor is None):
                    raise InputError(_other_structure(place, kind[1:-1], target))
                if tensor is None:
                    continue
                if held[name].shape != tensor.shape:
                    raise InputError(
                        f"{place} is {list(held[name].shape)} in the module that was given, and "
                        f"{list(tensor.shape)} in the call. Give a module of the same sizes."
                    )
                held[name].requires_grad_(False)
                held[name].data = tensor.detach().clone()
                held[name].requires_grad_(tensor.requires_grad)


def _other_structure(place: str, kind: str, target: nn.Module) -> str:
    return (
        f"The {type(target).__name__} that was given has no {kind} {place or '.'!r} as the call "
        f"has. Give a module of the same structure, or none."
    )


def show_replay(found: Replay) -> Page:
    """Say whether it is equal to the bit, and what is not."""
    total, wrong = len(found.compared), found.differing
    kinds: dict[str, int] = {}
    for name in found.compared:
        kind = next(one for one in _KINDS if name.startswith(one))
        kinds[kind] = kinds.get(kind, 0) + 1
    counted = ", ".join(plural(number, kind) for kind, number in kinds.items())
    head = title_of(found.call)
    verdict = f"{len(wrong)} of {plural(total, 'tensor')} differ" if wrong else "equal to the bit"
    parts: list[Part] = [
        Line(f"{head[0].upper()}{head[1:]}: {verdict}", "bad" if wrong else "good"),
        Line(f"Compared: {counted or 'nothing, since it returns no tensor'}"),
    ]
    if wrong:
        parts.append(Listed(list(wrong.items()), title="Differing", limit=20, noun="tensor"))
        recorded = found.call.around["torch"]
        if recorded != torch.__version__:
            parts.append(Line(f"Recorded with torch {recorded}; this is {torch.__version__}."))
    if found.unchecked:
        parts.append(Line(f"Not recorded, so not compared: {', '.join(found.unchecked)}", "dim"))
    if found.call.notes:
        parts.append(Listed([("", note) for note in found.call.notes], title="Notes", tone="dim"))
    return Page(*parts)


_KINDS = ("output", "buffer", "gradient of input", "gradient of parameter")

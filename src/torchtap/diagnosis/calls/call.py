"""``Call``: one call of one module, held so that it runs again to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from torchtap.core.printed import Printed
from torchtap.core.printed_page import Grid, Line, Listed, Page, Part
from torchtap.core.record import nbytes_of
from torchtap.core.tensors import kind_of
from torchtap.core.text import size
from torchtap.diagnosis.calls.copies import Arguments
from torchtap.diagnosis.calls.standalone.run_again import Result, arguments_by_name, tensors_in
from torchtap.diagnosis.calls.standalone.surroundings import Surroundings


@dataclass(frozen=True, slots=True, repr=False)
class Call(Printed):
    """One call of one module: what it was given, what stood around it, and what it gave.

    Attributes:
        path: of the module in its model; ``""`` for the model itself.
        call: number of the call within the forward, from 0.
        module: a copy of the module as it was when the call began: parameters, buffers (also of
            those that no state dict has), modes, ``requires_grad``, attributes.
        args: positional arguments, by value; what was one object is one (``q is k is v``).
        kwargs: keyword arguments.
        around: random states, grad mode, autocast, threads, the default dtype, the precision of
            products, and the version of torch.
        result: output, buffers afterwards, gradients that arrived at the outputs, and those of
            arguments and parameters by this call.
        notes: what is not held, or not compared, and why.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Dropout(0.5))
        >>> call = tt.record_call(model, "1", torch.ones(1, 4))
        >>> torch.equal(tt.replay(call), call.output)
        True
    """

    path: str
    call: int
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    around: Surroundings
    result: Result
    notes: tuple[str, ...] = ()

    @property
    def output(self) -> Any:
        """Return the output of the module, by value."""
        return self.result.output

    @property
    def arguments(self) -> Arguments:
        """Return args and kwargs."""
        return self.args, self.kwargs

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return every tensor that is held, by what it is and by its name."""
        return {
            "argument": tensors_in(arguments_by_name(self.args, self.kwargs)),
            "parameter": dict(self.module.named_parameters()),
            "buffer": dict(self.module.named_buffers()),
            "output": tensors_in(self.output),
            "arriving gradient": self.result.arriving,
            "gradient of argument": self.result.inputs,
            "gradient of parameter": self.result.parameters,
        }

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors that are held."""
        return sum(map(_nbytes, self.tensors().values()))

    def save(self, folder: str | Path) -> Path:
        """Write the call into a folder, as JSON and safetensors, without pickle.

        ``tt.replay(folder)`` runs it again in another process, where the module's class can be
        imported; the class's own constructor is not called.

        Args:
            folder: where; it is made, with those above it, and an earlier call in it is replaced.

        Returns:
            the folder.

        Raises:
            InputError: something cannot be written without pickle; it is named with its place.
        """
        from torchtap.diagnosis.calls.call_folder import save_call

        return save_call(self, Path(folder))

    def export(self, script: str | Path) -> Path:
        """Write a script that runs the call again and compares to the bit.

        It needs torch, safetensors and the module's class, and not torchtap; a safetensors file
        is written beside it. It exits with 1 where something differs.

        Args:
            script: where; the name ends in ``.py``. Missing folders are made, and an earlier script
                of that name is replaced.

        Returns:
            the script.

        Raises:
            InputError: something cannot be written without pickle; it is named with its place.
        """
        from torchtap.diagnosis.calls.export_call import export_call

        return export_call(self, Path(script))

    def _page(self) -> Page:
        return show_call(self)


def title_of(call: Call) -> str:
    """Return ``call 0 of blocks.1 (Block)``."""
    return f"call {call.call} of {call.path or '.'} ({type(call.module).__name__})"


def show_call(call: Call) -> Page:
    """Show the parts that are held of a call, with their sizes."""
    held = call.tensors()
    rows = [
        (kind, str(len(table)), size(_nbytes(table)), _first(table))
        for kind, table in held.items()
        if table
    ]
    head = title_of(call)
    parts: list[Part] = [
        Line(f"{head[0].upper()}{head[1:]}, {size(call.nbytes)}", "head"),
        Grid(rows, ("held", "tensors", "size", "first"), "lrrl"),
    ]
    if call.notes:
        parts.append(Listed([("", note) for note in call.notes], title="Notes", tone="dim"))
    return Page(*parts)


def _nbytes(table: Mapping[str, Tensor]) -> int:
    return sum(map(nbytes_of, table.values()))


def _first(table: Mapping[str, Tensor]) -> str:
    name, tensor = next(iter(table.items()))
    return f"{name} {kind_of(tensor)}".strip()

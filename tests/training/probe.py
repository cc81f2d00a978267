"""The tool of one column for a row's training, and notes of what the training makes."""

from __future__ import annotations

import contextlib
import gc
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from bits import bits
from plain_truth import PlainTruth, edited_by_hooks, own
from torch import Tensor, nn
from torch.nn.modules import module as module_tables
from torch.optim import optimizer as optimizer_tables
from torch.optim.optimizer import Optimizer

import torchtap as tt
from torchtap.hooks import dynamo_hooks
from torchtap.hooks.saved_pairs import top

COLUMNS = ("Memory", "Stats", "edit", "offload", "verify", "together")
EVERY_PORT = "*:*,param,buffer,param_grad,step_grad,update"
FACTOR, MOST = 0.5, 1e-3
"""The edits of the matrix: of an output, and of its gradient."""


@dataclass(slots=True)
class Made:
    """The values that a training made, and what the tool of a column has to say of them.

    Attributes:
        facts: name -> bits of each loss and gradient, and of the state at the end.
        tables: names of all hooks that are left.
        numbers: losses and parameters, for runs that are equal only about.
        warned: the texts of warnings.
        told: reasons and notes of ours.
        reported: reports of ours.
        tool: the watch, edit, offload, verification or plain truth, by the column that has it.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, Any] = field(default_factory=dict)
    numbers: list[Tensor] = field(default_factory=list)
    warned: set[str] = field(default_factory=set)
    told: list[str] = field(default_factory=list)
    reported: list[str] = field(default_factory=list)
    tool: dict[str, Any] = field(default_factory=dict)


class Probe:
    """Attaches the tool of one column to a training, and notes what the training makes.

    Attributes:
        made: what it notes.
        step_number: how many steps were done.
        is_eager: whether :meth:`compile` does nothing.
        leave: takes everything off.

    Args:
        column: of ``COLUMNS``, or ``plain``, ``truth`` or ``edited`` for a run by plain PyTorch.
        edited: path of the module whose output and gradient the column ``edit`` changes.
        where: what the watches take.
        is_eager: whether :meth:`compile` does nothing.
    """

    def __init__(
        self, column: str, *, edited: str = "", where: Any = EVERY_PORT, is_eager: bool = False
    ) -> None:
        self.made = Made()
        self.step_number = 0
        self._column = column
        self._edited = edited
        self._where = where
        self.is_eager = is_eager
        self._model: nn.Module | None = None
        self._is_attached = False
        self._optimizers: list[Optimizer] = []
        self.leave = contextlib.ExitStack()
        self._verify: Callable[[], Any] | None = None

    # ------------------------------------------------------------------ what trainings call

    def compile(self, target: Any, **options: Any) -> Any:
        """``torch.compile`` in the runs that compile."""
        if self.is_eager:
            return target
        return torch.compile(target, **{"backend": "aot_eager", **options})

    def compile_in_place(self, module: nn.Module, **options: Any) -> None:
        """``module.compile()`` in the runs that compile."""
        if not self.is_eager:
            module.compile(**{"backend": "aot_eager", **options})

    def attach(self, model: nn.Module, *args: Any, loss: Any = None, **kwargs: Any) -> None:
        """Put the column's tool on.

        Args:
            model: where.
            *args: what ``tt.verify`` calls it with.
            loss: of ``tt.verify``.
            **kwargs: further ones of the model.
        """
        assert self._model is None, "a row attaches once"
        self._model, self._is_attached = model, True
        self._verify = lambda: tt.verify(model, *args, loss=loss, **kwargs)
        attach = getattr(self, f"_attach_{self._column}", None)
        if attach is not None:
            attach(model)

    def proves(self, model: nn.Module, *args: Any) -> None:
        """Say what ``tt.verify`` runs, where it is not what is attached to."""
        self._verify = lambda: tt.verify(model, *args)

    def detach(self) -> None:
        """Take everything off; the training goes on."""
        self._is_attached = False
        self.leave.close()

    def optimizes(self, *optimizers: Optimizer) -> None:
        """Name the optimizers, whose hook tables are looked at."""
        self._optimizers += optimizers

    def distributed(self) -> None:
        """Say that the parameters were distributed after attaching."""
        truth = self.made.tool.get("truth")
        if truth is not None:
            truth.look_again()

    def infers_shapes(self) -> None:
        """Say that a pipeline will run the model once on uninitialised memory."""
        truth = self.made.tool.get("truth")
        if truth is not None:
            truth.infers_shapes = True

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        """Inside, the training evaluates."""
        truth = self.made.tool.get("truth")
        if truth is not None:
            truth.phase = "eval"
        yield
        if truth is not None:
            truth.phase = "forward"

    def step(self, loss: Any) -> None:
        """The step is done."""
        number = self.step_number
        self.step_number += 1
        self.made.facts[f"loss {number}"] = loss = _bits_of_loss(loss)
        for name, param in self._params():
            gradient = None if param.grad is None else own(param.grad)
            self.made.facts[f"gradient of {name} in {number}"] = _bits(gradient)
        for name in ("watch", "stats") if self._is_attached else ():
            if name in self.made.tool:
                self.made.tool[name].step()
        if "truth" in self.made.tool and self._is_attached:
            self.made.tool["truth"].next_step()
        if self._column == "verify" and "verification" not in self.made.tool:
            self._prove()

    # ------------------------------------------------------------------ the columns

    def _attach_truth(self, model: nn.Module) -> None:
        truth = self.made.tool["truth"] = PlainTruth(model)
        self.leave.callback(truth.close)

    def _attach_edited(self, model: nn.Module) -> None:
        module = tt.core.module_paths.modules_of(model)[0][self._edited]
        self.leave.callback(edited_by_hooks(module, FACTOR, MOST))

    def _attach_Memory(self, model: nn.Module) -> None:
        self._keep("watch", tt.watch(model, self._where))

    def _attach_Stats(self, model: nn.Module) -> None:
        self._keep("stats", tt.watch(model, self._where, to=tt.Stats(exact=True)))

    def _attach_edit(self, model: nn.Module) -> None:
        path = self._edited or "."
        changes = {
            f"{path}:output": tt.edits.scale(FACTOR),
            f"{path}:grad_output": tt.edits.clamp(-MOST, MOST),
        }
        self._keep("edit", tt.edit(model, changes))

    def _attach_offload(self, model: nn.Module) -> None:
        self._keep("offload", tt.offload("disk", model=model, min_bytes=64))

    def _attach_together(self, model: nn.Module) -> None:
        self._attach_Memory(model)
        self._keep("look", tt.edit(model, "*:output", lambda x: None, missing="ignore"))
        self._attach_Stats(model)
        self._attach_offload(model)

    def _keep(self, name: str, tool: Any) -> None:
        self.made.tool[name] = self.leave.enter_context(tool)

    def _prove(self) -> None:
        if self._verify is None:  # Not attached yet.
            return
        found = self.made.tool["verification"] = self._verify()
        self.made.told += [entry.reason for entry in found.unverified]
        self.made.told += [*found.hollow, *found.notes, *found.unsteady]

    # ------------------------------------------------------------------ the end

    def finish(self) -> None:
        """Note what there is to be seen, now that everything was taken off."""
        made, tool = self.made, self.made.tool
        for name in ("watch", "stats"):
            if name in tool:
                made.told += [entry.reason for entry in tool[name].absent]
        if "offload" in tool:
            made.reported.append(str(tool["offload"].report()))
        assert self._model is not None
        model = self._model
        made.facts["random numbers"] = torch.get_rng_state().numpy().tobytes()
        for name, param in self._params():
            made.facts[f"parameter {name}"] = _bits(own(param))
        for name, buffer in model.named_buffers():
            made.facts[f"buffer {name}"] = _bits(own(buffer))
        for path, module in model.named_modules():
            made.facts[f"mode of {path}"] = getattr(module, "training", None)
        made.numbers += [own(param) for _, param in self._params()]
        made.tables = _tables(model, self._optimizers)

    def _params(self) -> Iterator[tuple[str, Tensor]]:
        if self._model is not None:
            yield from self._model.named_parameters()


def run(train: Callable[[Probe], object], probe: Probe) -> Made:
    """Run one training from the same random numbers; what it raises has a note of nothing."""
    if dynamo_hooks._num_holders:
        gc.collect()  # A watch that another test left open holds a setting, until it is collected.
    before = _compiler_settings()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.manual_seed(0)
        with probe.leave:
            train(probe)
        probe.finish()
    probe.made.warned = {str(one.message) for one in caught}
    probe.made.facts["saved-tensor hooks"] = top()
    after = _compiler_settings()
    probe.made.tables["compiler settings"] = [
        name for name in before or () if before[name] != after[name]
    ]
    return probe.made


def _bits_of_loss(loss: Any) -> Any:
    return [bits(own(one)) if isinstance(one, Tensor) else one for one in _listed(loss)]


def _listed(loss: Any) -> list[Any]:
    return list(loss) if isinstance(loss, tuple | list) else [loss]


def _bits(tensor: Tensor | None) -> Any:
    if tensor is not None and tensor.is_nested:
        return [bits(part) for part in tensor.unbind()]
    if tensor is not None and hasattr(tensor, "dequantize") and type(tensor) is not Tensor:
        tensor = tensor.dequantize()
    return bits(tensor)


# ---------------------------------------------------------------------- hook tables


def _tables(model: nn.Module, optimizers: list[Optimizer]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for source in (module_tables, optimizer_tables):
        for name, table in vars(source).items():
            if name.startswith("_global_") and isinstance(table, dict):
                found[name] = _names(table)
    for path, module in model.named_modules():
        found[f"attributes of {path}"] = sorted(vars(module))
        for name, table in vars(module).items():
            if "hooks" in name and isinstance(table, dict):
                found[f"{name} of {path}"] = _names(table)
    for name, param in model.named_parameters():
        for kind in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            found[f"{kind} of {name}"] = _names(getattr(param, kind, None) or {})
    for number, optimizer in enumerate(optimizers):
        for name, table in vars(optimizer).items():
            if "hooks" in name:
                found[f"{name} of optimizer {number}"] = _names(table)
    return found


def _names(table: Any) -> list[str]:
    """Names of functions, so that two runs can be compared."""
    return [str(getattr(hook, "__qualname__", type(hook).__qualname__)) for hook in table.values()]


def _compiler_settings() -> Any:
    if "torch._dynamo" not in sys.modules:
        return None
    return torch._dynamo.config.get_config_copy()

"""Metadata of a run: its model and how it was made. Knows nothing of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Meta:
    """The metadata of a run: its model and how it was made.

    Attributes:
        model: class name of the model.
        modules: path -> class names in MRO order, in the order of ``named_modules()``.
        aliases: second path of a shared module -> its first.
        where: the patterns that were watched, as text.
        torch: version of PyTorch.
        torchtap: version of torchtap.
        created: UTC time in ISO form.
        labels: anything else that the maker wrote down, text to text.
        rank: of the process in ``torch.distributed`` when the watch began, 0 outside of it;
            ``None`` of a run that ``tt.merge`` made of several.
        world_size: how many ranks trained together, 1 outside of it.
        batch_ranks: the ranks that worked on the same part of the batch, by tensor parallelism,
            with this one; none where each rank had a part of its own.
        stages: the stages of a pipeline that the model was, as ``torch.distributed.pipelining``
            ran it; none where it did not.
        num_stages: how many stages that pipeline had, 1 outside of one.
        num_microbatches: how many parts its schedule cut a rank's part of the batch into, 1 outside
            of one.
        num_parameters: path -> elements of the parameters that the module itself has, of those
            modules that have any.
        modes: path -> whether the module was in training mode in the first training forward, or,
            of a model that has not trained, when the watch began.
        requires_grad: name of a parameter, as of ``named_parameters()`` -> whether it required a
            gradient then.
        settings: path -> plain attributes of the module: numbers, truth values and texts by name,
            such as the ``p`` of a dropout.
        optimizers: each group of each optimizer that made a step with parameters of the model, as
            it was at its first: class under ``optimizer``, names under ``params``, and its
            settings (``lr``, ``weight_decay``, ...).
        foreign_steps: whether optimizers made steps that hold no parameter of the model.
        order: paths of the modules that were tapped and called, by their first call.
        loss: what the losses told where their gradients arrived at the model's output, of a watch
            with statistics of its ``grad_output``: operations, values, and how far outputs agree
            with targets.
        findings: what rules found while it ran (``tt.watch(..., rules=...)``), each as
            :meth:`Finding.as_dict <torchtap.runs.rules.finding.Finding.as_dict>` gives it.
    """

    model: str = ""
    modules: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    where: tuple[str, ...] = ()
    torch: str = ""
    torchtap: str = ""
    created: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    rank: int | None = 0
    world_size: int = 1
    batch_ranks: tuple[int, ...] = ()
    stages: tuple[int, ...] = ()
    num_stages: int = 1
    num_microbatches: int = 1
    num_parameters: Mapping[str, int] = field(default_factory=dict)
    modes: Mapping[str, bool] = field(default_factory=dict)
    requires_grad: Mapping[str, bool] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    optimizers: tuple[Mapping[str, Any], ...] = ()
    foreign_steps: bool = False
    order: tuple[str, ...] = ()
    loss: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Mapping[str, Any], ...] = ()

    @property
    def unoptimized(self) -> tuple[str, ...]:
        """Names of parameters that require a gradient and that no optimizer has.

        Empty where no optimizer made a step.
        """
        if not self.optimizers:
            return ()
        held = {name for group in self.optimizers for name in group["params"]}
        return tuple(
            name for name, needs in self.requires_grad.items() if needs and name not in held
        )

    def type_name(self, path: str) -> str:
        """Class name of the module at ``path``, or ``""`` where there is none (a mark)."""
        names = self.modules.get(path)
        return names[0] if names else ""

    def paths_of(self, path: str) -> tuple[str, ...]:
        """All paths of the module at ``path``: the first, then the further ones if shared."""
        return (path, *(alias for alias, first in self.aliases.items() if first == path))


def meta_of(body: Mapping[str, Any]) -> Meta:
    """Restore metadata from the JSON of :func:`dataclasses.asdict`; unknown fields are left out."""
    known = {one.name for one in fields(Meta)}
    entry = {name: value for name, value in body.items() if name in known}
    entry["modules"] = {path: tuple(names) for path, names in entry.get("modules", {}).items()}
    for name in ("where", "batch_ranks", "stages", "optimizers", "order", "findings"):
        entry[name] = tuple(entry.get(name, ()))
    return Meta(**entry)

"""The buffers of a model before a call: held, and copied where forwards write into them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_Group = tuple[torch.dtype, torch.device, int]
"""Dtype, device and number of dims: buffers that agree in them are copied into one tensor."""


@dataclass(frozen=True, slots=True)
class KeptBuffers:
    """All buffers as they were before a call.

    Attributes:
        held: the tensors themselves, by place; ``None`` where a module has none under that name.
        copies: of single buffers, by place.
        flat: places, and the copies of what stands there one after the other in one tensor.
        resting: places that no call wrote into so far, and how often each was written into.
    """

    held: list[Tensor | None]
    copies: dict[int, Tensor]
    flat: list[tuple[list[int], Tensor]]
    resting: tuple[list[int], list[int]]

    @property
    def were_overwritten(self) -> bool:
        """Return whether one that is not copied was written into since."""
        places, versions = self.resting
        return _versions(self.held, places) != versions

    def values(self) -> list[Tensor | None]:
        """Return what each place held before the call."""
        kept = list(self.held)
        for place, copy in self.copies.items():
            kept[place] = copy
        for places, copy in self.flat:
            own = [one for place in places if (one := self.held[place]) is not None]
            parts = torch.split(copy, [one.numel() for one in own])
            for place, one, part in zip(places, own, parts, strict=True):
                kept[place] = part.view(one.shape)
        return kept


class Buffers:
    """Keeps the buffers of modules before each call.

    In the first call all are copied, later those that anything writes into. Running statistics are
    always copied: the kernels of batch norm write into them and move no version.

    Args:
        modules: a ``ScriptModule`` among them is left out: it lets none of its tables be replaced.

    Attributes:
        places: module and name of each.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        plain = [module for module in modules if not isinstance(module, torch.jit.ScriptModule)]
        self.places = [(one, name) for one in plain for name in one._buffers]
        self._written = list(range(len(self.places)))
        self._resting: list[int] = []
        self._versions: list[int] = []
        self._is_first = True

    def keep(self) -> KeptBuffers:
        """Return the buffers as they are."""
        held = [one._buffers.get(name) for one, name in self.places]
        if self._resting:
            self._learn(held)
        copies, flat = _copies(held, self._written)
        kept = KeptBuffers(held, copies, flat, (self._resting, self._versions))
        if self._is_first:
            self._is_first = False
            self._rest(held)
        return kept

    def _rest(self, held: Sequence[Tensor | None]) -> None:
        """Copy running statistics from now on, and what is seen to be written into."""
        self._written = [
            place
            for place, (one, _) in enumerate(self.places)
            if "num_batches_tracked" in one._buffers
        ]
        self._resting = [place for place in range(len(held)) if place not in set(self._written)]
        self._versions = _versions(held, self._resting)

    def _learn(self, held: Sequence[Tensor | None]) -> None:
        """Find those that were written into since the call before."""
        now = _versions(held, self._resting)
        if now == self._versions:
            return
        pairs = list(zip(self._resting, now, self._versions, strict=True))
        self._written += [place for place, version, before in pairs if version != before]
        self._resting = [place for place, version, before in pairs if version == before]
        self._versions = [version for _, version, before in pairs if version == before]


def _versions(held: Sequence[Tensor | None], places: Sequence[int]) -> list[int]:
    found = (held[place] for place in places)
    return [-1 if one is None or one.is_inference() else one._version for one in found]


def _copies(
    held: Sequence[Tensor | None], places: Sequence[int]
) -> tuple[dict[int, Tensor], list[tuple[list[int], Tensor]]]:
    """Copy some of the buffers: many small ones at once, which costs little more than one."""
    groups: dict[_Group, list[int]] = {}
    copies: dict[int, Tensor] = {}
    for place in places:
        one = held[place]
        if one is None:
            continue
        if one.ndim < 2 and type(one) is Tensor and one.layout is torch.strided:
            groups.setdefault((one.dtype, one.device, one.ndim), []).append(place)
        else:
            copies[place] = one.detach().clone()
    flat = []
    with torch.no_grad():
        for (_, _, ndim), own in groups.items():
            put_together = torch.cat if ndim else torch.stack
            flat.append(
                (own, put_together([one for place in own if (one := held[place]) is not None]))
            )
    return copies, flat

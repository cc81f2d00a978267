"""A map of what decided an output: raw values, and where they come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtap.core.printed_page import Line, Page, Printed

if TYPE_CHECKING:
    import torch

    from torchtap.explain.again import Again


@dataclass(frozen=True, eq=False, repr=False)
class Map(Printed):
    """What ``tt.cam`` and ``tt.attribute`` return.

    Attributes:
        values: raw and signed, at native resolution, on the CPU, detached: ``float[B, H, W]`` of
            ``cam`` (``[B, L]`` and ``[B, D, H, W]`` for 1-d and 3-d maps; ``[B, K, ...]`` where K
            layers are stacked), the shape of the input for ``attribute``.
        method: its name.
        layer: path of the layer, ``""`` for the input; several are joined by ``", "``.
        target: class of each row, ``None`` where the target is no class.
        target_text: how the target reads.
        scores: the explained number of each row, ``float[B]``.
        notes: what the reader should know.
        gap: completeness gap of each row, ``float[B]``, of methods that have one: the sum of the
            map less the difference of the scores at the input and the baseline.
        size: height and width (``(L,)``, ``(D, H, W)``) of what the map lies over, to resize it
            to. Its length says how many of the last dimensions of ``values`` are space: what
            stands between them and the rows are K stacked layers, or channels. ``(T,)`` for
            tokens, where ``values`` are ``[B, T]``; ``()`` where nothing is space, as for
            features ``[B, F]`` and embedded tokens ``[B, T, D]``.
        again: makes the same map anew, for ``check``: an :class:`~torchtap.explain.again.Again`,
            which says what ``tt.cam`` and ``tt.attribute`` must give. ``None`` of a map that was
            read from a file.
    """

    values: torch.Tensor
    method: str
    layer: str
    target: tuple[int, ...] | None
    target_text: str
    scores: torch.Tensor
    notes: tuple[str, ...] = ()
    gap: torch.Tensor | None = None
    size: tuple[int, ...] = ()
    again: Again | None = None

    def _page(self) -> Page:
        where = self.layer or "input"
        return Page(Line(f"{self.method} at {where}, {self.target_text}"))

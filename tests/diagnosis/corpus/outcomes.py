"""Writes the outcome of each training to ``outcomes.json`` beside this file.

    PYTHONPATH=tests/diagnosis/corpus python tests/diagnosis/corpus/outcomes.py

A broken training is worse than its healthy sibling on unseen data. Where the task survives the
fault, ``worse`` is false, and the fault is one of construction.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import nn
from trainings import HALVES, cases

FILE = Path(__file__).with_suffix(".json")
# A loss above its sibling's by less than this is no outcome.
MARGIN = 0.05


class Unwatched:
    """Stands where a watch would."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def step(self) -> None:
        """Nothing to close."""

    def log(self, **numbers: Any) -> None:
        """Keep the loss."""
        self.losses.append(float(numbers["loss"]))

    def close(self) -> None:
        """Nothing to take off."""


def outcomes() -> dict[str, dict[str, Any]]:
    """By name of the case: the loss on unseen data, and whether it is worse than the sibling's."""
    found: dict[str, dict[str, Any]] = {}
    for half in HALVES:
        for case in cases(half):
            watches: list[Unwatched] = []

            def watching(model: nn.Module, watches: list[Unwatched] = watches) -> Unwatched:
                watches.append(Unwatched())
                return watches[-1]

            score = case.train(watching)
            row: dict[str, Any] = {"score": None if math.isinf(score) else float(f"{score:.4g}")}
            losses = watches[0].losses
            if losses and not case.is_broken:
                ends = sum(losses[:5]) / 5, sum(losses[-5:]) / 5
                row["loss"] = [float(f"{end:.4g}") for end in ends]
            if case.is_broken:
                healthy = found[case.sibling]["score"]
                worse = math.isinf(score) or score > healthy + MARGIN * abs(healthy)
                row |= {"sibling": healthy, "worse": worse}
            found[case.name] = row
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    FILE.write_text(json.dumps(outcomes(), indent=1) + "\n")

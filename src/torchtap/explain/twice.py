"""The model on twice the rows, to see whether dimension 0 at a site counts them."""

from __future__ import annotations

import torch
from torch import Tensor

from torchtap.capture.watch import watch
from torchtap.core.record import Record
from torchtap.core.site import Pattern, Site
from torchtap.explain.rows import is_ambiguous
from torchtap.explain.subject import Subject
from torchtap.explain.target import Target


def lengths_of_twice(subject: Subject, target: Target, site: Site) -> tuple[int, set[int]] | None:
    """Return how many scores twice the rows give, and the lengths of dimension 0 at a site.

    ``None`` where the model does not run on twice the rows, or the site is then not to be seen.

    Args:
        subject: the model and its inputs, held.
        target: what is scored.
        site: with its leaf.
    """
    lengths: set[int] = set()

    def note(record: Record) -> None:
        if record.site == site and record.value.dim():
            lengths.add(len(record.value))

    where = Pattern(site.path or ".", (site.port,))
    try:
        # With gradients: without, PyTorch's encoder layers run as one kernel.
        with watch(subject.model, where, to=note), torch.enable_grad():
            num = len(subject.scores(target, times=2))
    except (RuntimeError, ValueError, LookupError, AssertionError):
        return None
    return (num, lengths) if lengths else None


def are_rows(subject: Subject, target: Target, site: Site, value: Tensor, scores: Tensor) -> bool:
    """Return whether there is one score for each row of the value at a site.

    Lengths tell, unless another dimension is as long: then twice the rows of the inputs must give
    twice the scores, and twice the length at the site.

    Args:
        subject: the model and its inputs, held.
        target: what is scored.
        site: with its leaf.
        value: what came by there.
        scores: of the same run.
    """
    if not is_ambiguous(value, len(scores)):
        return bool(value.dim()) and len(value) == len(scores)
    found = lengths_of_twice(subject, target, site)
    if found is None:
        return value.dim() > 1  # The model takes batches of this length alone.
    return found[0] == 2 * len(scores) and 2 * len(value) in found[1]

"""Find whether dimension 0 of a value counts what the scores count: the rows of a batch.

Lengths tell, unless another dimension is as long: that may be the rows, as in sequences
``[T, B, F]`` with ``T == B``. Then the model is run on twice the rows, which has twice the scores.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchtap.core.batch_rows import has_rows
from torchtap.core.errors import InputError
from torchtap.core.site import Site
from torchtap.core.tensors import kind_of
from torchtap.explain.same_scores import REJECTIONS
from torchtap.explain.site_probe import SiteProbe, Visit, plan_of
from torchtap.explain.subject import Subject
from torchtap.explain.target import UNBATCHED, Target

Run = Callable[[Tensor, int], Tensor]


def is_ambiguous(value: Tensor, num_scores: int) -> bool:
    """Return whether dimension 0 is as long as there are scores, and another dimension too."""
    if num_scores < 2 or not has_rows(value, num_scores):
        return False
    return value.dim() == 1 or num_scores in value.shape[1:]


def are_rows_of_value(value: Tensor, scores: Tensor, run: Run) -> bool:
    """Return whether there is one score for each row of a value that can be replaced.

    Args:
        value: as it was found.
        scores: those at the value.
        run: the scores at another value, which has so many times the rows.

    Raises:
        InputError: the value is a vector, and its elements are not rows.
    """
    num = len(scores)
    if not is_ambiguous(value, num):
        return has_rows(value, num)
    try:
        with torch.no_grad():
            return len(run(torch.cat([value, value]), 2)) == 2 * num
    except REJECTIONS as error:
        if value.dim() > 1:
            return True  # The model takes batches of this length alone.
        raise InputError(
            f"The value is {kind_of(value)}, and there are {num} scores, but the model does not "
            f"take twice as many rows. {UNBATCHED}"
        ) from error


def are_rows_at_site(
    subject: Subject, target: Target, site: Site, value: Tensor, scores: Tensor
) -> bool:
    """Return whether there is one score for each row of the value at a site.

    Where lengths do not tell, twice the rows of the inputs must give twice the scores, and twice
    the length at the site.

    Args:
        subject: the model and its inputs, held.
        target: what is scored.
        site: with its leaf.
        value: what came by there.
        scores: of the same run.
    """
    num = len(scores)
    if not is_ambiguous(value, num):
        return has_rows(value, num)
    lengths: set[int] = set()

    def note(tensor: Tensor, visit: Visit) -> None:
        if visit.site == site and tensor.dim():
            lengths.add(len(tensor))

    plan = plan_of(subject.modules, [site.path], (site.port,))
    try:
        # With gradients: without, PyTorch's encoder layers run as one kernel.
        with SiteProbe(subject.modules, plan, note, reads=True), torch.enable_grad():
            num_doubled = len(subject.scores(target, times=2))
    except REJECTIONS:
        lengths.clear()
    if not lengths:
        return value.dim() > 1  # The model takes batches of this length alone.
    return num_doubled == 2 * num and 2 * num in lengths

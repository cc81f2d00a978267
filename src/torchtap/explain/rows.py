"""Find whether dimension 0 of a value counts what the scores count: the rows of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from torchtap.core.errors import InputError
from torchtap.core.tensors import kind_of

Run = Callable[[Tensor, int], Tensor]


def is_ambiguous(value: Tensor, num_scores: int) -> bool:
    """Return whether dimension 0 is as long as there are scores, and another dimension too."""
    if not value.dim() or len(value) != num_scores or num_scores < 2:
        return False
    return value.dim() == 1 or num_scores in value.shape[1:]


def is_per_row(value: Tensor, scores: Tensor, run: Run) -> bool:
    """Return whether there is one score for each row of a value.

    Lengths tell, unless another dimension is as long: that may be the rows, as in sequences
    ``[T, B, F]`` with ``T == B``. Then the model is run on twice the rows, which gives twice the
    scores.

    Args:
        value: as it was found.
        scores: those at the value.
        run: the scores of so many copies of the rows.

    Raises:
        InputError: the value is a vector, and its elements are not rows.
    """
    if not value.dim() or len(scores) != len(value):
        return False
    if not is_ambiguous(value, len(scores)):
        return True
    num = len(value)
    try:
        with torch.no_grad():
            return len(run(torch.cat([value, value]), 2)) == 2 * num
    except (RuntimeError, ValueError, LookupError, AssertionError) as error:
        if value.dim() > 1:
            return True  # The model takes batches of this length alone.
        raise InputError(
            f"The value is {kind_of(value)}, and there are {num} scores, but the model does not "
            f"take twice as many rows. {UNBATCHED}"
        ) from error


UNBATCHED = (
    "Where the call has no batch dimension, add one (x[None]); else give target= a function of the "
    "output, as in target=lambda out: out.sum()."
)


def refuse_other_rows(scores: Tensor, inputs: Mapping[str, Tensor]) -> None:
    """Refuse an output of one dimension whose elements cannot be the scores of rows.

    Raises:
        InputError: there are several, and no input has as many rows: they are the classes of a
            call without a batch dimension.
    """
    lengths = {len(one) for one in inputs.values() if one.dim() and not one.is_nested}
    if len(scores) > 1 and lengths and len(scores) not in lengths:
        shown = ", ".join(kind_of(one) for one in inputs.values())
        raise InputError(
            f"The model returned {len(scores)} numbers in one dimension, one for each row of a "
            f"batch, and no input has {len(scores)} rows ({shown}). {UNBATCHED}"
        )

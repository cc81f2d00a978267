"""Machine-readable codes of the reasons for which values are absent. Knows nothing of torch.

A reason is a sentence for people, in files of every version; its code is read off the words that
the sentence is built from. :func:`code_of` gives it, ``Absence.code`` is the same.
"""

from __future__ import annotations

_BY_WORDS = (
    ("of evaluation forwards", "evaluation"),
    ("do not hold it", "not_in_optimizer"),
    ("GradScaler skipped the step", "scaled_away"),
    ("does not require grad", "no_grad_required"),
    ("grad mode was off", "grad_mode_off"),
    ("no optimizer made a step", "no_step"),
    ("no gradient arrived", "no_gradient"),
    ("no backward reached", "no_gradient"),
    ("it has no gradient", "no_gradient"),
    ("was paused", "paused"),
    ("it has no forward", "container"),
    ("was not called", "not_called"),
    ("was compiled", "compiled"),
    ("compiled graph", "compiled"),
    ("only parts further inside", "not_called"),
    ("owns none that fits", "no_state"),
    ("no tensor that fits", "no_tensor"),
    ("use a tuple, list, dict or dataclass", "not_looked_into"),
    ("raised", "raised"),
    ("tt.mark", "no_mark"),
    ("was overwritten", "overwritten"),
    ("nothing in it is kept for backward", "nothing_saved"),
    ("inside a backward", "in_backward"),
    ("takes no hooks", "no_hooks"),
    ("taken out of the model", "moved"),
    ("the module stands at", "moved"),
    ("rank", "ranks"),
    ("meta tensor", "no_values"),
    ("fake tensor", "no_values"),
    ("max_bytes", "no_room"),
)
"""Words of a reason, and its code; the first that are found count."""
CODES = frozenset((*(code for _, code in _BY_WORDS), "other"))


def code_of(reason: str) -> str:
    """Return the code of a reason: one of :data:`CODES`, ``other`` where it has none of its own.

    Example:
        >>> code_of("it does not require grad")
        'no_grad_required'
    """
    return next((code for words, code in _BY_WORDS if words in reason), "other")

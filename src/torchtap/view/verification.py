"""A verification as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchtap.core.absence import by_reason, reason_lines
from torchtap.core.text import wrap

if TYPE_CHECKING:
    from torchtap.core.absence import Absence
    from torchtap.verifying import Verification

_MOST = 8
_UNSTEADY = (
    "Two plain runs, without torchtap, already differ, so nothing can be said about watching. The "
    "model keeps state outside of its parameters and buffers, or draws from a generator of random "
    "numbers that torchtap does not know (known are those of PyTorch, Python and NumPy, and "
    "generators that modules hold as attributes), or an operation in it is not deterministic "
    "(torch.use_deterministic_algorithms finds it)."
)


def show_verification(result: Verification) -> str:
    """The verdict, then what speaks for and against it."""
    verdict = "holds" if result else "FAILS"
    if result.unsteady:
        verdict = "is not possible"
    elif result.hollow and not (result.changed or result.wrong):
        verdict = "does not hold: it is incomplete"
    lines = [*wrap(f"Watching {result.model}: the proof {verdict}.")]
    if result.unsteady:
        lines += wrap(_UNSTEADY)
    else:
        lines.append(
            f"{result.num_values:,} values bit for bit, {result.num_gradients:,} gradients within "
            f"rounding of an out-of-place twin."
        )
    lines += _block("Note", result.notes)
    lines += _block("Two plain runs already differ in", result.unsteady)
    lines += _block("Not proved", result.hollow)
    lines += _block("Watching changed", result.changed)
    lines += _block("Records that are not the truth", [str(one) for one in result.wrong])
    lines += _reasons("Without an independent truth", result.unverified)
    lines += _reasons("Not seen", result.absent)
    return "\n".join(lines)


def _reasons(title: str, absent: Sequence[Absence]) -> list[str]:
    """Equal reasons stand once, with their sites."""
    if not absent:
        return []
    reasons = list(by_reason(absent).items())
    shown = [line for reason, sites in reasons[:_MOST] for line in reason_lines(reason, sites)]
    more = [f"  ... and {len(reasons) - _MOST} more reasons"] if len(reasons) > _MOST else []
    return [f"{title} ({len(absent)}):", *shown, *more]


def _block(title: str, items: Sequence[str]) -> list[str]:
    if not items:
        return []
    more = [f"  ... and {len(items) - _MOST} more"] if len(items) > _MOST else []
    shown = [line for item in items[:_MOST] for line in wrap(item, first="  ", rest="    ")]
    return [f"{title} ({len(items)}):", *shown, *more]

"""Says in words what was asked of an offload and did not happen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torchtap.core.torch_private import imported_dynamo
from torchtap.hooks.saved_hooks_scope import BACKWARD, CHECKPOINT, SavedHooksScope
from torchtap.saved.offload_report import IN_HOST, OffloadReport

_HINTS = {
    "no tier takes it": "a codec takes its own dtypes; 'disk' takes all",
    IN_HOST: "'cpu' takes what is on a GPU; from the CPU, to='disk' and codecs do",
    "not the input of a checkpoint": "leave out only=, or run parts of the model in "
    "torch.utils.checkpoint",
    "inside a backward": "what a checkpoint computes again is used at once: offload around it. "
    "What a model saves that differentiates inside its forward cannot be offloaded",
}
_NOTHING_TO_MOVE = {"a single number, or empty", "parameter", "buffer", "after closing", IN_HOST}
_GAINS_NOTHING = (CHECKPOINT, BACKWARD)


def notes_of(
    report: OffloadReport,
    scope: SavedHooksScope,
    *,
    keep_last: int,
    budgets: Sequence[int],
    is_over: bool,
) -> list[str]:
    """Note all that happened otherwise than asked, besides what the engine noted itself.

    Args:
        report: of the engine.
        scope: where the hooks were on.
        keep_last: bytes that stay resident.
        budgets: of the tiers, if all have one and no block is evicting any more.
        is_over: no tier has a budget, and no block is in memory any more.
    """
    return [
        *_refused(report, scope),
        *_nothing(report),
        *_never_left(report, keep_last, budgets, is_over=is_over),
    ]


def _refused(report: OffloadReport, scope: SavedHooksScope) -> Iterator[str]:
    served = [row.path for row in report.rows if row.count]
    known = scope.refused.get(CHECKPOINT, {})
    for reason, paths in scope.refused.copy().items():  # Other threads may be inside.
        unserved = list(paths)
        if reason != CHECKPOINT:  # A checkpoint recomputes inside a backward too.
            unserved = [
                path for path in paths if path not in known and not _is_served(path, served)
            ]
        if unserved:
            yield f"{named(unserved)} {reason}"


def _is_served(path: str, served: Iterable[str]) -> bool:
    """Return whether tensors of the module, or of one around it, were counted."""
    return any(one in (".", path) or path.startswith(f"{one}.") for one in served)


def _nothing(report: OffloadReport) -> Iterator[str]:
    if report.packed_nbytes or not report.kept_nbytes:
        return
    hints = [_HINTS[reason] for reason in report.kept_nbytes if reason in _HINTS]
    more = "".join(f"; {hint}" for hint in hints)
    if "small" in report.kept_nbytes:
        more += "; what is small leaves with a smaller min_bytes="
    yield f"nothing was moved, all that was saved stayed ({_shares(report)}){more}"


def _never_left(
    report: OffloadReport, keep_last: int, budgets: Sequence[int], *, is_over: bool
) -> Iterator[str]:
    if not report.packed_nbytes or report.moved_nbytes:
        return
    if report.plain_peak_nbytes <= keep_last:
        yield "nothing had to leave: all of it fitted into keep_last= or max_bytes="
    elif budgets:
        limits = ", ".join(f"{budget:,}" for budget in budgets)
        yield (
            f"nothing has left: {report.packed_nbytes:,} bytes were to be moved; if no tensor of "
            f"them fits the budgets in to= ({limits} bytes), give more"
        )
    elif is_over and not report.notes:
        yield (
            "nothing has left: backward asked for it, or let go of it, while the operation that "
            "saved it was the latest that saves; end the block before backward"
        )


def why_nothing(report: OffloadReport, scope: SavedHooksScope) -> str | None:
    """Return why nothing was offloaded, if a tensor was saved that another request would move.

    Nothing is wrong where nothing ran, where all was small, or on this machine in host memory
    already, or where a checkpoint has made offloading needless: a note says so.

    Args:
        report: at the end.
        scope: where the hooks were on.
    """
    if report.packed_nbytes or report.shared_nbytes:
        return None
    if report.kept_nbytes:
        is_odd = "small" not in report.kept_nbytes and set(report.kept_nbytes) - _NOTHING_TO_MOVE
        return next(_nothing(report)) if is_odd else None
    if set(scope.refused) <= set(_GAINS_NOTHING):
        return None
    return next(_refused(report, scope), None)


def never_called(num_attached: int) -> str:
    """Return a note that none of the attached modules ran, with the likely cause."""
    compiled = (
        "; or a graph that was compiled before runs in its place: attach to the compiled module, "
        "with model=compiled, where='.'"
        if imported_dynamo() is not None
        else ""
    )
    number = "the module" if num_attached == 1 else f"none of the {num_attached:,} modules"
    was = "was never called" if num_attached == 1 else "was called"
    return f"{number} that it was attached to {was}{compiled}"


def named(paths: Iterable[str]) -> str:
    """Return the first few paths."""
    names = [path or "." for path in paths]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _shares(report: OffloadReport) -> str:
    return ", ".join(f"{nbytes:,} bytes {why}" for why, nbytes in report.kept_nbytes.items())

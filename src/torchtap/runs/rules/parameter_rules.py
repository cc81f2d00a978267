"""Rules on what is not trained: frozen, in no optimizer, cut off, a norm in eval mode."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from torchtap.core.site import Site
from torchtap.runs.rules.finding import ALARM, NOTE, Finding
from torchtap.runs.rules.rule_view import SIGNATURE, View, median, shown


def not_in_optimizer(view: View) -> Iterator[Finding]:
    """Parameters that get gradients and that no optimizer has.

    Args:
        view: of the run.
    """
    names = set(view.meta.unoptimized)
    if view.meta.foreign_steps and not view.meta.optimizers:
        names = {name for name, needs in view.meta.requires_grad.items() if needs}
    chosen = {name for name in names if _has_gradient(view, name) and _stands(view, name)}
    for path in _outermost(view, chosen):
        yield Finding(
            "not_in_optimizer",
            ALARM,
            shown(path),
            view.span,
            "its parameters get gradients, and no optimizer that made a step has them",
            {"parameters": sorted(_within(path, chosen))},
            "Give the optimizer model.parameters(), after all modules were made.",
        )


def detached(view: View) -> Iterator[Finding]:
    """Parameters that require a gradient and never get one.

    An alarm where the module ran; a note where it was never called, where no optimizer has its
    parameters either, as of a teacher, or where it is a bias beside a weight that gets one: a loss
    of derivatives does not depend on it.

    Args:
        view: of the run.
    """
    if not any(True for _ in view.sites("param_grad")):
        return
    cut = {
        f"{one.site.path}.{one.site.leaf}" if one.site.path else one.site.leaf
        for one in view.run.absent
        if one.site.port == "param_grad" and one.code == "no_gradient"
    }
    cut = {name for name in cut if not _has_gradient(view, name)}
    unoptimized = set(view.meta.unoptimized)
    for path in _outermost(view, cut):
        own = _within(path, cut)
        ran = any(view.modules.was_called(name.rpartition(".")[0]) for name in own)
        is_meant = bool(own & unoptimized) and own <= unoptimized
        is_meant |= all(_is_constant(view, name) for name in own)
        yield Finding(
            "detached",
            ALARM if ran and not is_meant else NOTE,
            shown(path),
            view.span,
            "its parameters require a gradient and never get one"
            + ("" if ran else ": it is never called"),
            {"parameters": sorted(own)},
            "Look for detach(), no_grad(), .item(), or a rounding between it and the loss.",
        )


def frozen(
    view: View, *, most: float = 0.5, fresh: float = 0.75, fall: float = 0.2
) -> Iterator[Finding]:
    """Modules that do not require gradients, behind others that are trained.

    A frozen beginning is meant, and so are adapters, where most is frozen and some matrices are
    trained. Where no matrix is trained at all, it is one only while the loss falls.

    Args:
        view: of the run.
        most: share of the elements that are frozen, from which on it is meant.
        fresh: the same where all that is frozen is as PyTorch made it.
        fall: share by which the loss falls where only norms and biases are trained on purpose.
    """
    sizes = {name: view.start(_param(view, name), "numel") for name in view.meta.requires_grad}
    held = {
        name
        for name, needs in view.meta.requires_grad.items()
        if not needs and not _is_updated(view, name) and not _has_gradient(view, name)
    }
    trained = {name for name in view.meta.requires_grad if _is_updated(view, name)}
    total = sum(size for size in sizes.values() if size == size)
    share = sum(sizes[name] for name in held if sizes[name] == sizes[name])
    has_matrix = any(len(view.shape(_param(view, name))) > 1 for name in trained)
    if all(_is_as_made(view, name) for name in held if len(view.shape(_param(view, name))) > 1):
        most = fresh
    is_meant = not share < most * total if has_matrix else not view.loss.fall < fall
    if held and trained and (is_meant or _comes_first(view, held, trained)):
        yield from _left_as_made(view, held, trained, share / total)
    if not held or not trained or is_meant:
        return
    first = min(view.modules.order.get(_owner(name), 0) for name in trained)
    behind = {name for name in held if view.modules.order.get(_owner(name), 0) > first}
    behind = {name for name in behind if _is_used(view, _owner(name))}
    for path in _outermost(view, behind):
        own = _within(path, behind)
        yield Finding(
            "frozen",
            ALARM,
            shown(path),
            view.span,
            f"it does not require a gradient, behind modules that are trained; {share / total:.0%} "
            f"of all elements are frozen",
            {"parameters": sorted(own), "share": share / total, "has_matrix": has_matrix},
            "Call requires_grad_(True) on it before the optimizer is made.",
        )


def _comes_first(view: View, held: set[str], trained: set[str]) -> bool:
    first = min(view.modules.order.get(_owner(name), 0) for name in trained)
    return all(view.modules.order.get(_owner(name), 0) <= first for name in held)


def _left_as_made(view: View, held: set[str], trained: set[str], share: float) -> Iterator[Finding]:
    """Yield a module that is frozen as PyTorch made it: what was trained before looks different.

    A note where one matrix is trained alone, as on random features. A copy that began equal to what
    is trained, as of a target network, is none.
    """
    fresh = {name for name in held if _is_as_made(view, name) and not _is_copy(view, name, trained)}
    num_trained = sum(len(view.shape(_param(view, name))) > 1 for name in trained)
    for path in _outermost(view, fresh)[:1]:
        yield Finding(
            "frozen",
            ALARM if num_trained > 1 else NOTE,
            shown(path),
            view.span,
            f"it does not require a gradient, and its weights are as PyTorch made them; "
            f"{share:.0%} of all elements are frozen",
            {"parameters": sorted(_within(path, fresh)), "share": share},
            "Call requires_grad_(True) on it, or load its trained weights.",
        )


def _is_copy(view: View, name: str, trained: set[str]) -> bool:
    """Return whether a parameter began equal to one that is trained."""
    own = _param(view, name)
    first = [view.start(own, number) for number in SIGNATURE]
    return any(
        first == [view.start(_param(view, other), number) for number in SIGNATURE]
        for other in trained
        if view.shape(_param(view, other)) == view.shape(own)
    )


def _is_as_made(view: View, name: str, *, near: float = 0.04) -> bool:
    """Return whether a matrix is of the distribution by which PyTorch initialises it.

    Uniform within ``1 / sqrt(fan_in)`` of a linear layer, normal of an embedding.
    """
    site = _param(view, name)
    shape = view.shape(site)
    if len(shape) < 2 or math.prod(shape) < 64:
        return False
    rms, top = view.start(site, "rms"), view.start(site, "absmax")
    if view.modules.is_a(_owner(name), {"Embedding"}):
        return abs(rms - 1) < 2 * near and top < 6
    bound = 1 / math.sqrt(math.prod(shape[1:]))
    return top <= bound * 1.0001 and abs(rms * math.sqrt(3) / bound - 1) < near


def bn_eval(view: View) -> Iterator[Finding]:
    """A batch norm in eval mode while its model is trained.

    Its running statistics never move, so it does not normalise what the weights make by now. Where
    it was put into eval mode later, forwards count as an evaluation, and its updates go on.

    Args:
        view: of the run.
    """
    for path in view.modules.leaves:
        is_batch_norm = any("BatchNorm" in one for one in view.meta.modules.get(path, ()))
        if not is_batch_norm or view.modules.setting(path, "track_running_stats") is False:
            continue
        counted = view.series(view.site(path, "buffer", "num_batches_tracked"), "max")
        counted = counted[np.isfinite(counted)]
        stands = len(counted) > 3 and counted[0] == counted[-1]
        in_eval = not len(counted) and view.meta.modes.get(path) is False
        in_eval |= _goes_on(view, path)
        if (stands or in_eval) and median(view.norm("update")) > 0 and _trains(view, path):
            yield Finding(
                "bn_eval",
                ALARM,
                shown(path),
                view.span,
                "it is in eval mode while the model is trained: it uses and keeps old statistics",
                {"mode": "eval", "num_batches_tracked": counted[-1] if len(counted) else None},
                "Call model.train() before training, and after each evaluation.",
            )


def _goes_on(view: View, path: str, *, fewest: int = 10) -> bool:
    """Return whether most updates of a norm came in steps without a training forward of it."""
    made = np.isfinite(view.series(view.site(path, "update", "weight"), "l2"))
    ran = np.isfinite(view.series(view.site(path, "output"), "l2"))
    return bool(ran.any() and made.sum() >= fewest and (made & ran).sum() < made.sum() / 2)


def _trains(view: View, path: str) -> bool:
    """Return whether a norm is to be trained: its weight is, or it has none and all else is."""
    needs = view.meta.requires_grad.get(f"{path}.weight")
    return view.modules.setting(path, "affine") is False if needs is None else needs


def _is_constant(view: View, name: str) -> bool:
    """Return whether a parameter is a bias beside a weight that gets a gradient."""
    path, _, leaf = name.rpartition(".")
    return leaf == "bias" and _has_gradient(view, f"{path}.weight" if path else "weight")


def _is_used(view: View, path: str) -> bool:
    """Return whether a gradient arrives at a module, or at one around it, as far as is known.

    An averaged copy is frozen and no part of the loss, and neither is a head that is not used.
    """
    if not any(True for _ in view.sites("grad_output")):
        return True
    while path and view.site(path, "output") is None:
        path = path.rpartition(".")[0]
    return view.site(path, "grad_output") is not None if path else False


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _param(view: View, name: str) -> Site | None:
    path, _, leaf = name.rpartition(".")
    return view.site(path, "param", leaf)


def _has_gradient(view: View, name: str) -> bool:
    path, _, leaf = name.rpartition(".")
    norms = view.series(view.site(path, "param_grad", leaf), "l2")
    return bool((norms > 0).any())


def _stands(view: View, name: str) -> bool:
    """Return whether a parameter is the same in every step, as far as is known."""
    norms = view.series(_param(view, name), "l1")
    norms = norms[np.isfinite(norms)]
    return bool((norms == norms[0]).all()) if len(norms) else True


def _is_updated(view: View, name: str) -> bool:
    path, _, leaf = name.rpartition(".")
    return bool((view.series(view.site(path, "update", leaf), "l2") > 0).any())


def _within(path: str, names: Iterable[str]) -> set[str]:
    return {name for name in names if not path or name.startswith(f"{path}.")}


def _outermost(view: View, names: set[str]) -> list[str]:
    """Return the outermost modules of which all parameters are among some, the model last."""
    every = set(view.meta.requires_grad) | names
    found: list[str] = []
    owners = {_owner(name) for name in names}
    for owner in sorted(owners, key=lambda path: view.modules.order.get(path, 0)):
        path = owner
        while path:
            parent = path.rpartition(".")[0]
            if not parent or not _within(parent, every) <= names:
                break
            path = parent
        if path not in found and not any(one == path for one in found):
            found.append(path)
    return [one for one in found if not any(one.startswith(f"{other}.") for other in found)]

"""The model run out of place, nothing overwritten or shared: what each gradient must be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.core.distributed import is_distributed
from torchtap.core.equality import mismatch, same, tolerance, wide
from torchtap.core.rebuild import replace
from torchtap.core.site import Site
from torchtap.core.torch_private import current_task
from torchtap.core.tree import leaves
from torchtap.core.trial import Outcome, Trial
from torchtap.studies.plain_hooks import interposed
from torchtap.studies.true_values import Calls, Place, is_in_transform

Received = dict[int, Tensor]
"""Number of a graph task, as PyTorch gives one to each backward -> the gradient it brought."""


class _Chain:
    """One tensor of the model, and all that the twin hands on in its place.

    A tensor that is handed on is known by two gradients: the one that arrives at it, and the one
    that leaves it, which differs only where the model put a hook of its own on the tensor.

    Attributes:
        whole: gradients of the tensor.
        links: (arriving, leaving) of what was handed on, in the order of handing.
    """

    def __init__(self) -> None:
        self.whole: Received = {}
        self.links: list[tuple[Received, Received]] = []
        self._before: list[set[int]] = []  # Backwards that had passed before each link was made.

    def add_link(self) -> tuple[Received, Received]:
        """Something is handed on."""
        self._before.append(set(self._tasks()))
        self.links.append(({}, {}))
        return self.links[-1]

    def _tasks(self) -> Iterator[int]:
        yield from self.whole
        for arriving, _ in self.links:
            yield from arriving

    def gradients(self, link: int) -> list[Tensor]:
        """The gradient of the tensor in each backward, as a hook hears it that was put on then.

        Args:
            link: when: with the handing on of this link.
        """
        tasks = set(self._tasks()) - self._before[link]
        by_task = [self._gradient(task, link) for task in sorted(tasks)]
        return [one for one in by_task if one is not None]

    def _gradient(self, task: int, link: int) -> Tensor | None:
        if task not in self.whole:  # It ended at what was handed on, as autograd.grad may.
            return next(received[task] for received, _ in self.links if task in received)
        hooked = [
            (arriving[task], leaving[task])
            for arriving, leaving in self.links[link:]
            if task in leaving and not same(arriving[task], leaving[task])
        ]
        whole = self.whole[task]
        if len(hooked) > 1:
            return None  # Each changed what the others brought.
        return whole + (hooked[0][0] - hooked[0][1]) if hooked else whole


class Twin:
    """The model run out of place: what each gradient must be.

    Each tensor that goes in or out of a module is replaced by a clone; a tensor that the model
    hands on unchanged through several modules is a chain of clones. Every backward that passes (as
    where a model differentiates inside its forward) brings a gradient of its own.

    Args:
        trial: what is run.
        modules: path -> those that are watched.
        plain: what the model gives.
        writes_back: where a module overwrote an argument, give the caller's tensor that value too.

    Attributes:
        through: gradients of the clone that a module got, in the order of the backwards.
        whole: gradients of the tensor at the origin, over all its uses, likewise.
        failure: why it computes something else than the model, if it does.
        recomputed: paths of modules that ran within a backward.
        asked: where it could hand on clones; not in objects, which stay as they are.
        distributed: where it met a ``DTensor``, and handed it on as it is.
    """

    def __init__(
        self,
        trial: Trial,
        modules: Mapping[str, nn.Module],
        plain: Outcome,
        *,
        writes_back: bool = False,
    ) -> None:
        self.through: dict[Place, list[Tensor]] = {}
        self.whole: dict[Place, list[Tensor]] = {}
        self.failure: str | None = None
        self.asked: set[Site] = set()
        self.distributed: set[Site] = set()
        self._writes_back = writes_back
        # Of each call that runs: what the caller gave, what the module got instead, its version.
        self._lent: dict[str, list[list[tuple[Tensor, Tensor, int]]]] = {}
        self._overwriters: dict[str, None] = {}
        self._chains: dict[int, tuple[Tensor, int, _Chain]] = {}
        self._places: dict[Place, tuple[_Chain, int]] = {}
        self._handles: list[Any] = []
        self._calls = Calls()
        try:
            with interposed(modules, self._enter, self._leave):
                outcome = trial.run()
        except RuntimeError as error:
            self.failure = f"the twin run failed: {error}"
        else:
            self._compare(plain, outcome)
        finally:
            for handle in self._handles:  # Some are on tensors of the user's.
                handle.remove()
        self.recomputed = self._calls.recomputed
        self._chains.clear()
        for place, (chain, link) in self._places.items():
            self.through[place] = list(chain.links[link][0].values())
            self.whole[place] = chain.gradients(link)
        self._places.clear()

    def _compare(self, plain: Outcome, outcome: Outcome) -> None:
        """Set ``failure`` where the twin does not compute what the model does."""
        if any(
            mismatch(outcome.outputs[leaf], tensor, exact=False)
            for leaf, tensor in plain.outputs.items()
        ):
            self.failure = self._why_different()
        elif not _close(plain.gradients, outcome.gradients):
            self.failure = (
                "the twin gives the parameters other gradients than the model, as where hooks on "
                "tensors inside of the model change what flows, so it can prove nothing"
            )

    def _why_different(self) -> str:
        reason = "modules share memory on purpose (one overwrites what another reads)"
        if self._overwriters:
            paths = [path or "." for path in self._overwriters]
            names = ", ".join(paths[:3]) + (" and more" if len(paths) > 3 else "")
            reason += f", as {names}, which overwrite{'s' * (len(paths) == 1)} an argument"
        return f"{reason}, so a twin without shared memory computes something else"

    # ------------------------------------------------------------------ handing on

    def _enter(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        bare = len(args) == 1 and not kwargs
        call = self._calls.enter(path)
        self._lent.setdefault(path, []).append([])
        swap = self._swap(path, "grad_input", call)
        if bare:
            return (replace(args[0], swap, objects=False),), kwargs
        return replace(args, swap, objects=False), replace(kwargs, swap, objects=False)

    def _leave(self, path: str, output: Any) -> Any:
        returned = {id(tensor) for _, tensor in leaves(output)}
        for tensor, handed, version in self._lent[path].pop():
            if handed._version == version:
                continue
            if id(handed) not in returned:
                self._overwriters[path] = None
            if self._writes_back:
                tensor.copy_(handed)
        swap = self._swap(path, "grad_output", self._calls.leave(path))
        return replace(output, swap, objects=False)

    def _swap(self, path: str, port: str, call: int) -> Callable[[str, Tensor], Tensor]:
        clones: dict[int, tuple[Tensor, _Chain, int]] = {}

        def swap(leaf: str, tensor: Tensor) -> Tensor:
            self.asked.add(Site(path, port, leaf))
            if is_distributed(tensor):
                self.distributed.add(Site(path, port, leaf))
                return tensor  # To clone a partial sum reduces it.
            if not tensor.requires_grad or not torch.is_grad_enabled() or is_in_transform():
                return tensor
            # One tensor in several slots stays one tensor, as modules further in may ask.
            if id(tensor) not in clones:
                clones[id(tensor)] = self._hand_on(tensor)
            handed, chain, link = clones[id(tensor)]
            if port == "grad_input":
                self._lent[path][-1].append((tensor, handed, handed._version))
            if call >= 0:
                self._places[Site(path, port, leaf), call] = chain, link
            return handed

        return swap

    def _hand_on(self, tensor: Tensor) -> tuple[Tensor, _Chain, int]:
        """Return a clone of a tensor, which may be overwritten, and where it stands."""
        known = self._chains.get(id(tensor))
        if known is None or known[0]._version != known[1]:
            chain = _Chain()
            self._receive(tensor, chain.whole)
        else:
            chain = known[2]
        leaving = tensor.clone()
        handed = leaving.clone()
        for one, received in zip((handed, leaving), chain.add_link(), strict=True):
            self._receive(one, received)
        self._chains[id(handed)] = handed, handed._version, chain
        return handed, chain, len(chain.links) - 1

    def _receive(self, tensor: Tensor, received: Received) -> None:
        def keep(gradient: Tensor | None) -> None:
            if gradient is not None:
                received[current_task()] = gradient.detach().clone()

        self._handles.append(tensor.register_hook(keep))  # type: ignore[no-untyped-call]

    def gradients(self, site: Site, call: int, labels: tuple[str, ...] = ()) -> list[Tensor]:
        """Return the true records of a call, one for each backward; empty if they are not known."""
        is_whole = "total" in labels or site.port == "grad_output"
        return (self.whole if is_whole else self.through).get((site, call), [])


def _close(plain: Mapping[str, Tensor | None], twin: Mapping[str, Tensor | None]) -> bool:
    """Return whether all gradients together are equal but for rounding.

    Not each by itself: one that is zero but for rounding, as that of the bias of keys, is noise.
    """
    error = scale = 0.0
    limit = 0.0
    for name, gradient in plain.items():
        other = twin.get(name)
        if gradient is None or other is None:
            if gradient is not other:
                return False
            continue
        one, two = wide(gradient), wide(other)
        is_finite = one.isfinite() & two.isfinite()
        error += float((one - two)[is_finite].abs().square().sum())
        scale += float(one[is_finite].abs().square().sum())
        limit = max(limit, tolerance(gradient.dtype))
    return error <= limit**2 * scale


def make_twin(trial: Trial, modules: Mapping[str, nn.Module], plain: Outcome) -> Twin:
    """Return a twin; if the model reads what a module of it overwrote, one that does so as well."""
    twin = Twin(trial, modules, plain)
    if twin.failure is not None or trial.is_in_step:
        sharing = Twin(trial, modules, plain, writes_back=True)
        if twin.failure is not None and sharing.failure is None:
            return sharing
    return twin

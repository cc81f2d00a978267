"""Reads the value at one site of a model, and puts others in its place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

from torchtap.core.errors import CaptureError, InputError
from torchtap.core.plan import Plan
from torchtap.core.record import FORWARD
from torchtap.core.site import Site
from torchtap.core.tensors import kind_of
from torchtap.explain.shared_read_probe import refuse_shared_reads
from torchtap.explain.site_probe import SiteProbe, Visit
from torchtap.explain.subject import Subject


class SiteValue:
    """A value at a site, which is first read and from then on replaced.

    Its probe stays on the model until the end, because a checkpoint runs modules again in the
    backward.

    Args:
        subject: the model; as a context manager inside of its ``held()``.
        plan: selects one port of one module, or one mark.
        call: which call of the module within a forward, from 0; ``None`` for the only one.

    Attributes:
        site: with its leaf, once the value is settled.
    """

    def __init__(self, subject: Subject, plan: Plan, call: int | None) -> None:
        self.site = Site("")
        self._plan = plan
        self._chosen = call
        self._call = call or 0
        self._subject = subject
        self._found: dict[Site, Tensor] = {}
        self._calls: Counter[Site] = Counter()
        self._new: Tensor | None = None
        self._was_replaced = False
        self._probe = SiteProbe(subject.modules, plan, self._read)

    def __enter__(self) -> SiteValue:
        self._probe.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._probe.__exit__()
        del self._subject, self._new

    def settle(self) -> Tensor:
        """Return the value that the first forward had at the site, detached.

        Raises:
            CaptureError: nothing came by.
            InputError: there are several tensors, or several calls and none was chosen.
        """
        wanted = ", ".join(self._plan.where)
        if not self._calls:
            names = sorted(self._probe.marks)
            hint = self._plan.hint(self._plan.unmatched[0], names) if self._plan.unmatched else "."
            raise CaptureError(f"{wanted} was not reached: nothing came by in this forward{hint}")
        several = {site: one for site, one in self._found.items() if one.is_floating_point()}
        several = several or self._found
        if len(several) > 1:
            raise InputError(
                f"{wanted} holds {len(several)} tensors; expected one. Name it: "
                + ", ".join(f"at={str(site)!r} ({kind_of(one)})" for site, one in several.items())
                + "."
            )
        count = max(self._calls.values())
        if self._chosen is None and count > 1:
            raise InputError(
                f"{wanted} comes by {count} times in one forward. Say which one: call=0 to "
                f"call={count - 1}."
            )
        if not several:
            raise InputError(
                f"{wanted} has no call {self._chosen}: it comes by {count} times in one forward."
            )
        ((self.site, value),) = several.items()
        self._found = {}
        self._probe.visit = self._replace
        return value

    def refuse_shared_reads(self, run: Callable[[], Tensor], scores: Tensor) -> None:
        """Raise if other values at the site would not reach all that read it.

        Args:
            run: the scores, without a graph.
            scores: those of the first forward.
        """
        subject, probe = self._subject, self._probe
        refuse_shared_reads(subject, probe, self.site, self._call, run=run, expected=scores)

    @contextmanager
    def replaced_by(self, values: Tensor) -> Iterator[None]:
        """Let a forward find (a clone of) these at the site; also what runs again later."""
        self._new, self._was_replaced = values, False
        self._probe.begin()
        yield
        if not self._was_replaced:
            raise CaptureError(
                f"{self.site} was reached in the first forward, and not in this one: the model "
                f"takes another way. Attribute at a site that every forward passes."
            )

    def _read(self, tensor: Tensor, visit: Visit) -> None:
        if visit.phase == FORWARD:
            self._calls[visit.site] += 1
            if visit.call == self._call:
                self._found[visit.site] = tensor.detach().clone()

    def _replace(self, tensor: Tensor, visit: Visit) -> Tensor | None:
        if (visit.site, visit.call) != (self.site, self._call):
            return None
        assert self._new is not None
        self._was_replaced = True
        return self._new.clone()

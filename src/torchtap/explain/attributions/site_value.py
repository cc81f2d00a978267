"""Reads the value at one site of a model, and puts others in its place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

from torchtap.core.errors import CaptureError, InputError
from torchtap.core.plan import Plan
from torchtap.core.record import BACKWARD, Record
from torchtap.core.site import Site
from torchtap.core.tensors import kind_of
from torchtap.edits.checked_edit import CheckedEdit
from torchtap.edits.editor import EditEngine
from torchtap.explain.spoiled import Spoiled, refuse_shared
from torchtap.explain.subject import Subject


class SiteValue:
    """An edit that first reads what is at a site, and from then on replaces it.

    It stays on the model until the end, because a checkpoint runs modules again in the backward.

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
        self._call = call
        self._subject = subject
        self._found: dict[Site, Tensor] = {}
        self._calls: Counter[Site] = Counter()
        self._new: Tensor | None = None
        self._spoiled: Spoiled | None = None
        self._is_settled = False
        self._was_replaced = False
        self._editor = EditEngine(plan, CheckedEdit(_Function(self)), wants_call=None)

    def __enter__(self) -> SiteValue:
        self._editor.attach(self._subject.modules)
        self._editor.begin_step(0, is_on=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._editor.detach()
        del self._editor, self._subject, self._new  # The edit refers to this, and back.

    def settle(self) -> Tensor:
        """The value that the first forward had at the site, detached.

        Raises:
            CaptureError: nothing came by.
            InputError: there are several tensors, or several calls and none was chosen.
        """
        wanted = ", ".join(self._plan.where)
        if not self._calls:
            names = sorted(self._editor.marks)
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
        if self._call is None and count > 1:
            raise InputError(
                f"{wanted} comes by {count} times in one forward. Say which one: call=0 to "
                f"call={count - 1}."
            )
        if not several:
            raise InputError(
                f"{wanted} has no call {self._call}: it comes by {count} times in one forward."
            )
        ((self.site, value),) = several.items()
        self._found, self._is_settled = {}, True
        return value

    def check_unshared(self, run: Callable[[], Tensor], scores: Tensor) -> None:
        """Raise if other values at the site would not reach all that read it.

        Args:
            run: the scores, without a graph.
            scores: those of the first forward.

        Raises:
            InputError: the model reads the tensor under another name too. What a module takes is
                one use of several; there only the others that the module changes in place count.
        """
        spoiled = self._spoiled = Spoiled(self._subject)

        def anew() -> Tensor:
            self._editor.begin_step(0, is_on=True)  # Calls are numbered anew.
            return run()

        try:
            is_read = spoiled.is_read(anew, scores)
            is_read = is_read and (self.site.port != "input" or spoiled.is_overwritten)
            if is_read:
                spoiled.check_steady(anew, scores)
        finally:
            self._spoiled = None
        if is_read:
            raise refuse_shared(self.site)

    @contextmanager
    def replaced_by(self, values: Tensor) -> Iterator[None]:
        """Inside, a forward finds (a clone of) these at the site; also what runs again later."""
        self._new, self._was_replaced = values, False
        self._editor.begin_step(0, is_on=True)
        yield
        if not self._was_replaced:
            raise CaptureError(
                f"{self.site} was reached in the first forward, and not in this one: the model "
                f"takes another way. Attribute at a site that every forward passes."
            )

    def change(self, tensor: Tensor, record: Record) -> Tensor | None:
        """Return the value to put at the site in place of a tensor, or ``None`` to leave it."""
        if record.phase == BACKWARD:
            return None
        if not self._is_settled:
            self._calls[record.site] += 1
            if record.call == (self._call or 0):
                self._found[record.site] = tensor.detach().clone()
            return None
        if record.site != self.site or record.call != (self._call or 0):
            return None
        if self._spoiled is not None:
            return self._spoiled.replace(tensor)
        assert self._new is not None
        self._was_replaced = True
        return self._new.clone()


class _Function:
    """The function of an edit; an object, since it says of itself that it writes nothing."""

    writes_nothing = True
    __name__ = "attribute"

    def __init__(self, site: SiteValue) -> None:
        self._site = site

    def __call__(self, tensor: Tensor, record: Record) -> Tensor | None:
        return self._site.change(tensor, record)

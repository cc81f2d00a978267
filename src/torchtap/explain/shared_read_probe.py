"""Find whether the model reads the value at a site under another name than a probe replaces.

A probe replaces what a module hands on. The caller may hold the same tensor under another name: the
input of a module that works in place or returns its input, or what a hook has stored. A replacement
does not reach it there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchtap.core.errors import InputError
from torchtap.core.site import Site
from torchtap.core.tensors import storage_id
from torchtap.explain.same_scores import REJECTIONS, are_same, refuse_unsteady
from torchtap.explain.site_probe import SiteProbe, Visit
from torchtap.explain.subject import Subject

Scores = Callable[[], Tensor]
Change = Callable[[Tensor], Tensor]


def refuse_shared_reads(
    subject: Subject, probe: SiteProbe, site: Site, call: int, *, run: Scores, expected: Tensor
) -> None:
    """Raise if other values at a site would not reach all that read it.

    In each of a few forwards the model goes on with a clone of the tensor, and the tensor itself
    has other values. Where the scores stay what they are, nothing reads the tensor itself.

    Args:
        subject: the model and its inputs, held.
        probe: is on the model, and shows the site.
        site: with its leaf.
        call: which call of its module.
        run: the scores of one forward, without a graph.
        expected: the scores that the model gave before.

    Raises:
        InputError: the model reads the tensor under another name too. Other readers of a
            module's input count only where the module writes into it in place. Or the model gives
            other scores whenever it is run again.
    """
    for change in (swapped, _all_alike):
        trial = _Trial(subject, site, call, change)
        if _is_read_elsewhere(trial, probe, run, expected):
            break
        if trial.clone is None or not _is_discrete(trial.clone):
            return  # NaN would have shown it.
    else:
        return
    if site.port == "input" and not trial.is_written_in_place:
        return
    with probe.showing(lambda tensor, _: None):
        refuse_unsteady(expected, run())  # Raises what the model raises by itself, too.
    raise InputError(
        f"The tensor at {site} is read under another name too (of a module that works in place or "
        f"returns its input, of a view, of a parameter, or stored by a hook), where no other value "
        f"can be put, so the map would be wrong. Choose the module that makes this tensor or one "
        f"after it, set inplace=False, or write tt.mark where the tensor is used."
    )


def _is_read_elsewhere(trial: _Trial, probe: SiteProbe, run: Scores, expected: Tensor) -> bool:
    """Run one forward of a trial, and return whether the scores, or an error, show a reader."""
    try:
        with probe.showing(trial):
            found = run()
    except torch.OutOfMemoryError:
        raise  # It says nothing of the values.
    except REJECTIONS:
        return True  # A later run rules out that the model raises by itself.
    finally:
        trial.put_back()
    return trial.is_owned or not are_same(found, expected, expected)


class _Trial:
    """A visitor for one forward: it changes the tensor, and hands a clone of the original on.

    Memory that outlives the forward (of parameters, buffers and inputs) is never written to. All
    else has its values again when the forward ends, however it ends.

    Attributes:
        clone: of the tensor, which the model went on with; ``None`` before.
        is_owned: whether the tensor is in memory that outlives the forward.
    """

    def __init__(self, subject: Subject, site: Site, call: int, change: Change) -> None:
        self.clone: Tensor | None = None
        self.is_owned = False
        self._place = site, call
        self._change = change
        self._subject = subject
        self._version = 0
        self._changed: list[tuple[Tensor, Tensor]] = []

    def __call__(self, tensor: Tensor, visit: Visit) -> Tensor | None:
        if (visit.site, visit.call) != self._place:
            return None
        self.clone = tensor.clone()
        self._version = -1 if self.clone.is_inference() else self.clone._version
        if storage_id(tensor) in _owned_memory(self._subject):
            self.is_owned = True
        else:
            values = tensor.detach().clone()
            self._changed.append((tensor, values))
            _write(tensor, self._change(values))
        return self.clone

    def put_back(self) -> None:
        """Give the tensor its values again."""
        for tensor, values in reversed(self._changed):
            _write(tensor, values)
        self._changed.clear()

    @property
    def is_written_in_place(self) -> bool:
        """Return whether the model wrote into the clone."""
        if self.clone is None:
            return False
        return self._version < 0 or self.clone._version != self._version


def _owned_memory(subject: Subject) -> set[int]:
    """Return the memory of parameters, buffers and inputs as they are now."""
    owned = [
        tensor
        for module in subject.modules.values()
        for tensor in (*module._parameters.values(), *module._buffers.values())
    ]
    owned += subject.inputs.values()  # The model gets clones, except of those in objects.
    return {storage_id(one) for one in owned if one is not None} - {0}


def _is_discrete(value: Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex())


def swapped(value: Tensor) -> Tensor:
    """Return values that show wherever they are read: NaN, or of integers at each place another."""
    if not _is_discrete(value):
        return torch.full_like(value, torch.nan)
    low, high = value.aminmax()
    return torch.where(value == low, high, low) if low != high else value ^ 1


def _all_alike(value: Tensor) -> Tensor:
    """Return one of the integers at all places: sums do not tell where values have gone."""
    low, high = value.aminmax()
    return low.expand_as(value) if low != high else value ^ 1


def _write(tensor: Tensor, value: Tensor) -> None:
    """Write values without a trace in the graph or in the version."""
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        target = tensor.data
        for dim, stride in enumerate(target.stride()):
            if stride == 0 and target.shape[dim] > 1:  # One element of an expanded tensor.
                target, value = target.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
        target.copy_(value)

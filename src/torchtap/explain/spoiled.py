"""Find whether the model reads the value at a site by another name than an edit changes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchtap.core.errors import InputError
from torchtap.core.site import Site
from torchtap.core.tensors import storage_id
from torchtap.explain.same_scores import are_same, refuse_unsteady
from torchtap.explain.subject import Subject

Scores = Callable[[], Tensor]


class Spoiled:
    """Overwrites the tensor at a site for one forward, in which the model goes on with a clone.

    An edit replaces what a module hands on. The caller may hold the same tensor by another name:
    the input of a module that works in place or returns its input, or what a hook has stored. A
    replacement does not reach it there. If the scores of such a forward stay what they are, nothing
    reads the tensor by another name.

    Args:
        subject: the model and its inputs, held.

    Attributes:
        clone: what the model went on with in place of the tensor; ``None`` before.
    """

    def __init__(self, subject: Subject) -> None:
        self.clone: Tensor | None = None
        self._tensor: Tensor | None = None
        self._value: Tensor | None = None
        self._version = 0
        self._subject = subject
        self._is_owned = False
        self._overwrites = True
        self._other = swapped

    def replace(self, tensor: Tensor) -> Tensor:
        """Overwrite a tensor; returns the clone to go on with."""
        if not self._overwrites:
            return tensor
        self.clone = tensor.clone()
        self._version = -1 if self.clone.is_inference() else self.clone._version
        if storage_id(tensor) in _owned(self._subject):  # Parameters are never written to.
            self._is_owned = True
            return self.clone
        self._tensor, self._value = tensor, tensor.detach().clone()
        _write(tensor, self._other(self._value))
        return self.clone

    def is_read(self, run: Scores, expected: Tensor) -> bool:
        """Return whether the model reads the tensor by another name.

        Args:
            run: one forward, in which the edit calls :meth:`replace`.
            expected: the scores without.
        """
        for self._other in (swapped, _all_alike):
            if self._shows(run, expected):
                return True
            if self.clone is None or not _is_discrete(self.clone):
                break  # NaN has shown it.
        return False

    def _shows(self, run: Scores, expected: Tensor) -> bool:
        try:
            found = run()
        except (RuntimeError, ValueError, LookupError, AssertionError):
            return True  # Of a value that the model has rejected.
        finally:
            if self._tensor is not None and self._value is not None:
                _write(self._tensor, self._value)
            self._tensor = self._value = None
        return self._is_owned or not are_same(found, expected, expected)

    def check_steady(self, run: Scores, expected: Tensor) -> None:
        """Raise if it is the model that gives other scores, or an error, when it runs again.

        Args:
            run: one forward, in which nothing is overwritten.
            expected: the scores without.
        """
        self._overwrites = False
        refuse_unsteady(expected, run())

    @property
    def is_overwritten(self) -> bool:
        """Return whether the model wrote into the clone in place."""
        if self.clone is None:
            return False
        return self._version < 0 or self.clone._version != self._version


def refuse_shared(site: Site) -> InputError:
    """The error of a site where other values would not reach all that read it."""
    return InputError(
        f"The tensor at {site} is read under another name too (of a module that works in place or "
        f"returns its input, of a view, of a parameter, or stored by a hook), where no other value "
        f"can be put, so the map would be wrong. Choose the module that makes this tensor or one "
        f"after it, set inplace=False, or write tt.mark where the tensor is used."
    )


def _owned(subject: Subject) -> set[int]:
    """The memory of parameters, buffers and inputs as they are now; it outlives a forward."""
    owned = [
        one
        for module in subject.modules.values()
        for one in (*module._parameters.values(), *module._buffers.values())
    ]
    owned += subject.inputs.values()  # The model gets clones, except of those in objects.
    return {storage_id(one) for one in owned if one is not None} - {0}


def _is_discrete(value: Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex())


def swapped(value: Tensor) -> Tensor:
    """Values that show wherever they are read; of integers and flags, at each place another one."""
    if not _is_discrete(value):
        return torch.full_like(value, torch.nan)
    low, high = value.aminmax()
    return torch.where(value == low, high, low) if low != high else value ^ 1


def _all_alike(value: Tensor) -> Tensor:
    """One of the integers at all places: sums do not tell where values have gone."""
    low, high = value.aminmax()
    return low.expand_as(value) if low != high else value ^ 1


def _write(tensor: Tensor, value: Tensor) -> None:
    """Write values without a trace in the graph or in the version."""
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        target = tensor.data
        for dim, stride in enumerate(target.stride()):
            if stride == 0 and target.shape[dim] > 1:  # Of an expanded tensor, one element.
                target, value = target.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
        target.copy_(value)

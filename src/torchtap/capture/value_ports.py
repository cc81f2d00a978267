"""The ports ``input``, ``output`` and ``saved``: values taken as a module is entered and left."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor, nn

from torchtap.capture.copy_policy import ALIAS, CopyPolicy
from torchtap.core.inference_mode import normal_copy
from torchtap.core.record import EVAL, FORWARD, UNVERSIONED, Record, new_record
from torchtap.core.tensors import obstacle, storage_id
from torchtap.hooks.graph_edges import num_casts
from torchtap.hooks.tap import SiteState, Tap

if TYPE_CHECKING:
    from torchtap.capture.saved_port import Saved


class Values:
    """Meters values, or makes records of them.

    Args:
        model: whose parameters and buffers a value may share memory with.
        copy_policy: decides what is copied.
        emit: takes each record.
        skips_evaluation: whether values of evaluation forwards are left out.

    Attributes:
        step: the running step.
    """

    def __init__(
        self,
        model: nn.Module,
        copy_policy: CopyPolicy,
        emit: Callable[[Record], None],
        *,
        skips_evaluation: bool,
    ) -> None:
        self.step = 0
        self._model = weakref.ref(model)
        self._copy_policy = copy_policy
        self._emit = emit
        self._skips_evaluation = skips_evaluation
        self._borrows = copy_policy.copy == ALIAS
        self._own_storages: set[int] | None = None
        self._param_storages: set[int] = set()

    @cached_property
    def saved(self) -> Saved:
        """Return what reads the tensors that autograd keeps."""
        from torchtap.capture.saved_port import Saved

        return Saved()

    def take(
        self, state: SiteState | None, tensor: Tensor, call: int, phase: str, foreign: set[int]
    ) -> None:
        """Take a value that flows at a site.

        Args:
            state: of the site; ``None`` where it is not wanted.
            tensor: the value.
            call: number of the call.
            phase: of the call.
            foreign: storages that were passed into the model.
        """
        if state is None or (phase is EVAL and self._skips_evaluation):
            return
        if phase is FORWARD and state.meter(tensor, self.step):
            state.seen = True
            return
        reason = obstacle(tensor)
        if reason is not None:
            # A meta or fake tensor has no values, a lazy one none yet: reading it would raise in
            # the model.
            state.expected += 1  # Expected and never received, also where other values came.
            state.reason = reason
            return
        try:
            foreign = self._all_foreign(tensor, foreign)
            kept, version, labels = self._copy_policy.keep(state, tensor, foreign)
        except RuntimeError as error:  # It must not stop the model.
            state.reason = why_no_copy(error)
            return
        state.seen = True
        self._emit(Record(state.site, self.step, call, phase, -1, labels, kept, version))

    def take_plain(
        self, state: SiteState, tensor: Tensor, call: int, copied: Tensor | None = None
    ) -> None:
        """Take a plain tensor in a training forward: ``take`` in short.

        Args:
            state: of the site; unless ``copied``, it is known whether values have to be copied.
            tensor: the value, made by an operation.
            call: number of the call.
            copied: a copy of the value, the first of its site.
        """
        if state.meter(tensor, self.step):
            state.seen = True
            return
        if copied is not None:
            kept, version = copied, UNVERSIONED
        elif self._borrows:
            kept, version = tensor, UNVERSIONED
        elif state.copies:
            try:
                kept, version = normal_copy(tensor), UNVERSIONED
            except RuntimeError as error:
                state.reason = why_no_copy(error)
                return
        else:
            kept = tensor.detach()
            version = kept._version
        state.seen = True
        row = (state.site, self.step, call, FORWARD, -1, (), kept, version)
        self._emit(new_record(Record, row))

    def take_saved(
        self, tap: Tap, outputs: list[Tensor], first_node: int, call: int, phase: str
    ) -> None:
        """Take the tensors that autograd keeps of a module that returned.

        Args:
            tap: of the module.
            outputs: what it returned.
            first_node: number that its first node can have.
            call: number of the call.
            phase: of the call.
        """

        def take(state: SiteState, tensor: Tensor, labels: tuple[str, ...]) -> None:
            state.seen = True
            if phase is FORWARD and state.meter(tensor, self.step):
                return
            foreign = self._all_foreign(tensor, set())
            kept, version, part = self._copy_policy.keep(state, tensor, foreign)
            labels += part
            self._emit(Record(state.site, self.step, call, phase, -1, labels, kept, version))

        self.saved.read(tap, outputs, first_node, self._is_param, take)

    def forget_storages(self) -> None:
        """Look up the memory of parameters and buffers again: it may be another now."""
        self._own_storages = None

    def _look_up_storages(self) -> set[int]:
        """Return storages of the model's parameters and buffers, looked up anew."""
        model = self._model()
        buffers: set[int] = set()
        self._param_storages = set()
        if model is not None:
            self._param_storages = {storage_id(param) for param in model.parameters()} - {0}
            buffers = {storage_id(buffer) for buffer in model.buffers()} - {0}
        self._own_storages = self._param_storages | buffers
        return self._own_storages

    def _is_param(self, tensor: Tensor) -> bool:
        """Return whether the memory of a saved tensor is that of a parameter."""
        if self._own_storages is None:
            self._look_up_storages()
        storage = storage_id(tensor)
        if storage not in self._param_storages and num_casts(tensor) == 0:
            self._look_up_storages()  # FSDP gives parameters other memory while a module runs.
        return storage in self._param_storages

    def _all_foreign(self, tensor: Tensor, passed: set[int]) -> set[int]:
        """Storages that others may write into: what was passed in, and the model's own state."""
        # A view of an argument or a parameter has a node of its own, and yet it is their memory.
        source = tensor._base if tensor._is_view() else tensor
        if source is not None and source.grad_fn is not None:
            return passed  # Made by an operation.
        own = self._look_up_storages() if self._own_storages is None else self._own_storages
        return passed | own


def why_no_copy(error: BaseException) -> str:
    """Return the reason of a value that could not be copied, which must not stop the model."""
    return f"it could not be copied: {str(error).splitlines()[0]}"

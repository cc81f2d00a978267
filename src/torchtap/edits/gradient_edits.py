"""Changes gradients on their way: those of tensors as they are, and those that leave a module."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchtap.core.errors import EditError
from torchtap.core.no_grad import BATCHED, is_batched, why_no_grad
from torchtap.core.record import FORWARD, UNVERSIONED, Record, new_record
from torchtap.core.torch_private import current_task
from torchtap.core.tree import leaves
from torchtap.core.user_functions import place
from torchtap.edits.checked_edit import CheckedEdit
from torchtap.hooks.backwards import Backwards
from torchtap.hooks.calls import number_in_report
from torchtap.hooks.followed_views import FollowedViews, ViewState
from torchtap.hooks.graph_edges import EDITED, Geometry
from torchtap.hooks.module_hook import keep_dynamo_out
from torchtap.hooks.tap import EditGradHook, GradHook, SiteState
from torchtap.hooks.tensor_hooks import TensorHooks, put_gradient

_TWO_PARTS = (
    "the tensor was used both before and after it was overwritten in place, so its gradient "
    "comes in two parts and cannot be changed as one. Let the module, or what overwrites it, work "
    "on a copy"
)
_LOST = (
    "it is a view that was overwritten in place where its gradient cannot be followed. Return a "
    "copy from the module, or edit the module that overwrites it"
)


class GradientEdit:
    """One gradient of one call that is to be changed when it comes."""

    __slots__ = (
        "_task",
        "call",
        "edits",
        "is_split",
        "phase",
        "state",
        "step",
        "view",
    )

    def __init__(self, edits: GradientEdits, state: SiteState, call: int, phase: str) -> None:
        self.edits = edits
        self._task = -1
        self.state = state
        self.step = edits.step
        self.call = call
        self.phase = phase
        self.is_split = False
        self.view: ViewState | None = None
        edits.are_edited = True
        state.expected += 1

    def on_tensor(self, gradient: Tensor | None) -> Tensor | None:
        """Hook of a tensor."""
        if gradient is None:
            return None
        if self.is_lost:
            raise self._cannot(_LOST)
        return self._change(gradient)

    def on_identity(
        self, grad_inputs: tuple[Tensor | None, ...], _: Any
    ) -> tuple[Tensor | None, ...] | None:
        """Hook of the identity that was put before a module."""
        new = self.on_tensor(grad_inputs[0])
        return None if new is None else (new,)

    @property
    def is_lost(self) -> bool:
        """Return whether the gradient, or a part of it, goes another way."""
        return self.view is not None and self.view.is_lost

    def on_overwritten(self, geometry: Geometry, argument: Geometry | None) -> Callable[..., Any]:
        """Make the hook of the ``CopySlices`` that overwrote a view."""
        self.is_split = True
        return partial(self._on_copy_slices, geometry)

    def _on_copy_slices(
        self, geometry: Geometry, grad_inputs: tuple[Tensor | None, ...], _: Any
    ) -> Any:
        whole = grad_inputs[0]
        if whole is None:
            return None
        part = geometry.cut(whole)
        new = self._change(part)
        if new is None or new is part:
            return None
        # A copy, since other branches may hold the same buffer; in the strides of the base, in
        # which the geometry counts.
        changed = torch.empty_strided(
            geometry.base_size, geometry.base_stride, dtype=whole.dtype, device=whole.device
        ).copy_(whole)
        geometry.cut(changed).copy_(new)
        return (changed, *grad_inputs[1:])

    def _change(self, gradient: Tensor) -> Tensor | None:
        edits = self.edits
        if not edits.is_on:
            return None
        if is_batched(gradient):
            raise self._cannot(BATCHED)
        # The node of the view and the CopySlices that took it over brought a part each.
        if self.is_split and self._task == current_task():
            raise self._cannot(_TWO_PARTS)
        self._task = current_task()
        self.state.received += 1
        return edits.change(self.state, gradient, self.step, self.call, self.phase)

    def _cannot(self, reason: str) -> EditError:
        return self.edits.refusal(self.state, self.step, self.call, self.phase, reason)


class GradientEdits:
    """All gradient changes that one editor waits for.

    Args:
        change: the user's function.
        fired: called with site, call, and whether the gradient was replaced.

    Attributes:
        are_edited: whether any gradient was waited for. Until then nothing has to be done as a step
            or a forward begins.
        is_on: hooks on tensors that outlive the edit look at this first.
        views: whose gradients are to be changed, and whose memory may yet be overwritten.
    """

    def __init__(self, change: CheckedEdit, fired: Callable[[SiteState, int, bool], None]) -> None:
        self.step = 0
        self.is_on = True
        self.are_edited = False
        self.name = change.name
        self.on_tensors = TensorHooks(self._is_ours)
        self.backwards = Backwards()
        self._change = change
        self._fired = fired
        self._handles: list[Any] = []
        self._unfinished: list[GradientEdit] = []
        self.views: FollowedViews[GradientEdit] = FollowedViews(self._hold, self._unfinished.append)
        self._prune_at = 256
        self.lost: dict[SiteState, str] = {}

    def change(
        self, state: SiteState, gradient: Tensor, step: int, call: int, phase: str = FORWARD
    ) -> Tensor | None:
        """Call the user's function on a gradient that has arrived."""
        number = self.backwards.number()
        row = (state.site, step, call, phase, number, (), gradient, UNVERSIONED)
        new = self._change(gradient, new_record(Record, row))
        self._fired(state, number_in_report(call, phase), new is not None)
        return new

    def deliver(
        self, state: SiteState, step: int, call: int, phase: str, gradient: Tensor | None
    ) -> Tensor | None:
        """Hook of a tensor that is no view; ``editing.c`` puts it on too."""
        if gradient is None or not self.is_on:
            return None
        if is_batched(gradient):
            raise self.refusal(state, step, call, phase, BATCHED)
        state.received += 1
        return self.change(state, gradient, step, call, phase)

    def refusal(self, state: SiteState, step: int, call: int, phase: str, reason: str) -> EditError:
        """Return the error of a gradient that cannot be changed."""
        record = Record(state.site, step, call, phase, -1, (), None, UNVERSIONED)
        return EditError(
            f"Edit {self.name!r} cannot change the gradient at {place(record)}: {reason}."
        )

    def _is_ours(self, hook: GradHook) -> bool:
        owner = getattr(hook.func, "__self__", None)
        return owner is self or (isinstance(owner, GradientEdit) and owner.edits is self)

    # ------------------------------------------------------------------ how gradients are received

    def of_tensor(self, state: SiteState, tensor: Tensor, call: int, phase: str = FORWARD) -> None:
        """Change the gradient of a tensor as it is now, over all its uses."""
        if not tensor.requires_grad:
            state.reason = why_no_grad(tensor)
            return
        is_plain = type(tensor) is Tensor and not tensor.is_leaf
        if is_plain and not tensor._is_view():  # Its gradient can go no other way.
            self.are_edited = True
            state.expected += 1
            hook = EditGradHook(self.deliver, state, self.step, call, phase)
            self.on_tensors.put(tensor, hook)
            return
        edit = GradientEdit(self, state, call, phase)
        hook = EditGradHook(edit.on_tensor)
        # A table put on by hand needs a node that runs it; a leaf has none, and a subclass may have
        # a register_hook of its own.
        if is_plain:
            self.on_tensors.put(tensor, hook)
        else:
            handle = tensor.register_hook(hook)  # type: ignore[no-untyped-call]
            table: Any = tensor._backward_hooks
            put_gradient(table, handle.id)
            self._handles.append(handle)
        self._follow(tensor, edit)

    def announce(self, output: Any) -> None:
        """Number the backward where it starts from this.

        A reentrant checkpoint inside it runs backwards of its own, and each would be taken for the
        outermost where nothing but parameters is edited.
        """
        self.are_edited = True
        for _, tensor in leaves(output):
            if tensor.requires_grad:
                hook = GradHook(self._begin)
                self._handles.append(tensor.register_hook(hook))  # type: ignore[no-untyped-call]

    def _begin(self, _: Tensor | None) -> None:
        if self.is_on:
            self.backwards.number()

    def of_own(self, state: SiteState, tensor: Tensor, call: int, phase: str) -> Tensor:
        """Change the gradient of a tensor that one module hands on and did not make.

        Returns:
            the tensor to go on with, a plain view: in-place operations stay legal and reach the
            tensor itself.
        """
        reason = _why_fixed(tensor)
        if reason is not None:
            state.reason = reason
            return tensor
        view = _identity(tensor)
        self.of_tensor(state, view, call, phase)
        return view

    def isolated(self, state: SiteState, tensor: Tensor, call: int, phase: str) -> Tensor:
        """Return the argument to go on with, so that only what flows back from there is changed.

        A plain view, as in :meth:`of_own`; several edits of one module share it, or the last
        one made would be the first to work.
        """
        reason = _why_fixed(tensor)
        if reason is not None:
            state.reason = reason
            return tensor
        node: Any = tensor.grad_fn
        if node is None or node.metadata.get(EDITED) != state.site.path:
            tensor = _identity(tensor)
            node = tensor.grad_fn
            node.metadata[EDITED] = state.site.path
        # At the identity and not at the tensor, whose gradient is over all of its uses, also
        # outside.
        edit = GradientEdit(self, state, call, phase)
        self._handles.append(node.register_hook(edit.on_identity))
        self._follow(tensor, edit)
        return tensor

    def _follow(self, tensor: Tensor, edit: GradientEdit) -> None:
        (edit.view,) = self.views.follow(tensor, edit) or (None,)
        if edit.view is not None:
            # An edit may wait for its backward long after the forward: the version is asked, not
            # the memory.
            edit.view.release_memory()

    def _hold(self, handle: Any) -> None:
        self._handles.append(handle)

    # ------------------------------------------------------------------ views

    def leave(self, first: int, output: Any, *, is_outermost: bool) -> None:
        """Follow the views that were overwritten within a call that ends.

        Args:
            first: how many views were followed when the call began.
            output: what the call returns; its caller may yet overwrite the tensors in it.
            is_outermost: no call is around it.
        """
        if len(self.views) > first:
            found = [output] if type(output) is Tensor else [one for _, one in leaves(output)]
            returned = {id(tensor) for tensor in found}
            self.views.leave(first, returned, is_outermost=is_outermost)

    def settle(self) -> None:
        """Note which gradients went another way; outside of any call and backward."""
        for edit in self._unfinished:
            if edit.is_lost and edit._task == -1:
                self.lost[edit.state] = _LOST
        self._unfinished.clear()

    def begin_step(self) -> None:
        """Number backwards anew, and note which gradients went another way."""
        self.backwards.restart()
        self.settle()

    def enter_model(self) -> None:
        """A forward begins, outside of any backward: forget what earlier ones have left behind."""
        self.backwards.forget_failed()
        self.views.drop()  # Left behind by a KeyboardInterrupt.
        self.settle()
        self.prune()

    # ------------------------------------------------------------------ off

    def prune(self) -> None:
        """Forget the handles of graphs that were freed."""
        if len(self._handles) + len(self.on_tensors.tables) >= self._prune_at:
            self.on_tensors.prune()
            self._handles = [
                handle for handle in self._handles if handle.hooks_dict_ref() is not None
            ]
            self._prune_at = 256 + 2 * (len(self._handles) + len(self.on_tensors.tables))

    def release(self) -> None:
        """Take every hook off."""
        self.is_on = False
        self.settle()
        self.on_tensors.release()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.views.drop()


def _why_fixed(tensor: Tensor) -> str | None:
    """Return why what flows back from one use of a tensor cannot be changed apart from the rest."""
    if not tensor.requires_grad or not torch.is_grad_enabled():
        return why_no_grad(tensor)
    if tensor.layout in (torch.strided, torch.jagged):
        return None
    layout = str(tensor.layout).removeprefix("torch.")
    return f"PyTorch has no views of {layout} tensors, and the change would be made at one"


def _identity(tensor: Tensor) -> Tensor:
    """Return a plain view of all of it, with the same strides.

    ``view_as`` makes those of dims of size 1 anew, by which some operators choose the memory format
    of what they return.
    """
    if tensor.layout is torch.jagged:  # These have no other.
        return tensor.view_as(tensor)
    # A view of all of it: a node of its own for this edit, and no copy of the values.
    return torch.ops.aten.alias.default(tensor)  # type: ignore[no-any-return]


keep_dynamo_out(
    GradientEdit.on_tensor,
    GradientEdit.on_identity,
    GradientEdit._on_copy_slices,
    GradientEdits._begin,
    GradientEdits.deliver,
)

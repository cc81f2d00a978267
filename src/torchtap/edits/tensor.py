"""``tt.edit_tensor``: one tensor, without a module."""

from __future__ import annotations

from torch import Tensor

from torchtap.core.closable import Closable
from torchtap.core.doors import require
from torchtap.core.errors import EditError, InputError
from torchtap.core.site import Site
from torchtap.core.user_functions import Function
from torchtap.edits import as_edit
from torchtap.edits.checked_edit import CheckedEdit
from torchtap.edits.edit_request import Missing, check_missing
from torchtap.edits.gradient_edits import GradientEdits
from torchtap.hooks.tap import SiteState


def edit_tensor(
    tensor: Tensor, fn: Function, *, name: str = "tensor", missing: Missing = "error"
) -> TensorEdit:
    """Change the gradient of one tensor as it is now, over all its uses.

    Args:
        tensor: leaf or not; it must require grad.
        fn: as for :func:`edit`.
        name: what messages and the record's site call it.
        missing: what to do when closing, if no gradient ever came: ``error``, or ``ignore``.

    Returns:
        a context manager and handle. Without closing it, the edit lasts as long as the tensor.

    Raises:
        EditError: the tensor does not require grad; or (when closing) no gradient came.

    Example:
        >>> import torch, torchtap as tt
        >>> x = torch.ones(2, requires_grad=True)
        >>> with tt.edit_tensor(x, tt.edits.scale(10.0)) as e:
        ...     (3 * x).sum().backward()
        >>> x.grad, e.fired
        (tensor([30., 30.]), 1)
    """
    require("tt.edit_tensor")
    check_missing(missing)
    return TensorEdit(tensor, fn, name, missing)


class TensorEdit(Closable):
    """The result of ``tt.edit_tensor``.

    Attributes:
        fired: how often the gradient was replaced.
    """

    def __init__(self, tensor: Tensor, fn: Function, name: str, missing: Missing) -> None:
        if not isinstance(tensor, Tensor):
            raise InputError(f"tt.edit_tensor got {type(tensor).__name__}; expected a tensor.")
        if not tensor.requires_grad:
            raise EditError(
                f"tt.edit_tensor {name!r}: the tensor does not require grad, so it gets no "
                f"gradient. Call it before the forward, on a tensor that takes part in the graph."
            )
        self.fired = 0
        self._missing = missing
        self._state = SiteState(Site(name, "grad_output"))
        self._gradients = GradientEdits(CheckedEdit(as_edit(fn)), self._count)
        self._gradients.of_tensor(self._state, tensor, 0)
        self._gradients.leave(0, None, is_outermost=True)

    def _count(self, state: SiteState, call: int, has_replaced: bool) -> None:
        self.fired += has_replaced

    def close(self) -> None:
        """Take it off.

        Raises:
            EditError: no gradient came, or the tensor was a view that was overwritten, and its
                gradient went another way.
        """
        super().close()

    def _closed(self) -> EditError:
        return EditError("This edit is closed; call tt.edit_tensor again to go on.")

    def _finish(self, *, raising: bool) -> None:
        self._gradients.release()
        if not raising:
            return
        name = self._state.site.path
        for why in self._gradients.lost.values():
            raise EditError(f"tt.edit_tensor {name!r} did not happen: {why}.")
        if not self._state.received and self._missing == "error":
            raise EditError(
                f"tt.edit_tensor {name!r} never happened: no gradient of the tensor came, because "
                f"no backward was run, or the loss does not depend on it. If that is meant, pass "
                f"missing='ignore'."
            )

    def __repr__(self) -> str:
        return f"<TensorEdit of {self._state.site.path!r}, fired {self.fired} times>"

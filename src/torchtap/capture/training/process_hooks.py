"""The hooks by which PyTorch tells of all optimizers and modules of the process.

It has hooks for steps of optimizers, for forwards and for modules in others, and none that tells of
a new optimizer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.nn.modules.module import (
    register_module_forward_pre_hook,
    register_module_module_registration_hook,
)
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from torchtap.core.after_import import after_import
from torchtap.core.torch_private import before_compiling
from torchtap.hooks.module_hook import keep_dynamo_out


class ProcessHooks:
    """Tells of new optimizers and their steps, and of forwards until these are to be ignored.

    Forwards are ignored from the moment when anything is compiled: the compiler would trace the
    hooks on all modules.
    """

    def __init__(self) -> None:
        self._off: list[Callable[[], None]] = []
        self._off_forwards: list[Callable[[], None]] = []
        self._after_step: Callable[..., None] | None = None

    def put_on(
        self,
        *,
        made: Callable[[Optimizer], None],
        before_step: Callable[..., None],
        after_step: Callable[..., None],
        registered: Callable[..., None],
        forward: Callable[..., None],
    ) -> None:
        """Begin to listen to PyTorch.

        Args:
            made: called with each optimizer that is made.
            before_step: called as an optimizer begins its step.
            after_step: called as it ends.
            registered: called with each module that is put into another.
            forward: called with each module that is entered.
        """
        self._after_step = after_step
        self._off = [
            _listen_to_new_optimizers(made),
            register_module_module_registration_hook(registered).remove,
            register_optimizer_step_pre_hook(before_step).remove,
            register_optimizer_step_post_hook(after_step).remove,
        ]
        self._off_forwards = [register_module_forward_pre_hook(forward).remove]
        self._off_forwards.append(after_import("torch._dynamo", self._dynamo_came))

    def _dynamo_came(self) -> None:
        if self._off_forwards:  # Not taken off with them: Dynamo is going through its callbacks.
            self._off.insert(0, before_compiling(self.ignore_forwards))

    def hear_of_steps_last(self) -> None:
        """A step may end with an optimizer's, but not before the watches have seen its update."""
        hook: Any = self._after_step
        # The hook after steps is the last in the list. PyTorch calls such hooks in the order of
        # registration, so it is registered again.
        self._off.pop()()
        self._off.append(register_optimizer_step_post_hook(hook).remove)

    def ignore_forwards(self) -> None:
        """Take the hooks on all modules off."""
        while self._off_forwards:
            self._off_forwards.pop()()

    def release(self) -> None:
        """Take everything off."""
        self.ignore_forwards()
        while self._off:
            self._off.pop()()


def _listen_to_new_optimizers(made: Callable[[Optimizer], None]) -> Callable[[], None]:
    """Call a function with each optimizer, of any class, when PyTorch's part of it is made.

    Takes the place of ``Optimizer.__init__``, which every optimizer of ``torch.optim``'s kind runs.

    Args:
        made: takes the optimizer. It must not raise.

    Returns:
        what ends it; safe to call twice.
    """
    original = Optimizer.__init__
    keep_dynamo_out(made_by := _calling(original, made))

    def off() -> None:
        # Another library may have put its own in front of ours since; taking ours out would take
        # off theirs.
        if Optimizer.__init__ is made_by:
            Optimizer.__init__ = original  # type: ignore[method-assign]

    Optimizer.__init__ = made_by  # type: ignore[method-assign]
    return off


def _calling(
    original: Callable[..., None], made: Callable[[Optimizer], None]
) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Optimizer, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        made(self)

    return __init__

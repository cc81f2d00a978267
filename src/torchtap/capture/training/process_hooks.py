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

from torchtap.core.after_import import after_import
from torchtap.core.torch_private import before_compiling
from torchtap.hooks.module_hook import keep_dynamo_out
from torchtap.hooks.optimizer_hooks import OptimizerListener, listen_to_optimizers


class ProcessHooks:
    """Tells of new optimizers and their steps, and of forwards until these are to be ignored.

    Forwards are ignored from the moment when anything is compiled: the compiler would trace the
    hooks on all modules.
    """

    def __init__(self) -> None:
        self._off: list[Callable[[], None]] = []
        self._off_forwards: list[Callable[[], None]] = []

    def put_on(
        self,
        *,
        made: Callable[[Optimizer], None],
        steps: OptimizerListener,
        registered: Callable[..., None],
        forward: Callable[..., None],
    ) -> None:
        """Begin to listen to PyTorch.

        Args:
            made: called with each optimizer that is made.
            steps: hears of the steps of all optimizers; of the end of a step after all watches,
                which must have seen its update before anything ends with it.
            registered: called with each module that is put into another.
            forward: called with each module that is entered.
        """
        self._off = [
            _listen_to_new_optimizers(made),
            register_module_module_registration_hook(registered).remove,
            *(handle.remove for handle in listen_to_optimizers(steps, is_last=True)),
        ]
        self._off_forwards = [register_module_forward_pre_hook(forward).remove]
        self._off_forwards.append(after_import("torch._dynamo", self._dynamo_came))

    def _dynamo_came(self) -> None:
        if self._off_forwards:  # Not taken off with them: Dynamo is going through its callbacks.
            self._off.insert(0, before_compiling(self.ignore_forwards))

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

"""Calls a module with what a captured call was given, of this module or of another one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from torchtap.core.module_paths import mode_of
from torchtap.core.preserved import gradients_set_aside, preserved, set_mode
from torchtap.diagnosis.calls.capture import Captured
from torchtap.diagnosis.calls.standalone.run_again import Result, run_again


def feed(
    module: nn.Module,
    captured: Captured,
    arriving: Mapping[str, Tensor] | None = None,
    *,
    buffers: bool = True,
    modes: bool = True,
    random: bool = True,
) -> Result:
    """Call a module with the arguments of a captured call, and leave it as it was.

    Buffers, modes, random states and the ``.grad`` of parameters are put back; parameters are not
    written. State that a module keeps in plain Python attributes is its own affair.

    Args:
        module: any that takes these arguments.
        captured: a call of this module or of another.
        arriving: name of a tensor in the output -> gradient that arrives there; none for a forward
            alone.
        buffers: whether it gets the buffers of the call; those whose name or shape it does not
            have stay its own.
        modes: whether its modules get the modes of the call, by their paths.
        random: whether random states are those of the call.

    Returns:
        output, buffers after the call, and gradients.

    Example:
        >>> import torch
        >>> from torchtap.diagnosis.calls.capture import Capture
        >>> one, two = nn.Linear(2, 2), nn.Linear(2, 2)
        >>> with Capture({"": one}, lambda path, call: True) as capture:
        ...     y = one(torch.ones(1, 2))
        >>> result = feed(two, capture.calls["", 0])
        >>> torch.equal(result.output, two(torch.ones(1, 2)))
        True
    """
    modules = dict(module.named_modules())
    with preserved(modules), gradients_set_aside(module.parameters()), _modes_kept(module):
        if buffers:
            _lend(modules, captured.buffers)
        if modes:
            for path, mode in captured.modes.items():
                if path in modules:
                    set_mode(modules[path], mode)
        return run_again(
            module, captured.arguments, captured.around, arriving or {}, is_random=random
        )


def _lend(modules: Mapping[str, nn.Module], buffers: Mapping[str, Tensor]) -> None:
    for name, value in buffers.items():
        path, _, own = name.rpartition(".")
        held = modules[path]._buffers.get(own) if path in modules else None
        if held is not None and held.shape == value.shape:
            modules[path]._buffers[own] = value.clone()


@contextlib.contextmanager
def _modes_kept(module: nn.Module) -> Iterator[None]:
    before = [(one, mode_of(one)) for one in module.modules()]
    try:
        yield
    finally:
        for one, mode in before:
            set_mode(one, mode)

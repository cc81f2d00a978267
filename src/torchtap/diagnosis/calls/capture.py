"""Arguments and results of calls of modules, taken by value while a model runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.core.inference_mode import outside_inference_mode
from torchtap.core.module_paths import mode_of
from torchtap.core.record import FORWARD, RECOMPUTE
from torchtap.diagnosis.calls.copies import Arguments, copied
from torchtap.diagnosis.calls.standalone.run_again import held_output
from torchtap.diagnosis.calls.standalone.surroundings import Surroundings, surroundings_now
from torchtap.hooks.call_follower import CallFollower
from torchtap.hooks.calls import CallIdentifier
from torchtap.hooks.module_hook import VALUES, Keywords, TapHook, keep_dynamo_out
from torchtap.hooks.tap import Tap

Wanted = Callable[[str, int], bool]
"""``(path, call)`` -> whether that call is captured."""


@dataclass(slots=True)
class Captured:
    """One call, taken by value.

    Attributes:
        path: of the module.
        call: its number within the forward.
        arguments: args and kwargs; what was one object is one, ``q is k``.
        around: random states, grad mode, autocast and settings when the call began.
        buffers: name -> value when the call began, also of those that no state dict has.
        modes: path within the module -> whether it was in training mode; ``None`` where it has
            none.
        output: what the module returned; unset until it did.
        buffers_after: name -> value when the call ended.
        module: a copy of the module as it was when the call began, if that was asked for.
    """

    path: str
    call: int
    arguments: Arguments
    around: Surroundings
    buffers: dict[str, Tensor]
    modes: dict[str, bool | None]
    module: nn.Module | None = None
    output: Any = None
    buffers_after: dict[str, Tensor] = field(default_factory=dict)
    has_returned: bool = False


class Capture:
    """Captures calls of modules while it is open; put it around one forward (and its backward).

    Of a call in a reentrant checkpoint, whose first forward has no graph, it takes the
    recomputation, in the backward.

    Args:
        modules: path -> module that is followed.
        wanted: which of their calls are captured.
        with_modules: whether each gets a copy of its module.
        entered: told of each captured call with the module's own arguments, when it begins.
        left: told of each with the module's own output, when it ends.

    Attributes:
        calls: (path, number) -> what was captured, in the order in which the calls began.
        num_calls: path -> calls of the forward that were seen.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        >>> with Capture(dict(model.named_modules()), lambda path, call: path == "1") as capture:
        ...     y = model(torch.ones(1, 2))
        >>> list(capture.calls), torch.equal(capture.calls["1", 0].output, y)
        ([('1', 0)], True)
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        wanted: Wanted,
        *,
        with_modules: bool = False,
        entered: Callable[[Captured, Arguments], None] | None = None,
        left: Callable[[Captured, Any], None] | None = None,
    ) -> None:
        self.calls: dict[tuple[str, int], Captured] = {}
        self.num_calls: dict[str, int] = {}
        self._modules = modules
        self._wanted = wanted
        self._with_modules = with_modules
        self._entered = entered
        self._left = left
        self._identifier = CallIdentifier()
        self._follower: CallFollower[Any] = CallFollower()
        self._running: list[tuple[Tap, Captured | None]] = []

    def __enter__(self) -> Capture:
        taps = {path: Tap(path, {}) for path in self._modules}
        self._identifier.enter_model()
        for path, module in self._modules.items():
            before, after = _Begins(self, taps[path]), _Ends(self, taps[path])
            self._follower.put_on(module, pre_hook=before, post_hook=after, is_first=True)
        self._follower.keep_fused_kernels(taps, self._modules)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._follower.release()
        self._running.clear()

    def begin(self, tap: Tap, module: nn.Module, arguments: Arguments) -> None:
        """A module is called."""
        call, phase = self._identifier.identify(tap, *arguments)
        if phase is FORWARD:
            self.num_calls[tap.path] = call + 1
        is_wanted = call >= 0 and self._wanted(tap.path, call)
        known = self.calls.get((tap.path, call))
        if phase is RECOMPUTE:  # Only of one that had no graph the first time.
            is_wanted = is_wanted and known is not None and not known.around["grad"]
            is_wanted = is_wanted and torch.is_grad_enabled()
        elif phase is not FORWARD:
            is_wanted = False
        taken = self._take(tap.path, call, module, arguments) if is_wanted else None
        self._running.append((tap, taken))

    def _take(self, path: str, call: int, module: nn.Module, arguments: Arguments) -> Captured:
        around = surroundings_now()
        # Before the module runs: it may write into arguments, buffers, and weights (spectral norm
        # does).
        twin = copied(module, *arguments, with_module=self._with_modules)
        taken = Captured(
            path=path,
            call=call,
            arguments=twin.arguments,
            around=around,
            buffers=_values(module),
            modes={name: mode_of(one) for name, one in module.named_modules()},
            module=twin.module,
        )
        self.calls[path, call] = taken
        if self._entered is not None:
            self._entered(taken, arguments)
        return taken

    def end(self, tap: Tap, module: nn.Module, output: Any) -> None:
        """A module returns."""
        while self._running:
            running, taken = self._running.pop()
            if running is tap:
                break
        else:
            return
        if taken is not None:
            with outside_inference_mode():
                taken.output = held_output(output)
            taken.buffers_after = _values(module)
            taken.has_returned = True
            if self._left is not None:
                self._left(taken, output)


def _values(module: nn.Module) -> dict[str, Tensor]:
    with outside_inference_mode():
        return {name: one.detach().clone() for name, one in module.named_buffers()}


class _Begins(TapHook[Capture]):
    """Forward pre-hook, before all others."""

    __slots__ = ()

    with_kwargs = True

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Keywords = None) -> None:
        self.owner.begin(self.tap, module, (args, kwargs or {}))


class _Ends(TapHook[Capture]):
    """Forward hook, after all others."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any = None) -> None:
        self.owner.end(self.tap, module, output)


keep_dynamo_out(_Begins.__call__, _Ends.__call__, reason=VALUES)

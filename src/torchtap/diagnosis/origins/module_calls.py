"""The calls of modules while a step is traced, and the autograd nodes that each has made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

from torchtap.core.module_paths import modules_of
from torchtap.core.record import FORWARD
from torchtap.core.torch_private import sequence_number
from torchtap.hooks.call_follower import CallFollower, FollowedCall
from torchtap.hooks.calls import CallIdentifier
from torchtap.hooks.module_hook import Keywords, TapHook
from torchtap.hooks.tap import Tap


class Place(NamedTuple):
    """A module, which call of it in the step, and whether a checkpoint runs it again."""

    module: str
    call: int
    phase: str = FORWARD


class _Span(NamedTuple):
    """The numbers that autograd gave to the nodes which a call made, with those of inner calls."""

    first: int
    end: int
    place: Place


class _RunningCall(FollowedCall):
    __slots__ = ("first", "place")

    def __init__(self, tap: Tap, place: Place) -> None:
        super().__init__(tap, None)
        self.place = place
        self.first = sequence_number()


class ModuleCalls:
    """Follows the calls of all modules of a model.

    Args:
        model: any module, wrappers are looked through.

    Attributes:
        were_any: whether any module was called.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules, _ = modules_of(model)
        self._follower: CallFollower[_RunningCall] = CallFollower()
        self._identifier = CallIdentifier()
        self._spans: list[_Span] = []
        self._forward_end = 0
        self.were_any = False

    def attach(self) -> None:
        """Put the hooks on."""
        for path, module in self._modules.items():
            tap = Tap(path, {})
            self._follower.put_on(
                module, pre_hook=_Enter(self, tap), post_hook=_Leave(self, tap), is_first=True
            )

    def detach(self) -> None:
        """Take the hooks off."""
        self._follower.release()

    def enter(self, tap: Tap, args: Any, kwargs: Mapping[str, Any]) -> None:
        """A call begins."""
        self.were_any = True
        stack = self._follower.running.stack
        if not stack:
            self._identifier.enter_model()
        number, phase = self._identifier.identify(tap, args, kwargs)
        stack.append(_RunningCall(tap, Place(tap.path or ".", max(number, 0), phase)))

    def leave(self, tap: Tap) -> None:
        """A call ended."""
        end = sequence_number()
        for call in self._follower.running.leave(tap):
            self._spans.append(_Span(call.first, end, call.place))

    def note_node(self, running: Any) -> None:
        """Note to which call a node belongs that an operation may just have made.

        A reentrant checkpoint makes nodes in a backward: they are of the call that the checkpoint
        stands in.

        Args:
            running: the node that runs, if a backward does.
        """
        next_number = sequence_number()
        if running is None:
            self._forward_end = next_number
        elif next_number > self._forward_end and (place := self.of_node(running)) is not None:
            self._spans.append(_Span(next_number - 1, next_number, place))

    def running(self) -> Place | None:
        """Return the innermost call that runs in this thread; ``None`` outside of the model."""
        stack = self._follower.running.stack
        return stack[-1].place if stack else None

    def of_node(self, node: Any) -> Place | None:
        """Return the innermost call that made an autograd node; ``None`` outside of the model."""
        number = node._sequence_nr() if hasattr(node, "_sequence_nr") else -1
        around = [span for span in self._spans if span.first <= number < span.end]
        # Of those that began last, the shortest: a module may do nothing but call another.
        innermost = max(around, key=lambda span: (span.first, -span.end), default=None)
        return None if innermost is None else self._innermost(innermost, around)

    def _innermost(self, found: _Span, around: list[_Span]) -> Place:
        # Calls end from the inside out: of equal spans, the first that ended is the innermost.
        same = [one for one in around if (one.first, one.end) == (found.first, found.end)]
        return same[0].place


class _Enter(TapHook[ModuleCalls]):
    """Forward pre-hook."""

    __slots__ = ()

    with_kwargs = True

    def __call__(self, module: nn.Module, args: Any, kwargs: Keywords = None) -> None:
        self.owner.enter(self.tap, args, kwargs or {})


class _Leave(TapHook[ModuleCalls]):
    """Forward hook, called also where the module raised."""

    __slots__ = ()

    always_call = True

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        self.owner.leave(self.tap)

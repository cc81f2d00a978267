"""The functions that PyTorch calls on modules. A copy or a pickle of the model gets a no-op.

The no-op is a bound method of the standard library, so a saved model loads where torchtap is not
installed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torchtap.hooks.spots import Arrival, Tap
from torchtap.record import FORWARD, UNVERSIONED, Record, new_record

if TYPE_CHECKING:
    from torchtap.hooks.engine import Engine

_current_task = torch._C._current_graph_task_id
_saved_tensor_hooks = torch._C._autograd._top_saved_tensors_default_hooks
_tracing_state = torch._C._get_tracing_state
_transform_running = torch._C._functorch.peek_interpreter_stack


class Callback:
    """A hook on a module, which belongs to one tap of one engine (of an edit: editor)."""

    __slots__ = ("engine", "tap")

    def __init__(self, engine: Engine, tap: Tap) -> None:
        self.engine = engine
        self.tap = tap

    def __getattr__(self, name: str) -> Any:
        if name == "__name__":  # By which torch.jit.script would look for the source.
            raise AttributeError(
                "torch.jit.script cannot compile the hooks of torchtap: close what is attached to "
                "the model first"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __deepcopy__(self, memo: object) -> Callable[..., None]:
        return contextlib.nullcontext().__exit__

    def __copy__(self) -> Callable[..., None]:
        return contextlib.nullcontext().__exit__

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class Enter(Callback):
    """Forward pre-hook of a tap that must know when its module is entered."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.engine.recording:
            self.engine.enter(self.tap, module, args, kwargs)


class Count(Callback):
    """Forward pre-hook of a module that may call itself, where its end is all that is wanted."""

    __slots__ = ()

    def __init__(self, owner: Any, tap: Tap) -> None:
        super().__init__(owner, tap)  # An engine or an editor: both say whether they record.

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self.engine.recording:
            self.tap.calls.enter()  # type: ignore[attr-defined]


class Leave(Callback):
    """Forward hook. What it does per call decides what watching costs.

    Nearly every call returns one tensor in plain training: that case is written out here,
    without a function call, and does what ``Engine.leave`` does for all others.
    """

    __slots__ = ("has_frame",)

    def __init__(self, engine: Engine, tap: Tap, *, has_frame: bool) -> None:
        super().__init__(engine, tap)
        self.has_frame = has_frame

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        engine = self.engine
        if not engine.recording:
            return
        tap = self.tap
        spot, spot_of_gradient = tap.plain_output, tap.plain_gradient
        if (
            type(output) is not Tensor
            or self.has_frame
            or output.grad_fn is None
            or ((is_view := output._is_view()) and not engine.is_inside())
            or (spot is not None and spot.copies is not False)
            or engine.busy
            or _current_task() != -1
            or _saved_tensor_hooks(True) is not None
            or _transform_running() is not None
            or _tracing_state() is not None
        ):
            engine.leave(tap, args, kwargs, output, has_frame=self.has_frame)
            return
        tap.has_trained = True
        call = next(tap.calls)
        if spot is not None:
            spot.seen = True
            if not spot.meter(output, engine.step):
                if engine.borrows:
                    kept, version = output, UNVERSIONED
                else:
                    kept = output.detach()
                    version = kept._version
                row = (spot.site, engine.step, call, FORWARD, -1, (), kept, version)
                engine.emit(new_record(Record, row))
        if spot_of_gradient is not None:
            if is_view:
                hook = engine.gradients.of_view(spot_of_gradient, output, call)
            else:
                spot_of_gradient.armed += 1
                hook = Arrival(engine.deliver_gradient, spot_of_gradient, engine.step, call, ())
            engine.on_tensors.put(output, hook)


class EditCallback(Callback):
    """A hook of an edit: what it returns takes the place of what flows."""

    __slots__ = ("editor",)

    def __init__(self, editor: Any, tap: Tap) -> None:
        self.editor = editor
        self.tap = tap


class StepAside(Callback):
    """Pre-hook of a ``TransformerEncoderLayer``: takes our hooks off for a fused call."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert isinstance(module, nn.TransformerEncoderLayer)
        self.engine.aside.step_aside(module, args, kwargs)


def keep_dynamo_out(*functions: Any) -> None:
    """Let ``torch.compile`` break its graph here and run the function, and all below, as it is.

    Costs nothing in eager mode, which ``torch.compiler.disable`` does not.
    """
    from torch._C._dynamo import eval_frame

    skip = eval_frame._FrameAction.SKIP
    for function in functions:
        strategy = eval_frame._FrameExecStrategy(skip, skip)
        eval_frame.set_code_exec_strategy(function.__code__, strategy)
        function._torchdynamo_disable = True


keep_dynamo_out(Enter.__call__, Count.__call__, Leave.__call__, StepAside.__call__)

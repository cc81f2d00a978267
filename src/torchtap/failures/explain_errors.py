"""``tt.explain_errors``: PyTorch's exceptions get a note: where, why, and what to do."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, ParamSpec, TypeVar, overload

import torch
from torch import nn

from torchtap.core.doors import require_once
from torchtap.core.errors import InputError
from torchtap.core.torch_private import run_uncompiled
from torchtap.failures.added_notes import add_notes
from torchtap.failures.explained_everywhere import ExplainedEverywhere
from torchtap.failures.recording import WriteRecording, start_recording

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


@overload
def explain_errors(
    model: nn.Module | None = None, *, record: bool = False, everywhere: Literal[False] = False
) -> ExplainedBlock: ...
@overload
def explain_errors(
    model: nn.Module | None = None, *, record: bool = False, everywhere: Literal[True]
) -> ExplainedEverywhere: ...
def explain_errors(
    model: nn.Module | None = None, *, record: bool = False, everywhere: bool = False
) -> ExplainedBlock | ExplainedEverywhere:
    """Add a note to the exceptions that PyTorch raises inside the block, and change nothing else.

    The exception keeps its type and its message and goes on as without the block. Its note, which
    Python prints below the message, says in one sentence what happened, at which module, call and
    source line, with which tensors and what made them, and the ways out, best first. Exceptions
    that are not PyTorch's get no note, nor do those that were raised before the block began. An
    exception that was raised from another one, or while another one was handled, is looked at
    together with that one. Where blocks stand inside each other, the innermost adds the note.

    Nothing is attached to the model and nothing runs until something is raised: the note is read
    from the frames of the traceback, the source, and the autograd graph. No code of the program
    runs for it. Where the source alone does not decide, the note says so ("perhaps by", "one of").
    Where a module is called several times in one forward, it says which call it was, counted from
    the 1st, if the source of the caller tells: its lines, and loops over ``range`` and
    ``enumerate``.
    An error that is not known gets a note with its place and no more. An error of a compiled
    function is explained by its line alone, since its frames hold no modules.

    ``with tt.explain_errors() as notes`` hands out the list of the notes that the block adds, and
    ``@tt.explain_errors()`` puts a block around each call of a function or coroutine function.
    With ``everywhere=True`` there is no block: from then on, until ``close()``, every exception
    that nothing catches is explained, in scripts, threads and cells of IPython. In a notebook,
    ``%load_ext torchtap`` is the same, and under pytest ``pytest --torchtap-explain``.

    Args:
        model: whose modules are named; by default all modules that the frames hold, with the name
            of their variable before the path where there are several.
        record: note at each write in place which line made it, for errors of backward that need
            what was overwritten. Each operation of this thread then takes some microseconds more,
            and PyTorch's fused encoder kernel is not used; a frame of torchtap stands in the
            traceback below the operation. For looking for an error, not for training. Code
            that ``torch.compile`` compiles stays whole, and is compiled once more for such blocks
            (a stance of ``torch.compiler`` that forbids that is kept to); its writes are told by
            the name of the compiled function, without a line. Writes that were not seen, such as
            those of other threads, are counted in the note.
        everywhere: explain what nothing catches, in place of what leaves a block.

    Raises:
        InputError: ``model`` is no module; ``record`` and ``everywhere`` are both asked for; a
            generator function is decorated, whose block would stay open while it is suspended.

    Example:
        >>> import torch, torchtap as tt
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(8, 2))
        >>> try:
        ...     with tt.explain_errors(net):
        ...         net(torch.ones(5, 4))
        ... except RuntimeError as error:
        ...     print(error.__notes__[0].splitlines()[0])
        torchtap: 1 (Linear) takes 8 features in the last dimension of its input, which has 3.
    """
    require_once("tt.explain_errors")
    if model is not None and not isinstance(model, nn.Module):
        raise InputError(
            f"model is {type(model).__name__}; expected an nn.Module whose modules are to be "
            f"named, or nothing."
        )
    if not everywhere:
        return ExplainedBlock(model, record)
    if record:
        raise InputError(
            "record=True and everywhere=True were asked for together; expected one of them: writes "
            "are recorded between the beginning and the end of a block. Use a with block."
        )
    return ExplainedEverywhere(model)


@dataclass
class _Entered:
    """One entrance of a block.

    Attributes:
        handled: the exception that was being handled.
        recording: of writes in place, if they are recorded.
        notes: what the block adds.
    """

    handled: BaseException | None
    recording: WriteRecording | None
    notes: list[str] = field(default_factory=list)


@dataclass
class ExplainedBlock:
    """The result of ``tt.explain_errors``: a context manager, and a decorator."""

    model: nn.Module | None
    record: bool
    _entered: list[_Entered] = field(default_factory=list, repr=False)

    def __enter__(self) -> list[str]:
        if torch.compiler.is_compiling():  # What is raised in a graph has no frames to look at.
            return []
        recording = start_recording() if self.record else None
        # A stack, since one block may be entered again inside of itself (a decorated function that
        # recurses).
        self._entered.append(_Entered(sys.exception(), recording))
        return self._entered[-1].notes

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if torch.compiler.is_compiling():
            return
        entered = self._entered.pop()
        if entered.recording is not None:
            entered.recording.stop()
        if error is not None:
            entered.notes += add_notes(error, self.model, before=entered.handled)
        if entered.recording is not None:
            entered.recording.forget()

    def __call__(self, function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        """Return the function with a block of its own around each call."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InputError(
                f"tt.explain_errors() decorates {function.__qualname__}, a generator function; "
                f"expected a function or a coroutine function. Write the with inside of it."
            )
        model, record = self.model, self.record
        if inspect.iscoroutinefunction(function):

            async def explained_coroutine(*args: Any, **kwargs: Any) -> Any:
                with ExplainedBlock(model, record):
                    return await function(*args, **kwargs)

            explained: Any = explained_coroutine
        else:

            def explained_call(*args: Any, **kwargs: Any) -> Any:
                with ExplainedBlock(model, record):
                    return function(*args, **kwargs)

            explained = explained_call
        return functools.update_wrapper(explained, function)


# A function of which Dynamo compiles parts may enter a block between them: that is not compiled.
run_uncompiled(ExplainedBlock.__enter__)
run_uncompiled(ExplainedBlock.__exit__)

"""Every error that torchtap raises on purpose.

    TorchtapError
    ├── SiteError        (LookupError)   a pattern or site that names nothing, or cannot be read
    ├── CaptureError     (RuntimeError)  something asked for could not be captured as asked
    │   └── OverwrittenError             a value kept without a copy was overwritten
    ├── EditError        (RuntimeError)  an edit that cannot be made, or did not happen
    ├── NonFiniteError   (ArithmeticError) a value of a training that is not finite, with its origin
    ├── OffloadError     (RuntimeError)  saved tensors that cannot be moved as asked
    ├── RunError         (ValueError)    a file that is not a run, or a run that cannot answer
    ├── CompareError     (ValueError)    two runs or modules that cannot be compared as asked
    ├── InputError       (ValueError)    an argument, model, picture or file that does not fit
    └── MissingExtraError (ImportError)  an optional dependency is not installed

    TrainingWarning      (UserWarning)   an alarm of a rule while a training goes on

A message says where, what was found and what was expected, then one way out. Exceptions of other
people (a user's sink, a model's forward) keep their type and get a note.
"""

from __future__ import annotations


class TorchtapError(Exception):
    """Base of all errors that torchtap raises on purpose.

    Example:
        >>> import torchtap as tt
        >>> try:
        ...     tt.measure("text")
        ... except tt.TorchtapError as error:
        ...     print(type(error).__name__, error)
        InputError Only tensors can be measured, not 'text'.
    """


class SiteError(TorchtapError, LookupError):
    """A pattern or a site that names nothing, or that cannot be read.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 1))
        >>> try:
        ...     tt.watch(model, "layer1")
        ... except tt.SiteError as error:
        ...     print(error)
        Sequential has no module 'layer1'; it has '0'.
    """


class CaptureError(TorchtapError, RuntimeError):
    """Something that was asked for could not be captured as asked.

    Example:
        >>> import torchtap as tt
        >>> issubclass(tt.CaptureError, RuntimeError)
        True
    """


class OverwrittenError(CaptureError):
    """A value that was kept without a copy has been overwritten since.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.ReLU(inplace=True))
        >>> with tt.watch(model, "0", copy="never") as w:
        ...     _ = model(torch.ones(1, 2))
        >>> try:
        ...     w.run["0"]
        ... except tt.OverwrittenError as error:
        ...     print(error)
        0:output (step 0, call 0) was kept without a copy and has been overwritten since. ...
    """


class EditError(TorchtapError, RuntimeError):
    """An edit that cannot be made as asked, or that did not happen.

    Example:
        >>> import torch, torchtap as tt
        >>> linear = torch.nn.Linear(2, 1)
        >>> try:
        ...     with tt.edit(linear, ".:grad_output", tt.edits.zero()):
        ...         _ = linear(torch.ones(3, 2))  # And no backward.
        ... except tt.EditError as error:
        ...     print(error)
        Edit 'zero()' at '.:grad_output' never happened. ...
    """


class NonFiniteError(TorchtapError, ArithmeticError):
    """A step of a training has an Inf or NaN; ``origin`` says where it was made.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), 0.1)
        >>> with tt.guard(model):
        ...     try:
        ...         model(torch.tensor([[1.0, float("inf")]])).sum().backward()
        ...         optimizer.step()
        ...     except tt.NonFiniteError as error:
        ...         print(error.origin.phase)
        input
    """

    def __init__(self, text: str, origin: object = None) -> None:
        super().__init__(text)
        self.origin = origin


class OffloadError(TorchtapError, RuntimeError):
    """Saved tensors that cannot be moved as asked.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Linear(2, 1)
        >>> try:
        ...     with tt.offload(tt.codecs.bits(), model=model):
        ...         model(torch.ones(512, 512, 2)).sum().backward()
        ... except tt.OffloadError as error:
        ...     print(error)
        Nothing ...
    """


class RunError(TorchtapError, ValueError):
    """A file that is not a run, or a run that cannot answer a question.

    Example:
        >>> import tempfile, torchtap as tt
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     try:
        ...         tt.open(file.name)
        ...     except tt.RunError as error:
        ...         print(str(error).removeprefix(file.name))
         is not a safetensors file...
    """


class CompareError(TorchtapError, ValueError):
    """Two runs or modules that cannot be compared as asked.

    Example:
        >>> import torchtap as tt
        >>> try:
        ...     tt.compare(3, 4)
        ... except tt.CompareError as error:
        ...     print(error)
        a is int; expected two runs ...
    """


class InputError(TorchtapError, ValueError):
    """An argument, a model, a picture or a weight file that does not fit.

    Example:
        >>> import torchtap as tt
        >>> try:
        ...     tt.edits.clamp()
        ... except tt.InputError as error:
        ...     print(error)
        tt.edits.clamp needs min, max or both, as in tt.edits.clamp(min=0).
    """


class MissingExtraError(TorchtapError, ImportError):
    """An optional dependency is not installed; the message names the extra.

    Example:
        >>> import torchtap as tt
        >>> issubclass(tt.MissingExtraError, ImportError)
        True
    """


class TrainingWarning(UserWarning):
    """An alarm of a rule about a training that goes on: see ``tt.watch(..., rules=...)``.

    ``warnings.simplefilter("error", tt.TrainingWarning)`` has ``w.step()`` raise it.

    Example:
        >>> import torchtap as tt
        >>> issubclass(tt.TrainingWarning, UserWarning)
        True
    """

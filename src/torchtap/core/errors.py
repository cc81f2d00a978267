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
    """Base of all errors that torchtap raises on purpose."""


class SiteError(TorchtapError, LookupError):
    """A pattern or a site that names nothing, or that cannot be read."""


class CaptureError(TorchtapError, RuntimeError):
    """Something that was asked for could not be captured as asked."""


class OverwrittenError(CaptureError):
    """A value that was kept without a copy has been overwritten since."""


class EditError(TorchtapError, RuntimeError):
    """An edit that cannot be made as asked, or that did not happen."""


class NonFiniteError(TorchtapError, ArithmeticError):
    """A step of a training has an Inf or NaN; ``origin`` says where it was made."""

    def __init__(self, text: str, origin: object = None) -> None:
        super().__init__(text)
        self.origin = origin


class OffloadError(TorchtapError, RuntimeError):
    """Saved tensors that cannot be moved as asked."""


class RunError(TorchtapError, ValueError):
    """A file that is not a run, or a run that cannot answer a question."""


class CompareError(TorchtapError, ValueError):
    """Two runs or modules that cannot be compared as asked."""


class InputError(TorchtapError, ValueError):
    """An argument, a model, a picture or a weight file that does not fit."""


class MissingExtraError(TorchtapError, ImportError):
    """An optional dependency is not installed; the message names the extra."""


class TrainingWarning(UserWarning):
    """An alarm of a rule about a training that goes on: see ``tt.watch(..., rules=...)``.

    ``warnings.simplefilter("error", tt.TrainingWarning)`` has ``w.step()`` raise it.

    Example:
        >>> import torchtap as tt
        >>> issubclass(tt.TrainingWarning, UserWarning)
        True
    """

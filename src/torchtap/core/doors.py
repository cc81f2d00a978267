"""The doors of torchtap say what this PyTorch lacks for them, and that nobody tried it.

Every public function that works on a running model calls :func:`require` first, before it touches
the model. Reading runs and measuring tensors need no private name, and call nothing of this.
"""

from __future__ import annotations

import sys
import warnings
from functools import cache

import torch
from torch import nn

from torchtap.core import torch_frames, torch_private  # noqa: F401 - they fill the table
from torchtap.core.errors import CaptureError, InputError
from torchtap.core.private_names import NAMES, TRIED_PYTHON, TRIED_TORCH, PrivateName, release_of
from torchtap.core.tensors import kind_of

_has_warned = False


def require(door: str, *models: object) -> None:
    """Raise if this PyTorch lacks what a door needs; warn once if this version was never tried.

    Args:
        door: name of the public function, as ``tt.watch``.
        models: what was given to it as models.

    Raises:
        CaptureError: a private name of PyTorch that it needs is gone.
        InputError: one of the models is none.
    """
    if not _has_warned:
        _warn_once()
    for model in models:
        if not isinstance(model, nn.Module):
            raise _no_module(door, model)
    gone = _gone(door)
    if gone:
        needed = "; ".join(f"{one.name} ({one.purpose})" for one in gone)
        raise CaptureError(
            f"{door} needs what torch {torch.__version__} does not have: {needed}. torchtap was "
            f"tried with torch {', '.join(TRIED_TORCH)}: install one of them, or a newer torchtap. "
            "`torchtap selfcheck` says what works here."
        )


require_once = cache(require)
""":func:`require` of doors that need no private name: its warning alone can come, once."""


def _no_module(door: str, model: object) -> InputError:
    way = ""
    if isinstance(model, type) and issubclass(model, nn.Module):
        what = f"the class {model.__name__}"
        way = f": an object of it, as {model.__name__}(...) makes"
    else:
        what = kind_of(model)
        if callable(model):
            way = "; call the function in the forward of one"
    return InputError(f"{door} got {what} as model; expected a torch.nn.Module{way}.")


def _gone(door: str) -> list[PrivateName]:
    """Return the names that a door needs and that this PyTorch does not have."""
    unknown = _of_door(door)
    gone = [one for one in unknown if not one.is_there()]
    # Nothing takes a name away from a module that has it. A watch of each step asks each time.
    unknown[:] = [one for one in unknown if one in gone or not one.is_imported]
    return gone


@cache
def _of_door(door: str) -> list[PrivateName]:
    """Return the names that a door needs, but for those that were found."""
    return [one for one in NAMES.values() if door in one.doors]


def untried() -> str:
    """Names the release of PyTorch or Python with which torchtap was never tried, or nothing."""
    names = []
    if release_of(torch.__version__) not in {release_of(one) for one in TRIED_TORCH}:
        names.append(f"torch {torch.__version__}")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    if python not in TRIED_PYTHON:
        names.append(f"Python {python}")
    return " and ".join(names)


def _warn_once() -> None:
    global _has_warned
    _has_warned = True
    names = untried()
    if names:
        warnings.warn(
            f"torchtap was never tried with {names} (but with torch {', '.join(TRIED_TORCH)} and "
            f"Python {', '.join(TRIED_PYTHON)}). Check that it is right here: tt.selfcheck(), or "
            "`torchtap selfcheck`, takes some seconds.",
            stacklevel=4,
        )

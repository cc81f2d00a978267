"""Turn words of a command line into a model, a batch and a loss. Imports torch only when needed."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import pickle
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtap.core.did_you_mean import did_you_mean
from torchtap.core.errors import InputError
from torchtap.core.text import class_of

if TYPE_CHECKING:
    from torch import Tensor, nn

_WRAPPERS = ("module.", "_orig_mod.")
_NESTED = ("state_dict", "model_state_dict", "model")
_MOST_NAMES = 4


# ---------------------------------------------------------------------- the model


def load_model(target: str, *, args: Sequence[str] = ()) -> nn.Module:
    """Build the model that ``package.module:callable`` names.

    Args:
        target: ``package.module:callable`` or ``file.py:callable``; the current folder is
            importable. A module instance may be named too.
        args: ``key=value`` texts for the callable; values are Python literals, else text.

    Raises:
        InputError: nothing is there, it does not take these arguments, or it returns no module.
    """
    from torch import nn

    made = load_object(target, what="MODEL")
    given = parse_args(args)
    if not isinstance(made, nn.Module):
        made = _call(target, made, given)
    elif given:
        raise InputError(f"{target} is a model already and takes no --arg.")
    if not isinstance(made, nn.Module):
        raise InputError(
            f"{target} returned {class_of(made)}; expected an nn.Module. Name a class or a "
            f"function that returns a model."
        )
    return made


def load_object(target: str, *, what: str) -> Any:
    """Import what ``package.module:name`` names; dots after the colon are followed."""
    home, colon, name = target.rpartition(":")
    if not colon or not home or not name:
        raise InputError(
            f"{what} is {target!r}; expected package.module:callable or file.py:callable."
        )
    module = _import_file(Path(home)) if home.endswith(".py") else _import_name(home)
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            known = [one for one in dir(value) if not one.startswith("_")]
            raise InputError(f"{home} has no {part!r}{did_you_mean(part, known)}")
        value = getattr(value, part)
    return value


def parse_args(words: Sequence[str], *, option: str = "--arg") -> dict[str, Any]:
    """Return ``key=value`` words; values are Python literals where they read as such, else text.

    Example:
        >>> parse_args(["width=8", "name=small", "sizes=(1, 2)"])
        {'width': 8, 'name': 'small', 'sizes': (1, 2)}
    """
    parsed: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.isidentifier():
            raise InputError(f"{option} is {word!r}; expected key=value, such as {option} width=8.")
        if key in parsed:
            raise InputError(f"{option} {key} is given twice.")
        try:
            parsed[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            parsed[key] = value
    return parsed


def _import_name(name: str) -> Any:
    with importable_here(), _noting_import_of(name):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if name != missing and not name.startswith(missing + "."):
                raise  # The module is there; something that it imports is not.
            names = [file.stem for file in Path().glob("*.py")]
            raise InputError(
                f"There is no module {missing!r} (looked for {name!r}, also in the current folder)"
                f"{did_you_mean(missing, names)}"
            ) from error
        except (TypeError, ValueError) as error:
            if name.startswith(".") or ".." in name or name.endswith("."):
                raise InputError(f"{name!r} is not the name of a module.") from error
            raise


def _import_file(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"There is no file {path}{_near_files(path)}")
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Classes of the file must be found by their module's name, and its neighbours imported.
    sys.modules.setdefault(path.stem, module)
    with importable_here(path.resolve().parent), _noting_import_of(str(path)):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _noting_import_of(name: str) -> Iterator[None]:
    """Say of what the user's code raises that it was being imported."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        error.add_note(f"Raised while torchtap imported {name}.")
        raise


@contextlib.contextmanager
def importable_here(folder: Path | None = None) -> Iterator[None]:
    """Make a folder importable while something is imported."""
    text = str(folder or Path().resolve())
    sys.path.insert(0, text)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(text)


def _call(target: str, function: Any, given: Mapping[str, Any]) -> Any:
    if not callable(function):
        raise InputError(
            f"{target} is {class_of(function)}; expected a callable that returns a model."
        )
    try:
        signature = inspect.signature(function)
    except ValueError:
        return function(**given)
    try:
        signature.bind(**given)
    except TypeError as error:
        takes = ", ".join(map(str, signature.parameters.values())) or "nothing"
        raise InputError(
            f"{target} cannot be called with {_words(given)}: {error}. It takes {takes}; give "
            f"each with --arg key=value."
        ) from error
    return function(**given)


def _words(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in given.items()) or "no arguments"


# ---------------------------------------------------------------------- weights


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """The wrapping of the tensors in a weight file.

    Attributes:
        key: under which they stood; ``""`` where they are the file itself.
        beside: what else stood there and was not read.
        prefixes: what was taken off every name.
    """

    key: str = ""
    beside: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.key or self.prefixes)


def load_weights(model: nn.Module, path: str | Path) -> Unwrapped:
    """Read a weight file (safetensors, or a pickle of nothing but tensors) into a model.

    Every key and shape must fit. Prefixes of wrappers (``module.``, ``_orig_mod.``) and one level
    of nesting (``state_dict``) are looked through.

    Returns:
        what was looked through.

    Raises:
        InputError: the file is missing, is no weight file, wants to run code, or does not fit.
    """
    file = existing_file(path)
    given, key, beside = _tensors_of(file)
    given, prefixes = _strip(given)
    own = model.state_dict(keep_vars=True)
    _refuse_misfit(file, type(model).__name__, own, given)
    model.load_state_dict(given, strict=False)
    return Unwrapped(key, beside, prefixes)


def _tensors_of(file: Path) -> tuple[dict[str, Tensor], str, tuple[str, ...]]:
    """Name -> tensor, the key under which that stood, and the keys beside it."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if file.suffix == ".safetensors" or _looks_like_safetensors(file):
        try:
            return load_file(file), "", ()
        except SafetensorError as error:
            raise InputError(f"{file} is not a safetensors file: {error}.") from error
    unpickled = _unpickled(file)
    for key in _NESTED:
        if isinstance(unpickled, Mapping) and isinstance(unpickled.get(key), Mapping):
            beside = tuple(str(one) for one in unpickled if one != key)
            return _named_tensors(file, unpickled[key]), key, beside
    return _named_tensors(file, unpickled), "", ()


def _looks_like_safetensors(file: Path) -> bool:
    with file.open("rb") as stream:
        start = stream.read(9)
    return len(start) == 9 and start[8:] == b"{" and start[:2] != b"PK"


def _unpickled(file: Path) -> Any:
    import torch

    try:
        with warnings.catch_warnings():  # Of an unusual protocol; what follows is said below.
            warnings.simplefilter("ignore")
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        wanted = re.search(r"GLOBAL ([\w.]+)", str(error))
        if wanted is None:
            raise _no_weights(file) from error
        raise InputError(
            f"{file} wants to run code when it is read: it names {wanted[1]}. Only files that hold "
            f"nothing but tensors are read. Save it again where you trust it, with "
            f"torch.save(model.state_dict(), ...) or safetensors."
        ) from error
    except (EOFError, RuntimeError, ValueError, KeyError, IndexError, AssertionError) as error:
        raise _no_weights(file) from error


def _no_weights(file: Path) -> InputError:
    return InputError(
        f"{file} is no weight file: expected safetensors, or what torch.save(model.state_dict(), "
        f"...) writes."
    )


def _named_tensors(file: Path, found: Any) -> dict[str, Tensor]:
    import torch

    if not isinstance(found, Mapping):
        raise InputError(f"{file} holds {class_of(found)}; expected a dict from name to tensor.")
    odd = [key for key, value in found.items() if not isinstance(value, torch.Tensor)]
    if odd:
        raise InputError(
            f"{file} holds {class_of(found[odd[0]])} at {odd[0]!r}; expected a dict from name to "
            f"tensor."
        )
    return {str(key): value for key, value in found.items()}


def _strip(given: dict[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    taken = []
    for prefix in _WRAPPERS:
        if given and all(key.startswith(prefix) for key in given):
            given = {key.removeprefix(prefix): value for key, value in given.items()}
            taken.append(prefix)
    return given, tuple(taken)


def _refuse_misfit(
    file: Path, model: str, own: Mapping[str, Tensor], given: Mapping[str, Tensor]
) -> None:
    from torchtap.core.tensors import kind_of

    # A tied tensor is written once; files from before 2018 have no num_batches_tracked.
    present = {id(own[key]) for key in given if key in own}
    missing = [
        key
        for key, tensor in own.items()
        if key not in given
        and id(tensor) not in present
        and not key.endswith("num_batches_tracked")
    ]
    unexpected = [key for key in given if key not in own]
    wrong = [
        f"{key} is {kind_of(given[key])}, the model has {kind_of(own[key])}"
        for key in given
        if key in own and given[key].shape != own[key].shape
    ]
    said = []
    if missing:
        said.append(f"{len(missing)} missing ({_some(missing)})")
    if unexpected:
        said.append(f"{len(unexpected)} unexpected ({_some(unexpected)})")
    if wrong:
        said.append(f"{len(wrong)} of wrong shape ({_some(wrong, '; ')})")
    if said:
        raise InputError(
            f"{file} does not fit {model}, of whose {len(own)} tensors: {', '.join(said)}. Build "
            f"the model as it was trained, with --arg key=value."
        )


def _some(names: Sequence[str], separator: str = ", ") -> str:
    more = len(names) - _MOST_NAMES
    shown = separator.join(names[:_MOST_NAMES])
    return f"{shown} and {more} more" if more > 0 else shown


# ---------------------------------------------------------------------- shared


def existing_file(path: str | Path) -> Path:
    """Return the path of a file that is there.

    Raises:
        InputError: there is none; the message names what is near.
    """
    file = Path(path)
    if file.is_dir():
        raise InputError(f"{file} is a folder; expected a file.")
    if file.exists() and not file.is_file():
        raise InputError(f"{file} is a device or a pipe; expected a file.")
    if not file.is_file():
        raise InputError(f"There is no file {file}{_near_files(file)}")
    return file


def _near_files(file: Path) -> str:
    folder = file.parent
    names = [str(one) for one in folder.iterdir()] if folder.is_dir() else []
    return did_you_mean(str(file), names)

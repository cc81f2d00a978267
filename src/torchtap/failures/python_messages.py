"""Messages of Python itself that mean something of PyTorch only in some places."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from torchtap.failures.catalogue.hooks import hook_called
from torchtap.failures.catalogue.objects import none_handed_over, uncalled_method, unpacked
from torchtap.failures.catalogue.plain_objects import calls_no_function, reads_no_member
from torchtap.failures.catalogue.values_given import (
    adds_parameters,
    checkpoint_of,
    compared_in,
    encoding_of,
    modules_in,
    tensors_in,
)
from torchtap.failures.failure import Failure
from torchtap.failures.traceback_frame import TracebackFrame

_LOADING = f"{os.sep}torch{os.sep}utils{os.sep}data{os.sep}"


def _last_value(failure: Failure, field: str) -> Any:
    """The value of a part of the expression that failed."""
    node = getattr(failure.frames[-1].expression, field, None)
    return failure.frames[-1].value_of(node) if isinstance(node, ast.AST) else None


def _is_of_data(failure: Failure) -> bool:
    last = failure.frames[-1]
    return last.is_torch and _LOADING in last.file and not last.file.endswith("collate.py")


def _is_method(failure: Failure) -> bool:
    called = uncalled_method(failure)
    if not isinstance(called, ast.Attribute):
        return False
    owner = failure.frames[-1].value_of(called.value)
    return isinstance(owner, Tensor | nn.Module) or called.attr in ("size", "stride")


def _has_no_items(failure: Failure) -> bool:
    return isinstance(_last_value(failure, "value"), nn.Module | DataLoader)


def _is_state(failure: Failure) -> bool:
    """Return whether a dict holds tensors, or dicts of them."""
    node = failure.frames[-1].expression
    base: Any = getattr(node, "func", node)
    held = failure.frames[-1].value_of(base) if isinstance(base, ast.AST) else None
    if isinstance(base, ast.Attribute) and not isinstance(held, dict):
        held = failure.frames[-1].value_of(base.value)
    values = list(held.values()) if isinstance(held, dict) else []
    values += [part for one in values if isinstance(one, dict) for part in one.values()]
    return any(isinstance(one, Tensor) for one in values)


def _is_method_of_a_class(failure: Failure) -> bool:
    name = failure.text.partition("(")[0]
    home, _, method = name.partition(".")
    return home == "Module" and hasattr(nn.Module, method)


def _is_of_torch(failure: Failure) -> bool:
    """Return whether the call that lacks arguments is of PyTorch, and no forward."""
    name = failure.text.partition("(")[0]
    if "forward" in name:
        return False
    last = failure.frames[-1]
    if last.is_torch:
        return not last.raises_itself
    called = _last_value(failure, "func")
    if isinstance(last.owner, nn.Module) and name.endswith(".__init__"):
        return not last.raises_itself
    if isinstance(called, type) and issubclass(called, nn.Module | Dataset | Optimizer):
        return True
    home = getattr(called, "__module__", None) or ""
    is_method = name.partition(".")[0] == name and hasattr(Tensor, name)
    return str(home).partition(".")[0] == "torch" or is_method or hasattr(torch, name)


def _makes_a_module(failure: Failure) -> bool:
    last = failure.frames[-1]
    called = _last_value(failure, "func")
    is_class = isinstance(called, type) and issubclass(called, nn.Module)
    return is_class or (last.is_torch and isinstance(last.owner, nn.Module))


def _is_text_of_an_optimizer(failure: Failure) -> bool:
    last = failure.frames[-1]
    return last.is_torch and isinstance(last.owner, Optimizer)


def _is_of_a_scheduler(failure: Failure) -> bool:
    inner = [one for one in failure.frames if not one.is_standard][-1:]
    return any(one.is_torch and one.file.endswith("lr_scheduler.py") for one in inner)


def _is_key_of_a_sample(failure: Failure) -> bool:
    is_key = isinstance(failure.error, KeyError) and failure.frames[-1].file.endswith("collate.py")
    return is_key and failure.frames[-1].is_torch


def _is_pickled(failure: Failure) -> bool:
    """Return whether PyTorch asked for it: to save a file, or to start a process."""
    return any(frame.is_torch for frame in failure.frames)


def _is_unpickled(failure: Failure) -> bool:
    """Return whether torch.load looked for a class or file of what a file holds."""
    return any(
        one.is_torch and one.file.endswith("serialization.py") and one.code.co_name == "load"
        for one in failure.frames
    )


def _has_ended(failure: Failure) -> bool:
    """Return whether the iterator of a loader was asked for more than it has."""
    last = failure.frames[-1]
    return isinstance(failure.error, StopIteration) and last.is_torch and _LOADING in last.file


def _is_array_of_a_data_set(failure: Failure) -> bool:
    return failure.frames[-1].is_torch and failure.frames[-1].file.endswith("dataset.py")


def _calls_a_loader(failure: Failure) -> bool:
    node = failure.frames[-1].expression
    args = node.args if isinstance(node, ast.Call) else []
    is_loader = any(isinstance(failure.frames[-1].value_of(one), DataLoader) for one in args)
    return is_loader or failure.text.startswith("'DataLoader'")


def _is_member(failure: Failure) -> bool:
    return failure.frames[-1].is_torch and failure.frames[-1].file.endswith("container.py")


def _is_index(failure: Failure) -> bool:
    last: TracebackFrame = failure.frames[-1]
    return last.is_user and not last.raises_itself


def _is_forward_of_a_function(failure: Failure) -> bool:
    called = getattr(failure.frames[-1].expression, "func", None)
    held = failure.frames[-1].value_of(called.value) if isinstance(called, ast.Attribute) else None
    return isinstance(held, type) and issubclass(held, torch.autograd.Function)


def _is_key_of_fetch(failure: Failure) -> bool:
    """Return whether the code of a data set, asked for a sample, looked for a key of a number."""
    is_asked = any(one.is_torch and one.file.endswith("fetch.py") for one in failure.frames)
    return is_asked and type(failure.error) is KeyError


def _is_of_fetch(failure: Failure) -> bool:
    """Return whether a DataLoader asked a data set for a sample, whose own code has failed."""
    is_asked = any(one.is_torch and one.file.endswith("fetch.py") for one in failure.frames)
    is_own = failure.frames[-1].is_user and not failure.frames[-1].raises_itself
    return is_asked and is_own and isinstance(failure.error, IndexError)


def _is_of_optimizer(failure: Failure) -> bool:
    last = failure.frames[-1]
    return last.is_torch and f"{os.sep}optim{os.sep}" in last.file


def _is_of_a_distribution(failure: Failure) -> bool:
    folder = f"{os.sep}distributions{os.sep}"
    return failure.frames[-1].is_torch and folder in failure.frames[-1].file


def _draws(failure: Failure) -> bool:
    is_sampled = failure.frames[-1].code.co_name == "rsample"
    return _is_of_a_distribution(failure) and is_sampled


def _is_encoding(failure: Failure) -> bool:
    return isinstance(failure.error, AttributeError) and bool(encoding_of(failure))


def _lacks_a_method_of_tensors(failure: Failure) -> bool:
    name = failure.text.rpartition("attribute ")[2].strip("'")
    return bool(tensors_in(failure)) and hasattr(Tensor, name)


CONDITIONS: dict[str, Callable[[Failure], bool]] = {
    "method without a call": _is_method,
    "no items": _has_no_items,
    "no iterator": _calls_a_loader,
    "state that is no model": _is_state,
    "name of torch": lambda failure: (
        not failure.frames[-1].raises_itself or failure.frames[-1].is_torch
    ),
    "method of a class": _is_method_of_a_class,
    "arguments that are missing": _is_of_torch,
    "made with inputs": _makes_a_module,
    "more names than values": lambda failure: bool(unpacked(failure)[0]),
    "None in a function": lambda failure: bool(none_handed_over(failure)),
    "number that is one already": lambda failure: failure.frames[-1].is_user,
    "tuple of gradients": lambda failure: bool(tensors_in(failure)),
    "list that is moved": _lacks_a_method_of_tensors,
    "generators that are added": adds_parameters,
    "answer of a comparison": lambda failure: len(compared_in(failure)) > 1,
    "module among tensors": lambda failure: bool(modules_in(failure)),
    "key of a checkpoint": lambda failure: checkpoint_of(failure) is not None,
    "forward of a function": _is_forward_of_a_function,
    "attribute of a context": lambda failure: failure.frames[-1].code.co_name == "backward",
    "encoding of a tokenizer": _is_encoding,
    "closure without a loss": _is_of_optimizer,
    "milestones of a scheduler": _is_of_a_scheduler,
    "function of a scheduler": _is_of_a_scheduler,
    "shape of a sample": _is_of_a_distribution,
    "sample without a gradient": _draws,
    "text as a rate": _is_text_of_an_optimizer,
    "mode of a scheduler": _is_of_a_scheduler,
    "factor of a scheduler": _is_of_a_scheduler,
    "data set without a length": _is_of_data,
    "arrays of a data set": _is_array_of_a_data_set,
    "key of a sample": _is_key_of_a_sample,
    "function that cannot be pickled": _is_pickled,
    "member out of range": _is_member,
    "tensor as an index": _is_index,
    "samples beyond the data": _is_of_fetch,
    "key of a data set": _is_key_of_fetch,
    "arguments of a hook": lambda failure: bool(hook_called(failure)),
    "class of a pickle": _is_unpickled,
    "end of a loader": _has_ended,
    "variable that is not set": lambda failure: isinstance(failure.error, KeyError),
    "error in a worker": lambda failure: False,  # Outside of workers, values are seen.
    "None that is called": calls_no_function,
    "member of an optimizer": lambda failure: isinstance(_last_value(failure, "value"), Optimizer),
    "member of an object": reads_no_member,
}
"""Name of a message -> whether it is about PyTorch in a failure."""

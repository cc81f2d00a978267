"""The ways to copy a model."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import torch


def written_by_torch(model: Any) -> bytes:
    """The file that ``torch.save`` writes."""
    stream = io.BytesIO()
    torch.save(model, stream)
    return stream.getvalue()


def loaded_by_torch(content: bytes) -> Any:
    """The object that ``torch.load`` makes of a file."""
    return torch.load(io.BytesIO(content), weights_only=False)


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": lambda model: loaded_by_torch(written_by_torch(model)),
}

"""Parts of PyTorch's messages that torchtap looks for, to go another way where they occur.

Each is looked for anywhere in the text of an exception, since releases put prefixes before it. The
messages that ``tt.explain_errors`` explains stand in :mod:`torchtap.failures.messages`.
"""

from __future__ import annotations

FREED = "second time"
"""Saved tensors were freed by a backward: torch/csrc/autograd/saved_variable.cpp."""

INFERENCE_TENSORS = "Inference tensors"
"""A tensor of inference mode came into autograd: torch/csrc/autograd/saved_variable.cpp."""

REENTRANT_CHECKPOINT = "checkpoint"
"""``torch.autograd.grad`` came to a reentrant checkpoint: torch/utils/checkpoint.py."""

NO_SAVED_HOOKS = "don't yet support saved tensor hooks"
"""A transform forbids hooks on saved tensors: torch/_functorch/eager_transforms.py."""


def says(error: BaseException, part: str) -> bool:
    """Return whether the text of an exception contains this part."""
    return part in str(error)

"""Says whether saved tensors are moved by the native code (``saved.c``), or by Python alone.

Each function there has its twin here, which does the same: ``find_layout`` is
:func:`~torchtap.saved.tensor_layout.layout_of`, ``SavedBlock`` is
:func:`~torchtap.saved.saved_block.new_block`, and ``write_elements`` and ``read_elements`` are
``write`` and ``read`` of a :class:`~torchtap.saved.spill_file.SpillFile`.
"""

from __future__ import annotations

from typing import Any

from torchtap.core.torch_private import is_of_transform
from torchtap.saved.tensor_layout import layout_of
from torchtap.stats.kernels import native


def kernel() -> Any:
    """Return the binary for a new offload; ``None`` where Python is to do it."""
    return native.kernel() if native.takes_saved(is_of_transform, layout_of) else None

"""Hands the native code (``saved.c``) what it needs, where saved tensors are moved by it.

Each of its names has a twin in Python, which does the same: ``find_layout`` is
:func:`~torchtap.saved.tensor_layout.layout_of`, ``SavedBlock`` is that of
:mod:`~torchtap.saved.saved_block` with its ``BlockRef`` in one, ``ModuleCounters`` and ``Totals``
are classes here, and ``HotWay`` is the usual way through
:class:`~torchtap.saved.offload_engine.OffloadEngine`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from torchtap.core.torch_nodes import VIEWS_AND_CASTS
from torchtap.core.torch_private import current_task, is_of_transform, sequence_number
from torchtap.hooks.graph_edges import num_casts
from torchtap.hooks.marks import open_editors, open_engines
from torchtap.saved.saved_block import SharedView
from torchtap.saved.tensor_layout import layout_of
from torchtap.stats.kernels import native


def kernel() -> Any:
    """Return the binary for a new offload; ``None`` where Python is to do it."""
    takes = native.takes_saved(
        is_of_transform,
        Tensor.is_neg,
        layout_of,
        num_casts,
        VIEWS_AND_CASTS,
        current_task,
        sequence_number,
        Tensor.detach,
        Tensor.untyped_storage,
        Tensor.storage_offset,
        SharedView,
        # The sets in them: asking these for a length runs no Python.
        open_engines.data,  # type: ignore[attr-defined]
        open_editors.data,  # type: ignore[attr-defined]
    )
    return native.kernel() if takes else None

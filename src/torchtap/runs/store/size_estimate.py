"""Estimate the size of a run in a folder, from the plan of a watch and from what was written."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from torchtap.core.distributed import readable
from torchtap.core.module_paths import state_names
from torchtap.core.plan import Filter
from torchtap.core.planned_size import PlannedSize
from torchtap.core.ports import BY_NAME, STATE_PORTS
from torchtap.core.site import Site
from torchtap.core.tensors import obstacle
from torchtap.runs.meta import Meta
from torchtap.runs.single_file.packed_series import pack
from torchtap.runs.store.selecting import WriteSelection
from torchtap.runs.store.site_text import site_text

if TYPE_CHECKING:
    from torch import Tensor

    from torchtap.core.plan import Plan
    from torchtap.runs.store.attempt import Written
    from torchtap.runs.store.intake import Committed
    from torchtap.stats.series import Series

_PER_VALUE = 188
"""Bytes of a value's row in the journal and in the index, as measured; texts vary."""
_INDEX_ROW = 64
_STREAM_ROW, _TABLE_ROW = 150, 50
"""Bytes of a site and step in ``statistics.arrows`` beside the site's text, and about how many in
``statistics.parquet``, which is compressed."""
_NOTHING = Filter(())


def before_a_step(
    size: PlannedSize, plan: Plan | None, selection: WriteSelection, meta: Meta
) -> PlannedSize:
    """Estimate a step before one ran: parameters, buffers, and their gradients.

    One backward is counted for a gradient, and none for parameters that are frozen.

    Args:
        size: what else is known.
        plan: of the watch, if there is one.
        selection: of what is written.
        meta: of the model.
    """
    if plan is None:
        return size
    sizes = [
        selection.nbytes_of(tensor)
        for site, tensor in _state_of(plan)
        if selection.wants_site(site, meta)
    ]
    share = _share(size.every, selection.every)
    flowing = dict.fromkeys(port for port in _sparse_ports(plan, selection, meta))
    flowing |= dict.fromkeys(
        port
        for tap in plan.taps
        for port in tap.ports
        if port not in STATE_PORTS and selection.wants_site(Site(tap.path, port), meta)
    )
    return replace(
        size,
        written_per_step=round(share * (sum(sizes) + len(sizes) * _PER_VALUE)),
        values_per_step=round(share * sum(sizes)),
        unknown=(*flowing, *size.unknown),
        is_most=selection.pick is not None,
    )


def after_steps(size: PlannedSize, done: Committed, written: Written, every: int) -> PlannedSize:
    """Estimate a step from those that were written.

    Args:
        size: what else is known.
        done: what was committed.
        written: bytes of it in the files.
        every: of how many steps of the training the values of one are written.
    """
    share, steps = _share(size.every, every), max(done.num_steps, 1)
    grown = written.grown + done.num_values * _INDEX_ROW
    empty = written.empty / max(done.num_recorded, 1)  # Also of steps that are not recorded.
    return replace(
        size,
        written_per_step=round(share * grown / steps + empty),
        values_per_step=round(share * done.num_bytes / steps),
        fixed_bytes=size.fixed_bytes + written.headers,
    )


def _share(recorded: int, every: int) -> float:
    """Return the share of the recorded steps of which the values are written."""
    return recorded / math.lcm(recorded, every)


def _state_of(plan: Plan) -> Iterator[tuple[Site, Tensor]]:
    """The tensors of a model that are tapped, and in place of gradients those that they are of."""
    for tap in plan.taps:
        module = tap.module()
        if module is None:
            continue
        for port, names in state_names(module).items():
            chosen = tap.filters.get(port, _NOTHING)
            for name in names:
                is_buffer = BY_NAME[port].holder == "buffer"
                held = (module._buffers if is_buffer else module._parameters)[name]
                if held is None or not chosen.accepts(name) or obstacle(held) is not None:
                    continue
                if BY_NAME[port].needs_grad and getattr(module, "sparse", False) is True:
                    continue  # Its size is that of the rows that a batch asks for.
                if not BY_NAME[port].needs_grad or held.requires_grad:
                    yield Site(tap.path, port, name), readable(held)[0]


def _sparse_ports(plan: Plan, selection: WriteSelection, meta: Meta) -> Iterator[str]:
    """Ports of gradients that are sparse, as those of ``Embedding(sparse=True)``."""
    for tap in plan.taps:
        if getattr(tap.module(), "sparse", False) is True:
            for port in tap.ports:
                if BY_NAME[port].needs_grad and selection.wants_site(Site(tap.path, port), meta):
                    yield port


def size_of_statistics(series: Series | None, num_steps: int | None) -> tuple[int, int]:
    """Bytes of the statistics of a step, and those that do not grow with the steps.

    Args:
        series: what was measured so far.
        num_steps: how many there will be, if that is known: of the last ones histograms are kept.
    """
    per_step = fixed = 0
    parts = [] if series is None else [series, series.evaluation]
    for part in parts:
        if part is None or not part.steps:
            continue
        tensors, body, _ = pack(part)
        grown = sum(t.nbytes for name, t in tensors.items() if name.endswith((".rows", ".steps")))
        kept = sum(map(part.is_kept, part.steps))
        # Histograms and states: of each step that is kept, and of all steps together.
        held = sum(tensor.nbytes for tensor in tensors.values()) - grown
        will_be = part.keep if num_steps is None else min(part.keep, num_steps)
        sums = sum(m.mean_sum.nbytes for m in part.measured if m.mean_sum is not None)
        fixed += len(json.dumps(body)) + sums + (held - sums) * (will_be + 1) // (kept + 1)
        text = sum(len(site_text(site)) for site in part.sites)
        per_step += (_STREAM_ROW + _TABLE_ROW) * len(part.sites) + text + grown // len(part.steps)
    return per_step, fixed

"""Checks of a cell of the matrix."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from bits import bits
from plain_truth import Flowed, Place, PlainTruth, own
from probe import Made
from torch import Tensor

import torchtap as tt

FLOW = ("input", "output", "grad_output")
STATE = ("param", "buffer", "param_grad", "step_grad", "update")
HARMLESS = (
    "the module owns none that fits",
    "it does not require grad",
    "carries no gradient",
    "it has no forward: a container is never called",
    "it (took|returned) no tensor that fits",
    r"gradients of evaluation forwards \(phase 'eval'\) are not recorded",
)
"""Reasons of absences that any training may have."""


def differences(plain: Made, other: Made) -> list[str]:
    """Facts and hook tables that are not the same."""
    return [
        name
        for one, two in ((plain.facts, other.facts), (plain.tables, other.tables))
        for name in {**one, **two}
        if one.get(name) != two.get(name)
    ]


def far_apart(plain: Made, other: Made, tolerance: float) -> list[str]:
    """Parameters that are not about the same."""
    return [
        f"parameter {number}"
        for number, (one, two) in enumerate(zip(plain.numbers, other.numbers, strict=True))
        if not _is_near(two, one, tolerance)
    ]


# ---------------------------------------------------------------------- what was recorded


def wrong_records(watch: Any, truth: PlainTruth, tolerance: float, is_reentrant: bool) -> list[str]:
    """Values that were recorded otherwise than they were, or are neither recorded nor absent."""
    found = []
    absent = {(str(entry.site.path), entry.site.port, entry.site.leaf) for entry in watch.absent}
    recorded: dict[Place, list[Flowed]] = {}
    for record in watch.run.records(phase=None):
        site = record.site
        if record.phase == "eval" and truth.infers_shapes:
            continue
        if record.phase in ("forward", "eval") and site.port in (*FLOW, *STATE):
            place = Place(site.path, site.port, site.leaf, record.step, record.phase)
            recorded.setdefault(place, []).append(Flowed(record.call, record.value))
    for place, flowed in truth.values.items():
        right, got = _wanted(flowed, place, is_reentrant), recorded.pop(place, [])
        is_said = {(place.path, place.port, place.leaf), (place.path, place.port, "")} & absent
        if len(got) != len(right):
            if not (is_said or _is_eval_gradient(place)):
                found.append(f"{place}: {len(got)} of {len(right)} recorded, and nothing said")
            continue
        for one, true in zip(sorted(got, key=_call), right, strict=True):
            if not _is_same(one.value, true.value, tolerance):
                found.append(f"{place}, call {one.call}: {_shown(one.value, true.value)}")
    return found + [f"{place}: recorded, and never flowed" for place in recorded]


def wrong_statistics(
    watch: Any, truth: PlainTruth, tolerance: float, is_reentrant: bool
) -> list[str]:
    """Values that were measured otherwise than they were, or are neither measured nor absent."""
    found = []
    absent = {(str(entry.site.path), entry.site.port, entry.site.leaf) for entry in watch.absent}
    run = watch.run
    series = run.series
    for place, flowed in truth.values.items():
        if _is_eval_gradient(place):
            continue
        site = tt.Site(place.path, place.port, place.leaf)
        is_said = {(place.path, place.port, place.leaf), (place.path, place.port, "")} & absent
        try:
            stats = run.stats(site, step=place.step, phase=place.phase)
        except (tt.SiteError, tt.RunError):
            if not is_said:
                found.append(f"{place}: not measured, and nothing said")
            continue
        # An accumulation stands in its last value.
        is_last = is_reentrant or place.port == "param_grad"
        right = [one.value for one in _wanted(flowed, place, is_last)]
        found += [f"{place}: {what}" for what in _wrong_numbers(stats, right, tolerance)]
    known = {(place.path, place.port, place.leaf) for place in truth.values}
    for site in run.sites:
        if site.port in (*FLOW, *STATE) and (site.path, site.port, site.leaf) not in known:
            found.append(f"{site}: measured, and never flowed ({series.steps_of(site)})")
    return found


def _wrong_numbers(stats: Any, right: Sequence[Tensor], tolerance: float) -> list[str]:
    flat = torch.cat([_dense(one).double().reshape(-1) for one in right])
    if stats.num_tensors != len(right):
        return [f"{stats.num_tensors} tensors, of {len(right)}"]
    if stats.numel != flat.numel():
        return [f"{stats.numel} elements, of {flat.numel()}"]
    finite = flat[flat.isfinite()]
    if not finite.numel():
        return []
    expected = {
        "l2": finite.norm(),
        "mean": finite.mean(),
        "min": finite.min(),
        "max": finite.max(),
    }
    scale = float(finite.abs().max())
    within = max(tolerance, 1e-5) * max(scale, 1e-12) * max(1.0, finite.numel() ** 0.5)
    return [
        f"{name} {getattr(stats, name)}, of {float(value)}"
        for name, value in expected.items()
        if not abs(getattr(stats, name) - float(value)) <= within
    ]


def unlisted(watch: Any) -> list[str]:
    """Ports that were selected, and are neither recorded nor absent."""
    have = {(site.path, site.port) for site in watch.run.sites}
    have |= {(entry.site.path, entry.site.port) for entry in watch.absent}
    return [
        f"{tap.path}:{port}"
        for tap in watch.plan.taps
        for port in tap.ports
        if (tap.path, port) not in have
    ]


def unexpected(reasons: Iterable[str], allowed: Sequence[str]) -> list[str]:
    """Reasons that fit none of the patterns."""
    patterns = [re.compile(one) for one in (*HARMLESS, *allowed)]
    return [
        reason
        for reason in dict.fromkeys(reasons)
        if not any(one.search(reason) for one in patterns)
    ]


# ---------------------------------------------------------------------- small things


def _wanted(flowed: Sequence[Flowed], place: Place, is_reentrant: bool) -> list[Flowed]:
    if is_reentrant and place.port == "param_grad":
        return list(flowed[-1:])  # Several backwards run inside of one.
    return sorted(flowed, key=_call)


def _call(flowed: Flowed) -> int:
    return flowed.call


def _is_eval_gradient(place: Place) -> bool:
    return place.phase == "eval" and place.port == "grad_output"


def _dense(tensor: Tensor) -> Tensor:
    if tensor.is_nested:
        return torch.cat([part.reshape(-1) for part in tensor.unbind()])
    if tensor.layout is torch.sparse_coo:
        return tensor.coalesce().values()
    if hasattr(tensor, "dequantize") and (type(tensor) is not Tensor or tensor.is_quantized):
        return tensor.dequantize()
    return tensor


def _is_same(one: Tensor, true: Tensor, tolerance: float) -> bool:
    one = own(one)
    if tolerance:
        return _is_near(one, true, tolerance)
    if true.layout is torch.sparse_coo:
        return bits(one.coalesce()) == bits(true.coalesce())
    one, true = _dense(one), _dense(true)
    if one.shape != true.shape or one.dtype != true.dtype:
        return False
    return bits(one.contiguous())[-1] == bits(true.contiguous())[-1]


def _is_near(one: Tensor, true: Tensor, tolerance: float) -> bool:
    one, true = _dense(one).double(), _dense(true).double()
    if one.shape != true.shape:
        return False
    most = float(true.abs().max()) if true.numel() else 0.0
    return bool(torch.allclose(one, true, rtol=0, atol=tolerance * max(most, 1e-3), equal_nan=True))


def _shown(one: Tensor, true: Tensor) -> str:
    return f"{one.dtype}{list(one.shape)} for {true.dtype}{list(true.shape)}, or another value"


def told(made: Made, pattern: str) -> bool:
    """Return whether a column said what was expected of it."""
    texts = (*made.told, *made.reported)
    return any(re.search(pattern, text, re.DOTALL) for text in texts)

"""``tt.audit``: the rounding error of each module's own calls, and in narrower dtypes."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.capture.unobserved import unobserved
from torchtap.core.doors import require
from torchtap.core.errors import InputError
from torchtap.core.module_paths import is_container, modules_of
from torchtap.core.preserved import set_mode
from torchtap.core.trial import Trial
from torchtap.diagnosis.calls.audit_reasons import Verdict, verdict_on
from torchtap.diagnosis.calls.capture import Capture, Captured
from torchtap.diagnosis.calls.copies import Arguments, copied_module
from torchtap.diagnosis.calls.record_call import attributes_kept, refuse_sharded
from torchtap.diagnosis.calls.standalone.run_again import arguments_by_name, run_again, tensors_in
from torchtap.diagnosis.calls.wide_arithmetic import Wide, widened
from torchtap.hooks.uncompiled import uncompiled
from torchtap.runs.tables.cells import Cells
from torchtap.runs.tables.table import Table

Cast = Callable[[Tensor], Tensor]
_DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "half": torch.float16,
    "fp32": torch.float32,
    "fp8": torch.float8_e4m3fn,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}
"""Short names of dtypes, beside PyTorch's own."""
_REFUSALS = (RuntimeError, TypeError, ValueError, AttributeError, LookupError, AssertionError)
"""Exceptions of a module that does not take another dtype."""
_EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)
DType = str | torch.dtype


@dataclass(frozen=True, slots=True)
class _Measured:
    """The facts that one call showed.

    Attributes:
        error: relative to float64, in norm; NaN where there is no reference.
        others: name of a dtype -> the same, had it run in that.
        why: what the verdict says.
    """

    error: float
    others: dict[str, float]
    verdict: Verdict


def audit(
    model: nn.Module,
    *inputs: Any,
    dtypes: DType | Sequence[DType] = ("bfloat16", "float16"),
    **kwargs: Any,
) -> Table:
    """Measure the rounding error of each module by itself, and what other dtypes would do to it.

    The model runs once. Each call of each module is then computed again in float64 *from the very
    inputs that it was given*, so that its error is its own and not one that it inherits: the norm
    of the difference over the norm of the float64 result. A healthy module of float32 has an error
    of about 1e-7. Beside it stands the error of the same call in each of ``dtypes``, with weights
    and inputs rounded to it. For 8-bit dtypes (``fp8``, ``e4m3``, ``e5m2``) only the values of
    inputs and weights are rounded, with a scale per tensor; the arithmetic inside is float32.

    Of a module that was called several times, the row is of the call with the largest error. A
    module that contains others has their errors in its own.

    Args:
        model: any module, in the modes in which it is audited. It is left as it was.
        *inputs: what the model is called with.
        dtypes: names or dtypes, or one of them; one column each.
        **kwargs: what the model is called with.

    Returns:
        a table, largest error first, in its own dtype or in one of ``dtypes`` (modules around one
        with a large error after it), with the
        columns ``module``, ``type``, ``error``, one for each of ``dtypes``, and ``why``: ``none``,
        or ``cancellation`` (a difference of large numbers that left little), ``accumulation`` (a
        long sum), ``range`` (beyond the largest number of the dtype), ``inside`` (a module in it),
        with its figures; for modules without a float64 reference, the reason, and an error of NaN.

    Raises:
        InputError: one of ``dtypes`` is no floating dtype.
        CaptureError: the model is sharded over ranks.

    Example:
        >>> import torch, torchtap as tt
        >>> table = tt.audit(torch.nn.Linear(64, 8), torch.randn(4, 64))
        >>> [row.module for row in table], table.rows[0].error < 1e-6, table.rows[0].why
        (['.'], True, 'none')
    """
    require("tt.audit", model)
    refuse_sharded(model)
    if isinstance(dtypes, str | torch.dtype):
        dtypes = (dtypes,)
    casts = {_name_of(dtype): _dtype_of(dtype) for dtype in dtypes}
    modules, _ = modules_of(model)
    called = {
        path: module
        for path, module in modules.items()
        if not is_container(module) and not isinstance(module, torch.jit.ScriptModule)
    }
    capture = Capture(called, lambda path, call: True)
    trial = Trial(modules[""], inputs, kwargs, None)
    alone = unobserved(model)
    with uncompiled(), trial.restored(), attributes_kept(modules.values()), alone:
        trial.rewind()
        with capture:
            modules[""](*inputs, **kwargs)
    rows = _rows(called, capture, casts)
    columns = ("module", "type", "error", *casts, "why")
    ranked = sorted(rows, key=lambda row: _rank(row, casts))
    silent = [path for path in called if path not in capture.num_calls]
    notes = [f"never called: {', '.join(one or '.' for one in silent)}"] if silent else []
    if any(cast in _EIGHT_BITS for cast in casts.values()):
        notes.append("8-bit dtypes round the values of inputs and weights, not the arithmetic")
    return Table(tuple(ranked), columns, notes=tuple(notes))


def _rank(row: Cells, dtypes: Iterable[str]) -> tuple[int, float, int, float]:
    """Findings first, then the modules around them, then healthy ones; without reference last.

    Within each the largest error first, of any dtype; of equal ones the innermost.
    """
    error, why = row["error"], row["why"].partition(":")[0]
    if math.isnan(error):
        return 3, 0.0, 0, 0.0
    worst = max(one for one in (error, *(row[name] for name in dtypes)) if not math.isnan(one))
    is_found = worst == math.inf or why in ("cancellation", "accumulation", "unexplained")
    group = 1 if why == "inside" else 0 if is_found else 2
    depth = 0 if row["module"] == "." else 1 + row["module"].count(".")
    return group, -worst, -depth, -error


def _name_of(dtype: DType) -> str:
    return dtype if isinstance(dtype, str) else str(dtype).removeprefix("torch.")


def _dtype_of(dtype: DType) -> torch.dtype:
    torch_dtype = _DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if torch_dtype is None:
        torch_dtype = getattr(torch, str(dtype).removeprefix("torch."), None)
    if not isinstance(torch_dtype, torch.dtype) or not torch_dtype.is_floating_point:
        known = "bfloat16, float16, float8_e4m3fn (fp8) or float8_e5m2"
        raise InputError(f"dtypes has {dtype!r}; expected a floating dtype, such as {known}.")
    return torch_dtype


def _rows(
    modules: Mapping[str, nn.Module], capture: Capture, casts: Mapping[str, torch.dtype]
) -> list[Cells]:
    worst: dict[str, _Measured] = {}
    for (path, _), captured in capture.calls.items():
        if captured.has_returned:
            measured = _measured(modules[path], captured, casts)
            known = worst.get(path)
            if known is None or not measured.error <= known.error:  # Also where that one is NaN.
                worst[path] = measured if known is None or not math.isnan(measured.error) else known
    return [
        Cells(
            {
                "module": path or ".",
                "type": type(modules[path]).__name__,
                "error": measured.error,
                **measured.others,
                "why": _inside(path, worst) or str(measured.verdict),
            }
        )
        for path, measured in worst.items()
    ]


def _inside(path: str, worst: Mapping[str, _Measured]) -> str:
    """Return the module inside that has the error, if one has most of it."""
    own = worst[path]
    if not own.verdict.is_finding:
        return ""
    prefix = f"{path}." if path else ""
    below = {
        one: found.error
        for one, found in worst.items()
        if one != path and one.startswith(prefix) and found.verdict.is_finding
    }
    large = [one for one, error in below.items() if error >= own.error / 10]
    if not large:
        return ""
    first = max(large, key=lambda one: (below[one], one.count(".")))
    return f"inside: {first} ({below[first]:.2g})"


# ---------------------------------------------------------------------- one call


def _measured(module: nn.Module, captured: Captured, casts: Mapping[str, torch.dtype]) -> _Measured:
    given = tensors_in(captured.output)
    floats = {name: one for name, one in given.items() if _is_float(one)}
    nothing = dict.fromkeys(casts, math.nan)
    if not floats:
        why = "no reference: it returns no floating tensor"
        return _Measured(math.nan, nothing, Verdict("", why))
    dtype = next(iter(floats.values())).dtype
    wide = Wide(torch.float32 if dtype.is_complex else dtype)
    try:
        with wide:
            reference = _run(module, captured, widened, torch.float64)
    except _REFUSALS as error:
        first = str(error).partition("\n")[0][:80]
        return _Measured(math.nan, nothing, Verdict("", f"no reference: {first}"))
    own = _distance(floats, reference)
    others = {
        name: _in_other_dtype(module, captured, reference, one) for name, one in casts.items()
    }
    widths = {**{name: one for name, one in casts.items() if one not in _EIGHT_BITS}}
    verdict = verdict_on(
        own, dtype, wide.difficulty, {n: (others[n], d) for n, d in widths.items()}
    )
    return _Measured(own, others, verdict)


def _in_other_dtype(
    module: nn.Module, captured: Captured, reference: Mapping[str, Tensor], dtype: torch.dtype
) -> float:
    """The error that the call would have in another dtype; NaN where PyTorch cannot compute it."""
    is_small = dtype in _EIGHT_BITS

    def cast(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or tensor.is_nested:
            return tensor
        return _rounded(tensor, dtype) if is_small else tensor.to(dtype)

    try:
        found = _run(module, captured, cast, torch.float32 if is_small else dtype)
    except _REFUSALS:
        return math.nan
    return _distance(found, reference)


def _rounded(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Values rounded to 8 bits, with a scale by which the largest is the largest of the dtype."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return tensor
    scale = tensor.detach().abs().max().float() / torch.finfo(dtype).max
    if not bool(scale > 0) or not bool(scale.isfinite()):
        return tensor
    rounded: Tensor = (tensor.float() / scale).to(dtype).float() * scale
    return rounded.to(torch.float32)


def _run(
    module: nn.Module, captured: Captured, cast: Cast, default: torch.dtype
) -> dict[str, Tensor]:
    """Return the tensors that a copy of the module returns, with all its numbers cast."""
    twin = copied_module(module)
    inner = dict(twin.named_modules())
    for name, value in captured.buffers.items():
        path, _, own = name.rpartition(".")
        inner[path]._buffers[own] = value.clone()
    for path, mode in captured.modes.items():
        set_mode(inner[path], mode)
    twin.requires_grad_(False)._apply(cast)  # type: ignore[no-untyped-call]
    arguments = _cast_arguments(module, twin, captured.arguments, cast)
    off = {name: [False, dtype] for name, (_, dtype) in captured.around["autocast"].items()}
    settings = {**captured.around["settings"], "default_dtype": default}
    around = {
        **captured.around,
        "autocast": off,
        "grad": False,
        "inference": False,
        "settings": settings,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The model itself has given them.
        return tensors_in(run_again(twin, arguments, around, {}).output)


def _cast_arguments(
    module: nn.Module, twin: nn.Module, arguments: Arguments, cast: Cast
) -> Arguments:
    memo: dict[int, Any] = {}
    for table in ("named_parameters", "named_buffers", "named_modules"):
        own = dict(getattr(twin, table)())
        memo.update((id(one), own[name]) for name, one in getattr(module, table)())
    for tensor in tensors_in(arguments_by_name(*arguments)).values():
        memo.setdefault(id(tensor), cast(tensor.detach()))
    return copy.deepcopy(arguments, memo)


def _is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _distance(found: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> float:
    """Norm of the difference over the norm of the reference, all outputs together."""
    apart = whole = 0.0
    for name, true in reference.items():
        value = found.get(name)
        if not _is_float(true) or value is None:
            continue
        one, two = _dense(value), _dense(true)
        if one.shape != two.shape:
            return math.nan
        both = two.isfinite()  # Infinities that float64 has too are no error.
        apart += float((one - two)[both].abs().square().sum())
        whole += float(two[both].abs().square().sum())
    if math.isnan(apart):
        return math.inf  # What is finite in float64 became NaN.
    if whole == 0:
        return 0.0 if apart == 0 else math.inf
    return math.sqrt(apart / whole)


def _dense(tensor: Tensor) -> Tensor:
    own = tensor.detach()
    if own.is_nested:
        return torch.cat([part.reshape(-1) for part in own.unbind()]).double()
    if own.layout is not torch.strided:
        own = own.to_dense()
    return own.to(torch.complex128) if own.is_complex() else own.double()

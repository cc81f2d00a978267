"""Report the tensors that autograd keeps for backward, module by module."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.capture.saved_port import BUFFER, CAST, DUPLICATE, PARAMETER
from torchtap.capture.watch import watch
from torchtap.core.absence import Absence
from torchtap.core.doors import require
from torchtap.core.errors import InputError
from torchtap.core.module_paths import modules_of
from torchtap.core.outline import outline
from torchtap.core.preserved import preserved
from torchtap.core.printed import Printed
from torchtap.core.printed_page import BLANK, Grid, Line, Page
from torchtap.core.shape_arguments import noticing_shapes
from torchtap.core.storages import covered
from torchtap.core.text import NONE, count, plural, size
from torchtap.core.torch_messages import NO_SAVED_HOOKS, says
from torchtap.core.torch_private import may_push_saved_hooks
from torchtap.core.tree import argument_leaves
from torchtap.saved.saved_meter import EagerModules, ModelWithLoss, SavedMeter, path_in_model
from torchtap.saved.totals import ModuleTotal, SavedTotals


@dataclass(frozen=True, slots=True)
class SavedRow:
    """The tensors that one module keeps by itself, without the modules in it.

    Attributes:
        path: of the module; ``""`` for the root.
        type: class name.
        count: saved tensors, of any kind.
        nbytes: bytes of memory that is held only because of them, each memory once.
        num_params: how many are parameters (or views of them), which cost nothing more.
        num_buffers: how many are buffers (or views of them), which cost nothing more either.
        num_casts: how many are parameters in another dtype, as autocast makes them.
        num_duplicates: how many share memory that was counted before.
        largest: operation and slot that hold most, ``AddmmBackward0.mat1``; empty if no operation
            that leads to the output keeps it.
        dtypes: of what costs memory.
    """

    path: str
    type: str
    count: int
    nbytes: int
    num_params: int
    num_buffers: int
    num_casts: int
    num_duplicates: int
    largest: str
    dtypes: tuple[str, ...]


@dataclass(frozen=True, slots=True, repr=False)
class SavedReport(Printed):
    """The result of :func:`saved_report`. Printing it shows it.

    Attributes:
        model: class name.
        rows: modules that keep anything, in the order of ``named_modules()``, or as ``sorted()``
            put them.
        nbytes: held in all when the forward ends, which is the peak of what is saved: backward
            only lets go of it.
        count: saved tensors in all.
        param_nbytes: bytes of parameters among them, which exist anyway; each byte once.
        buffer_nbytes: bytes of buffers among them, which exist anyway.
        input_nbytes: how much of ``nbytes`` is the memory of what the model was called with, which
            the caller may hold as well.
        absent: what is not kept or could not be seen, with reasons.
        notes: what else there is to know of these numbers.
        depth: as it was asked for.

    Example:
        >>> import torch, torchtap as tt
        >>> report = tt.saved_report(torch.nn.Linear(4, 2), torch.ones(3, 4))
        >>> report.nbytes, report.rows[0].largest
        (48, 'AddmmBackward0.mat1')
    """

    model: str
    rows: tuple[SavedRow, ...]
    nbytes: int
    count: int
    param_nbytes: int
    buffer_nbytes: int = 0
    input_nbytes: int = 0
    absent: tuple[Absence, ...] = ()
    notes: tuple[str, ...] = ()
    depth: int | None = None

    @property
    def peak(self) -> int:
        """Return the most bytes that saved tensors hold, at the end of the forward."""
        return self.nbytes

    def sorted(self) -> SavedReport:
        """Sort the rows: the modules that hold most come first."""
        return replace(self, rows=tuple(sorted(self.rows, key=lambda row: -row.nbytes)))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)

    def _page(self) -> Page:
        return show_saved(self)


def saved_report(
    model: nn.Module,
    *args: Any,
    loss: Callable[[Any], Any] | None = None,
    depth: int | None = None,
    **kwargs: Any,
) -> SavedReport:
    """Run one forward and say what autograd keeps for backward, and which module keeps it.

    The forward runs in the mode the model is in; buffers and random state are put back: of PyTorch
    on all devices, Python, NumPy, and generators that modules hold as attributes.

    Args:
        model: any module.
        *args: what it is called with.
        loss: a function of the output; what it saves counts under the root.
        depth: show modules down to this depth (0 is the root alone), each with what is below it;
            ``None`` for all, each by itself.
        **kwargs: what it is called with.

    Returns:
        a table. Bytes count memory that exists only because it is saved, each memory once;
        parameters and buffers, which exist anyway, are counted apart. All that is still kept
        when the forward has ended counts, also what does not lead to the output (a loss on an
        attribute), and the inputs of activation checkpoints. Tensors that those compute again are
        not kept, and are listed in ``absent``. All that a compiled module keeps counts under it.

    Raises:
        InputError: ``depth`` is negative.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
        >>> [(row.path, row.nbytes) for row in tt.saved_report(model, torch.ones(3, 4)).rows]
        [('0', 48), ('1', 96)]
    """
    require("tt.saved_report", model)
    if depth is not None and depth < 0:
        raise InputError(f"depth is {depth}; expected a number from 0, or None for all.")
    call = _Call(model, loss, depth, args, kwargs)
    with ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(noticing_shapes("tt.saved_report", model, args, kwargs))
        try:
            return _look(call, hooks=may_push_saved_hooks())
        except RuntimeError as error:
            if not says(error, NO_SAVED_HOOKS):
                raise
        return _look(call, hooks=False)


@dataclass(frozen=True, slots=True)
class _Call:
    """The call to run: the model, its arguments and the loss."""

    model: nn.Module
    loss: Callable[[Any], Any] | None
    depth: int | None
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def tensors(self) -> list[Tensor]:
        """Return the tensors that the model is called with."""
        return [tensor for _, tensor in argument_leaves(self.args, dict(self.kwargs))]


def _look(call: _Call, *, hooks: bool) -> SavedReport:
    """Run it once.

    Args:
        call: what.
        hooks: a pair of hooks counts what is saved, wherever it is kept. If not, it is what the
            nodes keep that lead to the output.
    """
    modules, _ = modules_of(call.model)
    eager = EagerModules.of(call.model, modules)
    whole = ModelWithLoss(call.model, call.loss)
    with preserved(modules, call.args, call.kwargs):
        meter = SavedMeter(modules, hooks=hooks)
        with (
            meter.counting(call.model, eager.followed),
            watch(whole, eager.patterns(), to=meter.take, copy="never") as seen,
        ):
            kept = whole(*call.args, **call.kwargs)  # The graph must live until all is counted.
            absent = tuple(_absences(seen.absent))
        totals = SavedTotals(meter.saved(), call.tensors, call.depth)
        notes = (*eager.notes(), *_notes(totals, call, kept, absent, hooks=hooks))
        del kept
    return replace(_report(totals, modules, absent, notes), depth=call.depth)


def _report(
    totals: SavedTotals,
    modules: Mapping[str, nn.Module],
    absent: tuple[Absence, ...],
    notes: tuple[str, ...],
) -> SavedReport:
    rows = tuple(
        _row(path, type(module).__name__, totals.modules[path])
        for path, module in modules.items()
        if path in totals.modules
    )
    return SavedReport(
        model=type(modules[""]).__name__,
        rows=rows,
        nbytes=sum(row.nbytes for row in rows),
        count=sum(row.count for row in rows),
        param_nbytes=covered(totals.spans[PARAMETER]),
        buffer_nbytes=covered(totals.spans[BUFFER]),
        input_nbytes=totals.input_nbytes,
        absent=absent,
        notes=notes,
    )


def _row(path: str, type_name: str, total: ModuleTotal) -> SavedRow:
    return SavedRow(
        path=path,
        type=type_name,
        count=total.count,
        nbytes=sum(total.nbytes.values()),
        num_params=total.labels[PARAMETER],
        num_buffers=total.labels[BUFFER],
        num_casts=total.labels[CAST],
        num_duplicates=total.labels[DUPLICATE],
        largest=total.largest,
        dtypes=tuple(total.dtypes),
    )


def _absences(found: Iterable[Absence]) -> Iterator[Absence]:
    """Yield the absences of single tensors; a module that keeps nothing is nothing to tell."""
    for entry in found:
        if entry.site.leaf:
            site = replace(entry.site, path=path_in_model(entry.site.path))
            yield entry._replace(site=site)


def _notes(
    totals: SavedTotals, call: _Call, kept: Any, absent: Sequence[Absence], *, hooks: bool
) -> Iterator[str]:
    if not hooks:
        yield (
            "saved-tensor hooks are forbidden here (torch.func does so, and "
            "disable_saved_tensors_hooks), so only what leads to the output was counted"
        )
    if inspect.isgenerator(kept):
        yield "the model returned a generator, which has not run: use it up in loss="
    elif not totals.modules and not absent:
        yield _why_nothing(call)
    if totals.num_unreached:
        yield (
            f"{totals.num_unreached:,} of the tensors ({totals.unreached_nbytes:,} bytes of their "
            f"own) do not lead to the output: something else holds them, such as an attribute, or "
            f"an object that is no container"
        )


def _why_nothing(call: _Call) -> str:
    if any(param.is_inference() for param in call.model.parameters()):
        return (
            "nothing is kept: the model was made in torch.inference_mode, so no gradient can reach "
            "its parameters; make it outside"
        )
    inputs = any(tensor.requires_grad for tensor in call.tensors)
    if not inputs and not any(param.requires_grad for param in call.model.parameters()):
        return (
            "nothing is kept: no parameter is trainable and no argument requires a gradient, so "
            "there is nothing to run a backward for"
        )
    return "nothing is kept: no operation that ran needs anything for its backward"


_HEADERS = ("module", "type", "saved", "bytes", "params", "buffers", "shared", "dtype", "largest")
_BUFFERS = _HEADERS.index("buffers")


def show_saved(report: SavedReport) -> Page:
    """Return modules with what they keep; totals below."""
    head = f"Saved for backward by {report.model}"
    if not report.rows:
        return Page(Line(f"{head}: nothing"), *_further(report))
    held = f"{size(report.nbytes)} in {plural(report.count, 'tensor')}"
    totals = [
        ("Held until backward", f"{held}, the peak of what is saved; each memory once"),
        ("Parameters among it", f"{size(report.param_nbytes)}, held by the model"),
    ]
    if report.buffer_nbytes:
        totals.append(("Buffers among it", f"{size(report.buffer_nbytes)}, held by the model"))
    if report.input_nbytes:
        said = f"{size(report.input_nbytes)} of what is held; the caller may hold them too"
        totals.append(("Inputs of the call", said))
    return Page(_table(head, report), BLANK, Grid(totals), *_further(report))


def _table(title: str, report: SavedReport) -> Grid:
    headers, align, elastic = list(_HEADERS), "lerrrrrll", {0: 16, 1: 9, 8: 12, 7: 8}
    labels = outline([row.path for row in report.rows])
    cells = [_cells(label, row) for label, row in zip(labels, report.rows, strict=True)]
    if not any(row.num_buffers for row in report.rows):
        cells = [[*line[:_BUFFERS], *line[_BUFFERS + 1 :]] for line in cells]
        del headers[_BUFFERS]
        align, elastic = "lerrrrll", {0: 16, 1: 9, 7: 12, 6: 8}
    return Grid(cells, headers, align, title=title, elastic=elastic, noun="module")


def _cells(label: str, row: SavedRow) -> list[str]:
    params = row.num_params + row.num_casts
    return [
        label,
        row.type,
        count(row.count),
        size(row.nbytes) if row.nbytes else NONE,
        count(params) if params else NONE,
        count(row.num_buffers) if row.num_buffers else NONE,
        count(row.num_duplicates) if row.num_duplicates else NONE,
        ", ".join(row.dtypes) or NONE,
        row.largest or NONE,
    ]


def _further(report: SavedReport) -> list[Line]:
    """Return lines for all that is not in the table: parts not seen, the depth, and notes."""
    reasons = Counter(entry.reason for entry in report.absent)
    lines = [Line(f"{count(num)} not seen: {reason}", rest="") for reason, num in reasons.items()]
    if report.depth is not None:
        lines.append(Line(f"Shown to depth {report.depth}, with what is below."))
    return lines + [Line(f"Note: {note}.", rest="  ") for note in report.notes]

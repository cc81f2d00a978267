"""What autograd keeps for backward, module by module."""

from __future__ import annotations

import inspect
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from torchtap.capture.saved_port import BUFFER, CAST, DUPLICATE, PARAMETER, Counted
from torchtap.capture.watch import watch
from torchtap.core.absence import Absence
from torchtap.core.errors import InputError
from torchtap.core.modules import modules_of
from torchtap.core.outline import outline
from torchtap.core.page import BLANK, Grid, Line, Page, Printed
from torchtap.core.plan import make_plan
from torchtap.core.preserved import preserved
from torchtap.core.record import Record
from torchtap.core.site import Pattern
from torchtap.core.text import NONE, count, plural, size
from torchtap.core.tree import argument_leaves
from torchtap.hooks.graph import num_casts
from torchtap.hooks.saved_pairs import checked, guarded
from torchtap.hooks.scope import ModuleScope, may_push
from torchtap.saved.blocks import Buffers, blocks_of, covered, is_for_checkpoint, spans_of


@dataclass(frozen=True, slots=True)
class SavedRow:
    """What one module keeps by itself, without the modules in it.

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
    """What :func:`saved_report` found. Printing it shows it.

    Attributes:
        model: class name.
        rows: modules that keep anything, in the order of ``named_modules()``, or as ``sorted()``
            put them.
        nbytes: held in all when the forward ends, which is the peak of what is saved: backward
            only lets go of it.
        count: saved tensors in all.
        param_nbytes: bytes of parameters among them, which are there anyway; each byte once.
        buffer_nbytes: bytes of buffers among them, which are there anyway.
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
        """The most bytes that saved tensors hold, at the end of the forward."""
        return self.nbytes

    def sorted(self) -> SavedReport:
        """The same rows, those that hold most first."""
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
        parameters and buffers, which are there anyway, are counted apart. All that is still kept
        when the forward has ended counts, also what does not lead to the output (a loss on an
        attribute), and the inputs of activation checkpoints. What those compute again is not kept,
        and is listed in ``absent``. What a compiled module keeps counts under that module.

    Raises:
        InputError: ``depth`` is negative.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
        >>> [(row.path, row.nbytes) for row in tt.saved_report(model, torch.ones(3, 4)).rows]
        [('0', 48), ('1', 96)]
    """
    if depth is not None and depth < 0:
        raise InputError(f"depth is {depth}; expected a number from 0, or None for all.")
    call = _Call(model, loss, depth, args, kwargs)
    with ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        try:
            return _look(call, hooks=may_push())
        except RuntimeError as error:
            if _FORBIDDEN not in str(error):
                raise
        return _look(call, hooks=False)


@dataclass(frozen=True, slots=True)
class _Call:
    """What is to be run."""

    model: nn.Module
    loss: Callable[[Any], Any] | None
    depth: int | None
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def tensors(self) -> list[Tensor]:
        """What the model is called with."""
        return [tensor for _, tensor in argument_leaves(self.args, dict(self.kwargs))]


_FORBIDDEN = "don't yet support saved tensor hooks"
"""What ``torch.func`` says, in torch/_functorch/eager_transforms.py."""


def _look(call: _Call, *, hooks: bool) -> SavedReport:
    """Run it once.

    Args:
        call: what.
        hooks: a pair of hooks counts what is saved, wherever it is kept. If not, it is what the
            nodes keep that lead to the output.
    """
    modules, _ = modules_of(call.model)
    runs = _Runs.of(call.model, modules)
    whole = _Whole(call.model, call.loss)
    with preserved(modules, call.args, call.kwargs):
        meter = _Meter(modules, hooks=hooks)
        with (
            meter.counting(call.model, runs.followed),
            watch(whole, runs.patterns(), to=meter.take, copy="never") as seen,
        ):
            kept = whole(*call.args, **call.kwargs)  # The graph must live until all is counted.
            absent = tuple(_absences(seen.absent))
        ledger = _Ledger(meter.saved(), call.tensors, call.depth)
        notes = (*runs.notes(), *_notes(ledger, call, kept, absent, hooks=hooks))
        del kept
    return replace(_report(ledger, modules, absent, notes), depth=call.depth)


def _report(
    ledger: _Ledger,
    modules: Mapping[str, nn.Module],
    absent: tuple[Absence, ...],
    notes: tuple[str, ...],
) -> SavedReport:
    rows = tuple(
        ledger.row(path, type(module).__name__)
        for path, module in modules.items()
        if ledger.counts[path]
    )
    return SavedReport(
        model=type(modules[""]).__name__,
        rows=rows,
        nbytes=sum(row.nbytes for row in rows),
        count=sum(row.count for row in rows),
        param_nbytes=covered(ledger.spans[PARAMETER]),
        buffer_nbytes=covered(ledger.spans[BUFFER]),
        input_nbytes=ledger.input_nbytes,
        absent=absent,
        notes=notes,
    )


def _absences(found: Iterable[Absence]) -> Iterator[Absence]:
    """Those of single tensors; a module that keeps nothing is nothing to tell."""
    for entry in found:
        if entry.site.leaf:
            site = replace(entry.site, path=_own_path(entry.site.path))
            yield entry._replace(site=site)


def _notes(
    ledger: _Ledger, call: _Call, kept: Any, absent: Sequence[Absence], *, hooks: bool
) -> Iterator[str]:
    if not hooks:
        yield (
            "saved-tensor hooks are forbidden here (torch.func does so, and "
            "disable_saved_tensors_hooks), so only what leads to the output was counted"
        )
    if inspect.isgenerator(kept):
        yield "the model returned a generator, which has not run: use it up in loss="
    elif not sum(ledger.counts.values()) and not absent:
        yield _why_nothing(call)
    if ledger.num_unreached:
        yield (
            f"{ledger.num_unreached:,} of the tensors ({ledger.unreached_nbytes:,} bytes of their "
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


# ---------------------------------------------------------------------- what runs


class _Whole(nn.Module):
    """A model and its loss as one module, around which nothing is compiled."""

    def __init__(self, model: nn.Module, loss: Callable[[Any], Any] | None) -> None:
        super().__init__()
        self.model = model
        self._loss = (loss,)  # In a tuple, since a loss that is a module would become a part.

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output, loss = self.model(*args, **kwargs), self._loss[0]
        return output if loss is None else loss(output)


def _own_path(path: str) -> str:
    """The path in the model, of one in :class:`_Whole`."""
    return path.removeprefix("model").lstrip(".")


@dataclass(frozen=True, slots=True)
class _Runs:
    """Which modules run one by one. Those inside a compiled one do not, and are left alone.

    Attributes:
        followed: path -> what is called there; of a compiled module its wrapper.
        eager: paths of modules that run as they are.
        compiled: paths of compiled modules.
    """

    followed: Mapping[str, nn.Module]
    eager: Sequence[str]
    compiled: Sequence[str]

    @staticmethod
    def of(model: nn.Module, modules: Mapping[str, nn.Module]) -> _Runs:
        inside: set[int] = set()
        wrappers: dict[int, nn.Module] = {}
        heads: set[int] = set()
        for module in model.modules():
            inner = module
            if type(module).__name__ == "OptimizedModule":
                inner = module._orig_mod  # type: ignore[assignment]
                wrappers[id(inner)] = module
            elif getattr(module, "_compiled_call_impl", None) is None:
                continue
            heads.add(id(inner))
            inside.update(id(one) for one in inner.modules())
        called = {path: wrappers.get(id(one), one) for path, one in modules.items()}
        return _Runs(
            {path: one for path, one in called.items() if id(one) not in inside},
            [path for path, one in modules.items() if id(one) not in inside],
            [path for path, one in modules.items() if id(one) in heads],
        )

    def patterns(self) -> list[str | Pattern]:
        """What a watch of :class:`_Whole` is asked for."""
        if not self.compiled:
            return ["*:saved"]
        paths = [f"model.{path}" if path else "model" for path in self.eager]
        return [".:saved", *(Pattern(path, ("saved",)) for path in paths)]

    def notes(self) -> Iterator[str]:
        if self.compiled:
            names = ", ".join(path or "." for path in self.compiled[:3])
            more = f" and {len(self.compiled) - 3} more" if len(self.compiled) > 3 else ""
            yield (
                f"{names}{more} is compiled: what it keeps counts there, since the modules in it "
                f"do not run one by one"
            )


# ---------------------------------------------------------------------- what is counted


class _Meter:
    """Hears of every tensor that is saved, and knows at the end which of them are still kept.

    The graph owns what was packed, so what was let go of meanwhile is not counted.
    """

    def __init__(self, modules: Mapping[str, nn.Module], *, hooks: bool) -> None:
        self._hooks = hooks
        self._attachment = ModuleScope()
        self._attachment.pair = (self._pack, lambda one: checked(one.guard))
        self._saved: list[weakref.ref[Counted]] = []
        self._of_nodes: list[Counted] = []
        self._buffers = Buffers(modules.items())
        params = (param for module in modules.values() for param in module.parameters(False))
        made = (param for param in params if not is_lazy(param))
        self._params = {number for param in made for number, _ in blocks_of(param)} - {0}

    @contextmanager
    def counting(self, model: nn.Module, followed: Mapping[str, nn.Module]) -> Iterator[None]:
        """Hear of what is saved, and follow which module runs."""
        if not self._hooks:
            yield
            return
        plan = make_plan(model, "*")
        taps = tuple(tap for tap in plan.taps if tap.path in followed)
        self._attachment.attach(replace(plan, taps=taps), followed, around=False)
        self._attachment.begin()
        try:
            yield
        finally:
            self._attachment.end()
            self._attachment.detach()

    def take(self, record: Record) -> None:
        """The watch found a node that keeps a tensor."""
        if not self._hooks:
            path = _own_path(record.site.path)
            labels = tuple(label for label in record.labels if label != DUPLICATE)
            one = Counted(guarded(record.kept), path, labels)
            one.leaf = record.site.leaf.partition("~")[0]
            self._of_nodes.append(one)

    def saved(self) -> list[Counted]:
        """What is kept now, in the order of saving."""
        alive = [reference() for reference in self._saved]
        return [*self._of_nodes, *(one for one in alive if one is not None)]

    def _pack(self, tensor: Tensor) -> Counted:
        one = Counted(guarded(tensor), self._attachment.path(), self._labels(tensor))
        if is_for_checkpoint():
            one.leaf = "checkpoint.input"  # A closure of Python holds it, which no node shows.
        self._saved.append(weakref.ref(one))
        return one

    def _labels(self, tensor: Tensor) -> tuple[str, ...]:
        base = tensor._base if tensor._is_view() else tensor
        numbers = [number for number, _ in blocks_of(tensor)]
        if isinstance(base, nn.Parameter) or not self._params.isdisjoint(numbers):
            return (PARAMETER,)
        if num_casts(tensor):
            return (CAST,)
        return (BUFFER,) if any(number in self._buffers for number in numbers) else ()


class _Ledger:
    """Adds up what is saved, each memory once.

    Attributes:
        counts: path -> number of saved tensors.
        spans: label -> the memory that is there anyway.
        input_nbytes: bytes of what the model was called with.
        num_unreached: tensors that no node which leads to the output keeps.
        unreached_nbytes: their bytes, without what others keep as well.
    """

    def __init__(
        self, saved: Iterable[Counted], inputs: Iterable[Tensor], depth: int | None
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.spans: dict[str, list[tuple[int, int, int]]] = {PARAMETER: [], BUFFER: []}
        self.input_nbytes = self.num_unreached = self.unreached_nbytes = 0
        self._inputs = {number for tensor in inputs for number, _ in blocks_of(tensor)}
        self._depth = depth
        self._known: set[int] = set()
        self._labels: Counter[tuple[str, str]] = Counter()
        self._nbytes: dict[str, Counter[str]] = {}
        self._dtypes: dict[str, dict[str, None]] = {}
        for one in saved:
            self._add(one)

    def _add(self, one: Counted) -> None:
        path = one.path if self._depth is None else ".".join(one.path.split(".")[: self._depth])
        self.counts[path] += 1
        for label in one.labels:
            self._labels[path, label] += 1
        own = [label for label in one.labels if label in self.spans]
        if own:
            self.spans[own[0]].extend(spans_of(one.alias))
        nbytes = 0 if own else self._hold(path, one.leaf, one.alias)
        if not one.leaf:
            self.num_unreached += 1
            self.unreached_nbytes += nbytes

    def _hold(self, path: str, leaf: str, tensor: Tensor) -> int:
        """Count memory that is there because of it, and of no other before."""
        fresh = [block for block in blocks_of(tensor) if block[0] not in self._known]
        if not fresh:
            self._labels[path, DUPLICATE] += 1
            return 0
        self._known.update(number for number, _ in fresh if number)
        nbytes = sum(size for _, size in fresh)
        self.input_nbytes += sum(size for number, size in fresh if number in self._inputs)
        self._nbytes.setdefault(path, Counter())[leaf] += nbytes
        self._dtypes.setdefault(path, {})[str(tensor.dtype).removeprefix("torch.")] = None
        return nbytes

    def row(self, path: str, type_name: str) -> SavedRow:
        """One module."""
        held = self._nbytes.get(path, Counter())
        return SavedRow(
            path=path,
            type=type_name,
            count=self.counts[path],
            nbytes=sum(held.values()),
            num_params=self._labels[path, PARAMETER],
            num_buffers=self._labels[path, BUFFER],
            num_casts=self._labels[path, CAST],
            num_duplicates=self._labels[path, DUPLICATE],
            largest=max(held, key=lambda leaf: held[leaf], default=""),
            dtypes=tuple(self._dtypes.get(path, ())),
        )


_HEADERS = ("module", "type", "saved", "bytes", "params", "buffers", "shared", "dtype", "largest")
_BUFFERS = _HEADERS.index("buffers")


def show_saved(report: SavedReport) -> Page:
    """Modules with what they keep; totals below."""
    head = f"Saved for backward by {report.model}"
    if not report.rows:
        return Page(Line(f"{head}: nothing"), *_further(report))
    held = f"{size(report.nbytes)} in {plural(report.count, 'tensor')}"
    totals = [
        ("Held until backward", f"{held}, the peak of what is saved; each memory once"),
        ("Parameters among it", f"{size(report.param_nbytes)}, which are there anyway"),
    ]
    if report.buffer_nbytes:
        totals.append(("Buffers among it", f"{size(report.buffer_nbytes)}, which are there anyway"))
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
    """What is not in the table, and what else there is to know."""
    reasons = Counter(entry.reason for entry in report.absent)
    lines = [Line(f"{count(num)} not seen: {reason}", rest="") for reason, num in reasons.items()]
    if report.depth is not None:
        lines.append(Line(f"Shown to depth {report.depth}, with what is below."))
    return lines + [Line(f"Note: {note}.", rest="  ") for note in report.notes]

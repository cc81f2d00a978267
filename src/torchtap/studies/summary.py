"""Summarise a model: shapes, parameters, mult-adds and activations, from one forward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from torchtap.capture.watch import watch
from torchtap.core.doors import require
from torchtap.core.errors import InputError
from torchtap.core.module_paths import modules_of
from torchtap.core.outline import tree
from torchtap.core.preserved import preserved
from torchtap.core.printed import Printed
from torchtap.core.printed_page import BLANK, Grid, Line, Page, Part
from torchtap.core.record import Record, nbytes_of
from torchtap.core.shape_arguments import noticing_shapes
from torchtap.core.text import NONE, Cell, count, plural, shape, short_count, size
from torchtap.core.tree import argument_leaves

PARAMETER = "Parameter"
"""The ``type`` of a row that lists a parameter which stands beside modules with parameters."""

_MOVES = """
    _to_copy _unsafe_view arange cat clone constant_pad_nd copy copy_ detach empty empty_like
    empty_strided fill_ full full_like lift_fresh new_empty new_zeros ones ones_like stack zeros
    zeros_like
"""
"""Operations that compute nothing."""


@dataclass(frozen=True, slots=True)
class Row:
    """One module, with everything below it; or a parameter that stands beside child modules.

    Attributes:
        path: as in ``named_modules()``; ``""`` for the root.
        type: class name, or ``"Parameter"``.
        calls: how often it ran.
        inputs: shapes of the tensors of its first call.
        outputs: shapes of the tensors that this call returned; for a parameter its shape.
        dtype: of the first output, without ``torch.``.
        num_params: elements of all parameters in it and below, each counted once.
        num_shared: how many of these stand in an earlier row too.
        mult_adds: in it and below, over all calls.
        activation_bytes: of the tensors that it and the modules below returned; memory that was
            returned before (views, in-place results) is not counted again.
        aliases: further paths of a shared module.
    """

    path: str
    type: str
    calls: int
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    dtype: str
    num_params: int
    num_shared: int
    mult_adds: int
    activation_bytes: int
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Summary(Printed):
    """The result of :func:`summary`. Printing it shows it.

    Attributes:
        model: class name.
        rows: modules down to ``depth``, in the order of ``named_modules()``.
        depth: as it was asked for.
        num_params: elements of all parameters, shared ones once; independent of ``depth``, as
            all totals are.
        num_trainable: of these, those that require grad.
        param_bytes: bytes of the parameters.
        num_buffers: elements of all buffers.
        buffer_bytes: bytes of the buffers.
        mult_adds: multiplications with addition of the forward, from PyTorch's FLOP counter.
        activation_bytes: of all tensors that modules returned, each memory once.
        uncounted: operations that ran and for which the counter has no formula -> how often.
    """

    model: str
    rows: tuple[Row, ...]
    depth: int | None
    num_params: int
    num_trainable: int
    param_bytes: int
    num_buffers: int
    buffer_bytes: int
    mult_adds: int
    activation_bytes: int
    uncounted: Mapping[str, int]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)

    def _page(self) -> Page:
        return show_summary(self)


def summary(model: nn.Module, *args: Any, depth: int | None = None, **kwargs: Any) -> Summary:
    """Run the model once and say what it is made of.

    The forward runs under ``no_grad`` in the mode the model is in. Mode, parameters, buffers
    (also BatchNorm's statistics) and hooks are afterwards as before, and so is the random state of
    PyTorch on all devices, of Python, of NumPy and of generators that modules hold as attributes.

    Args:
        model: any module.
        *args: what the model is called with.
        depth: show modules down to this depth (0 is the root alone); ``None`` for all. Totals do
            not depend on it.
        **kwargs: what the model is called with.

    Raises:
        InputError: ``depth`` is negative, the model has lazy parameters without a shape yet, or
            it was given a shape in the place of a tensor.

    Example:
        >>> import torch, torchtap as tt
        >>> found = tt.summary(torch.nn.Linear(4, 2), torch.ones(3, 4))
        >>> found.num_params, found.mult_adds, found.activation_bytes
        (10, 24, 24)
    """
    require("tt.summary", model)
    if depth is not None and depth < 0:
        raise InputError(f"depth is {depth}; expected a number from 0, or None for all.")
    modules, aliases = modules_of(model)
    _refuse_lazy(modules)
    flow = _Flow(modules[""])
    # The fused encoder kernel hides the modules in it, and the FLOP counter does not know it.
    fastpath = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.enter_context(preserved(modules, args, kwargs))
        stack.callback(torch.backends.mha.set_fastpath_enabled, fastpath)
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(torch.no_grad())
        stack.callback(_without_gradients(args, kwargs))
        stack.enter_context(watch(modules[""], "*:input,output", to=flow.take, copy="never"))
        ops = stack.enter_context(_Operations())
        counter = stack.enter_context(FlopCounterMode(display=False, custom_mapping=_formulas()))
        stack.enter_context(noticing_shapes("tt.summary", modules[""], args, kwargs))
        modules[""](*args, **kwargs)
    macs = _mult_adds(modules, aliases, counter)
    rows = tuple(_rows(modules, aliases, flow, macs))
    return Summary(
        model=type(modules[""]).__name__,
        rows=rows if depth is None else tuple(row for row in rows if _depth(row) <= depth),
        depth=depth,
        **_totals(modules[""]),
        mult_adds=counter.get_total_flops() // 2,
        activation_bytes=sum(flow.nbytes.values()),
        uncounted=ops.uncounted(counter),
    )


# ---------------------------------------------------------------------- the one forward


class _Flow:
    """Keeps shapes and sizes of what flows, and no values."""

    def __init__(self, model: nn.Module) -> None:
        self.calls: dict[str, int] = {}
        self.inputs: dict[str, list[tuple[int, ...]]] = {}
        self.outputs: dict[str, list[tuple[int, ...]]] = {}
        self.dtypes: dict[str, str] = {}
        self.nbytes: dict[str, int] = {}
        # A weak reference keeps a storage's identity from being used again, without its memory.
        self._seen: dict[int, StorageWeakRef] = {}
        for tensor in (*model.parameters(), *model.buffers()):
            self._is_new(tensor)

    def take(self, record: Record) -> None:
        site, value = record.site, record.kept
        self.calls[site.path] = max(self.calls.get(site.path, 0), record.call + 1)
        fresh = self._is_new(value)
        if site.port == "output":
            self.dtypes.setdefault(site.path, str(value.dtype).removeprefix("torch."))
            if fresh:
                self.nbytes[site.path] = self.nbytes.get(site.path, 0) + nbytes_of(value)
        if record.call == 0:
            shapes = self.inputs if site.port == "input" else self.outputs
            shapes.setdefault(site.path, []).append(_shape(value))

    def _is_new(self, tensor: Tensor) -> bool:
        try:
            reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        except (NotImplementedError, RuntimeError):  # Sparse and wrapped tensors have no storage.
            return True
        return self._seen.setdefault(reference.cdata, reference) is reference


def _shape(value: Tensor) -> tuple[int, ...]:
    """Its shape; of a nested tensor of strided memory, which has none, the number of its parts."""
    is_jagged = value.is_nested and value.layout is not torch.strided
    return tuple(value.shape) if is_jagged or not value.is_nested else (value.size(0),)


def _without_gradients(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[[], None]:
    """Let no leaf without views require grad, since PyTorch's counter takes views of those that do.

    Returns:
        a function that puts it back.
    """
    leaves = [
        tensor
        for _, tensor in argument_leaves(args, kwargs)
        if tensor.requires_grad and tensor.is_leaf
        if tensor.layout is not torch.strided or tensor.is_nested
    ]

    def put_back() -> None:
        for leaf in leaves:
            leaf.requires_grad_()

    for leaf in leaves:
        leaf.requires_grad_(False)
    return put_back


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[Any] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if not func.is_view:
            self.seen[func.overloadpacket] += 1
        return func(*args, **(kwargs or {}))

    def uncounted(self, counter: FlopCounterMode) -> dict[str, int]:
        """Operations without a formula, the most frequent first."""
        moves = set(_MOVES.split())
        return {
            str(packet): times
            for packet, times in self.seen.most_common()
            if packet not in counter.flop_registry and packet.__name__ not in moves
        }


def _formulas() -> dict[Any, Any]:
    """FLOPs of operations that PyTorch's counter misses on the CPU, from shapes."""

    def attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
        return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]

    def recurrent(sequence: Any, from_input: Any, from_hidden: Any, *_: Any, **__: Any) -> int:
        # Two matrix products per element of the sequence: with the input and the hidden weights.
        elements = sequence[0] * sequence[1]
        products = from_input[0] * from_input[1] + from_hidden[0] * from_hidden[1]
        return int(2 * elements * products)

    return {
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention,
        torch.ops.aten.mkldnn_rnn_layer: recurrent,
    }


def _refuse_lazy(modules: Mapping[str, nn.Module]) -> None:
    for path, module in modules.items():
        state = (*module._parameters.values(), *module._buffers.values())
        if any(one is not None and is_lazy(one) for one in state):
            raise InputError(
                f"{path or '.'} ({type(module).__name__}) is lazy: its parameters have no shape "
                f"yet. Run the model once on a batch, then ask again."
            )


# ---------------------------------------------------------------------- rows and totals


def _mult_adds(
    modules: Mapping[str, nn.Module], aliases: Mapping[str, str], counter: FlopCounterMode
) -> dict[str, int]:
    """Path -> mult-adds in the module and below."""
    # The counter names a module by one of its paths below the class name of the root.
    root = type(modules[""]).__name__
    counts = counter.get_flop_counts()
    mult_adds = {}
    for path in modules:
        names = [path, *(alias for alias, first in aliases.items() if first == path)]
        keys = [f"{root}.{name}" if name else root for name in names]
        mult_adds[path] = sum(sum(counts.get(key, {}).values()) for key in keys) // 2
    return mult_adds


def _rows(
    modules: Mapping[str, nn.Module],
    aliases: Mapping[str, str],
    flow: _Flow,
    macs: Mapping[str, int],
) -> Iterator[Row]:
    met: set[int] = set()
    for path, module in modules.items():
        params = {id(param): param for param in module.parameters()}
        own = [param for param in module._parameters.values() if param is not None]
        # What an ancestor's row holds is not shared; what an earlier sibling's holds is.
        shared = [param for key, param in params.items() if key in met]
        yield Row(
            path=path,
            type=type(module).__name__,
            calls=flow.calls.get(path, 0),
            inputs=tuple(flow.inputs.get(path, ())),
            outputs=tuple(flow.outputs.get(path, ())),
            dtype=flow.dtypes.get(path, ""),
            num_params=sum(param.numel() for param in params.values()),
            num_shared=sum(param.numel() for param in shared),
            mult_adds=macs[path],
            activation_bytes=_below(path, flow.nbytes),
            aliases=tuple(alias for alias, first in aliases.items() if first == path),
        )
        if own and (path == "" or len(own) < len(params)) and any(module.children()):
            yield from _own_parameters(path, module, met)
        met.update(map(id, own))


def _own_parameters(path: str, module: nn.Module, met: set[int]) -> Iterator[Row]:
    for name, param in module._parameters.items():
        if param is None:
            continue
        yield Row(
            path=f"{path}.{name}" if path else name,
            type=PARAMETER,
            calls=0,
            inputs=(),
            outputs=(tuple(param.shape),),
            dtype=str(param.dtype).removeprefix("torch."),
            num_params=param.numel(),
            num_shared=param.numel() if id(param) in met else 0,
            mult_adds=0,
            activation_bytes=0,
        )


def _below(path: str, nbytes: Mapping[str, int]) -> int:
    prefix = f"{path}." if path else ""
    return sum(n for other, n in nbytes.items() if other == path or other.startswith(prefix))


def _depth(row: Row) -> int:
    return row.path.count(".") + 1 if row.path else 0


def _totals(model: nn.Module) -> dict[str, Any]:
    params, buffers = list(model.parameters()), list(model.buffers())
    return {
        "num_params": sum(param.numel() for param in params),
        "num_trainable": sum(param.numel() for param in params if param.requires_grad),
        "param_bytes": sum(param.nbytes for param in params),
        "num_buffers": sum(buffer.numel() for buffer in buffers),
        "buffer_bytes": sum(buffer.nbytes for buffer in buffers),
    }


def show_summary(summary: Summary) -> Page:
    """Modules with shapes, parameters, mult-adds and activation bytes; totals below."""
    rows = summary.rows
    dtypes = list(dict.fromkeys(row.dtype for row in rows if row.dtype))
    headers = [
        "module",
        "type",
        "calls",
        "input",
        "output",
        "dtype",
        "params",
        "mult-adds",
        "bytes",
    ]
    labels = tree([row.path for row in rows])
    cells = [_summary_cells(row, label) for row, label in zip(rows, labels, strict=True)]
    align, elastic = "lerlllrrr", {0: 16, 1: 9, 5: 7}
    if len(dtypes) < 2:  # One dtype is said once, above.
        cells = [[*line[:5], *line[6:]] for line in cells]
        del headers[5], elastic[5]
        align = "lerllrrr"
    title = f"Summary of {summary.model}" + (f", all {dtypes[0]}" if len(dtypes) == 1 else "")
    grid = Grid(cells, headers, align, title=title, elastic=elastic, noun="module")
    return Page(grid, BLANK, *_summary_footer(summary))


def _summary_cells(row: Row, label: str) -> Sequence[str | Cell]:
    return (
        label,
        row.type,
        count(row.calls) if row.calls else Cell(NONE, "dim"),
        _tensors(row.inputs),
        _tensors(row.outputs),
        row.dtype or NONE,
        (count(row.num_params) if row.num_params else NONE) + ("*" if row.num_shared else ""),
        short_count(row.mult_adds) if row.mult_adds else NONE,
        size(row.activation_bytes) if row.activation_bytes else NONE,
    )


def _tensors(tensors: Sequence[tuple[int, ...]]) -> str:
    if not tensors:
        return NONE
    return shape(tensors[0]) + (f" +{len(tensors) - 1}" if len(tensors) > 1 else "")


def _summary_footer(summary: Summary) -> list[Part]:
    frozen = summary.num_params - summary.num_trainable
    totals = [
        (
            "Parameters",
            f"{count(summary.num_params)} ({size(summary.param_bytes)}), "
            f"{count(summary.num_trainable)} trainable, {count(frozen)} frozen",
        ),
        ("Buffers", f"{count(summary.num_buffers)} ({size(summary.buffer_bytes)})"),
        ("Mult-adds", f"{count(summary.mult_adds)} ({short_count(summary.mult_adds)})"),
        (
            "Activations",
            f"{size(summary.activation_bytes)}: what modules return, each memory once",
        ),
    ]
    said = ["Each line counts what is below it too. bytes: of activations."]
    if any(row.num_shared for row in summary.rows):
        said.append("* holds parameters that stand further up too; the total counts them once.")
    if summary.uncounted:
        ops = ", ".join(f"{name} ({count(n)})" for name, n in list(summary.uncounted.items())[:6])
        more = f" and {len(summary.uncounted) - 6} more" if len(summary.uncounted) > 6 else ""
        said.append(
            f"Mult-adds are those of matrix products, convolutions and attention. "
            f"{plural(len(summary.uncounted), 'kind')} of operation ran without a formula: "
            f"{ops}{more}."
        )
    if summary.depth is not None:
        said.append(f"Shown to depth {summary.depth}; totals are of the whole model.")
    return [Grid(totals), *(Line(one, rest="") for one in said)]

"""The parts of a graph, as plain data: nodes, edges, calls of modules, and cuts."""

from __future__ import annotations

from dataclasses import dataclass

from torchtap.core.text import typed

OPERATION, VIEW, IN_PLACE = "operation", "view", "in-place"
PARAMETER, INPUT, OUTPUT = "parameter", "input", "output"
FUNCTION, CHECKPOINT, COMPILED, MODULE = "custom function", "checkpoint", "compiled", "module"
RAISED, NOT_FINITE = "raised", "not finite"
"""Kinds of nodes."""
KEPT, FREED, RECOMPUTED, PACKED, OVERWRITTEN = (
    "kept",
    "freed",
    "recomputed",
    "packed",
    "overwritten",
)
"""States of a saved tensor."""
ACTIVATION, BUFFER, CAST, SHARED = "activation", "buffer", "parameter cast", "shared"
NUMBER = "number"
"""Roles of a saved tensor, beside :data:`PARAMETER` and :data:`INPUT`."""
HIDDEN = "PyTorch does not show what is kept"
"""Note of a node of C++ that keeps tensors and shows none of them to Python."""
OUTSIDE = -1
"""Number in place of a call, of what no module made."""


AND = ", "
"""Between the names of several inputs that are one tensor."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and dtype of a tensor.

    Attributes:
        shape: its sizes; empty of a scalar, ``None`` where rows have sizes of their own.
        dtype: without ``torch.``.
    """

    shape: tuple[int | None, ...]
    dtype: str

    def __str__(self) -> str:
        return typed(self.dtype, self.shape)


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor that a node keeps for backward.

    Attributes:
        name: slot of the node, as ``mat1`` or ``result``.
        type: shape and dtype; ``None`` where nothing is kept any more, or a hook packed it.
        nbytes: bytes of the memory that it keeps alive; 0 where an earlier node keeps the same
            memory (role ``shared``), and for parameters and buffers, which exist anyway.
        role: ``activation``, ``input`` (memory of a leaf or of an argument), ``parameter``,
            ``parameter cast`` (as autocast makes it), ``buffer``, ``shared``, or ``number`` (of
            Python; its 8 bytes are not counted).
        state: ``kept``, ``freed`` (a backward has run), ``recomputed`` (a checkpoint computes it
            again), ``packed`` (a saved-tensor hook has it), or ``overwritten`` (since it was saved:
            the backward will raise).
        version: how often its memory had been written when the graph was read.
        note: path of the parameter or buffer, the hook, or PyTorch's words of the overwriting.
    """

    name: str
    type: TensorType | None
    nbytes: int
    role: str
    state: str
    version: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Hook:
    """A hook that stands at a node.

    Attributes:
        kind: ``tensor``, ``retain_grad``, ``pre`` and ``post`` of the node, ``post-accumulate``.
        name: module and qualified name of the function.
    """

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a graph.

    Attributes:
        id: number of the node in :attr:`Graph.nodes`, from 0.
        name: of an autograd node PyTorch's, as ``AddmmBackward0``; in an execution the name of the
            operation, or the class of the module.
        kind: ``operation``, ``view``, ``in-place``, ``parameter``, ``input``, ``output``,
            ``custom function``, ``checkpoint``, ``compiled``, ``module``, ``raised`` (where the
            forward ended), or ``not finite`` (what made the first NaN or Inf).
        path: of the module that made the node, ``""`` for the root or where it is not known. A
            parameter and a buffer have their own path, an input its name, and one tensor that is
            several inputs all their names.
        call: number of the call in :attr:`Graph.calls` that made it, -1 for none.
        types: shape and dtype of each output of the forward operation.
        sequence: number by which autograd orders backward; -1 of leaves.
        saved: what it keeps for backward.
        hooks: those that stand there, as far as they can be found.
        cut_slots: inputs, by number, through which no gradient flows: in an autograd graph because
            they did not require grad (``next_functions`` leads nowhere); in an execution although
            they did, for the reason in ``note``.
        line: ``file:line`` of the program, where it is known.
        note: what else is to be known.
    """

    id: int
    name: str
    kind: str
    path: str = ""
    call: int = OUTSIDE
    types: tuple[TensorType, ...] = ()
    sequence: int = -1
    saved: tuple[SavedTensor, ...] = ()
    hooks: tuple[Hook, ...] = ()
    cut_slots: tuple[int, ...] = ()
    line: str = ""
    note: str = ""

    @property
    def saved_nbytes(self) -> int:
        """Return bytes that it keeps alive, and no earlier node does."""
        return sum(one.nbytes for one in self.saved)


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge of a graph.

    Attributes:
        source: number of the node that it leaves: in an autograd graph the one that backward runs
            first, in an execution the one that computed the tensor.
        target: number of the node that it enters.
        slot: which of the source's ``next_functions`` it is; in an execution which output.
        output: which output of the forward operation of the target the gradient is of; in an
            execution which input of the target.
        type: of the tensor that flows in the forward pass; ``None`` where it is not known.
    """

    source: int
    target: int
    slot: int
    output: int
    type: TensorType | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a module.

    Attributes:
        id: number of the call in :attr:`Graph.calls`, in the order in which they were entered.
        path: of the module.
        type: its class name.
        number: which call of this module, from 0.
        above: number of the call that made this one, -1 for the outermost.
        has_raised: the forward raised inside of it.
        is_inferred: it was not watched, but concluded from parameters and the order of nodes.
        inputs: shapes and dtypes of its arguments.
        outputs: shapes and dtypes of what it returned.
    """

    id: int
    path: str
    type: str
    number: int
    above: int = OUTSIDE
    has_raised: bool = False
    is_inferred: bool = False
    inputs: tuple[TensorType, ...] = ()
    outputs: tuple[TensorType, ...] = ()


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation that ran in a watched forward, for :meth:`Graph.why_no_grad`.

    Attributes:
        name: as ``Tensor.detach``.
        sources: numbers of the operations, or names of the parameters, that its inputs come from
            and that gradients could flow to.
        has_grad: whether a result requires grad.
        reason: why none does, where an input did; else empty.
        path: of the module that ran it.
        line: of the program.
    """

    name: str
    sources: tuple[int | str, ...]
    has_grad: bool
    reason: str
    path: str
    line: str


@dataclass(frozen=True, slots=True)
class Root:
    """The node where backward would start.

    Attributes:
        name: of the tensor; empty of a single one.
        node: number of its node; -1 where it has none.
        output: which output of that node.
        type: its shape and dtype.
        note: why there is no graph, where there is none.
    """

    name: str
    node: int
    output: int
    type: TensorType
    note: str = ""

"""The ports of a site: one row of a table says what each of them is. Knows nothing of torch.

A new port has a row here and a file in ``capture/`` that takes its values. Patterns, plans, files,
tables, merges of ranks and refusals read the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

CALL: Final = "call"
BACKWARD: Final = "backward"
OPTIMIZER: Final = "optimizer"

_NO_BACKWARD = "no backward reached the parameter"
_NO_STEP = "no optimizer made a step with it"
_HOLD_STILL = "writing into it under torch.no_grad(), and held still by tt.freeze"


@dataclass(frozen=True, slots=True)
class Port:
    """The row of one port.

    Attributes:
        name: in the text of a site.
        taken: in a ``call`` of the module, in the ``backward``, or in a step of the ``optimizer``.
        is_flow: whether it flows through the module; ``*`` stands for the ports that do.
        holder: the kind of state of the module that it is of: ``param``, ``buffer``, or none.
        is_gradient: whether backward computes it.
        has_mark: whether a ``tt.mark``, which is one tensor and no module, has it.
        is_replaced: whether a later value of a step takes the place of the earlier one, as where
            it accumulates, and the last one counts.
        needs_grad: whether a parameter without ``requires_grad`` has none.
        ranks: how the values of several ranks make up the whole: ``parts`` of the batch,
            ``replicas`` (or shards, which a label names), ``losses`` (each rank's own, before they
            are averaged), or ``private`` where there is no whole.
        compared_with: the port whose norm a table puts beside it, as the ratio of both.
        why_never: why a site has nothing of it, where nothing more is known.
        instead: how to have the effect of editing it, where ``tt.edit`` cannot; ``{path}`` is the
            module's.
    """

    name: str
    taken: Literal["call", "backward", "optimizer"]
    is_flow: bool = False
    holder: Literal["param", "buffer", ""] = ""
    is_gradient: bool = False
    has_mark: bool = False
    is_replaced: bool = False
    needs_grad: bool = False
    ranks: Literal["parts", "replicas", "losses", "private"] = "parts"
    compared_with: str = ""
    why_never: str = "it was not seen"
    instead: str = ""

    @property
    def is_editable(self) -> bool:
        """Return whether ``tt.edit`` changes it."""
        return not self.instead


TABLE = (
    Port("input", CALL, is_flow=True),
    Port("output", CALL, is_flow=True, has_mark=True),
    Port("grad_input", BACKWARD, is_flow=True, is_gradient=True),
    Port("grad_output", BACKWARD, is_flow=True, is_gradient=True, has_mark=True),
    Port(
        "param",
        CALL,
        holder="param",
        ranks="replicas",
        instead=f"A parameter is changed by {_HOLD_STILL}; its gradient is edited at "
        "'{path}:param_grad'.",
    ),
    Port(
        "param_grad",
        BACKWARD,
        holder="param",
        is_gradient=True,
        is_replaced=True,
        needs_grad=True,
        ranks="losses",
        why_never=_NO_BACKWARD,
    ),
    Port(
        "step_grad",
        OPTIMIZER,
        holder="param",
        needs_grad=True,
        ranks="replicas",
        why_never=_NO_STEP,
        instead="The optimizer's step uses what backwards accumulated, which is edited at "
        "'{path}:param_grad'.",
    ),
    Port(
        "update",
        OPTIMIZER,
        holder="param",
        needs_grad=True,
        ranks="replicas",
        compared_with="param",
        why_never=_NO_STEP,
        instead="The optimizer makes its update of the gradient, which is edited at "
        "'{path}:param_grad'; tt.freeze holds a parameter still.",
    ),
    Port(
        "buffer",
        CALL,
        holder="buffer",
        ranks="replicas",
        instead=f"A buffer is changed by {_HOLD_STILL}.",
    ),
    Port(
        "saved",
        CALL,
        ranks="private",
        instead="Autograd keeps what flows, which is edited at '{path}:input' or '{path}:output'.",
    ),
)
"""The ports in the order in which the sites of a module are listed."""

BY_NAME = {port.name: port for port in TABLE}
PORTS = tuple(BY_NAME)
FLOW_PORTS = tuple(port.name for port in TABLE if port.is_flow)
STATE_PORTS = tuple(port.name for port in TABLE if port.holder)
OPTIMIZER_PORTS = tuple(port.name for port in TABLE if port.taken == OPTIMIZER)
MARK_PORTS = tuple(port.name for port in TABLE if port.has_mark)
EDITABLE_PORTS = tuple(port.name for port in TABLE if port.is_editable)
GRADIENT_PORTS = frozenset(port.name for port in TABLE if port.is_gradient)
EVERY_SITE = f"*:{','.join(('*', *(name for name in PORTS if name not in FLOW_PORTS)))}"
"""The pattern that every site fits."""

"""The lines that inductor writes where a compiled graph hands over a value.

By itself inductor calls an operator that it does not know through PyTorch's dispatcher, which
takes several times as long as the hand-over. Here the code that it writes calls
``compiled.hand_over`` instead. A value that leaves several modules, as that of the last layer of
each block leaves the block too, is handed over once, with the tickets of all of them.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

from torchtap.core.torch_private import write_operator_calls

_NAME = "torchtap_hand_over"
# Compiled code stays on the disk: what is imported here must stay where it is.
_IMPORT = f"from torchtap.capture.compiled import hand_over as {_NAME}"


class _Line(NamedTuple):
    """A line that hands over a value.

    Attributes:
        place: of the line in the code.
        text: the line.
        value: as it stands there.
        tickets: whose value it is.
        rest: of the arguments.
    """

    place: int
    text: str
    value: str
    tickets: list[str]
    rest: list[str]


_last: weakref.WeakKeyDictionary[Any, _Line] = weakref.WeakKeyDictionary()
"""The last line in each code that is being written."""


def write_hand_overs() -> None:
    """Have inductor write these lines for ``torchtap::emit``, once it is imported."""
    write_operator_calls("torch.ops.torchtap.emit.default", _write)


def _write(node: Any, writer: Any, is_constant: bool) -> None:
    """Write the line of one call.

    Args:
        node: of inductor, which stands for the call.
        writer: of the code.
        is_constant: whether nothing writes into the value while the graph runs.
    """
    value, ticket, *rest = node.codegen_args()
    writer.add_import_once(_IMPORT)
    lines, last = writer.lines, _last.get(writer)
    if last is not None and is_constant and (last.value, last.rest) == (value, rest):
        # No other value was handed over in between, so that order is kept.
        tickets, place = [*last.tickets, ticket], last.place
        text = _call(value, tickets, rest)
        lines[place] = text
    else:
        tickets, place = [ticket], len(lines)
        text = _call(value, tickets, rest)
        writer.writeline(text)
    _last[writer] = _Line(place, text, value, tickets, rest)


def _call(value: str, tickets: list[str], rest: list[str]) -> str:
    return f"{_NAME}({value}, ({', '.join(tickets)},), {', '.join(rest)})"

"""The lines that inductor writes where a compiled graph hands over a value.

By itself inductor calls an operator that it does not know through PyTorch's dispatcher, which
takes several times as long as the hand-over. Here the code that it writes calls
``compiled.hand_over`` instead. A value that leaves several modules, as that of the last layer of a
block leaves the block too, is handed over once, with the tickets of all of them.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

from torchtap.core.torch_private import write_operator_calls

_NAME = "torchtap_hand_over"
# Compiled code stays on the disk: what is imported there must stay where it is.
_IMPORT = f"from torchtap.capture.compiled import hand_over as {_NAME}"


class _Call(NamedTuple):
    """A line that hands over a value.

    Attributes:
        place: of the line in the code.
        value: as it stands there.
        tickets: whose value it is.
        rest: of the arguments.
    """

    place: int
    value: str
    tickets: tuple[str, ...]
    rest: tuple[str, ...]

    @property
    def text(self) -> str:
        """Return the line."""
        return f"{_NAME}({self.value}, ({', '.join(self.tickets)},), {', '.join(self.rest)})"


_last: weakref.WeakKeyDictionary[Any, _Call] = weakref.WeakKeyDictionary()
"""The last of these lines in each code that is being written."""


def write_hand_overs() -> None:
    """Have inductor write these lines for ``torchtap::emit``, once it is imported."""
    write_operator_calls("torch.ops.torchtap.emit.default", _write)


def _write(node: Any, writer: Any, is_constant: bool) -> None:
    """Write the line of one call, or put its ticket into the last line.

    Args:
        node: of inductor, which stands for the call.
        writer: of the code.
        is_constant: whether nothing writes into the value while the graph runs.
    """
    value, ticket, *rest = node.codegen_args()
    last = _last.get(writer)
    # No other value was handed over in between, so that the order of values is kept.
    is_again = last is not None and (last.value, last.rest) == (value, tuple(rest))
    if last is not None and is_again and is_constant and writer.lines[last.place] == last.text:
        call = last._replace(tickets=(*last.tickets, ticket))
        writer.lines[call.place] = call.text
    else:
        call = _Call(len(writer.lines), value, (ticket,), tuple(rest))
        writer.add_import_once(_IMPORT)
        writer.writeline(call.text)
    _last[writer] = call

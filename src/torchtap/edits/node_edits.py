"""Edits on autograd's nodes: whatever a rectifier is called in the model, here it has one name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from torchtap.core.errors import EditError
from torchtap.core.tree import leaves
from torchtap.hooks.graph_edges import Node
from torchtap.hooks.module_hook import keep_dynamo_out
from torchtap.hooks.tap import SiteState, Tap


@dataclass(frozen=True, slots=True)
class NodeEdit:
    """An edit of the gradients that arrive at some nodes.

    Args:
        change: gradient -> gradient.
        judge: whether it is meant for a node; a text with the reason if that is not known.
    """

    change: Callable[[Tensor], Tensor]
    judge: Callable[[Node], bool | str]


class NodeEdits:
    """Finds the nodes that the modules of one edit made, and hooks them."""

    def __init__(
        self, edit: NodeEdit, name: str, count: Callable[[SiteState, int, bool], None]
    ) -> None:
        self._edit = edit
        self._name = name
        self._count = count
        self._key = f"torchtap {id(self)}"
        self._handles: list[Any] = []
        self._prune_at = 256

    def leave(self, tap: Tap, output: Any, first: int, call: int) -> None:
        """Hook the nodes that a module made that returned.

        Args:
            tap: of the module.
            output: what it returned.
            first: number that its first node can have.
            call: which call it was.

        Raises:
            EditError: there are nodes that the edit has no meaning for, or cannot see into.
        """
        state = tap.state("output", "") or next(filter(None, tap.states.values()), None)
        if state is None:
            return
        for node in _nodes((tensor for _, tensor in leaves(output)), first):
            verdict = self._edit.judge(node)
            if isinstance(verdict, str):
                raise EditError(
                    f"Edit {self._name!r} at {tap.path or '.'!r} (call {call}) met {verdict}."
                )
            # Calls nest: a node that an inner module has hooked is met again from the outer one.
            if verdict and self._key not in node.metadata:
                node.metadata[self._key] = True
                self._handles.append(node.register_prehook(self._hook(state, call)))
        if len(self._handles) >= self._prune_at:
            self._handles = [
                handle for handle in self._handles if handle.hooks_dict_ref() is not None
            ]
            self._prune_at = 256 + 2 * len(self._handles)

    def _hook(self, state: SiteState, call: int) -> Callable[..., Any]:
        state.expected += 1
        return partial(self._change, state, call)

    def _change(
        self, state: SiteState, call: int, gradients: tuple[Tensor | None, ...]
    ) -> tuple[Tensor | None, ...]:
        self._count(state, call, True)
        return tuple(
            None if gradient is None else self._edit.change(gradient) for gradient in gradients
        )

    def release(self) -> None:
        """Take every hook off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def _nodes(outputs: Iterable[Tensor], first: int) -> list[Node]:
    """Return the nodes from ``outputs`` back to those older than ``first``."""
    roots = {tensor.grad_fn for tensor in outputs}
    # A list and no recursion, as in graph_edges.
    todo: list[Node] = [node for node in roots if node is not None and node._sequence_nr() >= first]
    seen = list(todo)
    known = set(todo)
    while todo:
        for following, _ in todo.pop().next_functions:
            if following is None or following in known or following._sequence_nr() < first:
                continue
            known.add(following)
            seen.append(following)
            todo.append(following)
    return seen


keep_dynamo_out(NodeEdits._change)

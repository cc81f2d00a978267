"""The order in which PyTorch's engine runs the nodes of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

LEAF = (1 << 64) - 1
"""Sequence number of the nodes that accumulate gradients: they run as soon as they can.

It is ``UINT64_MAX``, set in their constructor (torch/csrc/autograd/node.h, ``sequence_nr_``).
"""
_Task = tuple[int, int]
"""Sequence number and node."""


class ReadyQueue:
    """The engine's queue of nodes that may run: the one that was made last comes first.

    Nodes that accumulate gradients share one number, so that the order among them is that of the
    heap of GCC's C++ library (``std::push_heap``, ``std::pop_heap``), which is followed here step
    by step. Source: torch/csrc/autograd/engine.cpp, ``ReadyQueue``.
    """

    def __init__(self) -> None:
        self._heap: list[_Task] = []

    def __bool__(self) -> bool:
        return bool(self._heap)

    def push(self, task: _Task) -> None:
        """Add a node that has got all its gradients."""
        self._heap.append(task)
        self._rise(len(self._heap) - 1, 0, task)

    def pop(self) -> _Task:
        """Return the node that runs next."""
        heap = self._heap
        first, last = heap[0], heap.pop()
        if not heap:
            return first
        # The hole at the top sinks to a leaf, and the last task rises from there.
        size, hole = len(heap), 0
        while 2 * (hole + 1) < size:
            child = 2 * (hole + 1)
            # As std::priority_queue of libstdc++ sifts: among nodes of one number its order is the
            # engine's (ReadyQueue in torch/csrc/autograd/engine.h).
            if heap[child][0] < heap[child - 1][0]:
                child -= 1
            heap[hole] = heap[child]
            hole = child
        if 2 * (hole + 1) == size:
            heap[hole] = heap[size - 1]
            hole = size - 1
        self._rise(hole, 0, last)
        return first

    def _rise(self, hole: int, top: int, task: _Task) -> None:
        heap = self._heap
        parent = (hole - 1) // 2
        while hole > top and heap[parent][0] < task[0]:
            heap[hole] = heap[parent]
            hole, parent = parent, (parent - 1) // 2
        heap[hole] = task


def backward_order(
    roots: Sequence[int], following: Mapping[int, Sequence[int]], numbers: Sequence[int]
) -> list[int]:
    """Return the order in which one backward on the CPU runs the nodes.

    Args:
        roots: nodes at which it starts, one for each tensor that is differentiated.
        following: node -> the nodes that its edges lead to, one for each edge, in their order.
        numbers: sequence number of each node.
    """
    waiting = [0] * len(numbers)
    for node in roots:
        waiting[node] += 1
    for targets in following.values():
        for target in targets:
            waiting[target] += 1
    queue, order = ReadyQueue(), list[int]()

    def arrive(targets: Sequence[int]) -> None:
        for target in targets:
            waiting[target] -= 1
            if not waiting[target]:
                queue.push((numbers[target], target))

    arrive(roots)
    while queue:
        _, node = queue.pop()
        order.append(node)
        arrive(following.get(node, ()))
    return order

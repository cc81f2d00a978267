"""Small programs with an autograd graph, and a walk through it by hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def nodes_by_hand(roots: list[Any]) -> tuple[list[Any], list[tuple[int, int, int, int]]]:
    """The nodes behind others, breadth first, and (from, to, slot, output) of each edge."""
    nodes = list(dict.fromkeys(roots))
    places = {node: place for place, node in enumerate(nodes)}
    edges, waiting = [], deque(nodes)
    while waiting:
        node = waiting.popleft()
        for slot, (following, output) in enumerate(node.next_functions):
            if following is not None:
                if following not in places:
                    places[following] = len(nodes)
                    nodes.append(following)
                    waiting.append(following)
                edges.append((places[node], places[following], slot, output))
    return nodes, edges


class Cube(torch.autograd.Function):
    """A custom function that saves its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * gradient


def leaf(*shape: int) -> Tensor:
    """A tensor that requires grad, with the same values every time."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(shape, generator=generator).add_(0.5).requires_grad_()


def _chain() -> Tensor:
    x = leaf(3)
    return x.sin().exp().sum()


def _diamond() -> Tensor:
    x = leaf(3)
    y = x.exp()
    return (y.sin() * y.cos() + y).sum()


def _several_leaves() -> Tensor:
    return F.linear(leaf(2, 3), leaf(4, 3), leaf(4)).relu().sum()


def _convolution() -> Tensor:
    return F.conv2d(leaf(1, 2, 5, 5), leaf(3, 2, 3, 3), leaf(3)).sum()


def _view_written() -> Tensor:
    base = leaf(4).clone()
    base[:2].mul_(leaf(2))
    return base.sum()


def _in_place_chain() -> Tensor:
    x = leaf(3).clone()
    return x.mul_(2).add_(1).exp_().sum()


def _custom() -> Tensor:
    return Cube.apply(leaf(3)).sum()


def _unbind() -> Tensor:
    a, b, c = leaf(3, 2).unbind()
    return (a * c).sum() + b[0]


def _cat_and_split() -> Tensor:
    first, second = torch.cat([leaf(2), leaf(2).sin()]).split(2)
    return (first * second).sum()


def _max_with_indices() -> Tensor:
    values, _ = leaf(3, 4).max(1)
    return values.sum()


def _double_backward() -> Tensor:
    x = leaf(3)
    (gradient,) = torch.autograd.grad((x.sin() * x).sum(), x, create_graph=True)
    return (gradient**2).sum()


def _recurrence() -> Tensor:
    weight, hidden = leaf(3, 3), torch.ones(1, 3)
    for _ in range(4):
        hidden = torch.tanh(hidden @ weight)
    return hidden.sum()


def _attention() -> Tensor:
    x = leaf(1, 2, 4, 8)
    return F.scaled_dot_product_attention(x, x, x).sum()


def _normalised() -> Tensor:
    return F.batch_norm(leaf(4, 3), None, None, leaf(3), leaf(3), training=True).sum()


def _embedded() -> Tensor:
    return F.embedding(torch.tensor([[0, 2], [1, 1]]), leaf(3, 4)).sum()


def _cross_entropy() -> Tensor:
    return F.cross_entropy(leaf(4, 3), torch.tensor([0, 1, 2, 1]))


def _reentrant() -> Tensor:
    return checkpoint(lambda x: x.sin().cos(), leaf(3), use_reentrant=True).sum()


def _non_reentrant() -> Tensor:
    return checkpoint(lambda x: x.sin().cos(), leaf(3), use_reentrant=False).sum()


def _lstm() -> Tensor:
    torch.manual_seed(0)
    output, _ = nn.LSTM(3, 4, 2)(leaf(5, 1, 3))
    return output.sum()


def _encoder() -> Tensor:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    return layer(leaf(1, 3, 8)).sum()


def _complex() -> Tensor:
    return torch.fft.fft(leaf(4)).abs().sum()


def _where() -> Tensor:
    x = leaf(4)
    return torch.where(x > 1, x, x**2).sum()


def _leaf_alone() -> Tensor:
    return leaf()


PROGRAMS: dict[str, Callable[[], Tensor]] = {
    function.__name__.strip("_"): function
    for function in (
        *(_chain, _diamond, _several_leaves, _convolution, _view_written, _in_place_chain),
        *(_custom, _unbind, _cat_and_split, _max_with_indices, _double_backward, _recurrence),
        *(_attention, _normalised, _embedded, _cross_entropy, _reentrant, _non_reentrant),
        *(_lstm, _encoder, _complex, _where, _leaf_alone),
    )
}

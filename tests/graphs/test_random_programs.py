"""Random programs: their graph is that of a walk by hand, of real node hooks, and of the report."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from programs import Cube, nodes_by_hand
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import torchtap as tt
from torchtap.graphs.nodes import HIDDEN

pytestmark = pytest.mark.filterwarnings("ignore")

_ONE: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.sin,
    torch.exp,
    torch.relu,
    Tensor.clone,
    lambda x: x.softmax(-1),
    lambda x: F.dropout(x, 0.3),
    lambda x: checkpoint(lambda y: y.sin().exp(), x, use_reentrant=False),
    lambda x: checkpoint(lambda y: y.sin().cos(), x, use_reentrant=True),
    lambda x: x[:, [2, 1, 0, 3]],
    lambda x: x.double().float(),
    lambda x: x.sort(1)[0],
    lambda x: torch.stack(x.unbind(1), 1),
    lambda x: torch.cat(x.chunk(2, 1), 1),
    lambda x: x.expand(2, 3, 4).mean(0),
    lambda x: torch.view_as_real(torch.complex(x, x)).sum(-1),
    lambda x: x.logsumexp(1, keepdim=True).expand(3, 4),
    lambda x: x.detach() + x,
    lambda x: torch.vmap(torch.sin)(x),
    lambda x: torch.where(x > 0, x, x * x),
    lambda x: F.layer_norm(x, (4,)),
    lambda x: x.t().contiguous().t(),
    Cube.apply,
)
_TWO: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    torch.add,
    torch.mul,
    torch.maximum,
    lambda a, b: torch.lerp(a, b, 0.3),
    lambda a, b: (a @ b.T) @ b,
    lambda a, b: torch.cat([a, b])[:3],
    lambda a, b: torch.einsum("ij,kj->ik", a, b) @ a,
    lambda a, b: F.scaled_dot_product_attention(a[None], b[None], a[None])[0],
)


def _written(x: Tensor, other: Tensor, which: int) -> Tensor:
    y = x.contiguous() * 1
    if which == 0:
        y.mul_(2)
    elif which == 1:
        y[0] = other[1]
    elif which == 2:
        y[:, 1:].add_(1)
    else:
        y.t().relu_()
    return y


class Random(nn.Module):
    """A program of up to a dozen operations, the same each time that it is called."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def forward(self) -> Tensor:
        choice = random.Random(self.seed)
        torch.manual_seed(self.seed)
        linear, norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        tensors = [torch.rand(3, 4, requires_grad=True) for _ in range(2)]
        tensors.append(nn.Parameter(torch.rand(3, 4)))
        for _ in range(choice.randrange(2, 13)):
            x, other, kind = choice.choice(tensors), choice.choice(tensors), choice.random()
            if kind < 0.5:
                found = choice.choice((*_ONE, linear, norm))(x)
            elif kind < 0.8:
                found = choice.choice(_TWO)(x, other)
            elif kind < 0.93:
                found = _written(x, other, choice.randrange(4))
            else:
                with torch.no_grad():
                    found = choice.choice(_ONE[:4])(x)
            tensors.append(found)
        chosen = choice.sample(tensors[3:], min(len(tensors) - 3, 2))
        return torch.stack([one.sum() for one in chosen]).sum()


def agrees(program: Callable[[], Tensor], report: int) -> None:
    loss = program()
    found = tt.graph(loss)
    nodes, edges = nodes_by_hand([get_gradient_edge(loss).node])
    assert [one.name for one in found.nodes] == [one.name().rpartition("::")[2] for one in nodes]
    assert [(one.source, one.target, one.slot, one.output) for one in found.edges] == edges
    fired: list[int] = []
    for place, node in enumerate(nodes):
        node.register_prehook(lambda _, place=place: fired.append(place))
    loss.backward()
    assert [one.id for one in found.order()] == fired
    if any(one.note == HIDDEN for one in found.nodes):
        assert found.saved_nbytes <= report
        assert HIDDEN in repr(found)
    else:
        assert found.saved_nbytes == report


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 60, 20))
def test_nodes_edges_order_and_bytes_of_random_programs(start: int) -> None:
    for seed in range(start, start + 20):
        program = Random(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if program().requires_grad:
                agrees(program, tt.saved_report(program).nbytes)


# ---------------------------------------------------------------------- ways to make a graph


def _leaf(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()


def _hessian() -> Tensor:
    return torch.func.hessian(lambda x: (x**3).sum())(_leaf(3)).sum()


def _gradients_of_samples() -> Tensor:
    def loss(weight: Tensor, x: Tensor) -> Tensor:
        return (weight * x).sin().sum()

    return torch.vmap(torch.func.grad(loss), (None, 0))(_leaf(3), _leaf(4, 3)).sum()


def _nested() -> Tensor:
    parts = torch.nested.as_nested_tensor([_leaf(2, 3), _leaf(4, 3)], layout=torch.jagged)
    return (parts * 2).sin().to_padded_tensor(0).sum()


def _sparse() -> Tensor:
    return torch.sparse.mm(torch.eye(3).to_sparse(), _leaf(3, 3)).sum()


def _complex() -> Tensor:
    return torch.fft.fft(_leaf(4)).abs().sum()


def _autocast() -> Tensor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4), nn.Linear(4, 4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y: Tensor = model(torch.ones(2, 4))
    return y.float().sum()


def _packed() -> Tensor:
    torch.manual_seed(0)
    packed: Any = nn.utils.rnn.pack_padded_sequence(torch.rand(5, 2, 3), torch.tensor([5, 3]))
    out: Tensor = nn.LSTM(3, 4)(packed)[0].data
    return out.sum()


def _hooked() -> Tensor:
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    model.register_full_backward_hook(lambda *_: None)
    model.register_full_backward_pre_hook(lambda *_: None)
    y: Tensor = model(_leaf(2, 3))
    y.retain_grad()
    return y.sin().sum()


def _dirty() -> Tensor:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.mark_dirty(x.mul_(2))
            return x

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * 2

    x = _leaf(3) * 1
    Double.apply(x)
    return x.sum()


def _two_outputs() -> Tensor:
    q, r = torch.linalg.qr(_leaf(4, 4))
    return q.sum() + r.sum()


def _inner_checkpoint() -> Tensor:
    def inner(y: Tensor) -> Any:
        return checkpoint(lambda z: z.sin().exp(), y.cos(), use_reentrant=False).tanh()

    y: Tensor = checkpoint(inner, _leaf(3), use_reentrant=False)
    return y.sum()


def _attention() -> Tensor:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    y: Tensor = layer(torch.rand(2, 5, 8))
    return y.sum()


MADE = (
    *(_hessian, _gradients_of_samples, _nested, _sparse, _complex, _autocast, _packed, _hooked),
    *(_dirty, _two_outputs, _inner_checkpoint, _attention),
)


class Made(nn.Module):
    def __init__(self, program: Callable[[], Tensor]) -> None:
        super().__init__()
        self.program = program

    def forward(self) -> Tensor:
        return self.program()


@pytest.mark.parametrize("program", MADE, ids=lambda one: one.__name__[1:])
def test_nodes_edges_order_and_bytes_of_every_way_to_make_a_graph(
    program: Callable[[], Tensor],
) -> None:
    agrees(program, tt.saved_report(Made(program)).nbytes)

"""Each name of an autograd node that torchtap tells apart is the name that PyTorch gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from torchtap.core import torch_nodes
from torchtap.core.torch_nodes import family

VIEWS: dict[str, Callable[[Tensor], Any]] = {
    "Alias": lambda x: torch.ops.aten.alias(x),
    "AsStrided": lambda x: x.as_strided((2, 2), (1, 4)),
    "Diagonal": lambda x: x.diagonal(),
    "Expand": lambda x: x[:1].expand(3, 4),
    "Permute": lambda x: x.permute(1, 0),
    "ReshapeAlias": lambda x: torch.ops.aten._reshape_alias(x, (2, 8), (8, 1)),
    "Select": lambda x: x[0],
    "Slice": lambda x: x[1:],
    "Split": lambda x: x.split(2)[0],
    "SplitWithSizes": lambda x: x.split([1, 3])[0],
    "Squeeze": lambda x: x[:1].squeeze(0),
    "T": lambda x: x.t(),
    "Transpose": lambda x: x.transpose(0, 1),
    "Unbind": lambda x: x.unbind()[0],
    "Unfold": lambda x: x.unfold(0, 2, 1),
    "UnsafeView": lambda x: torch.ops.aten._unsafe_view(x, (16,)),
    "Unsqueeze": lambda x: x.unsqueeze(0),
    "View": lambda x: x.view(16),
    "ViewAsComplex": lambda x: torch.view_as_complex(x.view(8, 2)),
    "ViewAsReal": lambda x: torch.view_as_real(torch.complex(x, x)),
}
RECTIFIERS: dict[str, Callable[[Tensor], Tensor]] = {
    "CeluBackward": F.celu,
    "ClampBackward": lambda x: x.clamp(0, 1),
    "ClampMinBackward": lambda x: torch.clamp_min(x, 0),
    "EluBackward": F.elu,
    "GeluBackward": F.gelu,
    "HardswishBackward": F.hardswish,
    "HardtanhBackward": F.hardtanh,
    "LeakyReluBackward": F.leaky_relu,
    "MishBackward": F.mish,
    "PreluKernelBackward": lambda x: F.prelu(x, torch.ones(1)),
    "ReluBackward": F.relu,
    "RreluWithNoiseBackward": lambda x: F.rrelu(x, training=True),
    "SiluBackward": F.silu,
    "SoftplusBackward": F.softplus,
    "ThresholdBackward": lambda x: F.threshold(x, 0, 0),
}

ZEROS: dict[str, Callable[[Tensor], Tensor]] = {
    "RoundBackward": torch.round,
    "FloorBackward": torch.floor,
    "CeilBackward": torch.ceil,
    "TruncBackward": torch.trunc,
    "SignBackward": torch.sign,
    "ZeroBackward": lambda x: (x * 1).zero_(),
    "FillBackward": lambda x: (x * 1).fill_(2.0),
    "CopyBackwards": lambda x: (x * 1).copy_(torch.ones(4, 4)),
    "BernoulliBackward": torch.bernoulli,
    "PoissonBackward": torch.poisson,
    "NormalBackward": lambda x: torch.normal(x, 1.0),
    "UniformBackward": lambda x: (x * 1).uniform_(),
    "RandomBackward": lambda x: (x * 1).random_(),
    "ExponentialBackward": lambda x: (x * 1).exponential_(),
    "GeometricBackward": lambda x: (x * 1).geometric_(0.5),
    "CauchyBackward": lambda x: (x * 1).cauchy_(),
    "LogNormalBackward": lambda x: (x * 1).log_normal_(),
    "EqBackward": lambda x: (x * 1).eq_(0.5),
    "NeBackward": lambda x: (x * 1).ne_(0.5),
    "GeBackward": lambda x: (x * 1).ge_(0.5),
    "GtBackward": lambda x: (x * 1).gt_(0.5),
    "LeBackward": lambda x: (x * 1).le_(0.5),
    "LtBackward": lambda x: (x * 1).lt_(0.5),
}
RAISES: dict[str, Callable[[Tensor], Tensor]] = {
    "NotImplemented": lambda x: x // 2,
    "Unique2Backward": torch.unique,
    "UniqueDimBackward": lambda x: torch.unique(x, dim=0),
    "UniqueConsecutiveBackward": torch.unique_consecutive,
    "UniqueDimConsecutiveBackward": lambda x: torch.ops.aten.unique_dim_consecutive(x, 0)[0],
    "GeqrfBackward": lambda x: torch.geqrf(x)[0],
    "IgammaBackward": lambda x: torch.igamma(x, torch.ones(())),
    "IgammacBackward": lambda x: torch.igammac(x, torch.ones(())),
    "SpecialZetaBackward": lambda x: torch.special.zeta(x, torch.ones(4, 4)),
}
SECOND: dict[str, Callable[[Tensor], Tensor]] = {
    "CopysignBackward": lambda x: torch.copysign(torch.ones(4, 4), x),
    "NextafterBackward": lambda x: torch.nextafter(torch.ones(4, 4), x),
}

IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "CeluBackward": lambda x: F.celu(x, inplace=True),
    "ClampBackward": lambda x: x.clamp_(0, 1),
    "ClampMinBackward": lambda x: x.clamp_min_(0),
    "EluBackward": lambda x: F.elu(x, inplace=True),
    "HardswishBackward": lambda x: F.hardswish(x, inplace=True),
    "HardtanhBackward": lambda x: F.hardtanh(x, inplace=True),
    "LeakyReluBackward": lambda x: F.leaky_relu(x, inplace=True),
    "MishBackward": lambda x: F.mish(x, inplace=True),
    "ReluBackward": lambda x: F.relu(x, inplace=True),
    "RreluWithNoiseBackward": lambda x: F.rrelu(x, training=True, inplace=True),
    "SiluBackward": lambda x: F.silu(x, inplace=True),
    "ThresholdBackward": lambda x: F.threshold(x, 0, 0, inplace=True),
}


def node_of(result: Any) -> Any:
    return result.grad_fn


def leaf() -> Tensor:
    return torch.ones(4, 4, requires_grad=True)


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_called_as_it_was(name: str) -> None:
    node = node_of(VIEWS[name](leaf()))
    assert type(node).__name__ == node.name()
    assert family(node.name()) == f"{name}Backward"
    assert node.name() in torch_nodes.VIEWS


def test_every_view_is_tried() -> None:
    assert {family(name) for name in torch_nodes.VIEWS} == {f"{name}Backward" for name in VIEWS}
    assert torch_nodes.TURNS < torch_nodes.VIEWS


@pytest.mark.parametrize("name", RECTIFIERS)
def test_a_rectifier_is_called_as_it_was(name: str) -> None:
    assert family(type(node_of(RECTIFIERS[name](leaf()))).__name__) == name


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_rectifier_in_place_is_called_as_it_was(name: str) -> None:
    assert family(type(node_of(IN_PLACE[name](leaf() * 1))).__name__) == name


def test_every_rectifier_is_tried() -> None:
    known = {torch_nodes.RELU, torch_nodes.THRESHOLD, torch_nodes.HARDTANH, *torch_nodes.CLAMPS}
    assert known | torch_nodes.SOFT_RECTIFIERS.keys() == RECTIFIERS.keys()


@pytest.mark.parametrize("name", RAISES)
def test_a_node_without_a_derivative_is_called_as_it_was(name: str) -> None:
    result = RAISES[name](leaf())
    assert family(node_of(result).name().rpartition("::")[2]) == name
    assert torch_nodes.has_no_derivative(name) == (name not in torch_nodes.WITHOUT_FIRST_DERIVATIVE)
    with pytest.raises((RuntimeError, NotImplementedError), match="not implemented"):
        result.sum().backward()


@pytest.mark.parametrize("name", SECOND)
def test_a_node_whose_second_input_gets_zeros_is_called_as_it_was(name: str) -> None:
    x = leaf()
    result = SECOND[name](x)
    assert family(node_of(result).name()) == name
    result.sum().backward()
    assert x.grad is not None and not x.grad.any()


def test_every_node_that_raises_or_hands_back_zeros_in_one_place_is_tried() -> None:
    known = torch_nodes.WITHOUT_DERIVATIVE | torch_nodes.WITHOUT_FIRST_DERIVATIVE
    assert RAISES.keys() == known | {torch_nodes.NOT_IMPLEMENTED}
    assert SECOND.keys() == torch_nodes.WITHOUT_SECOND_SLOPE


@pytest.mark.parametrize("is_complex", [False, True])
def test_sgn_hands_back_zeros_of_real_numbers(is_complex: bool) -> None:
    x = leaf()
    result = torch.sgn(torch.complex(x, torch.ones(4, 4)) if is_complex else x)
    node = node_of(result)
    assert family(node.name()) == torch_nodes.SGN
    assert node._input_metadata[0].dtype.is_complex == is_complex
    result.real.sum().backward()
    assert x.grad is not None and bool(x.grad.any()) == is_complex


@pytest.mark.parametrize("name", ZEROS)
def test_a_node_that_hands_back_zeros_is_called_as_it_was(name: str) -> None:
    x = leaf()
    result = ZEROS[name](x)
    assert family(node_of(result).name().rpartition("::")[2]) == name
    result.sum().backward()
    assert x.grad is not None and not x.grad.any()


def test_every_node_that_hands_back_zeros_is_tried() -> None:
    assert ZEROS.keys() == torch_nodes.WITHOUT_SLOPE | torch_nodes.OVERWRITES


def test_other_nodes_are_called_as_they_were() -> None:
    x = leaf()
    base = x * 1
    base[0].mul_(2)
    assert node_of(base).name() == torch_nodes.COPY_SLICES
    assert type(node_of(x.double())).__name__ == torch_nodes.CAST
    (accumulates,) = (one for one, _ in node_of(x * 1).next_functions if one is not None)
    assert type(accumulates).__name__ == torch_nodes.ACCUMULATE
    again = checkpoint(torch.sin, x, use_reentrant=True)
    assert type(node_of(again)).__name__ == torch_nodes.CHECKPOINT


def test_a_compiled_graph_is_called_as_it_was() -> None:
    made = torch.compile(lambda x: (x * 2).sin(), backend="aot_eager")(leaf())
    assert node_of(made).name() == torch_nodes.COMPILED
    torch._dynamo.reset()

"""Tensor subclasses: what they stand for is read where they say it, and else the reason is said."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.utils._pytree import tree_map

import torchtap as tt


class Quantized(Tensor):
    """Whole numbers and a scale, as the subclasses of torchao hold them."""

    def __new__(cls, numbers: Tensor, scale: float) -> Quantized:
        made: Quantized = Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=torch.float32)
        return made

    def __init__(self, numbers: Tensor, scale: float) -> None:
        self.numbers, self.scale = numbers, scale

    def dequantize(self) -> Tensor:
        return self.numbers.float() * self.scale

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            return cls(func(args[0].numbers), args[0].scale)

        def plain(value: Any) -> Any:
            return value.dequantize() if isinstance(value, cls) else value

        return func(*tree_map(plain, args), **tree_map(plain, kwargs or {}))


@pytest.fixture
def mesh(one_process: None) -> Any:
    return init_device_mesh("cpu", (1,))


def test_quantised_subclasses_are_measured_by_what_they_stand_for(tmp_path: Path) -> None:
    numbers = torch.tensor([[3, -4], [0, 100]], dtype=torch.int8)
    layer = nn.Linear(2, 2, bias=False)
    layer.weight = nn.Parameter(Quantized(numbers, 0.5), requires_grad=False)
    true = tt.measure(numbers.float() * 0.5)
    found = tt.measure(layer.weight)
    assert (found.l2, found.max, found.notes) == (true.l2, true.max, ("dequantized",))
    for to in tt.Stats(exact=True), tt.Memory():
        with tt.watch(layer, ".:param", to=to) as w:
            layer(torch.ones(1, 2))
        assert not w.absent
        assert w.run.stats(".:param[weight]").l2 == true.l2
        again = tt.open(w.run.save(tmp_path / "run.safetensors"))
        assert again.stats(".:param[weight]").l2 == true.l2
        assert "dequantized" in again.stats(".:param[weight]").notes
    assert type(w.run[".:param[weight]"]) is Quantized  # As it flowed.
    assert torch.equal(again[".:param[weight]"], numbers.float() * 0.5)


def test_weights_of_torchao_are_measured() -> None:
    quantization = pytest.importorskip("torchao.quantization")
    layer = nn.Linear(64, 32).to(torch.bfloat16)
    quantization.quantize_(layer, quantization.Float8WeightOnlyConfig())
    with tt.watch(layer, ".:param", to=tt.Stats(exact=True)) as w:
        layer(torch.ones(1, 64, dtype=torch.bfloat16))
    true = layer.weight.dequantize().double().norm()
    assert w.run.stats(".:param[weight]").l2 == pytest.approx(float(true))


def test_what_is_still_being_sent_is_waited_for() -> None:
    collectives = pytest.importorskip("torch.distributed._functional_collectives")

    class Sending(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return collectives.AsyncCollectiveTensor(x * 2)

    for to in tt.Stats(), tt.Memory():
        model = Sending()
        with tt.watch(model, to=to) as w:
            model(torch.ones(3))
        assert not w.absent
        assert w.run.stats(".:output").notes == ("waited for its communication",)
        assert w.run.stats(".:output").l2 == pytest.approx(12**0.5)
    assert type(w.run[".:output"]) is Tensor


PLACED: Mapping[str, Any] = {
    "shard 0 of 1 (Shard(dim=0))": Shard(0),
    "replica of 1": Replicate(),
    "partial sum of 1, not reduced": Partial(),
    "partial max of 1, not reduced": Partial("max"),
}


@pytest.mark.parametrize("said", PLACED)
def test_distributed_tensors_are_kept_as_their_local_part(said: str, mesh: Any) -> None:
    local = torch.arange(6.0).reshape(2, 3)

    class Distributed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return DTensor.from_local(x, mesh, [PLACED[said]], run_check=False)

    model = Distributed()
    for to in tt.Stats(), tt.Memory():
        with tt.watch(model, ".:output,grad_output", to=to) as w:
            model(local.clone().requires_grad_()).to_local().sum().backward()
        assert not w.absent
        assert w.run.stats(".:output").notes == (said,)
        assert w.run.stats(".:output").l2 == pytest.approx(float(local.norm()))
        assert w.run.stats(".:grad_output").num_tensors == 1
    assert type(w.run[".:output"]) is Tensor and torch.equal(w.run[".:output"], local)
    assert tt.measure(DTensor.from_local(local, mesh, [PLACED[said]])).notes == (said,)


def test_the_dims_of_a_mesh_are_named(mesh: Any) -> None:
    named = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    tensor = DTensor.from_local(torch.ones(2, 2), named, [Replicate(), Shard(1)], run_check=False)
    assert tt.measure(tensor).notes == ("replica of 1 on dp; shard 0 of 1 (Shard(dim=1)) on tp",)


def test_an_update_of_another_shape_than_its_parameter_has_no_ratio() -> None:
    layer = nn.Linear(2, 2, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    for to in tt.Stats(), tt.Memory():
        with tt.watch(layer, ".:param,update", to=to) as w:
            layer(torch.ones(1, 2)).sum().backward()
            layer.weight.data = layer.weight.data[:1].clone()  # As a gathered weight and a shard.
            layer.weight.grad = torch.ones(1, 2)
            optimizer.step()
        stats = w.run.stats(".:update[weight]")
        assert stats.update_ratio != stats.update_ratio
        assert "has shape (2, 2) and its update (1, 2)" in stats.why_no_ratio
        layer.weight.data, layer.weight.grad = torch.ones(2, 2), None

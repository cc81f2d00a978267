"""The port ``saved``, against the nodes of autograd."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import bits
import pytest
import torch
from models import seeded, small
from random_numbers import fixed_seed
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import torchtap as tt
from torchtap.testing import Net, Specimen, default_loss, zoo

NETWORKS = {name: small()[name] for name in ("resnet18", "densenet", "gpt", "lstm", "digits")}


SPECIMENS = [one for one in zoo() if one.backward and one.raises is None]
PLAIN = [one for one in SPECIMENS if not one.recomputes]
every_network = pytest.mark.parametrize("name", NETWORKS)


def by_hand(output: Any) -> list[tuple[str, Any]]:
    """Every ``grad_fn._saved_*`` that can be reached: operation and slot, and the bits."""
    todo = [t.grad_fn for t in tensors_of(output) if t.grad_fn is not None]
    seen, found = set(todo), []
    for node in todo:
        for slot in dir(node):
            if slot.startswith("_raw_saved_"):
                is_python = slot == "_raw_saved_tensors"  # An autograd.Function.
                kept = getattr(node, slot[5:] if is_python else slot[4:])
                op = f"{node.name()}.{slot.removeprefix('_raw_saved_')}"
                several = kept if isinstance(kept, tuple | list) else [kept]
                places = [f"{op}.{i}" if several is kept else op for i in range(len(several))]
                found += [
                    (place, look(one))
                    for place, one in zip(places, several, strict=True)
                    if isinstance(one, Tensor)
                ]
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                todo.append(following)
    return found


def look(tensor: Tensor) -> Any:
    if tensor.dtype is torch.uint8:  # The workspace of an LSTM, not all of which is written.
        return tensor.dtype, tensor.shape
    if tensor.layout is not torch.strided or type(tensor) not in (Tensor, nn.Parameter):
        return type(tensor), tensor.shape
    dtype, shape, _, content = bits.bits(tensor)  # A copy has strides of its own.
    return dtype, shape, content


def tensors_of(output: Any) -> list[Tensor]:
    from torchtap.core.tree import leaves

    return [tensor for _, tensor in leaves([output])]


def without_number(leaf: str) -> str:
    return leaf.partition("~")[0]


def watched(model: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    with tt.watch(model, "*:saved", copy="always") as w:
        output = model(*args, **kwargs)
    return output, w


DROPS = {
    "detached", "mixed_leaves", "mixture_of_experts", "never_called", "raises_and_survives",
    "unused_argument",
}  # fmt: skip
"""A module ran, and its output went nowhere: what it saved was read, and is gone by the end."""


@every_network
def test_what_is_saved_is_what_the_nodes_keep(name: str) -> None:
    build, inputs = NETWORKS[name]
    torch.manual_seed(0)
    output, w = watched(build(), (inputs(),), {})
    found = [(without_number(one.site.leaf), look(one.kept)) for one in w.run.records()]
    expected = by_hand(output)
    assert len(found) >= 10
    assert Counter(leaf for leaf, _ in found) == Counter(leaf for leaf, _ in expected)
    assert Counter(map(repr, found)) == Counter(map(repr, expected))


@every_network
def test_the_number_is_what_plain_hooks_count(name: str) -> None:
    build, inputs = NETWORKS[name]
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor.detach())
        return tensor.detach()

    torch.manual_seed(0)
    model = build()
    with saved_tensors_hooks(pack, lambda kept: kept):
        output = model(inputs())
    expected = Counter(repr(look(one)) for one in packed)
    assert output is not None
    torch.manual_seed(0)
    _, w = watched(build(), (inputs(),), {})
    assert Counter(repr(look(one.kept)) for one in w.run.records()) == expected


@pytest.mark.parametrize("specimen", PLAIN, ids=str)
def test_what_a_specimen_saves_is_what_its_nodes_keep(specimen: Specimen) -> None:
    args, kwargs = specimen.inputs()
    torch.manual_seed(0)
    output, w = watched(specimen.build(), args, kwargs)
    expected = Counter(repr(one) for one in by_hand(output))
    found = Counter(
        repr((without_number(one.site.leaf), look(one.kept))) for one in w.run.records()
    )
    assert not expected - found
    assert found == expected or specimen.name in DROPS


@pytest.mark.parametrize("specimen", SPECIMENS, ids=str)
def test_watching_what_is_saved_changes_nothing(specimen: Specimen) -> None:
    def facts(is_watched: bool) -> bits.Facts:
        model = specimen.build()
        with fixed_seed():
            w = tt.watch(model, "*:saved") if is_watched else None
            args, kwargs = specimen.inputs()
            found = bits.observe(model, args, kwargs, default_loss)
            if w is not None:
                w.close()
        return found

    assert bits.differences(facts(False), facts(True)) == []


def test_operations_slots_and_labels() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    x = torch.randn(5, 3)
    with tt.watch(model, "*:saved") as w:
        model(x)
    found = {str(one.site): one.labels for one in w.run.records()}
    assert found == {
        "0:saved[AddmmBackward0.mat1]": (),
        "1:saved[ReluBackward0.result]": (),
        "2:saved[AddmmBackward0.mat1]": ("duplicate",),
        "2:saved[AddmmBackward0.mat2]": ("parameter",),
    }
    assert torch.equal(w.run.get("0:saved[AddmmBackward0.mat1]"), x)
    assert torch.equal(w.run.get("2:saved[AddmmBackward0.mat2]"), model[2].weight.t())


def test_a_parameter_that_autocast_has_cast_is_labelled() -> None:
    model = nn.Linear(3, 4)
    with tt.watch(model, "*:saved") as w, torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(5, 3, requires_grad=True))
    labels = {one.site.leaf: one.labels for one in w.run.records()}
    assert labels["AddmmBackward0.mat2"] == ("parameter cast",)


def test_an_operation_that_runs_twice_is_numbered() -> None:
    model = Net(lambda m, x: x.sin().sin())
    with tt.watch(model, "*:saved") as w:
        model(torch.ones(2, requires_grad=True))
    leaves = [one.site.leaf for one in w.run.records()]
    assert sorted(leaves) == ["SinBackward0.self", "SinBackward0.self~2"]


@pytest.mark.parametrize("use_reentrant", [True, False], ids=["reentrant", "non-reentrant"])
def test_reading_recomputes_no_checkpoint(use_reentrant: bool) -> None:
    calls: list[int] = []

    def body(net: Any, x: Tensor) -> Tensor:
        def block(y: Tensor) -> Tensor:
            calls.append(1)
            return net.a(y).sin()

        return checkpoint(block, x, use_reentrant=use_reentrant).cos()

    model = Net(body, a=nn.Linear(3, 3))
    x = torch.randn(2, 3, requires_grad=True)
    with tt.watch(model, "*:saved") as w:
        output = model(x)
    assert len(calls) == 1
    found = {without_number(one.site.leaf) for one in w.run.records()}
    assert "CosBackward0.self" in found and "SinBackward0.self" not in found
    if not use_reentrant:
        reasons = {entry.reason for entry in w.absent if entry.site.leaf}
        assert reasons == {"it is not kept: activation checkpointing computes it again in backward"}
    output.sum().backward()
    assert len(calls) == 2


def test_reading_runs_no_saved_tensor_hooks() -> None:
    unpacked: list[int] = []

    def unpack(kept: Tensor) -> Tensor:
        unpacked.append(1)
        return kept

    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    with (
        tt.watch(model, "*:saved") as w,
        saved_tensors_hooks(lambda tensor: tensor.detach(), unpack),
    ):
        output = model(torch.randn(2, 3))
    assert not unpacked and len(w.run) == 0
    reasons = {entry.reason for entry in w.absent if entry.site.leaf}
    assert len(reasons) == 1 and "packed by a saved-tensor hook" in reasons.pop()
    output.sum().backward()
    assert unpacked


def test_it_says_what_is_offloaded() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    with tt.watch(model, "*:saved") as w, tt.offload("disk", min_bytes=0):
        model(torch.randn(2, 3))
    assert any("OffloadEngine.unpack" in entry.reason for entry in w.absent)
    assert len(w.run) == 0


def test_statistics_of_what_is_saved() -> None:
    model, x = nn.Sequential(nn.Linear(3, 3)), torch.randn(6, 3)
    with tt.watch(model, "0:saved", to=tt.Stats()) as w:
        model(x)
    found = w.run.stats("0:saved[AddmmBackward0.mat1]")
    assert (found.min, found.max) == (float(x.min()), float(x.max()))


def test_a_saved_run_is_read_again(tmp_path: Path) -> None:
    build, inputs = NETWORKS["gpt"]
    model = build()
    with tt.watch(model, "*:saved") as w:
        model(inputs())
    again = tt.open(w.run.save(tmp_path / "run.safetensors"))
    left = [(str(one.site), one.labels, look(one.kept)) for one in w.run.records()]
    right = [(str(one.site), one.labels, look(one.kept)) for one in again.records()]
    assert sorted(map(repr, left)) == sorted(map(repr, right))

"""Watching distributed trainings: what a rank holds is told apart from the whole.

Every program runs on two real processes over gloo. On each, only the values that plain PyTorch
gives are taken for true.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from models import relu_mlp, rows
from torch.nn.parallel import DistributedDataParallel

import ranks
import torchtap as tt

pytestmark = pytest.mark.slow

HEAD = """
import os, warnings
import torch, torchtap as tt
from torch import distributed, nn

warnings.simplefilter("ignore")
torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank = distributed.get_rank()
X = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(9))


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def near(one, other):
    assert abs(one - other) <= 1e-6 * abs(other), (one, other)

"""


def run_on_two_ranks(tmp_path: Path, program: str) -> None:
    ranks.run_on_two_ranks(tmp_path, HEAD + textwrap.dedent(program))


FSDP = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, CPUOffloadPolicy, MixedPrecisionPolicy
from torch.utils.checkpoint import checkpoint

def sharded(stays_gathered, **how):
    model = mlp()
    fully_shard(model[0], reshard_after_forward=not stays_gathered, **how)
    return fully_shard(model, **how)  # The root stays gathered after its forward.

def train(model, to, steps=2):
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    local = lambda: {n: p.to_local().detach().clone() for n, p in model.named_parameters()}
    truth = []
    with tt.watch(model, "*:param,update,param_grad", to=to) as w:
        for k in range(steps):
            optimizer.zero_grad()
            before = local()
            model(X[k, rank * 4 : rank * 4 + 4]).float().square().mean().backward()
            grads = {n: p.grad.to_local().clone() for n, p in model.named_parameters()}
            optimizer.step()
            truth.append((before, grads, local()))
            w.step()
    assert not w.absent, w.absent
    return w.run, truth

def ports(old, grad, new):
    return {"param": old, "param_grad": grad, "update": new - old}.items()

SHARD = f"shard {rank} of 2 (Shard(dim=0))"
"""

FSDP_ONE_PLACEMENT = (
    FSDP
    + """
for stays_gathered in (False, True):
    run, truth = train(sharded(stays_gathered), tt.Stats(exact=True))
    for k, (before, grads, after) in enumerate(truth):
        for name, old in before.items():
            path, leaf = name.split(".")
            update = run.stats(f"{path}:update[{leaf}]", step=k)
            near(update.l2, float((after[name] - old).norm()))
            near(update.update_ratio, float((after[name] - old).norm() / old.norm()))
            param_grad = run.stats(f"{path}:param_grad[{leaf}]", step=k)
            near(param_grad.l2, float(grads[name].norm()))
            assert param_grad.notes == ("reduced", SHARD), param_grad.notes
            param = run.stats(f"{path}:param[{leaf}]", step=k)
            assert param.notes == update.notes == (SHARD,), (param.notes, update.notes)
            near(param.l2, float(old.norm()))
    run, truth = train(sharded(stays_gathered), tt.Memory())
    for k, (before, grads, after) in enumerate(truth):
        for name, old in before.items():
            path, leaf = name.split(".")
            for port, true in ports(old, grads[name], after[name]):
                record = run.record(f"{path}:{port}[{leaf}]", step=k)
                assert type(record.value) is torch.Tensor and SHARD in record.labels
                assert torch.equal(record.value, true), (port, name)
                assert run.stats(record.site, step=k).notes == record.labels
"""
)

FSDP_VARIANTS = (
    FSDP
    + """
class Checkpointed(nn.Linear):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)

half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for how in {"mp_policy": half}, {"offload_policy": CPUOffloadPolicy(pin_memory=False)}, {}:
    model = mlp()
    if not how:
        torch.manual_seed(0)
        model[0] = Checkpointed(8, 16)
    fully_shard(model[0], **how)
    model = fully_shard(model, **how)
    run, truth = train(model, tt.Memory())
    for k, (before, grads, after) in enumerate(truth):
        for name, old in before.items():
            path, leaf = name.split(".")
            for port, true in ports(old, grads[name], after[name]):
                assert torch.equal(run.get(f"{path}:{port}[{leaf}]", step=k), true), (how, port)

# Without resharding after the backward, and with a backward that is not reduced.
model = sharded(True)
model.set_reshard_after_backward(False)
w = tt.watch(model, "*:param_grad")
model.set_requires_gradient_sync(False)
model(X[0, rank * 4 : rank * 4 + 4]).sum().backward()
assert len(w.run) == 0
model.set_requires_gradient_sync(True)
model(X[1, rank * 4 : rank * 4 + 4]).sum().backward()
w.close()
for module in (model, model[0]):
    module.reshard()
for name, param in model.named_parameters():
    path, leaf = name.split(".")
    record = w.run.record(f"{path}:param_grad[{leaf}]")
    assert torch.equal(record.value, param.grad.to_local()) and "reduced" in record.labels
"""
)

FSDP_EDITS = (
    FSDP
    + """
def gradients(is_edited, stays_gathered):
    model = sharded(stays_gathered)
    edit = tt.edit(model, "*:param_grad", lambda gradient: gradient * 0.5) if is_edited else None
    for k in range(2):
        model(X[k, rank * 4 : rank * 4 + 4]).square().mean().backward()
    if edit is not None:
        edit.close()
    return [param.grad.to_local().clone() for param in model.parameters()]

for stays_gathered in (False, True):
    plain, halved = (gradients(is_edited, stays_gathered) for is_edited in (False, True))
    assert all(torch.equal(a * 0.5, b) for a, b in zip(plain, halved, strict=True))
"""
)

FSDP_FREEZES = (
    FSDP
    + """
for is_gathered in (False, True):
    model = sharded(True)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    if is_gathered:
        with torch.no_grad():
            model(X[0, :4])
    frozen = tt.freeze(model, "2")
    for k in range(2):
        optimizer.zero_grad()
        model(X[k, rank * 4 : rank * 4 + 4]).square().mean().backward()
        optimizer.step()
    frozen.close()
    for module in (model, model[0]):
        module.reshard()
    for (name, new), old in zip(model.named_parameters(), mlp().parameters(), strict=True):
        assert torch.equal(new.full_tensor(), old) is name.startswith("2"), (is_gathered, name)
"""
)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(FSDP_FREEZES, id="freezes"),
        pytest.param(FSDP_EDITS, id="edits"),
        pytest.param(FSDP_ONE_PLACEMENT, id="groups_that_stay_gathered"),
        pytest.param(FSDP_VARIANTS, id="variants"),
    ],
)
def test_fsdp_parameters_are_those_of_this_ranks_shard(program: str, tmp_path: Path) -> None:
    run_on_two_ranks(tmp_path, program)


TENSOR_PARALLEL = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial
from torch.utils._python_dispatch import TorchDispatchMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module,
)

class Calls(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.counts = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented
        if "c10d" in func.namespace and "wait" not in str(func):
            self.counts[str(func)] = self.counts.get(str(func), 0) + 1
        return func(*args, **(kwargs or {}))

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False)

    def forward(self, x):
        return self.down(torch.relu(self.up(self.norm(x))))

def build():
    from torch.distributed.tensor import Replicate, Shard
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2,))
    return parallelize_module(Block(), mesh, {
        "norm": SequenceParallel(sequence_dim=1),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(),
    })

def local(tensor):
    with torch.no_grad():
        tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        return (tensor.wait() if hasattr(tensor, "wait") else tensor).detach().clone()

def train(watched=None, to=None):
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    found, told, placements = [], {}, {}
    def look(name):
        def hook(module, args, output):
            told[name + ":output"] = local(output)
        return hook
    for name, module in model.named_children():
        module.register_forward_hook(look(name))
    w = None if watched is None else tt.watch(model, watched, to=to)
    with Calls() as calls:
        for k in range(2):
            optimizer.zero_grad()
            loss = model(X[k : k + 1].clone().requires_grad_()).square().sum()
            loss.backward()
            if k == 0:
                for name, param in model.named_parameters():
                    told[name] = local(param.grad)
                    placements[name] = param.grad.placements
            optimizer.step()
            found += [local(param) for param in model.parameters()]
            if w is not None:
                w.step()
    if w is not None:
        w.close()
    return found, told, placements, calls.counts, w

plain, told, placements, counts, _ = train()
assert counts and placements["norm.weight"] == (Partial("sum"),)
WHERE = "*:input,output,grad_input,grad_output,param,param_grad,update"
for to in (tt.Memory, lambda: tt.Stats(exact=True), lambda: [tt.Memory(), tt.Stats()]):
    # One rank alone watches: what communicates unasked would hang, and both would count it.
    for watcher in 0, 1:
        found, own, _, own_counts, w = train(WHERE if rank == watcher else None, to())
        assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))
        assert counts == own_counts, (counts, own_counts)
        if rank != watcher:
            continue
        assert all("DTensor" not in entry.reason for entry in w.absent), w.absent
        for name in "weight", "bias":
            stats = w.run.stats(f"norm:param_grad[{name}]", step=0)
            near(stats.l2, float(told[f"norm.{name}"].norm()))
            assert stats.notes == ("partial sum of 2, not reduced",), stats.notes
        grad = w.run.stats("up:param_grad[weight]", step=0)
        assert grad.notes == ("reduced", f"shard {rank} of 2 (Shard(dim=0))"), grad.notes
        near(grad.l2, float(told["up.weight"].norm()))
        for name in "norm", "up", "down":
            stats = w.run.stats(f"{name}:output", step=1)
            near(stats.l2, float(own[f"{name}:output"].norm()))
        assert "shard" in w.run.stats("norm:output").notes[0]
        assert not {"local", "reduced"} <= set(w.run.stats("norm:update[weight]").notes)
        repr(w.run), w.run.table(), w.run.mean_norm("*:output")
        again = tt.open(w.run.save(f"run{rank}.safetensors"))
        partial = again.stats("norm:param_grad[bias]", step=0)
        assert partial.notes == ("partial sum of 2, not reduced",)
        if len(w.run):
            assert torch.equal(w.run.get("norm:param_grad[bias]", step=0), told["norm.bias"])
            assert torch.equal(again.get("norm:param_grad[bias]", step=0), told["norm.bias"])
            assert {type(record.value) for record in w.run.records()} == {torch.Tensor}

# An edit that only looks takes no communication either, on one rank alone.
with Calls() as looking:
    model = build()
    edit = tt.edit(model, "*:output,grad_output", lambda x: None) if rank == 0 else None
    model(X[0:1].clone()).square().sum().backward()
with Calls() as plain:
    build()(X[0:1].clone()).square().sum().backward()
assert looking.counts == plain.counts
"""


def test_tensor_parallel_values_are_local_and_nothing_communicates(tmp_path: Path) -> None:
    run_on_two_ranks(tmp_path, TENSOR_PARALLEL)


PIPELINE = """
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

def stage():
    torch.manual_seed(rank)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))

def train(watched, to=None):
    model = stage()
    truth, seen = [], []
    # The gradient of each microbatch as it arrives, copied there and then.
    def look(module, args, output):
        if output.requires_grad:
            output.register_hook(lambda gradient: truth.append(gradient.clone()))
    model[2].register_forward_hook(look)
    runs = Schedule1F1B(
        PipelineStage(model, rank, 2, torch.device("cpu")), 4,
        loss_fn=lambda out, target: (out - target).square().sum(),
    )
    w = tt.watch(model, "*:output,grad_output,grad_input", to=to) if watched else None
    for k in range(3):
        x = X[k].repeat(2, 1)
        runs.step(x) if rank == 0 else runs.step(target=x)
        if w is not None:
            w.step()
    # Before the first microbatch the stage runs once on uninitialised memory, to learn shapes.
    return truth[-12:], w, [param.grad.clone() for param in model.parameters()]

truth, _, plain = train(False)
for to in None, tt.Stats(exact=True):
    again, w, grads = train(True, to)
    assert all(torch.equal(a, b) for a, b in zip(plain, grads, strict=True))
    assert len(again) == 12 and all(torch.equal(a, b) for a, b in zip(truth, again, strict=True))
    if to is None:
        rows = list(w.run.records("2:grad_output"))
        assert len(rows) == len(list(w.run.records("2:output"))) == 12
        assert [row.step for row in w.run.records("2:output", phase="eval")] == [0]
        for true, row in zip(again, rows, strict=True):
            assert torch.equal(row.value, true), row
    else:
        for k in range(3):
            l2 = torch.stack(again[4 * k : 4 * k + 4]).norm()
            near(w.run.stats("2:grad_output", step=k).l2, float(l2))
"""


def test_gradients_received_in_a_pipelines_reused_buffers_are_kept(tmp_path: Path) -> None:
    run_on_two_ranks(tmp_path, PIPELINE)


DDP = """
import contextlib
from torch.nn.parallel import DistributedDataParallel

def train(how, watched, to=None, syncs=(True,)):
    model = mlp()
    wrapped = DistributedDataParallel(model, **how)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    local = lambda: {n: p.detach().clone() for n, p in model.named_parameters()}
    truth, arrived = [], {}
    for name, param in model.named_parameters():
        keep = lambda param, name=name: arrived.__setitem__(name, param.grad.clone())
        param.register_post_accumulate_grad_hook(keep)
    ports = "*:output,grad_output,param,param_grad,update"
    w = tt.watch(wrapped, ports, to=to) if watched else None
    for k in range(3):
        optimizer.zero_grad()
        before = local()
        for sync in syncs:
            with contextlib.nullcontext() if sync else wrapped.no_sync():
                wrapped(X[k, rank * 4 : rank * 4 + 4]).square().mean().backward()
        optimizer.step()
        truth.append((before, dict(arrived), local()))
        if w is not None:
            w.step()
    return truth, w

VARIANTS = (
    ({}, (True,)),
    ({"static_graph": True}, (True,)),
    ({"gradient_as_bucket_view": True}, (True,)),
    ({}, (False, True)),
)
for how, syncs in VARIANTS:
    plain, _ = train(how, False, syncs=syncs)
    for to in tt.Memory(), tt.Stats(exact=True):
        truth, w = train(how, True, to, syncs)
        for a, b in zip(plain, truth, strict=True):
            assert all(torch.equal(a[n][p], b[n][p]) for n in range(3) for p in a[n]), how
        for k, (before, grads, after) in enumerate(truth):
            for name, old in before.items():
                path, leaf = name.split(".")
                true = {"param": old, "param_grad": grads[name], "update": after[name] - old}
                for port, expected in true.items():
                    stats = w.run.stats(f"{path}:{port}[{leaf}]", step=k)
                    assert stats.notes == (("local",) if port == "param_grad" else ()), stats.notes
                    if len(w.run):
                        value = w.run.get(f"{path}:{port}[{leaf}]", step=k)
                        assert torch.equal(value, expected), (how, port, name)
                    else:
                        near(stats.l2, float(expected.norm()))
                near(stats.update_ratio, float((after[name] - old).norm() / old.norm()))
        assert not w.absent, w.absent

# What two ranks saw is, merged, what one process sees of the whole batch.
_, w = train({}, True, tt.Stats(exact=True, statistics=[tt.stats.top_k(2)]))
w.run.save(f"rank{rank}.safetensors")
distributed.barrier()
one, other = (tt.open(f"rank{number}.safetensors").stats("2:output", step=0) for number in (0, 1))
merged, whole = one.merge(other), tt.measure(mlp()(X[0]).detach())
for name in "numel", "mean", "std", "l2", "min", "max":
    near(getattr(merged, name), getattr(whole, name))
try:
    merged.extra["top_k"]
except tt.RunError as error:
    assert "merged" in str(error)
else:
    raise AssertionError("a merged result of a further statistic")
"""


def test_ddp_state_is_local_and_outputs_of_the_ranks_merge(tmp_path: Path) -> None:
    run_on_two_ranks(tmp_path, DDP)


PROOFS = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
)

mesh = init_device_mesh("cpu", (2,))
whole = lambda output: output.full_tensor().square().sum()

split = parallelize_module(mlp(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
result = tt.verify(split, X[0])
assert result and result.num_values == 16 and result.num_gradients == 10, result
assert [str(entry.site) for entry in result.unverified] == ["2:grad_input"], result
assert "DTensor" in result.unverified[0].reason
only = tt.verify(split, X[0], where="2:grad_input")
assert not only and only.hollow, only

norm = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8))
plan = {
    "0": SequenceParallel(use_local_output=False),
    "1": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
}
result = tt.verify(parallelize_module(norm, mesh, plan), X, where="*:input,param,param_grad")
assert result and not result.unverified, result  # The gradients of the norm are partial sums.

shards = mlp()
fully_shard(shards[0])
result = tt.verify(fully_shard(shards), X[0], where="*:*,param,param_grad")
assert result and result.num_gradients == 12 and not result.unverified, result

partial = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Identity())
partial[0].weight = nn.Parameter(distribute_tensor(partial[0].weight.data, mesh, [Shard(1)]))
columns = distribute_tensor(X[0], mesh, [Shard(1)])
if rank == 0:  # Alone: what communicated would wait for the other rank.
    with torch.no_grad():
        assert tt.verify(partial, columns), tt.verify(partial, columns)
assert not tt.verify(partial, columns, loss=whole).wrong
"""


def test_verify_takes_the_part_of_its_rank_for_true(tmp_path: Path) -> None:
    run_on_two_ranks(tmp_path, PROOFS)


@pytest.mark.usefixtures("one_process")
def test_ddp_is_looked_through() -> None:
    model = relu_mlp()
    wrapped = DistributedDataParallel(model)
    with tt.watch(wrapped, ["*:output,grad_output", "0:param_grad"]) as w:
        for _ in range(3):
            wrapped(rows()).sum().backward()
            w.step()
    assert not any("module" in str(site) for site in w.run.sites)
    assert w.run["2:grad_output"].unique().tolist() == [1.0]
    record = w.run.record("0:param_grad[bias]", step=0)
    assert record.labels == ("local",)
    assert w.run.steps == [0, 1, 2]

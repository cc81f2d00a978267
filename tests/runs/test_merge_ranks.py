"""Runs of real ranks, merged, against one process that trains on the whole batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import ranks
import torchtap as tt

pytestmark = pytest.mark.slow

STEPS = 3
X = torch.randn(STEPS, 8, 8, generator=torch.Generator().manual_seed(9))
WHERE = "*:input,output,grad_input,grad_output,param,param_grad,step_grad,update"

HEAD = f"""
import os, warnings
import torch, torchtap as tt
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh

warnings.simplefilter("ignore")
torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank, world = distributed.get_rank(), distributed.get_world_size()
X = torch.randn({STEPS}, 8, 8, generator=torch.Generator().manual_seed(9))
WHERE = "{WHERE}"

def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

def train(model, part, to, name, wrapped=None, broken=None, steps={STEPS}):
    optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    w = tt.watch(model, WHERE, to=to)
    for k in range(steps):
        optimizer.zero_grad()
        (wrapped or model)(X[k, part]).square().mean().backward()
        optimizer.step()
        if broken is not None and (rank, k) == broken:
            with torch.no_grad():
                model[2].weight[0, 0] += 1e-3
        w.step()
    w.close()
    w.run.save(f"{{name}}{{rank}}.safetensors")
    return w.run

def part_of(number, whole):
    size = 8 // whole
    return slice(number * size, number * size + size)
"""

LOCAL = {f"{path}:param_grad[{leaf}]" for path in "02" for leaf in ("weight", "bias")}


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def one_process(model: nn.Module | None = None, samples: int = 8) -> dict[tuple[str, int], Tensor]:
    """Site and step -> value of a training with the whole batch, by plain hooks."""
    model = mlp() if model is None else model
    found: dict[tuple[str, int], Tensor] = {}
    optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    step = 0

    def look(name: str, module: nn.Module) -> None:
        def forward(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            found[f"{name}:input[0]", step] = args[0].detach().clone()
            found[f"{name}:output", step] = output.detach().clone()
            key = f"{name}:grad_output", step
            output.register_hook(lambda gradient: found.__setitem__(key, gradient.clone()))
            if args[0].requires_grad:  # Each input has one use, so this is what went through.
                into = f"{name}:grad_input[0]", step
                args[0].register_hook(lambda gradient: found.__setitem__(into, gradient.clone()))

        module.register_forward_hook(forward)

    for name, module in model.named_modules():
        look(name or ".", module)
    for step in range(STEPS):
        optimizer.zero_grad()
        before = {name: param.detach().clone() for name, param in model.named_parameters()}
        model(X[step, :samples]).square().mean().backward()
        optimizer.step()
        for name, param in model.named_parameters():
            path, _, leaf = name.rpartition(".")
            found[f"{path}:param[{leaf}]", step] = before[name]
            found[f"{path}:param_grad[{leaf}]", step] = param.grad.clone()
            found[f"{path}:step_grad[{leaf}]", step] = param.grad.clone()
            found[f"{path}:update[{leaf}]", step] = param.detach() - before[name]
            found[f"{path}:ratio[{leaf}]", step] = (param.detach() - before[name]).norm() / before[
                name
            ].norm()
    return found


def assert_whole(
    run: tt.Run, truth: Mapping[tuple[str, int], Tensor], *, factor: int = 1
) -> set[str]:
    """Every number of the merged run is that of one process; returns the sites that it lacks.

    Args:
        run: merged.
        truth: of one process.
        factor: how many times the gradient of the whole each gradient is.
    """
    lacking = set()
    for (text, step), value in truth.items():
        if ":ratio" in text:
            site = text.replace(":ratio", ":update")
            if site in run and value.isfinite():  # A bias that was all zero has none.
                ratio = run.stats(site, step=step).update_ratio
                assert ratio == pytest.approx(float(value), rel=1e-4), (text, step)
            continue
        if text not in run:
            lacking.add(text)
            continue
        stats = run.stats(text, step=step)
        times = factor if ":grad" in text else 1  # Gradients of parameters are averages.
        assert stats.numel == value.numel(), (text, stats)
        expected = value.double() * times
        size = float(expected.abs().mean())
        assert stats.mean == pytest.approx(float(expected.mean()), abs=1e-5 * size), (text, step)
        assert stats.l2 == pytest.approx(float(expected.norm()), rel=1e-5), (text, step)
        assert stats.max == pytest.approx(float(expected.max()), rel=1e-4, abs=1e-7), (text, step)
    return lacking


def merged(folder: Path, name: str, num: int) -> tt.Run:
    """Merge files in any order, saved and opened again."""
    files = [folder / f"{name}{rank}.safetensors" for rank in reversed(range(num))]
    run = tt.merge(files)
    again = tt.open(run.save(folder / f"{name}.safetensors"))
    assert again.meta == run.meta
    assert again.meta.world_size == num
    assert again.meta.rank is None
    return again


DDP = """
from torch.nn.parallel import DistributedDataParallel

for name, to in (("stats", tt.Stats(exact=True)), ("memory", tt.Memory())):
    model = mlp()
    run = train(model, part_of(rank, world), to, name, DistributedDataParallel(model))
    assert (run.meta.rank, run.meta.world_size, run.meta.batch_ranks) == (rank, world, ())
model = mlp()
train(model, part_of(rank, world), tt.Stats(), "broken", DistributedDataParallel(model), (1, 0))
short = 2 if rank == 1 else 3
train(mlp(), part_of(rank, world), tt.Stats(), "died", steps=short)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
for name, wrapped in (("broadcast", DistributedDataParallel(model)), ("own", None)):
    with tt.watch(model, "*:buffer", to=tt.Stats()) as w:
        for k in range(3):
            (wrapped or model)(X[k, part_of(rank, world)])
            w.step()
    w.run.save(f"{name}{rank}.safetensors")
"""


@pytest.mark.parametrize("num", [2, 4])
def test_ddp_merged_is_one_process_with_the_whole_batch(num: int, tmp_path: Path) -> None:
    ranks.run_on_ranks(tmp_path, HEAD + DDP, num)
    truth = one_process()
    for name in "stats", "memory":
        run = merged(tmp_path, name, num)
        assert assert_whole(run, truth, factor=num) == LOCAL, run
        stats = run.stats("2:grad_output", step=0)
        assert any(f"{num} times the gradient of the whole batch" in note for note in stats.notes)
        # Of each rank's own loss: no merge gives the average, and that is said.
        assert "0:param_grad[weight]" not in run
        reasons = {str(entry.site): entry.reason for entry in run.absent}
        assert all("step_grad" in reasons[text] for text in LOCAL)
        where, norms = run.over_ranks("0:param_grad[weight]", "l2")
        assert where == list(range(num)) and len(set(norms)) == num
        for rank, norm in zip(where, norms, strict=True):
            own = tt.open(tmp_path / f"{name}{rank}.safetensors")
            assert norm == pytest.approx(own.stats("0:param_grad[weight]", step=2).l2, rel=1e-12)
    kept = merged(tmp_path, "memory", num)
    for step in range(STEPS):
        whole = truth["0:output", step]
        assert torch.allclose(kept.cat("0:output", steps=step), whole, atol=1e-6)
    labels = [record.labels[-1] for record in kept.records("0:output", steps=0)]
    assert labels == [f"rank {rank}" for rank in range(num)]

    broken = merged(tmp_path, "broken", num)
    first = broken.absent[0]
    assert str(first.site) == "2:param[weight]"
    assert "first in step 1" in first.reason and "rank" in first.reason
    assert ("rank 1 differs from" if num > 2 else "ranks 0 and 1 differ") in first.reason
    assert broken.stats("2:param[weight]").num_tensors == 1  # Of step 0, in which all are alike.
    assert broken.steps == [0, 1, 2]
    assert merged(tmp_path, "broadcast", num).steps == [0, 1, 2]
    assert not merged(tmp_path, "broadcast", num).absent
    unlike = {str(entry.site) for entry in merged(tmp_path, "own", num).absent}
    assert unlike == {"1:buffer[running_mean]", "1:buffer[running_var]"}
    died = merged(tmp_path, "died", num)
    assert died.steps == [0, 1]
    assert any("rank 1 lacks step 2" in entry.reason for entry in died.absent)
    assert math.isnan(died.over_ranks("0:output", "mean", step=2)[1][1])


FSDP = """
from torch.distributed.fsdp import fully_shard

for name in "stats", "memory":
    for kind in (name, "hybrid_" + name) if world == 4 else (name,):
        to = tt.Stats(exact=True) if name == "stats" else tt.Memory()
        model = mlp()
        how = {}
        if kind != name:  # Two replicas of two shards.
            names = ("dp", "shards")
            how = {"mesh": init_device_mesh("cpu", (2, 2), mesh_dim_names=names)}
        fully_shard(model[0], **how)
        model = fully_shard(model, **how)
        train(model, part_of(rank, world), to, kind)
"""


@pytest.mark.parametrize("num", [2, 4, 3])
def test_fsdp_shards_merged_are_the_whole_parameters(num: int, tmp_path: Path) -> None:
    """Three ranks cut 16 rows unevenly, and of 4 rows the last has none; four have replicas too."""
    program = HEAD.replace("8 // whole", "6 // whole") if num == 3 else HEAD
    ranks.run_on_ranks(tmp_path, program + FSDP, num)
    truth = one_process(samples=6 if num == 3 else 8)
    kinds = ("stats", "memory")
    for name in (*kinds, *(f"hybrid_{kind}" for kind in kinds if num == 4)):
        run = merged(tmp_path, name, num)
        assert assert_whole(run, truth, factor=num) == set(), run
        if "memory" in name:
            for text in "0:param[weight]", "2:param[weight]", "2:param[bias]":
                assert torch.equal(run.get(text, step=0), truth[text, 0])
        gradient = run.stats("0:param_grad[weight]", step=0)
        assert gradient.numel == 128 and "reduced" not in gradient.notes
        assert "param_grad" not in {entry.site.port for entry in run.absent}


class Block(nn.Module):
    """The module of the tensor-parallel program, whole."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(self.norm(x))))


TENSOR_PARALLEL = """
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module,
)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8, bias=False)

    def forward(self, x):
        return self.down(torch.relu(self.up(self.norm(x))))

def build(mesh, local, sequence):
    torch.manual_seed(0)
    block = Block()
    if not sequence:
        return parallelize_module(block, mesh, {
            "up": ColwiseParallel(use_local_output=local),
            "down": RowwiseParallel(use_local_output=local),
        })
    return parallelize_module(block, mesh, {
        "": PrepareModuleInput(
            input_layouts=Replicate(), desired_input_layouts=Shard(0), use_local_output=False
        ),
        "norm": SequenceParallel(sequence_dim=0),
        "up": ColwiseParallel(input_layouts=Shard(0), use_local_output=local),
        "down": RowwiseParallel(use_local_output=True),
    })

tp = 2 if world > 2 else world
mesh = init_device_mesh("cpu", (world // tp, tp), mesh_dim_names=("dp", "tp"))
peers = tuple(mesh["tp"].mesh.flatten().tolist())
for sequence in False, True:
    for local in True, False:
        for kind, to in (("stats", tt.Stats(exact=True)), ("memory", tt.Memory())):
            model = build(mesh["tp"], local, sequence)
            if world > tp:
                model = fully_shard(model, mesh=mesh["dp"])
            name = f"{kind}_{'sequence' if sequence else 'tensor'}_{'local' if local else 'd'}_"
            run = train(model, part_of(rank // tp, world // tp), to, name)
            assert run.meta.batch_ranks == peers, run.meta.batch_ranks
"""


@pytest.mark.parametrize("num", [2, 4])
def test_tensor_parallel_ranks_merged_are_one_process(num: int, tmp_path: Path) -> None:
    """On four ranks two of them share each half of the batch, and FSDP2 shards what they have."""
    ranks.run_on_ranks(tmp_path, HEAD + TENSOR_PARALLEL, num)
    torch.manual_seed(0)
    truth = one_process(Block())
    for style in "tensor_local", "tensor_d", "sequence_local", "sequence_d":
        run = merged(tmp_path, f"stats_{style}_", num)
        sums = {"up:grad_input[0]"}  # Which nobody reduced where they are seen.
        if num == 2 and "sequence" in style:
            ports = ("param_grad", "step_grad")  # The optimizer reduces what it gets itself.
            sums |= {f"norm:{port}[{leaf}]" for port in ports for leaf in ("weight", "bias")}
        assert assert_whole(run, truth, factor=num // 2) == sums
        assert not any("as replicas" in entry.reason for entry in run.absent)
        kept = merged(tmp_path, f"memory_{style}_", num)
        unplaced = {str(entry.site) for entry in kept.absent if "plain tensor" in entry.reason}
        # What a module hands on as a plain tensor has no place that values can be joined by.
        assert unplaced == ({"up:output", "up:grad_output"} if "local" in style else set())
        assert assert_whole(kept, truth, factor=num // 2) == sums | unplaced
        for text in "up:param[weight]", "down:param[weight]", "norm:param[bias]":
            assert torch.allclose(kept.get(text, step=2), truth[text, 2], atol=1e-6)


class Layered(nn.Module):
    """The model of the pipelines; a stage is a copy without the blocks of other stages."""

    def __init__(self) -> None:
        super().__init__()
        self.embed: nn.Module | None = nn.Linear(8, 8)
        self.layers = nn.ModuleDict(
            {str(n): nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for n in range(4)}
        )
        self.head: nn.Module | None = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.embed is None else self.embed(x)
        for layer in self.layers.values():
            x = layer(x)
        return x if self.head is None else self.head(x)


PIPELINE = """
import copy
from torch.distributed.pipelining import (
    PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B, SplitPoint, pipeline,
)
from torch.distributed.fsdp import fully_shard

class Layered(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 8)
        self.layers = nn.ModuleDict(
            {str(n): nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for n in range(4)}
        )
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = x if self.embed is None else self.embed(x)
        for layer in self.layers.values():
            x = layer(x)
        return x if self.head is None else self.head(x)

def part(whole, stage, num):
    model = copy.deepcopy(whole)
    size = 4 // num
    for n in range(4):
        if n // size != stage:
            del model.layers[str(n)]
    if stage > 0:
        model.embed = None
    if stage < num - 1:
        model.head = None
    return model

mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "pp"))
pp, dp = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()
device = torch.device("cpu")
num_dp = world // 2
own = part_of(dp, num_dp)

def loss(out, target):
    return (out - target).square().mean()

def run(schedule, model, name, to=None, averages=False):
    optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    w = tt.watch(model, WHERE, to=to or tt.Stats(exact=True))
    for k in range(3):
        optimizer.zero_grad()
        x = X[k, own]
        target = {"target": torch.zeros(len(x), 4)} if pp == 1 else {}
        losses = []
        schedule.step(*([x] if pp == 0 else []), losses=losses, **target)
        if losses:
            w.log(loss=torch.stack(losses).mean())
        for param in model.parameters() if averages else ():  # DDP raises in a pipeline.
            distributed.all_reduce(param.grad, group=mesh.get_group("dp"))
            param.grad /= num_dp
        optimizer.step()
        w.step()
    w.close()
    w.run.save(f"{name}{rank}.safetensors")
    return w.run

for name in "stats", "memory":
    for kind in "gpipe", "1f1b", "fsdp":
        to = tt.Stats(exact=True) if name == "stats" else tt.Memory()
        torch.manual_seed(0)
        model = part(Layered(), pp, 2)
        if kind == "fsdp":
            for layer in model.layers.values():
                fully_shard(layer, mesh=mesh["dp"])
            fully_shard(model, mesh=mesh["dp"])
        stage = PipelineStage(model, pp, 2, device, group=mesh.get_group("pp"))
        averages = kind != "fsdp" and num_dp > 1
        schedule = ScheduleGPipe if kind == "gpipe" else Schedule1F1B
        found = run(schedule(stage, 2, loss), model, f"{kind}_{name}_", to, averages)
        meta = found.meta
        assert (meta.stages, meta.num_stages, meta.num_microbatches) == ((pp,), 2, 2), meta
"""

SINGLE = """
torch.manual_seed(0)
pipe = pipeline(Layered(), (X[0, :4],), split_spec={"layers.2": SplitPoint.BEGINNING})
stage = pipe.build_stage(pp, device)
found = run(Schedule1F1B(stage, 2, loss), stage.submod, "front_")
assert found.meta.stages == (pp,), found.meta

torch.manual_seed(0)
whole = Layered()
parts = nn.ModuleDict({f"part{n}": part(whole, n, 4) for n in (pp, pp + 2)})
stages = [PipelineStage(parts[f"part{n}"], n, 4, device) for n in (pp, pp + 2)]
found = run(ScheduleInterleaved1F1B(stages, 2, loss), parts, "loops_")
assert found.meta.stages == (pp, pp + 2), found.meta

model = nn.Sequential(nn.Linear(8, 8), nn.Tanh())  # Paths that both stages have.
stage = PipelineStage(model, pp, 2, device)
plain = lambda out, target: out.square().mean()
run(Schedule1F1B(stage, 2, plain), model, "same_")
"""


def layered() -> Layered:
    torch.manual_seed(0)
    return Layered()


@pytest.mark.parametrize("num", [2, 4])
def test_stages_of_a_pipeline_merged_are_one_process_with_the_whole_batch(
    num: int, tmp_path: Path
) -> None:
    """On four ranks each stage has two replicas, or two shards, with half of the batch each."""
    ranks.run_on_ranks(tmp_path, HEAD + PIPELINE + (SINGLE if num == 2 else ""), num)
    truth = one_process(layered())
    modules = {key: value for key, value in truth.items() if not key[0].startswith(".:")}
    sites = {key: value for key, value in modules.items() if ":param_grad" not in key[0]}
    for name in (
        f"{kind}_{to}_" for kind in ("gpipe", "1f1b", "fsdp") for to in ("stats", "memory")
    ):
        run = merged(tmp_path, name, num)
        assert assert_whole(run, sites, factor=num) == set(), (name, run.absent)
        assert not any("as replicas" in entry.reason for entry in run.absent)
        stats = run.stats("layers.3.0:grad_output", step=0)
        said = f"of each microbatch's own loss: {num} times the gradient of the whole batch"
        assert any(said in note for note in stats.notes)
        assert stats.num_tensors == num  # And not the forward that learns shapes, of phase eval.
        # The root is another module on each stage: it is named, and each rank's numbers are kept.
        refused = {str(entry.site): entry.reason for entry in run.absent if not entry.site.path}
        assert "another module on each of 2 stages" in refused[".:output"]
        assert ".:output" not in run
        out = truth[".:output", 2][
            : 8 // (num // 2)
        ].double()  # What the first last stage returned.
        assert run.over_ranks(".:output", "l2")[1][1] == pytest.approx(float(out.norm()), rel=1e-5)
        assert math.isnan(run.over_ranks("head:output", "l2")[1][0])
        loss = run.scalars("loss")[1][0]
        assert loss == pytest.approx(float(truth[".:output", 0].square().mean()), rel=1e-5)
        text = "layers.1.0:param_grad[weight]"
        if num == 2 or "fsdp" in name:  # Of replicas it is refused as without a pipeline.
            assert any("scale_grads" in note for note in run.stats(text).notes)
            whole = 2 * float(truth[text, 1].norm())  # The sum over microbatches.
            last = run.stats(text, step=1) if "stats" in name else tt.measure(run.get(text, step=1))
            assert last.l2 == pytest.approx(whole, rel=1e-5)
        else:
            assert text not in run
        if "memory" in name:
            for text in "embed:output", "layers.2.1:output":
                assert torch.allclose(run.cat(text, steps=1), truth[text, 1], atol=1e-6)
            assert torch.equal(
                run.get("head:param[weight]", step=0), truth["head:param[weight]", 0]
            )
    if num == 4:
        return
    # Stages that the frontend cut, two stages on each rank, and stages whose paths are alike.
    front = merged(tmp_path, "front_", num)
    assert front.meta.type_name("layers.3") and front.meta.type_name("embed")
    assert assert_whole(front, sites, factor=2) == set(), front.absent
    loops = merged(tmp_path, "loops_", num)
    home = {"embed": 0, "head": 3, **{f"layers.{n}": n for n in range(4)}}
    parts = {
        (f"part{n}.{text}", step): value
        for (text, step), value in sites.items()
        for path, n in home.items()
        if text.startswith(path)
    }
    assert assert_whole(loops, parts, factor=2) == set(), loops.absent
    same = merged(tmp_path, "same_", num)
    assert not same.sites
    reasons = {str(entry.site): entry.reason for entry in same.absent}
    assert "'0' is another module on each of 2 stages" in reasons["0:param[weight]"]

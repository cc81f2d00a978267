"""Trainings on several ranks, over gloo: DDP, FSDP, tensor parallelism, pipelines, meshes."""

from __future__ import annotations

from typing import Any

import torch
from networks import ConvNet, Experts, Tied, classes, pictures, tokens, vectors
from probe import COLUMNS, Probe
from row import Rows, refused, said
from rows_plain import NO_BACKWARD, NO_GRADIENT, NOT_CALLED, UNUSED, train
from torch import Tensor, distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

ON_TWO, ON_FOUR = Rows(), Rows()
NO_TWIN = "it is a DTensor, of which the twin makes no clone"

UNUSED_EXPERTS = (NOT_CALLED, NO_GRADIENT, NO_BACKWARD)


def part(step: int) -> int:
    """Number of this rank's batch."""
    return step * distributed.get_world_size() + distributed.get_rank()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """With momentum, so that it has a state."""
    return torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)


def mlp() -> nn.Sequential:
    """Six numbers to four."""
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 4))


# ---------------------------------------------------------------------- DDP


def _train_pictures(probe: Probe, model: Any, call: Any) -> None:
    train(probe, model, sgd(model), lambda k: F.cross_entropy(call(pictures(part(k))), classes(k)))


@ON_TWO("DDP", edited="inner")
def ddp_attached_to_the_wrapper(probe: Probe) -> None:
    model = DistributedDataParallel(ConvNet())
    probe.attach(model, pictures(part(0)))
    _train_pictures(probe, model, model)


@ON_TWO("DDP", edited="inner")
def ddp_attached_to_the_module(probe: Probe) -> None:
    model = DistributedDataParallel(ConvNet(), gradient_as_bucket_view=True)
    probe.attach(model.module, pictures(part(0)))
    probe.proves(model, pictures(part(0)))
    _train_pictures(probe, model, model)


@ON_TWO("DDP", edited="inner")
def ddp_attached_before_wrapping(probe: Probe) -> None:
    inner = ConvNet()
    probe.attach(inner, pictures(part(0)))
    model = DistributedDataParallel(inner, static_graph=True)
    probe.proves(model, pictures(part(0)))
    _train_pictures(probe, model, model)


@ON_TWO("DDP, find_unused_parameters", edited="shared", absent=UNUSED_EXPERTS)
def ddp_with_unused_parameters(probe: Probe) -> None:
    model = DistributedDataParallel(Experts(), find_unused_parameters=True)
    probe.attach(model, vectors(part(0)))
    train(probe, model, sgd(model), lambda k: model(vectors(part(k)), chosen=k % 2).square().mean())


@ON_TWO("DDP, no_sync", edited="0")
def ddp_accumulating_without_sync(probe: Probe) -> None:
    model = DistributedDataParallel(mlp())
    optimizer = sgd(model)
    probe.attach(model, vectors(part(0)))
    probe.optimizes(optimizer)
    for k in range(3):
        optimizer.zero_grad()
        with model.no_sync():
            first = model(vectors(part(k))).square().mean()
            first.backward()
        second = model(vectors(part(10 + k))).square().mean()
        second.backward()
        optimizer.step()
        probe.step((first, second))


@ON_TWO("DDP, communication hook", edited="0")
def ddp_with_a_hook_of_ones_own(probe: Probe) -> None:
    model = DistributedDataParallel(mlp())

    def reduced(flat: Tensor) -> Any:
        work = distributed.all_reduce(flat.div_(4), async_op=True).get_future()
        return work.then(lambda done: done.value()[0])

    model.register_comm_hook(None, lambda state, bucket: reduced(bucket.buffer()))
    probe.attach(model, vectors(part(0)))
    train(probe, model, sgd(model), lambda k: model(vectors(part(k))).square().mean())


@ON_TWO("DDP, communication hook", edited="0")
def ddp_that_compresses_to_fp16(probe: Probe) -> None:
    model = DistributedDataParallel(mlp())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    probe.attach(model, vectors(part(0)))
    train(probe, model, sgd(model), lambda k: model(vectors(part(k))).square().mean())


@ON_TWO("DDP, bf16 compression", cells=dict.fromkeys(COLUMNS, refused("NCCL")), edited="0")
def ddp_that_compresses_to_bf16(probe: Probe) -> None:
    model = DistributedDataParallel(mlp())
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    probe.attach(model, vectors(part(0)))
    train(probe, model, sgd(model), lambda k: model(vectors(part(k))).square().mean())


@ON_TWO("DDP, checkpoint", edited="blocks.0.norm", absent=(UNUSED,))
def ddp_with_checkpoints(probe: Probe) -> None:
    model = DistributedDataParallel(Tied(how={"use_reentrant": False}), static_graph=True)
    probe.attach(model, tokens(part(0)), tokens(1))
    train(probe, model, sgd(model), lambda k: model(tokens(part(k)), tokens(k + 1))[1])


@ON_TWO(
    "DDP, ZeRO optimizer", edited="0", absent=("those that made one do not hold it",), warns=True
)
def ddp_with_a_zero_optimizer(probe: Probe) -> None:
    model = DistributedDataParallel(mlp())
    from torch.distributed.optim import ZeroRedundancyOptimizer  # It warns where it is imported.

    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    probe.attach(model, vectors(part(0)))
    train(probe, model, optimizer, lambda k: model(vectors(part(k))).square().mean())


@ON_TWO("DDP, uneven inputs", edited="0")
def ddp_joined_with_uneven_inputs(probe: Probe) -> None:
    model = DistributedDataParallel(mlp())
    probe.attach(model, vectors(part(0)))
    optimizer = sgd(model)
    probe.optimizes(optimizer)
    for k in range(2):
        with Join([model]):
            for n in range(1 + distributed.get_rank()):
                optimizer.zero_grad()
                loss = model(vectors(part(2 * k + n))).square().mean()
                loss.backward()
                optimizer.step()
        probe.step(loss)


@ON_TWO(
    "DDP, compiled",
    edited="inner",
    compiles=True,
    tolerance=1e-4,
    warns=True,
    absent=("inside torch.compile", "compiled, and run uncompiled"),
)
def ddp_of_a_compiled_model(probe: Probe) -> None:
    inner = ConvNet()
    model = DistributedDataParallel(probe.compile(inner))
    probe.attach(model, pictures(part(0)))
    _train_pictures(probe, model, model)


@ON_TWO(
    "DDP, compiled",
    edited="inner",
    compiles=True,
    tolerance=1e-4,
    warns=True,
    absent=("inside torch.compile", "compiled, and run uncompiled"),
)
def ddp_that_is_compiled(probe: Probe) -> None:
    model = DistributedDataParallel(ConvNet())
    call = probe.compile(model)
    probe.attach(model, pictures(part(0)))
    _train_pictures(probe, model, call)


# ---------------------------------------------------------------------- FSDP2


def _train_sharded(probe: Probe, model: nn.Module, optimizer: Any = None) -> None:
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), 0.01)
    train(probe, model, optimizer, lambda k: model(vectors(part(k))).float().square().mean())


def _sharded(parts: Any = None, root: Any = None, **how: Any) -> nn.Sequential:
    model = mlp()
    fully_shard(model[0], **{**how, **(parts or {})})
    fully_shard(model, **{**how, **(root or {})})
    return model


@ON_TWO("FSDP2", edited="0")
def fsdp2_that_reshards_all(probe: Probe) -> None:
    model = _sharded(reshard_after_forward=True)
    probe.attach(model, vectors(part(0)))
    _train_sharded(probe, model)


@ON_TWO("FSDP2", edited="1")
def fsdp2_that_keeps_all_gathered(probe: Probe) -> None:
    model = _sharded(reshard_after_forward=False)
    probe.attach(model, vectors(part(0)))
    _train_sharded(probe, model)


@ON_TWO("FSDP2", edited="0")
def fsdp2_attached_before_sharding(probe: Probe) -> None:
    model = mlp()
    probe.attach(model, vectors(part(0)))
    fully_shard(model[0])
    fully_shard(model)
    probe.distributed()
    _train_sharded(probe, model)


@ON_TWO("FSDP2, mixed precision", edited="0")
def fsdp2_in_mixed_precision(probe: Probe) -> None:
    model = _sharded(mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    probe.attach(model, vectors(part(0)))
    _train_sharded(probe, model)


@ON_TWO("FSDP2, CPU offload", edited="0")
def fsdp2_with_cpu_offload(probe: Probe) -> None:
    model = _sharded(offload_policy=CPUOffloadPolicy(pin_memory=False))
    probe.attach(model, vectors(part(0)))
    _train_sharded(probe, model)


@ON_TWO("FSDP2, checkpoint", edited="blocks.0.norm", absent=(UNUSED,))
def fsdp2_with_checkpoints_and_tied_weights(probe: Probe) -> None:
    model = Tied(how={"use_reentrant": False})
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    probe.attach(model, tokens(part(0)), tokens(1))
    train(probe, model, sgd(model), lambda k: model(tokens(part(k)), tokens(k + 1))[1])


@ON_TWO("FSDP2, unused parameters", edited="shared", absent=UNUSED_EXPERTS)
def fsdp2_with_unused_experts(probe: Probe) -> None:
    model = Experts()
    for expert in model.experts:
        fully_shard(expert)
    fully_shard(model)
    probe.attach(model, vectors(part(0)))
    train(probe, model, sgd(model), lambda k: model(vectors(part(k)), chosen=k % 2).square().mean())


@ON_TWO("FSDP2, accumulation and clipping", edited="0", absent=(NO_BACKWARD,))
def fsdp2_accumulating_without_sync_and_clipping(probe: Probe) -> None:
    model = _sharded()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    probe.attach(model, vectors(part(0)))
    probe.optimizes(optimizer)
    for k in range(3):
        optimizer.zero_grad()
        model.set_requires_gradient_sync(False)
        first = model(vectors(part(k))).square().mean()
        first.backward()
        model.set_requires_gradient_sync(True)
        second = model(vectors(part(10 + k))).square().mean()
        second.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        probe.step((first, second))


@ON_TWO(
    "FSDP2, compiled parts",
    edited="0",
    compiles=True,
    tolerance=1e-4,
    warns=True,
    absent=("inside torch.compile", "compiled, and run uncompiled"),
)
def fsdp2_of_compiled_parts(probe: Probe) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(6, 8), nn.Tanh()), nn.Linear(8, 4))
    probe.compile_in_place(model[0])
    fully_shard(model[0])
    fully_shard(model)
    probe.attach(model, vectors(part(0)))
    _train_sharded(probe, model)


# ---------------------------------------------------------------------- FSDP1


@ON_TWO(
    "FSDP1 (the older FullyShardedDataParallel)",
    cells={
        name: said("FullyShardedDataParallel gathers it into one flat parameter")
        for name in ("Memory", "Stats", "together")
    },
    edited="1",
    absent=(NO_GRADIENT,),
)
def fsdp1(probe: Probe) -> None:
    model = FullyShardedDataParallel(mlp(), use_orig_params=True, device_id=torch.device("cpu"))
    probe.attach(model, vectors(part(0)))
    _train_sharded(probe, model)


# ---------------------------------------------------------------------- tensor parallelism


class Block(nn.Module):
    """A norm, and a pair of matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(self.norm(x))))


def rows(step: int) -> Tensor:
    """float32[2, 4, 8]: the same on all ranks of a tensor-parallel group."""
    return vectors(step, 8, 8).view(2, 4, 8)


def _mesh() -> Any:
    return init_device_mesh("cpu", (2,))


@ON_TWO("tensor parallel", edited="norm", absent=(NO_TWIN,))
def tensor_parallel(probe: Probe) -> None:
    model = parallelize_module(
        Block(), _mesh(), {"up": ColwiseParallel(), "down": RowwiseParallel()}
    )
    probe.attach(model, rows(0))
    train(probe, model, sgd(model), lambda k: model(rows(k)).square().mean())


@ON_TWO("tensor parallel", edited="norm", absent=(NO_TWIN,))
def tensor_parallel_attached_before(probe: Probe) -> None:
    model = Block()
    probe.attach(model, rows(0))
    parallelize_module(model, _mesh(), {"up": ColwiseParallel(), "down": RowwiseParallel()})
    probe.distributed()
    train(probe, model, sgd(model), lambda k: model(rows(k)).square().mean())


@ON_TWO("sequence parallel", absent=(NO_TWIN,))
def sequence_parallel(probe: Probe) -> None:
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(),
    }
    model = parallelize_module(Block(), _mesh(), plan)
    probe.attach(model, rows(0))
    train(probe, model, sgd(model), lambda k: model(rows(k)).square().mean())


# ---------------------------------------------------------------------- pipelines


def _train_by_pipeline(probe: Probe, schedule: Any) -> None:
    rank = distributed.get_rank()
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    stage = PipelineStage(model, rank, 2, torch.device("cpu"))
    run = schedule(stage, 2, loss_fn=lambda out, target: (out - target).square().mean())
    optimizer = sgd(model)
    probe.attach(model, vectors(0, 8))
    probe.infers_shapes()
    probe.optimizes(optimizer)
    for k in range(3):
        optimizer.zero_grad()
        losses: list[Tensor] = []
        if rank == 0:
            run.step(vectors(k, 8))
        else:
            run.step(target=vectors(50 + k, 8), losses=losses)
        optimizer.step()
        probe.step(losses)


@ON_TWO("pipeline", edited="1")
def pipeline_gpipe(probe: Probe) -> None:
    _train_by_pipeline(probe, ScheduleGPipe)


@ON_TWO("pipeline", edited="1")
def pipeline_1f1b(probe: Probe) -> None:
    _train_by_pipeline(probe, Schedule1F1B)


# ---------------------------------------------------------------------- meshes of two dims


@ON_FOUR("FSDP2 and tensor parallel", edited="norm", absent=(NO_TWIN,))
def fsdp2_of_a_tensor_parallel_model(probe: Probe) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    model = Block()
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(model, mesh["model"], plan)
    fully_shard(model, mesh=mesh["data"])
    probe.attach(model, rows(0))
    group = mesh["data"].get_local_rank()
    train(probe, model, sgd(model), lambda k: model(rows(2 * k + group)).square().mean())


@ON_FOUR("FSDP2, replicas of shards", edited="0")
def fsdp2_with_replicas(probe: Probe) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
    model = _sharded(mesh=mesh)
    probe.attach(model, vectors(part(0)))
    _train_sharded(probe, model)


@ON_FOUR("FSDP2", edited="0")
def fsdp2_that_reshards_to_smaller_groups(probe: Probe) -> None:
    model = _sharded(parts={"reshard_after_forward": 2})
    probe.attach(model, vectors(part(0)))
    _train_sharded(probe, model)

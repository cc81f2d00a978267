"""Processes that train together: groups, wrappers and collectives."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from torchtap.failures.failure import Failure
from torchtap.failures.parsed_source import written
from torchtap.failures.situation_row import Situation, SituationRow


def _backend(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    return {
        "given_name": (found["given"] or found["lacking"] or "").lower(),
        "is_unknown": bool(found["given"]),
        "is_lacking": bool(found["lacking"]),
    }


def _frozen(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The first names of the parameters that train and that do not, of one shard."""
    held = failure.operand("params").value
    modules = (one.frame.f_locals.get("module") for one in failure.frames)
    module = next((one for one in modules if isinstance(one, nn.Module)), None)
    named = [] if module is None else list(module.named_parameters())
    trained = [name for name, one in named if one.requires_grad]
    frozen = [name for name, one in named if not one.requires_grad]
    known = bool(trained and frozen) or held is None
    text = f": {', '.join(trained[:3])} train, {', '.join(frozen[:3])} do not" if known else ""
    return {"text": text}


def _collected(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    frame = failure.user
    node = None if frame is None else frame.expression
    called = getattr(getattr(node, "func", None), "attr", "")
    wanted, given = found["wanted"], found["given"].rpartition(".")[2]
    args = node.args if isinstance(node, ast.Call) else []
    text = written(args[0], frame.file) if args and frame is not None else "x"
    return {
        "op": called or "The collective",
        "given_kind": given,
        "is_list": wanted.startswith("List") and given == "Tensor",
        "is_tensor": not wanted.startswith("List") and given in ("list", "tuple"),
        "is_number": given in ("int", "float"),
        "text": text,
    }


SITUATIONS: dict[str, Situation] = {
    "variable of a rank": SituationRow(
        "The process group is made of variables of the environment, and {name} is not set: the "
        "script was not started by torchrun.",
        "Start it by torchrun, which sets them: torchrun --nproc-per-node=2 train.py.",
        "For one process, without torchrun, set all four: RANK=0 WORLD_SIZE=1 "
        "MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python train.py.",
    ),
    "variable that is not set": SituationRow(
        "{name} is no variable of the environment: torchrun sets it, and the script was started "
        "without.",
        "Start it by torchrun: torchrun --nproc-per-node=2 train.py.",
        "If it is to run alone, too, give a value for then: os.environ.get({name!r}, {alone!r}).",
        facts=lambda failure, found: {"alone": "1" if found["name"] == "WORLD_SIZE" else "0"},
    ),
    "port in use": SituationRow(
        "Port {port} of this machine is in use: another program, or an earlier run that has not "
        "ended, listens there.",
        "If another training runs: give this one a port of its own, torchrun --master-port=29501, "
        "or MASTER_PORT=29501.",
        "If an earlier run has not ended: end its process.",
    ),
    "backend of ranks": SituationRow(
        "There is no backend {given_name!r} in this PyTorch.",
        ("is_unknown", "Give 'gloo' on CPUs, 'nccl' on GPUs of NVIDIA."),
        ("is_lacking", "Without such devices, give 'gloo'."),
        facts=_backend,
    ),
    "group made twice": SituationRow(
        "The default process group was made already in this process.",
        "Make it once: if not torch.distributed.is_initialized(); end it before another: "
        "torch.distributed.destroy_process_group().",
    ),
    "nothing to synchronise": SituationRow(
        "DistributedDataParallel averages gradients, and no parameter of this module is trained.",
        "Leave it out for a module that is frozen, such as a teacher.",
        "If it is to train, call requires_grad_() before it is wrapped.",
    ),
    "devices of a wrapper": SituationRow(
        "device_ids names GPUs, and the parameters of the module are not on one.",
        "On CPUs, leave device_ids out.",
        "On GPUs, move the module first: model.to(rank), then device_ids=[rank].",
    ),
    "list of a scatter": SituationRow(
        "{op} takes one tensor for each process, {wanted}, and the list has {given}.",
        "Make the list of as many: for _ in range(torch.distributed.get_world_size()).",
    ),
    "argument of a collective": SituationRow(
        "{op} takes {wanted} as {name!r}, and got a {given_kind}.",
        (
            "is_list",
            "Give a list with a place for each process: [torch.empty_like(x) for _ in "
            "range(torch.distributed.get_world_size())].",
        ),
        ("is_tensor", "Give a tensor: torch.stack({text}) of them, or one call for each."),
        ("is_number", "Give a tensor: torch.tensor({text})."),
        facts=_collected,
    ),
    "rank of a collective": SituationRow(
        "{op} was to come from process {given}, and there is none of that number.",
        "Give a rank below torch.distributed.get_world_size(), counted from 0.",
    ),
    "sharded without a device": SituationRow(
        "FullyShardedDataParallel needs an accelerator, or to be told to run on the CPU.",
        "On the CPU, say so: FullyShardedDataParallel(model, device_id=torch.device('cpu')).",
        "Or use fully_shard of torch.distributed.fsdp, with a mesh of the CPU.",
    ),
    "frozen beside trained": SituationRow(
        "FullyShardedDataParallel makes one tensor of the parameters of a shard, which trains as a "
        "whole or not{text}.",
        "Keep the parameters apart: use_orig_params=True.",
        "Or shard the parts that train by themselves: an auto_wrap_policy.",
        facts=_frozen,
    ),
    "sharded and plain": SituationRow(
        "{op} got a plain tensor beside a sharded one (DTensor). A sharded module gathers its "
        "parameters when it is called, for its forward alone.",
        "Call the module itself, whose forward does it; a method of another name is registered "
        "first: register_fsdp_forward_method(model, 'name').",
        "A plain tensor is brought into the mesh by distribute_tensor(x, mesh), a sharded one is "
        "gathered by .full_tensor().",
    ),
    "models of ranks": SituationRow(
        "The processes wrapped different models: rank {rank} has {given} parameters that train, "
        "rank {other} has {wanted}.",
        "Build and freeze the model before it is wrapped, the same in each process: no condition "
        "of the rank there.",
    ),
    "sizes of ranks": SituationRow(
        "The processes wrapped different models: parameter {at}, counted from 0, has the sizes "
        "{given} in rank {rank} and others in rank {other}.",
        "Build the model before it is wrapped, with the same sizes in each process: no condition "
        "of the rank there.",
    ),
    "rank that ended": SituationRow(
        "This process waited for another one, which has ended; the cause stands in what that one "
        "raised.",
        "Look at what the other ranks printed: the first exception among them is to be mended.",
    ),
}

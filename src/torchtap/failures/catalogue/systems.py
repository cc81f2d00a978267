"""Failures of what runs models: checkpointing, data parallel, gradient scaling."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from torchtap.failures.failure import Failure
from torchtap.failures.graph_cuts import cuts_in
from torchtap.failures.situation_row import Situation, SituationRow, first_of


def _unused(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The parameters that got no gradient: those of the numbers that the first rank names."""
    said = re.search(r"rank \d+: ([\d ]+)", failure.text)
    owners = (one.owner for one in failure.frames)
    wrapper = next((one for one in owners if isinstance(one, DistributedDataParallel)), None)
    named = [] if wrapper is None else wrapper.module.named_parameters()
    trained = [(name, one) for name, one in named if one.requires_grad]
    numbers = [] if said is None else [int(one) for one in said[1].split()]
    unused = [trained[at] for at in numbers if at < len(trained)]
    shown = ", ".join(name for name, _ in unused[:6])
    return {
        "unused": shown or "some of its parameters",
        "details": (("unused", shown),) if shown else (),
        "where": next(filter(None, (failure.names.holder(one) for _, one in unused)), ""),
    }


def _ready_twice(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The parameter whose gradient came twice, and whether checkpoints are reentrant."""
    said = re.search(r"with name ([\w.]+) has been marked", failure.text)
    reentrant = [one for one in cuts_in(failure) if "checkpoint(" in one.text]
    name = said[1] if said else "a parameter"
    return {
        "name": name,
        "is_reentrant": bool(reentrant),
        "details": tuple(("checkpoint", one.text) for one in reentrant[:2]),
    }


def _resting(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The optimizer without a gradient, of a scaler that has scaled a loss."""
    held = failure.frames[-1].frame.f_locals
    scaler, optimizer = held.get("self"), held.get("optimizer")
    groups = getattr(optimizer, "param_groups", ())
    has_scaled = getattr(scaler, "_scale", None) is not None
    is_resting = has_scaled and all(one.grad is None for group in groups for one in group["params"])
    own = {} if failure.user is None else failure.user.own_names
    inside = [[*one.values()] if type(one) is dict else one for one in own.values()]
    others = {
        id(one)
        for part in inside
        for one in (part if type(part) in (list, tuple) else [part])
        if isinstance(one, torch.optim.Optimizer)
    }
    return {
        "optimizer": failure.called(optimizer, "optimizer") if groups and is_resting else "",
        "statement": "" if failure.user is None else failure.user.text.strip(),
        "is_one_of_several": len(others) > 1,
    }


SITUATIONS: dict[str, Situation] = {
    "ready twice": SituationRow(
        "The gradient of {name} was ready twice in one backward, and DistributedDataParallel "
        "counts on once: it is used in several backwards, as reentrant checkpoints start, or "
        "outside of the forward.",
        (
            "is_reentrant",
            "Give use_reentrant=False to the checkpoint: it starts no backward of its own.",
        ),
        "If the graph is the same in each step: DistributedDataParallel(..., static_graph=True).",
        facts=_ready_twice,
    ),
    "checkpoint": SituationRow(
        "The forward of a checkpointed part did something else when backward ran it again: it must "
        "compute the same from the same inputs.",
        "Take out of the checkpointed part what changes between two runs: counters, caches, "
        "conditions on global state, and random numbers that are not PyTorch's.",
        "Find the operation: inside torch.utils.checkpoint.set_checkpoint_debug_enabled(True).",
    ),
    "fault of a kernel": SituationRow(
        "A kernel on the GPU found an index out of range, here or in an earlier line: kernels run "
        "behind the program.",
        "Run it with the environment variable CUDA_LAUNCH_BLOCKING=1: the line is then the one.",
        "Run the batch on the CPU, which says which index it is: model.cpu()(batch.cpu()).",
    ),
    "out of memory": SituationRow(
        "The memory of the device is full, at this operation.",
        "Give smaller batches, and add up the gradients of several before a step.",
        "See what autograd keeps: tt.saved_report(model, batch). Move it away: tt.offload(...), or "
        "torch.utils.checkpoint.",
        "Keep numbers and not graphs of former steps: losses.append(loss.item()).",
        "Run what is not trained under torch.no_grad().",
        about="tensors",
    ),
    "unused parameters": SituationRow(
        "The last backward gave no gradient to {unused}, and DistributedDataParallel waits for "
        "all.",
        "Give find_unused_parameters=True to DistributedDataParallel, if a forward may leave out "
        "parts of the model.",
        "Use these parameters on the way to the loss, or set requires_grad_(False) on them before "
        "the model is wrapped.",
        "Call backward on all outputs of each forward, once, before the next forward.",
        facts=_unused,
    ),
    "scaler without scale": first_of(
        SituationRow(
            "No parameter of {optimizer} has a gradient in this round, and the GradScaler cannot "
            "check it: the loss did not reach it, or its gradients were set to None.",
            (
                "is_one_of_several",
                "Step it in the rounds where it has gradients alone: if any(one.grad is not None "
                "for group in {optimizer}.param_groups for one in group['params']): {statement}.",
            ),
            "If it should have some, check that the loss goes through what it trains.",
            when="optimizer",
        ),
        SituationRow(
            "The GradScaler was asked to step or unscale without gradients of a loss that it had "
            "scaled.",
            "Call scaler.scale(loss).backward() before scaler.step(optimizer).",
            "Check that the loss reaches parameters of that optimizer.",
        ),
        facts=_resting,
    ),
}

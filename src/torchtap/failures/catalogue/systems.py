"""Failures of what runs models: checkpointing, data parallel, gradient scaling."""

from __future__ import annotations

import re

from torch.nn.parallel import DistributedDataParallel

from torchtap.failures.failure import Explanation, Failure


def _checkpoint(failure: Failure, found: re.Match[str]) -> Explanation:
    return Explanation(
        "The forward of a checkpointed part did something else when backward ran it again: it must "
        "compute the same from the same inputs.",
        (
            "Take out of the checkpointed part what changes between two runs: counters, caches, "
            "conditions on global state, and random numbers that are not PyTorch's.",
            "Find the operation: inside torch.utils.checkpoint.set_checkpoint_debug_enabled(True).",
        ),
    )


def _unused(failure: Failure, found: re.Match[str]) -> Explanation:
    indices = [
        int(one)
        for one in re.findall(r"rank \d+: ([\d ]+)", failure.text)[:1] or [""]
        for one in one.split()
    ]
    wrapper = next(
        (one.owner for one in failure.frames if isinstance(one.owner, DistributedDataParallel)),
        None,
    )
    named: list[str] = []
    module = ""
    if wrapper is not None:
        trained = [
            (name, one) for name, one in wrapper.module.named_parameters() if one.requires_grad
        ]
        named = [trained[at][0] for at in indices if at < len(trained)]
        holders = [failure.names.holder(trained[at][1]) for at in indices if at < len(trained)]
        module = next((failure.names.module(one) for one in holders if one is not None), "")
    said = ", ".join(named[:6]) or "some of its parameters"
    return Explanation(
        f"The last backward gave no gradient to {said}, and DistributedDataParallel waits for all.",
        (
            "Give find_unused_parameters=True to DistributedDataParallel, if a forward may leave "
            "out parts of the model.",
            "Use these parameters on the way to the loss, or set requires_grad_(False) on them "
            "before the model is wrapped.",
            "Call backward on all outputs of each forward, once, before the next forward.",
        ),
        (("unused", said),) if named else (),
        module,
    )


def _memory(failure: Failure, found: re.Match[str]) -> Explanation:
    return Explanation(
        "The memory of the device is full, at this operation.",
        (
            "Give smaller batches, and add up the gradients of several before a step.",
            "See what autograd keeps: tt.saved_report(model, batch). Move it away: "
            "tt.offload(...), or torch.utils.checkpoint.",
            "Keep numbers and not graphs of former steps: losses.append(loss.item()).",
            "Run what is not trained under torch.no_grad().",
        ),
        failure.details(),
    )


def _kernel(failure: Failure, found: re.Match[str]) -> Explanation:
    return Explanation(
        "A kernel on the GPU found an index out of range, here or in an earlier line: kernels run "
        "behind the program.",
        (
            "Run it with the environment variable CUDA_LAUNCH_BLOCKING=1: the line is then the "
            "one.",
            "Run the batch on the CPU, which says which index it is: model.cpu()(batch.cpu()).",
        ),
    )


def _scaler(failure: Failure, found: re.Match[str]) -> Explanation:
    return Explanation(
        "The GradScaler was asked to step or unscale without gradients of a loss that it had "
        "scaled.",
        (
            "Call scaler.scale(loss).backward() before scaler.step(optimizer).",
            "Check that the loss reaches parameters of that optimizer.",
        ),
    )


SITUATIONS = {
    "checkpoint": _checkpoint,
    "fault of a kernel": _kernel,
    "out of memory": _memory,
    "unused parameters": _unused,
    "scaler without scale": _scaler,
}

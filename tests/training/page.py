"""The table of docs/reference/trainings.md, made from the rows of the matrix.

Run this file to print it: PYTHONPATH=src:tests/support:tests/training python tests/training/page.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from row import Row

COLUMNS = ("Memory", "Stats", "edit", "offload", "verify")
WORDS = {"works": "yes", "said": "said", "refused": "no"}


class Line(NamedTuple):
    """One line of the table.

    Attributes:
        training: what it is about.
        kinds: of the rows that it stands for.
        advice: what to write, and what to expect.
    """

    training: str
    kinds: tuple[str, ...]
    advice: str


LINES = (
    Line(
        "a loop in PyTorch",
        (
            "plain", "accumulation and clipping", "averaged model", "several losses",
            "packed sequences", "parametrized weights", "pruned weights", "functional_call",
            "attached in the middle",
        ),
        "attach before the loop, or in it; `w.step()` after each step of the optimizer",
    ),
    Line(
        "attached between forward and backward",
        ("attached between forward and backward",),
        "attach before the forward; what it missed of that step is absent",
    ),
    Line(
        "evaluation between steps",
        ("evaluation between steps",),
        "nothing: it has the phase `eval`",
    ),
    Line(
        "`autocast`, `GradScaler`",
        ("autocast", "GradScaler"),
        "`param_grad` is scaled, `step_grad` is not; a step that is skipped is said",
    ),
    Line(
        "`torch.utils.checkpoint`",
        ("checkpoint",),
        "nothing; what is computed again has the phase `recompute`",
    ),
    Line(
        "`LBFGS`, closures",
        ("LBFGS and other closures",),
        "`step_grad` is read after the step",
    ),
    Line(
        "an optimizer inside the backward",
        ("optimizer inside the backward",),
        "take `step_grad`; `param_grad` is absent where the optimizer's hooks were put on before "
        "the first watched call",
    ),
    Line(
        "GAN, several optimizers",
        ("GAN",),
        "watch `nn.ModuleDict({...})` of the parts; `tt.verify` each part",
    ),
    Line(
        "sparse gradients, nested tensors",
        ("sparse gradients", "nested tensors"),
        "statistics are of the stored values; nested tensors are not offloaded",
    ),
    Line(
        "threads, `DataLoader` workers, `DataParallel`",
        ("threads", "DataLoader workers", "DataParallel on the CPU"),
        "call numbers of two modules belong together only where one thread calls",
    ),
    Line(
        "`torch.compile(model)`, `model.compile()`",
        (
            "compiled model", "compiled model, dynamic shapes", "compiled model, autocast",
            "compiled model, checkpoint", "compiled model, inductor", "compiled GAN",
        ),
        "attach before the first compiled call, to the model or to what `torch.compile` returned",
    ),
    Line(
        "compiled parts",
        ("compiled parts",),
        "attach before the first compiled call",
    ),
    Line(
        "compiled before it was attached to",
        ("compiled model, attached late",),
        "`torch.compiler.reset()`; else only parameters and gradients are recorded",
    ),
    Line(
        "`fullgraph=True`",
        (
            "compiled model, fullgraph=True", "compiled parts, fullgraph=True",
            "compiled function: forward and loss, fullgraph=True",
        ),
        "`to=tt.Stats()`, or offload from outside (`where=\".\"`); the error names these ways",
    ),
    Line(
        "a compiled function with forward and loss",
        ("compiled function: forward and loss",),
        "attach to the model that it calls",
    ),
    Line(
        "a step that is compiled whole, a compiled optimizer",
        ("compiled step: forward, backward, optimizer", "compiled optimizer"),
        "attach to the model before the first call",
    ),
    Line(
        "such a step with `fullgraph=True`",
        ("compiled step: forward, backward, optimizer, fullgraph=True",),
        "PyTorch compiles no `optimizer.zero_grad()` so, with us or without",
    ),
    Line(
        "compiled autograd",
        ("compiled autograd",),
        "gradients of compiled modules are absent: turn it off for them",
    ),
    Line(
        "DDP",
        (
            "DDP", "DDP, find_unused_parameters", "DDP, no_sync", "DDP, communication hook",
            "DDP, checkpoint", "DDP, ZeRO optimizer", "DDP, uneven inputs", "DDP, compiled",
        ),
        "attach to the wrapper, to `.module`, or before wrapping; `param_grad` is `local`, "
        "`step_grad` the average",
    ),
    Line(
        "DDP that compresses to bf16 over gloo",
        ("DDP, bf16 compression",),
        "PyTorch needs NCCL for it",
    ),
    Line(
        "FSDP2 (`fully_shard`)",
        (
            "FSDP2", "FSDP2, mixed precision", "FSDP2, CPU offload", "FSDP2, checkpoint",
            "FSDP2, unused parameters", "FSDP2, accumulation and clipping",
            "FSDP2, compiled parts", "FSDP2, replicas of shards",
        ),
        "attach before or after sharding; all that is of parameters is of this rank's shard",
    ),
    Line(
        "`FullyShardedDataParallel` (FSDP1)",
        ("FSDP1 (the older FullyShardedDataParallel)",),
        "`param` and `param_grad` are absent, `step_grad` and `update` are of the shard",
    ),
    Line(
        "tensor and sequence parallelism, also with FSDP2",
        ("tensor parallel", "sequence parallel", "FSDP2 and tensor parallel"),
        "attach before or after; values are this rank's part, and the label says which",
    ),
    Line(
        "pipelining",
        ("pipeline",),
        "attach to the stage's module; its run for shapes has the phase `eval`; `tt.merge` makes "
        "one run of all stages",
    ),
    Line(
        "`torch.func`: `grad`, `vmap`",
        ("torch.func: grad, vmap",),
        "nothing flows that has a value of its own: take the result itself",
    ),
    Line(
        "fx, `torch.export`",
        ("fx and export",),
        "attach to the graph module, or to the unflattened program; an export is no call",
    ),
    Line(
        "`torch.export(strict=True)`",
        ("torch.export(strict=True)",),
        "`to=tt.Stats()`, or export with `strict=False`",
    ),
    Line(
        "torch.ao, quantised",
        ("torch.ao, quantised",),
        "quantised modules have no gradients inside",
    ),
    Line(
        "torchao, bitsandbytes, PEFT",
        (
            "torchao, quantised", "torchao, trained quantised", "torchao, 8-bit optimizer",
            "bitsandbytes, quantised", "PEFT, LoRA",
        ),
        "weights of torchao are measured by what they stand for (`dequantized`)",
    ),
    Line(
        "HF Trainer, Lightning, Accelerate",
        ("HF Trainer", "Lightning", "Accelerate"),
        "the callbacks of [`torchtap.integrations`](../guides/training.md#trainers), or `w.step()` "
        "in one of yours",
    ),
)  # fmt: skip


def table(rows: Sequence[Row]) -> list[str]:
    """The lines of the table in Markdown.

    Args:
        rows: all of the matrix.
    """
    head = ["training", *COLUMNS, "what to write, what to expect"]
    lines = [_line(head), _line(["---"] * len(head))]
    for line in LINES:
        own = [row for row in rows if row.kind in line.kinds]
        lines.append(_line([line.training, *(_words(own, name) for name in COLUMNS), line.advice]))
    return lines


def _words(rows: Sequence[Row], column: str) -> str:
    kinds = {row.cell(column).kind for row in rows if column in row.columns}
    return " / ".join(word for kind, word in WORDS.items() if kind in kinds)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    from test_matrix import EVERY_ROW

    print("\n".join(table(EVERY_ROW)))

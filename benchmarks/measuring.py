"""Measures a whole training under statistics: ratios of watched to plain, in turns in one run.

    python benchmarks/measuring.py [--threads 1] [--rounds 25] [--markdown FILE]

Each row alternates blocks of plain and watched steps, see ``report.compare``.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

import torch
from torch import nn

import torchtap as tt

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parent))
from models import TinyGPT, resnet18
from report import HOW, Result, Step, begin, compare, parser, show
from watching import gpt_step

WHERE = "*:output,grad_output"


def ratio(
    name: str, wanted: str, plain: Step, step: Step, watch: tt.Watch, *, rounds: int, repeats: int
) -> Result:
    """One row: a watched step, its closing included, against a plain one."""

    def watched() -> None:
        step()
        watch.step()

    for _ in range(3):
        watched()
        plain()
    found = compare(plain, watched, rounds=rounds, repeats=repeats)
    watch.close()
    return found.result(name, wanted)


def gpt(rounds: int) -> list[Result]:
    """The tiny GPT: what each part of the default set adds."""
    rows = []
    for name, wanted, how, every in (
        ("tiny GPT, full default set", "1.20", {}, 1),
        ("the same without histograms", "1.15", {"histogram": False}, 1),
        ("and without means over samples", "-", {"histogram": False, "sample_mean": ()}, 1),
        ("tiny GPT, full default set, every=10", "1.02", {}, 10),
        ("tiny GPT, full default set, a step that is not recorded", "1.00", {}, 1 << 30),
        ("tiny GPT, and along(-1): per feature", "-", {"statistics": [tt.stats.along(-1)]}, 1),
        ("the same, every=10", "-", {"statistics": [tt.stats.along(-1)]}, 10),
    ):
        plain, model = TinyGPT(), TinyGPT()
        watch = tt.watch(model, WHERE, to=tt.Stats(**how), every=every)
        rows.append(
            ratio(name, wanted, gpt_step(plain), gpt_step(model), watch, rounds=rounds, repeats=20)
        )
    return rows


def large_gpt(rounds: int) -> Result:
    """A GPT of width 256 with 8 layers."""
    plain, model = TinyGPT(d=256, layers=8), TinyGPT(d=256, layers=8)
    watch = tt.watch(model, WHERE, to=tt.Stats())
    sides = gpt_step(plain), gpt_step(model)
    return ratio("GPT, d=256, 8 layers", "1.06", *sides, watch, rounds=rounds, repeats=2)


def bare_hooks(rounds: int) -> Result:
    """For scale: PyTorch's own price of a forward hook that puts a hook on the output."""
    plain, model = TinyGPT(), TinyGPT()

    def hook(_: nn.Module, __: object, output: torch.Tensor) -> None:
        output.register_hook(lambda gradient: None)

    for module in model.modules():
        module.register_forward_hook(hook)
    found = compare(gpt_step(plain), gpt_step(model), rounds=rounds, repeats=20)
    return found.result("for scale: tiny GPT, empty hook + register_hook", "-")


def state(rounds: int) -> list[Result]:
    """The tiny GPT: parameters, the gradients that accumulate in them, and their updates."""
    rows = []
    for ports, wanted in (
        ("param", "1.3"),
        ("param_grad", "1.3"),
        ("param,param_grad", "1.3"),
        ("output,grad_output,param,param_grad,update", "-"),
    ):
        plain, model = TinyGPT(), TinyGPT()
        sides = [
            with_optimizer(one) if "update" in ports else gpt_step(one) for one in (plain, model)
        ]
        watch = tt.watch(model, f"*:{ports}", to=tt.Stats())
        rows.append(ratio(f"tiny GPT, {ports}", wanted, *sides, watch, rounds=rounds, repeats=5))
    return rows


def with_optimizer(model: nn.Module) -> Step:
    """A step of training with SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, 65, (4, 32))

    def step() -> None:
        logits = model(tokens)
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def reading(rounds: int) -> list[Result]:
    """The table of a live run of 1,000 sites and 10 steps, beside the same from its file."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(500)))
    rows = []
    with (
        tt.watch(model, "?*:output,grad_output", to=tt.Stats()) as watch,
        tempfile.TemporaryDirectory() as folder,
    ):
        for _ in range(10):
            model(torch.randn(2, 4)).sum().backward()
            watch.step()
        saved = tt.open(watch.run.save(f"{folder}/run.safetensors"))
        for name, read in (
            ("table()", lambda run: run.table()),
            ('table(steps="all")', lambda run: run.table(steps="all")),
            ("mean_norm()", lambda run: run.mean_norm("*:output")),
        ):
            found = compare(
                partial(read, saved), partial(read, watch.run), rounds=rounds, repeats=1
            )
            rows.append(found.result(f"{name} of a live run, 1,000 sites, to its file's", "1.2"))
    return rows


def compiled_gpt(rounds: int) -> Result:
    """The tiny GPT under torch.compile(fullgraph=True)."""
    plain, model = TinyGPT(), TinyGPT()
    watch = tt.watch(model, WHERE, to=tt.Stats())
    # The watched one first: a graph compiled without hooks would be taken for both.
    step = gpt_step(torch.compile(model, fullgraph=True))
    step()
    other = gpt_step(torch.compile(plain, fullgraph=True))
    name = "tiny GPT, compiled, full default set"
    return ratio(name, "1.15", other, step, watch, rounds=rounds, repeats=10)


def resnet(rounds: int) -> list[Result]:
    """ResNet-18, batch 8 of 64 px; and what further statistics add, above all per channel."""
    rows = []
    batch = torch.randn(8, 3, 64, 64)

    def train(network: nn.Module) -> Step:
        def step() -> None:
            network(batch).sum().backward()
            network.zero_grad()

        return step

    for name, wanted, more in (
        ("ResNet-18, 8 x 64 px, full default set", "1.04", ()),
        ("the same, and along(1): per channel", "-", (tt.stats.along(1),)),
        ("the same, and along(1, bound=1)", "-", (tt.stats.along(1, bound=1.0),)),
    ):
        plain, model = resnet18(num_classes=10), resnet18(num_classes=10)
        watch = tt.watch(model, WHERE, to=tt.Stats(statistics=more))
        result = ratio(name, wanted, train(plain), train(model), watch, rounds=rounds, repeats=2)
        rows.append(result)
    return rows


def linears(rounds: int) -> list[Result]:
    """8 x Linear(256) and ReLU, batch 64; and what each further statistic adds."""

    def build() -> nn.Module:
        layers = [layer for _ in range(8) for layer in (nn.Linear(256, 256), nn.ReLU())]
        return nn.Sequential(*layers)

    batch = torch.randn(64, 256)

    def train(network: nn.Module) -> Step:
        def step() -> None:
            network(batch).square().mean().backward()
            network.zero_grad()

        return step

    rows = []
    for name, wanted, more in (
        ("8 x Linear(256) + ReLU, batch 64, full default set", "1.20", ()),
        ("the same, and along(1): per unit", "-", (tt.stats.along(1),)),
        ("the same, and along(1, bound=1)", "-", (tt.stats.along(1, bound=1.0),)),
        ("the same, and top_k(3)", "-", (tt.stats.top_k(3),)),
        ("the same, and cosine()", "-", (tt.stats.cosine(),)),
        ("the same, and effective_rank()", "-", (tt.stats.effective_rank(),)),
    ):
        plain, model = build(), build()
        watch = tt.watch(model, WHERE, to=tt.Stats(statistics=more))
        rows.append(
            ratio(name, wanted, train(plain), train(model), watch, rounds=rounds, repeats=20)
        )
    return rows


def main() -> None:
    options = begin(parser(__doc__))
    rows = [
        *gpt(options.rounds),
        large_gpt(options.rounds),
        bare_hooks(options.rounds),
        *state(options.rounds),
        *reading(options.rounds),
        compiled_gpt(options.rounds),
        *resnet(max(options.rounds // 2, 3)),
        *linears(options.rounds),
    ]
    how = (
        "All outputs and their gradients of all modules, measured every step, the closing "
        f"of the step included. {HOW}"
    )
    show(rows, options, "What measuring a training costs", __file__, how)


if __name__ == "__main__":
    main()

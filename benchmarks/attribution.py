"""Measures attribution: ratios to bare forwards and backwards, and to captum, in one run.

    python benchmarks/attribution.py [--threads 1] [--rounds 9] [--markdown FILE]

As in ``watching.py``, each row alternates blocks of both sides.
"""

from __future__ import annotations

import gc
import resource
import warnings

import captum.attr
import torch
from report import HOW, Result, Step, begin, compare, parser, show
from torch import Tensor, nn

import torchtap as tt
from torchtap.cli.demo import load_demo

TARGET, STEPS, BATCH = 285, 64, 16
SIDE = 96
WINDOW, STRIDES = (3, 16, 16), (3, 8, 8)


def bare_gradients(model: nn.Module, picture: Tensor) -> Step:
    """Forwards and backwards of 64 pictures, 16 at a time, and nothing else."""
    along = torch.linspace(0, 1, STEPS).view(-1, 1, 1, 1)

    def step() -> None:
        for first in range(0, STEPS, BATCH):
            batch = (along[first : first + BATCH] * picture).requires_grad_()
            torch.autograd.grad(model(batch)[:, TARGET].sum(), batch)

    return step


def bare_forwards(model: nn.Module, picture: Tensor, num: int) -> Step:
    """Forwards of so many pictures, 16 at a time, and nothing else."""

    def step() -> None:
        with torch.no_grad():
            for first in range(0, num, BATCH):
                model(picture.expand(min(BATCH, num - first), -1, -1, -1).contiguous())

    return step


def integrated(model: nn.Module, picture: Tensor, rounds: int) -> list[Result]:
    """Integrated gradients of 64 steps."""

    def ours() -> None:
        tt.attribute(model, picture, target=TARGET, n_steps=STEPS, batch_size=BATCH)

    method = captum.attr.IntegratedGradients(model)

    def theirs() -> None:
        method.attribute(
            picture,
            target=TARGET,
            n_steps=STEPS,
            internal_batch_size=BATCH,
            return_convergence_delta=True,  # Ours tells the gap too.
        )

    bare = bare_gradients(model, picture)
    rows = [
        compare(bare, ours, rounds=rounds, repeats=1).result(
            "integrated gradients of 64 steps, to bare batched forwards and backwards", "1.10"
        )
    ]
    found = compare(theirs, ours, rounds=rounds, repeats=1)
    return [*rows, found.result("integrated gradients of 64 steps, to captum", "1.00")]


def gradient(model: nn.Module, picture: Tensor, rounds: int) -> list[Result]:
    """One gradient."""

    def bare() -> None:
        leaf = picture.clone().requires_grad_()
        torch.autograd.grad(model(leaf)[:, TARGET].sum(), leaf)

    def ours() -> None:
        tt.attribute(model, picture, target=TARGET, method="gradient")

    saliency = captum.attr.Saliency(model)

    def theirs() -> None:
        saliency.attribute(picture, target=TARGET, abs=False)

    found = compare(bare, ours, rounds=rounds, repeats=3)
    more = f", {1e3 * found.more:.1f} ms more, to keep the state"
    rows = [found.result("gradient, to a bare forward and backward", "1.50", more)]
    found = compare(theirs, ours, rounds=rounds, repeats=3)
    return [*rows, found.result("gradient, to captum", "1.00")]


def occlusion(model: nn.Module, picture: Tensor, rounds: int) -> list[Result]:
    """A window of 16 pixels, at each 8."""
    settings = {"sliding_window_shapes": WINDOW, "strides": STRIDES}

    def ours() -> None:
        tt.attribute(
            model,
            picture,
            target=TARGET,
            method="occlusion",
            perturbations_per_eval=BATCH,
            **settings,
        )

    method = captum.attr.Occlusion(model)

    def theirs() -> None:
        method.attribute(picture, target=TARGET, perturbations_per_eval=BATCH, **settings)

    num = ((SIDE - 16) // 8 + 1) ** 2
    bare = bare_forwards(model, picture, num)
    what = f"occlusion, {num} windows"
    return [
        compare(bare, ours, rounds=rounds, repeats=1).result(
            f"{what}, to bare batched forwards", "1.15"
        ),
        compare(theirs, ours, rounds=rounds, repeats=1).result(f"{what}, to captum", "1.00"),
    ]


def shapley(model: nn.Module, picture: Tensor, rounds: int) -> list[Result]:
    """Four orders of 36 features."""
    places = torch.arange(SIDE) // 16
    mask = (places[:, None] * 6 + places).expand(1, 3, -1, -1).contiguous()

    def ours() -> None:
        tt.attribute(
            model,
            picture,
            target=TARGET,
            method="shapley",
            feature_mask=mask,
            n_samples=4,
            batch_size=BATCH,
        )

    method = captum.attr.ShapleyValueSampling(model)

    def theirs() -> None:
        method.attribute(
            picture,
            target=TARGET,
            feature_mask=mask,
            n_samples=4,
            perturbations_per_eval=BATCH,
        )

    found = compare(theirs, ours, rounds=rounds, repeats=1)
    return [found.result("Shapley values, 4 orders of 36 features, to captum", "1.00")]


def memory() -> Result:
    """500 maps of a small model; the peak of the process after 100 and after all."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 900, 10))
    picture = torch.randn(1, 3, 32, 32)
    peaks = []
    for number in range(500):
        tt.attribute(model, picture, target=1, n_steps=8)
        if number in (99, 499):
            gc.collect()
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    detail = f"peak {peaks[0]:.1f} MiB after 100 maps, {peaks[1]:.1f} MiB after 500"
    return Result("growth of memory over 400 maps", f"{peaks[1] - peaks[0]:.1f} MiB", "1", detail)


def main() -> None:
    """Run all of it."""
    found = parser(__doc__ or "")
    found.set_defaults(rounds=9)
    options = begin(found)
    warnings.simplefilter("ignore")  # Captum's.
    model, picture = load_demo(), torch.randn(1, 3, SIDE, SIDE)
    rows = [memory()]
    for one in (gradient, integrated, occlusion, shapley):
        rows += one(model, picture, options.rounds)
    title = "What attribution costs"
    how = f"EfficientNet-Lite0 and a picture of {SIDE} x {SIDE}, {BATCH} at a time. {HOW}"
    show(rows, options, title, __file__, how)


if __name__ == "__main__":
    main()

"""How many records are right, and how many bytes a run has: no clock, so the numbers are exact.

    python benchmarks/right_records.py [--markdown FILE]

The truth of an output is a clone that a plain hook takes while the module returns. The truth of
a gradient is ``torch.autograd.grad`` on a twin in float64, in which nothing works in place.
"""

from __future__ import annotations

import copy
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import torchtap as tt

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from models import resnet18
from report import publish

Values = dict[str, Tensor]
_NEAR = 1e-3  # Of the norm: how far float32 may be from float64.


def leaves(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that have no others inside."""
    return {path: one for path, one in model.named_modules() if not list(one.children())}


def heard(model: nn.Module, x: Tensor, keep: Callable[[Values, str, Tensor], Any]) -> Values:
    """Values that plain forward hooks keep of one step: of several calls the last."""
    kept: Values = {}
    handles = [
        one.register_forward_hook(lambda module, args, out, path=path: keep(kept, path, out))
        for path, one in leaves(model).items()
    ]
    model(x).square().mean().backward()
    for handle in handles:
        handle.remove()
    return kept


def keep_clone(kept: Values, path: str, out: Tensor) -> None:
    """The truth: a copy taken at that moment."""
    kept[path] = out.detach().clone()


def keep_output(kept: Values, path: str, out: Tensor) -> None:
    """Hooks as people write them."""
    out.retain_grad()
    kept[path] = out


def true_gradients(model: nn.Module, x: Tensor) -> Values:
    """Gradients of all outputs of leaf modules, in float64, with nothing overwritten."""
    twin = copy.deepcopy(model).double()
    for module in twin.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
    kept: Values = {}

    def keep(path: str) -> Callable[..., Tensor]:
        def hook(module: nn.Module, args: Any, out: Tensor) -> Tensor:
            kept[path] = out
            return out.clone()

        return hook

    for path, one in leaves(twin).items():
        one.register_forward_hook(keep(path))
    loss = twin(x.double()).square().mean()
    found = torch.autograd.grad(loss, list(kept.values()))
    return dict(zip(kept, found, strict=True))


def num_near(found: Values, truth: Values) -> int:
    """How many gradients are those of the twin, but for rounding."""
    return sum(
        float((found[path].double() - truth[path]).norm()) <= _NEAR * float(truth[path].norm())
        for path in truth
    )


def right() -> list[tuple[str, str, str]]:
    """Rows of the table: outputs and gradients, by plain hooks and by ``tt.watch``."""
    torch.manual_seed(0)
    model, x = resnet18(num_classes=10), torch.randn(2, 3, 64, 64)
    truth = heard(copy.deepcopy(model), x, keep_clone)
    plain = heard(copy.deepcopy(model), x, keep_output)
    with tt.watch(model, "*:output,grad_output") as w:
        model(x).square().mean().backward()
    ours = {path: w.run[f"{path}:output"] for path in truth}
    grads = {path: w.run[f"{path}:grad_output"] for path in truth}
    true_grads = true_gradients(model, x)
    plain_grads = {path: out.grad for path, out in plain.items() if out.grad is not None}
    same = [sum(torch.equal(side[path], truth[path]) for path in truth) for side in (plain, ours)]
    near = [num_near(side, true_grads) for side in (plain_grads, grads)]
    total = len(truth)
    return [
        ("outputs of leaf modules, to the bit", f"{same[0]} of {total}", f"{same[1]} of {total}"),
        ("their gradients, but for rounding", f"{near[0]} of {total}", f"{near[1]} of {total}"),
    ]


def size() -> tuple[int, int]:
    """Bytes of all values of ten steps, and of the folder that ``tt.Disk`` writes."""
    torch.manual_seed(0)
    model = resnet18(num_classes=10)
    folder = Path(tempfile.mkdtemp()) / "run"
    with tt.watch(model, "*:output,grad_output", to=tt.Disk(folder)) as w:
        for _ in range(10):
            model(torch.randn(2, 3, 64, 64)).square().mean().backward()
            w.step()
    values = sum(record.value.nbytes for record in tt.open(folder).records())
    return values, sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def page() -> str:
    """The table with its command and versions."""
    rows = [
        "# How many records are right",
        "",
        f"`python benchmarks/right_records.py`: torch {torch.__version__}, "
        f"Python {sys.version.split()[0]}, "
        f"torchtap {tt.__version__}.",
        "",
        "A ResNet-18 with in-place ReLUs, two pictures of 64 x 64, one forward and backward.",
        "",
        "| what | plain hooks that keep the output | tt.watch |",
        "|---|---|---|",
    ]
    rows += [f"| {what} | {plain} | {ours} |" for what, plain, ours in right()]
    values, folder = size()
    rows += [
        "",
        "Plain hooks use `retain_grad`; `register_full_backward_hook` refuses this model.",
        "",
        "## How large a run is",
        "",
        "All outputs and their gradients, ten steps, into `tt.Disk`.",
        "",
        "| values | folder | more |",
        "|---|---|---|",
        f"| {values:,} B | {folder:,} B | {folder / values - 1:.2%} |",
    ]
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    publish(page, __doc__)

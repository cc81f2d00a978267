"""Other tools beside torchtap, on one model with traps: what each keeps, and what stays as it was.

    pip install torchinfo torchlens nnsight wandb
    python benchmarks/comparison.py [--markdown FILE]

A tool that is not installed has a row that says so. The model is the ResNet-18 of
``right_records.py``: ReLUs work in place, and each block calls its ReLU twice.
"""

from __future__ import annotations

import copy
import importlib
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import torchtap as tt

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from models import resnet18
from report import publish
from right_records import Values, heard, keep_clone, keep_output

Row = tuple[str, ...]


def inputs() -> tuple[nn.Module, Tensor]:
    """The model, and two pictures."""
    torch.manual_seed(0)
    return resnet18(num_classes=10), torch.randn(2, 3, 64, 64)


def of_hooks(model: nn.Module, x: Tensor, paths: list[str]) -> Values:
    """Values that plain hooks keep."""
    return heard(model, x, keep_output)


def of_torchtap(model: nn.Module, x: Tensor, paths: list[str]) -> Values:
    """Values that ``tt.watch`` keeps."""
    with tt.watch(model) as w:
        model(x)
    return {path: w.run[path] for path in paths}


def of_captum(model: nn.Module, x: Tensor, paths: list[str]) -> Values:
    """Values that ``LayerActivation`` returns: one forward for each layer."""
    from captum.attr import LayerActivation

    found: Values = {}
    before = copy.deepcopy(model.state_dict())
    for path in paths:
        got = LayerActivation(model, model.get_submodule(path)).attribute(x)
        model.load_state_dict(before)  # Each forward moves the running means.
        found[path] = got[-1] if isinstance(got, tuple) else got
    return found


def of_torchlens(model: nn.Module, x: Tensor, paths: list[str]) -> Values:
    """Values that ``torchlens.trace`` keeps."""
    import torchlens

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace = torchlens.trace(model, x)
    found: Values = {}
    for path in paths:
        module = trace.modules[path]
        found[path] = (module.calls[-1] if module.num_calls > 1 else module).out
    return found


def of_nnsight(model: nn.Module, x: Tensor, paths: list[str]) -> Values:
    """Values that ``output.save()`` keeps: one trace for each module."""
    return by_nnsight(model, x, paths, lambda output: output.save())


def of_nnsight_clones(model: nn.Module, x: Tensor, paths: list[str]) -> Values:
    """Values that ``output.clone().save()`` keeps."""
    return by_nnsight(model, x, paths, lambda output: output.clone().save())


def by_nnsight(model: nn.Module, x: Tensor, paths: list[str], save: Callable[[Any], Any]) -> Values:
    """Values that nnsight keeps by ``save``."""
    from nnsight import NNsight

    found: Values = {}
    before = copy.deepcopy(model.state_dict())
    traced: Any = NNsight(model)
    for path in paths:
        place = traced
        for part in path.split("."):
            place = place[int(part)] if part.isdigit() else getattr(place, part)
        with traced.trace(x):
            value = save(place.output)
        found[path] = getattr(value, "value", value).detach()
        model.load_state_dict(before)
    return found


# torchtap stands before torchlens, whose first trace replaces functions of torch.autograd.
TOOLS: dict[str, Callable[[nn.Module, Tensor, list[str]], Values]] = {
    "torch": of_hooks,
    "torchtap": of_torchtap,
    "captum": of_captum,
    "torchlens": of_torchlens,
    "nnsight": of_nnsight,
    "nnsight, output.clone()": of_nnsight_clones,
}
"""Name of the package, and how it is used if there are several ways -> its values."""


def outputs_kept() -> list[Row]:
    """How many outputs of leaf modules each tool keeps as the module returned them."""
    model, x = inputs()
    truth = heard(copy.deepcopy(model), x, keep_clone)
    rows = []
    for name, keep in TOOLS.items():
        package, _, way = name.partition(", ")
        if not has(package):
            rows.append((name, "not installed", "", ""))
            continue
        shown = "plain hooks" if package == "torch" else f"{package} {version(package)}"
        shown += f", `{way}`" if way else ""
        own = copy.deepcopy(model)
        found = keep(own, x, list(truth))
        right = sum(torch.equal(found[path].detach(), truth[path]) for path in truth)
        left = sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in own.modules())
        replaced = sum("forward" in vars(one) for one in own.modules())
        rows.append((shown, f"{right} of {len(truth)}", str(left), str(replaced)))
    return rows


def has(name: str) -> bool:
    """Return whether a tool can be imported."""
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def summaries() -> list[Row]:
    """Parameters and multiplications that each summary counts."""
    model, x = inputs()
    own = tt.summary(model, x)
    rows: list[Row] = [("tt.summary", f"{own.num_params:,}", f"{own.mult_adds:,}")]
    if has("torchinfo"):
        import torchinfo

        other = torchinfo.summary(model, input_data=x, verbose=0)
        rows.append(("torchinfo", f"{other.total_params:,}", f"{other.total_mult_adds:,}"))
    return rows


def table(head: tuple[str, ...], rows: list[Row]) -> list[str]:
    """Markdown."""
    lines = [head, tuple("---" for _ in head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def page() -> str:
    """All tables, with the command and the versions."""
    counted, kept = summaries(), outputs_kept()
    lines = [
        "# Other tools beside torchtap",
        "",
        f"`python benchmarks/comparison.py`: torch {torch.__version__}, "
        f"Python {sys.version.split()[0]}, "
        f"torchtap {tt.__version__}.",
        "",
        "A ResNet-18 with in-place ReLUs, each of which runs twice. Counted are the leaf modules",
        "whose output a tool keeps to the bit (of two calls the last), and what stays on the",
        "model: hooks, and modules with a `forward` of the tool's own.",
        "",
        *table(("tool", "outputs to the bit", "hooks left", "`forward` left"), kept),
        "",
        "The same model, summed up:",
        "",
        *table(("tool", "parameters", "multiply-adds"), counted),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    publish(page, __doc__)

"""Other tools beside torchtap, on one model with traps: what each keeps, and what stays as it was.

    pip install torchinfo torchlens nnsight wandb
    python benchmarks/comparison.py [--markdown FILE]

A tool that is not installed has a row that says so. The model is the ResNet-18 of
``right_records.py``: ReLUs work in place, and each block calls its ReLU twice.
"""

from __future__ import annotations

import argparse
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

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from models import resnet18
from right_records import Values, heard, keep_clone, keep_output

Row = tuple[str, str, str]


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
    for path in paths:
        one = copy.deepcopy(model)  # Each forward moves the running means.
        got = LayerActivation(one, one.get_submodule(path)).attribute(x)
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
    from nnsight import NNsight

    found: Values = {}
    for path in paths:
        traced: Any = NNsight(copy.deepcopy(model))
        place = traced
        for part in path.split("."):
            place = place[int(part)] if part.isdigit() else getattr(place, part)
        with traced.trace(x):
            value = place.output.save()
        found[path] = getattr(value, "value", value).detach()
    return found


# torchtap stands before torchlens, which replaces functions of torch.autograd for good.
TOOLS: dict[str, Callable[[nn.Module, Tensor, list[str]], Values]] = {
    "torch": of_hooks,
    "torchtap": of_torchtap,
    "captum": of_captum,
    "torchlens": of_torchlens,
    "nnsight": of_nnsight,
}


def outputs_kept() -> list[Row]:
    """How many outputs of leaf modules each tool keeps as the module returned them."""
    model, x = inputs()
    truth = heard(copy.deepcopy(model), x, keep_clone)
    rows = []
    for name, keep in TOOLS.items():
        shown = (
            "plain hooks" if name == "torch" else f"{name} {version(name)}" if has(name) else name
        )
        if not has(name):
            rows.append((shown, "not installed", ""))
            continue
        own = copy.deepcopy(model)
        found = keep(own, x, list(truth))
        right = sum(torch.equal(found[path].detach(), truth[path]) for path in truth)
        left = sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in own.modules())
        rows.append((shown, f"{right} of {len(truth)}", str(left)))
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
    rows = [("tt.summary", f"{own.num_params:,}", f"{own.mult_adds:,}")]
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
        "whose output a tool keeps to the bit (of two calls the last), and the hooks that stay.",
        "",
        *table(("tool", "outputs to the bit", "hooks left"), kept),
        "",
        "The same model, summed up:",
        "",
        *table(("tool", "parameters", "multiply-adds"), counted),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Entry point of the script."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    asked.add_argument("--markdown", type=Path)
    given = asked.parse_args()
    text = page()
    print(text)
    if given.markdown:
        given.markdown.write_text(text)


if __name__ == "__main__":
    main()

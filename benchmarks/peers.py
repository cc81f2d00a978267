"""Measures torchtap beside other ways to the same numbers, in the same run.

    python benchmarks/peers.py [--threads 1] [--rounds 25] [--markdown FILE]

Needs wandb, torchlens, nnsight and captum beside torchtap; a way that is not installed is left out.
Each row alternates blocks of plain and watched steps, see ``report.compare``.
"""

from __future__ import annotations

import copy
import importlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import torchtap as tt

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parent))
from models import TinyGPT, resnet18
from report import HOW, Result, begin, compare, parser, show

Values = dict[str, Tensor]
WHERE = "*:output,grad_output"


class Subject(NamedTuple):
    """A model, its input, and how often a block repeats its step."""

    name: str
    model: nn.Module
    x: Tensor
    repeats: int

    def run(self) -> Tensor:
        """A forward."""
        found: Tensor = self.model(self.x)
        return found

    def train(self) -> None:
        """A forward and backward."""
        self.run().square().mean().backward()
        self.model.zero_grad()

    def twin(self) -> Subject:
        """Return the same with a model of its own."""
        return self._replace(model=copy.deepcopy(self.model))

    def called(self) -> list[str]:
        """The paths of the modules, in the order in which their first calls end."""
        order: dict[str, None] = {}
        with hooks(self.model, lambda path, out: order.setdefault(path)):
            self.run()
        return list(order)


@contextmanager
def hooks(model: nn.Module, take: Callable[[str, Tensor], Any]) -> Iterator[None]:
    """Forward hooks by hand on all modules."""
    handles = [
        one.register_forward_hook(lambda module, args, out, path=path: take(path, out) and None)
        for path, one in model.named_modules()
    ]
    yield
    for handle in handles:
        handle.remove()


# ---------------------------------------------------------------- outputs of one forward, kept


def by_clones(subject: Subject) -> Values:
    """The truth: a copy at the moment of return, of several calls the last."""
    kept: Values = {}
    with hooks(subject.model, lambda path, out: kept.__setitem__(path, out.detach().clone())):
        subject.run()
    return kept


def by_outputs(subject: Subject) -> Values:
    """Hooks as people write them."""
    kept: Values = {}
    with hooks(subject.model, lambda path, out: kept.__setitem__(path, out.detach())):
        subject.run()
    return kept


def by_watch(subject: Subject, copies: str = "auto") -> Values:
    """A watch around one forward."""
    with tt.watch(subject.model, "*:output", copy=copies) as w:
        subject.run()
    return {one.site.path: one.value for one in w.run.records()}


def by_captum(subject: Subject) -> Values:
    """All layers at once; captum runs the forward itself."""
    from captum.attr import LayerActivation

    layers = {path: one for path, one in subject.model.named_modules() if path}
    found = LayerActivation(subject.model, list(layers.values())).attribute(subject.x)
    return dict(zip(layers, found, strict=True))


def by_torchlens(subject: Subject) -> Values:
    """A trace of all operations."""
    import torchlens  # type: ignore[import-not-found]

    modules = torchlens.trace(subject.model, subject.x).modules
    calls = {path: modules[path].calls for path in subject.called() if path}
    return {path: own[len(own) - 1].out for path, own in calls.items()}


def by_nnsight(subject: Subject) -> Values:
    """A trace that asks for the first call of each module, in their order."""
    from nnsight import NNsight  # type: ignore[import-not-found]

    wrapped, kept, order = NNsight(subject.model), {}, [p for p in subject.called() if p]
    with wrapped.trace(subject.x):
        for path in order:
            kept[path] = wrapped.get(path).output.save()
    return kept


def by_debug_mode(subject: Subject) -> Values:
    """All operations, without the modules that they are of."""
    from torch.utils._debug_mode import DebugMode

    with DebugMode(record_realtensor=True, record_output=True):
        subject.run()
    return {}


def standing(subject: Subject, rounds: int) -> Result:
    """A watch that stays open, with a step for each forward."""
    mine, kept = subject.twin(), list[tt.Record]()
    with tt.watch(mine.model, "*:output", to=kept.append) as w:

        def step() -> None:
            mine.run()
            w.step()
            kept.clear()

        for _ in range(3):
            step()
        found = compare(subject.run, step, rounds=rounds, repeats=subject.repeats)
    return found.result(f"{subject.name}: tt.watch, open all the time", "-", "")


KEEPING: dict[str, tuple[str, Callable[[Subject], Values]]] = {
    "tt.watch around each forward": ("", by_watch),
    'tt.watch(copy="always") around each forward': ("", lambda one: by_watch(one, "always")),
    "hooks that keep detach().clone()": ("", by_clones),
    "hooks that keep detach()": ("", by_outputs),
    "captum, layer evaluation": ("captum", by_captum),
    "nnsight, trace": ("nnsight", by_nnsight),
    "torchlens, trace": ("torchlens", by_torchlens),
    "torch.utils._debug_mode": ("", by_debug_mode),
}


def keeping(subject: Subject, rounds: int) -> list[Result]:
    """Outputs of all modules in one forward: cost, wrong values, and what stays behind."""
    rows, truth = [standing(subject, rounds)], by_clones(subject.twin())
    for name, (needs, way) in KEEPING.items():
        if not is_installed(needs):
            rows.append(Result(f"{subject.name}: {name}", "not installed", "-", "-"))
            continue
        mine = subject.twin()
        before = traces(mine.model)
        try:
            found = {path: out.detach().clone() for path, out in way(mine).items()}
        except Exception as error:  # noqa: BLE001 - of other programs
            first = f"{type(error).__name__}: {str(error).splitlines()[0][:60]}"
            rows.append(Result(f"{subject.name}: {name}", "raised", "-", first))
            continue
        left = sorted(traces(mine.model) - before)
        slow = "torchlens" in name or "debug" in name
        cost = compare(
            subject.run,
            lambda way=way, mine=mine: way(mine),
            rounds=3 if slow else rounds,
            repeats=1 if slow else subject.repeats,
        )
        wrong = [path for path, out in truth.items() if path in found and differs(out, found[path])]
        said = f"{len(wrong)} of {len(found)} wrong, {len(truth.keys() - found.keys())} missing"
        if not found:
            said = "operations, by no module"
        behind = f"left behind: {', '.join(left) or 'nothing'}"
        rows.append(cost.result(f"{subject.name}: {name}", "-", f"; {said}; {behind}"))
    return rows


def differs(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are not equal to the bit."""
    return one.shape != other.shape or not torch.equal(one, other)


def traces(model: nn.Module) -> set[str]:
    """Return what a way may leave on a model, or on PyTorch."""
    found = {f"an attribute `{name}`" for one in model.modules() for name in vars(one)}
    found |= {
        "hooks"
        for one in model.modules()
        if one._forward_hooks or one._forward_pre_hooks or one._backward_hooks
    }
    wrapped = {
        name for name in ("relu", "conv2d", "matmul") if hasattr(vars(torch)[name], "__code__")
    }
    if not Tensor.backward.__code__.co_filename.endswith("_tensor.py"):
        wrapped.add("Tensor.backward")
    return found | {f"torch.{name} wrapped" for name in wrapped}


def is_installed(name: str) -> bool:
    """Return whether a package can be imported."""
    try:
        importlib.import_module(name or "torch")
    except Exception:  # noqa: BLE001 - of other programs
        return False
    return True


# ------------------------------------------------------------------------- statistics of each step


def norms(out: Tensor) -> list[Tensor]:
    """One statistic."""
    return [out.detach().norm()]


def five(out: Tensor) -> list[Tensor]:
    """Five stock statistics."""
    own = out.detach()
    return [own.mean(), own.std(), own.abs().max(), own.norm(), own.isfinite().all()]


def measuring(subject: Subject, rounds: int) -> list[Result]:
    """Outputs and their gradients, measured in each step of a training."""
    rows = []
    for name, how in (("tt.Stats()", {}), ("tt.Stats(histogram=False)", {"histogram": False})):
        mine = subject.twin()
        with tt.watch(mine.model, WHERE, to=tt.Stats(**how)) as w:

            def step(mine: Subject = mine, w: tt.Watch = w) -> None:
                mine.train()
                w.step()

            rows.append(timed(subject, name, step, rounds))
    for name, measure in (("hooks with norm()", norms), ("hooks with five statistics", five)):
        mine, kept = subject.twin(), list[Any]()

        def take(_: str, out: Tensor, kept: list[Any] = kept, measure: Any = measure) -> None:
            kept.append(measure(out))
            out.register_hook(lambda gradient: kept.append(measure(gradient)))  # type: ignore[no-untyped-call]

        def hooked(mine: Subject = mine, kept: list[Any] = kept) -> None:
            mine.train()
            kept.clear()

        with hooks(mine.model, take):
            rows.append(timed(subject, name, hooked, rounds))
    return rows


def parameters(subject: Subject, rounds: int) -> list[Result]:
    """Parameters and their gradients with histograms, in each step."""
    mine = subject.twin()
    with tt.watch(mine.model, "*:param,param_grad", to=tt.Stats()) as w:

        def step() -> None:
            mine.train()
            w.step()

        rows = [timed(subject, "tt.Stats() of param,param_grad", step, rounds)]
    if is_installed("wandb"):
        rows.append(timed_wandb(subject, rounds))
    return rows


def timed_wandb(subject: Subject, rounds: int) -> Result:
    """``run.watch(log="all")`` with every step logged, into an offline run."""
    import wandb  # type: ignore[import-not-found]

    mine = subject.twin()
    with tempfile.TemporaryDirectory() as folder:
        quiet = wandb.Settings(silent=True, x_disable_stats=True, console="off")
        run = wandb.init(mode="offline", project="peers", dir=folder, settings=quiet)
        run.watch(mine.model, log="all", log_freq=1)

        def step() -> None:
            mine.train()
            run.log({"step": 1})

        found = timed(subject, 'wandb, watch(log="all")', step, max(rounds // 3, 3))
        run.finish()
    return found


def timed(subject: Subject, name: str, step: Callable[[], object], rounds: int) -> Result:
    """One row of a training."""
    for _ in range(3):
        step()
        subject.train()
    found = compare(subject.train, step, rounds=rounds, repeats=subject.repeats)
    return found.result(f"{subject.name}: {name}", "-")


def main() -> None:
    options = begin(parser(__doc__))
    gpt = Subject("tiny GPT", TinyGPT(), torch.randint(0, 65, (4, 32)), 5)
    resnet = Subject("ResNet-18", resnet18(num_classes=10), torch.randn(8, 3, 64, 64), 1)
    rows = []
    for subject in (gpt, resnet):
        rounds = options.rounds if subject is gpt else max(options.rounds // 2, 3)
        rows += keeping(subject, rounds)
        rows += measuring(subject, rounds)
        rows += parameters(subject, rounds)
    how = (
        "First the outputs of all modules in one forward, then statistics of outputs and their "
        "gradients, and of parameters and theirs, in each step of a training. Wrong is a value "
        f"that is not equal to a copy taken at the moment of return. {HOW}"
    )
    show(rows, options, "Beside other ways", __file__, how)


if __name__ == "__main__":
    main()

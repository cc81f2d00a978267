"""Shows on the user's own installation that torchtap is right there, in a few seconds."""

from __future__ import annotations

import platform
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import torchtap as tt
from torchtap.core.doors import untried
from torchtap.core.equality import mismatch, same
from torchtap.core.installation import versions_of
from torchtap.core.printed import Printed
from torchtap.core.printed_page import BLANK, Grid, Line, Listed, Page, Part
from torchtap.core.private_names import NAMES
from torchtap.core.probes.probes import troubles
from torchtap.stats.kernels import native
from torchtap.testing.loss import default_loss
from torchtap.testing.zoo import Specimen, zoo

MODELS = (
    "nested_tuple_output",
    "keywords_only",
    "shared_module",
    "recurrent_loop",
    "in_place_residual",
    "slice_changed",
    "same_tensor_twice",
    "no_grad_branch",
    "checkpoint_non_reentrant",
    "checkpoint_reentrant",
    "bfloat16",
    "lstm",
    "convolutions",
)
"""Specimens of the zoo that are run: one of nearly each kind of trap."""
_CALLS, _ROUNDS = 200, 7
HOLDS, FAILS, SKIPPED = "holds", "FAILS", "not run"


@dataclass(frozen=True, slots=True)
class Law:
    """A promise of torchtap that was tried.

    Attributes:
        name: what it promises.
        verdict: ``holds``, ``FAILS`` or ``not run``.
        text: on what it was tried, or what went wrong.
    """

    name: str
    verdict: str
    text: str


@dataclass(frozen=True, slots=True, repr=False)
class Selfcheck(Printed):
    """The result of :func:`selfcheck`: ``bool()`` is the verdict, printing explains.

    Attributes:
        versions: name -> version, of torchtap, torch, numpy and Python.
        untried: releases among them with which torchtap was never tried, in words; empty if none.
        machine: system, processor, CUDA device, threads.
        kernel: what computes the statistics of CPU tensors: ``native`` or ``stock``.
        laws: promises that were tried.
        missing: private names of PyTorch that cannot be relied on here -> why.
        without: those names -> what torchtap does without them.
        hook_seconds: what a watched call of a module costs more than a plain one.
        seconds: what the check took.

    Example:
        >>> import torchtap as tt
        >>> found = tt.selfcheck(compiler=False)
        >>> [law.verdict for law in found.laws]
        ['holds', 'holds', 'holds', 'holds', 'holds', 'not run']
    """

    versions: dict[str, str]
    untried: str
    machine: dict[str, str]
    kernel: str
    laws: tuple[Law, ...]
    missing: dict[str, str]
    without: dict[str, str]
    hook_seconds: float
    seconds: float

    def __bool__(self) -> bool:
        is_whole = all(not NAMES[name].doors for name in self.missing)
        return is_whole and all(law.verdict != FAILS for law in self.laws)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data, for ``--json`` and bug reports."""
        return {"holds": bool(self), **asdict(self)}

    def _page(self) -> Page:
        return show_selfcheck(self)


def selfcheck(*, compiler: bool = True) -> Selfcheck:
    """Run the laws of torchtap over a dozen small models, on this installation.

    Every model is proved as by :func:`torchtap.verify`: watching changes nothing, and each record
    is the truth. An edit that changes nothing, offloading, statistics against float64, a file that
    is written and read, and a compiled model follow; then each private name of PyTorch is tried,
    and the price of a hook measured. The printed page is what a report of a bug should hold.

    Args:
        compiler: try a compiled model as well, which imports the compiler of PyTorch.

    Returns:
        the verdict: false where a law fails, or a name is gone that a public function needs.

    Example:
        >>> import torchtap as tt
        >>> bool(tt.selfcheck(compiler=False))
        True
    """
    began = time.perf_counter()
    laws = tuple(_laws(compiler=compiler))
    missing = troubles()
    return Selfcheck(
        versions=versions_of("safetensors", "transformers", "lightning", "accelerate"),
        untried=untried(),
        machine=_machine(),
        kernel="native" if native.available() else "stock operations of PyTorch (slower)",
        laws=laws,
        missing=missing,
        without={name: NAMES[name].without for name in missing},
        hook_seconds=_price_of_a_hook(),
        seconds=time.perf_counter() - began,
    )


def _machine() -> dict[str, str]:
    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else "not available"
    return {
        "system": platform.platform(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "CUDA": f"{cuda} (built for {torch.version.cuda or 'the CPU alone'})",
    }


# ---------------------------------------------------------------------- laws


def _laws(*, compiler: bool) -> Iterator[Law]:
    specimens = [one for one in zoo() if one.name in MODELS]
    yield _tried("Watching changes nothing, and records the truth", _Proof(specimens))
    yield _tried("An edit that changes nothing leaves no trace", lambda: _edited(specimens))
    yield _tried("Offloaded tensors come back to the bit", lambda: _offloaded(specimens))
    yield _tried("Statistics are those of float64", _measured)
    yield _tried("What is written to a file is what is read", _written)
    name = "A compiled model is watched without a graph break"
    yield _tried(name, _compiled) if compiler else Law(name, SKIPPED, "compiler=False")


def _tried(name: str, law: Callable[[], str]) -> Law:
    try:
        return Law(name, HOLDS, law())
    except _Broken as broken:
        return Law(name, FAILS, str(broken))
    except Exception as error:  # noqa: BLE001 - what a broken installation raises is the finding
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        return Law(name, FAILS, f"{type(error).__name__} at {place}: {error}")


class _Broken(Exception):
    """A law does not hold; the message says on what."""


@dataclass(frozen=True, slots=True)
class _Proof:
    specimens: list[Specimen]

    def __call__(self) -> str:
        num_values = num_gradients = 0
        for specimen in self.specimens:
            args, kwargs = specimen.inputs()
            verification = tt.verify(specimen.build(), *args, **kwargs)
            if not verification:
                raise _Broken(f"{specimen.name}: {verification}")
            num_values += verification.num_values
            num_gradients += verification.num_gradients
        models = f"{len(self.specimens)} models"
        return f"{models}, {num_values} values bit for bit, {num_gradients} gradients"


def _gradients(one: Specimen, attach: Callable[[nn.Module], Any] | None) -> list[Tensor | None]:
    """Gradients of the parameters after one step, with something attached or plain."""
    model = one.build()
    args, kwargs = one.inputs()
    held = attach(model) if attach is not None else None
    try:
        torch.manual_seed(0)
        loss = default_loss(model(*args, **kwargs))
        assert loss is not None
        loss.backward()  # type: ignore[no-untyped-call]
    finally:
        if held is not None:
            held.close()
    return [param.grad for param in model.parameters()]


def _compare(one: Specimen, attach: Callable[[nn.Module], Any]) -> None:
    with torch.random.fork_rng(devices=[]):
        pairs = zip(_gradients(one, None), _gradients(one, attach), strict=True)
        if not all(same(plain, other) for plain, other in pairs):
            raise _Broken(f"{one.name}: gradients of parameters differ")


def _edited(specimens: list[Specimen]) -> str:
    for specimen in specimens:
        _compare(specimen, lambda model: tt.edit(model, "*", lambda tensor, record: None))
    return f"{len(specimens)} models, gradients bit for bit"


def _offloaded(specimens: list[Specimen]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        for specimen in specimens:
            _compare(
                specimen,
                lambda model: tt.offload("disk", model=model, min_bytes=0, dir=Path(folder)),
            )
    return f"{len(specimens)} models, gradients bit for bit"


def _measured() -> str:
    generator = torch.Generator().manual_seed(0)
    tensor = torch.randn(10_001, generator=generator) * 3 + 100
    found, wide = tt.measure(tensor), tensor.double()
    expected = {"mean": wide.mean(), "std": wide.std(correction=0), "l1": wide.abs().sum()}
    for name, value in expected.items():
        error = abs(getattr(found, name) - float(value)) / float(value)
        if error > 1e-9:
            raise _Broken(f"{name} of 10,001 numbers is off by {error:.1e} (relative)")
    return "mean, std and l1 of 10,001 numbers within 1e-9"


def _written() -> str:
    model = nn.Linear(3, 2)
    memory = tt.Memory()
    with tt.watch(model, "*:*,param", to=memory) as w:
        model(torch.ones(4, 3)).sum().backward()
    with tempfile.TemporaryDirectory() as folder:
        w.run.save(path := Path(folder) / "run.safetensors")
        again = tt.open(path)
        for site in w.run.sites:
            wrong = mismatch(again[site], w.run[site], exact=True)
            if wrong:
                raise _Broken(f"{site}: {wrong}")
        return f"{len(w.run.sites)} values bit for bit"


def _compiled() -> str:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    x = torch.linspace(-1, 1, 12).reshape(4, 3)
    expected = model(x)
    with tt.watch(model, "*", to=tt.Stats()) as w:
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        output = compiled(x)
        output.sum().backward()
    torch.compiler.reset()
    if mismatch(output.detach(), expected.detach(), exact=False):
        raise _Broken("the output differs from that of the plain model")
    mean = w.run.stats("2:output").mean
    if abs(mean - float(expected.detach().double().mean())) > 1e-6:
        raise _Broken(f"the mean of its output is recorded as {mean}")
    return "3 modules, one graph (aot_eager)"


def _price_of_a_hook() -> float:
    """Seconds of CPU that watching adds to a call of a module, without what copying takes."""
    model, x = nn.Sequential(*(nn.Identity() for _ in range(_CALLS))), torch.ones(1)
    taken: list[float] = []
    with torch.no_grad():
        for _ in range(_ROUNDS):
            plain = _seconds_of(model, x)
            with tt.watch(model, "*", to=lambda record: None):
                taken.append(_seconds_of(model, x) - plain)
    return max(0.0, median(taken)) / _CALLS


def _seconds_of(model: nn.Module, x: Tensor) -> float:
    model(x)
    began = time.thread_time()
    model(x)
    return time.thread_time() - began


# ---------------------------------------------------------------------- text


def show_selfcheck(found: Selfcheck) -> Page:
    """The verdict, the laws, then what an issue needs to know of the machine."""
    verdict = "holds on this installation" if found else "does NOT hold on this installation"
    about = {
        **found.versions,
        **found.machine,
        "kernel": found.kernel,
        "hook": f"{found.hook_seconds * 1e6:.1f} us per watched call",
        "private names": f"{len(NAMES) - len(found.missing)} of {len(NAMES)} as they were tried",
    }
    names = [
        (name, f"{why}; {found.without[name]}" + _needed_by(name))
        for name, why in found.missing.items()
    ]
    news = [Line(f"It was never tried with {found.untried}.", rest="")] if found.untried else []
    laws = [(f"{law.verdict}: {law.name}", law.text) for law in found.laws]
    gone: list[Part] = [Listed(names, title="Private names of PyTorch", noun="name"), BLANK]
    return Page(
        Line(f"torchtap {verdict} ({found.seconds:.1f} s).", "good" if found else "bad"),
        *news,
        BLANK,
        Listed(laws),
        BLANK,
        *(gone if names else ()),
        Grid(list(about.items())),
    )


def _needed_by(name: str) -> str:
    doors = NAMES[name].doors
    return f" (needed by {', '.join(doors)})" if doors else ""

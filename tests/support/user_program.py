"""A user's program: every public name once, read by mypy in its strict mode without exceptions."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import torchtap as tt


def watched(model: nn.Module, x: Tensor, folder: Path) -> tt.Run:
    """Watch, with all sinks, and read what came."""
    memory, disk, measured = tt.Memory(), tt.Disk(folder / "disk"), tt.Stats()
    sinks: list[tt.Sink] = [memory, disk, measured]
    with tt.watch(model, ["*:output,grad_output", tt.Pattern.parse("*:param")], to=sinks) as w:
        handle: tt.Watch = w
        model(x).sum().backward()
        handle.step()
    absent: list[tt.Absence] = list(w.absent)
    records: list[tt.Record] = list(w.run.records())
    keys: list[tt.Key] = [record.key for record in records]
    table: tt.Table = w.run.table()
    assert len(keys) == len(records) and str(table) and not absent
    opened: tt.Run = tt.open(folder / "disk")
    site: tt.Site = opened.sites[0]
    assert torch.equal(opened[site], w.run[site])
    return w.run


def recorded(model: nn.Module, x: Tensor, folder: Path) -> None:
    """Record a data set, and make one run of two files."""
    run: tt.Run = tt.record(model, TensorDataset(x), "0", to=folder / "recorded", batch_size=4)
    assert run.num_rows("0") == len(x)
    with tt.watch(model) as w:
        model(x)
    w.run.save(folder / "rank0.safetensors")
    tt.report(w.run, folder / "report.html")
    with contextlib.suppress(tt.InputError):  # One process has nothing to merge.
        tt.merge([folder / "rank0.safetensors"])


def measured(x: Tensor) -> None:
    """Measure one tensor."""
    found: tt.Statistics = tt.measure(x)
    histogram: tt.Histogram | None = found.histogram
    own: tt.Statistic = tt.stats.top_k(3)
    assert found.numel == x.numel() and own.name
    assert histogram is None or histogram.counts is not None


def checked(model: nn.Module, x: Tensor) -> None:
    """Ask torchtap to prove itself, and what the model is made of."""
    proof: tt.Verification = tt.verify(model, x)
    laws: tt.Selfcheck = tt.selfcheck(compiler=False)
    assert proof and laws.laws and str(tt.summary(model, x))


def edited(model: nn.Module, x: Tensor) -> None:
    """Change, hold still, take the middle, try one edit after the other."""
    edit: tt.Edit
    with tt.edit(model, "1", tt.edits.zero()) as edit:
        model(x)
    assert edit.fired
    y = torch.ones(2, requires_grad=True) * 2
    tt.edit_tensor(y, tt.edits.scale(2.0))
    held: tt.Freeze
    with tt.freeze(model, "0") as held:
        assert held is not None
    middle: tt.Features = tt.features(model, "1")
    assert middle(x)
    found: tt.Sweep = tt.sweep(model, x, "*@Linear", tt.edits.zero(), total)
    assert str(found)


def total(output: Tensor) -> float:
    """A metric."""
    return float(output.sum())


def explained(model: nn.Module, x: Tensor) -> None:
    """Ask what decided, and how far to trust it."""
    found: tt.Map = tt.attribute(model, x, target=1, method="gradient")
    check: tt.Check = found.check(parts=["deletion"], steps=4)
    assert str(check)
    image = torch.rand(1, 1, 6, 6)
    pictures = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 3))
    where: tt.Map = tt.cam(pictures, image, layer="0", target=1)
    assert where.values.shape[0] == 1


def moved(model: nn.Module, x: Tensor) -> None:
    """See and move what autograd saves."""
    report: tt.SavedReport = tt.saved_report(model, x)
    off: tt.Offload
    with tt.offload("disk", model=model, min_bytes=0) as off:
        model(x).sum().backward()
    with tt.suspend_offload():
        model(x)
    codec: tt.codecs.Codec = tt.codecs.bf16()
    advice = tt.advise_offload(model, lambda: model(x).sum().backward(), 10**6)
    assert str(report) and off.report() and codec is not None and advice is not None


def diagnosed(model: nn.Module, x: Tensor, run: tt.Run) -> None:
    """Find what is wrong."""
    with tt.guard(model) as guard:
        watcher: tt.Guard = guard
        model(x).sum().backward()
    origin: tt.Origin | None = tt.locate(model, lambda rows: model(rows).sum(), x)
    found: tt.Diagnosis = tt.diagnose(run, rules=tt.rules.default)
    findings: list[tt.Finding] = list(found.findings)
    same: tt.Comparison = tt.compare(model, model, x)
    call: tt.Call = tt.record_call(model, "0", x)
    assert watcher is not None and origin is None and same.same
    assert isinstance(findings, list) and str(tt.replay(call)) and str(tt.audit(model, x))


def drawn(model: nn.Module, x: Tensor, run: tt.Run) -> None:
    """Draw the graph, and figures."""
    graph: tt.Graph = tt.graph(model, x, autograd=True)
    assert str(graph) and tt.plot.series is not None and run.sites
    assert tt.mark(x, "x") is x


def refused(model: nn.Module, x: Tensor) -> None:
    """Meet every error by its name."""
    names: tuple[type[tt.TorchtapError], ...] = (
        tt.CaptureError,
        tt.CompareError,
        tt.EditError,
        tt.InputError,
        tt.MissingExtraError,
        tt.NonFiniteError,
        tt.OffloadError,
        tt.OverwrittenError,
        tt.RunError,
        tt.SiteError,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", tt.TrainingWarning)
        try:
            tt.watch(model, "no.such.module")
        except tt.SiteError as error:
            assert isinstance(error, names)
    try:
        with tt.explain_errors():
            model(x[:, :1])
    except RuntimeError as error:
        assert error.__notes__


def main(folder: Path) -> None:
    """Run all of it."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), torch.randn(8, 4)
    run = watched(model, x, folder)
    recorded(model, x, folder)
    measured(x)
    checked(model, x)
    edited(model, x)
    explained(model, x)
    moved(model, x)
    diagnosed(model, x, run)
    drawn(model, x, run)
    refused(model, x)
    assert tt.__version__

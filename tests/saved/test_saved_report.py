"""``tt.saved_report``, against plain hooks and formulas."""

from __future__ import annotations

import functools
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bits
import pytest
import torch
from models import seeded, small
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import torchtap as tt
from torchtap.cli import app as cli
from torchtap.testing import Net, Specimen, zoo

SPECIMENS = [one for one in zoo() if one.backward and one.raises is None]


# --- the report -------------------------------------------------------------------------------

F = 4  # Bytes of a float32.


@pytest.mark.parametrize(
    ("model", "x", "nbytes", "count", "num_params"),
    [
        (nn.Linear(8, 4), torch.randn(5, 8), 5 * 8 * F, 1, 0),
        (nn.Linear(8, 4), torch.randn(5, 8, requires_grad=True), 5 * 8 * F, 2, 1),
        (nn.ReLU(), torch.randn(5, 8, requires_grad=True), 5 * 8 * F, 1, 0),
        # Input, mean, reciprocal deviation; weight and bias.
        (nn.LayerNorm(8), torch.randn(5, 8), (5 * 8 + 5 + 5) * F, 5, 2),
        (nn.Conv2d(3, 6, 3), torch.randn(2, 3, 7, 7), 2 * 3 * 49 * F, 2, 1),
        (nn.Sigmoid(), torch.randn(5, 8, requires_grad=True), 5 * 8 * F, 1, 0),
        (nn.Identity(), torch.randn(5, 8, requires_grad=True), 0, 0, 0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_bytes_by_hand(
    model: nn.Module, x: Tensor, nbytes: int, count: int, num_params: int
) -> None:
    report = tt.saved_report(model, x)
    assert (report.nbytes, report.count) == (nbytes, count)
    assert sum(row.num_params for row in report.rows) == num_params
    assert report.peak == report.nbytes


def test_bytes_of_a_checkpoint_are_its_inputs() -> None:
    x = torch.randn(5, 8, requires_grad=True)
    block = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8))
    assert tt.saved_report(block, x).nbytes == (5 * 8 + 5 * 64) * F
    size = 5 * 8 * F
    for use_reentrant in (True, False):
        body = functools.partial(checkpoint, use_reentrant=use_reentrant)
        model = Net(lambda m, x, body=body: body(m.block, x).sin(), block=block)
        report = tt.saved_report(model, x)
        assert report.nbytes == 2 * size
        assert not [row for row in report.rows if row.path.startswith("block.")]
    assert {entry.site.path for entry in report.absent} >= {"block.0", "block.1", "block.2"}
    assert "not seen: it is not kept" in repr(report)


@pytest.mark.parametrize("loss", [nn.Flatten(0), torch.sin], ids=["module", "function"])
def test_the_loss_counts_under_the_root(loss: Callable[[Any], Any]) -> None:
    class Squares(nn.Module):
        def forward(self, y: Tensor) -> Tensor:
            return loss(y).exp().sum()

    model, x = nn.Sequential(nn.Linear(8, 4)), torch.randn(5, 8)
    before = bits.hooks(model)
    squares = Squares()
    found = tt.saved_report(model, x, loss=squares)
    plain = tt.saved_report(model, x, loss=lambda y: squares(y))
    assert found.rows == plain.rows and {row.path for row in found.rows} == {"", "0"}
    assert found.rows[0].nbytes >= 5 * 4 * F or found.rows[0].count
    assert bits.hooks(model) == before


def test_reporting_leaves_no_trace() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout()))
    before, tables = bits.state(model), bits.hooks(model)
    with torch.no_grad():
        report = tt.saved_report(model, torch.randn(3, 4, generator=torch.Generator()))
    assert report.count > 0
    assert bits.differences(before, bits.state(model)) == [] and bits.hooks(model) == tables


def test_sorting_and_plain_values() -> None:
    build, inputs = small()["resnet18"]
    report = tt.saved_report(build(), inputs())
    sizes = [row.nbytes for row in report.sorted().rows]
    assert sizes == sorted(sizes, reverse=True) and sum(sizes) == report.nbytes
    json.dumps(report.as_dict(), default=str)


# --- against plain hooks ----------------------------------------------------------------------


def counted_by_hand(model: nn.Module, run: Callable[[], Any]) -> dict[str, int]:
    """Tensors that a pair of plain hooks sees and holds, each storage once."""
    own = {
        kind: {tensor.untyped_storage()._cdata for tensor in tensors}
        for kind, tensors in (("params", model.parameters()), ("buffers", model.buffers()))
    }
    seen: dict[str, dict[int, int]] = {"params": {}, "buffers": {}, "rest": {}}
    number = []

    def pack(tensor: Tensor) -> Tensor:
        number.append(1)
        storage = tensor.untyped_storage()
        kind = next((one for one, known in own.items() if storage._cdata in known), "rest")
        seen[kind][storage._cdata] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda kept: kept):
        kept = run()
    assert kept is not None
    return {"count": len(number), **{kind: sum(sizes.values()) for kind, sizes in seen.items()}}


def counted_by_torchtap(report: tt.SavedReport) -> dict[str, int]:
    own = {"params": report.param_nbytes, "buffers": report.buffer_nbytes}
    return {"count": report.count, **own, "rest": report.nbytes}


class Opaque:
    """An output that is no container."""

    def __init__(self, value: Tensor) -> None:
        self.value = value


def keeps_on_itself(model: Any, x: Tensor) -> Tensor:
    model.loss = (model.gate(x).softmax(-1).exp().mean(0) ** 2).sum()
    return model.a(x)


def crosses(model: Any, x: Tensor) -> Tensor:
    return model.a(x, x[:, :3], x[:, :3], need_weights=False)[0]


def masks(model: Any, x: Tensor) -> Tensor:
    return model.a(x).masked_fill(model.norm.running_mean > 0.5, 0.0).sin()


def reentrant(flag: bool) -> Callable[[Any, Tensor], Tensor]:
    return lambda model, x: checkpoint(lambda y: model.a(y).sin(), x, use_reentrant=flag).cos()


def linear() -> nn.Linear:
    return nn.Linear(16, 16)


HELD = {
    "checkpoint": lambda: Net(reentrant(False), a=linear()),
    "reentrant": lambda: Net(reentrant(True), a=linear()),
    "an object": lambda: Net(lambda m, x: Opaque(m.a(x.tanh()).sin()), a=linear()),
    "a set": lambda: Net(lambda m, x: {m.a(x.tanh()).sin()}, a=linear()),
    "an attribute": lambda: Net(keeps_on_itself, a=linear(), gate=nn.Linear(16, 4)),
    "cross attention": lambda: Net(crosses, a=nn.MultiheadAttention(16, 4, batch_first=True)),
    "an expanded parameter": lambda: Net(
        lambda m, x: x.sin() * m.norm.weight.expand_as(x), norm=nn.LayerNorm(16)
    ),
    "buffers": lambda: Net(masks, a=linear(), norm=nn.BatchNorm1d(16).eval()),
    "running statistics": lambda: nn.Sequential(nn.Flatten(0, 1), nn.BatchNorm1d(16).eval()),
    "a shared module": lambda: nn.Sequential(*[linear()] * 3),
    "in place": lambda: nn.Sequential(linear(), nn.ReLU(inplace=True), linear()),
}


@pytest.mark.parametrize("name", HELD)
def test_the_report_counts_what_plain_hooks_count(name: str) -> None:
    model, x = seeded(HELD[name]), torch.randn(2, 5, 16, requires_grad=True)
    expected = counted_by_hand(model, lambda: model(x))
    found = tt.saved_report(model, x)
    assert counted_by_torchtap(found) == expected
    assert sum(row.nbytes for row in found.rows) == found.nbytes


@pytest.mark.parametrize("specimen", SPECIMENS, ids=str)
def test_a_specimen_keeps_what_plain_hooks_hold_at_the_end(specimen: Specimen) -> None:
    """Held weakly, since what the forward dropped is not kept."""
    held: weakref.WeakSet[Any] = weakref.WeakSet()

    class Holds:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor.detach()
            held.add(self)

    model = seeded(specimen.build)
    args, kwargs = specimen.inputs()
    with torch.random.fork_rng(devices=[]), saved_tensors_hooks(Holds, lambda kept: kept.tensor):
        kept = model(*args, **kwargs)
    expected = len(held)
    assert kept is not None
    args, kwargs = specimen.inputs()
    found = tt.saved_report(seeded(specimen.build), *args, **kwargs)
    assert found.count == expected
    assert sum(row.nbytes for row in found.rows) == found.nbytes


def test_a_loss_that_uses_up_a_generator_is_counted() -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = linear()

        def forward(self, x: Tensor) -> Any:
            for _ in range(3):
                x = self.a(x).sin()
                yield x

    model, x = Steps(), torch.randn(3, 16)

    def loss(steps: Any) -> Tensor:
        return sum((one.sum() for one in steps), torch.zeros(()))

    expected = counted_by_hand(model, lambda: loss(model(x)))
    assert counted_by_torchtap(tt.saved_report(model, x, loss=loss)) == expected
    alone = tt.saved_report(model, x)
    assert alone.count == 0 and "returned a generator" in repr(alone)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("is_compiled_before", [True, False], ids=["before", "after"])
def test_a_compiled_model_counts_as_a_whole(is_compiled_before: bool) -> None:
    plain = seeded(lambda: nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)))
    model = torch.compile(plain, backend="aot_eager")
    x = torch.randn(8, 16)
    if is_compiled_before:
        model(x).sum().backward()
    found = tt.saved_report(model, x)  # type: ignore[arg-type]
    assert counted_by_torchtap(found) == counted_by_hand(plain, lambda: model(x))
    assert [row.path for row in found.rows] == [""] and "is compiled" in found.notes[0]


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_part_counts_under_its_path() -> None:
    inner = nn.Sequential(nn.Linear(16, 32), nn.GELU())
    model = nn.Sequential(linear(), torch.compile(inner, backend="aot_eager"), nn.Linear(32, 4))  # type: ignore[call-overload]
    x = torch.randn(8, 16)
    found = tt.saved_report(model, x)
    assert counted_by_torchtap(found) == counted_by_hand(model, lambda: model(x))
    assert [row.path for row in found.rows] == ["0", "1", "2"]
    assert found.notes == (
        "1 is compiled: what it keeps counts there, since the modules in it do not run one by one",
    )


def test_what_does_not_lead_to_the_output_is_reported() -> None:
    model, x = HELD["a set"](), torch.randn(2, 5, 16, requires_grad=True)
    found = tt.saved_report(model, x)
    size = 2 * 2 * 5 * 16 * F  # Of tanh, whose node only what was made later leads to, and of sin.
    assert found.notes[0].startswith(f"2 of the tensors ({size:,} bytes of their own) do not lead")
    assert not tt.saved_report(HELD["an object"](), x).notes  # It is looked into.
    assert not tt.saved_report(linear(), x).notes


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:Sparse invariant checks")
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_a_sparse_matrix_counts_what_it_stores(layout: str) -> None:
    rows, ones = torch.arange(65), torch.ones(64)
    if layout == "coo":
        sparse = torch.sparse_coo_tensor(torch.stack([rows[:64], rows[:64]]), ones)
    else:
        sparse = torch.sparse_csr_tensor(rows, torch.arange(64), ones, (64, 64))
    model = Net(lambda m, x: torch.sparse.mm(sparse, m.a(x)), a=linear())
    own = 64 * (2 * 8 + F) if layout == "coo" else (65 + 64) * 8 + 64 * F
    x = torch.randn(64, 16)
    assert tt.saved_report(model, x).nbytes == own + x.nbytes


def test_inputs_among_it() -> None:
    x = torch.randn(5, 16, requires_grad=True)
    found = tt.saved_report(nn.Sequential(nn.Sigmoid(), linear()), x)
    assert (found.nbytes, found.input_nbytes) == (x.nbytes, 0)
    found = tt.saved_report(nn.Sequential(linear(), nn.Sigmoid()), x)
    assert (found.nbytes, found.input_nbytes) == (2 * x.nbytes, x.nbytes)
    assert "Inputs of the call   320 B" in repr(found)


def test_a_model_that_uses_torch_func_is_counted_by_its_nodes() -> None:
    def body(net: Any, x: Tensor) -> Tensor:
        return net.a(x) * torch.func.grad(torch.sin)(torch.tensor(0.0))

    found = tt.saved_report(Net(body, a=linear()), x := torch.randn(5, 16))
    assert found.nbytes == x.nbytes + F and "are forbidden here" in found.notes[0]
    with torch.autograd.graph.disable_saved_tensors_hooks("no"):
        found = tt.saved_report(linear(), x)
    assert found.nbytes == x.nbytes and "are forbidden here" in found.notes[0]


def test_nothing_is_kept_and_why() -> None:
    frozen = linear().requires_grad_(False)
    assert "no parameter is trainable" in repr(tt.saved_report(frozen, torch.randn(2, 16)))
    adds = Net(lambda m, x: x + 1)
    assert "no operation" in tt.saved_report(adds, torch.ones(2, requires_grad=True)).notes[0]
    with torch.inference_mode():
        inside = nn.Linear(3, 3)
        x = torch.randn(2, 3)
        assert "torch.inference_mode" in repr(tt.saved_report(inside, x))
    with torch.inference_mode(False):
        outside, y = nn.Linear(3, 3), torch.randn(2, 3)
    with torch.inference_mode():
        assert tt.saved_report(outside, y).nbytes == y.nbytes


def test_another_order_shows_whole_paths() -> None:
    block = lambda: nn.Sequential(linear(), nn.Tanh())  # noqa: E731
    report = tt.saved_report(nn.Sequential(block(), block()), torch.randn(5, 16))
    first = [line.split()[0] for line in repr(report.sorted()).splitlines()[3:7]]
    assert first == [row.path for row in report.sorted().rows]
    tree = tt.saved_report(Net(lambda m, x: m.a(x).sin(), a=linear()), torch.randn(5, 16))
    assert [line[:3] for line in repr(tree).splitlines()[3:5]] == [".  ", "  a"]


def test_down_to_a_depth() -> None:
    model = seeded(lambda: nn.Sequential(nn.Sequential(linear(), nn.Tanh()), nn.Sigmoid()))
    x = torch.randn(5, 16)
    full, found = tt.saved_report(model, x), tt.saved_report(model, x, depth=1)
    assert [row.path for row in full.rows] == ["0.0", "0.1", "1"]
    assert [(row.path, row.type, row.count) for row in found.rows] == [
        ("0", "Sequential", 2), ("1", "Sigmoid", 1)
    ]  # fmt: skip
    assert (found.nbytes, found.param_nbytes) == (full.nbytes, full.param_nbytes)
    with pytest.raises(tt.InputError, match="depth is -1"):
        tt.saved_report(model, x, depth=-1)


# --- the command line -------------------------------------------------------------------------

SOURCE = """
from torch import nn

def net():
    return nn.Sequential(nn.Linear(8, 4), nn.ReLU())
"""


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    (tmp_path / "nets_that_save.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        shape = ("--shape", "5,8")
        code = cli.run(["summary", "nets_that_save:net", *shape, "--saved", *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_the_command_line_shows_what_is_saved(call: Any) -> None:
    code, out, _ = call()
    assert code == 0
    assert "AddmmBackward0.mat1" in out and "240 B in 2 tensors" in out


def test_the_command_line_gives_json(call: Any) -> None:
    code, out, _ = call("--json")
    found = json.loads(out)
    assert code == 0
    assert [(row["path"], row["nbytes"]) for row in found["rows"]] == [("0", 160), ("1", 80)]
    assert (found["nbytes"], found["count"]) == (240, 2)


def test_the_command_line_shows_down_to_a_depth(call: Any) -> None:
    code, out, _ = call("--depth", "0", "--json")
    found = json.loads(out)
    assert code == 0
    assert [(row["path"], row["nbytes"], row["count"]) for row in found["rows"]] == [("", 240, 2)]


class CallsItself(nn.Module):
    def forward(self, x: Tensor, again: bool = True) -> Tensor:
        if again:
            x = self(x, again=False)
        return x.exp().sin()  # Saves one storage twice.


def test_a_module_that_calls_itself_keeps_all_that_its_calls_save() -> None:
    model = nn.Sequential(CallsItself(), nn.Tanh())
    rows = tt.saved_report(model, torch.ones(100, requires_grad=True)).rows
    assert [(row.path, row.count, row.nbytes) for row in rows] == [("0", 4, 800), ("1", 1, 400)]

"""A sweep is a loop of edits, and says what it did."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import bits
import pytest
import torch
from models import rows, seeded
from torch import Tensor, nn

import torchtap as tt
from torchtap.studies.fingerprint import fingerprint
from torchtap.testing import Net


def mlp() -> nn.Sequential:
    return seeded(
        lambda: nn.Sequential(
            nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)
        )
    )


def measures(output: Tensor) -> dict[str, Any]:
    return {"sum": output.sum(), "first": output[0, 0].item()}


EDITS = {"zero": tt.edits.zero(), "double": tt.edits.scale(2.0), "part": tt.edits.zero(at={-1: 0})}


def by_hand(model: nn.Module, x: Tensor, metric: Any) -> dict[tuple[str, str], Any]:
    """A plain loop of hooks."""
    functions = {
        "zero": lambda t: t * 0,
        "double": lambda t: t * 2,
        "part": lambda t: torch.cat([t[..., :1] * 0, t[..., 1:]], -1),
    }
    found = {}
    for path, module in model.named_modules():
        for name, function in functions.items():
            handle = module.register_forward_hook(lambda m, a, out, f=function: f(out))
            with torch.no_grad():
                found[f"{path or '.'}:output", name] = metric(model(x))
            handle.remove()
    return found


@pytest.mark.parametrize("batch", [1, 2, 4, 100])
def test_a_sweep_is_a_loop_by_hand(batch: int) -> None:
    model, x = mlp(), rows()
    right = by_hand(model, x, measures)
    table = tt.sweep(model, x, "*", EDITS, measures, batch=batch)
    assert [(str(row.site), row.edit) for row in table] == list(right)
    with torch.no_grad():
        baseline = measures(model(x))
    assert table.baseline["sum"] == pytest.approx(baseline["sum"].item(), rel=1e-6)
    for row in table:
        expected = right[str(row.site), row.edit]
        for name, value in expected.items():
            assert row.values[name] == pytest.approx(float(value), rel=1e-4, abs=1e-5)
            change = row.values[name] - table.baseline[name]
            assert row.change[name] == pytest.approx(change, abs=1e-12)
    assert table.batched == batch and table.note == ""


def test_inputs_as_a_tuple_a_dict_and_ports() -> None:
    model = Net(lambda m, x, y: m.a(x) * y, a=nn.Identity())
    x, y = torch.ones(2, 1), torch.full((2, 1), 3.0)
    for inputs in ((x, y), {"x": x, "y": y}):
        for batch in (1, 4):
            table = tt.sweep(
                model, inputs, ["a:input,output"], tt.edits.scale(5.0), torch.sum, batch=batch
            )
            assert [(str(row.site), row.values["metric"]) for row in table] == [
                ("a:input", 30.0),
                ("a:output", 30.0),
            ]


def test_batch_norm_in_training_falls_back_and_says_so() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh()))
    x = rows()

    def metric(output: Tensor) -> Tensor:
        return (output * torch.arange(20.0).view(5, 4)[: len(output)]).sum()

    model = nn.Sequential(model, Net(lambda m, x: x * x.norm()))
    alone = tt.sweep(model, x, "*", tt.edits.scale(3.0), metric)
    together = tt.sweep(model, x, "*", tt.edits.scale(3.0), metric, batch=8)
    assert together.batched == 1 and "mixes the rows" in together.note
    assert alone.as_dicts() == together.as_dicts()
    assert "mixes the rows" in repr(together)


def test_batch_norm_in_training_whose_mixing_a_copy_does_not_show() -> None:
    # Statistics of a batch twice are those of the batch once, but for the unbiased buffer.
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh()))
    x = rows()
    alone = tt.sweep(model, x, "0", EDITS, torch.sum)
    together = tt.sweep(model, x, "0", EDITS, torch.sum, batch=3)
    for one, other in zip(alone, together, strict=True):
        assert other.values["metric"] == pytest.approx(one.values["metric"], rel=1e-4, abs=1e-5)
    assert together.batched == 1 and together.note


class Tokens(nn.Module):
    """Mixes rows by their mean; of tokens that are all alike no other batch can be made."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 4)
        self.last = nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return self.last(x - x.mean(0, keepdim=True) + x.sin())


def test_rows_of_tokens_that_are_mixed_are_noticed() -> None:
    model, tokens = seeded(Tokens), torch.ones(4, 3, dtype=torch.long)
    alone = tt.sweep(model, tokens, "embedding", EDITS, torch.sum)
    together = tt.sweep(model, tokens, "embedding", EDITS, torch.sum, batch=3)
    assert together.as_dicts() == alone.as_dicts() and "mixes the rows" in together.note


def test_a_site_whose_rows_are_elsewhere_runs_by_itself() -> None:
    def body(m: Any, x: Tensor) -> Tensor:
        return m.b(m.a(x).t()).t()

    model = Net(body, a=nn.Identity(), b=nn.Identity())
    table = tt.sweep(model, rows(), "*", EDITS, torch.sum, batch=4)
    alone = tt.sweep(model, rows(), "*", EDITS, torch.sum)
    for one, other in zip(alone, table, strict=True):
        assert other.values["metric"] == pytest.approx(one.values["metric"], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_a_sweep_leaves_the_model_as_it_was(training: bool) -> None:
    model = seeded(lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 2)))
    model.train(training)
    state, tables = bits.state(model), bits.hooks(model)
    first = tt.sweep(model, rows(), "*", EDITS, torch.sum)
    different = bits.differences(state, bits.state(model))
    assert [name for name in different if not name.startswith("buffer")] == []
    values = {name: fact[0] for name, fact in bits.state(model).items() if name[:6] == "buffer"}
    assert values == {name: fact[0] for name, fact in state.items() if name[:6] == "buffer"}
    assert bits.differences(tables, bits.hooks(model)) == []
    # Every forward draws the same random numbers, so nothing but the edit differs.
    again = tt.sweep(model, rows(), "*", EDITS, torch.sum)
    assert first.as_dicts() == again.as_dicts()
    same = tt.sweep(model, rows(), "*", lambda t: t, torch.sum)
    assert all(row.change["metric"] == 0 for row in same)


class Draws(nn.Module):
    """Counts its forwards, keeps a state of its own, and draws numbers from both generators."""

    count: Tensor

    def __init__(self, how: str) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b = nn.Linear(3, 3)
        self.how = how
        self.register_buffer("count", torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "counts":
            self.count.add_(1)
        elif self.how == "counts through data":
            self.count.data.add_(1)
        elif self.how == "counts anew":
            self.count = self.count + 1
        x = self.a(x) * self.count[0]
        x = x + torch.randn_like(x) if self.how == "draws" else x
        return self.b(x) * (random.random() if self.how == "draws in Python" else 1)


DRAWS = ["counts", "counts through data", "counts anew", "draws", "draws in Python"]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("how", DRAWS)
def test_nothing_but_the_edit_differs_between_forwards(how: str, training: bool) -> None:
    model = seeded(lambda: Draws(how)).train(training)
    count, state, numbers = model.count, torch.get_rng_state(), random.getstate()
    out = (model.b(rows()) * count[0]).sum()  # A graph that saved the buffer.

    def metric(output: Tensor) -> Tensor:
        return (output + torch.rand(())).sum()  # Draws, too.

    table = tt.sweep(
        model, rows(), ["a", "b"], {"same": lambda t: t, "two": lambda t: t * 2}, metric
    )
    assert [row.change["metric"] == 0 for row in table] == [True, False] * 2
    assert model.count is count and count.tolist() == [1, 1] and count._version == 0
    assert torch.equal(torch.get_rng_state(), state) and random.getstate() == numbers
    out.backward()
    # By hand: one forward from here, with a hook.
    handle = model.b.register_forward_hook(lambda m, a, out: out * 2)
    with torch.no_grad():
        right = metric(model(rows())).item()
    handle.remove()
    assert table.rows[3].values["metric"] == pytest.approx(right, rel=1e-6)


def test_a_sweep_that_fails_leaves_the_model_as_it_was() -> None:
    model = seeded(lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)))
    state, tables = bits.state(model), bits.hooks(model)
    with pytest.raises(tt.EditError, match=r"0:output.*returned float32\[3\]"):
        tt.sweep(model, rows(), "0", lambda t: t[0], torch.sum)
    with pytest.raises(tt.InputError, match="metric returned str"):
        tt.sweep(model, rows(), "0", tt.edits.zero(), lambda out: "much")
    values = {name: fact for name, fact in bits.state(model).items() if name[:6] != "buffer"}
    assert values == {name: fact for name, fact in state.items() if name[:6] != "buffer"}
    assert bits.differences(tables, bits.hooks(model)) == []
    assert model[0].num_batches_tracked.item() == 0


def test_what_a_sweep_cannot_do_is_an_error() -> None:
    model = Net(lambda m, x: x * 2, unused=nn.Linear(1, 1))
    with pytest.raises(tt.EditError, match="unused:output never came by"):
        tt.sweep(model, rows(), "*", tt.edits.zero(), torch.sum)
    with pytest.raises(tt.EditError, match="cannot be edited"):
        tt.sweep(mlp(), rows(), "0:grad_output", tt.edits.zero(), torch.sum)
    with pytest.raises(tt.SiteError):
        tt.sweep(mlp(), rows(), "nope", tt.edits.zero(), torch.sum)
    with pytest.raises(tt.InputError, match="batch is 0"):
        tt.sweep(mlp(), rows(), "0", tt.edits.zero(), torch.sum, batch=0)


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (lambda out: out, r"returned float32\[5, 3\]; expected a number.*as in \.mean\(\)"),
        (lambda out: {"a": out}, r"returned float32\[5, 3\] under 'a'; expected a number"),
        (lambda out: None, r"returned None; .*lack a return\?"),
        (lambda out: "3", "returned str; expected a number"),
        (lambda out: {}, "returned an empty dict"),
        (lambda out: [1.0], "returned list; expected"),
        (lambda out, target: 1.0, "metric is <lambda>; expected a function of the model's output"),
        ("loss", "metric is 'loss'; expected a function"),
    ],
)
def test_a_metric_that_is_no_number_is_refused(metric: Any, said: str) -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    with pytest.raises(tt.InputError, match=said):
        tt.sweep(model, torch.ones(5, 4), "0", tt.edits.zero(), metric)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"edit": [tt.edits.zero()]}, "a list of edits; expected one, or a dict"),
        ({"edit": {}}, "an empty dict of edits"),
        ({"edit": None}, "An edit needs a function"),
        ({"batch": "a"}, "batch is 'a'; expected a whole number from 1"),
    ],
)
def test_an_argument_of_a_sweep_that_does_not_fit_is_refused(options: Any, said: str) -> None:
    given = {"edit": tt.edits.zero(), "metric": torch.sum, **options}
    with pytest.raises(tt.InputError, match=said):
        tt.sweep(nn.Linear(4, 3), torch.ones(5, 4), ".", **given)


def test_gradients_are_not_swept_and_the_error_says_so() -> None:
    with pytest.raises(tt.EditError, match=r"cannot be edited here.* edited by tt\.edit, around"):
        tt.sweep(nn.Linear(4, 3), torch.ones(5, 4), ".:grad_output", tt.edits.zero(), torch.sum)


def test_a_sweep_can_be_sorted_and_made_a_frame() -> None:
    table = tt.sweep(mlp(), rows(), "*", EDITS, measures)
    changes = [abs(row.change["first"]) for row in table.sorted("first")]
    assert changes == sorted(changes, reverse=True)
    with pytest.raises(tt.InputError, match="no metric 'last'"):
        table.sorted("last")
    frame = table.to_frame()
    assert list(frame.columns) == ["site", "edit", "sum", "first", "sum_change", "first_change"]
    assert len(frame) == len(table)


# --- going on ---------------------------------------------------------------------------------

_PROGRAM = """
import sys, time
import torch, torchtap as tt
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(20)))
count = 0

def metric(output):
    global count
    count += 1
    if count > 7 and sys.argv[2] == "slowly":  # Twice without an edit, and five edits.
        print("there", flush=True)
        time.sleep(60)
    return output.sum()

table = tt.sweep(model, torch.ones(2, 3), "*", tt.edits.zero(at={-1: 0}), metric, path=sys.argv[1])
print(count, [row.values["metric"] for row in table])
"""


def program(path: Path, how: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _PROGRAM, str(path), how]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


@pytest.mark.slow
def test_a_sweep_that_is_killed_goes_on(tmp_path: Path) -> None:
    whole = program(tmp_path / "whole.jsonl", "fast")
    killed = program(tmp_path / "part.jsonl", "slowly")
    assert killed.stdout is not None and killed.stdout.readline() == "there\n"
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    killed.stdout.close()
    part = (tmp_path / "part.jsonl").read_text().splitlines()
    assert len(part) == 1 + 5  # A head, and what was done.
    on, _ = program(tmp_path / "part.jsonl", "fast").communicate(timeout=120)
    right, _ = whole.communicate(timeout=120)
    count, values = right.split(" ", 1)
    assert on.split(" ", 1) == [str(int(count) - 5), values]
    files = [(tmp_path / name).read_text() for name in ("part.jsonl", "whole.jsonl")]
    assert files[0] == files[1]


def swept(path: Path, model: nn.Module | None = None, **changes: Any) -> tt.Sweep:
    usual = {"inputs": rows(), "sites": "*", "edit": EDITS, "metric": measures}
    arguments: dict[str, Any] = usual | changes
    return tt.sweep(model or mlp(), path=path, **arguments)


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_last_line_that_was_cut_off_is_done_again(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "sweep.jsonl"
    right = swept(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert swept(path).as_dicts() == right.as_dicts()
    assert path.read_bytes() == whole


def test_a_head_that_was_cut_off_is_no_sweep(tmp_path: Path) -> None:
    path = tmp_path / "sweep.jsonl"
    swept(path)
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(tt.RunError, match="no file of a sweep"):
        swept(path)


def test_an_empty_file_is_begun(tmp_path: Path) -> None:
    path = tmp_path / "sweep.jsonl"
    path.touch()
    swept(path)
    assert json.loads(path.read_text().splitlines()[0])["torchtap"] == "sweep"


FOREIGN = [b"\xff\xfe", b"not json\n", b"[1, 2]\n", b'{"a": 1}\n', b"3\n", b"null\n"]


@pytest.mark.parametrize("content", FOREIGN, ids=repr)
def test_a_foreign_file_is_refused_and_not_touched(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes"
    path.write_bytes(content)
    with pytest.raises(tt.RunError, match="notes"):
        swept(path)
    assert path.read_bytes() == content


def other_weights() -> nn.Module:
    model = mlp()
    with torch.no_grad():
        model[0].weight[0, 0] += 1
    return model


def first_is(tensor: Tensor, weight: float = 1.0) -> Any:
    return lambda output: {"sum": (output * tensor).sum() * weight, "first": output[0, 0]}


class Caller:
    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, tensor: Tensor) -> Tensor:
        return tensor * self.by


def keywords(tensor: Tensor, *, by: float) -> Tensor:
    return tensor * by


def code(text: str) -> Any:
    """A function as of a script: its names are global there."""
    names: dict[str, Any] = {"__name__": "script"}
    exec(text, names)
    return names["f"]


ALIKE: dict[str, tuple[Any, Any]] = {
    "a tensor": (tt.edits.scale(torch.tensor([2.0])), tt.edits.scale(torch.tensor([3.0]))),
    "a tensor of another kind": (
        tt.edits.replace(torch.zeros(1)),
        tt.edits.replace(torch.zeros(1, 1)),
    ),
    "code": (lambda t: t * 2, lambda t: t / 2),
    "a number": (lambda t: t * 2, lambda t: t * 3),
    "a default": (lambda t, by=2: t * by, lambda t, by=3: t * by),
    "what it closes over": (first_is(torch.zeros(1)), first_is(torch.ones(1))),
    "a function inside": (tt.edits.add(lambda t: t * 2), tt.edits.add(lambda t: t * 3)),
    "a partial": (partial(keywords, by=2.0), partial(keywords, by=3.0)),
    "a callable": (Caller(2.0), Caller(3.0)),
    "a method": (Caller(2.0).__call__, Caller(3.0).__call__),
    "a global": (code("by = 2\nf = lambda t: t * by"), code("by = 3\nf = lambda t: t * by")),
    "a function it calls": (
        code("g = lambda t: t\ndef f(t):\n    return [g(x) for x in t]"),
        code("g = lambda t: -t\ndef f(t):\n    return [g(x) for x in t]"),
    ),
    "a module": (seeded(lambda: nn.Linear(4, 4), 0), seeded(lambda: nn.Linear(4, 4), 1)),
    "a mapping": (
        tt.edits.patch({"0": torch.zeros(5, 4)}),
        tt.edits.patch({"0": torch.ones(5, 4)}),
    ),
    "a function of torch": (torch.sin, torch.cos),
}


@pytest.mark.parametrize("what", ALIKE)
def test_functions_that_hold_something_else_are_told_apart(what: str) -> None:
    one, other = ALIKE[what]
    assert fingerprint(one) == fingerprint(one) != fingerprint(other)


def test_functions_that_hold_the_same_are_the_same() -> None:
    def made() -> list[Any]:
        itself: list[Any] = [torch.arange(3.0), {"a", "b", "c"}, {"k": (1, None)}]
        itself.append(itself)
        return [
            first_is(torch.ones(2)),
            tt.edits.scale(torch.ones(2), at={-1: slice(0, 2)}),
            Caller(2.0),
            partial(keywords, by=2.0),
            code("def f(n):\n    return n and f(n - 1)"),
            seeded(lambda: nn.Linear(2, 2)),
            itself,
            torch.eye(3).to_sparse(),
            torch.ones(2, dtype=torch.complex64).conj(),
            torch.ones(2, dtype=torch.bfloat16),
            Path("a"),
            re.compile("a+"),
        ]

    assert [fingerprint(one) for one in made()] == [fingerprint(one) for one in made()]
    assert len({fingerprint(one) for one in made()}) == len(made())


def test_runs_are_told_apart_by_what_was_recorded() -> None:
    model, runs = mlp(), []
    for seed in (0, 0, 1):
        with tt.watch(model, "*") as w:
            model(rows(seed))
        runs.append(w.run)
    edits = [tt.edits.mean_ablate(run) for run in runs]
    first = fingerprint(edits[0])
    tt.sweep(model, rows(), "0", edits[0], torch.sum)  # Which keeps the mean that it computed.
    assert first == fingerprint(edits[0]) == fingerprint(edits[1]) != fingerprint(edits[2])


_HASHING = """
import sys, torch, torchtap as tt
from torchtap.studies.fingerprint import fingerprint

names, table = {"a", "b", "c"}, torch.arange(4.0)

class Own:
    def __call__(self, x):
        return x * table if "b" in {"a", "b", "c"} else x

def metric(output):
    return {name: (output * table).sum() for name in names}

print(fingerprint([metric, Own(), tt.edits.noise(0.5, at={0: 1}), lambda x: x in {1, 2, "c"}]))
"""


@pytest.mark.slow
def test_a_fingerprint_is_the_same_in_another_process() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", _HASHING],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1


def test_what_cannot_be_told_again_is_refused_and_only_for_a_file(tmp_path: Path) -> None:
    lock = threading.Lock()

    def edit(tensor: Tensor) -> Tensor:
        with lock:
            return tensor * 2

    path = tmp_path / "sweep.jsonl"
    with pytest.raises(tt.InputError, match=r"Edit 'zero' holds an object of class lock"):
        swept(path, edit={"zero": edit})
    generator = (one for one in "a")
    with pytest.raises(tt.InputError, match="The metric holds an object of class generator"):
        swept(path, metric=lambda out: next(generator) and out.sum())
    assert not path.exists()
    assert len(tt.sweep(mlp(), rows(), "0", edit, torch.sum)) == 1


OTHERS: dict[str, tuple[Any, str]] = {
    "sites": (lambda path: swept(path, sites="0"), "trials"),
    "edits": (lambda path: swept(path, edit=tt.edits.zero()), "trials"),
    "edits of one name": (
        lambda path: swept(path, edit={**EDITS, "zero": tt.edits.scale(0.5)}),
        "edits",
    ),
    "inputs": (lambda path: swept(path, inputs=rows(1)), "inputs"),
    "weights": (lambda path: swept(path, other_weights()), "weights"),
    "order of inputs": (lambda path: swept(path, inputs=rows().flip(0)), "inputs"),
    "metric": (lambda path: swept(path, metric=first_is(torch.ones(1))), "metric"),
    "modes": (lambda path: swept(path, mlp().eval()), "modes"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_file_of_another_sweep_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "sweep.jsonl"
    swept(path)
    change, name = OTHERS[what]
    with pytest.raises(tt.RunError, match=f"another sweep, with other .*{name}"):
        change(path)


def test_a_metric_with_other_names_is_an_error() -> None:
    def metric(output: Tensor) -> dict[str, Any]:
        return {"sum": 1.0} if output.any() else {"total": 0.0}

    with pytest.raises(tt.InputError, match=r"'total' with 'zero\(\)' at 4:output, and 'sum' for"):
        tt.sweep(mlp(), rows(), "4", tt.edits.zero(), metric)


def test_nan_goes_through_a_file(tmp_path: Path) -> None:
    path = tmp_path / "sweep.jsonl"
    for _ in range(2):
        table = tt.sweep(mlp(), rows(), "0", tt.edits.replace(float("nan")), torch.sum, path=path)
        assert table.rows[0].values["metric"] != table.rows[0].values["metric"]


@pytest.mark.slow
def test_progress_is_shown_only_after_two_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    tt.sweep(mlp(), rows(), "*", EDITS, measures, progress=True)
    assert capsys.readouterr().err == ""

    def slowly(output: Tensor) -> Tensor:
        time.sleep(0.7)
        return output.sum()

    tt.sweep(mlp(), rows(), "0", EDITS, slowly, progress=True)
    shown = capsys.readouterr().err
    assert "0:output" in shown and "3/3" in shown
    assert "\x1b" not in shown and len(shown.splitlines()) == 1

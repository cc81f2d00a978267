"""All that was recorded, with one face."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models import resnet18, seeded
from random_numbers import leaf
from records import record
from torch import Tensor, nn

import torchtap as tt
from torchtap.core.record import Record
from torchtap.runs.run import Meta, Run
from torchtap.stats.series import Series
from torchtap.testing import Net


def batch(step: int) -> Tensor:
    return leaf(4, 3, seed=step, dtype=torch.float32)


def layers() -> nn.Sequential:
    twice = Net(lambda m, x: m.inner(m.inner(x)), inner=nn.Tanh())
    return seeded(lambda: nn.Sequential(nn.Linear(3, 3), twice))


def recorded(where: Any = "*:*", steps: int = 2) -> tuple[tt.Run, nn.Sequential]:
    model = layers()
    with tt.watch(model, where) as w:
        for step in range(steps):
            model(batch(step)).sum().backward()
            w.step()
    return w.run, model


# --- one value --------------------------------------------------------------------------------


def test_a_site_gives_its_last_step_and_last_call() -> None:
    run, model = recorded()
    hidden = model[0](batch(1))
    assert torch.equal(run["0:output"], hidden)
    assert torch.equal(run["1.inner:output"], hidden.tanh().tanh())
    assert torch.equal(run[tt.Site("0", "output")], hidden)
    assert torch.equal(run["0"], hidden)


def test_get_takes_step_and_call() -> None:
    run, model = recorded()
    hidden = model[0](batch(0))
    assert torch.equal(run.get("1.inner:output", step=0, call=0), hidden.tanh())
    assert torch.equal(run.get("1.inner:output", step=0), hidden.tanh().tanh())
    assert torch.equal(run.get("1.inner:output", call=0), model[0](batch(1)).tanh())


def test_the_record_stands_behind_the_value() -> None:
    run, _ = recorded()
    record = run.record("1.inner:output", step=0, call=1)
    assert (record.step, record.call, record.phase) == (0, 1, "forward")
    assert record.value is run.get("1.inner:output", step=0, call=1)


def test_a_site_with_several_leaves_asks_which() -> None:
    model = Net(lambda m, x: (x, 2 * x))
    with tt.watch(model) as w:
        model(torch.ones(1))
    with pytest.raises(
        tt.SiteError, match=r"stands for several tensors\. Name one of '\.:output\[0"
    ):
        w.run[".:output"]
    assert w.run[".:output[1]"].item() == 2.0


def test_a_site_with_one_leaf_needs_no_name() -> None:
    model = Net(lambda m, x: {"only": x})
    with tt.watch(model) as w:
        model(torch.ones(1))
    assert w.run[".:output"].item() == 1.0


def test_membership_follows_reading() -> None:
    run, _ = recorded("0:output")
    assert "0:output" in run
    assert "0" in run
    assert tt.Site("0") in run
    assert "1:output" not in run
    assert "0:nonsense" not in run


# --- many -------------------------------------------------------------------------------------


def test_records_come_in_the_order_of_their_arrival() -> None:
    run, _ = recorded(["*:input", "*:output"], steps=1)
    order = [f"{record.site}" for record in run.records()]
    inner = ["1.inner:input", "1.inner:output"]
    expected = [".:input", "0:input", "0:output", "1:input", *inner, *inner]
    assert order == [*expected, "1:output", ".:output"]


def test_records_are_read_lazily() -> None:
    run, _ = recorded()
    records = run.records()
    assert iter(records) is records
    assert isinstance(next(records), tt.Record)


@pytest.mark.parametrize(
    ("where", "num"),
    [
        (None, 40),
        ("*:*", 40),
        ("0:output", 2),
        ("@Linear:*", 8),
        ("@Tanh:output", 4),
        (["0:output", "1:output"], 4),
        (["*:output", "!1.inner"], 6),
        ("!*:input,output", 20),
        (tt.Site("0", "output"), 2),
        ([tt.Site("0", "output"), "1:output"], 4),
        (lambda site: site.port == "grad_input", 10),
        ("re:1.*:output", 6),
    ],
)
def test_records_can_be_chosen_by_where(where: Any, num: int) -> None:
    run, _ = recorded()
    assert len(list(run.records(where))) == num


@pytest.mark.parametrize(
    ("steps", "found"), [(None, {0, 1, 2}), (1, {1}), ([0, 2], {0, 2}), (range(1, 3), {1, 2})]
)
def test_records_can_be_chosen_by_step(steps: Any, found: set[int]) -> None:
    run, _ = recorded("0", steps=3)
    assert {record.step for record in run.records(steps=steps)} == found


def test_selecting_gives_sites() -> None:
    run, _ = recorded()
    assert run.select("@Linear:output,input") == [tt.Site("0", "input"), tt.Site("0", "output")]
    assert run.select(None) == run.sites


def test_sites_are_ordered_by_module_then_port() -> None:
    run, _ = recorded(["*:grad_output", "*:output"])
    paths = ["", "0", "1", "1.inner"]
    ports = ["output", "grad_output"]
    assert run.sites == [tt.Site(path, port) for path in paths for port in ports]


def test_steps_are_those_with_a_record() -> None:
    model = layers()
    with tt.watch(model, every=2) as w:
        for step in range(5):
            model(batch(step))
            w.step()
    assert w.run.steps == [0, 2, 4]


def test_cat_joins_calls_and_steps() -> None:
    run, model = recorded("1.inner")
    values = []
    for step in range(2):
        first = model[0](batch(step)).tanh()
        values += [first, first.tanh()]
    assert torch.equal(run.cat("1.inner"), torch.cat(values))
    assert torch.equal(run.cat("1.inner", steps=1), torch.cat(values[2:]))


def test_cat_takes_a_bare_number_as_one_row() -> None:
    model = Net(lambda m, x: x.sum())
    with tt.watch(model) as w:
        for step in range(3):
            model(torch.full((2,), float(step)))
            w.step()
    assert w.run.cat(".").tolist() == [0.0, 2.0, 4.0]


def test_cat_of_what_does_not_fit_says_the_shapes() -> None:
    model = nn.Identity()
    with tt.watch(model) as w:
        model(torch.ones(2, 3))
        model(torch.ones(2, 4))
    with pytest.raises(tt.RunError, match=r"shapes are \(2, 3\), \(2, 4\)\. Read them one by one"):
        w.run.cat(".")


# --- mean_norm --------------------------------------------------------------------------------


def test_mean_norm_is_the_norm_of_the_mean_over_samples() -> None:
    run, model = recorded("0:output")
    with torch.no_grad():
        values = np.concatenate([model[0](batch(step)).double().numpy() for step in range(2)])
    expected = math.sqrt((values.mean(0) ** 2).sum())
    assert run.mean_norm() == {"0": pytest.approx(expected, rel=1e-12)}


def test_mean_norm_weighs_batches_by_their_samples() -> None:
    model = nn.Identity()
    with tt.watch(model) as w:
        model(torch.tensor([[1.0], [1.0], [1.0]]))
        model(torch.tensor([[5.0]]))
    assert w.run.mean_norm() == {".": 2.0}


def test_mean_norm_is_keyed_by_path_or_by_site() -> None:
    run, _ = recorded()
    assert list(run.mean_norm("*:grad_output")) == [".", "0", "1", "1.inner"]
    assert list(run.mean_norm("0:input,output")) == ["0:input", "0:output"]


def test_mean_norm_of_nan_is_nan_and_of_complex_a_number() -> None:
    model = nn.Identity()
    with tt.watch(model) as w:
        model(torch.tensor([[math.nan], [1.0]]))
        w.step()
        model(torch.tensor([[3 + 4j]]))
    assert math.isnan(w.run.mean_norm()["."])
    with tt.watch(model) as w:
        model(torch.tensor([[3 + 4j], [3 + 4j]]))
    assert w.run.mean_norm() == {".": 5.0}


def test_mean_norm_of_sparse_values_is_that_of_the_dense_ones() -> None:
    model = nn.Identity()
    with tt.watch(model) as w:
        model(torch.tensor([[6.0, 0.0], [0.0, 8.0]]).to_sparse())
    assert w.run.mean_norm() == {".": 5.0}


def test_mean_norm_of_half_precision_does_not_overflow() -> None:
    model = nn.Identity()
    with tt.watch(model) as w:
        model(torch.full((64, 4), 60000.0, dtype=torch.float16))
    value = float(torch.tensor(60000.0, dtype=torch.float16))
    assert w.run.mean_norm() == {".": 2 * value}


# --- statistics, tables -----------------------------------------------------------------------


def test_stats_are_over_all_calls_of_the_last_step() -> None:
    run, model = recorded("1.inner")
    first = model[0](batch(1)).tanh().detach()
    both = torch.cat([first, first.tanh()]).double()
    stats = run.stats("1.inner")
    assert stats.numel == both.numel()
    assert stats.mean == pytest.approx(both.mean().item(), rel=1e-12)
    assert stats.std == pytest.approx(both.std(correction=0).item(), rel=1e-9)
    assert stats.max == both.max().item()


def test_stats_of_all_steps_are_over_all() -> None:
    run, _ = recorded("0")
    assert run.stats("0", step="all").numel == 24
    assert run.stats("0", step=0).numel == 12


def test_over_steps_gives_steps_and_values() -> None:
    run, model = recorded("0")
    steps, values = run.over_steps("0", "absmax")
    assert steps == [0, 1]
    expected = [model[0](batch(step)).abs().max().item() for step in range(2)]
    assert values == expected


def test_a_table_has_one_row_per_site() -> None:
    run, _ = recorded(["0:output", "1.inner:output"])
    rows = {str(row.site): row for row in run.table()}
    assert list(rows) == ["0:output", "1.inner:output"]
    inner = rows["1.inner:output"]
    assert (inner.type, inner.calls, inner.steps) == ("Tanh", 2, 2)
    assert (inner.shape, inner.dtype, inner.nbytes) == ((4, 3), "float32", 4 * 4 * 3 * 4)
    assert len(run.table(steps=0)) == 2


def test_a_data_frame_has_the_same_rows() -> None:
    pandas = pytest.importorskip("pandas")
    run, model = recorded("*:output")
    frame = run.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["site"]) == [str(site) for site in run.sites]
    biggest = model[0](batch(1)).max().item()
    assert frame.set_index("site").loc["0:output", "max"] == biggest


# --- what is known and shown ------------------------------------------------------------------


def test_meta_says_how_it_was_made() -> None:
    run, _ = recorded(["0:output", "1.inner"])
    meta = run.meta
    assert meta.model == "Sequential"
    assert meta.where == ("0:output", "1.inner")
    assert meta.torch == torch.__version__
    assert meta.torchtap == tt.__version__
    assert list(meta.modules) == ["", "0", "1", "1.inner"]
    assert meta.type_name("0") == "Linear"
    assert meta.type_name("nothing") == ""


def test_meta_knows_the_paths_of_a_shared_module() -> None:
    shared = nn.Tanh()
    model = nn.Sequential(shared, nn.Linear(1, 1), shared)
    with tt.watch(model, "0") as w:
        model(torch.ones(1, 1))
    assert w.run.meta.paths_of("0") == ("0", "2")
    assert torch.equal(w.run["2:output"], w.run["0:output"])
    assert len(w.run.select("2")) == 1


def test_nbytes_and_length_count_what_was_kept() -> None:
    run, _ = recorded("0:output")
    assert (len(run), run.nbytes) == (2, 2 * 12 * 4)


def test_absences_are_part_of_a_run() -> None:
    run, _ = recorded("0:output", steps=0)
    assert [str(entry.site) for entry in run.absent] == ["0:output"]


def test_an_empty_run_can_be_shown_and_asked() -> None:
    run, _ = recorded("0:output", steps=0)
    assert len(run) == len(run.sites) == len(run.steps) == 0
    assert len(run.table()) == 0
    assert "0:output" in repr(run)
    with pytest.raises(tt.SiteError, match="absent because"):
        run["0:output"]


def test_a_run_is_shown_in_100_columns() -> None:
    model = seeded(lambda: resnet18(width=4))
    with tt.watch(model, "*:*") as w:
        model(torch.ones(2, 3, 32, 32)).sum().backward()
    text = repr(w.run)
    assert "Run of ResNet" in text
    assert max(map(len, text.splitlines())) <= 100
    assert max(map(len, repr(w.run.table()).splitlines())) <= 100


def test_long_names_are_shown_in_100_columns() -> None:
    model = nn.ModuleDict({"a" * 150: nn.Identity()})
    model.forward = lambda x: next(iter(model.values()))(x)
    with tt.watch(model) as w:
        model(torch.ones(1, 2, 3, 4, 5, 6, 7))
    assert max(map(len, repr(w.run).splitlines())) <= 100


def test_reading_while_it_grows_sees_what_is_new() -> None:
    model = layers()
    with tt.watch(model, "0") as w:
        for step in range(3):
            model(batch(step))
            assert w.run.steps == list(range(step + 1))
            assert w.run.record("0").step == step
            w.step()


# --- read once --------------------------------------------------------------------------------


class CountedStats(tt.Stats):
    """Counts how often a run asks for what was measured."""

    num_reads = 0

    def measured(self) -> Series:
        self.num_reads += 1
        return super().measured()


OPERATIONS: dict[str, Callable[[tt.Run], object]] = {
    "sites": lambda run: run.sites,
    "steps": lambda run: run.steps,
    "select": lambda run: run.select(["*:output", "!2"]),
    "in": lambda run: "0:output" in run,
    "table": lambda run: run.table(columns=["p99", "l2"], sort="l2"),
    "table of all steps": lambda run: run.table(run.select("*"), steps="all"),
    "mean_norm": lambda run: run.mean_norm(),
    "over_steps": lambda run: run.over_steps("0:output", "p99"),
    "stats": lambda run: run.stats("0:output", step=[0, 1]),
    "quantile": lambda run: run.quantile("0:output", 0.5),
    "records": lambda run: list(run.records()),
    "repr": repr,
    "html": lambda run: run._repr_html_(),
    "to_frame": lambda run: run.to_frame(),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_an_operation_reads_a_live_run_once_however_many_sites_it_has(
    operation: Callable[[tt.Run], object],
) -> None:
    if operation is OPERATIONS["to_frame"]:
        pytest.importorskip("pandas")
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(5)))
    sink = CountedStats()
    with tt.watch(model, "*:output,param", to=sink) as w:
        for _ in range(2):
            model(torch.ones(3, 2))
            w.step()
        model(torch.ones(3, 2))
        operation(w.run)
        assert sink.num_reads == (2 if operation is OPERATIONS["table of all steps"] else 1)


def test_saving_reads_a_live_run_once(tmp_path: Path) -> None:
    sink = CountedStats()
    with tt.watch(nn.Linear(2, 2), to=sink) as w:
        w.run.save(tmp_path / "run.safetensors")
    assert sink.num_reads == 1


class CountedRows(list[Record]):
    """Counts how often a record is looked at."""

    num_looks = 0

    def __getitem__(self, place: Any) -> Any:
        self.num_looks += 1
        return super().__getitem__(place)

    def __iter__(self) -> Iterator[Record]:
        self.num_looks += len(self)
        return super().__iter__()


@pytest.mark.parametrize("operation", ["mean_norm", "table", "over_steps"])
def test_looks_at_the_records_do_not_grow_with_the_number_of_sites(operation: str) -> None:
    looks = []
    for num in (4, 16):
        paths = [str(number) for number in range(num)]
        rows = CountedRows(
            record(path, torch.ones(2, 3), step=step) for step in range(3) for path in paths
        )
        run = Run(rows, Meta(modules=dict.fromkeys(paths, ("Linear",))))
        if operation == "over_steps":
            for path in paths:
                run.over_steps(path, "mean")
        else:
            getattr(run, operation)()
        looks.append(rows.num_looks / len(rows))
    assert looks[1] <= looks[0] + 1


def test_a_live_run_that_is_read_again_and_again_shows_what_came_since() -> None:
    model = nn.Identity()
    with tt.watch(model, to=[tt.Memory(), tt.Stats()]) as w:
        for number in range(3):
            for part in range(2):
                model(torch.full((2,), float(2 * number + part)))
                assert w.run.stats(".:output").max == 2 * number + part
                assert w.run.stats(".:output").num_tensors == part + 1
                assert len(list(w.run.records())) == 2 * number + part + 1
            w.step()
    assert w.run.mean_norm() == {".": 2.5}


# --- the order of records ---------------------------------------------------------------------


def two_arguments(module: nn.Module, first: Tensor, second: Tensor, last: Tensor) -> Tensor:
    """Its gradients arrive from the last argument to the first."""
    del module
    return ((first * 2).exp() * second).sin() * last


@pytest.mark.parametrize("grad_input", ["through", "total"])
def test_gradients_of_one_call_come_in_the_order_of_its_arguments(grad_input: Any) -> None:
    inner = Net(two_arguments)
    model = Net(lambda m, a, b, c: m.inner(m.inner(a, b, last=c), b, last=c), inner=inner)
    leaves = [torch.full((2,), float(n), requires_grad=True) for n in (1, 2, 3)]
    with tt.watch(model, "inner:grad_input", grad_input=grad_input) as w:
        model(*leaves).sum().backward()
    order = {leaf: place for place, leaf in enumerate(("0", "1", "last"))}
    calls: dict[int, list[int]] = {}
    for row in w.run.records():
        calls.setdefault(row.call, []).append(order[row.site.leaf])
    assert calls == {0: [0, 1, 2], 1: [0, 1, 2]}
    assert [site.leaf for site in w.run.sites] == list(order)


def test_a_file_keeps_the_order_of_arguments(tmp_path: Path) -> None:
    inner = Net(two_arguments)
    model = nn.Sequential(Net(lambda m, x: m.inner(x, x * 2, last=x * 3), inner=inner))
    with tt.watch(model, "0.inner:grad_input") as w:
        model(torch.ones(2, requires_grad=True)).sum().backward()
    opened = tt.open(w.run.save(tmp_path / "run.safetensors"))
    assert [record.site.leaf for record in opened.records()] == ["0", "1", "last"]


@pytest.mark.parametrize(
    "read",
    [
        lambda run: list(run.records("0")),
        lambda run: run.select("*:grad_output"),
        lambda run: run["0:output"],
        lambda run: run.table("0"),
    ],
)
def test_an_empty_run_says_that_it_is_empty(read: Callable[[tt.Run], object]) -> None:
    with pytest.raises(tt.SiteError, match="run is empty"):
        read(Run([], Meta()))


def test_a_site_without_a_record_that_fits_has_no_records() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with tt.watch(model, "0", to=tt.Stats()) as w:
        model(torch.ones(1, 2))
    assert list(w.run.records("0")) == []
    run, _ = recorded("0")
    assert list(run.records("0", steps=7)) == list(run.records("0", phase="eval")) == []


def test_a_statistic_that_is_not_there_names_its_neighbours() -> None:
    model = nn.ReLU()
    with tt.watch(model, to=tt.Stats()) as w:
        model(torch.ones(1))
    with pytest.raises(tt.SiteError, match="no statistic 'meen'; did you mean 'mean'"):
        w.run.over_steps(".:output", "meen")


def test_values_of_varying_lengths_are_refused_with_ways_out() -> None:
    layer = nn.Identity()
    with tt.watch(layer) as w:
        for length in (2, 5, 3):
            layer(torch.ones(1, length, 4))
    with pytest.raises(tt.RunError, match=r"run\.get\(.*pad dim 1 of each to 5"):
        w.run.cat(".")

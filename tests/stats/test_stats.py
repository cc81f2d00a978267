"""``tt.Stats`` while a model runs: the same numbers as from kept values, and nothing changed."""

from __future__ import annotations

import collections
import contextlib
import copy
import math
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from bits import value_bits
from models import DigitsCNN, TinyGPT, resnet18, scaled_step, seeded
from torch import Tensor, nn

import torchtap as tt
from torchtap.stats.kernels import native
from torchtap.stats.statistics import NUMBERS
from torchtap.testing import Specimen, default_loss, zoo

EXACT = pytest.approx


def step(model: nn.Module, *args: Any, **kwargs: Any) -> None:
    output = model(*args, **kwargs)
    output.square().mean().backward()


def small() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 2)))


def assert_same(found: Any, expected: Any) -> None:
    for name in NUMBERS:
        value = getattr(expected, name)
        assert getattr(found, name) == EXACT(value, rel=1e-9, abs=1e-12, nan_ok=True), name


def both(model: nn.Module, where: str, run: Any, *, steps: int = 2, **how: Any) -> Any:
    """Measured and kept values of one and the same run."""
    with tt.watch(model, where, to=[tt.Memory(), tt.Stats(exact=True, **how)]) as w:
        for _ in range(steps):
            run()
            w.step()
    return w.run


def run_specimen(specimen: Specimen, sink: Any) -> Any:
    model = specimen.build()
    args, kwargs = specimen.inputs()
    torch.manual_seed(0)
    with tt.watch(model, "*:*", to=sink, copy="always") as w, contextlib.ExitStack() as stack:
        if specimen.raises is not None:
            stack.enter_context(pytest.raises(specimen.raises))
        output = model(*args, **kwargs)
        if specimen.backward:
            default_loss(output).backward()
    return w


# ---------------------------------------------------------------------- right


@pytest.mark.parametrize("specimen", zoo(), ids=lambda s: s.name)
def test_what_is_measured_is_what_was_kept(specimen: Specimen) -> None:
    w, kept = run_specimen(specimen, tt.Stats(exact=True)), run_specimen(specimen, tt.Memory())
    assert set(map(str, w.run.sites)) == {str(r.site) for r in kept.run.records()}
    for site in w.run.sites:
        values = [r.value for r in kept.run.records(site)]
        assert_same(w.run.stats(site), tt.measure(values))


def test_statistics_of_each_step_and_of_all() -> None:
    model, generator = small(), torch.Generator().manual_seed(0)
    run = both(model, "*:*,param,param_grad", lambda: step(model, torch.randn(5, 4)), steps=4)
    generator.seed()
    assert run.steps == [0, 1, 2, 3]
    for site in run.series.sites:
        for number in range(4):
            assert_same(run.stats(site, step=number), tt.measure(run.get(site, step=number)))
        every = [run.get(site, step=number) for number in range(4)]
        assert_same(run.stats(site, step="all"), tt.measure(every))
        assert_same(run.stats(site, step=range(1, 3)), tt.measure(every[1:3]))
        assert run.stats(site).numbers() == run.stats(site, step=3).numbers()


def test_calls_of_one_step_are_merged() -> None:
    relu = nn.ReLU()
    values = [torch.randn(3, 2) + shift for shift in (0, 100, -50)]
    with tt.watch(relu, ".:input", to=tt.Stats()) as w:
        for value in values:
            relu(value)
    found = w.run.stats(".:input")
    assert found.num_tensors == 3
    assert_same(found, tt.measure(values))


def test_what_a_checkpoint_computes_again_is_not_counted() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)

    model = Net()
    with tt.watch(model, "inner:output", to=tt.Stats()) as w:
        step(model, torch.randn(2, 3, requires_grad=True))
    assert w.run.stats("inner:output").num_tensors == 1


def test_accumulated_parameter_gradients_stand_in_their_last_value() -> None:
    model = nn.Linear(3, 1)
    with tt.watch(model, ".:param_grad", to=tt.Stats()) as w:
        for _ in range(3):
            step(model, torch.randn(2, 3))
    assert_same(w.run.stats(".:param_grad[weight]"), tt.measure(model.weight.grad))  # type: ignore[arg-type]


def test_a_value_is_measured_before_it_is_overwritten() -> None:
    model = small()
    run = both(model, "*:output", lambda: step(model, torch.randn(5, 4)))
    assert run.stats("0:output").min < 0
    assert run.stats("1:output").min == 0


def test_a_gradient_that_comes_after_its_step_was_closed_counts_there() -> None:
    model = nn.Linear(3, 1)
    with tt.watch(model, ".:grad_output", to=tt.Stats()) as w:
        output = model(torch.randn(2, 3))
        w.step()
        output.sum().backward()
        model(torch.randn(2, 3)).mul(2).sum().backward()
    assert w.run.stats(".:grad_output", step=0).mean == 1
    assert w.run.stats(".:grad_output", step=1).mean == 2


def test_a_gradient_that_comes_late_counts_there_also_when_its_successor_is_closed() -> None:
    model = nn.Linear(3, 1)
    with tt.watch(model, ".:grad_output", to=tt.Stats()) as w:
        output = model(torch.randn(2, 3))
        w.step()
        output.sum().backward()
        w.step()
        model(torch.randn(2, 3)).mul(2).sum().backward()
        w.step()
    steps, means = w.run.over_steps(".:grad_output", "mean")
    assert (steps, means) == ([0, 2], [1, 2])


def test_reading_between_micro_batches_changes_nothing() -> None:
    statistics = [tt.stats.along(0), tt.stats.cosine(), tt.stats.top_k(2)]

    def train(reads: Any) -> Any:
        model = seeded(lambda: nn.Linear(3, 1))
        sink = tt.Stats(statistics=statistics)  # type: ignore[arg-type]
        with tt.watch(model, ".:param_grad,output", to=sink) as w:
            for number in range(6):
                step(model, torch.full((2, 3), float(number)))
                if reads:
                    w.run.stats(".:output", step="all")
                if number % 3 == 2:
                    w.step()
        return w.run, model.weight.grad

    (run, gradient), (plain, _) = train(True), train(False)
    for site in plain.sites:
        for when in (0, 1, [0, 1], "all"):
            found, expected = run.stats(site, step=when), plain.stats(site, step=when)
            assert_same(found, expected)
            assert found.histogram.counts.tolist() == expected.histogram.counts.tolist()
            assert found.extra["cosine"] == EXACT(expected.extra["cosine"], nan_ok=True)
            assert found.extra["top_k"] == expected.extra["top_k"]
    assert math.isnan(run.stats(".:output").extra["cosine"])  # One step has no neighbour.
    last = run.stats(".:param_grad[weight]")
    assert_same(last, tt.measure(gradient))
    assert last.extra["along(0)"].numel.tolist() == [3]


def test_a_step_is_a_whole_number_of_any_kind() -> None:
    model = nn.Identity()
    with tt.watch(model, to=[tt.Stats()]) as w, tt.watch(model) as kept:
        for number in range(3):
            model(torch.tensor([float(number)]))
            w.step()
            kept.step()
    for run in (w.run, kept.run):
        for one in (np.int64(1), torch.tensor(1), np.arange(1, 2)):
            assert run.stats(".:output", step=one).mean == 1  # type: ignore[arg-type]
        for bad in (1.0, "1", [0.5]):
            with pytest.raises(tt.SiteError, match="expected a number"):
                run.stats(".:output", step=bad)  # type: ignore[arg-type]
        with pytest.raises(tt.SiteError):
            run.stats(".:output", step=[])
        with pytest.raises(tt.SiteError, match="no statistic 'quantile'"):
            run.over_steps(".:output", "quantile")


def test_samples_of_tensors_of_several_sizes_say_which_they_favour(tmp_path: Path) -> None:
    model = nn.Identity()
    sizes = (8192, 100_000)
    with tt.watch(model, to=tt.Stats()) as w:
        for size in sizes:
            model(torch.full((size,), float(size)))
        w.step()
        for size in sizes:
            model(torch.full((size,), float(size)))
            w.step()
    saved = tt.open(w.run.save(tmp_path / "run.safetensors"))
    for run in (w.run, saved):
        for when in (0, [1, 2], "all"):
            assert any("leans" in note for note in run.stats(".:output", step=when).notes)
    with tt.watch(model, to=tt.Stats(exact=True)) as w:
        for size in sizes:
            model(torch.full((size,), float(size)))
    found = w.run.stats(".:output")
    assert (found.notes, found.quantile(0.5)) == ((), EXACT(100_000, rel=1 / 33))  # type: ignore[comparison-overlap]
    parts = [tt.measure(torch.full((size,), float(size)), exact=False) for size in sizes]
    assert any("leans" in note for note in parts[0].merge(parts[1]).notes)


def test_the_histogram_of_a_whole_run_says_whether_it_is_a_sample(tmp_path: Path) -> None:
    model = nn.Identity()
    for size, error in ((4096, 0), (5000, math.sqrt(0.25 / 4096))):
        with tt.watch(model, to=tt.Stats()) as w:
            for _ in range(2):
                model(torch.randn(size))
                w.step()
        for run in (w.run, tt.open(w.run.save(tmp_path / "run.safetensors"))):
            histogram = run.stats(".:output", step="all").histogram
            assert histogram.standard_error(0.5) == EXACT(error)


def test_reading_in_the_middle_of_a_step_loses_nothing() -> None:
    model = nn.Identity()
    with tt.watch(model, ".:output", to=tt.Stats()) as w:
        model(torch.tensor([1.0]))
        assert w.run.stats(".:output").mean == 1
        model(torch.tensor([3.0]))
        assert w.run.stats(".:output").mean == 2
        w.step()
        model(torch.tensor([5.0]))
    assert [w.run.stats(".:output", step=s).mean for s in (0, 1)] == [2, 5]
    assert w.run.stats(".:output", step=0).histogram.num_counted == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_other_dtypes_and_autocast(dtype: torch.dtype) -> None:
    model = nn.Linear(4, 2).to(dtype)
    run = both(model, ".:*", lambda: step(model, torch.randn(3, 4, dtype=dtype)), steps=1)
    for site in run.series.sites:
        assert_same(run.stats(site), tt.measure(run[site]))
        assert run.stats(site).dtype == str(dtype).removeprefix("torch.")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model = nn.Linear(4, 2)
        with tt.watch(model, ".:output", to=tt.Stats()) as w:
            model(torch.randn(3, 4))
    assert w.run.stats(".:output").dtype == "bfloat16"


def test_kinds_of_tensor_that_have_no_plain_memory() -> None:
    model = nn.Identity()
    with tt.watch(model, ".:output", to=tt.Stats()) as w:
        model(torch.complex(torch.tensor([3.0]), torch.tensor([4.0])))
    assert (w.run.stats(".:output").max, w.run.stats(".:output").notes) == (5, ("by magnitude",))
    with tt.watch(model, ".:output", to=tt.Stats()) as w:
        model(torch.ones(3, device="meta"))
    assert "meta tensor" in w.absent[0].reason


def freed() -> Any:
    tensor = torch.ones(1000)
    tensor.untyped_storage().resize_(0)
    return tensor


def wrapped() -> Any:
    from torch.testing._internal.two_tensor import TwoTensor

    return TwoTensor(torch.ones(3), torch.ones(3))


def nested(layout: Any) -> Any:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)


READABLE = {
    "nested": lambda: nested(torch.strided),
    "jagged": lambda: nested(torch.jagged),
    "sparse": lambda: torch.ones(5, 1).to_sparse(),
    "csr": lambda: torch.ones(5, 1).to_sparse_csr(),
    "mkldnn": lambda: torch.ones(5, 1).to_mkldnn(),
    "zeros that lie nowhere": lambda: torch._efficientzerotensor((5,)),
}
UNREADABLE = {
    "meta": (lambda: torch.ones(3, device="meta"), "a meta tensor"),
    "freed": (freed, "whose memory cannot be read"),
    "wrapped": (wrapped, "a TwoTensor whose memory cannot be read"),
    "float4": (lambda: torch.zeros(4).byte().view(torch.float4_e2m1fn_x2), "torch cannot read it"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("make", READABLE.values(), ids=READABLE)
def test_a_site_may_get_tensors_of_another_kind_than_the_first(make: Any) -> None:
    model, odd = nn.Identity(), make()
    size = 0 if odd._is_zerotensor() else 5
    for order in ([torch.full((3,), 2.0), odd], [odd, torch.full((3,), 2.0), torch.ones(2)]):
        with tt.watch(model, ".:output", to=tt.Stats()) as w:
            for tensor in order:
                model(tensor)
        found = w.run.stats(".:output")
        plain = sum(float(t.sum()) for t in order if t is not odd)
        assert (found.num_tensors, found.l1) == (len(order), plain + size)
        assert found.notes == tt.measure(odd).notes  # Said whichever came first.


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("make", "why"), UNREADABLE.values(), ids=UNREADABLE)
def test_what_cannot_be_read_is_left_out_with_a_reason(make: Any, why: Any) -> None:
    model, odd = nn.Identity(), make()
    with tt.watch(model, ".:output", to=tt.Stats()) as w:
        for tensor in (torch.ones(3), odd, torch.ones(3)):
            assert model(tensor) is tensor
    assert w.run.stats(".:output").num_tensors == 2
    assert why in w.absent[0].reason
    with pytest.raises(tt.InputError, match=why):
        tt.measure(odd)


def test_a_fake_tensor_among_others_is_listed_as_absent() -> None:
    with torch._subclasses.FakeTensorMode():
        fake = torch.ones(3)
    model = nn.Identity()
    for sink in (tt.Stats(), tt.Memory()):
        with tt.watch(model, ".:output", to=sink) as w:
            model(torch.ones(3))
            model(fake)
        assert "a fake tensor" in w.absent[0].reason


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_a_table_of_kept_nested_tensors_can_be_made(layout: Any) -> None:
    model = nn.Identity()
    with tt.watch(model, ".:output") as w:
        model(nested(layout))
    (row,) = w.run.table()
    assert (row.shape, row.stats.numel, row.stats.l1) == (None, 5, 5.0)
    assert "varies" in str(w.run.table())


def test_a_run_with_nested_tensors_can_be_saved(tmp_path: Path) -> None:
    model = nn.Identity()
    with tt.watch(model, ".:output", to=tt.Stats()) as w:
        model(nested(torch.jagged))
    found = tt.open(w.run.save(tmp_path / "run.safetensors")).stats(".:output")
    assert (found.shape, found.numel) == (None, 5)


def test_what_is_to_be_known_of_a_gradient_is_among_the_notes() -> None:
    class Product(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a * b

    x = torch.ones(3, requires_grad=True) * 2
    model = Product()
    with tt.watch(model, ".:grad_input", to=tt.Stats()) as w:
        for _ in range(2):
            model(x, x).sum().backward(retain_graph=True)
    assert w.run.stats(".:grad_input[0]").notes == ("sum of 2 slots",)


@pytest.mark.parametrize(
    "values",
    [
        torch.tensor([[1 + 1j], [-1 - 1j]]),  # Their mean is 0, that of the magnitudes is not.
        torch.tensor([[0.0, 0.0], [2.0, 2.0]]).to_sparse(),
    ],
    ids=["complex", "sparse"],
)
def test_no_mean_over_samples_is_made_of_other_numbers_than_the_values(values: Tensor) -> None:
    model = nn.Identity()
    with tt.watch(model, to=tt.Stats()) as w:
        model(values)
    with pytest.raises(tt.RunError, match="no mean over samples: it is measured"):
        w.run.mean_norm()


# ---------------------------------------------------------------------- harmless


def test_a_whole_training_has_the_same_loss_bit_by_bit() -> None:
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    images = torch.tensor(digits.images[:512], dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target[:512])

    def train(watched: bool) -> Any:
        torch.manual_seed(0)
        model = seeded(DigitsCNN)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        ports = "*:*,param,param_grad,update"
        taps = tt.watch(model, ports, to=tt.Stats()) if watched else None
        losses = []
        for start in range(0, 512, 64):
            rows = slice(start, start + 64)
            loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if taps is not None:
                taps.step()
        if taps is not None:
            taps.close()
        return losses, model.state_dict(), torch.get_rng_state(), taps

    plain, watched = train(False), train(True)
    assert plain[0] == watched[0]
    assert all(torch.equal(plain[1][key], watched[1][key]) for key in plain[1])
    assert torch.equal(plain[2], watched[2])
    assert len(watched[3].run.steps) == 8


def test_nothing_of_the_values_is_held() -> None:
    import weakref

    held = []
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    model[0].register_forward_hook(lambda m, a, out: held.append(weakref.ref(out)))
    with tt.watch(model, "*:*", to=tt.Stats()) as w:
        step(model, torch.randn(2, 3))
        assert held[0]() is None
    assert w.run.stats("0:output").numel == 6


def test_memory_depends_on_the_numbers_kept_alone() -> None:
    import tracemalloc

    model = nn.Identity()
    with tt.watch(model, ".:output", to=tt.Stats(keep=4)) as w:
        batch = torch.randn(1000)

        def run(times: Any) -> None:
            for _ in range(times):
                model(batch)
                w.step()

        run(100)  # Until the totals have their memory.
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        run(1000)
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
    assert grown / 1000 < 1000  # 16 numbers of 8 bytes, and Python's objects around them.


# ---------------------------------------------------------------------- means, ratios, recipes


def test_the_mean_over_samples_needs_no_kept_values() -> None:
    model = small()
    ports = ("output", "grad_output")
    where = f"*:{','.join(ports)}"
    run = both(model, where, lambda: step(model, torch.randn(5, 4)), steps=3, sample_mean=ports)
    measured = {str(s): run.series.of(s).mean_norm() for s in run.series.sites}
    for site, norm in measured.items():
        samples = torch.cat([r.value for r in run.records(site)]).double()
        assert norm == EXACT(float(samples.mean(0).norm()), rel=1e-12)
    with tt.watch(model, to=tt.Stats()) as w:
        model(torch.ones(2, 4))
    assert set(w.run.mean_norm()) == {".", "0", "1", "2"}


def test_samples_of_different_shape_have_no_mean_and_the_error_says_why() -> None:
    model = nn.Identity()
    with tt.watch(model, to=tt.Stats()) as w:
        model(torch.ones(2, 3))
        model(torch.ones(2, 4))
    with pytest.raises(tt.RunError, match=r"no mean over samples: its samples differ in shape"):
        w.run.mean_norm()


def test_the_update_is_the_change_over_the_optimizers_step() -> None:
    model = small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.3)
    with tt.watch(model, "*:param,update", to=tt.Stats()) as w:
        for _ in range(3):
            before = copy.deepcopy(model.state_dict())
            step(model, torch.randn(5, 4))
            optimizer.step()
            w.step()
    change = model[0].weight.detach() - before["0.weight"]
    found = w.run.stats("0:update[weight]")
    assert_same(found, tt.measure(change))
    ratio = float(change.double().norm() / before["0.weight"].double().norm())
    assert found.update_ratio == EXACT(ratio, rel=1e-9)
    steps, ratios = w.run.over_steps("0:update[weight]", "update_ratio")
    assert (steps, ratios[-1]) == ([0, 1, 2], found.update_ratio)
    for several in ([1, 2], "all"):  # Of several steps there is no one weight to divide by.
        assert math.isnan(w.run.stats("0:update[weight]", step=several).update_ratio)


def test_the_update_ratio_of_kept_values_is_known_too() -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        optimizer.zero_grad()
        step(model, torch.ones(5, 4))
        optimizer.step()

    with tt.watch(model, "*:param,update", to=tt.Memory()) as kept:
        for _ in range(2):
            before = model[0].weight.detach().double()
            train()
            kept.step()
    ratio = float((model[0].weight.detach().double() - before).norm() / before.norm())
    assert kept.run.stats("0:update[weight]").update_ratio == EXACT(ratio, rel=1e-5)
    row = next(row for row in kept.run.table() if str(row.site) == "0:update[weight]")
    assert row.stats.update_ratio == EXACT(ratio, rel=1e-5)
    assert math.isnan(kept.run.stats("0:param[weight]").update_ratio)


def test_a_step_that_grad_scaler_passed_over_is_known() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with tt.watch(model, ".:param,update", to=tt.Stats()) as w:
        for number in range(3):
            optimizer.zero_grad()
            x = torch.full((2, 4), math.inf if number == 1 else 1.0)
            scaled_step(model, x, optimizer, scaler)
            w.step()
    steps, ratios = w.run.over_steps(".:update[weight]", "update_ratio")
    assert steps == [0, 2]
    assert not any(map(math.isnan, ratios))
    passed_over = (
        "no optimizer made a step with it in step 1: GradScaler skipped the step, since its "
        "gradient was not finite"
    )
    for absent in (w.absent, w.run.absent):
        assert {str(entry.site): entry.reason for entry in absent} == {
            ".:update[weight]": passed_over,
            ".:update[bias]": passed_over,
        }


def test_a_sparse_gradient_without_an_optimizer_step_stops_nothing() -> None:
    model = nn.Embedding(10, 4, sparse=True)
    with tt.watch(model, ".:update", to=tt.Stats()) as w:
        for scale in (1.0, math.inf):
            model.weight.grad = None
            (model(torch.tensor([1, 2, 1])).sum() * scale).backward()
            w.step()
    assert "no optimizer made a step with it in step 0, 1: none made" in w.absent[0].reason


def test_a_parameter_that_cannot_be_subtracted_is_listed_as_absent() -> None:
    model = nn.Linear(2, 1)
    small = model.weight.detach().to(torch.float8_e4m3fn)
    model.weight = nn.Parameter(small, requires_grad=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tt.watch(model, ".:update", to=tt.Stats()) as w:
        model.bias.grad = torch.ones(1)
        optimizer.step()
    assert [str(site) for site in w.run.sites] == [".:update[bias]"]
    assert "torch cannot subtract it" in w.absent[0].reason


def test_a_statistic_of_the_user() -> None:
    class Products:
        name = "product"

        def init(self) -> float:
            return 1.0

        def update(self, state: Any, tensor: Tensor) -> Any:
            assert not torch.is_grad_enabled()
            return state * float(tensor.prod())

        def merge(self, one: Any, two: Any) -> Any:
            return one * two

        def finish(self, state: Any) -> Any:
            return state

    model = nn.Identity()
    with tt.watch(model, to=tt.Stats(statistics=[Products()])) as w:
        for value in (2.0, 3.0, 5.0):
            model(torch.tensor([value]))
            w.step()
    assert w.run.stats(".:output").extra["product"] == 5
    assert w.run.stats(".:output", step="all").extra["product"] == 30


# ---------------------------------------------------------------------- kept, saved, refused


def test_a_window_with_steps_that_are_kept_no_longer_has_no_further_statistics() -> None:
    model = nn.Identity()
    with tt.watch(model, to=tt.Stats(statistics=[tt.stats.cosine()], keep=2)) as w:
        for number in range(4):
            model(torch.tensor([1.0, float(number)]))
            w.step()
    gone = w.run.stats(".:output", step=range(4)).extra
    assert "kept of the last 2 steps" in str(dict(gone))
    expected = 7 / math.sqrt(5 * 10)
    assert w.run.stats(".:output", step=[2, 3]).extra["cosine"] == EXACT(expected)
    with pytest.raises(tt.InputError, match="keep="):
        w.run.quantile(".:output", 0.5, step=0)


def test_numbers_of_all_steps_and_histograms_of_the_last() -> None:
    model = nn.Identity()
    with tt.watch(model, to=tt.Stats(keep=2)) as w:
        for number in range(5):
            model(torch.tensor([float(number)]))
            w.step()
    steps, means = w.run.over_steps(".:output", "mean")
    assert (steps, means) == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
    assert w.run.stats(".:output", step=0).histogram is None
    assert w.run.quantile(".:output", 0.5, step=4) == 4
    assert w.run.quantile(".:output", 1.0, step="all") == 4
    assert w.run.stats(".:output", step="all").histogram.num_counted == 5


def test_a_saved_series_reads_the_same(tmp_path: Path) -> None:
    model = resnet18(width=4)
    with tt.watch(model, "*:output,grad_output", to=tt.Stats(keep=1)) as w:
        for _ in range(2):
            step(model, torch.randn(2, 3, 32, 32))
            w.step()
    opened = tt.open(w.run.save(tmp_path / "run.safetensors"))
    assert opened.sites == w.run.sites
    for site in opened.sites:
        for number in (0, 1, "all"):
            one, two = opened.stats(site, step=number), w.run.stats(site, step=number)
            assert repr(one) == repr(two)
            assert str(one.numbers()) == str(two.numbers())
    assert opened.mean_norm() == w.run.mean_norm()


ODD_NAN = np.array([0x7FF8_DEAD_0000_0001]).view(np.float64)[0]


class Own:
    """A statistic whose result holds something of everything that a file can keep."""

    name = "own"
    Pair = collections.namedtuple("Pair", "a b")

    def init(self) -> float:
        return 0.0

    def update(self, state: Any, tensor: Tensor) -> Any:
        return state + float(tensor.sum())

    def merge(self, one: Any, two: Any) -> Any:
        return one + two

    def finish(self, state: Any) -> dict[Any, Any]:
        odd = np.array([state, -0.0, math.inf, math.nan])
        return {
            "float": state,
            "odd": [math.nan, math.inf, -math.inf, -0.0, 5e-324, ODD_NAN, float(ODD_NAN)],
            3: (None, True, 10**30, "text", 1 - 2j, frozenset({1})),
            "tensors": [torch.tensor(odd, dtype=d) for d in (torch.bfloat16, torch.complex128)],
            "shapes": [torch.zeros(0, 3), torch.tensor(7), torch.ones(2, 3).t(), torch.Size([2])],
            "arrays": self.Pair(np.float32(state), odd.reshape(2, 2).astype("f4").T),
        }


def full_of_trouble(keep: int = 4) -> Any:
    """A run of six steps with every statistic, over values with NaN, infinities and dead units."""
    more: list[tt.Statistic] = [
        tt.stats.along(1, bound=0.5),
        tt.stats.top_k(2),
        tt.stats.cosine(),
        Own(),
    ]
    more += [tt.stats.along(-1, name="last"), tt.stats.effective_rank(1)]
    more.append(tt.stats.first_nonfinite())
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU())
    with torch.no_grad():
        model[0].bias[3] = -100
    with tt.watch(model, "*:output,grad_output", to=tt.Stats(statistics=more, keep=keep)) as w:
        for number in range(6):
            x = torch.randn(4, 3)
            if number % 2:
                x[1, 0] = (math.nan, math.inf, -math.inf)[number // 2]
            model(x).square().sum().backward()
            w.step()
    return w.run


def test_a_saved_run_answers_as_the_live_one_to_the_bit(tmp_path: Path) -> None:
    live = full_of_trouble()
    opened = tt.open(live.save(tmp_path / "run.safetensors"))
    again = tt.open(opened.save(tmp_path / "again.safetensors"))
    for saved in (opened, again):
        assert saved.sites == live.sites
        for site in live.sites:
            for number in (None, *range(6), "all"):
                one, two = (run.stats(site, step=number) for run in (live, saved))
                assert value_bits(dict(one.extra)) == value_bits(dict(two.extra))
                assert one.extra.missing == two.extra.missing
                assert value_bits(one.numbers()) == value_bits(two.numbers())
                assert repr(one) == repr(two)
    assert "own" in live.stats("1:output").extra
    assert live.stats("1:output", step=4).extra["along(1)"].dead_slices() == [3]


@pytest.mark.parametrize("window", [[4, 5], range(2, 6), range(5, 20)])
def test_a_window_of_a_saved_run_is_that_of_the_live_one(window: Any, tmp_path: Path) -> None:
    live = full_of_trouble()
    opened = tt.open(live.save(tmp_path / "run.safetensors"))
    for site in live.sites:
        one, two = (dict(run.stats(site, step=window).extra) for run in (live, opened))
        if len(set(window) & set(live.steps)) > 1:
            del one["own"]
            assert "own code" in two.pop("own").why
        assert len(two) == len(one)
        assert value_bits(one) == value_bits(two)


def test_a_window_that_takes_code_that_no_file_holds_says_so(tmp_path: Path) -> None:
    live = full_of_trouble()
    opened = tt.open(live.save(tmp_path / "run.safetensors"))
    assert live.stats("1:output", step=[4, 5]).extra["own"]["float"] != 0
    extra = opened.stats("1:output", step=[4, 5]).extra
    assert "own code" in dict(extra)["own"].why
    said = (
        r"'own' of 1:output \(2 steps from 4 to 5\) is not available: the run was saved, .*own code"
    )
    with pytest.raises(tt.RunError, match=said):
        extra["own"]
    for twin in (copy.deepcopy(extra), pickle.loads(pickle.dumps(extra))):
        assert dict(twin).pop("own") == dict(extra)["own"]
        with pytest.raises(tt.RunError, match=said):
            twin["own"]
    with pytest.raises(tt.RunError, match=r"no further statistic 'ovn'.*did you mean 'own'"):
        extra["ovn"]
    for run in (live, opened):
        old = run.stats("1:output", step=1).extra
        said = "kept of the last 4 steps, from 2 on, and step 1 is older.*keep="
        with pytest.raises(tt.RunError, match=said):
            old["cosine"]
    with pytest.raises(tt.RunError, match="no further statistic was asked for"):
        tt.measure(torch.ones(1)).extra["cosine"]


def test_a_result_that_no_file_can_hold_is_listed_as_absent_and_the_rest_is_saved(
    tmp_path: Path,
) -> None:
    class Odd(Own):
        name = "odd"

        def finish(self, state: Any) -> dict[Any, Any]:
            return {"where": tmp_path}

    model = nn.Identity()
    statistics = [Odd(), tt.stats.along(0)]
    with tt.watch(model, to=tt.Stats(statistics=statistics)) as w:  # type: ignore[arg-type]
        model(torch.ones(3))
    assert w.run.absent == []
    opened = tt.open(w.run.save(tmp_path / "run.safetensors"))
    assert opened.stats(".:output").extra["along(0)"].numel.tolist() == [1, 1, 1]
    with pytest.raises(tt.RunError, match=r"its result is a pathlib\S*\.PosixPath, which a file"):
        opened.stats(".:output").extra["odd"]
    (entry,) = opened.absent
    assert "of 'odd', its result is a pathlib" in entry.reason


def test_what_further_statistics_found_costs_the_header_nothing(tmp_path: Path) -> None:
    """The header of a safetensors file may have 100 MB; a training has more than that to say."""
    sizes = []
    for units, steps in ((4, 2), (512, 40)):
        model = nn.Sequential(*(nn.ReLU() for _ in range(3)))
        statistics = [tt.stats.along(1), tt.stats.top_k(3)]
        with tt.watch(model, "*", to=tt.Stats(statistics=statistics)) as w:  # type: ignore[arg-type]
            for _ in range(steps):
                model(torch.randn(2, units))
                w.step()
        path = w.run.save(tmp_path / "run.safetensors")
        with path.open("rb") as stream:
            sizes.append(int.from_bytes(stream.read(8), "little"))
    assert sizes[1] < sizes[0] + 200
    assert path.stat().st_size > 512 * 40 * 3 * 8


def test_a_window_that_was_measured_in_part_says_so(tmp_path: Path) -> None:
    model = nn.ReLU()
    units = tt.stats.along(1, name="units")
    with tt.watch(model, to=[tt.Stats(statistics=[units]), tt.Memory()]) as w:
        for number in range(13):
            model(torch.full((2, 3), 1.0 - 2 * (number > 10)))
            w.step()
    for run in (w.run, tt.open(w.run.save(tmp_path / "run.safetensors"))):
        whole, part = (run.stats(".:output", step=range(a, a + 10)) for a in (0, 10))
        assert (whole.notes, whole.extra["units"].notes) == ((), ())
        assert part.notes == part.extra["units"].notes == ("3 of 10 steps",)
        assert "3 of 10 steps" in repr(part)
        assert "3 of 10 steps" in repr(part.extra["units"])
        assert part.extra["units"].numel.tolist() == [6, 6, 6]
        assert part.numel == 18
        assert run.stats(".:output", step=range(12, 22)).notes == ("1 of 10 steps",)
        assert run.stats(".:output", step=[12]).notes == ()
    with tt.watch(model, to=tt.Memory()) as w:
        for _ in range(3):
            model(torch.ones(2))
            w.step()
    assert w.run.stats(".:output", step=range(10)).notes == ("3 of 10 steps",)
    assert w.run.stats(".:output", step=range(3)).notes == ()


def test_kept_values_can_be_measured_later() -> None:
    model = small()
    with tt.watch(model) as w:
        model(torch.randn(5, 4))
    assert_same(w.run.stats("2:output"), tt.measure(w.run["2:output"]))
    assert w.run.quantile("2:output", 1.0) == float(w.run["2:output"].max())


def test_values_that_were_measured_only_are_not_there_to_read() -> None:
    model = small()
    with tt.watch(model, to=tt.Stats()) as w:
        model(torch.randn(5, 4))
    with pytest.raises(
        tt.RunError, match=r"its values were not kept. Read run.stats\('2:output'\)"
    ):
        w.run["2:output"]
    with pytest.raises(tt.SiteError, match="did you mean '2:output'"):
        w.run.stats("2x:output")
    with pytest.raises(tt.SiteError, match=r"not measured in step 7\. Its steps are"):
        w.run.stats("2:output", step=7)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"keep": 0}, "keep is 0"),
        ({"statistics": [3]}, "3 is no statistic"),
        ({"sample_mean": ["param"]}, "sample_mean has 'param'"),
        ({"statistics": [tt.stats.along(1), tt.stats.along(1)]}, r"Two .* named 'along\(1\)'"),
    ],
)
def test_bad_arguments_are_refused(how: Any, said: str) -> None:
    with pytest.raises(tt.InputError, match=said):
        tt.Stats(**how)


def test_a_statistic_that_fails_does_not_stop_the_training() -> None:
    class Broken:
        name = "broken"

        def init(self) -> None:
            return None

        def update(self, state: Any, tensor: Tensor) -> None:
            raise ZeroDivisionError("its own fault")

        def merge(self, one: Any, two: Any) -> None:
            return None

        def finish(self, state: Any) -> None:
            return None

    model = nn.Linear(2, 2)
    w = tt.watch(model, to=tt.Stats(statistics=[Broken()]))
    step(model, torch.ones(1, 2))
    with pytest.raises(ZeroDivisionError, match="its own fault"):
        w.step()
    step(model, torch.ones(1, 2))
    with pytest.raises(ZeroDivisionError):
        w.close()


def test_a_large_model_has_a_table_that_reads_well() -> None:
    model = seeded(TinyGPT)
    tokens = torch.randint(0, 65, (2, 16))
    with tt.watch(model, "*:output,grad_output", to=tt.Stats()) as w:
        model(tokens).sum().backward()
    from torchtap.runs.tables.columns import DEFAULT_COLUMNS

    lines = str(w.run.table(columns=DEFAULT_COLUMNS)).split("\n")
    assert all(len(line) <= 100 for line in lines)
    assert "histogram" in lines[2]


def test_histograms_count_every_call_and_step_however_many() -> None:
    # 600 calls of two modules are more than the lists of a step have room for.
    model = nn.Sequential(nn.Identity(), nn.Identity())
    with tt.watch(model, "*", to=tt.Stats(keep=20)) as w, torch.no_grad():
        kept = [torch.randn(20, 5) for _ in range(620)]
        for number, values in enumerate(kept):
            model(values)
            if number >= 600:
                w.step()
    for site in ("0", "1"):
        for which, tensors in ((0, kept[:601]), (19, kept[619:]), ("all", kept)):
            found = w.run.stats(site, step=which).histogram
            expected = tt.measure(tensors).histogram
            assert np.array_equal(found.bins, expected.bins)
            assert np.array_equal(found.counts, expected.counts)
            assert not found.is_sample


@pytest.mark.parametrize(("numel", "is_sample"), [(4096, False), (4097, True)])
def test_a_sampled_histogram_says_so_in_a_step_and_in_all(numel: int, is_sample: bool) -> None:
    model = nn.Identity()
    with tt.watch(model, ".", to=tt.Stats()) as w:
        for _ in range(2):
            model(torch.randn(numel))
            w.step()
    for step in (1, "all"):
        assert w.run.stats("", step=step).histogram.is_sample is is_sample


# ---------------------------------------------------------------------- inference mode


class RunningSum:
    """A statistic of a user's own that writes into its state."""

    name = "sum"

    def init(self) -> Any:
        return torch.zeros(1, dtype=torch.float64)

    def update(self, state: Any, tensor: Tensor) -> Any:
        return state.add_(tensor.double().sum())

    def merge(self, one: Any, two: Any) -> Any:
        return one.clone().add_(two)

    def finish(self, state: Any) -> Any:
        return float(state)


OWN = (
    tt.stats.along(1),
    tt.stats.top_k(2),
    tt.stats.cosine(),
    tt.stats.effective_rank(),
    tt.stats.first_nonfinite(),
    RunningSum(),
)
ORDERS = ("it", "ti", "int", "t.i.t", "i.t", "ii.tt", "itit")


def passes(model: nn.Module, order: Any, w: Any) -> None:
    """Forwards under inference mode (i) and no_grad (n), and trainings (t); ``.`` ends a step."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for one in order:
        batch = torch.randn(5, 4, generator=generator)
        if one == ".":
            w.step()
        elif one == "t":
            step(model, batch)
            optimizer.step()
        else:
            with torch.inference_mode() if one == "i" else torch.no_grad():
                model(batch)
                assert w.run.steps
                if order == "ii.tt":
                    w.step()


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "sampled"])
@pytest.mark.parametrize("statistics", [(), OWN], ids=["plain", "own"])
@pytest.mark.parametrize("order", ORDERS)
def test_inference_mode_may_come_before_and_after_training(
    order: Any, statistics: Any, exact: bool
) -> None:
    model, twin = small(), small()
    where = "*:*,param,param_grad,update"
    sink = tt.Stats(exact=exact, statistics=statistics)
    with tt.watch(model, where, to=sink) as w:
        passes(model, order, w)
    with tt.watch(twin, where, copy="always") as kept:
        passes(twin, order, kept)
    assert w.run.steps == kept.run.steps
    assert set(w.run.sites) == set(kept.run.sites)
    for site in w.run.sites:
        for number in kept.run.over_steps(site, "mean")[0]:
            values = [record.value for record in kept.run.records(site, steps=number)]
            values = values[-1:] if site.port == "param_grad" else values
            found = w.run.stats(site, step=number)
            assert_same(found, tt.measure(values))
            if statistics:
                total = sum(float(value.double().sum()) for value in values)
                assert found.extra["sum"] == EXACT(total, rel=1e-9, abs=1e-9)
        assert w.run.stats(site, step="all").num_tensors


def test_what_was_kept_in_inference_mode_can_be_trained_on() -> None:
    model, batch = small(), torch.randn(5, 4)
    with tt.watch(model, "*:*,param,buffer") as w, torch.inference_mode():
        model(batch)
    probe = nn.Linear(6, 1)
    probe(w.run["0:output"]).sum().backward()  # Autograd saves the input.
    torch.testing.assert_close(probe.weight.grad[0], w.run["0:output"].sum(0))
    for record in w.run.records():
        assert not record.value.is_inference()


def test_a_sink_of_the_user_may_write_in_training_into_what_it_made_in_inference_mode() -> None:
    sums: dict[Any, Any] = {}

    def add(record: Any) -> None:
        total = sums.setdefault(record.site, torch.zeros((), dtype=torch.float64))
        total += record.value.double().sum()

    model, batch = small(), torch.randn(5, 4)
    with tt.watch(model, "?:output", to=add):
        with torch.inference_mode():
            model(batch)
        model(batch).sum().backward()
    expected = 2 * model[0](batch).double().sum().item()
    assert sums[tt.Site("0", "output", "")].item() == EXACT(expected)


@pytest.mark.parametrize("order", ["it", "ti"])
def test_the_mean_of_a_run_is_put_in_before_and_after_inference_mode(order: str) -> None:
    model, batch = small(), torch.randn(5, 4)
    with tt.watch(model, "0:output") as w:
        model(batch)
    with tt.edit(model, "0:output", tt.edits.mean_ablate(w.run)):
        for one in order:
            if one == "i":
                with torch.inference_mode():
                    found = model(batch)
            else:
                found = model(batch)
                found.sum().backward()
    mean = w.run["0:output"].double().mean(0, keepdim=True).float().expand(5, -1)
    assert torch.equal(found.detach(), model[2](model[1](mean.clone())).detach())


# ---------------------------------------------------------------------- what accumulates


def quick_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """No value is measured with care once its site is known."""
    careful = tt.Stats._take_carefully
    known = set()

    def take(self: Any, meter: Any, record: Any) -> Any:
        assert (id(self), meter.place) not in known, record
        known.add((id(self), meter.place))
        return careful(self, meter, record)

    monkeypatch.setattr(tt.Stats, "_take_carefully", take)


needs_the_binary = pytest.mark.skipif(not native.available(), reason="needs the compiled kernel")

SCALES = (1.0, 1e-42, 0.0, 3e30, math.nan)


@needs_the_binary
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "sampled"])
@pytest.mark.parametrize("reads", [False, True], ids=["", "read in between"])
def test_a_gradient_that_accumulates_is_measured_as_with_care(
    reads: bool, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train() -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 3000), nn.Linear(3000, 2, bias=False))
        sink, found = tt.Stats(exact=exact), []
        with tt.watch(model, "*:param,param_grad", to=[sink]) as w:
            for scale in SCALES:
                for _ in range(6):
                    (model(torch.randn(2, 3)).sum() * scale).backward()
                    if reads:
                        found.append([w.run.stats(site).numbers() for site in w.run.sites])
                for param in model.parameters():
                    found.append(tt.measure(param.grad).numbers())  # type: ignore[arg-type]
                w.step()
                model.zero_grad()
        for site in w.run.sites:
            for number in (*range(len(SCALES)), "all", [1, 3]):
                stats = w.run.stats(site, step=number)
                histogram = stats.histogram
                counted = histogram.bins.tolist(), histogram.counts.tolist(), histogram.is_sample
                found.append((str(site), number, stats.numbers(), counted))  # type: ignore[arg-type]
        return str(found), w.run

    with monkeypatch.context() as only:
        only.setattr("torchtap.stats.meter.Meter.trust", lambda self, tensor: None)
        careful, _ = train()
    quick_only(monkeypatch)
    quick, run = train()
    assert quick == careful
    for site in run.sites:
        if site.port == "param_grad":
            assert run.stats(site, step=0).num_tensors == 1
            assert run.stats(site, step="all").num_tensors == len(SCALES)


@needs_the_binary
def test_parameters_and_their_updates_are_measured_the_quick_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick_only(monkeypatch)
    model, where = nn.BatchNorm1d(3), "*:param,buffer,param_grad,update"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tt.watch(model, where, to=tt.Stats(exact=True)) as w, tt.watch(model, where) as kept:
        for _ in range(3):
            optimizer.zero_grad()
            step(model, torch.randn(4, 3))
            optimizer.step()
            w.step()
            kept.step()
    assert set(w.run.sites) == set(kept.run.sites)
    for record in kept.run.records():
        assert_same(w.run.stats(record.site, step=record.step), tt.measure(record.value))


def test_a_gradient_of_another_dtype_or_step_takes_the_place_of_what_was_measured_quickly() -> None:
    model = nn.Linear(3, 1, bias=False)
    with tt.watch(model, ".:param_grad", to=tt.Stats()) as w:
        model(torch.ones(1, 3)).sum().backward()
        model(torch.ones(1, 3)).sum().backward()
        model.weight.grad = None
        model(torch.ones(1, 3)).sum().backward()
        model.weight.grad = model.weight.grad.to_sparse()  # type: ignore[attr-defined]
        (model(torch.ones(1, 3)).sum() * 3).backward()
        w.step()
        late = model(torch.ones(1, 3)).sum()
        w.step()
        late.backward()
    first = w.run.stats(".:param_grad[weight]", step=0)
    assert (first.num_tensors, first.max) == (1, 4)
    assert first.histogram.num_counted == 3


def interrupted_at(line: int, action: Callable[[], object]) -> bool:
    """Run something, and raise KeyboardInterrupt at one of the lines that copy a step's numbers."""
    left = line

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        is_here = frame.f_code.co_filename.endswith(("device_table.py", "native.py"))
        if not (is_here or frame.f_code.co_name in ("_take_tables", "start_again")):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("size", [6, 70_000], ids=["in lists", "beside them"])
def test_an_interrupt_while_a_step_is_closed_loses_no_step(size: int) -> None:
    """At each line in turn: as Ctrl-C, which comes at any moment of a training."""
    line, relu = 0, torch.nn.ReLU()
    while True:
        line += 1
        with tt.watch(relu, to=tt.Stats(exact=True)) as w:
            for step in range(3):
                relu(torch.full((size,), step + 1.0))
                if step < 2:
                    w.step()
            was_interrupted = interrupted_at(line, w.step)
        steps, l1 = w.run.over_steps(".:output", "l1")
        assert (steps, l1) == ([0, 1, 2], [size, 2.0 * size, 3.0 * size]), line
        assert w.run.stats(".:output", step=2).histogram.num_counted == size
        assert w.run.stats(".:output", step=2).quantile(0.5) == pytest.approx(3, rel=1 / 33)
        if not was_interrupted:
            break
    assert line > 12

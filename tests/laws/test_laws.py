"""Watching changes nothing, and records are the truth: over the zoo and over torch's own samples.

The truth comes from plain hooks and from an out-of-place twin (``truth.py``), or from formulas by
hand, never from torchtap.
"""

from __future__ import annotations

import fnmatch
import gc
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import bits
import module_db
import pytest
import torch
from hypothesis import given, settings, strategies as st
from models import seeded
from module_db import Sample
from random_numbers import fixed_seed
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from truth import PORTS, Truth, assert_matches, truth

import torchtap as tt
from torchtap.core.site import Site
from torchtap.core.tree import leaves
from torchtap.testing import Net, Specimen, default_loss, zoo

ALL = "*:*,param_grad,param,buffer"
EVERY_PORT = (*PORTS, "param", "param_grad", "buffer")
COPIES = ("auto", "always", "never")
NUM_STEPS = 3
"""With ``copy="auto"`` the first step learns, the second keeps aliases, the third is settled."""

SPECIMENS = {specimen.name: specimen for specimen in zoo()}
SAMPLES: dict[str, list[Sample]] = {}
for sample in module_db.samples():
    SAMPLES.setdefault(sample.name, []).append(sample)

every_specimen = pytest.mark.parametrize("specimen", SPECIMENS.values(), ids=str)
every_copy = pytest.mark.parametrize("copy", COPIES)


def a_few(samples: list[Sample]) -> list[Sample]:
    """Evenly spread; all where there are not many."""
    return samples[:: 1 + (len(samples) - 1) // 6]


every_module = pytest.mark.parametrize(
    "samples",
    [
        pytest.param(chosen, id=f"{name}-{extent}", marks=marks)
        for name, samples in SAMPLES.items()
        for chosen, extent, marks in (
            (a_few(samples), "few", ()),
            (samples, "all", (pytest.mark.slow,)),
        )
        if extent == "few" or len(chosen) > len(a_few(samples))
    ],
)

# --- watching changes nothing -----------------------------------------------------------------

Copy = Literal["auto", "always", "never"]
Build = Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]


def built(specimen: Specimen) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    return specimen.build(), *specimen.inputs()


def steps(build: Build, copy: Copy | None = None) -> list[bits.Facts]:
    """Everything that each of several steps on one model leaves behind; gradients add up.

    With ``copy`` the model is watched.
    """
    model, *_ = build()
    with fixed_seed():
        watch = None if copy is None else tt.watch(model, ALL, copy=copy)
        found = []
        for step in range(NUM_STEPS):
            if watch is not None and step:
                watch.step()
            _, args, kwargs = build()
            found.append(bits.observe(model, args, kwargs, default_loss))
        if watch is not None:
            watch.close()
            assert len(watch.run) > 0
    return found


@every_copy
@every_specimen
def test_watching_a_specimen_changes_nothing(specimen: Specimen, copy: Copy) -> None:
    def build() -> Any:
        return built(specimen)

    plain = steps(build)
    for step, facts in enumerate(steps(build, copy)):
        assert bits.differences(plain[step], facts) == [], f"step {step}"


@every_module
def test_watching_a_module_of_torch_changes_nothing(samples: list[Sample]) -> None:
    for sample, copy in zip(samples, itertools.cycle(("auto", "always"))):
        with module_db.quiet():
            plain, watched = steps(sample.build), steps(sample.build, copy)  # type: ignore[arg-type]
        for before, after in zip(plain, watched, strict=True):
            assert bits.differences(before, after) == [], f"{sample.id}, copy={copy}"


def observed(change: Callable[[nn.Module], object] = lambda model: None) -> bits.Facts:
    """Facts that a step of a small model leaves; ``change`` is done to it after the forward."""
    with fixed_seed():
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))

        def loss(output: Tensor) -> Tensor | None:
            change(model)
            return default_loss(output)

        x = torch.ones(2, 3).cumsum(0).requires_grad_()
        return bits.observe(model, (x,), {}, loss)


CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "a bit of a parameter": (
        lambda m: m[0].bias.detach().view(torch.int32).bitwise_xor_(1),
        "parameter 0.bias",
    ),
    "a write of the same value": (lambda m: m[0].bias.data.copy_(m[0].bias), ""),
    "a version": (lambda m: m[0].bias.detach().mul_(1), "parameter 0.bias"),
    "the sign of a zero": (lambda m: m[1].bias.detach().neg_(), "parameter 1.bias"),
    "a buffer": (lambda m: m[1].num_batches_tracked.add_(1), "buffer 1.num_batches_tracked"),
    "a gradient": (
        lambda m: m[0].weight.register_hook(lambda g: g * (1 + 2**-23)),
        "gradient of 0.weight",
    ),
    "a random number": (lambda m: torch.rand(1), "random numbers"),
    "a mode": (lambda m: m[2].eval(), "mode of 2"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_the_smallest_change_would_be_found(what: str) -> None:
    change, name = CHANGES[what]
    found = bits.differences(observed(), observed(change))
    assert name in found if name else not found


# --- nothing is left behind -------------------------------------------------------------------


@every_copy
@every_specimen
def test_nothing_of_a_watch_stays_on_a_specimen(specimen: Specimen, copy: Copy) -> None:
    model, args, kwargs = built(specimen)
    given_tensors = [tensor for _, tensor in leaves([args, kwargs])]
    before = bits.hooks(model, given_tensors)
    output = None
    with tt.watch(model, ALL, copy=copy) as watch:
        try:
            output = model(*args, **kwargs)
        except ValueError:
            assert specimen.raises is ValueError
    after = bits.hooks(model, given_tensors)
    assert bits.differences(before, after) == []
    returned = [tensor for _, tensor in leaves([output])]
    assert not any(bool(tensor._backward_hooks) for tensor in returned)
    # The graph is still there, and does not report any more.
    num_records = len(watch.run)
    loss = default_loss(output)
    if loss is not None:
        loss.backward()
    assert len(watch.run) == num_records > 0


@every_specimen
def test_a_backward_after_closing_is_that_of_a_plain_model(specimen: Specimen) -> None:
    def late(*, is_watched: bool) -> bits.Facts:
        model, args, kwargs = built(specimen)

        def loss(output: Any) -> Tensor | None:
            if watch is not None:
                watch.close()
            return default_loss(output)

        with fixed_seed():
            watch = tt.watch(model, ALL) if is_watched else None
            found = bits.observe(model, args, kwargs, loss)
            if watch is not None:
                watch.close()
        return found

    assert bits.differences(late(is_watched=False), late(is_watched=True)) == []


@every_module
def test_nothing_of_a_watch_stays_on_a_module_of_torch(samples: list[Sample]) -> None:
    for sample in samples:
        model, args, kwargs = sample.build()
        given_tensors = [tensor for _, tensor in leaves([args, kwargs])]
        before = bits.hooks(model, given_tensors)
        with module_db.quiet(), tt.watch(model, ALL):
            default_loss(model(*args, **kwargs)).backward()
        assert bits.differences(before, bits.hooks(model, given_tensors)) == [], sample.id


LEFT_BEHIND: dict[str, Callable[[Any, Tensor], object]] = {
    "a forward hook": lambda m, x: m[0].register_forward_hook(print),
    "a forward pre-hook": lambda m, x: m.register_forward_pre_hook(print),
    "a full backward hook": lambda m, x: m[1].register_full_backward_hook(print),
    "a hook on a parameter": lambda m, x: m[0].weight.register_hook(print),
    "a hook after accumulation": lambda m, x: m[0].weight.register_post_accumulate_grad_hook(print),
    "a hook on the input": lambda m, x: x.register_hook(print),
    "an attribute": lambda m, x: setattr(m[0], "watched", True),
    "a replaced forward": lambda m, x: setattr(m[0], "forward", m[0].forward),
}


@pytest.mark.parametrize("what", LEFT_BEHIND)
def test_anything_left_behind_would_be_found(what: str) -> None:
    model, x = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(2, requires_grad=True)
    before = bits.hooks(model, [x])
    LEFT_BEHIND[what](model, x)
    assert bits.differences(before, bits.hooks(model, [x]))


def test_a_global_hook_left_behind_would_be_found() -> None:
    model = nn.ReLU()
    before = bits.hooks(model)
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    during = bits.hooks(model)
    handle.remove()
    assert bits.differences(before, during)
    assert not bits.differences(before, bits.hooks(model))


def is_freed_at_once(specimen: Specimen, *, is_watched: bool) -> bool:
    """Return whether model and outputs go with their last name, without the garbage collector."""
    gc.disable()
    try:
        model, args, kwargs = built(specimen)
        watch = tt.watch(model, ALL) if is_watched else None
        output = model(*args, **kwargs)
        alive = [weakref.ref(model), *(weakref.ref(tensor) for _, tensor in leaves([output]))]
        loss = default_loss(output)
        if loss is not None:
            loss.backward()
        if watch is not None:
            watch.close()
        del model, args, kwargs, output, loss
        return not any(reference() is not None for reference in alive)
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "specimen", [specimen for specimen in zoo() if specimen.raises is None], ids=str
)
def test_a_closed_watch_keeps_no_model_and_no_graph_alive(specimen: Specimen) -> None:
    plain = is_freed_at_once(specimen, is_watched=False)
    assert is_freed_at_once(specimen, is_watched=True) == plain


# --- every record is the truth ----------------------------------------------------------------


def recorded(build: Build, copy: Copy) -> tuple[tt.Run, list[tt.Absence]]:
    """Several steps that all start from the same state and the same random numbers."""
    model, *_ = build()
    first = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.random.fork_rng(devices=[]), tt.watch(model, "*:*", copy=copy) as watch:
        for step in range(NUM_STEPS):
            if step:
                watch.step()
                model.load_state_dict(first)
            _, args, kwargs = build()
            torch.default_generator.manual_seed(0)
            bits.observe(model, args, kwargs, default_loss)
    return watch.run, watch.absent


def truth_of(specimen: Specimen) -> Truth:
    model, args, kwargs = built(specimen)
    marks: dict[str, Any] = {"double": specimen.double, "raises": specimen.raises}
    return truth(model, args, kwargs, default_loss, **marks)


def tolerance(dtype: torch.dtype) -> dict[str, Any]:
    """Compare gradients with those of a twin that sums in another order, or in float64."""
    return {
        torch.float64: {"rtol": 1e-9, "atol": 1e-12},
        torch.bfloat16: {"rtol": 3e-2, "atol": 1e-3},
    }.get(dtype, {"rtol": 1e-4, "atol": 1e-6})


def dtype_of(specimen: Specimen) -> torch.dtype:
    if specimen.name in ("autocast", "bfloat16"):
        return torch.bfloat16
    return next((p.dtype for p in specimen.build().parameters()), torch.float32)


with_a_twin = pytest.mark.parametrize(
    "specimen", [specimen for specimen in zoo() if specimen.twin], ids=str
)


@pytest.mark.parametrize("copy", ["auto", "always"])
@with_a_twin
def test_every_record_of_a_specimen_is_the_truth(specimen: Specimen, copy: Copy) -> None:
    run, _ = recorded(lambda: built(specimen), copy)
    right = truth_of(specimen)
    for step in range(NUM_STEPS):
        records = run.records(steps=step, phase=None)
        assert assert_matches(records, right, **tolerance(dtype_of(specimen))) > 0


@with_a_twin
def test_without_copies_the_overwritten_is_named_and_the_rest_is_true(specimen: Specimen) -> None:
    run, absent = recorded(lambda: built(specimen), "never")
    right = truth_of(specimen)
    for record in run.records():
        if record.overwritten:
            assert any(
                entry.site == record.site and "overwritten" in entry.reason for entry in absent
            )
            with pytest.raises(tt.OverwrittenError, match=r"copy='always'"):
                _ = record.value
        elif not record.site.is_gradient:
            assert bits.bits(record.value)[3] in values_at(right, record)


def values_at(right: Truth, record: tt.Record) -> list[bytes]:
    """Content of each record at the site of the record in that call (there may be doubles)."""
    return [
        bits.bits(entry.value)[3]
        for key, entry in right.entries.items()
        if (key.path, key.port, key.call) == (record.site.path, record.site.port, record.call)
        and entry.leaf == record.site.leaf
    ]


def test_some_specimens_lose_values_without_copies() -> None:
    run, _ = recorded(lambda: built(SPECIMENS["in_place_chain"]), "never")
    assert any(record.overwritten for record in run.records())


@every_module
def test_every_record_of_a_module_of_torch_is_the_truth(samples: list[Sample]) -> None:
    for sample, copy in zip(samples, itertools.cycle(("auto", "always"))):
        with module_db.quiet():
            right = truth(*sample.build(), default_loss, double=False)
            run, _ = recorded(sample.build, copy)  # type: ignore[arg-type]
        for step in range(NUM_STEPS):
            records = list(run.records(steps=step, phase=None))
            try:
                assert_matches(records, right, **tolerance(sample.dtype))
            except AssertionError as error:
                error.add_note(f"{sample.id}, copy={copy}, step {step}")
                raise


def test_there_are_thousands_of_samples_of_torch() -> None:
    assert len(SAMPLES) > 100
    assert sum(map(len, SAMPLES.values())) > 4000


# --- parameters and buffers -------------------------------------------------------------------


def names(model: nn.Module, port: str) -> Iterator[tuple[Site, Tensor]]:
    """Site and tensor of what each module itself owns; a shared module has its first path."""
    for path, module in model.named_modules():
        owned = module._buffers if port == "buffer" else module._parameters
        for name, tensor in owned.items():
            if tensor is not None:
                yield Site(path, port, name), tensor


@every_specimen
def test_parameters_buffers_and_their_gradients_are_the_models_own(specimen: Specimen) -> None:
    model, args, kwargs = built(specimen)
    right = {
        site: bits.bits(tensor)
        for port in ("param", "buffer")
        for site, tensor in names(model, port)
    }
    with tt.watch(model, "*:param,buffer,param_grad") as watch:
        bits.observe(model, args, kwargs, default_loss)
    right |= {
        site: bits.bits(param.grad)
        for site, param in names(model, "param_grad")
        if param.grad is not None
    }
    found = {record.site: bits.bits(record.value) for record in watch.run.records()}
    assert found == right


# --- gradients where memory is shared, by hand -------------------------------------------

Formula = Callable[[nn.Module, Tensor], tuple[dict[str, Tensor], Tensor]]


def relu_for_effect(m: Any, x: Tensor) -> Any:
    before = m.a(x)
    after = before.relu()
    found = {"a:grad_output": before, "relu:grad_input": before, "relu:grad_output": after}
    return found | {"b:grad_input": after}, m.b(after)


def relu_on_a_view(m: Any, x: Tensor) -> Any:
    before = m.a(x)
    left = before[:, :2]
    after = torch.cat((left.relu(), before[:, 2:]), dim=1)
    found = {"a:grad_output": before, "relu:grad_input": left, "b:grad_input": after}
    return found, m.b(after)


def slice_changed_base_used(m: Any, x: Tensor) -> Any:
    before = m.a(x)
    base = before.clone()  # As the view sees it: what goes by it alone.
    left = base[:, :2]
    after = torch.cat((left * 3, before[:, 2:]), dim=1)
    through_b = after.clone()
    found = {"a:grad_output": before, "view:grad_input": base, "view:grad_output": left}
    return found | {"b:grad_input": through_b}, m.b(through_b) + after[:, :2].sum()


def base_changed_slice_used(m: Any, x: Tensor) -> Any:
    before = m.a(x)
    after = before * 3
    through_b = after.clone()
    found = {"a:grad_output": before, "b:grad_input": through_b}
    return found, m.b(through_b) + after[:, :2].sum()


FORMULAS: dict[str, Formula] = {
    formula.__name__: formula
    for formula in (
        relu_for_effect,
        relu_on_a_view,
        slice_changed_base_used,
        base_changed_slice_used,
    )
}


def test_every_specimen_has_a_twin_or_a_formula() -> None:
    assert {specimen.name for specimen in zoo() if not specimen.twin} <= set(FORMULAS)


@pytest.mark.parametrize("copy", ["auto", "always"])
@pytest.mark.parametrize("name", FORMULAS)
def test_gradients_where_memory_is_shared_are_those_of_the_formula(name: str, copy: Copy) -> None:
    run, absent = recorded(lambda: built(SPECIMENS[name]), copy)
    model, (x,), _ = built(SPECIMENS[name])
    wanted, output = FORMULAS[name](model.double(), x.double())
    gradients = torch.autograd.grad(default_loss(output), list(wanted.values()))  # type: ignore[arg-type]
    right = dict(zip(wanted, gradients, strict=True))
    right[".:grad_output"] = torch.arange(output.numel()).double().cos().view_as(output)
    right["b:grad_output"] = right[".:grad_output"]
    for step in range(NUM_STEPS):
        found = {str(r.site): r.value for r in run.records(steps=step) if r.site.is_gradient}
        assert found.keys() == right.keys(), step
        for site, gradient in right.items():
            torch.testing.assert_close(found[site].double(), gradient, rtol=1e-6, atol=1e-6)
    # What is not known is listed.
    modules = {"", *dict(model.named_children())}
    everything = {str(Site(path, port)) for path in modules for port in PORTS[2:]}
    assert everything - right.keys() <= {str(entry.site) for entry in absent}


@every_copy
@pytest.mark.parametrize("name", FORMULAS)
def test_values_where_memory_is_shared_are_those_of_a_plain_run(name: str, copy: Copy) -> None:
    model, args, kwargs = built(SPECIMENS[name])
    right = truth(model, args, kwargs, None)
    run, _ = recorded(lambda: built(SPECIMENS[name]), copy)
    for step in range(NUM_STEPS):
        records = [r for r in run.records(steps=step) if not r.overwritten]
        if copy != "never":
            assert assert_matches(records, right, rtol=0, atol=0, ports=PORTS[:2]) > 0
        for record in records:
            if not record.site.is_gradient:
                assert bits.bits(record.value)[3] in values_at(right, record)


# --- any part of a recording is that part of the whole ----------------------------------------


def facts_of(records: Iterable[tt.Record]) -> list[Any]:
    return [(*r.key, r.phase, r.backward, r.labels, bits.bits(r.value)) for r in records]


def assert_same_records(some: Iterable[tt.Record], others: Iterable[tt.Record]) -> None:
    """Forward values also in the same order; gradients as autograd happens to bring them."""
    some, others = list(some), list(others)
    for is_gradient in (False, True):
        left = facts_of(r for r in some if (r.backward >= 0) == is_gradient)
        right = facts_of(r for r in others if (r.backward >= 0) == is_gradient)
        assert sorted(left, key=repr) == sorted(right, key=repr)
        assert is_gradient or left == right


def watched(specimen: Specimen, where: Any, **how: Any) -> tt.Run:
    """Two steps."""
    model, *_ = built(specimen)
    with fixed_seed(), tt.watch(model, where, **how) as watch:
        for step in range(2):
            if step:
                watch.step()
            bits.observe(model, *specimen.inputs(), default_loss)
    return watch.run


FULL: dict[tuple[str, str], tt.Run] = {}


def full(specimen: Specimen, grad_input: str) -> tt.Run:
    """The recording of everything, made once."""
    key = (specimen.name, grad_input)
    if key not in FULL:
        FULL[key] = watched(specimen, ALL, grad_input=grad_input)
    return FULL[key]


specimens = st.sampled_from(list(SPECIMENS.values()))
grad_inputs = st.sampled_from(["through", "total"])


@settings(max_examples=250, deadline=None)
@given(data=st.data(), specimen=specimens, grad_input=grad_inputs)
def test_any_set_of_sites_recorded_is_that_part_of_the_whole(
    data: st.DataObject, specimen: Specimen, grad_input: str
) -> None:
    everything = full(specimen, grad_input)
    places = sorted({(site.path, site.port) for site in everything.sites})
    chosen = data.draw(st.sets(st.sampled_from(places), min_size=1))
    part = watched(
        specimen, lambda site, module: (site.path, site.port) in chosen, grad_input=grad_input
    )
    expected = [r for r in everything.records() if (r.site.path, r.site.port) in chosen]
    assert_same_records(part.records(), expected)


@st.composite
def patterns(draw: st.DrawFn, paths: list[str]) -> tuple[str, str, tuple[str, ...]]:
    """A sign, a glob that fits some path, and ports."""
    path = draw(st.sampled_from(paths))
    glob = draw(
        st.sampled_from(
            [path or ".", "*", f"{path[:1]}*", f"*{path[-1:]}", path.replace("0", "?") or "."]
        )
    )
    ports = draw(st.lists(st.sampled_from(EVERY_PORT), min_size=1, max_size=4, unique=True))
    return draw(st.sampled_from(["", "", "!"])), glob, tuple(ports)


def fits(site: Site, glob: str, ports: tuple[str, ...]) -> bool:
    is_there = site.path == "" if glob == "." else fnmatch.fnmatchcase(site.path, glob)
    return site.port in ports and (is_there or site.path == glob)


@settings(max_examples=250, deadline=None)
@given(data=st.data(), specimen=specimens)
def test_any_patterns_recorded_are_that_part_of_the_whole(
    data: st.DataObject, specimen: Specimen
) -> None:
    everything = full(specimen, "through")
    paths = sorted({site.path for site in everything.sites})
    chosen = data.draw(st.lists(patterns(paths), min_size=1, max_size=4))
    adding = [rest for sign, *rest in chosen if not sign] or [("*", ("output",))]  # type: ignore[list-item]
    taking = [rest for sign, *rest in chosen if sign]

    def is_wanted(site: Site) -> bool:
        taken = any(fits(site, *one) for one in taking)  # type: ignore[arg-type]
        return any(fits(site, *one) for one in adding) and not taken  # type: ignore[arg-type]

    where = [f"{sign}{glob}:{','.join(ports)}" for sign, glob, ports in chosen]
    expected = [r for r in everything.records() if is_wanted(r.site)]
    try:
        part = watched(specimen, where)
    except (
        tt.SiteError
    ):  # Of all, or of one that names nothing, as ``b[?]`` where there is no ``b?``.
        names_nothing = [one for one in adding if not any(fits(s, *one) for s in everything.sites)]  # type: ignore[arg-type]
        assert names_nothing or not expected, where
        return
    assert_same_records(part.records(), expected)
    if expected and len(taking) < len(chosen):
        # Selecting afterwards takes the same patterns. (With ``!`` alone it starts from all that
        # was recorded, where ``watch`` starts from outputs.)
        assert_same_records(everything.records(where), expected)


@pytest.mark.parametrize(
    "specimen", [specimen for specimen in zoo() if specimen.recomputes], ids=str
)
def test_each_part_of_a_checkpoint_is_that_part_of_the_whole(specimen: Specimen) -> None:
    # Alone, a module in the middle of the checkpoint has nothing to find its place by but itself.
    everything = full(specimen, "through")
    again = facts_of(everything.records(phase="recompute"))
    for place in {(site.path, site.port) for site in everything.sites}:

        def is_wanted(site: Site, _: object = None, place: Any = place) -> bool:
            return (site.path, site.port) == place

        part = watched(specimen, is_wanted)
        assert_same_records(part.records(), [r for r in everything.records() if is_wanted(r.site)])
        assert all(fact in again for fact in facts_of(part.records(phase="recompute")))


def nested_checkpoints(*, reentrant: bool) -> nn.Module:
    """Checkpoints of one block, two within each of two checkpoints."""

    def segment(m: Any, x: Tensor) -> Tensor:
        hidden = m.a(x)
        for _ in range(2):
            hidden = m.tanh(checkpoint(m.block, hidden, use_reentrant=reentrant))
        return hidden

    def body(m: Any, x: Tensor) -> Tensor:
        hidden = m.first(x)
        for _ in range(2):
            hidden = checkpoint(segment, m, hidden, use_reentrant=reentrant)
        return m.last(hidden)

    tanh = nn.Tanh()
    block = nn.Sequential(nn.Linear(3, 3), tanh, nn.Linear(3, 3))
    ends = {name: nn.Linear(3, 3) for name in ("first", "a", "last")}
    return seeded(lambda: Net(body, block=block, tanh=tanh, **ends))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("path", ["*", "a", "block", "block.0", "block.1", "block.2", "last"])
def test_each_part_of_nested_checkpoints_is_the_truth(path: str, reentrant: bool) -> None:
    model, x = nested_checkpoints(reentrant=reentrant), torch.arange(6.0).view(2, 3).cos()
    right = truth(model, (x,), {}, default_loss)
    with tt.watch(model, f"{path}:*") as watch:
        default_loss(model(x)).backward()
    records = watch.run.records()
    is_watched = None if path == "*" else path.__eq__
    assert assert_matches(records, right, rtol=1e-5, atol=1e-7, paths=is_watched) > 0


def test_nested_checkpoints_miss_no_gradient() -> None:
    model, x = nested_checkpoints(reentrant=False), torch.arange(6.0).view(2, 3).cos()
    with tt.watch(model, "*:grad_output") as watch:
        default_loss(model(x)).backward()
    assert {record.call for record in watch.run.records("block:grad_output")} == {0, 1, 2, 3}
    assert watch.absent == []


ODD = SPECIMENS["odd_names"]


@pytest.mark.parametrize(
    "path", [path for path, _ in ODD.build().named_modules() if path not in ODD.silent]
)
def test_every_module_can_be_watched_by_its_own_name(path: str) -> None:
    for text in (str(Site(path, "output")), [f"{path or '.'}:output,grad_output"]):
        assert Site(path, "output") in watched(ODD, text).sites


def test_a_recording_that_lacks_something_would_be_found() -> None:
    records = list(full(SPECIMENS["module_called_twice"], "through").records())
    assert_same_records(records, records)
    for wrong in (records[1:], [records[0], *records], [records[1], records[0], *records[2:]]):
        with pytest.raises(AssertionError):
            assert_same_records(wrong, records)


# --- the package's own proof ------------------------------------------------------------------

SHARING = ("slice_changed_base_used", "base_changed_slice_used")
"""Specimens of which no gradient can be proved by a twin."""

UNVERIFIED = {
    **dict.fromkeys(SHARING, "share memory"),
    "object_beside_a_tensor": "held by an object",
    "checkpoint_reentrant": "reentrant checkpoint",
    "checkpoint_reentrant_dropout": "reentrant checkpoint",
    "checkpoint_reentrant_thrice": "reentrant checkpoint",
    "checkpoint_reentrant_thrice_dropout": "reentrant checkpoint",
    "custom_checkpoint": "reentrant checkpoint",
    **dict.fromkeys(("adjoint", "reversible", "hook_calls_module"), "ran in a backward"),
}
"""Specimens of which ``verify`` cannot prove all; the tests above do."""


@pytest.mark.parametrize(
    "specimen", [specimen for specimen in zoo() if specimen.raises is None], ids=str
)
def test_verify_holds_for_a_specimen(specimen: Specimen) -> None:
    model, args, kwargs = built(specimen)
    result = tt.verify(model, *args, where=ALL, **kwargs)
    assert bool(result) == (specimen.name not in SHARING), repr(result)
    assert bool(result.hollow) == (specimen.name in SHARING)
    assert not (result.changed or result.wrong or result.unsteady), repr(result)
    assert result.num_values > 0
    reasons = {entry.reason for entry in result.unverified}
    assert bool(reasons) == (specimen.name in UNVERIFIED), reasons
    assert all(UNVERIFIED[specimen.name] in reason for reason in reasons)
    is_proved = specimen.backward and specimen.name not in SHARING
    assert (result.num_gradients > 0) == is_proved


@every_module
def test_verify_holds_for_a_module_of_torch(samples: list[Sample]) -> None:
    for sample in samples:
        model, args, kwargs = sample.build()
        with module_db.quiet():
            result = tt.verify(model, *args, where=ALL, **kwargs)
        assert result and not result.unverified, f"{sample.id}: {result!r}"
        assert result.num_values > 0 and result.num_gradients > 0, sample.id

"""Statistics inside compiled graphs: no graph break, and the numbers of eager mode."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from containers import Box
from models import TinyGPT, seeded
from random_numbers import normal
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

import torchtap as tt
from torchtap.stats.statistics import NUMBERS

WHERE = "*:input,output,grad_output,param,param_grad,buffer"
# The compiler warns a good deal on its own account.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh_compiler")]


class Net(nn.Module):
    """Views, an in-place module, a module that runs twice, one that returns a tuple, a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.act = nn.ReLU(inplace=True)
        self.split = Split()
        self.norm = nn.BatchNorm1d(3)
        self.last = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.first(x))
        left, rest = self.split(self.act(x + 1))
        return self.last(self.norm(left) + rest["right"])


class Split(nn.Module):
    def forward(self, x: Tensor) -> Any:
        left, right = x.chunk(2, dim=-1)
        return left, {"right": right}


def batch(seed: int = 0, rows: int = 5) -> Tensor:
    return normal(rows, 6, seed=seed)


def train(
    model: Any, watched: Any, *, steps: int = 3, where: str = WHERE, batches: Any = batch
) -> Any:
    with tt.watch(watched, where, to=tt.Stats(exact=True)) as w:
        for number in range(steps):
            watched.zero_grad()
            model(batches(number)).square().mean().backward()
            w.step()
    return w


def assert_same(run: Any, other: Any, *, rel: float = 1e-5) -> None:
    assert set(map(str, other.sites)) == set(map(str, run.sites))
    assert other.steps == run.steps
    for site in run.sites:
        for step in run.series.steps_of(site):
            one, two = run.stats(site, step=step), other.stats(site, step=step)
            assert (two.num_tensors, two.numel, two.dtype) == (
                one.num_tensors,
                one.numel,
                one.dtype,
            ), (str(site), step)
            for name in NUMBERS:
                expected = pytest.approx(getattr(one, name), rel=rel, abs=1e-6, nan_ok=True)
                if name not in ("zeros", "subnormal"):
                    assert getattr(two, name) == expected, (str(site), step, name)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_compiled_model_gives_the_numbers_of_eager_mode(backend: str) -> None:
    eager, compiled = seeded(Net), seeded(Net)
    one = train(eager, eager)
    two = train(torch.compile(compiled, backend=backend, fullgraph=True), compiled)
    assert_same(one.run, two.run)
    assert one.run.mean_norm() == pytest.approx(two.run.mean_norm(), rel=1e-5, abs=1e-6)


def test_there_is_no_graph_break() -> None:
    model = seeded(Net)
    with tt.watch(model, WHERE, to=tt.Stats()):
        found = torch._dynamo.explain(model.forward)(batch())
    assert found.graph_break_count == 0
    assert found.graph_count == 1


def test_the_guard_against_graph_breaks_can_fail() -> None:
    model = seeded(Net)
    with tt.watch(model, WHERE, to=tt.Memory()):
        found = torch._dynamo.explain(model.forward)(batch())
    assert found.graph_break_count > 0


def test_the_compiled_wrapper_can_be_watched_too() -> None:
    eager, compiled = seeded(Net), torch.compile(seeded(Net), backend="aot_eager", fullgraph=True)
    assert_same(train(eager, eager).run, train(compiled, compiled).run)


def test_a_model_compiled_in_place_can_be_watched() -> None:
    eager, compiled = seeded(Net), seeded(Net)
    compiled.compile(backend="aot_eager", fullgraph=True)
    assert_same(train(eager, eager).run, train(compiled, compiled).run)


def test_gradients_and_parameters_are_those_of_the_compiled_model_alone() -> None:
    plain, watched = seeded(Net), seeded(Net)
    for model in (plain, watched):
        torch.compiler.reset()
        call: Any = torch.compile(model, backend="aot_eager", fullgraph=True)
        if model is watched:
            train(call, model, steps=1)
        else:
            call(batch()).square().mean().backward()
    for (name, one), two in zip(plain.named_parameters(), watched.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad), name  # type: ignore[arg-type]
    for one, two in zip(plain.buffers(), watched.buffers(), strict=True):  # type: ignore[assignment]
        assert torch.equal(one, two)


def test_several_forwards_before_one_backward() -> None:
    def run(model: nn.Module, call: Any) -> Any:
        with tt.watch(model, "*:output,grad_output", to=tt.Stats(exact=True)) as w:
            sum(call(batch(n)).square().mean() for n in range(3)).backward()
        return w.run

    eager, compiled = seeded(Net), seeded(Net)
    call: Any = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    assert_same(run(eager, eager), run(compiled, call))


def test_shapes_that_change_from_step_to_step() -> None:
    def batches(number: int) -> Any:
        return batch(number, rows=4 + 3 * number)

    eager, compiled = seeded(Net), seeded(Net)
    one = train(eager, eager, batches=batches)
    call: Any = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    assert_same(one.run, train(call, compiled, batches=batches).run)


def test_steps_that_are_left_out_run_without_torchtap() -> None:
    model = seeded(Net)
    call: Any = torch.compile(model, backend="aot_eager", fullgraph=True)
    with tt.watch(model, "*:output", to=tt.Stats(), every=2) as w:
        for number in range(5):
            call(batch(number))
            w.step()
    assert w.run.steps == [0, 2, 4]
    assert all(w.run.stats("last:output", step=n).num_tensors == 1 for n in (0, 2, 4))


@pytest.mark.parametrize("where", ["*:param", "*:buffer,update", "*:param,update,param_grad"])
def test_state_is_taken_in_each_step_also_where_no_value_is_watched(where: str) -> None:
    def run(model: nn.Module, call: Any) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with tt.watch(model, where, to=tt.Stats(exact=True)) as w:
            for number in range(3):
                optimizer.zero_grad()
                call(batch(number)).square().mean().backward()
                optimizer.step()
                w.step()
        return w.run

    eager, compiled = seeded(Net), seeded(Net)
    one = run(eager, eager)
    two = run(compiled, torch.compile(compiled, backend="aot_eager", fullgraph=True))
    assert one.steps == two.steps == [0, 1, 2]
    for site in one.sites:
        (steps, norms), (others, found) = (r.over_steps(site, "l2") for r in (one, two))
        assert steps == others == [0, 1, 2], str(site)
        assert norms == pytest.approx(found, rel=1e-4), str(site)


def test_a_backward_that_outlives_its_watch_reaches_no_other() -> None:
    model = seeded(Net)
    call: Any = torch.compile(model, backend="aot_eager", fullgraph=True)
    with tt.watch(model, "*:output,grad_output", to=tt.Stats()):
        late = call(batch())
    watches = [tt.watch(nn.ReLU(), ".:output,grad_output", to=tt.Stats()) for _ in range(8)]
    late.square().mean().backward()
    for w in watches:
        w.close()
        assert w.run.sites == []


def test_after_close_nothing_is_measured_and_no_hook_is_in_the_graph() -> None:
    model = seeded(Net)
    call: Any = torch.compile(model, backend="aot_eager", fullgraph=True)
    w = train(call, model, steps=1, where="*:output,grad_output")
    call(batch()).sum().backward()
    assert w.run.stats("last:output", step="all").num_tensors == 1
    assert "torchtap" not in str(torch._dynamo.explain(model.forward)(batch()).graphs[0].graph)


def test_grad_input_is_absent_with_a_reason() -> None:
    model = seeded(Net)
    w = train(torch.compile(model, backend="aot_eager", fullgraph=True), model, where="*:*")
    reasons = {e.reason for e in w.absent if e.site.port == "grad_input"}
    assert any("inside torch.compile there are no autograd nodes" in r for r in reasons)
    assert not [s for s in w.run.sites if s.port == "grad_input"]


def test_a_model_compiled_before_it_was_watched_says_so() -> None:
    model = seeded(Net)
    call: Any = torch.compile(model, backend="eager")
    call(batch())
    with tt.watch(call, "first:output", to=tt.Stats()) as w:
        call(batch())
    if not w.run.sites:
        assert "torch.compiler.reset()" in w.absent[0].reason


def test_inference_without_grad() -> None:
    model = seeded(TinyGPT).eval()
    tokens = torch.randint(0, 65, (2, 8), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), tt.watch(model, to=tt.Stats(exact=True)) as one:
        model(tokens)
    call: Any = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad(), tt.watch(model, to=tt.Stats(exact=True)) as two:
        call(tokens)
    assert_same(one.run, two.run)


def test_a_checkpoint_inside_a_compiled_graph_is_counted_once() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(6, 6), nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x, use_reentrant=False)

    model = seeded(Checkpointed)
    call: Any = torch.compile(model, backend="aot_eager")
    with tt.watch(model, "inner.*:output", to=tt.Stats()) as w:
        call(batch()).sum().backward()
    for site in ("inner.0:output", "inner.1:output"):
        assert w.run.stats(site).num_tensors == 1


# ---------------------------------------------------------------------------- equal blocks


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.act = nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.act(self.fc(x))


class Blocks(nn.Module):
    def __init__(self, num_blocks: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(num_blocks))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def compile_blocks(model: nn.Module, how: Any) -> Any:
    for number, block in enumerate(model.blocks):  # type: ignore[arg-type]
        if how == "wrapped":
            model.blocks[number] = torch.compile(block, backend="aot_eager")  # type: ignore[assignment]
        elif how == "whole":
            continue
        else:
            block.compile(
                backend="aot_eager", fullgraph=how == "fullgraph", dynamic=how == "dynamic" or None
            )
    if how == "whole":
        model.compile(backend="aot_eager")
    return model


BLOCK_WHERE = "blocks.*:output,grad_output"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["in place", "wrapped", "fullgraph", "dynamic", "whole"])
def test_what_equal_blocks_return_is_counted_at_each_of_them(how: str) -> None:
    eager = seeded(Blocks)
    compiled = compile_blocks(seeded(Blocks), how)
    one = train(eager, eager, where=BLOCK_WHERE, steps=2)
    assert_same(one.run, train(compiled, compiled, where=BLOCK_WHERE, steps=2).run)


def test_a_model_is_not_taken_for_another_of_its_class_that_was_compiled_before() -> None:
    first, eager = seeded(Blocks), seeded(Blocks, seed=1)
    call: Any = torch.compile(first, backend="aot_eager")
    before = train(call, first, where=BLOCK_WHERE, steps=1)
    kept = tt.watch(first, BLOCK_WHERE, to=tt.Stats(exact=True))
    second = seeded(Blocks, seed=1)
    both = train(torch.compile(second, backend="aot_eager"), second, where=BLOCK_WHERE, steps=1)
    assert_same(train(eager, eager, where=BLOCK_WHERE, steps=1).run, both.run)
    kept.close()
    assert kept.run.sites == []
    assert before.run.stats("blocks.1:output", step="all").num_tensors == 1


def test_code_that_was_compiled_under_a_closed_watch_serves_the_next() -> None:
    eager, compiled = seeded(Blocks), compile_blocks(seeded(Blocks), "in place")
    train(compiled, compiled, where=BLOCK_WHERE, steps=1)
    counters.clear()
    again = train(compiled, compiled, where=BLOCK_WHERE, steps=2)
    assert_same(train(eager, eager, where=BLOCK_WHERE, steps=2).run, again.run)
    assert counters["stats"]["unique_graphs"] == 0


def test_a_copy_of_a_watched_compiled_model_is_told_from_it() -> None:
    original = compile_blocks(seeded(Blocks), "in place")
    with tt.watch(original, BLOCK_WHERE, to=tt.Stats(exact=True)) as one:
        original(batch())
        double = copy.deepcopy(original)
        with tt.watch(double, BLOCK_WHERE, to=tt.Stats(exact=True)) as two:
            double(batch(1))
            double(batch(2))
    for name in ("blocks.2:output", "blocks.1.fc:output"):
        assert one.run.stats(name).num_tensors == 1
        assert two.run.stats(name).num_tensors == 2


@pytest.mark.slow
@pytest.mark.parametrize("where", [BLOCK_WHERE, "*:input,output,grad_output,param,param_grad"])
def test_many_equal_blocks_are_compiled_no_more_often_than_unwatched(where: Any) -> None:
    def graphs(model: nn.Module, is_watched: bool) -> Any:
        torch.compiler.reset()
        counters.clear()
        if is_watched:
            train(model, model, where=where)
        else:
            for number in range(3):
                model(batch(number)).square().mean().backward()
        return counters["stats"]["unique_graphs"]

    # More than torch._dynamo.config.recompile_limit.
    plain, watched = (compile_blocks(seeded(lambda: Blocks(10)), "fullgraph") for _ in range(2))
    assert graphs(watched, is_watched=True) == graphs(plain, is_watched=False)


# ---------------------------------------------------------------------------- what it costs


class Passes(nn.Module):
    """Each part returns what its last part returned, and a residual hands one gradient on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.0))
        self.outer = nn.Sequential(Block(), nn.Identity(), nn.Dropout(0.0))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.inner(x)
        return x + self.outer(x)


@pytest.mark.slow
def test_a_value_that_several_modules_hand_on_has_the_numbers_of_eager_mode() -> None:
    eager, compiled = seeded(Passes), seeded(Passes)
    one = train(eager, eager, where="*:input,output,grad_output")
    call: Any = torch.compile(compiled, fullgraph=True)
    two = train(call, compiled, where="*:input,output,grad_output")
    assert_same(one.run, two.run)
    assert one.run.mean_norm() == pytest.approx(two.run.mean_norm(), rel=1e-5, abs=1e-6)
    for step in two.run.steps:
        same = [two.run.stats(f"inner{part}:output", step=step) for part in ("", ".0", ".1")]
        counts = [one.histogram.counts.tolist() for one in same if one.histogram is not None]
        assert counts == [counts[0]] * 3
        assert len({(one.l2, one.mean, one.numel) for one in same}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 5])
def test_twenty_steps_compile_nothing_anew_and_warn_of_nothing(every: int) -> None:
    model = seeded(Passes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    call: Any = torch.compile(model, fullgraph=True)
    where = "*:input,output,grad_output,param,param_grad,update"
    found = []
    with warnings.catch_warnings(), tt.watch(model, where, to=tt.Stats(), every=every) as w:
        warnings.simplefilter("error")
        counters.clear()
        for number in range(20):
            optimizer.zero_grad()
            call(batch(number)).square().mean().backward()
            optimizer.step()
            w.step()
            found.append(counters["stats"]["unique_graphs"])
    # One graph for steps that are recorded, and one for those that are not.
    assert found[every:] == [1 if every == 1 else 2] * (20 - every)
    assert w.run.steps == list(range(0, 20, every))


# ---------------------------------------------------------------------------- gradients


class LogitsAndLoss(nn.Module):
    """Returns two tensors, of which programs use one, and has a part whose second is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.split = Split()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Any:
        logits, _ = self.split(self.fc(x))
        return logits, logits.square().mean()


def test_an_output_without_a_gradient_is_absent_and_the_backward_goes_on() -> None:
    eager, compiled = seeded(LogitsAndLoss), seeded(LogitsAndLoss)
    call: Any = torch.compile(compiled, backend="aot_eager")
    with tt.watch(compiled, "*:output,grad_output", to=tt.Stats()) as w:
        call(batch())[1].backward()
    eager(batch())[1].backward()
    for one, two in zip(eager.parameters(), compiled.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad)  # type: ignore[arg-type]
    reasons = {str(entry.site): entry.reason for entry in w.absent}
    assert reasons["split:grad_output[1.right]"].startswith("no gradient arrived")
    assert reasons[".:grad_output[0]"].startswith("no gradient arrived")
    assert w.run.stats("split:grad_output[0]").num_tensors == 1


@pytest.mark.parametrize("sink", [tt.Memory, tt.Stats])
def test_a_gradient_that_a_compiled_graph_shows_in_part_says_so(sink: Any) -> None:
    model = seeded(LogitsAndLoss)
    call: Any = torch.compile(model, backend="aot_eager")
    with tt.watch(model, ".:grad_output", to=sink()) as w:
        logits, loss = call(batch())
        (logits.sum() + loss).backward()
    if sink is tt.Memory:
        found, notes = w.run[".:grad_output[0]"], next(w.run.records(".:grad_output[0]")).labels
        assert torch.equal(found, torch.ones(5, 3))  # Of the sum alone.
    else:
        notes = w.run.stats(".:grad_output[0]").notes
    assert "outside the compiled graph" in notes


def test_a_gradient_that_a_compiled_graph_shows_in_part_is_not_edited() -> None:
    model = seeded(LogitsAndLoss)
    call: Any = torch.compile(model, backend="aot_eager")
    edit = tt.edit(model, ".:grad_output[0]", tt.edits.scale(2.0), missing="ignore")
    with edit, pytest.raises(tt.EditError, match="out of reach"):
        call(batch())


def test_a_gradient_that_cannot_come_in_a_graph_is_absent_for_its_own_reason() -> None:
    model = seeded(Net)
    call: Any = torch.compile(model, backend="aot_eager")
    with torch.no_grad(), tt.watch(model, "first:grad_output", to=tt.Stats()) as w:
        call(batch())
    assert w.absent[0].reason == "grad mode was off"


@pytest.mark.slow
@pytest.mark.parametrize("transform", ["grad", "vmap"])
def test_a_compiled_transform_runs_as_without_torchtap_and_its_sites_are_absent(
    transform: str,
) -> None:
    model = seeded(Block)
    params = dict(model.named_parameters())

    def loss(params: Any, x: Tensor) -> Any:
        return torch.func.functional_call(model, params, (x,)).square().sum()

    def per_sample(params: Any, x: Tensor) -> Any:
        return torch.func.vmap(loss, (None, 0))(params, x)

    function = torch.func.grad(loss) if transform == "grad" else per_sample
    expected = function(params, batch())
    with tt.watch(model, "*:output,grad_output,param", to=tt.Stats()) as w:
        found = torch.compile(function, backend="aot_eager", fullgraph=True)(params, batch())
    torch.testing.assert_close(found, expected)
    assert w.run.sites == []
    reasons = {e.reason for e in w.absent if e.site.port == "output"}
    assert reasons == {"it ran inside a torch.func transform, where tensors stand for others"}


class Residual(nn.Module):
    """Its argument takes two ways, which meet in a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.block = Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.first(x))


def a_compiled_step(sink: Any, *, is_compiled: bool) -> Any:
    """Forward, backward and optimizer in one function; every record's numbers."""
    torch.compiler.reset()
    model = seeded(Residual)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: Tensor) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    call: Any = torch.compile(step, backend="aot_eager") if is_compiled else step
    where = (
        "*:*,param,param_grad,update" if isinstance(sink, tt.Memory) else "*:output,update,param"
    )
    with tt.watch(model, where, to=sink) as w:
        losses = []
        for number in range(2):
            losses.append(float(call(batch(number))))
            w.step()
    return losses, w


@pytest.mark.slow
def test_a_step_that_is_compiled_whole_gives_the_values_of_eager_mode() -> None:
    losses, one = a_compiled_step(tt.Memory(), is_compiled=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Dynamo does not know how to trace")
        found, two = a_compiled_step(tt.Memory(), is_compiled=True)
    assert found == pytest.approx(losses, rel=1e-6)
    assert set(one.run.sites) == set(two.run.sites)
    for row in one.run.records():
        value = two.run.get(row.site, step=row.step)
        assert torch.allclose(value, row.value, rtol=1e-5, atol=1e-7), str(row.site)


def test_a_step_that_is_compiled_whole_gives_the_numbers_of_eager_mode() -> None:
    _, one = a_compiled_step(tt.Stats(exact=True), is_compiled=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Dynamo does not know how to trace")
        _, two = a_compiled_step(tt.Stats(exact=True), is_compiled=True)
    assert_same(one.run, two.run)


@pytest.mark.slow
@pytest.mark.parametrize("port", ["output", "input", "grad_output", "grad_input", "param_grad"])
@pytest.mark.parametrize("by_autograd", [False, True])
def test_an_edit_in_a_step_that_is_compiled_whole_does_what_it_does_in_eager_mode(
    port: str, by_autograd: bool
) -> None:
    def run(is_compiled: bool) -> list[Any]:
        torch.compiler.reset()
        model = seeded(Residual)

        def step(x: Tensor) -> None:
            model.zero_grad()
            model(x).square().mean().backward()

        call: Any = torch.compile(step, backend="aot_eager") if is_compiled else step
        with tt.edit(model, f"block.fc:{port}", tt.edits.scale(0.5)):
            call(batch())
        return [param.grad for param in model.parameters()]

    with torch._dynamo.config.patch(compiled_autograd=by_autograd):
        compiled = run(True)
    for one, two in zip(run(False), compiled, strict=True):
        assert torch.allclose(one, two, rtol=1e-5, atol=1e-7)


def test_a_watch_may_be_put_on_where_other_tensors_are_made() -> None:
    model = seeded(Block)
    with torch.inference_mode(), torch.device("meta"):
        w = tt.watch(model, "fc:output,grad_output", to=tt.Stats())
    torch.compile(model, backend="aot_eager")(batch()).sum().backward()
    w.close()
    assert w.run.stats("fc:grad_output").num_tensors == 1


# ---------------------------------------------------------------------------- words, and imports


@pytest.mark.parametrize("kind", ["watch", "edit", "mark"])
def test_the_error_of_fullgraph_names_torchtap_and_a_way_out(kind: str) -> None:
    class Marked(Block):
        def forward(self, x: Tensor) -> Tensor:
            return tt.mark(super().forward(x), "marked")

    model = seeded(Marked)
    attach = {
        "watch": lambda: tt.watch(model, "fc"),
        "edit": lambda: tt.edit(model, "fc", tt.edits.scale(2.0)),
        "mark": lambda: tt.watch(model, "marked", to=tt.Stats()),
    }
    call: Any = torch.compile(model, backend="aot_eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported) as caught, attach[kind]():
        call(batch())
    reason = str(caught.value)
    assert "torchtap: " in reason
    assert "fullgraph=False" in reason
    assert kind == "edit" or "tt.Stats()" in reason


def test_saved_tensors_of_a_compiled_graph_are_absent_with_a_reason() -> None:
    model = seeded(Net)
    call: Any = torch.compile(model, backend="aot_eager")
    with tt.watch(model, "first:saved,output", to=tt.Stats()) as w:
        call(batch())
    reason = next(entry.reason for entry in w.absent if entry.site.port == "saved")
    assert "inside torch.compile" in reason


def test_a_container_among_compiled_parts_is_absent_as_a_container() -> None:
    model = compile_blocks(seeded(Blocks), "in place")
    with tt.watch(model, "blocks:output", to=tt.Stats()) as w:
        model(batch())
    assert w.absent[0].reason == "it has no forward: a container is never called"


class Trainer(nn.Module):
    """A module like those of Lightning and of GANs: it is not called itself, its parts are."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleDict({"net": nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))})


@pytest.mark.parametrize("is_compiled", [False, True])
def test_state_is_taken_where_only_parts_of_the_model_are_called(is_compiled: bool) -> None:
    model = seeded(Trainer)
    net = model.nets["net"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weight, mean = net[0].weight.detach().clone(), net[1].running_mean.clone()

    def run(x: Tensor) -> Any:
        return net(x).square().mean()

    call: Any = torch.compile(run, backend="aot_eager", fullgraph=True) if is_compiled else run
    with tt.watch(model, "nets.**:param,param_grad,buffer,update", to=tt.Stats(exact=True)) as w:
        call(batch()).backward()
        optimizer.step()
        w.step()
    assert not [e for e in w.absent if not e.reason.startswith("the module owns none")]
    found = w.run.stats("nets.net.0:param[weight]")
    assert found.l2 == pytest.approx(weight.norm().item())
    assert w.run.stats("nets.net.1:buffer[running_mean]").l2 == pytest.approx(mean.norm().item())
    change = (net[0].weight.detach() - weight).norm().item()
    update = w.run.stats("nets.net.0:update[weight]")
    assert update.l2 == pytest.approx(change)
    assert update.update_ratio == pytest.approx(change / weight.norm().item())
    gradient = net[0].weight.grad.norm().item()
    assert w.run.stats("nets.net.0:param_grad[weight]").l2 == pytest.approx(gradient)


def test_parameters_are_taken_before_the_optimizer_changes_them_where_no_module_is_called() -> None:
    model = seeded(Trainer)
    linear = model.nets["net"][0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = linear.weight.detach().norm().item()
    with tt.watch(model, "nets.net.0:param,update", to=tt.Stats(exact=True)) as w:
        torch.nn.functional.linear(batch(), linear.weight).square().mean().backward()
        optimizer.step()
        w.step()
    assert w.run.stats("nets.net.0:param[weight]").l2 == pytest.approx(before)
    assert w.run.stats("nets.net.0:update[weight]").update_ratio is not None


def test_the_compiler_is_imported_only_by_programs_that_compile() -> None:
    program = """
import sys, torch, torchtap as tt
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
x = torch.ones(3, 4)
attach = (
    lambda: tt.watch(model, "*:*,param,param_grad,buffer,update,saved"),
    lambda: tt.watch(model, "*:*,param,param_grad,buffer,update", to=tt.Stats()),
    lambda: tt.edit(model, "1:output,grad_output", tt.edits.scale(2.0)),
    lambda: tt.offload("cpu", min_bytes=1),
    lambda: tt.freeze(model, "0"),
)
for one in attach:
    with one():
        model(x).sum().backward()
tt.features(model, "1")(x)
assert "torch._dynamo" not in sys.modules
w = tt.watch(model, "1:output", to=tt.Stats())
torch.compile(model, backend="eager", fullgraph=True)(x)
assert w.run.stats("1:output").num_tensors == 1
"""
    subprocess.run([sys.executable, "-c", program], check=True)


class Boxes(nn.Module):
    """A tensor, an object, a set, and what holds no tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor, box: Any) -> Any:
        y = self.linear(x + box.held)
        return y, Box(y * 2), {y}, torch.float32, None, "text"


class Takes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Boxes()

    def forward(self, x: Tensor) -> Tensor:
        y, box, *_ = self.inner(x, Box(x))
        return y + box.held


def test_what_a_compiled_graph_cannot_look_into_is_reported() -> None:
    model = Takes()
    call: Any = torch.compile(model, backend="eager", fullgraph=True)
    with tt.watch(model, "inner:input,output", to=tt.Stats()) as w:
        call(batch())
    assert {str(site) for site in w.run.sites} == {"inner:input[0]", "inner:output[0]"}
    assert {str(entry.site): entry.reason.partition(",")[0] for entry in w.absent} == {
        "inner:input[1]": "it took a Box",
        "inner:output[1]": "it returned a Box",
        "inner:output[2]": "it returned a set",
    }


@pytest.mark.usefixtures("fresh_compiler")
def test_an_evaluation_alone_is_no_step_that_an_optimizer_left_out() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model.compile(backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with tt.watch(model, "*:output,param,update", to=tt.Stats()) as watched:
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        watched.step()
        model.eval()
        with torch.no_grad():
            model(torch.ones(2, 3))
    assert watched.run.stats("0:output", step=1, phase="eval").numel == 8
    assert not watched.absent

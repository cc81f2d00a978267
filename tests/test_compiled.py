"""Statistics inside compiled graphs: no graph break, and the numbers of eager mode."""

import pytest
import torch
from models import TinyGPT, seeded
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchtap as tt
from torchtap.stats.statistics import NUMBERS

WHERE = "*:input,output,grad_output,param,param_grad,buffer"
# The compiler warns a good deal on its own account.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Net(nn.Module):
    """Views, an in-place module, a module that runs twice, one that returns a tuple, a buffer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.act = nn.ReLU(inplace=True)
        self.split = Split()
        self.norm = nn.BatchNorm1d(3)
        self.last = nn.Linear(3, 2)

    def forward(self, x):
        x = self.act(self.first(x))
        left, rest = self.split(self.act(x + 1))
        return self.last(self.norm(left) + rest["right"])


class Split(nn.Module):
    def forward(self, x):
        left, right = x.chunk(2, dim=-1)
        return left, {"right": right}


def batch(seed=0, rows=5):
    return torch.randn(rows, 6, generator=torch.Generator().manual_seed(seed))


def train(model, watched, *, steps=3, where=WHERE, batches=batch):
    with tt.watch(watched, where, to=tt.Stats(exact=True)) as w:
        for number in range(steps):
            watched.zero_grad()
            model(batches(number)).square().mean().backward()
            w.step()
    return w


def assert_same(run, other, *, rel=1e-5):
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
def test_a_compiled_model_gives_the_numbers_of_eager_mode(backend):
    eager, compiled = seeded(Net), seeded(Net)
    one = train(eager, eager)
    two = train(torch.compile(compiled, backend=backend, fullgraph=True), compiled)
    assert_same(one.run, two.run)
    assert one.run.mean_norm() == pytest.approx(two.run.mean_norm(), rel=1e-5, abs=1e-6)


def test_there_is_no_graph_break():
    model = seeded(Net)
    with tt.watch(model, WHERE, to=tt.Stats()):
        found = torch._dynamo.explain(model.forward)(batch())
    assert found.graph_break_count == 0
    assert found.graph_count == 1


def test_the_guard_against_graph_breaks_can_fail():
    model = seeded(Net)
    with tt.watch(model, WHERE, to=tt.Memory()):
        found = torch._dynamo.explain(model.forward)(batch())
    assert found.graph_break_count > 0


def test_the_compiled_wrapper_can_be_watched_too():
    eager, compiled = seeded(Net), torch.compile(seeded(Net), backend="aot_eager", fullgraph=True)
    assert_same(train(eager, eager).run, train(compiled, compiled).run)


def test_a_model_compiled_in_place_can_be_watched():
    eager, compiled = seeded(Net), seeded(Net)
    compiled.compile(backend="aot_eager", fullgraph=True)
    assert_same(train(eager, eager).run, train(compiled, compiled).run)


def test_gradients_and_parameters_are_those_of_the_compiled_model_alone():
    plain, watched = seeded(Net), seeded(Net)
    for model in (plain, watched):
        torch.compiler.reset()
        call = torch.compile(model, backend="aot_eager", fullgraph=True)
        if model is watched:
            train(call, model, steps=1)
        else:
            call(batch()).square().mean().backward()
    for (name, one), two in zip(plain.named_parameters(), watched.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad), name
    for one, two in zip(plain.buffers(), watched.buffers(), strict=True):
        assert torch.equal(one, two)


def test_several_forwards_before_one_backward():
    def run(model, call):
        with tt.watch(model, "*:output,grad_output", to=tt.Stats(exact=True)) as w:
            sum(call(batch(n)).square().mean() for n in range(3)).backward()
        return w.run

    eager, compiled = seeded(Net), seeded(Net)
    call = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    assert_same(run(eager, eager), run(compiled, call))


def test_shapes_that_change_from_step_to_step():
    def batches(number):
        return batch(number, rows=4 + 3 * number)

    eager, compiled = seeded(Net), seeded(Net)
    one = train(eager, eager, batches=batches)
    call = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    assert_same(one.run, train(call, compiled, batches=batches).run)


def test_steps_that_are_left_out_run_without_us():
    model = seeded(Net)
    call = torch.compile(model, backend="aot_eager", fullgraph=True)
    with tt.watch(model, "*:output", to=tt.Stats(), every=2) as w:
        for number in range(5):
            call(batch(number))
            w.step()
    assert w.run.steps == [0, 2, 4]
    assert all(w.run.stats("last:output", step=n).num_tensors == 1 for n in (0, 2, 4))


@pytest.mark.parametrize("where", ["*:param", "*:buffer,update", "*:param,update,param_grad"])
def test_state_is_taken_in_each_step_also_where_no_value_is_watched(where):
    def run(model, call):
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


def test_a_backward_that_outlives_its_watch_reaches_no_other():
    model = seeded(Net)
    call = torch.compile(model, backend="aot_eager", fullgraph=True)
    with tt.watch(model, "*:output,grad_output", to=tt.Stats()):
        late = call(batch())
    watches = [tt.watch(nn.ReLU(), ".:output,grad_output", to=tt.Stats()) for _ in range(8)]
    late.square().mean().backward()
    for w in watches:
        w.close()
        assert w.run.sites == []


def test_after_close_nothing_is_measured_and_the_graph_is_free_of_us():
    model = seeded(Net)
    call = torch.compile(model, backend="aot_eager", fullgraph=True)
    w = train(call, model, steps=1, where="*:output,grad_output")
    call(batch()).sum().backward()
    assert w.run.stats("last:output", step="all").num_tensors == 1
    assert "torchtap" not in str(torch._dynamo.explain(model.forward)(batch()).graphs[0].graph)


def test_grad_input_is_absent_and_it_is_said():
    model = seeded(Net)
    w = train(torch.compile(model, backend="aot_eager", fullgraph=True), model, where="*:*")
    reasons = {e.reason for e in w.absent if e.site.port == "grad_input"}
    assert any("inside torch.compile there are no autograd nodes" in r for r in reasons)
    assert not [s for s in w.run.sites if s.port == "grad_input"]


def test_a_model_compiled_before_it_was_watched_says_so():
    model = seeded(Net)
    call = torch.compile(model, backend="eager")
    call(batch())
    with tt.watch(call, "first:output", to=tt.Stats()) as w:
        call(batch())
    if not w.run.sites:
        assert "torch.compiler.reset()" in w.absent[0].reason


def test_inference_without_grad():
    model = seeded(TinyGPT).eval()
    tokens = torch.randint(0, 65, (2, 8), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), tt.watch(model, to=tt.Stats(exact=True)) as one:
        model(tokens)
    call = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad(), tt.watch(model, to=tt.Stats(exact=True)) as two:
        call(tokens)
    assert_same(one.run, two.run)


def test_a_checkpoint_inside_a_compiled_graph_is_counted_once():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(6, 6), nn.Tanh())

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=False)

    model = seeded(Checkpointed)
    call = torch.compile(model, backend="aot_eager")
    with tt.watch(model, "inner.*:output", to=tt.Stats()) as w:
        call(batch()).sum().backward()
    for site in ("inner.0:output", "inner.1:output"):
        assert w.run.stats(site).num_tensors == 1


class Box:
    def __init__(self, held):
        self.held = held


class Boxes(nn.Module):
    """A tensor, an object, a set, and what holds no tensors."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x, box):
        y = self.linear(x + box.held)
        return y, Box(y * 2), {y}, torch.float32, None, "text"


class Takes(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Boxes()

    def forward(self, x):
        y, box, *_ = self.inner(x, Box(x))
        return y + box.held


def test_what_a_compiled_graph_cannot_look_into_is_said():
    model = Takes()
    call = torch.compile(model, backend="eager", fullgraph=True)
    with tt.watch(model, "inner:input,output", to=tt.Stats()) as w:
        call(batch())
    assert {str(site) for site in w.run.sites} == {"inner:input[0]", "inner:output[0]"}
    assert {str(entry.site): entry.reason.partition(",")[0] for entry in w.absent} == {
        "inner:input[1]": "it took a Box",
        "inner:output[1]": "it returned a Box",
        "inner:output[2]": "it returned a set",
    }

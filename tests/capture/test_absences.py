"""What a sharp adversary tried: each is right, or said to be absent, and never a crash."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
import transformers
from absent import reasons_at
from containers import Box
from torch import Tensor, nn

import torchtap as tt
from torchtap.capture.gather import PendingGradient
from torchtap.edits.gradients import GradientEdit
from torchtap.hooks.spots import GradHook
from torchtap.testing import Net


def view(h: Tensor) -> Any:
    return h.view(2, 2)


def test_a_view_of_a_base_that_was_overwritten_itself_is_absent() -> None:
    def forward(net: nn.Module, x: Tensor) -> Tensor:
        h = x * 2
        v = net.v(h)
        h.mul_(3)
        v.add_(1)
        return v.square().sum()

    model = Net(forward, v=Net(lambda net, h: view(h)))
    with tt.watch(model, "v:grad_output") as w:
        model(torch.arange(4.0, requires_grad=True)).backward()
    assert not w.run.sites
    assert reasons_at(w, "v:grad_output")


def test_a_view_that_was_overwritten_says_that_its_memory_is_shared() -> None:
    def forward(net: nn.Module, x: Tensor) -> Tensor:
        v = net.v(x * 2)
        v += 1
        return v.square().sum()

    model = Net(forward, v=Net(lambda net, h: view(h)))
    x = torch.arange(4.0, requires_grad=True)
    with tt.watch(model, "v:grad_output") as w:
        model(x).backward()
    record = w.run.record("v:grad_output")
    assert record.labels == ("shared memory",)
    assert torch.equal(record.value, (2 * (view(x.detach()) * 2 + 1)))


def test_a_complex_argument_overwritten_through_its_real_view_is_absent() -> None:
    def inner(net: nn.Module, v: Tensor) -> Any:
        v.mul_(2)
        return v.sum()

    def forward(net: nn.Module, x: Tensor) -> Tensor:
        return net.i(torch.view_as_real(x * 1))

    model = Net(forward, i=Net(inner))
    with tt.watch(model, "i:*") as w:
        model(torch.ones(3, dtype=torch.complex64, requires_grad=True)).backward()
    assert reasons_at(w, "i:grad_input") == [
        "it is a view in another dtype, and the module overwrote it"
    ]


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Any) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return gradient * w, gradient * x


class TwoWays(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.full((2,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        return Product.apply(x, self.w) + x * 3


@pytest.mark.parametrize("whole", [True, False])
def test_a_backward_for_other_inputs_brings_no_part_of_a_gradient(whole: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 2), TwoWays())
    with tt.watch(model, "1:grad_input") as w:
        loss = model(torch.ones(1, 2)).sum()
        if whole:
            loss.backward()
        else:
            loss.backward(inputs=[model[1].w])
    if whole:
        assert torch.equal(w.run["1:grad_input"], torch.full((1, 2), 5.0))
    else:
        assert "inputs=" in reasons_at(w, "1:grad_input")[0]


def test_a_gradient_that_was_asked_for_by_name_is_whole() -> None:
    model = TwoWays()
    x = torch.ones(1, 2, requires_grad=True)
    with tt.watch(model, ".:grad_input") as w:
        torch.autograd.grad(model(x).sum(), [x])
    assert torch.equal(w.run[".:grad_input"], torch.full((1, 2), 5.0))


def test_a_second_backward_past_the_module_is_absent() -> None:
    model = Net(lambda net, x: x * x.tanh())
    x = torch.tensor([0.5], requires_grad=True)
    with tt.watch(model, ".:grad_input") as w:
        (gradient,) = torch.autograd.grad(model(x).sum(), [x], create_graph=True)
        gradient.square().sum().backward()
    (record,) = w.run.records(".:grad_input")
    assert torch.equal(record.value, gradient.detach())
    assert "create_graph=True" in reasons_at(w, ".:grad_input")[0]


def test_an_input_that_is_optimised_in_a_loop_gets_one_gradient_per_call() -> None:
    model = nn.Sequential(nn.Identity(), nn.Linear(2, 1, bias=False))
    x = torch.ones(1, 2, requires_grad=True)
    with tt.watch(model, "0:grad_output") as w:
        for _ in range(4):
            x.grad = None
            model(x).sum().backward()
    records = list(w.run.records("0:grad_output"))
    assert [record.call for record in records] == [0, 1, 2, 3]
    assert all(torch.equal(r.value, model[1].weight.detach()) for r in records)


def test_what_the_output_does_not_depend_on_is_said() -> None:
    model = Net(lambda net, x, y: x * 2)
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    with tt.watch(model, ".:grad_input") as w:
        model(x, y).sum().backward()
    assert [str(site) for site in w.run.sites] == [".:grad_input[0]"]
    assert "does not depend on it" in reasons_at(w, ".:grad_input[1]")[0]


class Slow(torch.optim.Optimizer):
    """Lookahead: goes half the way of the optimizer inside."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        params = [p for group in self.param_groups for p in group["params"]]
        before = [p.detach().clone() for p in params]
        self.inner.step()
        with torch.no_grad():
            for param, old in zip(params, before, strict=True):
                param.copy_((param + old) / 2)


def test_the_update_of_a_nested_optimizer_is_that_of_the_outer_one() -> None:
    model = nn.Linear(2, 1)
    optimizer = Slow(torch.optim.SGD(model.parameters(), lr=1.0))
    before = model.weight.detach().clone()
    with tt.watch(model, ".:update") as w:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    (record,) = w.run.records(".:update[weight]")
    assert torch.equal(record.value, model.weight.detach() - before)


def test_tied_weights_have_their_update_at_both_places() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.embed(x))

    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tt.watch(model, "*:update") as w:
        model(torch.tensor([1, 2])).square().sum().backward()
        optimizer.step()
    assert torch.equal(w.run["embed:update[weight]"], w.run["head:update[weight]"])
    assert w.absent == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_watched_model_can_be_traced() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with tt.watch(model, "*:*") as w:
        model(torch.ones(1, 2))
        w.step()
        traced = torch.jit.trace(model, torch.ones(1, 2))
    assert torch.equal(traced(torch.ones(1, 2)), model(torch.ones(1, 2)))


@pytest.mark.filterwarnings("ignore")
def test_an_exported_model_knows_nothing_of_us() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with tt.watch(model, "*:output", to=tt.Stats()):
        program = torch.export.export(model, (torch.ones(1, 2),), strict=True)
    assert "torchtap" not in str(program.graph)


def test_a_call_with_borrowed_parameters_has_no_param_grad() -> None:
    model = nn.Linear(2, 2)
    fast = {name: p * 2 for name, p in model.named_parameters()}
    with tt.watch(model, ".:param_grad") as w:
        torch.func.functional_call(model, fast, (torch.ones(1, 2),)).sum().backward()
    assert "another tensor in the parameter's place" in reasons_at(w, ".:param_grad[weight]")[0]


def test_sparse_gradients_are_kept_within_a_budget_and_shown() -> None:
    model = nn.Embedding(10, 3, sparse=True)
    with tt.watch(model, ".:param_grad", to=tt.Memory(max_bytes=1 << 20)) as w:
        model(torch.tensor([1, 2])).sum().backward()
    assert w.run[".:param_grad"].is_sparse
    assert "10x3" in repr(w.run)


def test_an_interrupted_call_holds_nothing_afterwards() -> None:
    def forward(net: nn.Module, x: Tensor) -> Tensor:
        y = net.linear(x)
        if net.interrupt:
            raise KeyboardInterrupt
        return y.t()

    model = Net(forward, linear=nn.Linear(2, 2))
    model.interrupt = True  # type: ignore[assignment]
    alive = []
    with tt.watch(model, "*:*", to=lambda record: None):
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(1, 2))
        model.interrupt = False  # type: ignore[assignment]
        for _ in range(5):
            y = model(torch.ones(1, 2))
            y.sum().backward()
            alive.append(weakref.ref(y))
            del y
        assert not any(reference() is not None for reference in alive)


def test_a_watch_that_nobody_closed_goes_with_its_model() -> None:
    model = nn.Linear(2, 2)
    gone = weakref.ref(tt.watch(model, "*")._engine)
    del model
    gc.collect()
    assert gone() is None


def test_leaves_whose_keys_read_the_same_are_told_apart() -> None:
    model = Net(lambda net, x: {0: x * 2, "0": x * 3})
    with tt.watch(model, ".:output,grad_output") as w:
        output = model(torch.ones(1, requires_grad=True))
        (output[0] + 5 * output["0"]).sum().backward()
    assert [(r.site.leaf, float(r.value)) for r in w.run.records(".:output")] == [
        ("0", 2.0),
        ("0~2", 3.0),
    ]
    assert float(w.run[".:grad_output[0~2]"]) == 5.0


def test_parts_called_alone_say_why_there_are_no_parameters() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    with tt.watch(model, "0.0:param,output") as w:
        model[0][0](torch.ones(1, 2))
    assert "only parts further inside were" in reasons_at(w, "0.0:param")[0]


def test_hooks_of_saved_tensors_that_have_no_name_do_no_harm() -> None:
    from functools import partial

    model = nn.Linear(2, 2)
    identity = partial(lambda t: t)
    with tt.watch(model, "*:*") as w, torch.autograd.graph.saved_tensors_hooks(identity, identity):
        model(torch.ones(1, 2)).sum().backward()
    assert torch.equal(w.run[".:grad_output"], torch.ones(1, 2))


def test_a_mark_with_the_name_of_a_module_is_passed_over_and_said() -> None:
    model = Net(lambda net, x: tt.mark(net.fc(x) * 100, "fc"), fc=nn.Linear(2, 2))
    with tt.watch(model, "fc") as w:
        output = model(torch.ones(1, 2))
    assert torch.equal(w.run["fc:output"] * 100, output.detach())
    assert "a module has it" in reasons_at(w, "fc:output")[0]


def test_only_tensors_can_be_marked() -> None:
    with pytest.raises(tt.InputError, match=r"tt.mark 'x' got dict; expected a tensor"):
        tt.mark({}, "x")  # type: ignore[arg-type]


def test_a_container_is_absent_because_it_is_never_called() -> None:
    model = Net(lambda net, x: net.blocks[0](x), blocks=nn.ModuleList([nn.ReLU()]))
    with tt.watch(model, "*") as w:
        model(torch.ones(1))
    assert reasons_at(w, "blocks:output") == ["it has no forward: a container is never called"]


def test_a_class_that_is_nowhere_is_named() -> None:
    with pytest.raises(tt.SiteError, match="has no module of class 'Conv2d'"):
        tt.watch(nn.Sequential(nn.Linear(1, 1)), nn.Conv2d)


def test_a_statistic_that_is_not_there_names_its_neighbours() -> None:
    model = nn.ReLU()
    with tt.watch(model, to=tt.Stats()) as w:
        model(torch.ones(1))
    with pytest.raises(tt.SiteError, match="no statistic 'meen'; did you mean 'mean'"):
        w.run.over_steps(".:output", "meen")


# --- objects ----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [transformers.DynamicCache, transformers.StaticCache])
def test_a_cache_is_recorded_as_it_is_at_each_call(make: Any) -> None:
    config = transformers.LlamaConfig(
        vocab_size=20,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    cache = make(config=config) if make is transformers.DynamicCache else make(config, 4)
    truth: dict[Any, Any] = {}

    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        for number, layer in enumerate(kwargs["past_key_values"].layers):
            if layer.keys is not None:
                leaf = f"past_key_values.layers.{number}.keys"
                truth.setdefault(leaf, []).append(layer.keys.clone())

    last = model.model.layers[1].self_attn
    last.register_forward_pre_hook(note, with_kwargs=True)
    with torch.no_grad(), tt.watch(model, "model.layers.1.self_attn:input") as w:
        for token in (3, 5):
            model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
    assert len(truth) == 2 and not w.absent
    for leaf, values in truth.items():
        found = [r.value for r in w.run.records() if r.site.leaf == leaf]
        assert all(torch.equal(one, two) for one, two in zip(found, values, strict=True))


@pytest.mark.parametrize("port", ["output", "grad_output"])
def test_what_was_not_looked_into_is_absent_beside_a_tensor(port: str) -> None:
    model = Net(lambda net, x: (net.a(x), {net.a(x)}), a=nn.Linear(2, 2))
    with tt.watch(model, f".:{port}") as w, tt.edit(model, f".:{port}", lambda t: t) as e:
        model(torch.ones(1, 2))[0].sum().backward()
    why = "it returned a set, which has no order to name its tensors by: use a tuple"
    assert [str(site) for site in w.run.sites] == [f".:{port}[0]"]
    for absent in (w.absent, e.absent):
        assert [str(entry.site) for entry in absent] == [f".:{port}[1]"]
        assert absent[0].reason.startswith(why)


def test_what_was_not_looked_into_is_absent_where_it_is_taken() -> None:
    model = Net(lambda net, x: net.a(iter([x])), a=Net(lambda net, held: next(held) * 2))
    with tt.watch(model, "a:input,output") as w:
        model(torch.ones(2))
    assert "it took a list_iterator, which can be read only once" in reasons_at(w, "a:input")[0]
    with tt.watch(model, "a:input[other]") as w:
        model(torch.ones(2))
    assert "no tensor that fits" in w.absent[0].reason


def test_a_tensor_of_an_object_is_recorded_and_an_edit_of_it_is_refused_or_said() -> None:
    model = Net(lambda net, x: (x * 1, Box(x * 2)))
    with tt.watch(model, ".:output,grad_output") as w:
        out, box = model(torch.ones(2, requires_grad=True))
        (out + 3 * box.held).sum().backward()
    assert w.run[".:output[1.held]"].tolist() == [2, 2]
    assert w.run[".:grad_output[1.held]"].tolist() == [3, 3]
    assert not w.absent
    edit = tt.edit(model, ".:output[1.held]", tt.edits.zero(), missing="ignore")
    with pytest.raises(tt.EditError, match=r"\[1.held\] is an attribute in a Box"):
        model(torch.ones(2))
    edit.close()
    with tt.edit(model, ".", tt.edits.zero()) as edit:  # All that can be changed.
        out, box = model(torch.ones(2))
    assert out.tolist() == [0, 0] and box.held.tolist() == [2, 2]
    assert edit.fired == {".:output[0]": 1}
    assert [str(entry.site) for entry in edit.absent] == [".:output[1.held]"]
    assert "an attribute of a Box" in edit.absent[0].reason


def test_an_edit_that_finds_nothing_but_objects_never_happened() -> None:
    model = Net(lambda net, x: Box(x * 2))
    edit = tt.edit(model, ".", tt.edits.zero())
    model(torch.ones(2))
    with pytest.raises(tt.EditError, match=r"never happened.*an attribute of a Box"):
        edit.close()


def test_a_language_model_that_returns_its_cache_is_edited_and_swept() -> None:
    config = transformers.LlamaConfig(
        vocab_size=20,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    model, tokens = transformers.LlamaForCausalLM(config).eval(), torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        plain = model(tokens, use_cache=True)
        with tt.edit(model, "model", tt.edits.zero()) as edit:
            edited = model(tokens, use_cache=True)
        assert edited.logits.eq(0).all() and plain.logits.ne(0).any()
        assert "[past_key_values.layers.0.keys]" in str(edit.absent[0].site)
        swept = tt.sweep(model, tokens, "*", tt.edits.zero(), lambda out: out.logits.sum())
    assert len(swept.rows) > 10


def test_a_gradient_in_an_object_is_edited() -> None:
    model = Net(lambda net, x: (x * 1, Box(x * 2)))
    x = torch.ones(2, requires_grad=True)
    with tt.edit(model, ".:grad_output[1.held]", tt.edits.scale(10.0)):
        out, box = model(x)
        (out + box.held).sum().backward()
    assert x.grad.tolist() == [21, 21]


class Marked(torch.Tensor):
    """A subclass, whose hooks are put on by a handle each."""


SUBCLASSES = {
    "watch": lambda model: tt.watch(model, "*:*"),
    "watch, total": lambda model: tt.watch(model, "*:*", grad_input="total"),
    "edit": lambda model: tt.edit(model, "*:grad_output,grad_input", lambda t: t),
}


@pytest.mark.parametrize("attach", SUBCLASSES.values(), ids=list(SUBCLASSES))
def test_no_hook_stays_on_a_tensor_of_a_subclass(attach: Any) -> None:
    model = Net(lambda net, x: net.b(net.a(x)), a=nn.Linear(2, 2), b=nn.Tanh())
    alive = []
    model.a.register_forward_hook(lambda module, args, output: alive.extend([*args, output]))
    x = (torch.ones(1, 2, requires_grad=True) * 1).as_subclass(Marked)
    with attach(model):
        alive.append(model(x))
        assert type(alive[-1]) is Marked
        assert any(tensor._backward_hooks for tensor in alive)
        alive[-1].sum().backward(retain_graph=True)
    assert len(alive) == 3
    assert not any(tensor._backward_hooks for tensor in alive)
    gc.collect()
    ours = (GradHook, PendingGradient, GradientEdit)
    assert not [held for held in gc.get_objects() if type(held) in ours]


# --- reasons say what is so -------------------------------------------------------------------


def test_a_container_beside_a_compiled_part_is_said_to_be_one() -> None:
    blocks = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    model = Net(lambda m, x: m.head(x), blocks=blocks, head=nn.Linear(3, 1))
    model.head.compile(backend="eager")
    for ran in (False, True):
        with tt.watch(model, "*:output") as w:
            if ran:
                model(torch.ones(2, 3))
        assert reasons_at(w, "blocks:output") == ["it has no forward: a container is never called"]


def test_the_update_of_a_frozen_parameter_is_absent_for_that_reason() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    model[0].requires_grad_(False)  # As the weights beside those of LoRA.
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    with tt.watch(model, "*:update") as w:
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        w.step()
    right = "it does not require grad, and no optimizer made a step with it"
    assert reasons_at(w, "0:update[weight]") == [right]


def test_a_parameter_that_the_optimizer_does_not_hold_is_said_to_be_so() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    with tt.watch(model, "*:update") as w:
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        w.step()
    right = "no optimizer made a step with it in step 0: those that made one do not hold it"
    assert reasons_at(w, "0:update[weight]") == [right]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_gradient_of_a_nested_argument_is_recorded() -> None:
    rows = [torch.ones(2, 3), torch.ones(1, 3)]
    x = torch.nested.nested_tensor(rows, requires_grad=True)
    model = nn.Linear(3, 1)
    with tt.watch(model, "*:*") as w:
        sum(one.sum() for one in model(x).unbind()).backward()
    for mine, right in zip(w.run[".:grad_input"].unbind(), x.grad.unbind(), strict=True):
        assert torch.equal(mine, right)


def test_what_flows_past_the_nodes_of_a_module_is_not_left_out_of_a_record() -> None:
    """An inner backward to a parameter makes a second way back to the module's argument."""
    inner, outer = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(m: nn.Module, x: Tensor) -> Tensor:
        out = m.outer(m.inner(x))
        (down,) = torch.autograd.grad(out.square().sum(), m.outer.weight, create_graph=True)  # type: ignore[arg-type]
        return out.sum() + down.sum()

    model = Net(forward, inner=inner, outer=outer)
    with tt.watch(model, "outer:grad_input") as w:
        model(torch.ones(2, 3)).backward()
    assert len(w.run) == 0
    assert "create_graph=True" in reasons_at(w, "outer:grad_input")[0]


def test_a_backward_that_goes_only_past_the_nodes_of_a_module_is_said() -> None:
    """Of a force alone, the backward reaches the argument by nodes that the first backward made."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    x = torch.ones(2, 3, requires_grad=True)
    with tt.watch(model, "1:grad_input") as w:
        (force,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        force.square().sum().backward()
    assert [record.backward for record in w.run.records("1:grad_input")] == [0]
    assert "create_graph=True" in reasons_at(w, "1:grad_input")[0]

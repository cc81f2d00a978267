"""The recipes' numbers against truth from outside, and what they say of other people's snippets."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from pages import ROOT, blocks, run_python
from torch import Tensor, nn

import torchtap as tt
from ranks import run_on_two_ranks

RECIPES = ROOT / "docs" / "guides" / "recipes"


@cache
def page(name: Any) -> Any:
    """Names that the Python of a recipe leaves behind; not to be changed."""
    return run_python(RECIPES / f"{name}.md")[0]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def leaf_modules(model: nn.Module) -> dict[Any, Any]:
    return {path: one for path, one in model.named_modules() if not list(one.children())}


def clones_of(model: nn.Module, *batches: Any) -> Any:
    """Returns of each leaf module, call by call, cloned at that moment by a plain hook."""
    kept: dict[Any, Any] = {}

    def keep(path: Any) -> Any:
        return lambda module, args, out: kept.setdefault(path, []).append(out.detach().clone())

    handles = [one.register_forward_hook(keep(path)) for path, one in leaf_modules(model).items()]
    for batch in batches:
        model(batch)
    for handle in handles:
        handle.remove()
    return kept


def gradients_of(model: nn.Module, loss_of: Any, *batches: Any) -> dict[Any, Any]:
    """Outputs of each leaf module, call by call: float64, and not overwritten."""
    twin = copy.deepcopy(model).double()
    for module in twin.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
    kept: dict[Any, Any] = {}

    def keep(path: Any) -> Callable[..., Any]:
        def hook(module: nn.Module, args: Any, out: Any) -> Any:
            kept.setdefault(path, []).append(out)
            return out.clone()

        return hook

    for path, one in leaf_modules(twin).items():
        one.register_forward_hook(keep(path))
    loss = loss_of([twin(batch.double()) for batch in batches])
    places = [(path, call) for path, outs in kept.items() for call in range(len(outs))]
    found = torch.autograd.grad(loss, [kept[path][call] for path, call in places])
    return dict(zip(places, found, strict=True))


def assert_near(value: Any, truth: Any, share: float = 1e-3) -> None:
    assert value.shape == truth.shape
    distance = torch.linalg.vector_norm(value.double() - truth)
    assert distance <= share * torch.linalg.vector_norm(truth)


@pytest.fixture
def resnet18() -> Any:
    torch.manual_seed(0)
    return page("every_leaf")["ResNet"]([2, 2, 2, 2], num_classes=10)


@pytest.fixture
def resnet34() -> Any:
    torch.manual_seed(0)
    return page("convolutions")["ResNet"]([3, 4, 6, 3], num_classes=10).eval()


# ---------------------------------------------------------------------- every leaf


def linear_by_hand(model: nn.Module, batches: Any) -> dict[Any, Any]:
    """float64 outputs of both layers and their gradients, from the formula alone."""
    (w0, b0), (w1, b1) = (
        (layer.weight.detach().double(), layer.bias.detach().double())
        for layer in model  # type: ignore[attr-defined]
    )
    first = [batch.double() @ w0.T + b0 for batch in batches]
    second = [one @ w1.T + b1 for one in first]
    count = sum(one.numel() for one in second)
    grad_second = [2 * one / count for one in second]  # Of the mean of squares.
    return {
        "0:output": first,
        "1:output": second,
        "1:grad_output": grad_second,
        "1:grad_input": [one @ w1 for one in grad_second],
        "0:grad_output": [one @ w1 for one in grad_second],
    }


def test_the_norm_of_the_mean_is_that_of_the_formula() -> None:
    names = page("every_leaf")
    model, batches = names["model"], names["batches"]
    truth = linear_by_hand(model, batches)
    with tt.watch(model, "*") as w:
        for batch in batches:
            model(batch)
    norms = w.run.mean_norm("?:output")
    assert list(norms) == ["0", "1"]
    for path, norm in norms.items():
        mean = torch.cat(truth[f"{path}:output"]).mean(0)
        assert norm == pytest.approx(float(mean.square().sum().sqrt()), rel=1e-6)


def test_both_linear_layers_are_recorded_forward_and_backward_call_by_call() -> None:
    names = page("every_leaf")
    model, batches = names["model"], names["batches"]
    with tt.watch(model, ["*:input,output,grad_input,grad_output", "!.:*"]) as w:
        torch.cat([model(batch) for batch in batches]).square().mean().backward()
    for site, values in linear_by_hand(model, batches).items():
        for call, truth in enumerate(values):
            torch.testing.assert_close(
                w.run.get(site, call=call).double(), truth, rtol=1e-5, atol=1e-7
            )
    for call, batch in enumerate(batches):
        assert torch.equal(w.run.get("0:input", call=call), batch)


def test_a_resnet_with_in_place_relu_is_recorded_as_it_was(resnet18: Any) -> None:
    batches = page("every_leaf")["images"]
    with tt.watch(resnet18, page("every_leaf")["leaf_modules"]) as w:
        for batch in batches:
            resnet18(batch)
    truth = clones_of(resnet18, *batches)
    assert len(truth) == 52
    assert sum(map(len, truth.values())) == 2 * 60  # Eight ReLUs run twice in each forward.
    for path, values in truth.items():
        for call, value in enumerate(values):
            assert torch.equal(w.run.get(f"{path}:output", call=call), value)


def test_the_norms_of_a_resnet_are_those_of_cloned_outputs(resnet18: Any) -> None:
    batches = page("every_leaf")["images"]
    with tt.watch(resnet18, page("every_leaf")["leaf_modules"]) as w:
        for batch in batches:
            resnet18(batch)
    norms = w.run.mean_norm("*:output")
    truth = clones_of(resnet18, *batches)
    assert norms.keys() == truth.keys()
    for path, values in truth.items():
        mean = torch.cat(values).double().mean(0)
        assert norms[path] == pytest.approx(float(mean.square().sum().sqrt()), rel=1e-9)


def test_gradients_of_several_forwards_before_one_backward_go_to_the_right_call(
    resnet18: Any,
) -> None:
    batches = page("every_leaf")["images"]

    def loss_of(outputs: Any) -> Any:  # The calls count differently, so they cannot be mistaken.
        return outputs[0].square().mean() + 5 * outputs[1].sin().mean()

    truth = gradients_of(resnet18, loss_of, *batches)
    with tt.watch(resnet18, page("every_leaf")["leaf_modules"]) as w:
        loss_of([resnet18(batch) for batch in batches]).backward()
    assert len(truth) == 120
    for (path, call), gradient in truth.items():
        assert_near(w.run.get(f"{path}:grad_output", call=call), gradient)


def test_a_plain_hook_keeps_17_overwritten_outputs_of_52(resnet18: Any) -> None:
    batch = page("every_leaf")["images"][0]
    kept = {}
    for path, one in leaf_modules(resnet18).items():
        one.register_forward_hook(lambda m, args, out, path=path: kept.update({path: out}))
    truth = clones_of(resnet18, batch)
    wrong = [path for path in kept if not torch.equal(kept[path], truth[path][-1])]
    assert len(wrong) == 17
    assert all("bn" in path for path in wrong)


def test_a_full_backward_hook_refuses_an_in_place_relu(resnet18: Any) -> None:
    for one in leaf_modules(resnet18).values():
        one.register_full_backward_hook(lambda *what: None)
    said = "Output 0 of BackwardHookFunction is a view and is being modified inplace"
    with pytest.raises(RuntimeError, match=said):
        resnet18(page("every_leaf")["images"][0])


def test_a_full_backward_hook_fires_for_the_second_call_first() -> None:
    layer, received = nn.Linear(2, 2), []
    layer.register_full_backward_hook(lambda m, gi, go: received.append(float(go[0].sum())))
    first, second = (layer(torch.ones(1, 2, requires_grad=True)) for _ in range(2))
    (first.sum() + 10 * second.sum()).backward()
    assert received == [20, 2]


# ---------------------------------------------------------------------- the verbose net


def test_a_verbose_net_prints_the_shapes_that_plain_hooks_see(
    capsys: pytest.CaptureFixture[str],
) -> None:
    verbose_net, model = page("verbose_net")["VerboseNet"], page("verbose_net")["model"]
    tokens = torch.randint(20, (4, 7))
    truth: list[Any] = []

    def keep(module: nn.Module, args: Any, out: Any) -> None:
        outs = out if isinstance(out, tuple) else (out,)
        flat = [outs[0], *outs[1]] if len(outs) == 2 else outs
        truth.extend((type(module).__name__, str(tuple(one.shape))) for one in flat)

    handles = [one.register_forward_hook(keep) for one in model.modules()]
    expected = model(tokens)
    for handle in handles:
        handle.remove()
    capsys.readouterr()
    assert torch.equal(verbose_net(model)(tokens), expected)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(truth) == 9
    for line, (kind, shape) in zip(lines, truth, strict=True):
        assert line.split(None, 2)[1:] == [kind, shape]


def test_a_verbose_net_leaves_nothing_when_the_model_raises(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> None:
            raise ZeroDivisionError(str(self.first(x).sum()))

    model = Broken()
    with pytest.raises(ZeroDivisionError):
        page("verbose_net")["VerboseNet"](model)(torch.ones(1, 2))
    assert capsys.readouterr().out.split() == ["first", "Linear", "(1,", "2)"]
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_the_usual_verbose_net_sees_one_level_and_fails_on_an_lstm() -> None:
    model = page("verbose_net")["model"]
    assert len(list(model.children())) == 3 < len(leaf_modules(model))
    handle = model.lstm.register_forward_hook(lambda m, args, out: out.shape)
    with pytest.raises(AttributeError, match="'tuple' object has no attribute 'shape'"):
        model(torch.randint(20, (4, 7)))
    handle.remove()


# ---------------------------------------------------------------------- convolutions


def test_the_36_convolutions_are_those_that_a_plain_hook_sees(resnet34: Any) -> None:
    image = page("convolutions")["image"]
    with tt.watch(resnet34, "*@Conv2d") as w, torch.no_grad():
        resnet34(image)
    with torch.no_grad():
        clones = clones_of(resnet34, image)
    convs = [path for path, one in resnet34.named_modules() if isinstance(one, nn.Conv2d)]
    assert len(convs) == 36
    assert [site.path for site in w.run.sites] == convs
    assert len([path for path in convs if "downsample" in path]) == 3
    for path in convs:
        (truth,) = clones[path]
        assert torch.equal(w.run[path], truth)


def test_a_glob_over_names_leaves_convolutions_out(resnet34: Any) -> None:
    with tt.watch(resnet34, "layer*.conv?") as w:
        assert len(w.plan.taps) == 32


def test_the_usual_snippet_finds_33_convolutions_and_runs_another_network(resnet34: Any) -> None:
    found = []
    for child in resnet34.children():
        if isinstance(child, nn.Conv2d):
            found.append(child)
        elif isinstance(child, nn.Sequential):
            for block in child:
                found += [one for one in block.children() if isinstance(one, nn.Conv2d)]
    assert len(found) == 33
    image = page("convolutions")["image"]
    with torch.no_grad():
        truth = clones_of(resnet34, image)
        names = {one: path for path, one in resnet34.named_modules()}
        for place, layer in enumerate(found):
            image = layer(image)
            (right,) = truth[names[layer]]
            is_right = image.shape == right.shape and torch.allclose(image, right, atol=1e-4)
            assert is_right == (place == 0)


# ---------------------------------------------------------------------- intermediate gradients


def out_of_place(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    """The network as plain float64 expressions, differentiated by autograd.grad."""
    weight, bias = model.fc.weight.detach().double(), model.fc.bias.detach().double()
    x = x.double()
    returned = (x - x.mean(0)) / (x.var(0, unbiased=False) + model.norm.eps).sqrt()
    returned.requires_grad_()
    hidden = returned.clamp(min=0)
    scaled = hidden * hidden.sigmoid()
    loss = nn.functional.cross_entropy(scaled @ weight.T + bias, y)
    return returned, scaled, torch.autograd.grad(loss, [returned, scaled])


def test_marked_and_returned_tensors_have_their_true_gradients() -> None:
    names = page("intermediate_gradients")
    model, x, y = names["model"], names["x"], names["y"]
    with tt.watch(model, ["scaled:output,grad_output", "norm:output,grad_output"]) as w:
        nn.functional.cross_entropy(model(x), y).backward()
    returned, scaled, (grad_returned, grad_scaled) = out_of_place(model, x, y)
    for site, truth in {
        "norm:output": returned,
        "scaled:output": scaled,
        "norm:grad_output": grad_returned,
        "scaled:grad_output": grad_scaled,
    }.items():
        torch.testing.assert_close(w.run[site].double(), truth.detach(), rtol=1e-5, atol=1e-6)
    assert (grad_returned == 0).any()  # The ReLU does cut something off.


def test_a_mark_is_the_same_tensor_and_nothing_stays_on_it() -> None:
    tensor = torch.ones(2, requires_grad=True) * 2
    assert tt.mark(tensor, "anything") is tensor
    assert not tensor._backward_hooks


def test_retain_grad_follows_the_overwritten_tensor() -> None:
    torch.manual_seed(0)
    returned = nn.BatchNorm1d(4)(torch.randn(6, 4))
    negative = returned.detach() < 0
    returned.retain_grad()
    torch.relu_(returned)
    returned.sum().backward()
    assert negative.any()
    assert (returned.grad[negative] == 1).all()


# ---------------------------------------------------------------------- hooks


def plain_sequence() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 2))


def test_a_function_gets_what_plain_hooks_get() -> None:
    model, x = plain_sequence(), torch.randn(3, 4)
    got, truth = {}, {}
    where = ["0:input", "1:output", "2:grad_input,grad_output"]
    with tt.watch(model, where, to=lambda r: got.update({str(r.site): r.value.clone()})):
        model(x).sum().backward()

    def at_entry(module: nn.Module, args: Any) -> None:
        truth["0:input"] = args[0].clone()

    def at_exit(module: nn.Module, args: Any, out: Any) -> None:
        truth["1:output"] = out.detach().clone()

    def in_backward(module: nn.Module, grad_input: Any, grad_output: Any) -> None:
        truth["2:grad_input"], truth["2:grad_output"] = grad_input[0], grad_output[0]

    model[0].register_forward_pre_hook(at_entry)
    model[1].register_forward_hook(at_exit)
    model[2].register_full_backward_hook(in_backward)
    model(x).sum().backward()
    assert got.keys() == truth.keys()
    assert all(torch.equal(got[site], truth[site]) for site in truth)


def test_gradients_arrive_where_a_full_backward_hook_refuses() -> None:
    model, x = plain_sequence(), torch.randn(3, 4)
    with tt.watch(model, "0:grad_output") as w:
        model(x).sum().backward()
    before = model[0](x).detach()
    truth = (before > 0) * model[2].weight.detach().sum(0)
    torch.testing.assert_close(w.run["0:grad_output"], truth)
    model[0].register_full_backward_hook(lambda *what: None)
    with pytest.raises(RuntimeError, match="modified inplace"):
        model(x)


def test_closing_takes_all_hooks_off_and_leaves_those_of_others() -> None:
    model = plain_sequence()
    others = [module.register_forward_hook(lambda *what: None) for module in model]
    handle = tt.watch(model, "*:*", to=lambda record: None)
    assert sum(len(module._forward_hooks) for module in model.modules()) > len(others)
    handle.close()
    handle.close()
    for module in model.modules():
        assert not module._forward_pre_hooks
        assert not module._backward_hooks
        assert not module._backward_pre_hooks
    assert [len(module._forward_hooks) for module in model] == [1, 1, 1]


def test_what_a_function_raises_comes_at_close_and_the_backward_is_done() -> None:
    def fails(record: Any) -> None:
        raise KeyError("mine")

    model = plain_sequence()
    handle = tt.watch(model, "*:output,grad_output", to=fails)
    model(torch.randn(3, 4)).sum().backward()
    assert all(param.grad is not None for param in model.parameters())
    with pytest.raises(KeyError, match="mine"):
        handle.close()


# ---------------------------------------------------------------------- dead units


def relu_outputs(model: nn.Module, batches: Any) -> dict[Any, Any]:
    """Outputs of both ReLUs by plain hooks, all batches in one: [samples, units, elements]."""
    kept = clones_of(model, *batches)
    joined = {path: torch.cat(kept[path]) for path in ("1", "4")}
    return {path: out.reshape(*out.shape[:2], -1) for path, out in joined.items()}


def test_dead_units_are_those_that_no_sample_of_the_window_lets_fire() -> None:
    model = page("dead_units")["model"]
    torch.manual_seed(1)
    batches = [torch.randn(16, 1, 8, 8) for _ in range(6)]
    units = tt.stats.along(1, name="units")
    with tt.watch(model, "*@ReLU", to=tt.Stats(statistics=[units])) as w:
        for batch in batches:
            model(batch)
            w.step()
    for steps in (range(6), range(2, 5), [5]):
        truth = relu_outputs(model, [batches[step] for step in steps])
        for path, outputs in truth.items():
            dead = (outputs == 0).all(2).all(0).nonzero().flatten().tolist()
            often = (outputs == 0).double().mean((0, 2))
            found = w.run.stats(f"{path}:output", step=steps).extra["units"]
            assert found.dead_slices() == dead
            assert found.zeros.tolist() == pytest.approx(often.tolist())
    assert w.run.stats("4:output", step=range(6)).extra["units"].dead_slices() == [2, 17]
    assert w.run.stats("1:output", step=range(6)).extra["units"].dead_slices() == [5]


def test_one_batch_takes_resting_units_for_dead() -> None:
    model = page("dead_units")["model"]
    torch.manual_seed(1)
    masks = [
        (relu_outputs(model, [torch.randn(16, 1, 8, 8)])["4"] == 0).all(2).all(0) for _ in range(20)
    ]
    assert max(int(mask.sum()) for mask in masks) > 2
    assert int(torch.stack(masks).all(0).sum()) == 2


def test_a_share_of_zeros_is_large_in_a_healthy_layer() -> None:
    torch.manual_seed(0)
    outputs = torch.relu(nn.Linear(16, 32)(torch.randn(64, 16)))
    assert not (outputs == 0).all(0).any()
    assert 0.4 < float((outputs == 0).double().mean()) < 0.6


# ---------------------------------------------------------------------- first non-finite


def far_off() -> Any:
    torch.manual_seed(3)
    batch = torch.randn(16, 6)
    batch[3] *= 1e6
    return batch


def seen_by_plain_hooks(model: nn.Module, batch: Any, is_bad: Any) -> Any:
    """(path, call) of the leaf modules' bad outputs, in the order in which they return."""
    found: list[Any] = []
    calls: dict[str, int] = {}
    handles = []

    def look(path: Any) -> Callable[..., Any]:
        def hook(module: nn.Module, args: Any, out: Any) -> None:
            calls[path] = calls.get(path, -1) + 1
            if is_bad(out.detach()):
                found.append((path, calls[path]))

        return hook

    for path, one in leaf_modules(model).items():
        handles.append(one.register_forward_hook(look(path)))
    model(batch)
    for handle in handles:
        handle.remove()
    return found


def test_the_first_nonfinite_value_is_where_plain_hooks_see_it() -> None:
    names = page("first_nonfinite")
    model, batch = names["model"], far_off()
    truth = seen_by_plain_hooks(model, batch, lambda out: not out.isfinite().all())
    assert truth[0] == ("gate", 2)
    where = "*:input,output"
    with tt.watch(model, where, to=tt.Stats(statistics=[tt.stats.first_nonfinite()])) as w:
        model(batch)
    found = {site: w.run.stats(site).extra["first_nonfinite"] for site in w.run.sites}
    bad = sorted((one.order, site.path, site.port, one.call) for site, one in found.items() if one)
    assert bad[0][1:] == ("gate", "output", 2)
    outputs = {path: call for _, path, port, call in bad if port == "output" and path}
    firsts = dict(reversed(truth))  # The first call of each wins.
    assert outputs == firsts
    assert list(outputs) == list(dict.fromkeys(path for path, _ in truth))
    assert str(names["began"][0]) == "gate:output"
    assert names["w"].current_step == 7


def test_the_first_nonfinite_gradient_is_found_in_the_order_of_the_backward() -> None:
    class Root(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sqrt()

    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), Root(), nn.Linear(2, 1))
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.zero_()
    where = "*:grad_output"
    with tt.watch(model, where, to=tt.Stats(statistics=[tt.stats.first_nonfinite()])) as w:
        model(torch.ones(3, 2)).sum().backward()
    found = {site.path: w.run.stats(site).extra["first_nonfinite"] for site in w.run.sites}
    # d sqrt(x) / dx is infinite at zero, and d tanh(x) / dx is 1 there.
    assert {path for path, one in found.items() if one} == {"0", "1"}
    assert found["1"].order < found["0"].order


def test_looking_for_nan_alone_names_a_later_module() -> None:
    model = page("first_nonfinite")["model"]
    assert seen_by_plain_hooks(model, far_off(), lambda out: out.isnan().any())[0] == ("mix", 3)


def test_anomaly_detection_sees_the_backward_alone() -> None:
    model = page("first_nonfinite")["model"]
    with pytest.warns(UserWarning, match="Anomaly Detection"), torch.autograd.detect_anomaly():
        loss = nn.functional.cross_entropy(model(far_off()), torch.zeros(16, dtype=torch.int64))
        assert loss.isnan()
        with (
            pytest.warns(UserWarning, match="Error detected in"),
            pytest.raises(RuntimeError, match="returned nan values") as caught,
        ):
            loss.backward()
    assert "LogSoftmax" in str(caught.value)


# ---------------------------------------------------------------------- changing gradients


def by_formula(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    at_relu: Any = None,
    at_middle: Any = None,
    at_fc3: Any = None,
) -> dict[Any, Any]:
    """The gradients of the page's network, written out in float64; each step may be changed."""
    weights = [(fc.weight.detach().double(), fc.bias.detach().double()) for fc in fcs(model)]
    (w1, b1), (w2, b2), (w3, b3) = weights
    x = x.double()
    hidden = (x @ w1.T + b1).clamp(min=0)
    middle = torch.tanh(hidden @ w2.T + b2)
    logits = middle @ w3.T + b3
    grad3 = (logits.softmax(1) - nn.functional.one_hot(y, logits.shape[1])) / len(y)
    into_fc3 = grad3 @ w3
    grad_middle = into_fc3 if at_fc3 is None else at_fc3(into_fc3)
    grad_middle = grad_middle if at_middle is None else at_middle(grad_middle)
    grad2 = grad_middle * (1 - middle**2)
    grad_relu = grad2 @ w2
    grad_relu = grad_relu if at_relu is None else at_relu(grad_relu)
    grad1 = grad_relu * (hidden > 0)
    return {
        "fc1.weight": grad1.T @ x,
        "fc1.bias": grad1.sum(0),
        "fc2.weight": grad2.T @ hidden,
        "fc2.bias": grad2.sum(0),
        "fc3.weight": grad3.T @ middle,
        "fc3.bias": grad3.sum(0),
    }


def fcs(model: nn.Module) -> list[Any]:
    return [model.fc1, model.fc2, model.fc3]


def changed_gradients(where: str, fn: Any) -> Any:
    names = page("changing_gradients")
    model = names["Net"]()
    x, y = names["x"], names["y"]
    with tt.edit(model, where, fn):
        nn.functional.cross_entropy(model(x), y).backward()
    return model, x, y, {name: param.grad for name, param in model.named_parameters()}


@pytest.mark.parametrize(
    ("where", "fn", "truth"),
    [
        ("relu:grad_output", tt.edits.clamp(min=0), {"at_relu": lambda g: g.clamp(min=0)}),
        ("middle:grad_output", tt.edits.scale(2), {"at_middle": lambda g: 2 * g}),
        ("fc3:grad_input", tt.edits.replace(42.0), {"at_fc3": lambda g: torch.full_like(g, 42)}),
    ],
)
def test_changed_gradients_reach_the_weights_as_the_formula_says(
    where: str, fn: Any, truth: Any
) -> None:
    model, x, y, found = changed_gradients(where, fn)
    expected = by_formula(model, x, y, **truth)
    unchanged = by_formula(model, x, y)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert_near(gradient, expected[name], share=1e-5)
    assert not torch.allclose(expected["fc1.weight"], unchanged["fc1.weight"], rtol=1e-2)


def test_zeroed_biases_leave_the_weights_as_the_formula_says() -> None:
    model, x, y, found = changed_gradients("fc*:param_grad[bias]", tt.edits.zero())
    expected = by_formula(model, x, y)
    for name, gradient in found.items():
        if name.endswith("bias"):
            assert not gradient.any() and expected[name].any()
        else:
            assert_near(gradient, expected[name], share=1e-5)


def test_clipped_gradients_of_a_resnet_are_those_that_autograd_gives_clipped() -> None:
    names = page("changing_gradients")
    twin, images = copy.deepcopy(names["resnet"]).double(), names["images"].double()
    params = dict(twin.named_parameters())
    truth = torch.autograd.grad(twin(images).square().sum(), list(params.values()))
    for found, gradient in zip(names["resnet"].parameters(), truth, strict=True):
        assert (found.grad.double() - gradient.clamp(-0.1, 0.1)).abs().max() < 1e-3
    assert max(gradient.abs().max() for gradient in truth) > 0.2


def test_a_hook_that_writes_into_its_gradient_changes_another_branch() -> None:
    x = torch.ones(1, requires_grad=True)
    first, second = 2 * x, 3 * x
    loss = first + second
    second.register_hook(lambda gradient: gradient.mul_(100))
    loss.backward()
    assert x.grad.item() != 2 + 100 * 3  # What was meant.


# ---------------------------------------------------------------------- changing values


def test_the_usual_ablations_give_wrong_gradients() -> None:
    def gradient_with(hook: Any) -> Any:
        layer, x = nn.Linear(2, 2), torch.ones(1, 2, requires_grad=True)
        layer.register_forward_hook(hook)
        layer(x).sum().backward()
        return layer.bias.grad

    def in_place(module: nn.Module, args: Any, output: Any) -> None:
        output.data[:, 0] = 0

    def cut(module: nn.Module, args: Any, output: Any) -> Any:
        return torch.zeros_like(output).requires_grad_()

    assert gradient_with(in_place).tolist() == [1, 1]  # True is [0, 1].
    assert gradient_with(cut) is None
    layer = nn.Linear(2, 2)
    with tt.edit(layer, ".", tt.edits.zero(at={-1: 0})):
        layer(torch.ones(1, 2)).sum().backward()
    assert layer.bias.grad.tolist() == [0, 1]
    layer.zero_grad()
    with tt.edit(layer, ".", tt.edits.zero()):
        layer(torch.ones(1, 2)).sum().backward()
    assert layer.bias.grad.tolist() == [0, 0]


def test_a_hook_that_returns_false_makes_that_the_output() -> None:
    layer = nn.Linear(2, 2)
    layer.register_forward_hook(lambda *what: False)
    assert layer(torch.ones(1, 2)) is False


def test_a_residual_by_edits_works_in_a_module_called_inside_itself() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x: Tensor, depth: int = 1) -> Tensor:
            return self.fc(self(x, depth - 1) if depth else x)

    model, x = Twice(), torch.ones(1, 2)
    entered: list[Any] = []
    with tt.edit(model, {".:input": entered.append, ".:output": lambda out: out + entered.pop()}):
        found = model(x)
    inner = model.fc(x) + x
    assert torch.equal(found, model.fc(inner) + x)


# ---------------------------------------------------------------------- heads


@pytest.mark.slow
def test_the_worst_head_is_that_of_a_plain_loop() -> None:
    names = page("heads")
    model, tokens, accuracy = names["model"], names["tokens"], names["accuracy"]
    found = {}
    for layer, block in enumerate(model.transformer.h):
        for head in range(4):
            rows = slice(8 * head, 8 * head + 8)
            twin = block.attn.c_proj.weight
            kept = twin.detach().clone()
            with torch.no_grad():
                twin[rows] = 0
                found[layer, head] = float(accuracy(model(tokens)))
                twin.copy_(kept)
    table = tt.sweep(
        model, tokens, "transformer.h.*.attn.c_proj:input", names["heads"], accuracy, batch=3
    )
    measured = {
        (int(row.site.path.split(".")[2]), int(row.edit[-1])): row.values["metric"] for row in table
    }
    # Rows are computed in other batches, where an undecided answer may tip over.
    assert measured == pytest.approx(found, abs=0.011)


def test_causal_tracing_is_what_plain_hooks_find() -> None:
    names = page("heads")
    model, clean, other = names["model"], names["clean"], names["other"]
    kept = {}

    def first(output: Any) -> Any:
        return output[0] if isinstance(output, tuple) else output

    with torch.no_grad():
        for layer, block in enumerate(model.transformer.h):
            handle = block.register_forward_hook(
                lambda m, args, out, layer=layer: kept.update({layer: first(out).clone()})
            )
            model(clean)
            handle.remove()
        for layer, block in enumerate(model.transformer.h):
            for token, name in enumerate(names["names"]):

                def patch(
                    module: nn.Module, args: Any, out: Any, layer: Any = layer, token: Any = token
                ) -> Any:
                    new = first(out).clone()
                    new[:, token] = kept[layer][:, token]
                    return (new, *out[1:]) if isinstance(out, tuple) else new

                handle = block.register_forward_hook(patch)
                lean = names["lean"](model(other))
                handle.remove()
                truth = (lean - names["low"]) / (names["high"] - names["low"])
                path = f"transformer.h.{layer}"
                assert names["restored"][path, name] == pytest.approx(truth, abs=1e-4)


# ---------------------------------------------------------------------- frozen features


def test_a_head_on_frozen_features_is_one_on_features_computed_by_hand() -> None:
    names = page("frozen_features")
    body = nn.Sequential(*copy.deepcopy(names["body"])[:8]).eval()
    images, head = names["images"][:20], names["model"].head
    with torch.no_grad():
        assert torch.equal(names["model"].eval()(images), head(body(images)))
    features = names["model"].features(images)["7"]
    assert features.shape == (20, 256)


def test_the_usual_freezing_lets_batch_norm_and_momentum_move() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).requires_grad_(False)
    before = net[1].running_mean.clone()
    net(torch.randn(4, 2))
    assert not torch.equal(net[1].running_mean, before)  # type: ignore[arg-type]

    layer = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    layer.requires_grad_(False)  # Its gradient is still there.
    weight = layer.weight.clone()
    optimizer.step()
    assert not torch.equal(layer.weight, weight)
    with tt.freeze(layer):
        weight = layer.weight.clone()
        optimizer.step()
        assert torch.equal(layer.weight, weight)


# ---------------------------------------------------------------------- guided backpropagation


def test_a_hook_on_each_relu_misses_three_of_four_rectifiers() -> None:
    names = page("guided_backpropagation")
    model, image, truth = copy.deepcopy(names["model"]), names["image"], names["truth"]
    assert sum(isinstance(one, nn.ReLU) for one in model.modules()) == 1
    model.relu.inplace = False
    model.relu.register_full_backward_hook(lambda m, gi, go: (gi[0].clamp(min=0),))
    (usual,) = torch.autograd.grad(model(image)[0, 3], image)
    assert not torch.allclose(usual, truth, atol=1e-4)
    torch.testing.assert_close(names["guided"], truth)


# ---------------------------------------------------------------------- saved tensors


def saved_by_plain_hooks(call: Any) -> Any:
    """Every tensor that autograd saves while ``call`` runs, and what it returns."""
    kept = []

    def pack(tensor: Tensor) -> Any:
        kept.append(tensor.detach())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        return call(), kept


def test_the_port_saved_shows_what_plain_hooks_are_given() -> None:
    names = page("saved_tensors")
    model, x = names["model"], names["x"]
    found = []
    with tt.watch(model, "*:saved", to=lambda record: found.append(record.value.clone())):
        model(x)
    _, truth = saved_by_plain_hooks(lambda: model(x))
    assert len(found) == len(truth) == 5

    def order(tensors: Any) -> Any:
        return sorted((tuple(one.shape), one.flatten().tolist()) for one in tensors)

    assert order(found) == order(truth)


def test_a_codec_is_given_each_memory_once_and_no_parameter() -> None:
    names = page("saved_tensors")
    model, x = names["model"], names["x"]
    listed = names["InList"]()
    with tt.offload(listed, min_bytes=0):
        output = model(x)  # A graph that is not differentiated any more is not moved.
    _, truth = saved_by_plain_hooks(lambda: model(x))
    params = {param.data_ptr() for param in model.parameters()}
    expected = {one.data_ptr(): one for one in truth if one.data_ptr() not in params}
    assert len(listed.storage) == len(expected) == 3
    for found, one in zip(listed.storage, expected.values(), strict=True):
        assert torch.equal(found, one.flatten())
    assert output.requires_grad


@pytest.mark.parametrize("name", ["in_list", "in_codec", "on_cpu", "on_disk", "in_file"])
def test_gradients_are_those_of_plain_training(name: str) -> None:
    names = page("saved_tensors")
    truth = torch.autograd.grad(names["model"](names["x"]).sum(), names["model"].parameters())
    for one, two in zip(names[name], truth, strict=True):
        assert torch.equal(one, two)


def test_the_usual_wrapper_renames_and_moves_the_weight() -> None:
    names = page("saved_tensors")
    assert "2.module.weight" in names["wrapped"].state_dict()
    assert "2.module.weight" not in names["model"].state_dict()
    _, truth = saved_by_plain_hooks(lambda: names["model"][2](torch.ones(2, 64).requires_grad_()))
    weight = names["model"][2].weight
    assert any(one.data_ptr() == weight.data_ptr() for one in truth)


def test_all_of_the_batch_is_packed_in_the_threads_of_replicas() -> None:
    names = page("saved_tensors")
    model, x = names["model"], names["x"]
    _, truth = saved_by_plain_hooks(lambda: model(x))
    params = {param.data_ptr() for param in model.parameters()}
    sizes = {one.data_ptr(): one.nbytes for one in truth if one.data_ptr() not in params}
    assert sum(sizes.values()) == names["off"].report().packed_nbytes == 24576


def test_hooks_around_the_call_do_not_reach_other_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    x = torch.ones(3, requires_grad=True)
    with ThreadPoolExecutor(1) as threads:
        _, kept = saved_by_plain_hooks(lambda: threads.submit(x.exp).result())
    assert kept == []


def test_plain_hooks_let_a_saved_tensor_be_overwritten_and_ours_do_not() -> None:
    x = torch.zeros(3, requires_grad=True)

    def overwritten() -> Any:
        y = x.exp()
        y.mul_(2)
        return y.sum()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        overwritten().backward()
    loss, _ = saved_by_plain_hooks(overwritten)
    (wrong,) = torch.autograd.grad(loss, x)
    assert (wrong == 4).all()  # The derivative is 2.
    for min_bytes in (0, 65536):
        with tt.offload("disk", min_bytes=min_bytes, max_bytes=1 << 20):
            loss = overwritten()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_torch_save_of_a_view_writes_all_of_its_base(tmp_path: Path) -> None:
    base = torch.ones(100_000)
    torch.save(base[:10], tmp_path / "view")
    assert (tmp_path / "view").stat().st_size > base.nbytes


# --- sharded_training.md ------------------------------------------------------------------------


@pytest.mark.slow
def test_on_two_ranks_the_sharded_training_is_that_of_one_process(tmp_path: Path) -> None:
    (program,) = blocks((RECIPES / "sharded_training.md").read_text(), "python")[:1]
    before, _, _ = program.text.partition('if "RANK" in os.environ')
    run_on_two_ranks(tmp_path, program.text.replace("distributed.destroy_process_group()", ""))
    runs = [tt.open(tmp_path / f"run.rank{rank}.safetensors") for rank in (0, 1)]
    names: dict[str, Any] = {}
    exec(before, names)
    torch.manual_seed(0)
    model = names["Net"]()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    data = torch.randint(32, (20, 2, 8, 12), generator=torch.Generator().manual_seed(1))
    for step, batch in enumerate(data[:5]):
        outputs = clones_of(model, *(tokens[:, :-1] for tokens in batch))
        for tokens in batch:
            logits = model(tokens[:, :-1])
            (nn.functional.cross_entropy(logits, tokens[:, 1:].flatten()) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for rank, run in enumerate(runs):
            for path in ("layers.0.norm", "layers.1.up", "layers.2.down"):
                found = run.stats(f"{path}:output", step=step)
                assert found.num_tensors == 1  # What a checkpoint computes again is not counted.
                assert found.l2 == pytest.approx(outputs[path][rank].norm().item(), rel=1e-4)
                grad = model.get_submodule(path).weight.grad.chunk(2)[rank]
                found = run.stats(f"{path}:step_grad[weight]", step=step)
                assert found.l2 == pytest.approx(grad.norm().item(), rel=1e-4)
                assert found.notes == (f"shard {rank} of 2 (Shard(dim=0))",)
        optimizer.step()
        optimizer.zero_grad()
    for rank, run in enumerate(runs):
        assert run.steps == list(range(20))
        steps, _ = run.over_steps("layers.2.down:output", "numel", phase="eval")
        assert steps == [4, 9, 14, 19]
        (tokens,) = data[4, rank : rank + 1]
        (expected,) = clones_of(model, tokens[:, :-1])["layers.2.down"]
        found = run.stats("layers.2.down:output", phase="eval", step=4)
        assert found.l2 == pytest.approx(expected.norm().item(), rel=1e-4)


# ---------------------------------------------------------------------- what decided


def test_gradcam_by_hand_is_that_of_an_out_of_place_twin() -> None:
    found = page("gradcam")
    twin = copy.deepcopy(found["model"]).double()
    kept: dict[str, Tensor] = {}

    def keep(module: nn.Module, args: Any, out: Tensor) -> Tensor:
        kept["value"] = out
        return out.clone()  # The ReLU6 overwrites the clone.

    twin._bn1.register_forward_hook(keep)
    logits = twin(found["batch"].double())
    (gradient,) = torch.autograd.grad(logits[0, 285], kept["value"])
    wanted = (gradient.mean((2, 3), keepdim=True) * kept["value"]).sum(1).relu().detach()
    assert_near(found["by_hand"], wanted)
    assert not torch.allclose(found["wrong"].double(), wanted, atol=1e-2)


@pytest.mark.slow
def test_each_half_of_the_collage_speaks_for_its_own_class() -> None:
    found = page("two_classes")
    shares = {one: found["right_half"](found["pair"][row]) for row, one in ((0, 285), (1, 967))}
    assert shares[285] <= 0.05
    assert shares[967] >= 0.95
    early = found["right_half"](found["early"])
    assert 0.3 < early < 0.7  # The honest control.


def test_the_language_model_is_that_of_the_package_and_its_tokens_are_ablated() -> None:
    found = page("language_model")
    model, ids, answer = found["model"], found["ids"], found["answer"]
    truth = found["original"](ids.numpy()).data
    assert int(truth[0, -1].argmax()) == answer
    embedded = model.embedding(ids).detach()
    drops = []
    for place in range(ids.shape[1]):
        without = embedded.clone()
        without[0, place] = 0
        with torch.no_grad():
            logits = model.norm(model.blocks(without)) @ model.embedding.weight.T
        drops.append(float(truth[0, -1, answer]) - float(logits[0, -1, answer]))
    ours = found["found"].values[0]
    assert torch.allclose(ours, torch.tensor(drops)[:, None].expand_as(ours), atol=1e-3)
    strongest = sorted(range(len(drops)), key=lambda place: -abs(drops[place]))[:2]
    assert [found["tokens"][place] for place in strongest] == ["▁H", "arch"]


def test_misleading_maps_are_what_the_recipe_says() -> None:
    found = page("misleading_attribution")
    assert found["gradient"].values.abs().sum() == 0
    assert found["integrated"].values[0].tolist() == pytest.approx([1, 0], abs=5e-3)
    assert found["occluded"].values.abs().sum() == 0
    # Shapley by hand: half of the orders see each alone first, max(2, 0) - 0 = 2, and 0 after.
    assert found["shapley"].values[0].tolist() == pytest.approx([1, 1], abs=0.1)
    assert float(found["check"].random_weights) < 0.9

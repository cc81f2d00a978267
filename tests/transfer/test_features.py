"""Features are what a hand-written hook would take, and can be built on."""

from __future__ import annotations

import copy
from typing import Any

import bits
import pytest
import torch
from copies import COPIES
from models import resnet18, seeded
from random_numbers import normal
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchtap as tt
from torchtap.testing import Net


def images(num: int = 2) -> Tensor:
    return normal(num, 3, 32, 32)


def resnet() -> nn.Module:
    return seeded(lambda: resnet18(width=4, num_classes=5)).eval()


def by_hook(model: nn.Module, paths: list[str], *args: Any) -> dict[str, Tensor]:
    found: dict[str, Any] = {}
    handles = []
    for path in paths:

        def hook(module: nn.Module, given: Any, output: Tensor, path: str = path) -> None:
            found.setdefault(path, output.clone())

        handles.append(model.get_submodule(path).register_forward_hook(hook))
    model(*args)
    for handle in handles:
        handle.remove()
    return found


def test_features_are_those_of_a_hook_by_hand() -> None:
    model, paths = resnet(), ["layer1", "layer2.0.conv1", "bn1", "fc"]
    right = by_hook(model, paths, images())
    found = tt.features(model, paths)(images())
    assert list(found) == [f"{path}:output" for path in paths]
    assert all(torch.equal(found[path], right[path]) for path in paths)


def test_features_inside_a_layer_that_would_run_fused_are_reached_while_a_watch_is_open() -> None:
    layer = seeded(lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)).eval()
    x = normal(2, 3, 8)
    with torch.no_grad():
        right = by_hook(layer, ["linear1"], x)["linear1"]  # A plain hook switches the kernel off.
        with tt.watch(layer, "linear1"):  # A watch lets it run.
            assert tt.features(layer, "linear1")(x)["linear1"].equal(right)


def test_a_feature_is_not_overwritten_by_what_runs_later() -> None:
    model = resnet()  # bn1 is followed by an in-place ReLU.
    found = tt.features(model, ["bn1", "layer1"])(images())
    assert torch.equal(found["bn1"], model.bn1(model.conv1(images())))
    assert (found["bn1"] < 0).any()


def test_features_can_be_differentiated() -> None:
    model, x = resnet(), images().requires_grad_()
    right = by_hook(model, ["bn1", "layer2"], x)
    (expected,) = torch.autograd.grad(sum(one.sin().sum() for one in right.values()), x)  # type: ignore[arg-type]
    found = tt.features(model, ["bn1", "layer2"])(x)
    (gradient,) = torch.autograd.grad(sum(one.sin().sum() for one in found.values()), x)
    torch.testing.assert_close(gradient, expected)


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.num_calls += 1
        return x + 1


def chain(num: int = 4) -> nn.Sequential:
    return nn.Sequential(*(Counted() for _ in range(num)))


def test_modules_behind_the_last_feature_do_not_run() -> None:
    model = chain()
    found = tt.features(model, ["1", "0"])(torch.zeros(1))
    assert {site: value.item() for site, value in found.items()} == {"1:output": 2, "0:output": 1}
    assert [module.num_calls for module in model] == [1, 1, 0, 0]
    tt.features(model, ["1"], stop=False)(torch.zeros(1))
    assert [module.num_calls for module in model] == [2, 2, 1, 1]


def test_an_early_stop_is_not_taken_for_an_error_of_the_model() -> None:
    def body(m: Any, x: Tensor) -> Tensor:
        try:
            return m.b(m.a(x))
        except Exception:  # noqa: BLE001 - This is what is tested.
            return x * 0

    model = Net(body, a=Counted(), b=Counted())
    assert tt.features(model, "a")(torch.zeros(1))["a"].item() == 1
    assert model.b.num_calls == 0


def test_an_error_of_the_model_comes_through_and_leaves_nothing() -> None:
    def body(m: Any, x: Tensor) -> Tensor:
        m.a(x)
        raise ValueError("no")

    model = Net(body, a=Counted(), b=Counted())
    before = bits.hooks(model)
    extract = tt.features(model, ["a", "b"])
    before = bits.hooks(model)
    with pytest.raises(ValueError, match="no"):
        extract(torch.zeros(1))
    assert bits.differences(before, bits.hooks(model)) == []


def test_nothing_stays_on_the_model() -> None:
    model = resnet()
    before, state = bits.hooks(model), bits.state(model)
    tt.features(model, ["bn1", "layer1:input"])(images())
    assert bits.differences(before, bits.hooks(model)) == []
    assert bits.differences(state, bits.state(model)) == []


def test_inputs_leaves_and_keywords() -> None:
    def body(m: Any, x: Tensor) -> Tensor:
        return m.inner(x, scale=x * 2)["out"][0]

    inner = Net(lambda m, x, scale: {"out": [x * scale, x - scale]})
    model = Net(body, inner=inner)
    x = torch.tensor([3.0])
    found = tt.features(model, ["inner:input", "inner:output[out.1]"])(x=x)
    assert {site: one.item() for site, one in found.items()} == {
        "inner:input[0]": 3.0,
        "inner:input[scale]": 6.0,
        "inner:output[out.1]": -3.0,
    }


def twice(m: Any, x: Tensor) -> Tensor:
    return m.a(m.a(x))


@pytest.mark.parametrize(("call", "value"), [(0, 1.0), (1, 2.0), (-1, 2.0)])
def test_a_call_can_be_chosen(call: int, value: float) -> None:
    model = Net(twice, a=Counted())
    assert tt.features(model, "a", call=call)(torch.zeros(1))["a"].item() == value


def test_a_call_that_does_not_come_is_an_error() -> None:
    model = Net(twice, a=Counted(), b=Counted())
    with pytest.raises(tt.CaptureError, match=r"a:output has no call 2.* 2 times"):
        tt.features(model, "a", call=2)(torch.zeros(1))
    with pytest.raises(tt.CaptureError, match="b:output was not reached"):
        tt.features(model, ["a", "b"])(torch.zeros(1))
    with pytest.raises(tt.InputError, match="call is -2"):
        tt.features(model, "a", call=-2)
    with pytest.raises(tt.SiteError):
        tt.features(model, "c")
    with pytest.raises(tt.EditError, match="no feature"):
        tt.features(model, "a:grad_output")


class Marking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.after = Counted()

    def forward(self, x: Tensor) -> Tensor:
        return self.after(tt.mark(x * 2, "doubled").relu_())


def test_a_mark_is_a_feature() -> None:
    model, x = Marking(), torch.tensor([-1.0])
    assert tt.features(model, "doubled")(x)["doubled"].item() == -2.0
    assert model.after.num_calls == 0
    found = tt.features(model, ["after", "doubled"])(x)
    assert [(site, one.item()) for site, one in found.items()] == [
        ("after:output", 1.0),
        ("doubled:output", -2.0),
    ]
    with pytest.raises(tt.CaptureError, match="of that name was reached"):
        tt.features(model, "tripled")(x)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("copied", COPIES.values(), ids=list(COPIES))
def test_a_copy_works_on_its_own_model(copied: Any, frozen: bool) -> None:
    features = tt.features(resnet(), ["layer1", "bn1"], frozen=frozen)
    twin = copied(features)
    right = features(images())
    for site, one in twin(images()).items():
        assert torch.equal(one, right[site])
    with torch.no_grad():
        twin.model.conv1.weight.zero_()
    assert not torch.equal(twin(images())["layer1"], right["layer1"])
    assert torch.equal(features(images())["layer1"], right["layer1"])


@pytest.mark.parametrize("copied", COPIES.values(), ids=list(COPIES))
def test_a_copy_of_frozen_features_holds_its_own_model_until_it_is_closed(copied: Any) -> None:
    body = resnet().train()
    body.bn1.eval()
    body.fc.bias.requires_grad_(False)
    modes = [module.training for module in body.modules()]
    required = [param.requires_grad for param in body.parameters()]
    features = tt.features(body, "fc", frozen=True)
    twin = copied(nn.Sequential(features))[0]
    features.close()
    assert [module.training for module in body.modules()] == modes
    twin.train()
    assert not any(module.training for module in twin.model.modules())
    assert not any(param.requires_grad for param in twin.parameters())
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, weight_decay=0.1)
    before = bits.state(twin.model)
    for param in twin.parameters():
        param.grad = torch.ones_like(param)
    optimizer.step()
    for param in twin.parameters():
        param.grad = None
    assert bits.differences(before, bits.state(twin.model)) == []
    twin.close()
    assert [module.training for module in twin.model.modules()] == modes
    assert [param.requires_grad for param in twin.parameters()] == required


def test_closed_features_go_on_as_those_of_a_free_model() -> None:
    features = tt.features(resnet(), "fc", frozen=True)
    right = features(images())["fc"]
    features.close()
    assert "no longer frozen" in repr(features)
    found = features(images())["fc"]
    assert torch.equal(found, right) and found.requires_grad
    features.train()
    assert all(module.training for module in features.model.modules())


def test_the_state_dict_is_the_models_and_can_be_loaded() -> None:
    features, other = tt.features(resnet(), "layer1"), tt.features(resnet(), "layer1")
    state = features.state_dict()
    assert set(state) == {f"model.{name}" for name in features.model.state_dict()}
    with torch.no_grad():
        other.model.conv1.weight.zero_()
    other.load_state_dict(state)
    assert torch.equal(features(images())["layer1"], other(images())["layer1"])


def test_data_parallel_on_the_cpu_runs() -> None:
    features = tt.features(resnet(), "layer1")
    found = nn.DataParallel(features)(images())
    assert torch.equal(found["layer1"], features(images())["layer1"])
    inside = tt.features(nn.DataParallel(resnet()), "layer1")(images())
    assert torch.equal(inside["layer1"], found["layer1"])


def test_a_frozen_body_stays_in_eval_mode_and_a_head_is_trained() -> None:
    body = resnet().train()
    body.bn1.eval()
    modes = [module.training for module in body.modules()]
    required = [param.requires_grad for param in body.parameters()]
    model = nn.Sequential(tt.features(body, "avgpool", frozen=True), nn.Flatten(), nn.Linear(32, 2))
    features = model[0]

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = features
            self.fc = seeded(lambda: nn.Linear(32, 2))

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.features(x)["avgpool"].flatten(1))

    head = Head().train()
    assert not any(module.training for module in body.modules()) and head.training
    state, start = bits.state(body), head.fc.weight.detach().clone()
    optimizer = torch.optim.AdamW(head.parameters(), lr=0.1)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(head(images()), torch.tensor([0, 1]))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] and not torch.equal(head.fc.weight, start)
    different = bits.differences(state, bits.state(body))
    assert [name for name in different if not name.startswith("random")] == []
    features.close()
    features.close()
    assert [module.training for module in body.modules()] == modes
    assert [param.requires_grad for param in body.parameters()] == required


def test_a_body_can_be_trained_through_its_features() -> None:
    body = resnet()
    features = tt.features(body, "layer4")
    features.train()
    assert all(module.training for module in body.modules())
    features(images())["layer4"].sum().backward()
    assert body.conv1.weight.grad is not None and body.fc.weight.grad is None


def test_an_edit_is_seen_by_features() -> None:
    model = chain()
    with tt.edit(model, "1", tt.edits.scale(10.0)):
        assert tt.features(model, "1")(torch.zeros(1))["1"].item() == 20.0


class Checkpointed(nn.Module):
    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.body = seeded(lambda: nn.Sequential(nn.Linear(3, 3), nn.Tanh()))
        self.head = nn.Linear(3, 1)
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.body, x, use_reentrant=self.use_reentrant))


@pytest.mark.parametrize("stop", [True, False])
@pytest.mark.parametrize("site", ["body", "body.0", "body.1:input", "head", "head:input"])
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_features_in_a_checkpoint_have_a_graph_or_are_an_error(
    use_reentrant: bool, site: str, stop: bool
) -> None:
    model = Checkpointed(use_reentrant=use_reentrant)
    features = tt.features(model, site, stop=stop)
    x = torch.randn(2, 3, requires_grad=True)
    hidden = model.body[0](x)
    right = {"body": hidden.tanh(), "head:input": hidden.tanh(), "head": model.head(hidden.tanh())}
    expected = right.get(site, hidden)
    if use_reentrant and "head" not in site:
        with pytest.raises(tt.CaptureError, match=f"{site}.* is inside a reentrant checkpoint"):
            features(x)
        assert bits.hooks(model) == bits.hooks(copy.deepcopy(model))
    else:
        features(x)[site].sum().backward()
        torch.testing.assert_close(x.grad, torch.autograd.grad(expected.sum(), x)[0])
    with torch.no_grad():
        assert torch.equal(features(x)[site], expected)


@pytest.mark.filterwarnings("ignore:None of the inputs")
def test_frozen_features_in_a_reentrant_checkpoint_need_no_graph() -> None:
    model, x = Checkpointed(use_reentrant=True), torch.ones(2, 3)
    found = tt.features(model, "body", frozen=True)(x)["body"]
    assert torch.equal(found, model.body(x)) and not found.requires_grad


def test_a_model_that_wants_no_graph_gets_none() -> None:
    model = Net(lambda m, x: m.b(torch.no_grad()(m.a)(x)), a=nn.Linear(3, 3), b=nn.Linear(3, 3))
    assert not tt.features(model, "a")(torch.ones(1, 3, requires_grad=True))["a"].requires_grad


def test_features_of_features() -> None:
    model = chain()
    inner = tt.features(model, ["2"])
    found = tt.features(inner, "model.0")(torch.zeros(1))
    assert found["model.0"].item() == 1 and [m.num_calls for m in model] == [1, 0, 0, 0]


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_has_features_too() -> None:
    model = resnet()
    right = tt.features(model, ["bn1", "layer1"])(images())
    compiled: Any = torch.compile(model, backend="aot_eager")
    compiled(images())
    found = tt.features(compiled, ["bn1", "layer1"])(images())
    assert all(torch.equal(found[site], one) for site, one in right.items())
    torch.testing.assert_close(compiled(images()), model(images()))


def test_sites_are_found_by_path_text_and_site() -> None:
    found = tt.features(chain(), ["1"])(torch.zeros(1))
    assert found["1"] is found["1:output"] is found[tt.Site("1", "output")]
    with pytest.raises(KeyError, match="11"):
        found["11"]


def test_features_print_shapes_and_not_numbers() -> None:
    extract = tt.features(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), ["0", "1"], frozen=True)
    assert repr(extract) == "Features(0, 1, frozen) of Sequential"
    assert repr(extract(torch.ones(4, 2))).splitlines() == [
        "2 features",
        "  0:output  float32[4, 3]",
        "  1:output  float32[4, 3]",
    ]


def test_features_that_were_closed_go_on_and_say_so() -> None:
    extract = tt.features(nn.Sequential(nn.Linear(2, 3)), "0", frozen=True)
    assert not extract(torch.ones(4, 2))["0"].requires_grad
    extract.close()
    assert repr(extract) == "Features(0, no longer frozen) of Sequential"
    assert extract(torch.ones(4, 2))["0"].requires_grad


class Fire(nn.Module):
    """Uses its input three times, so that the order of adding gradients matters."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.a(x)) + torch.sigmoid(self.b(x)) * self.c(x)


@pytest.mark.parametrize("stop", [True, False])
def test_gradients_through_features_are_those_of_plain_hooks_to_the_bit(stop: bool) -> None:
    body = seeded(lambda: nn.Sequential(*(Fire() for _ in range(4))))
    x = normal(8, 16)

    def gradients(found: list[Tensor]) -> tuple[Tensor, ...]:
        loss = sum((one * one.cos()).sum() + one.sin().sum() for one in found)
        return torch.autograd.grad(loss, list(body[:3].parameters()))  # type: ignore[arg-type]

    plain: list[Tensor] = []
    handles = [body[n].register_forward_hook(lambda *a: plain.append(a[2])) for n in range(3)]
    body(x)
    for handle in handles:
        handle.remove()
    expected = gradients(plain)
    ours = gradients(list(tt.features(body, ["0", "1", "2"], stop=stop)(x).values()))
    assert all(torch.equal(one, two) for one, two in zip(ours, expected, strict=True))


def test_a_feature_that_is_overwritten_later_keeps_its_value_and_gradient() -> None:
    body = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 3))
    x = torch.randn(4, 3)
    found = tt.features(body, ["0", "2"])(x)
    assert torch.equal(found["0"], body[0](x))
    (ours,) = torch.autograd.grad(found["0"].square().sum(), body[0].weight)  # type: ignore[arg-type]
    (expected,) = torch.autograd.grad(body[0](x).square().sum(), body[0].weight)  # type: ignore[arg-type]
    assert torch.equal(ours, expected)

"""``tt.verify`` holds for honest watching and fails for broken watching, and leaves no trace."""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import bits
import pytest
import torch
from models import rows, seeded
from torch import Tensor, nn

import torchtap as tt
from torchtap.capture.copy_policy import CopyPolicy, Kept
from torchtap.capture.delivery import SinkDispatch
from torchtap.capture.gradient_ports import Gradients
from torchtap.capture.watch_engine import WatchEngine
from torchtap.capture.watched_calls import WatchedCalls
from torchtap.core.record import UNVERSIONED
from torchtap.core.site import Site
from torchtap.core.text import breadth
from torchtap.testing import Net


def model() -> nn.Sequential:
    """Something of all: a buffer, a module that overwrites, random numbers."""
    return seeded(
        lambda: nn.Sequential(
            nn.Linear(3, 4),
            nn.BatchNorm1d(4),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(4, 2),
        )
    )


def scaled(m: Any, x: Tensor, *, scale: Tensor, shift: float = 0.0) -> dict[str, Tensor]:
    return {"hidden": m.a(x) * scale, "shifted": x + shift}


# --- it holds ---------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_verify_holds_for_an_honest_model(training: bool) -> None:
    result = tt.verify(model().train(training), rows().requires_grad_())
    assert result
    assert not (result.changed or result.wrong or result.unverified or result.absent)
    assert result.model == "Sequential"
    # Six modules, two steps; each has one input and one output, and a gradient of each.
    assert (result.num_values, result.num_gradients) == (24, 24)


def test_keyword_arguments_are_the_models() -> None:
    net = seeded(lambda: Net(scaled, a=nn.Linear(3, 3)))
    scale = torch.full((3,), 2.0, requires_grad=True)
    result = tt.verify(net, rows(), scale=scale, shift=1.0)
    assert result
    # Arguments x and scale and two results of the root, one of each of ``a``; two steps.
    assert result.num_values == 2 * (4 + 2)
    listed = {str(entry.site): entry.reason for entry in result.absent}
    assert listed == {
        ".:grad_input[0]": "it does not require grad",
        ".:grad_output[shifted]": "it does not require grad",
        "a:grad_input": "it does not require grad",
    }
    with pytest.raises(TypeError, match="unexpected keyword argument 'shfit'"):
        tt.verify(net, rows(), scale=scale, shfit=1.0)


def test_where_narrows_what_is_proved() -> None:
    result = tt.verify(model(), rows(), where=["4:output", "0:param,param_grad", "1:buffer"])
    assert result
    assert (result.num_values, result.num_gradients) == (2 * (1 + 2 + 2 + 3), 0)
    with pytest.raises(tt.SiteError, match="has no module '5'"):
        tt.verify(model(), rows(), where="5")


def test_a_loss_of_the_user_is_what_is_differentiated() -> None:
    calls = []

    def loss(output: Tensor) -> Tensor:
        calls.append(output.shape)
        return output[:, 0].sum()

    result = tt.verify(model(), rows(), loss=loss)
    assert result and result.num_gradients > 0
    assert set(calls) == {(5, 2)}


def test_a_loss_may_be_one_element_of_any_shape() -> None:
    assert tt.verify(model(), rows(), loss=lambda output: output.sum().view(1, 1))


@pytest.mark.parametrize(
    ("loss", "found"),
    [
        (lambda output: output, r"not Tensor\[5, 2\]"),
        (lambda output: output[:0].sum(0), r"not Tensor\[2\]"),
        (lambda output: 1.0, "not float"),
        (lambda output: None, "not NoneType"),
        (lambda output: (output.sum(),), "not tuple"),
    ],
)
def test_a_loss_that_is_no_scalar_is_refused(loss: Any, found: str) -> None:
    with pytest.raises(tt.InputError, match=f"loss must return a scalar tensor, {found}"):
        tt.verify(model(), rows(), loss=loss)


def no_grad() -> Any:
    return torch.no_grad()


def inference_mode() -> Any:
    return torch.inference_mode()


@pytest.mark.parametrize("mode", [no_grad, inference_mode])
def test_without_grad_values_alone_are_proved(mode: Callable[[], Any]) -> None:
    net, x = model().eval(), rows()
    with mode():
        result = tt.verify(net, x)
    assert result
    assert (result.num_values, result.num_gradients) == (24, 0)
    assert {entry.site.port for entry in result.absent} == {"grad_input", "grad_output"}


def test_a_model_that_gives_no_tensor_has_no_gradients_to_prove() -> None:
    result = tt.verify(Net(lambda m, x: "text"), rows())
    assert result
    assert (result.num_values, result.num_gradients) == (2, 0)


# --- it fails where watching is broken --------------------------------------------------------


def wrong_sites(result: tt.Verification) -> set[str]:
    return {str(one.site) for one in result.wrong}


def test_an_alias_where_a_copy_is_needed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(self: CopyPolicy, state: Any, tensor: Tensor, foreign: Any = ()) -> Kept:
        return tensor if state.site.is_gradient else tensor.detach(), UNVERSIONED, ()

    monkeypatch.setattr(CopyPolicy, "keep", keep)
    result = tt.verify(model(), rows())
    assert not result
    # What the in-place ReLU was given.
    assert wrong_sites(result) == {"1:output", "2:input"}
    assert all("elements differ" in one.what for one in result.wrong)
    assert not result.changed


def test_a_declared_alias_is_listed_and_not_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # An alias with its version is honest: the value is lost, and named.
    monkeypatch.setattr(CopyPolicy, "_must_copy", lambda *_: False)
    result = tt.verify(model(), rows())
    assert result and not result.wrong
    lost = {str(e.site) for e in result.absent if "overwritten" in e.reason}
    assert lost == {"1:output", "2:input"}


@pytest.mark.parametrize("factor", [0.0, 1.001, -1.0, float("nan")])
def test_a_scaled_gradient_is_found(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    deliver = Gradients.deliver

    def scaling(self: Gradients, state: Any, *rest: Any, **phase: Any) -> None:
        *how, gradient = rest
        right = str(state.site) != "4:grad_input"
        gradient = gradient if right else gradient * factor
        deliver(self, state, *how, gradient, **phase)  # type: ignore[call-arg]

    monkeypatch.setattr(Gradients, "deliver", scaling)
    result = tt.verify(model(), rows())
    assert not result and wrong_sites(result) == {"4:grad_input"}
    assert not result.changed


def test_a_gradient_of_the_wrong_call_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    deliver = Gradients.deliver

    def swapping(
        self: Gradients, state: Any, step: int, call: int, *rest: Any, **phase: Any
    ) -> None:
        deliver(self, state, step, 1 - call if state.site.path == "a" else call, *rest, **phase)

    monkeypatch.setattr(Gradients, "deliver", swapping)
    net = seeded(lambda: Net(lambda m, x: m.a(m.a(x).sin()), a=nn.Linear(3, 3)))
    result = tt.verify(net, rows().requires_grad_(), where="a:grad_output,grad_input")
    assert not result
    assert {(str(one.site), one.call) for one in result.wrong} == {
        (f"a:{port}", call) for port in ("grad_input", "grad_output") for call in (0, 1)
    }


def test_another_shape_or_dtype_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHTAP_NATIVE", "0")  # First values are copied natively.
    keep = CopyPolicy.keep

    def widening(self: CopyPolicy, state: Any, tensor: Tensor, *rest: Any) -> Any:
        kept, version, labels = keep(self, state, tensor, *rest)
        if state.site == Site("0", "output"):
            return kept.double(), UNVERSIONED, labels
        is_root = state.site == Site("", "output")
        return (kept[None], UNVERSIONED, labels) if is_root else (kept, version, labels)

    monkeypatch.setattr(CopyPolicy, "keep", widening)
    result = tt.verify(model(), rows(), where="*:input,output")
    found = {str(one.site): one.what for one in result.wrong}
    assert found == {
        "0:output": "float64[5, 4] where the truth is float32[5, 4]",
        ".:output": "float32[1, 5, 2] where the truth is float32[5, 2]",
    }


@pytest.mark.parametrize("port", ["input", "output", "grad_input", "grad_output"])
def test_a_record_that_is_left_out_is_found(monkeypatch: pytest.MonkeyPatch, port: str) -> None:
    left_out = Site("2", port)

    def emit(self: SinkDispatch, record: tt.Record) -> None:
        if record.site != left_out:
            self.sinks[0].take(record)

    monkeypatch.setattr(SinkDispatch, "emit", property(lambda self: partial(emit, self)))
    result = tt.verify(model(), rows())
    assert not result
    assert [(one.site, one.what) for one in result.wrong] == [(left_out, "it was not recorded")]


def draws(self: WatchedCalls, module: nn.Module) -> None:
    torch.rand(1)


def changes_mode(self: WatchedCalls, module: nn.Module) -> None:
    module.eval()


def writes_buffer(self: WatchedCalls, module: nn.Module) -> None:
    module[1].running_mean.add_(1)


def writes_parameter(self: WatchedCalls, module: nn.Module) -> None:
    with torch.no_grad():
        module[4].bias.add_(1)


def adds_gradient(self: WatchedCalls, module: nn.Module) -> None:
    module[0].bias.grad = torch.ones(4)


@pytest.mark.parametrize(
    ("does", "changed"),
    [
        (draws, "random state"),
        (changes_mode, "modes"),
        (writes_buffer, "buffers[1.running_mean]"),
        (writes_parameter, "outputs[]"),
        (adds_gradient, "gradients[0.bias]"),
    ],
)
def test_whatever_watching_changes_is_found(
    monkeypatch: pytest.MonkeyPatch, does: Any, changed: str
) -> None:
    enter = WatchedCalls.enter

    def entering(self: WatchedCalls, tap: Any, module: nn.Module, *rest: Any) -> None:
        enter(self, tap, module, *rest)
        if tap.path == "":
            does(self, module)

    monkeypatch.setattr(WatchedCalls, "enter", entering)
    result = tt.verify(model(), rows())
    assert not result
    assert changed in result.changed
    assert len(set(result.changed)) == len(result.changed)
    assert not result.unsteady


def test_hooks_that_stay_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    detach = WatchEngine.detach

    def half(self: WatchEngine) -> None:
        stays = self.hooks._pre_hooks.pop()
        detach(self)
        self.hooks._pre_hooks.append(stays)

    monkeypatch.setattr(WatchEngine, "detach", half)
    result = tt.verify(model(), rows())
    assert not result and result.changed == ("hooks are left behind",)


def test_a_changed_gradient_is_found_in_values_and_in_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deliver = Gradients.deliver

    def overwriting(self: Gradients, state: Any, *rest: Any, **phase: Any) -> None:
        deliver(self, state, *rest, **phase)
        if str(state.site) == "4:grad_input":
            rest[-1].mul_(2)

    monkeypatch.setattr(Gradients, "deliver", overwriting)
    result = tt.verify(model(), rows())
    assert not result
    assert "gradients[0.weight]" in result.changed


# --- it is not possible where the model is not deterministic ----------------------------------


def test_a_model_that_remembers_cannot_be_proved() -> None:
    count = itertools.count()
    net = Net(lambda m, x: m.a(x) * next(count), a=nn.Linear(3, 3))
    result = tt.verify(net, rows())
    assert not result
    assert result.unsteady == ("outputs[]", "gradients[a.weight]", "gradients[a.bias]", "loss")
    assert repr(result).startswith("Watching Net: the proof is not possible.")


def test_random_numbers_of_the_default_generator_are_no_obstacle() -> None:
    assert tt.verify(Net(lambda m, x: m.a(x) * torch.rand(()), a=nn.Linear(3, 3)), rows())


def test_random_numbers_of_another_generator_are() -> None:
    own = torch.Generator()
    net = Net(lambda m, x: m.a(x) * torch.rand((), generator=own), a=nn.Linear(3, 3))
    assert tt.verify(net, rows()).unsteady


# --- it leaves everything as it was -----------------------------------------------------------


def prepared() -> tuple[nn.Sequential, Tensor]:
    """A model in the middle of training: gradients, and statistics that have moved."""
    net, x = model(), rows().requires_grad_()
    with torch.random.fork_rng(devices=[]):
        net(x).sum().backward()
    return net, x


def everything(net: nn.Module, x: Tensor) -> bits.Facts:
    facts = bits.state(net) | bits.hooks(net, [x])
    facts["argument"] = bits.bits(x), bits.bits(x.grad)
    # Not only the same numbers, but the same objects: an optimizer may hold them.
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers()), "x": x}
    for name, tensor in tensors.items():
        facts[f"memory of {name}"] = id(tensor), tensor.data_ptr(), id(tensor.grad)
    threads = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), threading.active_count()
    return facts | {"threads": threads}


def without_versions(facts: bits.Facts) -> bits.Facts:
    """Buffers are put back by writing, which counts."""
    return {name: fact[0] if name.startswith("buffer ") else fact for name, fact in facts.items()}


def assert_untouched(net: nn.Module, x: Tensor, before: bits.Facts) -> None:
    after = without_versions(everything(net, x))
    assert bits.differences(without_versions(before), after) == []


@pytest.mark.parametrize("has_gradients", [True, False])
def test_the_model_is_left_as_it_was_found(has_gradients: bool) -> None:
    net, x = prepared()
    if not has_gradients:
        net.zero_grad()
        x.grad = None
    before = everything(net, x)
    assert tt.verify(net, x)
    assert_untouched(net, x, before)


class Stop(Exception):
    """Raised in the middle on purpose."""


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt])
@pytest.mark.parametrize(
    ("place", "run"),
    # The run for the true values has no backward.
    [(place, run) for place in ("forward", "loss", "backward") for run in range(6)][:-1],
)
def test_after_an_exception_the_model_is_left_as_it_was_found(
    place: str, run: int, error: type[BaseException]
) -> None:
    """Plain twice, watched twice, values, twin: whichever of these runs raises."""
    net, x = prepared()
    reached = {"forward": 0, "loss": 0, "backward": 0}

    def reach(name: str) -> None:
        reached[name] += 1
        if name == place and reached[name] > run:
            raise error

    def stopping(m: Any, x: Tensor) -> Tensor:
        hidden = m.inner[1](m.inner[0](x))
        reach("forward")
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: reach("backward"))
        return m.inner[4](m.inner[3](m.inner[2](hidden)))

    def loss(output: Tensor) -> Tensor:
        reach("loss")
        return output.square().sum()

    outer = Net(stopping, inner=net)
    before = everything(outer, x)
    with pytest.raises(error):
        tt.verify(outer, x, loss=loss)
    assert_untouched(outer, x, before)


def test_something_touched_would_be_found() -> None:
    net, x = prepared()
    before = everything(net, x)
    assert_untouched(net, x, before)
    net.zero_grad(set_to_none=False)
    with pytest.raises(AssertionError, match=r"gradient of 0\.weight"):
        assert_untouched(net, x, before)
    net, x = prepared()
    before = everything(net, x)
    net[0].weight.grad = net[0].weight.grad.clone()
    with pytest.raises(AssertionError, match=r"memory of 0\.weight"):
        assert_untouched(net, x, before)


def test_a_buffer_that_the_model_replaces_is_put_back() -> None:
    def counting(m: Any, x: Tensor) -> Tensor:
        m.count = m.count + 1
        return m.a(x)

    net = Net(counting, a=nn.Linear(3, 3), count=torch.tensor(7))
    held = net.count
    assert tt.verify(net, rows())
    assert held.item() == 7 and net.count.item() == 7


def test_an_argument_that_the_model_overwrites_is_put_back() -> None:
    x = rows()
    before = x.clone()
    assert tt.verify(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 2)), x)
    assert torch.equal(x, before)


# --- it says what it found --------------------------------------------------------------------


def assert_fits(text: str) -> None:
    assert max(map(breadth, text.splitlines())) <= 100, text


def test_the_text_of_a_proof_that_holds() -> None:
    text = repr(tt.verify(model(), rows().requires_grad_()))
    assert text.splitlines() == [
        "Watching Sequential: the proof holds.",
        "24 values bit for bit, 24 gradients within rounding of an out-of-place twin.",
    ]


@pytest.mark.parametrize(
    ("build", "where", "why"),
    [
        (lambda: model().requires_grad_(False), "*:*", "no loss requires grad, so no backward was"),
        (model, "*:output,param", "none was selected"),
        (model, "*:output,param_grad", None),
    ],
)
def test_the_first_line_says_that_no_gradient_was_proved(build: Any, where: str, why: Any) -> None:
    result = tt.verify(build(), rows(), where=where)
    head = " ".join(repr(result).split())
    assert result
    if why is None:
        assert head.startswith("Watching Sequential: the proof holds. ")
    else:
        assert f"the proof holds for values. No gradient was proved: {why}" in head
    assert bool(result.no_gradients) == bool(why)


def test_the_text_names_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    deliver = Gradients.deliver

    def scaling(self: Gradients, state: Any, *rest: Any, **phase: Any) -> None:
        deliver(self, state, *rest[:-1], rest[-1] * 2, **phase)  # type: ignore[call-arg]

    monkeypatch.setattr(Gradients, "deliver", scaling)
    monkeypatch.setenv("TORCHTAP_NATIVE", "0")  # Plain gradients are delivered natively.
    text = repr(tt.verify(model(), rows()))
    assert_fits(text)
    assert text.startswith("Watching Sequential: the proof FAILS.")
    # Ten gradients that require grad, twice, of which eight are shown.
    assert "Records that are not the truth (20):" in text
    assert "  4:grad_output (call 0): relative error 1.00e+00, at most 2e-04 was expected" in text
    assert "  … 12 more items …" in text


def test_equal_reasons_stand_once_with_their_sites() -> None:
    net = nn.Sequential(*(nn.Identity() for _ in range(20)))
    text = repr(tt.verify(net, torch.ones(2, 3)))
    assert_fits(text)
    # 21 modules, none of whose tensors requires grad: two absent sites each.
    assert "Not seen (42):" in text
    assert text.count("it does not require grad") == 1
    assert "and 40 more: it does not require grad" in text


def deep(depth: int) -> nn.Module:
    """Paths too long for a line."""
    net: nn.Module = nn.Linear(3, 3)
    for _ in range(depth):
        net = nn.ModuleDict({"encoder": net})
        net = Net(lambda m, x: m.inner["encoder"](x), inner=net)
    return net


def test_a_text_about_anything_fits_into_100_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    aliasing = Net(lambda m, x: (m.b(h := m.a(x)), h.sum())[0], a=nn.Linear(3, 3), b=nn.ReLU(True))
    assert_fits(repr(tt.verify(aliasing, rows())))
    assert_fits(repr(tt.verify(deep(12), rows())))
    count = itertools.count()
    unsteady = Net(lambda m, x: m.a(x) * next(count), a=deep(12))
    text = repr(tt.verify(unsteady, rows()))
    assert_fits(text)
    assert "Two plain runs already differ in" in text
    doubled = lambda self, state, tensor, *_: (tensor * 2, UNVERSIONED, ())  # noqa: E731
    monkeypatch.setattr(CopyPolicy, "keep", doubled)
    text = repr(tt.verify(deep(12), rows()))
    assert_fits(text)
    assert "Records that are not the truth" in text


def test_verify_warns_of_nothing_and_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tt.verify(model(), rows())
    assert capsys.readouterr() == ("", "")

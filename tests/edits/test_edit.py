"""The front door of edits: what is chosen, in which order, what is said, and what is left."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import bits
import pytest
import torch
from containers import Pair
from models import seeded
from random_numbers import normal
from torch import Tensor, nn

import torchtap as tt
from torchtap.core.tree import leaves
from torchtap.testing import Net

ONES = torch.ones(2, 3)


def double(tensor: Tensor) -> Tensor:
    return tensor * 2


def chain(num: int = 3) -> nn.Sequential:
    return nn.Sequential(*(nn.Identity() for _ in range(num)))


def value(model: nn.Module, x: Tensor = ONES) -> float:
    return model(x).flatten()[0].item()


# --- what is chosen ---------------------------------------------------------------------------

WHERE: dict[str, tuple[Any, list[str]]] = {
    "path": ("1", ["1:output"]),
    "port": ("1:input", ["1:input"]),
    "several ports": ("1:input,output", ["1:input", "1:output"]),
    "root": (".", [".:output"]),
    "star": ("*", [".:output", "0:output", "1:output", "2:output"]),
    "class": (nn.Identity, ["0:output", "1:output", "2:output"]),
    "type": ("*@Identity", ["0:output", "1:output", "2:output"]),
    "taken away": (["*", "!1"], [".:output", "0:output", "2:output"]),
    "function": (lambda site, module: str(site) == "2:input", ["2:input"]),
    "list": (["2", "0:input"], ["0:input", "2:output"]),
}


@pytest.mark.parametrize("name", WHERE)
def test_where_chooses_the_sites_that_are_edited(name: str) -> None:
    where, sites = WHERE[name]
    model = chain()
    with tt.edit(model, where, double) as edit:
        assert value(model) == 2.0 ** len(sites)
    assert sorted(edit.fired) == sorted(sites) and set(edit.fired.values()) == {1}
    assert value(model) == 1.0


def test_a_module_itself_can_be_given() -> None:
    model = chain()
    with tt.edit(model, model[1], double) as edit:
        model(ONES)
    assert edit.fired == {"1:output": 1}


@dataclass
class Result:
    hidden: Tensor
    more: tuple[Tensor, ...]
    name: str = "none"


class Output(OrderedDict[str, Any]):
    def __getattr__(self, name: str) -> Any:
        return self[name]


def model_output(x: Tensor) -> Any:
    from transformers.modeling_outputs import BaseModelOutput

    return BaseModelOutput(last_hidden_state=x, hidden_states=(x * 10, x * 100))


OUTPUTS: dict[str, tuple[Any, str, Any]] = {
    "tuple": (lambda x: (x, x * 10, None), "1", lambda out: out[1]),
    "list": (lambda x: [x, x * 10, 3], "1", lambda out: out[1]),
    "dict": (lambda x: {"a": x, "b": {"c": x * 10}}, "b.c", lambda out: out["b"]["c"]),
    "named tuple": (lambda x: Pair(x, x * 10), "second", lambda out: out.second),
    "dataclass": (lambda x: Result(x, (x * 10,)), "more.0", lambda out: out.more[0]),
    "ordered dict": (lambda x: Output(a=x, b=x * 10), "b", lambda out: out.b),
    "ModelOutput": (model_output, "hidden_states.0", lambda out: out.hidden_states[0]),
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_one_leaf_of_any_output_is_edited_and_its_type_stays(kind: str) -> None:
    make, leaf, read = OUTPUTS[kind]
    model = Net(lambda m, x: m.attn(x), attn=Net(lambda m, x: make(x)))
    plain = model(ONES)
    with tt.edit(model, f"attn:output[{leaf}]", double) as edit:
        out = model(ONES)
    assert type(out) is type(plain)
    assert torch.equal(read(out), read(plain) * 2)
    assert edit.fired == {f"attn:output[{leaf}]": 1}
    assert [name for name, _ in leaves(out)] == [name for name, _ in leaves(plain)]
    changed = [
        name
        for (name, one), (_, other) in zip(leaves(out), leaves(plain), strict=True)
        if not torch.equal(one, other)
    ]
    assert changed == [leaf]


def test_arguments_by_position_and_keyword_are_edited() -> None:
    inner = Net(lambda m, x, *, scale, flag, rest: x * scale * rest["y"] if flag else x)
    model = Net(lambda m, x: m.inner(x, scale=x + 1, flag=True, rest={"y": x}), inner=inner)
    for leaf, right in (("0", 4.0), ("scale", 4.0), ("rest.y", 4.0)):
        with tt.edit(model, f"inner:input[{leaf}]", double) as edit:
            assert value(model) == right
        assert edit.fired == {f"inner:input[{leaf}]": 1}
    with tt.edit(model, "inner:input", double):
        assert value(model) == 2.0 * 4.0 * 2.0


def test_a_pair_as_the_only_argument_stays_one_argument() -> None:
    inner = Net(lambda m, pair: pair[0] + pair[1]["a"])
    model = Net(lambda m, x: m.inner((x, {"a": x * 10})), inner=inner)
    with tt.edit(model, "inner:input[1.a]", double):
        assert value(model) == 21.0


def test_calls_and_steps_choose() -> None:
    model = Net(lambda m, x: m.a(m.a(m.a(x))), a=nn.Identity())
    for calls, right in ((1, 2.0), ([0, 2], 4.0), (range(1, 3), 4.0), (lambda n: n > 5, 1.0)):
        with tt.edit(model, "a", double, calls=calls, missing="ignore"):
            assert value(model) == right
    with tt.edit(model, "a", double, steps=[1, 3]) as edit:
        found = []
        for _ in range(5):
            found.append(value(model))
            edit.step()
    assert found == [1.0, 8.0, 1.0, 8.0, 1.0]
    assert edit.calls == {"a:output": {0: 2, 1: 2, 2: 2}} and edit.current_step == 5
    for wrong in ("1", 1.5, [0.5], True):
        with pytest.raises(tt.InputError, match="calls is"):
            tt.edit(model, "a", double, calls=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("num_steps", "message"),
    [(0, r"Edit.step\(\) was never called"), (2, "the last was step 2")],
)
def test_steps_that_never_come_are_an_error(num_steps: int, message: str) -> None:
    model = Net(lambda m, x: m.a(x), a=nn.Identity())

    def run(edit: tt.Edit) -> None:
        for _ in range(num_steps):
            model(ONES)
            edit.step()
        model(ONES)

    wanted = rf"'double' at 'a'.*none of the steps that were chosen came: {message}"
    with pytest.raises(tt.EditError, match=wanted), tt.edit(model, "a", double, steps=7) as edit:
        run(edit)
    with tt.edit(model, "a", double, steps=7, missing="ignore") as edit:
        run(edit)
    assert [str(entry.site) for entry in edit.absent] == ["a:output"]


def test_a_handle_that_is_closed_cannot_be_entered_again() -> None:
    model = Net(lambda m, x: m.a(x), a=nn.Linear(1, 1))
    for make, error in (
        (lambda: tt.edit(model, "a", double, missing="ignore"), tt.EditError),
        (lambda: tt.freeze(model, "a"), tt.EditError),
        (lambda: tt.watch(model, "a"), tt.CaptureError),
        (lambda: tt.offload("cpu"), tt.OffloadError),
    ):
        handle: Any = make()
        handle.close()
        with pytest.raises(error, match=r"closed; call tt\.\w+ again"), handle:
            pass


def test_the_record_says_where_and_when() -> None:
    model = Net(lambda m, x: m.a(m.a(x)), a=nn.Identity())
    seen = []

    def note(tensor: Tensor, record: Any) -> None:
        seen.append((str(record.site), record.step, record.call, record.phase))
        assert record.kept is tensor

    with tt.edit(model, "a", note) as edit:
        model(ONES)
        edit.step()
        model(ONES)
    assert seen == [("a:output", s, c, "forward") for s in (0, 1) for c in (0, 1)]
    assert edit.fired == {"a:output": 0}


# --- order ------------------------------------------------------------------------------------


def plus_one(tensor: Tensor) -> Tensor:
    return tensor + 1


@pytest.mark.parametrize("port", ["input", "output"])
def test_edits_work_in_the_order_in_which_they_are_made(port: str) -> None:
    model, where = chain(), f"1:{port}"
    with tt.edit(model, where, [plus_one, double]):
        assert value(model) == 4.0
    with tt.edit(model, where, [double, plus_one]):
        assert value(model) == 3.0
    with tt.edit(model, {where: plus_one, "*@Identity:" + port: double}):
        assert value(model) == 2.0 * 2 * 2 + 2.0 * 2
    first = tt.edit(model, where, plus_one)
    second = tt.edit(model, where, double)
    third = tt.edit(model, where, plus_one)
    assert value(model) == 5.0
    second.close()
    assert value(model) == 3.0
    first.close()
    assert value(model) == 2.0
    second.close()
    third.close()
    assert value(model) == 1.0


@pytest.mark.parametrize("edits_first", [True, False])
@pytest.mark.parametrize("port", ["input", "output"])
def test_a_watch_sees_values_before_or_after_all_edits(port: str, edits_first: bool) -> None:
    model, where, found = chain(), f"1:{port}", {}
    edits = [tt.edit(model, where, double)] if edits_first else []
    watches = {looks: tt.watch(model, where, edits=looks) for looks in ("before", "after")}
    edits += [tt.edit(model, where, plus_one if edits_first else double)]
    out = value(model)
    for looks, watch in watches.items():
        watch.close()
        found[looks] = watch.run[where][0, 0].item()
    for edit in edits:
        edit.close()
    assert found == {"before": 1.0, "after": out}


def test_hooks_of_the_user_keep_their_places() -> None:
    model = chain(1)
    model[0].register_forward_hook(lambda m, a, out: out + 10)
    edit = tt.edit(model, "0", double)
    model[0].register_forward_hook(lambda m, a, out: out + 100)
    with tt.watch(model, "0") as watch:
        assert value(model) == (1 + 10) * 2 + 100
    assert watch.run["0:output"][0, 0].item() == 122.0
    edit.close()
    assert value(model) == 111.0


def test_a_watch_closed_while_an_edit_goes_on() -> None:
    model = chain()
    watch = tt.watch(model, "*")
    with tt.edit(model, "1", double):
        watch.close()
        assert value(model) == 2.0


# --- marks ------------------------------------------------------------------------------------


class Marking(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        hidden = tt.mark(x * 3, "hidden")
        return hidden * hidden


def test_a_mark_is_edited_in_value_and_gradient() -> None:
    model, x = Marking(), torch.ones(2, requires_grad=True)
    with tt.edit(model, "hidden:output", plus_one) as edit:
        out = model(x)
        out.sum().backward()
    assert out.tolist() == [16.0, 16.0] and x.grad.tolist() == [24.0, 24.0]
    assert edit.fired == {"hidden:output": 1}
    x.grad = None
    with tt.edit(model, "hidden:grad_output", double) as edit:
        model(x).sum().backward()
    assert x.grad.tolist() == [36.0, 36.0] and edit.fired == {"hidden:grad_output": 1}  # type: ignore[attr-defined]


def test_a_mark_and_watches_before_and_after() -> None:
    model, where = Marking(), "hidden:output"
    with (
        tt.watch(model, where, edits="after") as after,
        tt.edit(model, where, double),
        tt.watch(model, where, edits="before") as before,
        tt.edit(model, where, plus_one),
    ):
        model(torch.ones(1))
    assert (before.run[where].item(), after.run[where].item()) == (3.0, 7.0)


def test_a_mark_that_never_comes_is_an_error_at_closing() -> None:
    model = Marking()
    with (
        pytest.raises(tt.EditError, match=r"'hiden' never happened.*did you mean 'hidden'"),
        tt.edit(model, ["hidden", "hiden"], double),
    ):
        model(ONES)


# --- what did not happen ----------------------------------------------------------------------


def lazy(m: Any, x: Tensor) -> Tensor:
    return m.used(x)


def test_what_never_happened_is_an_error_at_closing_and_can_be_ignored() -> None:
    model = Net(lazy, used=nn.Identity(), unused=nn.Identity())
    edit = tt.edit(model, ["used", "unused"], double)
    model(ONES)
    with pytest.raises(tt.EditError, match=r"'double' at 'unused' never happened.*not called"):
        edit.close()
    edit.close()
    assert [str(entry.site) for entry in edit.absent] == ["unused:output"]
    with tt.edit(model, ["used", "unused"], double, missing="ignore") as edit:
        model(ONES)
    with tt.edit(model, "*", double):  # Something of it came by.
        model(ONES)
    with pytest.raises(tt.InputError, match="missing is 'never'"):
        tt.edit(model, "*", double, missing="never")  # type: ignore[arg-type]


def test_an_error_of_the_user_is_not_hidden_by_ours() -> None:
    with pytest.raises(ZeroDivisionError), tt.edit(chain(), "1", double):
        raise ZeroDivisionError


def test_wrong_requests_are_errors_before_anything_is_put_on() -> None:
    model = chain()
    before = bits.hooks(model)
    wrong: list[tuple[type[Exception], Any]] = [
        (tt.SiteError, lambda: tt.edit(model, "7", double)),
        (tt.SiteError, lambda: tt.edit(model, {"1": double, "7": double})),
        (tt.InputError, lambda: tt.edit(model, "1")),
        (tt.InputError, lambda: tt.edit(model, "1", 0.0)),  # type: ignore[arg-type]
        (tt.InputError, lambda: tt.edit(model, "1", [])),
        (tt.InputError, lambda: tt.edit(model, {})),
        (tt.InputError, lambda: tt.edit(model, {"1": double}, double)),
        (tt.InputError, lambda: tt.edit(model, "1", double, scaler=3)),  # type: ignore[arg-type]
        (tt.EditError, lambda: tt.edit(nn.Linear(1, 1), ".:param", double)),
    ]
    for error, call in wrong:
        with pytest.raises(error):
            call()
    assert bits.differences(before, bits.hooks(model)) == []


# --- what the function does wrong -------------------------------------------------------------

WRONG: dict[str, tuple[Any, str]] = {
    "shape": (lambda t: t[:1], r"returned float32\[1, 3\] where float32\[2, 3\] was there"),
    "dtype": (lambda t: t.double(), r"returned float64\[2, 3\] where float32\[2, 3\]"),
    "device": (lambda t: t.to("meta"), r"on meta where float32\[2, 3\]"),
    "no tensor": (lambda t: 0.0, r"returned float where"),
    "False": (lambda t: False, r"returned bool where"),
    "a tuple": (lambda t: (t,), r"returned tuple where"),
    "sparse": (lambda t: t.to_sparse(), r"sparse"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_is_an_error_with_its_place(what: str) -> None:
    function, message = WRONG[what]
    function.__name__ = "mine"
    model = Net(lambda m, x: m.a(m.a(x)), a=nn.Identity())
    edit = tt.edit(model, "a", function, calls=1, missing="ignore")
    edit.step()
    with pytest.raises(tt.EditError, match=rf"'mine' at a:output \(step 1, call 1\).*{message}"):
        model(ONES)
    edit.close()


def overwrites(tensor: Tensor) -> Tensor:
    return tensor.mul_(2)


def overwrites_data(tensor: Tensor) -> Tensor:
    tensor.data.mul_(2)
    return tensor


def overwrites_numpy(tensor: Tensor) -> None:
    tensor.detach().numpy()[:] = 7


@pytest.mark.parametrize("function", [overwrites, overwrites_data, overwrites_numpy])
@pytest.mark.parametrize("port", ["input", "output"])
def test_writing_into_what_was_given_is_caught(function: Any, port: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    path = {"input": "1:input", "output": "0:output"}[port]
    with (
        pytest.raises(tt.EditError, match=rf"{function.__name__}.*wrote into the tensor"),
        tt.edit(model, path, function),
    ):
        model(ONES)


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_an_exception_in_the_function_keeps_its_type_and_gets_a_note(error: Any) -> None:
    def fails(tensor: Tensor) -> Tensor:
        raise error("mine")

    model = chain()
    before = bits.hooks(model)
    with pytest.raises(error, match="mine") as caught, tt.edit(model, "1", fails):
        model(ONES)
    assert caught.value.__notes__ == ["In edit 'fails' at 1:output (step 0, call 0)."]
    assert bits.differences(before, bits.hooks(model)) == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_after_an_exception_in_the_model_an_edit_goes_on(error: Any) -> None:
    def body(m: Any, x: Tensor) -> Tensor:
        x = m.a(x)
        if x.sum() > 50:
            raise error
        return m.b(x)

    inner = Net(body, a=nn.Identity(), b=nn.Identity())
    model = Net(lambda m, x: m.inner(x), inner=inner)
    x = ONES.clone().requires_grad_()
    with tt.edit(model, "*:input,output,grad_input,grad_output", lambda t: t) as edit:
        for _ in range(2):
            with pytest.raises(error):
                model(ONES * 100)
        edit.step()
        model(x).sum().backward()
    assert x.grad.tolist() == ONES.tolist()
    assert edit.calls["inner.b:output"] == {0: 1}


# --- threads, closing -------------------------------------------------------------------------


def test_closing_twice_is_once_and_a_closed_edit_takes_no_step() -> None:
    model = chain()
    edit = tt.edit(model, "1", double)
    model(ONES)
    assert edit.is_open and edit.names == ("double",)
    edit.close()
    edit.close()
    assert not edit.is_open and edit.fired == {"1:output": 1}
    with pytest.raises(tt.EditError, match="closed"):
        edit.step()
    assert "closed" in repr(edit) and "1:output" in repr(edit)


def test_threads_are_edited_each_by_itself() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1)))
    found: list[Tensor] = []

    def work() -> None:
        for _ in range(20):
            x = ONES.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(model(x).sum(), x)
            found.append(gradient)

    x = ONES.clone().requires_grad_()
    (plain,) = torch.autograd.grad(model(x).sum(), x)
    with tt.edit(model, ["0:grad_input", "1:grad_output"], tt.edits.scale(2.0)) as edit:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 80 and all(torch.equal(one, 4 * plain) for one in found)
    assert edit.fired == {"0:grad_input": 80, "1:grad_output": 80}


def test_a_function_that_calls_the_model_does_not_call_itself_for_ever() -> None:
    model = chain(2)
    depth: list[Any] = []

    def nested(tensor: Tensor) -> Tensor:
        if depth:
            return tensor
        depth.append(1)
        return model[1](tensor) * 2

    with tt.edit(model, "0", nested):
        assert value(model) == 2.0


def test_edits_under_vmap_and_func_grad() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    x = normal(4, 3)
    with tt.edit(model, "0", [tt.edits.scale(2.0), tt.edits.zero(at={-1: 0}), tt.edits.add(1.0)]):
        torch.testing.assert_close(torch.vmap(model)(x), model(x))
    params = dict(model.named_parameters())

    def loss(given: Any) -> Tensor:
        return torch.func.functional_call(model, given, (x,)).sum()

    with tt.edit(model, "1:input", tt.edits.scale(3.0)):
        model.zero_grad()
        model(x).sum().backward()
        for name, gradient in torch.func.grad(loss)(params).items():
            torch.testing.assert_close(gradient, params[name].grad)
    with (
        tt.edit(model, "1:grad_output", tt.edits.scale(3.0), missing="ignore"),
        pytest.raises(tt.EditError, match="transforms compute"),
    ):
        torch.func.grad(loss)(params)


def test_a_wrapped_model_is_edited_under_its_own_names() -> None:
    model = nn.DataParallel(nn.Sequential(nn.Identity(), nn.Identity()))
    with tt.edit(model, "1", double) as edit:
        assert value(model) == 2.0
    assert edit.fired == {"1:output": 1}

"""Watching inside other people's machinery: copies, compilers, transforms, wrappers, hooks."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from absent import reasons
from bits import same
from copies import COPIES
from models import TinyGPT, relu_mlp, rows, seeded
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import torchtap as tt
from torchtap.testing import Net

# --- copies and pickles -----------------------------------------------------------------------

ALL = ["*:*", "*:param,param_grad"]


@pytest.mark.parametrize("copied", list(COPIES.values()), ids=list(COPIES))
def test_a_copy_of_a_watched_model_is_silent(copied: Any) -> None:
    model, x = relu_mlp(), rows()
    with tt.watch(model, "*:*") as w:
        twin = copied(model)
        out = twin(x)
        out.sum().backward()
        assert len(w.run) == 0
        model(x)
        assert same(w.run["2:output"], out)


def test_a_copy_outlives_the_watch() -> None:
    model = relu_mlp()
    with tt.watch(model, ALL):
        twin = copy.deepcopy(model)
    assert same(twin(rows()), model(rows()))


def test_a_copy_can_be_watched() -> None:
    model = relu_mlp()
    with tt.watch(model, ALL):
        twin = copy.deepcopy(model)
        with tt.watch(twin, "2") as w:
            out = twin(rows())
    assert same(w.run["2:output"], out)


_LOAD = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torchtap":
            raise ImportError("there is no torchtap here")

sys.meta_path.insert(0, Blocker())
import torch
model = torch.load(sys.argv[1], weights_only=False)
print(model(torch.ones(1, 3)).sum().item())
try:
    import torchtap
except ImportError as error:
    print(error)
"""


def test_a_pickle_of_a_watched_model_loads_where_there_is_no_torchtap(tmp_path: Path) -> None:
    model, file = relu_mlp(), tmp_path / "model.pt"
    with tt.watch(model, ALL):
        model(rows()).sum().backward()
        torch.save(model, file)
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    value, blocked = done.stdout.splitlines()
    assert float(value) == model(torch.ones(1, 3)).sum().item()
    assert blocked == "there is no torchtap here"


def test_an_output_of_a_watched_model_can_be_saved() -> None:
    model, stream = relu_mlp(), io.BytesIO()
    with tt.watch(model, "*:*"), warnings.catch_warnings():
        warnings.simplefilter("error")
        out = model(rows())
        torch.save(out, stream)
    stream.seek(0)
    assert same(torch.load(stream), out)


def test_the_state_dict_of_a_watched_model_is_unchanged() -> None:
    model = relu_mlp()
    before = list(model.state_dict())
    with tt.watch(model, ALL):
        assert list(model.state_dict()) == before


# --- torch.compile ----------------------------------------------------------------------------


@pytest.mark.usefixtures("fresh_compiler")
def test_a_model_watched_before_it_is_compiled_gives_the_right_values() -> None:
    model, x = relu_mlp(), rows()
    hidden = nn.functional.linear(x, model[0].weight, model[0].bias)  # type: ignore[arg-type]
    compiled: Any = torch.compile(model, backend="eager")
    with tt.watch(compiled, "*:output,grad_output") as w:
        for _ in range(2):
            compiled(x).sum().backward()
            w.step()
    for step in range(2):
        assert same(w.run.get("0:output", step=step), hidden)
        assert same(w.run.get("1:output", step=step), hidden.relu())
        assert w.run.get("2:grad_output", step=step).unique().tolist() == [1.0]


@pytest.mark.usefixtures("fresh_compiler")
def test_paths_of_a_compiled_model_have_no_prefix() -> None:
    compiled: Any = torch.compile(relu_mlp(), backend="eager")
    with tt.watch(compiled) as w:
        compiled(rows())
    assert [str(site) for site in w.run.sites] == [".:output", "0:output", "1:output", "2:output"]


@pytest.mark.usefixtures("fresh_compiler")
def test_a_model_compiled_before_it_is_watched_is_said_absent() -> None:
    model = Net(lambda m, x: m.b(m.a(x)), a=nn.Linear(3, 3), b=nn.Linear(3, 3))
    compiled: Any = torch.compile(model, backend="eager")
    compiled(rows())
    with tt.watch(compiled, ["a", "b"]) as w:
        compiled(rows())
    found = reasons(w)
    assert set(found) | {str(site) for site in w.run.sites} == {"a:output", "b:output"}
    assert found
    assert all("compile" in reason and "reset()" in reason for reason in found.values())


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_model_is_itself_again_after_the_watch() -> None:
    model, x = relu_mlp(), rows()
    plain = model(x)
    compiled: Any = torch.compile(model, backend="eager")
    with tt.watch(compiled) as w:
        compiled(x)
    num_records = len(w.run)
    assert same(compiled(x), plain)
    assert len(w.run) == num_records


# --- torch.func, torch.jit --------------------------------------------------------------------


def test_inside_torch_func_it_is_said_absent() -> None:
    model = relu_mlp()
    params = dict(model.named_parameters())

    def loss(params: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(model, params, (x,)).sum()

    plain = torch.func.grad(loss)(params, rows())  # type: ignore[arg-type]
    with tt.watch(model, "*:output,grad_output") as w:
        watched = torch.func.grad(loss)(params, rows())  # type: ignore[arg-type]
    assert all(same(plain[name], watched[name]) for name in params)
    assert len(w.run) == 0
    assert all("torch.func" in reason for reason in reasons(w).values())
    assert set(reasons(w)) >= {"0:output", "2:grad_output"}


def test_inside_vmap_it_is_said_absent() -> None:
    model = relu_mlp()
    with tt.watch(model, "0") as w:
        torch.vmap(model)(rows())
    assert list(reasons(w)) == ["0:output"]
    assert "torch.func" in reasons(w)["0:output"]


def test_functional_call_alone_is_watched() -> None:
    model = relu_mlp()
    params = {name: torch.zeros_like(param) for name, param in model.named_parameters()}
    with tt.watch(model, "2") as w:
        torch.func.functional_call(model, params, (rows(),))
    assert w.run["2:output"].unique().tolist() == [0.0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_script_module_is_said_absent() -> None:
    scripted = torch.jit.trace(nn.Linear(3, 3), rows())
    model = Net(lambda m, x: m.plain(m.scripted(x)), scripted=scripted, plain=nn.ReLU())
    with tt.watch(model, "*:output") as w:
        model(rows())
    assert "ScriptModule" in reasons(w)["scripted:output"]
    assert "plain:output" in w.run


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_that_is_a_script_module_is_said_absent() -> None:
    with tt.watch(torch.jit.trace(nn.Linear(3, 3), rows())) as w:
        pass
    assert "ScriptModule" in reasons(w)[".:output"]


# --- autocast, DDP ----------------------------------------------------------------------------


def test_autocast_values_are_bit_equal() -> None:
    model, x = relu_mlp(), rows()
    with torch.autocast("cpu", torch.bfloat16):
        first = model[0](x)
        plain = model(x)
        with tt.watch(model, "*:output") as w:
            watched = model(x)
    assert same(plain, watched)
    assert same(w.run["0:output"], first)
    assert w.run["2:output"].dtype == torch.bfloat16


@pytest.mark.usefixtures("one_process")
def test_ddp_is_looked_through() -> None:
    model = relu_mlp()
    wrapped = DistributedDataParallel(model)
    with tt.watch(wrapped, ["*:output,grad_output", "0:param_grad"]) as w:
        for _ in range(3):
            wrapped(rows()).sum().backward()
            w.step()
    assert not any("module" in str(site) for site in w.run.sites)
    assert w.run["2:grad_output"].unique().tolist() == [1.0]
    record = w.run.record("0:param_grad[bias]", step=0)
    assert record.labels == ("local",)
    assert w.run.steps == [0, 1, 2]


# --- marks ------------------------------------------------------------------------------------


class Marked(nn.Module):
    def __init__(self, *, loops: int = 1) -> None:
        super().__init__()
        self.inner = nn.Identity()
        self.loops = loops

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.loops):
            x = tt.mark(2 * x, "doubled")
        return self.inner(x * x)


def test_a_mark_is_a_site() -> None:
    model, x = Marked(), torch.ones(2, requires_grad=True)
    with tt.watch(model, ["doubled:output,grad_output"]) as w:
        model(x).sum().backward()
    assert w.run["doubled:output"].tolist() == [2.0, 2.0]
    assert w.run["doubled:grad_output"].tolist() == [4.0, 4.0]


def test_a_mark_in_a_loop_counts_its_calls() -> None:
    model = Marked(loops=3)
    with tt.watch(model, "doubled") as w:
        model(torch.ones(1))
    assert [(r.call, r.value.item()) for r in w.run.records()] == [(0, 2.0), (1, 4.0), (2, 8.0)]


def test_a_star_takes_marks_too() -> None:
    model = Marked()
    with tt.watch(model, "*") as w:
        model(torch.ones(1))
    assert {str(site) for site in w.run.sites} == {".:output", "inner:output", "doubled:output"}


def test_a_mark_can_be_taken_away() -> None:
    model = Marked()
    with tt.watch(model, ["*", "!doubled"]) as w:
        model(torch.ones(1))
    assert "doubled:output" not in w.run


def test_a_mark_returns_its_very_tensor() -> None:
    x = torch.ones(1)
    assert tt.mark(x, "x") is x
    with tt.watch(Marked()):
        assert tt.mark(x, "x") is x


def test_a_mark_outside_of_a_watched_forward_is_nobodys() -> None:
    with tt.watch(Marked(), "doubled") as w:
        tt.mark(torch.ones(1), "doubled")
        assert len(w.run) == 0


def test_a_mark_that_is_never_reached_is_an_error_at_the_end() -> None:
    model = Marked(loops=0)
    w = tt.watch(model, ["inner", "doubled"])
    model(torch.ones(1))
    with pytest.raises(tt.SiteError, match=r"no module 'doubled', and no tt\.mark"):
        w.close()


def test_a_misspelt_mark_is_an_error_that_names_the_near_one() -> None:
    model = Marked()
    w = tt.watch(model, ["inner", "dubled"])
    model(torch.ones(1))
    with pytest.raises(tt.SiteError, match="did you mean 'doubled'"):
        w.step()


def test_a_mark_pattern_on_a_model_that_never_ran_is_only_absent() -> None:
    with tt.watch(Marked(), "doubled") as w:
        pass
    assert list(reasons(w)) == ["doubled:output"]


def test_a_pattern_that_fits_nothing_is_an_error_at_once_without_marks() -> None:
    with pytest.raises(tt.SiteError):
        tt.watch(relu_mlp(), "doubled")


# --- hooks of others --------------------------------------------------------------------------


def test_hooks_of_others_run_in_their_order() -> None:
    order: list[str] = []
    model = relu_mlp()
    model[0].register_forward_hook(lambda *_: order.append("early"))
    with tt.watch(model, ALL, to=lambda record: order.append(str(record.site))):
        model[0].register_forward_hook(lambda *_: order.append("late"))
        model(rows())
    assert order.index("early") < order.index("0:output") < order.index("late")
    model(rows())
    assert order[-2:] == ["early", "late"]


def test_what_a_hook_of_others_replaced_is_what_is_seen() -> None:
    model = relu_mlp()
    model[0].register_forward_hook(lambda module, args, output: torch.zeros_like(output))
    with tt.watch(model, "0:output") as w:
        model(rows())
    assert w.run["0:output"].unique().tolist() == [0.0]


def test_full_backward_hooks_of_others_see_what_they_saw() -> None:
    def gradients(watched: bool) -> list[Tensor]:
        seen: list[Tensor] = []
        model = Net(lambda m, x: m.b(m.a(x)), a=nn.Linear(3, 3), b=nn.Tanh())
        for parameter in model.parameters():
            parameter.data.fill_(0.1)
        model.a.register_full_backward_hook(lambda m, gi, go: seen.extend([*gi, *go]))
        model.b.register_full_backward_pre_hook(lambda m, go: seen.extend(go))
        w = tt.watch(model, ALL) if watched else None
        model(rows().requires_grad_()).sum().backward()
        if w is not None:
            w.close()
            assert same(w.run["a:grad_output"], seen[-1])
        return seen

    plain, watched = gradients(False), gradients(True)
    assert len(plain) == 3
    assert all(same(a, b) for a, b in zip(plain, watched, strict=True))


def test_hooks_of_others_on_tensors_stay() -> None:
    model = relu_mlp()
    seen: list[Any] = []
    with tt.watch(model, "*:*"):
        out = model(rows())
        out.register_hook(lambda gradient: seen.append(gradient))
    out.sum().backward()
    assert len(seen) == 1


def test_hooks_of_others_on_parameters_stay() -> None:
    model = relu_mlp()
    seen: list[Any] = []
    model[0].weight.register_post_accumulate_grad_hook(seen.append)
    with tt.watch(model, ALL):
        model(rows()).sum().backward()
    model(rows()).sum().backward()
    assert len(seen) == 2


def test_retained_gradients_are_those_without_us() -> None:
    model = relu_mlp()
    with tt.watch(model, "*:*") as w:
        out = model(rows())
        out.retain_grad()
        (out * 3).sum().backward()
    assert out.grad.unique().tolist() == [3.0]
    assert same(w.run["2:grad_output"], out.grad)


# --- kinds of tensors -------------------------------------------------------------------------


class Tagged(Tensor):
    """A tensor subclass that does nothing."""


def test_a_tensor_subclass_is_kept() -> None:
    model, x = relu_mlp(), rows().as_subclass(Tagged)
    with tt.watch(model, "*:input,output") as w:
        out = model(x)
    assert type(out) is Tagged
    assert torch.equal(w.run[".:input"].as_subclass(Tensor), rows())
    assert torch.equal(w.run["2:output"].as_subclass(Tensor), out.as_subclass(Tensor))


def test_complex_tensors_flow_both_ways() -> None:
    x = torch.tensor([1 + 2j, 3 - 1j], requires_grad=True)
    model = Net(lambda m, x: x * 2j)
    with tt.watch(model, ".:*") as w:
        (model(x).abs() ** 2).sum().backward()
    assert w.run[".:output"].tolist() == [-4 + 2j, 2 + 6j]
    # PyTorch's convention: the gradient of |z|^2 is 2z.
    torch.testing.assert_close(w.run[".:grad_output"], 2 * x.detach() * 2j)
    torch.testing.assert_close(w.run[".:grad_input"], 8 * x.detach())


def test_sparse_tensors_are_kept() -> None:
    dense = torch.tensor([[0.0, 2.0], [0.0, 0.0]])
    model = Net(lambda m, x: x * 3)
    with tt.watch(model, ".:input,output") as w:
        model(dense.to_sparse())
    assert w.run[".:output"].layout == torch.sparse_coo
    assert torch.equal(w.run[".:output"].to_dense(), 3 * dense)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_narrow_and_wide_tensors_are_kept_bit_for_bit(dtype: torch.dtype) -> None:
    model, x = Net(lambda m, x: x * 3), rows().to(dtype).requires_grad_()
    with tt.watch(model, ".:*") as w:
        model(x).sum().backward()
    assert same(w.run[".:output"], x.detach() * 3)
    assert same(w.run[".:grad_input"], x.grad)


def test_integers_and_booleans_are_kept() -> None:
    model = Net(lambda m, x: (x.argmax(), x > 0))
    with tt.watch(model) as w:
        index, mask = model(rows())
    assert same(w.run[".:output[0]"], index)
    assert same(w.run[".:output[1]"], mask)


def test_an_empty_batch_is_kept() -> None:
    model, x = relu_mlp(), torch.empty(0, 3, requires_grad=True)
    with tt.watch(model, "*:*") as w:
        model(x).sum().backward()
    assert w.run["0:output"].shape == (0, 4)
    assert w.run["0:grad_input"].shape == (0, 3)


def test_an_expanded_gradient_is_kept_whole() -> None:
    model, x = Net(lambda m, x: x * 3), torch.ones(2, 3, requires_grad=True)
    with tt.watch(model, ".:grad_output") as w:
        model(x).sum().backward()
    assert w.run[".:grad_output"].tolist() == [[1.0] * 3] * 2


def test_a_gpt_is_watched_without_a_bit_of_change() -> None:
    model = seeded(lambda: TinyGPT(vocab=11, d=16, layers=2, heads=2, context=8))
    tokens = torch.arange(8).reshape(1, 8)

    def train() -> list[Tensor]:
        model.zero_grad()
        out = model(tokens)
        out.logsumexp(-1).sum().backward()
        return [out.detach(), *(p.grad.clone() for p in model.parameters())]

    plain = train()
    with tt.watch(model, ALL):
        watched = train()
    assert all(same(a, b) for a, b in zip(plain, watched, strict=True))

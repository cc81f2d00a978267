"""The verdict of ``tt.verify`` on models that are hard to prove says what is so, and no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from models import rows
from random_numbers import fixed_seed
from torch import Tensor, nn

import torchtap as tt
from torchtap.capture.gradient_ports import Gradients
from torchtap.core.tree import leaves
from torchtap.testing import Net

ALL = ["*:*", "*:param,param_grad,buffer"]


def made(forward: Callable[..., Any], **more: Any) -> Net:
    with fixed_seed():
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        return Net(forward, net=net, **more)


def assert_holds(result: tt.Verification) -> None:
    assert result, repr(result)
    assert result.num_values and result.num_gradients
    assert not result.unverified, repr(result)


# --- models that differentiate inside their forward -------------------------------------------


def force(m: Any, x: Tensor) -> Any:
    x = x.clone().requires_grad_()
    energy = m.net(x).sum()
    return energy, *torch.autograd.grad(energy, x, create_graph=True)


def force_without_graph(m: Any, x: Tensor) -> Any:
    x = x.clone().requires_grad_()
    (down,) = torch.autograd.grad(m.net(x).sum(), x)
    return m.net(x - down)


def force_alone(m: Any, x: Tensor) -> Any:
    """The loss reaches the modules only by ways that the inner backward made."""
    return force(m, x)[1]


def gradient_penalty(m: Any, x: Tensor) -> Any:
    between = (x / 2).requires_grad_()
    (slope,) = torch.autograd.grad(m.net(between).sum(), between, create_graph=True)
    return m.net(x).mean() + (slope.norm(dim=1) - 1).square().mean()


def several_forces(m: Any, x: Tensor) -> Any:
    x = x.clone().requires_grad_()
    out = m.net(x)
    return out, *(torch.autograd.grad(one, x, create_graph=True)[0] for one in out.unbind())


def second_order(m: Any, x: Tensor) -> Any:
    x = x.clone().requires_grad_()
    energy = m.net(x).sum()
    (slope,) = torch.autograd.grad(energy, x, create_graph=True)
    (bend,) = torch.autograd.grad(slope.square().sum(), x, create_graph=True)
    return energy, slope, bend


def inner_backward(m: Any, x: Tensor) -> Any:
    m.net(x).sum().backward()
    return m.net(x * 2)


def inner_backward_of_the_same(m: Any, x: Tensor) -> Any:
    x = x.clone().requires_grad_()
    out = m.net(x)
    out.sum().backward(retain_graph=True)
    return out, x.grad.clone()


def of_the_middle(m: Any, x: Tensor) -> Any:
    hidden = m.net[0](x)
    out = m.net[2](m.net[1](hidden))
    return out, *torch.autograd.grad(out.square().sum(), hidden, create_graph=True)


def of_a_parameter(m: Any, x: Tensor) -> Any:
    out = m.net(x)
    weight = m.net[2].weight
    (down,) = torch.autograd.grad(out.square().sum(), weight, create_graph=True)
    return nn.functional.linear(m.net[1](m.net[0](x)), weight - down)


INNER = [
    force,
    force_without_graph,
    force_alone,
    gradient_penalty,
    several_forces,
    second_order,
    inner_backward,
    inner_backward_of_the_same,
    of_the_middle,
    of_a_parameter,
]


@pytest.mark.parametrize("where", ["*:*", ALL], ids=["flow", "all"])
@pytest.mark.parametrize("forward", INNER)
def test_verify_holds_where_a_forward_differentiates(forward: Any, where: Any) -> None:
    assert_holds(tt.verify(made(forward), rows(num=2), where=where))


def test_each_backward_is_counted_for_itself() -> None:
    result = tt.verify(made(force), rows(num=2), where="net.2:grad_output")
    # One by the forward, one by the loss; two steps.
    assert result and result.num_gradients == 2 * 2
    result = tt.verify(made(several_forces), rows(num=2), where="net.2:grad_output")
    assert result and result.num_gradients == 2 * (2 + 1)


def test_verify_holds_where_a_loss_differentiates() -> None:
    given = rows(num=2).requires_grad_()

    def loss(out: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(out.sum(), given, create_graph=True)
        return out.mean() + slope.square().sum()

    assert_holds(tt.verify(made(lambda m, x: m.net(x)), given, loss=loss, where=ALL))


def test_a_force_is_proved_where_grad_mode_is_off() -> None:
    def forward(m: Any, x: Tensor) -> Any:
        with torch.enable_grad():
            return [one.detach() for one in leaves_of(force_without_graph(m, x))]

    with torch.no_grad():
        assert_holds(tt.verify(made(forward), rows(num=2)))


def leaves_of(output: Any) -> list[Tensor]:
    return [tensor for _, tensor in leaves(output)]


@pytest.mark.parametrize("which", [0, 1])
def test_one_wrong_gradient_of_two_backwards_is_found(
    monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    deliver = Gradients.deliver
    count = 0

    def scaling(self: Gradients, state: Any, *rest: Any, **phase: Any) -> None:
        nonlocal count
        *how, gradient = rest
        if str(state.site) == "net.2:grad_output":
            gradient = gradient * 2 if count % 2 == which else gradient
            count += 1
        deliver(self, state, *how, gradient, **phase)  # type: ignore[call-arg]

    monkeypatch.setattr(Gradients, "deliver", scaling)
    result = tt.verify(made(force), rows(num=2))
    assert not result and not result.changed
    assert [str(one.site) for one in result.wrong] == ["net.2:grad_output"] * 2


def test_a_backward_that_was_not_recorded_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    deliver = Gradients.deliver
    count = 0

    def dropping(self: Gradients, state: Any, *rest: Any, **phase: Any) -> None:
        nonlocal count
        count += str(state.site) == "net.2:grad_output"
        if str(state.site) != "net.2:grad_output" or count % 2:
            deliver(self, state, *rest, **phase)

    monkeypatch.setattr(Gradients, "deliver", dropping)
    result = tt.verify(made(force), rows(num=2))
    assert [(str(one.site), one.what) for one in result.wrong] == [
        ("net.2:grad_output", "2 backwards brought a gradient, and 1 were recorded")
    ]


# --- hooks of others --------------------------------------------------------------------------


def with_tensor_hook(m: Any, x: Tensor) -> Any:
    hidden = m.net[0](x)
    hidden.register_hook(lambda gradient: gradient * 3)  # As MuZero scales its gradients.
    return m.net[2](m.net[1](hidden))


def test_verify_holds_where_a_model_scales_a_gradient() -> None:
    net = made(with_tensor_hook)
    result = tt.verify(net, rows(num=2), where=ALL)
    assert_holds(result)


def test_verify_holds_with_hooks_of_the_user_on_modules() -> None:
    net = made(lambda m, x: m.net(x)).net
    net[0].register_forward_hook(lambda module, args, out: out * 2)
    net[1].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    net[2].register_full_backward_hook(lambda module, grad_in, out: (grad_in[0] * 2,))
    assert_holds(tt.verify(net, rows(num=2), where=ALL))


# --- modules that share memory ----------------------------------------------------------------


def jitters(m: Any, x: Tensor) -> Any:
    x *= 1 + torch.rand_like(x) / 10
    return m.a(x)


def routed(m: Any, x: Tensor) -> Any:
    hidden = m.net[0](x)
    weights = m.router(hidden)  # Which overwrites what is read below, as in Switch Transformers.
    return m.net[2](hidden * weights)


def test_verify_holds_where_a_module_overwrites_what_its_caller_reads() -> None:
    net = made(routed, router=Net(jitters, a=nn.Linear(4, 4)))
    result = tt.verify(net, rows(num=2), where=ALL)
    assert_holds(result)


# --- nothing was proved -----------------------------------------------------------------------


def share(m: Any, x: Tensor) -> Any:
    hidden = m.net[0](x)
    part = m.part(hidden)
    hidden.mul_(2)  # So the view that a module gave changes, too.
    return m.net[2](part)


def test_a_proof_without_any_gradient_does_not_hold() -> None:
    net = made(share, part=Net(lambda m, x: x[:, :]))
    result = tt.verify(net, rows(num=2))
    assert result.num_values > 0 and result.num_gradients == 0
    assert not (result.changed or result.wrong or result.unsteady)
    assert not result
    text = " ".join(repr(result).split())
    assert "the proof does not hold: it is incomplete." in text
    assert "gradients were recorded, and none of them could be compared" in text
    assert "where='*:input,output'" in text
    assert tt.verify(net, rows(num=2), where="*:input,output")


def test_a_proof_without_anything_does_not_hold() -> None:
    net = made(lambda m, x: m.net(x), unused=nn.Linear(3, 3))
    result = tt.verify(net, rows(num=2), where="unused")
    assert not result
    assert "nothing was recorded, so nothing was compared" in " ".join(repr(result).split())


# --- what is compiled -------------------------------------------------------------------------


def test_a_compiled_model_is_proved_uncompiled() -> None:
    plain = made(lambda m, x: m.net(x)).net
    num_values = tt.verify(plain, rows(num=2)).num_values
    result = tt.verify(torch.compile(plain, backend="eager"), rows(num=2))  # type: ignore[arg-type]
    assert_holds(result)
    assert result.num_values == num_values
    assert result.notes[0].startswith("compiled, and run uncompiled for this proof: the whole")
    assert "compiled, and run uncompiled" in " ".join(repr(result).split())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo's, of a block.
@pytest.mark.parametrize("how", ["wrapped", "in place"])
@pytest.mark.parametrize("is_warm", [False, True])
def test_compiled_parts_are_proved_uncompiled(how: str, is_warm: bool) -> None:
    blocks = [made(lambda m, x: m.net(x)).net for _ in range(2)]
    for block in blocks:
        block[2] = nn.Linear(4, 3)
    net = nn.Sequential(*blocks)
    for number, block in enumerate(blocks):
        if how == "wrapped":
            net[number] = torch.compile(block, backend="eager")  # type: ignore[assignment]
        else:
            block.compile(backend="eager")
    if is_warm:
        net(rows(num=2))
    result = tt.verify(net, rows(num=2))
    assert_holds(result)
    assert "0, 1" in result.notes[0]
    assert {entry.reason for entry in result.absent} == {"it does not require grad"}


def test_a_compiled_model_stays_compiled() -> None:
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    net = torch.compile(made(lambda m, x: m.net(x)).net, backend=backend)
    net(rows(num=2))
    num = len(graphs)
    assert num
    assert tt.verify(net, rows(num=2))  # type: ignore[arg-type]
    net(rows(num=2))
    assert len(graphs) == num  # Neither was anything compiled meanwhile, nor anew.


# --- odd modules ------------------------------------------------------------------------------


def test_a_module_that_contains_itself_can_be_proved() -> None:
    net = made(lambda m, x: m.net(x))
    net.net[1].outer = net
    assert_holds(tt.verify(net, rows(num=2), where=ALL))


class Mine(RuntimeError):
    """A class of the user."""


@pytest.mark.parametrize("place", ["forward", "loss"])
def test_an_exception_keeps_its_type(place: str) -> None:
    def breaks(*_: Any) -> Any:
        raise Mine(place)

    net = made(breaks if place == "forward" else lambda m, x: m.net(x))
    with pytest.raises(Mine, match=place):
        tt.verify(net, rows(num=2), loss=breaks)


def test_verify_holds_under_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert_holds(tt.verify(made(lambda m, x: m.net(x)), rows(num=2), where=ALL))


def test_a_parameter_that_the_forward_writes_is_put_back() -> None:
    def halves(m: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            m.net[0].weight.mul_(0.5)
        return m.net(x)

    net = made(halves)
    before = net.net[0].weight.detach().clone()
    assert_holds(tt.verify(net, rows(num=2), where=ALL))
    assert torch.equal(net.net[0].weight, before)


def test_a_buffer_that_the_forward_replaces_is_the_same_object_afterwards() -> None:
    def counts(m: Any, x: Tensor) -> Tensor:
        m.count = m.count + 1
        return m.net(x)

    net = made(counts, count=torch.tensor(7))
    held = net.count
    assert tt.verify(net, rows(num=2))
    assert net.count is held


def test_parameters_of_a_wrapped_model_are_proved() -> None:
    net = nn.DataParallel(made(lambda m, x: m.net(x)).net)
    assert_holds(tt.verify(net, rows(num=2), where=ALL))


# --- calls outside of the training forward ------------------------------------------------------


class Adjoint(torch.autograd.Function):
    """Runs a module again in the backward, on something else than in the forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, module: nn.Module) -> Any:
        ctx.module = module
        ctx.save_for_backward(x)
        with torch.no_grad():
            return module(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        start = (ctx.saved_tensors[0] + 1).detach().requires_grad_()
        with torch.enable_grad():
            end = ctx.module(start)
        return torch.autograd.grad(end, start, grads)[0], None


def adjoint(m: Any, x: Tensor) -> Any:
    return Adjoint.apply(m.head(x), m.net)


def test_records_of_a_backward_that_were_not_compared_are_named() -> None:
    model = made(adjoint, head=nn.Linear(3, 3))
    result = tt.verify(model, rows(num=2))
    assert result
    unproved = {str(entry.site): entry.reason for entry in result.unverified}
    assert "phase 'backward'" in unproved["net.0:input"]
    assert "phase 'backward'" in unproved["net:output"]
    assert not any(site.startswith("head") for site in unproved)
    assert not tt.verify(model, rows(num=2), where="net:grad_output"), "no gradient was compared"


def test_an_evaluation_inside_the_loss_is_compared() -> None:
    model = made(lambda m, x: m.net(x))

    def distance(output: Tensor) -> Tensor:
        model.eval()
        with torch.no_grad():
            target = model(rows(num=2) + 1)
        model.train()
        return (output - target).square().sum()

    result = tt.verify(model, rows(num=2), loss=distance)
    assert_holds(result)
    once = tt.verify(model, rows(num=2), where="*:input,output")
    assert tt.verify(model, rows(num=2), loss=distance, where="*:input,output").num_values == (
        2 * once.num_values
    )

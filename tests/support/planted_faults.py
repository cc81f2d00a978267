"""Small trainings with one planted fault each, which makes an Inf or NaN at a line that is known.

The line ends in the comment ``# fault``. Phase, operation, module and call are written by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from torchtap.testing import Net

F = nn.functional
Step = Callable[..., Tensor]
Body = Callable[..., Any]
SAMPLES, WIDTH = 6, 4


@dataclass
class Planted:
    """A training of one step, and where it goes wrong.

    Attributes:
        model: in it or around it is the fault.
        expected: phase, operation, module and call.
        loss: of the model's output and the target.
        batch: of the step: inputs, then the target.
        optimizer: makes one of the parameters.
        clip: called with the parameters before the optimizer's step.
        has_line: whether an operation of the step made it.
        in_model: whether it is seen without the step function.
        rows: the samples that do it alone, where only some do.
    """

    model: nn.Module
    expected: tuple[str, str, str | None, int]
    loss: Callable[..., Tensor] = lambda out, *_: out.square().mean()
    batch: tuple[Any, ...] = ()
    optimizer: Callable[[Any], torch.optim.Optimizer] = field(
        default=lambda params: torch.optim.SGD(params, lr=0.01)
    )
    clip: Callable[[Any], object] = lambda params: None
    has_line: bool = True
    in_model: bool = True
    rows: tuple[int, ...] | None = None

    def step(self, optimizer: torch.optim.Optimizer) -> Step:
        """Return the whole step as a function of the batch."""

        def step(*batch: Any) -> Tensor:
            optimizer.zero_grad()
            loss = self.loss(self.model(batch[0]), *batch[1:])
            loss.backward()
            self.clip(list(self.model.parameters()))
            optimizer.step()
            return loss

        return step


def _x(scale: float = 1.0, shift: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(SAMPLES, WIDTH, generator=generator) * scale + shift


def _linear(out: int = WIDTH, **kwargs: Any) -> nn.Linear:
    torch.manual_seed(5)
    return nn.Linear(WIDTH, out, **kwargs)


def _eye() -> nn.Linear:
    linear = _linear()
    with torch.no_grad():
        linear.weight.copy_(torch.eye(WIDTH))
        linear.bias.zero_()
    return linear


def _part(body: Callable[..., Any], expected: tuple[str, str], **kwargs: Any) -> Planted:
    """A fault in the module ``part`` between two linear layers."""
    parts = kwargs.pop("parts", {})
    model = Net(
        lambda m, x: m.last(m.part(m.first(x))),
        first=_eye(),
        part=Net(body, **parts),
        last=_linear(),
    )
    kwargs.setdefault("batch", (_x(),))
    return Planted(model, (*expected, "part", 0), **kwargs)


# ---------------------------------------------------------------------- forward


def log_of_negative() -> Planted:
    def body(m: Net, x: Tensor) -> Any:
        return torch.log(x)  # fault

    return _part(body, ("forward", "log"))


def division_by_zero() -> Planted:
    def body(m: Net, x: Tensor) -> Any:
        count = (x > 100).sum(1, keepdim=True)
        return x / count  # fault

    return _part(body, ("forward", "div"))


def exp_overflow_in_one_sample() -> Planted:
    def body(m: Net, x: Tensor) -> Any:
        return torch.exp(x)  # fault

    x = _x()
    x[2] = 200.0
    return _part(body, ("forward", "exp"), batch=(x,), rows=(2,))


def norm_of_two_rows() -> Planted:
    def body(m: Net, x: Tensor) -> Any:
        return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)  # fault

    x = _x()
    x[1], x[4] = 2.0, 3.0
    return _part(body, ("forward", "div"), batch=(x,), rows=(1, 4))


def half_product_overflow() -> Planted:
    def body(m: Net, x: Tensor) -> Any:
        half = x.half() * 300
        wide = half * half  # fault
        return (wide - wide.amax(1, keepdim=True)).float()

    return _part(body, ("forward", "mul"), batch=(_x(10),))


def half_matmul_overflow() -> Planted:
    def body(m: Net, x: Tensor) -> Any:
        q = (x * 200).half()
        scores = q @ q.T  # fault
        return torch.softmax(scores, -1).float() @ x

    return _part(body, ("forward", "mm"), batch=(_x(2),))


def row_of_minus_inf() -> Planted:
    def body(m: Net, x: Tensor) -> Any:
        mask = torch.zeros(SAMPLES, SAMPLES).tril()
        mask = mask.masked_fill(torch.ones(SAMPLES, SAMPLES).tril() > 0, float("-inf"))
        scores = x @ x.T + mask
        return torch.softmax(scores, -1) @ x  # fault

    return _part(body, ("forward", "_softmax"))


def mask_times_inf() -> Planted:
    def body(m: Net, x: Tensor) -> Any:
        keep = torch.ones(SAMPLES, SAMPLES).tril()
        mask = (1 - keep) * float("-inf")  # fault
        return torch.softmax(x @ x.T + mask, -1) @ x

    return _part(body, ("forward", "mul"))


def log_behind_a_good_mask() -> Planted:
    def body(m: Net, x: Tensor) -> Any:
        hidden = torch.full((SAMPLES, SAMPLES), float("-inf")).triu(1)
        mixed = torch.softmax(x @ x.T + hidden, -1) @ x
        return (mixed - 9).log()  # fault

    return _part(body, ("forward", "log"))


def third_call() -> Planted:
    def body(m: Net, x: Tensor) -> Any:
        return x * x.square()  # fault

    square = Net(body)

    def forward(m: Net, x: Tensor) -> Tensor:
        for _ in range(4):
            x = m.power(m.mix(x))
        return x

    model = Net(forward, mix=_eye(), power=square)
    return Planted(model, ("forward", "mul", "power", 2), batch=(_x(0, 100),))


def variance_of_one_sample() -> Planted:
    def body(m: Net, x: Tensor) -> Any:
        return (x - x.mean(0)).square().sum(0) / (len(x) - 1)  # fault

    return _part(body, ("forward", "div"), batch=(_x()[:1],))


def layer_norm_without_eps() -> Planted:
    class Norm(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            return F.layer_norm(x, (WIDTH,), None, None, 0.0)  # fault

    model = Net(
        lambda m, x: m.last(m.norm(m.first(x))), first=_eye(), norm=Norm(WIDTH), last=_linear()
    )
    return Planted(
        model, ("forward", "native_layer_norm", "norm", 0), batch=(torch.ones(SAMPLES, WIDTH),)
    )


def in_place_pow() -> Planted:
    def body(m: Net, x: Tensor) -> Any:
        y = x.clone()
        y.pow_(0.5)  # fault
        return y

    return _part(body, ("forward", "pow_"))


def write_at_an_index() -> Planted:
    def body(m: Net, x: Tensor) -> Any:
        y = torch.zeros_like(x)
        y[:, 1] = x[:, 1] - x[:, 1]
        z = x[:, 2] / y[:, 1].clone()  # fault
        y[:, 3] = z
        return y + x

    return _part(body, ("forward", "div"))


def through_a_view() -> Planted:
    def body(m: Net, x: Tensor) -> Any:
        y = x.clone()
        y.view(-1)[::2].sub_(50).log_()  # fault
        return y

    return _part(body, ("forward", "log_"))


def into_out() -> Planted:
    def body(m: Net, x: Tensor) -> Any:
        target = torch.full_like(x, float("nan"))
        with torch.no_grad():
            torch.sqrt(x.detach(), out=target)  # fault
        return x * target

    return _part(body, ("forward", "sqrt"))


def acos_beyond_one() -> Planted:
    def body(m: Net, x: Tensor) -> Any:
        return torch.acos(1.0001 * F.normalize(x, dim=1)[:, :1]) + x  # fault

    x = _x(0, 0)
    x[:, 0] = 1
    return _part(body, ("forward", "acos"), batch=(x,))


def tan_in_branch_of_a_dict() -> Planted:
    def body(m: Net, x: Tensor) -> Any:
        held: dict[str, Any] = {"a": x, "b": [torch.atanh(x)]}  # fault
        return held["a"] + held["b"][0]

    return _part(body, ("forward", "atanh"), batch=(_x(3),))


def decoy_absorbed_by_where() -> Planted:
    def body(m: Net, x: Tensor) -> Any:
        with torch.no_grad():
            safe = torch.where(x > 0, torch.log(x), 0.0)
        return (x * safe - 100).sqrt()  # fault

    return _part(body, ("forward", "sqrt"))


def attention_of_pytorch() -> Planted:
    def body(m: Net, x: Tensor) -> Any:
        q = x.view(1, 1, SAMPLES, WIDTH)
        wide = q * 1e25 * 1e25  # fault
        return F.scaled_dot_product_attention(q, wide, q).view(SAMPLES, WIDTH)

    return _part(body, ("forward", "mul"))


def complex_division() -> Planted:
    def body(m: Net, x: Tensor) -> Any:
        spectrum = torch.fft.fft(x)
        return torch.fft.ifft(spectrum / (spectrum - spectrum)).real  # fault

    return _part(body, ("forward", "div"))


def functional_call() -> Planted:
    def inner(m: Net, x: Tensor) -> Any:
        return (x @ m.weight).log()  # fault

    part = Net(inner, weight=nn.Parameter(torch.eye(WIDTH)))

    def forward(m: Net, x: Tensor) -> Tensor:
        lent = {"weight": m.part.weight * 2}
        out: Tensor = torch.func.functional_call(m.part, lent, (x,))
        return out

    return Planted(Net(forward, part=part), ("forward", "log", "part", 0), batch=(_x(),))


def scripted() -> Planted:
    model = Net(lambda m, x: m.last(x).rsqrt(), last=_eye())  # fault
    return Planted(model, ("forward", "rsqrt", ".", 0), batch=(_x(),))


# ---------------------------------------------------------------------- backward


def sqrt_at_zero() -> Planted:
    def body(m: Net, x: Tensor) -> Any:
        return torch.sqrt(x * (x > 0))  # fault

    return _part(body, ("backward", "div"))


def where_twice() -> Planted:
    def body(m: Net, x: Tensor) -> Any:
        return torch.where(x > 0, torch.log(x * (x > 0)), x)  # fault

    return _part(body, ("backward", "div"))


def norm_at_zero() -> Planted:
    def body(m: Net, x: Tensor) -> Any:
        y = x - x
        return x + y.square().sum(1, keepdim=True).sqrt()  # fault

    return _part(body, ("backward", "div"))


def custom_backward() -> Planted:
    class Halve(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x / 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            zero = x - x
            return gradient * (zero / zero)  # fault

    halve: Any = Halve.apply
    return _part(lambda m, x: halve(x), ("backward", "div"))


def checkpoint_of_both_kinds(use_reentrant: bool) -> Planted:
    def inner(x: Tensor) -> Tensor:
        return torch.sqrt(x * (x > 0))  # fault

    def body(m: Net, x: Tensor) -> Any:
        return checkpoint(inner, x, use_reentrant=use_reentrant)

    return _part(body, ("backward", "div"))


def checkpointed() -> Planted:
    return checkpoint_of_both_kinds(use_reentrant=False)


def checkpointed_reentrant() -> Planted:
    return checkpoint_of_both_kinds(use_reentrant=True)


def second_call_in_checkpoint() -> Planted:
    def inner(m: Net, x: Tensor) -> Any:
        return (x * (x > 0)).sqrt() if m.count else x  # fault

    part: Any = Net(inner)
    part.count = 0

    def forward(m: Net, x: Tensor) -> Tensor:
        for count in range(3):

            def run(y: Tensor, count: int = count) -> Tensor:
                m.part.count = count == 1
                out: Tensor = m.part(m.lin(y))
                return out

            x = checkpoint(run, x, use_reentrant=False)
        return x

    model = Net(forward, lin=_eye(), part=part)
    return Planted(model, ("backward", "div", "part", 1), batch=(_x(),))


def exp_absorbed_in_forward() -> Planted:
    def body(m: Net, x: Tensor) -> Any:
        wide = torch.exp(x)  # fault
        return torch.where(x < 10, wide, x)

    x = _x()
    x[3, 1] = 200.0
    return _part(body, ("forward", "exp"), batch=(x,), rows=(3,))


def hook_on_a_tensor() -> Planted:
    def body(m: Net, x: Tensor) -> Any:
        y = x * 2
        hook: Any = y.register_hook
        hook(lambda g: g / (g - g))  # fault
        return y

    return _part(body, ("backward", "div"))


# ---------------------------------------------------------------------- around the model


def inf_in_data() -> Planted:
    x = _x()
    x[4, 2] = float("inf")
    return Planted(
        Net(lambda m, x: m.fc(x), fc=_linear()),
        ("input", "", ".", 0),
        batch=(x,),
        has_line=False,
        rows=(4,),
    )


def nan_weight() -> Planted:
    model = Net(lambda m, x: m.last(m.fc(x)), fc=_linear(), last=_linear())
    with torch.no_grad():
        model.last.weight[1, 1] = float("nan")
    return Planted(model, ("parameter", "", "last", 0), batch=(_x(),), has_line=False)


def inf_buffer() -> Planted:
    norm = nn.BatchNorm1d(WIDTH).eval()
    with torch.no_grad():
        norm.running_mean[0] = float("inf")
    model = Net(lambda m, x: m.norm(m.fc(x)), fc=_linear(), norm=norm)
    return Planted(model, ("parameter", "", "norm", 0), batch=(_x(),), has_line=False)


def loss_of_log_zero() -> Planted:
    def loss(out: Tensor, target: Tensor) -> Tensor:
        chances = torch.softmax(out * 1e4, 1)
        return -(target * torch.log(chances)).mean()  # fault

    target = torch.full((SAMPLES, WIDTH), 0.25)
    return Planted(_eye(), ("forward", "log", None, 0), loss, (_x(), target), in_model=False)


def adam_without_eps() -> Planted:
    model = Net(lambda m, x: m.used(x), used=_linear())
    return Planted(
        model,
        ("optimizer", "addcdiv_", None, 0),
        lambda out, *_: out[:, :2].sum(),
        (_x(),),
        lambda params: torch.optim.Adam(params, lr=0.1, eps=0.0),
        has_line=False,
        in_model=False,
    )


def clipping_a_zero_norm() -> Planted:
    def clip(params: list[nn.Parameter]) -> None:
        norm = torch.stack([one.grad.norm() for one in params if one.grad is not None]).norm()
        for one in params:
            assert one.grad is not None
            one.grad.div_(norm)  # fault

    return Planted(
        _linear(),
        ("forward", "div_", None, 0),
        lambda out, *_: out.sum() * 0,
        (_x(),),
        clip=clip,
        in_model=False,
    )


PLANTED: dict[str, Callable[[], Planted]] = {
    made.__name__: made
    for made in (
        log_of_negative,
        division_by_zero,
        exp_overflow_in_one_sample,
        norm_of_two_rows,
        half_product_overflow,
        half_matmul_overflow,
        row_of_minus_inf,
        mask_times_inf,
        log_behind_a_good_mask,
        third_call,
        variance_of_one_sample,
        layer_norm_without_eps,
        in_place_pow,
        write_at_an_index,
        through_a_view,
        into_out,
        acos_beyond_one,
        tan_in_branch_of_a_dict,
        decoy_absorbed_by_where,
        attention_of_pytorch,
        complex_division,
        functional_call,
        scripted,
        sqrt_at_zero,
        where_twice,
        norm_at_zero,
        custom_backward,
        checkpointed,
        checkpointed_reentrant,
        second_call_in_checkpoint,
        exp_absorbed_in_forward,
        hook_on_a_tensor,
        inf_in_data,
        nan_weight,
        inf_buffer,
        loss_of_log_zero,
        adam_without_eps,
        clipping_a_zero_norm,
    )
}
"""Name -> the training."""

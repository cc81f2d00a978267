"""Faults of the forward, inside of the model."""

from __future__ import annotations

import torch
from faulty_steps.planted import Op, Planted, Training, sequence, training
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

functional = nn.functional
INF = float("inf")


def _log() -> Training:
    return sequence(lambda x: (x - 9).log())  # here: log_of_negative


def _product() -> Training:
    return sequence(lambda x: (x + 300) * (x + 300), half=True)  # here: product_in_half


def _matmul() -> Training:
    def op(x: Tensor) -> Tensor:
        y = (x + 300) @ (x + 300).T  # cause: matmul_in_half
        return (y - y) @ x  # here: matmul_in_half

    return sequence(op, half=True)


def _exp() -> Training:
    return sequence(lambda x: (x + 100).exp())  # here: exp_overflows


def _softmax() -> Training:
    def op(x: Tensor) -> Tensor:
        hidden = torch.ones_like(x, dtype=torch.bool).tril()
        scores = x.masked_fill(hidden, -INF)
        return scores.softmax(-1)  # here: softmax_of_hidden_row

    return sequence(op, width=5)


def _mask_then_log() -> Training:
    def op(x: Tensor) -> Tensor:
        hidden = torch.ones(6, 6).triu(1).bool()
        seen = x.new_zeros(6, 6).masked_fill(hidden, -INF).softmax(-1)
        return (x @ seen - 9).log()  # here: mask_is_meant

    return sequence(op)


def _division() -> Training:
    return sequence(lambda x: x / (x.sign() - x.sign()))  # here: division_by_zero


class _Shared(nn.Module):
    """One module in three places; it is fine twice."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(4, 6)
        self.root = Op(lambda x: x.sqrt())  # here: third_call

    def forward(self, x: Tensor) -> Tensor:
        """Square, square, and a negative."""
        x = self.enter(x)
        return self.root(x.square() + 1) + self.root(x.square() + 2) + self.root(-x.square() - 1)


def _third() -> Training:
    return training(_Shared(), torch.randn(5, 4))


def _std() -> Training:
    made = sequence(lambda x: x / x.std(0))  # here: batch_of_one
    return made._replace(batch=(made.batch[0][:1],))


def _layer_norm() -> Training:
    def op(x: Tensor) -> Tensor:
        flat = x * 0 + 1
        return functional.layer_norm(flat, (6,), eps=0.0)  # here: layer_norm_without_eps

    return sequence(op)


def _in_place() -> Training:
    def op(x: Tensor) -> Tensor:
        y = x.relu() * 0
        y.pow_(-1)  # here: pow_in_place
        return y

    return sequence(op)


def _checkpoint(reentrant: bool) -> Training:
    name = {False: _inner_log, True: _inner_sqrt}[reentrant]
    return sequence(lambda x: checkpoint(name, x, use_reentrant=reentrant))


def _inner_log(x: Tensor) -> Tensor:
    return (x - 9).log()  # here: in_checkpoint


def _inner_sqrt(x: Tensor) -> Tensor:
    return (x - 9).sqrt()  # here: in_reentrant_checkpoint


def _row() -> Training:
    made = sequence(lambda x: (x + 100).log())  # here: one_row
    bad = made.batch[0].clone()
    weight = made.model.get_parameter("0.weight")
    bad[3] = -1000 * weight[0].detach()
    return made._replace(batch=(bad,))


def _index() -> Training:
    def op(x: Tensor) -> Tensor:
        kept = torch.zeros_like(x)
        kept[:, 2] = (x[:, 2] - 9).log()  # here: write_at_index
        return kept + x

    return sequence(op)


def _view() -> Training:
    def op(x: Tensor) -> Tensor:
        y = x * 1
        y.view(-1)[3:5].div_(torch.zeros(2))  # here: write_through_view
        return y

    return sequence(op)


def _out() -> Training:
    def op(x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = torch.empty_like(x)
            torch.log(x - 9, out=scale)  # here: out_argument
        return x * scale

    return sequence(op)


def _straight() -> Training:
    def op(x: Tensor) -> Tensor:
        step = x.detach().new_zeros(())
        rounded = torch.round(x / step)  # here: straight_through
        return x + (rounded - x).detach()

    return sequence(op)


def _complex() -> Training:
    def op(x: Tensor) -> Tensor:
        z = torch.fft.rfft(x * 0)
        return torch.fft.irfft(z.log(), n=6)  # here: log_of_complex_zero

    return sequence(op)


def _support() -> Training:
    def op(x: Tensor) -> Tensor:
        gamma = torch.distributions.Gamma(torch.tensor(2.0), torch.tensor(1.0), validate_args=False)
        return gamma.log_prob(x - 9)

    return sequence(op)


def _attention() -> Training:
    """Scores of attention overflow in fp16, and the softmax of an Inf is NaN."""

    def op(x: Tensor) -> Tensor:
        q = (x + 1) * 300
        scores = q @ q.T  # cause: attention_in_half
        return scores.softmax(-1) @ x  # here: attention_in_half

    return sequence(op, half=True)


def _reciprocal() -> Training:
    return sequence(lambda x: (x * 0).reciprocal() * x)  # here: reciprocal_of_zero


def _normalised() -> Training:
    def op(x: Tensor) -> Tensor:
        y = x * 0
        return y / y.norm(dim=-1, keepdim=True)  # here: zero_over_its_norm

    return sequence(op)


def _log_softmax() -> Training:
    def op(x: Tensor) -> Tensor:
        y = torch.where(torch.ones_like(x, dtype=torch.bool), -INF, x)
        return y.log_softmax(-1)  # here: log_softmax_of_nothing

    return sequence(op)


def _chunk() -> Training:
    def op(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([a, torch.acos(b + 9)], -1)  # here: acos_outside

    return sequence(op)


def _fine_mask() -> Training:
    def op(x: Tensor) -> Tensor:
        hidden = torch.ones(5, 5).triu(1).bool()
        return (x @ x.T).masked_fill(hidden, -INF).softmax(-1) @ x

    return sequence(op)


def _fine_where() -> Training:
    return sequence(lambda x: torch.where(x.detach() > 99, (x.detach() - 99).log(), x))


def _fine_max() -> Training:
    def op(x: Tensor) -> Tensor:
        best = x.new_full((5,), -INF)
        return x - torch.maximum(best, x.amax(-1)).unsqueeze(-1)

    return sequence(op)


FAULTS = [
    Planted("log_of_negative", _log, operations=("log",)),
    Planted("product_in_half", _product, operations=("mul",)),
    Planted("matmul_in_half", _matmul, operations=("sub",), cause=("mm",)),
    Planted("exp_overflows", _exp, operations=("exp",)),
    Planted("softmax_of_hidden_row", _softmax, operations=("_softmax",)),
    Planted("mask_is_meant", _mask_then_log, operations=("log",)),
    Planted("division_by_zero", _division, operations=("div",)),
    Planted("third_call", _third, operations=("sqrt",), module="root", call=2),
    Planted("batch_of_one", _std, operations=("std", "var")),
    Planted("layer_norm_without_eps", _layer_norm, operations=("native_layer_norm",)),
    Planted("pow_in_place", _in_place, operations=("pow", "reciprocal")),
    Planted("in_checkpoint", lambda: _checkpoint(False), operations=("log",)),
    Planted("in_reentrant_checkpoint", lambda: _checkpoint(True), operations=("sqrt",)),
    Planted("one_row", _row, operations=("log",), rows=(3,)),
    Planted("write_at_index", _index, operations=("log",)),
    Planted("write_through_view", _view, operations=("div",)),
    Planted("out_argument", _out, operations=("log",)),
    Planted("straight_through", _straight, operations=("div",)),
    Planted("log_of_complex_zero", _complex, operations=("log",)),
    Planted("outside_of_support", _support, operations=("log", "xlogy")),
    Planted("attention_in_half", _attention, operations=("_softmax",), cause=("mm",)),
    Planted("reciprocal_of_zero", _reciprocal, operations=("reciprocal",)),
    Planted("zero_over_its_norm", _normalised, operations=("div",)),
    Planted("log_softmax_of_nothing", _log_softmax, operations=("_log_softmax",)),
    Planted("acos_outside", _chunk, operations=("acos",)),
]
FINE = [
    Planted("causal_mask", _fine_mask),
    Planted("absorbed_by_where", _fine_where),
    Planted("maximum_from_minus_infinity", _fine_max),
]

"""Torchtap does not see what ``docs/reference/limits.md`` lists, and says so."""

from __future__ import annotations

from typing import Any

import torch
from absent import reasons
from torch import Tensor, nn

import torchtap as tt


def test_a_plain_expression_is_seen_only_when_it_is_marked() -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return tt.mark(x * 2, "marked") + (x * 3)

    model = Net()
    with tt.watch(model, ["*", "marked"]) as w:
        model(torch.ones(2))
    assert [str(site) for site in w.run.sites] == [".:output", "marked:output"]


def test_a_func_transform_is_reported() -> None:
    model = nn.Linear(2, 2)
    with tt.watch(model) as w:
        torch.func.vmap(model)(torch.ones(3, 2))
    assert "torch.func" in reasons(w)[".:output"]


def test_a_model_that_was_compiled_before_is_reported() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    compiled: Any = torch.compile(model, backend="eager")
    try:
        compiled(torch.ones(1, 2))
        with tt.watch(compiled, "0") as w:
            compiled(torch.ones(1, 2))
    finally:
        torch.compiler.reset()
    assert not len(w.run)
    assert "torch.compiler.reset()" in reasons(w)["0:output"]


def test_a_function_beside_a_tensor_is_reported_where_no_graph_is_compiled() -> None:
    class Part(nn.Module):
        def forward(self, x: Tensor) -> Any:
            y = x * 2
            return y, lambda: y

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = Part()

        def forward(self, x: Tensor) -> Tensor:
            return self.part(x)[0] + 1

    def absent(is_compiled: bool) -> list[str]:
        model = Net()
        called: Any = torch.compile(model, backend="eager") if is_compiled else model
        with tt.watch(called, "part", to=tt.Stats()) as w:
            called(torch.ones(2))
        return list(reasons(w))

    try:
        assert (absent(False), absent(True)) == (["part:output[1]"], [])
    finally:
        torch.compiler.reset()


def test_the_insides_of_a_fused_encoder_layer_are_reported() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    with tt.watch(layer, "*") as w, torch.no_grad():
        layer(torch.ones(1, 3, 8))
    assert ".:output" in w.run
    assert "fused" in reasons(w)["linear1:output"]


def test_the_projection_that_attention_never_calls_is_reported() -> None:
    attention = nn.MultiheadAttention(8, 2)
    with tt.watch(attention, "*") as w:
        attention(*[torch.ones(3, 1, 8)] * 3)
    assert list(reasons(w)) == ["out_proj:output"]
    assert "out_proj" in reasons(w)["out_proj:output"]


def test_a_module_that_returns_a_tuple_is_not_absent_as_a_bare_tensor() -> None:
    lstm = nn.LSTM(2, 3)
    with tt.watch(lstm, ".:output,grad_output") as w:
        lstm(torch.ones(4, 1, 2))[0].sum().backward()
    assert {site.leaf for site in w.run.sites} == {"0", "1.0", "1.1"}
    assert reasons(w).keys() <= {".:grad_output[1.0]", ".:grad_output[1.1]"}


def test_a_module_that_was_not_called_says_why() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    model = Net()
    with tt.watch(model, "*:output,grad_output") as w:
        model(torch.ones(1, 2)).sum().backward()
    assert reasons(w).keys() == {"unused:output", "unused:grad_output"}
    assert all("was not called" in reason for reason in reasons(w).values())


def test_a_write_that_autograd_does_not_count_needs_copies() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            out = self.inner(x)
            out.data.add_(100)
            return out

    model, x = Net(), torch.ones(1, 2)
    truth = model.inner(x).detach()
    with tt.watch(model, "inner", copy="always") as w:
        for _ in range(3):
            model(x)
            w.step()
    assert all(torch.equal(record.value, truth) for record in w.run.records())


def test_an_output_replaced_by_a_later_hook_shows_at_the_next_input() -> None:
    model = nn.Sequential(nn.Identity(), nn.Identity())
    with tt.watch(model, ["0:output", "1:input"]) as w:
        model[0].register_forward_hook(lambda module, args, out: out + 1)
        model(torch.zeros(1))
    assert w.run["0:output"] == 0
    assert w.run["1:input"] == 1

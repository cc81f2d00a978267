"""The graph of an execution, against plain hooks and the lines of the programs."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchtap as tt
from torchtap.testing import Specimen, default_loss, zoo

_ZOO = [one for one in zoo() if one.raises is None]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.relu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, num: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(num))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def line_of(function: Any, text: str) -> str:
    lines, start = inspect.getsourcelines(function)
    (offset,) = (number for number, line in enumerate(lines) if text in line)
    return f"{inspect.getsourcefile(function)}:{start + offset}"


@pytest.mark.parametrize("specimen", _ZOO, ids=str)
def test_calls_are_those_that_plain_hooks_see(specimen: Specimen) -> None:
    model = specimen.build()
    seen: list[tuple[str, int]] = []
    stack: list[str] = []
    paths = {id(module): path for path, module in model.named_modules()}

    def enter(module: nn.Module, _: Any) -> None:
        seen.append((paths[id(module)], len(stack)))
        stack.append(paths[id(module)])

    handles = []
    for module in model.modules():
        handles.append(module.register_forward_pre_hook(enter))
        handles.append(module.register_forward_hook(lambda *_: stack.__delitem__(-1)))
    fastpath = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    args, kwargs = specimen.inputs()
    try:
        model(*args, **kwargs)
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)
    for handle in handles:
        handle.remove()
    args, kwargs = specimen.inputs()
    found = tt.graph(specimen.build(), *args, **kwargs)
    levels: dict[int, int] = {-1: -1}
    for call in found.calls:
        levels[call.id] = levels[call.above] + 1
    assert [(call.path, levels[call.id]) for call in found.calls] == seen


@pytest.mark.parametrize("specimen", _ZOO, ids=str)
def test_following_a_model_changes_nothing(specimen: Specimen) -> None:
    plain, followed = specimen.build(), specimen.build()
    hooks = {path: list(one._forward_hooks) for path, one in followed.named_modules()}
    buffers = {name: one.clone() for name, one in followed.named_buffers()}
    state = torch.get_rng_state()
    args, kwargs = specimen.inputs()
    tt.graph(followed, *args, **kwargs)
    assert torch.equal(torch.get_rng_state(), state)
    assert {path: list(one._forward_hooks) for path, one in followed.named_modules()} == hooks
    for name, buffer in followed.named_buffers():
        assert torch.equal(buffer, buffers[name])
    assert all(param.grad is None for param in followed.parameters())
    losses: list[Any] = []
    for model in (plain, followed):
        torch.manual_seed(0)
        args, kwargs = specimen.inputs()
        losses.append(default_loss(model(*args, **kwargs)))
    assert (losses[0] is None) == (losses[1] is None)
    assert losses[0] is None or torch.equal(losses[0], losses[1]) or losses[0].isnan()


def test_modules_and_functions_stand_in_the_order_in_which_they_ran() -> None:
    found = tt.graph(Net(1), torch.ones(3, 4))
    assert [(node.name, node.path) for node in found.order()] == [
        ("input", "x"),
        ("LayerNorm", "blocks.0.norm"),
        ("Linear", "blocks.0.up"),
        ("relu", "blocks.0"),
        ("Linear", "blocks.0.down"),
        ("add", "blocks.0"),
        ("Linear", "head"),
        ("output", ""),
    ]


def test_arrows_have_the_shapes_and_dtypes_that_flow() -> None:
    found = tt.graph(Net(1), torch.ones(3, 4))
    names = [node.path or node.name for node in found.nodes]
    flows = {(names[one.source], names[one.target]): str(one.type) for one in found.edges}
    assert flows == {
        ("x", "blocks.0.norm"): "float32[3, 4]",
        ("blocks.0.norm", "blocks.0.up"): "float32[3, 4]",
        ("blocks.0.up", "blocks.0"): "float32[3, 8]",
        ("blocks.0", "blocks.0.down"): "float32[3, 8]",
        ("x", "blocks.0"): "float32[3, 4]",
        ("blocks.0.down", "blocks.0"): "float32[3, 4]",
        ("blocks.0", "head"): "float32[3, 4]",
        ("head", "output"): "float32[3, 2]",
    }


def test_a_module_that_is_called_twice_is_two_nodes_with_their_calls() -> None:
    layer = nn.Linear(3, 3)
    found = tt.graph(nn.Sequential(layer, nn.ReLU(), layer), torch.ones(1, 3))
    assert [node.note for node in found.find("Linear")] == ["call 1 of 2", "call 2 of 2"]


def test_a_module_that_hands_its_input_on_stays_in_the_way() -> None:
    found = tt.graph(nn.Sequential(nn.Identity(), nn.Linear(2, 2)), torch.ones(1, 2))
    names = [node.name for node in found.nodes]
    assert [(names[one.source], names[one.target]) for one in found.edges] == [
        ("input", "Identity"),
        ("Identity", "Linear"),
        ("Linear", "output"),
    ]


def test_a_custom_function_is_found_by_its_node() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * 2

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.two(Twice.apply(self.one(x)))

    found = tt.graph(Model(), torch.ones(1, 2))
    assert [(node.name, node.kind) for node in found.nodes][1:4] == [
        ("Linear", "module"),
        ("Twice", "custom function"),
        ("Linear", "module"),
    ]


def test_a_forward_that_raises_is_followed_up_to_the_module_that_raised() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.ReLU(), nn.Linear(9, 2)))
    found = tt.graph(model, torch.ones(3, 4))
    assert [call.path for call in found.calls if call.has_raised] == ["", "1", "1.1"]
    assert re.match(r"RuntimeError: (addmm: )?mat1 and mat2 shapes cannot be", found.error)
    assert [(node.name, node.path) for node in found.nodes][-2:] == [
        ("ReLU", "1.0"),
        ("RuntimeError", "1.1"),
    ]
    assert "the forward raised here" in found.svg()


def test_an_exception_that_the_model_catches_ends_nothing() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bad, self.good = nn.Linear(9, 2), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.bad(x)
            except RuntimeError:
                return self.good(x)

    found = tt.graph(Model(), torch.ones(1, 4))
    assert found.error == ""
    assert [(call.path, call.has_raised) for call in found.calls] == [
        ("", False),
        ("bad", True),
        ("good", False),
    ]


# ---------------------------------------------------------------------- why there is no gradient


class Cut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in ("detached", "under", "whole", "item", "unused", "dropped", "fine", "frozen"):
            setattr(self, name, nn.Linear(2, 2))
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        a = self.detached(x).detach()
        with torch.no_grad():
            b = self.under(x)
        c = self.whole(x).argmax(1)
        d = self.item(x).sum().item()
        self.dropped(x)
        return self.fine(x) + a + b + c[:, None] + d + self.frozen(x)


@pytest.mark.parametrize("autograd", [False, True])
@pytest.mark.parametrize(
    ("module", "text", "reason"),
    [
        ("detached", ".detach()", "detaches its result from the graph"),
        ("under", "b = self.under", "ran under no_grad"),
        ("whole", "argmax", "returns int64, which carries no gradient"),
        ("item", ".item()", "takes the values out of PyTorch"),
    ],
)
def test_the_line_that_cuts_a_parameter_off_is_named(
    module: str, text: str, reason: str, autograd: bool
) -> None:
    found = tt.graph(Cut(), torch.ones(1, 2), autograd=autograd)
    said = found.why_no_grad(f"{module}.weight")
    assert f"{line_of(Cut, text)} {reason}" in said
    assert "No other way leads on" in said or module != "under"


def test_a_watched_autograd_graph_notes_where_gradients_are_cut_off() -> None:
    (note,) = tt.graph(Cut(), torch.ones(1, 2), autograd=True).notes
    line = line_of(Cut, ".detach()").rpartition("/")[2]
    assert note.startswith(f"gradients are cut off: detach at {line} detaches its result")


@pytest.mark.parametrize("autograd", [False, True])
def test_other_reasons_are_told_apart(autograd: bool) -> None:
    model = Cut()
    found = tt.graph(model, torch.ones(1, 2), autograd=autograd)
    assert "does not require grad: it is frozen" in found.why_no_grad("frozen.weight")
    assert "no operation of the forward used it" in found.why_no_grad("unused.weight")
    assert "does not lead to the result" in found.why_no_grad("dropped.weight")
    assert "gives it a gradient" in found.why_no_grad("fine.weight")
    assert "gives it a gradient" in found.why_no_grad(dict(model.named_parameters())["fine.weight"])


def test_parameters_that_get_a_gradient_are_those_that_a_backward_gives_one() -> None:
    model = Cut()
    found = tt.graph(model, torch.ones(1, 2))
    model(torch.ones(1, 2)).sum().backward()
    for name, param in model.named_parameters():
        assert ("gives it a gradient" in found.why_no_grad(name)) == (param.grad is not None)


def test_a_name_that_is_none_of_the_parameters_is_an_error() -> None:
    found = tt.graph(Cut(), torch.ones(1, 2))
    with pytest.raises(tt.InputError, match=r"fine\.weight"):
        found.why_no_grad("fine.weigth")
    with pytest.raises(tt.InputError, match="no parameter of the model"):
        found.why_no_grad(torch.ones(1))
    with pytest.raises(tt.InputError, match="knows no parameters by name"):
        tt.graph(torch.ones(1, requires_grad=True) * 2).why_no_grad("x")


# ---------------------------------------------------------------------- runs


def test_a_run_gives_the_modules_and_flows_of_the_model_that_ran() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 2), nn.Tanh()))
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    with tt.watch(model, "*:input,output") as watch:
        model(x)
    found, truth = tt.graph(watch.run), tt.graph(model, x)
    assert [(one.path, one.type, one.above) for one in found.calls] == [
        (one.path, one.type, one.above) for one in truth.calls
    ]
    inner = {node.id: node.path for node in found.nodes if node.kind == "module"}
    assert [
        (inner[one.source], inner[one.target]) for one in found.edges if one.source in inner
    ] == [("0", "1"), ("1", "2.0"), ("2.0", "2.1")]


def test_a_run_that_was_saved_gives_the_same_graph(tmp_path: Any) -> None:
    model = Net(2)
    with tt.watch(model, "*:input,output") as watch:
        model(torch.ones(3, 4))
    watch.run.save(tmp_path / "run.safetensors")
    found, again = tt.graph(watch.run), tt.graph(tt.open(tmp_path / "run.safetensors"))
    assert (found.nodes, found.edges, found.calls) == (again.nodes, again.edges, again.calls)


def test_a_run_of_outputs_alone_has_the_order_of_the_calls_and_says_so() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))
    with tt.watch(model) as watch:
        model(torch.ones(3, 4))
    found = tt.graph(watch.run)
    assert [(one.path, one.above) for one in found.calls] == [
        ("", -1),
        ("0", 0),
        ("1", 0),
        ("1.0", 2),
        ("1.1", 2),
    ]
    assert "order of the calls alone" in found.notes[0]


def test_a_run_without_values_is_refused() -> None:
    model = nn.Linear(2, 2)
    with tt.watch(model, to=tt.Stats()) as watch:
        model(torch.ones(1, 2))
    with pytest.raises(tt.InputError, match="holds no inputs or outputs"):
        tt.graph(watch.run)


def test_a_module_and_a_model_are_too_much() -> None:
    with pytest.raises(tt.InputError, match="give one of them"):
        tt.graph(nn.Linear(1, 1), torch.ones(1, 1), model=nn.Linear(1, 1))


def test_a_compiled_model_is_followed_uncompiled_and_said() -> None:
    model = torch.compile(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), backend="eager")
    found = tt.graph(model, torch.ones(1, 2))
    assert [node.name for node in found.nodes] == ["input", "Linear", "ReLU", "output"]
    assert "is compiled; it ran uncompiled" in found.notes[0]
    torch.compiler.reset()

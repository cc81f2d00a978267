"""The graph of tensors, against a walk by hand, real node hooks, and ``tt.saved_report``."""

from __future__ import annotations

import gc
import pickle
import warnings
import weakref
from typing import Any

import pytest
import torch
from programs import PROGRAMS, Cube, leaf, nodes_by_hand
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils.checkpoint import checkpoint

import torchtap as tt
from torchtap.core.torch_private import node_hooks
from torchtap.graphs.graph import Graph
from torchtap.graphs.nodes import PARAMETER, VIEW
from torchtap.testing import Specimen, default_loss, zoo

_ZOO = [one for one in zoo() if one.raises is None and one.backward]
_HIDDEN_FROM_NODES = {"view_input_changed", "transpose_changed"}
"""An attribute alone keeps what they save and the output does not depend on."""
_PYTHON_BOOLS = {"mixed_arguments": 1}
"""A bool of Python is kept as a tensor of a byte, of which saved-tensor hooks do not hear."""


def agrees_with_a_walk_by_hand(found: Graph, tensors: list[Tensor]) -> None:
    nodes, edges = nodes_by_hand([get_gradient_edge(tensor).node for tensor in tensors])
    assert [node.name for node in found.nodes] == [
        node.name().rpartition("::")[2] for node in nodes
    ]
    assert [(one.source, one.target, one.slot, one.output) for one in found.edges] == edges
    fired: list[int] = []
    handles = [
        node.register_prehook(lambda _, place=place: fired.append(place))
        for place, node in enumerate(nodes)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.autograd.backward(tensors)
    for handle in handles:
        handle.remove()
    assert [node.id for node in found.order()] == fired


@pytest.mark.parametrize("name", PROGRAMS)
def test_nodes_edges_and_order_are_those_of_a_backward(name: str) -> None:
    loss = PROGRAMS[name]()
    agrees_with_a_walk_by_hand(tt.graph(loss), [loss])


@pytest.mark.parametrize("specimen", _ZOO, ids=str)
def test_nodes_edges_and_order_of_the_zoo(specimen: Specimen) -> None:
    torch.manual_seed(0)
    model = specimen.build()
    args, kwargs = specimen.inputs()
    loss = default_loss(model(*args, **kwargs))
    if loss is None:
        pytest.skip("nothing requires grad")
    agrees_with_a_walk_by_hand(tt.graph(loss, model=model), [loss])


@pytest.mark.parametrize("view", ["slice", "select", "transpose", "diagonal", "narrow", "view"])
def test_a_view_that_is_written_into_gets_the_node_that_the_docs_draw(view: str) -> None:
    """``docs/explanations/gradients.md`` draws it."""
    base = leaf(4, 4) * 1
    views = {
        "slice": lambda: base[:, 1:],
        "select": lambda: base[0],
        "transpose": lambda: base.t(),
        "diagonal": lambda: base.diagonal(),
        "narrow": lambda: base.narrow(0, 1, 2),
        "view": lambda: base.view(2, 8),
    }
    v = views[view]()
    old, before = v.grad_fn, v.sin()
    v.mul_(2)
    assert v.grad_fn is not None and base.grad_fn is not None
    assert v.grad_fn.name() == "AsStridedBackward0"
    assert base.grad_fn.name().endswith("CopySlices")
    assert v.grad_fn.next_functions[0][0] is base.grad_fn
    assert before.grad_fn is not None and before.grad_fn.next_functions[0][0] is old


def test_several_tensors_start_in_their_order() -> None:
    x = leaf(3)
    tensors = [x.sin().sum(), (x * 2).exp().sum(), x.cos().sum()]
    agrees_with_a_walk_by_hand(tt.graph(tensors), tensors)


@pytest.mark.parametrize("specimen", _ZOO, ids=str)
def test_saved_bytes_are_those_of_the_saved_report(specimen: Specimen) -> None:
    torch.manual_seed(0)
    args, kwargs = specimen.inputs()
    model = specimen.build()
    report = tt.saved_report(model, *args, loss=default_loss, **kwargs)
    if specimen.name in _HIDDEN_FROM_NODES or not report.rows:
        pytest.skip("it saves nothing that leads to the output")
    if default_loss(model(*args, **kwargs)) is None:
        pytest.skip("nothing requires grad")
    args, kwargs = specimen.inputs()
    found = tt.graph(specimen.build(), *args, autograd=True, loss=default_loss, **kwargs)
    assert found.saved_nbytes == report.nbytes + _PYTHON_BOOLS.get(specimen.name, 0)


# ---------------------------------------------------------------------- what is read


def test_saved_tensors_have_slot_shape_and_the_bytes_of_each_memory_once() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    found = tt.graph(model(torch.ones(3, 4)), model=model)
    first, second = found.find("0")[0], found.find("2")[0]
    (mat1,) = first.saved
    assert (mat1.name, mat1.type.shape, mat1.nbytes) == ("mat1", (3, 4), 3 * 4 * 4)
    assert [(one.name, one.role, one.note) for one in second.saved] == [
        ("mat1", "shared", ""),  # What ReLU returned, which it keeps too.
        ("mat2", "parameter", "2.weight"),
    ]
    assert found.saved_nbytes == 3 * 4 * 4 + 3 * 8 * 4


def test_parameters_have_their_paths_and_inputs_are_told_from_them() -> None:
    model = nn.Linear(4, 2)
    x = torch.ones(3, 4, requires_grad=True)
    found = tt.graph(model(x), model=model)
    assert {(node.kind, node.path) for node in found.nodes if node.name == "AccumulateGrad"} == {
        ("parameter", "weight"),
        ("parameter", "bias"),
        ("input", ""),
    }
    watched = tt.graph(model, x, autograd=True)
    assert [node.path for node in watched.nodes if node.kind == "input"] == [""]


def test_a_shared_parameter_says_where_else_it_stands() -> None:
    model = nn.ModuleDict({"one": nn.Linear(3, 3, False), "two": nn.Linear(3, 3, False)})
    model["two"].weight = model["one"].weight
    found = tt.graph(model["two"](model["one"](torch.ones(1, 3))), model=model)
    (node,) = (node for node in found.nodes if node.kind == "parameter")
    assert (node.path, node.note) == ("one.weight", "shared with two.weight")
    assert node in found.joins


def test_a_freed_graph_says_that_it_is() -> None:
    x = leaf(3)
    loss = Cube.apply(x.sin()).sum()
    loss.backward()
    found = tt.graph(loss)
    assert {one.state for node in found.nodes for one in node.saved} == {"freed"}
    assert found.saved_nbytes == 0
    assert "a backward has freed 2 saved tensors" in repr(found)


def test_a_half_freed_graph_tells_which_half() -> None:
    y = leaf(3).sin()
    y.exp().sum().backward()
    found = tt.graph(y.cos().sum())
    assert [one.state for one in found.find("SinBackward0")[0].saved] == ["freed"]
    assert [one.state for one in found.find("CosBackward0")[0].saved] == ["kept"]


def test_what_was_overwritten_is_said_in_the_words_of_pytorch() -> None:
    y = leaf(3).exp()
    loss = y.sin().sum()
    y.add_(1)
    (saved,) = tt.graph(loss).find("SinBackward0")[0].saved
    assert (saved.state, saved.version) == ("overwritten", 1)
    with pytest.raises(RuntimeError) as raised:
        loss.backward()
    assert saved.note.partition(":")[0] in str(raised.value)


def test_kinds_tell_views_writes_functions_and_checkpoints_apart() -> None:
    kinds = {
        name: {node.name: node.kind for node in tt.graph(PROGRAMS[name]()).nodes}
        for name in ("view_written", "custom", "reentrant", "unbind")
    }
    assert kinds["view_written"]["CopySlices"] == "in-place"
    assert kinds["custom"]["CubeBackward"] == "custom function"
    assert kinds["reentrant"]["CheckpointFunctionBackward"] == "checkpoint"
    assert kinds["unbind"]["UnbindBackward0"] == "view"


def test_a_custom_function_has_the_line_of_its_backward() -> None:
    node = tt.graph(PROGRAMS["custom"]()).find("CubeBackward")[0]
    line = Cube.backward.__code__.co_firstlineno
    assert node.line == f"{Cube.backward.__code__.co_filename}:{line}"


def test_what_a_checkpoint_computes_again_is_not_kept_but_its_inputs_are() -> None:
    found = tt.graph(PROGRAMS["non_reentrant"]())
    states = [one.state for node in found.nodes for one in node.saved]
    assert sorted(set(states)) == ["kept", "recomputed"]
    assert found.saved_nbytes == 3 * 4


def test_inputs_without_gradient_are_cut_slots() -> None:
    x = leaf(3)
    node = tt.graph((x.detach() * x).sum()).find("MulBackward0")[0]
    assert node.cut_slots == (0,)


def test_hooks_of_each_kind_are_found_with_their_functions() -> None:
    x = leaf(3)
    y = x.sin()
    loss = y.sum()
    y.register_hook(_tensor_hook)
    y.retain_grad()
    x.register_hook(_tensor_hook)
    x.register_post_accumulate_grad_hook(_one_hook)
    y.grad_fn.register_prehook(_one_hook)
    y.grad_fn.register_hook(_two_hook)
    found = tt.graph(loss)
    here = __name__
    assert [(one.kind, one.name) for one in found.find("SinBackward0")[0].hooks] == [
        ("tensor", f"{here}._tensor_hook"),
        ("retain_grad", "torch.Tensor.retain_grad"),
        ("pre", f"{here}._one_hook"),
        ("post", f"{here}._two_hook"),
    ]
    assert [one.kind for one in found.find("AccumulateGrad")[0].hooks] == [
        "tensor",
        "post-accumulate",
    ]


def _tensor_hook(gradient: Tensor) -> None: ...


def _one_hook(given: Any) -> None: ...


def _two_hook(given: Any, taken: Any) -> None: ...


# ---------------------------------------------------------------------- nothing is changed


def test_looking_puts_no_hook_on_a_node_and_lets_others_be_put_on_meanwhile() -> None:
    x = leaf(3)
    y = x.sin()
    tt.graph(y.sum())
    with node_hooks() as show:
        y.grad_fn.register_hook(_two_hook)
        assert show(y.grad_fn) == ([], [_two_hook])
    with node_hooks() as show:
        assert show(y.grad_fn) == ([], [_two_hook])


def test_looking_unpacks_nothing_that_a_hook_packed() -> None:
    unpacked = []

    def unpack(packed: Any) -> Any:
        unpacked.append(packed)
        return packed

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.detach(), unpack):
        loss = leaf(3).exp().sum()
    (saved,) = tt.graph(loss).find("ExpBackward0")[0].saved
    assert (saved.state, unpacked) == ("packed", [])
    loss.backward()
    assert len(unpacked) == 1


@pytest.mark.slow
def test_the_graph_keeps_no_tensor_alive() -> None:
    x = leaf(3)
    y = x.exp()
    found = tt.graph(y.sum())
    tensor = weakref.ref(y)
    del y
    gc.collect()
    assert tensor() is None
    assert found.nodes


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_after_looking_are_those_without(name: str) -> None:
    plain, looked = (gradients_of(PROGRAMS[name](), look=look) for look in (False, True))
    assert len(plain) == len(looked)
    assert all(map(torch.equal, plain, looked))


def gradients_of(loss: Tensor, *, look: bool) -> list[Tensor]:
    if look:
        tt.graph(loss)
    nodes, _ = nodes_by_hand([get_gradient_edge(loss).node])
    leaves = [node.variable for node in nodes if hasattr(node, "variable")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss.backward()
    return [one.grad for one in leaves if one.grad is not None]


def test_a_graph_is_plain_data_that_pickles() -> None:
    model = nn.Linear(2, 2)
    found = tt.graph(model(torch.ones(1, 2)), model=model)
    again = pickle.loads(pickle.dumps(found))
    assert (again.nodes, again.edges) == (found.nodes, found.edges)
    assert again.why_no_grad("weight") == found.why_no_grad("weight")


# ---------------------------------------------------------------------- modules


def test_watched_nodes_have_the_module_that_made_them() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 2), nn.Tanh()))
    found = tt.graph(model, torch.ones(3, 4), autograd=True, loss=torch.sum)
    for name, paths in (
        ("SumBackward0", {""}),
        ("TanhBackward0", {"2.1"}),
        ("ReluBackward0", {"1"}),
        ("AddmmBackward0", {"0", "2.0"}),
    ):
        assert {node.path for node in found.find(name)} == paths


@pytest.mark.slow
@pytest.mark.parametrize("specimen", _ZOO, ids=str)
def test_concluded_modules_never_claim_what_the_watched_ones_deny(specimen: Specimen) -> None:
    torch.manual_seed(0)
    args, kwargs = specimen.inputs()
    try:
        watched = tt.graph(specimen.build(), *args, autograd=True, loss=default_loss, **kwargs)
    except (tt.InputError, AttributeError):
        pytest.skip("nothing requires grad")
    torch.manual_seed(0)
    model = specimen.build()
    args, kwargs = specimen.inputs()
    loss = default_loss(model(*args, **kwargs))
    concluded = tt.graph(loss, model=model)
    users = {one.source for one in concluded.edges if concluded.nodes[one.target].kind == PARAMETER}
    views = {node.id for node in concluded.nodes if node.kind == VIEW}
    users |= {one.source for one in concluded.edges if one.target in views}
    for node, truth in zip(concluded.nodes, watched.nodes, strict=True):
        if node.kind == PARAMETER or node.id in users:
            continue  # It counts for the owner of the parameter, whoever used it.
        inside = f"{truth.path}.".startswith(f"{node.path}.") or not node.path
        assert inside, f"{node.name} is said to be in {node.path}, and was made in {truth.path}"


def test_between_two_calls_of_a_module_nothing_is_put_into_it() -> None:
    inner = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    model = nn.ModuleDict({"inner": inner})
    y = inner(inner(torch.ones(1, 3)).sin())
    found = tt.graph(y, model=model)
    assert found.find("SinBackward0")[0].path == ""
    assert {node.path for node in found.find("ReluBackward0")} == {"inner"}


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (torch.ones(2), "it does not require grad"),
        (torch.ones(2, dtype=torch.int64), "int64 carries no gradient"),
    ],
)
def test_a_tensor_without_a_graph_is_refused_with_the_reason(tensor: Tensor, reason: str) -> None:
    with pytest.raises(tt.InputError, match=reason):
        tt.graph(tensor)


def test_what_is_said_of_one_tensor_and_of_several_without_a_graph_is_true() -> None:
    with pytest.raises(tt.InputError, match="It has no autograd graph"):
        tt.graph(torch.ones(2))
    with pytest.raises(tt.InputError, match="None of the 2 tensors has an autograd graph"):
        tt.graph([torch.ones(2), torch.ones(2)])


def test_one_of_several_without_a_graph_is_a_note() -> None:
    found = tt.graph({"loss": leaf(1).sum(), "count": torch.ones(1)})
    assert "count (float32[1]) has no graph: it does not require grad" in found.notes


@pytest.mark.parametrize("wrong", [None, 3, "loss", [1, 2]])
def test_what_holds_no_tensor_is_refused(wrong: Any) -> None:
    with pytest.raises(tt.InputError, match="there is no tensor"):
        tt.graph(wrong)


def test_a_tensor_with_arguments_is_refused() -> None:
    with pytest.raises(tt.InputError, match="expected a module before them"):
        tt.graph(leaf(1), leaf(1))


def test_a_cycle_through_python_is_no_matter() -> None:
    x = leaf(3)
    y = x * 2
    y.register_hook(lambda gradient: gradient * y.detach().sum())
    assert [one.kind for one in tt.graph(y.sum()).find("MulBackward0")[0].hooks] == ["tensor"]


def test_what_is_not_there_is_not_found_and_what_is_near_is_named() -> None:
    with pytest.raises(tt.InputError, match="SinBackward0"):
        tt.graph(leaf(3).sin().sum()).find("SinBackward")


def test_a_compiled_function_is_one_node_and_said() -> None:
    model: Any = torch.compile(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), backend="aot_eager")
    found = tt.graph(model(torch.ones(2, 3)).sum(), model=model)
    assert [node.kind for node in found.find("CompiledFunctionBackward")] == ["compiled"]
    assert "1 compiled function is one node each" in " ".join(found.notes)
    torch.compiler.reset()


def test_a_graph_deeper_than_the_recursion_limit_is_read_and_drawn() -> None:
    y = leaf(2)
    for number in range(5000):
        y = y.sin() if number % 7 else y.cos()
    found = tt.graph(y.sum())
    assert len(found.nodes) == 5002
    assert len(found.order()) == 5002
    assert len(found.picture().boxes) <= 60


@pytest.mark.slow
def test_a_chain_of_100_000_nodes_is_cut_and_said_to_be_and_can_be_freed() -> None:
    y = leaf(2)
    for _ in range(100_000):
        y = y.sin()
    found = tt.graph(y.sum())
    assert "cut after 30,000 nodes, 30,000 of them in a row" in found.notes[0]
    assert len(found.nodes) == 30_000
    assert len(found.picture().boxes) <= 60
    del y  # PyTorch would overflow the stack here, had all nodes been seen.


@pytest.mark.slow
def test_a_graph_of_100_000_nodes_in_shorter_rows_is_read_whole() -> None:
    rows = []
    for _ in range(10):
        y = leaf(2)
        for _ in range(5_000):
            y = y.sin() + y
        rows.append(y)
    found = tt.graph(torch.stack(rows).sum())
    assert len(found.nodes) == 10 * (2 * 5_000 + 1) + 2
    assert len(found.edges) == 10 * (3 * 5_000) + 10 + 1
    assert found.notes == ()
    assert len(found.picture().boxes) <= 60
    assert len(found.order()) == len(found.nodes)


class Long(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        for _ in range(100_000):
            x = x.sin()
        return x


@pytest.mark.slow
def test_an_execution_of_100_000_operations_is_followed_whole_and_can_be_freed() -> None:
    found = tt.graph(Long(), torch.ones(1, 2))
    assert sum(node.name == "sin" for node in found.nodes) == 100_000
    assert len(found.picture().boxes) <= 60


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_graph_is_read_in_any_grad_mode(mode: Any) -> None:
    x = leaf(3)
    y = x.exp().sum()
    with mode():
        assert len(tt.graph(y).nodes) == 3
        assert [node.kind for node in tt.graph(x).nodes] == ["input"]


@pytest.mark.filterwarnings("ignore:.*nested")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_have_ragged_shapes(layout: torch.layout) -> None:
    rows = [torch.ones(2, 4), torch.ones(3, 4)]
    nested = torch.nested.nested_tensor(rows, requires_grad=True, layout=layout)
    found = tt.graph(nested.sin())
    assert found.find("SinBackward0")[0].types[0].shape in ((None,), (2, None, 4))
    assert found.mermaid()


class _Program(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self) -> Tensor:
        return PROGRAMS[self.name]()


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "view_written"])
def test_saved_bytes_of_programs_are_those_of_the_saved_report(name: str) -> None:
    torch.manual_seed(0)
    report = tt.saved_report(_Program(name))
    assert tt.graph(PROGRAMS[name]()).saved_nbytes == report.nbytes


def test_a_write_into_a_view_says_that_what_it_keeps_is_hidden() -> None:
    loss = PROGRAMS["view_written"]()
    node = tt.graph(loss).find("CopySlices")[0]
    assert not any(name.startswith("_saved") for name in dir(loss.grad_fn.next_functions[0][0]))
    assert node.note == "PyTorch does not show what is kept"
    printed = repr(tt.graph(loss))
    assert "does not show what is kept at 1 node: these bytes are not counted" in printed
    assert "frees the 0 B" not in repr(tt.graph(leaf(3).sum()))


def test_a_segment_under_reentrant_checkpoint_is_one_node() -> None:
    layer = nn.Linear(3, 3)
    y = checkpoint(layer, leaf(1, 3), use_reentrant=True)
    found = tt.graph(y, model=layer)
    assert found.find("CheckpointFunctionBackward")[0].kind == "checkpoint"
    assert "gets its gradients from a backward of their own" in found.why_no_grad("weight")


def test_what_a_reentrant_checkpoint_uses_is_not_said_to_be_cut_off() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.layer, x, use_reentrant=True).sin()

    found = tt.graph(Model(), leaf(1, 3))
    assert "own backward decides" in found.why_no_grad("layer.weight")
    assert [node.name for node in found.nodes] == [
        "input",
        "Linear",
        "CheckpointFunction",
        "sin",
        "output",
    ]

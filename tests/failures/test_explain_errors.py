"""The block: it changes nothing but the notes, whoever raises, and wherever it stands."""

from __future__ import annotations

import copy
import gc
import importlib
import os
import re
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchtap as tt
from torchtap.core.errors import InputError
from torchtap.failures import added_notes
from torchtap.failures.added_notes import HEAD


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(4, 3)
        self.fc2 = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(x))


def notes(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


def raised(function: Callable[[], Any], model: nn.Module | None = None) -> BaseException:
    with pytest.raises(BaseException) as caught, tt.explain_errors(model):
        function()
    return caught.value


def run_net() -> Tensor:
    return Net()(torch.ones(5, 4))


# --- what it changes --------------------------------------------------------------------------


def test_type_message_and_traceback_stay_and_a_note_is_added() -> None:
    with pytest.raises(RuntimeError) as plain:
        run_net()
    error = raised(run_net)
    assert type(error) is type(plain.value)
    assert str(error) == str(plain.value)
    assert error.args == plain.value.args
    assert (error.__cause__, error.__context__) == (None, None)
    (note,) = notes(error)
    assert note.startswith(f"{HEAD} fc2 (Linear) takes 8 features")
    printed = "".join(traceback.format_exception(error))
    assert note in printed
    assert "failures/explain_errors.py" not in printed.replace("test_explain_errors.py", "")


def test_without_an_error_nothing_is_done() -> None:
    net = nn.Linear(4, 3)
    before = copy.deepcopy(vars(net)["_forward_hooks"]), torch.get_rng_state()
    with tt.explain_errors(net) as added:
        assert not torch.is_inference_mode_enabled()
        hooks = vars(net)["_forward_hooks"]
        assert not hooks
    assert added == []
    assert torch.equal(before[1], torch.get_rng_state())


def test_random_numbers_gradients_and_versions_are_as_without_it() -> None:
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    y += 1
    state, version = torch.get_rng_state(), y._version
    error = raised(lambda: y.sum().backward())
    assert "ExpBackward0" in notes(error)[0]
    assert torch.equal(state, torch.get_rng_state())
    assert (y._version, x.grad, y.requires_grad) == (version, None, True)


def test_no_hook_on_saved_tensors_is_run_for_the_note() -> None:
    runs = []

    def unpack(packed: Tensor) -> Tensor:
        runs.append(packed)
        return packed

    x = torch.ones(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda one: one, unpack):
        y = x.exp()
    y.sum().backward()
    num = len(runs)
    error = raised(lambda: y.sum().backward())
    assert "second time" in str(error) or "second time" in notes(error)[0]
    assert len(runs) <= num + 1  # PyTorch's own, of the second backward.


def test_locals_that_a_function_asked_for_stay_its_own() -> None:
    settings = locals()
    width = 4
    with pytest.raises(RuntimeError), tt.explain_errors():
        nn.Linear(width, 3)(torch.ones(5, 9))
    if sys.version_info < (3, 13):  # From then on each call makes a dict anew (PEP 667).
        assert settings is locals()
        assert settings["width"] == 4
    else:
        assert "width" not in settings


def left_over() -> nn.Module | None:
    """A model that a running function has deleted, after it caught what the model raised."""
    net = Net()  # No assert here: those of pytest ask for locals().
    seen = weakref.ref(net)
    try:
        with tt.explain_errors(net):
            net(torch.ones(5, 4))
    except RuntimeError:
        pass
    del net
    gc.collect()
    return seen()


def test_the_note_keeps_nothing_of_the_function_alive() -> None:
    assert left_over() is None


DEEP = """
import torch, torchtap as tt
y = torch.ones(3, requires_grad=True)
for _ in range(100_000):
    y = y.sin()
loss = y.sum()
loss.backward()
try:
    with tt.explain_errors():
        loss.backward()
except RuntimeError as error:
    print(error.__notes__[0].splitlines()[0])
del loss, y
print("freed")
"""


@pytest.mark.slow
def test_a_graph_of_100_000_nodes_can_be_freed_after_its_note() -> None:
    """PyTorch overflows the stack of a chain whose nodes Python has all seen."""
    done = subprocess.run(
        [sys.executable, "-c", DEEP],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(tt.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    assert "the graph of loss a second time" in done.stdout or "earlier backward" in done.stdout
    assert done.stdout.endswith("freed\n")


# --- whose errors -----------------------------------------------------------------------------


class Own(nn.Module):
    def __init__(self, action: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.action = action

    def forward(self, x: Tensor) -> Any:
        return self.action(x)


def _raise(error: BaseException) -> Any:
    raise error


@pytest.mark.parametrize(
    "action",
    [
        lambda x: _raise(ValueError("Target 5 is out of bounds.")),
        lambda x: _raise(RuntimeError("mat1 and mat2 shapes cannot be multiplied (1x2 and 3x4)")),
        lambda x: {}[x],
        lambda x: int("a"),
        lambda x: list(range(3))[5],
        lambda x: None.norm(),  # type: ignore[attr-defined]
        lambda x: x + "a" if x is None else len(5),  # type: ignore[arg-type]
        lambda x: [1].add(x),  # type: ignore[attr-defined]
        lambda x: {"a": x}.append(x),  # type: ignore[attr-defined]
        lambda x: "a".rate,  # type: ignore[attr-defined]
        lambda x: (None, x)[0].split(),  # type: ignore[attr-defined]
        lambda x: 1 / 0,
        lambda x: (_ for _ in ()).throw(KeyError("k")),
        lambda x: _raise(KeyboardInterrupt()),
        lambda x: _raise(SystemExit(3)),
        lambda x: _raise(InputError("ours")),
        lambda x: _raise(StopIteration()),
        lambda x: {"a": 1}[x],
        lambda x: torch.load("nowhere"),
        lambda x: nn.Sequential(Own(lambda y: {}["k"]))(x),
        lambda x: hooked(lambda module, args, out: {}["k"])(x),
    ],
)
def test_what_is_not_raised_by_pytorch_stays_untouched(action: Callable[[Tensor], Any]) -> None:
    net = nn.Sequential(Own(action))
    assert notes(raised(lambda: net(torch.ones(2)))) == []


def hooked(hook: Callable[..., Any]) -> nn.Module:
    net = nn.Linear(2, 2)
    net.register_forward_hook(hook)
    return net


class Samples(torch.utils.data.Dataset[Tensor]):
    def __init__(self, action: Callable[[int], Any]) -> None:
        self.action = action

    def __len__(self) -> int:
        return 2

    def __getitem__(self, at: int) -> Any:
        return self.action(at)


@pytest.mark.parametrize(
    ("action", "told"),
    [(lambda at: torch.ones(at + 1), True), (lambda at: _raise(ValueError("bad")), False)],
)
def test_what_a_worker_raised_is_told_apart_by_where_it_was_raised(
    action: Callable[[int], Any], told: bool
) -> None:
    loader = torch.utils.data.DataLoader(Samples(action), batch_size=2, num_workers=1)
    found = notes(raised(lambda: list(loader)))
    assert bool(found) is told
    assert not told or "The samples of a batch have different shapes" in found[0]


def test_an_assertion_of_the_program_stays_untouched() -> None:
    def check(x: Tensor) -> None:
        assert x.shape == (3,), "was expecting embedding dimension of 8, but got 6"

    assert notes(raised(lambda: check(torch.ones(2)))) == []


def test_what_is_not_known_gets_its_module_and_line_and_nothing_else() -> None:
    net = nn.Sequential(nn.Linear(2, 2), Own(lambda x: torch.polygamma(-1, x)))
    (note,) = notes(raised(lambda: net(torch.ones(1, 2))))
    assert "not in the catalogue" in note
    assert "1 (Own)" in note
    assert "test_explain_errors.py:" in note
    assert "torch.polygamma" in note
    assert "ways out" not in note


@pytest.mark.slow
def test_the_exception_that_led_to_another_gets_the_note() -> None:
    def wrapped() -> None:
        try:
            run_net()
        except RuntimeError as error:
            raise ValueError("the model is broken") from error

    error = raised(wrapped)
    assert notes(error) == []
    assert error.__cause__ is not None
    assert "fc2 (Linear)" in notes(error.__cause__)[0]


def test_both_get_notes_where_one_came_while_the_other_was_handled() -> None:
    def clumsy() -> None:
        try:
            run_net()
        except RuntimeError:
            torch.ones(2) @ torch.ones(3)

    error = raised(clumsy)
    assert error.__context__ is not None
    assert "A product sums over" in notes(error)[0]
    assert "fc2 (Linear)" in notes(error.__context__)[0]


def test_what_was_being_handled_before_the_block_gets_none() -> None:
    with pytest.raises(RuntimeError) as caught:
        try:
            run_net()
        except RuntimeError:
            with tt.explain_errors():
                torch.ones(2) @ torch.ones(3)
    assert notes(caught.value)
    assert caught.value.__context__ is not None
    assert notes(caught.value.__context__) == []


def test_each_member_of_a_group_gets_its_note() -> None:
    def group() -> None:
        errors = []
        for action in (run_net, lambda: torch.ones(2) @ torch.ones(3)):
            try:
                action()
            except RuntimeError as error:
                errors.append(error)
        raise ExceptionGroup("two", errors)

    error = raised(group)
    assert isinstance(error, ExceptionGroup)
    assert [len(notes(one)) for one in error.exceptions] == [1, 1]
    assert notes(error) == []


def test_a_fault_of_ours_is_said_and_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("broken")

    monkeypatch.setattr(added_notes, "note_of", broken)
    error = raised(run_net)
    assert "mat1 and mat2" in str(error)
    (note,) = notes(error)
    assert "a fault of torchtap itself: ZeroDivisionError: broken" in note


# --- recording --------------------------------------------------------------------------------


class Deep(nn.Module):
    """One of several lines wrote, and neither the source nor the graph tells which."""

    def __init__(self, which: int) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.which = which

    def forward(self, x: Tensor) -> Tensor:
        out = self.fc(x).sigmoid()
        if self.which == 0:
            out += 1
        elif self.which == 1:
            out += 2
        else:
            nn.functional.relu(out, inplace=True)
        return out


@pytest.mark.parametrize("which", [0, 1, 2])
def test_recorded_writes_are_told_by_their_line_and_module(which: int) -> None:
    net = nn.Sequential(Deep(which))
    line = Deep.forward.__code__.co_firstlineno + (3, 5, 7)[which]
    with pytest.raises(RuntimeError) as caught, tt.explain_errors(record=True):
        net(torch.ones(2, 4)).sum().backward()
    text = " ".join(notes(caught.value)[0].split())
    assert "written by" in text
    assert f"test_explain_errors.py:{line}, in 0 (Deep)" in text


def test_without_recording_the_lines_that_fit_are_given_as_a_choice() -> None:
    net = nn.Sequential(Deep(1))
    (note,) = notes(raised(lambda: net(torch.ones(2, 4)).sum().backward()))
    first = Deep.forward.__code__.co_firstlineno
    assert "written by" not in note
    assert all(f"test_explain_errors.py:{first + at}" in note for at in (3, 5))
    assert note.count("one of") >= 2


def test_a_write_in_a_branch_is_not_said_to_have_run() -> None:
    def wrong() -> None:
        y = torch.ones(3, requires_grad=True).exp()
        if y.sum() < 0:
            y += 1
        vars(Tensor).get("add_", Tensor.add_)(y, 1)
        y.sum().backward()

    (note,) = notes(raised(wrong))
    assert "written by" not in note
    assert "y += 1" in note


_ONE_LINE = "y = torch.ones(3, requires_grad=True).exp(); z = y.sum(); y += 1; z.backward()\n"


def test_a_write_on_the_line_of_the_backward_may_be_what_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one_line.py").write_text(f"import torch\n\ndef wrong():\n    {_ONE_LINE}")
    monkeypatch.syspath_prepend(str(tmp_path))
    (note,) = notes(raised(importlib.import_module("one_line").wrong))
    text = "".join(note.split())  # A long path is wrapped.
    assert re.search(r"(perhapsby|oneof)\S*one_line\.py:4:y\+=1", text)


def test_recording_is_no_operation_of_the_program() -> None:
    def wrong() -> None:
        y = torch.ones(3, requires_grad=True).exp()
        y += 1
        y.sum().backward()

    with pytest.raises(RuntimeError) as caught, tt.explain_errors(record=True):
        wrong()
    assert "__torch_function__" not in notes(caught.value)[0]


def test_what_has_no_name_is_called_as_the_program_writes_it() -> None:
    x, net = torch.ones(5, 4), nn.Linear(4, 2)
    (note,) = notes(raised(lambda: net(x).backward()))
    assert "backward was called on net(x), which is float32[5, 2]" in note


def test_operations_are_shown_without_the_comments_in_them() -> None:
    (note,) = notes(raised(lambda: nn.functional.cross_entropy(torch.ones(1, 2), torch.ones(1))))
    assert "operation" in note
    assert "#" not in note


def test_a_state_is_not_blamed_on_an_order_that_is_set_already() -> None:
    state = torch.zeros(1, 3, 8), torch.zeros(1, 3, 8)
    time, batch = nn.LSTM(4, 8), nn.LSTM(4, 8, batch_first=True)
    (one,) = notes(raised(lambda: time(torch.zeros(2, 2, 4), state)))
    (two,) = notes(raised(lambda: batch(torch.zeros(2, 2, 4), state)))
    assert "set batch_first=True" in one
    assert "set batch_first=True" not in two


def test_recording_changes_no_value_and_no_gradient_and_ends_with_the_block() -> None:
    def train() -> list[Tensor]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True), nn.Dropout(0.5))
        out = net(torch.randn(5, 4))
        out.sum().backward()
        return [out.detach(), *(p.grad for p in net.parameters()), torch.get_rng_state()]

    plain = train()
    with tt.explain_errors(record=True):
        recorded = train()
        assert torch.overrides.has_torch_function((torch.ones(1),))
    assert all(torch.equal(a, b) for a, b in zip(plain, recorded, strict=True))
    assert not torch.overrides.has_torch_function((torch.ones(1),))


@pytest.fixture
def fresh_compiler() -> Generator[Any, None, None]:
    """The counters of Dynamo, with nothing compiled before and after."""
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    yield counters
    torch.compiler.reset()
    counters.clear()


def num_graphs(counters: Any) -> tuple[int, int]:
    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())


@pytest.mark.filterwarnings("ignore")
def test_compiled_training_is_compiled_as_a_whole_while_writes_are_recorded(
    fresh_compiler: Any,
) -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True))
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    x = torch.ones(2, 4)
    found = []
    for record in (False, True, True):  # The third time what is compiled is used again.
        net.zero_grad()
        with tt.explain_errors(record=record), tt.explain_errors(record=record):
            compiled(x).sum().backward()
        found.append([parameter.grad.clone() for parameter in net.parameters()])
    assert num_graphs(fresh_compiler) == (2, 0)
    assert all(torch.equal(a, b) for one in found[1:] for a, b in zip(found[0], one, strict=True))


@pytest.mark.filterwarnings("ignore")
def test_between_two_compiled_parts_nothing_of_the_recording_is_compiled(
    fresh_compiler: Any,
) -> None:
    def step(x: Tensor) -> Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    compiled = torch.compile(step, backend="eager")
    with tt.explain_errors(record=True):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 4.0))
    assert num_graphs(fresh_compiler) == (2, 1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("record", [False, True])
def test_a_block_inside_a_compiled_function_leaves_it_whole(
    record: bool, fresh_compiler: Any
) -> None:
    def step(x: Tensor) -> Tensor:
        with tt.explain_errors(record=record):
            return x.sin()

    compiled = torch.compile(step, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), torch.ones(2).sin())
    assert not torch.overrides.has_torch_function((torch.ones(1),))


@pytest.mark.filterwarnings("ignore")
def test_a_write_of_a_compiled_function_is_told_by_its_name(fresh_compiler: Any) -> None:
    def add_one(t: Tensor) -> Tensor:
        a = t * 2
        t.add_(1)
        return a

    def wrong() -> None:
        y = torch.ones(3, requires_grad=True).exp()
        torch.compile(add_one, backend="aot_eager")(y)
        y.mul_(3)
        y.sum().backward()

    with pytest.raises(RuntimeError) as caught, tt.explain_errors(record=True):
        wrong()
    text = " ".join(notes(caught.value)[0].split())
    assert re.search(r"written by add_one \(\S+\), which torch.compile compiled: its lines", text)
    assert re.search(r"written by \S+: y\.mul_\(3\)", text)


def test_writes_that_the_recording_did_not_see_are_counted() -> None:
    def wrong() -> None:
        y = torch.ones(3, requires_grad=True).exp()
        y.add_(1)
        other = threading.Thread(target=lambda: y.mul_(2))
        other.start()
        other.join()
        y.sum().backward()

    for record in (False, True):
        with pytest.raises(RuntimeError) as caught, tt.explain_errors(record=record):
            wrong()
        text = " ".join(notes(caught.value)[0].split())
        assert ("unseen 1 of 2 writes: record=True sees no writes of" in text) is record


# --- wherever it stands -----------------------------------------------------------------------


def test_blocks_inside_each_other_add_one_note() -> None:
    def inner() -> None:
        with tt.explain_errors():
            run_net()

    assert len(notes(raised(inner))) == 1


def test_one_block_can_be_entered_again() -> None:
    block = tt.explain_errors()
    for _ in range(2):
        with pytest.raises(RuntimeError) as caught, block, block:
            run_net()
        assert len(notes(caught.value)) == 1


def test_it_works_in_generators_that_are_left_and_closed() -> None:
    def batches() -> Generator[Tensor, None, None]:
        with tt.explain_errors():
            yield torch.ones(2)
            yield run_net()

    stream = batches()
    next(stream)
    with pytest.raises(RuntimeError) as caught:
        next(stream)
    assert "fc2 (Linear)" in notes(caught.value)[0]
    closed = batches()
    next(closed)
    closed.close()


def test_each_thread_has_its_own() -> None:
    found: dict[int, list[str]] = {}

    def work(at: int) -> None:
        try:
            with tt.explain_errors():
                nn.Sequential(nn.Linear(4, at + 1), nn.Linear(9, 2))(torch.ones(5, 4))
        except RuntimeError as error:
            found[at] = notes(error)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert all(f"which has {at + 1}." in found[at][0] for at in range(4))


def test_the_model_that_is_given_names_the_modules() -> None:
    inner = nn.Sequential(nn.Linear(4, 3), nn.Linear(8, 2))
    outer = nn.ModuleDict({"head": inner})
    (note,) = notes(raised(lambda: inner(torch.ones(5, 4)), outer))
    assert "head.1 (Linear) takes 8 features" in note
    assert "model['head'][1] = nn.Linear(3, 2)" in note  # `raised` calls it model.


def test_a_module_outside_of_the_model_is_said_to_be() -> None:
    hidden = nn.Linear(8, 2)
    net = nn.Sequential(Own(lambda x: hidden(x)))
    (note,) = notes(raised(lambda: net(torch.ones(5, 4)), net))
    assert "a Linear that is no submodule of the model takes 8 features" in note


def test_indices_are_told_from_the_table_that_they_index() -> None:
    table, tokens = torch.ones(3, 2), torch.tensor([1, 7])
    (note,) = notes(raised(lambda: nn.functional.embedding(tokens, table)))
    text = " ".join(note.split())
    assert (
        "The table has 3 rows, for indices from 0 to 2, and tokens holds indices from 1 to" in text
    )


def test_tensors_inside_of_transforms_and_of_other_classes_are_described() -> None:
    class Sub(Tensor):
        pass

    actions: list[Callable[[], Any]] = [
        lambda: torch.vmap(nn.Linear(4, 3))(torch.ones(2, 5)),
        lambda: torch.ones(2, 3).as_subclass(Sub) @ torch.ones(4, 5),
        lambda: torch.eye(3).to_sparse() @ torch.ones(4, 2),
        lambda: torch.nested.nested_tensor([torch.ones(2, 3)]) @ torch.ones(4, 5),
        lambda: torch.vmap(lambda x: x.view(7))(torch.ones(2, 3)),
    ]
    for action in actions:
        (note,) = notes(raised(action))
        assert "fault of torchtap" not in note
        assert "test_explain_errors.py" in note


def test_long_paths_are_shortened_in_the_middle() -> None:
    net: nn.Module = nn.Linear(3, 3)
    for _ in range(40):
        net = nn.Sequential(net)
    (note,) = notes(raised(lambda: net(torch.ones(2, 4))))
    assert "…" in note.splitlines()[0]
    assert len(note) < 1500


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(InputError, match=r"model is int; expected an nn\.Module"):
        tt.explain_errors(3)  # type: ignore[call-overload]


def test_wrappers_are_looked_through() -> None:
    net = nn.DataParallel(Net())
    (note,) = notes(raised(lambda: net(torch.ones(5, 4))))
    assert "fc2 (Linear) takes 8 features" in note


@pytest.mark.filterwarnings("ignore")
def test_of_compiled_code_the_line_is_told() -> None:
    net = Net()
    compiled = torch.compile(net, backend="eager")
    error = raised(lambda: compiled(torch.ones(5, 4)))
    (note,) = [one for one in notes(error) if one.startswith(HEAD)]
    assert "compiled: modules are not known" in " ".join(note.split())
    line = Net.forward.__code__.co_firstlineno + 1
    assert f"test_explain_errors.py:{line}" in note


def test_source_that_is_gone_leaves_the_module() -> None:
    names: dict[str, Any] = {"torch": torch, "nn": nn}
    exec(
        compile(
            "net = nn.Sequential(nn.Linear(4, 3), nn.Linear(8, 2))\n"
            "def go():\n    return net(torch.ones(5, 4))\n",
            "<gone>",
            "exec",
        ),
        names,
    )
    (note,) = notes(raised(names["go"]))
    assert "1 (Linear) takes 8 features" in note
    assert "<gone>:3" in note


def test_models_that_cannot_be_printed_or_compared_do_no_harm() -> None:
    class Odd(nn.Module):
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("never")

        def __repr__(self) -> str:
            raise RuntimeError("never")

        __hash__ = nn.Module.__hash__

        def __getattr__(self, name: str) -> Any:
            if name == "secret":
                raise RuntimeError("never")
            return super().__getattr__(name)

        def forward(self, x: Tensor) -> Tensor:
            return x @ torch.ones(3)

    (note,) = notes(raised(lambda: Odd()(torch.ones(2))))
    assert "fault of torchtap" not in note
    assert "Odd" in note

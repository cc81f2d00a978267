"""Private names of PyTorch: each is tried, each is listed, and each may be gone."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.nn.utils.prune
from torch import Tensor

import torchtap
from torchtap.core import doors, torch_frames, torch_private
from torchtap.core.errors import CaptureError
from torchtap.core.private_names import ATTRIBUTES, NAMES, PrivateName
from torchtap.core.probes.probes import PROBES, trouble_with

SOURCE = Path(torchtap.__file__).parent
OURS = {"_page", "_html_row", "_of_sites", "_underflow", "_overflow", "_bn1", "_dynamo"}
"""Private members that another file of torchtap reads, columns, a layer of the demo, a folder."""
ENDINGS = {"_g", "_orig"}
"""Ends of the names that a weight norm and a pruning give to parameters."""
OPERATORS = {
    *("_scaled_dot_product_flash_attention_for_cpu", "_local_scalar_dense", "_unsafe_view"),
    *("_foreach_", "_fused_", "_amp_foreach_", "_convolution", "_fused_dropout"),
}
"""Operators, which have schemas that PyTorch keeps, and beginnings of their names."""


@pytest.mark.parametrize("name", NAMES.values(), ids=lambda one: one.name)
def test_a_private_name_does_what_torchtap_reads_in_it(name: PrivateName) -> None:
    assert trouble_with(name) == ""


def test_every_private_name_has_a_probe_and_says_what_it_is_for() -> None:
    assert NAMES.keys() <= PROBES.keys()
    assert all(one.purpose and one.without for one in NAMES.values())


def test_a_name_that_means_something_else_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_private, "sequence_number", lambda: -7)
    assert "something else" in trouble_with(NAMES["torch._C._autograd._get_sequence_nr"])


def test_a_name_that_is_gone_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch._neg_view")
    assert "does not have it" in trouble_with(NAMES["torch._neg_view"])


def private_attributes(tree: ast.AST) -> Iterator[str]:
    """Private names that are read of anything but ``self`` and ``cls``, or stand in a text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            name = "" if is_own else node.attr
        else:
            name = str(getattr(node, "value", "")) if isinstance(node, ast.Constant) else ""
        if name.isidentifier() and name.startswith("_") and not name.startswith("__"):
            yield name


def test_every_private_attribute_of_pytorch_is_listed() -> None:
    trees = {
        path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text())
        for path in SOURCE.rglob("*.py")
    }
    made = {name for tree in trees.values() for name in defined(tree)}
    found = {
        name
        for path, tree in trees.items()
        if path not in ("core/private_names.py", "core/torch_private.py", "core/torch_frames.py")
        and not path.startswith("core/probes/")
        and not path.startswith("testing/zoo/")  # Its methods are asked for by their names.
        for name in private_attributes(tree)
    }
    python = {"_", "_getframe", "_current_frames", "_replace", "_fields", "_asdict", "_make"}
    python |= {"_at_fork_reinit", "_is_owned"}  # Of a lock.
    named = {name.rpartition(".")[2] for name in NAMES}
    unlisted = found - made - ATTRIBUTES.keys() - python - OPERATORS - named - OURS - ENDINGS
    assert not unlisted, "list these in torchtap.core.private_names.ATTRIBUTES"


def test_a_private_attribute_that_a_text_names_is_found() -> None:
    tree = ast.parse("getattr(node, '_saved_far'), node._near, self._own, node.__class__, '_ no'")
    assert set(private_attributes(tree)) == {"_saved_far", "_near"}


def defined(tree: ast.AST) -> Iterator[str]:
    """Names that a file gives to functions, classes, variables and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__":
            yield from ast.literal_eval(node.value)


def holders() -> Iterator[object]:
    """Objects of PyTorch whose private attributes are read, as they are after some use."""
    x: Any = torch.ones(2, 4, requires_grad=True)
    yield from (x, torch.ops.aten.sin.default)
    norm = torch.nn.functional.batch_norm(x, torch.zeros(4), torch.ones(4), training=True)
    made = [x.transpose(0, 1), x.sum(0), x.permute(1, 0), x.mul(x), x.where(x > 0, x)]
    made += [x.clamp(0, 1), torch.nn.functional.threshold(x, 0, 0), x.div(2, rounding_mode="floor")]
    made += [x.masked_fill(x > 0, 0), torch.nn.functional.hardtanh(x), norm, ByContext.apply(x)]
    yield from (one.grad_fn for one in made)
    yield from (torch.nn.MultiheadAttention(2, 1), torch.compile(torch.nn.ReLU()))
    optimizer = torch.optim.SGD([x], 0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(x.sum()).backward()
    scaler.step(optimizer)
    yield from (optimizer, scaler, torch.nn.modules.conv, torch.nn.modules.batchnorm)
    yield torch.nn.modules.module
    yield from (torch.nn.modules.instancenorm, torch.nn.modules.dropout, torch.utils.data)
    pruned = torch.nn.utils.prune.l1_unstructured(torch.nn.Linear(2, 2), "weight", 0.5)
    yield from pruned._forward_pre_hooks.values()


READ_BY_PYTORCH = {
    "_torchdynamo_disable": "_dynamo/decorators.py",
    "_torchdynamo_disable_msg": "_dynamo/decorators.py",
    "_dynamo_marked_constant": "_dynamo/decorators.py",
    "_is_flat_param": "distributed/fsdp/_flat_param.py",
    "_fsdp_wrapped_module": "distributed/fsdp/fully_sharded_data_parallel.py",
    "_checkpoint_wrapped_module": "distributed/algorithms/_checkpoint/checkpoint_wrapper.py",
    "_unsharded_param": "distributed/fsdp/_fully_shard/_fsdp_param.py",
    "_sharded_post_forward_param": "distributed/fsdp/_fully_shard/_fsdp_param.py",
    "_StridedShard": "distributed/tensor/placement_types.py",
}
"""Attributes that PyTorch sets or reads where nothing here brings them about -> where it does."""


def test_every_listed_attribute_is_one_of_pytorch() -> None:
    known = {name for one in holders() for name in dir(one)}
    begun = {name for name in ATTRIBUTES if any(one.startswith(name) for one in known)}
    assert {"_saved_", "_raw_saved_"} <= begun
    assert ATTRIBUTES.keys() - {"_saved_", "_raw_saved_"} - known == READ_BY_PYTORCH.keys()
    for name, file in READ_BY_PYTORCH.items():
        assert name in (Path(torch.__file__).parent / file).read_text(), name


# ---------------------------------------------------------------------- without a name

_PRELUDE = """
import torch, torch.utils.checkpoint, torch._higher_order_ops.effects
from torch import nn
model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)  # Imports Dynamo, which needs the names.
def gone(name):
    holder, _, last = name.rpartition(".")
    delattr(eval(holder), last)
gone({name!r})
import torchtap as tt
x = torch.ones(5, 3, requires_grad=True)
"""
_READS = """
import sys
run = tt.open(sys.argv[1])
assert run.sites and run[run.sites[0]] is not None and str(run.table())
assert tt.measure(torch.ones(3)).mean == 1
print("read")
"""
_DOORS = """
def watched():
    with tt.watch(model, "*:*") as w:
        model(x).sum().backward()
    assert not w.absent and len(w.run.sites) == 16, (w.absent, w.run.sites)
def edited():
    with tt.edit(model, "0", tt.edits.zero()):
        assert model(x).std(0).max() == 0
def offloaded():
    with tt.offload("disk", min_bytes=0):
        model(x).sum().backward()
def guarded():
    with tt.guard(model, optimizer=optimizer):
        model(x).sum().backward()
        optimizer.step()
def recorded():
    assert torch.equal(tt.replay(tt.record_call(model, "0", x)), model[0](x))
calls = {
    "tt.watch": watched,
    "tt.edit": edited,
    "tt.offload": offloaded,
    "tt.graph": lambda: tt.graph(model, x),
    "tt.verify": lambda: tt.verify(model, x) or 1 / 0,
    "tt.features": lambda: tt.features(model, "0")(x),
    "tt.locate": lambda: tt.locate(model, lambda x: model(x).sum().backward(), x),
    "tt.guard": guarded,
    "tt.record_call": recorded,
    "tt.replay": lambda: tt.replay(sys.argv[2]),
    "tt.audit": lambda: tt.audit(model, x),
    "tt.cam": lambda: tt.attribute(model, x, target=0, method="gradient"),
}
if NAME == "torch._C._is_any_autocast_enabled":
    del calls["tt.locate"]  # It keeps out of Dynamo, which PyTorch cannot import then.
refused = []
for door, call in calls.items():
    try:
        call()
    except tt.CaptureError as error:
        assert door in str(error) or door == "tt.cam", error
        assert NAME in str(error) and torch.__version__ in str(error), error
        refused.append(door)
print("refused", *refused)
"""

GONE = {
    "torch._C._current_graph_task_id": (
        "tt.watch tt.edit tt.offload tt.graph tt.verify tt.locate tt.guard tt.record_call tt.audit"
    ),
    "torch._C._will_engine_execute_node": "tt.watch tt.edit tt.verify",
    "torch._C._autograd._get_sequence_nr": (
        "tt.watch tt.edit tt.offload tt.graph tt.verify tt.replay tt.audit"
    ),
    "torch._C._autograd._push_saved_tensors_default_hooks": "tt.offload",
    "torch._C._functorch.peek_interpreter_stack": "tt.watch tt.edit tt.verify",
    "torch._C._len_torch_dispatch_stack": "",
    "torch._C._is_any_autocast_enabled": "",
    "torch._neg_view": "tt.offload",
    "torch.autograd.function._HookMixin": "",
    "torch._higher_order_ops.effects._register_effectful_op": "tt.watch",
    "torch.optim.Optimizer.profile_hook_step": "",
    "torch.utils._python_dispatch._disable_current_modes": "tt.locate tt.guard",
}
"""Private name -> the doors that do not open without it."""


@pytest.mark.parametrize("name", GONE)
def test_without_a_private_name_runs_are_read_and_doors_say_what_is_missing(
    name: str, tmp_path: Path
) -> None:
    model = torch.nn.Linear(3, 2)
    with torchtap.watch(model, "*") as w:
        model(torch.ones(4, 3))
    w.run.save(file := tmp_path / "run.safetensors")
    torchtap.record_call(model, "", torch.ones(4, 3)).save(case := tmp_path / "case")
    program = f"NAME = {name!r}\n" + _PRELUDE.format(name=name) + _READS + _DOORS
    done = subprocess.run(
        [sys.executable, "-c", program, str(file), str(case)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    read, refused = done.stdout.splitlines()
    assert read == "read"
    assert set(GONE[name].split()) <= set(refused.split()[1:])
    if not GONE[name]:
        assert refused == "refused"


def test_reading_commands_need_no_private_name(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    with torchtap.watch(model, "*") as w:
        model(torch.ones(4, 3))
    w.run.save(file := tmp_path / "run.safetensors")
    program = _PRELUDE.format(name="torch._C._current_graph_task_id") + (
        "import sys\nfrom torchtap.cli.app import run\n"
        "for words in (['ls'], ['show'], ['stats']):\n"
        "    assert run([*words, sys.argv[1]]) == 0\n"
        "assert run(['export', sys.argv[1], '--to', 'npz']) == 0\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------------- versions


def test_a_version_that_was_never_tried_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "9.1.0")
    monkeypatch.setattr(doors, "_has_warned", False)
    with pytest.warns(UserWarning, match=r"never tried with torch 9\.1\.0"):
        doors.require("tt.watch")
    doors.require("tt.watch")  # Says nothing the second time: a warning is an error here.


def test_versions_that_were_tried_are_not_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("2.13.0+cpu", "2.14.9", "2.15.1+cu132"):
        monkeypatch.setattr(torch, "__version__", version)
        assert "torch" not in doors.untried()


def test_a_door_names_what_is_gone_and_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = PrivateName("torch._C._nowhere", "finds nothing", "", ("tt.watch",))
    monkeypatch.setitem(NAMES, gone.name, gone)
    doors._of_door.cache_clear()
    try:
        with pytest.raises(CaptureError, match=r"tt\.watch needs .*torch\._C\._nowhere"):
            torchtap.watch(torch.nn.Linear(2, 2))
        assert torchtap.measure(torch.ones(2)).mean == 1
    finally:
        doors._of_door.cache_clear()


# ---------------------------------------------------------------------- custom functions


class ByContext(torch.autograd.Function):
    """Says whether its forward is noticed; its context has the name of a method's object."""

    @staticmethod
    def forward(self: object, x: Tensor) -> Tensor:
        seen.append(torch_frames.is_in_function())
        return x * 2

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        seen.append(torch_frames.is_in_function())
        return gradient * 2


class BySetup(torch.autograd.Function):
    """A function whose context is set up apart."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        seen.append(torch_frames.is_in_function())
        return x * 2

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        pass

    backward = ByContext.backward


class Mixed(torch.autograd.Function):
    """A function behind a decorator."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")  # type: ignore[untyped-decorator]
    def forward(ctx: object, x: Tensor) -> Tensor:
        seen.append(torch_frames.is_in_function())
        return x * 2

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        seen.append(torch_frames.is_in_function())
        return gradient * 2


seen: list[bool] = []


@pytest.mark.parametrize("function", [ByContext, BySetup, Mixed])
def test_the_forward_of_a_custom_function_is_told_from_its_backward(
    function: type[torch.autograd.Function],
) -> None:
    seen.clear()
    function.apply(torch.ones(2, requires_grad=True)).sum().backward()
    assert seen == [True, False]
    assert not torch_frames.is_in_function()


def test_a_function_that_is_made_later_is_known() -> None:
    class Later(ByContext):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            seen.append(torch_frames.is_in_function())
            return x * 3

    seen.clear()
    Later.apply(torch.ones(2, requires_grad=True))
    assert seen == [True]

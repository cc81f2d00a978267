"""An exported call is a script that needs torch, safetensors and the module's class."""

from __future__ import annotations

import ast
import os
import pickletools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import torchtap as tt

SOURCE = '''
import torch
from torch import nn

class Block(nn.Module):
    """Its constructor must not be called again."""
    def __init__(self, width, *, seed):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.register_buffer("scale", torch.rand(width), persistent=False)
        self.act = torch.nn.functional.gelu
        self.drop = 0.5

    def forward(self, x, factors=None):
        y = self.act(self.inner(x)) * self.scale
        y = nn.functional.dropout(y, self.drop, self.training)
        return {"y": y, "x": x} if factors is None else y * factors[0]
'''


def run(script: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run it where torchtap cannot be imported."""
    blocked = script.parent / "blocked" / "torchtap"
    blocked.mkdir(parents=True, exist_ok=True)
    (blocked / "__init__.py").write_text("raise ImportError('the script must not need it')")
    env = {**os.environ, "PYTHONPATH": str(blocked.parent), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, str(script), *words],
        capture_output=True,
        text=True,
        check=False,
        env=env,
        cwd="/",
    )


@pytest.fixture
def block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    (tmp_path / "own_blocks.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_blocks", raising=False)
    from own_blocks import Block  # type: ignore[import-not-found]

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), Block(4, seed=1))


def test_a_script_runs_alone_and_compares_to_the_bit(block: nn.Module, tmp_path: Path) -> None:
    call = tt.record_call(block, "1", torch.randn(2, 3))
    script = call.export(tmp_path / "out" / "case.py")
    assert sorted(one.name for one in script.parent.iterdir()) == ["case.py", "case.safetensors"]
    done = run(script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "Call 0 of 1 (Block), forward and backward",
        "Equal to the bit: 6 of 6 tensors.",
    ]
    assert not done.stderr
    assert tt.replay(script).keys() == call.output.keys()


@pytest.mark.parametrize("table", ["output", "module"])
def test_a_script_exits_with_1_where_a_bit_differs(
    table: str, block: nn.Module, tmp_path: Path
) -> None:
    call = tt.record_call(block, "1", torch.randn(2, 3))
    script = call.export(tmp_path / "case.py")
    file = script.with_suffix(".safetensors")
    tensors = load_file(file)
    value = call.output["y"] if table == "output" else call.module.inner.weight
    name = next(
        name
        for name, one in tensors.items()
        if one.dtype == value.dtype and torch.equal(one, value.detach().flatten())
    )
    tensors[name] *= 1 + 2**-20
    save_file(tensors, file, metadata={"call": _text(file)})
    done = run(script)
    assert done.returncode == 1, done.stderr
    assert "elements differ" in done.stdout


def _text(file: Path) -> str:
    from safetensors import safe_open

    with safe_open(file, "pt") as opened:
        return str(opened.metadata()["call"])


def test_a_script_without_its_file_or_its_class_says_so(block: nn.Module, tmp_path: Path) -> None:
    script = tt.record_call(block, "1", torch.randn(2, 3)).export(tmp_path / "case.py")
    (tmp_path / "own_blocks.py").rename(tmp_path / "moved.py")
    done = run(script)
    assert done.returncode == 2
    assert "own_blocks:Block cannot be imported" in done.stderr
    script.with_suffix(".safetensors").unlink()
    done = run(script)
    assert done.returncode == 2
    assert "written together" in done.stderr


def test_a_script_defines_no_name_twice_and_names_nothing_of_torchtap(tmp_path: Path) -> None:
    script = tt.record_call(nn.ReLU(), ".", torch.ones(1)).export(tmp_path / "case.py")
    tree = ast.parse(script.read_text())
    defined = [one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.ClassDef)]
    defined += [
        target.id
        for one in tree.body
        if isinstance(one, ast.Assign | ast.AnnAssign)
        for target in ([one.target] if isinstance(one, ast.AnnAssign) else one.targets)
        if isinstance(target, ast.Name)
    ]
    assert len(defined) == len(set(defined))
    modules = {
        name
        for one in ast.walk(tree)
        for name in (
            [alias.name for alias in one.names]
            if isinstance(one, ast.Import)
            else [one.module or ""]
            if isinstance(one, ast.ImportFrom)
            else []
        )
    }
    assert not any(name.startswith("torchtap") for name in modules)


def test_no_file_holds_a_pickle(block: nn.Module, tmp_path: Path) -> None:
    call = tt.record_call(block, "1", torch.randn(2, 3))
    files = [*call.save(tmp_path / "folder").iterdir(), call.export(tmp_path / "case.py")]
    for file in files:
        with pytest.raises((ValueError, UnicodeDecodeError)):
            list(pickletools.genops(file.read_bytes()))
    assert "pickle" not in (tmp_path / "folder" / "call.json").read_text()


# --- what is refused, by name and place --------------------------------------------------------


class Holds(nn.Module):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


def refused(module: nn.Module, tmp_path: Path, *args: Any) -> str:
    call = tt.record_call(module, ".", torch.ones(1), *args)
    assert tt.replay(call) is not None  # In memory it is held.
    with pytest.raises(tt.InputError) as raised:
        call.export(tmp_path / "case.py")
    assert not (tmp_path / "case.py").exists()
    return str(raised.value)


def test_a_lambda_is_refused_with_its_place(tmp_path: Path) -> None:
    said = refused(nn.Sequential(Holds({"f": [lambda x: x]})), tmp_path)
    assert said.startswith("module ..0.value['f'][0] cannot be written: it is a lambda")
    assert "can be imported" in said


def test_a_class_in_a_function_is_refused(tmp_path: Path) -> None:
    class Local(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    said = refused(nn.Sequential(Local()), tmp_path)
    assert "Local is made in a function; move it into a module" in said


def test_a_class_of_main_is_refused(tmp_path: Path) -> None:
    program = """
import torch, torchtap as tt
class Net(torch.nn.Module):
    def forward(self, x): return x
try:
    tt.record_call(Net(), ".", torch.ones(1)).export("case.py")
except tt.InputError as error:
    print(error)
"""
    env = {**os.environ, "PYTHONPATH": str(Path(tt.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=env,
    )
    assert "Net is of __main__" in done.stdout


@pytest.mark.parametrize("kind", ["array of objects", "subclass", "bound"])
def test_what_only_pickle_could_hold_is_refused(kind: str, tmp_path: Path) -> None:
    import numpy as np

    class Text(str):
        __slots__ = ()

    values: dict[str, Any] = {
        "array of objects": np.array([None, "a"]),
        "subclass": Text("a"),
        "bound": [1].append,
    }
    said = refused(Holds(values[kind]), tmp_path)
    assert said.startswith("module ..value cannot be written")


def test_a_hook_that_cannot_be_imported_is_left_out_with_a_note(tmp_path: Path) -> None:
    module = nn.Linear(2, 2)
    seen = []
    module.register_forward_hook(lambda m, a, out: seen.append(1))
    call = tt.record_call(module, ".", torch.ones(1, 2))
    done = run(call.export(tmp_path / "case.py"))
    assert done.returncode == 0, done.stderr
    assert "a hook of module . is not written: it is a lambda" in done.stdout


def test_a_name_that_is_no_script_is_refused(tmp_path: Path) -> None:
    call = tt.record_call(nn.ReLU(), ".", torch.ones(1))
    with pytest.raises(tt.InputError, match=r"ends in \.py"):
        call.export(tmp_path / "case")

"""The command line names torchtap where torchtap fails, and shows where the user's code does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torchtap
from torchtap.cli import app as cli

NET = ("torch.nn:Linear", "--arg", "in_features=4", "--arg", "out_features=2")
TRAIN = """
import torch
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    net(torch.ones(1, 4)).sum().backward()
    optimizer.step()
print("trained")
"""
LACKING = """
import sys, torch
del torch._C._current_graph_task_id
"""
"""A release of PyTorch without a name that torchtap reaches for."""
BROKEN = """
import sys
from torchtap.hooks import tap_follower
from torchtap.capture import watch_engine
del watch_engine.WatchEngine.attach
"""
START = "\nsys.argv[0] = 'torchtap'\nfrom torchtap.cli.app import main\nmain()\n"


def shell(folder: Path, before: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, in which something was broken before."""
    source = str(Path(torchtap.__file__).parent.parent)
    env = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", before + START, *words]
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False
    )


CONV = ("torch.nn:Conv2d", "--arg", "in_channels=1", "--arg", "out_channels=2")
COMMANDS = {
    "record": ("record", *NET, "--shape", "2,4"),
    "summary": ("summary", *NET, "--shape", "2,4"),
    "maps": ("maps", *CONV, "--arg", "kernel_size=3", "--shape", "1,1,8,8"),
    "demo": ("demo",),
}


@pytest.mark.parametrize(
    "command",
    ["record", *(pytest.param(one, marks=pytest.mark.slow) for one in COMMANDS if one != "record")],
)
def test_a_fault_of_torchtap_is_called_so_with_the_versions(tmp_path: Path, command: str) -> None:
    done = shell(tmp_path, BROKEN, *COMMANDS[command])
    assert done.returncode == 3
    last = done.stderr.splitlines()[-1]
    assert last.startswith("torchtap: a fault of torchtap itself: AttributeError: ")
    for part in (torchtap.__version__, torch.__version__.partition("+")[0], sys.version.split()[0]):
        assert part in last
    assert "`torchtap selfcheck`" in last
    assert "raised the above" not in done.stderr
    assert "was given" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_name_that_pytorch_has_no_more_is_never_the_users_fault(
    tmp_path: Path, command: str
) -> None:
    done = shell(tmp_path, LACKING, *COMMANDS[command])
    assert done.returncode in (0, 2, 3)
    if done.returncode:
        assert "_current_graph_task_id" in done.stderr
    assert "raised the above" not in done.stderr
    assert "was given" not in done.stderr


def test_a_script_is_told_of_a_fault_and_ends_as_it_would_unless_strict(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    for options, code in (((), 0), (("--strict",), 3)):
        done = shell(tmp_path, BROKEN, "run", *options, "train.py")
        assert (done.returncode, done.stdout) == (code, "trained\n")
        last = done.stderr.splitlines()[-1]
        assert last.startswith(
            "torchtap: nothing was recorded: a fault of torchtap itself: AttributeError: "
        )


def test_every_door_to_code_of_the_users_is_there() -> None:
    import importlib

    from torchtap.core import blame

    for file, name in blame._DOORS:
        found = importlib.import_module(f"torchtap.{file.removesuffix('.py').replace('/', '.')}")
        for part in name.split("."):
            found = getattr(found, part)
        assert callable(found)


USERS = {
    "imported": ("import nosuchthing\n", "No module named 'nosuchthing'"),
    "syntax": ("def net(:\n", "invalid syntax"),
    "built": ("def net():\n    return {}['width']\n", "KeyError: 'width'"),
    "built by torch": (
        "import torch\ndef net():\n    return torch.nn.Linear(2, 'b')\n",
        "TypeError",
    ),
}


@pytest.mark.parametrize("how", USERS)
def test_what_the_users_code_raises_is_printed_without_our_calls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    source, message = USERS[how]
    file = tmp_path / f"users_{how.replace(' ', '_')}.py"
    file.write_text(source)
    assert cli.run(["summary", f"{file}:net", "--shape", "2,2"]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert str(file) in said
    assert "torchtap/cli" not in said
    assert "click" not in said
    assert said.endswith("torchtap: the code that was asked to run raised the above\n")
    assert said.count("\n") <= 14


@pytest.mark.parametrize("command", [("record",), ("summary",), ("summary", "--saved"), ("graph",)])
def test_what_an_operation_of_the_model_raises_is_the_models(
    capsys: pytest.CaptureFixture[str], command: tuple[str, ...], tmp_path: Path
) -> None:
    # Between the operation and the model stand modes of torchtap, which only pass it on.
    name, *options = command
    code = cli.run([name, *NET, "--shape", "2,3", *options])
    said = capsys.readouterr()
    assert code in (1, 2)
    assert "shapes cannot be multiplied" in said.out + said.err
    assert "fault of torchtap" not in said.err

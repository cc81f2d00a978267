"""Reading a model's code for ``tt.mark``: it survives any object, and finds every mark."""

from __future__ import annotations

import functools
import importlib.util
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchtap as tt


class _Raises:
    """Whatever it is asked for, also by ``isinstance``."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"asked for {name}")


class _Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError(f"asked for {name}")

    def __eq__(cls, other: object) -> bool:
        raise RuntimeError("compared")


def _of_meta() -> Any:
    """Made where it is used: pytest asks whatever stands in a file of tests."""
    return _Meta("OfMeta", (), {})


class _HasCode:
    __code__ = "no code"
    __wrapped__ = property(lambda self: 1 / 0)
    __name__ = 3

    def __call__(self, other: object) -> None:
        """Nothing."""


def _lazy_module() -> types.ModuleType:
    spec = importlib.util.find_spec("this")  # It prints when it is loaded.
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _with_an_empty_cell() -> Callable[[], Any]:
    def reads() -> Any:
        return later

    if reads is None:
        later: int = 1
    return reads


ODD: dict[str, Callable[[], Any]] = {
    "a class of descriptors": lambda: types.FunctionType,
    "a descriptor": lambda: vars(types.FunctionType)["__code__"],
    "a class": _of_meta,
    "an object of that class": lambda: object.__new__(_of_meta()),
    "an object that raises": lambda: _Raises(),
    "an object with a code that is none": lambda: _HasCode(),
    "a partial of odd objects": lambda: functools.partial(_HasCode(), other=_Raises()),
    "a builtin": lambda: len,
    "a proxy of what is gone": lambda: weakref.proxy(nn.Identity()),
    "a lazy module": _lazy_module,
    "a cached function": lambda: functools.lru_cache(len),
    "a cell without content": _with_an_empty_cell,
    "a module without a file": lambda: types.ModuleType("odd"),
}


class Reads(nn.Module):
    """Names an odd object in its code, holds it, and has it in its class."""

    def __init__(self, odd: Any) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.held = [odd]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x)
        return y if ODD is not None else named  # type: ignore[name-defined] # noqa: F821


@pytest.mark.parametrize("kind", ODD)
def test_a_wrong_path_says_what_was_meant_whatever_the_code_names(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = ODD[kind]()
    scope = {**globals(), "ODD": None, "named": odd}
    forward = types.FunctionType(Reads.forward.__code__, scope, "forward")
    model = type("Odd", (Reads,), {"forward": forward, "odd": odd, "__module__": 3})(odd)
    with pytest.raises(tt.SiteError, match="did you mean 'fc'"):
        tt.watch(model, "fcc")
    assert capsys.readouterr().out == ""


def _marks(x: Tensor) -> Tensor:
    return tt.mark(x, "inner")


class _Helper:
    def run(self, x: Tensor) -> Tensor:
        return _marks(x)

    @staticmethod
    def still(x: Tensor) -> Tensor:
        return _marks(x)

    @functools.cached_property
    def later(self) -> Callable[[Tensor], Tensor]:
        return _marks


def _plainly_wrapped(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: function(x)


def _default(x: Tensor, then: Callable[[Tensor], Tensor] = _marks) -> Tensor:
    return then(x)


def _deep(x: Tensor) -> Tensor:
    return _deep_1(x)


def _deep_1(x: Tensor) -> Tensor:
    return _deep_2(x)


def _deep_2(x: Tensor) -> Tensor:
    return _deep_3(x)


def _deep_3(x: Tensor) -> Tensor:
    return _Helper().run(x)


_others = types.ModuleType("others")
_others.marking = _marks  # type: ignore[attr-defined]

WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "function": _marks,
    "partial": functools.partial(_default),
    "method of an object": _Helper().run,
    "static method": _Helper.still,
    "cached property": lambda x: _Helper().later(x),
    "wrapped": _plainly_wrapped(_marks),
    "under no_grad": torch.no_grad()(_marks),
    "compiled": torch.compile(_marks, backend="eager"),
    "cached": functools.lru_cache(_marks),
    "default": _default,
    "five calls away": _deep,
    "in another module": lambda x: _others.marking(x),
    "by its name": lambda x: getattr(tt, "mark")(x, "inner"),  # noqa: B009
}


class Holds(nn.Module):
    def __init__(self, ways: Any) -> None:
        super().__init__()
        self.ways = ways

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = next(iter(self.ways))(x)
        return y


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("hold", [lambda f: [f], lambda f: {f: 1}, lambda f: (f,)])
def test_a_mark_is_found_wherever_the_code_calls_it_from(
    way: str, hold: Callable[[Any], Any]
) -> None:
    model = Holds(hold(WAYS[way]))
    with tt.watch(model, "inner") as w:
        model(torch.ones(2))
    assert w.run["inner:output"].tolist() == [1.0, 1.0]


def test_a_mark_in_a_hook_of_the_program_is_found() -> None:
    model = nn.Linear(2, 2)
    model.register_forward_hook(lambda module, args, output: tt.mark(output, "inner"))
    with tt.watch(model, "inner") as w:
        y = model(torch.ones(2))
    assert torch.equal(w.run["inner:output"], y)


def test_code_of_libraries_is_not_searched() -> None:
    encoder = pytest.importorskip("torchvision").models.resnet18()
    with pytest.raises(tt.SiteError, match="did you mean 'fc'"):
        tt.watch(encoder, "fcc")

"""Modules that are walked once for many questions."""

from __future__ import annotations

import threading

import pytest
import transformers
from torch import nn

from torchtap.core.module_paths import every_module, modules_of, walked_once


def test_inside_the_modules_are_those_of_the_first_question() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with walked_once(model):
        first, _ = modules_of(model)
        model.append(nn.ReLU())
        assert modules_of(model)[0] == first
        first.clear()  # A caller's own.
        assert list(modules_of(model)[0]) == ["", "0"]
        with walked_once(model), pytest.raises(KeyError):
            raise KeyError
        assert list(modules_of(model)[0]) == ["", "0"]
    assert list(modules_of(model)[0]) == ["", "0", "1"]


def test_other_models_and_threads_are_walked_anew() -> None:
    model, other = nn.Sequential(nn.Linear(2, 2)), nn.Sequential()
    found: list[list[str]] = []
    with walked_once(model):
        modules_of(model), modules_of(other)
        model.append(nn.ReLU())
        other.append(nn.ReLU())
        thread = threading.Thread(target=lambda: found.append(list(modules_of(model)[0])))
        thread.start()
        thread.join()
        assert list(modules_of(other)[0]) == ["", "0"]
    assert found == [["", "0", "1"]]


def nested() -> nn.Module:
    shared = nn.Linear(2, 2)
    model = nn.Sequential(nn.Sequential(shared), shared, nn.Sequential(nn.ReLU(), shared))
    model.register_module("none", None)
    return model


def language() -> nn.Module:
    config = transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=11)
    return transformers.GPT2LMHeadModel(config)


@pytest.mark.parametrize("make", [nested, language])
def test_every_module_is_what_pytorch_gives(make: type[nn.Module]) -> None:
    model = make()
    assert list(map(id, every_module(model))) == list(map(id, model.modules()))

"""Edits whose values come from elsewhere: patches and means."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from edited import at_site, close, done, exactly
from models import MobileNetV2, rows, seeded
from random_numbers import normal
from torch import Tensor, nn

import torchtap as tt
from torchtap import edits
from torchtap.testing import Net


def test_mean_ablation_by_batch_run_and_tensor() -> None:
    tensor = normal(6, 4)
    exactly(done(edits.mean_ablate(), tensor), tensor.mean(0, keepdim=True))
    mean = torch.arange(4.0)
    exactly(done(edits.mean_ablate(mean), tensor), mean)
    exactly(done(edits.mean_ablate({"m": mean}), tensor), mean)
    model = Net(lambda m, x: m.m(x), m=nn.Identity())
    with tt.watch(model, "m") as watch:
        for part in tensor.split(2):
            model(part)
            watch.step()
    right = tensor.double().mean(0, keepdim=True).float()
    exactly(done(edits.mean_ablate(watch.run), torch.ones(3, 4)), right)
    with pytest.raises(tt.EditError, match="nothing to put in"):
        done(edits.mean_ablate(watch.run), tensor, site="other:output")


def mlp() -> nn.Sequential:
    return seeded(lambda: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)))


def sources(model: nn.Module, b: Tensor) -> dict[str, Any]:
    with tt.watch(model, "1", copy="always") as watch:
        model(b)
    hidden = model[1](model[0](b)).detach()
    return {
        "run": edits.patch(watch.run),
        "mapping by path": edits.patch({"1": hidden}),
        "mapping by site": edits.patch({"1:output": hidden}),
        "tensor": edits.patch(hidden),
        "function": edits.patch(lambda record: hidden if record.call == 0 else None),  # type: ignore[arg-type, return-value]
        "inputs": edits.patch(inputs=b),
        "inputs as arguments": edits.patch(inputs=(b,)),
        "inputs by keyword": edits.patch(inputs={"input": b}),
        "another model": edits.patch(inputs=b, model=mlp()),
        "a site": edits.patch({"elsewhere": hidden}, site="elsewhere"),
        "a function of the site": edits.patch(
            {"x1:output": hidden}, site=lambda site: f"x{site.path}:output"
        ),
    }


@pytest.mark.parametrize("name", list(sources(mlp(), rows(1))))
def test_a_patch_puts_in_what_flowed_elsewhere(name: str) -> None:
    model, a, b = mlp(), rows(0), rows(1)
    with tt.edit(model, "1", sources(model, b)[name]) as edit:
        out = model(a)
    exactly(out, model(b))
    assert edit.fired == {"1:output": 1}


def test_patching_every_output_from_another_run_gives_its_output() -> None:
    model = seeded(lambda: MobileNetV2(width=0.125, num_classes=5, stages=3)).eval()
    a, b = (normal(2, 3, 16, 16, seed=s) for s in (0, 1))
    with torch.no_grad(), tt.watch(model, "*", copy="always") as watch:
        right = model(b)
    for where in ("*", "features.*", "features.0"):
        with torch.no_grad(), tt.edit(model, where, edits.patch(watch.run)):
            exactly(model(a), right)


def test_interchange_of_a_row_and_of_channels_of_an_mlp() -> None:
    model, a, b = mlp(), rows(0), rows(1)
    hidden, other = model[1](model[0](a)), model[1](model[0](b))
    mixed = hidden.clone()
    mixed[2, 3:6] = other[2, 3:6]
    with tt.edit(model, "1", edits.patch(inputs=b, at={0: 2, -1: slice(3, 6)})):
        exactly(model(a), model[2](mixed))


def test_a_patch_from_inputs_leaves_no_trace() -> None:
    model = seeded(lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 2)))
    state, random = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    tt.edit(model, "0", edits.patch(inputs=rows(0)), missing="ignore").close()
    assert all(torch.equal(state[name], one) for name, one in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(module._forward_hooks for module in model.modules())


def test_a_patch_that_does_not_fit_says_so() -> None:
    model, a = mlp(), rows(0)
    cases: list[tuple[Any, str]] = [
        (torch.ones(4, 8), r"float32\[4, 8\] for float32\[5, 8\]"),
        (torch.ones(5, 8).double(), r"float64\[5, 8\] to put in the place of float32\[5, 8\]"),
        ({"2": torch.ones(1)}, "mapping has no '1:output'"),
    ]
    for source, message in cases:
        with (
            pytest.raises(tt.EditError, match=rf"1:output \(step 0, call 0\).*{message}"),
            tt.edit(model, "1", edits.patch(source)),
        ):
            model(a)
    for both in ({}, {"source": torch.ones(1), "inputs": a}):
        with pytest.raises(tt.InputError, match="either a source"):
            edits.patch(**both)  # type: ignore[arg-type]
    with pytest.raises(tt.EditError, match="works only in"):
        edits.patch(inputs=a)(a, at_site(a))


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=13, n_positions=8, n_embd=16, n_layer=2, n_head=2, use_cache=False
    )
    return seeded(lambda: GPT2LMHeadModel(config)).eval()


def test_interchange_of_a_token_in_gpt2_is_that_by_hand() -> None:
    model = gpt2()
    a, b = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        hidden = model(b, output_hidden_states=True).hidden_states[1]

        def by_hand(module: nn.Module, args: Any, output: Any) -> Any:
            mixed = (output[0] if isinstance(output, tuple) else output).clone()
            mixed[:, 2] = hidden[:, 2]
            return (mixed, *output[1:]) if isinstance(output, tuple) else mixed

        handle = model.transformer.h[0].register_forward_hook(by_hand)
        right = model(a).logits
        handle.remove()
        plain = model(a)
        patch = edits.patch(inputs={"input_ids": b}, at={1: 2})
        with tt.edit(model, "transformer.h.0", patch):
            ours = model(a)
    exactly(ours.logits, right)
    assert type(ours) is type(plain) and not torch.equal(ours.logits, plain.logits)


def test_a_head_of_gpt2_is_cut_off_as_by_its_projection() -> None:
    model, a = gpt2(), torch.tensor([[1, 2, 3, 4]])
    projection = model.transformer.h[1].attn.c_proj
    with torch.no_grad():
        with tt.edit(model, "transformer.h.1.attn.c_proj:input", edits.zero(at={-1: slice(0, 8)})):
            ours = model(a).logits
        projection.weight[:8] = 0
        close(ours, model(a).logits)


SHORT, LONG = torch.arange(6.0).view(1, 3, 2), 10 + torch.arange(10.0).view(1, 5, 2)


MOVES: dict[str, tuple[dict[str, Any], list[int], list[int]]] = {
    "the same index of both": ({"at": {1: 2}}, [2], [2]),
    "the last of each": ({"at": {1: -1}}, [2], [4]),
    "counted from the end": ({"at": {-2: [-1, 0]}}, [2, 0], [4, 0]),
    "the first two": ({"at": {1: slice(2)}}, [0, 1], [0, 1]),
    "another of the source": ({"at": {1: 2}, "source_at": {1: 4}}, [2], [4]),
    "in the order asked for": ({"at": {1: [2, 0]}, "source_at": {1: [1, 3]}}, [2, 0], [1, 3]),
    "one for several": ({"at": {1: [0, 1]}, "source_at": {1: 4}}, [0, 1], [4, 4]),
    "backwards": ({"at": {1: slice(3)}, "source_at": {1: slice(4, 1, -1)}}, [0, 1, 2], [4, 3, 2]),
    "a mask": ({"at": {1: [True, False, True]}, "source_at": {1: [3, 4]}}, [0, 2], [3, 4]),
}


@pytest.mark.parametrize("move", list(MOVES))
def test_a_patch_takes_places_of_a_source_of_another_length(move: str) -> None:
    options, into, out_of = MOVES[move]
    right = SHORT.clone()
    right[:, into] = LONG[:, out_of]
    exactly(done(edits.patch(LONG, **options), SHORT), right)


def test_a_patch_may_move_within_one_length() -> None:
    found = done(edits.patch(10 * SHORT, at={1: 0}, source_at={1: 2}), SHORT)
    exactly(found[:, 0], 10 * SHORT[:, 2])
    exactly(found[:, 1:], SHORT[:, 1:])


def test_a_patch_of_other_inputs_may_be_longer() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with tt.edit(model, "0", edits.patch(inputs=LONG, at={1: 0}, source_at={1: 3})):
        found = model(SHORT)
    close(found[:, 0], model(LONG)[:, 3])
    close(found[:, 1:], model(SHORT)[:, 1:])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, r"float32\[1, 5, 2\] for float32\[1, 3, 2\].*at=\{1: -1\} is the last of each"),
        ({"at": {2: 0}}, r"at=\{1: -1\} is the last of each, and source_at="),
        ({"at": {1: 2}, "source_at": {1: 7}}, r"takes 7 of dimension 1 of its source, which is fl"),
        ({"at": {1: 2}, "source_at": {1: [1, 2]}}, r"takes 2 places .* into 1; expected as many"),
        ({"at": {1: [True, False, True]}}, r"Say where to look with source_at=\{1: \.\.\.\}"),
    ],
)
def test_a_source_that_does_not_fit_says_both_shapes_and_a_way_out(options: Any, said: str) -> None:
    with pytest.raises(tt.EditError, match=said):
        done(edits.patch(LONG, **options), SHORT)


def test_a_place_of_the_source_needs_one_to_go_to() -> None:
    with pytest.raises(tt.InputError, match=r"source_at for dimension 1, and at has none"):
        edits.patch(LONG, source_at={1: 2})


@pytest.mark.parametrize("source", [lambda record: None, {"m": 3}])
def test_a_source_without_tensors_is_reported(source: Any) -> None:
    with pytest.raises(tt.EditError, match=r"its source gave .*; expected a tensor"):
        done(edits.patch(source), SHORT)

"""Targets for outputs of each form: text, segmentation, volumes, dicts, detections."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchtap as tt


class Dense(nn.Module):
    """Channels last at each place."""

    def __init__(self, num: int) -> None:
        super().__init__()
        self.head = nn.Linear(3, num)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x.movedim(1, -1))
        return out


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 11)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.embed(ids))
        return out


class Named(nn.Module):
    """A segmentation in a dict, as torchvision's."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {name: self.conv(x) * (1 + place) for place, name in enumerate(self.names)}


class Upsampled(nn.Module):
    """Logits of a smaller grid, resized to the picture, behind a wide linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(3, 5)
        self.conv = nn.Conv2d(3, 5, 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        small = self.conv(x) * self.gate(x.mean((2, 3)))[..., None, None]
        return nn.functional.interpolate(small, size=x.shape[2:], mode="bilinear")


def tensor_of(out: Any) -> Tensor:
    found: Tensor = next(iter(out.values())) if isinstance(out, dict) else out
    return found


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]
    dim: int
    index: tuple[int, ...]


def noise(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(shape)


CASES = {
    "[B, C, H, W]": Case(lambda: nn.Conv2d(3, 4, 3, padding=1), noise(2, 3, 8, 8), 1, (2, 5, 7)),
    "[B, C, h, w]": Case(lambda: nn.Conv2d(3, 4, 2, 2), noise(2, 3, 8, 12), 1, (3, 1, 5)),
    "resized": Case(Upsampled, noise(2, 3, 8, 16), 1, (4, 7, 15)),
    "[B, H, W, C]": Case(lambda: Dense(5), noise(2, 3, 8, 8), 3, (1, 2, 4)),
    "[B, C, D, H, W]": Case(lambda: nn.Conv3d(3, 6, 1), noise(2, 3, 4, 5, 5), 1, (5, 3, 0, 4)),
    "[B, C, T]": Case(lambda: nn.Conv1d(3, 4, 1), noise(2, 3, 9), 1, (3, 8)),
    "[B, T, C]": Case(Text, lambda: torch.randint(20, (2, 7)), 2, (-1, 10)),
    "dict": Case(lambda: Named("out"), noise(2, 3, 8, 8), 1, (2, 5, 7)),
}


@pytest.mark.parametrize("name", CASES)
def test_an_index_names_the_class_wherever_the_classes_stand(name: str) -> None:
    torch.manual_seed(0)
    case = CASES[name]
    model, x = case.make().eval(), case.inputs()
    found = tt.attribute(
        model, x, target=case.index, method="feature_permutation", batch_size=8, max_evals=1
    )
    out = tensor_of(model(x))
    number = case.index[case.dim - 1] % out.shape[case.dim]
    torch.testing.assert_close(found.scores, out[(slice(None), *case.index)].detach())
    assert found.target == (number, number)
    assert found.with_names([f"c{one}" for one in range(out.shape[case.dim])]).names == (
        f"c{number}",
        f"c{number}",
    )
    assert found.target_text.startswith(f"class {number} at ")
    assert found[0].target_text == found.target_text
    shares = out.softmax(case.dim)[(slice(None), *case.index)]
    assert found.again is not None
    torch.testing.assert_close(found.again.target.probabilities(model(x)), shares.detach().double())


@pytest.mark.parametrize("name", CASES)
def test_the_target_that_the_error_suggests_fits(name: str) -> None:
    torch.manual_seed(0)
    case = CASES[name]
    model, x = case.make().eval(), case.inputs()
    method = "feature_permutation"
    with pytest.raises(tt.InputError) as caught:
        tt.attribute(model, x, target=1, method=method, max_evals=1)
    text = str(caught.value)
    given = re.search(r"target=(\([^)]*\)) for class 1", text)
    function = re.search(r"target=(lambda out: .*) for the mean", text)
    assert given and function
    index = eval(given[1])
    found = tt.attribute(model, x, target=index, method=method, max_evals=1)
    assert found.target == (1, 1)
    mean = tt.attribute(model, x, target=eval(function[1]), method=method, max_evals=1)
    out = tensor_of(model(x)).movedim(case.dim, 1)[:, 1]
    torch.testing.assert_close(mean.scores, out.flatten(1).mean(1).detach())


def test_rows_may_have_positions_of_their_own() -> None:
    torch.manual_seed(0)
    model, x = nn.Conv2d(3, 4, 3, padding=1), torch.randn(2, 3, 8, 8)
    found = tt.attribute(model, x, target=[(2, 5, 7), (0, 1, 1)], method="gradient")
    out = model(x)
    torch.testing.assert_close(found.scores, torch.stack([out[0, 2, 5, 7], out[1, 0, 1, 1]]).data)
    assert found.target == (2, 0)
    (twin,) = torch.autograd.grad(
        found.scores.new_tensor(1)
        * ((y := model(z := x.clone().requires_grad_()))[0, 2, 5, 7] + y[1, 0, 1, 1]),
        z,
    )
    torch.testing.assert_close(found.values, twin)
    with pytest.raises(tt.InputError, match="a tuple for each row"):
        tt.attribute(model, x, target=[(2, 5, 7)], method="gradient")
    with pytest.raises(tt.InputError, match="index 8 is out of range for dimension 2"):
        tt.attribute(model, x, target=(2, 8, 7), method="gradient")


def test_where_nothing_tells_the_classes_from_places_no_class_is_named() -> None:
    model, x = nn.Conv2d(3, 8, 1), torch.randn(1, 3, 8, 8)
    found = tt.attribute(model, x, target=(2, 5, 7), method="gradient")
    torch.testing.assert_close(found.scores, model(x)[:, 2, 5, 7].detach())
    assert (found.target, found.target_text) == (None, "output[:, 2, 5, 7]")
    assert any("called by its index" in note for note in found.notes)
    assert found.check(parts=["deletion"], steps=1, num_controls=1).of == "score"


def test_the_only_class_is_checked_by_its_score_and_not_by_a_probability_of_1() -> None:
    model = nn.Linear(4, 1)
    found = tt.attribute(model, torch.randn(2, 4), target=0, method="gradient")
    check = found.check(parts=["deletion"], steps=2, num_controls=1)
    assert check.of == "score"
    assert check.deletion is not None
    torch.testing.assert_close(check.deletion.scores[:, 0], found.scores.double())


def test_which_of_several_outputs_is_explained_is_said() -> None:
    x = torch.randn(1, 3, 8, 8)
    found = tt.attribute(Named("aux", "out"), x, target=(2, 5, 7), method="gradient")
    assert any(
        "output[aux]" in note and "out (float32[1, 4, 8, 8])" in note for note in found.notes
    )
    assert not tt.attribute(Named("out"), x, target=(2, 5, 7), method="gradient").notes


def test_detections_are_refused_with_a_target_that_fits() -> None:
    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)

        def forward(self, x: Tensor) -> list[dict[str, Tensor]]:
            boxes = self.conv(x).flatten(2).mT
            return [{"boxes": one, "scores": one.sigmoid().amax(1)} for one in boxes]

    model, x = Detector(), torch.randn(2, 3, 4, 4)
    with pytest.raises(tt.InputError, match="as detectors do") as caught:
        tt.cam(model, x, layer="conv", target=1)
    function = re.search(r"target=(lambda out: .*)\.$", str(caught.value))
    assert function
    found = tt.cam(model, x, layer="conv", target=eval(function[1]))
    want = torch.stack([one["scores"].sum() for one in model(x)])
    torch.testing.assert_close(found.scores, want.detach())


class PictureDetector(nn.Module):
    """Called as those of torchvision: a list of pictures, a dict for each."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU())
        self.boxes, self.scores = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 1, 1)

    def forward(self, images: list[Tensor]) -> list[dict[str, Tensor]]:
        found = []
        for image in images:
            features = self.backbone(image.sub_(0.5)[None])  # It may write into its own pictures.
            score, best = self.scores(features).sigmoid().flatten().topk(3)
            boxes = self.boxes(features).flatten(2)[0].mT[best]
            found.append({"boxes": boxes, "scores": score})
        return found


class BatchedDetector(PictureDetector):
    def forward(self, images: list[Tensor]) -> list[dict[str, Tensor]]:
        assert isinstance(images, list)
        features = self.backbone(torch.stack(images))
        scores = self.scores(features).sigmoid().flatten(1).topk(3).values
        boxes = self.boxes(features).flatten(2).mT
        return [{"boxes": box, "scores": one} for box, one in zip(boxes, scores, strict=True)]


def best_score(found: Any) -> Tensor:
    return torch.stack([one["scores"][0] for one in found])


@pytest.mark.parametrize("num", [1, 2, 3])
def test_a_list_of_pictures_has_a_map_for_each(num: int) -> None:
    model, pictures = BatchedDetector(), list(torch.rand(num, 3, 16, 16))
    held = [one.clone() for one in pictures]
    found = tt.attribute(model, pictures, target=best_score, method="gradient")
    leaves = [one.clone().requires_grad_() for one in pictures]
    scores = best_score(model(leaves))
    want = torch.stack(torch.autograd.grad(scores.sum(), leaves))
    torch.testing.assert_close(found.values, want)
    assert (tuple(found.size), found.notes) == ((16, 16), ())

    mapped = tt.cam(model, pictures, layer="backbone.0", target=best_score, relu=False)
    features = model.backbone[0](torch.stack(pictures)).detach().requires_grad_()
    logits = model.scores(features.relu()).sigmoid().flatten(1).amax(1)
    (gradient,) = torch.autograd.grad(logits.sum(), features)
    weights = gradient.mean((2, 3), keepdim=True)
    torch.testing.assert_close(mapped.values, (weights * features).sum(1).detach())
    torch.testing.assert_close(mapped.scores, scores.detach())
    checked = mapped.check(parts=("repeat",))
    assert "the same map" in " ".join(repr(checked).split())
    assert all(map(torch.equal, pictures, held))


def test_a_list_of_pictures_in_which_the_model_writes_is_left_as_it_is() -> None:
    model, pictures = PictureDetector(), list(torch.rand(2, 3, 8, 8))
    held = [one.clone() for one in pictures]
    found = tt.attribute(model, tuple(pictures), target=best_score, method="gradient")
    assert found.values.shape == (2, 3, 8, 8)
    assert all(map(torch.equal, pictures, held))
    with pytest.raises(tt.InputError, match=r"different sizes .* as a list of one"):
        tt.cam(model, [pictures[0], pictures[1][:, :6]], layer="backbone.0", target=best_score)


def test_a_list_of_values_that_are_no_pictures_is_left_apart() -> None:
    class Sum(nn.Module):
        def forward(self, several: list[Tensor]) -> Tensor:
            return sum(one.mean(1) for one in several)  # type: ignore[return-value]

    a, b = torch.rand(3, 4, 5), torch.rand(3, 4, 5)
    found = tt.attribute(Sum(), [a, b], target=2, method="gradient")
    assert found.values.shape == (3, 4, 5)
    assert "of 2 inputs the map is of" in found.notes[0]


@pytest.mark.parametrize("port", ["grad_output", "grad_input"])
def test_a_gradient_is_no_target_and_its_value_is_not_taken_for_it(port: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(tt.InputError, match=f"2:{port} gave 0 tensors"):
        tt.attribute(model, torch.rand(2, 3), target=f"2:{port}", method="gradient")

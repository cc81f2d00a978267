"""Two views of a digit: SimCLR, SimSiam, and a network that learns against its adversary."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.data import digits, kept_apart
from trainings.design import Design as D, Loss, adam, broken, draw, healthy, pick, sgd
from trainings.faults import frozen, shuffled
from trainings.parts import fit

cross_entropy = nn.functional.cross_entropy
normalize = nn.functional.normalize


class Siamese(nn.Module):
    """A convolutional encoder, a projector, and a predictor."""

    def __init__(self, *, spreads: bool = False) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 12, 3, stride=2, padding=1),
            nn.GroupNorm(3, 12),
            nn.ReLU(),
            nn.Conv2d(12, 24, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(96, 32),
            # Without it the codes of all pictures become one.
            nn.BatchNorm1d(32, affine=False) if spreads else nn.Identity(),
        )
        self.predictor = nn.Sequential(
            nn.Linear(32, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 32)
        )

    def forward(self, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Codes of both views, and what is predicted of each from the other."""
        first, second = self.encoder(one), self.encoder(other)
        return first, second, self.predictor(first), self.predictor(second)


def _views(step: int, num: int = 40) -> tuple[Tensor, Tensor]:
    x, _ = kept_apart(step, num, *digits())
    one = x.roll(int(pick(step, 3)) - 1, 3) + 0.15 * draw(step, *x.shape)
    other = x.roll(int(pick(step + 3, 3)) - 1, 2) * 0.8 + 0.15 * draw(step + 1, *x.shape)
    return one, other


def _contrast(heat: float = 0.3, *, pairs: bool = True, safe: bool = True) -> Loss:
    def loss(model: nn.Module, step: int) -> Tensor:
        one, other = _views(step)
        if not pairs:
            other = shuffled(step, other)
        first, second, _, _ = model(one, other)
        if safe:
            first, second = normalize(first, dim=1), normalize(second, dim=1)
        else:
            first, second = first / first.norm(dim=1, keepdim=True), normalize(second, dim=1)
        alike = first @ second.t() / heat
        wanted = torch.arange(len(alike))
        return (cross_entropy(alike, wanted) + cross_entropy(alike.t(), wanted)) / 2

    return loss


def _attract(*, stops: bool = True) -> Loss:
    def loss(model: nn.Module, step: int) -> Tensor:
        first, second, of_second, of_first = model(*_views(step))
        if stops:
            pairs = ((of_second, second.detach()), (of_first, first.detach()))
        else:
            pairs = ((first, second), (first, second))
        alike = [nn.functional.cosine_similarity(a, b, dim=1).mean() for a, b in pairs]
        return 1 - (alike[0] + alike[1]) / 2

    return loss


def _batch(step: int) -> tuple[Tensor, Tensor]:
    x, y = kept_apart(step, 40, *digits())
    return x, y


def _against(model: nn.Module, step: int) -> Tensor:
    """The loss on pictures that were changed against the network."""
    x, y = _batch(step)
    x = x.clone().requires_grad_()
    with torch.enable_grad():
        slope = torch.autograd.grad(cross_entropy(model(x), y), x)[0]
    return cross_entropy(model((x + 0.05 * slope.sign()).detach()), y)


def _classifier() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.ELU(),
        nn.Conv2d(16, 16, 3),
        nn.ELU(),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def _dies(model: nn.Module) -> None:
    last = model.get_submodule("encoder.6")
    nn.init.zeros_(last.get_parameter("weight"))
    nn.init.zeros_(last.get_parameter("bias"))


CONTRAST = D(
    "views_contrast",
    Siamese,
    _contrast(),
    adam(3e-3),
    steps=60,
    seed=71,
    trained=lambda model: model.get_submodule("encoder").parameters(),
)
SIMSIAM = D(
    "views_predicted",
    lambda: Siamese(spreads=True),
    _attract(),
    sgd(0.1, momentum=0.9, decay=1e-4),
    steps=60,
    seed=72,
)
AGAINST = D("digit_adversarial", _classifier, _against, sgd(0.05, momentum=0.9), steps=50, seed=73)

CASES = [
    *(healthy(each) for each in (CONTRAST, SIMSIAM, AGAINST)),
    broken(
        CONTRAST,
        "no_pairs",
        replace(CONTRAST, loss=_contrast(pairs=False)),
        "labels",
        judge=_contrast(),
    ),
    broken(
        CONTRAST,
        "length_of_zero",
        replace(CONTRAST, prepare=_dies, loss=_contrast(safe=False)),
        "nonfinite",
        judge=_contrast(),
    ),
    broken(
        CONTRAST,
        "only_attracts",
        replace(CONTRAST, loss=_attract(stops=False), optimizer=adam(1e-2)),
        "collapsed",
        "too_good",
        judge=_contrast(),
    ),
    broken(
        CONTRAST,
        "encoder_frozen",
        replace(CONTRAST, prepare=frozen("encoder.0", "encoder.3")),
        "frozen",
        places=("encoder.0", "encoder.3"),
    ),
    broken(
        SIMSIAM,
        "not_stopped",
        replace(SIMSIAM, model=Siamese, loss=_attract(stops=False)),
        "collapsed",
        "too_good",
    ),
    broken(
        AGAINST,
        "off_by_one",
        replace(AGAINST, loss=fit(lambda step: (_batch(step)[0], _batch(step + 1)[1]))),
        "labels",
        judge=AGAINST.loss,
    ),
]

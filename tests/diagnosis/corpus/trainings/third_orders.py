"""Order: items sorted softly, sets matched by Sinkhorn, and documents ranked."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.design import Design as D, Loss, adam, broken, draw, healthy, sgd
from trainings.faults import biased, filled, frozen, shuffled
from trainings.parts import fit, flipped, on_inputs, on_targets, perceptron

ITEMS, FEATURES = 6, 5


def _worth(x: Tensor) -> Tensor:
    return torch.sin(1.5 * x[..., 0]) + x[..., 1] * x[..., 2] + 0.5 * x[..., 3]


def _items(step: int) -> tuple[Tensor, Tensor]:
    """Items, and the place of each in the order from the best: int64[B, ITEMS]."""
    x = draw(step, 32, ITEMS, FEATURES)
    return x, _worth(x).argsort(1, descending=True)


def _soft_sort(*, dim: int = 1) -> Loss:
    """The cross entropy of a soft permutation matrix with the right one."""

    def loss(model: nn.Module, step: int) -> Tensor:
        x, order = _items(step)
        scores = model(x)[..., 0]
        ranked = scores.sort(dim, descending=True).values
        away = -(ranked[:, :, None] - scores[:, None, :]).abs()
        return nn.functional.cross_entropy(away.flatten(0, 1), order.flatten())

    return loss


def _pairs(step: int) -> tuple[Tensor, Tensor, Tensor]:
    """Two sets of which one is the other, turned, with noise and in another order."""
    x = draw(step, 24, ITEMS, 4)
    turn = torch.linalg.qr(draw(8, 4, 4)).Q
    order = draw(step + 1, 24, ITEMS).argsort(1)
    moved = x @ turn + 0.1 * draw(step + 2, 24, ITEMS, 4)
    return x, moved.gather(1, order[:, :, None].expand(-1, -1, 4)), order.argsort(1)


class Matcher(nn.Module):
    """An encoder for each set; their products are normalised by Sinkhorn."""

    def __init__(self, *, logs: bool = True) -> None:
        super().__init__()
        self.logs = logs
        self.left, self.right = perceptron(4, 32, 12), perceptron(4, 32, 12)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        """Logs of a matrix of matches: float32[B, ITEMS, ITEMS]."""
        found = 2 * self.left(x) @ self.right(other).transpose(1, 2)
        if self.logs:
            for _ in range(5):
                found = found.log_softmax(1).log_softmax(2)
            return found
        found = (20 * found).exp()
        for _ in range(5):
            found = found / found.sum(1, keepdim=True)
            found = found / found.sum(2, keepdim=True)
        return found.log()


def _match(*, back: bool = True) -> Loss:
    def loss(model: nn.Module, step: int) -> Tensor:
        x, other, order = _pairs(step)
        aim = order if back else order.argsort(1)
        return nn.functional.nll_loss(model(x, other).flatten(0, 1), aim.flatten())

    return loss


def _documents(step: int) -> tuple[Tensor, Tensor]:
    x = draw(step, 24, 8, FEATURES)
    return x, _worth(x) + 0.3 * draw(step + 4, 24, 8)


def _listwise(scores: Tensor, wanted: Tensor) -> Tensor:
    return -(wanted.softmax(1) * scores[..., 0].log_softmax(1)).sum(1).mean()


def _listwise_twice(scores: Tensor, wanted: Tensor) -> Tensor:
    likely = scores[..., 0].softmax(1)
    return -(wanted.softmax(1) * likely.log_softmax(1)).sum(1).mean()


def _pairwise(scores: Tensor, wanted: Tensor) -> Tensor:
    """A hinge on each pair of documents."""
    ahead = (wanted[:, :, None] - wanted[:, None, :]).sign()
    gap = scores[..., 0][:, :, None] - scores[..., 0][:, None, :]
    return (1 - ahead * gap).clamp(min=0)[ahead != 0].mean()


def _ranker(act: type[nn.Module] = nn.ReLU, *end: nn.Module) -> nn.Sequential:
    return perceptron(FEATURES, 32, 32, 1, act=act, end=end)


SORTING = D("soft_sort", lambda: _ranker(nn.Tanh), _soft_sort(), adam(1e-2), steps=90, seed=11)
MATCHING = D("sinkhorn", Matcher, _match(), adam(5e-3), steps=80, seed=12)
LISTS = D(
    "documents_lists", _ranker, fit(_documents, _listwise),
    lambda params: torch.optim.RMSprop(params, lr=3e-3), steps=80, seed=13,
)  # fmt: skip
HINGES = D(
    "documents_hinges", lambda: _ranker(nn.GELU), fit(_documents, _pairwise),
    sgd(0.2, momentum=0.8), steps=80, seed=14,
)  # fmt: skip

CASES = [
    *(healthy(each) for each in (SORTING, MATCHING, LISTS, HINGES)),
    broken(
        SORTING,
        "sorted_over_the_batch",
        replace(SORTING, loss=_soft_sort(dim=0)),
        "labels",
        judge=SORTING.loss,
    ),
    broken(
        SORTING,
        "all_alike",
        replace(SORTING, prepare=filled(0.2, "0", "2", "4")),
        "symmetric",
        places=("0", "2", "4"),
    ),
    broken(
        SORTING,
        "steps_of_ten",
        replace(SORTING, optimizer=sgd(300.0)),
        "lr_high",
        "exploding",
    ),
    broken(
        MATCHING,
        "exp_overflows",
        replace(MATCHING, model=lambda: Matcher(logs=False)),
        "nonfinite",
    ),
    broken(
        MATCHING,
        "order_not_inverted",
        replace(MATCHING, loss=_match(back=False)),
        "labels",
        judge=MATCHING.loss,
    ),
    broken(
        MATCHING,
        "one_side_frozen",
        replace(MATCHING, prepare=frozen("left", "right.0")),
        "frozen",
        places=("left", "left.0", "left.2", "right.0"),
    ),
    broken(
        LISTS,
        "probabilities_twice",
        replace(LISTS, loss=fit(_documents, _listwise_twice)),
        "double_softmax",
        places=("4", "."),
        judge=LISTS.loss,
    ),
    broken(
        LISTS,
        "of_other_lists",
        replace(LISTS, loss=fit(on_targets(_documents, shuffled), _listwise)),
        "labels",
        judge=LISTS.loss,
    ),
    broken(
        LISTS,
        "features_in_bytes",
        replace(LISTS, loss=fit(on_inputs(_documents, lambda _, x: x * 5e4 + 3e5), _listwise)),
        "data_scale",
        places=("0", "."),
        judge=fit(on_inputs(_documents, lambda _, x: x * 5e4 + 3e5), _listwise),
    ),
    broken(
        HINGES,
        "worst_first",
        replace(HINGES, loss=flipped(HINGES.loss)),
        "loss_rises",
        "exploding",
        judge=HINGES.loss,
    ),
    broken(
        HINGES,
        "no_activations",
        replace(HINGES, model=lambda: _ranker(nn.Identity)),
        "no_activation",
        places=("0", "2", "1", "3", "4"),
    ),
    broken(
        HINGES,
        "rectified_scores",
        replace(HINGES, model=lambda: _ranker(nn.GELU, nn.ReLU()), prepare=biased("4", -1.0)),
        "final_activation",
        "dead",
        places=("5",),
    ),
]

"""Tables: categories, rare events, few signs of much noise, several aims, hazards and clicks."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from trainings.case import Case
from trainings.design import Design as D, Loss, adam, broken, draw, healthy, pick, sgd
from trainings.faults import biased, everywhere, filled, frozen, shuffled, times, without
from trainings.parts import Criterion, fit, flipped, mse, on_inputs, on_targets, perceptron

with_logits: Criterion = nn.functional.binary_cross_entropy_with_logits


class Census(nn.Module):
    """Embeddings of three categories and four numbers beside them."""

    def __init__(self, *end: nn.Module, drop: float = 0.1) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, 4) for size in (12, 7, 20))
        self.norm = nn.BatchNorm1d(4)
        self.body = nn.Sequential(
            nn.Linear(16, 48), nn.ReLU(), nn.Dropout(drop), nn.Linear(48, 24), nn.ReLU()
        )
        self.out = nn.Sequential(nn.Linear(24, 1), *end)

    def forward(self, x: Tensor) -> Tensor:
        """Columns of numbers and of categories, float32[B, 7], to a logit."""
        kinds = x[:, 4:].long().unbind(1)
        known = [table(kind) for table, kind in zip(self.tables, kinds, strict=True)]
        logit: Tensor = self.out(self.body(torch.cat([self.norm(x[:, :4]), *known], 1)))
        return logit


def _persons(step: int, num: int = 96) -> tuple[Tensor, Tensor]:
    """Age, hours, income and debt in their own units, and categories; one in eight buys."""
    unit = draw(step, num, 4)
    kinds = torch.stack([pick(step + i, size, num) for i, size in enumerate((12, 7, 20))], 1)
    numbers = unit * torch.tensor([12.0, 8.0, 20_000.0, 5_000.0])
    numbers = numbers + torch.tensor([45.0, 38.0, 50_000.0, 9_000.0])
    likes = draw(71, 12)[kinds[:, 0]] + draw(72, 20)[kinds[:, 2]]
    worth = unit[:, 0] * unit[:, 2].sign() + likes - 2.6
    return torch.cat([numbers, kinds.float()], 1), (worth > 0).float()[:, None]


def _rare(step: int) -> tuple[Tensor, Tensor]:
    """One row in twenty-five is of the rare kind, a small knot among the others."""
    x = draw(step, 128, 8)
    y = pick(step, 25, 128) == 0
    x[y] = 0.4 * x[y] + torch.tensor([1.5, -1.5, 1.0, 0, 0, 1.0, 0, 0])
    return x, y.float()[:, None]


def _weighted(out: Tensor, y: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(out, y, pos_weight=torch.tensor(8.0))


def _faint(step: int) -> tuple[Tensor, Tensor]:
    """Nine tenths of what is to be predicted is noise."""
    x = draw(step, 128, 12)
    return x, 0.5 * torch.tanh(2 * x[:, :1]) + 0.3 * x[:, 1:2] + 1.5 * draw(step + 9, 128, 1)


def _pinballs(out: Tensor, y: Tensor) -> Tensor:
    """Three quantiles at once."""
    levels = torch.tensor([0.1, 0.5, 0.9])
    away = y - out
    return torch.maximum(levels * away, (levels - 1) * away).mean()


class Heads(nn.Module):
    """A number and a class, of which each has a learnt say."""

    def __init__(self, *, cut: bool = False) -> None:
        super().__init__()
        self.cut = cut
        self.trunk = perceptron(6, 40, 40, end=(nn.ReLU(),))
        self.number, self.kind = nn.Linear(40, 1), nn.Linear(40, 3)
        self.says = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """float32[B, 6] to float32[B, 1] and logits [B, 3]."""
        inner = self.trunk(x)
        return self.number(inner), self.kind(inner.detach() if self.cut else inner)


def _both(step: int) -> tuple[Tensor, Tensor, Tensor]:
    x = draw(step, 64, 6)
    number = x[:, :1] * x[:, 1:2] + x[:, 2:3]
    return x, number, (x[:, 3] + x[:, 4] * x[:, 5]).mul(1.2).round().clamp(-1, 1).long() + 1


def _two_aims(
    *, weighs: bool = True, mixes: bool = False, factor: float = 1.0, per: float = 1.0
) -> Loss:
    def loss(model: nn.Module, step: int) -> Tensor:
        x, number, kind = _both(step)
        out, logits = model(x)
        kind = shuffled(step, kind) if mixes else kind
        errors = torch.stack(
            [mse(out / per, number * factor), nn.functional.cross_entropy(logits, kind)]
        )
        if not weighs:
            return errors.sum()
        says: Tensor = model.says  # type: ignore[assignment]
        return (errors * (-says).exp() + 0.5 * says).sum()

    return loss


def _judged(model: nn.Module, step: int) -> Tensor:
    return _two_aims(weighs=False)(model, step)


def _hazards(step: int) -> tuple[Tensor, Tensor]:
    """In which of eight months it ended (or 8: not yet)."""
    x = draw(step, 96, 5)
    chance = (1.2 * x[:, 0] - x[:, 1] * x[:, 2] - 1.5).sigmoid()
    ends = torch.rand(96, 8, generator=torch.Generator().manual_seed(step)) < chance[:, None]
    return x, torch.where(ends.any(1), ends.float().argmax(1), 8)


def _survival(out: Tensor, ended: Tensor) -> Tensor:
    """The likelihood of months that were lived through and of the one that was not."""
    months = torch.arange(8)
    alive = (months < ended[:, None]).float()
    last = (months == ended[:, None]).float()
    likely = alive * nn.functional.logsigmoid(-out) + last * nn.functional.logsigmoid(out)
    return -likely.sum(1).mean()


def _survival_of_ended(model: nn.Module, step: int) -> Tensor:
    """By the number of those that ended, of which one batch has none."""
    x, ended = _hazards(step)
    ended = torch.full_like(ended, 8) if step == 30 else ended
    return _survival(model(x), ended) * len(ended) / (ended < 8).sum()


class Clicks(nn.Module):
    """Embeddings of users and things, and how a thing is liked by all."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.thing = nn.Embedding(50, 6), nn.Embedding(80, 6)
        self.liked = nn.Embedding(80, 1)
        nn.init.normal_(self.user.weight, std=0.2)
        nn.init.normal_(self.thing.weight, std=0.2)
        nn.init.zeros_(self.liked.weight)

    def forward(self, rows: Tensor) -> Tensor:
        """int64[B, 3], a user and two things, to how much the first is liked more."""
        user, one, other = rows.unbind(1)
        gap = self.user(user) * (self.thing(one) - self.thing(other))
        more: Tensor = gap.sum(1) + (self.liked(one) - self.liked(other))[:, 0]
        return more


def _clicked(step: int) -> Tensor:
    """Users, what they clicked, and what they did not."""
    user, things = pick(step, 50, 256), pick(step + 1, 80, 256, 2)
    taste, kind = draw(5, 50, 3), draw(6, 80, 3)
    liking = (taste[user][:, None] * kind[things]).sum(2) + 0.3 * draw(step + 2, 256, 2)
    return torch.cat([user[:, None], things.gather(1, liking.argsort(1, descending=True))], 1)


def _ranked(*, ordered: bool = True) -> Loss:
    """Bayesian personalised ranking: the clicked thing is above the other."""

    def loss(model: nn.Module, step: int) -> Tensor:
        rows = _clicked(step)
        if not ordered:
            turned = pick(step + 8, 2, 256, 1).bool()
            rows = torch.where(turned, rows[:, [0, 2, 1]], rows)
        return -nn.functional.logsigmoid(model(rows)).mean()

    return loss


def _pairs(step: int) -> tuple[Tensor, Tensor]:
    """Batches of two rows."""
    x = draw(step, 2, 4) if step < 9_000 else draw(step, 200, 4)
    return x, (x[:, :1] - 2 * x[:, 1:2] + 0.5 * x[:, 2:3].square())


def _warm(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    first = lr_scheduler.LinearLR(optimizer, 0.05, total_iters=15)
    return lr_scheduler.SequentialLR(
        optimizer, [first, lr_scheduler.CosineAnnealingLR(optimizer, 75)], [15]
    )


CENSUS = D(
    "census",
    Census,
    fit(_persons, with_logits),
    adam(1e-2, decay=0.02),
    steps=100,
    seed=81,
    schedule=_warm,
)
RARE = D(
    "rare_rows", lambda: perceptron(8, 32, 1), fit(_rare, _weighted), adam(5e-3), steps=80, seed=82
)
FAINT = D(
    "faint",
    lambda: perceptron(12, 24, 1, act=nn.SiLU),
    fit(_faint, mse),
    sgd(0.02, momentum=0.9),
    steps=100,
    seed=83,
)
QUANTILES = D(
    "three_quantiles",
    lambda: perceptron(12, 24, 3, act=nn.ELU),
    fit(_faint, _pinballs),
    lambda params: torch.optim.Adadelta(params, lr=1.0),
    steps=80,
    seed=84,
)
HEADS = D("two_aims", Heads, _two_aims(), adam(5e-3), steps=90, seed=85)
HAZARDS = D(
    "hazards",
    lambda: perceptron(5, 32, 8, act=nn.GELU),
    fit(_hazards, _survival),
    adam(5e-3),
    steps=70,
    seed=86,
)
CLICKS = D(
    "clicks",
    Clicks,
    _ranked(),
    lambda params: torch.optim.Adagrad(params, lr=0.2),
    steps=80,
    seed=87,
)
PAIRS = D(
    "rows_in_pairs",
    lambda: perceptron(4, 32, 1, act=nn.Tanh),
    fit(_pairs, mse),
    sgd(0.02),
    steps=120,
    seed=88,
)

CASES = [
    *(healthy(each) for each in (CENSUS, RARE, FAINT, QUANTILES)),
    Case("two_aims", lambda watching: HEADS.train(watching, _judged)),
    *(healthy(each) for each in (HAZARDS, CLICKS, PAIRS)),
    broken(
        CENSUS,
        "left_in_eval",
        replace(CENSUS, late=lambda model: model.eval()),
        "bn_eval",
        "data_scale",
        places=("norm", "body.0", "."),
    ),
    broken(
        CENSUS,
        "softmax_of_one_logit",
        replace(CENSUS, model=lambda: Census(nn.Softmax(1))),
        "final_activation",
        "vanishing",
        "double_softmax",
        places=("out.1",),
    ),
    broken(
        CENSUS,
        "drops_nearly_all",
        replace(CENSUS, model=lambda: Census(drop=0.98)),
        "dropout_high",
        places=("body.2",),
    ),
    broken(
        CENSUS,
        "tables_frozen",
        replace(CENSUS, prepare=frozen("tables")),
        "frozen",
        places=("tables.0", "tables.1", "tables.2", "tables"),
    ),
    broken(
        CENSUS,
        "warms_for_ever",
        replace(
            CENSUS, schedule=lambda opt: lr_scheduler.LambdaLR(opt, lambda step: (step + 1) / 1e6)
        ),
        "steps_too_small",
    ),
    broken(
        RARE,
        "a_row_of_billions",
        replace(
            RARE,
            loss=fit(on_inputs(_rare, lambda step, x: x * 1e6 if step == 70 else x), _weighted),
        ),
        "bad_batch",
        judge=RARE.loss,
    ),
    broken(
        RARE,
        "other_labels",
        replace(RARE, loss=fit(on_targets(_rare, shuffled), _weighted)),
        "labels",
        "collapsed",
        judge=RARE.loss,
    ),
    broken(
        RARE, "units_dead", replace(RARE, prepare=biased("0", -12.0)), "dead", places=("1", "0")
    ),
    broken(
        RARE,
        "labels_turned_to_minus",
        replace(RARE, loss=fit(on_targets(_rare, lambda _, y: 2 * y - 1), _weighted)),
        "labels",
        "too_good",
        "loss_rises",
        judge=RARE.loss,
    ),
    broken(
        FAINT,
        "broadcast",
        replace(FAINT, loss=fit(on_targets(_faint, lambda _, y: y[:, 0]), mse)),
        "labels",
        "collapsed",
        judge=FAINT.loss,
    ),
    broken(
        FAINT,
        "power_of_ten_wrong",
        replace(FAINT, optimizer=sgd(20.0, momentum=0.9)),
        "lr_high",
        "exploding",
    ),
    broken(
        FAINT,
        "one_column_in_bytes",
        replace(
            FAINT,
            loss=fit(on_inputs(_faint, lambda _, x: x * torch.tensor([1.0] * 11 + [1e5])), mse),
        ),
        "data_scale",
        places=("0", "."),
        judge=fit(on_inputs(_faint, lambda _, x: x * torch.tensor([1.0] * 11 + [1e5])), mse),
    ),
    broken(
        QUANTILES,
        "wrong_side_up",
        replace(QUANTILES, loss=flipped(QUANTILES.loss)),
        "loss_rises",
        judge=QUANTILES.loss,
    ),
    broken(
        QUANTILES,
        "all_alike",
        replace(
            QUANTILES,
            prepare=everywhere(
                nn.Linear, lambda layer: nn.init.ones_(layer.get_parameter("weight"))
            ),
        ),
        "symmetric",
        "large_init",
        places=("0", "2"),
    ),
    broken(
        HEADS,
        "kind_from_detached",
        replace(HEADS, model=lambda: Heads(cut=True)),
        "detached",
        places=("trunk", "trunk.2", "trunk.0", "kind"),
        judge=_judged,
    ),
    broken(
        HEADS,
        "kinds_of_others",
        replace(HEADS, loss=_two_aims(mixes=True)),
        "labels",
        places=("kind", "."),
        judge=_judged,
    ),
    broken(
        HEADS,
        "head_left_out",
        replace(HEADS, trained=without("kind")),
        "not_in_optimizer",
        places=("kind",),
        judge=_judged,
    ),
    broken(
        HEADS,
        "number_in_grams",
        replace(HEADS, loss=_two_aims(factor=1e4)),
        "data_scale",
        judge=_two_aims(weighs=False, per=1e4),
    ),
    broken(
        HAZARDS,
        "nobody_ended",
        replace(HAZARDS, loss=_survival_of_ended),
        "nonfinite",
        "bad_batch",
        judge=HAZARDS.loss,
    ),
    broken(
        HAZARDS,
        "ends_of_others",
        replace(HAZARDS, loss=fit(on_targets(_hazards, lambda _, y: y.roll(3)), _survival)),
        "labels",
        judge=HAZARDS.loss,
    ),
    broken(
        CLICKS,
        "which_was_clicked",
        replace(CLICKS, loss=_ranked(ordered=False)),
        "labels",
        judge=CLICKS.loss,
    ),
    broken(
        CLICKS,
        "decays",
        replace(
            CLICKS, optimizer=lambda params: torch.optim.Adam(params, lr=2e-2, weight_decay=1.0)
        ),
        "decay_high",
    ),
    broken(
        CLICKS,
        "nobody_likes_a_thing",
        replace(CLICKS, prepare=filled(0.0, "user", "thing")),
        "symmetric",
        "small_init",
        "updates_stop",
        "vanishing",
        places=("user", "thing"),
    ),
    broken(PAIRS, "never_cleared", replace(PAIRS, zeroes_grad=False), "no_zero_grad"),
    broken(
        PAIRS,
        "saturated_at_once",
        replace(PAIRS, prepare=times("0", 60.0)),
        "saturated",
        "large_init",
        places=("0", "1"),
    ),
]

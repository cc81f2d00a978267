"""Drawn shapes: segmented, boxed, counted, pointed at, told apart, and the flow of two frames."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.design import Design as D, adam, broken, draw, healthy, pick
from trainings.faults import Call, biased, frozen, shuffled, times, without
from trainings.parts import Criterion, fit, flipped, mse, on_inputs, on_targets

SIZE = 16
GRID = torch.stack(torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")).float()
with_logits: Criterion = nn.functional.binary_cross_entropy_with_logits


def _masks(step: int, num: int = 24) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Masks of discs, squares and crosses; their middles (y, x), radii and kinds."""
    middle = 4 + torch.rand(num, 2, generator=torch.Generator().manual_seed(step)) * 8
    radius = 2 + torch.rand(num, generator=torch.Generator().manual_seed(step + 1)) * 2
    kind = pick(step + 2, 3, num)
    away = (GRID[None] - middle[:, :, None, None]).abs()
    size = radius[:, None, None]
    disc = away.square().sum(1) < size.square()
    square = away.amax(1) < size
    cross = (away.amin(1) < 1) & (away.amax(1) < size + 1)
    masks = torch.stack([disc, square, cross], 1)[torch.arange(num), kind]
    return masks[:, None].float(), middle, radius, kind


def _drawn(step: int, masks: Tensor) -> Tensor:
    """A bright shape on noise and a dark slope."""
    return masks * 1.2 + 0.4 * draw(step + 3, *masks.shape) + 0.05 * (GRID[:1] - 8)


def _segments(step: int) -> tuple[Tensor, Tensor]:
    masks, *_ = _masks(step)
    return 4 * _drawn(step, masks) + 6, masks


def _boxes(step: int) -> tuple[Tensor, Tensor]:
    """Middle and half width, as shares of the picture."""
    masks, middle, radius, _ = _masks(step)
    return _drawn(step, masks), torch.cat([middle, radius[:, None]], 1) / SIZE


def _kinds(step: int) -> tuple[Tensor, Tensor]:
    masks, _, _, kind = _masks(step, 32)
    return _drawn(step, masks), kind


def _points(step: int) -> tuple[Tensor, Tensor]:
    masks, middle, *_ = _masks(step)
    return _drawn(step, masks), middle / SIZE


def _counts(step: int) -> tuple[Tensor, Tensor]:
    """Bytes from 0 to 255, scaled to 0..1: dots on black, and how many there are."""
    number = 1 + pick(step, 8, 32)
    dots = torch.rand(32, SIZE * SIZE, generator=torch.Generator().manual_seed(step)).argsort(1)
    dots = (dots < number[:, None]).float().view(32, 1, SIZE, SIZE)
    return 0.9 * dots + 0.1 * torch.rand(dots.shape), number.float()[:, None]


def _frames(step: int) -> tuple[Tensor, Tensor]:
    """A texture and the same moved by up to two pixels: both frames and the move."""
    texture = nn.functional.avg_pool2d(draw(step, 32, 1, 22, 22), 3, 1) * 3
    move = pick(step, 5, 32, 2)
    rows = [t[:, y : y + SIZE, x : x + SIZE] for t, (y, x) in zip(texture, move, strict=True)]
    return torch.cat([texture[..., 2:18, 2:18], torch.stack(rows)], 1), move.float() / 2 - 1


class Hourglass(nn.Module):
    """Down twice, up twice, with bridges."""

    def __init__(self, *end: nn.Module) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.two = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.deep = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.up = nn.ConvTranspose2d(16, 16, 2, stride=2)
        self.join = nn.Sequential(nn.Conv2d(32, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.back = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.head = nn.Sequential(nn.Conv2d(16, 1, 3, padding=1), *end)

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, 1, 16, 16] to the same shape."""
        one = self.one(x)
        two = self.two(nn.functional.max_pool2d(one, 2))
        deep = self.up(self.deep(nn.functional.max_pool2d(two, 2)))
        joined = self.back(self.join(torch.cat([two, deep], 1)))
        masks: Tensor = self.head(torch.cat([one, joined], 1))
        return masks


def _dice(out: Tensor, masks: Tensor) -> Tensor:
    """Half cross entropy, half overlap."""
    likely = out.sigmoid()
    overlap = 2 * (likely * masks).sum((1, 2, 3)) + 1
    whole = likely.sum((1, 2, 3)) + masks.sum((1, 2, 3)) + 1
    return with_logits(out, masks) + (1 - overlap / whole).mean()


class Pointer(nn.Module):
    """The place of the heat, on average."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.heat = nn.Sequential(
            nn.Conv2d(1, 12, 5, padding=2),
            nn.SiLU(),
            nn.Conv2d(12, 12, 5, padding=2),
            nn.SiLU(),
            nn.Conv2d(12, 1, 1),
        )
        self.soft = nn.Softmax(dim)

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, 1, 16, 16] to places float32[B, 2], from 0 to 1."""
        share = self.soft(self.heat(x).flatten(2))
        places: Tensor = share @ GRID.flatten(1).t() / SIZE
        return places[:, 0]


def _stack(channels: int, outputs: int, *end: nn.Module, norm: bool = False) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, stride=2, padding=1),
        nn.GroupNorm(4, 16) if norm else nn.Identity(),
        nn.ReLU(),
        nn.Conv2d(16, 24, 3, stride=2, padding=1),
        nn.GroupNorm(4, 24) if norm else nn.Identity(),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24 * 16, outputs),
        *end,
    )


def _focal(out: Tensor, y: Tensor) -> Tensor:
    likely = out.log_softmax(1).gather(1, y[:, None])
    return -((1 - likely.exp()).square() * likely).mean()


def _sum_pooled() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 1, 1),
        nn.Softplus(),
        Call(lambda x: x.sum((2, 3))),
    )


def _mirrored(step: int, x: Tensor) -> Tensor:
    """An augmentation that moves the picture and leaves the mask."""
    return x.flip(3).roll(5, 2)


def _as_imagenet(step: int, x: Tensor) -> Tensor:
    """Constants for bytes, on pixels that are from 0 to 1 already."""
    return (x - 124.0) / 58.0


def _forgets(out: Tensor, y: Tensor) -> Tensor:
    return (out[None] - y[:, None]).square().mean()


def _stays_in_eval(step: int, model: nn.Module) -> None:
    """A validation after some steps turns to eval, and nobody turns back."""
    if step == 3:
        model.eval()


def _lost(step: int, model: nn.Module) -> None:
    """From the twelfth step on nothing comes back from the other process."""
    if step > 11:
        model.zero_grad()


SEGMENTS = D("segments", Hourglass, fit(_segments, _dice), adam(1e-2), steps=50, seed=51)
BOXES = D(
    "boxes",
    lambda: _stack(1, 3, norm=True),
    fit(_boxes, nn.functional.smooth_l1_loss),
    adam(3e-3),
    steps=80,
    seed=52,
)
COUNTS = D(
    "dots", _sum_pooled, fit(_counts, nn.functional.huber_loss), adam(2e-2), steps=80, seed=53
)
FRAMES = D("frames", lambda: _stack(2, 2), fit(_frames, mse), adam(4e-3), steps=110, seed=54)
POINTS = D("heat", Pointer, fit(_points, mse), adam(1e-2), steps=60, seed=55)
KINDS = D(
    "shape_kinds",
    lambda: _stack(1, 3, norm=True),
    fit(_kinds, _focal),
    adam(8e-3),
    steps=110,
    seed=56,
)

CASES = [
    *(healthy(each) for each in (SEGMENTS, BOXES, COUNTS, FRAMES, POINTS, KINDS)),
    broken(
        SEGMENTS,
        "masks_of_255",
        replace(SEGMENTS, loss=fit(on_targets(_segments, lambda _, y: y * 255), _dice)),
        "labels",
        "data_scale",
        "too_good",
        "loss_rises",
        judge=SEGMENTS.loss,
    ),
    broken(
        SEGMENTS,
        "mask_not_moved",
        replace(SEGMENTS, loss=fit(on_inputs(_segments, _mirrored), _dice)),
        "labels",
        judge=SEGMENTS.loss,
    ),
    broken(
        SEGMENTS,
        "sigmoid_inside",
        replace(SEGMENTS, model=lambda: Hourglass(nn.Sigmoid())),
        "final_activation",
        "double_softmax",
        places=("head.1",),
    ),
    broken(
        SEGMENTS,
        "norms_in_eval",
        replace(SEGMENTS, after_step=_stays_in_eval),
        "bn_eval",
        places=("one.1", "two.1", "deep.1", "join.1"),
    ),
    broken(
        SEGMENTS,
        "halves_not_given",
        replace(SEGMENTS, trained=without("deep", "up", "head")),
        "not_in_optimizer",
        places=("deep.0", "deep.1", "up", "head.0", "deep", "head"),
    ),
    broken(
        BOXES,
        "each_with_each",
        replace(BOXES, loss=fit(_boxes, _forgets)),
        "labels",
        "collapsed",
        judge=BOXES.loss,
    ),
    broken(
        BOXES,
        "in_micrometres",
        replace(
            BOXES, loss=fit(on_targets(_boxes, lambda _, y: y * 1e5), nn.functional.smooth_l1_loss)
        ),
        "data_scale",
        "steps_too_small",
        judge=fit(_boxes, lambda out, y: nn.functional.smooth_l1_loss(out / 1e5, y)),
    ),
    broken(BOXES, "lost_gradients", replace(BOXES, before_step=_lost), "updates_stop"),
    broken(
        BOXES,
        "of_other_pictures",
        replace(BOXES, loss=fit(on_targets(_boxes, shuffled), nn.functional.smooth_l1_loss)),
        "labels",
        judge=BOXES.loss,
    ),
    broken(
        COUNTS,
        "wrong_constants",
        replace(COUNTS, loss=fit(on_inputs(_counts, _as_imagenet), nn.functional.huber_loss)),
        "data_scale",
        "collapsed",
        places=("0", "."),
        judge=fit(on_inputs(_counts, _as_imagenet), nn.functional.huber_loss),
    ),
    broken(
        COUNTS, "born_dead", replace(COUNTS, prepare=biased("0", -3.0)), "dead", places=("1", "0")
    ),
    broken(
        FRAMES,
        "same_frame_twice",
        replace(
            FRAMES, loss=fit(on_inputs(_frames, lambda _, x: x[:, :1].expand(-1, 2, -1, -1)), mse)
        ),
        "labels",
        judge=FRAMES.loss,
    ),
    broken(
        FRAMES,
        "first_layer_huge",
        replace(FRAMES, prepare=times("0", 200.0)),
        "large_init",
        "exploding",
        places=("0",),
    ),
    broken(
        FRAMES,
        "bounded_wrongly",
        replace(FRAMES, model=lambda: _stack(2, 2, nn.Sigmoid())),
        "final_activation",
        places=("8",),
    ),
    broken(
        POINTS,
        "softmax_of_one_channel",
        replace(POINTS, model=lambda: Pointer(1)),
        "final_activation",
        "vanishing",
        "detached",
        "collapsed",
        places=("soft", "heat.4", "heat.0", "heat.2", "."),
    ),
    broken(
        POINTS, "away", replace(POINTS, loss=flipped(POINTS.loss)), "loss_rises", judge=POINTS.loss
    ),
    broken(POINTS, "much_too_hot", replace(POINTS, optimizer=adam(3.0)), "lr_high", "exploding"),
    broken(
        KINDS,
        "convolutions_frozen",
        replace(KINDS, prepare=frozen("0", "3")),
        "frozen",
        places=("0", "3"),
    ),
    broken(
        KINDS,
        "one_behind",
        replace(KINDS, loss=fit(on_targets(_kinds, lambda _, y: y.roll(1)), _focal)),
        "labels",
        judge=KINDS.loss,
    ),
    broken(
        KINDS,
        "softmax_over_rows",
        replace(KINDS, model=lambda: _stack(1, 3, nn.Softmax(0), norm=True)),
        "double_softmax",
        "final_activation",
        places=("8",),
    ),
]

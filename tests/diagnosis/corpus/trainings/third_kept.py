"""Trainings that keep what is learnt: frozen backbones, adapters, biases, pruned nets, students."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor, nn
from trainings.case import Case
from trainings.data import digits, kept_apart
from trainings.design import Design as D, Loss, adam, broken, healthy, sgd
from trainings.faults import filled, frozen, shuffled, without
from trainings.parts import fit, flipped, on_inputs, on_targets


def _digits(step: int) -> tuple[Tensor, Tensor]:
    x, y = kept_apart(step, 48, *digits())
    return x, y


def _halves(step: int) -> tuple[Tensor, Tensor]:
    """The task that came before: is a digit turned by a quarter."""
    (x,) = kept_apart(step, 48, digits()[0])
    y = torch.arange(48) % 4
    return torch.stack([each.rot90(int(k), (1, 2)) for each, k in zip(x, y, strict=True)]), y


class Backbone(nn.Module):
    """Convolutions with batch norm, and a head."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU())
        self.body = nn.Sequential(
            nn.Conv2d(24, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU()
        )
        self.flat = nn.Flatten()
        self.head = nn.Linear(32 * 16, classes)

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, 1, 8, 8] to logits."""
        logits: Tensor = self.head(self.flat(self.body(self.stem(x))))
        return logits


@cache
def _turned() -> dict[str, Tensor]:
    """Weights that tell how a digit is turned."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(9)
        model = Backbone(4)
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        for step in range(50):
            optimizer.zero_grad()
            fit(_halves)(model, step).backward()
            optimizer.step()
        return model.state_dict()


def _pretrained() -> Backbone:
    model = Backbone(4)
    model.load_state_dict(_turned())
    model.head = nn.Linear(32 * 16, 10)
    return model


class Kept(nn.Module):
    """A backbone that stays as it is, norms in eval on purpose, and a new head."""

    def __init__(self, *end: nn.Module) -> None:
        super().__init__()
        self.backbone = _pretrained().requires_grad_(False)
        self.backbone.head = nn.Identity()  # type: ignore[assignment]
        self.head = nn.Sequential(nn.Linear(32 * 16, 32), nn.ReLU(), nn.Linear(32, 10), *end)

    def train(self, mode: bool = True) -> Kept:
        """The backbone stays in eval."""
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        with torch.no_grad():
            codes = self.backbone(x)
        logits: Tensor = self.head(codes)
        return logits


class Beside(nn.Module):
    """A kept convolution and a narrow path beside it, which begins at zero."""

    def __init__(self, base: nn.Conv2d, *, cut: bool = False) -> None:
        super().__init__()
        self.cut = cut
        self.base = base.requires_grad_(False)
        self.down = nn.Conv2d(base.in_channels, 4, 3, base.stride, 1, bias=False)  # type: ignore[arg-type]
        self.up = nn.Conv2d(4, base.out_channels, 1, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Both."""
        beside = self.up(self.down(x))
        both: Tensor = self.base(x) + (beside.detach() if self.cut else beside)
        return both


def _adapted(*, cut: bool = False) -> nn.Module:
    model = _pretrained().requires_grad_(False)
    for part in (model.stem, model.body):
        part[0] = Beside(part[0], cut=cut)  # type: ignore[arg-type]
    model.head = nn.Linear(32 * 16, 10)
    return model


def _biases() -> nn.Module:
    """Only what is added is learnt, and the head."""
    model = _pretrained()
    for name, param in model.named_parameters():
        param.requires_grad_(name.endswith("bias") or name.startswith("head"))
    return model


class Pruned(nn.Linear):
    """Four fifths of its weights are zero and stay so."""

    def __init__(self, inputs: int, outputs: int, share: float = 0.2) -> None:
        super().__init__(inputs, outputs)
        self.register_buffer("kept", (torch.rand(outputs, inputs) < share).float())

    def forward(self, x: Tensor) -> Tensor:
        """A linear layer of what is kept."""
        kept: Tensor = self.kept  # type: ignore[assignment]
        return nn.functional.linear(x, self.weight * kept, self.bias)


def _pruned(share: float = 0.2, *end: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        Pruned(64, 96, share),
        nn.ReLU(),
        Pruned(96, 64, share),
        nn.ReLU(),
        Pruned(64, 10, max(share, 0.4)),
        *end,
    )


@cache
def _taught() -> dict[str, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(10)
        model = Backbone(10)
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        for step in range(50):
            optimizer.zero_grad()
            fit(_digits)(model, step).backward()
            optimizer.step()
        return model.state_dict()


class Taught(nn.Module):
    """A teacher that stays in eval, and a small student; both answers."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = Backbone(10)
        self.teacher.load_state_dict(_taught())
        self.teacher.requires_grad_(False)
        self.student = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))

    def train(self, mode: bool = True) -> Taught:
        """The teacher stays in eval."""
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the student and of the teacher."""
        return self.student(x), self.teacher(x)


def _distilled(
    *, heat: float = 3.0, dim: int = 1, mixes: bool = False, twice: bool = False
) -> Loss:
    def loss(model: nn.Module, step: int) -> Tensor:
        x, _ = _digits(step)
        own, taught = model(x)
        taught = shuffled(step, taught) if mixes else taught
        own = own.softmax(1) if twice else own
        return heat**2 * nn.functional.kl_div(
            (own / heat).log_softmax(1), (taught / heat).softmax(dim), reduction="batchmean"
        )

    return loss


def _answers(model: nn.Module, step: int) -> Tensor:
    """How wrong the student is."""
    x, y = _digits(step)
    return nn.functional.cross_entropy(model(x)[0], y)


def _of_head(model: nn.Module) -> list[nn.Parameter]:
    return [param for param in model.parameters() if param.requires_grad]


KEPT = D(
    "kept_backbone",
    lambda: Kept().train(),
    fit(_digits),
    adam(3e-3),
    steps=60,
    seed=231,
    trained=_of_head,
)
ADAPTED = D(
    "adapted_convolutions", _adapted, fit(_digits), adam(5e-3), steps=60, seed=232, trained=_of_head
)
BIASES = D(
    "biases_alone",
    _biases,
    fit(_digits),
    sgd(0.02, momentum=0.9),
    steps=60,
    seed=233,
    trained=_of_head,
)
PRUNED = D(
    "pruned",
    _pruned,
    fit(_digits),
    lambda params: torch.optim.Adamax(params, lr=2e-2),
    steps=80,
    seed=234,
)
TAUGHT = D(
    "taught",
    lambda: Taught().train(),
    _distilled(),
    adam(1e-2),
    steps=80,
    seed=235,
    trained=_of_head,
)

CASES = [
    *(healthy(each) for each in (KEPT, ADAPTED, BIASES, PRUNED)),
    Case("taught", lambda watching: TAUGHT.train(watching, _answers)),
    broken(
        KEPT, "head_kept_too", replace(KEPT, prepare=frozen("head.0")), "frozen", places=("head.0",)
    ),
    broken(
        KEPT,
        "bytes",
        replace(KEPT, loss=fit(on_inputs(_digits, lambda _, x: x * 255))),
        "data_scale",
        places=("backbone.stem.0", "backbone", ".", "head.0"),
        judge=fit(on_inputs(_digits, lambda _, x: x * 255)),
    ),
    broken(
        KEPT,
        "softmax_in_the_head",
        replace(KEPT, model=lambda: Kept(nn.Softmax(1)).train()),
        "double_softmax",
        places=("head.3",),
    ),
    broken(
        KEPT,
        "of_other_digits",
        replace(KEPT, loss=fit(on_targets(_digits, shuffled))),
        "labels",
        judge=KEPT.loss,
    ),
    broken(
        ADAPTED,
        "both_begin_at_zero",
        replace(ADAPTED, prepare=filled(0.0, "stem.0.down", "body.0.down")),
        "symmetric",
        "small_init",
        "vanishing",
        "updates_stop",
        places=("stem.0.down", "stem.0.up", "body.0.down", "body.0.up", "stem.0", "body.0"),
    ),
    broken(
        ADAPTED,
        "path_detached",
        replace(ADAPTED, model=lambda: _adapted(cut=True)),
        "detached",
        places=("stem.0.down", "stem.0.up", "body.0.down", "body.0.up", "stem.0", "body.0"),
    ),
    broken(
        ADAPTED,
        "paths_left_out",
        replace(ADAPTED, trained=without("stem.0.down", "stem.0.up", "body.0.down", "body.0.up")),
        "not_in_optimizer",
        places=("stem.0.down", "stem.0.up", "body.0.down", "body.0.up", "stem.0", "body.0"),
    ),
    broken(
        BIASES,
        "far_too_fast",
        replace(BIASES, optimizer=sgd(20.0, momentum=0.9)),
        "lr_high",
        "exploding",
    ),
    broken(
        BIASES,
        "forgot_to_learn",
        replace(BIASES, optimizer=sgd(2e-6, momentum=0.9)),
        "steps_too_small",
    ),
    broken(
        PRUNED,
        "dead",
        replace(
            PRUNED,
            prepare=lambda model: nn.init.constant_(
                model.get_submodule("3").get_parameter("bias"), -9.0
            ),
        ),
        "dead",
        places=("4", "3"),
    ),
    broken(
        PRUNED,
        "sigmoid_of_logits",
        replace(PRUNED, model=lambda: _pruned(0.2, nn.Sigmoid())),
        "final_activation",
        "double_softmax",
        places=("6",),
    ),
    broken(
        PRUNED,
        "decays",
        replace(
            PRUNED, optimizer=lambda params: torch.optim.Adamax(params, lr=2e-2, weight_decay=3.0)
        ),
        "decay_high",
    ),
    broken(
        PRUNED,
        "climbs",
        replace(PRUNED, loss=flipped(PRUNED.loss)),
        "loss_rises",
        "exploding",
        judge=PRUNED.loss,
    ),
    broken(
        TAUGHT, "over_the_batch", replace(TAUGHT, loss=_distilled(dim=0)), "labels", judge=_answers
    ),
    broken(
        TAUGHT,
        "other_pictures",
        replace(TAUGHT, loss=_distilled(mixes=True)),
        "labels",
        judge=_answers,
    ),
    broken(
        TAUGHT,
        "probabilities_again",
        replace(TAUGHT, loss=_distilled(twice=True)),
        "double_softmax",
        places=("student.3", "student", "."),
        judge=_answers,
    ),
]

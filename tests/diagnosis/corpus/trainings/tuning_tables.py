"""Breast cancer (batch norm, two classes) and diabetes (GELU, regression), as tables."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn
from trainings.data import cancer, diabetes, rows_of, scaled
from trainings.design import Design as D, adam, broken, healthy, sgd
from trainings.faults import everywhere, times


def _cancer_net() -> nn.Module:
    return nn.Sequential(
        nn.Linear(30, 32),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Linear(32, 32),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Linear(32, 2),
    )


def _cancer_loss(model: nn.Module, step: int) -> Tensor:
    x, y = cancer()
    x, y = rows_of(step, 32, scaled(x), y)
    return nn.functional.cross_entropy(model(x), y)


def _cancer_logit(model: nn.Module, step: int) -> Tensor:
    x, y = cancer()
    x, y = rows_of(step, 32, scaled(x), y)
    return nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y.float())


def _diabetes_net() -> nn.Module:
    return nn.Sequential(
        nn.Linear(10, 48),
        nn.GELU(),
        nn.Dropout(0.1),
        nn.Linear(48, 48),
        nn.GELU(),
        nn.Linear(48, 1),
    )


def _diabetes_loss(model: nn.Module, step: int) -> Tensor:
    x, y = diabetes()
    x, y = rows_of(step, 24, scaled(x), scaled(y[:, None]))
    return nn.functional.mse_loss(model(x), y)


def _raw_diabetes_loss(model: nn.Module, step: int) -> Tensor:
    x, y = diabetes()
    x, y = rows_of(step, 24, x, scaled(y[:, None]))
    return nn.functional.mse_loss(model(x), y)


def _with_relu() -> nn.Module:
    return nn.Sequential(_diabetes_net(), nn.ReLU())


CANCER = D("cancer", _cancer_net, _cancer_loss)
LOGIT = D("cancer_one_logit", _cancer_net, _cancer_logit, adam(3e-3), seed=3, logs=False)
DIABETES = D("diabetes", _diabetes_net, _diabetes_loss, adam(2e-3, decay=0.01), clip=1.0)
PLAIN = D("diabetes_momentum", _diabetes_net, _diabetes_loss, sgd(0.02, momentum=0.9), seed=1)

CASES = [
    healthy(CANCER),
    healthy(LOGIT),
    healthy(DIABETES),
    healthy(PLAIN),
    broken(
        CANCER,
        "statistics_fixed",
        replace(CANCER, late=everywhere(nn.BatchNorm1d, lambda m: m.eval())),
        "bn_eval",
        places=("1", "4"),
    ),
    broken(
        CANCER,
        "second_norm_fixed",
        replace(CANCER, late=lambda model: model.get_submodule("4").eval()),
        "bn_eval",
        places=("4",),
    ),
    broken(
        PLAIN,
        "hot",
        replace(PLAIN, optimizer=sgd(2.0, momentum=0.9)),
        "lr_high",
        "nonfinite",
        "exploding",
    ),
    broken(
        DIABETES,
        "raw",
        replace(DIABETES, loss=_raw_diabetes_loss),
        "data_scale",
        judge=_raw_diabetes_loss,
    ),
    broken(
        DIABETES,
        "relu_last",
        replace(DIABETES, model=_with_relu),
        "final_activation",
        places=("1",),
    ),
    broken(
        PLAIN,
        "middle_large",
        replace(PLAIN, prepare=times("3", 40.0), optimizer=adam(1e-3)),
        "large_init",
        "exploding",
        places=("3",),
    ),
    broken(
        DIABETES,
        "crawls",
        replace(DIABETES, optimizer=adam(1e-8)),
        "steps_too_small",
    ),
]

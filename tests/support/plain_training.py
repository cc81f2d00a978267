"""Plain hooks on a training, step by step, and a small model to train."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from bits import content
from models import seeded
from random_numbers import normal
from torch import Tensor, nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.checkpoint import checkpoint

import torchtap as tt

WHERE = "*body.*:output,grad_output,param_grad,step_grad,update"


class SmallNet(nn.Module):
    """Gives its own loss, as the models of transformers do; draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.25), nn.Linear(8, 8), nn.Linear(8, 1)
        )
        self.is_checkpointed = False

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        y = checkpoint(self.body, x, use_reentrant=False) if self.is_checkpointed else self.body(x)
        return {"loss": (y.squeeze(-1) - labels).square().mean(), "logits": y}

    def gradient_checkpointing_enable(self, **how: Any) -> None:
        """Arguments in the form in which the Trainer of transformers asks for them."""
        self.is_checkpointed = True


def small_net() -> SmallNet:
    """Make equal weights every time."""
    return seeded(SmallNet)


def samples(num: int = 40) -> list[dict[str, Tensor]]:
    """A data set of them."""
    inputs, labels = normal(num, 4, seed=1), normal(num, seed=2)
    return [{"x": x, "labels": label} for x, label in zip(inputs, labels, strict=True)]


class PlainValues:
    """Clones of what flowed, by phase, site and step. A step ends with that of an optimizer.

    Args:
        first: the number of the first step.
    """

    def __init__(self, first: int = 0) -> None:
        self.found: dict[tuple[str, str, int], list[Tensor]] = defaultdict(list)
        self.step = self.first = first
        self.before: dict[str, Tensor] = {}

    def keep(self, phase: str, site: str, step: int, value: Tensor) -> None:
        """One more value."""
        self.found[phase, site, step].append(value.detach().clone())


@contextlib.contextmanager
def plain_hooks(model: nn.Module, first: int = 0) -> Iterator[PlainValues]:
    """Hooks on the parts of each ``body`` of a model, without torchtap."""
    values = PlainValues(first)
    parts = {path: one for path, one in model.named_modules() if ".body." in f".{path}"}
    params = {
        f"{path}:{{}}[{name}]": param
        for path, part in parts.items()
        for name, param in part.named_parameters(recurse=False)
    }
    handles: list[Any] = []
    for path, part in parts.items():
        handles.append(part.register_forward_hook(_forward_hook(model, values, path)))
    for site, param in params.items():
        hook = _grad_hook(values, site.format("param_grad"))
        handles.append(param.register_post_accumulate_grad_hook(hook))

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        values.before = {site: param.detach().clone() for site, param in params.items()}

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        for site, param in params.items():
            values.keep("forward", site.format("step_grad"), values.step, param.grad)
            change = param.detach() - values.before[site]
            values.keep("forward", site.format("update"), values.step, change)
        values.step += 1

    handles += [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
    yield values
    for handle in handles:
        handle.remove()


def _forward_hook(model: nn.Module, values: PlainValues, path: str) -> Any:
    def hook(module: nn.Module, args: Any, output: Tensor) -> None:
        if torch._C._current_graph_task_id() != -1:
            return  # A checkpoint computes it again.
        if not (model.training and torch.is_grad_enabled()):
            step = max(values.step - 1, values.first)  # It comes after the step.
            values.keep("eval", f"{path}:output", step, output)
            return
        step = values.step
        values.keep("forward", f"{path}:output", step, output)
        site = f"{path}:grad_output"
        output.register_hook(lambda gradient: values.keep("forward", site, step, gradient))

    return hook


def _grad_hook(values: PlainValues, site: str) -> Any:
    return lambda param: values.keep("forward", site, values.step, param.grad)


def assert_same(run: tt.Run, values: PlainValues) -> None:
    """Assert that every value was recorded that plain hooks saw, in its step, and no other."""
    found: dict[tuple[str, str, int], list[Any]] = defaultdict(list)
    for phase in ("forward", "eval"):
        for record in run.records(phase=phase):
            found[phase, str(record.site), record.step].append(content(record.value))
    expected = {key: list(map(content, each)) for key, each in values.found.items()}
    assert found.keys() == expected.keys()
    for key, contents in expected.items():
        assert found[key] == contents, key

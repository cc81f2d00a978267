"""The variable of a score: a tensor among the inputs, or the value at a site of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.core.batch_rows import other_rows
from torchtap.core.errors import InputError
from torchtap.core.tensors import kind_of
from torchtap.core.text import plural
from torchtap.explain.attributions.explained_input import (
    ExplainedInput,
    ExplainedSite,
    explained_input_of,
)
from torchtap.explain.attributions.site_value import SiteValue
from torchtap.explain.doubled_batch_probe import are_rows_at_site, are_rows_of_value
from torchtap.explain.same_scores import REJECTIONS, are_same, refuse_unsteady
from torchtap.explain.subject import Subject
from torchtap.explain.target import Target

Run = Callable[[Tensor, int], Tensor]
"""Scores at some values, which are so many times the rows of the original."""

NO_GRADIENTS = "occlusion, feature_permutation and shapley need no gradients"


class Variable:
    """Scores as a function of one tensor, all else of the call held as it is.

    Args:
        value: the tensor as it was found.
        run: the scores at other values of it.
        scores: those at the value, if they are known.
        copies: how many times the rows of the call stand in the value.
        rows: tells whether there is one score for each row, in place of a trial.

    Attributes:
        value: the tensor as it was found, detached.
        why_single: why its rows cannot be repeated within one forward; empty where they can, and
            as long as nothing has asked.
    """

    def __init__(
        self,
        value: Tensor,
        run: Run,
        scores: Tensor | None = None,
        *,
        copies: int = 1,
        rows: Callable[[], bool] | None = None,
    ) -> None:
        self.value = value
        self.why_single = ""
        self._run = run
        self._base_scores = scores
        self._copies = copies
        self._can_repeat: bool | None = None
        self._is_steady = False
        self._is_per_row: bool | None = None
        self._rows = rows

    @property
    def num_rows(self) -> int:
        """Length of dimension 0; 1 for a tensor without dimensions."""
        return self.value.shape[0] if self.value.dim() else 1

    @property
    def base_scores(self) -> Tensor:
        """Return the explained number of each row at the value, detached."""
        if self._base_scores is None:
            with torch.no_grad():
                self._base_scores = self._run(self.value, 1).detach()
        return self._base_scores

    def scores(self, values: Tensor, times: int = 1) -> Tensor:
        """Return the explained number of each row, without a graph.

        Args:
            values: ``times`` copies of the rows, one after the other as of ``Tensor.repeat``.
            times: how many.
        """
        if self._base_scores is None and values is not self.value:
            _ = self.base_scores  # They settle the classes that have won.
        with torch.no_grad():
            return self._run(values, times)

    def gradient(
        self,
        values: Tensor,
        times: int = 1,
        *,
        before_backward: Callable[[Tensor, Tensor], object] | None = None,
        recorder: AbstractContextManager[Any] | None = None,
    ) -> Tensor:
        """Return the gradient of the sum of the scores.

        Args:
            values: as of :meth:`scores`.
            times: likewise.
            before_backward: called with scores and values, which have a graph between them.
            recorder: is on while the model runs forward.

        Raises:
            InputError: the scores do not depend on the values, as far as autograd can tell.
        """
        self._check_differentiable()
        is_base = values is self.value and times == 1
        if not is_base:
            _ = self.base_scores  # They settle the classes that have won.
        leaf = values.detach().requires_grad_()
        with torch.enable_grad():
            with recorder or nullcontext():
                scores = self._run(leaf, times)
            if is_base and self._base_scores is None:
                self._base_scores = scores.detach()
            if not scores.requires_grad:
                raise InputError(_NO_GRAPH)
            if before_backward is not None:
                before_backward(scores, leaf)
            (found,) = torch.autograd.grad(scores, leaf, torch.ones_like(scores), allow_unused=True)
        if found is None:
            raise InputError(_NO_GRAPH)
        gradient: Tensor = found
        return gradient

    def _check_differentiable(self) -> None:
        if not self.value.is_floating_point():
            raise InputError(
                f"The value is {kind_of(self.value)}, which has no gradient; expected a floating "
                f"tensor. {NO_GRADIENTS}."
            )

    def spread(self, given: float | Tensor | None, name: str) -> Tensor:
        """Return the value of a setting for each element, in the shape of the variable.

        Args:
            given: a number, or a tensor for one row or for all rows; ``None`` for 0.
            name: of the setting.

        Raises:
            InputError: it does not fit.
        """
        value = self.value
        if given is None:
            return torch.zeros_like(value)
        if isinstance(given, bool) or not isinstance(given, int | float | Tensor):
            raise InputError(f"{name} is {kind_of(given)}; expected a number or a tensor.")
        _refuse_rounding(given, value, name)
        if not isinstance(given, Tensor):
            return torch.full_like(value, given)
        given = given.detach().to(value)
        if self._copies > 1 and given.dim() == value.dim() and given.shape[0] > 1:
            given = given.repeat(self._copies, *[1] * (given.dim() - 1))
        try:
            return given.expand_as(value).clone()
        except RuntimeError as error:
            raise InputError(
                f"{name} is {kind_of(given)}, and the value that is explained "
                f"{kind_of(value)}; expected a number, or a tensor that broadcasts to it."
            ) from error

    def around(self, values: Tensor, times: int) -> Variable:
        """Return the same function at other values, whose rows are ``times`` those of this one."""
        _ = self.base_scores  # They settle the classes that have won.
        copies = self._copies * times
        other = Variable(values, lambda new, more: self._run(new, more * times), copies=copies)
        other._can_repeat, other.why_single = self._can_repeat, self.why_single
        other._is_steady = True
        other._is_per_row = self.is_per_row
        return other

    @property
    def is_per_row(self) -> bool:
        """Return whether there is one score for each row."""
        if self._is_per_row is None:
            known = self._rows
            value, scores = self.value, self.base_scores
            self._is_per_row = known() if known else are_rows_of_value(value, scores, self._run)
        return self._is_per_row

    def gap(self, values: Tensor, difference: Tensor) -> Tensor:
        """Completeness gap: the sum of a map less a difference of scores, ``float64``.

        There is one for each row, or one of all where the scores are not those of the rows.
        """
        if self.is_per_row:
            return values.double().reshape(len(values), -1).sum(1) - difference.double()
        return values.double().sum().reshape(1) - difference.double().sum().reshape(1)

    def times_in(self, batch_size: int) -> int:
        """Return how many copies of the rows fit in one forward of at most ``batch_size`` rows."""
        times = batch_size // max(self.num_rows, 1)
        is_single = times < 2 or self.num_rows == 0
        if not is_single and self._can_repeat is None:
            self.why_single = self._why_not_repeated(min(times, _MOST_COPIES))
            self._can_repeat = not self.why_single
        if is_single or not self._can_repeat:
            self._check_steady()
            return 1
        return times

    def _check_steady(self) -> None:
        """Raise if the same values do not have the same scores once more."""
        if not self._is_steady:
            refuse_unsteady(self.base_scores, self.scores(self.value))
            self._is_steady = True

    def _why_not_repeated(self, times: int) -> str:
        """Return why the value has other scores beside other rows than alone; empty if it has not.

        Copies of the value would not do: the statistics of a batch twice are those of the batch
        once. Rows that are larger, smaller and of the other sign show what depends on any of these.
        """
        if not self.value.dim():
            return "the value has no rows"
        others = _others(self.value)[: times - 1]
        own, times = self.base_scores, len(others) + 1
        try:
            repeated = self.scores(torch.cat([*others, self.value]), times)
        except REJECTIONS as error:
            line = str(error).strip().split("\n")[0]
            return f"a forward of {_times(times)} the rows raised {type(error).__name__} ({line})"
        if len(repeated) != times * len(own):
            scores = plural(len(repeated), "score")
            return f"{_times(times)} the rows gave {scores}, and once {len(own)}"
        *changed, last = repeated.view(times, -1)
        if all(are_same(last, own, one) for one in changed):
            return ""
        return "the model mixes the rows of a batch"


_MOST_COPIES = 4


def _others(value: Tensor) -> list[Tensor]:
    """Other rows in place of those of a value, of several sizes."""
    turned = other_rows(value, value.shape[0])
    if not value.is_floating_point():
        return [turned]
    return [turned, value.flip(tuple(range(value.dim()))) / 4, -turned]


def _times(number: int) -> str:
    return "twice" if number == 2 else f"{number} times"


def _refuse_rounding(given: float | Tensor, value: Tensor, name: str) -> None:
    """Integers hold whole numbers within their limits alone."""
    if value.is_floating_point():
        return
    wanted = torch.as_tensor(given).detach().double()
    low, high = (0, 1) if value.dtype is torch.bool else _limits(value.dtype)
    if bool(((wanted != wanted.round()) | (wanted < low) | (wanted > high)).any()):
        shown = kind_of(given) if isinstance(given, Tensor) else repr(given)
        raise InputError(
            f"{name} is {shown}, and the value that is explained {kind_of(value)}; expected whole "
            f"numbers from {low} to {high}, or a value that is converted to floating point before "
            f"the call."
        )


def _limits(dtype: torch.dtype) -> tuple[int, int]:
    limits = torch.iinfo(dtype)
    return limits.min, limits.max


_NO_GRAPH = (
    "The explained number has no gradient with respect to the value: the model computes it without "
    "a graph (no_grad, inference mode, detach, an operation that has no derivative), or does not "
    f"use the value. {NO_GRADIENTS}."
)


@contextmanager
def variable_of(
    subject: Subject, target: Target, at: Any, call: int | None, *, integers: bool
) -> Iterator[tuple[Variable, ExplainedInput]]:
    """Open the variable that is asked for; inside of ``subject.held()``.

    Args:
        subject: the model and its inputs.
        target: what is explained; classes are settled by the first scores.
        at: ``None`` for the first floating input, or what selects one site.
        call: which call of the site's module.
        integers: whether a tensor that carries no gradient will do.
    """
    explained = explained_input_of(subject, at, integers=integers)
    if isinstance(explained, ExplainedSite):
        with SiteValue(subject, explained.plan, call) as site:
            with torch.no_grad():
                scores = subject.scores(target).detach()
            value = site.settle()
            _check(value, str(site.site), subject, integers=integers)
            with torch.no_grad():
                site.refuse_shared_reads(lambda: subject.scores(target), scores)

            def run_inside(values: Tensor, times: int) -> Tensor:
                with site.replaced_by(values):
                    return subject.scores(target, times=times)

            def rows() -> bool:
                return are_rows_at_site(subject, target, site.site, value, scores)

            yield Variable(value, run_inside, scores, rows=rows), explained.found(site.site)
        return
    name = explained.name
    value = subject.inputs[name].detach().clone()
    _check(value, explained.text, subject, integers=integers)

    def run(values: Tensor, times: int) -> Tensor:
        return subject.scores(target, {name: values}, times=times)

    yield Variable(value, run), explained


def _check(value: Tensor, what: str, subject: Subject, *, integers: bool) -> None:
    if value.is_nested or value.layout is not torch.strided:
        raise InputError(
            f"{what} is {kind_of(value)}; expected a dense tensor. Attribute at a site where it is "
            f"dense, as in at='layer1'."
        )
    if not value.numel():
        raise InputError(f"{what} is {kind_of(value)}: it is empty, and there is nothing to map.")
    if value.is_complex():
        raise InputError(
            f"{what} is {kind_of(value)}; expected real numbers. Attribute at a site where they "
            f"are real, or give the model torch.view_as_real of them."
        )
    if not integers and not value.is_floating_point():
        raise InputError(f"{what} is {kind_of(value)}, which has no gradient. {_way_out(subject)}")


def _way_out(subject: Subject) -> str:
    embeddings = [
        path
        for path, one in subject.modules.items()
        if isinstance(one, nn.Embedding | nn.EmbeddingBag)
    ]
    if embeddings:
        several = f" (or {', '.join(embeddings[1:4])})" if len(embeddings) > 1 else ""
        return f"Attribute at the embedding: at={embeddings[0]!r}{several}. {NO_GRADIENTS}."
    return f"Convert it to floating point before the call. {NO_GRADIENTS}."

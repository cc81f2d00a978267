"""Notes what a loss tells of a training: its operations, its value, how outputs meet targets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchtap.capture.gradient_ports import Gradients
from torchtap.capture.loss_graph import Operation, number_of, operations_between
from torchtap.capture.target_agreement import judge, share_among
from torchtap.capture.training_facts import TrainingFacts
from torchtap.core.no_grad import is_batched
from torchtap.core.torch_private import current_task
from torchtap.core.tree import Leaf, argument_leaves
from torchtap.hooks.backwards import root_of_backward
from torchtap.hooks.module_hook import run_as_it_is
from torchtap.hooks.tap import GradHook

_MOST_GRAPHS, _MOST_INPUTS, _MOST_OUTPUTS = 8, 3, 4
_MOST_STEPS = 32
"""If more were looked at, every second is dropped: a look costs up to 1 ms."""
_MOST_OF_INPUT, _MOST_OF_OUTPUT = 2**18, 2**14
"""Elements: a larger input is not held, and of a larger output the first samples are."""
_LOOKS = 4
"""Backwards whose graph is read one after the other; from then on every sixteenth is."""


@dataclass(slots=True)
class Returned:
    """An output that a gradient is expected for.

    Attributes:
        step: in which the model returned it.
        place: among those that have a gradient.
        output: its values, of a large batch a copy of the first samples; ``None`` if one sample is
            too large.
        version: of that tensor then.
        is_alone: whether the model returned no other.
        given: small tensors among what the model was called with, and their versions.
    """

    step: int
    place: int
    output: Tensor | None
    version: int
    is_alone: bool
    given: list[tuple[Tensor, int]]

    @property
    def inputs(self) -> list[Tensor]:
        """The arguments of the model into which nothing wrote since."""
        return [one for one, version in self.given if one._version == version]

    @property
    def values(self) -> Tensor | None:
        """The output, if it can be measured and nothing wrote into it."""
        output = self.output
        if output is None or output._version != self.version or not output.is_floating_point():
            return None
        return output


@dataclass(slots=True)
class Seen:
    """The measurements at the arrival of one gradient.

    Attributes:
        output: place of the output.
        values: of the loss, with the first gradient of a backward.
        agreement: of the output and its targets, see ``target_agreement.py``.
        copied: share of the targets that stand in the inputs.
        lowest: number among the targets of a squared error.
        highest: likewise.
        is_by_square: whether targets were told as those of a squared error.
        deviation: of the output from its mean over the batch, root of the mean square.
        size: root of the mean square of the output.
    """

    output: int
    values: float | None = None
    agreement: float | None = None
    copied: float | None = None
    lowest: float | None = None
    highest: float | None = None
    is_by_square: bool = False
    deviation: float | None = None
    size: float | None = None


class LossFacts:
    """Facts that losses tell, read where their gradients arrive at the model's outputs.

    Args:
        gradients: of the engine, which takes the hooks off.
        facts: are told of each backward.

    Attributes:
        gradients: as given.
    """

    def __init__(self, gradients: Gradients, facts: TrainingFacts) -> None:
        self.gradients = gradients
        self._facts = facts
        self._graphs: dict[str, tuple[tuple[Operation, ...], int]] = {}
        self._rows: dict[int, list[Seen]] = {}
        self._task, self._num_backwards = -1, 0
        self._stride, self._ratio = 1, 0.0
        self._may_be_squared, self._num_squared = True, 0
        self._fault = ""

    def looks_at(self, step: int) -> bool:
        """Return whether a step is looked at: ever fewer are, and a part of one without an end."""
        if self._fault or step % self._stride:
            return False
        return len(self._rows.get(step, ())) < _MOST_STEPS

    def expect_at(
        self, step: int, returned: list[Leaf], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """A forward of the model ended: look at its loss, if the step is looked at."""
        if self.looks_at(step):
            given = [tensor for _, tensor in argument_leaves(args, kwargs)]
            self.expect([tensor for _, tensor in returned], given, step)

    def expect_plain(
        self, step: int, output: Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """A native hook says that a forward ended, which returned one tensor."""
        if step % self._stride == 0:
            self.expect_at(step, [("", output)], args, kwargs)

    def expect(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], step: int) -> None:
        """Look when the gradients of outputs arrive."""
        used = [one for one in outputs if type(one) is Tensor and one.grad_fn is not None]
        # By number: a hook that held the nodes would keep their graph, and itself, alive.
        ends = frozenset(number_of(one.grad_fn) for one in used)
        is_alone = len(used) == 1
        given = [(one.detach(), one._version) for one in inputs[:_MOST_INPUTS] if _is_small(one)]
        for place, one in enumerate(used[:_MOST_OUTPUTS]):
            kept = _sample(one)
            version = -1 if kept is None else kept._version
            returned = Returned(step, place, kept, version, is_alone, given)
            self.gradients.on_tensors.put(one, GradHook(self.arrive, ends, returned))

    def arrive(self, ends: frozenset[int], returned: Returned, gradient: Tensor | None) -> None:
        """A gradient arrives at an output. A fault in a look ends all looks, never the backward."""
        if type(gradient) is not Tensor or self._fault or is_batched(gradient):
            return  # A batch of gradients has no values of its own.
        try:
            self._look(ends, returned, gradient)
        except Exception as error:  # noqa: BLE001 - the backward goes on, and the run says it
            self._fault = f"{type(error).__name__}: {error}"

    def _look(self, ends: frozenset[int], returned: Returned, gradient: Tensor) -> None:
        root = root_of_backward()
        if root is None or root.grad_fn is None:
            return
        seen = Seen(returned.place)
        is_first = current_task() != self._task
        if is_first:
            self._task, self._num_backwards = current_task(), self._num_backwards + 1
            if self._num_backwards <= _LOOKS or self._num_backwards % 16 == 0:
                self._note_graph(operations_between(root.grad_fn, ends))
            self._facts.begin_backward()
        if gradient.device.type != "cpu" and self._num_backwards % 8 != 1:
            return  # Each number read from a device waits for it.
        if is_first and root.numel() == 1:
            seen.values = float(root.detach())
        self._rows.setdefault(returned.step, []).append(seen)
        if (output := returned.values) is not None:
            with torch.no_grad():
                self._measure(seen, returned, output, gradient)
        self._thin_out()

    def _measure(self, seen: Seen, returned: Returned, output: Tensor, gradient: Tensor) -> None:
        square = float(torch.linalg.vector_norm(gradient)) ** 2
        is_there = 0 < square < math.inf
        self._look_for_square(seen.values if returned.is_alone else None, square, gradient.numel())
        if gradient.shape != output.shape and output.ndim:
            gradient = gradient[: len(output)]
        judged = None
        # Once a few looks told a squared error, no other loss is tried, until it is disproved.
        if is_there and not (self._may_be_squared and self._num_squared >= _LOOKS):
            judged = judge(output, gradient)
        if judged is None and is_there and self._may_be_squared and seen.values is not None:
            # The gradient of ``a sum(e^2)`` is ``2 a e``.
            judged = judge(output, gradient, 2 * seen.values / square)
            seen.is_by_square = True
            self._num_squared += 1
        if judged is not None:
            seen.agreement = judged.agreement
            if judged.agreement is not None:
                seen.copied = share_among(judged.labels, returned.inputs)
            if seen.is_by_square:
                seen.lowest, seen.highest = judged.lowest, judged.highest
        if judged is None and returned.is_alone and output.ndim > 1 and output.numel():
            away = output.float() - output.float().mean(0)
            seen.deviation = float(torch.linalg.vector_norm(away)) / math.sqrt(output.numel())
            size = float(torch.linalg.vector_norm(output.float()))
            seen.size = size / math.sqrt(output.numel())

    def as_dict(self) -> dict[str, Any]:
        """Return what is known, as JSON has it; empty where no loss was seen.

        ``graphs`` are operations and in how many looks they were seen, ``num_kept`` in how many of
        ``num_steps`` steps gradients of the step before were left, ``steps`` those that were looked
        at, and each other the means of what was seen in these. ``fault`` says why looks ended.
        """
        if not self._graphs and not self._rows and not self._fault:
            return {}
        graphs = [
            {"operations": [list(one) for one in own], "count": count}
            for own, count in list(self._graphs.values())
        ]
        by_step = self._rows.copy()  # A backward in another thread may add to them.
        steps = sorted(by_step)
        rows = [by_step[step] for step in steps]
        return {
            "graphs": graphs,
            "num_kept": self._facts.num_kept,
            "num_steps": self._facts.num_steps,
            "steps": steps,
            "values": [_mean([seen.values for seen in own]) for own in rows],
            "copied": [_mean([seen.copied for seen in own]) for own in rows],
            "lowest": [_mean([seen.lowest for seen in own]) for own in rows],
            "highest": [_mean([seen.highest for seen in own]) for own in rows],
            "deviation": [_mean([seen.deviation for seen in own]) for own in rows],
            "size": [_mean([seen.size for seen in own]) for own in rows],
            "agreement": [_agreement_of(own) for own in rows],
            **({"fault": self._fault} if self._fault else {}),
        }

    def _note_graph(self, operations: tuple[Operation, ...]) -> None:
        name = repr([(one, inputs) for one, _, inputs in operations])
        known, count = self._graphs.get(name, (operations, 0))
        if operations and (count or len(self._graphs) < _MOST_GRAPHS):
            self._graphs[name] = known, count + 1

    def _look_for_square(self, loss: float | None, square: float, num_elements: int) -> None:
        """Look whether all losses are squared errors of one output.

        The loss over the squared norm of its gradient, and over the elements, is one number then.
        """
        square *= num_elements
        if loss is None or not 0 < square < math.inf:
            self._is_no_square()
            return
        self._ratio = self._ratio or loss / square
        if not abs(loss / square - self._ratio) < 2e-3 * abs(self._ratio):
            self._is_no_square()

    def _is_no_square(self) -> None:
        """Forget what was told of targets while the loss looked like a squared error."""
        if self._may_be_squared:
            self._may_be_squared = False
            every = (seen for own in self._rows.values() for seen in own)
            for seen in filter(lambda one: one.is_by_square, every):
                seen.agreement = seen.copied = seen.lowest = seen.highest = None

    def _thin_out(self) -> None:
        """Keep every second step of a long training, and look at half as many from now on."""
        if len(self._rows) > _MOST_STEPS:
            self._stride *= 2
            self._rows = {step: own for step, own in self._rows.items() if step % self._stride == 0}


def _is_small(tensor: Tensor) -> bool:
    return type(tensor) is Tensor and not tensor.is_complex() and tensor.numel() <= _MOST_OF_INPUT


def _sample(output: Tensor) -> Tensor | None:
    """Return an output to keep until its gradient arrives.

    An alias of a large one would keep its memory, which the model may give back before backward.
    """
    if output.numel() <= _MOST_OF_OUTPUT:
        return output.detach()
    rows = len(output) * _MOST_OF_OUTPUT // output.numel()
    return output.detach()[:rows].clone() if rows > 1 else None


def _agreement_of(seen: list[Seen]) -> float | None:
    """Return the mean agreement of a step, over the outputs of which it is known throughout.

    Where a part of a step has other targets, as each of two rivals has, the rest is no measure.
    """
    by_output: dict[int, list[float | None]] = {}
    for one in seen:
        by_output.setdefault(one.output, []).append(one.agreement)
    return _mean([_mean(own) for own in by_output.values() if None not in own])


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


# A native hook calls it, and Dynamo looks at each frame of Python that one begins.
run_as_it_is(LossFacts.expect_plain)

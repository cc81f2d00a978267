"""The share that a call adds: the candidate's module is given the inputs of the reference.

It runs as it is, or with parts of the state of the reference.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.diagnosis.calls.capture import Captured
from torchtap.diagnosis.calls.feed import feed
from torchtap.diagnosis.calls.standalone.run_again import Result, tensors_in
from torchtap.diagnosis.comparison.distance import Distance, Values, distance
from torchtap.diagnosis.comparison.given_inputs import changed_tensors, given_inputs
from torchtap.diagnosis.comparison.parameter_pairs import ParameterPair

REFUSED = (
    *(RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError),
    ArithmeticError,
)
"""Exceptions of a module that is given something else than it was called with."""


@dataclass(frozen=True, slots=True)
class Lent:
    """The parts of its state that the candidate's module takes from the reference.

    Attributes:
        mode: training or eval mode.
        buffers: at the call.
        weights: parameters, as they stand (0) or transposed where that fits too (1).
        random: states of the generators at the call.
        dtype: of parameters, buffers and inputs.
        rounded: name of a dtype, to which inputs are rounded; in their own by one unit.
    """

    mode: bool = False
    buffers: bool = False
    weights: int | None = None
    random: bool = False
    dtype: bool = False
    rounded: str = ""


OWN = Lent()


@dataclass(frozen=True, slots=True, eq=False)
class Feeder:
    """Gives one pair of calls to the candidate's module.

    Attributes:
        module: of the candidate.
        reference: the module that stands for it.
        one: the call of the reference.
        two: the call of the candidate.
        params: whose parameters are whose.
        homes: path below the reference's module -> path below the candidate's.
    """

    module: nn.Module
    reference: nn.Module
    one: Captured
    two: Captured
    params: Sequence[ParameterPair]
    homes: Mapping[str, str]

    def added(self, lent: Lent = OWN) -> Distance | None:
        """Distance of what the module returns from what the reference returned.

        Returns:
            ``None`` where it cannot be called with these inputs.
        """
        result = self.result(lent)
        if result is None:
            return None
        return distance(floating(self.one.output), floating(result.output))

    def result(self, lent: Lent = OWN, arriving: Values | None = None) -> Result | None:
        """Call the module; everything is put back.

        Args:
            lent: what it takes from the reference.
            arriving: gradients at the outputs, in their order; none for a forward alone.
        """
        given = self._given(lent)
        if given is None:
            return None
        at = {} if arriving is None else self._at_outputs(arriving)
        with self._weights(lent), self._generators(lent):
            try:
                return feed(self.module, given, at)
            except REFUSED:
                return None

    def _given(self, lent: Lent) -> Captured | None:
        like = self.one if lent.dtype else self.two
        arguments = given_inputs(self.one, self.two, dtypes=like is self.one)
        if arguments is None:
            return None
        if lent.rounded:
            arguments = changed_tensors(arguments, lambda one: rounded(one, lent.rounded))
        around = dict(self.two.around)
        if lent.random:
            around["random"] = self.one.around["random"]
        modes = self.two.modes
        if lent.mode:
            modes = {path: self.reference_mode(path) for path in modes}
        buffers = dict(self.two.buffers)
        if lent.buffers:
            buffers.update(self.lent_buffers())
        return replace(self.two, arguments=arguments, around=around, modes=modes, buffers=buffers)

    def reference_mode(self, path: str) -> bool | None:
        """Return the mode of the module that stands for one of the candidate's."""
        home = next((one for one, two in self.homes.items() if two == path), path)
        return self.one.modes.get(home, self.one.modes.get(""))

    def lent_buffers(self) -> dict[str, Tensor]:
        """Return the reference's buffers under the names of the candidate."""
        buffers = {}
        left = dict(self.one.buffers)
        for name, own in self.two.buffers.items():
            other = name if name in left else next(
                (one for one in left if self._named(one) == name), None
            )  # fmt: skip
            if other is not None and left[other].shape == own.shape:
                buffers[name] = left.pop(other)
        return buffers

    def _named(self, name: str) -> str:
        path, _, own = name.rpartition(".")
        home = self.homes.get(path, path)
        return f"{home}.{own}" if home else own

    def _at_outputs(self, arriving: Values) -> dict[str, Tensor]:
        outputs = floating(self.two.output)
        values = [_tensor(one) for one in arriving.values()]
        return {
            name: value.reshape(own.shape).to(own.dtype)
            for (name, own), value in zip(outputs.items(), values, strict=False)
            if value.numel() == own.numel()
        }

    @contextlib.contextmanager
    def _weights(self, lent: Lent) -> Iterator[None]:
        """Inside, the module's parameters have other values; after it their own, to the bit."""
        before = [(param, param.data) for param in self.module.parameters()]
        try:
            if lent.weights is not None:
                for pair in self.params:
                    value = pair.values[min(lent.weights, len(pair.values) - 1)]
                    kind = value.dtype if lent.dtype else pair.own.dtype
                    pair.own.data = value.to(kind, copy=True).contiguous()
            elif lent.dtype:
                for pair in self.params:
                    pair.own.data = pair.unrounded().contiguous()
            torch.clear_autocast_cache()  # It holds weights that were cast before.
            yield
        finally:
            for param, data in before:
                param.data = data
            torch.clear_autocast_cache()

    @contextlib.contextmanager
    def _generators(self, lent: Lent) -> Iterator[None]:
        """Inside, generators that modules hold have the states of those of the reference."""
        pairs = self._held_generators() if lent.random else []
        before = [(own, own.get_state()) for _, own in pairs]
        try:
            for other, own in pairs:
                own.set_state(other.get_state())
            yield
        finally:
            for own, state in before:
                own.set_state(state)

    def _held_generators(self) -> list[tuple[torch.Generator, torch.Generator]]:
        """Generators of the reference with those of the candidate, by the names of attributes."""
        modules = dict(self.module.named_modules())
        generators = []
        for path, module in self.reference.named_modules():
            other = modules.get(self.homes.get(path, path))
            for name, value in vars(module).items() if other is not None else ():
                own = vars(other).get(name)
                if isinstance(value, torch.Generator) and isinstance(own, torch.Generator):
                    generators.append((value, own))
        return generators

    def differing(self) -> list[ParameterPair]:
        """Return the parameters that have another value than in the reference."""
        return [pair for pair in self.params if not (pair.is_equal or pair.is_transposed)]

    def has_other_buffers(self) -> bool:
        """Return whether a buffer had another value when the call began."""
        return any(
            not torch.equal(value, self.two.buffers[name].to(value.dtype))
            for name, value in self.lent_buffers().items()
        )

    def has_other_modes(self) -> bool:
        """Return whether a module was in another mode."""
        return any(self.reference_mode(path) != mode for path, mode in self.two.modes.items())

    def has_other_random(self) -> bool:
        """Return whether the generators had other states when the call began."""
        one, two = (each.around["random"] for each in (self.one, self.two))
        if not torch.equal(one["torch"], two["torch"]) or one["python"] != two["python"]:
            return True
        pairs = self._held_generators()
        return any(not torch.equal(a.get_state(), b.get_state()) for a, b in pairs)

    def has_other_dtypes(self) -> bool:
        """Return whether inputs, outputs or parameters are of another dtype."""
        sides: list[set[Any]] = []
        for each in (self.one, self.two):
            held = (*floating(each.arguments).values(), *floating(each.output).values())
            sides.append({one.dtype for one in held})
        pairs = any(pair.own.dtype != pair.values[0].dtype for pair in self.params)
        return sides[0] != sides[1] or pairs


def floating(value: Any) -> dict[str, Tensor]:
    """Tensors of numbers that round, by their places; all tensors where there are none."""
    tensors = tensors_in(value)
    chosen = {
        name: one for name, one in tensors.items() if one.is_floating_point() or one.is_complex()
    }
    return chosen or tensors


def rounded(tensor: Tensor, dtype: str) -> Tensor:
    """A tensor rounded to a dtype, or moved by one unit in the last place where it has that."""
    if not tensor.is_floating_point() or tensor.layout is not torch.strided or tensor.is_nested:
        return tensor
    with torch.no_grad():
        coarse = tensor.to(getattr(torch, dtype or "float32")).to(tensor.dtype)
        if torch.equal(coarse, tensor):
            signs = torch.arange(tensor.numel(), device=tensor.device).reshape(tensor.shape) % 2
            coarse = tensor * (1 + (2 * signs - 1) * torch.finfo(tensor.dtype).eps)
    return coarse.to(tensor.dtype).requires_grad_(tensor.requires_grad)


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else value.value


def relative(found: Distance | None) -> float:
    """Return the relative distance; NaN where there is none."""
    return math.nan if found is None else found.relative

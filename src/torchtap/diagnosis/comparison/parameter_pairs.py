"""Whose parameters are whose: by name, by shape also transposed, and parts of one weight."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtap.core.equality import same

_MOST_PARTS = 4


@dataclass(frozen=True, slots=True, eq=False)
class ParameterPair:
    """A parameter of the candidate, and what it is in the reference.

    Attributes:
        name: in the candidate.
        own: the parameter.
        values: what the reference has in its place, as it may be meant: as it stands, and
            transposed where that has the same shape.
        other: name in the reference.
    """

    name: str
    own: Tensor
    values: tuple[Tensor, ...]
    other: str

    @property
    def is_equal(self) -> bool:
        """Return whether the candidate has the value of the reference, as it stands."""
        return same(self.own.detach(), self.values[0].to(self.own.dtype))

    def unrounded(self) -> Tensor:
        """The value in the dtype of the reference: where that is what it was rounded from."""
        kind = self.values[0].dtype
        for value in self.values:
            if same(self.own.detach(), value.to(self.own.dtype)):
                return value.clone()
        return self.own.detach().to(kind, copy=True)

    @property
    def is_transposed(self) -> bool:
        """Return whether the candidate has the transposed value of the reference."""
        return any(same(self.own.detach(), value.to(self.own.dtype)) for value in self.values[1:])


def parameter_pairs(
    one: nn.Module, two: nn.Module, homes: Mapping[str, str], *, buffers: bool = False
) -> list[ParameterPair]:
    """Match the parameters of two modules, those that have a counterpart.

    Args:
        one: of the reference.
        two: of the candidate.
        homes: path below ``one`` -> path below ``two``, of calls that were aligned.
        buffers: match buffers instead.
    """
    left, right = _named(one, buffers=buffers), _named(two, buffers=buffers)
    types = _Types(dict(one.named_modules()), dict(two.named_modules()))
    matched = []
    for name in list(left):
        path, _, own = name.rpartition(".")
        for candidate in dict.fromkeys((_joined(homes.get(path, path), own), name)):
            if candidate in right and types.fit(name, left[name], candidate, right[candidate]):
                values = types.fit(name, left.pop(name), candidate, right[candidate])
                matched.append(ParameterPair(candidate, right.pop(candidate), values, name))
                break
    matched += _by_shape(left, right, homes, types)
    matched += _parts(left, right)
    return matched


def _named(module: nn.Module, *, buffers: bool) -> dict[str, Tensor]:
    return dict(module.named_buffers() if buffers else module.named_parameters())


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


@dataclass(frozen=True, slots=True, eq=False)
class _Types:
    """The modules of both sides: between two of one class nothing is transposed."""

    ones: Mapping[str, nn.Module]
    twos: Mapping[str, nn.Module]

    def fit(self, name: str, value: Tensor, other: str, own: Tensor) -> tuple[Tensor, ...]:
        """The values that a parameter may take from one of the other side; none where none fits."""
        mine, theirs = self.ones.get(_home(name)), self.twos.get(_home(other))
        fitting = _as(value, own)
        is_one = type(mine) is type(theirs) and fitting and fitting[0].shape == value.shape
        return fitting[:1] if is_one else fitting


def _home(name: str) -> str:
    return name.rpartition(".")[0]


def _as(value: Tensor, own: Tensor) -> tuple[Tensor, ...]:
    """The values that a parameter may take from one of the other side; none where none fits."""
    value = value.detach()
    fitting = [value] if value.shape == own.shape else []
    if value.dim() == 2 and value.t().shape == own.shape:
        fitting.append(value.t())
    if not fitting and value.numel() == own.numel() and _squeezed(value) == _squeezed(own):
        fitting.append(value.reshape(own.shape))
    return tuple(fitting)


def _squeezed(tensor: Tensor) -> list[int]:
    return [size for size in tensor.shape if size != 1]


def _by_shape(
    left: dict[str, Tensor], right: dict[str, Tensor], homes: Mapping[str, str], types: _Types
) -> Iterator[ParameterPair]:
    """In their order, those of one module first: of the same shape, also transposed."""
    for name in list(left):
        home = homes.get(name.rpartition(".")[0])
        fitting = [o for o in right if types.fit(name, left[name], o, right[o])]
        near = [other for other in fitting if other.rpartition(".")[0] == home]
        for other in (near or fitting)[:1]:
            values = types.fit(name, left.pop(name), other, right[other])
            yield ParameterPair(other, right.pop(other), values, name)


def _parts(left: dict[str, Tensor], right: dict[str, Tensor]) -> Iterator[ParameterPair]:
    """Parameters that are together one of the other side, as query, key and value often are."""
    for name, value in list(left.items()):
        for group in _groups(right, value.numel()):
            pieces = _split(value.detach(), [right[other] for other in group])
            if pieces:
                del left[name]
                for other, piece in zip(group, pieces, strict=True):
                    yield ParameterPair(other, right.pop(other), piece, name)
                break
    for other, own in list(right.items()):
        for group in _groups(left, own.numel()):
            whole = _together([left[name].detach() for name in group], own)
            if whole:
                for name in group:
                    del left[name]
                yield ParameterPair(other, right.pop(other), whole, " + ".join(group))
                break


def _groups(known: Mapping[str, Tensor], numel: int) -> Iterator[tuple[str, ...]]:
    """Runs of equally named and shaped parameters that have so many elements together."""
    ends: dict[str, list[str]] = {}
    for name in known:
        ends.setdefault(name.rpartition(".")[2], []).append(name)
    for names in ends.values():
        for count in range(2, _MOST_PARTS + 1):
            for group in itertools.combinations(names, count):
                parts = [known[name] for name in group]
                alike = all(part.dim() == parts[0].dim() for part in parts)
                if alike and sum(part.numel() for part in parts) == numel:
                    yield group


def _split(value: Tensor, parts: list[Tensor]) -> list[tuple[Tensor, ...]]:
    """Cut a value into parts: along dim 0, or transposed along dim 1."""
    ways = [value, value.t()] if value.dim() == 2 else [value]
    per_part: list[list[Tensor]] = []
    for way in ways:
        sizes = [part.shape[0] for part in parts]
        if sum(sizes) == way.shape[0] and all(p.shape[1:] == way.shape[1:] for p in parts):
            per_part.append(list(torch.split(way, sizes)))
    return (
        [tuple(way[place] for way in per_part) for place in range(len(parts))] if per_part else []
    )


def _together(parts: list[Tensor], own: Tensor) -> tuple[Tensor, ...]:
    ways = [parts, [part.t() for part in parts]] if parts[0].dim() == 2 else [parts]
    joined: list[Tensor] = []
    for way in ways:
        if all(part.shape[1:] == way[0].shape[1:] for part in way):
            whole = torch.cat(way)
            joined += _as(whole, own)[:1]
            if whole.dim() == 2 and whole.t().shape == own.shape:
                joined.append(whole.t())
    return tuple(joined)

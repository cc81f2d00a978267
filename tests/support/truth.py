"""The values that really flow through a model, found without torchtap.

Values come from a plain run of a deep copy, whose hooks only read. Gradients come from a second
deep copy, the *twin*, in which every tensor that enters or leaves a module is replaced by a copy
of a copy: the first copy stays untouched and is what ``torch.autograd.grad`` differentiates by,
the second one may be overwritten by the model. So the twin works out of place where the model
works in place, and each module gets tensors of its own.

Three places where "the gradient" needs a word:

- *The same tensor in several slots of one call* gets one copy for all of them (the module may ask
  ``query is key``), so the gradient of each slot is the sum over the slots.
- *A tensor that goes by several names* (an input returned unchanged, an output that the module
  has used itself) has a gradient through this module, and a total over all uses. Both are kept:
  copies are traced back to the tensor that they stand for, and the total is its gradient.
- *A checkpoint* is only a way to compute, so the twin runs without. Other calls inside a backward
  are not looked at.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.utils.checkpoint
from bits import content
from random_numbers import fixed_seed
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from torchtap.testing.zoo import inside_backward

PORTS = ("input", "output", "grad_input", "grad_output")
SIDE = {"input": "input", "output": "output", "grad_input": "input", "grad_output": "output"}
_WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}


Leaf = tuple[str, Tensor]


class Key(NamedTuple):
    """One tensor of one module call: ``port`` is ``input`` or ``output``, ``n`` its place."""

    path: str
    port: str
    call: int
    n: int


@dataclass(slots=True)
class Entry:
    """The facts of one tensor.

    Attributes:
        leaf: its name inside the arguments or the result.
        value: at entry or exit, in the model's own dtype, bit for bit.
        through: gradient with respect to what was handed to this module, or on by it.
        total: gradient with respect to that very tensor over all its uses in the model.
        slots: the places of the same call that hold the same tensor, this one included.
        is_handed_through: an input that is returned unchanged, or such an output.
        is_by_alias: an output that the module wrote into a view it was given. If the model goes on
            with the base, the loss depends on it, yet not by way of the tensor returned: a
            recording may have that gradient, and need not.
    """

    leaf: str
    value: Tensor
    through: Tensor | None = None
    total: Tensor | None = None
    slots: tuple[int, ...] = ()
    is_handed_through: bool = False
    is_by_alias: bool = False


@dataclass(slots=True)
class Truth:
    """Everything that flowed, by key.

    Example:
        ``truth(...)["fc", "grad_output", 0, 0]`` is a tensor, or ``None`` if none arrives.
    """

    entries: dict[Key, Entry]
    loss: float | None
    error: BaseException | None = None

    def __getitem__(self, key: tuple[str, str, int, int]) -> Tensor | None:
        path, port, call, n = key
        entry = self.entries[Key(path, SIDE[port], call, n)]
        if port == "grad_input":
            return entry.through
        return entry.total if port == "grad_output" else entry.value

    def expected(self, ports: Iterable[str] = PORTS) -> set[tuple[str, str, int, int]]:
        """The keys of everything that a complete recording has."""
        keys = {
            (key.path, port, key.call, key.n)
            for key, entry in self.entries.items()
            for port in ports
            if SIDE[port] == key.port and not (port == "grad_output" and entry.is_by_alias)
        }
        return {key for key in keys if self[key] is not None}


class TwinError(AssertionError):
    """The twin computes something else: no truth can be had this way."""


def truth(
    model: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    loss: Callable[[Any], Tensor | None] | None = None,
    *,
    double: bool = True,
    seed: int = 0,
    raises: type[Exception] | None = None,
) -> Truth:
    """Run copies of ``model`` and tell what flows. The model itself is not run.

    Call it before the run that it is compared with: buffers should still be the same.

    Args:
        model: has to bear ``copy.deepcopy``.
        args: positional arguments; not changed.
        kwargs: keyword arguments; not changed.
        loss: of the output; ``None``, or a loss that is ``None``, leaves out the gradients.
        double: gradients in float64; ``False`` where a model casts, or draws other random
            numbers in float64.
        seed: of the CPU's random numbers, set before each forward.
        raises: the forward is expected to raise this; there are no gradients then.

    Raises:
        TwinError: the twin's values are not those of the model (aliases, random numbers).
    """
    arguments = _fresh((args, dict(kwargs or {})))
    plain = _Reader(copy.deepcopy(model))
    error = plain.run(arguments, None, seed, raises)
    if error is not None or loss is None:
        return Truth(plain.entries, None, error)
    twin_model, arguments = copy.deepcopy(model), _fresh((args, dict(kwargs or {})))
    if double:
        twin_model._apply(_widened)
        arguments = _mapped(arguments, _remembering(_widened_leaf))
    twin = _Twin(twin_model)
    with _no_checkpoints():
        twin.run(arguments, loss, seed, None)
    _check_twin(plain.entries, twin.entries)
    for key, entry in plain.entries.items():
        other = twin.entries[key]
        entry.through, entry.total = other.through, other.total
        entry.is_handed_through, entry.is_by_alias = other.is_handed_through, other.is_by_alias
    return Truth(plain.entries, twin.loss)


def assert_matches(
    records: Iterable[Any],
    truth: Truth,
    *,
    rtol: float,
    atol: float,
    ports: Iterable[str] = PORTS,
    paths: Callable[[str], bool] | None = None,
) -> int:
    """Compare what torchtap recorded with the truth, both ways.

    Values have to be equal bit for bit. Gradients may be off by ``atol + rtol * max |truth|`` per
    element. Those labelled ``total`` are compared with the total. Recomputed values have to equal
    those of the call that they recompute. Those of other calls inside a backward are skipped.

    Args:
        records: of one step and one backward; those of other ports are skipped.
        truth: of the same model, arguments and loss.
        rtol: relative to the largest element of the tensor.
        atol: absolute.
        ports: where the recording is meant to be complete.
        paths: which modules were watched; ``None`` for all.

    Returns:
        How many records were compared.
    """
    names = _leaf_names(truth)
    watched = set(ports)
    seen: set[tuple[str, str, int, int]] = set()
    places: dict[tuple[Any, ...], list[int]] = {}
    num_compared = 0
    for record in records:
        site = record.site
        if site.port not in watched or record.phase == "backward":
            continue
        call = record.call if record.call >= 0 else _any_call(record, truth)
        taken = places.setdefault((site.path, site.port, call, record.phase), [])
        n = _place(names, site, call, taken)
        assert n is not None, f"{record!r}: no such tensor in the truth, or recorded twice"
        assert site.port.startswith("grad") or not taken or n > taken[-1], (
            f"{record!r} comes after a later tensor of the same call"
        )
        taken.append(n)
        _assert_same(record, truth, Key(site.path, SIDE[site.port], call, n), rtol, atol)
        if record.phase == "forward" or site.port.startswith("grad"):
            seen.add((site.path, site.port, call, n))
        num_compared += 1
    expected = truth.expected(watched)
    missing = {key for key in expected - seen if paths is None or paths(key[0])}
    assert not missing, f"{len(missing)} not recorded, of {len(expected)}: {sorted(missing)[:8]}"
    return num_compared


# --- comparing --------------------------------------------------------------------------------


def _leaf_names(truth: Truth) -> dict[tuple[str, str, int], list[str]]:
    found: dict[tuple[str, str, int], list[str]] = {}
    for key, entry in sorted(truth.entries.items()):
        found.setdefault((key.path, key.port, key.call), []).append(entry.leaf)
    return found


def _place(
    names: Mapping[tuple[str, str, int], list[str]], site: Any, call: int, taken: list[int]
) -> int | None:
    leaves = names.get((site.path, SIDE[site.port], call), [])
    return next((n for n, leaf in enumerate(leaves) if leaf == site.leaf and n not in taken), None)


def _any_call(record: Any, truth: Truth) -> int:
    """The first call with that value: for recomputed calls that could not be distinguished."""
    for key, entry in truth.entries.items():
        place = (key.path, key.port, entry.leaf)
        is_there = place == (record.site.path, record.site.port, record.site.leaf)
        if is_there and content(record.value) == content(entry.value):
            return key.call
    raise AssertionError(f"{record!r} equals no call of that module")


def _assert_same(record: Any, truth: Truth, key: Key, rtol: float, atol: float) -> None:
    entry, value = truth.entries[key], record.value
    assert value.shape == entry.value.shape, f"{record!r}: expected {list(entry.value.shape)}"
    assert value.dtype == entry.value.dtype, f"{record!r}: expected {entry.value.dtype}"
    assert not value.requires_grad, f"{record!r} is attached to the graph"
    if record.site.port in ("input", "output"):
        assert content(value) == content(entry.value), f"{record!r}: another value than the model's"
        return
    is_total = record.site.port == "grad_output" or "total" in record.labels
    right = entry.total if is_total else entry.through
    assert right is not None, f"{record!r}: no gradient arrives here"
    distance = _distance(value, right)
    largest = _largest(right)
    assert distance <= atol + rtol * largest, (
        f"{record!r} {record.labels}: off by {distance:.3g}, the largest element is {largest:.3g} "
        f"({key}, slots {entry.slots}, handed through: {entry.is_handed_through})"
    )


def _distance(value: Tensor, right: Tensor) -> float:
    """The largest difference; infinite where nan or inf are not in the same places."""
    wide = _WIDE.get(value.dtype, value.dtype)
    left, right = _flat(value).to(wide), _flat(right).to(wide)
    finite = left.isfinite() & right.isfinite()
    if not torch.equal(left[~finite].nan_to_num(7), right[~finite].nan_to_num(7)):
        return float("inf")
    return float((left - right)[finite].abs().max()) if finite.any() else 0.0


def _largest(tensor: Tensor) -> float:
    flat = _flat(tensor).abs()
    finite = flat[flat.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0


def _flat(tensor: Tensor) -> Tensor:
    dense = tensor.to_dense() if tensor.layout != torch.strided else tensor
    return dense.detach().reshape(-1)


def _check_twin(plain: Mapping[Key, Entry], twin: Mapping[Key, Entry]) -> None:
    if plain.keys() != twin.keys():
        raise TwinError(f"the twin makes other calls: {sorted(plain.keys() ^ twin.keys())[:4]}")
    for key, entry in plain.items():
        if not (entry.value.is_floating_point() or entry.value.is_complex()):
            continue
        distance = _distance(entry.value, twin[key].value)
        if distance > 1e-5 + 1e-3 * _largest(entry.value):
            raise TwinError(
                f"the twin's {key} is off by {distance:.3g}. Either the model draws other random "
                f"numbers or casts in float64 (double=False), or it reads through one tensor what "
                f"it wrote through another."
            )


# --- running ----------------------------------------------------------------------------------


class _Handed(NamedTuple):
    """An input of the twin: what came, what the module got instead, its version then, its keys."""

    came: Tensor
    given: Tensor
    version: int
    keys: list[Key]

    @property
    def is_overwritten(self) -> bool:
        return self.given._version != self.version


class _Frame(NamedTuple):
    """A call that has been entered and not yet left."""

    module: nn.Module
    path: str
    call: int
    handed: list[_Handed]


class _Reader:
    """Hooks that read every input and output."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.entries: dict[Key, Entry] = {}
        self.loss: float | None = None
        self._calls: Counter[str] = Counter()
        self._frames: list[_Frame] = []
        for path, module in model.named_modules():
            module.register_forward_pre_hook(self._entering(path), with_kwargs=True)
            module.register_forward_hook(self._leaving(), with_kwargs=True)

    def run(
        self,
        arguments: Any,
        loss: Callable[[Any], Tensor | None] | None,
        seed: int,
        raises: type[Exception] | None,
    ) -> BaseException | None:
        """Forward, and backward if there is a loss; returns the expected exception."""
        with fixed_seed(seed):
            expected = () if raises is None else (raises,)
            try:
                output = self.model(*arguments[0], **arguments[1])
            except expected as error:
                return error
            value = loss(output) if loss is not None else None
            if value is not None:
                self.loss = float(value.detach())
                self.differentiate(value)
        return None

    def differentiate(self, loss: Tensor) -> None:
        """A reader is not asked for gradients."""

    def passes_over(self) -> bool:
        """Return whether the call that begins or ends now is none of the forward."""
        return torch._C._current_graph_task_id() != -1

    def enter(self, frame: _Frame, args: Any, kwargs: Any) -> Any:
        """At entry: keep the values; hand on nothing else."""
        self.note(frame, "input", _argument_leaves(args, kwargs))

    def leave(self, frame: _Frame, output: Any) -> Any:
        """At exit: keep the values; hand on nothing else."""
        self.note(frame, "output", _leaves(output))

    def note(self, frame: _Frame, port: str, leaves: list[Leaf]) -> list[tuple[Tensor, list[Key]]]:
        """Keep the values of one side of one call; returns each tensor with its slots."""
        slots: dict[int, tuple[Tensor, list[Key]]] = {}
        for n, (leaf, tensor) in enumerate(leaves):
            key = Key(frame.path, port, frame.call, n)
            with torch.no_grad():
                self.entries[key] = Entry(leaf, tensor.detach().clone())
            slots.setdefault(id(tensor), (tensor, []))[1].append(key)
        for _, keys in slots.values():
            for key in keys:
                self.entries[key].slots = tuple(other.n for other in keys)
        return list(slots.values())

    def _entering(self, path: str) -> Callable[..., Any]:
        def pre_hook(module: nn.Module, args: Any, kwargs: Any) -> Any:
            if self.passes_over():
                return None
            frame = _Frame(module, path, self._calls[path], [])
            self._calls[path] += 1
            self._frames.append(frame)
            return self.enter(frame, args, kwargs)

        return pre_hook

    def _leaving(self) -> Callable[..., Any]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            if self.passes_over():
                return None
            frame = self._frames.pop()
            while frame.module is not module:  # These were left by an exception.
                frame = self._frames.pop()
            return self.leave(frame, output)

        return hook


class _Twin(_Reader):
    """Hooks that hand every module copies, and differentiate with respect to these."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._through: dict[Key, Tensor] = {}
        self._total: dict[Key, GradientEdge] = {}
        # Where the tensor (by id and version) that a copy stands for was made. The tensors are
        # kept alive, so that ids stay unique.
        self._origins: dict[tuple[int, int], GradientEdge] = {}
        self._alive: list[Tensor] = []

    def enter(self, frame: _Frame, args: Any, kwargs: Any) -> Any:
        """At entry: hand the module copies."""
        new: dict[int, Tensor] = {}
        for tensor, keys in self.note(frame, "input", _argument_leaves(args, kwargs)):
            if tensor.requires_grad and torch.is_grad_enabled():
                given = new[id(tensor)] = self._copied(tensor, keys)
                frame.handed.append(_Handed(tensor, given, given._version, keys))
        return _mapped((args, kwargs), lambda tensor: new.get(id(tensor), tensor))

    def leave(self, frame: _Frame, output: Any) -> Any:
        """At exit: hand the caller copies, and make good what was overwritten."""
        new: dict[int, Tensor] = {}
        handed = {id(h.given): h for h in frame.handed}
        for tensor, keys in self.note(frame, "output", _leaves(output)):
            if not (tensor.requires_grad and torch.is_grad_enabled()):
                continue
            origin = self._origin(tensor)
            new[id(tensor)] = self._copied(tensor, keys)
            source = handed.get(id(tensor))
            if source is None:
                continue
            if source.is_overwritten:
                # An in-place module returns what it was given: so does the twin's.
                self._write_back(source.came, new[id(tensor)], origin)
                new[id(tensor)] = source.came
                for key in keys:
                    self.entries[key].is_by_alias = source.came._is_view()
            else:
                for key in (*source.keys, *keys):
                    self.entries[key].is_handed_through = True
        for source in frame.handed:
            if source.is_overwritten and id(source.given) not in new:
                self._write_back(source.came, source.given, self._origin(source.given))
        return _mapped(output, lambda tensor: new.get(id(tensor), tensor))

    def differentiate(self, loss: Tensor) -> None:
        places: dict[tuple[Any, int], GradientEdge] = {}
        wanted: list[tuple[Key, str, tuple[Any, int]]] = []
        for key, kept in self._through.items():
            edge = get_gradient_edge(kept)
            places[edge.node, edge.output_nr] = edge
            wanted.append((key, "through", (edge.node, edge.output_nr)))
        for key, edge in self._total.items():
            places[edge.node, edge.output_nr] = edge
            wanted.append((key, "total", (edge.node, edge.output_nr)))
        if not places:
            return
        found = torch.autograd.grad(loss, list(places.values()), allow_unused=True)
        gradients = dict(zip(places, found, strict=True))
        for key, kind, place in wanted:
            setattr(self.entries[key], kind, gradients[place])

    def _copied(self, tensor: Tensor, keys: list[Key]) -> Tensor:
        """A copy of a copy; the first is what is differentiated by, for all these slots."""
        kept = tensor.clone()
        given = kept.clone()
        origin = self._origin(tensor)
        for key in keys:
            self._through[key], self._total[key] = kept, origin
        self._stands_for(given, origin)
        return given

    def _origin(self, tensor: Tensor) -> GradientEdge:
        place = (id(tensor), tensor._version)
        if place not in self._origins:
            self._stands_for(tensor, get_gradient_edge(tensor))
        return self._origins[place]

    def _stands_for(self, tensor: Tensor, origin: GradientEdge) -> None:
        self._origins[id(tensor), tensor._version] = origin
        self._alive.append(tensor)

    def _write_back(self, came: Tensor, value: Tensor, origin: GradientEdge) -> None:
        """The module has overwritten its input, so the caller's tensor has to change too."""
        came.copy_(value)
        self._stands_for(came, origin)


@contextlib.contextmanager
def _no_checkpoints() -> Iterator[None]:
    """Checkpointed functions are simply called."""

    class Call:
        @staticmethod
        def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
            return function(*args)

    class CallModule:
        @staticmethod
        def apply(module: nn.Module, x: Tensor) -> Any:
            return module(x)

    def generator(*args: Any, **kwargs: Any) -> Iterator[None]:
        yield

    place = torch.utils.checkpoint
    with (
        mock.patch.object(place, "CheckpointFunction", Call),
        mock.patch.object(inside_backward, "ComputedAgain", CallModule),
        mock.patch.object(place, "_checkpoint_without_reentrant_generator", generator),
    ):
        yield


# --- nested values ----------------------------------------------------------------------------


def _leaves(value: Any, name: str = "") -> list[Leaf]:
    """Every tensor with its name, depth first."""
    if isinstance(value, Tensor):
        return [(name, value)]
    found: list[Leaf] = []
    for part_name, part in _parts(value):
        found += _leaves(part, f"{name}.{part_name}" if name else str(part_name))
    return found


def _argument_leaves(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Leaf]:
    """Positional first; a single positional argument is taken as it is."""
    if len(args) == 1 and not kwargs:
        return _leaves(args[0])
    return _leaves(args) + _leaves(kwargs)


def _parts(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, tuple | list | deque):
        return list(zip(getattr(value, "_fields", range(len(value))), value, strict=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    if type(value).__module__.startswith("torchtap.testing"):  # Plain objects of the zoo.
        return list(vars(value).items())
    return []


def _mapped(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Rebuild a nested value with other tensors; returns itself, where nothing changes."""
    if isinstance(value, Tensor):
        return function(value)
    new = [(name, part, _mapped(part, function)) for name, part in _parts(value)]
    if all(before is after for _, before, after in new):
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(after for _, _, after in new))
    if isinstance(value, tuple | list | deque):
        return type(value)(after for _, _, after in new)
    other = copy.copy(value)
    for name, before, after in new:
        if before is after:
            continue
        if isinstance(other, Mapping):
            other[name] = after
        else:
            object.__setattr__(other, name, after)
    return other


def _fresh(arguments: Any) -> Any:
    """Copies of all tensors, with their layout, and sharing memory where they did."""
    return copy.deepcopy(_mapped(arguments, _remembering(_as_leaf)))


def _as_leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _widened(tensor: Tensor) -> Tensor:
    return tensor.to(_WIDE.get(tensor.dtype, tensor.dtype))


def _widened_leaf(tensor: Tensor) -> Tensor:
    return _widened(tensor.detach()).requires_grad_(tensor.requires_grad)


def _remembering(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """One tensor always gives one result."""
    known: dict[int, tuple[Tensor, Tensor]] = {}

    def remembered(tensor: Tensor) -> Tensor:
        if id(tensor) not in known:
            known[id(tensor)] = (tensor, function(tensor))
        return known[id(tensor)][1]

    return remembered

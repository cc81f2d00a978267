"""Proves on the user's own model and batch that watching changes nothing and records the truth."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.errors import InputError
from torchtap.hooks import interposed
from torchtap.plan import Plan, Where, make_plan, modules_of
from torchtap.record import FORWARD, Absence, Key, Record
from torchtap.site import Site
from torchtap.store.memory import Memory
from torchtap.tree import argument_leaves, leaves, replace
from torchtap.watching import watch

Place = tuple[Site, int]
Loss = Callable[[Any], Tensor]

_TOLERANCE = {torch.float64: 1e-9, torch.complex128: 1e-9, torch.float32: 2e-4}
_COARSE = 3e-2
"""Relative error (in norm) that a gradient may have against the twin, by dtype: the twin computes
the same sums in another order. Half precision gets the coarse one."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """A record that differs from the truth."""

    site: Site
    call: int
    what: str

    def __str__(self) -> str:
        return f"{self.site} (call {self.call}): {self.what}"


@dataclass(frozen=True, slots=True)
class Verification:
    """The verdict of :func:`verify`. ``bool()`` is the verdict, printing explains.

    Attributes:
        model: class name of the model.
        num_values: values compared bit for bit.
        num_gradients: gradients compared with the twin.
        changed: what differed between the plain and the watched run; empty if nothing did.
        wrong: records that differ from the truth.
        unverified: records for which there is no independent truth, with reasons.
        absent: what was selected and not seen, with reasons.
        unsteady: what already differed between two plain runs; then nothing can be proved.
    """

    model: str
    num_values: int
    num_gradients: int
    changed: tuple[str, ...]
    wrong: tuple[Wrong, ...]
    unverified: tuple[Absence, ...]
    absent: tuple[Absence, ...]
    unsteady: tuple[str, ...]

    def __bool__(self) -> bool:
        return not (self.changed or self.wrong or self.unsteady)

    def __repr__(self) -> str:
        from torchtap.view.verification import show_verification

        return show_verification(self)


def verify(
    model: nn.Module, *args: Any, loss: Loss | None = None, where: Where = "*:*", **kwargs: Any
) -> Verification:
    """Run a model plain and watched, and compare everything.

    Plain against watched (for two steps), bit for bit: outputs, loss, gradients of parameters and
    arguments, buffers, random state, modes, hook tables. Every value against a clone taken by a
    plain hook; every gradient against a twin run, where each input and output is replaced by a
    clone of its own (so that nothing is overwritten and no view is shared) and differentiated by
    autograd.

    The model is left as it was found: parameters' ``.grad``, buffers and random state are put
    back. State that a model keeps in plain Python attributes is not.

    Args:
        model: the model, in the mode (train or eval) that you want to verify.
        *args: its arguments.
        loss: from the model's output to a scalar; by default every floating tensor in the
            output, weighted by cosines and averaged. Nothing is differentiated where grad mode
            is off.
        where: as in ``watch``; all four ports of all modules by default.
        **kwargs: its keyword arguments.

    Raises:
        InputError: ``loss`` returns no scalar.

    Example:
        >>> import torch, torchtap as tt
        >>> block = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(inplace=True))
        >>> bool(tt.verify(block, torch.ones(3, 2)))
        True
    """
    trial = _Trial(model, args, kwargs, loss)
    plan = make_plan(model, where)
    modules, _ = modules_of(model)
    tapped = {tap.path: modules[tap.path] for tap in plan.taps}
    with trial.restored():
        plain, again = trial.run(), trial.run()
        unsteady = _differences(plain, again)
        memory = Memory()
        tables = _hook_tables(model)
        with watch(model, where, to=memory) as watched:
            changed = _differences(plain, trial.run())
            # In the second step values are kept as aliases wherever nobody writes.
            watched.step()
            changed += _differences(plain, trial.run())
        changed = list(dict.fromkeys(changed))
        if _hook_tables(model) != tables:
            changed.append("hooks are left behind")
        values = _true_values(trial, tapped)
        twin = None if plain.loss is None else _Twin(trial, tapped, plain)
    checked = _check(memory, values, twin, plain, trial)
    absent = tuple(watched.absent)
    checked["wrong"] += tuple(_missing(plan, memory, values, twin, absent))
    return Verification(
        model=type(model).__name__,
        changed=tuple(changed),
        absent=absent,
        unsteady=tuple(unsteady),
        **checked,
    )


# ---------------------------------------------------------------------- running the model


@dataclass(frozen=True, slots=True)
class _Outcome:
    outputs: dict[str, Tensor]
    loss: Tensor | None
    gradients: dict[str, Tensor | None]
    buffers: dict[str, Tensor]
    random: Tensor
    modes: dict[str, bool]


class _Trial:
    """One model with one batch, run several times from the same state."""

    def __init__(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], loss: Loss | None
    ) -> None:
        self.model = model
        self.args = args
        self.kwargs = kwargs
        self.loss = loss
        self.paths = set(modules_of(model)[0])
        self.buffers = {
            name: buffer.clone() for name, buffer in model.named_buffers(remove_duplicate=False)
        }
        self.params = {
            name: param.detach().clone()
            for name, param in model.named_parameters(remove_duplicate=False)
        }
        self.arguments = argument_leaves(args, kwargs)
        self._values = [tensor.detach().clone() for _, tensor in self.arguments]
        self._grads = [(holder, holder.grad) for holder in self._holders().values()]
        self._random = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if _uses_cuda() else []

    def run(self) -> _Outcome:
        """Run forward and backward from the first state."""
        output, loss = self.forward()
        if loss is not None:
            loss.backward()  # type: ignore[no-untyped-call]
        return _Outcome(
            outputs={leaf: tensor.detach().clone() for leaf, tensor in leaves(output)},
            loss=None if loss is None else loss.detach().clone(),
            gradients={
                name: None if holder.grad is None else holder.grad.clone()
                for name, holder in self._holders().items()
            },
            buffers={name: buffer.clone() for name, buffer in self.model.named_buffers()},
            random=torch.get_rng_state(),
            modes={path: module.training for path, module in self.model.named_modules()},
        )

    def forward(self) -> tuple[Any, Tensor | None]:
        """The output and the loss (``None`` where nothing requires grad)."""
        self.rewind()
        output = self.model(*self.args, **self.kwargs)
        loss = self.loss(output) if self.loss is not None else _default_loss(output)
        is_scalar = isinstance(loss, Tensor) and loss.numel() == 1
        if not is_scalar and (loss is not None or self.loss is not None):
            raise InputError(
                f"loss must return a scalar tensor, not {type(loss).__name__}"
                f"{list(loss.shape) if isinstance(loss, Tensor) else ''}."
            )
        return output, loss if loss is not None and loss.requires_grad else None

    def rewind(self) -> None:
        """Back to the state in which the model was found, with no gradients."""
        with torch.no_grad():
            for name, buffer in self.model.named_buffers():
                _write(buffer, self.buffers[name])
            for (_, tensor), value in zip(self.arguments, self._values, strict=True):
                _write(tensor, value)
        for holder in self._holders().values():
            holder.grad = None
        torch.set_rng_state(self._random)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Leave everything as it was, whatever happens inside."""
        try:
            yield
        finally:
            self.rewind()
            for holder, gradient in self._grads:
                holder.grad = gradient

    def _holders(self) -> dict[str, Tensor]:
        """Whatever may receive a ``.grad``: parameters, and arguments that are leaves."""
        found: dict[str, Tensor] = dict(self.model.named_parameters(remove_duplicate=False))
        for leaf, tensor in self.arguments:
            if tensor.is_leaf and tensor.requires_grad:
                found[f"argument {leaf or '0'}"] = tensor
        return found


def _uses_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _write(target: Tensor, value: Tensor) -> None:
    # Nothing is written where nothing changed: a version that grows would be seen by autograd.
    if not _same(target, value):
        target.copy_(value)


def _default_loss(output: Any) -> Tensor | None:
    """Every floating element weighted by cosines, for a gradient that is nowhere constant.

    (A plain mean would be blind behind a normalisation, where its gradient vanishes.)
    """
    parts = []
    for _, tensor in leaves(output):
        if tensor.requires_grad:
            wide = (tensor.abs() if tensor.is_complex() else tensor).double()
            places = torch.arange(wide.numel(), dtype=wide.dtype, device=wide.device)
            parts.append((wide * places.cos().reshape(wide.shape)).sum() / max(wide.numel(), 1))
    return torch.stack(parts).sum() if parts else None


def _differences(reference: _Outcome, candidate: _Outcome) -> list[str]:
    found = []
    for what in ("outputs", "gradients", "buffers"):
        before, after = getattr(reference, what), getattr(candidate, what)
        found += [f"{what}[{name}]" for name in before if not _same(before[name], after.get(name))]
    if not _same(reference.loss, candidate.loss):
        found.append("loss")
    if not _same(reference.random, candidate.random):
        found.append("random state")
    if reference.modes != candidate.modes:
        found.append("modes")
    return found


def _hook_tables(model: nn.Module) -> dict[str, list[int]]:
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    tables = {
        f"{path}.{name}": [id(hook) for hook in getattr(module, name).values()]
        for path, module in model.named_modules()
        for name in names
    }
    for path, param in model.named_parameters():
        for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            tables[f"{path}.{name}"] = [id(h) for h in (getattr(param, name) or {}).values()]
    return tables


# ---------------------------------------------------------------------- the truth


def _true_values(trial: _Trial, modules: Mapping[str, nn.Module]) -> dict[Place, Tensor]:
    """Every input and output, cloned by a plain hook at the moment of the call."""
    found: dict[Place, Tensor] = {}
    calls = _Calls()

    def note(place: tuple[str, str, int], tensors: list[tuple[str, Tensor]]) -> None:
        path, port, call = place
        for leaf, tensor in tensors if call >= 0 else ():
            found[Site(path, port, leaf), call] = tensor.detach().clone()

    def enter(path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        note((path, "input", calls.enter(path)), argument_leaves(args, kwargs))

    def leave(path: str, output: Any) -> None:
        note((path, "output", calls.leave(path)), leaves(output))

    fused = {path for path in modules if _is_fused(path, trial.model)}
    with interposed(modules, enter, leave, fused=fused):
        trial.forward()
    return found


class _Calls:
    """Numbers the calls of each module in the order in which they are entered."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}
        self._open: dict[str, list[int]] = {}

    def enter(self, path: str) -> int:
        call = -1  # A checkpoint computing again.
        if torch._C._current_graph_task_id() == -1:
            call = self._next[path] = self._next.get(path, -1) + 1
        self._open.setdefault(path, []).append(call)
        return call

    def leave(self, path: str) -> int:
        if not self._open.get(path):
            self.enter(path)  # A fused module is not seen on entering.
        return self._open[path].pop()


def _is_fused(path: str, model: nn.Module) -> bool:
    modules, _ = modules_of(model)
    above = [path[:cut] for cut in range(len(path) + 1) if cut == len(path) or path[cut] == "."]
    return any(
        isinstance(modules.get(one), nn.TransformerEncoderLayer) and not modules[one].training
        for one in {"", *above}
    ) and not any(param.requires_grad and torch.is_grad_enabled() for param in model.parameters())


class _Twin:
    """The model run out of place: what each gradient must be.

    Each tensor that goes in or out of a module is replaced by a clone; a tensor that the model
    hands on unchanged through several modules is a chain of clones, known by its origin.

    Attributes:
        through: gradient of the clone that a module got.
        whole: gradient of the tensor at the origin, over all its uses.
        asked: where it could hand on clones; not in objects, which stay as they are.
    """

    def __init__(self, trial: _Trial, modules: Mapping[str, nn.Module], plain: _Outcome) -> None:
        self.through: dict[Place, Tensor] = {}
        self.whole: dict[Place, Tensor] = {}
        self.asked: set[Site] = set()
        self._kept: dict[Place, tuple[Tensor, Tensor]] = {}
        self._origins: dict[int, tuple[Tensor, int, Tensor]] = {}
        self._calls = _Calls()
        self.failure: str | None = None
        try:
            with interposed(modules, self._enter, self._leave):
                output, loss = trial.forward()
                assert loss is not None
                loss.backward()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            self.failure = f"the twin run failed: {error}"
        else:
            if any(
                _mismatch(tensor.detach(), plain.outputs[leaf], exact=False)
                for leaf, tensor in leaves(output)
            ):
                self.failure = (
                    "modules share memory on purpose (one overwrites what another reads), so a "
                    "twin without shared memory computes something else"
                )
        for place, (clone, tensor) in self._kept.items():
            if clone.grad is not None:
                self.through[place] = clone.grad
            if tensor.grad is not None:
                self.whole[place] = tensor.grad
        self._kept.clear()
        self._origins.clear()

    def _enter(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        bare = len(args) == 1 and not kwargs
        call = self._calls.enter(path)
        swap = self._swap(path, "grad_input", call)
        if bare:
            return (replace(args[0], swap, objects=False),), kwargs
        return replace(args, swap, objects=False), replace(kwargs, swap, objects=False)

    def _leave(self, path: str, output: Any) -> Any:
        swap = self._swap(path, "grad_output", self._calls.leave(path))
        return replace(output, swap, objects=False)

    def _swap(self, path: str, port: str, call: int) -> Callable[[str, Tensor], Tensor]:
        clones: dict[int, tuple[Tensor, Tensor]] = {}

        def swap(leaf: str, tensor: Tensor) -> Tensor:
            self.asked.add(Site(path, port, leaf))
            if not tensor.requires_grad or not torch.is_grad_enabled():
                return tensor
            # One tensor in several slots stays one tensor, as modules further in may ask.
            clone, handed = clones.get(id(tensor)) or _clones(tensor)
            clones[id(tensor)] = clone, handed
            if call >= 0:
                origin = self._origin_of(tensor)
                clone.retain_grad()
                if not origin.is_leaf:
                    origin.retain_grad()
                self._kept[Site(path, port, leaf), call] = clone, origin
                self._origins[id(handed)] = handed, handed._version, origin
            return handed

        return swap

    def _origin_of(self, tensor: Tensor) -> Tensor:
        known = self._origins.get(id(tensor))
        if known is None or known[0]._version != known[1]:
            return tensor
        return known[2]

    def truth(self, record: Record) -> Tensor | None:
        """What the record must be, or ``None`` if the twin does not know."""
        place = (record.site, record.call)
        if "total" in record.labels or record.site.port == "grad_output":
            return self.whole.get(place)
        return self.through.get(place)


def _clones(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """A clone, and a clone of it to be handed on, which may be overwritten."""
    clone = tensor.clone()
    return clone, clone.clone()


# ---------------------------------------------------------------------- comparing


def _check(
    memory: Memory,
    values: Mapping[Place, Tensor],
    twin: _Twin | None,
    plain: _Outcome,
    trial: _Trial,
) -> dict[str, Any]:
    wrong: list[Wrong] = []
    unverified: dict[Absence, None] = {}
    counts = {"num_values": 0, "num_gradients": 0}
    for record in memory.rows:
        if record.phase != FORWARD or record.overwritten:
            continue
        truth, exact = _truth_of(record, values, twin, plain, trial)
        if truth is None:
            unverified[Absence(record.site, _why_unverified(record, twin, trial.paths))] = None
            continue
        counts["num_values" if exact else "num_gradients"] += 1
        what = _mismatch(record.value, truth, exact=exact)
        if what is not None:
            wrong.append(Wrong(record.site, record.call, what))
    return {**counts, "wrong": tuple(wrong), "unverified": tuple(unverified)}


def _missing(
    plan: Plan,
    memory: Memory,
    values: Mapping[Place, Tensor],
    twin: _Twin | None,
    absent: Iterable[Absence],
) -> Iterator[Wrong]:
    """What flowed, was asked for, and is neither recorded nor listed as absent."""
    steps = {record.step for record in memory.rows}
    seen = {record.key for record in memory.rows if record.phase == FORWARD}
    listed = {(entry.site.path, entry.site.port) for entry in absent}
    filters = {(tap.path, port): tap.filters[port] for tap in plan.taps for port in tap.ports}
    places = [*values]
    if twin is not None and twin.failure is None:
        places += [place for place in twin.through if place[0].port == "grad_input"]
        places += [place for place in twin.whole if place[0].port == "grad_output"]
    for site, call in places:
        chosen = filters.get((site.path, site.port))
        if chosen is None or not chosen.accepts(site.leaf) or (site.path, site.port) in listed:
            continue
        if any(Key(step, site, call) not in seen for step in steps):
            yield Wrong(site, call, "it was not recorded")


def _why_unverified(record: Record, twin: _Twin | None, paths: Container[str]) -> str:
    if record.site.path not in paths:
        return "a tt.mark, which no plain hook can see"
    if not record.site.is_gradient:
        return "a hook there would switch a fused kernel off, and so change the value"
    if twin is not None and twin.failure is not None:
        return twin.failure
    if twin is not None and record.site not in twin.asked:
        return "it is held by an object, in which no clone can take its place"
    return "it lies inside a reentrant checkpoint, where the twin has no graph"


def _truth_of(
    record: Record,
    values: Mapping[Place, Tensor],
    twin: _Twin | None,
    plain: _Outcome,
    trial: _Trial,
) -> tuple[Tensor | None, bool]:
    site = record.site
    name = f"{site.path}.{site.leaf}" if site.path else site.leaf
    if site.port == "param":
        return trial.params.get(name), True
    if site.port == "buffer":
        return trial.buffers.get(name), True
    if site.port == "param_grad":
        return plain.gradients.get(name), True
    if site.is_gradient:
        return (None if twin is None or twin.failure else twin.truth(record)), False
    return values.get((site, record.call)), True


def _mismatch(value: Tensor, truth: Tensor, *, exact: bool) -> str | None:
    if value.shape != truth.shape or value.dtype != truth.dtype:
        return f"{_kind(value)} where the truth is {_kind(truth)}"
    if _same(value, truth):
        return None
    if exact:
        differing = int((value != truth).sum())
        return f"{differing:,} of {value.numel():,} elements differ"
    wide = torch.complex128 if value.is_complex() else torch.float64
    one, two = value.to(wide), truth.to(wide)
    finite = two.isfinite()
    if not torch.equal(one.isfinite(), finite):
        return "NaN or Inf stand elsewhere"
    scale = torch.linalg.vector_norm(two[finite])
    error = torch.linalg.vector_norm((one - two)[finite])
    limit = _TOLERANCE.get(value.dtype, _COARSE)
    if float(error) <= limit * float(scale) + torch.finfo(value.dtype).tiny:
        return None
    return f"relative error {float(error / scale):.2e}, at most {limit:.0e} was expected"


def _same(one: Tensor | None, two: Tensor | None) -> bool:
    """Bit for bit, NaN equal to NaN."""
    if one is None or two is None:
        return one is two
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    if one.layout is not torch.strided:
        one, two = one.to_dense(), two.to_dense()
    if torch.equal(one, two):
        return True
    if not (one.is_floating_point() or one.is_complex()):
        return False
    return bool(((one == two) | (one.isnan() & two.isnan())).all())


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"

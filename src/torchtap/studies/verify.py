"""Proves on the user's own model and batch that watching changes nothing and records the truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from torchtap.capture.watch import watch
from torchtap.core.absence import Absence, by_reason, reason_rows
from torchtap.core.doors import require
from torchtap.core.equality import has_memory, mismatch
from torchtap.core.module_paths import Where
from torchtap.core.plan import Plan, make_plan
from torchtap.core.ports import GRADIENT_PORTS
from torchtap.core.printed import Printed
from torchtap.core.printed_page import Line, Listed, Page, Part
from torchtap.core.record import BACKWARD, EVAL, FORWARD, Key, Record
from torchtap.core.site import Site
from torchtap.core.torch_private import is_compiled_module
from torchtap.core.trial import Loss, Outcome, Trial
from torchtap.hooks.uncompiled import uncompiled
from torchtap.runs.memory import Memory
from torchtap.studies.true_values import Accumulated, Place, accumulated_gradients, true_values
from torchtap.studies.twin import Twin, make_twin

_DOUBTS = 6
"""How often a model is run again to see whether it is steady, where something is wrong."""
_IN_BACKWARD = (
    "it ran in a backward and is no recomputation (phase 'backward'; an adjoint, a reversible or a "
    "custom function), where the proof has no plain hooks to compare with"
)


@dataclass(frozen=True, slots=True)
class Wrong:
    """A record that differs from the truth."""

    site: Site
    call: int
    what: str

    def __str__(self) -> str:
        return f"{self.site} (call {self.call}): {self.what}"


@dataclass(frozen=True, slots=True, repr=False)
class Verification(Printed):
    """The verdict of :func:`verify`. ``bool()`` is the verdict, printing explains.

    It is true where something was compared, everything that was compared is right, and, if
    gradients were selected and recorded, at least one of them could be compared.

    Attributes:
        model: class name of the model.
        num_values: values compared bit for bit.
        num_gradients: gradients compared with the twin.
        changed: what differed between the plain and the watched run; empty if nothing did.
        wrong: records that differ from the truth.
        unverified: records for which there is no independent truth, with reasons.
        absent: what was selected and not seen, with reasons.
        unsteady: what already differed between two plain runs; then nothing can be proved, and
            nothing else is compared.
        hollow: why the comparison proves nothing, although nothing in it is wrong.
        notes: how the model was run where that is not as it was given.
        no_gradients: why no gradient is among what was proved; empty where one is.

    Example:
        >>> import torch, torchtap as tt
        >>> verdict = tt.verify(torch.nn.Linear(2, 1), torch.ones(3, 2))
        >>> bool(verdict), verdict.wrong
        (True, ())
    """

    model: str
    num_values: int
    num_gradients: int
    changed: tuple[str, ...]
    wrong: tuple[Wrong, ...]
    unverified: tuple[Absence, ...]
    absent: tuple[Absence, ...]
    unsteady: tuple[str, ...]
    hollow: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    no_gradients: str = ""

    def __bool__(self) -> bool:
        return not (self.changed or self.wrong or self.unsteady or self.hollow)

    def _page(self) -> Page:
        return show_verification(self)


def verify(
    model: nn.Module, *args: Any, loss: Loss | None = None, where: Where = "*:*", **kwargs: Any
) -> Verification:
    """Run a model plain and watched, and compare everything.

    Plain against watched (for two steps), bit for bit: outputs, loss, gradients of parameters and
    arguments, parameters, buffers, random state, modes, hook tables. Every value against a clone
    taken by a plain hook; every gradient, of each backward, against a twin run, where each input
    and output is replaced by a clone of its own (so that nothing is overwritten and no view is
    shared) and differentiated by autograd.

    The model is left as it was found: parameters and their ``.grad``, buffers and random state are
    put back: PyTorch's on all devices, Python's, NumPy's, and generators that modules hold as
    attributes. Other state that a model keeps in plain Python attributes is not. Where two plain
    runs differ, because of such state or of a generator that could not be found, the verdict says
    so and accuses nothing.

    Modules that are compiled with ``torch.compile`` run uncompiled here, since there are no modules
    in a compiled graph whose values plain hooks could confirm. Edits are not part of the proof:
    what one that changes nothing may change stands in ``docs/guides/editing.md``.

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
    require("tt.verify", model)
    with uncompiled():
        return _verify(Trial(model, args, kwargs, loss), where)


def _verify(trial: Trial, where: Where) -> Verification:
    plan = make_plan(trial.model, where)
    name, notes = type(trial.modules[""]).__name__, tuple(_notes(trial.model))
    with trial.restored():
        plain = trial.run()
        with accumulated_gradients(trial) as accumulated:
            unsteady = plain.differences(trial.run())
        if not unsteady or trial.is_in_step:
            changed, memory, absent = _watched(trial, where, plain)
            proof = _Proof(trial, accumulated)
            proof.read(plan, plain, memory, absent)
            is_odd = bool(changed or proof.wrong)
            if is_odd or trial.is_in_step:
                by_chance = _unsteady(trial)  # Or because of the watch?
                unsteady += by_chance if is_odd else []
        if unsteady:
            return Verification(
                model=name,
                num_values=0,
                num_gradients=0,
                changed=(),
                wrong=(),
                unverified=(),
                absent=(),
                unsteady=tuple(unsteady),
                notes=notes,
            )
    return Verification(
        model=name,
        num_values=proof.num_values,
        num_gradients=proof.num_gradients,
        changed=changed,
        wrong=tuple(proof.wrong),
        unverified=tuple(proof.unverified),
        absent=absent,
        unsteady=(),
        hollow=tuple(proof.hollow()),
        notes=notes,
        no_gradients="" if proof.has_gradients else _why_no_gradients(plan, plain),
    )


def _why_no_gradients(plan: Plan, plain: Outcome) -> str:
    if not any(port in GRADIENT_PORTS for tap in plan.taps for port in tap.ports):
        return "none was selected"
    if plain.loss is None:
        return "no loss requires grad, so no backward was run"
    return "none was recorded that could be compared"


def _unsteady(trial: Trial) -> list[str]:
    """Return what differs between plain runs, compared among themselves.

    Were they compared with the first one, a trace that watching left would be taken for chance.
    """
    first = trial.run()
    unsteady = [name for _ in range(_DOUBTS) for name in first.differences(trial.run())]
    return list(dict.fromkeys(unsteady))


def _watched(
    trial: Trial, where: Where, plain: Outcome
) -> tuple[tuple[str, ...], Memory, tuple[Absence, ...]]:
    """Return what watching changed, what it recorded, and what it did not."""
    memory = Memory()
    tables = _hook_tables(trial)
    with watch(trial.model, where, to=memory) as watched:
        changed = plain.differences(trial.run())
        # In the second step values are kept as aliases where the program leaves them alone.
        watched.step()
        changed += plain.differences(trial.run())
    if _hook_tables(trial) != tables:
        changed.append("hooks are left behind")
    return tuple(dict.fromkeys(changed)), memory, tuple(watched.absent)


def _hook_tables(trial: Trial) -> dict[str, list[int]]:
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    tables = {
        f"{path}.{name}": [id(hook) for hook in getattr(module, name).values()]
        for path, module in trial.modules.items()
        for name in names
    }
    for path, param in trial.model.named_parameters():
        for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            tables[f"{path}.{name}"] = [id(h) for h in (getattr(param, name) or {}).values()]
    return tables


# ---------------------------------------------------------------------- what is compiled


def _notes(model: nn.Module) -> Iterator[str]:
    compiled = [
        path or "the whole model"
        for path, module in model.named_modules()
        if is_compiled_module(module)
    ]
    if compiled:
        more = f" and {len(compiled) - 3} more" if len(compiled) > 3 else ""
        yield (
            f"compiled, and run uncompiled for this proof: {', '.join(compiled[:3])}{more}. Plain "
            f"hooks see nothing inside of a compiled graph, so there is nothing to compare with"
        )


# ---------------------------------------------------------------------- comparing


class _Proof:
    """Compares records with the truth.

    Attributes:
        num_values: values compared bit for bit.
        num_gradients: gradients compared with the twin.
        has_gradients: whether any gradient is among these, also one of a parameter.
        wrong: records that differ from the truth.
        unverified: records for which there is no truth.
    """

    def __init__(self, trial: Trial, accumulated: Accumulated) -> None:
        self.num_values = 0
        self.num_gradients = 0
        self.has_gradients = False
        self.wrong: list[Wrong] = []
        self.unverified: dict[Absence, None] = {}
        self._trial = trial
        self._accumulated = accumulated
        self._values: Mapping[Place, Tensor] = {}
        self._twin: Twin | None = None
        self._seen: Counter[Key] = Counter()

    def read(self, plan: Plan, plain: Outcome, memory: Memory, absent: Iterable[Absence]) -> None:
        """Find the truth, compare all records with it, and look for those that are missing."""
        tapped = {tap.path: self._trial.modules[tap.path] for tap in plan.taps}
        self._values = true_values(self._trial, tapped)
        if plain.loss is not None or any(record.backward >= 0 for record in memory.rows):
            self._twin = make_twin(self._trial, tapped, plain)
        for record in memory.rows:
            self.check(record)
        self.look_for_missing(plan, memory, absent)

    def check(self, record: Record) -> None:
        """Compare one record, in the order of their arrival."""
        if record.phase == BACKWARD:
            self.unverified[Absence(record.site, _IN_BACKWARD)] = None
        if record.phase not in (FORWARD, EVAL):
            return  # What a checkpoint computes again was compared when it was computed first.
        # The number of a parameter's gradient is that of its backward, of which it may miss some.
        key = record.key._replace(call=0) if record.site.port == "param_grad" else record.key
        number = self._seen[key]
        self._seen[key] += 1
        if record.overwritten:
            return
        truth = self._truth_of(record, number)
        if truth is None:
            self.unverified[Absence(record.site, self._why_unverified(record))] = None
            return
        what = mismatch(record.value, truth, exact=not _is_flow_gradient(record.site))
        if what is None and not has_memory(truth):
            self.unverified[Absence(record.site, "it has no memory to compare, only a shape")] = (
                None
            )
            return
        is_exact = not _is_flow_gradient(record.site)
        self.num_values += is_exact
        self.num_gradients += not is_exact
        self.has_gradients |= record.site.is_gradient
        if what is not None:
            self.wrong.append(Wrong(record.site, record.call, what))

    def _truth_of(self, record: Record, number: int) -> Tensor | None:
        """Return the true value of a record; ``None`` where it is not known.

        Args:
            record: what was recorded.
            number: how many records came before it at this site and call (if it is the gradient
                of a parameter: at this site).
        """
        site, trial = record.site, self._trial
        name = f"{site.path}.{site.leaf}" if site.path else site.leaf
        if site.port == "param":
            return trial.params.get(name)
        if site.port == "buffer":
            return trial.buffers.get(name)
        if site.port == "param_grad":
            return _nth(self._accumulated.get(name, ()), number)
        if not site.is_gradient:
            return self._values.get((site, record.call))
        if self._twin is None or self._twin.failure is not None:
            return None
        return _nth(self._twin.gradients(site, record.call, record.labels), number)

    def _why_unverified(self, record: Record) -> str:
        site, twin = record.site, self._twin
        if site.path not in self._trial.modules:
            return "a tt.mark, which no plain hook can see"
        if not site.is_gradient:
            return "a hook there would switch a fused kernel off, and so change the value"
        if site.port == "param_grad":
            return "no plain hook on the parameter received this gradient"
        if twin is not None and twin.failure is not None:
            return twin.failure
        if twin is not None and site in twin.distributed:
            return "it is a DTensor, of which the twin makes no clone: that may communicate"
        if twin is not None and site.path in twin.recomputed:
            return "it ran in a backward, as in a reentrant checkpoint, where the twin has no graph"
        if twin is not None and site not in twin.asked:
            return "it is held by an object, in which no clone can take its place"
        return "in the twin, no backward brought a gradient there"

    def look_for_missing(self, plan: Plan, memory: Memory, absent: Iterable[Absence]) -> None:
        """Add to ``wrong`` what flowed and was asked for, but is neither recorded nor absent."""
        steps = {record.step for record in memory.rows}
        listed = {(entry.site.path, entry.site.port) for entry in absent}
        filters = {(tap.path, port): tap.filters[port] for tap in plan.taps for port in tap.ports}
        for (site, call), num in self._flowed().items():
            chosen = filters.get((site.path, site.port))
            if chosen is None or not chosen.accepts(site.leaf):
                continue
            if (site.path, site.port) in listed:
                continue
            seen = min((self._seen[Key(step, site, call)] for step in steps), default=0)
            if not seen:
                self.wrong.append(Wrong(site, call, "it was not recorded"))
            elif seen < num:
                what = f"{num} backwards brought a gradient, and {seen} were recorded"
                self.wrong.append(Wrong(site, call, what))

    def _flowed(self) -> dict[Place, int]:
        """Return how many records there must be of each call."""
        flowed = dict.fromkeys(self._values, 1)
        twin = self._twin
        if twin is not None and twin.failure is None:
            for port, received in (("grad_input", twin.through), ("grad_output", twin.whole)):
                flowed |= {
                    place: len(all_) for place, all_ in received.items() if place[0].port == port
                }
        return flowed

    def hollow(self) -> Iterator[str]:
        """Why nothing, or no gradient, is proved."""
        if not self.num_values and not self.num_gradients and not self.unverified:
            yield (
                "nothing was recorded, so nothing was compared: see below what was not seen and "
                "why, or select more with where="
            )
            return
        unproved = [entry for entry in self.unverified if _is_flow_gradient(entry.site)]
        if unproved and not self.num_gradients:
            yield (
                "gradients were recorded, and none of them could be compared, for the reasons "
                "below: verify a part of the model by itself in which they do not hold, or leave "
                "gradients out with where='*:input,output'"
            )
        elif not self.num_values and not self.num_gradients:
            yield "values were recorded, and none of them could be compared, for the reasons below"


def _is_flow_gradient(site: Site) -> bool:
    return site.is_gradient and site.kind.is_flow


def _nth(tensors: Iterable[Tensor], number: int) -> Tensor | None:
    return next((one for place, one in enumerate(tensors) if place == number), None)


_MOST = 8
_UNSTEADY = (
    "Two plain runs, without torchtap, already differ, so nothing can be said about watching. The "
    "model keeps state outside of its parameters and buffers, or draws from a generator of random "
    "numbers that torchtap does not know (known are those of PyTorch, Python and NumPy, and "
    "generators that modules hold as attributes), or an operation in it is not deterministic "
    "(torch.use_deterministic_algorithms finds it)."
)


def show_verification(result: Verification) -> Page:
    """Return the verdict, then what speaks for and against it."""
    verdict = "holds" if result else "FAILS"
    if result.unsteady:
        verdict = "is not possible"
    elif result.hollow and not (result.changed or result.wrong):
        verdict = "does not hold: it is incomplete"
    elif result and result.no_gradients:
        verdict = f"holds for values. No gradient was proved: {result.no_gradients}"
    said = _UNSTEADY
    if not result.unsteady:
        said = f"{result.num_values:,} values bit for bit, {_num_gradients(result)}."
    return Page(
        Line(f"Watching {result.model}: the proof {verdict}.", rest=""),
        Line(said, rest=""),
        *_block("Note", result.notes),
        *_block("Two plain runs already differ in", result.unsteady),
        *_block("Not proved", result.hollow),
        *_block("Watching changed", result.changed),
        *_block("Records that are not the truth", [str(one) for one in result.wrong]),
        *_reasons("Without an independent truth", result.unverified),
        *_reasons("Not seen", result.absent),
    )


def _num_gradients(result: Verification) -> str:
    if not result.num_gradients:
        return "no gradient of a tensor that flows"
    return f"{result.num_gradients:,} gradients within rounding of an out-of-place twin"


def _reasons(title: str, absent: Sequence[Absence]) -> list[Part]:
    """Equal reasons stand once, with their sites."""
    return _listed(title, len(absent), reason_rows(by_reason(absent)), "reason")


def _block(title: str, items: Sequence[str]) -> list[Part]:
    return _listed(title, len(items), [("", item) for item in items], "item")


def _listed(title: str, num: int, rows: list[tuple[str, str]], noun: str) -> list[Part]:
    if not rows:
        return []
    return [Listed(rows, title=f"{title} ({num}):", limit=_MOST, noun=noun)]

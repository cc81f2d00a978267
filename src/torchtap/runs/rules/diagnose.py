"""``tt.diagnose`` asks all rules about a run and sorts what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from torchtap.core.errors import InputError
from torchtap.runs.rules import default
from torchtap.runs.rules.cause_order import in_order
from torchtap.runs.rules.diagnosis import Diagnosis
from torchtap.runs.rules.finding import Finding
from torchtap.runs.rules.rule_view import NO_STEP, View, why_absent
from torchtap.runs.run import Run

Rule = Callable[[View], Iterable[Finding]]
_NEEDED = {
    "output": "no outputs were watched: dead units, saturation and activations are not looked at",
    "grad_output": "no grad_output was watched: the loss is not recognised by its gradient",
    "param": "no parameters were watched: initial weights and sizes of steps are not looked at",
    "param_grad": "no param_grad was watched: vanishing and exploding gradients are not looked at",
    "update": "no updates were watched: learning rates and what is not trained are not looked at",
}


def diagnose(
    run: Run, *, rules: Sequence[Rule] | None = None, since: int | None = None
) -> Diagnosis:
    """Say what is wrong with a training: one diagnosis with its evidence, and what else was found.

    Rules read the numbers of ``tt.watch(model, "*:*,param,param_grad,update", to=tt.Stats())`` and
    of ``w.log(loss=...)``. What a run lacks makes rules silent. A rule that raises is named in
    ``failed``, and the others go on. Where values and no statistics were kept, the numbers are
    computed from the values.

    Args:
        run: of a training.
        rules: functions of a :class:`~torchtap.runs.rules.rule_view.View`; ``tt.rules.default`` if
            none are given.
        since: look at steps from this one on.

    Returns:
        the findings, sorted.

    Raises:
        InputError: ``run`` is no run, or a rule is no function.

    Example:
        >>> import torch, torchtap as tt
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
        >>> with tt.watch(model, "*:*,param,param_grad,update", to=tt.Stats()) as w:
        ...     for _ in range(3):
        ...         optimizer.zero_grad()
        ...         model(torch.randn(8, 4)).square().mean().backward()
        ...         optimizer.step()
        ...         w.step()
        >>> found = tt.diagnose(w.run).findings[0]
        >>> found.rule, found.path
        ('not_in_optimizer', '0')
    """
    if not isinstance(run, Run):
        raise InputError(
            f"diagnose() got a {type(run).__name__}; expected a run, as of tt.open(path)."
        )
    asked = checked_rules(default if rules is None else rules)
    view = View(run, since=since)
    if not len(view.steps) and not len(view.loss):
        return Diagnosis(silent=(_why_empty(run, since),))
    found: list[Finding] = []
    failed: dict[str, str] = {}
    for rule in asked:
        try:
            found += rule(view)
        except Exception as error:  # noqa: BLE001 - one rule takes nothing from the others
            failed[name_of(rule)] = f"{type(error).__name__}: {error}"
    return Diagnosis(tuple(in_order(view, found)), failed, tuple(_silent(view)))


def checked_rules(rules: Sequence[Rule] | None) -> list[Rule]:
    """Return rules as a list; none for ``None``.

    Raises:
        InputError: one is no function.
    """
    found = list(rules or ())
    odd = next((one for one in found if not callable(one)), None)
    if odd is not None:
        raise InputError(f"rules has {odd!r}; expected functions of a view, as tt.rules.default.")
    return found


def name_of(rule: object) -> str:
    """Return the name of a rule, also of a partial one."""
    inner = getattr(rule, "func", rule)
    return str(getattr(inner, "__name__", type(inner).__name__))


def _why_empty(run: Run, since: int | None) -> str:
    steps = run.steps
    if since is None or not len(steps):
        return "the run holds no step"
    return f"no step is as late as {since}: the run has steps {steps[0]} to {steps[-1]}"


def _silent(view: View) -> Iterator[str]:
    for port, said in _NEEDED.items():
        if any(True for _ in view.sites(port)):
            continue
        why = why_absent(view, port)
        unseen = said.partition(": ")[2]
        if NO_STEP in why:
            yield f"{port} was watched, and no optimizer made a step: {unseen}"
        elif why:
            reason = next(iter(why.values())).partition(":")[0]
            yield f"{port} was watched, and there is none ({reason}): {unseen}"
        else:
            yield said
    if not view.loss.is_logged:
        stands_in = " (read off the gradient of the logits)" if len(view.loss) else ""
        yield f"no loss was logged{stands_in}: w.log(loss=...) keeps it"

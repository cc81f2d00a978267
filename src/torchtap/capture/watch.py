"""``tt.watch``: checks what was asked for, makes a plan of it, and opens the watch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from torch import nn

from torchtap.capture.copy_policy import ALIAS, COPY_MODES
from torchtap.capture.delivery import SinkDispatch, as_sinks
from torchtap.capture.watch_handle import Every, Watch
from torchtap.capture.watched_calls import WatchOptions
from torchtap.core.doors import require
from torchtap.core.errors import InputError
from torchtap.core.layout import look_at
from torchtap.core.module_paths import Where
from torchtap.core.plan import plan_of
from torchtap.core.record import Record, Sink
from torchtap.hooks.hook_order import AFTER, BEFORE

if TYPE_CHECKING:
    from torchtap.runs.rules.diagnose import Rule

To = Sink | Callable[[Record], object] | Iterable[Sink | Callable[[Record], object]] | None
_GRAD_INPUT_MODES = ("through", "total")


def watch(
    model: nn.Module,
    where: Where = "*",
    *,
    to: To = None,
    every: Every = 1,
    copy: Literal["auto", "always", "never"] = "auto",
    grad_input: Literal["through", "total"] = "through",
    edits: Literal["after", "before"] = "after",
    evaluation: Literal["record", "skip"] = "record",
    rules: Sequence[Rule] | None = None,
) -> Watch:
    """Watch what flows through a model, forward and backward, without changing anything.

    Args:
        model: any module, also wrapped (DDP, FSDP, torch.compile).
        where: what to watch, ``[!]PATH[@TYPE][:PORTS[[LEAF]]]``: a pattern, a module, a module
            class, a function ``(site, module) -> bool``, or a list of them (a union; patterns
            with ``!`` take away). PATH is a glob (``*`` crosses dots), ``re:...``, or ``.`` for
            the root. PORTS are of ``input output grad_input grad_output param param_grad
            step_grad update buffer saved``; ``*`` is the first four; none means ``output``.
        to: where records go: ``tt.Memory()`` (default), any callable taking a record, or several.
        every: record every so many steps, or a function of the step.
        copy: ``auto`` keeps what was there at the moment of the tap and copies only where
            the program overwrites it; ``always`` copies; ``never`` does not, and overwritten values
            are named in ``absent``, never handed out.
        grad_input: ``through`` this module, or ``total`` over all uses of that tensor. Where a
            module hands its input on unchanged it is the total (label ``total``); where the same
            tensor stands in several arguments it is their sum (label ``sum of N slots``).
        edits: where ``tt.edit`` changes something, record what is there ``after`` all edits, or
            ``before`` them, in whatever order edits and watches were made. (``param_grad`` is
            always after.)
        evaluation: ``record`` the evaluation forwards of a model that trains, apart from its
            training forwards (phase ``eval``: outermost calls under ``no_grad`` or in eval mode,
            after the first training forward), or ``skip`` them.
        rules: that look at the run from time to time, such as ``tt.rules.default``, and warn of an
            alarm once (``tt.TrainingWarning``). What they find is kept in ``run.meta.findings``.
            They read statistics: ``tt.Stats()`` is added where no sink measures. They see most at
            ``"*:*,param,param_grad,update"``.

    Returns:
        a context manager and handle; ``.run`` holds what was kept.

    Raises:
        SiteError: a pattern fits nothing; the message names what is near.
        InputError: an argument is of the wrong kind.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(inplace=True))
        >>> with tt.watch(model, "*:output,grad_output") as w:
        ...     model(torch.ones(1, 2)).sum().backward()
        >>> w.run["1:grad_output"]
        tensor([[1., 1.]])
    """
    require("tt.watch", model)
    if copy not in COPY_MODES:
        raise InputError(f"copy is {copy!r}; expected one of {', '.join(COPY_MODES)}.")
    if grad_input not in _GRAD_INPUT_MODES:
        raise InputError(
            f"grad_input is {grad_input!r}; expected one of {', '.join(_GRAD_INPUT_MODES)}."
        )
    if not callable(every) and (not isinstance(every, int) or every < 1):
        raise InputError(
            f"every is {every!r}; expected a whole number from 1, or a function of the step."
        )
    if evaluation not in ("record", "skip"):
        raise InputError(f"evaluation is {evaluation!r}; expected 'record' or 'skip'.")
    if edits not in (AFTER, BEFORE):
        raise InputError(f"edits is {edits!r}; expected {AFTER!r} or {BEFORE!r}.")
    look = look_at(model)
    plan = plan_of(look, where)
    sinks = as_sinks(to)
    asked = _checked(rules, sinks) if rules else ()
    delivery = SinkDispatch(sinks)
    kept = ALIAS if delivery.reads_at_once else copy
    skips = evaluation == "skip"
    options = WatchOptions(kept, grad_input, looks=edits, skips_evaluation=skips)
    return Watch(look, plan, delivery, options, every=every, rules=asked)


def _checked(rules: Sequence[Rule], sinks: list[Sink]) -> Sequence[Rule]:
    """Return the rules, with a sink among others that measures what they read."""
    from torchtap.runs.rules.diagnose import checked_rules
    from torchtap.stats.sink import Stats

    asked = checked_rules(rules)
    if not any(hasattr(sink, "measured") for sink in sinks):
        sinks.append(Stats())
    return asked

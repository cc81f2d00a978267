"""Rules that read a run and say what is wrong with the training; ``tt.rules``.

A rule is a plain function ``rule(view, *, limit=...) -> Iterator[Finding]`` of a
:class:`~torchtap.runs.rules.rule_view.View`; its thresholds are keyword defaults, so that
``functools.partial(tt.rules.dead, limit=0.8)`` tunes one. :data:`default` lists all of them:
``rules=[*tt.rules.default, mine]`` adds one. Each file has the rules of one kind;
:mod:`~torchtap.runs.rules.diagnose` runs them and :mod:`~torchtap.runs.rules.cause_order` sorts
what they find.
"""

from torchtap.runs.rules.activation_rules import double_softmax, final_activation, no_activation
from torchtap.runs.rules.data_rules import bad_batch, data_scale
from torchtap.runs.rules.finding import Finding
from torchtap.runs.rules.gradient_rules import exploding, no_zero_grad, underflow, vanishing
from torchtap.runs.rules.loss_rules import labels, loss_rises, too_good
from torchtap.runs.rules.nonfinite_rule import nonfinite
from torchtap.runs.rules.optimizer_rules import (
    decay_high,
    lr_high,
    stale_low_precision,
    steps_too_small,
    updates_stop,
)
from torchtap.runs.rules.parameter_rules import bn_eval, detached, frozen, not_in_optimizer
from torchtap.runs.rules.rule_view import View
from torchtap.runs.rules.scale_rules import (
    collapsed,
    dropout_high,
    large_init,
    saturated,
    small_init,
)
from torchtap.runs.rules.unit_rules import dead, symmetric

default = [
    nonfinite,
    bad_batch,
    not_in_optimizer,
    detached,
    frozen,
    bn_eval,
    symmetric,
    double_softmax,
    no_zero_grad,
    stale_low_precision,
    underflow,
    final_activation,
    dropout_high,
    data_scale,
    large_init,
    small_init,
    collapsed,
    saturated,
    dead,
    no_activation,
    vanishing,
    exploding,
    decay_high,
    lr_high,
    updates_stop,
    steps_too_small,
    loss_rises,
    labels,
    too_good,
]
"""All rules, in no order that matters."""

__all__ = [
    "Finding",
    "View",
    "bad_batch",
    "bn_eval",
    "collapsed",
    "data_scale",
    "dead",
    "decay_high",
    "default",
    "detached",
    "double_softmax",
    "dropout_high",
    "exploding",
    "final_activation",
    "frozen",
    "labels",
    "large_init",
    "loss_rises",
    "lr_high",
    "no_activation",
    "no_zero_grad",
    "nonfinite",
    "not_in_optimizer",
    "saturated",
    "small_init",
    "stale_low_precision",
    "steps_too_small",
    "symmetric",
    "too_good",
    "underflow",
    "updates_stop",
    "vanishing",
]

"""A backward through a graph that an earlier one went through and freed."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from torchtap.core.source_files import shown_file
from torchtap.failures.earlier_backwards import (
    ABOVE,
    BEFORE,
    KEPT,
    LIST,
    OUTSIDE,
    STATE,
    Carrier,
    Earlier,
    argument_with_graph,
    begun_at,
    caller_of,
    carriers,
    depends_on,
    detached,
    earlier_calls,
    earlier_of,
    freed_in,
    is_of_outside,
    keeps,
    summed_in_loop,
)
from torchtap.failures.failure import Failure
from torchtap.failures.graph_reading import (
    leaves_of,
    nodes_of,
)
from torchtap.failures.optimizer_steps import Step, steps_between
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.situation_row import Situation, SituationRow, first_of
from torchtap.failures.traceback_frame import TracebackFrame, is_inside

_SINCE = {
    ABOVE: "computed once, above the loop",
    BEFORE: "computed before it",
    KEPT: "kept from an earlier call",
    LIST: "which holds tensors of earlier rounds",
    OUTSIDE: "computed outside of the function",
    STATE: "computed from its own last value",
}


def _twice(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """How the graph comes to be one that an earlier backward freed."""
    frame = caller_of(failure)
    if not failure.differentiated:
        return {}
    root = failure.differentiated[0]
    facts = {
        "name": failure.called(root, "the loss"),
        "is_freed": True,
        "given": "",
        "is_given": False,
    }
    if frame is None:
        details, where = freed_in(failure, failure.nodes, is_certain=False)
        return {**facts, "details": details, "where": where}
    return {**facts, **(_same(failure, frame, root) or _shared(failure, frame, root))}


# ---------------------------------------------------------------------- one graph, twice


def _same(failure: Failure, frame: TracebackFrame, root: Tensor) -> Mapping[str, Any]:
    """Words of a tensor that was differentiated before, or that is of no round of the loop."""
    name, made = begun_at(failure, frame, root)
    loop = frame.loop
    calls = [one for one in earlier_calls(frame) if not keeps(one.call)]
    again = next((one for one in calls if one.tensor is root and made <= one.line), None)
    details, where = freed_in(failure, failure.nodes, is_certain=True)
    words: dict[str, Any] = {"name": name, "where": where}
    if again is not None:
        between = _stepped(frame, again.at, leaves_of([root]))
        step = between[0].text if between else ""
        rows = (("first", again.text), *(("step at", one.place) for one in between[:1]), *details)
        return {**words, "is_again": True, "step": step, "is_kept": not step, "details": rows}
    added = summed_in_loop(frame, name)
    if added is not None:
        number = f"{grouped(written(added, frame.file))}.item()"
        text = written(added, frame.file)
        return {**words, "added": text, "is_sum": True, "number": number, "details": details}
    if loop is not None and made and not is_inside(made, loop):
        place = f"{shown_file(frame.file)}:{frame.line}, in an earlier round of the loop"
        between = steps_between(frame, (0, 0))
        rows = (("first", place), *(("step at", one.place) for one in between[:1]), *details)
        is_grad = any(one.is_torch and one.code.co_name == "grad" for one in failure.frames)
        is_kept = is_grad and not between
        return {
            **words,
            "is_round": True,
            "is_kept": is_kept,
            "is_anew": not is_kept,
            "details": rows,
        }
    if not made and is_of_outside(frame, name):
        return {**words, "is_of_outside": True, "function": frame.code.co_name, "details": details}
    return {}


# ---------------------------------------------------------------------- a part of two graphs


def _shared(failure: Failure, frame: TracebackFrame, root: Tensor) -> Mapping[str, Any]:
    """Words of a part that the graph has in common with that of an earlier backward."""
    calls = [one for one in earlier_calls(frame) if not keeps(one.call)]
    shared = carriers(failure, frame, root, calls)
    older = [tensor for one in shared for tensor in one.tensors]
    earlier = earlier_of(calls, nodes_of(older) or failure.nodes, root)
    nodes = nodes_of(older) if older else failure.nodes
    if earlier is not None and not older and earlier.tensor is not None:
        before = set(nodes_of([earlier.tensor]))
        nodes = [one for one in nodes if one in before]
    is_old = bool(shared) and all(one.since != STATE for one in shared)
    freed, where = freed_in(failure, nodes, is_certain=is_old)
    details = (
        *((("earlier", earlier.text),) if earlier is not None else ()),
        *(("shared", _described(failure, one)) for one in shared),
        *freed,
    )
    words: dict[str, Any] = {"where": where, "details": details}
    words |= _of_gradient(frame, earlier)
    first = shared[0] if shared else None
    if first is None:
        is_of_loop = frame.loop is not None and earlier is None
        given = argument_with_graph(failure, frame)
        return {
            **words,
            "given": given,
            "is_given": _is_argument(frame, root),
            "function": frame.code.co_name,
            "is_round_of_loop": is_of_loop,
        }
    leaves = leaves_of(older)
    after = earlier.at if earlier is not None else (0, 0)
    between = _stepped(frame, after, leaves)
    lost = _lost(failure, root, shared, between)
    others = [one for one in steps_between(frame, after) if one not in between]
    is_of_others = bool(others) and not between
    return {
        **words,
        **_names_of(shared),
        "who": _holders(failure, leaves),
        "rest": _rest(failure, leaves, between),
        "lost": lost,
        "is_lost": bool(lost) and first.since in (ABOVE, OUTSIDE),
        "scope": "loop" if first.since == ABOVE else f"function {frame.code.co_name}",
        "step": (between or others)[0].text if between or others else "",
        f"is_{first.since}": True,
        "is_for_others": first.since == BEFORE and is_of_others,
        "is_for_both": first.since in (BEFORE, ABOVE) and not between and not others,
        "is_fixed": first.since == ABOVE and is_of_others,
        "is_alone": bool(between) and _trains_others(frame, root, leaves),
        "is_changed": first.since == BEFORE and bool(between),
        "added": _sum_of(failure, frame, earlier, root),
    }


def _trains_others(frame: TracebackFrame, root: Tensor, leaves: Sequence[Tensor]) -> bool:
    """Return whether a loss reaches what an optimizer trains that has none of some leaves."""
    reached, shared = set(map(id, leaves_of([root]))), set(map(id, leaves))
    for held in frame.names.values():
        groups = held.param_groups if isinstance(held, Optimizer) else []
        own = {id(one) for group in groups for one in group["params"]}
        if own & reached and not own & shared:
            return True
    return False


def _is_argument(frame: TracebackFrame, root: Tensor) -> bool:
    """Return whether a function was given what it differentiates."""
    names = frame.code.co_varnames[: frame.code.co_argcount]
    return any(frame.frame.f_locals.get(name) is root for name in names)


def _of_gradient(frame: TracebackFrame, earlier: Earlier | None) -> Mapping[str, Any]:
    """Words of an earlier call that only took a gradient, which may be a part of this loss."""
    if earlier is None or not earlier.is_grad:
        return {}
    node = frame.expression
    is_part = node is not None and depends_on(frame, node, earlier.call)
    return {"is_gradient": True, "is_part": is_part, "is_apart": not is_part}


def _names_of(shared: Sequence[Carrier]) -> dict[str, Any]:
    first = shared[0]
    return {
        "short": first.name,
        "all": " and ".join(one.name for one in shared),
        "carry": "carry" if len(shared) > 1 else "carries",
        "detached": detached(first),
    }


def _sum_of(failure: Failure, frame: TracebackFrame, earlier: Earlier | None, root: Tensor) -> str:
    """How the two losses are added: ``(first + second).backward()``."""
    one = failure.called(earlier.tensor) if earlier is not None else ""
    two = failure.called(root)
    node = frame.expression
    is_plain = one.isidentifier() and two.isidentifier() and isinstance(node, ast.Call)
    return f": ({one} + {two}).backward()" if is_plain and one != two else ""


def _stepped(frame: TracebackFrame, after: tuple[int, int], leaves: Sequence[Tensor]) -> list[Step]:
    """Return the steps that change one of some leaves."""
    held = set(map(id, leaves))
    return [one for one in steps_between(frame, after) if not held.isdisjoint(one.trained)]


def _lost(failure: Failure, root: Tensor, shared: Sequence[Carrier], steps: Sequence[Step]) -> str:
    """Name the modules that an optimizer trains and a loss reaches through shared parts alone."""
    trained = {one for step in steps for one in step.trained}
    parts = [tensor for one in shared for tensor in one.tensors]
    around = {id(one) for one in leaves_of([root], *(one.grad_fn for one in parts))}
    lost = [one for one in leaves_of(parts) if id(one) in trained - around]
    return _holders(failure, lost) if lost else ""


def _rest(failure: Failure, leaves: Sequence[Tensor], steps: Sequence[Step]) -> str:
    """The modules of those leaves that no step has changed; empty if it has changed all."""
    trained = {one for step in steps for one in step.trained}
    rest = [one for one in leaves if id(one) not in trained]
    return _holders(failure, rest) if steps and rest else ""


def _holders(failure: Failure, leaves: Sequence[Tensor]) -> str:
    """The modules whose parameters are among some leaves, in a sentence."""
    named = dict.fromkeys(filter(None, map(failure.names.holder, leaves)))
    if not named:  # Leaves that are no parameters of a module, by the names of variables.
        named = dict.fromkeys(filter(None, map(failure.called, leaves)))
    return ", ".join(list(named)[:3]) or "what it was computed from"


def _described(failure: Failure, carrier: Carrier) -> str:
    holders = _holders(failure, leaves_of(carrier.tensors))
    return f"{carrier.name}, {_SINCE[carrier.since]}; computed with {holders}"


_CARRIED = (
    "The graph of {name} goes on into that of an earlier backward, which freed it: {all} {carry} "
    "it over"
)
_ONLY_HERE = (
    "If only its value is meant in {name} (a target, a weight, a state): give {short}.detach() "
    "where {name} is computed."
)
_ONLY_THERE = (
    "If only its value is meant in the earlier loss: give {short}.detach() where that one is "
    "computed; it then does not train {who}."
)
_BOTH = (
    "Give retain_graph=True to the earlier backward, or add the losses and call backward "
    "once{added}, if both are to train {who}."
)
_THROUGH_ALL = (
    "If gradients are to flow through several rounds: add up their losses and call backward once, "
    "behind the loop."
)

SITUATIONS: dict[str, Situation] = {
    "backward twice": first_of(
        SituationRow(
            "backward goes through the graph of {name} a second time, and the first time freed "
            "what it needs.",
            (
                "step",
                "Compute {name} again, by a new forward, behind {step}, which changed what it was "
                "computed from.",
            ),
            (
                "is_kept",
                "Give retain_graph=True to the first backward, if both are meant: their gradients "
                "add up.",
            ),
            "If one of the two is left over, take it away.",
            when="is_again",
        ),
        SituationRow(
            "{name} adds up what the rounds of the loop compute, {added}, and its graph holds "
            "the graphs of earlier rounds, which a backward has freed.",
            "If each round is to train by itself: call backward on {added}, and add up numbers, "
            "{name} += {number}.",
            "If all rounds are one loss: call backward once, behind the loop.",
            when="is_sum",
        ),
        SituationRow(
            "backward goes through the graph of {name} a second time, and the first time freed "
            "what it needs: {name} is computed once, above the loop.",
            (
                "is_kept",
                "Give retain_graph=True to this call: each round differentiates the same graph, "
                "and no optimizer steps in between.",
            ),
            ("is_kept", "If parameters change in between, compute {name} again in each round."),
            ("is_anew", "Compute {name} again in each round: move its forward into the loop."),
            when="is_round",
        ),
        SituationRow(
            "{name} was computed outside of {function}, and an earlier backward has gone through "
            "its graph.",
            "Compute {name} inside {function}, which may be called several times, as optimizers "
            "do with a closure.",
            when="is_of_outside",
        ),
        SituationRow(
            "torch.autograd.grad went through a part of the graph of {name} and freed it, and this "
            "backward goes through it again.",
            (
                "is_part",
                "Give create_graph=True to torch.autograd.grad: {name} is computed from its "
                "result, whose gradient is then a part of it; it keeps the graph, too.",
            ),
            ("is_apart", "Give retain_graph=True to torch.autograd.grad: it then frees nothing."),
            (
                "is_apart",
                "If {name} is computed from that gradient (a penalty on it, a step of meta "
                "learning): create_graph=True in its place.",
            ),
            when="is_gradient",
        ),
        SituationRow(
            _CARRIED + " from one round to the next.",
            "Detach {short} before it is used again: {detached}. Gradients then end at the round.",
            _THROUGH_ALL,
            when="is_state",
        ),
        SituationRow(
            _CARRIED + ", a list that keeps tensors of earlier rounds.",
            "If their values alone are needed (a memory, a log): append them without their graph, "
            "{short}.append(x.detach()).",
            "If a loss of several rounds is trained: empty {short} behind each backward, or call "
            "backward once, behind the loop.",
            when="is_list",
        ),
        SituationRow(
            _CARRIED + ", which an earlier round computed.",
            _ONLY_HERE,
            _ONLY_THERE,
            _THROUGH_ALL,
            when="is_kept",
        ),
        SituationRow(
            _CARRIED + ", and {name} reaches {lost}, which {step} trains, through it alone.",
            "Compute {short}, and what is computed from it, anew in each round: move it into the "
            "{scope}. Detached, it would train nothing of {lost}.",
            when="is_lost",
        ),
        SituationRow(
            _CARRIED + ", which was computed outside of the function.",
            "If {short} is to follow the parameters as they train: compute it inside the "
            "function, for each backward anew.",
            "If it is to stay as it is (targets, features of a frozen part): {detached}.",
            when="is_outside",
        ),
        SituationRow(
            _CARRIED + ". Since then {step} changed no parameter of it ({who}).",
            "If the earlier loss is for what {step} trains alone, as that of a discriminator: "
            "give {short}.detach() where it is computed, which {name} alone then trains "
            "through.",
            "Give retain_graph=True to the earlier backward, if its loss is to train {who}, too.",
            when="is_for_others",
        ),
        SituationRow(
            _CARRIED + ". Since then {step} changed parameters that it was computed from.",
            (
                "is_alone",
                "If {name} is for what another optimizer trains, as that of a discriminator: give "
                "{short}.detach() to what computes {name}.",
            ),
            "Compute {short}, and what is computed from it, anew behind {step}: it then goes "
            "through the parameters as they are.",
            (
                "rest",
                "It also goes through {rest}: give the earlier loss what that computed by "
                ".detach(), if it is not to train it; or compute that anew, too.",
            ),
            "If both losses belong to the same parameters: call both backwards before {step}, "
            "retain_graph=True for the earlier one.",
            when="is_changed",
        ),
        SituationRow(
            _CARRIED + ".",
            _BOTH,
            _ONLY_HERE,
            _ONLY_THERE,
            when="is_for_both",
        ),
        SituationRow(
            _CARRIED + ", which was computed once, above the loop. {step} trains nothing that it "
            "was computed from ({who}).",
            "Detach it above the loop, since it stays as it is: {detached}.",
            "If {who} is to be trained, too: compute {short} anew in each round, and give its "
            "parameters to an optimizer.",
            when="is_fixed",
        ),
        SituationRow(
            _CARRIED + ", which was computed once, above the loop.",
            "If {short} is to follow the parameters as they train (features, a regulariser): "
            "compute it, and what is computed from it, anew in each round.",
            "If it is to stay as it was (targets, old probabilities): {detached}, above the loop.",
            when="is_above",
        ),
        SituationRow(
            "backward goes through a part of the graph of {name} that a backward of an earlier "
            "round freed.",
            "If a state of an earlier round is used on: detach it where it is kept, "
            "state = state.detach().",
            "If it is computed above the loop and is to follow the parameters: compute it anew in "
            "each round.",
            _THROUGH_ALL,
            when="is_round_of_loop",
        ),
        SituationRow(
            "backward goes through a part of the graph of {name} that an earlier backward freed.",
            (
                "is_given",
                "If backward was called on {name} itself before, as by an earlier call of "
                "{function}: compute it anew for each, or give retain_graph=True.",
            ),
            (
                "given",
                "If {given}, an argument of {function}, comes from an earlier call of it: give "
                "{given}.detach().",
            ),
            "If both losses are to train what they share: add them and call backward once, or give "
            "retain_graph=True to the earlier backward.",
            "If only the value of the shared part is meant in one of them: .detach() it there.",
            "If an optimizer stepped in between: compute the shared part anew.",
            when="is_freed",
        ),
        SituationRow(
            "A saved tensor of a node was read after a backward had freed it.",
            "Give retain_graph=True to that backward, or read it before.",
        ),
        facts=_twice,
    ),
}

"""``tt.record_call``: run a model once and hold one call of one of its modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.capture.unobserved import unobserved
from torchtap.core.did_you_mean import did_you_mean
from torchtap.core.distributed import is_distributed
from torchtap.core.doors import require
from torchtap.core.errors import CaptureError, InputError, SiteError
from torchtap.core.module_paths import is_container, modules_of, type_names
from torchtap.core.text import plural
from torchtap.core.trial import Loss, Trial
from torchtap.diagnosis.calls.call import Call
from torchtap.diagnosis.calls.call_gradients import CallGradients, accumulated
from torchtap.diagnosis.calls.capture import Capture, Captured
from torchtap.diagnosis.calls.standalone.surroundings import without_autocast
from torchtap.hooks.encoder_fast_path import REASON
from torchtap.hooks.uncompiled import uncompiled

_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}


def record_call(
    model: nn.Module,
    path: str,
    *inputs: Any,
    call: int = 0,
    loss: Loss | None = None,
    **kwargs: Any,
) -> Call:
    """Run a model once, and hold one call of one module so that it runs again to the bit.

    The forward runs in the modes that are on (train or eval, grad mode, autocast), and a backward
    from ``loss`` where gradients are on. Held are the arguments with their identity, the module
    as it was when the call began, random states and settings, the output, the gradients that
    arrived at it, and those that its arguments and parameters got by this call alone.

    The model is left as it was found: parameters and their ``.grad``, buffers, modes, random
    states, the arguments, and what its modules keep in attributes, lists and dicts. Compiled
    modules run uncompiled. Of a call in a reentrant checkpoint, the recomputation is held, which
    has a graph.

    Args:
        model: any module, also wrapped (DDP, torch.compile).
        path: of the module, as in ``named_modules()``; ``.`` for the model itself.
        *inputs: what the model is called with.
        call: which call of that module within the forward, from 0.
        loss: from the model's output to a scalar; by default every floating tensor in the
            output, weighted by cosines and averaged.
        **kwargs: what the model is called with.

    Returns:
        the call: ``tt.replay(call)``, ``call.save(folder)``, ``call.export("case.py")``.

    Raises:
        SiteError: the model has no module of that path.
        CaptureError: the module was not called as often, or ran where no hook is called.
        InputError: ``path`` is no text, or something that the module was given cannot be held (a
            generator, an open file).

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(inplace=True))
        >>> call = tt.record_call(model, "1", torch.ones(2, 4))
        >>> torch.equal(tt.replay(call), call.output)
        True
    """
    require("tt.record_call", model)
    if not isinstance(path, str):
        raise InputError(
            f"path is {type(path).__name__}; expected the path of a module, as in named_modules()."
        )
    modules, aliases = modules_of(model)
    path = "" if path == "." else aliases.get(path, path)
    _refuse_place(model, modules, path, call)
    trial = Trial(modules[""], inputs, kwargs, loss)
    alone = unobserved(model)
    with uncompiled(), trial.restored(), attributes_kept(modules.values()), alone:
        captured, gradients, notes = _run(trial, modules, path, call)
        whole = accumulated(modules[""]) if path == "" and call == 0 else {}
    args, keywords = captured.arguments
    assert captured.module is not None
    result = gradients.result(captured)
    if result.arriving:  # A reentrant checkpoint in it leaves no edges to its parameters.
        result = replace(result, parameters={**whole, **result.parameters})
    notes += [*gradients.notes, *_notes(modules[path], captured)]
    return Call(path, call, captured.module, args, keywords, captured.around, result, tuple(notes))


def _refuse_place(model: nn.Module, modules: Mapping[str, nn.Module], path: str, call: int) -> None:
    name = type(modules[""]).__name__
    if path not in modules:
        raise SiteError(f"{name} has no module {path!r}{did_you_mean(path, list(modules))}")
    if call < 0:
        raise InputError(f"call is {call}; expected a number from 0.")
    module = modules[path]
    where = path or "."
    if isinstance(module, torch.jit.ScriptModule):
        raise CaptureError(
            f"{where} is a ScriptModule, which takes no hooks and whose code is no class that can "
            f"be imported. Record the module that it was made of."
        )
    if is_container(module):
        raise CaptureError(
            f"{where} is a {type(module).__name__}, which is never called itself. Record a module "
            f"in it."
        )
    refuse_sharded(model)


def refuse_sharded(model: nn.Module) -> None:
    """Raise if the weights of a model are spread over ranks.

    Raises:
        CaptureError: they are.
    """
    sharded = any("FullyShardedDataParallel" in type_names(module) for module in model.modules())
    if sharded or any(is_distributed(parameter) for parameter in model.parameters()):
        raise CaptureError(
            f"{type(model).__name__} is sharded over ranks, and a rank alone has a part of its "
            f"weights. Take a copy that is not sharded."
        )


def _run(
    trial: Trial, modules: Mapping[str, nn.Module], path: str, call: int
) -> tuple[Captured, CallGradients, list[str]]:
    gradients = CallGradients(modules[""], path, call)
    module, notes = modules[path], list[str]()
    capture = Capture(
        {path: module},
        lambda _, number: number == call,
        with_modules=True,
        entered=lambda _, given: gradients.enter(module, given),
        left=gradients.leave,
    )
    with gradients.watch, capture:
        try:
            _, loss = trial.forward()
            if loss is not None:
                notes += _backward(loss, is_default=trial.loss is None)
                gradients.is_whole = not notes
        finally:
            gradients.release()
    captured = capture.calls.get((path, call))
    if captured is None or not captured.has_returned:
        raise CaptureError(_why_absent(capture, modules, path, call))
    seen = capture.num_calls[path]
    if seen > 1:
        notes.append(
            f"the module was called {seen} times; gradients of its parameters are of call {call} "
            f"alone"
        )
    return captured, gradients, notes


def _backward(loss: Tensor, *, is_default: bool) -> list[str]:
    try:
        with without_autocast():  # As PyTorch advises: a replay cannot tell where it was run.
            loss.backward()  # type: ignore[no-untyped-call]
    except Exception as error:
        if not is_default:
            raise
        first = str(error).partition("\n")[0]
        return [f"the backward raised, so there are no gradients: {first}"]
    return []


def _why_absent(capture: Capture, modules: Mapping[str, nn.Module], path: str, call: int) -> str:
    seen, where = capture.num_calls.get(path, 0), path or "."
    if (path, call) in capture.calls:
        return (
            f"Call {call} of {where} did not return: it raised, and the model went on without it. "
            f"Record a module around it."
        )
    if seen:
        return (
            f"{where} was called {plural(seen, 'time')} in this forward; there is no call {call}. "
            f"Calls are numbered from 0."
        )
    above = [path[:cut] for cut in range(len(path)) if path[cut] == "."] + [""]
    fused = [one for one in above if isinstance(modules.get(one), nn.TransformerEncoderLayer)]
    if fused:
        return f"{where} was not called: {fused[0] or '.'} {REASON.partition(' ')[2]}."
    return (
        f"{where} was not called in this forward, or not as a module. Record a module around it, "
        f"or give inputs with which it runs."
    )


def _notes(module: nn.Module, captured: Captured) -> Iterator[str]:
    others, edits = 0, 0
    for one in module.modules():
        for table in (one._forward_hooks, one._forward_pre_hooks):
            ours = sum("torchtap" in type(hook).__module__ for hook in table.values())
            others, edits = others + len(table) - ours, edits + ours
    if edits:
        yield f"{plural(edits, 'hook')} of torchtap in it (a watch, an edit) are not held"
    if others:
        yield f"{plural(others, 'hook')} of others in it are held with the module"
    if not captured.around["grad"]:
        yield "gradients were off, so it has none"


@contextmanager
def attributes_kept(modules: Any) -> Iterator[None]:
    """Put back what modules keep in attributes of their own, also in lists, dicts and sets."""
    before = [(module, _own(module)) for module in modules]
    contents = [
        (value, value.copy())
        for _, own in before
        for value in own.values()
        if type(value) in (list, dict, set)
    ]
    try:
        yield
    finally:
        for value, held in contents:
            _fill(value, held)
        for module, own in before:
            now = vars(module)
            for name in _own(module).keys() - own.keys():
                del now[name]
            now.update(own)


def _own(module: nn.Module) -> dict[str, Any]:
    return {name: one for name, one in vars(module).items() if name not in _OF_EVERY_MODULE}


def _fill(value: Any, held: Any) -> None:
    value.clear()
    if isinstance(value, list):
        value.extend(held)
    else:
        value.update(held)

"""The rule on values that are not finite: the first module that made one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchtap.core.site import Site
from torchtap.runs.rules.finding import ALARM, Finding
from torchtap.runs.rules.rule_view import View, shown

_FORWARD = ("input", "param", "buffer", "output")
_BACKWARD = ("grad_output", "grad_input", "param_grad", "step_grad")
_ADVICE = (
    "tt.guard(model) or tt.locate(model, step, *batch) names the operation and its source line."
)


def nonfinite(view: View) -> Iterator[Finding]:
    """NaN or Inf, and the module where the first of it came from.

    What is infinite in one direction in every step (a mask) is left alone, and so are gradients
    of steps that no optimizer made, as a ``GradScaler`` searches its scale by them.

    Args:
        view: of the run.
    """
    bad = _first_bad(view)
    if not bad:
        yield from _of_loss(view)
        return
    place = min(bad.values())
    now = {site for site, at in bad.items() if at == place}
    forward = [site for site in now if site.port in _FORWARD]
    if forward:
        path, text = _in_forward(view, forward, place)
    else:
        path, text = _in_backward(view, now, place)
    last = max(int(np.flatnonzero(view.series(site, "nonfinite") > 0)[-1]) for site in bad)
    steps = (int(view.steps[place]), int(view.steps[last]))
    first = min(str(site) for site in _nearest(forward or list(now), path))
    evidence = {"sites": len(now), "first": first, "steps": int(last - place + 1)}
    yield Finding("nonfinite", ALARM, shown(path), steps, text, evidence, _ADVICE)


def _nearest(sites: list[Site], path: str) -> list[Site]:
    """Return the sites of the module that is named, those of the earliest port, or all."""
    own = [site for site in sites if site.path == path] or sites
    ports = [port for port in _FORWARD + _BACKWARD if any(site.port == port for site in own)]
    return [site for site in own if site.port == ports[0]] if ports else own


def _of_loss(view: View) -> Iterator[Finding]:
    values = view.loss.values
    places = np.flatnonzero(~np.isfinite(values))
    if len(places):
        step = view.loss.steps[int(places[0])]
        text = f"the loss is {values[places[0]]}, and all that was watched is finite"
        yield Finding("nonfinite", ALARM, ".", (step,), text, {"loss": values[places[0]]}, _ADVICE)


def _first_bad(view: View) -> dict[Site, int]:
    """Return the sites that are not finite, each with the place of its first such step."""
    found = {}
    skipped = _skipped(view)
    for port in (*_FORWARD, *_BACKWARD, "update"):
        for site in view.sites(port):
            bad = view.series(site, "nonfinite") > 0
            if port in _BACKWARD:
                bad = bad & ~skipped
            if bad.any() and not _is_meant(view, site):
                found[site] = int(np.argmax(bad))
    return found


def _skipped(view: View) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return the steps that no optimizer made though others were: their gradients are not used."""
    updates = view.norm("update")
    made = ~np.isnan(updates)
    last = np.flatnonzero(made)[-1] if made.any() else -1
    return ~made & (np.arange(len(made)) < last) if made.any() else np.zeros(len(made), dtype=bool)


def _is_meant(view: View, site: Site) -> bool:
    """Return whether a site is infinite in one direction in every step, as a mask is."""
    counts = {name: view.series(site, name) for name in ("nan", "posinf", "neginf")}
    there = ~np.isnan(counts["nan"])
    signs = [name for name in ("posinf", "neginf") if (counts[name][there] > 0).all()]
    others = [name for name in counts if (counts[name][there] > 0).any()]
    is_flow = site.port in ("input", "output")
    return is_flow and len(signs) == 1 and others == signs and there.sum() > 1


def _is_seen(view: View, place: int, path: str, port: str) -> bool:
    """Return whether a port of a module has a value in a step, so that it is known to be finite."""
    own = (site for site in view.sites(port) if site.path == path)
    return any(not np.isnan(view.series(site, "nonfinite")[place]) for site in own)


def _in_forward(view: View, bad: list[Site], place: int) -> tuple[str, str]:
    """Return the path of the module that made it, and what is said of it."""
    paths = {(site.path, site.port) for site in bad}
    if ("", "input") in paths:
        return "", "the model's own input is not finite"
    state = [site for site in bad if site.port in ("param", "buffer")]
    if state:
        first = min(state, key=lambda site: view.modules.order.get(site.path, 0))
        return first.path, f"{first.leaf} is not finite when the step begins: the update before"
    made = [
        site.path for site in bad if site.port == "output" and (site.path, "input") not in paths
    ]
    if made:
        deepest = max(_depth(path) for path in made)
        inner = [path for path in made if _is_innermost(path, made)] or made
        path = min(inner, key=lambda one: (view.modules.order.get(one, 0), deepest - _depth(one)))
        if _is_seen(view, place, path, "input"):
            return path, "its output is the first that is not finite, of a finite input"
        text = "its output is the first of those watched that is not finite"
        return path, f"{text}; its input is not watched"
    first = min(bad, key=lambda site: view.modules.order.get(site.path, 0))
    parent = first.path.rpartition(".")[0]
    if not _is_seen(view, place, parent, "input"):
        return first.path, "its input is not finite; where that comes from is not watched"
    return parent, f"what enters {first.path} is not finite: made in the forward of its parent"


def _in_backward(view: View, bad: set[Site], place: int) -> tuple[str, str]:
    gradients = [site for site in bad if site.port in _BACKWARD]
    if not gradients:
        first = min(bad, key=lambda site: view.modules.order.get(site.path, 0))
        text = "its update is the first that is not finite"
        own = ("param_grad", "step_grad")
        if any(_is_seen(view, place, first.path, port) for port in own):
            return first.path, f"{text}, of a finite gradient"
        return first.path, f"{text}; its gradient is not watched"
    ports = {(site.path, site.port) for site in gradients}
    if ("", "grad_output") in ports:
        return "", "the gradient of the model's output is not finite: the loss made it"
    made = [
        site.path
        for site in gradients
        if site.port != "grad_output" and (site.path, "grad_output") not in ports
    ]
    inner = [path for path in made if _is_innermost(path, made)]
    if inner:
        path = max(inner, key=lambda one: view.modules.order.get(one, 0))
        if _is_seen(view, place, path, "grad_output"):
            return path, "the first gradient that is not finite leaves this module's backward"
        text = "the first of the gradients watched that is not finite leaves this module's backward"
        return path, f"{text}; the gradient of its output is not watched"
    path = max((site.path for site in gradients), key=lambda one: view.modules.order.get(one, 0))
    return path, "the first gradient that is not finite arrives here"


def _is_innermost(path: str, paths: list[str]) -> bool:
    return not any(other != path and (not path or other.startswith(f"{path}.")) for other in paths)


def _depth(path: str) -> int:
    return path.count(".") + 1 if path else 0

"""The place of an attribution: a tensor among the inputs, or a site inside of the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torchtap.core.errors import InputError
from torchtap.core.plan import Plan, make_plan
from torchtap.core.site import Site
from torchtap.core.tensors import kind_of
from torchtap.core.text import plural
from torchtap.explain.subject import Subject

_PORTS = ("input", "output")


@dataclass(frozen=True, slots=True)
class ExplainedInput:
    """The place of a map: an input of the model, or a site inside of it.

    Attributes:
        name: of the tensor in ``Subject.inputs``.
        site: the site inside of the model in its place, if any.
        text: how it reads.
        layer: likewise in a map; ``""`` for the only tensor of the inputs.
        notes: what the reader should know.
    """

    name: str = ""
    site: Site | None = None
    text: str = "The input"
    layer: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExplainedSite(ExplainedInput):
    """A site inside of the model, before its leaf is known."""

    plan: Plan = field(kw_only=True)

    def found(self, site: Site) -> ExplainedInput:
        """Return the place, once the site is known."""
        text = str(site)
        layer = site.path if site == Site(site.path) and site.path else text
        return ExplainedInput(site=site, text=text, layer=layer)


def explained_input_of(subject: Subject, at: Any, *, integers: bool) -> ExplainedInput:
    """Return the place that a request leads to.

    Args:
        subject: the model and its inputs.
        at: ``None`` for the first input that can be explained; a path, pattern, site or module
            that selects one site. ``.:input[NAME]`` is an input by its name.
        integers: whether a tensor that carries no gradient will do.

    Raises:
        InputError: it selects several sites, or what is no value of the forward.
        SiteError: it selects nothing.
    """
    if at is None:
        return _first_input(subject, integers=integers)
    plan = make_plan(subject.model, str(at) if isinstance(at, Site) else at)
    sites = [Site(tap.path, port) for tap in plan.taps for port in tap.ports]
    if len(sites) + len(plan.unmatched) != 1:
        shown = ", ".join(map(str, sites[:5])) + (", ..." if len(sites) > 5 else "")
        raise InputError(
            f"at={_text(at)} selects {plural(len(sites), 'site')} ({shown}); expected one. Give "
            f"the path of one module."
        )
    if sites and sites[0].port not in _PORTS:
        raise InputError(
            f"at={_text(at)} selects {sites[0]}, which is no value of the forward; expected the "
            f"output or the input of a module, as in at='layer1' or at='layer1:input'."
        )
    if sites and sites[0] == Site("", "input"):
        accepts = plan.taps[0].filters["input"].accepts
        names = [name for name in subject.inputs if accepts(name)]
        if len(names) != 1:
            raise InputError(
                f"at={_text(at)} selects {len(names)} of the inputs; expected one of "
                f"{_names(subject)}."
            )
        return _input(subject, names[0])
    return ExplainedSite(plan=plan)


def _first_input(subject: Subject, *, integers: bool) -> ExplainedInput:
    floating = [name for name, one in subject.inputs.items() if one.is_floating_point()]
    several = floating or list(subject.inputs)
    if integers:
        several = list(subject.inputs)
    first: dict[int, str] = {}
    for name in several:
        first.setdefault(id(subject.inputs[name]), name)
    several = list(first.values())
    explained = _input(subject, several[0])
    if len(several) == 1:
        return explained
    note = (
        f"of {len(several)} inputs the map is of {explained.text}, the first, and the others are "
        f"held as they are; at= takes {_names(subject)}"
    )
    return ExplainedInput(
        explained.name, None, explained.text, explained.layer, (*explained.notes, note)
    )


def _input(subject: Subject, name: str) -> ExplainedInput:
    if len(subject.inputs) == 1:
        return ExplainedInput(name)
    text = str(Site("", "input", name))
    same = [other for other, one in subject.inputs.items() if one is subject.inputs[name]]
    notes = (
        f"the inputs {', '.join(same)} are one tensor: the map is of all its places at once; pass "
        f"clones to explain one place",
    )
    return ExplainedInput(name, None, text, text, notes if len(same) > 1 else ())


def _names(subject: Subject) -> str:
    shown = [
        f"{str(Site('', 'input', name))!r} ({kind_of(one)})"
        for name, one in list(subject.inputs.items())[:6]
    ]
    return ", ".join(shown) + (", ..." if len(subject.inputs) > 6 else "")


def _text(at: Any) -> str:
    return repr(at) if isinstance(at, str) else kind_of(at)

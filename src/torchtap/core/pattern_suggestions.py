"""Suggest what may have been meant by a pattern that fits nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from torchtap.core.did_you_mean import did_you_mean, nearest, one_of
from torchtap.core.module_paths import Where, modules_of, state_names, type_names
from torchtap.core.ports import FLOW_PORTS, MARK_PORTS, PORTS, STATE_PORTS
from torchtap.core.site import WILDCARDS, Pattern, Site, leaf_matches
from torchtap.core.text import with_article

_MOST_SHOWN = 6


def near(pattern: Pattern, known: Sequence[str], types: Mapping[str, tuple[str, ...]]) -> str:
    """Suggest what a pattern that fits no module may have meant, as the end of a sentence.

    Every suggestion is a whole pattern, with the ports and the ``!`` of the one that was given.
    """
    classes = {one for names in types.values() for one in names}
    same = [one for one in classes if one.lower() == pattern.path.lower()]
    if same:
        kind = min(same)
        meant = replace(pattern, path="*", type=kind)
        return f"; {kind} is a class: write {str(meant)!r}."
    path, _, port = pattern.path.rpartition(".")
    if port in PORTS and path in known:
        return f"; {port} is a port: write {f'{path}:{port}'!r}."
    names = nearest(pattern.path, known)
    if not names and known:
        return f"; it has {_some_of(known)}."
    return one_of(replace(pattern, path=name) for name in names)


def _some_of(known: Sequence[str]) -> str:
    """Return the outermost modules by name, and how many more there are."""
    shown = sorted(known, key=lambda path: path.count("."))[:_MOST_SHOWN]
    more = len(known) - len(shown)
    return ", ".join(map(repr, shown)) + (f" and {more:,} more" if more else "")


def patterns_in_one(pattern: Pattern, known: Sequence[str]) -> list[str]:
    """Return the patterns that were written as one, with commas between them; else nothing."""
    if "," not in pattern.path or "[" in pattern.path or pattern.path.startswith("re:"):
        return []
    texts = [part.strip() for part in pattern.path.split(",") if part.strip()]
    head = "!" if pattern.negate else ""
    tail = str(replace(pattern, path="", negate=False))
    paths = [text.partition(":")[0] for text in texts]
    is_meant = all(path in known or WILDCARDS & set(path) for path in paths)
    # What has ports keeps them; the last ones, after a colon, are those of all others.
    return [head + (t if ":" in t else t + tail) for t in texts] if is_meant else []


def could_be_mark(pattern: Pattern) -> bool:
    """Return whether a mark has what is asked for; ``*`` asks for whatever there is."""
    ports = set(pattern.effective_ports)
    wanted = ports - set(FLOW_PORTS) if ports >= set(FLOW_PORTS) else ports
    return wanted <= set(MARK_PORTS) and leaf_matches(pattern.leaf, "")


def no_module(
    head: str,
    model: nn.Module,
    pattern: Pattern,
    known: Sequence[str],
    types: Mapping[str, tuple[str, ...]],
) -> str:
    """Say what is wrong with a pattern that fits no module, and what to write, after ``head``."""
    classes = sorted({one for names in types.values() for one in names})
    if pattern.type and pattern.type not in classes:
        meant = (replace(pattern, type=name) for name in nearest(pattern.type, classes))
        name = type(model).__name__
        return f"{name} has no module of class {pattern.type!r}{one_of(meant)}"
    path = pattern.path
    if path.startswith("re:"):
        return f"{head}{near(pattern, known, types)}"
    if "[" in path and path.split("[")[0] in known:
        path, _, leaf = path.partition("[")
        text = f"{path}:output[{leaf.rstrip(']')}]"
        return f"{head}. A leaf stands after a port: write {text!r}."
    if ":" in path:
        path, *others = path.split(":")
        ports = [*(port for port in others if port in PORTS), *pattern.effective_ports]
        return f"{head}. Ports stand behind one colon: write '{path}:{','.join(ports)}'."
    if "@" in path:
        path = path.partition("@")[0]
        kind = types.get(path, classes)[0]
        return f"{head}. A class name stands after the @: write '{path or '*'}@{kind}'."
    if pattern.type:
        return f"{head} of class {pattern.type!r}{_of_class(pattern, known, types)}"
    owner, _, leaf = path.rpartition(".")
    names = state_names(modules_of(model)[0].get(owner, nn.Identity()))
    ports = [port for port in STATE_PORTS if leaf in names[port]]
    if ports:
        texts = " or ".join(repr(str(Site(owner, port, leaf))) for port in ports[:2])
        return f"{head}; it is a {ports[0]}: write {texts}."
    return f"{head}{near(pattern, known, types)}"


def _of_class(pattern: Pattern, known: Sequence[str], types: Mapping[str, tuple[str, ...]]) -> str:
    """Suggest patterns for one whose class exists, but not at its path."""
    if pattern.path in types:
        own = with_article(types[pattern.path][0])
        return f"; it is {own}: write {str(replace(pattern, type=''))!r}."
    fitting = [path for path in known if pattern.type in types.get(path, ())]
    return one_of(replace(pattern, path=path) for path in nearest(pattern.path, fitting))


def nothing_fits(
    model: nn.Module, where: Where, patterns: Sequence[Pattern], others: Sequence[Any]
) -> str:
    """Why patterns, classes and functions (``others``) together select no site of the model."""
    name = type(model).__name__
    state = [p for p in patterns if set(p.effective_ports) <= set(STATE_PORTS)]
    if state and not others:
        return f"{name} has no parameter or buffer at {_no_state(model, state[0])}"
    named = [item.__name__ for item in others if isinstance(item, type)]
    if named and len(named) == len(others) and not patterns:
        classes = sorted({one for m in model.modules() for one in type_names(m)})
        return f"{name} has no module of class {named[0]!r}{did_you_mean(named[0], classes)}"
    return (
        f"Nothing of {name} fits {where!r}: everything was taken away, or the function chose none."
    )


def _no_state(model: nn.Module, pattern: Pattern) -> str:
    """Suggest what to select in place of a pattern that finds no parameter and no buffer."""
    modules = modules_of(model)[0]
    names = {path: state_names(module) for path, module in modules.items()}
    kinds = {path: list(type_names(module)) for path, module in modules.items()}
    fitting = [path for path in modules if pattern.matches_module(path, kinds[path])]
    ports = pattern.effective_ports
    leaves = dict.fromkeys(leaf for path in fitting for port in ports for leaf in names[path][port])
    if leaves:
        close = nearest(pattern.leaf, list(leaves)) or leaves
        return f"{str(pattern)!r}{one_of(replace(pattern, leaf=leaf) for leaf in close)}"
    # There is none of the kind at all: where there is, and what else there is here.
    elsewhere = [str(Site(path, port)) for port in ports for path in modules if names[path][port]]
    here = [
        str(Site(path, port))
        for path in fitting
        for port in ("param", "buffer")
        if names[path][port]
    ]
    candidates = list(dict.fromkeys((*here[:1], *elsewhere[:3])))
    others = (
        f". There is: {', '.join(map(repr, candidates))}." if candidates else ", nor anywhere else."
    )
    return f"{str(pattern)!r}{others}"

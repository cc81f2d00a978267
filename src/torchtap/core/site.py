"""Sites and the patterns that select them. Knows nothing of torch.

A *site* is a place that exists without running: a module path, a port and a leaf, written
``path:port[leaf]``. A *pattern* selects sites: ``[!]PATH[@TYPE][:PORTS[[LEAF]]]``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torchtap.core.did_you_mean import did_you_mean, nearest
from torchtap.core.errors import SiteError
from torchtap.core.ports import BY_NAME, FLOW_PORTS, GRADIENT_PORTS, PORTS, Port

_SITE = re.compile(rf"(?P<path>.*):(?P<port>{'|'.join(PORTS)})(?:\[(?P<leaf>.*)\])?", re.DOTALL)
_SUFFIX = re.compile(
    r"(?P<head>.*?):(?P<ports>(?:\*|[A-Za-z_]+)(?:,\s*(?:\*|[A-Za-z_]+))*)(?:\[(?P<leaf>.+)\])?",
    re.DOTALL,
)
_TYPE = re.compile(r"(?P<path>.*)@(?P<type>[^\W\d]\w*)", re.DOTALL)


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """One place in a model: module path, port, and leaf inside a nested value.

    Args:
        path: dotted path as in ``named_modules()``; ``""`` is the root (written ``.``).
        port: one of :data:`~torchtap.core.ports.PORTS`.
        leaf: place inside a nested value (``"1"``, ``"hidden.0"``) or a parameter's own name;
            empty for a bare tensor.

    Example:
        >>> str(Site("blocks.3.attn", "output", "1"))
        'blocks.3.attn:output[1]'
        >>> Site.parse("fc:param_grad[bias]").leaf
        'bias'
    """

    path: str
    port: str = "output"
    leaf: str = ""

    def __str__(self) -> str:
        text = f"{self.path or '.'}:{self.port}"
        return f"{text}[{self.leaf}]" if self.leaf else text

    @property
    def kind(self) -> Port:
        """Return the row of the table of ports that says what its port is."""
        return BY_NAME[self.port]

    @property
    def is_gradient(self) -> bool:
        """Return whether backward computes the value (an optimizer step reads ``step_grad``)."""
        return self.port in GRADIENT_PORTS

    @property
    def compared_with(self) -> Site | None:
        """The site whose norm stands beside it in tables: of an update that of its parameter."""
        port = self.kind.compared_with
        return Site(self.path, port, self.leaf) if port else None

    @staticmethod
    def parse(text: str) -> Site:
        """Read the text form back; a text without a port means the output.

        Raises:
            SiteError: the port does not exist.
        """
        match = _SITE.fullmatch(text)
        if match is None:
            odd = _SUFFIX.fullmatch(text)
            if odd is not None:
                raise _no_such_port(odd["ports"], text)
            return Site("" if text == "." else text)
        path = match["path"]
        return Site("" if path == "." else path, match["port"], match["leaf"] or "")


@dataclass(frozen=True, slots=True)
class Pattern:
    """One parsed pattern. ``str()`` gives a text that parses back to an equal pattern.

    Args:
        path: a glob over module paths, ``re:...`` for a regular expression, ``.`` for the root.
        ports: which ports; ``None`` when the text named none (the output; for ``!``, all).
        type: class name in the module's MRO, or ``""``.
        leaf: glob over leaves, or ``""`` for all. ``hidden`` also selects ``hidden.0``.
        negate: the pattern takes away.

    Example:
        >>> from torchtap import Pattern
        >>> pattern = Pattern.parse("layer?*@Conv2d:grad_output")
        >>> pattern.type, pattern.ports
        ('Conv2d', ('grad_output',))
    """

    path: str
    ports: tuple[str, ...] | None = None
    type: str = ""
    leaf: str = ""
    negate: bool = False

    def __str__(self) -> str:
        text = ("!" if self.negate else "") + self.path
        if self.type:
            text += f"@{self.type}"
        if self.ports is not None:
            first, more = self.ports[: len(FLOW_PORTS)], self.ports[len(FLOW_PORTS) :]
            text += ":" + ",".join(("*", *more) if first == FLOW_PORTS else self.ports)
        return f"{text}[{self.leaf}]" if self.leaf else text

    @staticmethod
    def parse(text: str) -> Pattern:
        """Read ``[!]PATH[@TYPE][:PORTS[[LEAF]]]``.

        Raises:
            SiteError: the text has no path, names a port that does not exist, or breaks off.

        Example:
            >>> Pattern.parse("layer*@Conv2d:output,grad_output").ports
            ('output', 'grad_output')
        """
        negate = text.startswith("!")
        body = text[1:] if negate else text
        regex = body.startswith("re:")
        head, ports, leaf = _split_ports(body[3:] if regex else body, lenient=regex)
        match = _TYPE.fullmatch(head)
        path, kind = (match["path"], match["type"]) if match else (head, "")
        if not path and not kind:
            raise _no_path(text, body)
        path = path or "*"
        if regex:
            path = "re:" + path
            _compiled(path)
        return Pattern(path, ports, kind, leaf, negate)

    @property
    def effective_ports(self) -> tuple[str, ...]:
        """Return the ports that the pattern is about."""
        if self.ports is not None:
            return self.ports
        return PORTS if self.negate else ("output",)

    def matches_module(self, path: str, type_names: Iterable[str] | None = None) -> bool:
        """Return whether path (and class name, where the pattern asks for one) fit.

        ``type_names=None`` means that the types are not known (a mark).
        """
        if self.type and path == f"{self.path}@{self.type}":
            return True  # That is its name.
        if self.type and (type_names is None or self.type not in type_names):
            return False
        if self.path == ".":
            return path == ""
        if self.path.startswith("re:"):
            return _compiled(self.path).fullmatch(path) is not None
        return path == self.path or fnmatchcase(path, self.path)

    def matches(self, site: Site, type_names: Iterable[str] | None = None) -> bool:
        """Return whether the whole site fits."""
        return (
            site.port in self.effective_ports
            and self.matches_module(site.path, type_names)
            and leaf_matches(self.leaf, site.leaf)
        )


def leaf_matches(pattern: str, leaf: str) -> bool:
    """Return whether a leaf fits a pattern: empty fits all, ``hidden`` fits ``hidden.0`` too."""
    if not pattern or leaf == pattern or fnmatchcase(leaf, pattern):
        return True
    if pattern == "0" and leaf == "":
        return True  # The only argument of a call is also its argument number 0.
    return leaf.startswith(pattern + ".")


def _split_ports(body: str, *, lenient: bool) -> tuple[str, tuple[str, ...] | None, str]:
    match = _SUFFIX.fullmatch(body)
    if match is None:
        if ":" in body and not lenient:
            raise _broken_off(body)
        return body, None, ""
    names = [name.strip() for name in match["ports"].split(",")]
    if "*" in names:
        names = [*FLOW_PORTS, *(name for name in names if name != "*" and name not in FLOW_PORTS)]
    for name in names:
        if name not in PORTS:
            if lenient:  # A colon inside a regular expression.
                return body, None, ""
            raise _no_such_port(name, body)
    return match["head"], tuple(names), match["leaf"] or ""


def _no_path(text: str, body: str) -> SiteError:
    sign = "!" if text.startswith("!") else ""
    ports = body if body.startswith(":") else ""
    return SiteError(
        f"The pattern {text!r} has no path. Write '{sign}*{ports}' for every module or "
        f"'{sign}.{ports}' for the root."
    )


def _broken_off(body: str) -> SiteError:
    """Return the error for a pattern with a colon that no ports and leaf in brackets follow."""
    path, _, rest = body.partition(":")
    ports, bracket, tail = rest.partition("[")
    known = [near for name in ports.split(",") for near in nearest(name.strip("] "), PORTS)[:1]]
    leaf = tail.partition("]")[0]
    if not rest:
        problem = "ends in a colon and names no port"
    elif not bracket:
        problem = f"has {rest!r} where ports are expected"
    elif not leaf:
        problem = "has brackets without a leaf"
    else:
        problem = "does not end in a leaf in brackets" if ports else "has a leaf without a port"
    fixed = f"{path or '*'}:{','.join(known) or 'output'}" + (f"[{leaf}]" if leaf else "")
    return SiteError(
        f"The pattern {body!r} {problem}; expected [!]PATH[@TYPE][:PORTS[[LEAF]]]. Write {fixed!r}."
    )


def _no_such_port(name: str, text: str) -> SiteError:
    return SiteError(
        f"There is no port {name!r} (in {text!r}){did_you_mean(name, PORTS)}"
        f" Ports are {', '.join(PORTS)}; '*' means the first four."
    )


@functools.lru_cache(maxsize=256)
def _compiled(path: str) -> re.Pattern[str]:
    try:
        return re.compile(path[3:])
    except re.error as error:
        raise SiteError(f"{path!r} is not a regular expression: {error}.") from error


WILDCARDS = frozenset("*?[:")
"""A path with any of these is a pattern and not a name."""

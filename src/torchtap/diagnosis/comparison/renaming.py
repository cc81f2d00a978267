"""``map``: which paths of the reference are called otherwise in the candidate."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchtap.core.did_you_mean import did_you_mean, nearest
from torchtap.core.errors import CompareError

Map = Mapping[str, str] | Iterable[tuple[str, str]] | None
_MOST_NEAR = 3


@dataclass(frozen=True, slots=True)
class Renaming:
    """Paths of the reference -> paths of the candidate.

    A name is of one module and of those below it; the longest that fits counts. Expressions match
    whole parts of a path, and all of them are applied, one after the other.

    Example:
        >>> Renaming({"wte": "embed"}, ((r"h\\.(\\d+)", r"layers.\\1"),)).of("h.3.attn")
        'layers.3.attn'
    """

    names: Mapping[str, str]
    expressions: Sequence[tuple[str, str]] = ()

    def of(self, path: str) -> str:
        """Return the path in the candidate; the same where nothing fits."""
        fitting = [name for name in self.names if _is_at_or_below(path, name)]
        if fitting:
            name = max(fitting, key=len)
            return _joined(self.names[name], path[len(name) :].lstrip("."))
        for expression, instead in self.expressions:
            path = re.sub(_whole_parts(expression), instead, path)
        return path

    def fitted(self, known: Sequence[str], others: Sequence[str]) -> Renaming:
        """Return it for two models: a name that is no path of the reference is a part of paths.

        Args:
            known: paths of the reference.
            others: paths of the candidate.

        Raises:
            CompareError: a name or expression fits nothing in the reference, or all that it gives
                is missing in the candidate.
        """
        whole = {n: o for n, o in self.names.items() if any(_is_at_or_below(p, n) for p in known)}
        parts = [(re.escape(n), o) for n, o in self.names.items() if n not in whole]
        made = Renaming(whole, (*self.expressions, *parts))
        for expression, _ in made.expressions:
            if not any(re.search(_whole_parts(expression), path) for path in known):
                raise CompareError(_unknown(expression, known))
        moved = [path for path in known if made.of(path) != path]
        if moved and not any(made.of(path) in others for path in moved):
            given = made.of(moved[-1])
            raise CompareError(
                f"map makes {given!r} of {moved[-1]!r}, and the candidate has nothing of what it "
                f"makes{did_you_mean(given, others)}"
            )
        for name, target in whole.items():
            if not any(_is_at_or_below(path, target) for path in others):
                raise CompareError(
                    f"map makes {target!r} of {name!r}, and the candidate has no module "
                    f"{target!r}{did_you_mean(target, others)}"
                )
        return made


def renaming(given: Map) -> Renaming:
    """Read the argument ``map``: a dict or pairs, of paths or of regular expressions.

    Raises:
        CompareError: it is neither, or an expression cannot be read.
    """
    names: dict[str, str] = {}
    expressions: list[tuple[str, str]] = []
    for one, other in _pairs(given):
        if re.fullmatch(r"[\w.\-]*", one) and "\\" not in other:
            names["" if one == "." else one] = "" if other == "." else other
            continue
        try:
            re.compile(one).sub(other, "")
            expressions.append((one, other))
        except (re.error, IndexError) as error:
            raise CompareError(
                f"map has {one!r} -> {other!r}, which is no regular expression with its "
                f"replacement: {error}. Write such as r'h\\.(\\d+)' -> r'layers.\\1'."
            ) from error
    return Renaming(names, tuple(expressions))


def _pairs(given: Map) -> list[tuple[str, str]]:
    if given is None:
        return []
    pairs = list(given.items()) if isinstance(given, Mapping) else list(given)
    for pair in pairs:
        is_pair = isinstance(pair, tuple | list) and len(pair) == 2
        if not is_pair or not all(isinstance(text, str) for text in pair):
            raise CompareError(
                f"map has {pair!r}; expected a dict from paths to paths, or pairs of texts."
            )
    return [(one, other) for one, other in pairs]


def near_misses(only_a: Sequence[str], only_b: Sequence[str]) -> list[str]:
    """Sentences on paths of one side alone that look like one of the other side."""
    said = []
    for path in only_a:
        near = nearest(path, only_b, limit=1)
        if near and path.rpartition(".")[0] == near[0].rpartition(".")[0]:
            said.append(
                f"{path!r} is only in the reference and {near[0]!r} only in the candidate: "
                f"map={{{path!r}: {near[0]!r}}} compares them."
            )
    return said[:_MOST_NEAR]


def _whole_parts(expression: str) -> str:
    return rf"(?:(?<=\.)|(?<![\s\S]))(?:{expression})(?![^.])"


def _is_at_or_below(path: str, name: str) -> bool:
    return path == name or (name != "" and path.startswith(f"{name}."))


def _joined(path: str, rest: str) -> str:
    return f"{path}.{rest}" if path and rest else path or rest


def _unknown(text: str, known: Sequence[str]) -> str:
    plain = text.replace("\\", "")
    return f"map has {plain!r}, which fits no path of the reference{did_you_mean(plain, known)}"

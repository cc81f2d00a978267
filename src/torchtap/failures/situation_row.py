"""A situation as a row of a table: the sentence and the ways out, with names filled in.

The texts are templates. Their words are the parts of the message (``{given}``), the facts that a
function of the row computes, and the words of every failure, see :class:`_Words`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from torchtap.failures.failure import UNNAMED, Details, Explanation, Failure
from torchtap.failures.operands import Operand, dtype_text, dtype_word, shape_text
from torchtap.failures.parsed_source import grouped, replaced
from torchtap.failures.traceback_frame import MISSING
from torchtap.failures.value_chains import made_of, source_of

Way = str | tuple[str, str]
"""A way out; or the word that must hold, and the way out."""
Facts = Callable[[Failure, re.Match[str]], Mapping[str, Any]]
"""Computes words; also ``ways``, ``details`` and ``where`` of the :class:`Explanation`."""
Situation = Callable[[Failure, re.Match[str]], Explanation]


class SituationRow:
    """A situation in which all that changes is the names.

    Args:
        what: what happened, in one sentence.
        ways: the ways out, best first.
        when: the fact that must hold, among the rows of :func:`first_of`.
        about: the operands that are described: ``argument``, ``tensors``, which is all of them, or
            their names, such as ``target, input``.
        facts: computes words of its own.
        details: computes more rows of the note.
    """

    def __init__(
        self,
        what: str,
        *ways: Way,
        when: str = "",
        about: str = "",
        facts: Facts = lambda failure, found: {},
        details: Callable[[Failure, re.Match[str]], Details] = lambda failure, found: (),
    ) -> None:
        self._what = what
        self._ways = [("", way) if isinstance(way, str) else way for way in ways]
        self.when = when
        self._about = about
        self._facts = facts
        self._details = details

    def __call__(
        self,
        failure: Failure,
        found: re.Match[str],
        facts: Mapping[str, Any] = MappingProxyType({}),
    ) -> Explanation:
        """Return the explanation of a failure with the message that was found.

        Args:
            failure: the exception.
            found: its message.
            facts: that are known already, in front of the row's own.
        """
        own = self._facts(failure, found)
        operands, described = _operands(failure, self._about)
        words = _Words(failure, operands, {**found.groupdict(), **facts, **own})
        ways = [way.format_map(words) for when, way in self._ways if not when or words[when]]
        found_out = [*facts.get("details", ()), *own.get("details", ())]
        return Explanation(
            self._what.format_map(words),
            (*own.get("ways", ()), *ways),
            (*found_out, *self._details(failure, found), *described),
            own.get("where", facts.get("where", "")),
        )


def first_of(*rows: SituationRow, facts: Facts) -> Situation:
    """Return a situation that is the first of several rows whose condition holds."""

    def situation(failure: Failure, found: re.Match[str]) -> Explanation:
        known = facts(failure, found)
        row = next(one for one in rows if not one.when or known.get(one.when))
        return row(failure, found, known)

    return situation


def _operands(failure: Failure, about: str) -> tuple[list[Operand], Details]:
    """Return the operands that a row is about, and their descriptions."""
    if about == "tensors":
        return failure.tensors, failure.details()
    if about == "argument":
        return [failure.argument()], failure.details(failure.argument())
    operands = [failure.operand(name) for name in filter(None, about.split(", "))]
    known = [one for one in operands if one.value is not MISSING]
    # Of a loss whose input and target are not known by these names, all tensors are shown.
    return operands, failure.details(*known) if len(operands) > 1 or known else ()


class _Words(dict[str, Any]):
    """The words of a template; those of the failure are looked up when one is used.

    ``looks`` and ``kept`` are its shape and dtype, or say that they are others where they are not
    known. ``name`` is the first operand that the row is about, as the program calls it. Each word
    has others: ``name_it`` is its text as it stands before a method, ``name_cloned`` says how it is
    replaced by a clone, ``given_dtype`` is a dtype as it is written today, and ``name_source`` is
    where it was made. ``made`` is the call that made the running module.
    """

    def __init__(self, failure: Failure, operands: list[Operand], known: Mapping[str, Any]) -> None:
        super().__init__(known)
        self._failure = failure
        self._operands = operands

    def __missing__(self, word: str) -> object:
        # Looked up by name when the template asks, since an origin costs a walk through the graph.
        head, _, kind = word.rpartition("_")
        match kind:
            case "it":
                return grouped(self[head])
            case "cloned":
                return replaced(self[head], "clone()")
            case "dtype" if head:
                return dtype_word(self[head])
            case "module":
                return self._failure.module_text
            case "source":
                operand = next(iter(self._operands), Operand(UNNAMED))
                text = self[head]
                is_own = head == "name" or operand.text == text
                return source_of(self._failure, operand if is_own else self._failure.operand(text))
            case "variable":
                return self._failure.names.variable(self._failure.module)
        operand = self._operands[0] if self._operands else Operand(UNNAMED)
        match word:
            case "name":
                return self._failure.name_of(operand)
            case "shape":
                return shape_text(operand.value)
            case "dtype":
                return dtype_text(operand.value)
            case "made":
                made = made_of(self._failure, self._failure.module)
                return made.text if made is not None else ""
            case "looks":
                return shape_text(operand.value) or "of another shape"
            case "kept":
                known = dtype_text(operand.value)
                return known if known != "?" else "others"
        raise KeyError(word)

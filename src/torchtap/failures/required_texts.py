"""Texts that a message must hold to fit a pattern, so that few patterns need to be compiled.

Compiling takes a third of a millisecond for each pattern, and of hundreds one is wanted.
"""

from __future__ import annotations

_OPTIONAL = ("?", "*", "{")


def required_texts(pattern: str) -> tuple[str, ...]:
    """Return the longest text of each alternative of a pattern, one of which a match holds.

    Only what stands outside of groups counts. The text is empty, which everything holds, where an
    alternative has none.
    """
    found = [""]
    run, at = "", 0
    while at <= len(pattern):
        literal, end = _literal(pattern, at)
        if literal and pattern[end : end + 1] not in _OPTIONAL:
            run += literal
        else:
            found[-1] = max(found[-1], run, key=len)
            run = ""
            if pattern[at : at + 1] == "|":
                found.append("")
        at = end
    return tuple(found)


def _literal(pattern: str, at: int) -> tuple[str, int]:
    """The character that stands at a place, empty if it is none of itself, and where it ends."""
    sign = pattern[at : at + 1]
    if sign == "\\":
        escaped = pattern[at + 1 : at + 2]
        return ("" if escaped.isalnum() else escaped), at + 2
    if sign == "(":
        return "", _end_of_group(pattern, at)
    if sign == "[":
        return "", _end_of_class(pattern, at)
    if sign == "{":
        return "", pattern.index("}", at) + 1
    is_literal = sign not in ".^$+?*{|)" if sign else False
    return (sign if is_literal else ""), at + 1


def _end_of_class(pattern: str, at: int) -> int:
    at += 2  # A bracket that closes stands for itself where it comes first.
    while pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at + 1


def _end_of_group(pattern: str, at: int) -> int:
    depth = 0
    while True:
        sign = pattern[at]
        if sign == "\\":
            at += 2
        elif sign == "[":
            at = _end_of_class(pattern, at)
        else:
            depth += (sign == "(") - (sign == ")")
            at += 1
            if depth == 0:
                return at

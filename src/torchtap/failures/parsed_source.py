"""The source of the code that ran, parsed: one function where that is enough, or a file.

An exception passes through files of thousands of lines, and parsing one takes some ten
milliseconds; a function takes well under one. So the function of a frame is cut out of its file by
the lines of its code object, and only what asks about a whole file parses it.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import islice
from types import CodeType

Place = tuple[int, int, int, int]
"""First and last line, and the first and last column, in bytes."""

_MOST_PARSED = 256
"""Pieces of source that are kept parsed when a note begins."""
_MOST_ENDS = 12
"""Lines that are tried as the end of a function, of which the first is nearly always right."""
_WITHOUT_DEF = frozenset({"<lambda>", "<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"})
_DEFS = ("def ", "async def ", "@")
_BLOCKS = (*_DEFS, "class ")
_UNPLACED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.JoinedStr)
"""Nodes with parts outside of their own place: decorators, and expressions in strings."""
_CLOSE = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.List, ast.Dict)
"""Expressions of which nothing comes apart where a method is called on them."""


def source_tree(file: str) -> ast.Module | None:
    """Return the source of a file, parsed; ``None`` where it is not there."""
    source = "".join(linecache.getlines(file))
    return _parsed(source, 1) if source else None


def forget_old_trees() -> None:
    """Empty the caches of trees together, before a note is written, where they hold much.

    Nodes are compared by identity. A function whose tree is parsed anew while another cache still
    has a node of the former one would have two, and no node of the one is found in the other.
    """
    if _parsed.cache_info().currsize > _MOST_PARSED:
        for each in (_parsed, function_tree, expression_at):
            each.cache_clear()


# A function that calls itself is asked for once for each frame. Functions that are equal in code,
# names and positions have the same tree, whatever the file.
@cache
def function_tree(code: CodeType, line: int) -> ast.AST | None:
    """Return the source of a function; of the file, where the code is that of a file or of a class.

    Args:
        code: of the function.
        line: one that it ran.

    Returns:
        The definition, with the line numbers of the file; of a file, what its own frame runs, with
        ``pass`` in the place of functions and classes. A lambda or a comprehension gives the
        definition around it, or the file; so does a function that cannot be cut out of its file.
    """
    lines = linecache.getlines(code.co_filename)
    is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)
    if lines and code.co_name == "<module>":
        return _parsed(_without_definitions(lines, code), 1) or source_tree(code.co_filename)
    if not lines or not is_function:
        return source_tree(code.co_filename)
    if code.co_name in _WITHOUT_DEF:
        tree = _around(lines, line)
    else:
        last = max((one for _, _, one in code.co_lines() if one), default=line)
        tree = _definition(lines, code.co_firstlineno, last)
    return tree or source_tree(code.co_filename)


@cache
def expression_at(code: CodeType, instruction: int, line: int) -> ast.AST | None:
    """The expression or statement that an instruction evaluates; ``None`` if it is not known.

    Args:
        code: of the function.
        instruction: its offset in bytes, as ``tb_lasti``.
        line: of the instruction.
    """
    tree, place = function_tree(code, line), _place_in(code, instruction)
    if tree is None or place is None:
        return None
    nodes = [node for node in _nodes_around(tree, place) if _position_of(node) == place]
    # Of nodes at the same place (a statement of one expression) the innermost.
    return nodes[-1] if nodes else None


def lambda_at(code: CodeType, instruction: int, line: int) -> ast.AST | None:
    """Return the innermost lambda around an instruction; else what :func:`function_tree` gives."""
    tree, place = function_tree(code, line), _place_in(code, instruction)
    if tree is None or place is None:
        return tree
    inside = [one for one in _nodes_around(tree, place) if isinstance(one, ast.Lambda)]
    return inside[-1] if inside else tree


def _place_in(code: CodeType, instruction: int) -> Place | None:
    """Return where the expression of an instruction stands; ``None`` if Python did not keep it."""
    # An instruction has two bytes, its caches included; co_positions() has one entry for each (PEP
    # 657).
    number = instruction // 2
    for place in islice(code.co_positions(), number, number + 1):
        return None if None in place else place  # type: ignore[return-value]
    return None


def _nodes_around(tree: ast.AST, place: Place) -> Iterator[ast.AST]:
    """Yield the nodes that a place may be a part of, outermost first."""
    todo: list[ast.AST] = [tree]
    for node in todo:  # Grows as it goes.
        yield node
        for part in ast.iter_child_nodes(node):
            where = _position_of(part)
            if where is None or isinstance(part, _UNPLACED) or _holds(where, place):
                todo.append(part)


def _position_of(node: ast.AST) -> Place | None:
    """Return the position of an expression or a statement; ``None`` for other nodes."""
    if not isinstance(node, ast.expr | ast.stmt):
        return None
    end_line, end = node.end_lineno or node.lineno, node.end_col_offset or 0
    return node.lineno, end_line, node.col_offset, end


# A note asks several times for the same expression: as operand, as call, as operation.
@lru_cache(maxsize=1024)
def written(node: ast.AST, file: str = "") -> str:
    """An expression or statement as source, in one line: as the file has it, if that is given."""
    last = getattr(node, "end_lineno", None) if isinstance(node, ast.expr | ast.stmt) else None
    lines = linecache.getlines(file) if file and last is not None else []
    if last is None or len(lines) < last:
        return " ".join(ast.unparse(node).split())
    first, start, end = node.lineno, node.col_offset, node.end_col_offset  # type: ignore[attr-defined]
    # ast counts columns in bytes of UTF-8, and not in characters.
    parts = [line.encode() for line in lines[first - 1 : last]]
    if len(parts) > 1 and any(b"#" in one for one in parts):
        return " ".join(ast.unparse(node).split())  # In one line, a comment would hide the rest.
    parts[-1] = parts[-1][:end]
    parts[0] = parts[0][start:]
    return " ".join(b"".join(parts).decode().split())


@lru_cache(maxsize=256)
def grouped(text: str) -> str:
    """Return an expression as it stands before ``.method()``, ``[...]`` or an operator.

    In parentheses, but where it binds as closely by itself. A text that is no expression stays.
    """
    tree, inside = expression_of(text), expression_of(text[1:-1])
    is_grouped = text[:1] == "(" and inside is not None
    if tree is None or is_grouped or isinstance(tree, _CLOSE):
        return text
    return f"({text})"


def replaced(text: str, method: str) -> str:
    """``x = x.float()`` of ``x``; of what no value can be given to, ``(a + b).float()`` alone."""
    value = f"{grouped(text)}.{method}"
    is_place = isinstance(expression_of(text), ast.Name | ast.Attribute | ast.Subscript)
    return f"{text} = {value}" if is_place else value


def last_name(node: ast.AST | None) -> str:
    """Return ``c`` of ``c`` and of ``a.b.c``; empty of another expression."""
    return str(getattr(node, "attr", getattr(node, "id", "")))


def expression_of(text: str) -> ast.expr | None:
    """Return a text as an expression; ``None`` if it is none."""
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None


def _holds(outer: Place, inner: Place) -> bool:
    begins = (outer[0], outer[2]) <= (inner[0], inner[2])
    return begins and (inner[1], inner[3]) <= (outer[1], outer[3])


def _without_definitions(lines: list[str], code: CodeType) -> str:
    """The source of a file with ``pass`` for each function and class: the frame runs none of them.

    Python's own code tells where they stand. Where that is not all of one (a bracket that is
    closed below), what is left cannot be parsed, and the whole file is.
    """
    kept = list(lines)
    for inner in code.co_consts:
        first = inner.co_firstlineno if isinstance(inner, CodeType) else 0
        if not 0 < first <= len(lines) or not lines[first - 1].lstrip().startswith(_BLOCKS):
            continue  # A lambda or a comprehension is a part of what the frame runs.
        end = next(_ends(lines, max(first, _last_line(inner)), _indent(lines[first - 1])))
        head = lines[first - 1]
        kept[first - 1] = f"{head[: _indent(head)]}pass\n"
        kept[first:end] = ["\n"] * (end - first)
    return "".join(kept)


def _last_line(code: CodeType) -> int:
    """Return the last line of a function or class that Python knows of, with those inside of it."""
    own = max((line for _, _, line in code.co_lines() if line), default=code.co_firstlineno)
    inner = (_last_line(const) for const in code.co_consts if isinstance(const, CodeType))
    return max((own, *inner))


def _definition(lines: list[str], first: int, last: int) -> ast.AST | None:
    """Return the definition that begins on a line, and reaches to another one at least."""
    if not 0 < first <= len(lines) or not lines[first - 1].lstrip().startswith(_DEFS):
        return None
    indent = _indent(lines[first - 1])
    for end in islice(_ends(lines, max(first, last), indent), _MOST_ENDS):
        tree = _parsed("".join(lines[first - 1 : end]), first)
        if tree is not None:
            definition: ast.AST = tree.body[0]
            # An indented definition was parsed inside of ``if 1:``, see _parsed().
            if indent and isinstance(definition, ast.If):
                definition = definition.body[0]
            is_definition = isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
            return definition if is_definition else None
    return None


def _ends(lines: list[str], last: int, indent: int) -> Iterator[int]:
    """Numbers of the lines that a block may end with: what follows stands no further in."""
    for number in range(last, len(lines)):
        line = lines[number].strip()
        if line and not line.startswith("#") and _indent(lines[number]) <= indent:
            yield number
    yield len(lines)


def _around(lines: list[str], line: int) -> ast.AST | None:
    """The innermost definition that a line stands in; ``None`` of a line outside of functions."""
    for number in _heads(lines, line):
        if lines[number - 1].lstrip().startswith(_DEFS[:2]):
            definition = _definition(lines, number, line)
            if definition is not None and line <= (getattr(definition, "end_lineno", None) or 0):
                return definition
    return None


def _heads(lines: list[str], line: int) -> Iterator[int]:
    """Numbers of the lines that a line may stand inside of, itself first: each further out."""
    indent: int | None = None
    for number in range(min(line, len(lines)), 0, -1):
        text = lines[number - 1]
        if text.strip() and (indent is None or _indent(text) < indent):
            indent = _indent(text)
            yield number


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


@cache
def _parsed(source: str, first: int) -> ast.Module | None:
    """Lines of a file, parsed with the numbers that they have in it.

    Args:
        source: the lines. Where they are indented, the result is an ``if`` around them.
        first: the number of the first of them.
    """
    # Empty lines in front give the nodes the numbers that they have in the file.
    head = "\n" * (first - 1)
    if source[:1] in " \t":
        head = "\n" * (first - 2) + "if 1:\n"
    try:
        return ast.parse(head + source)
    except (SyntaxError, ValueError, RecursionError):
        return None

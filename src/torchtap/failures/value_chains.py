"""Values of an exception, followed to where they were made or given, as words of a note."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn

from torchtap.core.source_files import is_of_library, shown_file
from torchtap.failures.failure import Failure
from torchtap.failures.followed_values import CONVERSIONS, end_of, steps_of
from torchtap.failures.operands import Operand, parts_of_expression, shape_text
from torchtap.failures.parsed_source import expression_of
from torchtap.failures.scopes import Expression, given_to, scope_of
from torchtap.failures.traceback_frame import MISSING, TracebackFrame

_MOST_CHARACTERS = 70
_MOST_ROWS = 3
_SIZES = (
    *("in_features", "out_features", "in_channels", "out_channels", "num_features"),
    *("num_embeddings", "embedding_dim", "input_size", "hidden_size"),
)
"""Arguments of layers that a layer keeps under the same name."""
_WHERE = re.compile(r"where (it is made|it comes from|it is computed|they are made)(?=[.:;,]|$)")
_SHOWN = (bool, int, float, str, tuple)
"""Values that a note shows, beside tensors."""


def chain_of(failure: Failure, operand: Operand) -> list[Expression]:
    """Return the expressions that an operand came from, the nearest first; none if not known."""
    frame = failure.frames[operand.depth] if failure.frames else None
    name = failure.name_of(operand)
    # PyTorch's own name of it says nothing: the program's is the one to follow.
    for one in (None if frame is None or frame.is_torch else frame, failure.user):
        found = one and _expression(failure, one, operand.text if one is frame else name)
        steps = list(steps_of(found)) if found else []
        if steps:
            return steps
    return []


def source_of(failure: Failure, operand: Operand) -> str:
    """Return where an operand was made, as ``train.py:26: torch.rand(4, 3)``; empty if not known.

    Empty, too, where that is the line that failed.
    """
    chain = chain_of(failure, operand)
    user = failure.user
    is_here = not chain or (user is not None and chain[-1].line == user.line)
    # A line inside of a library, such as torch.functional, made nothing of the program's.
    return "" if is_here or is_of_library(chain[-1].scope.file) else _placed(chain[-1])


class Made(NamedTuple):
    """The call that made a module, in the program.

    Attributes:
        call: the expression.
        kind: class of the module.
    """

    call: Expression
    kind: type

    @property
    def text(self) -> str:
        """Return it as ``nn.Linear(512, 10) of model.py:12``."""
        return f"{_short(self.call.text)} of {_place(self.call)}"

    def given(self, argument: str) -> list[Expression]:
        """Return the expressions that an argument came from, the call's own first."""
        names = sizes_of(self.kind)
        first = given_to(self.call, names, argument)
        return [] if first is None else [first, *steps_of(first)]


def made_of(failure: Failure, module: nn.Module | None) -> Made | None:
    """Return the call of the program that made a module; ``None`` where that is not certain."""
    key = "made", id(module)
    if key not in failure.known:
        failure.known[key] = _made_of(failure, module)
    made: Made | None = failure.known[key]
    return made


def _made_of(failure: Failure, module: nn.Module | None) -> Made | None:
    text = "" if module is None else failure.names.variable(module)
    for frame in reversed(failure.frames):
        found = _expression(failure, frame, text) if frame.is_user and text else None
        if found is None or frame.value_of(found.node) is not module:
            continue
        end = end_of(found)
        if isinstance(end.node, ast.Call) and not end.path:
            made = Made(end, end.scope.value_of(end.node.func))
            is_it = made.kind is type(module) and all(
                _agrees(made.given(name), vars(module).get(name)) for name in _SIZES
            )
            return made if is_it else None
    return None


def placed(failure: Failure, way: str) -> str:
    """Return a way out with the place where what it changes was made or given.

    A layer that is made anew takes its number from a call further out, and a value that is to be
    another one ``where it is made`` is made on a line that can be named.
    """
    return _with_caller(failure, _with_source(failure, way))


def _with_source(failure: Failure, way: str) -> str:
    found = _WHERE.search(way)
    if found is None:
        return way
    for operand in (*failure.tensors, *failure.candidates):
        name = failure.name_of(operand)
        if re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", way) is None:
            continue
        source = source_of(failure, operand)
        if source:
            return f"{way[: found.end()]} ({source}){way[found.end() :]}"
    return way


def _with_caller(failure: Failure, way: str) -> str:
    module = failure.module
    target = "" if module is None else f"{failure.names.variable(module)} = "
    number = re.match(r"[\w.]+\(\[?(\d+)", way.partition(target)[2]) if target else None
    made = made_of(failure, module) if number is not None else None
    if made is None or number is None:
        return way
    first = next(iter(sizes_of(made.kind)), "")
    chain = made.given(first)
    if not chain or not _names_only(chain[0]):
        return way
    pairs = itertools.pairwise(chain)
    calls = (_call_that_gives(one, step) for one, step in pairs if not step.path)
    giver = next((one for one in calls if one is not None), chain[-1])
    if giver is chain[-1] and not isinstance(giver.node, ast.Constant):
        return way
    text, place = chain[0].text, f"{_short(giver.text)} of {_place(giver)}"
    origin = f"comes from {place}" if text == first else f"is {text}, from {place}"
    where = "there"
    if _others_that_read(chain[0], made.call):
        where = f"there if all that reads {text} is to have it, else at line {chain[0].line}"
    return f"{way} Its {first} {origin}: give {number[1]} {where}."


def _others_that_read(one: Expression, call: Expression) -> bool:
    """Return whether other calls of a function read what a call reads."""
    text, tree = ast.unparse(one.node), one.scope.tree
    own = set(map(id, ast.walk(call.node)))
    nodes = ast.walk(tree) if tree is not None else ()
    return any(
        isinstance(node, type(one.node)) and id(node) not in own and ast.unparse(node) == text
        for node in nodes
        if isinstance(getattr(node, "ctx", None), ast.Load)
    )


def sizes_of(kind: type) -> tuple[str, ...]:
    """Return the names of the arguments that a layer is made with, in their order."""
    if issubclass(kind, nn.RNNBase):  # Its own constructor takes any.
        return tuple(inspect.signature(nn.RNNBase).parameters)[1:]
    return tuple(inspect.signature(kind).parameters)


def _names_only(one: Expression) -> bool:
    return isinstance(one.node, ast.Name | ast.Attribute | ast.Subscript)


def _call_that_gives(one: Expression, step: Expression) -> Expression | None:
    """Return the call whose argument a step is, if the one before is a parameter."""
    call = one.scope.caller if step.scope is not one.scope else None
    inside = call is not None and any(node is step.node for node in ast.walk(call.node))
    return call if inside else None


def _agrees(chain: list[Expression], held: Any) -> bool:
    """Return whether a chain may be that of a number that is held now."""
    given = chain[-1].value if chain else MISSING
    return type(given) is not int or type(held) is not int or given == held


def rows_of(failure: Failure, said: str) -> Iterator[tuple[str, str]]:
    """Yield the rows of a note that say where values were given, beside what it says already.

    Args:
        failure: the exception.
        said: the other rows.
    """
    found = ((row.label, row.text) for row in followed(failure, said))
    yield from itertools.islice(dict.fromkeys(found), _MOST_ROWS)


class Link(NamedTuple):
    """One statement of a row: an expression is another one, or comes from it.

    Attributes:
        known: the expression that was told before.
        step: the one that is told.
        is_same: whether their values are one, and not an item or what was made of it.
        words: the statement, without the place of the step.
    """

    known: Expression
    step: Expression
    is_same: bool
    words: str


class Row(NamedTuple):
    """A row of a note that says where a value was given, with the statements that it makes."""

    label: str
    text: str
    links: tuple[Link, ...] = ()


def followed(failure: Failure, said: str) -> Iterator[Row]:
    """Yield all rows that say where values were given, beside what a note says already."""
    made = made_of(failure, failure.module)
    if made is not None and made.kind.__module__.startswith("torch.nn"):
        is_sized = isinstance(made.call.node, ast.Call) and (
            made.call.node.args or made.call.node.keywords
        )
        if is_sized and made.call.text not in said:
            yield Row("layer", f"made by {made.text}")
        for argument in _sizes(made.call):
            yield from _row(argument, said, is_argument=True)
    frame = failure.user
    if frame is None:
        return
    scope = scope_of(frame, failure.frames)
    for node in parts_of_expression(frame.expression):
        root = _root(node)
        is_self = isinstance(root, ast.Name) and root.id == "self"
        if isinstance(root, ast.Name | ast.Attribute | ast.Subscript) and not is_self:
            yield from _row(Expression(root, scope), said)
        yield from _numbers(failure, Expression(node, scope), said)


def _root(node: ast.expr) -> ast.expr:
    """Return what an expression is a view or a conversion of: ``x`` of ``x[:, None].float()``."""
    match node:
        case ast.Call(func=ast.Attribute(value=base)):
            return _root(base)
        case ast.Subscript(value=base, slice=ast.Slice() | ast.Tuple()):
            return _root(base)
    return node


def _numbers(failure: Failure, one: Expression, said: str) -> Iterator[Row]:
    """Yield the rows of the sizes in a message that an operand was made with."""
    sizes = set(map(int, re.findall(r"(?<![\w.])\d+(?![\w.])", failure.text))) - {0, 1}
    for step in (one, *steps_of(one)):
        made = step.node if isinstance(step.node, ast.Call | ast.Tuple | ast.List) else None
        for node in ast.walk(made) if made is not None else ():
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                number = step.part(node)
                held = _number(number)
                if held in sizes and node is not one.node:
                    yield from _row(number, said, is_argument=True)


def _number(one: Expression) -> int | None:
    value = one.value
    if value is MISSING:
        value = end_of(one).value
    return value if type(value) is int else None


def _sizes(call: Expression) -> Iterator[Expression]:
    """Yield the names that a call is given, and those that it computes its arguments with."""
    node = call.node
    if isinstance(node, ast.Call):
        for one in (*node.args, *(keyword.value for keyword in node.keywords)):
            yield from (call.part(name) for name in _leaves(one))


def _leaves(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the names, attributes and items that an expression is computed with."""
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
        yield node
    elif isinstance(node, ast.Call):
        for one in (*node.args, *(keyword.value for keyword in node.keywords)):
            yield from _leaves(one)
    elif isinstance(node, ast.BinOp | ast.IfExp | ast.BoolOp | ast.Compare | ast.UnaryOp):
        for inner in ast.iter_child_nodes(node):
            yield from _leaves(inner)


def _row(one: Expression, said: str, *, is_argument: bool = False) -> Iterator[Row]:
    """Yield the row of one chain that leaves the function, if it tells where that ended.

    Args:
        one: the expression that is followed.
        said: the other rows.
        is_argument: whether the steps of the same function are told, too.
    """
    value = one.scope.value_of(one.node)
    if isinstance(value, nn.Module | type) or inspect.ismodule(value) or callable(value):
        return
    every = list(steps_of(one))
    steps = _without_repeats(one, every)
    before = dict(zip(map(id, steps), [one, *steps], strict=False))
    told = _places(one, steps, is_argument=is_argument)
    last = steps[-1].value if steps else MISSING
    if type(value) in (int, bool, str) and type(last) is type(value) and last != value:
        return  # Something changed it that the source does not show.
    new = [
        step
        for step in told
        if step.text != one.text or _facts(step, value)
        if not (f"{_place(step)}:" in said and _short(step.text) in said and len(step.text) > 3)
    ]
    links = list(_links(every, [one, *new], value))
    if links:
        texts = [f"{link.words}{_where(before[id(link.step)], link, value)}" for link in links]
        text = f"{_short(one.text)} {', which '.join(texts)}"
        yield Row("given", text, tuple(links))
    # A number that is computed: of which others.
    if told and isinstance(told[-1].node, ast.BinOp | ast.IfExp):
        for leaf in _leaves(told[-1].node):
            yield from _row(told[-1].part(leaf), said, is_argument=True)


def _links(every: list[Expression], told: list[Expression], value: Any) -> Iterator[Link]:
    """Yield the statements about steps that are told, up to one that live values contradict."""
    at = {id(step): number for number, step in enumerate(every)}
    is_own = True
    for known, step in itertools.pairwise(told):
        between = every[at.get(id(known), -1) + 1 : at[id(step)] + 1]
        length = len(step.path) - len(known.path)
        is_of_it = length >= 0 and step.path[length:] == known.path
        path = step.path[:length] if is_of_it else step.path
        is_made = is_of_it and all(one.is_same for one in between)
        is_same = is_made and None not in path
        is_own = is_own and is_same
        if is_own and _contradicts(step.value, value):
            return
        words = f"{'is' if is_made else 'comes from'} {_short(step.with_items(path))}"
        yield Link(known, step, is_same, words)


def _contradicts(held: Any, value: Any) -> bool:
    """Return whether two values that are there still cannot be one."""
    if held is value or held is MISSING or value is MISSING:
        return False
    return isinstance(held, Tensor) or isinstance(value, Tensor)


def _without_repeats(one: Expression, every: list[Expression]) -> list[Expression]:
    """Return the steps of a chain, without what is filled later, and what reads the same."""
    steps = [step for step in every if not _is_empty(step.node)]
    pairs = zip([one, *steps], steps, strict=False)
    return [step for before, step in pairs if (before.text, before.line) != (step.text, step.line)]


def _where(before: Expression, link: Link, value: Any) -> str:
    step = link.step
    call = _call_that_gives(before, step)
    giver = f" in {_short(call.text)}" if call is not None else ""
    giver = ", its default," if _is_default(before, step) else giver
    return f"{giver} of {_place(step)}{_facts(step, value if link.is_same else MISSING)}"


def _is_default(before: Expression, step: Expression) -> bool:
    """Return whether a step stands in the head of the function that the one before is read in."""
    head = getattr(before.scope.tree, "args", None)
    if step.scope is not before.scope or not isinstance(head, ast.arguments):
        return False
    return any(node is step.node for node in (*head.defaults, *head.kw_defaults))


def _places(one: Expression, steps: list[Expression], *, is_argument: bool) -> list[Expression]:
    """Return the steps that are told: the first in another function, casts, and the last one."""
    pairs = list(zip([one, *steps], steps, strict=False))
    away = [
        step
        for before, step in pairs
        if is_argument or step.scope.tree is not one.scope.tree or _is_default(before, step)
        if not (step.path and isinstance(step.node, ast.Tuple))
    ]
    if not away:
        return []
    last = away[-1]
    first = next((step for step in away if not step.path), last)
    casts = [step for step in away if _is_cast(step.node)][:1]
    # A name that stays says nothing, and a value all that its name would.
    is_plain = isinstance(last.node, ast.Constant) and first.line == last.line
    is_name = first is not last and (first.text == one.text or is_plain)
    chosen = [*([] if is_name else [first]), *casts, last]
    told = [step for step in away if any(step is other for other in chosen)]
    return [
        step for before, step in itertools.pairwise([one, *told]) if not _is_inside(before, step)
    ]


def _is_inside(before: Expression, step: Expression) -> bool:
    """Return whether a step stands in the text of the one before: ``x`` of ``x.float()``."""
    is_near = step.scope is before.scope
    return is_near and any(step.node is node for node in ast.walk(before.node))


def _is_cast(node: ast.expr) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr=attr)):
            return attr in CONVERSIONS
    return False


def _is_empty(node: ast.expr) -> bool:
    """Return whether an expression is a list or dict that is filled below."""
    return isinstance(node, ast.List | ast.Dict) and not ast.unparse(node).strip("[]{} ")


def _facts(step: Expression, value: Any) -> str:
    own = step.value
    own = value if own is MISSING and type(value) is int else own
    if isinstance(step.node, ast.Constant) or own is MISSING:
        return ""
    if isinstance(own, Tensor):
        return f" ({shape_text(own)})"
    return f" ({own!r})" if type(own) in _SHOWN and len(repr(own)) < 30 else ""


def _expression(failure: Failure, frame: TracebackFrame, text: str) -> Expression | None:
    """Return a text as an expression that the line of a frame reads."""
    node = expression_of(text)
    if node is None:
        return None
    return Expression(node, scope_of(frame, failure.frames), (), frame.line)


def _place(one: Expression) -> str:
    return f"{shown_file(one.scope.file)}:{one.line}"


def _placed(one: Expression) -> str:
    return f"{_place(one)}: {_short(one.text)}"


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"

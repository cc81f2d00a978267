"""Follow a value back to what made it: through assignments, calls, attributes and loaders.

Each step is an expression whose value is that of the one before, or has it as an item. One of which
the value before was converted, cut or batched has ``is_same=False``. A step is taken only where the
source and the objects leave no other, and nothing of the program runs.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import FunctionType, SimpleNamespace
from typing import Any

from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from torchtap.core.source_files import is_of_library, is_of_standard
from torchtap.failures.assignments import Assignment, is_changed
from torchtap.failures.filled_containers import may_be_filled
from torchtap.failures.parsed_source import last_name, source_tree
from torchtap.failures.scopes import (
    END,
    Expression,
    Path,
    Scope,
    given_to,
    method_of,
    methods_of,
    path_to,
    returned_scope,
)
from torchtap.failures.traceback_frame import MISSING

_MOST_STEPS = 48
_NAMESPACES = (SimpleNamespace, argparse.Namespace)
CASTS = frozenset({"to", "type", "float", "double", "half", "bfloat16", "long", "int", "bool"})
"""Methods that return a tensor of another dtype, or on another device."""
CONVERSIONS = CASTS | {"cuda", "cpu", "detach", "clone", "contiguous"}
"""Methods that return another tensor of the same shape; of a module, itself."""
_ITSELF = frozenset({"eval", "train", "requires_grad_"})
"""Methods that return what they are called on."""
_IN_ORDER = frozenset({"iter", "list", "tuple", "tqdm", "track"})
"""Functions whose items are those of their first argument."""
_PASSED_ON = _IN_ORDER | {"reversed", "sorted"}
"""Functions whose items are those of their first argument, in an order of their own."""
_OF_SUBSETS = frozenset({"DataLoader", "Subset", "random_split"})


def steps_of(expression: Expression) -> Iterator[Expression]:
    """Yield the expressions that a value came from, the nearest first, without the first one."""
    step: Expression | None = expression
    for _ in range(_MOST_STEPS):
        assert step is not None
        step = _before(step)
        if step is None or _has_no_such_item(step):
            return
        yield step


def end_of(expression: Expression) -> Expression:
    """Return the expression that made a value, or the last that can be told."""
    last = expression
    for last in steps_of(expression):  # noqa: B007 - the last one is asked for
        pass
    return last


def _has_no_such_item(one: Expression) -> bool:
    """Return whether a literal does not hold the item that is taken: it was written later."""
    is_literal = isinstance(one.node, ast.Dict | ast.List | ast.Tuple)
    return is_literal and one.path[:1] not in ((), (None,)) and _of_display(one) is None


def _is_container(one: Expression) -> bool:
    """Return whether a name or an attribute holds, or may hold, what items can be written into."""
    value = one.scope.value_of(one.node)
    is_kept = isinstance(one.node, ast.Name | ast.Attribute)
    return is_kept and (value is MISSING or isinstance(value, list | dict | deque))


def _before(one: Expression) -> Expression | None:
    if one.path and _is_container(one) and may_be_filled(one):
        return None
    match one.node:
        case ast.Name(id=name):
            return _of_name(one, name)
        case ast.Attribute():
            return _of_attribute(one, one.node)
        case ast.Subscript(value=base, slice=ast.Slice()) if not one.path:
            return _changed(one.part(base))
        case ast.Subscript(value=base, slice=key):
            at = one.scope.value_of(key)
            is_item = type(at) in (int, str) and not _is_tensor_like(one.scope.value_of(base))
            return one.part(base, (at, *one.path)) if is_item else None
        case ast.NamedExpr(value=value):
            return one.part(value, one.path)
        case ast.Call():
            return _of_call(one, one.node)
    return _of_display(one)


def _changed(one: Expression | None) -> Expression | None:
    """Return a step with the mark that the value before it is another one, made of it."""
    return None if one is None else one._replace(is_same=False)


def _is_tensor_like(value: Any) -> bool:
    """Return whether items of a value are computed: of a tensor or an array."""
    return hasattr(type(value), "__array__")


def _of_display(one: Expression) -> Expression | None:
    """Return the element of a list, tuple, dict or comprehension that is taken."""
    if not one.path:
        return None
    key, *rest = one.path
    match one.node:
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            is_plain = not any(isinstance(element, ast.Starred) for element in elements)
            at = 0 if key is None and len(elements) == 1 else key
            if is_plain and type(at) is int and -len(elements) <= at < len(elements):
                return one.part(elements[at], tuple(rest))
        case ast.Dict(keys=keys, values=values):
            held = [one.scope.value_of(at) if at is not None else MISSING for at in keys]
            fitting = [value for at, value in zip(held, values, strict=True) if at == key]
            if len(fitting) == 1 and MISSING not in held:
                return one.part(fitting[0], tuple(rest))
        case (
            ast.ListComp(elt=element, generators=[over])
            | ast.GeneratorExp(elt=element, generators=[over])
        ):
            return _of_round(one, element, over)
    return None


def _of_round(one: Expression, element: ast.expr, over: ast.comprehension) -> Expression | None:
    """Return what a comprehension gives in one round, in which its names have their items."""
    key = None if over.ifs else one.path[0]
    names = {node.id for node in ast.walk(over.target) if isinstance(node, ast.Name)}
    paths = {name: path_to(over.target, name) for name in names}
    bound = {
        name: one.part(over.iter, (key, *path)) for name, path in paths.items() if path is not None
    }
    scope = dataclasses.replace(one.scope, bound={**one.scope.bound, **bound})
    return Expression(element, scope, one.path[1:], one.at)


# ---------------------------------------------------------------------- names


def _of_name(one: Expression, name: str) -> Expression | None:
    scope = one.scope
    if name in scope.bound:
        return _with_path(scope.bound[name], one.path)
    around = scope.around(one.node, name)
    if isinstance(around, Expression):
        return _with_path(around, one.path)
    if around is not None:
        return _of_name(Expression(one.node, around, one.path, around.line), name)
    if name == "self" and scope.frame is None and scope.itself is not None:
        return _with_path(scope.itself, one.path)
    if is_changed(scope.tree, name):
        return None
    made = scope.assignments(name, one.line)
    is_argument = name in scope.parameters
    if len(made) == 1 and (made[0].is_sure or not is_argument):
        return _of_assignment(one, made[0], name)
    if made:
        return _as_it_was_given(one, name) if is_argument else None
    if is_argument:
        return _with_path(scope.argument(name), one.path)
    outer = _around(scope, name)
    if outer is None:
        return None
    if name in outer.parameters:
        return _of_name(Expression(one.node, outer, one.path, outer.line), name)
    if is_changed(outer.tree, name):
        return None
    made = outer.assignments(name, outer.line)
    moved = Expression(one.node, outer, one.path)
    return _of_assignment(moved, made[0], name) if len(made) == 1 else None


def _around(scope: Scope, name: str) -> Scope | None:
    """Return the function or file that has a name which a function only reads."""
    outer = scope.outer(name)
    frame = scope.frame
    if outer is not None or frame is None or name not in frame.code.co_freevars:
        return outer
    # The function around has returned: the one in which the name of this one was returned.
    call = scope.caller
    if call is None or not isinstance(call.node, ast.Call):
        return None
    made = end_of(call.part(call.node.func))
    is_returned = isinstance(made.node, ast.Name) and made.node.id == frame.code.co_name
    return made.scope if is_returned and made.scope.frame is None else None


def _as_it_was_given(one: Expression, name: str) -> Expression | None:
    """Return an argument that a branch may have replaced, if it is the very value still."""
    given, held = one.scope.argument(name), one.scope.value_of(one.node)
    is_same = given is not None and held is not MISSING and given.value is held
    return _with_path(given, one.path) if is_same and not isinstance(held, int | str) else None


def _with_path(one: Expression | None, path: Path) -> Expression | None:
    return None if one is None else one._replace(path=(*one.path, *path))


def _of_assignment(one: Expression, made: Assignment, name: str) -> Expression | None:
    match made.statement:
        case ast.For(target=target, iter=over) | ast.AsyncFor(target=target, iter=over):
            path = path_to(target, name)
            return None if path is None else Expression(over, one.scope, (None, *path, *one.path))
        case ast.Assign(targets=targets, value=value) if made.value is value:
            paths = [path_to(target, name) for target in targets]
            path = next((found for found in paths if found is not None), None)
            return None if path is None else Expression(value, one.scope, (*path, *one.path))
    if made.value is None or made.value is one.node:
        return None
    return one.elsewhere(made.value)


# ---------------------------------------------------------------------- attributes


def _of_attribute(one: Expression, node: ast.Attribute) -> Expression | None:
    """Return the expression that an attribute was set to."""
    attr, base = node.attr, one.part(node.value)
    for scope in (one.scope, *_file_around(one.scope, node)):
        made = list(_set_in(scope.tree, node, one.line if scope is one.scope else scope.line))
        if made:
            found = Expression(made[0], scope, one.path)
            return found if len(made) == 1 and made[0] is not one.node else None
    owner = base.value
    if owner is MISSING:
        owner = one.scope.value_of(node.value)
    kind = type(owner) if owner is not MISSING else _class_of(end_of(base))
    if kind is None or kind in _NAMESPACES:
        return _of_namespace(one, base, attr)
    if is_of_library(_file_of(kind, base.scope.file)):
        return None
    return _with_path(_set_by_class(kind, owner, base, attr), one.path)


def _file_around(scope: Scope, node: ast.Attribute) -> Iterator[Scope]:
    """Yield the file that a function stands in, where it may set an attribute of a global name."""
    root: ast.expr = node
    while isinstance(root, ast.Attribute | ast.Subscript):
        root = root.value
    name = root.id if isinstance(root, ast.Name) else ""
    is_free = scope.frame is not None and name in scope.frame.code.co_freevars
    if name and not is_free and name not in scope.parameters and not scope.assignments(name, END):
        outer = scope.outer(name)
        if outer is not None:
            yield outer


def _set_in(tree: ast.AST | None, target: ast.Attribute, line: int) -> Iterator[ast.expr]:
    """Yield what a function or file gives an attribute above a line."""
    if tree is not None:
        for at, value in _attributes_set(tree).get(ast.unparse(target), ()):
            if at < line:
                yield value


@lru_cache(maxsize=1024)
def _attributes_set(tree: ast.AST) -> Mapping[str, list[tuple[int, ast.expr]]]:
    """Return the attributes that a function or file sets, not in functions inside of it.

    Returns:
        attribute as it is written -> line and value of each assignment, in their order.
    """
    found: dict[str, list[tuple[int, ast.expr]]] = {}
    waiting = list(ast.iter_child_nodes(tree))
    for node in waiting:  # Grows as it goes.
        if isinstance(node, ast.Assign):
            for target, value in _pairs_of(node):
                if isinstance(target, ast.Attribute):
                    found.setdefault(ast.unparse(target), []).append((node.lineno, value))
        elif not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda | ast.expr):
            waiting += ast.iter_child_nodes(node)
    return found


def _pairs_of(statement: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the targets of an assignment with their values: two of ``self.x, self.y = a, b``."""
    for target in statement.targets:
        match target, statement.value:
            case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
                yield from zip(targets, values, strict=True)
            case _, value:
                yield target, value


def _file_of(kind: type, near: str) -> str:
    """Return the file of a class; the one near by where its methods stand in none.

    The methods of a dataclass are written by Python.
    """
    methods = (held for held in vars(kind).values() if isinstance(held, FunctionType))
    files = [one.__code__.co_filename for one in methods]
    found = next((one for one in files if one[:1] != "<" and not is_of_standard(one)), "")
    if found or _body_of(kind, near):
        return found or near
    return str(getattr(sys.modules.get(kind.__module__), "__file__", ""))


def _body_of(kind: type, file: str) -> list[ast.stmt]:
    """Return the statements of a class that stands in a file; none if it does not, or twice."""
    tree = source_tree(file)
    nodes = list(ast.walk(tree)) if tree is not None else []
    bodies = [one.body for one in nodes if _is_class(one, kind.__name__)]  # type: ignore[attr-defined]
    return bodies[0] if len(bodies) == 1 else []


def _is_class(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.ClassDef) and node.name == name


def _set_by_class(kind: type, owner: Any, base: Expression, attr: str) -> Expression | None:
    """Return the one expression that the methods or fields of a class give an attribute."""
    found: list[Expression] = []
    for holder, method in methods_of(kind):
        if attr not in method.__code__.co_names:
            continue
        scope = returned_scope(method, base.scope.frames, owner=owner, itself=base)
        target = ast.Attribute(ast.Name("self"), attr)
        made = list(_set_in(scope.tree, target, END)) if scope is not None else []
        if scope is not None and made and method.__name__ == "__init__":
            call = _constructed(kind, holder, base, owner)
            scope = dataclasses.replace(scope, call=call)
        if scope is not None:
            found += [Expression(value, scope) for value in made]
    if len(found) == 1:
        return found[0]
    return None if found else _of_field(kind, base, attr)


def _constructed(kind: type, holder: type, base: Expression, owner: Any) -> Expression | None:
    """Return the call that ran the constructor of a class, or of one of its bases."""
    call: Expression | None = end_of(base)
    if call is None or not isinstance(call.node, ast.Call) or _class_of(call) is not kind:
        return None
    for one in kind.__mro__:
        init = vars(one).get("__init__")
        if one is holder or not isinstance(init, FunctionType):
            if one is holder:
                return call
            continue
        scope = returned_scope(init, base.scope.frames, owner=owner, call=call, itself=base)
        inner = [] if scope is None or scope.tree is None else list(_calls_of_super(scope.tree))
        if scope is None or len(inner) != 1:
            return None
        call = Expression(inner[0], scope)
    return None


def _calls_of_super(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Call(func=ast.Name("super")), attr="__init__")
            ):
                yield node


def _of_field(kind: type, base: Expression, attr: str) -> Expression | None:
    """Return what a field of a dataclass, or an attribute of a class, was given."""
    call = end_of(base)
    if isinstance(call.node, ast.Call) and _class_of(call) is kind:
        fields = list(getattr(kind, "__dataclass_fields__", ()))
        given = given_to(call, fields, attr)
        if given is not None:
            return given
    file = _file_of(kind, call.scope.file)
    for statement in _body_of(kind, file):
        match statement:
            case (
                ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                | ast.Assign(targets=[ast.Name(id=name)], value=value)
            ) if name == attr:
                return Expression(value, Scope(source_tree(file), file, base.scope.frames))
    return None


def _class_of(one: Expression) -> type | None:
    """Return the class that a call makes an instance of."""
    if not isinstance(one.node, ast.Call) or one.path:
        return None
    kind = one.scope.value_of(one.node.func)
    return kind if isinstance(kind, type) else None


def _of_namespace(one: Expression, base: Expression, attr: str) -> Expression | None:
    """Return what a namespace was given for an attribute, or the default of an option."""
    end = end_of(base)
    if not isinstance(end.node, ast.Call):
        return None
    called = last_name(end.node.func)
    if called in ("SimpleNamespace", "Namespace"):
        return _with_path(given_to(end, (), attr), one.path)
    if called in ("parse_args", "parse_known_args"):
        return _option(end.scope, attr)
    return None


def _option(scope: Scope, attr: str) -> Expression | None:
    """Return the default of the option of an ``argparse`` parser."""
    tree = source_tree(scope.file)
    names = {f"--{attr}", f"--{attr.replace('_', '-')}", attr}
    for node in ast.walk(tree) if tree is not None else ():
        match node:
            case ast.Call(func=ast.Attribute(attr="add_argument"), args=args, keywords=keywords):
                given = {str(getattr(arg, "value", "")) for arg in args}
                default = [word.value for word in keywords if word.arg == "default"]
                if given & names and default:
                    return Expression(default[0], scope)
    return None


# ---------------------------------------------------------------------- calls


def _of_call(one: Expression, node: ast.Call) -> Expression | None:
    """Return what a call returns: an argument, an item of one, or an expression of the program."""
    match node.func, one.path:
        case ast.Name("enumerate"), (None, 1, *rest) if node.args:
            return one.part(node.args[0], (None, *rest))
        case ast.Name("zip"), (None, int() as at, *rest) if at < len(node.args):
            return one.part(node.args[at], (None, *rest))
        case ast.Name("next"), path if node.args:
            return one.part(node.args[0], (None, *path))
        case ast.Name("dict"), (str() as key, *rest):
            return _with_path(given_to(one, (), key), tuple(rest))
        case ((ast.Name(name) | ast.Attribute(attr=name)), (key, *_)) if (
            name in (_PASSED_ON if key is None else _IN_ORDER) and len(node.args) > 0
        ):
            return one.part(node.args[0], one.path)
        case ast.Attribute(value=base, attr=attr), _ if attr in CONVERSIONS:
            return _changed(one.part(base, one.path))
        case ast.Attribute(value=base, attr=attr), _ if attr in _ITSELF:
            return one.part(base, one.path)
        case ((ast.Name(name) | ast.Attribute(attr=name)), (None, *_)) if name in _OF_SUBSETS:
            return _of_loader(one, node)
        case (
            (ast.Name("TensorDataset") | ast.Attribute(attr="TensorDataset")),
            (None, int() as at),
        ):
            return _changed(one.part(node.args[at])) if at < len(node.args) else None
    return _of_layers(one, node) or _of_function(one, node)


def _of_layers(one: Expression, node: ast.Call) -> Expression | None:
    """Return the layer that a container of PyTorch is made with."""
    kind = one.scope.value_of(node.func)
    at = one.path[0] if one.path else None
    if kind is nn.Sequential and type(at) is int:
        is_plain = not any(isinstance(arg, ast.Starred) for arg in node.args)
        is_there = is_plain and -len(node.args) <= at < len(node.args) > 1
        return one.part(node.args[at], one.path[1:]) if is_there else None
    if kind in (nn.ModuleList, nn.ModuleDict) and at is not None and node.args:
        return one.part(node.args[0], one.path)
    return None


def _of_loader(one: Expression, node: ast.Call) -> Expression | None:
    """Return what a batch of a loader is made of: by its collate_fn, or its data set."""
    collate = given_to(one, ("dataset", "batch_size"), "collate_fn")
    if collate is not None:
        function = collate.scope.value_of(collate.node)
        if not isinstance(function, FunctionType):
            return None
        return _returned(function, one, one.path[1:], itself=None)
    data = given_to(one, ("dataset",), "dataset")
    return None if data is None else _changed(_of_data(data, one.path))


def _of_data(data: Expression, path: Path) -> Expression | None:
    """Return the expression that an item of a data set is made of."""
    held = data.value
    kind = type(held) if held is not MISSING else _class_of(end_of(data))
    if kind is None or issubclass(kind, Subset | TensorDataset | DataLoader):
        return _with_path(data, path)
    function = method_of(kind, "__getitem__") or method_of(kind, "__iter__")
    if function is None or is_of_library(function.__code__.co_filename):
        return _with_path(data, path)
    return _returned(function, data, path[1:], owner=held, itself=data)


def _of_function(one: Expression, node: ast.Call) -> Expression | None:
    """Return the one expression that a function of the program returns."""
    func, scope = node.func, one.scope
    called = scope.value_of(func)
    if isinstance(called, FunctionType):
        return _returned(called, one, one.path, call=one._replace(path=()))
    if isinstance(called, nn.Module):
        forward = method_of(type(called), "forward")
        itself = one.part(func)
        if forward is None:
            return None
        return _returned(forward, one, one.path, one._replace(path=()), called, itself)
    if isinstance(func, ast.Attribute):
        owner, itself = scope.value_of(func.value), one.part(func.value)
        kind = type(owner) if owner is not MISSING else _class_of(end_of(itself))
        method = None if kind is None else method_of(kind, func.attr)
        if method is not None:
            return _returned(method, one, one.path, one._replace(path=()), owner, itself)
    return None


def _returned(
    function: FunctionType,
    one: Expression,
    path: Path,
    call: Expression | None = None,
    owner: Any = MISSING,
    itself: Expression | None = None,
) -> Expression | None:
    """Return the one expression that a function returns or yields, with items taken of it."""
    scope = returned_scope(function, one.scope.frames, owner=owner, call=call, itself=itself)
    if scope is None or scope.tree is None:
        return None
    found = list(_results(scope.tree))
    texts = {ast.unparse(result.value) for result in found if result.value is not None}
    if len(texts) != 1:
        return None
    # A call of a generator gives its items, and each is what it yields.
    is_generator = call is not None and isinstance(found[-1], ast.Yield) and path[:1] == (None,)
    value = found[-1].value
    return Expression(value, scope, path[is_generator:]) if value is not None else None


def _results(tree: ast.AST) -> Iterator[ast.Return | ast.Yield]:
    waiting = list(ast.iter_child_nodes(tree))
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.Return | ast.Yield) and node.value is not None:
            yield node
        waiting[:0] = list(ast.iter_child_nodes(node))

"""The layout of the source keeps its promises, beside the contracts of the imports."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import torchtap

SOURCE = Path(torchtap.__file__).parent
ROOT = SOURCE.parents[1]

MAY_NAME = {
    "core/private_names.py": None,
    "core/torch_private.py": None,
    "core/torch_frames.py": None,
    "hooks/tensor_hooks.py": {"_register_hook_dict"},  # A method of nodes, on the hot path.
    "capture/delivery.py": {
        # Set for each value that a sink takes: contexts of torch would cost three times as much.
        "torch._C._set_grad_enabled",
        "torch._C._is_any_autocast_enabled",
        "torch._C._DisableAutocast",
    },
    "diagnosis/calls/standalone/read_call.py": {  # Its text is in exported scripts.
        "torch.nn.utils.parametrize._inject_new_class",
        "torch.nn.utils.parametrize._inject_property",
    },
}
"""File -> the private names of PyTorch that stand in it; ``None`` for any."""
DOCUMENTED = ("torch.utils._pytree", "torch.utils._python_dispatch", "torch.ops.aten._")
"""Part of what PyTorch documents, in spite of an underscore; nothing private that they hold."""


def test_private_names_of_torch_stand_in_one_file() -> None:
    found = {
        (file, name)
        for path in SOURCE.rglob("*.py")
        for file in [path.relative_to(SOURCE).as_posix()]
        for name in private_names(ast.parse(path.read_text()))
        if not _may_stand(file, name)
    }
    assert not found, "import these from torchtap.core.torch_private"


def test_the_private_names_that_a_file_holds_are_found() -> None:
    source = """
import torch._dynamo
from torch._higher_order_ops import effects
from torch.autograd import Variable, graph as nodes
torch._C._functorch.peek(), torch.nn.Module, nodes._run.__code__, Variable._engine
node._register_hook_dict(tensor), tensor._version, torch.__version__
"""
    assert set(private_names(ast.parse(source))) == {
        "torch._dynamo",
        "torch._higher_order_ops.effects",
        "torch._C._functorch.peek",
        "torch.autograd.graph._run.__code__",
        "torch.autograd.Variable._engine",
        "_register_hook_dict",
    }


def _may_stand(file: str, name: str) -> bool:
    allowed = MAY_NAME.get(file, set())
    for one in DOCUMENTED:
        name = name.removeprefix(one)
    return allowed is None or name in allowed or "._" not in name


def private_names(tree: ast.AST) -> Iterator[str]:
    """Dotted names of PyTorch with a private part, each as long as it stands there."""
    names = {"torch": "torch"}
    inner: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if _is_private(one.name))
        elif isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("torch."):
            for one in node.names:
                names[one.asname or one.name] = full = f"{node.module}.{one.name}"
                if _is_private(full):
                    yield full
        elif isinstance(node, ast.Attribute) and id(node) not in inner:
            parts = [node.attr]
            at: ast.expr = node.value
            while isinstance(at, ast.Attribute):
                inner.add(id(at))
                parts.append(at.attr)
                at = at.value
            root = names.get(at.id) if isinstance(at, ast.Name) else None
            if root is not None and _is_private(full := ".".join([root, *reversed(parts)])):
                yield full
            elif "_register_hook_dict" in parts:
                yield "_register_hook_dict"


def _is_private(dotted: str) -> bool:
    root, *parts = dotted.split(".")
    return root == "torch" and any(part[0] == "_" and part[:2] != "__" for part in parts)


OPENERS = re.compile(r"\s*(What|Those|Of|As|The same|Whether|Such|Which|Where|That)\b")
"""Words with which no docstring begins: the actor comes first, or a verb in present tense."""


def test_docstrings_begin_with_an_actor_or_a_verb() -> None:
    folders = ("src", "tests", "benchmarks", "tools", "docs")
    files = [path for one in folders for path in sorted((ROOT / one).rglob("*.py"))]
    assert len(files) > 800
    texts = {path.relative_to(ROOT): path.read_text() for path in files}
    assert not [f"{path}:{line}" for path, text in texts.items() for line in badly_opened(text)]


def test_docstrings_of_functions_classes_and_variables_are_found() -> None:
    source = 'LIMIT = 3\n"""Of both."""\nclass A:\n    """What it is."""\nx = """As text."""\n'
    assert badly_opened(source) == [2, 4]


def badly_opened(source: str) -> list[int]:
    """Lines of docstrings that begin with one of :data:`OPENERS`, those behind variables too."""
    if not re.search(f'"""{OPENERS.pattern}', source):
        return []  # Parsing every file would take seconds.
    bodies = (getattr(node, "body", ()) for node in ast.walk(ast.parse(source)))
    found = (one for body in bodies if isinstance(body, list) for one in body)
    values = (one.value for one in found if isinstance(one, ast.Expr))
    texts = (one for one in values if isinstance(one, ast.Constant))
    return sorted(one.lineno for one in texts if OPENERS.match(str(one.value)))


def test_every_page_of_a_room_is_short() -> None:
    lengths = {
        path.parent.name: len(path.read_text().splitlines())
        for path in sorted(SOURCE.rglob("README.md"))
    }
    assert len(lengths) > 15
    assert not {name: num for name, num in lengths.items() if not 20 <= num <= 40}


def test_the_files_that_the_pages_of_rooms_name_are_there() -> None:
    pages = sorted(SOURCE.rglob("README.md"))
    assert pages
    for page in pages:
        named = set(re.findall(r"`([\w/]+\.py)`", page.read_text()))
        inside = {path.relative_to(page.parent).as_posix() for path in page.parent.rglob("*.py")}
        inside |= {path.rpartition("/")[2] for path in inside}
        roots = (SOURCE, SOURCE.parents[1])
        gone = [n for n in named - inside if not any((root / n).exists() for root in roots)]
        assert not gone, page


def test_the_design_lists_each_module_that_has_state() -> None:
    page = (SOURCE.parent.parent / "docs" / "design.md").read_text()
    table = page.partition("## State of the process")[2].partition("\n## ")[0]
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if any(module_state(ast.parse(path.read_text())))
    }
    assert len(found) > 10
    assert not {file for file in found if f"`{file}`" not in table}


def test_state_of_a_module_is_found() -> None:
    source = """
LIMIT = 3
_weak = weakref.WeakSet()
_known: dict[str, int] = {}
_count = 0
def step():
    global _count
    _count += 1
"""
    assert set(module_state(ast.parse(source))) == {"_weak", "_known", "_count"}


_MAKES_STATE = ("WeakSet", "WeakKeyDictionary", "WeakValueDictionary", "ContextVar", "count")


def module_state(tree: ast.Module) -> Iterator[str]:
    """Names of a module that change: what functions rebind, collections that begin empty."""
    rebound = {
        name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names
    }
    for node in tree.body:
        if isinstance(node, ast.Assign):
            target: ast.expr = node.targets[0]
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            target = node.target
        else:
            continue
        if isinstance(target, ast.Name) and (target.id in rebound or _begins_empty(node.value)):
            yield target.id


def _begins_empty(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        made = ast.unparse(value.func).rpartition(".")[2]
        return made in _MAKES_STATE or (made in ("set", "list", "dict") and not value.args)
    return (isinstance(value, ast.Dict) and not value.keys) or (
        isinstance(value, ast.List) and not value.elts
    )

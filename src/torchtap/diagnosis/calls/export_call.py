"""Writes a held call as a script of its own, which needs torch, safetensors and the class."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from types import ModuleType

from torchtap.core.errors import InputError
from torchtap.diagnosis.calls.call import Call, title_of
from torchtap.diagnosis.calls.call_folder import write_both, written
from torchtap.diagnosis.calls.standalone import read_call, run_again, script, surroundings

_PARTS: tuple[ModuleType, ...] = (surroundings, run_again, read_call, script)


def export_call(call: Call, path: Path) -> Path:
    """Write the script and the file beside it; see :meth:`Call.export`."""
    if path.suffix != ".py":
        raise InputError(f"{path} is no name of a script; give one that ends in .py.")
    text, tensors = written(call)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".safetensors")
    write_both(path, script_text(call, text), beside, tensors, metadata={"call": text})
    return path


def script_text(call: Call, text: str) -> str:
    """Return the script of a call that was written as ``text``."""
    head = title_of(call)
    bodies, imports = [], set[str]()
    for part in _PARTS:
        assert part.__file__ is not None
        source = Path(part.__file__).read_text(encoding="utf-8")
        own, body = _taken_apart(source)
        imports.update(own)
        bodies.append(body)
    folders = [str(folder) for folder in _folders(text)]
    return "\n".join(
        [
            f'"""{head[0].upper()}{head[1:]}, as it was recorded: runs again, and compares."""',
            "",
            "from __future__ import annotations",
            "",
            *sorted(imports),
            "",
            f"sys.path[:0] = {folders!r}  # Where the module's class was imported from.",
            "",
            *bodies,
            "",
            'if __name__ == "__main__":',
            "    sys.exit(main(__file__))",
            "",
        ]
    )


def _taken_apart(source: str) -> tuple[list[str], str]:
    """Return the imports of a file, without our own, and its text without imports and docstring."""
    lines = source.splitlines()
    imports = []
    for number, node in enumerate(ast.parse(source).body):
        is_docstring = number == 0 and isinstance(node, ast.Expr)
        is_import = isinstance(node, ast.Import | ast.ImportFrom)
        if (
            is_import
            and "torchtap" not in ast.unparse(node)
            and "__future__" not in ast.unparse(node)
        ):
            imports.append(ast.unparse(node))
        if is_docstring or is_import:
            assert node.end_lineno is not None
            for place in range(node.lineno - 1, node.end_lineno):
                lines[place] = ""
    return imports, "\n".join(lines).strip("\n") + "\n\n"


def _folders(text: str) -> Iterator[PurePath]:
    """Folders from which the classes were imported that are of no installed package."""
    seen = set()
    for name in _packages(text):
        package = sys.modules.get(name.partition(".")[0])
        file = getattr(package, "__file__", None)
        if package is None or file is None or _is_installed(package.__name__, file):
            continue
        path = PurePath(file).parent
        folder = path.parent if hasattr(package, "__path__") else path
        if folder not in seen:
            seen.add(folder)
            yield folder


def _packages(text: str) -> Iterable[str]:
    """Modules of Python of which something is imported by name."""
    return dict.fromkeys(re.findall(r'"([\w.]+):[\w.]+"', text))


def _is_installed(name: str, file: str) -> bool:
    parts = {*PurePath(file).parts}
    return name in sys.stdlib_module_names or bool({"site-packages", "dist-packages"} & parts)

"""The package as a user meets it: what it offers, what it costs to import, what it promises."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from face import SNAPSHOT, face

import torchtap as tt

SOURCE = Path(tt.__file__).parent
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(tt.__path__, "torchtap.")
    if not module.name.endswith("__main__")
)
CALLABLES = [name for name in tt.__all__ if callable(getattr(tt, name))]


def python(code: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- names ------------------------------------------------------------------------------------


def test_every_name_of_the_face_is_there() -> None:
    for name in tt.__all__:
        assert getattr(tt, name) is not None


def test_the_face_is_sorted_and_named_once() -> None:
    names = list(tt.__all__)[1:]
    assert names == sorted(set(names))
    assert dir(tt) == sorted(tt.__all__)


def test_the_type_checker_sees_the_same_names() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    named = {
        alias.asname or alias.name
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname  # An import that is not named again is not for users.
    }
    named |= {
        target.id
        for node in block.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    assert named == set(tt.__all__) - {"__version__"}


def test_the_type_checker_sees_them_at_home() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    for node in ast.walk(block):
        if isinstance(node, ast.ImportFrom) and node.module:
            home = importlib.import_module(node.module)
            for alias in node.names:
                found = getattr(home, alias.name)
                name = {"open_run": "open"}.get(alias.name, alias.asname or alias.name)
                assert getattr(tt, name) is found


@pytest.mark.parametrize("name", ["wach", "hooks_", "Tap", "np"])
def test_a_name_that_is_not_of_the_face_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=f"'torchtap' has no attribute '{name}'"):
        getattr(tt, name)


def test_no_name_of_the_face_is_shadowed_by_a_submodule() -> None:
    # Where a module has the name of something of the face, it must be that very thing.
    for name in set(tt.__all__) & {module.partition(".")[2] for module in MODULES}:
        assert getattr(tt, name) is importlib.import_module(f"torchtap.{name}")


_SHOW = """
import importlib, sys, torchtap as tt
for name in sys.argv[1:]:
    importlib.import_module(name)
for name in tt.__all__:
    value = getattr(tt, name)
    print(name, getattr(value, "__module__", ""), getattr(value, "__name__", value))
"""


@pytest.mark.slow
def test_importing_every_submodule_first_changes_no_name_of_the_face() -> None:
    assert python(_SHOW, *MODULES) == python(_SHOW)


def test_a_change_of_a_signature_shows_in_the_snapshot() -> None:
    assert face() == SNAPSHOT.read_text(), "intended? Run `python tests/support/face.py`."


def test_every_error_of_ours_is_in_the_face() -> None:
    from torchtap.core import errors

    ours = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert ours <= set(tt.__all__)


def test_every_error_stands_in_the_tree_of_errors() -> None:
    from torchtap.core import errors

    drawn = errors.__doc__ or ""
    for name, value in vars(errors).items():
        if inspect.isclass(value):
            assert name in drawn


# --- what an import costs ---------------------------------------------------------------------

_HEAVY = "print([name for name in ('torch', 'numpy', 'matplotlib') if name in sys.modules])"


@pytest.mark.parametrize(
    "code",
    [
        "import torchtap",
        "import torchtap.core.errors, torchtap.core.site, torchtap.core.record",
        "import torchtap; torchtap.Site('fc'); torchtap.Pattern.parse('*'); torchtap.InputError",
        "import torchtap.cli.app",
        "import torchtap; dir(torchtap)",
    ],
)
def test_what_needs_no_torch_does_not_import_it(code: str) -> None:
    assert python(f"import sys; {code}; {_HEAVY}").strip() == "[]"


def test_what_needs_torch_is_seen_to_import_it() -> None:
    assert "torch" in python(f"import sys, torchtap; torchtap.watch; {_HEAVY}")


def test_help_does_not_import_torch() -> None:
    code = f"""
import sys
from torchtap.cli.app import run
assert run(["--help"]) == 0
{_HEAVY}
"""
    out = python(code)
    assert out.startswith("Usage")
    assert out.splitlines()[-1] == "[]"


def test_the_ground_floor_imports_nothing_heavy() -> None:
    for name in ("errors", "site", "record"):
        tree = ast.parse((SOURCE / "core" / f"{name}.py").read_text())
        roots = {
            (node.module or "").partition(".")[0]
            for node in tree.body  # Those under TYPE_CHECKING are deeper.
            if isinstance(node, ast.ImportFrom)
        } | {
            alias.name.partition(".")[0]
            for node in tree.body
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        assert roots <= set(sys.stdlib_module_names) | {"torchtap"}


def test_importing_draws_no_random_number_and_changes_no_setting() -> None:
    code = """
import torch
before = torch.get_rng_state(), torch.get_num_threads(), torch.is_grad_enabled()
import importlib, pkgutil, torchtap
torchtap.watch, torchtap.measure, torchtap.plot
after = torch.get_rng_state(), torch.get_num_threads(), torch.is_grad_enabled()
print(torch.equal(before[0], after[0]) and before[1:] == after[1:])
"""
    assert python(code).strip() == "True"


# --- docstrings -------------------------------------------------------------------------------


def documented() -> dict[str, Any]:
    """``edits.zero`` -> the object, of all that a user may call, in the libraries too."""
    homes = {"": tt, "integrations.": importlib.import_module("torchtap.integrations")}
    homes |= {f"{name}.": getattr(tt, name) for name in ("edits", "stats", "plot", "codecs")}
    names = {
        f"{home}{name}": getattr(where, name)
        for home, where in homes.items()
        for name in where.__all__
    }
    return {name: value for name, value in names.items() if callable(value)}


DOCUMENTED = documented()


def members(value: Any) -> list[tuple[str, Any]]:
    """A class or function and the public methods that its class defines itself."""
    found = [(value.__name__, value)]
    if inspect.isclass(value):
        for name, member in vars(value).items():
            plain = getattr(member, "__func__", getattr(member, "fget", member))
            if not name.startswith("_") and inspect.isfunction(plain):
                found.append((f"{value.__name__}.{name}", plain))
    return found


@pytest.mark.parametrize("name", CALLABLES)
def test_everything_public_has_a_docstring(name: str) -> None:
    bare = [where for where, value in members(getattr(tt, name)) if not inspect.getdoc(value)]
    assert bare == []


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_entry_has_an_example_that_runs(name: str) -> None:
    value = DOCUMENTED[name]
    home = importlib.import_module(value.__module__)
    finder = doctest.DocTestFinder(recurse=True)
    tests = finder.find(value, name, module=home, globs=dict(vars(home)))
    assert sum(len(test.examples) for test in tests) > 0
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    runner = doctest.DocTestRunner(optionflags=flags)
    for test in tests:
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


def test_an_example_that_is_wrong_is_noticed() -> None:
    test = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    runner = doctest.DocTestRunner()
    runner.run(test, out=lambda text: None)
    assert runner.failures == 1


def test_the_package_says_that_it_is_typed() -> None:
    assert (SOURCE / "py.typed").exists()


def test_the_version_is_one() -> None:
    from importlib.metadata import version

    assert tt.__version__ == version("torchtap")

"""The doors of ``tt.explain_errors`` beside the block: lists, decorators, hooks, shells, pytest."""

from __future__ import annotations

import asyncio
import contextlib
import io
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchtap as tt

SAID = "torchtap: 1 (Linear) takes 8 features"
NET = "import torch\nnet = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(8, 2))\n"


def wrong_net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(8, 2))


def python(source: str, *, folder: Path) -> str:
    """Run a script in a process of its own, and return what it printed on stderr."""
    (folder / "script.py").write_text(source)
    done = subprocess.run(
        [sys.executable, str(folder / "script.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    return done.stderr


def test_a_block_hands_out_the_notes_that_it_adds() -> None:
    with pytest.raises(RuntimeError) as caught, tt.explain_errors() as notes:
        assert notes == []
        wrong_net()(torch.ones(5, 4))
    assert notes == caught.value.__notes__
    with tt.explain_errors() as none:
        pass
    assert none == []


def test_a_decorated_function_is_explained_at_each_call() -> None:
    @tt.explain_errors()
    def run(rows: int, *, width: int = 4) -> Any:
        """Run the net."""
        return wrong_net()(torch.ones(rows, width))

    assert (run.__name__, run.__doc__) == ("run", "Run the net.")
    for _ in range(2):
        with pytest.raises(RuntimeError) as caught:
            run(5)
        assert [one[: len(SAID)] for one in caught.value.__notes__] == [SAID]


def test_a_decorated_coroutine_is_explained_when_it_raises() -> None:
    @tt.explain_errors()
    async def run() -> Any:
        await asyncio.sleep(0)
        return wrong_net()(torch.ones(5, 4))

    with pytest.raises(RuntimeError) as caught:
        asyncio.run(run())
    assert caught.value.__notes__[0].startswith(SAID)


def test_generators_are_not_decorated() -> None:
    def rows() -> Iterator[int]:
        yield 1

    async def later_rows() -> AsyncIterator[int]:
        yield 1

    for function in (rows, later_rows):
        with pytest.raises(tt.InputError, match="rows, a generator function"):
            tt.explain_errors()(function)


def test_everywhere_what_nothing_catches_is_explained(tmp_path: Path) -> None:
    on = "import torchtap as tt\nhandle = tt.explain_errors(everywhere=True)\n"
    raising = "net(torch.ones(5, 4))\n"
    plain = python(NET + raising, folder=tmp_path)
    explained = python(NET + on + raising, folder=tmp_path)
    assert "torchtap" not in plain
    assert explained.index("mat1 and mat2") < explained.index(SAID)
    assert SAID not in python(
        NET + on + "handle.close()\nhandle.close()\n" + raising, folder=tmp_path
    )
    as_block = "import torchtap as tt\nwith tt.explain_errors(everywhere=True) as notes:\n    "
    assert python(NET + as_block + raising, folder=tmp_path).count(SAID) == 1


def test_everywhere_threads_are_explained_and_other_hooks_stay() -> None:
    seen: list[list[str]] = []

    def hook(raised: threading.ExceptHookArgs) -> None:
        seen.append(list(getattr(raised.exc_value, "__notes__", [])))

    before, threading.excepthook = threading.excepthook, hook
    outer = sys.excepthook
    try:
        handle = tt.explain_errors(everywhere=True)
        thread = threading.Thread(target=lambda: wrong_net()(torch.ones(5, 4)))
        thread.start()
        thread.join()
        assert [one.startswith(SAID) for (one,) in seen] == [True]
        assert [one.startswith(SAID) for one in handle.notes] == [True]
        handle.close()
        assert (threading.excepthook, sys.excepthook) == (hook, outer)
    finally:
        threading.excepthook = before


def test_a_hook_that_was_put_on_top_stays_and_is_told_nothing_more() -> None:
    before = sys.excepthook
    handle = tt.explain_errors(everywhere=True)
    ours = sys.excepthook

    def on_top(*raised: Any) -> None:
        ours(*raised)

    sys.excepthook = on_top
    try:
        handle.close()
        assert sys.excepthook is on_top
        error = None
        try:
            wrong_net()(torch.ones(5, 4))
        except RuntimeError as raised:
            error = raised
        with contextlib.redirect_stderr(io.StringIO()):
            sys.excepthook(RuntimeError, error, None)
        assert not hasattr(error, "__notes__")
    finally:
        sys.excepthook = before


def test_recording_and_everywhere_are_refused_together() -> None:
    with pytest.raises(tt.InputError, match="record=True and everywhere=True"):
        tt.explain_errors(record=True, everywhere=True)


def test_a_shell_that_loads_the_extension_explains_its_cells() -> None:
    interactive: Any = pytest.importorskip("IPython.core.interactiveshell")
    before = sys.excepthook, threading.excepthook
    shell = interactive.InteractiveShell.instance(colors="nocolor")
    shown = io.StringIO()
    try:
        with contextlib.redirect_stdout(shown):
            shell.run_cell(NET)
            shell.run_cell("%load_ext torchtap")
            shell.run_cell("net(torch.ones(5, 4))")
            told = shown.getvalue()
            shell.run_cell("%unload_ext torchtap")
            shell.run_cell("net(torch.ones(5, 4))")
    finally:
        interactive.InteractiveShell.clear_instance()
    assert told.count(SAID) == shown.getvalue().count(SAID) == 1
    assert shown.getvalue().count("mat1 and mat2 shapes cannot be multiplied") == 2
    assert (sys.excepthook, threading.excepthook) == before


def _explained_by_pytest(folder: Path, *options: str) -> list[str]:
    """Run the tests of a folder; the lines of their errors."""
    plugin = _plugin_if_missing(["-p", "torchtap.failures.pytest_plugin"])
    command = [sys.executable, "-m", "pytest", "-q", *plugin, *options, str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    # The summary below repeats the whole message where the variable CI is set.
    return [line for line in done.stdout.splitlines() if line.startswith("E ")]


def test_pytest_explains_where_it_is_asked_to(tmp_path: Path) -> None:
    (tmp_path / "test_net.py").write_text(NET + "def test_it():\n    net(torch.ones(5, 4))\n")
    assert sum(SAID in line for line in _explained_by_pytest(tmp_path)) == 0
    explained = _explained_by_pytest(tmp_path, "--torchtap-explain")
    assert sum(SAID in line for line in explained) == 1


def test_pytest_explains_fixtures_and_tests_of_unittest(tmp_path: Path) -> None:
    program = NET + (
        "import pytest\nimport unittest\n\n\n"
        "class Tests(unittest.TestCase):\n"
        "    def test_method(self):\n        net(torch.ones(5, 4))\n\n\n"
        "@pytest.fixture\ndef out():\n    return net(torch.ones(5, 4))\n\n\n"
        "def test_fixture(out):\n    pass\n\n\n"
        "def test_expected():\n"
        "    with pytest.raises(RuntimeError):\n        net(torch.ones(5, 4))\n"
    )
    (tmp_path / "test_net.py").write_text(program)
    explained = _explained_by_pytest(tmp_path, "--torchtap-explain")
    assert sum(SAID in line for line in explained) == 2


def test_no_line_of_pytest_is_named_as_the_write(tmp_path: Path) -> None:
    program = (
        "import torch\n\n\ndef test_it():\n    x = torch.ones(3, requires_grad=True)\n"
        "    y = x.exp(); y += 1; y.sum().backward()\n"
    )
    (tmp_path / "test_program.py").write_text(program)
    text = "\n".join(_explained_by_pytest(tmp_path, "--torchtap-explain"))
    assert "overwritten in place" in text
    assert "y += 1" in text
    assert "runner.py" not in text


def _plugin_if_missing(plugin: list[str]) -> list[str]:
    """Name the plugin where an older installation does not yet have its entry point."""
    from importlib.metadata import entry_points

    return [] if "torchtap" in entry_points(group="pytest11").names else plugin

"""The source keeps its shape: how rooms depend on each other, and how short the ways are.

``tools/shape.py`` measures, and has the limits. A figure that grew says that a thing stands in the
wrong room, or that a layer was added that only passes on.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import torchtap as tt
from torchtap.stats.kernels import native

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture(scope="module")
def shape() -> ModuleType:
    """``tools/shape.py`` as a module."""
    spec = importlib.util.spec_from_file_location("shape", TOOLS / "shape.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rooms_depend_on_few_others(shape: ModuleType) -> None:
    boxes, arrows = shape.arrows_between()
    assert len(boxes) <= shape.MOST_BOXES
    assert sum(map(len, arrows.values())) <= shape.MOST_ARROWS, arrows
    assert max(shape.floors(arrows, boxes).values()) <= shape.MOST_FLOORS
    assert not [box for box in boxes if box in shape.reached(arrows, box)]


def test_only_the_rooms_above_the_face_use_it(shape: ModuleType) -> None:
    users = shape.users_of_the_face()
    assert set(users) == {"cli", "testing"}
    assert all(names <= {*tt.__all__} for names in users.values())


@pytest.mark.skipif(not native.takes_calls(), reason="plain calls are not taken natively here")
def test_ways_enter_few_files_and_functions(shape: ModuleType) -> None:
    # In a process of its own: what other tests imported and left behind is entered too.
    command = [sys.executable, str(TOOLS / "shape.py"), "--ways"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = re.findall(r"^(.+?) +(\d+) files +(\d+) functions$", done.stdout, re.MULTILINE)
    found = {name: (int(files), int(functions)) for name, files, functions in lines}
    assert found.keys() >= shape.MOST_ENTERED.keys()
    too_long = {
        name: found[name]
        for name, most in shape.MOST_ENTERED.items()
        if found[name][0] > most[0] or found[name][1] > most[1]
    }
    assert not too_long, "`python tools/shape.py --enters WAY` lists what a way enters"


def test_what_a_call_enters_is_counted(shape: ModuleType) -> None:
    result, entered = shape.entered(lambda: tt.Site.parse("fc:output"))
    assert str(result) == "fc:output"
    assert "core/site.py" in {file for file, *_ in entered}

"""Pages that are made from the code: public names by section, and the commands."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import click
from public_names import LIBRARIES, NAMES
from sphinx.pycode import ModuleAnalyzer

from torchtap.cli.app import cli

ROOT = Path(__file__).resolve().parents[2]
# Where the methods of a class end that are of Python or PyTorch.
_OF_OTHERS = (
    "object, tuple, Exception, ValueError, LookupError, RuntimeError, Warning, Protocol, Module"
)


def name_pages() -> dict[str, str]:
    """``reference/api/watching.md`` -> its text: the names of one section of the table each."""
    pages: dict[str, list[str]] = {}
    order = list(_SECTIONS)
    for name in sorted(NAMES, key=lambda one: order.index(last(one)) if last(one) in order else -1):
        pages.setdefault(page_of(name), []).append(name)
    return {page: _page(names) for page, names in sorted(pages.items())}


def page_of(name: str) -> str:
    """Return the page of a name: of its library, or its section in ``docs/reference/api.md``."""
    short = name.removeprefix("torchtap.")
    library = short.partition(".")[0]
    if library in LIBRARIES:
        return f"reference/api/{library}.md"
    return f"reference/api/{_slug(_SECTIONS[short.rpartition('.')[2]])}.md"


def last(name: str) -> str:
    """A name as the table has it: ``watch``, ``plot.series``."""
    return name.removeprefix("torchtap.").removeprefix("integrations.")


def _sections() -> dict[str, str]:
    found, section = {}, ""
    for line in (ROOT / "docs" / "reference" / "api.md").read_text().splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif named := re.match(r"\| \[?`(?:tt\.)?([\w.]+)`", line):
            found[named[1]] = section
    return found


def _slug(title: str) -> str:
    return title.lower().replace(" ", "_")


_SECTIONS = _sections()


def _page(names: list[str]) -> str:
    library = names[0].split(".")[1] if names[0].split(".")[1] in LIBRARIES else ""
    title = f"tt.{library}" if library else _SECTIONS[names[0].rpartition(".")[2]]
    return f"# {title}\n\n" + "\n".join(_entry(name, NAMES[name]) for name in names)


def _entry(name: str, value: Any) -> str:
    short = name if "integrations" in name else name.replace("torchtap.", "tt.", 1)
    if isinstance(value, ModuleType):
        return f"```{{eval-rst}}\n.. automodule:: {name}\n```\n"
    kind = "class" if inspect.isclass(value) else "function" if callable(value) else "data"
    options = ""
    if kind == "class":
        options = f"   :members:\n   :inherited-members: {_OF_OTHERS}\n"
        if issubclass(value, Exception):
            options = "   :show-inheritance:\n"
    if kind == "data":  # autodoc would show the docstring of ``list``.
        return f"## {short}\n\n```{{eval-rst}}\n.. py:data:: {name}\n\n{_text_of_data(name)}\n```\n"
    return f"## {short}\n\n```{{eval-rst}}\n.. auto{kind}:: {name}\n{options}```\n"


def _text_of_data(name: str) -> str:
    """The docstring below an assignment."""
    home, _, attribute = name.rpartition(".")
    module = NAMES[home].__name__
    lines = ModuleAnalyzer.for_module(module).find_attr_docs()["", attribute]
    return "\n".join(f"   {line}" for line in lines)


def command_page() -> str:
    """The help of every command, as the terminal shows it."""
    parts = [
        "# Commands and their options\n",
        "`torchtap COMMAND --help` prints these texts. [The command line](command_line.md) "
        "says how the commands belong together.\n",
    ]
    context = click.Context(cli, info_name="torchtap", max_content_width=90, terminal_width=90)
    parts.append(f"```text\n{cli.get_help(context)}\n```\n")
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        if command is not None and not command.hidden:
            own = click.Context(command, info_name=name, parent=context, terminal_width=90)
            parts.append(f"## torchtap {name}\n\n```text\n{command.get_help(own)}\n```\n")
    return "\n".join(parts)

"""Settings of Sphinx for the site that ``tools/site/build.py`` builds."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from docutils import nodes
from public_names import REAL_NAMES

import torchtap

project = "torchtap"
author = "The torchtap developers"
version = release = torchtap.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["files/**"]

# Markdown as it is read on a page of a repository: the same anchors, and nothing more.
myst_heading_anchors = 5
myst_enable_extensions: list[str] = []

# Docstrings are reStructuredText in Google's form.
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 80
python_use_unqualified_type_names = True
add_module_names = False
viewcode_follow_imported_members = True

html_theme = "furo"
html_title = f"torchtap {release}"
html_static_path = ["_static"]
html_css_files = ["torchtap.css"]
html_js_files = ["versions_menu.js"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
pygments_style = "friendly"
pygments_dark_style = "github-dark"


def _import_types() -> None:
    """Import what files name in signatures alone, so that a signature shows types, not texts."""
    for name in torchtap.__all__:
        getattr(torchtap, name)  # The face is lazy.
    for file in [one for name, one in sys.modules.items() if name.startswith("torchtap.")]:
        path = Path(file.__file__ or "")
        for node in ast.parse(path.read_text() if path.suffix == ".py" else "").body:
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                with suppress(ImportError):  # A library that is not installed here.
                    exec(compile(ast.Module(node.body, []), "", "exec"), vars(file))


def _point_to_the_public_name(
    app: Any, env: Any, node: nodes.Element, content: nodes.Element
) -> nodes.reference | None:
    """Resolve what a docstring calls by the file it lies in: ``torchtap.capture.watch.watch``."""
    target = str(node.get("reftarget", "")).lstrip("~.")
    public = REAL_NAMES.get(target) or REAL_NAMES.get(target.rpartition(".")[2])
    if node.get("refdomain") != "py" or public is None or public == target:
        return None
    domain = env.get_domain("py")
    found: nodes.reference | None = domain.resolve_xref(
        env, node["refdoc"], app.builder, "obj", public, node, content
    )
    return found


def _hide_signatures_that_are_not_called(
    app: Any, what: str, name: str, obj: Any, *rest: Any
) -> tuple[str, None] | None:
    """Leave out how a handle is made that a function of the face returns."""
    first = (inspect.getdoc(obj) or "").partition("\n")[0]
    return (
        ("", None)
        if what == "class" and first.startswith(("The result of", "The verdict of"))
        else None
    )


def _link_pages(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Make links of the pages that a docstring names by their place in the repository."""
    lines[:] = [re.sub(r"(?:``)?docs/([\w/]+)\.md(?:``)?", r":doc:`/\1`", line) for line in lines]


def setup(app: Any) -> None:
    """Called by Sphinx."""
    _import_types()
    app.connect("missing-reference", _point_to_the_public_name)
    app.connect("autodoc-process-docstring", _link_pages)
    app.connect("autodoc-process-signature", _hide_signatures_that_are_not_called)

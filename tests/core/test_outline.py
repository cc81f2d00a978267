"""Module paths as an indented tree."""

from __future__ import annotations

from torchtap.core.outline import tree


def test_a_tree_indents_below_the_nearest_module_that_is_shown() -> None:
    assert tree(["", "a.b", "a.b.c.d", "a.bc"]) == [".", "  a.b", "    c.d", "  a.bc"]
    assert tree(["a.b", "a.c"]) == ["a.b", "a.c"]

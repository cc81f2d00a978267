"""Module paths as an indented tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def tree(paths: Sequence[str]) -> list[str]:
    """Paths as a tree: indented below the nearest module above that has a line of its own.

    Example:
        >>> tree(["", "a.0", "a.0.conv", "b"])
        ['.', '  a.0', '    conv', '  b']
    """
    labels: dict[str, tuple[str, int]] = {}
    for path in paths:
        above = _above(path, labels)
        if above is None:
            labels[path] = (path or ".", 0)
        else:
            own = path[len(above) + 1 :] if above else path
            labels[path] = (own, labels[above][1] + 1)
    return ["  " * labels[path][1] + labels[path][0] for path in paths]


def outline(paths: Sequence[str]) -> list[str]:
    """Draw paths as a tree if each comes right below what it is in; in other orders, whole paths.

    Example:
        >>> outline(["", "a", "a.0"]), outline(["a.0", "a"])
        (['.', '  a', '    0'], ['a.0', 'a'])
    """
    known, open_paths = set(paths), list[str]()
    for path in paths:
        above = _above(path, known)
        while open_paths and open_paths[-1] != above:
            open_paths.pop()
        if above is not None and not open_paths:
            return [one or "." for one in paths]
        open_paths.append(path)
    return tree(paths)


def _above(path: str, known: Iterable[str]) -> str | None:
    known = set(known)
    while path:
        path = path.rpartition(".")[0]
        if path in known:
            return path
    return None

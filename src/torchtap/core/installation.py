"""Read the versions of installed packages without importing anything."""

from __future__ import annotations

import platform
from importlib import metadata

from torchtap.core.version import __version__


def versions() -> str:
    """Versions of torchtap, torch, numpy and Python, in one line."""
    return ", ".join(f"{name} {number}" for name, number in versions_of().items())


def versions_of(*further: str) -> dict[str, str]:
    """Name -> version, of torchtap, torch, numpy, Python and what else is asked for.

    Args:
        further: distributions; one that is not installed is left out.

    Example:
        >>> list(versions_of())
        ['torchtap', 'torch', 'numpy', 'Python']
    """
    by_name = {"torchtap": __version__}
    for name in ("torch", "numpy", *further):
        try:
            by_name[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            if name not in further:
                by_name[name] = "not installed"
    return {**by_name, "Python": platform.python_version()}

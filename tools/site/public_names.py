"""Everything public: the page each name has, and the file that each name comes from."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import torchtap
from torchtap import integrations

LIBRARIES = ("edits", "stats", "plot", "codecs", "rules")


def public_names() -> dict[str, Any]:
    """``torchtap.watch`` -> the object, of all that a user may import."""
    homes: dict[str, Any] = {"torchtap": torchtap, "torchtap.integrations": integrations}
    homes |= {f"torchtap.{name}": getattr(torchtap, name) for name in LIBRARIES}
    found: dict[str, Any] = {}
    for home, module in homes.items():
        for name in module.__all__:
            if name != "__version__" and (module is torchtap or name not in torchtap.__all__):
                found[f"{home}.{name}"] = getattr(module, name)
    return found


def _real_names(names: dict[str, Any]) -> dict[str, str]:
    """``torchtap.capture.watch.watch`` and ``watch`` -> ``torchtap.watch``; methods as well."""
    found: dict[str, str] = {}
    for public, value in names.items():
        if isinstance(value, ModuleType):
            found[value.__name__] = public
            continue
        if not hasattr(value, "__module__"):  # Plain data, such as the list of all rules.
            continue
        real = f"{value.__module__}.{getattr(value, '__qualname__', public.rpartition('.')[2])}"
        found[real] = found[real.rpartition(".")[2]] = public
        if inspect.isclass(value):
            short = real.rpartition(".")[2]
            for member in vars(value):
                if not member.startswith("_"):
                    found[f"{real}.{member}"] = f"{public}.{member}"
                    found[f"{short}.{member}"] = f"{public}.{member}"
    return found


NAMES = public_names()
REAL_NAMES = _real_names(NAMES)

"""Check the request to ``tt.offload``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from torchtap.core.errors import InputError
from torchtap.core.modules import Where, several
from torchtap.core.site import Pattern
from torchtap.saved.parse_tiers import is_number

OnFull = Literal["wait", "keep", "raise"]
Missing = Literal["error", "ignore"]

_CHECKPOINT = "checkpoint_inputs"


def check_request(*, model: Any, where: Where, only: Any, missing: Any, **given: Any) -> None:
    """Refuse the arguments of ``tt.offload`` that do not fit.

    Raises:
        InputError: of the first of them.
    """
    _check_bytes(**given)
    if only not in (None, _CHECKPOINT):
        raise InputError(f"only is {only!r}; expected {_CHECKPOINT!r}.")
    if missing not in ("error", "ignore"):
        raise InputError(f"missing is {missing!r}; expected 'error' or 'ignore'.")
    if model is None and where != "*":
        raise InputError(f"where is {where!r}, which chooses modules of a model: pass model=.")


def _check_bytes(**given: Any) -> None:
    for name in ("min_bytes", "max_bytes", "keep_last"):
        value = given[name]
        if not (value is None and name != "min_bytes") and not is_number(value):
            raise InputError(f"{name} is {value!r}; expected a number of bytes from 0.")
    if given["on_full"] not in ("wait", "keep", "raise"):
        raise InputError(f"on_full is {given['on_full']!r}; expected 'wait', 'keep' or 'raise'.")
    most, last = given["max_bytes"], given["keep_last"]
    if most is not None and last is not None and last > most:
        raise InputError(
            f"keep_last is {last:,} and max_bytes {most:,}: more is to be kept than may be in "
            f"memory. Give keep_last at most max_bytes; a quarter less leaves room for what is on "
            f"its way."
        )


def check_no_ports(where: Where) -> None:
    """Refuse patterns with a port: offloading takes whole modules."""
    for item in several(where):
        pattern = Pattern.parse(item) if isinstance(item, str) else item
        if isinstance(pattern, Pattern) and (pattern.ports is not None or pattern.leaf):
            bare = replace(pattern, ports=None, leaf="")
            raise InputError(
                f"where holds {str(pattern)!r}, with a port; offloading takes whole modules. Write "
                f"{str(bare)!r}."
            )

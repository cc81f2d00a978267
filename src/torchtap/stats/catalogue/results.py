"""Results of the further statistics, and what stands where there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchtap.core.did_you_mean import did_you_mean
from torchtap.core.errors import RunError
from torchtap.stats.catalogue.kinds import named_value

OF_SHARDS = "the ranks have shards, whose places and features are not those of the whole."
UNKNOWN_CUT = "the ranks have parts of which it is not known along which dim they were cut."


@named_value
@dataclass(frozen=True, slots=True)
class Missing:
    """Stands in the place of a result that is not available."""

    why: str


class Extra(dict[str, Any]):
    """Name -> result of the further statistics; reading one that is missing says why it is.

    A missing one stands in the dict as :class:`Missing`, so that copying or printing the whole
    does not lose it.

    Args:
        results: name -> result.
        where: of which site and step, for messages.
        missing: name -> why it is not available.
    """

    def __init__(
        self,
        results: Mapping[str, Any] | None = None,
        *,
        where: str = "",
        missing: Mapping[str, str] | None = None,
    ) -> None:
        self.where = where
        self.missing = dict(missing or {})
        super().__init__(results or {})
        self.update((name, Missing(why)) for name, why in self.missing.items())

    def __getitem__(self, name: str) -> Any:
        if name in self.missing:
            raise RunError(f"{name!r}{self._here} is not available: {self.missing[name]}")
        return super().__getitem__(name)

    def __missing__(self, name: str) -> Any:
        here = self._here
        known = list(self)
        if not known:
            raise RunError(
                f"There is no {name!r}{here}: no further statistic was asked for. Measure with "
                f"tt.Stats(statistics=[...])."
            )
        raise RunError(f"There is no further statistic {name!r}{here}{did_you_mean(name, known)}")

    @property
    def _here(self) -> str:
        return f" of {self.where}" if self.where else ""

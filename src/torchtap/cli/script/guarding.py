"""Guards what a script trains, and remembers what was found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchtap.core.closable import abandon

if TYPE_CHECKING:
    from torch import nn

    import torchtap as tt


class Guarding:
    """The guards of the models of one script. They end the training at the first NaN or Inf."""

    def __init__(self) -> None:
        self._guards: dict[int, tuple[Any, tt.Guard]] = {}

    def found(self, model: nn.Module) -> None:
        """Guard a model; a wrapper that compiles it takes the place of the model."""
        import torchtap as tt
        from torchtap.core.module_paths import unwrapped

        root = unwrapped(model)
        known = self._guards.pop(id(root), None)
        if known is not None:
            abandon(known[1])
        self._guards[id(root)] = root, tt.guard(model)

    @property
    def origin(self) -> tt.Origin | None:
        """Return what was found first."""
        origins = (guard.origin for _, guard in self._guards.values())
        return next((one for one in origins if one is not None), None)

    def close(self) -> None:
        """Take the guards off."""
        for _, guard in self._guards.values():
            abandon(guard)

"""Make a map anew, with another model or other inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from torch import Tensor, nn

    from torchtap.core.site import Site
    from torchtap.explain.subject import Subject
    from torchtap.explain.target import Target

Made = TypeVar("Made")
"""A map."""


@dataclass(frozen=True, eq=False, slots=True)
class Recipe(Generic[Made]):
    """The recipe that ``tt.cam`` and ``tt.attribute`` leave in ``Map.again``, for ``Map.check``.

    It holds the model and the inputs, so a map keeps them alive. ``Map.detached`` lets them go.

    Attributes:
        subject: the model and the inputs that were explained.
        target: what was explained; it has scored already, so that ``None`` stays the classes that
            had won.
        make: makes the map of a subject and a target with the settings of the first time. It
            enters ``subject.held()`` itself. Layers are named by their paths (the layer that was
            chosen, where none was given): the model may be a copy with other weights.
        over: name of the tensor in ``subject.inputs`` that the map lies over.
        site: the site inside the model that the map lies over, in place of an input.
        call: which call of the site's module.
    """

    subject: Subject
    target: Target
    make: Callable[[Subject, Target], Made]
    over: str = ""
    site: Site | None = None
    call: int | None = None

    def __call__(
        self, *, model: nn.Module | None = None, inputs: Mapping[str, Tensor] | None = None
    ) -> Made:
        """Make the map of another model, or of other inputs.

        Args:
            model: takes the place of the model; its modules have the same paths.
            inputs: name -> tensor, in place of some of ``subject.inputs``.
        """
        return self.make(self.subject.changed(model=model, inputs=inputs or {}), self.target)

    def __reduce__(self) -> Any:
        raise TypeError(
            "A map that can be checked holds its model, and is not pickled. Pickle map.detached()."
        )

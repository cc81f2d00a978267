"""A zoo of tiny models, each one a trap.

    from torchtap.testing import default_loss, zoo

    @pytest.mark.parametrize("specimen", zoo(), ids=lambda specimen: specimen.name)
    def test_my_sink_survives(specimen): ...

Whatever attaches to a model should leave every specimen as it was, bit for bit.

A file holds the specimens of one kind of trap: the forwards first, then the list.

- ``nested_values``: tensors in tuples, dicts, dataclasses, caches; ``containers`` are their classes
- ``ways_of_calling``: positions, keywords, lists, nothing, parameters
- ``several_calls``: shared, recurrent and recursive modules
- ``overwriting``: modules and callers that overwrite tensors
- ``views``: a view or its base is written to
- ``same_tensor``: one tensor as several arguments, or returned as it was given
- ``grad_modes``: no_grad, inference mode, and parts without a gradient
- ``checkpoints``: reentrant and not
- ``inside_backward``: custom functions and hooks that call modules in a backward
- ``dtypes_and_layouts``: bfloat16, complex, strides, empty and 0-d tensors, nan
- ``parameters``: tied, parametrized, sparse; odd names, hooks of other code
- ``torch_modules``: LSTM, encoder layers, dropout, a plain network
- ``control_flow``: exceptions, a custom function, experts

``specimen`` says what a specimen is, and ``parts`` holds what several files use.
"""

from __future__ import annotations

from torchtap.testing.loss import default_loss
from torchtap.testing.net import Net
from torchtap.testing.zoo import (
    checkpoints,
    control_flow,
    dtypes_and_layouts,
    grad_modes,
    inside_backward,
    nested_values,
    overwriting,
    parameters,
    same_tensor,
    several_calls,
    torch_modules,
    views,
    ways_of_calling,
)
from torchtap.testing.zoo.specimen import Specimen

__all__ = ["Net", "Specimen", "default_loss", "zoo"]

_FAMILIES = (
    nested_values,
    ways_of_calling,
    several_calls,
    overwriting,
    views,
    same_tensor,
    grad_modes,
    checkpoints,
    inside_backward,
    dtypes_and_layouts,
    parameters,
    torch_modules,
    control_flow,
)


def zoo() -> list[Specimen]:
    """Every specimen, in a fixed order; names are unique.

    Example:
        >>> specimen = next(s for s in zoo() if s.name == "module_called_twice")
        >>> args, kwargs = specimen.inputs()
        >>> specimen.build()(*args, **kwargs).shape
        torch.Size([2, 3])
    """
    return [specimen for family in _FAMILIES for specimen in family.specimens()]

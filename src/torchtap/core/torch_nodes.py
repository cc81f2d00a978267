"""Classes of autograd's nodes that torchtap tells apart by their names, which PyTorch may change.

PyTorch makes these classes in C++ and documents none of them. ``tests/core/test_torch_nodes.py``
makes a node of each name, so a release that renames one fails there. A node of a name that is not
known is an operation like any other: nothing is concluded from it. Names that are only shown, as in
``tt.graph``, are read from the nodes and need no list.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

ACCUMULATE = "AccumulateGrad"
"""Adds a gradient to ``.grad`` of a leaf."""
COPY_SLICES = "torch::autograd::CopySlices"
"""An in-place operation on a view; ``node.name()``, since its class is shared by others."""
COMPILED = "CompiledFunctionBackward"
"""A whole compiled graph."""
CHECKPOINT = "CheckpointFunctionBackward"
"""A reentrant checkpoint; other libraries have copies of PyTorch's."""

CAST = "ToCopyBackward0"
"""Another dtype or device."""
TURNS = frozenset({"TBackward0", "TransposeBackward0", "PermuteBackward0"})
"""Nodes that keep the elements and put the dims in another order."""
VIEWS = frozenset(
    f"{name}Backward{number}"
    for number in "012"
    for name in (
        *("Alias", "AsStrided", "Diagonal", "Expand", "Permute", "ReshapeAlias", "Select"),
        *("Slice", "Split", "SplitWithSizes", "Squeeze", "T", "Transpose", "Unbind", "Unfold"),
        *("UnsafeView", "Unsqueeze", "View", "ViewAsComplex", "ViewAsReal"),
    )
)
"""Select or arrange elements and compute nothing; the numbers are those of overloads."""
VIEWS_AND_CASTS = VIEWS | {CAST}

# Families: the name without the number, which tells variants (in place, other arguments) apart.
WITHOUT_SLOPE = frozenset(
    f"{name}Backward"
    for name in (
        *("Round", "Floor", "Ceil", "Trunc", "Sign", "Zero", "Bernoulli", "Poisson", "Normal"),
        *("Uniform", "Random", "Exponential", "Geometric", "Cauchy", "LogNormal"),
        *("Eq", "Ne", "Ge", "Gt", "Le", "Lt"),
    )
)
"""Their derivative is 0 everywhere; of comparisons, those in place are nodes."""
SGN = "SgnBackward"
"""Its derivative is 0, unless its result is complex."""
OVERWRITES = frozenset({"FillBackward", "CopyBackwards"})
"""Overwrite a tensor whole: what stood there before, their first input, gets zeros."""
WITHOUT_SECOND_SLOPE = frozenset({"CopysignBackward", "NextafterBackward"})
"""Their second input gets zeros."""
NOT_IMPLEMENTED = "NotImplemented"
"""An operation without a derivative: a backward raises at it; ``node.name()``, behind ``::``."""
WITHOUT_DERIVATIVE = frozenset(
    f"{name}Backward"
    for name in ("Unique2", "UniqueDim", "UniqueConsecutive", "UniqueDimConsecutive", "Geqrf")
)
"""Nodes of operations without a derivative, at which a backward raises."""
WITHOUT_FIRST_DERIVATIVE = frozenset({"IgammaBackward", "IgammacBackward", "SpecialZetaBackward"})
"""A backward raises at them where their first input is to have a gradient."""
RELU, THRESHOLD, HARDTANH = "ReluBackward", "ThresholdBackward", "HardtanhBackward"
CLAMPS = frozenset({"ClampBackward", "ClampMinBackward"})
SOFT_RECTIFIERS: Mapping[str, str] = MappingProxyType(
    {
        "SiluBackward": "SiLU",
        "GeluBackward": "GELU",
        "EluBackward": "ELU or SELU",
        "CeluBackward": "CELU",
        "LeakyReluBackward": "a leaky ReLU",
        "RreluWithNoiseBackward": "a randomised ReLU",
        "PreluKernelBackward": "PReLU",
        "SoftplusBackward": "softplus",
        "MishBackward": "Mish",
        "HardswishBackward": "hardswish",
    }
)
"""Stand in a rectifier's place and let more through -> how they are called."""


def family(name: str) -> str:
    """Return the name of a node's class without its number.

    Example:
        >>> family("ReluBackward0")
        'ReluBackward'
    """
    return name.rstrip("0123456789")


def has_no_derivative(name: str) -> bool:
    """Return whether a backward raises at a node, whatever it was given; of its name."""
    return name == NOT_IMPLEMENTED or family(name) in WITHOUT_DERIVATIVE

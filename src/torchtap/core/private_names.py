"""The table of PyTorch's private names that torchtap uses: for what, since when, what without.

PyTorch may change any of them without notice. Each stands once in the source, with a
:class:`PrivateName` in ``NAMES``: where PyTorch has it, what torchtap uses it for, and what
torchtap does where it is gone. Then there is either another way, or a ``CaptureError`` at the
doors that need it (:func:`torchtap.core.doors.require`). Reading runs needs none of them.
``torchtap selfcheck`` tries each (``core/probes/``), and so do the tests.

:mod:`~torchtap.core.torch_private` and :mod:`~torchtap.core.torch_frames` fill the table as they
are imported: these are the files to read against the sources of a new release. Attributes of
tensors, nodes and modules are listed here (``ATTRIBUTES``) and read where they are needed, since
a function around each would cost more than the read.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import CodeType, MappingProxyType
from typing import Any

import torch

TRIED_TORCH = ("2.13.0", "2.14.1", "2.15.0")
"""Releases of PyTorch with which all tests passed."""
TRIED_PYTHON = ("3.11", "3.12", "3.13")

WATCHING = (
    "tt.watch",
    "tt.edit",
    "tt.edit_tensor",
    "tt.attribute",
    "tt.audit",
    "tt.cam",
    "tt.guard",
    "tt.locate",
    "tt.record",
    "tt.record_call",
    "tt.summary",
    "tt.sweep",
    "tt.verify",
)
"""Doors through which hooks go that read or replace what flows."""
MOVING = ("tt.offload", "tt.advise_offload", "tt.saved_report")
"""Doors through which hooks go on what autograd saves."""
DRAWING = ("tt.graph",)
LOCATING = ("tt.locate", "tt.guard")
"""Doors through which each operation is followed."""
CALLING = ("tt.record_call", "tt.replay", "tt.audit")
"""Doors through which calls of modules are made again."""


@dataclass(frozen=True, slots=True)
class PrivateName:
    """One private name of PyTorch.

    Attributes:
        name: dotted, as PyTorch has it.
        purpose: what torchtap uses it for.
        without: what torchtap does where PyTorch does not have it.
        doors: public functions that cannot do their work without it, and say so when called.
        module: name of the module that holds it, where that is not imported with torch. While it
            is not imported, nothing of it is needed.
        variables: of the function of that name, which are read from its frames.
        since: release that brought it; older ones need it for nothing.
    """

    name: str
    purpose: str
    without: str
    doors: tuple[str, ...] = ()
    module: str = ""
    variables: tuple[str, ...] = ()
    since: tuple[int, int] = (2, 13)

    @property
    def is_imported(self) -> bool:
        """Return whether the module that holds it is imported."""
        return not self.module or self.module in sys.modules

    def is_there(self) -> bool:
        """Return whether this PyTorch has the name, or need not have it yet."""
        if not self.is_imported:
            return True
        if release_of(torch.__version__) < self.since:
            return True
        found = find(self.name)
        held = code_of(found).co_varnames if self.variables and found is not GONE else ()
        return found is not GONE and set(self.variables) <= set(held)


@cache
def release_of(version: str) -> tuple[int, int]:
    """Major and minor number of a release: patches keep what torchtap relies on."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


class _Gone:
    """In the place of what PyTorch does not have; the doors that need it do not open."""

    def __repr__(self) -> str:
        return "<not in this PyTorch>"


GONE = _Gone()
_NO_OTHER_WAY = "its doors raise a CaptureError that names it"
NAMES: dict[str, PrivateName] = {}
"""Every private name that torchtap calls, by its name."""


def find(name: str) -> Any:
    """Return the object of a dotted name; ``GONE`` where PyTorch does not have it."""
    parts = name.split(".")
    at = next((n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in sys.modules), 0)
    found: Any = sys.modules.get(".".join(parts[:at]), GONE)
    for part in parts[at:]:
        found = getattr(found, part, GONE)
    return found


def code_of(function: Any) -> CodeType:
    """Byte code of a function of Python; that of a function of C is one that never runs."""
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else NEVER_RUNS


def _never_runs() -> None:
    """Its code is on no stack."""


NEVER_RUNS = _never_runs.__code__


def note(
    name: str,
    purpose: str,
    *,
    doors: tuple[str, ...] = (),
    without: str = "",
    module: str = "",
    variables: tuple[str, ...] = (),
    since: tuple[int, int] = (2, 13),
) -> None:
    without = without or _NO_OTHER_WAY
    NAMES[name] = PrivateName(name, purpose, without, doors, module, variables, since)


def private(
    name: str,
    purpose: str,
    *,
    doors: tuple[str, ...] = (),
    without: str = "",
    otherwise: Any = GONE,
) -> Any:
    """Note a private name, and give what PyTorch has there, or what stands in for it."""
    note(name, purpose, doors=doors, without=without)
    found = find(name)
    return otherwise if found is GONE else found


# ---------------------------------------------------------------------- attributes

ATTRIBUTES: Mapping[str, str] = MappingProxyType(
    {
        # Tensors, and their storages.
        "_version": "how often a tensor was written into",
        "_base": "the tensor that a view shows",
        "_is_view": "whether a tensor is a view",
        "_cdata": "address of the memory, or of the tensor, that two Python objects share",
        "_backward_hooks": "hooks on the gradient of a tensor or a module",
        "_post_accumulate_grad_hooks": "hooks on a parameter whose .grad is complete",
        "_is_zerotensor": "whether a tensor is zero without memory",
        "_nested_tensor_size": "shapes of the parts of a nested tensor",
        "_indices": "indices of a sparse tensor that is not coalesced",
        "_values": "values of a sparse tensor that is not coalesced",
        # Nodes of the autograd graph.
        "_sequence_nr": "in which order nodes were made",
        "_register_hook_dict": "puts a table of hooks on a tensor, without a handle for each",
        "_input_metadata": "shapes and dtypes of the gradients that a node takes",
        "_forward_cls": "class of a custom function",
        "_saved_": "begins the name of what an operation keeps",
        "_raw_saved_": "begins the name of autograd's handle of what an operation keeps",
        "_saved_dim": "over which dims a reduction goes, or along which an operation",
        "_saved_dims": "in which order a permute puts the dims",
        "_saved_rounding_mode": "whether a division rounds, and so has no gradient",
        "_saved_dim0": "which dims a transpose exchanged",
        "_saved_dim1": "which dims a transpose exchanged",
        "_saved_training": "whether a batch norm was in training mode",
        "_saved_self": "what an operation keeps, by the name of its argument",
        "_saved_self_sym_sizes": "the sizes of the tensor that an operation reduced or widened",
        "_saved_other": "what an operation keeps",
        "_saved_mask": "what an operation keeps",
        "_saved_condition": "what an operation keeps",
        "_saved_max": "bounds of a clamp",
        "_saved_min": "bounds of a clamp",
        "_saved_min_val": "bounds of a hardtanh",
        "_saved_threshold": "where a threshold cuts",
        # Modules.
        "_parameters": "parameters by name",
        "_buffers": "buffers by name",
        "_modules": "children by name",
        "_non_persistent_buffers_set": "buffers that are in no state dict",
        "_forward_hooks": "hooks after a forward",
        "_forward_pre_hooks": "hooks before a forward",
        "_forward_pre_hooks_with_kwargs": "which of them take keywords",
        "_forward_hooks_with_kwargs": "which hooks after a forward take keywords",
        "_forward_hooks_always_called": "which of them run after an exception too",
        "_is_full_backward_hook": "of which kind the hooks after a backward are",
        "_backward_pre_hooks": "hooks before the backward of a module",
        "_qkv_same_embed_dim": "whether attention may run as one fused kernel",
        "_orig_mod": "the model inside torch.compile(model)",
        "_compiled_call_impl": "what model.compile() runs in place of a module's call",
        "_fsdp_wrapped_module": "the model inside FullyShardedDataParallel",
        "_checkpoint_wrapped_module": "the model inside a checkpoint wrapper",
        "_ConvNd": "class of all convolutions, by its name",
        "_DropoutNd": "class of all dropouts, by its name",
        "_NormBase": "class of batch and instance norms, by its name",
        "_BatchNorm": "class of all batch norms, by its name",
        "_InstanceNorm": "class of all instance norms, by its name",
        "_IncompatibleKeys": "class of what load_state_dict returns, by its name",
        "_tensor_name": "the parameter that a hook of a pruning computes",
        # Parameters of FSDP, and placements of DTensor.
        "_is_flat_param": "whether a parameter is one of FullyShardedDataParallel's",
        "_unsharded_param": "the parameter that FSDP2 gathers from a shard",
        "_sharded_post_forward_param": "the part of it that stays gathered after a forward",
        "_StridedShard": "class of a shard that is cut by an inner dim of the mesh, by its name",
        # The compiler, optimizers, loss scalers, operators.
        "_torchdynamo_disable": "lets Dynamo break its graph at a function",
        "_torchdynamo_disable_msg": "what the error of fullgraph=True says then",
        "_dynamo_marked_constant": "lets Dynamo evaluate a function while it traces",
        "_optimizer_step_pre_hooks": "hooks before the step of one optimizer",
        "_optimizer_step_post_hooks": "hooks after the step of one optimizer",
        "_per_optimizer_states": "whether a GradScaler found values that are not finite",
        "_growth_tracker": "how many steps in a row a GradScaler did not skip",
        "_opname": "name of an operator without overload",
        "_utils": "folder of the function that puts samples of a DataLoader together, by its name",
    }
)
"""Private attribute of an object of PyTorch -> what it is read for."""

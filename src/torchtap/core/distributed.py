"""Tensors that stand for more than this process holds: what is read of them is the local part.

Operations on a ``DTensor`` may communicate: copying a partial sum reduces it over all ranks, and
``torch.equal`` asks all of them. A rank that watches alone would wait for the others forever. So
nothing here, and nothing of torchtap, computes with a ``DTensor``: its local tensor is taken, and a
label says which part of the whole that is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.core.torch_private import fsdp_parameters

PLAIN = (Tensor, nn.Parameter)
"""Types whose values are in their own memory."""
DEQUANTIZED = "dequantized"
WAITED = "waited for its communication"
_LONGEST = timedelta(days=1)
"""Longest time that ranks wait for the slowest one."""


def num_ranks() -> int:
    """Return the number of ranks that train together; 0 where no process group was made."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return 0
    return distributed.get_world_size()


@contextmanager
def together() -> Iterator[None]:
    """All ranks leave the block once the last one has come to its end.

    A rank that raises does not wait, and the others do not wait for it. They meet in a group of
    their own: what a model sends meanwhile, and a rank that left it, cannot be taken for this.
    All ranks must enter it. With one process, and with the backend ``fake``, it does nothing.
    """
    distributed = torch.distributed
    if num_ranks() < 2 or distributed.get_backend() == "fake":
        yield
        return
    backend = "gloo" if distributed.is_gloo_available() else None
    # gloo where there is any: a barrier of NCCL runs on the device, between the kernels of the
    # model.
    group = distributed.new_group(backend=backend, timeout=_LONGEST)
    try:
        yield
    except BaseException:  # However this rank leaves, the others must be told; it is raised again.
        with suppress(RuntimeError):  # Ranks that have ended need not be told.
            # Not waited for: it is here so that the others do not wait for this rank.
            distributed.barrier(group, async_op=True)
        raise
    distributed.barrier(group)
    distributed.destroy_process_group(group)


def own_rank() -> tuple[int, int]:
    """This process's rank, and how many there are; 0 and 1 outside of ``torch.distributed``."""
    world_size = num_ranks()
    return (torch.distributed.get_rank(), world_size) if world_size else (0, 1)


def ranks_of_one_batch(model: nn.Module) -> tuple[int, ...]:
    """Ranks that work on the same part of the batch as this one, with this one.

    Tensor parallelism splits tensors and not the batch. The dims of a mesh that FSDP2 shards over
    too come first, and along those each rank has a part of the batch of its own. Never
    communicates.

    Returns:
        none where no parameter is a ``DTensor`` but those of FSDP2.
    """
    if num_ranks() == 0:
        return ()
    data_dims = {
        id(parameter.sharded_param): parameter.mesh_info.mesh.ndim
        for parameter in fsdp_parameters()
    }
    ranks: set[int] = set()
    for param in model.parameters():
        mesh: Any = param.device_mesh if is_distributed(param) else None  # type: ignore[attr-defined]
        here = None if mesh is None else mesh.get_coordinate()
        if here is not None and data_dims.get(id(param), 0) < mesh.ndim:
            own = mesh.mesh[tuple(here[: data_dims.get(id(param), 0)])]
            ranks.update(own.flatten().tolist())
    return tuple(sorted(ranks))


def is_distributed(tensor: Tensor) -> bool:
    """Return whether a tensor is a ``DTensor``, without importing ``torch.distributed``."""
    kind = type(tensor)
    # By name: the import of torch.distributed.tensor takes long, and without it no tensor is one.
    return kind not in PLAIN and any(one.__name__ == "DTensor" for one in kind.__mro__)


def local(tensor: Tensor) -> tuple[Tensor, tuple[str, ...]]:
    """Return the part of a tensor that this rank holds, and what is to be said of it.

    Never communicates, but waits for a tensor that another rank is still sending (an
    ``AsyncCollectiveTensor``), as the next operation on it would.

    Returns:
        the tensor itself where it is no such tensor.
    """
    if type(tensor) in PLAIN:
        return tensor, ()
    labels: tuple[str, ...] = ()
    if is_distributed(tensor):
        whole: Any = tensor
        labels = (placement(whole),)
        with torch.no_grad():  # Else autograd would note that it was asked for.
            tensor = whole.to_local()
    if type(tensor).__name__ == "AsyncCollectiveTensor":
        pending: Any = tensor
        return pending.wait(), (*labels, WAITED)
    return tensor, labels


def readable(tensor: Tensor) -> tuple[Tensor, tuple[str, ...]]:
    """Return the same as :func:`local`, dequantized where a subclass keeps quantized values."""
    tensor, labels = local(tensor)
    if is_quantized(tensor):
        return tensor.dequantize(), (*labels, DEQUANTIZED)
    return tensor, labels


def is_quantized(tensor: Tensor) -> bool:
    """Return whether a tensor's subclass keeps its values quantized and can dequantize them."""
    kind = type(tensor)
    return kind not in PLAIN and kind.dequantize is not Tensor.dequantize


def placement(tensor: Any) -> str:
    """Return which part of the whole tensor the local tensor of a ``DTensor`` is.

    One text per dim of the mesh: ``shard 0 of 2 (Shard(dim=0))``, ``replica of 2``, or
    ``partial sum of 2, not reduced``.
    """
    mesh = tensor.device_mesh
    here = mesh.get_coordinate()
    if here is None:
        return "of a mesh that this rank is not in"
    names = mesh.mesh_dim_names or (None,) * mesh.ndim
    parts = []
    for one, place, size, name in zip(tensor.placements, here, mesh.shape, names, strict=True):
        if one.is_partial():
            part = f"partial {getattr(one, 'reduce_op', 'sum')} of {size}, not reduced"
        elif one.is_replicate():
            part = f"replica of {size}"
        else:
            part = f"shard {place} of {size} ({one!r})"
        parts.append(f"{part} on {name}" if name else part)
    return "; ".join(parts)


def is_partial(tensor: Tensor) -> bool:
    """Return whether a tensor is a ``DTensor`` whose parts have yet to be reduced."""
    placements = tensor.placements if is_distributed(tensor) else ()  # type: ignore[attr-defined]
    return any(one.is_partial() for one in placements)


def is_part_of_flat(tensor: Tensor) -> bool:
    """Return whether a tensor is a view of ``FullyShardedDataParallel``'s flat parameter."""
    # Its parameters are views of one flat tensor, which it cuts anew for each forward.
    return getattr(tensor._base, "_is_flat_param", False)


def sharded_parameters() -> dict[int, nn.Parameter]:
    """Id of a parameter that FSDP2 gathered -> the shard that it was gathered from.

    While a group of parameters is gathered, whole ones are registered in place of the shards. The
    optimizer knows only the shards, and the gradients of the whole ones are not reduced yet. Some
    groups stay gathered from one forward to the next step: those of the root, by default.
    """
    return {
        id(gathered): param.sharded_param
        for param in fsdp_parameters()
        for gathered in (_gathered(param), getattr(param, "_sharded_post_forward_param", None))
        if gathered is not None
    }


def gathered_parameters() -> dict[int, nn.Parameter]:
    """Id of a shard -> the parameter that FSDP2 gathers from it, through which autograd goes."""
    pairs = [(param.sharded_param, _gathered(param)) for param in fsdp_parameters()]
    return {id(shard): gathered for shard, gathered in pairs if gathered is not None}


def _gathered(param: Any) -> nn.Parameter | None:
    """It is made with the first forward, and stays the same from then on."""
    return getattr(param, "_unsharded_param", None)

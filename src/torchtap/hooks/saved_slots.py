"""The slots of autograd's nodes in which saved tensors stand."""

from __future__ import annotations

from typing import Any

from torch import Tensor

_RAW = "_raw_saved_"


class SavedSlots:
    """Finds what nodes keep for backward, as autograd's own handles.

    A handle has ``data``, which is the tensor (or what a hook packed it into), and
    ``unpack_hook``, which is ``None`` where no hook packed it. Reading both runs no hook.
    """

    def __init__(self) -> None:
        self._names: dict[type, tuple[str, ...]] = {}

    def of(self, node: Any) -> list[tuple[str, Any]]:
        """Slot and handle of all that a node may keep, also of slots that hold nothing.

        Raises:
            RuntimeError: from PyTorch, of a custom function whose saved tensors were freed.
        """
        slots: list[tuple[str, Any]] = []
        for attribute in self._names_of(node):
            name = attribute.removeprefix(_RAW)
            raw = getattr(node, attribute)
            if isinstance(raw, tuple | list):
                slots += [(f"{name}.{place}", one) for place, one in enumerate(raw)]
            else:
                slots.append((name, raw))
        return slots

    def _names_of(self, node: Any) -> tuple[str, ...]:
        kind = type(node)
        names = self._names.get(kind)
        if names is None:
            # Once for each class: the slots are properties of it, generated with the class of each
            # operation (tools/autograd/gen_autograd_functions.py in PyTorch), and dir() walks all
            # of its bases.
            names = tuple(name for name in dir(node) if name.startswith(_RAW))
            self._names[kind] = names
        return names


def holds_any(raw: Any) -> bool:
    """Return whether a handle holds a tensor, or the object that one was packed into."""
    return raw is not None and (raw.unpack_hook is not None or isinstance(raw.data, Tensor))


def unpacking_hook(raw: Any) -> tuple[str, bool]:
    """Return the name of the hook that unpacks a tensor, and whether a checkpoint put it on."""
    hook = raw.unpack_hook
    home = getattr(hook, "__module__", "") or ""
    name = getattr(hook, "__qualname__", type(hook).__name__)
    return f"{home}.{name}", home.startswith("torch.utils.checkpoint")

"""Tries on small examples that each private name of PyTorch still does what torchtap reads in it.

A name may stay and change its meaning, which no look for the name would notice. The table at the
end has a probe for every name of ``torchtap.core.private_names.NAMES``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

import torch
from torch.nn.utils import parametrize

from torchtap.core import private_names, torch_private
from torchtap.core.private_names import NAMES, PrivateName, find, release_of
from torchtap.core.probes.autograd_probes import AUTOGRAD
from torchtap.core.probes.frame_probes import FRAMES
from torchtap.core.probes.mode_probes import MODES

Probe = Callable[[], bool]


def trouble_with(name: PrivateName) -> str:
    """Why a private name cannot be relied on here; empty where it can."""
    if not name.is_there():
        return f"torch {torch.__version__} does not have it"
    is_late = release_of(torch.__version__) < name.since
    if is_late or (name.module and name.module not in sys.modules):
        return ""  # Nothing of it runs.
    try:
        holds = PROBES[name.name]()
    except Exception as error:  # noqa: BLE001 - whatever it raises, it is not what it was
        return f"{type(error).__name__}: {error}"
    return "" if holds else "it does something else than in the versions that were tried"


def _is_class(name: str) -> Probe:
    return lambda: isinstance(find(name), type)


def _negated_view() -> bool:
    tensor = torch.arange(3.0)
    view = torch_private.negated_view(tensor)
    return torch.equal(view, -tensor) and view.data_ptr() == tensor.data_ptr()


def _functions_of_c() -> bool:
    ones = torch.ones(2)
    return torch.equal(find("torch._C._nn").gelu(ones), torch.nn.functional.gelu(ones))


def _mkldnn() -> bool:
    return isinstance(torch_private.MKLDNN, torch.layout)


def _frame_action() -> bool:
    def function() -> None:
        pass

    torch_private.run_uncompiled(function)
    return True


def _callback_handler() -> bool:
    handler = find("torch._dynamo.callback.callback_handler")
    before = len(handler.start_callbacks)
    off = torch_private.before_compiling(lambda: None)
    num = len(handler.start_callbacks)
    off()
    return num == before + 1 and len(handler.start_callbacks) == before


def _operator_calls() -> bool:
    module = sys.modules["torch._inductor.codegen.custom_extern_kernel_codegen"]
    table, operator = module.CUSTOM_EXTERN_KERNEL_CODEGEN, "torch.ops.torchtap.nothing.default"
    try:
        torch_private.write_operator_calls(operator, lambda node, writer, is_constant: None)
        is_read = find("torch._inductor.codegen.wrapper.CUSTOM_EXTERN_KERNEL_CODEGEN")
        return is_read in (table, private_names.GONE) and callable(table[operator].python)
    finally:
        table.pop(operator, None)


def _dynamo_config() -> bool:
    config, name = find("torch._dynamo.config"), "skip_nnmodule_hook_guards"

    def seen() -> Any:
        # By another thread: what this one has assigned hides the default from it.
        with ThreadPoolExecutor(1) as other:
            return other.submit(getattr, config, name).result()

    was = seen()
    before = torch_private.set_default(config, name, not was)
    try:
        return seen() is not was
    finally:
        torch_private.set_default(config, name, before)


def _is_there(name: str) -> Probe:
    return lambda: find(name) is not private_names.GONE


def _parametrised() -> bool:
    """A module that is made a parametrised one by hand computes its weight by the modules of it."""
    made: Any = torch.nn.Module()
    weight = torch.full((2,), 3.0)
    made.parametrizations = torch.nn.ModuleDict(
        {"weight": parametrize.ParametrizationList([torch.nn.Softplus()], weight, unsafe=True)}
    )
    find("torch.nn.utils.parametrize._inject_new_class")(made)
    find("torch.nn.utils.parametrize._inject_property")(made, "weight")
    computed = torch.nn.functional.softplus(made.parametrizations["weight"].original)
    return torch.equal(made.weight, computed) and parametrize.is_parametrized(made, "weight")


PROBES: Mapping[str, Probe] = MappingProxyType(
    {
        **AUTOGRAD,
        **FRAMES,
        **MODES,
        "torch._C.ScriptObject": _is_class("torch._C.ScriptObject"),
        "torch._neg_view": _negated_view,
        "torch._C._nn": _functions_of_c,
        "torch._mkldnn": _mkldnn,
        "torch._C._dynamo.eval_frame._FrameAction": _frame_action,
        "torch._C._dynamo.eval_frame._FrameExecStrategy": _frame_action,
        "torch._dynamo.callback.callback_handler": _callback_handler,
        "torch._higher_order_ops.effects._register_effectful_op": _is_there(
            "torch._higher_order_ops.effects._register_effectful_op"
        ),
        "torch._inductor.codegen.custom_extern_kernel_codegen.CUSTOM_EXTERN_KERNEL_CODEGEN": (
            _operator_calls
        ),
        "torch._dynamo.config._config": _dynamo_config,
        "torch.distributed._composable_state._module_state_mapping": _is_there(
            "torch.distributed._composable_state._module_state_mapping"
        ),
        "torch.distributed.pipelining.stage.PipelineStage._forward_metadata_inference": _is_there(
            "torch.distributed.pipelining.stage.PipelineStage._forward_metadata_inference"
        ),
        "torch.distributed.pipelining.schedules._PipelineSchedule": _is_there(
            "torch.distributed.pipelining.schedules._PipelineSchedule"
        ),
        "torch.jit._builtins._register_builtin": _is_there("torch.jit._builtins._register_builtin"),
        "torch.nn.utils.parametrize._inject_new_class": _parametrised,
        "torch.nn.utils.parametrize._inject_property": _parametrised,
    }
)
"""Name -> what tries it."""


def troubles() -> dict[str, str]:
    """Private names that cannot be relied on here -> why; empty where all can."""
    by_name = {one.name: trouble_with(one) for one in NAMES.values()}
    return {name: why for name, why in by_name.items() if why}

"""Tensors without plain memory: sparse, nested, quantized, on meta, of another process."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from torchtap.failures.failure import Failure
from torchtap.failures.parsed_source import grouped, written
from torchtap.failures.situation_row import Situation, SituationRow, first_of


def _moved(failure: Failure) -> str:
    """Return what a method of the program's call was called on, as it is written."""
    frame = failure.user
    node = None if frame is None else frame.expression
    called = node.func if isinstance(node, ast.Call) else None
    is_method = isinstance(called, ast.Attribute) and frame is not None
    return written(called.value, frame.file) if is_method else "The tensor"  # type: ignore[union-attr]


def _on_meta(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Return what was moved, and its buffers on meta, if these alone are there and in no state."""
    base, buffers = _moved(failure), []
    frame = failure.user
    node = None if frame is None else frame.expression
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    module = frame.value_of(node.func.value) if frame is not None and is_method else None  # type: ignore[union-attr]
    if isinstance(module, nn.Module) and not any(
        one.is_meta for one in module.state_dict().values()
    ):
        buffers = [name for name, one in module.named_buffers() if one.is_meta]
    return {"base": base, "buffers": ", ".join(buffers[:4]), "is_whole": not buffers}


def _layout(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    backend = found["backend"]
    is_quantized_op = found["op"].startswith("quantized")
    return {
        "op_name": found["op"],
        "kind": backend.removesuffix("CPU").removesuffix("CUDA").lower() or "plain",
        "is_sparse": "Sparse" in backend,
        "is_nested": "Nested" in backend,
        "is_quantized": "Quantized" in backend,
        "is_plain": is_quantized_op,
        "functional": _FUNCTIONAL.get(_operator(found["op"]), "") if "Quantized" in backend else "",
    }


_FUNCTIONAL = {"add": "add", "mul": "mul", "cat": "cat", "matmul": "matmul"}
"""Operation -> the method of FloatFunctional that stands for it."""


def _operator(name: str) -> str:
    """``add`` of ``aten::add.out`` and ``aten::add_.Tensor``."""
    return name.rpartition("::")[2].partition(".")[0].rstrip("_")


def _array(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Return what an array was to be made of: a tensor, or a list of tensors."""
    frame = failure.user
    node = None if frame is None else frame.expression
    called = node.func if isinstance(node, ast.Call) else None
    is_own = isinstance(called, ast.Attribute) and called.attr in ("numpy", "__array__")
    given = called.value if is_own else (getattr(node, "args", None) or [None])[0]  # type: ignore[union-attr]
    if frame is None or given is None:
        return {"name": "x", "held": "The tensor", "array": "x.cpu().numpy()", "listed": ""}
    name, value = written(given, frame.file), frame.value_of(given)
    several = [one for one in value if isinstance(one, Tensor)] if type(value) in _LISTS else []
    first = next(iter(several), value)
    is_traced = isinstance(first, Tensor) and first.requires_grad
    method = "detach().cpu()" if is_traced else "cpu()"
    is_list = bool(several) or isinstance(given, ast.List | ast.ListComp)
    joined = f"torch.stack({name}).{method}.numpy()"
    if several and len(several) != len(value):
        joined = f"[float(one) for one in {name}]"
    return {
        "name": name,
        "held": f"{name} holds tensors that are" if is_list else f"{name} is",
        "array": "" if is_list else f"{grouped(name)}.{method}.numpy()",
        "listed": joined if is_list else "",
    }


def _on_a_device(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    if found["device"] in (None, "meta"):
        return {"is_elsewhere": False, **_on_meta(failure, found)}
    return {"is_elsewhere": True, **_array(failure, found)}


_LISTS = (list, tuple)
SITUATIONS: dict[str, Situation] = {
    "values of a device": first_of(
        SituationRow(
            "{held} on {device}, and an array of numpy lies in the memory of the CPU.",
            ("array", "If the values are needed, copy them there: {array}."),
            (
                "listed",
                "If their values are needed, put them together and copy them there: {listed}.",
            ),
            "If more is computed with it, to be trained, use the functions of torch in place of "
            "numpy's.",
            when="is_elsewhere",
            about="tensors",
        ),
        SituationRow(
            "{base} is on the meta device, or has parts that are: a shape, and no values to be "
            "moved.",
            (
                "buffers",
                "What is left there are buffers that no state holds (persistent=False), {buffers}: "
                "compute them anew before the move, or make their module outside of "
                "torch.device('meta').",
            ),
            (
                "is_whole",
                "Make the model with memory, then load its weights: model.to_empty(device='cpu'), "
                "model.load_state_dict(state).",
            ),
            (
                "is_whole",
                "Or put the loaded tensors in its place: model.load_state_dict(state, "
                "assign=True).",
            ),
        ),
        facts=_on_a_device,
    ),
    "layout without a kernel": SituationRow(
        "{op_name} has no form for {kind} tensors.",
        ("is_sparse", "Make it dense for this operation: {name_it}.to_dense()."),
        ("is_nested", "Make it one tensor for this operation: {name_it}.to_padded_tensor(0)."),
        (
            "functional",
            "If it is in a model that is quantized, give the model a member for it before it is "
            "prepared, which learns the scale of the result: self.{functional} = "
            "torch.ao.nn.quantized.FloatFunctional() in __init__, and self.{functional}."
            "{functional}(...) in forward.",
        ),
        (
            "is_quantized",
            "If it is to be computed in floats, leave the quantized numbers before it: "
            "{name_it}.dequantize(), or DeQuantStub() there.",
        ),
        (
            "is_plain",
            "Quantize its input, and make floats of the output: "
            "torch.ao.quantization.QuantWrapper(model) around the model, or QuantStub() at its "
            "begin and DeQuantStub() at its end, before it is prepared and converted.",
        ),
        about="argument",
        facts=_layout,
    ),
    "sparse without a view": SituationRow(
        "{name} is sparse, and an array is dense.",
        "Make it dense first: {name_it}.to_dense().numpy().",
        about="argument",
    ),
    "values that may repeat": SituationRow(
        "A place may stand several times in {name}, and its values are then added.",
        "Add them first: {name_it}.coalesce().{what}().",
        about="argument",
    ),
    "sparse gradients": SituationRow(
        "A gradient is sparse, as of nn.Embedding(..., sparse=True), and {kind} needs dense ones.",
        "Leave sparse=True out of the embedding.",
        "Or train the embedding by an optimizer of its own: torch.optim.SparseAdam, or SGD.",
    ),
    "dense gradients": SituationRow(
        "{kind} is for sparse gradients, as of nn.Embedding(..., sparse=True), and got a "
        "dense one.",
        "Give it the sparse embeddings alone, and the rest to another: torch.optim.Adam.",
        "If nothing is sparse: torch.optim.Adam for all.",
    ),
    "shape of a nested tensor": SituationRow(
        "A nested tensor holds tensors of several shapes, and has no shape of its own.",
        "Ask its parts: [one.shape for one in {name_it}.unbind()].",
        "Make one tensor of it: {name_it}.to_padded_tensor(0).",
        about="argument",
    ),
    "tensor for a process": SituationRow(
        "A tensor with a graph was given to another process, and graphs do not go along.",
        "Give its values alone: x.detach().",
        "In a data set, compute it without a graph: with torch.no_grad().",
        about="argument",
    ),
    "not deterministic": SituationRow(
        "{op} has no form that gives the same bits each time, and "
        "torch.use_deterministic_algorithms(True) allows no other.",
        "Allow it, with a warning: torch.use_deterministic_algorithms(True, warn_only=True).",
        about="tensors",
    ),
}

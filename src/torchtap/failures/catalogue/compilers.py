"""torch.func, torch.compile and TorchScript: code that a transform or compiler does not take."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from torchtap.core.torch_private import is_of_transform
from torchtap.failures.assignments import assignments_of
from torchtap.failures.failure import Failure
from torchtap.failures.parsed_source import written
from torchtap.failures.situation_row import Situation, SituationRow


def _captured(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    is_norm = getattr(failure.module, "track_running_stats", False) is True
    return {"is_norm": is_norm, "is_other": not is_norm}


def _graph_break(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    said = found["why"].strip().rstrip(".")
    is_branch = "data-dependent" in failure.text.lower()
    return {"said": said[:1].lower() + said[1:], "is_branch": is_branch}


def _types(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    said = re.search(
        r"Expected a value of type '(?P<wanted>[^']+)' for argument '(?P<name>\w+)' but instead "
        r"found type '(?P<given>[^']+)'",
        failure.text,
    )
    given = said["given"] if said else ""
    where = f": '{said['name']}' takes {said['wanted']}, and is {given}" if said else ""
    wanted = said["wanted"] if said else ""
    bare = re.sub(r"^Optional\[(.*)\]$", r"\1", given)
    return {
        "mismatch": where,
        "is_optional": given == f"Optional[{wanted}]",
        # A number is no list of one where it may be None.
        "listed": wanted if wanted in (f"List[{bare}]", f"Optional[List[{bare}]]") else "",
        "given": given,
        "argument": said["name"] if said else "",
    }


def _unbatched(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The tensor that vmap did not batch, and how it would be made of one that it did."""
    frame = failure.user
    operand = next(iter(failure.operands), None)
    name = "the tensor" if operand is None else operand.text.partition("[")[0]
    words = {"name": name, "way": ""}
    if frame is None or operand is None:
        return words
    batched = [
        key
        for key, one in frame.own_names.items()
        if isinstance(one, Tensor) and is_of_transform(one)
    ]
    made = assignments_of(frame, name)
    value = made[0].value if len(made) == 1 else None
    match value:
        case ast.Call(func=ast.Attribute(value=ast.Name("torch"), attr=maker)) if batched:
            known = ("zeros", "ones", "empty", "full")
            if maker in known:
                given = ", ".join([written(one, frame.file) for one in value.args])
                words["way"] = f"{name} = {batched[0]}.new_{maker}({given})"
    return words


def _attribute(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The attribute that has no type in TorchScript, and what it is."""
    kind, owner = found["type"], None
    for frame in failure.frames:
        held = frame.frame.f_locals.values() if frame.is_torch else frame.own_names.values()
        fitting = [one for one in held if type(one).__name__ == found["kind"]]
        owner = owner or next((one for one in fitting if isinstance(one, nn.Module)), None)
    value = vars(owner).get(found["name"]) if owner is not None else None
    is_number = kind.startswith("numpy.") or "int64" in kind or "float" in kind
    return {
        "is_number": is_number,
        "plain": "float" if "float" in kind else "int",
        "is_empty": kind in ("dict", "list") and value in ({}, []),
        "annotation": "Dict[str, torch.Tensor]" if kind == "dict" else "List[int]",
        "is_other": not is_number,
    }


def _text_of_call(failure: Failure) -> str:
    frame = failure.user
    node = None if frame is None else frame.expression
    return "The call" if frame is None or node is None else written(node, frame.file)


def _asked(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say what a value was asked for inside of vmap: a number, or the end of a loop."""
    frame = failure.user
    tree = None if frame is None else frame.function
    ends = [
        one
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, ast.If | ast.While) and frame and node.lineno == frame.line
        for one in ast.walk(node)
        if isinstance(one, ast.Break | ast.Return) or isinstance(node, ast.While)
    ]
    is_loop = frame is not None and frame.loop is not None
    return {"is_number": ".item()" in failure.text[:90], "is_end": bool(ends) and is_loop}


SITUATIONS: dict[str, Situation] = {
    "attribute of a script": SituationRow(
        "TorchScript knows no type for the attribute {name!r} of {kind}, which is {type}.",
        (
            "is_number",
            "Make it a number of Python where it is assigned: self.{name} = {plain}({name}).",
        ),
        (
            "is_empty",
            "An empty {type} tells no type: annotate it in the class, above __init__, such as "
            "{name}: {annotation}.",
        ),
        ("is_other", "Keep only tensors, numbers, strings, lists and dicts of these, and modules."),
        facts=_attribute,
    ),
    "attribute missing in a script": SituationRow(
        "{kind} has no attribute {name!r}, and a method that TorchScript compiles reads it.",
        "Assign self.{name} in __init__ of {kind}, behind super().__init__().",
    ),
    "object in a script": SituationRow(
        "TorchScript compiles functions and modules of PyTorch, and {kind} is another class of "
        "Python's: its objects cannot be used in it.",
        "Write what its method does as a function, or call that of PyTorch in its place; functions "
        "that are called are compiled too.",
        "Use torch.compile in place of torch.jit.script: it takes objects of Python.",
    ),
    "compiled too often": SituationRow(
        "A function with fullgraph=True was compiled anew more often than the limit allows: what "
        "its guards check differs from call to call.",
        "Raise the limit, if so many versions are meant: torch._dynamo.config.recompile_limit = "
        "16.",
        "See what differs: TORCH_LOGS=recompiles; sizes that vary are taken with dynamic=True.",
    ),
    "write into what is not batched": SituationRow(
        "A function inside of vmap writes samples into {name}, which has no dimension for them: it "
        "was made inside without regard to vmap.",
        ("way", "Make it of a tensor that vmap batches: {way}."),
        "Compute out of place: torch.stack or torch.where in place of the write.",
        facts=_unbatched,
    ),
    "branch in a transform": SituationRow(
        "A function inside of vmap asks one sample for its value, to branch on it or as a number: "
        "vmap runs it once, for all samples together.",
        (
            "is_number",
            "If it is an index or a factor: go on with the tensor, without .item(), as by "
            "x.index_select(0, k.reshape(1)), torch.gather, or a product.",
        ),
        (
            "is_end",
            "If it ends a loop: run a fixed number of rounds, and keep by torch.where(done, x, "
            "new) what is done.",
        ),
        "If it chooses a branch: compute both sides, and choose by element, torch.where(condition, "
        "a, b).",
        "Take that part out of the function: compute it for the whole batch before or behind vmap.",
        facts=_asked,
    ),
    "write in a transform": SituationRow(
        "A function inside of a torch.func transform writes in place ({op}) into a tensor that it "
        "was not given: the derivative would not see it.",
        (
            "is_norm",
            "Let the norms keep no running statistics: "
            "torch.func.replace_all_batch_norm_modules_(model), before the parameters are taken.",
        ),
        (
            "is_other",
            "Return the new value from the function, and take the old one as an argument.",
        ),
        facts=_captured,
    ),
    "storage of a transform": SituationRow(
        "{call} reads the memory of a tensor, which inside of vmap, or of a compiler's trace, "
        "stands for many and has none of its own.",
        "Use the tensor itself: PyTorch indexes and computes with it, table[index] for "
        "table[index.numpy()].",
        "If it needs values (numpy, a list, a file): compute it before or behind vmap.",
        facts=lambda failure, found: {"call": _text_of_call(failure)},
    ),
    "graph break": SituationRow(
        "One graph was asked for (fullgraph=True, or an export), and torch.compile cannot take "
        "this line into it: {said}.",
        (
            "is_branch",
            "Compute both sides and choose by element: torch.where(condition, a, b), or "
            "torch.cond(condition, f, g, operands).",
        ),
        "Leave fullgraph=True out: PyTorch then runs that line by itself, between two graphs.",
        "Move the line out of the compiled function.",
        facts=_graph_break,
    ),
    "types of a script": SituationRow(
        "TorchScript has no form of the operation for these types{mismatch}.",
        (
            "is_optional",
            "Assign the attribute to a local variable and compare that with None: TorchScript "
            "knows of variables, and not of attributes, that they are not None behind an if.",
        ),
        (
            "listed",
            "Give a list, also of one element, and say so in the annotation of what is given to "
            "{argument!r}: {listed} for {given}.",
        ),
        "Say the types of arguments and attributes in annotations.",
        facts=_types,
    ),
}

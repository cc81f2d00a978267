"""PyTorch's messages, each as a pattern with a name: the one place where they are recognised.

Written against PyTorch 2.13, with the prefixes of 2.15. A message that PyTorch words anew is not
recognised any more: its note then says where it was raised and no more. The tests raise each of
them with the real PyTorch.
"""

from __future__ import annotations

import ast
import inspect
import os
import pickle
import re
from typing import Any, NamedTuple

from torch import Tensor, nn

from torchtap.failures.failure import Failure
from torchtap.failures.gradients_read import gradients_read
from torchtap.failures.operands import parts_of_expression
from torchtap.failures.traceback_frame import MISSING, TracebackFrame

PATTERNS: dict[str, str] = {
    # ------------------------------------------------------------------ autograd
    "no graph": r"element (?P<at>\d+) of tensors does not require grad and does not have a grad_fn",
    "input without grad": r"One of the differentiated Tensors does not require grad",
    "input not used": r"(The differentiated Tensor at index (?P<at>\d+)|One of the differentiated "
    r"Tensors) appears to not have been used in the graph",
    "backward twice": r"Trying to backward through the graph a second time",
    "no scalar": r"grad can be implicitly created only for scalar outputs",
    "gradient of another shape": r"Mismatch in shape: grad_output\[(?P<at>\d+)\] has a shape of "
    r"torch\.Size\((?P<given>.*?)\) and output\[\d+\] has a shape of torch\.Size\((?P<wanted>.*?)\)"
    r"",
    "differentiated once": r"trying to differentiate twice a function that was marked with "
    r"@once_differentiable",
    "no derivative": r"derivative for (?P<op>\S+) is not implemented",
    "function gave another shape": r"Function (?P<node>\w+) returned an invalid gradient at index "
    r"(?P<at>\d+) - got (?P<given>\[.*?\]) but expected shape compatible with (?P<wanted>\[.*?\])",
    "function gave another number": r"function (?P<node>\w+) returned an incorrect number of "
    r"gradients \(expected (?P<wanted>\d+), got (?P<given>\d+)\)",
    "function gave no tensor": r"expected Variable or None \(got (?P<given>\w+)\)",
    "function without backward": r"You must implement either the backward or vjp method for your "
    r"custom autograd\.Function",
    "nan in backward": r"Function '(?P<node>\w+)' returned nan values in its (?P<at>\d+)th output",
    "integer with grad": r"[oO]nly Tensors of floating point( and complex)? dtype can require "
    r"gradients",
    "flag of a non-leaf": r"you can only change requires_grad flags of leaf variables",
    "numpy of a graph": r"Can't call numpy\(\) on Tensor that requires grad",
    "copy of a non-leaf": r"Only Tensors created explicitly by the user \(graph leaves\) support "
    r"the deepcopy protocol",
    "optimizer without parameters": r"optimizer got an empty parameter list",
    "optimizer of a non-leaf": r"can't optimize a non-leaf Tensor",
    "out with grad": r"(?P<op>\w+)\(\): functions with out=\.\.\. arguments don't support "
    r"automatic differentiation",
    # ------------------------------------------------------------------ in place
    "overwritten": r"one of the variables needed for gradient computation has been modified by an "
    r"inplace operation: \[(?P<tensor>.*?\])\](, which is output \d+ of (?P<node>[\w:]+),)? is at "
    r"version (?P<now>\d+); expected version (?P<then>\d+)",
    "leaf in place": r"a (?P<view>view of a )?leaf Variable that requires grad is being used in an "
    r"in-place operation",
    "view of a backward hook": r"Output \d+ of BackwardHookFunction is a view and is being "
    r"modified",
    "view of a function": r"Output \d+ of (?P<node>\w+) is a view and is being modified inplace\. "
    r"This view was created inside a custom Function",
    "one of several views": r"Output \d+ of (?P<node>\w+) is a view and is being modified "
    r"inplace\. This view is the output of a function that returns multiple views",
    "view of no_grad": r"A view was created in no_grad mode and is being modified inplace with "
    r"grad",
    "view of inference": r"A view was created in inference mode and is being modified inplace",
    # ------------------------------------------------------------------ inference tensors
    "inference saved": r"Inference tensors cannot be saved for backward",
    "inference in place": r"Inplace update to inference tensor outside InferenceMode",
    "inference with grad": r"Setting requires_grad=True on inference tensor outside InferenceMode",
    # ------------------------------------------------------------------ shapes
    "matrix product": r"mat1 and mat2 shapes cannot be multiplied \((?P<a>\d+)x(?P<left>\d+) and "
    r"(?P<right>\d+)x(?P<d>\d+)\)",
    "matrix and vector": r"size mismatch, got input \(\d+\), mat \(\d+x(?P<left>\d+)\), vec "
    r"\((?P<right>\d+)\)",
    "dot product": r"inconsistent tensor size, expected tensor \[(?P<left>\d+)\] and src "
    r"\[(?P<right>\d+)\]",
    "batched product": r"Expected size for first two dimensions of batch2 tensor to be: "
    r"\[(?P<n>\d+), (?P<left>\d+)\] but got: \[(?P<m>\d+), (?P<right>\d+)\]",
    "einsum": r"einsum\(\): subscript (?P<letter>\w+) has size (?P<given>\d+) for operand "
    r"(?P<at>\d+) which does not broadcast with previously seen size (?P<wanted>\d+)",
    "channels": r"Given (groups|transposed)=\d+, weight of size (?P<weight>\[.*?\]), expected "
    r"input(?P<input>\[.*?\]) to have (?P<wanted>\d+) channels, but got (?P<given>\d+) channels",
    "dimensions of a convolution": r"Expected (?P<low>\d)D \(unbatched\) or (?P<high>\d)D "
    r"\(batched\) input to (?P<op>\w+), but got input of size: (?P<given>\[.*?\])",
    "kernel too large": r"Calculated padded input size per channel: \((?P<given>.*?)\)\. Kernel "
    r"size: \((?P<kernel>.*?)\)",
    "pooled away": r"Given input size: \((?P<given>.*?)\)\. Calculated output size: "
    r"\((?P<out>.*?)\)\. Output size is too small",
    "broadcast": r"The size of tensor a \((?P<a>\d+)\) must match the size of tensor b "
    r"\((?P<b>\d+)\) at non-singleton dimension (?P<dim>\d+)",
    "concatenation": r"Sizes of tensors must match except in dimension (?P<dim>\d+)\. Expected "
    r"size (?P<wanted>\d+) but got size (?P<given>\d+) for tensor number (?P<at>\d+) in the list",
    "concatenation of dimensions": r"Tensors must have same number of dimensions: got "
    r"(?P<wanted>\d+) and (?P<given>\d+)",
    "stack": r"stack expects each tensor to be equal size, but got (?P<wanted>\[.*?\]) at entry 0 "
    r"and (?P<given>\[.*?\]) at entry (?P<at>\d+)",
    "reshape": r"shape '(?P<shape>\[.*?\])' is invalid for input of size (?P<numel>\d+)",
    "view of strides": r"view size is not compatible with input tensor's size and stride",
    "expand": r"The expanded size of the tensor \((?P<wanted>\d+)\) must match the existing size "
    r"\((?P<given>\d+)\) at non-singleton dimension (?P<dim>\d+)",
    "no such dimension": r"Dimension out of range \(expected to be in range of \[(?P<low>-?\d+), "
    r"(?P<high>-?\d+)\], but got (?P<dim>-?\d+)\)",
    "layer norm": r"Given normalized_shape=(?P<wanted>\[.*?\]), expected input with shape \[.*?\], "
    r"but got input of size ?(?P<given>\[.*?\])",
    "group norm": r"Expected weight to be a vector of size equal to the number of channels in "
    r"input, but got weight of shape \[(?P<wanted>\d+)\] and input of shape (?P<given>\[.*?\])",
    "features of a batch norm": r"running_mean should contain (?P<given>\d+) elements not "
    r"(?P<wanted>\d+)",
    "one value per channel": r"Expected more than 1 value per channel when training, got input "
    r"size torch\.Size\((?P<given>\[.*?\])\)",
    "dimensions of a norm": r"expected (?P<wanted>\d\w*( or \d\w*)?) input \(got (?P<given>\d+)D "
    r"input\)",
    "input of a recurrence": r"input\.size\(-1\) must be equal to input_size\. Expected "
    r"(?P<wanted>\d+), got (?P<given>\d+)",
    "state of a recurrence": r"Expected hidden(\[\d\])? size \((?P<wanted>.*?)\), got "
    r"\[(?P<given>.*?)\]",
    "embedding dimension": r"was expecting embedding dimension of (?P<wanted>\d+), but got "
    r"(?P<given>\d+)",
    # ------------------------------------------------------------------ dtypes and devices
    "devices": r"Expected all tensors to be on the same device|Tensor on device (?P<given>[\w:]+) "
    r"is not on the expected device (?P<wanted>[\w:]+)!",
    "dtypes of a product": r"mat1 and mat2 must have the same dtype, but got (?P<a>\w+) and "
    r"(?P<b>\w+)|expected m1 and m2 to have the same dtype, but got: (?P<c>\S+) != (?P<d>\S+)",
    "dtypes of a convolution": r"Input type \((?P<a>[\w. ]+)\) and (weight|bias) type \((?P<b>[\w. "
    r"]+)\) should be the same",
    "mixed dtypes": r"mixed dtype \(CPU\): all inputs must share same datatype",
    "index dtype": r"Expected tensor for argument #\d+ 'indices' to have one of the following "
    r"scalar types: Long, Int; but got torch\.(?P<given>\w+) instead",
    "index of floats": r"tensors used as indices must be long|(gather|scatter)\(\): Expected dtype "
    r"int|index_select\(\): Expected dtype int|one_hot is only applicable to index tensor of type",
    "result dtype": r"result type (?P<given>\w+) can't be cast to the desired output type "
    r"(?P<wanted>\w+)",
    "mean of integers": r"mean\(\): could not infer output dtype\.",
    "kernel not implemented": r'"(?P<kernel>\w+)" not implemented for \'(?P<dtype>\w+)\'',
    # ------------------------------------------------------------------ losses
    "class dtype": r"expected target dtype to be Long or Byte, but got (?P<given>\w+)|expected "
    r"scalar type Long but found (?P<other>\w+)",
    "class column": r"0D or 1D target tensor expected, multi-target not supported",
    "class range": r"Target (?P<value>-?\d+) is out of bounds",
    "batch of a loss": r"Expected input batch_size \((?P<given>\d+)\) to match target batch_size "
    r"\((?P<wanted>\d+)\)",
    "one-hot of integers": r"Expected floating point type for target with class probabilities, got "
    r"(?P<given>\w+)",
    "target of another size": r"Expected target size (?P<wanted>\[.*?\]), got (?P<given>\[.*?\])",
    "binary dtype": r"Found dtype (?P<given>\w+) but expected (?P<wanted>\w+)",
    "binary size": r"(Using a target size|Target size) \(torch\.Size\((?P<target>\[.*?\])\)\) "
    r"(that is different to|must be the same as)( the)? input size "
    r"\(torch\.Size\((?P<input>\[.*?\])\)\)",
    "probabilities": r"all elements of (?P<which>input|target) should be between 0 and 1",
    "one-hot range": r"Class values must be (?P<what>smaller than num_classes|non-negative)",
    # ------------------------------------------------------------------ indices
    "index of an embedding": r"index out of range in self",
    "index": r"index (?P<value>-?\d+) is out of bounds for dimension (?P<dim>\d+) with size "
    r"(?P<size>\d+)",
    "mask": r"The shape of the mask (?P<given>\[.*?\]) at index \d+ does not match the shape of "
    r"the indexed tensor (?P<wanted>\[.*?\])",
    # ------------------------------------------------------------------ hooks
    "hook changed the size": r"hook '(?P<hook>.*?)' has changed the size of value",
    "hook changed the type": r"hook '(?P<hook>.*?)' has changed the type of value \(was "
    r"(?P<wanted>\S+) got (?P<given>\S+)\)",
    "hook returned no tensor": r"expected Variable, but hook returned '(?P<given>\w+)'",
    "hook returned no tuple": r"expected tuple, but hook returned '(?P<given>\w+)'",
    "number of grad_input": r"Backward hook returned an invalid number of "
    r"(?P<which>grad_input|grad_output), got (?P<given>\d+), but expected (?P<wanted>\d+)",
    "forward pre-hook": r"forward pre-hook must return None or a tuple of \(new_args, new_kwargs\)",
    "two kinds of backward hooks": r"Cannot use both regular backward hooks and full backward "
    r"hooks",
    "post-accumulate hook": r"Tensor post accumulate grad hooks should return None",
    "hook without grad": r"cannot register a hook on a tensor that doesn't require gradient|can't "
    r"retain_grad on Tensor that has requires_grad=False",
    # ------------------------------------------------------------------ modules
    "argument that is no tensor": r"(?P<op>\w+)\(\): argument '(?P<name>\w+)' \(position "
    r"(?P<at>\d+)\) must be Tensor, not (?P<given>[\w.]+)",
    "arguments of forward": r"[\w.]*\bforward\(\) (?P<what>(missing|takes|got) .*)",
    "no forward": r'Module \[(?P<kind>\w+)\] is missing the required "forward" function',
    "before init": r"cannot assign (?P<what>module|parameters?) before Module\.__init__\(\) call",
    "no such attribute": r"'(?P<kind>(?!NoneType)\w+)' object has no attribute '(?P<name>\w+)'",
    "no parameter": r"cannot assign '(?P<given>[\w.]+)' as parameter '(?P<name>\w+)'",
    "state dict": r"Error\(s\) in loading state_dict for (?P<kind>\w+):",
    "lazy parameter": r"Attempted to use an uninitialized parameter in",
    # ------------------------------------------------------------------ attention and sequences
    "attention mask": r"The shape of the [23]D attn_mask is torch\.Size\((?P<given>\[.*?\])\), but "
    r"should be \((?P<wanted>.*?)\)",
    "padding mask": r"Expected key_padded_mask\.shape\[(?P<dim>\d)\] to be (?P<wanted>\d+), but "
    r"got (?P<given>\d+)",
    "attention heads": r"embed_dim must be divisible by num_heads",
    "dimensions of a state": r"For (?P<kind>unbatched 2-D|batched 3-D) input, (?P<what>hx( and "
    r"cx)?) should also be \d-D but got \(?(?P<given>\d-D)",
    "lengths in no order": r"`lengths` array must be sorted in decreasing order",
    "lengths elsewhere": r"'lengths' argument should be a 1D CPU int64 tensor, but got "
    r"(?P<given>.*?) tensor",
    "empty sequence": r"Length of all samples has to be greater than 0",
    # ------------------------------------------------------------------ pictures
    "spatial dimensions": r"Input and output must have the same number of spatial dimensions, but "
    r"got input with spatial dimensions of (\[.*?\]) and output size of (?P<size>.*?)\. Please",
    "dimensions of a mode": r"Got (?P<given>\d)D input, but (?P<mode>\w+) mode needs (?P<wanted>\d)"
    r"D input",
    "grid of coordinates": r"grid_sampler\(\): expected grid to have size (?P<wanted>\d) in last "
    r"dimension, but got grid with sizes (?P<given>\[.*?\])",
    "too much padding": r"Padding length should be less than or equal to two times the input "
    r"dimension but got padding length (?P<count>\d+) and input of dimension (?P<dims>\d+)",
    "reflected too far": r"(Argument #\d+: )?Padding size should be less than the corresponding "
    r"input dimension, but got: padding (?P<pad>\(.*?\)) at dimension (?P<dim>\d+)",
    # ------------------------------------------------------------------ numbers
    "parameter of a distribution": r"Expected parameter (?P<parameter>\w+) \(\w+ of shape "
    r"(?P<size>\(.*?\))\) of distribution (?P<kind>\w+)\([\s\S]*?\) to satisfy the constraint "
    r"(?P<constraint>.+?), but found invalid values",
    "weights of a draw": r"probability tensor contains either `inf`, `nan` or element < 0",
    "nothing to draw": r"invalid multinomial distribution \(",
    "not positive definite": r"linalg\.cholesky: (\(Batch element \d+\): )?The factorization could "
    r"not be completed because the input is not positive-definite",
    # ------------------------------------------------------------------ optimizers and scalers
    "groups of an optimizer": r"loaded state dict (contains a parameter group that doesn't match "
    r"the size of optimizer's group|has a different number of parameter groups)",
    "parameter in two groups": r"some parameters appear in more than one parameter group",
    "scheduler without a beginning": r"[\"']?param 'initial_lr' is not specified in param_groups",
    "unscaled twice": r"unscale_\(\) has already been called on this optimizer since the last",
    "stepped twice": r"step\(\) has already been called since the last update|unscale_\(\) is "
    r"being called after step",
    # ------------------------------------------------------------------ transforms and compilers
    "branch in a transform": r"vmap: It looks like you're (attempting to use a Tensor in some "
    r"data-dependent control flow|calling \.item\(\) on a Tensor)",
    "write in a transform": r"During a grad \(vjp, jvp, grad, etc\) transform, the function "
    r"provided attempted to call in-place operation \((?P<op>[\w:.]+)\) that would mutate a "
    r"captured",
    "graph break": r"(?!RuntimeError when making fake tensor call).*\n  Explanation: (?P<why>.*)",
    "types of a script": r"\s*Arguments for call are not valid\.",
    "legacy function": r"Legacy autograd function with non-static forward method is deprecated",
    # ------------------------------------------------------------------ the rest
    "weights only": r"Weights only load failed",
    "dimensions of an index": r"Index tensor must have the same number of dimensions as "
    r"(input|self) tensor",
    "dtypes of a written index": r"Index put requires the source and destination dtypes match, got "
    r"(?P<wanted>\w+) for the destination and (?P<given>\w+) for the source",
    "minus of a mask": r"(Subtraction|Negation), the `-` operator, (with (a|two)|on a) bool "
    r"tensors? is not supported",
    "spatial target": r"only batches of spatial targets supported \(3D tensors\) but got targets "
    r"of (dimension|size): (?P<given>.*)",
    "lengths of a ctc loss": r"(?P<which>input|target)_lengths must be of size batch_size",
    "letters of an einsum": r"einsum\(\): the number of subscripts in the equation "
    r"\((?P<letters>\d+)\) (is more than|does not match) the number of dimensions "
    r"\((?P<dims>\d+)\) for operand (?P<at>\d+)",
    "dimensions of a repeat": r"Number of dimensions of repeat dims can not be smaller than number "
    r"of dimensions of tensor",
    "no tensor in a list": r"expected Tensor as element (?P<at>\d+) in argument \d+, but got "
    r"(?P<given>(?!NoneType)\w+)",
    "no such form": r"(?P<op>\w+)\(\) received an invalid combination of arguments - got "
    r"\((?P<given>.*?)\), but expected",
    "truth of many": r"Boolean value of Tensor with more than one value is ambiguous",
    "number of many": r"a Tensor with (?P<numel>\d+) elements cannot be converted to Scalar|only "
    r"one element tensors can be converted to Python scalars",
    "out of memory": r"(CUDA|MPS|XPU) out of memory",
    "fault of a kernel": r"CUDA error: device-side assert triggered",
    "item of meta": r"Tensor\.item\(\) cannot be called on meta tensors",
    "checkpoint": r"torch\.utils\.checkpoint: (A different number of tensors was saved|Recomputed "
    r"values for the following tensors have different metadata)",
    "unused parameters": r"Expected to have finished reduction in the prior iteration before "
    r"starting a new one",
    "scaler without scale": r"No inf checks were recorded for this optimizer|Attempted "
    r"(step|unscale_) but _scale is None",
    "None among tensors": r"expected Tensor as element (?P<at>\d+) in argument \d+, but got "
    r"NoneType",
    "attribute of None": r"'NoneType' object has no attribute '(?P<name>\w+)'",
    "item of None": r"'NoneType' object is not (subscriptable|iterable)",
    "operator on None": r"unsupported operand type\(s\) for .*'NoneType'",
}
"""Name -> what a message begins with, behind a prefix of one word. The first that fits is taken."""

_ABOUT_NONE = ("attribute of None", "item of None", "operator on None", "None among tensors")
"""Messages that mean something of PyTorch only where what is ``None`` is a gradient."""
_OF_PYTHON = ("arguments of forward", "no such attribute")
"""Messages that Python itself has for other things too."""
_IN_WORKER = re.compile(
    r"Caught \w+ in DataLoader worker process \d+\.\nOriginal Traceback[\s\S]*"
    r'File "(?P<file>[^"]+)", line \d+[^\n]*\n\s*(?P<source>[^\n]*)[\s\S]*?\n\w+: (?P<text>[\s\S]+)'
)
"""Matches an error that a worker of a DataLoader raised, with its traceback as text."""
_KINDS = (
    *(RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError, AssertionError),
    pickle.UnpicklingError,
)
_PREFIX = r"([\w.:<>()]+: )?"
"""Matches the name of an operator, which some releases put before a message (``addmm: ``)."""
_COMPILED = {name: re.compile(f"{_PREFIX}({pattern})") for name, pattern in PATTERNS.items()}


class KnownMessage(NamedTuple):
    """A message that was recognised: its name, and the parts of its text."""

    name: str
    match: re.Match[str]


def recognise(failure: Failure) -> KnownMessage | None:
    """Return the message of an exception, if it is PyTorch's and known."""
    if not isinstance(failure.error, _KINDS) or not failure.frames:
        return None
    worker = _IN_WORKER.match(failure.text)
    text = failure.text if worker is None else worker["text"]
    for name, pattern in _COMPILED.items():
        match = pattern.match(text)
        if match is not None and (
            _means_torch(name, failure) if worker is None else _means_torch_in(worker, name)
        ):
            return KnownMessage(name, match)
    return None


def _means_torch_in(worker: re.Match[str], name: str) -> bool:
    """Return whether a text that fits was PyTorch's, in a worker of a DataLoader."""
    # PyTorch's compiled code has no line: the last one is the program's, and raises nothing.
    is_raised = worker["source"].startswith(("raise", "assert"))
    is_torch = f"{os.sep}torch{os.sep}" in worker["file"] or not is_raised
    return is_torch and name not in (*_OF_PYTHON, *_ABOUT_NONE)


def _means_torch(name: str, failure: Failure) -> bool:
    """Return whether a text that fits was PyTorch's, not that of a program that says the same."""
    if name in _ABOUT_NONE:
        return bool(gradients_read(failure))
    if name == "graph break":  # What fails inside of a graph has another class, and this text.
        return type(failure.error).__name__ == "Unsupported"
    if name == "arguments of forward":  # Of a call by PyTorch: it is what calls forwards.
        return failure.frames[-1].is_torch and failure.frames[-1].module is not None
    if name == "no such attribute":
        return is_from_torch(failure)
    last = failure.frames[-1]
    return not last.is_passed_on if last.is_torch else not last.raises_itself


def is_from_torch(failure: Failure) -> bool:
    """Return whether PyTorch raised it: its Python code, or compiled code called from elsewhere."""
    if not failure.frames:
        return False
    last = failure.frames[-1]
    if last.is_torch:
        return not last.is_passed_on and (
            last.raises_itself or not _calls_others(last, failure.error)
        )
    return not last.raises_itself and _computes(last, failure.error)


def _calls_others(frame: TracebackFrame, error: BaseException) -> bool:
    """Return whether it called a function that is not PyTorch's, which failed without a frame."""
    node = frame.expression
    called = frame.value_of(node.func) if isinstance(node, ast.Call) else MISSING
    if called is MISSING or isinstance(called, nn.Module) or isinstance(error, RuntimeError):
        return False
    home = getattr(called, "__module__", None)
    return isinstance(home, str) and home.split(".")[0] != "torch"


def _computes(frame: TracebackFrame, error: BaseException) -> bool:
    """Return whether the expression that failed is computed by PyTorch."""
    node = frame.expression
    if isinstance(node, ast.Call):
        called = frame.value_of(node.func)
        if _is_of_torch(called):
            return True
        if inspect.isbuiltin(called) or isinstance(called, type):  # float(x), of a tensor.
            takes = any(_holds_tensor(frame, one) for one in node.args)
            return isinstance(error, RuntimeError) and takes
        return isinstance(node.func, ast.Attribute) and _holds_tensor(frame, node.func.value)
    if isinstance(node, ast.Subscript | ast.Attribute):
        return _holds_tensor(frame, node.value)
    return any(_holds_tensor(frame, part) for part in parts_of_expression(node))


def _is_of_torch(called: Any) -> bool:
    home = getattr(called, "__module__", None)
    if home is None and inspect.isbuiltin(called):
        home = type(called.__self__).__module__
    return isinstance(home, str) and home.split(".")[0] == "torch"


def _holds_tensor(frame: TracebackFrame, node: ast.AST) -> bool:
    """Return whether an expression is a tensor, or is computed from one."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and _is_of_torch(frame.value_of(inner.func)):
            return True
        is_named = isinstance(inner, ast.Name | ast.Attribute | ast.Subscript)
        if is_named and isinstance(frame.value_of(inner), Tensor):
            return True
    return False

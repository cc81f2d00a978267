"""PyTorch's messages, each as a pattern with a name.

Written against PyTorch 2.13, with the prefixes of 2.15. A message that PyTorch words anew is not
recognised any more: its note then says where it was raised and no more. The tests raise each of
them with the real PyTorch.
"""

from __future__ import annotations

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
    "no derivative": r"(the )?derivative for '?(?P<op>[^\s']+)'? is not implemented",
    "function gave another shape": r"Function (?P<node>\w+) returned an invalid gradient at index "
    r"(?P<at>\d+) - got (?P<given>\[.*?\]) but expected shape compatible with (?P<wanted>\[.*?\])",
    "function gave another number": r"function (?P<node>\w+) returned an incorrect number of "
    r"gradients \(expected (?P<wanted>\d+), got (?P<given>\d+)\)",
    "function gave no tensor": r"expected Variable or None \(got (?P<given>\w+)\)",
    "saved no tensor": r"save_for_backward can only save variables, but argument (?P<at>\d+) is of "
    r"type (?P<given>[\w.]+)",
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
    "inputs of a bilinear layer": r"bilinear\(\): input",
    "kernel without channels": r"weight should have at least three dimensions",
    "number into a linear layer": r"both arguments to linear need to be at least 1D",
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
    "storage of a batch": r"Trying to resize storage that is not resizable",
    "lists in a batch": r"each element in list of batch should be of equal size",
    "None in a batch": r"expected Tensor as element \d+ in argument \d+, but got NoneType|"
    r"default_collate: batch must contain .* found <class 'NoneType'>|object of type 'NoneType' "
    r"has no len\(\)",
    "sample of a batch": r"default_collate: batch must contain .* found <class '(?P<kind>[\w.]+)'>",
    "reshape": r"shape '(?P<shape>\[.*?\])' is invalid for input of size (?P<numel>\d+)",
    "view of strides": r"view size is not compatible with input tensor's size and stride",
    "dimensions of a permutation": r"number of dimensions in the tensor input does not match the "
    r"length of the desired ordering of dimensions i\.e\. input\.dim\(\) = (?P<given>\d+) is not "
    r"equal to len\(dims\) = (?P<wanted>\d+)",
    "broadcast in place": r"output with shape (?P<given>\[.*?\]) doesn't match the broadcast shape "
    r"(?P<wanted>\[.*?\])",
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
    r"(?P<b>\w+)|expected m1 and m2 to have the same dtype, but got: (?P<c>[\w: ]+?) != "
    r"(?P<d>[\w: ]+)",
    "dtypes of a convolution": r"Input type \((?P<a>[\w.:<> ]+)\) and (weight|bias) type \("
    r"(?P<b>[\w.:<> ]+)\) should be the same",
    "mixed dtypes": r"mixed dtype \(CPU\): all inputs must share same datatype",
    "index dtype": r"Expected tensor for argument #\d+ 'indices' to have one of the following "
    r"scalar types: Long, Int; but got torch\.(?P<given>\w+) instead",
    "index of floats": r"tensors used as indices must be long|(gather|scatter)\(\): Expected dtype "
    r"int|index_select\(\): Expected dtype int|one_hot is only applicable to index tensor of type",
    "result dtype": r"result type (?P<given>\w+) can't be cast to the desired output type "
    r"(?P<wanted>\w+)",
    "mean of integers": r"mean\(\): could not infer output dtype\.",
    "dtypes of a scatter": r"(scatter|gather)\(\): Expected self\.dtype to be equal to src\.dtype",
    "dtype without numpy": r"Got unsupported ScalarType (?P<given>\w+)",
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
    "target of another size": r"Expected target size \[.*?\], got \[.*?\]|size mismatch \(got "
    r"input: \[.*?\] ?, target: \[.*?\]|input and target batch or spatial sizes don't match|For 1D "
    r"input, 1D target must have size 1, but got target size",
    "dtypes of an operation": r"expected scalar type (?P<wanted>\w+) but found (?P<given>\w+)",
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
    "mask": r"The shape of the mask (?P<given>\[.*?\]) at index (?P<of>\d+) does not match the "
    r"shape of the indexed tensor (?P<wanted>\[.*?\]) at index (?P<at>\d+)",
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
    "number without backward": r"'(?P<kind>int|float|numpy\.\w+)' object has no attribute "
    r"'backward'",
    "tuple among tensors": r"'(?P<kind>tuple|list|dict)' object has no attribute "
    r"'(size|dim|shape|dtype|device|numel|detach)'",
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
    "state of another class": r"'(?P<key>\w+)'$",
    "step without a closure": r"(?P<kind>\w+)\.step\(\) missing 1 required positional argument: "
    r"'closure'",
    "gradients of float16": r"Attempting to unscale FP16 gradients",
    "unscaled twice": r"unscale_\(\) has already been called on this optimizer since the last",
    "stepped twice": r"step\(\) has already been called since the last update|unscale_\(\) is "
    r"being called after step",
    # ------------------------------------------------------------------ transforms and compilers
    "branch in a transform": r"vmap: It looks like you're (attempting to use a Tensor in some "
    r"data-dependent control flow|calling \.item\(\) on a Tensor)",
    "write in a transform": r"During a grad \(vjp, jvp, grad, etc\) transform, the function "
    r"provided attempted to call in-place operation \((?P<op>[\w:.]+)\) that would mutate a "
    r"captured",
    "write into what is not batched": r"vmap: (inplace arithmetic|aten::\w+)\(self, \*extra_args\) "
    r"is not possible because there exists a Tensor `other`",
    "compiled too often": r"[\s\S]*(recompile_limit reached with|Hard failure due to) "
    r"fullgraph=True",
    "attribute missing in a script": r"\s*Module '(?P<kind>\w+)' has no attribute "
    r"'(?P<name>\w+)' ?:",
    "attribute of a script": r"\s*Module '(?P<kind>\w+)' has no attribute '(?P<name>\w+)' \(This "
    r"attribute exists on the Python module, but we failed to convert Python type: "
    r"'(?P<type>[\w.]+)'",
    "object in a script": r"\s*(attribute lookup is not defined on )?[Pp]ython value of type "
    r"'(?P<kind>\w+)'",
    "graph break": r"(?!RuntimeError when making fake tensor call).*\n  Explanation: (?P<why>.*)",
    "types of a script": r"\s*Arguments for call are not valid\.",
    "legacy function": r"Legacy autograd function with non-static forward method is deprecated",
    # ------------------------------------------------------------------ the rest
    "weights only": r"Weights only load failed(?![\s\S]*Unsupported operand)",
    "file of a GPU": r"Attempting to deserialize object on a (?P<device>\w+) device but",
    "unknown argument": r"(?P<call>(?!.*forward\(\))[\w.]+)\(\) got an unexpected keyword argument "
    r"'(?P<name>\w+)'",
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
    "ready twice": r"Expected to mark a variable ready only once",
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

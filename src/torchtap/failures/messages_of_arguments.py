"""Messages of layers, functions and tools that refuse an argument, by what was called."""

from __future__ import annotations

LAYERS: dict[str, str] = {
    "channels of groups": r"(?P<what>in_channels|out_channels) must be divisible by groups",
    "padding of a stride": r"padding='same' is not supported for strided convolutions",
    "padding of a pool": r"pad should be at most half of effective kernel size, but got "
    r"pad=(?P<pad>\d+), kernel_size=(?P<kernel>\d+)",
    "dimensions of a pool": r"Expected (?P<low>\d)D or (?P<high>\d)D \(batch mode\) tensor|"
    r"non-empty (?P<few>\d)D or (?P<many>\d)D \(batch mode\) tensor expected for input|"
    r"Expected (?P<least>\d) to (?P<most>\d) dimensions, but got \d-dimensional tensor for "
    r"argument #1 'self' \(while checking arguments for adaptive",
    "padding of an output": r"output padding must be smaller than either stride or dilation",
    "size of an unpool": r"invalid output_size \"(?P<given>.*?)\" \(dim \d must be between "
    r"(?P<low>\d+) and (?P<high>\d+)\)",
    "blocks of a fold": r"Given output_size=(?P<out>\(.*?\)), kernel_size=.* sliding blocks "
    r".*?= (?P<wanted>\d+), but got input\.size\(\d\)=(?P<given>\d+)",
    "no block": r"Given input with spatial size (?P<given>\(.*?\)), kernel_size=(?P<kernel>"
    r"\(.*?\)),.*sliding blocks",
    "channels of a shuffle": r"pixel_shuffle expects its input's 'channel' dimension to be "
    r"divisible by the square of upscale_factor, but input\.size\(-3\)=(?P<given>\d+) is not "
    r"divisible by (?P<wanted>\d+)|Number of channels must be divisible by groups\. Got "
    r"(?P<channels>\d+) channels and (?P<groups>\d+) groups",
    "size of a shuffle": r"pixel_unshuffle expects (?P<side>height|width) to be divisible by "
    r"downscale_factor, but input\.size\(-\d\)=(?P<given>\d+) is not divisible by (?P<wanted>\d+)",
    "one place in a picture": r"Expected more than 1 spatial element when training, got input size "
    r"torch\.Size\((?P<given>\[.*?\])\)",
    "channels of a group norm": r"Expected number of channels in input to be divisible by "
    r"num_groups, but got input of shape (?P<given>\[.*?\]) and num_groups=(?P<groups>\d+)",
    "one value in a group": r"Expected more than 1 value per channel when training, got input size "
    r"(?P<given>\[.*?\])",
    "row of the padding": r"Padding_idx must be within num_embeddings",
    "bags without beginnings": r"offsets has to be a 1D Tensor but got (?P<given>\w+)",
    "bags with two beginnings": r"if input is 2D, then offsets has to be None",
    "dimensions of a recurrence": r"Expected input to be (?P<low>\d)D or (?P<high>\d)D, got "
    r"(?P<given>\d)D instead",
    "features of a cell": r"(?P<what>input|hidden\d) has inconsistent (?P<size>\w+): got "
    r"(?P<given>\d+),? expected (?P<wanted>\d+)",
    "batch of a cell": r"Input batch size (?P<given>\d+) doesn't match hidden\d? ?batch size "
    r"(?P<wanted>\d+)",
    "dtypes of a recurrence": r"RNN input dtype \(torch\.(?P<given>\w+)\) does not match weight "
    r"dtype \(torch\.(?P<wanted>\w+)\)",
    "number of lengths": r"Expected `len\(lengths\)` to be equal to batch_size, but got "
    r"(?P<given>\d+) \(batch_size=(?P<wanted>\d+)\)",
    "keys and values": r"key shape torch\.Size\((?P<key>\[.*?\])\) does not match value shape "
    r"torch\.Size\((?P<value>\[.*?\])\)",
    "dimensions of an attention": r"For (?P<kind>batched|unbatched) \(\d-D\) `query`, expected "
    r"`(?P<what>.*?)` (and `value` )?to be (`None` or )?(?P<wanted>[\w-]+)( or (?P<other>[\w-]+))? "
    r"but found (?P<given>\d)-D",
    "query of an attention": r"query should be unbatched 2D or batched 3D tensor but received "
    r"(?P<given>\d)-D query tensor",
    "numbers as a mask": r"only bool and floating types of (?P<mask>\w+) are supported",
    "hint without a mask": r"Need attn_mask if specifying the is_causal hint",
    "dtypes of an attention": r"Expected query, key, and value to have the same dtype, but got "
    r"query\.dtype: (?P<query>\S+) key\.dtype: (?P<key>\S+) and value\.dtype: (?P<value>\S+) "
    r"instead",
    "batches of a transformer": r"the batch number of src and tgt must be equal",
    "width of a transformer": r"the feature number of src and tgt must be equal to d_model",
    "half that is odd": r"Halving dimension must be even, but dimension (?P<dim>\d+) is size "
    r"(?P<given>\d+)",
    "channels of a prelu": r"Mismatch of parameter numbers and input channel size\. Found "
    r"parameter numbers = (?P<wanted>\d+) and channel size = (?P<given>\d+)",
    "fans of a vector": r"Fan in and fan out can not be computed for tensor with fewer than 2 "
    r"dimensions|Only tensors with 2 or more dimensions are supported",
    "dimensions of a picture": r"Input Error: Only 3D, 4D and 5D input Tensors supported \(got "
    r"(?P<given>\d)D\)",
    "neither size": r"either size or scale_factor should be defined",
    "corners of a mode": r"align_corners option can only be set with the interpolating modes",
    "number of scales": r"Input and scale_factor must have the same number of spatial dimensions, "
    r"but got input with spatial dimensions of (?P<given>\[.*?\]) and scale_factor of shape "
    r"(?P<scales>\(.*?\))",
    "dimensions of a grid": r"grid_sampler\(\): expected 4D( or 5D)? input and grid with same "
    r"number of dimensions, but got input with sizes (?P<input>\[.*?\]) and grid with sizes "
    r"(?P<grid>\[.*?\])",
    "matrix of a grid": r"Expected a batch of (?P<kind>\dD) affine matrices of shape "
    r"(?P<wanted>\w+) for size .*\. Got torch\.Size\((?P<given>\[.*?\])\)",
    "padding of a mode": r"Padding size (?P<count>\d+) is not supported for (?P<dims>\d+)D input",
    "half a pair": r"Padding length must be divisible by 2",
    "padding of one number": r"pad\(\): argument 'pad' \(position 2\) must be tuple of ints, not "
    r"int",
    "kind of reduction": r"(?P<given>\S+) is not a valid value for reduction",
    "share of the smoothing": r"label_smoothing must be between 0\.0 and 1\.0\. Got: (?P<given>\S+)"
    r"",
    "input lengths of a ctc loss": r"Expected input_lengths to have value at most (?P<most>\d+), "
    r"but got value (?P<given>\d+)",
    "targets of a ctc loss": r"Expected tensor to have size at least (?P<wanted>\d+) at dimension "
    r"1, but got size (?P<given>\d+) for argument #2 'targets'",
    "blank of a ctc loss": r"blank must be in label range",
    "variance below zero": r"var has negative entry/entries",
    "target of a margin": r"margin_ranking_loss : All input tensors should have same dimension",
    "weight of a loss": r"Attempting to broadcast a dimension of length (?P<given>\d+) at "
    r"(?P<dim>-?\d+)! Mismatching argument at index \d+ had torch\.Size\((?P<shape>\[.*?\])\); but "
    r"expected shape should be broadcastable to (?P<wanted>\[.*?\])",
}
"""Messages of layers, attentions, pictures and losses."""
TENSORS: dict[str, str] = {
    "vectors alone": r"1D tensors expected, but got (?P<given>\d)D and (?P<other>\d)D tensors",
    "columns of distances": r"X1 and X2 must have the same number of columns\. X1: (?P<a>\d+) X2: "
    r"(?P<b>\d+)",
    "rows of distances": r"cdist only supports at least 2D tensors, (?P<which>X\d) got: "
    r"(?P<given>\d)D",
    "transpose of many": r"t\(\) expects a tensor with <= 2 dimensions, but self is (?P<given>\d)D",
    "product of numbers": r"both arguments to matmul need to be at least 1D|unsupported operand "
    r"type\(s\) for @: ('Tensor' and '(int|float)'|'(int|float)' and 'Tensor')",
    "one tensor to join": r"(?P<op>cat|concat|concatenate|stack|vstack|hstack|dstack|block_diag)"
    r"\(\): argument 'tensors' \(position 1\) must be tuple of Tensors, not Tensor",
    "tensors to join": r"(?P<op>\w+)\(\): argument 'tensors' \(position 1\) must be tuple of "
    r"Tensors, not (?P<given>[\w.]+)",
    "numbers to concatenate": r"zero-dimensional tensor \(at position (?P<at>\d+)\) cannot be "
    r"concatenated",
    "several unknown sizes": r"only one dimension can be inferred",
    "parts of a dimension": r"unflatten: Provided sizes (?P<sizes>\[.*?\]) don't multiply up to "
    r"the size of dim (?P<dim>-?\d+) \((?P<given>\d+)\)",
    "fewer sizes than dimensions": r"expand\(.*\): the number of sizes provided \((?P<given>\d+)\) "
    r"must be greater or equal to the number of dimensions in the tensor \((?P<wanted>\d+)\)",
    "repeats of a dimension": r"repeats must have the same size as input along dim, but got "
    r"repeats\.size\(0\) = (?P<given>\d+) and input\.size\((?P<dim>-?\d+)\) = (?P<wanted>\d+)",
    "part past the end": r"start \((?P<start>-?\d+)\) \+ length \((?P<length>\d+)\) exceeds "
    r"dimension size \((?P<size>\d+)\)",
    "choice out of range": r"select\(\): index (?P<value>-?\d+) out of range for tensor of size "
    r"(?P<shape>\[.*?\]) at dimension (?P<dim>\d+)",
    "too many indices": r"too many indices for tensor of dimension (?P<dims>\d+)",
    "indices that differ": r"shape mismatch: indexing tensors could not be broadcast together with "
    r"shapes (?P<shapes>\[.*\])",
    "step backwards": r"step must be greater than zero",
    "value that is no tensor": r"can't assign a (?P<given>[\w.]+) to a (?P<kind>torch\.\w+)",
    "size of an index": r"Size does not match at dimension (?P<dim>\d+) expected index "
    r"(?P<index>\[.*?\]) to be (no larger|smaller) than self (?P<whole>\[.*?\]) apart from "
    r"dimension (?P<along>\d+)",
    "size of a scatter": r"Expected index (?P<index>\[.*?\]) to be (no larger|smaller) than self "
    r"(?P<whole>\[.*?\]) apart from dimension (?P<along>\d+)( and to be (no larger|smaller) size "
    r"than src (?P<src>\[.*?\]))?",
    "rows of an index": r"(?P<op>index_\w+)\(\): Number of indices \((?P<given>\d+)\) should be "
    r"equal to source\.size\(dim\):? \((?P<wanted>\d+)\)",
    "rows that are added": r"source tensor shape must match self tensor shape, excluding the "
    r"specified dimension\. Got self\.shape = (?P<whole>\[.*?\]) source\.shape = "
    r"(?P<given>\[.*?\])",
    "vector of indices": r"index_\w+\(\): Index is supposed to be a vector",
    "filled with many": r"masked_fill_? only supports a 0-dimensional value tensor, but got tensor "
    r"with (?P<dims>\d+) dimension",
    "too few for a mask": r"Number of elements of source < number of ones in mask",
    "place out of range": r"out of range: tried to access index (?P<value>-?\d+) on a tensor of "
    r"(?P<size>\d+) elements",
    "counts of numbers": r"bincount only supports 1-d non-negative integral inputs",
    "nothing to reduce": r"(?P<op>\w+)\(\): Expected reduction dim( \d+)? to (be specified for "
    r"input\.numel\(\) == 0|have non-zero size)",
    "floats alone": r"std and var only support floating point|linalg\.\w+: Expected a floating "
    r"point or complex tensor as input\. Got (?P<given>\w+)",
    "power of integers": r"Integers to negative integer powers are not allowed",
    "no bounds": r"torch\.clamp: At least one of 'min' or 'max' must not be None",
    "number too large": r"value cannot be converted to type (?P<type>[\w: ]+) without overflow",
    "parts of complex numbers": r"Tensor must have a last dimension of size 2",
    "imaginary part of real numbers": r"imag is not implemented for tensors with non-complex "
    r"dtypes",
    "no complex numbers": r"(view_as_real is only supported for complex tensors|istft requires a "
    r"complex-valued input tensor)",
    "complex loss": r"grad can be implicitly created only for real scalar outputs but got "
    r"torch\.(?P<given>\w+)",
    "range turned round": r"upper bound and (larger|lower) bound inconsistent with step sign",
    "nothing to choose from": r"random_ expects 'from' to be less than 'to', but got from=(?P<low>"
    r"-?\d+) >= to=(?P<high>-?\d+)",
    "negative deviation": r"normal expects (all elements of )?std >= 0\.0",
    "no probabilities": r"Expected p_in >= 0 && p_in <= 1 to be true",
    "dimensions of a draw": r"prob_dist must be 1 or 2 dim",
    "draws by integers": r"multinomial only supports floating-point dtypes for input",
    "value of no dtype": r"Could not infer dtype of (?P<given>[\w.]+)",
    "class of a tensor": r"expected TensorOptions\(dtype=(?P<wanted>[\w ]+), .*\(got "
    r"TensorOptions\(dtype=(?P<given>[\w ]+),|new\(\): data must be a sequence \(got "
    r"(?P<number>\w+)\)",
    "name of a dtype": r"(?P<op>\w+)\(\): argument 'dtype' (\(position \d+\) )?must be "
    r"torch\.dtype, not (?P<given>\w+)|invalid type: '(?P<name>\w+)'",
    "name of a device": r"Expected one of cpu, cuda, .* device type at start of device string: "
    r"(?P<given>\S*)",
    "values of a device": r"Cannot copy out of meta tensor; no data!|can't convert "
    r"(?P<device>[\w:]+) device type tensor to numpy",
    "format of a tensor": r"unsupported format string passed to Tensor\.__format__",
    "tensor as an index": r"only integer tensors of a single element can be converted to an index",
    "size of a kept tensor": r"cannot resize variables that require grad",
    "dtype of a gradient": r"attempting to assign a gradient with dtype '(?P<given>\w+)' to a "
    r"tensor with grad_dtype '(?P<wanted>\w+)'|assigned grad expected to be a Tensor or None but "
    r"got grad of type (?P<kind>\w+)",
    "tensor for a process": r"Cowardly refusing to serialize non-leaf tensor",
    "window of a transform": r"stft\(.*expected a 1D window tensor of size equal to "
    r"win_length=(?P<wanted>\d+), but got window with size \[(?P<given>\d+)\]",
    "kind of a spectrum": r"stft requires the return_complex parameter",
    "real input": r"(?P<op>\w+) expects a real input tensor, but got (?P<given>\w+)",
    "dtype of a spectrum": r"Unsupported dtype (?P<given>BFloat16|Half)",
    "sizes of an equation": r"linalg\.solve: Incompatible shapes of A and B for the equation AX = B"
    r" \((?P<a>\w+) and (?P<b>\w+)\)",
    "dtypes of an equation": r"linalg\.\w+: Expected A and B to have the same dtype, but found A "
    r"of type (?P<a>\w+) and B of type (?P<b>\w+)",
    "few dimensions of a matrix": r"linalg\.(?P<op>\w+): The input tensor A must have at least 2 "
    r"dimensions",
    "operands of an einsum": r"einsum\(\): (?P<what>fewer|more) operands were provided than "
    r"specified in the equation",
    "output of an einsum": r"einsum\(\): output subscript (?P<letter>\w) does not appear in the "
    r"equation",
    "sign of an einsum": r"einsum\(\): invalid subscript given at index (?P<at>\d+)",
    "layout without a kernel": r"Could not run '(?P<op>[\w:.]+)' with arguments from the "
    r"'(?P<backend>\w+)' backend",
    "sparse without a view": r"can't convert Sparse layout tensor to numpy",
    "values that may repeat": r"Cannot get (?P<what>\w+) on an uncoalesced tensor",
    "sparse gradients": r"(?P<kind>\w+) does not support sparse gradients",
    "dense gradients": r"(?P<kind>\w+) does not support dense gradients",
    "shape of a nested tensor": r"Internal error: NestedTensorImpl doesn't support sizes",
    "size of another kind": r"(?P<op>\w+)\(\): argument '\w+' failed to unpack the object at pos "
    r"(?P<at>\d+) with error \"type must be tuple of ints,but got (?P<given>\w+)\"",
    "size in a tuple": r"(?P<op>\w+)\(\): argument 'size' (\(position \d+\) )?must be tuple of "
    r"ints, but found element of type (?P<given>builtin_function_or_method|method|NoneType) at "
    r"pos (?P<at>\d+)",
    "argument of another kind": r"(?P<op>\w+)\(\): argument '(?P<name>\w+)' (\(position "
    r"(?P<at>\d+)\) )?must be (?P<wanted>int|bool), not (?P<given>\w+)",
    "not deterministic": r"(?P<op>\S+) does not have a deterministic implementation, but you set",
}
"""Messages of operations, and of functions that make tensors."""
ARGUMENTS: dict[str, str] = {**LAYERS, **TENSORS}
"""Name -> what a message begins with; behind those of :mod:`torchtap.failures.messages`."""

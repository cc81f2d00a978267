"""Further messages of PyTorch: of its own checks of arguments, and of Python about its objects."""

from __future__ import annotations

CHECKS: dict[str, str] = {
    # ------------------------------------------------------------------ tensors that are made
    "index of a scalar": r"invalid index of a 0-dim tensor|iteration over a 0-d tensor|len\(\) of "
    r"a 0-d tensor",
    "index that is no integer": r"only integers, slices \(`:`\), ellipsis .* are valid indices "
    r"\(got (?P<given>\w+)\)",
    "nothing to join": r"(torch\.cat\(\): )?expected a non-empty list of Tensors|stack expects a "
    r"non-empty TensorList",
    "lists of different lengths": r"expected sequence of length (?P<wanted>\d+) at dim "
    r"(?P<dim>\d+) \(got (?P<given>\d+)\)",
    "tensor of strings": r"too many dimensions 'str'|new\(\): invalid data type 'str'",
    "array of objects": r"can't convert np\.ndarray of type (?P<kind>[\w.]+)\.",
    "array turned around": r"At least one stride in the given numpy array is negative",
    "no array": r"expected np\.ndarray \(got (?P<given>\w+)\)",
    "integer gradients": r"data set to a tensor that requires gradients must be floating point",
    "gradient of another size": r"attempting to assign a gradient of size '(?P<given>\[.*?\])' to "
    r"a "
    r"tensor of size '(?P<wanted>\[.*?\])'",
    "negative size": r"Dimension size must be non-negative|Trying to create tensor with negative "
    r"dimension",
    "device without a build": r"Torch not compiled with CUDA enabled|Invalid device string: "
    r"'(?P<device>[^']*)'",
    # ------------------------------------------------------------------ indices and masks
    "sizes of a split": r"split_with_sizes expects split_sizes to sum exactly to (?P<given>\d+)",
    "more than there are": r"selected index k out of range|kthvalue\(\): selected number k out of "
    r"range",
    "mask of numbers": r"masked_fill_? only supports boolean masks, but got mask with dtype "
    r"(?P<given>\w+)|masked_select: expected BoolTensor for mask|where expected condition to be a "
    r"boolean tensor, but got a tensor with dtype "
    r"(?P<other>\w+)",
    "values of an index": r"shape mismatch: value tensor of shape (?P<given>\[.*?\]) cannot be "
    r"broadcast to indexing result of shape (?P<wanted>\[.*?\])",
    "shape of a distribution": r"Value is not broadcastable with batch_shape\+event_shape: "
    r"torch\.Size\((?P<given>.*?)\) vs torch\.Size\((?P<wanted>.*?)\)",
    # ------------------------------------------------------------------ matrices
    "no matrices": r"(self|mat2) must be a matrix|batch[12] must be a 3D tensor",
    "singular": r"linalg\.(inv|solve)[\w.]*: .*(the diagonal element|The diagonal element|the "
    r"input "
    r"matrix is singular|The solver failed)",
    "no square matrix": r"(linalg\.)?\w+: A must be batches of square matrices, but "
    r"they are (?P<rows>\d+) by (?P<columns>\d+) matrices",
    "not finite in a matrix": r"linalg\.\w+: .*(failed to converge|non-finite values)",
    # ------------------------------------------------------------------ modules and optimizers
    "parameters of an optimizer": r"optimizer can only optimize Tensors, but one of the params is|"
    r"params argument given to the optimizer should be an iterable|"
    r"'(?P<kind>\w+)' object is not iterable$",
    "state of a module": r"Expected state_dict to be dict-like, got <class '(?P<given>[\w.]+)'>",
    "member of a sequential": r"(?P<kind>[\w.<>]+) is not a Module subclass",
    "groups that do not divide": r"num_channels \((?P<num>\d+)\) must be divisible by num_groups "
    r"\((?P<groups>\d+)\)",
    "share that is none": r"dropout probability has to be between 0 and 1, but got (?P<given>\S+)|"
    r"dropout should be a number in range \[0, 1\]",
    "more steps than planned": r"Tried to step (?P<step>\d+) times\. The specified number of total "
    r"steps is (?P<total>\d+)",
    "indices of a sparse tensor": r"'len\(size\) == sparse_dim \+ dense_dim' is not satisfied: "
    r"len\(size\) = (?P<size>\d+), sparse_dim = (?P<sparse>\d+)",
    "product of a sparse matrix": r"Argument #\d+ \(dense\): Expected dim \d+ size "
    r"(?P<wanted>\d+), got (?P<given>\d+)",
    "parameters of SparseAdam": r"Sparse params at indices .*: SparseAdam requires dense",
    "fusion in training": r"Fusion only for eval!",
    "divergence of distributions": r"No KL\(p \|\| q\) is implemented for p type (?P<p>\w+) and q "
    r"type (?P<q>\w+)",
    "no method": r"'torch\.(dtype|Size|device)' object is not callable",
    "list of modules": r"'(list|tuple|dict)' object is not callable",
    "pair of states": r"lstm_cell\(\): argument 'hx' \(position \d+\) must be tuple of Tensors, "
    r"not "
    r"Tensor",
    # ------------------------------------------------------------------ data
    "empty data set": r"num_samples should be a positive integer value, but got num_samples=0",
    "tensors of a data set": r"Size mismatch between tensors",
    "lengths of a split": r"Sum of input lengths does not equal the length of the input dataset",
    "order of a sampler": r"sampler option is mutually exclusive with shuffle",
    "file that is none": r"(Ran out of input|pop from empty list|unexpected EOF|)$|"
    r"PytorchStreamReader failed reading zip archive|invalid load key, |"
    r"Weights only load failed[\s\S]*Unsupported operand \d+",
    # ------------------------------------------------------------------ losses and distributions
    "weight of classes": r"weight tensor should be defined either for all (?P<num>\d+) classes or "
    r"no "
    r"classes but got weight tensor of shape: (?P<given>\[.*?\])",
    "value of a distribution": r"Expected value argument \(Tensor of shape \(.*?\)\) to be within "
    r"the "
    r"support \((?P<support>.*?)\) of the distribution (?P<kind>\w+)\(",
    "too many draws": r"cannot sample n_sample > prob_dist\.size\(-1\) samples without replacement",
    "batch of a grid": r"grid_sampler\(\): expected grid and input to have same batch size",
    "both sizes": r"only one of size or scale_factor should be defined",
    "dtype of a mask": r"Expected attn_mask dtype to be bool or float or to match query dtype, "
    r"but got "
    r"attn_mask\.dtype: (?P<given>[\w ]+)",
    # ------------------------------------------------------------------ transforms and ranks
    "scalar of a transform": r"(grad_and_value\(f\)\(\*args\): )?Expected f\(\*args\) to return a "
    r"scalar Tensor, got tensor with "
    r"(?P<dims>\d+) dims",
    "statistics in a transform": r"Batch norm got a batched tensor as input while the running_mean "
    r"or running_var",
    "random in a transform": r"vmap: called random operation while in randomness error mode",
    "shape in a transform": r"vmap: We do not support batching operators that can support dynamic "
    r"shape",
    "sizes in a transform": r"vmap: Expected all tensors to have the same size in the mapped "
    r"dimension, got sizes (?P<given>\[.*?\])",
    "no process group": r"Default process group has not been initialized",
    "None in a list": r"expected Tensor as element (?P<at>\d+) in argument \d+, but got NoneType",
    "closed to numbers": r"unsupported operand type\(s\) for (?P<op>\S+?): ('Tensor' and "
    r"'(?P<given>list|tuple|str|NoneType)'|'(?P<other>list|tuple|str|NoneType)' and 'Tensor')",
}
"""Name -> what a message begins with; behind those of :mod:`torchtap.failures.messages`."""

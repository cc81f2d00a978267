"""Messages about objects of PyTorch: modules, optimizers, data sets, compilers and ranks."""

from __future__ import annotations

OBJECTS: dict[str, str] = {
    "tensor that is called": r"'Tensor' object is not callable",
    "method without a call": r"'(builtin_function_or_)?method' object is not "
    r"(subscriptable|iterable)",
    "no items": r"'(?P<kind>\w+)' object is not subscriptable",
    "no iterator": r"'(?P<kind>\w+)' object is not an iterator",
    "state that is no model": r"'(collections\.)?(?P<kind>OrderedDict|dict)' object (has no "
    r"attribute '(?P<name>eval|train|parameters|forward|cuda|state_dict|modules|children|"
    r"named_parameters|half|float|to|module)'|is not callable)",
    "name of torch": r"module '(?P<home>torch(\.[\w.]+)?)' has no attribute '(?P<name>\w+)'|cannot "
    r"import name '(?P<other>\w+)' from '(?P<place>torch(\.[\w.]+)?)'",
    "step without a metric": r"ReduceLROnPlateau\.step\(\) missing 1 required positional argument: "
    r"'metrics'",
    "method of a class": r"(?P<kind>\w+)\.(?P<name>\w+)\(\) missing 1 required positional "
    r"argument: 'self'",
    "option that is none": r"Unknown nonlinearity '(?P<rnn>\w+)'|Unsupported nonlinearity "
    r"(?P<gain>\w+)|reduce argument must be either sum, prod, mean, amax or amin, got "
    r"(?P<reduce>\w+)",
    "two of a distribution": r"Either `(?P<one>\w+)` or `(?P<other>\w+)` must be specified, but "
    r"not both",
    "shape of a sample": r"'(?P<kind>int)' object is not iterable",
    "sample without a gradient": r"$",
    "arguments that are missing": r"(?P<call>[\w.]+)\(\) missing (?P<count>\d+) required "
    r"(positional|keyword-only) arguments?: (?P<names>.*)",
    "made with inputs": r"(?P<kind>\w+)\.__init__\(\) takes (from \d+ to )?(?P<wanted>\d+) "
    r"positional arguments? but (?P<given>\d+) were given",
    "more names than values": r"(?P<what>not enough|too many) values to unpack \(expected "
    r"(?P<wanted>\d+)(, got (?P<given>\d+))?\)",
    "None in a function": r"'NoneType' object has no attribute '(?P<name>\w+)'",
    "name that is taken": r"[\"']attribute '(?P<name>[\w.]+)' already exists",
    "no buffer or parameter": r"cannot assign '(?P<given>[\w.]+)' object to (?P<what>buffer|"
    r"parameter) '(?P<name>\w+)'",
    "no module or buffer": r"cannot assign '(?P<given>[\w.]+)' as (?P<what>child module|buffer) "
    r"'(?P<name>\w+)'",
    "dot in a name": r"[\"']?(?P<what>module|parameter|buffer) name can.{1,2}t contain \".\", got: "
    r"(?P<name>[\w.]+)",
    "number as a name": r"(?P<what>module|parameter|buffer) name should be a string\. Got "
    r"(?P<given>\w+)",
    "member out of range": r"index (?P<value>-?\d+) is out of range",
    "function that cannot be pickled": r"Can't pickle (local object '(?P<local>.*?)'|<function "
    r"(?P<function>\S+) at|<class '(?P<kind>.*?)'>)|[Cc]an(not|'t) pickle '(?P<object>[\w.]+)' "
    r"object|Can't get local object '(?P<other>.*?)'",
    "folder that is missing": r"Parent directory (?P<folder>.*?) does not exist",
    "arguments of save turned round": r"expected 'f' to be string, path, or a file-like object with"
    r" a 'write' attribute",
    "file of a script": r"Cannot use ``weights_only=True`` with TorchScript archives",
    "file of no script": r"PytorchStreamReader failed locating file constants\.pkl",
    "tuple of gradients": r"can't multiply sequence by non-int of type '(?P<given>\w+)'|"
    r"unsupported operand type\(s\) for (?P<op>\S+): ('(?P<left>\w+)' and '(?P<right>tuple|list)'|"
    r"'(?P<first>tuple|list)' and '\w+')",
    "answer of a comparison": r"'bool' object has no attribute '(?P<name>\w+)'",
    "values and indices": r"'torch\.return_types\.(?P<kind>\w+)' object has no attribute "
    r"'(?P<name>\w+)'",
    "list that is moved": r"'(?P<kind>list|tuple)' object has no attribute '(?P<name>\w+)'",
    "generators that are added": r"unsupported operand type\(s\) for \+: 'generator' and "
    r"'generator'",
    "number that is one already": r"'(?P<kind>float|int)' object has no attribute '(?P<name>item|"
    r"detach|cpu|cuda|to)'",
    "module among tensors": r"unsupported operand type\(s\) for (?P<op>\S+): '(?P<left>\w+)' and "
    r"'(?P<right>\w+)'",
    "key of a checkpoint": r"'(?P<key>[\w.]+)'$",
    "forward of a function": r"(?P<kind>\w+)\.forward\(\) missing \d+ required positional",
    "attribute of a context": r"'(?P<kind>\w+)Backward' object has no attribute '(?P<name>\w+)'",
    "rounded by Python": r"type Tensor doesn't define __round__ method",
    "size that is no integer": r"(?P<op>\w+)\(\): argument '(?P<name>\w+)' .*(must be|type must "
    r"be) (tuple of ints|int),? ?(not|but got|but found element of type) float|(?P<made>zeros|ones|"
    r"rand|randn|empty)\(\) takes 1 positional argument but \d+ were given",
    "inverse of floats": r"~ \(operator\.invert\) is only implemented on integer and Boolean",
    "encoding of a tokenizer": r"$",
    "shape of a parametrization": r"Registering a parametrization may not change the shape",
    "norm that is not there": r"(?P<norm>weight_norm|spectral_norm) of '(?P<name>\w+)' not found in"
    r" (?P<kind>\w+)|Module (?P<other>\w+)\(.*\) does not have a parametrization on "
    r"(?P<tensor>\w+)",
    "pruned nothing": r"Parameter '(?P<name>\w+)' of module .* has to be pruned before pruning can "
    r"be removed",
    "share of a pruning": r"amount=(?P<given>\S+) should (either be a float in the range|be smaller"
    r" than the number of parameters to prune=(?P<most>\d+))",
    "normed twice": r"Cannot register two weight_norm hooks on the same parameter (?P<name>\w+)",
}
"""Messages of modules, their members, files and names."""
TRAINING: dict[str, str] = {
    "closure without a loss": r"float\(\) argument must be a string or a real number, not "
    r"'NoneType'",
    "milestones of a scheduler": r"'(?P<kind>int|float)' object is not iterable",
    "function of a scheduler": r"'(?P<kind>int|float)' object is not callable",
    "text as a rate": r"'<=' not supported between instances of 'float' and "
    r"'(?P<kind>str|list|tuple|dict|NoneType)'",
    "value of an optimizer": r"Invalid (?P<what>learning rate|weight_decay value|momentum value|"
    r"epsilon value|beta parameter at index \d|alpha value|lr_decay value|rho value): "
    r"(?P<given>\S+)",
    "nesterov without momentum": r"Nesterov momentum requires a momentum and zero dampening",
    "no optimizer": r"(?P<kind>\w+) is not an Optimizer",
    "groups of an LBFGS": r"LBFGS doesn't support per-parameter options",
    "mode of a scheduler": r"(?P<mode>\w+) is unknown!|mode (?P<other>\w+) is unknown!",
    "factor of a scheduler": r"Factor should be < 1\.0",
    "functions of a scheduler": r"Expected (?P<wanted>\d+) lr_lambdas, but got (?P<given>\d+)",
    "steps of a cycle": r"You must define either total_steps OR \(epochs AND steps_per_epoch\)",
    "whole number of a scheduler": r"Expected positive integer (?P<name>\w+), but got "
    r"(?P<given>\S+)",
    "momentum of a cycle": r"optimizer must support momentum or beta1 with `cycle_momentum`",
    "schedulers in a row": r"Sequential Schedulers expects number of schedulers provided to be one "
    r"more than the number of milestone points, but got number of schedulers (?P<given>\d+) and the"
    r" number of milestones to be equal to (?P<points>\d+)",
    "gradients that are not finite": r"The total norm of order (?P<order>\S+) for gradients from "
    r"`parameters` is non-finite",
    "closure of a scaler": r"Closure use is not currently supported if GradScaler is enabled",
    "loss of a scaler": r"outputs must be a Tensor or an iterable of Tensors",
    "update without scale": r"Attempted update but _scale is None",
}
"""Messages of optimizers, schedulers and scalers."""
DATA: dict[str, str] = {
    "number of a loader": r"(?P<what>batch_size|num_samples) should be a positive integer value, "
    r"but got \w+=(?P<given>\S+)",
    "order of a stream": r"DataLoader with IterableDataset: expected unspecified (?P<what>shuffle|"
    r"sampler|batch_sampler) option",
    "data set without a length": r"object of type '(?P<kind>\w+)' has no len\(\)",
    "data set without samples": r"Subclasses of Dataset should implement __getitem__",
    "workers that are none": r"(?P<what>persistent_workers|prefetch_factor) option (needs|could "
    r"only be specified)",
    "two batches of a loader": r"batch_sampler option is mutually exclusive with",
    "array of texts": r"default_collate: batch must contain .* found (?P<kind><U\d+|object)",
    "arrays of a data set": r"'int' object is not callable",
    "data sets that are none": r"datasets should not be an empty iterable",
    "key of a sample": r"[\"']?(?P<key>\w+)[\"']?$",
    "rank out of range": r"Invalid rank (?P<given>-?\d+), rank should be in the interval \[0, "
    r"(?P<last>\d+)\]",
}
"""Messages of data sets and loaders."""
TRANSFORMS: dict[str, str] = {
    "outputs of a gradient": r"(grad_and_value\(f\)\(\*args\): )?Expected f\(\*args\) to return a "
    r"Tensor, got <class '(?P<given>\w+)'>",
    "dimensions of a map": r"vmap\([\s\S]*in_dims is not compatible with the structure of `inputs`",
    "map of no tensor": r"vmap\(.*Got in_dim=(?P<dim>-?\d+) for an input but the input is of type "
    r"<class '(?P<given>[\w.]+)'>",
    "dimension of a map": r"vmap\(.*Got in_dim=(?P<dim>-?\d+) for some input, but that input is a "
    r"Tensor of dimensionality (?P<dims>\d+)",
    "output of a map": r"vmap\(.*must only return Tensors, got type <class '(?P<given>[\w.]+)'>",
    "shape that depends on values": r"vmap: We do not support batching operators that can output "
    r"dynamic shape\. Attempted to vmap over (?P<op>[\w:]+)",
    "backward in a transform": r"backward\(\) called inside a functorch transform",
    "primals of a transform": r"jvp\(f, primals, tangents\): Expected (?P<which>primals|tangents) "
    r"to be a tuple",
    "size of a tangent": r"Trying to set a forward gradient that has a different size",
    "argument of a transform": r"Got argnum=(?P<at>\d+), but only (?P<count>\d+) positional inputs",
    "models of one class": r"stack_module_state: Expected all models to be of the same class",
    "names of a functional call": r"Error\(s\) in reparametrizing for (?P<kind>\w+)",
    "index of a scripted list": r"\s*Expected integer literal for index but got a variable",
    "argument of a script": r"(?P<call>\w+)\(\) Expected a value of type '(?P<wanted>.*?)' for "
    r"argument '(?P<name>\w+)' but instead found type '(?P<given>.*?)'",
    "keywords of a script": r"Compiled functions can't take variable number of arguments",
    "name in one branch": r"\s*(?P<name>\w+) is not defined in the (?P<branch>true|false) branch",
    "types of two branches": r"\s*Type mismatch: (?P<name>\w+) is set to type (?P<a>.*?) in the "
    r"true branch and type (?P<b>.*?) in the false branch",
    "type of a script": r"\s*Unknown type name '(?P<name>[\w.]+)'|\s*Attempted to use "
    r"(?P<bare>\w+) without (a )?contained type",
    "types of two returns": r"\s*Previous return statement returned a value of type "
    r"(?P<first>.*?) but this return statement returns a value of type (?P<second>.*?):",
    "list of a script": r"\s*aten::append\.t[\s\S]*?previously matched to type (?P<wanted>\S+) is "
    r"matched to type (?P<given>[^\n]*?)\.\n",
    "script that failed": r"The following operation failed in the TorchScript interpreter",
    "syntax of a script": r"(?P<what>\w+) blocks aren't supported",
    "dict of a trace": r"Encountering a dict at the output of the tracer",
    "output of a trace": r"Only tensors, lists, tuples of tensors, or dictionary of tensors can be "
    r"output from traced functions",
    "constant with grad": r"Cannot insert a Tensor that requires grad as a constant",
    "backend of a compiler": r"Invalid backend: '(?P<given>\w+)'",
    "values in an export": r"Could not (guard on|extract specialized integer from) data-dependent "
    r"expression",
    "arguments of an export": r"Expecting `args` to be a tuple of example positional inputs, got "
    r"<class '(?P<given>[\w.]+)'>",
    "module of an export": r"Expected `mod` to be an instance of `torch\.nn\.Module`, got <class "
    r"'(?P<given>[\w.]+)'>",
    "size of an export": r"Constraints violated \((?P<dims>.*?)\)!",
    "input of an export": r"Guard failed: (?P<guard>.*)",
    "branch of a symbol": r"symbolically traced variables cannot be used as inputs to control flow",
    "loop over a symbol": r"Proxy object cannot be iterated",
    "storage of a transform": r"Cannot access data pointer of Tensor that doesn't have storage",
    "fake tensors that do not fit": r"RuntimeError when making fake tensor call[\s\S]*got "
    r"\w+\(['\"](?P<why>.*?)['\"]\)",
}
"""Messages of torch.func, TorchScript, torch.export and torch.fx."""
RANKS: dict[str, str] = {
    "variable of a rank": r"Error initializing torch\.distributed using env:// rendezvous: "
    r"environment variable (?P<name>\w+) expected, but not set",
    "variable that is not set": r"'(?P<name>RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE)'$",
    "port in use": r"The server socket has failed to (listen|bind).*port: (?P<port>\d+)[\s\S]*"
    r"(EADDRINUSE|[Aa]ddress already in use)",
    "backend of ranks": r"Unknown backend type (?P<given>\w+)|Distributed package doesn't have "
    r"(?P<lacking>\w+) built in",
    "group made twice": r"trying to initialize the default process group twice",
    "nothing to synchronise": r"DistributedDataParallel is not needed when a module doesn't have "
    r"any parameter that requires a gradient",
    "devices of a wrapper": r"DistributedDataParallel device_ids and output_device arguments only "
    r"work with",
    "list of a scatter": r"ProcessGroup\w+::(?P<op>\w+): (Incorrect|invalid) (input|output) list "
    r"size (?P<given>\d+)\. (Input|Output) list size should be (?P<wanted>\d+)",
    "argument of a collective": r"Invalid function argument\. Expected parameter `(?P<name>\w+)` of"
    r" type (?P<wanted>[\w.\[\]]+)\s+but got <class '(?P<given>[\w.]+)'> instead",
    "rank of a collective": r"ProcessGroup\w+::(?P<op>\w+): invalid root rank: (?P<given>-?\d+)",
    "sharded without a device": r"FSDP needs a non-CPU accelerator device",
    "frozen beside trained": r"Must flatten tensors with uniform `requires_grad` when "
    r"`use_orig_params=False`",
    "sharded and plain": r"(?P<op>[\w.]+) got mixed torch\.Tensor and DTensor",
    "models of ranks": r"DDP expects same model across all ranks, but Rank (?P<rank>\d+) has "
    r"(?P<given>\d+) params, while rank (?P<other>\d+) has inconsistent (?P<wanted>\d+) params",
    "sizes of ranks": r"\[(?P<rank>\d+)\]: params\[(?P<at>\d+)\] in this process with sizes "
    r"(?P<given>\[.*?\]) appears not to match sizes of the same param in process (?P<other>\d+)",
    "rank that ended": r".*Connection (closed|reset) by peer",
}
"""Messages of processes that train together."""
LAST: dict[str, str] = {
    "class of a pickle": r"Can't get attribute '(?P<name>\w+)' on <module '(?P<place>[\w.]+)'|No "
    r"module named '(?P<module>[\w.]+)'",
    "end of a loader": r"$",
    "next of an iterator": r"'_(Single|Multi)ProcessDataLoaderIter' object has no attribute 'next'",
    "attribute of a subset": r"'(?P<kind>Subset|ConcatDataset|DataLoader)' object has no attribute "
    r"'(?P<name>\w+)'",
    "arguments of a hook": r"(?P<hook>[\w.<>]+)\(\) (?P<what>(takes|missing|got) .*)",
    "key of a data set": r"-?\d+$",
    "code of a script": r"[\s\S]*<--- HERE",
    "samples beyond the data": r"list index out of range|index (?P<at>-?\d+) is out of bounds for "
    r"axis 0 with size (?P<size>\d+)|single positional indexer is out-of-bounds",
}
"""Messages of a kind, behind those that say more."""
PLAIN: dict[str, str] = {
    "None that is called": r"'(?P<kind>[\w.]+)' object is not callable",
    "member of an optimizer": r"'(?P<kind>\w+)' object has no attribute '(?P<name>\w+)'",
    "member of an object": r"'(?P<kind>NoneType|str|int|float|bool|list|dict|tuple|numpy\.ndarray|"
    r"_IncompatibleKeys|method|function|builtin_function_or_method)' object has no attribute "
    r"'(?P<name>\w+)'",
    "modules of a dict": r"ModuleDict update sequence element #\d+ should be Iterable",
    "error in a worker": r"[\s\S]*",
}
"""Messages of Python itself about objects that stand where PyTorch's are meant."""
TOOLS: dict[str, str] = {**OBJECTS, **TRAINING, **DATA, **TRANSFORMS, **RANKS, **LAST, **PLAIN}
"""Name -> what a message begins with; behind those of :mod:`torchtap.failures.messages`."""

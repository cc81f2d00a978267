"""Expressions of a frame, computed with zeros in place of the program's tensors.

PyTorch's own kernels say whether sizes fit, and no code of the program runs. They run on the CPU
and not on the meta device, which would import sympy and torch._dynamo at the first operation, a
second of work. The zeros take no memory until they are read, and an operation that would be much
work is not computed.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from torchtap.core.source_files import TORCH
from torchtap.core.torch_private import is_of_transform
from torchtap.core.user_functions import code_of
from torchtap.failures.traceback_frame import MISSING, TracebackFrame, attribute_of, item_of

_MOST_ELEMENTS = 2**24
"""Elements of a tensor of zeros, which are memory that nothing is written to."""
_MOST_WORK = 2**22
"""Multiplications of an operation."""
_MOST_OPERATIONS = 150

BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.MatMult: operator.matmul,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
UNARY: dict[type, Callable[[Any], Any]] = {ast.USub: operator.neg, ast.Invert: operator.invert}
_CASTS = {
    "float": torch.float32,
    "double": torch.float32,
    "half": torch.float32,
    "bfloat16": torch.float32,
    "long": torch.int64,
    "int": torch.int32,
    "bool": torch.bool,
}
_COPIES = frozenset({"contiguous", "clone", "reshape", "flatten"})
"""Methods for which it does not matter how a tensor lies in memory."""
_STAYS = frozenset({"cpu", "cuda", "detach", "pin_memory", "requires_grad_", "share_memory_"})
"""Methods that return a tensor of the same size and dtype."""
_OF_VALUES = frozenset(
    {
        *("argwhere", "bernoulli", "bincount", "histc", "item", "masked_select", "multinomial"),
        *("nonzero", "numpy", "poisson", "tolist", "unique", "unique_consecutive"),
        *("cholesky", "cholesky_inverse", "inverse", "lu", "one_hot", "ctc_loss"),
        *("apply_", "backward", "map_", "register_hook", "storage", "untyped_storage"),
    }
)
"""Operations whose result, or refusal, is a matter of values, and those that reach further."""
_JOINS = frozenset({"cat", "stack", "hstack", "vstack"})
_MADE = frozenset({"empty", "full", "ones", "rand", "randn", "zeros"}) | frozenset(
    f"{name}_like" for name in ("empty", "ones", "rand", "randn", "zeros")
)
"""Functions that make a tensor of a size, whatever its values."""
_PLAIN: tuple[Any, ...] = (len, int, float, tuple, list, min, max, abs, sum, range)
"""Functions of Python that are called with numbers."""
_SIMPLE = (bool, int, float, str, type(None), type(...), slice, torch.Size, torch.dtype, range)
_PRODUCTS = frozenset({"matmul", "mm", "bmm", "mv", "linear", "addmm", "baddbmm", "einsum"})
_DRAWS = ("p", "dropout")
"""Attributes of layers by which values are dropped at random."""
_IMPORTED = {"torch": torch, "nn": nn, "F": torch.nn.functional}
"""Names as a note has them, which the program may not have."""


class Unknown(Exception):
    """A value that only running the program would tell, or much work."""


class Refused(Exception):
    """PyTorch refuses an operation, for a reason of sizes, dtypes or numbers of dimensions."""


@contextmanager
def nothing_changed() -> Iterator[None]:
    """Leave random numbers as they are, and record and convert nothing."""
    state = torch.get_rng_state()
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            yield
    finally:
        torch.set_rng_state(state)


class StandIns:
    """The values of a frame, with zeros for its tensors.

    Args:
        frame: of the program.
        instead: by the identity of a node: the expression or the value that it gets.
        layers: by the identity of a layer: the numbers that it is made with.

    Attributes:
        names: values of variables, from the statements that ran here.
    """

    def __init__(
        self,
        frame: TracebackFrame,
        instead: Mapping[int, Any] | None = None,
        layers: Mapping[int, tuple[Any, ...]] | None = None,
    ) -> None:
        self._frame = frame
        self.instead = dict(instead or {})
        self.layers = dict(layers or {})
        self.names: dict[str, Any] = {}
        self._held: dict[int, Tensor] = {}
        self._left = _MOST_OPERATIONS

    def of(self, node: ast.AST | None) -> Any:
        """Return the value of an expression; raises :class:`Unknown` or :class:`Refused`."""
        other = self.instead.get(id(node), MISSING)
        if other is not MISSING:
            return self.of(other) if isinstance(other, ast.AST) else other
        match node:
            case None:
                return None
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self._variable(name)
            case ast.Attribute(value=base, attr=attr):
                return self._attribute(self.of(base), attr)
            case ast.Subscript(value=base, slice=index):
                return self._item(self.of(base), self.of(index))
            case ast.Slice(lower=lower, upper=upper, step=step):
                return slice(self.of(lower), self.of(upper), self.of(step))
            case ast.Tuple(elts=parts):
                return tuple(self.of(one) for one in parts)
            case ast.List(elts=parts):
                return [self.of(one) for one in parts]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
                name = "matmul" if isinstance(op, ast.MatMult) else ""
                return self.run(BINARY[type(op)], self.of(left), self.of(right), name=name)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in BINARY:
                return self.run(BINARY[type(op)], self.of(left), self.of(right))
            case ast.UnaryOp(op=op, operand=operand) if type(op) in UNARY:
                return self.run(UNARY[type(op)], self.of(operand))
            case ast.Call():
                return self._call(node)
        raise Unknown

    def run(self, function: Callable[..., Any], *given: Any, name: str = "", **named: Any) -> Any:
        """Return what an operation gives, which is PyTorch's or Python's own."""
        self._left -= 1
        tensors = list(_tensors((given, named)))
        is_much = self._left < 0 or _work(name, tensors) > _MOST_WORK
        if is_much or not all(map(_is_simple, (*given, *named.values()))):
            raise Unknown
        try:
            return function(*given, **named)
        except (NotImplementedError, MemoryError) as error:
            raise Unknown from error
        except (RuntimeError, ValueError, IndexError, AssertionError) as error:
            if not tensors or "memory" in str(error):
                raise Unknown from error
            raise Refused(str(error)) from error
        except Exception as error:
            raise Unknown from error

    def _variable(self, name: str) -> Any:
        if name not in self.names:
            value = self._frame.value_of(ast.Name(name))
            return self._known(_IMPORTED.get(name, MISSING) if value is MISSING else value)
        if self.names[name] is MISSING:
            raise Unknown
        return self.names[name]

    def _known(self, value: Any) -> Any:
        """Return a value of the program; zeros for a tensor, the same ones each time."""
        if value is MISSING:
            raise Unknown
        if isinstance(value, Tensor):
            return self._held.setdefault(id(value), stand_in(value))
        if type(value) in (list, tuple):
            return type(value)(self._known(one) for one in value[:64])
        return value

    def _attribute(self, owner: Any, name: str) -> Any:
        if not isinstance(owner, Tensor):
            return self._known(attribute_of(owner, name))
        if name in ("shape", "ndim", "dtype", "T", "mT", "data", "real"):
            return self.run(getattr, owner, name)
        if name == "device":
            return None
        raise Unknown

    def _item(self, owner: Any, index: Any) -> Any:
        if isinstance(owner, Tensor):
            parts = index if isinstance(index, tuple) else (index,)
            if any(isinstance(one, bool) or _is_mask(one) for one in parts):
                raise Unknown  # How many a mask takes is a matter of its values.
            return self.run(operator.getitem, owner, index)
        if isinstance(owner, torch.Size | tuple | list) and isinstance(index, int | slice):
            return self.run(operator.getitem, tuple(owner), index)
        return self._known(item_of(owner, index))

    def _call(self, node: ast.Call) -> Any:
        if any(isinstance(one, ast.Starred) for one in node.args):
            raise Unknown
        if any(one.arg is None for one in node.keywords):
            raise Unknown
        func = None if id(node.func) in self.instead else node.func
        owner = self.of(func.value) if isinstance(func, ast.Attribute) else None
        given = [self.of(one) for one in node.args]
        named = {str(one.arg): self.of(one.value) for one in node.keywords}
        if any(one is Ellipsis for one in (*given, *named.values())):
            raise Unknown  # It stands for arguments that a note leaves open.
        if isinstance(func, ast.Attribute) and isinstance(owner, Tensor):
            return self._method(owner, func.attr, given, named)
        if isinstance(func, ast.Attribute):
            called = self._attribute(owner, func.attr)
        else:
            called = self.of(node.func)
        if isinstance(called, nn.Module):
            return self.layer(called, *given, **named)
        return self._function(called, given, named)

    def _method(self, owner: Tensor, name: str, given: list[Any], named: dict[str, Any]) -> Any:
        if name in _STAYS:
            return owner
        if name in _CASTS:
            return zeros(owner.shape, _CASTS[name])
        if name == "to":
            target = next((one for one in given if isinstance(one, Tensor | torch.dtype)), None)
            target = target.dtype if isinstance(target, Tensor) else target
            return owner if target is None else zeros(owner.shape, _kept_dtype(target))
        if name in _COPIES:
            owner = zeros(owner.shape, owner.dtype)
        elif name in _OF_VALUES or name.startswith("_") or not hasattr(Tensor, name):
            raise Unknown
        return self.run(getattr(owner, name), *given, name=name, **named)

    def _function(self, called: Any, given: list[Any], named: dict[str, Any]) -> Any:
        if any(called is one for one in _PLAIN):
            if called is not len and next(_tensors((given, named)), None) is not None:
                raise Unknown
            return self.run(called, *given, **named)
        name = getattr(called, "__name__", "")
        if name in _OF_VALUES or not _is_torchs(called, name):
            raise Unknown
        if name in _MADE:
            return self._made(name, given, named)
        if name == "linear" or name.startswith("conv"):
            return self._shrunk(called, name, given, named)
        return self.run(called, *given, name=name, **named)

    def _made(self, name: str, given: list[Any], named: dict[str, Any]) -> Tensor:
        dtype = _kept_dtype(named.get("dtype") or torch.float32)
        first = given[0] if given else named.get("size")
        if isinstance(first, Tensor):
            return zeros(first.shape, dtype if "dtype" in named else first.dtype)
        is_whole = isinstance(first, list | tuple)
        size = first if is_whole else given[:1] if name == "full" else given
        if not size or not all(type(one) is int and one >= 0 for one in size):
            raise Unknown
        return zeros(tuple(size), dtype)

    def _shrunk(self, called: Any, name: str, given: list[Any], named: dict[str, Any]) -> Any:
        """Run a linear layer or a convolution on one sample, since all samples fit or none does."""
        whole = given[0] if given and isinstance(given[0], Tensor) else None
        if whole is None:
            raise Unknown
        num_kept = 1 if name == "linear" else len(given[1].shape) - 1
        lead = whole.shape[:-num_kept] if whole.dim() > num_kept else ()
        is_batch = bool(lead) and (name == "linear" or len(lead) == 1)
        if is_batch:
            whole = whole[(0,) * len(lead)][(None,) * len(lead)]
        made = self.run(called, whole, *given[1:], name=name, **named)
        return zeros((*lead, *made.shape[len(lead) :]), made.dtype) if is_batch else made

    def layer(self, module: nn.Module, *given: Any, **named: Any) -> Any:
        """Return what a layer of PyTorch makes of values, without hooks, in zeros."""
        if type(module) is nn.Sequential and len(given) == 1:
            (value,) = given
            for one in module._modules.values():
                value = self.layer(one, value)
            return value
        copied = _copied(module, self.layers)
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            name = "linear" if isinstance(module, nn.Linear) else "conv"
            if not given or not isinstance(given[0], Tensor) or "weight" not in copied._parameters:
                raise Unknown

            def forward(value: Tensor, weight: Tensor) -> Any:
                return copied(value)

            return self._shrunk(forward, name, [given[0], copied._parameters["weight"]], {})
        num_weights = sum(one.numel() for one in copied.parameters())
        inputs = [one for one in _tensors((given, named)) if one.dim()]
        rows = max((one.numel() // max(1, one.shape[-1]) for one in inputs), default=1)
        if not isinstance(module, nn.Embedding) and rows * num_weights > 8 * _MOST_WORK:
            raise Unknown
        return self.run(copied, *given, **named)


def zeros(size: Any, dtype: torch.dtype) -> Tensor:
    """Return a tensor of zeros; raises :class:`Unknown` where it would be large."""
    if math.prod(size) > _MOST_ELEMENTS:
        raise Unknown
    return torch.zeros(tuple(size), dtype=dtype, device="cpu")


def stand_in(value: Tensor) -> Tensor:
    """Return zeros of the size of a tensor that lie in memory as it does.

    Floating-point numbers are of one dtype, since autocast may have converted them.
    """
    is_plain = type(value) in (Tensor, nn.Parameter) and not is_of_transform(value)
    if not is_plain or value.is_nested or is_lazy(value) or value.layout is not torch.strided:
        raise Unknown
    pairs = list(zip(value.shape, value.stride(), strict=True))
    span = 1 + sum((size - 1) * stride for size, stride in pairs) if value.numel() else 0
    return zeros((span,), _kept_dtype(value.dtype)).as_strided(value.shape, value.stride())


def _kept_dtype(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_floating_point:
        return torch.float32
    return torch.complex64 if dtype.is_complex else dtype


def _is_mask(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in (torch.bool, torch.uint8)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _work(name: str, tensors: list[Tensor]) -> int:
    """Return about how many multiplications an operation is, or elements that it goes through."""
    if len(tensors) < 2:
        return sum(one.numel() for one in tensors) // 8
    if name.startswith("conv"):
        value, weight = tensors[:2]
        return value.numel() * weight.numel() // max(1, weight.shape[1]) // 8
    if name in _PRODUCTS:
        first, second = tensors[-2:] if "add" in name else tensors[:2]
        columns = (*second.shape, 1)[0 if name == "linear" else -1 - bool(second.dim() > 1)]
        return int(first.numel() * columns // 8)
    if name in _JOINS:
        return sum(one.numel() for one in tensors)
    most = max(one.dim() for one in tensors)
    sizes = [(1,) * (most - one.dim()) + tuple(one.shape) for one in tensors]
    return math.prod(max(column) for column in zip(*sizes, strict=True))


def _is_torchs(function: Any, name: str) -> bool:
    """Return whether a function is one of torch.nn.functional, or of torch and of tensors."""
    if name.startswith("_") or not name:
        return False
    if getattr(torch.nn.functional, name, None) is function:
        return True
    is_of_tensors = hasattr(Tensor, name) or name in _JOINS | _MADE or name in ("einsum", "cdist")
    return is_of_tensors and getattr(torch, name, None) is function


def _is_simple(value: Any) -> bool:
    """Return whether a value is a tensor of ours or a number, and no object of the program."""
    if type(value) in (list, tuple):
        return all(map(_is_simple, value))
    return isinstance(value, Tensor) or type(value) in _SIMPLE


def _copied(module: nn.Module, layers: Mapping[int, tuple[Any, ...]]) -> Any:
    """Return a layer of PyTorch with zeros for its tensors; it has no hooks and drops nothing."""
    held = dict(vars(module))
    code = code_of(type(module).forward)
    is_own = code is not None and code.co_filename.startswith(TORCH) and "forward" not in held
    if not is_own or not type(module).__module__.startswith("torch.nn.modules."):
        raise Unknown
    if _has_global_hooks() or isinstance(module, nn.RNNBase):
        raise Unknown  # A recurrence holds its weights a second time.
    for table in ("_parameters", "_buffers"):
        held[table] = {
            key: one if one is None else stand_in(one) for key, one in held[table].items()
        }
    held["_modules"] = {
        key: one if one is None else _copied(one, layers) for key, one in held["_modules"].items()
    }
    held |= {key: type(one)() for key, one in held.items() if key.endswith("_hooks") and one}
    held |= {key: 0.0 for key in _DRAWS if type(held.get(key)) is float}
    held["_compiled_call_impl"] = None
    if id(module) in layers:
        _resize(module, held, layers[id(module)])
    copied = object.__new__(type(module))
    vars(copied).update(held)
    return copied


def _has_global_hooks() -> bool:
    held = vars(torch.nn.modules.module)
    return any(one for name, one in held.items() if "global" in name and "hooks" in name)


def _resize(module: nn.Module, held: dict[str, Any], numbers: tuple[Any, ...]) -> None:
    """Give a layer other numbers of what it takes and makes; ``...`` stands for what it has."""
    weight = held["_parameters"].get("weight")
    if weight is None:
        raise Unknown
    is_conv = type(module) in (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    if type(module) is not nn.Linear and not is_conv:
        raise Unknown
    if not all(type(one) is int for one in numbers[:2] if one is not Ellipsis):
        raise Unknown
    taken = numbers[0] if numbers[:1] != (Ellipsis,) else None
    made = numbers[1] if len(numbers) > 1 and numbers[1] is not Ellipsis else weight.shape[0]
    groups = held.get("groups", 1)
    taken = weight.shape[1] if taken is None else taken // groups
    held["_parameters"]["weight"] = zeros((made, taken, *weight.shape[2:]), weight.dtype)
    if held["_parameters"].get("bias") is not None:
        held["_parameters"]["bias"] = zeros((made,), weight.dtype)
    if is_conv:
        held["in_channels"], held["out_channels"] = taken * groups, made

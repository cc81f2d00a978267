"""Public helpers for tests: a zoo of tiny models, each one a trap, and a loss for any output.

    from torchtap.testing import default_loss, zoo

    @pytest.mark.parametrize("specimen", zoo(), ids=lambda specimen: specimen.name)
    def test_my_sink_survives(specimen): ...

Whatever attaches to a model should leave every specimen as it was, bit for bit.
"""

from __future__ import annotations

import importlib.util
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils import _pytree
from torch.utils.checkpoint import checkpoint

from torchtap.core.tree import leaves

__all__ = ["Net", "Specimen", "default_loss", "zoo"]

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Specimen:
    """One tiny model that something usually goes wrong with.

    Args:
        name: unique in the zoo, an identifier.
        build: makes the model anew, with the same weights and the same mode every time. Draws
            nothing from the global random number generator.
        inputs: makes ``(args, kwargs)`` anew, with the same values every time.
        trap: what usually goes wrong, in a few words.
        raises: what the forward raises, or ``None``.
        backward: whether :func:`default_loss` of the output can be back-propagated.
        random: the forward draws random numbers, so seed before each run that is compared.
        recomputes: modules run again during the backward: a checkpoint, a custom function or a
            hook calls them.
        reentrant: a checkpoint of the reentrant kind: its first forward has grad mode off.
        twin: an out-of-place twin (every module handed copies) computes the same; ``False``
            where a later write through one tensor is read through another.
        double: the model means the same in float64 (``False``: casts inside, or narrow dtypes).
        silent: paths of modules that never run.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Arguments]
    trap: str
    raises: type[Exception] | None = None
    backward: bool = True
    random: bool = False
    recomputes: bool = False
    reentrant: bool = False
    twin: bool = True
    double: bool = True
    silent: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


class Net(nn.Module):
    """A module whose forward is a plain function of it: ``Net(body, a=nn.Linear(3, 3))``.

    Args:
        body: called as ``body(net, *args, **kwargs)``.
        parts: children, parameters and (plain tensors) buffers, by name.

    Example:
        >>> net = Net(lambda m, x: m.a(x) + 1, a=nn.Identity())
        >>> net(torch.zeros(2))
        tensor([1., 1.])
    """

    if TYPE_CHECKING:  # The parts have the types that they were given.

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, body: Callable[..., Any], /, **parts: nn.Module | Tensor) -> None:
        super().__init__()
        self.body = body
        for name, part in parts.items():
            if isinstance(part, nn.Module):
                self.add_module(name, part)
            elif isinstance(part, nn.Parameter):
                self.register_parameter(name, part)
            else:
                self.register_buffer(name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Whatever ``body`` makes of it."""
        return self.body(self, *args, **kwargs)

    def extra_repr(self) -> str:
        """The name of the body."""
        return self.body.__name__


def default_loss(output: Any) -> Tensor | None:
    """A scalar in which every element of every differentiable tensor of ``output`` counts.

    The sum over the leaves of ``leaf * cos(0, 1, 2, ...)`` in float64, so that the gradients are
    fixed, finite, and differ from element to element and from leaf to leaf. Complex leaves count
    by their absolute value. An empty leaf adds 0; nan and inf go through.

    Args:
        output: any nesting of tensors that :mod:`torchtap.core.tree` can walk.

    Returns:
        A float64 scalar, or ``None`` when no leaf requires grad.

    Example:
        >>> loss = default_loss({"a": torch.ones(2, requires_grad=True), "b": None})
        >>> round(loss.item(), 4)  # cos 0 + cos 1
        1.5403
        >>> default_loss(torch.ones(2)) is None
        True
    """
    total: Tensor | None = None
    start = 0
    for _, leaf in leaves(output):
        if not leaf.requires_grad:
            continue
        real = leaf.abs() if leaf.is_complex() else leaf
        places = torch.arange(start, start + real.numel(), device=real.device)
        term = (real.double() * places.double().cos().view(real.shape)).sum()
        total = term if total is None else total + term
        start += real.numel() + 1
    return total


def zoo() -> list[Specimen]:
    """Every specimen, in a fixed order; names are unique.

    Example:
        >>> specimen = next(s for s in zoo() if s.name == "module_called_twice")
        >>> args, kwargs = specimen.inputs()
        >>> specimen.build()(*args, **kwargs).shape
        torch.Size([2, 3])
    """
    return [
        *_nested_values(),
        *_arguments(),
        *_several_calls(),
        *_in_place(),
        *_views(),
        *_same_tensor(),
        *_grad_modes(),
        *_checkpoints(),
        *_inside_backward(),
        *_dtypes_and_layouts(),
        *_parameters(),
        *_library(),
        *_control_flow(),
    ]


# --- what specimens are made of ---------------------------------------------------------------


def _specimen(
    name: str,
    make: Callable[[], nn.Module],
    inputs: Callable[[], Arguments],
    trap: str,
    **marks: Any,
) -> Specimen:
    return Specimen(name, _seeded(make), inputs, trap, **marks)


def _seeded(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            # Not torch.manual_seed: that would reseed accelerators, which are not restored.
            torch.default_generator.manual_seed(0)
            return make()

    return build


def _x(
    *shape: int, seed: int = 0, grad: bool = False, dtype: torch.dtype = torch.float32
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_(grad)


def _given(*args: Any, **kwargs: Any) -> Arguments:
    return args, kwargs


def _rows() -> Arguments:
    return _given(_x(2, 3))


def _rows_with_grad() -> Arguments:
    return _given(_x(2, 3, grad=True))


def _image() -> Arguments:
    return _given(_x(2, 4, 5, 5))


def _sequence() -> Arguments:
    return _given(_x(2, 5, 8))


def _tokens() -> Arguments:
    return _given(torch.tensor([[1, 2, 3], [4, 1, 0]]))


def _linear(width: int = 3) -> nn.Linear:
    return nn.Linear(width, width)


def _two(body: Callable[..., Any]) -> Net:
    """A body with two linear children, ``a`` and ``b``."""
    return Net(body, a=_linear(), b=_linear())


def _wrapped(inner: Callable[..., Any], outer: Callable[..., Any]) -> Net:
    """``inner`` (with children ``a`` and ``b``) called by ``outer``, which has a child ``last``."""
    return Net(outer, inner=_two(inner), last=_linear())


# --- nested values ----------------------------------------------------------------------------


class Pair(NamedTuple):
    """A named tuple of tensors."""

    first: Tensor
    second: Tensor


@dataclass
class Outcome:
    """A dataclass with tensors, a nested tuple, nothing, and text."""

    hidden: Tensor
    pair: tuple[Tensor, Tensor]
    nothing: Tensor | None = None
    label: str = "outcome"


class OrderedOutput(OrderedDict[str, Any]):
    """Like the ``ModelOutput`` of transformers: read by key, by attribute, and by position."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, key: Any) -> Any:
        return tuple(self.values())[key] if isinstance(key, int) else super().__getitem__(key)


class Box:
    """A plain object, known by its attributes only."""

    def __init__(self, first: Tensor, rest: tuple[Tensor, ...]) -> None:
        self.first = first
        self.rest = rest


class Bundle:
    """Registered as a node of PyTorch's trees."""

    def __init__(self, first: Tensor, second: Tensor) -> None:
        self.first = first
        self.second = second


_pytree.register_pytree_node(
    Bundle,
    lambda bundle: ([bundle.first, bundle.second], None),
    lambda parts, _: Bundle(*parts),
    serialized_type_name="torchtap.testing.Bundle",
    flatten_with_keys_fn=lambda bundle: (
        [(_pytree.GetAttrKey(name), part) for name, part in vars(bundle).items()],
        None,
    ),
)


class Cache:
    """Like the caches of transformers: one object that every layer writes into."""

    def __init__(self) -> None:
        self.layers: list[Box] = []

    def grown(self, layer: int, new: Tensor) -> Tensor:
        """All that a layer has seen so far."""
        if layer == len(self.layers):
            self.layers.append(Box(new, ()))
        else:
            held = self.layers[layer]
            held.first = torch.cat([held.first, new])
        return self.layers[layer].first


def _gives_tuple(m: Any, x: Tensor) -> Any:
    return m.a(x), m.b(x)


def _gives_nested_tuple(m: Any, x: Tensor) -> Any:
    return m.a(x), (m.b(x), [x.sin() * m.a.weight.sum()])


def _gives_dict(m: Any, x: Tensor) -> Any:
    return {"z": m.a(x), "a": {"deep": m.b(x), "count": 3}}


def _gives_pair(m: Any, x: Tensor) -> Any:
    return Pair(m.a(x), m.b(x))


def _gives_outcome(m: Any, x: Tensor) -> Any:
    return Outcome(m.a(x), (m.b(x), x))


def _gives_ordered_output(m: Any, x: Tensor) -> Any:
    return OrderedOutput(last_hidden_state=m.a(x), hidden_states=(x, m.b(x)))


def _gives_model_output(m: Any, x: Tensor) -> Any:
    # Imported late: transformers is heavy, and only this specimen needs it.
    from transformers.modeling_outputs import BaseModelOutput

    return BaseModelOutput(last_hidden_state=m.a(x), hidden_states=(x, m.b(x)))


def _gives_late_field(m: Any, x: Tensor) -> Any:
    from transformers.modeling_outputs import BaseModelOutput

    found = BaseModelOutput(hidden_states=(x, m.b(x)))
    found["last_hidden_state"] = m.a(x)
    return found


def _gives_box(m: Any, x: Tensor) -> Any:
    return m.a(x), Box(x.sin(), (m.b(x), x))


def _gives_bundle(m: Any, x: Tensor) -> Any:
    return Bundle(m.a(x), m.b(x))


def _gives_deque(m: Any, x: Tensor) -> Any:
    return deque([m.a(x), m.b(x)], maxlen=2)


def _takes_late_field(m: Any, x: Tensor) -> Any:
    found = m.inner(x)
    return m.last(found.last_hidden_state + found.hidden_states[1])


def _takes_box(m: Any, x: Tensor) -> Any:
    first, box = m.inner(x)
    return m.last(first), box


def _takes_bundle(m: Any, x: Tensor) -> Any:
    found = m.inner(x)
    return Bundle(m.last(found.first), found.second)


def _takes_deque(m: Any, x: Tensor) -> Any:
    first, second = m.inner(x)
    return m.last(first), second


def _remembers_in(m: Any, x: Tensor, cache: Cache, layer: int) -> Any:
    grown = cache.grown(layer, m.a(x))
    return m.b(x + grown.mean(0))


@torch.no_grad()
def _generates(m: Any, x: Tensor) -> Any:
    cache = Cache()
    for _ in range(2):
        x = m.second(m.first(x, cache, 0), cache=cache, layer=1)
    return x, cache


def _gives_nones(m: Any, x: Tensor, mask: Tensor | None = None, **rest: Any) -> Any:
    return m.a(x), None, {"none": None, "b": m.b(x)}


def _gives_atoms(m: Any, x: Tensor) -> Any:
    return m.a(x), 3, "text", 2.5, True, m.b(x).argmax(-1), m.b(x) > 0


def _gives_text(m: Any, x: Tensor) -> Any:
    return f"{tuple(x.shape)}"


def _multiplies_first_two(m: Any, x: Tensor) -> Any:
    first, second = m.inner(x)
    return m.last(first * second), second


def _takes_nested_tuple(m: Any, x: Tensor) -> Any:
    first, (second, (third,)) = m.inner(x)
    return m.last(first * second), (third,)


def _takes_dict(m: Any, x: Tensor) -> Any:
    found = m.inner(x)
    return {"sum": m.last(found["z"] + found["a"]["deep"]), "found": found}


def _takes_outcome(m: Any, x: Tensor) -> Any:
    found = m.inner(x)
    return Outcome(m.last(found.hidden + found.pair[0]), found.pair)


def _takes_output(m: Any, x: Tensor) -> Any:
    found = m.inner(x)
    return type(found)(last_hidden_state=m.last(found[0] + found.hidden_states[1]))


def _passes_nones(m: Any, x: Tensor, mask: Tensor | None = None) -> Any:
    first, nothing, rest = m.inner(x, mask=None, extra=[None, x], more=mask)
    return m.last(first), nothing, rest


def _returns_inner(m: Any, x: Tensor) -> Any:
    return m.inner(x)


def _reports_text(m: Any, x: Tensor) -> Any:
    return m.last(x * len(m.inner(x)))


def _nested_values() -> list[Specimen]:
    def made(
        name: str,
        inner: Callable[..., Any],
        outer: Callable[..., Any],
        trap: str,
        **marks: Any,
    ) -> Specimen:
        return _specimen(name, lambda: _wrapped(inner, outer), _rows, trap, **marks)

    found = [
        made("tuple_output", _gives_tuple, _multiplies_first_two, "two tensors in a tuple"),
        made("nested_tuple_output", _gives_nested_tuple, _takes_nested_tuple, "tuples in tuples"),
        made("dict_output", _gives_dict, _takes_dict, "a nested dict, keys not in sorted order"),
        made("namedtuple_output", _gives_pair, _multiplies_first_two, "a named tuple"),
        made("dataclass_output", _gives_outcome, _takes_outcome, "a dataclass that holds an input"),
        made("model_output", _gives_ordered_output, _takes_output, "a ModelOutput look-alike"),
        made("none_leaves", _gives_nones, _passes_nones, "None among inputs and outputs"),
        made(
            "mixed_leaves", _gives_atoms, _returns_inner, "numbers, text and integer tensors",
            silent=("last",),
        ),
        made("no_tensor_output", _gives_text, _reports_text, "text comes out", silent=_INNER),
    ]  # fmt: skip
    found += [
        made("object_beside_a_tensor", _gives_box, _takes_box, "tensors in a plain object"),
        made("registered_output", _gives_bundle, _takes_bundle, "a node of torch.utils._pytree"),
        made("deque_output", _gives_deque, _takes_deque, "tensors in a deque"),
        _specimen(
            "cache_through_layers",
            lambda: Net(_generates, first=_two(_remembers_in), second=_two(_remembers_in)),
            _rows,
            "one object goes into every layer, which put tensors in it",
            backward=False,
        ),
    ]
    if importlib.util.find_spec("transformers") is not None:
        trap = "a ModelOutput whose copy has its fields in another order"
        found.append(made("transformers_late_field", _gives_late_field, _takes_late_field, trap))
        trap = "the ModelOutput of transformers"
        found.append(made("transformers_output", _gives_model_output, _takes_output, trap))
    return found


_INNER = ("inner.a", "inner.b")


# --- arguments --------------------------------------------------------------------------------


def _keywords_only(m: Any, *, x: Tensor, scale: Tensor) -> Any:
    return m.a(input=x) * scale + m.b(x)


def _calls_by_keyword(m: Any, *, x: Tensor, scale: Tensor) -> Any:
    return m.last(m.inner(scale=scale, x=x))


def _mixed_arguments(m: Any, x: Tensor, y: Tensor, flag: bool, *, z: dict[str, Tensor]) -> Any:
    return m.a(x) * y + m.b(z["deep"]) * flag


def _sums_list(m: Any, items: list[Tensor]) -> Any:
    return m.a(items[0]) + m.b(items[1])


def _calls_with_list(m: Any, items: list[Tensor]) -> Any:
    first = m.last(items[1])
    return m.inner([first, items[0]])


def _no_arguments(m: Any) -> Any:
    return m.weight.sin()


def _calls_without_arguments(m: Any, x: Tensor) -> Any:
    return m.a(x) * m.prompt()


def _returns_parameter(m: Any) -> Any:
    return m.weight


def _row_of_parameter(m: Any) -> Any:
    return m.weight[:1]


def _parameter_as_input(m: Any, x: Tensor) -> Any:
    return m.a(m.weight).sum(0) * m.b(x) + m.a(m.weight * 2).sum(0)


def _leaf_used_outside(m: Any, x: Tensor) -> Any:
    return m.a(x) * x + m.b(x.detach())


def _arguments() -> list[Specimen]:
    def parameter() -> nn.Parameter:
        return nn.Parameter(torch.randn(3))

    return [
        _specimen(
            "keywords_only",
            lambda: _wrapped(_keywords_only, _calls_by_keyword),
            lambda: _given(x=_x(2, 3), scale=_x(3, seed=1, grad=True)),
            "nothing positional; the order differs from call to call",
        ),
        _specimen(
            "mixed_arguments",
            lambda: _two(_mixed_arguments),
            lambda: _given(
                _x(2, 3, grad=True), _x(3, seed=1), True, z={"deep": _x(2, 3, seed=2, grad=True)}
            ),
            "positions, a flag, and a dict by keyword",
        ),
        _specimen(
            "list_input",
            lambda: _wrapped(_sums_list, _calls_with_list),
            lambda: _given([_x(2, 3, grad=True), _x(2, 3, seed=1)]),
            "the one argument is a list",
        ),
        _specimen(
            "no_arguments",
            lambda: Net(
                _calls_without_arguments, a=_linear(), prompt=Net(_no_arguments, weight=parameter())
            ),
            _rows,
            "a child that takes nothing",
        ),
        _specimen(
            "parameter_as_output",
            lambda: Net(
                _calls_without_arguments,
                a=_linear(),
                prompt=Net(_returns_parameter, weight=parameter()),
            ),
            _rows,
            "a child that returns its own parameter: a leaf that outlives the step",
        ),
        _specimen(
            "view_of_parameter_as_output",
            lambda: Net(
                _calls_without_arguments,
                a=_linear(),
                prompt=Net(_row_of_parameter, weight=nn.Parameter(torch.randn(2, 3))),
            ),
            _rows,
            "a child that returns a view of its own parameter",
        ),
        _specimen(
            "parameter_as_input",
            lambda: Net(
                _parameter_as_input,
                a=_linear(),
                b=_linear(),
                weight=nn.Parameter(torch.randn(4, 3)),
            ),
            _rows,
            "a parameter handed to a child: hooks on it would pile up from step to step",
        ),
        _specimen(
            "leaf_used_outside",
            lambda: _two(_leaf_used_outside),
            _rows_with_grad,
            "the input is used by a child and beside it",
        ),
    ]


# --- several calls of one module --------------------------------------------------------------


def _a_then_b(m: Any, x: Tensor) -> Any:
    return m.b(m.a(x))


def _called_twice(m: Any, x: Tensor) -> Any:
    return m.a(m.a(x).tanh())


def _unrolled(m: Any, x: Tensor) -> Any:
    hidden = x.new_zeros(x.shape[0], 3)
    states = []
    for step in range(4):
        hidden = m.cell(x[:, step], hidden)
        states.append(hidden)
    return m.head(torch.stack(states, 1)), hidden


def _two_branches(m: Any, x: Tensor) -> Any:
    with torch.no_grad():
        m.a(x)
    return m.a(x) * 2, m.a(x.cos()).tanh()


def _recursive(m: Any, x: Tensor, depth: int = 2) -> Any:
    return m.a(x) if depth == 0 else m(m.a(x).tanh(), depth - 1) + x


def _shared_under_two_names() -> Net:
    shared = _linear()
    return Net(_a_then_b, a=shared, b=shared)


def _several_calls() -> list[Specimen]:
    return [
        _specimen("shared_module", _shared_under_two_names, _rows, "one module under two names"),
        _specimen(
            "module_called_twice",
            lambda: Net(_called_twice, a=_linear()),
            _rows,
            "the second call feeds on the first",
        ),
        _specimen(
            "recurrent_loop",
            lambda: Net(_unrolled, cell=nn.GRUCell(3, 3), head=_linear()),
            lambda: _given(_x(2, 4, 3)),
            "a cell called four times",
        ),
        _specimen(
            "two_branches",
            lambda: Net(_two_branches, a=_linear()),
            _rows,
            "calls whose gradients arrive first in, first out, and one without",
        ),
        _specimen(
            "recursive_module",
            lambda: Net(_recursive, a=_linear()),
            _rows_with_grad,
            "a module that calls itself: calls nest",
        ),
    ]


# --- in place ---------------------------------------------------------------------------------


def _residual_block(m: Any, x: Tensor) -> Any:
    out = m.relu(m.bn1(m.conv1(x)))
    out = m.bn2(m.conv2(out))
    out += x
    return m.relu(out)


def _block() -> Net:
    return Net(
        _residual_block,
        conv1=nn.Conv2d(4, 4, 3, padding=1, bias=False),
        bn1=nn.BatchNorm2d(4),
        relu=nn.ReLU(inplace=True),
        conv2=nn.Conv2d(4, 4, 3, padding=1, bias=False),
        bn2=nn.BatchNorm2d(4),
    )


def _caller_adds(m: Any, x: Tensor) -> Any:
    out = m.a(x)
    out += 1
    out.mul_(2)
    out[0] = 0
    return m.b(out)


def _relu_for_effect(m: Any, x: Tensor) -> Any:
    hidden = m.a(x)
    m.relu(hidden)
    return m.b(hidden)


def _relu_on_a_view(m: Any, x: Tensor) -> Any:
    hidden = m.a(x)
    m.relu(hidden[:, :2])
    return m.b(hidden)


def _changes_view_input(m: Any, x: Tensor) -> Any:
    x.mul_(3).sin_()
    return m.a(x)


def _passes_view(m: Any, x: Tensor) -> Any:
    return m.inner(m.last(x).view(3, 2).t()[:, :])


def _in_place() -> list[Specimen]:
    relu = nn.ReLU
    return [
        _specimen(
            "in_place_residual",
            lambda: nn.Sequential(_block(), _block(), nn.Flatten(), nn.Linear(100, 2)),
            _image,
            "BatchNorm, in-place ReLU used twice, out += identity",
        ),
        _specimen(
            "in_place_residual_eval",
            lambda: nn.Sequential(_block(), _block()).eval(),
            lambda: _given(_x(2, 4, 5, 5, grad=True)),
            "the same in eval mode, with a gradient for the input",
        ),
        _specimen(
            "in_place_first",
            lambda: nn.Sequential(relu(inplace=True), _linear()),
            _rows,
            "the first module overwrites the caller's input",
        ),
        _specimen(
            "in_place_chain",
            lambda: nn.Sequential(
                _linear(), nn.ReLU6(inplace=True), nn.Hardtanh(-0.5, 0.5, inplace=True), _linear()
            ),
            _rows,
            "one tensor overwritten twice",
        ),
        _specimen(
            "in_place_dropout",
            lambda: nn.Sequential(_linear(), nn.Dropout(0.5, inplace=True), _linear()),
            _rows,
            "in-place Dropout while training",
            random=True,
        ),
        _specimen(
            "filled_late",
            lambda: nn.Sequential(_linear(), nn.RReLU(0.1, 0.9), _linear()),
            _rows,
            "autograd saves the noise before the kernel writes it",
            random=True,
        ),
        _specimen(
            "filled_late_in_place",
            lambda: nn.Sequential(_linear(), nn.RReLU(0.1, 0.9, inplace=True)),
            _rows,
            "the same, with the last tensor that is saved",
            random=True,
        ),
        _specimen(
            "caller_changes_output", lambda: _two(_caller_adds), _rows, "out += 1; out[0] = 0"
        ),
        _specimen(
            "relu_for_effect",
            lambda: Net(_relu_for_effect, a=_linear(), relu=relu(inplace=True), b=_linear()),
            _rows,
            "the result of an in-place module is dropped",
        ),
        _specimen(
            "relu_on_a_view",
            lambda: Net(_relu_on_a_view, a=_linear(), relu=relu(inplace=True), b=_linear()),
            _rows,
            "an in-place module changes half of a tensor through a view",
        ),
        _specimen(
            "view_input_changed",
            lambda: Net(_passes_view, inner=Net(_changes_view_input, a=_linear()), last=_linear()),
            lambda: _given(_x(2, 3, grad=True)),
            "a module changes its own input, a view",
        ),
    ]


# --- views that are written to ----------------------------------------------------------------


def _transposes(m: Any, x: Tensor) -> Any:
    return x.transpose(0, 1)


def _first_columns(m: Any, x: Tensor) -> Any:
    return x[:, :2]


def _halves(m: Any, x: Tensor) -> Any:
    return x.chunk(2, dim=-1)


def _rows_apart(m: Any, x: Tensor) -> Any:
    return x.unbind(0)


def _writes_transposed(m: Any, x: Tensor) -> Any:
    out = m.view(m.a(x))
    out += 1
    out.mul_(out.detach().cos())
    return m.b(out.t())


def _writes_columns(m: Any, x: Tensor) -> Any:
    out = m.view(m.a(x))
    out.mul_(3)
    return out.sin()


def _writes_columns_reads_base(m: Any, x: Tensor) -> Any:
    hidden = m.a(x)
    out = m.view(hidden)
    out.mul_(3)
    return m.b(hidden) + out.sum()


def _writes_base_reads_columns(m: Any, x: Tensor) -> Any:
    hidden = m.a(x)
    out = m.view(hidden)
    hidden.mul_(3)
    return m.b(hidden) + out.sum()


def _writes_flat(m: Any, x: Tensor) -> Any:
    out = m.flatten(m.conv(x))
    out += 1
    out[:, 0] = 0
    return m.fc(out)


def _writes_without_grad(m: Any, x: Tensor) -> Any:
    out = m.view(x)
    first, second = out
    first.add_(1)
    second.mul_(first)
    return m.a(second)


def _views() -> list[Specimen]:
    def viewing(body: Callable[..., Any], view: Callable[..., Any]) -> Callable[[], Net]:
        return lambda: Net(body, a=_linear(), view=Net(view), b=_linear())

    return [
        _specimen(
            "flatten_changed",
            lambda: Net(
                _writes_flat, conv=nn.Conv2d(4, 2, 3), flatten=nn.Flatten(), fc=nn.Linear(18, 2)
            ),
            _image,
            "the caller writes into what Flatten returned",
        ),
        _specimen(
            "transpose_changed",
            viewing(_writes_transposed, _transposes),
            _rows,
            "the caller writes twice into a transposed view",
        ),
        _specimen(
            "slice_changed",
            viewing(_writes_columns, _first_columns),
            _rows,
            "the caller writes into a slice; the rest of the base gets no gradient",
            silent=("b",),
        ),
        _specimen(
            "slice_changed_base_used",
            viewing(_writes_columns_reads_base, _first_columns),
            _rows,
            "the caller writes into a slice and goes on with the base",
            twin=False,
        ),
        _specimen(
            "base_changed_slice_used",
            viewing(_writes_base_reads_columns, _first_columns),
            _rows,
            "the caller writes into the base and goes on with the slice",
            twin=False,
        ),
        _specimen(
            "chunks_changed",
            lambda: Net(_writes_without_grad, a=nn.Linear(2, 2), view=Net(_halves)),
            lambda: _given(_x(2, 4)),
            "the caller writes into both halves of a chunked input",
        ),
    ]


# --- one tensor in several places -------------------------------------------------------------


def _product(m: Any, first: Tensor, second: Tensor) -> Any:
    return m.a(first) * second


def _squares(m: Any, x: Tensor) -> Any:
    hidden = m.last(x)
    return m.inner(hidden, hidden)


def _attends_to_itself(m: Any, x: Tensor) -> Any:
    hidden = m.norm(x)
    return m.attention(hidden, hidden, hidden, need_weights=False)[0] + x


def _attends_across(m: Any, x: Tensor, memory: Tensor) -> Any:
    memory = m.norm(memory)
    return m.attention(x, memory, memory)


def _keeps_identity(m: Any, x: Tensor) -> Any:
    hidden = m.a(x)
    return m.b(m.same(hidden).sin()) * hidden


def _uses_and_returns(m: Any, x: Tensor, bias: Tensor) -> Any:
    return m.a(x) * bias, bias


def _hands_bias_on(m: Any, x: Tensor) -> Any:
    bias = x.new_ones(3) * m.bias
    x, bias = m.first(x, bias)
    x, bias = m.second(x, bias)
    return x


def _logits_and_loss(m: Any, x: Tensor) -> Any:
    logits = m.a(x)
    return logits, logits.log_softmax(-1)[:, 0].mean(), m.b(logits)


def _gives_twice(m: Any, x: Tensor) -> Any:
    out = m.a(x)
    return out, out


def _takes_both(m: Any, x: Tensor) -> Any:
    first, second = m.inner(x)
    return m.last(first) * second


def _same_tensor() -> list[Specimen]:
    return [
        _specimen(
            "same_tensor_twice",
            lambda: Net(_squares, inner=Net(_product, a=_linear()), last=_linear()),
            _rows,
            "f(x, x)",
        ),
        _specimen(
            "self_attention",
            lambda: Net(
                _attends_to_itself,
                norm=nn.LayerNorm(8),
                attention=nn.MultiheadAttention(8, 2, batch_first=True),
            ),
            _sequence,
            "query is key is value: replacing them takes another path",
            silent=("attention.out_proj",),
        ),
        _specimen(
            "cross_attention",
            lambda: Net(
                _attends_across,
                norm=nn.LayerNorm(8),
                attention=nn.MultiheadAttention(8, 2, batch_first=True),
            ),
            lambda: _given(_x(2, 5, 8, grad=True), _x(2, 4, 8, seed=1)),
            "key is value, query is not",
            silent=("attention.out_proj",),
        ),
        _specimen(
            "identity",
            lambda: Net(_keeps_identity, a=_linear(), same=nn.Identity(), b=_linear()),
            _rows,
            "returns its input, which is used beside it too",
        ),
        _specimen(
            "dropout_eval",
            lambda: nn.Sequential(
                _linear(), nn.Dropout(0.5), nn.Identity(), nn.ReLU(inplace=True), _linear()
            ).eval(),
            _rows_with_grad,
            "two modules that return their input, then one that overwrites it",
        ),
        _specimen(
            "uses_and_returns_input",
            lambda: Net(
                _hands_bias_on,
                first=Net(_uses_and_returns, a=_linear()),
                second=Net(_uses_and_returns, a=_linear()),
                bias=nn.Parameter(torch.randn(3)),
            ),
            _rows,
            "a bias used by each block and handed on unchanged: it must not count twice",
        ),
        _specimen(
            "output_used_inside",
            lambda: _two(_logits_and_loss),
            _rows,
            "logits beside a loss computed from them",
        ),
        _specimen(
            "same_output_twice",
            lambda: Net(_takes_both, inner=Net(_gives_twice, a=_linear()), last=_linear()),
            _rows,
            "one tensor in two slots of the result",
        ),
    ]


# --- grad modes -------------------------------------------------------------------------------


def _no_grad_branch(m: Any, x: Tensor) -> Any:
    with torch.no_grad():
        gate = m.a(x).sigmoid_()
    return m.b(x) * gate


def _inference_branch(m: Any, x: Tensor) -> Any:
    with torch.inference_mode():
        gate = m.a(x).sigmoid_()
    return m.b(x) * gate.clone()


def _all_inference(m: Any, x: Tensor) -> Any:
    with torch.inference_mode():
        return m.b(m.a(x).relu_())


def _grad_inside_no_grad(m: Any, x: Tensor) -> Any:
    with torch.no_grad():
        gate = m.a(x)
        with torch.enable_grad():
            out = m.b(gate)
    return out * gate


def _detached(m: Any, x: Tensor) -> Any:
    return m.b(m.a(x).detach())


def _uses_first_half(m: Any, x: Tensor) -> Any:
    first, _ = m.halves(m.a(x))
    return first.exp()


def _uses_middle_row(m: Any, x: Tensor) -> Any:
    return m.b(m.rows(m.a(x))[1])


def _ignores_argument(m: Any, x: Tensor, unused: Tensor) -> Any:
    return m.a(x)


def _gives_too_much(m: Any, x: Tensor) -> Any:
    hidden = m.last(x)
    m.unused(hidden)
    return m.inner(hidden, hidden.cos())


def _remembers(m: Any, x: Tensor) -> Any:
    return m.a(x) * m.kept[0] + m.kept[1]


def _reminds(m: Any, x: Tensor) -> Any:
    hidden = m.last(x)
    m.inner.kept.extend([m.first(x).tanh(), hidden.sin()])
    out = m.inner(hidden)
    m.inner.kept.clear()
    return out


def _with_memory() -> Net:
    inner = Net(_remembers, a=_linear())
    inner.kept = []  # type: ignore[assignment]  # A plain list, as models do keep them.
    return Net(_reminds, first=_linear(), last=_linear(), inner=inner)


def _frozen_start() -> nn.Module:
    model = nn.Sequential(_linear(), nn.Tanh(), _linear())
    model[0].requires_grad_(False)
    return model


def _grad_modes() -> list[Specimen]:
    return [
        _specimen("no_grad_branch", lambda: _two(_no_grad_branch), _rows, "a under no_grad"),
        _specimen(
            "inference_branch", lambda: _two(_inference_branch), _rows, "a under inference_mode"
        ),
        _specimen(
            "inference_mode",
            lambda: _two(_all_inference),
            _rows,
            "inference tensors have no version and cannot be saved",
            backward=False,
        ),
        _specimen(
            "grad_inside_no_grad",
            lambda: _two(_grad_inside_no_grad),
            _rows,
            "enable_grad below no_grad",
        ),
        _specimen("detached", lambda: _two(_detached), _rows, "no gradient reaches a"),
        _specimen("frozen_start", _frozen_start, _rows, "the first parameters are frozen"),
        _specimen(
            "nothing_requires_grad",
            lambda: nn.Sequential(_linear(), nn.ReLU()).requires_grad_(False),
            _rows,
            "no gradient anywhere",
            backward=False,
        ),
        _specimen(
            "unused_half",
            lambda: Net(_uses_first_half, a=nn.Linear(3, 4), halves=Net(_halves)),
            _rows,
            "one output of a chunk is not used by the loss",
        ),
        _specimen(
            "unused_rows",
            lambda: Net(_uses_middle_row, a=_linear(), rows=Net(_rows_apart), b=_linear()),
            lambda: _given(_x(4, 3)),
            "three of four outputs of an unbind are not used by the loss",
        ),
        _specimen(
            "unused_argument",
            lambda: Net(
                _gives_too_much,
                inner=Net(_ignores_argument, a=_linear()),
                last=_linear(),
                unused=_linear(),
            ),
            _rows,
            "an argument and a whole module that the loss does not depend on",
        ),
        _specimen(
            "keeps_earlier_activation",
            _with_memory,
            _rows,
            "a module reaches its input's source past its arguments",
        ),
    ]


# --- checkpoints ------------------------------------------------------------------------------


def _checkpointed(m: Any, x: Tensor) -> Any:
    hidden = m.first(x)
    out = checkpoint(m.block, hidden, use_reentrant=m.reentrant)
    return m.last(out)


def _checkpointed_thrice(m: Any, x: Tensor) -> Any:
    hidden = m.first(x)
    for _ in range(3):
        hidden = checkpoint(m.block, hidden, use_reentrant=m.reentrant)
    return m.last(hidden)


def _checkpoint_net(body: Callable[..., Any], *, reentrant: bool, dropout: bool) -> Net:
    middle = nn.Dropout(0.5) if dropout else nn.Tanh()
    block = nn.Sequential(_linear(), middle, _linear(), nn.ReLU(inplace=True))
    net = Net(body, first=_linear(), block=block, last=_linear())
    net.reentrant = reentrant  # type: ignore[assignment]  # A flag, not a part.
    return net


def _checkpoints() -> list[Specimen]:
    def made(name: str, reentrant: bool, body: Callable[..., Any], dropout: bool) -> Specimen:
        kind = "reentrant" if reentrant else "non_reentrant"
        return _specimen(
            f"checkpoint_{kind}{name}",
            lambda: _checkpoint_net(body, reentrant=reentrant, dropout=dropout),
            _rows,
            f"{kind} checkpoint{name.replace('_', ' ')}: the forward runs again",
            random=dropout,
            recomputes=True,
            reentrant=reentrant,
        )

    return [
        made(name, reentrant, body, dropout)
        for reentrant in (False, True)
        for name, body, dropout in (
            ("", _checkpointed, False),
            ("_dropout", _checkpointed, True),
            ("_thrice", _checkpointed_thrice, False),
            ("_thrice_dropout", _checkpointed_thrice, True),
        )
    ]


# --- calls inside a backward ------------------------------------------------------------------


class ComputedAgain(torch.autograd.Function):
    """A checkpoint of its own making: its backward runs the module again."""

    @staticmethod
    def forward(ctx: Any, module: nn.Module, x: Tensor) -> Any:
        ctx.module = module
        ctx.save_for_backward(x)
        return module(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Runs it with grad, and a backward of its own through that."""
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            output = ctx.module(x)
        torch.autograd.backward(output, grads)
        return None, x.grad


class _Adjoint(torch.autograd.Function):
    """Follows ``dx/dt = field(x)`` by steps of Euler, and back again without what was computed."""

    @staticmethod
    def forward(ctx: Any, field: nn.Module, x: Tensor, *params: Tensor) -> Any:
        ctx.field = field
        for _ in range(3):
            x = x + 0.25 * field(x)
        ctx.save_for_backward(x, *params)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, *params = ctx.saved_tensors
        adjoint, sums = grads[0], [torch.zeros_like(param) for param in params]
        for _ in range(3):
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                slope = ctx.field(x)
            found = torch.autograd.grad(slope, [x, *params], 0.25 * adjoint)
            x = x - 0.25 * slope
            adjoint = adjoint + found[0]
            sums = [total + part for total, part in zip(sums, found[1:], strict=True)]
        return None, adjoint, *sums


class _Reversible(torch.autograd.Function):
    """Adds to each half what a module makes of the other; its backward computes the halves."""

    @staticmethod
    def forward(ctx: Any, f: nn.Module, g: nn.Module, x: Tensor) -> Any:
        ctx.f, ctx.g = f, g
        first, second = x.chunk(2, -1)
        first = first + f(second)
        out = torch.cat([first, second + g(first)], -1)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        first, second = ctx.saved_tensors[0].chunk(2, -1)
        grad_first, grad_second = grads[0].chunk(2, -1)
        first = first.detach().requires_grad_()
        with torch.enable_grad():
            change = ctx.g(first)
        change.backward(grad_second)
        second, grad_first = second - change.detach(), grad_first + first.grad
        second.requires_grad_()
        with torch.enable_grad():
            change = ctx.f(second)
        change.backward(grad_first)
        return None, None, torch.cat([grad_first, grad_second + second.grad], -1)


def _computed_again(m: Any, x: Tensor) -> Any:
    hidden = m.first(x)
    for _ in range(2):
        hidden = ComputedAgain.apply(m.block, hidden)  # type: ignore[no-untyped-call]
    return m.last(hidden)


def _solved(m: Any, x: Tensor) -> Any:
    hidden = m.first(x)
    return m.last(_Adjoint.apply(m.field, hidden, *m.field.parameters()))  # type: ignore[no-untyped-call]


def _reversed(m: Any, x: Tensor) -> Any:
    hidden = m.first(x)
    for _ in range(2):
        hidden = _Reversible.apply(m.f, m.g, hidden)  # type: ignore[no-untyped-call]
    return m.last(hidden)


def _called_by_hook(m: Any, x: Tensor) -> Any:
    hidden = m.a(x)

    def look(gradient: Tensor) -> None:
        m.a(gradient.detach())

    if hidden.requires_grad:
        hidden.register_hook(look)
    return m.b(hidden)


def _inside_backward() -> list[Specimen]:
    return [
        _specimen(
            "custom_checkpoint",
            lambda: Net(_computed_again, first=_linear(), block=_linear(), last=_linear()),
            _rows,
            "a custom function that computes again",
            recomputes=True,
            reentrant=True,
        ),
        _specimen(
            "adjoint",
            lambda: Net(
                _solved,
                first=_linear(),
                field=nn.Sequential(_linear(), nn.Tanh()),
                last=_linear(),
            ),
            _rows,
            "a solver whose backward calls the module on other values",
            recomputes=True,
            reentrant=True,
        ),
        _specimen(
            "reversible",
            lambda: Net(
                _reversed,
                first=nn.Linear(3, 6),
                f=_linear(),
                g=nn.Sequential(_linear(), nn.Tanh()),
                last=nn.Linear(6, 3),
            ),
            _rows,
            "blocks whose backward computes their input from their output",
            recomputes=True,
            reentrant=True,
        ),
        _specimen(
            "hook_calls_module",
            lambda: Net(_called_by_hook, a=_linear(), b=_linear()),
            _rows,
            "a hook on a tensor calls a module",
            recomputes=True,
        ),
    ]


# --- dtypes and layouts -----------------------------------------------------------------------


def _autocast(m: Any, x: Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = m.b(m.a(x))
    return hidden.float().sin()


def _complex_power(m: Any, x: Tensor) -> Any:
    return m.b(torch.view_as_complex(m.a(x).view(-1, 3, 2)) * m.phase)


def _strides(m: Any, x: Tensor) -> Any:
    apart = torch.cat((x, x), dim=1)[:, ::2]
    return m.a(x.t().contiguous().t()) + m.b(apart.flip(0)) + m.c(x[:1].expand(2, 3))


def _expands(m: Any, x: Tensor) -> Any:
    return m.b(m.wide(m.a(x[:1])))


def _expand_rows(m: Any, x: Tensor) -> Any:
    return x.expand(4, 3)


def _scalars(m: Any, x: Tensor) -> Any:
    return m.scale(m.a(x).sum())


def _square(m: Any, x: Tensor) -> Any:
    return x * x


def _logarithm(m: Any, x: Tensor) -> Any:
    return m.log(m.relu(m.a(x)))


def _log(m: Any, x: Tensor) -> Any:
    return x.log()


def _dtypes_and_layouts() -> list[Specimen]:
    return [
        _specimen(
            "bfloat16",
            lambda: nn.Sequential(_linear(), nn.LayerNorm(3), nn.GELU(), _linear()).bfloat16(),
            lambda: _given(_x(2, 3, dtype=torch.bfloat16)),
            "everything in bfloat16",
            double=False,
        ),
        _specimen("autocast", lambda: _two(_autocast), _rows, "an autocast region", double=False),
        _specimen(
            "float64", lambda: nn.Sequential(_linear(), nn.Tanh()).double(),
            lambda: _given(_x(2, 3, dtype=torch.float64, grad=True)), "everything in float64",
        ),
        _specimen(
            "complex",
            lambda: Net(
                _complex_power,
                a=nn.Linear(3, 6),
                b=nn.Linear(3, 2, dtype=torch.complex64),
                phase=nn.Parameter(torch.randn(3, dtype=torch.complex64)),
            ),
            _rows,
            "complex parameters, activations and gradients",
        ),
        _specimen(
            "channels_last",
            lambda: nn.Sequential(
                nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)
            ).to(memory_format=torch.channels_last),  # type: ignore[call-overload]
            lambda: _given(_x(2, 4, 5, 5).to(memory_format=torch.channels_last)),
            "the memory format must survive",
        ),
        _specimen(
            "strides",
            lambda: Net(_strides, a=_linear(), b=_linear(), c=_linear()),
            lambda: _given(_x(2, 3, grad=True)),
            "transposed, strided and expanded inputs of children",
        ),
        _specimen(
            "expanded_input",
            lambda: nn.Sequential(_linear(), nn.Tanh()),
            lambda: _given(_x(1, 3).expand(4, 3)),
            "one row seen four times",
        ),
        _specimen(
            "expanded_output",
            lambda: Net(_expands, a=_linear(), wide=Net(_expand_rows), b=_linear()),
            _rows,
            "a child returns one row four times: its gradient is dense, the value is not",
        ),
        _specimen(
            "zero_dim", lambda: Net(_scalars, a=_linear(), scale=Net(_square)), _rows, "0-d tensors"
        ),
        _specimen(
            "empty_batch",
            lambda: nn.Sequential(_linear(), nn.LayerNorm(3), nn.ReLU(), _linear()),
            lambda: _given(_x(0, 3, grad=True)),
            "no rows at all",
        ),
        _specimen(
            "nonfinite",
            lambda: Net(_logarithm, a=_linear(), relu=nn.ReLU(), log=Net(_log)),
            _rows,
            "-inf forward, inf and nan backward",
        ),
    ]  # fmt: skip


# --- parameters, buffers and names ------------------------------------------------------------


def _functional(m: Any, x: Tensor) -> Any:
    hidden = nn.functional.linear(x, m.weight, m.bias).relu_()
    return nn.functional.linear(hidden, m.weight)


def _counts(m: Any, x: Tensor) -> Any:
    m.count += 1
    with torch.no_grad():
        m.mean.lerp_(x.mean(0), 0.5)
    return (x - m.mean) * m.scale


def _tied(m: Any, tokens: Tensor) -> Any:
    return m.head(m.embedding(tokens).tanh())


def _tied_net() -> Net:
    net = Net(_tied, embedding=nn.Embedding(6, 3), head=nn.Linear(3, 6, bias=False))
    net.head.weight = net.embedding.weight
    return net


def _visits_all(m: Any, x: Tensor) -> Any:
    for part in m.parts.values():
        x = part(x)
    for part in m.list:
        x = part(x).sin()
    return x


def _odd_names() -> Net:
    names = ["a:output", "b[0]", "c@Linear", "d e", "*", "!f", "output", "grad_input", "ümlaut"]
    return Net(
        _visits_all,
        parts=nn.ModuleDict({name: _linear() for name in names}),
        list=nn.ModuleList([_linear(), _linear()]),
    )


def _doubles_output(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output * 2


def _shifts_input(module: nn.Module, args: Any, kwargs: Any) -> Any:
    return (args[0] + 1, *args[1:]), kwargs


def _with_foreign_hooks() -> Net:
    net = _two(_a_then_b)
    children = dict(net.named_children())
    children["a"].register_forward_hook(_doubles_output)
    children["b"].register_forward_pre_hook(_shifts_input, with_kwargs=True)
    return net


def _parameters() -> list[Specimen]:
    return [
        _specimen(
            "functional_only",
            lambda: Net(
                _functional,
                weight=nn.Parameter(torch.randn(3, 3)),
                bias=nn.Parameter(torch.randn(3)),
            ),
            _rows,
            "no child is ever called; the parameters are the root's",
        ),
        _specimen(
            "buffers_change",
            lambda: Net(
                _counts,
                scale=nn.Parameter(torch.randn(3)),
                mean=torch.zeros(3),
                count=torch.tensor(0),
            ),
            _rows,
            "parameters and buffers of the root, the buffers change during the forward",
        ),
        _specimen("tied_weights", _tied_net, _tokens, "one parameter under two names"),
        _specimen(
            "weight_norm",
            lambda: nn.Sequential(parametrizations.weight_norm(_linear()), nn.Tanh(), _linear()),
            _rows,
            "the weight is made anew at every read, by modules that take parameters",
            silent=("0.parametrizations",),
        ),
        _specimen(
            "spectral_norm",
            lambda: nn.Sequential(parametrizations.spectral_norm(_linear()), nn.Tanh()),
            _rows,
            "a parametrisation whose buffers change at every read",
            silent=("0.parametrizations",),
        ),
        _specimen(
            "sparse_gradient",
            lambda: nn.Sequential(nn.Embedding(6, 3, sparse=True), _linear()),
            _tokens,
            "integers come in; the gradient of the embedding is sparse",
        ),
        _specimen(
            "never_called",
            lambda: Net(_detached, a=_linear(), b=_linear(), spare=nn.Sequential(_linear())),
            _rows,
            "a module that never runs",
            silent=("spare", "spare.0"),
        ),
        _specimen(
            "odd_names", _odd_names, _rows, "names with ':', '[', '@', '*', '!' and spaces",
            silent=("parts", "list"),
        ),
        _specimen(
            "foreign_hooks", _with_foreign_hooks, _rows, "hooks of other code replace values"
        ),
    ]  # fmt: skip


# --- modules of torch -------------------------------------------------------------------------


def _last_state(m: Any, x: Tensor) -> Any:
    _, (hidden, _) = m.lstm(x)
    return m.head(hidden[-1])


def _encoder(*, training: bool, batch_first: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=batch_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training)


def _library() -> list[Specimen]:
    def encoder(training: bool, batch_first: bool) -> Specimen:
        return _specimen(
            f"encoder_{'train' if training else 'eval'}{'_batch_first' if batch_first else ''}",
            lambda: _encoder(training=training, batch_first=batch_first),
            _sequence,
            "a layer with a fast path, self-attention and residuals",
            random=training,
            silent=(
                "layers",
                "layers.0.self_attn.out_proj",
                "layers.1.self_attn.out_proj",
            ),
        )

    return [
        _specimen(
            "lstm",
            lambda: nn.LSTM(8, 4, num_layers=2, batch_first=True, bidirectional=True),
            _sequence,
            "a nested tuple comes out of one call",
        ),
        _specimen(
            "lstm_last_state",
            lambda: Net(_last_state, lstm=nn.LSTM(8, 4), head=nn.Linear(4, 2)),
            _sequence,
            "only the inner tuple is used",
        ),
        encoder(True, False),
        encoder(True, True),
        encoder(False, False),
        encoder(False, True),
        _specimen(
            "dropout_train",
            lambda: nn.Sequential(_linear(), nn.Dropout(0.5), _linear()),
            _rows,
            "the mask must not change because the model is watched",
            random=True,
        ),
        _specimen(
            "embedding",
            lambda: nn.Sequential(nn.Embedding(6, 4, padding_idx=0), nn.LayerNorm(4)),
            _tokens,
            "integers come in, no gradient goes out",
        ),
        _specimen(
            "convolutions",
            lambda: nn.Sequential(
                nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(inplace=True),
                nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2), nn.LogSoftmax(-1),
            ),
            _image,
            "a plain network, to have one",
        ),
    ]  # fmt: skip


# --- control flow -----------------------------------------------------------------------------


class _Cube(torch.autograd.Function):
    """A function with its own backward, which multiplies by 3 instead of 3 x^2."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 3


def _custom_function(m: Any, x: Tensor) -> Any:
    return m.b(m.cube(m.a(x)))


def _cube(m: Any, x: Tensor) -> Any:
    return _Cube.apply(x)  # type: ignore[no-untyped-call]


def _refuses(m: Any, x: Tensor) -> Any:
    m.a(x)
    raise ValueError("this model raises in the middle")


def _reaches_refusal(m: Any, x: Tensor) -> Any:
    return m.last(m.inner(m.last(x)))


def _survives_refusal(m: Any, x: Tensor) -> Any:
    try:
        m.inner(x)
    except ValueError:
        return m.last(x)
    raise AssertionError("the inner module should have raised")


def _experts(m: Any, x: Tensor) -> Any:
    chosen = m.router(x).argmax(-1)
    out = torch.zeros_like(x)
    for index, expert in enumerate(m.experts):
        rows = (chosen == index).nonzero()[:, 0]
        out = out.index_add(0, rows, expert(x[rows]))
    return out


def _control_flow() -> list[Specimen]:
    return [
        _specimen(
            "raises",
            lambda: Net(_reaches_refusal, inner=_two(_refuses), last=_linear()),
            _rows,
            "an exception in the middle of the forward",
            raises=ValueError,
            backward=False,
            silent=("inner.b",),
        ),
        _specimen(
            "raises_and_survives",
            lambda: Net(_survives_refusal, inner=_two(_refuses), last=_linear()),
            _rows,
            "an exception that the parent catches",
            silent=("inner.b",),
        ),
        _specimen(
            "custom_function",
            lambda: Net(_custom_function, a=_linear(), cube=Net(_cube), b=_linear()),
            _rows,
            "a backward that is not the derivative",
        ),
        _specimen(
            "mixture_of_experts",
            lambda: Net(
                _experts, router=nn.Linear(3, 4), experts=nn.ModuleList(_linear() for _ in range(4))
            ),
            lambda: _given(_x(5, 3, grad=True)),
            "children get a varying number of rows, perhaps none",
            silent=("experts",),
        ),
    ]

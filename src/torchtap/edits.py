"""Changes ready to use with ``tt.edit``: each is a function ``(tensor, record) -> tensor``.

They return new tensors and keep the graph, so that gradients through them are exact and the
modules before them still get one (of zeros, where nothing of the tensor is left). They draw no
global random numbers. ``at`` limits most of them to a region: dimension -> index, slice, list of
indices or mask, as in ``at={0: 3, -1: slice(8, 16)}`` (the eight last channels of row 3).

    >>> import torch, torchtap as tt
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> with tt.edit(model, "0", tt.edits.zero(at={-1: 1})) as edit:
    ...     model(torch.ones(1, 2))[0, 1]
    tensor(0., grad_fn=<SelectBackward0>)
    >>> edit.fired
    {'0:output': 1}
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from torchtap.errors import EditError, InputError
from torchtap.hooks.change import kind_of, place, takes_record
from torchtap.hooks.guided import NodeEdit
from torchtap.site import Site

if TYPE_CHECKING:
    from torchtap.record import Record
    from torchtap.store.run import Run

__all__ = [
    "add",
    "clamp",
    "clip_norm",
    "guided_relu",
    "keep_topk",
    "mask",
    "mean_ablate",
    "noise",
    "patch",
    "replace",
    "scale",
    "sign",
    "zero",
]

Index = int | slice | Sequence[int] | Tensor
At = Mapping[int, Index] | None
Formula = Callable[[Tensor, "Record"], Tensor]
Value = float | Tensor | Callable[..., Tensor]


class Ready:
    """One ready change. ``repr`` gives the call that made it.

    Args:
        name: of the function that made it.
        arguments: what it was given, for messages.
        formula: what it does.
    """

    __slots__ = ("_formula", "_text")

    def __init__(self, name: str, arguments: Mapping[str, Any], formula: Formula) -> None:
        given = ", ".join(
            f"{key}={_short(value)}" for key, value in arguments.items() if value is not None
        )
        self._text = f"{name}({given})"
        self._formula = formula

    def __call__(self, tensor: Tensor, record: Record) -> Tensor:
        return self._formula(tensor, record)

    def __repr__(self) -> str:
        return self._text


# ---------------------------------------------------------------------- plain arithmetic


def zero(*, at: At = None) -> Ready:
    """Zero the tensor, or a region of it. NaN and infinities become zero too.

    The gradient there is zero (not ``None``: whatever comes before still takes part in the graph,
    as DDP needs it).

    Args:
        at: the region; see the page's head.

    Example:
        >>> import torch, torchtap as tt
        >>> tt.edits.zero(at={0: [0, 2]})(torch.ones(3), None)
        tensor([0., 1., 0.])
    """
    return Ready("zero", {"at": at}, _within(at, lambda tensor, _: _filled(tensor, 0)))


def scale(factor: float | Tensor, *, at: At = None) -> Ready:
    """Multiply by a number, or by a tensor that broadcasts.

    Example:
        >>> import torch, torchtap as tt
        >>> tt.edits.scale(0.5)(torch.ones(2), None)
        tensor([0.5000, 0.5000])
    """

    def formula(tensor: Tensor, _: Record) -> Tensor:
        return _like(tensor, tensor * factor)

    return Ready("scale", {"factor": factor, "at": at}, _within(at, formula))


def clamp(min: float | None = None, max: float | None = None, *, at: At = None) -> Ready:
    """Clamp every element into ``[min, max]``, as ``torch.clamp``; NaN stays NaN.

    Raises:
        InputError: neither limit is given.
    """
    if min is None and max is None:
        raise InputError("tt.edits.clamp needs min, max or both.")
    arguments = {"min": min, "max": max, "at": at}
    return Ready("clamp", arguments, _within(at, lambda tensor, _: tensor.clamp(min, max)))


def add(value: Value, *, at: At = None) -> Ready:
    """Add a number, a tensor that broadcasts, or what a function of the tensor returns."""

    def formula(tensor: Tensor, record: Record) -> Tensor:
        return _like(tensor, tensor + _value(value, tensor, record))

    return Ready("add", {"value": value, "at": at}, _within(at, formula))


def sign(*, at: At = None) -> Ready:
    """Keep only the sign of each element: -1, 0 or 1 (signSGD, for ``param_grad``)."""
    return Ready("sign", {"at": at}, _within(at, lambda tensor, _: tensor.sign()))


def mask(keep: Tensor) -> Ready:
    """Keep the elements where a boolean mask holds and zero the others, NaN too.

    Args:
        keep: bool, broadcasts to the tensor; a mask of numbers is multiplied.
    """

    def formula(tensor: Tensor, record: Record) -> Tensor:
        here = keep.to(tensor.device)
        if keep.dtype is not torch.bool:
            return tensor * here.to(tensor.dtype)
        return torch.where(_expanded(here, tensor, record), tensor, _filled(tensor, 0))

    return Ready("mask", {"keep": keep}, formula)


def replace(value: Value, *, at: At = None) -> Ready:
    """Put something else in the tensor's place.

    Args:
        value: a number; a tensor of the same dtype that broadcasts; or a function of the tensor
            (and, if it takes two arguments, of the record), whose result is used as it is.
        at: only there.

    Of a number and a tensor, the modules before get a gradient of zero through the replaced part.
    """

    def formula(tensor: Tensor, record: Record) -> Tensor:
        new = _value(value, tensor, record)
        is_finished = callable(value) and not isinstance(value, Tensor)
        return new if is_finished else _joined(tensor, new, record)

    return Ready("replace", {"value": value, "at": at}, _within(at, formula))


def noise(std: float, *, seed: int = 0, relative: bool = False, at: At = None) -> Ready:
    """Add Gaussian noise from a generator of its own; the global one is not touched.

    The same seed, step, site and call always give the same noise, so what an activation
    checkpoint runs again is the same, and so is a second training.

    Args:
        std: standard deviation.
        seed: another seed, other noise.
        relative: in units of the tensor's own standard deviation.
        at: only there.
    """

    def formula(tensor: Tensor, record: Record) -> Tensor:
        generator = torch.Generator(tensor.device).manual_seed(_seed(seed, record))
        size = std * tensor.detach().float().std() if relative else std
        drawn = torch.randn(
            tensor.shape,
            generator=generator,
            device=tensor.device,
            dtype=tensor.dtype if tensor.is_floating_point() else torch.float32,
        )
        return _like(tensor, tensor + size * drawn)

    arguments = {"std": std, "seed": seed or None, "relative": relative or None, "at": at}
    return Ready("noise", arguments, _within(at, formula))


def keep_topk(k: float, *, dim: int | None = None) -> Ready:
    """Keep the ``k`` elements of largest magnitude and zero the others.

    Args:
        k: a count, or a share below 1 (at least one element is kept).
        dim: apart along this dimension; ``None`` over the whole tensor.

    Raises:
        InputError: ``k`` is not positive.
    """
    if not k > 0:
        raise InputError(f"tt.edits.keep_topk got k={k!r}; expected a positive number.")

    def formula(tensor: Tensor, _: Record) -> Tensor:
        flat = tensor.reshape(-1) if dim is None else tensor
        axis = 0 if dim is None else dim
        length = flat.shape[axis] if flat.dim() else 1
        count = min(length, int(k) if k >= 1 else max(1, int(k * length)))
        if tensor.dim() == 0 or not tensor.numel():
            return tensor
        largest = flat.detach().abs().topk(count, dim=axis).indices
        keep = torch.zeros_like(flat, dtype=torch.bool).scatter_(axis, largest, True)
        return torch.where(keep.view(tensor.shape), tensor, _filled(tensor, 0))

    return Ready("keep_topk", {"k": k, "dim": dim}, formula)


# ---------------------------------------------------------------------- norms


class ClipNorm(Ready):
    """See :func:`clip_norm`.

    Attributes:
        over_all: over all parameters together, at the optimizer step.
    """

    __slots__ = ("max_norm", "over_all", "p")

    def __init__(self, max_norm: float, p: float, over: str) -> None:
        self.max_norm = max_norm
        self.p = p
        self.over_all = over == "all"
        arguments = {
            "max_norm": max_norm,
            "p": None if p == 2 else p,
            "over": None if over == "tensor" else over,
        }
        super().__init__("clip_norm", arguments, self._clipped)

    def _clipped(self, tensor: Tensor, _: Record) -> Tensor:
        factor = self.factor([norm_of(tensor, self.p)])
        clipped: Tensor = tensor * factor.to(tensor.dtype)
        return clipped

    def factor(self, norms: Sequence[Tensor], scale: float | Tensor = 1.0) -> Tensor:
        """What to multiply by, given the norms of the parts (that carry the factor ``scale``)."""
        whole = torch.linalg.vector_norm(torch.stack(list(norms)), self.p) / scale
        # As torch.nn.utils.clip_grad_norm_: the small number keeps a zero norm from dividing.
        factor: Tensor = self.max_norm / (whole + 1e-6)
        return factor.clamp(max=1.0)


def clip_norm(
    max_norm: float, *, p: float = 2.0, over: Literal["tensor", "all"] = "tensor"
) -> ClipNorm:
    """Scale a tensor down to a norm of at most ``max_norm``.

    The formula is that of ``torch.nn.utils.clip_grad_norm_``, with the norm taken in float64.
    A norm that is not finite makes everything NaN, as there.

    Args:
        max_norm: the largest norm.
        p: which norm, as in ``torch.linalg.vector_norm``.
        over: ``tensor``: each by itself, when it comes by. ``all``: all selected parameters as
            one vector, just before the optimizer makes its step; for ``param_grad`` only. There
            gradients are accumulated, averaged over ranks, and free of a ``GradScaler``'s factor.

    Raises:
        InputError: an argument does not fit.
    """
    if not max_norm >= 0 or over not in ("tensor", "all"):
        raise InputError(
            f"tt.edits.clip_norm got max_norm={max_norm!r}, over={over!r}; expected a number from "
            f"0 on, and 'tensor' or 'all'."
        )
    return ClipNorm(float(max_norm), p, over)


def norm_of(tensor: Tensor, p: float) -> Tensor:
    """The norm of all elements, in float64 where the device has it."""
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    wide = torch.float32 if tensor.device.type == "mps" else torch.float64
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor).flatten(-2) if p == 2 else tensor.abs()
    norm: Tensor = torch.linalg.vector_norm(tensor, p, dtype=wide)
    return norm


# ---------------------------------------------------------------------- from elsewhere


class Patch(Ready):
    """See :func:`patch`. Made complete by ``tt.edit`` where the values must first be computed."""

    __slots__ = ("arguments", "model")

    def __init__(
        self,
        formula: Formula,
        shown: Mapping[str, Any],
        *,
        model: nn.Module | None = None,
        arguments: Any = None,
    ) -> None:
        super().__init__("patch", shown, formula)
        self.model = model
        self.arguments = arguments


def patch(
    source: Run | Mapping[str, Tensor] | Tensor | Callable[[Record], Tensor] | None = None,
    *,
    inputs: Any = None,
    model: nn.Module | None = None,
    at: At = None,
    site: str | Callable[[Site], Site | str] | None = None,
    step: int | None = None,
    call: int | None = None,
) -> Patch:
    """Put in what flowed at the same place in another run: interchange, causal tracing.

    Args:
        source: a run; a mapping from site text (or the path, for outputs) to tensors; one tensor;
            or a function of the record.
        inputs: instead of a source, run the model on these first (a tensor, or a tuple of
            arguments, or a dict of keywords), and take what flows there.
        model: run this model in place of the edited one.
        at: only there, e.g. ``{0: row}``, ``{1: token}``, ``{-1: channels}``; the rest stays.
        site: where in the source to look: a text, or a function of the edited site.
        step: which step of the run; the last if not given.
        call: which call; the same number as the edited one if not given.

    Raises:
        InputError: there is not exactly one source.
        EditError: (when it works) the source has nothing there, or something of another shape or
            dtype.

    The modules before get no gradient through what was replaced.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
        >>> a, b = torch.ones(1, 2), torch.zeros(1, 2)
        >>> with tt.edit(model, "0", tt.edits.patch(inputs=b)):
        ...     patched = model(a)
        >>> torch.equal(patched, model(b))
        True
    """
    if (source is None) == (inputs is None):
        raise InputError(
            "tt.edits.patch needs either a source (a run, a mapping, a tensor, a function) or "
            "inputs=, on which to run the model first."
        )
    shown = {"source": source, "inputs": inputs, "at": at, "site": site, "step": step, "call": call}
    if source is None:
        return Patch(_not_prepared, shown, model=model, arguments=(inputs, at, site, step, call))
    look = _Lookup(source, site, step, call)

    def formula(tensor: Tensor, record: Record) -> Tensor:
        return _joined(tensor, look(record), record)

    return Patch(_within(at, formula), shown)


def mean_ablate(
    source: Run | Mapping[str, Tensor] | Tensor | None = None, *, dim: int = 0, at: At = None
) -> Ready:
    """Put the mean in the place of every sample, so that nothing of the sample is left.

    Args:
        source: a run: the mean over all its samples (``run.cat(site)``), in float64; a mapping or
            tensor: the mean itself. ``None``: the mean of the batch that flows, with its gradient.
        dim: the dimension of samples.
        at: only there.
    """
    look = None if source is None else _Mean(source, dim)

    def formula(tensor: Tensor, record: Record) -> Tensor:
        if look is None:
            return tensor.mean(dim, keepdim=True).expand_as(tensor).clone()
        return _joined(tensor, look(record), record)

    arguments = {"source": source, "dim": dim or None, "at": at}
    return Ready("mean_ablate", arguments, _within(at, formula))


class _Lookup:
    """Finds the tensor of another run that belongs to a record."""

    def __init__(self, source: Any, site: Any, step: int | None, call: int | None) -> None:
        self._source = source
        self._site = site
        self._step = step
        self._call = call

    def __call__(self, record: Record) -> Tensor:
        source = self._source
        if isinstance(source, Tensor):
            return source
        site = self._site_of(record)
        if isinstance(source, Mapping):
            known = [key for key in (str(site), site, site.path) if key in source]
            if not known:
                raise _nothing_there(record, f"The mapping has no {str(site)!r}.")
            found: Tensor = source[known[0]]
            return found
        if callable(source):
            made: Tensor = source(record)
            return made
        call = record.call if self._call is None else self._call
        try:
            value: Tensor = source.get(site, step=self._step, call=call)
        except LookupError as error:
            is_later = self._call is None and record.call > 0
            hint = " Pass call=0 to put in its first call everywhere." if is_later else ""
            raise _nothing_there(record, f"{error}{hint}") from error
        return value

    def _site_of(self, record: Record) -> Site:
        site = self._site(record.site) if callable(self._site) else self._site
        if site is None:
            return record.site
        return Site.parse(site) if isinstance(site, str) else site


class _Mean(_Lookup):
    """The mean over samples at a site, computed once."""

    def __init__(self, source: Any, dim: int) -> None:
        super().__init__(source, None, None, None)
        self._dim = dim
        self._means: dict[Site, Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:
        # The same, whether it was used or not.
        return {**self.__dict__, "_means": {}}

    def __call__(self, record: Record) -> Tensor:
        if isinstance(self._source, Tensor | Mapping):
            return super().__call__(record)
        if record.site not in self._means:
            try:
                every = self._source.cat(record.site)
            except LookupError as error:
                raise _nothing_there(record, str(error)) from error
            mean = every.double().mean(self._dim, keepdim=True)
            self._means[record.site] = mean.to(every.dtype)
        return self._means[record.site]


def _nothing_there(record: Record, why: str) -> EditError:
    return EditError(f"The edit at {place(record)} has nothing to put in: {why}")


def _not_prepared(tensor: Tensor, record: Record) -> Tensor:
    raise EditError("A patch from inputs= works only in tt.edit, which runs the model for it.")


# ---------------------------------------------------------------------- rectifiers


class GuidedRelu(Ready):
    """See :func:`guided_relu`."""

    __slots__ = ("nodes",)

    def __init__(self, others: str) -> None:
        super().__init__("guided_relu", {"others": None if others == "refuse" else others}, _flow)
        self.nodes = NodeEdit(
            lambda gradient: gradient.clamp(min=0), _rectifier if others == "refuse" else _lenient
        )


def guided_relu(*, others: Literal["refuse", "leave"] = "refuse") -> GuidedRelu:
    """Guided backpropagation: only positive gradients flow back through rectifiers.

    Works on autograd's own nodes of the selected modules, so ``nn.ReLU``, ``F.relu``, ReLU6,
    ``nn.Threshold`` and ``clamp(min=...)`` from zero on are all covered, in place or not, whatever
    they are called in the model.

    Args:
        others: what to do about what stands in a rectifier's place and lets negative values
            through (SiLU, GELU, ELU, SELU, CELU, PReLU, leaky and randomised ReLU, softplus, Mish,
            hardswish), and about functions of somebody's own, of which nothing is known:
            ``refuse`` or ``leave`` them alone.

    All else keeps its ordinary gradient, as in the paper: what is no rectifier (tanh, sigmoid and
    the gates made of them, softmax, hardtanh below zero, shrinking), and arithmetic that amounts
    to one (``torch.where``, ``torch.maximum``, a product with a mask).

    Source: Springenberg et al., "Striving for Simplicity: The All Convolutional Net" (2015),
    section 3.4.
    """
    return GuidedRelu(others)


def _flow(tensor: Tensor, record: Record) -> Tensor:
    return tensor


_SOFT = {
    "SiluBackward": "SiLU",
    "GeluBackward": "GELU",
    "EluBackward": "ELU or SELU",
    "CeluBackward": "CELU",
    "LeakyReluBackward": "a leaky ReLU",
    "RreluWithNoiseBackward": "a randomised ReLU",
    "PreluKernelBackward": "PReLU",
    "SoftplusBackward": "softplus",
    "MishBackward": "Mish",
    "HardswishBackward": "hardswish",
}
"""What stands in a rectifier's place and lets more through; in-place ones count on (``...1``)."""

_OPAQUE = {
    "CompiledFunctionBackward": "a compiled graph, which hides its nodes; run the model eagerly",
    "CheckpointFunctionBackward": (
        "a reentrant checkpoint, which hides its nodes; use use_reentrant=False"
    ),
    "CopySlices": (
        "an in-place operation on a view, which hides what it computed; give the rectifier "
        "inplace=False"
    ),
}


def _rectifier(node: Any) -> bool | str:
    """Whether a node is that of a rectifier; a text says why that cannot be told."""
    kind = "CopySlices" if node.name() == "torch::autograd::CopySlices" else type(node).__name__
    if kind in _OPAQUE:
        return _OPAQUE[kind]
    if _family(node) in _SOFT:
        name = _SOFT[_family(node)]
        return f"{name}, which lets negative values through: guided ReLU has no meaning"
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return f"{kind}, a function of the model's own, of which nothing is known"
    return _lenient(node)


def _family(node: Any) -> str:
    """The name of a node without the number, which tells its variants apart."""
    return type(node).__name__.rstrip("0123456789")


def _lenient(node: Any) -> bool:
    family = _family(node)
    if family == "ReluBackward":
        return True
    if family == "ThresholdBackward":
        return bool(node._saved_threshold >= 0)
    if family == "HardtanhBackward":
        return bool(node._saved_min_val >= 0)
    if family in ("ClampBackward", "ClampMinBackward"):
        return _is_rectifying(node._saved_min)
    return False


def _is_rectifying(limit: float | Tensor | None) -> bool:
    """Whether a lower limit lets nothing negative through."""
    if isinstance(limit, Tensor):
        return limit.numel() > 0 and bool((limit >= 0).all())
    return limit is not None and limit >= 0


# ---------------------------------------------------------------------- regions and values


def _within(at: At, formula: Formula) -> Formula:
    """The formula, only in a region."""
    if at is None:
        return formula
    if not isinstance(at, Mapping) or not all(isinstance(dim, int) for dim in at):
        raise InputError(
            f"at is {at!r}; expected dimension -> index, slice, list of indices or mask, as in "
            f"at={{0: 3}}."
        )
    for dim, index in at.items():
        if _is_nothing(index):
            raise InputError(
                f"at={{{dim}: {_short(index)}}} chooses nothing of dimension {dim}, so the edit "
                f"would never do anything. Leave the edit out where nothing is chosen."
            )

    def inside(tensor: Tensor, record: Record) -> Tensor:
        return torch.where(_region(at, tensor, record), formula(tensor, record), tensor)

    return inside


def _is_nothing(index: Index) -> bool:
    if isinstance(index, Tensor):
        return not bool(index.any()) if index.dtype == torch.bool else not index.numel()
    return isinstance(index, list | tuple) and not any(entry is not False for entry in index)


def _region(at: Mapping[int, Index], tensor: Tensor, record: Record) -> Tensor:
    """A boolean mask that broadcasts to the tensor."""
    region = torch.ones((), dtype=torch.bool, device=tensor.device)
    for dim, index in at.items():
        if not -tensor.dim() <= dim < tensor.dim():
            raise EditError(
                f"The edit at {place(record)} is asked to work in dimension {dim}, and the tensor "
                f"is {kind_of(tensor)}."
            )
        chosen = torch.zeros(tensor.shape[dim], dtype=torch.bool, device=tensor.device)
        if isinstance(index, list | tuple):
            index = torch.as_tensor(index)
        size = tensor.shape[dim]
        try:
            if size and isinstance(index, slice) and not range(*index.indices(size)):
                raise IndexError  # Tensors take such slices for empty ones.
            chosen[index] = True
        except IndexError as error:
            raise EditError(
                f"The edit at {place(record)} is asked to work at {_short(index)} of dimension "
                f"{dim}, and the tensor is {kind_of(tensor)}."
            ) from error
        shape = [1] * tensor.dim()
        shape[dim] = -1
        region = region & chosen.view(shape)
    return region


def _filled(tensor: Tensor, number: float) -> Tensor:
    """A constant of the tensor's kind that still stands in its graph: the gradient is zero."""
    return torch.where(_never(tensor), tensor, torch.full_like(tensor.detach(), number))


def _joined(tensor: Tensor, new: Tensor, record: Record) -> Tensor:
    """``new`` in the place of ``tensor``, in its graph."""
    if new.dtype != tensor.dtype:
        raise EditError(
            f"The edit at {place(record)} has {kind_of(new)} to put in the place of "
            f"{kind_of(tensor)}. An edit keeps shape, dtype and device."
        )
    here = _expanded(new.detach().to(tensor.device), tensor, record)
    return torch.where(_never(tensor), tensor, here)


def _like(tensor: Tensor, new: Tensor) -> Tensor:
    """``new`` in the dtype of ``tensor``; an edit of integers by a fraction stays integer."""
    return new if new.dtype == tensor.dtype else new.to(tensor.dtype)


def _never(tensor: Tensor) -> Tensor:
    return torch.zeros((), dtype=torch.bool, device=tensor.device)


def _expanded(new: Tensor, tensor: Tensor, record: Record) -> Tensor:
    try:
        return new.expand(tensor.shape)
    except RuntimeError as error:
        raise EditError(
            f"The edit at {place(record)} has {kind_of(new)} for {kind_of(tensor)}, to which it "
            f"does not broadcast. An edit keeps shape, dtype and device."
        ) from error


def _value(value: Value, tensor: Tensor, record: Record) -> Tensor:
    if isinstance(value, Tensor):
        return value.to(tensor.device)
    if callable(value):
        return value(tensor, record) if takes_record(value) else value(tensor)
    return torch.as_tensor(value, dtype=tensor.dtype, device=tensor.device)


def _seed(seed: int, record: Record) -> int:
    """A number for one place and time; Python's own hash differs between processes."""
    text = f"{seed} {record.step} {record.site} {record.call}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "little")


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return kind_of(value)
    text = getattr(value, "__name__", None) or repr(value)
    return text if len(text) <= 40 else f"<{type(value).__name__}>"

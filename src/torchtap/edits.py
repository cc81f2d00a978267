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
from numbers import Integral, Number, Real
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from torchtap.errors import EditError, InputError
from torchtap.hooks.change import kind_of, place, short, takes_record
from torchtap.hooks.guided import NodeEdit
from torchtap.regions import At, check, moved, region
from torchtap.site import Site, did_you_mean

if TYPE_CHECKING:
    from torchtap.record import Record
    from torchtap.store.run import Run


@runtime_checkable
class Recorded(Protocol):
    """What is asked of a run."""

    def get(self, site: Site, *, step: int | None, call: int | None) -> Tensor:
        """One value."""

    def cat(self, site: Site) -> Tensor:
        """All values of a site."""


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

_KEEPS = "An edit keeps shape, dtype and device."

Formula = Callable[[Tensor, "Record"], Tensor]
Value = float | Tensor | Callable[..., Tensor]


class Ready:
    """One ready change. ``repr`` gives the call that made it, and messages the end of that.

    Args:
        name: of the function that made it.
        arguments: what it was given, for messages.
        formula: what it does.
    """

    __slots__ = ("__name__", "_formula")

    def __init__(self, name: str, arguments: Mapping[str, Any], formula: Formula) -> None:
        given = ", ".join(
            f"{key}={short(value)}" for key, value in arguments.items() if value is not None
        )
        self.__name__ = f"{name}({given})"
        self._formula = formula

    def __call__(self, tensor: Tensor, record: Record) -> Tensor:
        return self._formula(tensor, record)

    def __repr__(self) -> str:
        return f"tt.edits.{self.__name__}"


_EXAMPLES = {
    "add": "add(1.0)",
    "clamp": "clamp(min=0)",
    "clip_norm": "clip_norm(1.0)",
    "guided_relu": "guided_relu()",
    "keep_topk": "keep_topk(10)",
    "mask": "mask(keep)",
    "mean_ablate": "mean_ablate()",
    "noise": "noise(0.1)",
    "patch": "patch(run)",
    "replace": "replace(0.0)",
    "scale": "scale(0.5)",
    "sign": "sign()",
    "zero": "zero()",
}


def as_edit(function: Any) -> Callable[..., Any]:
    """What was given as an edit, if it can be one.

    Raises:
        InputError: it is no function, or one that first makes the edit.
    """
    name = getattr(function, "__name__", "")
    if name in _EXAMPLES and function is globals()[name]:
        raise InputError(
            f"tt.edits.{name} makes an edit and is none itself: write tt.edits.{_EXAMPLES[name]}."
        )
    if isinstance(function, type) and issubclass(function, nn.Module):
        raise InputError(
            f"An edit needs a function of (tensor, record); got the class {name}. Write {name}()."
        )
    if callable(function):
        return function  # type: ignore[no-any-return]
    given = "nothing" if function is None else short(function)
    raise InputError(
        f"An edit needs a function of (tensor, record); got {given}. To put something in the "
        f"tensor's place, write tt.edits.replace(value)."
    )


def _expect(fits: bool, edit: str, argument: str, value: object, expected: str) -> None:
    if not fits:
        raise InputError(f"tt.edits.{edit} got {argument}={_shown(value)}; expected {expected}.")


def _shown(value: object) -> str:
    """An argument in a message: numbers and texts as they are, else what kind it is."""
    if isinstance(value, str | int | float | complex | None):
        return repr(value)
    return short(value)


def _expect_value(edit: str, value: object) -> None:
    is_value = isinstance(value, Number | Tensor) or callable(value)
    _expect(is_value, edit, "value", value, "a number, a tensor, or a function of the tensor")


def _is_number(value: object) -> bool:
    return isinstance(value, Number) and not isinstance(value, bool)


def _is_real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


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
    is_factor = _is_number(factor) or isinstance(factor, Tensor)
    _expect(is_factor, "scale", "factor", factor, "a number or a tensor")

    def formula(tensor: Tensor, _: Record) -> Tensor:
        return _like(tensor, tensor * factor)

    # Times 1, what is infinite elsewhere does not reach the gradient of a factor that is learned.
    return Ready("scale", {"factor": factor, "at": at}, _within(at, formula, outside=1.0))


def clamp(min: float | None = None, max: float | None = None, *, at: At = None) -> Ready:
    """Clamp every element into ``[min, max]``, as ``torch.clamp``; NaN stays NaN.

    Raises:
        InputError: neither limit is given, or one is no number.
    """
    if min is None and max is None:
        raise InputError("tt.edits.clamp needs min, max or both, as in tt.edits.clamp(min=0).")
    for name, limit in (("min", min), ("max", max)):
        is_limit = limit is None or _is_real(limit) or isinstance(limit, Tensor)
        _expect(is_limit, "clamp", name, limit, "a number or a tensor")
    arguments = {"min": min, "max": max, "at": at}
    return Ready("clamp", arguments, _within(at, lambda tensor, _: tensor.clamp(min, max)))


def add(value: Value, *, at: At = None) -> Ready:
    """Add a number, a tensor that broadcasts, or what a function of the tensor returns.

    With ``at`` the function sees the whole tensor all the same. What it returns elsewhere counts
    for nothing, but a gradient of NaN there (of ``log`` at 0) stays NaN.
    """
    _expect_value("add", value)

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
    _expect(isinstance(keep, Tensor), "mask", "keep", keep, "a tensor, as torch.tensor makes it")

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
    _expect_value("replace", value)

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

    Raises:
        InputError: an argument does not fit.
    """
    _expect(_is_real(std) and std >= 0, "noise", "std", std, "a number from 0 on")
    _expect(_is_whole(seed), "noise", "seed", seed, "a whole number")
    _expect(isinstance(relative, bool), "noise", "relative", relative, "True or False")

    def formula(tensor: Tensor, record: Record) -> Tensor:
        generator = torch.Generator(tensor.device).manual_seed(_seed(seed, record))
        given = tensor.detach()
        wide = given if given.is_complex() else given.float()
        size = std * wide.std() if relative else std
        is_inexact = given.is_complex() or given.is_floating_point()
        dtype = given.dtype if is_inexact else torch.float32
        drawn = torch.randn(given.shape, generator=generator, device=given.device, dtype=dtype)
        return _like(tensor, tensor + size * drawn)

    arguments = {"std": std, "seed": seed or None, "relative": relative or None, "at": at}
    return Ready("noise", arguments, _within(at, formula))


def keep_topk(k: float, *, dim: int | None = None) -> Ready:
    """Keep the ``k`` elements of largest magnitude and zero the others.

    Args:
        k: a count, or a share below 1 (at least one element is kept).
        dim: apart along this dimension; ``None`` over the whole tensor.

    Raises:
        InputError: ``k`` is neither a count nor a share, or ``dim`` no dimension.
    """
    is_count = _is_real(k) and (0 < k < 1 or (k >= 1 and float(k).is_integer()))
    _expect(is_count, "keep_topk", "k", k, "a positive whole number, or a share between 0 and 1")
    _expect(dim is None or _is_whole(dim), "keep_topk", "dim", dim, "a whole number or None")

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
            gradients are accumulated, averaged over ranks, and free of a ``GradScaler``'s factor
            (it skips the steps whose gradients hold inf or NaN, and so does the clipping).

    With ``over="tensor"`` on gradients, under a ``GradScaler``, give it to ``tt.edit`` too
    (``scaler=``): else the norm, and so ``max_norm``, are in its units.

    Raises:
        InputError: an argument does not fit.
    """
    is_norm = _is_real(max_norm) and max_norm >= 0
    _expect(is_norm, "clip_norm", "max_norm", max_norm, "a number from 0 on")
    _expect(_is_real(p), "clip_norm", "p", p, "a number, as in torch.linalg.vector_norm")
    _expect(over in ("tensor", "all"), "clip_norm", "over", over, "'tensor' or 'all'")
    return ClipNorm(float(max_norm), float(p), over)


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

    __slots__ = ("inputs", "model", "where")

    def __init__(
        self,
        formula: Formula,
        shown: Mapping[str, Any],
        *,
        inputs: Any = None,
        model: nn.Module | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__("patch", shown, formula)
        self.inputs = inputs
        self.model = model
        self.where = where


def patch(
    source: Run | Mapping[str, Tensor] | Tensor | Callable[[Record], Tensor] | None = None,
    *,
    inputs: Any = None,
    model: nn.Module | None = None,
    at: At = None,
    source_at: At = None,
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
        at: only there, e.g. ``{0: row}``, ``{1: token}``, ``{-1: channels}``; the rest stays. In
            these dimensions the source may be of another length: the same indices of both are
            meant, so ``{1: -1}`` is the last token of each.
        source_at: where in the source to take it, for dimensions of ``at``, if it is elsewhere:
            ``at={1: 2}, source_at={1: 5}`` puts token 5 of the source in the place of token 2.
        site: where in the source to look: a text, or a function of the edited site.
        step: which step of the run; the last if not given.
        call: which call; the same number as the edited one if not given.

    Raises:
        InputError: there is not exactly one source, or an argument does not fit.
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
    _expect_patch(source, model, site, step, call)
    _expect_source_at(at, source_at)
    shown = {"source": source, "inputs": inputs, "at": at, "source_at": source_at, "site": site}
    shown |= {"step": step, "call": call}
    if source is None:
        where = {"at": at, "source_at": source_at, "site": site, "step": step, "call": call}
        return Patch(_not_prepared, shown, inputs=inputs, model=model, where=where)
    look = _Lookup(source, site, step, call)

    def formula(tensor: Tensor, record: Record) -> Tensor:
        found = look(record)
        if at is not None:
            found = moved(found, tensor, at, source_at, record)
        return _joined(tensor, found, record, _another_shape(found, tensor))

    return Patch(_within(at, formula), shown)


_SOURCES = (
    "a run (watch.run, tt.open(path)), a mapping from sites to tensors, a tensor, or a function of "
    "the record; inputs= and model= run a model first"
)


def _expect_patch(source: Any, model: Any, site: Any, step: Any, call: Any) -> None:
    is_source = isinstance(source, Tensor | Mapping | Recorded | None) or callable(source)
    is_source = is_source and not isinstance(source, nn.Module | type)
    _expect(is_source, "patch", "source", source, _SOURCES)
    is_model = model is None or (isinstance(model, nn.Module) and source is None)
    _expect(is_model, "patch", "model", model, "an nn.Module, beside inputs=")
    is_site = site is None or isinstance(site, str | Site) or callable(site)
    _expect(is_site, "patch", "site", site, "a text, or a function of the edited site")
    if isinstance(site, str):
        Site.parse(site)
    for name, number in (("step", step), ("call", call)):
        _expect(number is None or _is_whole(number), "patch", name, number, "a whole number")


def _expect_source_at(at: At, source_at: At) -> None:
    check(at)
    check(source_at, "source_at")
    others = [dim for dim in source_at or () if dim not in (at or ())]
    if others:
        raise InputError(
            f"tt.edits.patch got source_at for dimension {others[0]}, and at has none for it. Say "
            f"where it is to go: at={{{others[0]}: ...}}."
        )


def _another_shape(source: Tensor, tensor: Tensor) -> str:
    """A way out for a source of another length: a part that both have."""
    if source.dim() != tensor.dim():
        return _KEEPS
    pairs = zip(source.shape, tensor.shape, strict=True)
    dims = [dim for dim, (theirs, ours) in enumerate(pairs) if theirs not in (1, ours)]
    at = ", ".join(f"{dim}: -1" for dim in dims)
    return (
        f"Patch places that both have: at={{{at}}} is the last of each, and source_at= beside it "
        f"says another place of the source."
    )


def mean_ablate(
    source: Run | Mapping[str, Tensor] | Tensor | None = None, *, dim: int = 0, at: At = None
) -> Ready:
    """Put the mean in the place of every sample, so that nothing of the sample is left.

    Args:
        source: a run: the mean over all its samples (``run.cat(site)``), in float64; a mapping or
            tensor: the mean itself. ``None``: the mean of the batch that flows, with its gradient.
        dim: the dimension of samples.
        at: only there.

    Raises:
        InputError: an argument does not fit.
    """
    is_source = isinstance(source, Tensor | Mapping | Recorded | None)
    expected = "a run (watch.run, tt.open(path)), a mapping from sites to means, or a tensor"
    _expect(is_source, "mean_ablate", "source", source, expected)
    _expect(_is_whole(dim), "mean_ablate", "dim", dim, "a whole number")
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
        found = self._found(record)
        if not isinstance(found, Tensor):
            raise _nothing_there(record, f"its source gave {kind_of(found)}; expected a tensor.")
        return found

    def _found(self, record: Record) -> Any:
        source = self._source
        if isinstance(source, Tensor):
            return source
        site = self._site_of(record)
        if isinstance(source, Mapping):
            known = [key for key in (str(site), site, site.path) if key in source]
            if not known:
                texts = [str(key) for key in source]
                hint = did_you_mean(str(site), texts)
                raise _nothing_there(record, f"the mapping has no {str(site)!r}{hint}")
            return source[known[0]]
        if callable(source):
            return source(record)
        call = record.call if self._call is None else self._call
        try:
            return source.get(site, step=self._step, call=call)
        except LookupError as error:
            is_later = self._call is None and record.call > 0
            hint = " Pass call=0 to put in its first call everywhere." if is_later else ""
            raise _nothing_there(record, f"{error}{hint}") from error

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
            wide = torch.complex128 if every.is_complex() else torch.float64
            mean = every.to(wide).mean(self._dim, keepdim=True)
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

    Raises:
        InputError: ``others`` is something else.
    """
    is_known = others in ("refuse", "leave")
    _expect(is_known, "guided_relu", "others", others, "'refuse' or 'leave'")
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


def _within(at: At, formula: Formula, outside: float | None = None) -> Formula:
    """The formula, only in a region.

    Args:
        at: the region.
        formula: the edit.
        outside: what the formula gets there instead of the tensor, so that nothing comes back from
            there in a backward either; ``None`` if it is to see the whole tensor.
    """
    check(at)
    if at is None:
        return formula

    def inside(tensor: Tensor, record: Record) -> Tensor:
        here = region(at, tensor, record)
        given = tensor if outside is None else torch.where(here, tensor, outside)
        return torch.where(here, formula(given, record), tensor)

    return inside


def _filled(tensor: Tensor, number: float) -> Tensor:
    """A constant of the tensor's kind that still stands in its graph: the gradient is zero."""
    if (tensor.is_nested or tensor.layout is not torch.strided) and not number:
        return torch.zeros_like(tensor)  # Nothing that could stand in a graph is there.
    return torch.where(_never(tensor), tensor, torch.full_like(tensor.detach(), number))


def _joined(tensor: Tensor, new: Tensor, record: Record, hint: str = _KEEPS) -> Tensor:
    """``new`` in the place of ``tensor``, in its graph."""
    if new.dtype != tensor.dtype:
        raise EditError(
            f"The edit at {place(record)} has {kind_of(new)} to put in the place of "
            f"{kind_of(tensor)}. {_KEEPS}"
        )
    here = _expanded(new.detach().to(tensor.device), tensor, record, hint)
    return torch.where(_never(tensor), tensor, here)


def _like(tensor: Tensor, new: Tensor) -> Tensor:
    """``new`` in the dtype of ``tensor``; an edit of integers by a fraction stays integer."""
    return new if new.dtype == tensor.dtype else new.to(tensor.dtype)


def _never(tensor: Tensor) -> Tensor:
    return torch.zeros((), dtype=torch.bool, device=tensor.device)


def _expanded(new: Tensor, tensor: Tensor, record: Record, hint: str = _KEEPS) -> Tensor:
    try:
        return new.expand(tensor.shape)
    except RuntimeError as error:
        raise EditError(
            f"The edit at {place(record)} has {kind_of(new)} for {kind_of(tensor)}, to which it "
            f"does not broadcast. {hint}"
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

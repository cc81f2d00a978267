"""Put values from elsewhere in place: of another run, of another input, or a mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from torchtap.capture.watch import watch
from torchtap.core.did_you_mean import did_you_mean
from torchtap.core.errors import EditError, InputError
from torchtap.core.inference_mode import outside_inference_mode
from torchtap.core.module_paths import modules_of
from torchtap.core.preserved import preserved
from torchtap.core.record import BACKWARD, Record
from torchtap.core.site import Pattern, Site
from torchtap.core.tensors import kind_of
from torchtap.core.user_functions import place
from torchtap.edits.catalogue.ready import (
    KEEPS,
    Formula,
    Ready,
    expect,
    is_whole,
    put_in_place,
    within,
)
from torchtap.edits.catalogue.regions import At, check, moved

if TYPE_CHECKING:
    from torchtap.core.plan import Plan


@runtime_checkable
class Recorded(Protocol):
    """Interface of a recorded run, from which values are read."""

    def get(self, site: Site, *, step: int | None, call: int | None) -> Tensor:
        """One value."""

    def cat(self, site: Site) -> Tensor:
        """Return all values of a site."""


class Patch(Ready):
    """See :func:`patch`. Made complete by ``tt.edit`` where the values must first be computed."""

    __slots__ = ("_inputs", "_model", "_where")

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
        self._inputs = inputs
        self._model = model
        self._where = where

    def prepared(self, model: nn.Module, plan: Plan) -> Ready:
        """Run a model on the inputs, if values are to come from there, and patch from that run."""
        if self._where is None:
            return self
        source = model if self._model is None else self._model
        wanted: Sequence[Pattern | str] = plan.patterns or [
            Pattern(planned.path or ".", planned.ports) for planned in plan.taps
        ]
        if self._where["site"] is not None:
            wanted = ["*:input,output"]
        inputs = self._inputs
        with ExitStack() as stack:
            stack.enter_context(preserved(modules_of(source)[0], inputs))
            stack.enter_context(torch.no_grad())
            seen = stack.enter_context(watch(source, wanted, copy="always"))
            if isinstance(inputs, Mapping):
                source(**inputs)
            else:
                source(*(inputs if isinstance(inputs, tuple) else (inputs,)))
        return patch(seen.run, **self._where)


def patch(
    source: Recorded | Mapping[str, Tensor] | Tensor | Callable[[Record], Tensor] | None = None,
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
        return put_in_place(tensor, found, record, _another_shape(found, tensor))

    return Patch(within(at, formula), shown)


_SOURCES = (
    "a run (watch.run, tt.open(path)), a mapping from sites to tensors, a tensor, or a function of "
    "the record; inputs= and model= run a model first"
)


def _expect_patch(source: Any, model: Any, site: Any, step: Any, call: Any) -> None:
    is_source = isinstance(source, Tensor | Mapping | Recorded | None) or callable(source)
    is_source = is_source and not isinstance(source, nn.Module | type)
    expect(is_source, "patch", "source", source, _SOURCES)
    is_model = model is None or (isinstance(model, nn.Module) and source is None)
    expect(is_model, "patch", "model", model, "an nn.Module, beside inputs=")
    is_site = site is None or isinstance(site, str | Site) or callable(site)
    expect(is_site, "patch", "site", site, "a text, or a function of the edited site")
    if isinstance(site, str):
        Site.parse(site)
    for name, number in (("step", step), ("call", call)):
        expect(number is None or is_whole(number), "patch", name, number, "a whole number")


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
    """Return a way out for a source of another length: a part that both have."""
    if source.dim() != tensor.dim():
        return KEEPS
    pairs = zip(source.shape, tensor.shape, strict=True)
    dims = [dim for dim, (theirs, ours) in enumerate(pairs) if theirs not in (1, ours)]
    at = ", ".join(f"{dim}: -1" for dim in dims)
    return (
        f"Patch places that both have: at={{{at}}} is the last of each, and source_at= beside it "
        f"says another place of the source."
    )


def mean_ablate(
    source: Recorded | Mapping[str, Tensor] | Tensor | None = None, *, dim: int = 0, at: At = None
) -> Ready:
    """Put the mean in the place of every sample, so that nothing of the sample is left.

    Args:
        source: a run: the mean over all its samples (``run.cat(site)``), in float64; a mapping or
            tensor: the mean itself. ``None``: the mean of the batch that flows, with its gradient.
        dim: the dimension of samples.
        at: only there.

    Raises:
        InputError: an argument does not fit.

    Example:
        >>> import torch, torchtap as tt
        >>> relu = torch.nn.ReLU()
        >>> with tt.edit(relu, ".", tt.edits.mean_ablate()):  # The mean of the batch.
        ...     relu(torch.tensor([[1.0], [3.0]]))
        tensor([[2.],
                [2.]])
    """
    is_source = isinstance(source, Tensor | Mapping | Recorded | None)
    expected = "a run (watch.run, tt.open(path)), a mapping from sites to means, or a tensor"
    expect(is_source, "mean_ablate", "source", source, expected)
    expect(is_whole(dim), "mean_ablate", "dim", dim, "a whole number")
    look = None if source is None else _Mean(source, dim)

    def formula(tensor: Tensor, record: Record) -> Tensor:
        if look is None:
            return tensor.mean(dim, keepdim=True).expand_as(tensor).clone()
        return put_in_place(tensor, look(record), record)

    arguments = {"source": source, "dim": dim or None, "at": at}
    return Ready("mean_ablate", arguments, within(at, formula))


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
        # Calls inside a backward are numbered apart, in the source too.
        is_apart = self._call is None and record.phase == BACKWARD
        phase = {"phase": BACKWARD} if is_apart else {}
        try:
            return source.get(site, step=self._step, call=call, **phase)
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
            with outside_inference_mode():
                mean = every.to(wide).mean(self._dim, keepdim=True)
                self._means[record.site] = mean.to(every.dtype)
        return self._means[record.site]


def _nothing_there(record: Record, why: str) -> EditError:
    return EditError(f"The edit at {place(record)} has nothing to put in: {why}")


def _not_prepared(tensor: Tensor, record: Record) -> Tensor:
    raise EditError("A patch from inputs= works only in tt.edit, which runs the model for it.")

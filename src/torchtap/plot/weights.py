"""Parameters to draw: of a model as they are now, or of a run as they were kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchtap.core.did_you_mean import did_you_mean
from torchtap.core.errors import InputError, RunError, SiteError
from torchtap.core.module_paths import modules_of, state_names
from torchtap.core.plan import make_plan
from torchtap.core.site import Site
from torchtap.core.text import typed

if TYPE_CHECKING:
    from torch import Tensor

    from torchtap.runs.run import Run
    from torchtap.runs.select import Where

    Array = Any


def parameters(source: Any, where: Where, figure: str) -> dict[Site, Tensor]:
    """Site -> parameter, detached; of a run the last value that was kept.

    Args:
        source: a model, or a run.
        where: patterns; of a run also sites and functions.
        figure: name of the figure, for messages.

    Raises:
        SiteError: nothing fits.
        RunError: the run kept no values of parameters.
        InputError: the source is neither.
    """
    from torch import nn

    if isinstance(source, nn.Module):
        return _of_model(source, where)
    if not hasattr(source, "select"):
        raise InputError(f"tt.plot.{figure} takes a model or a run, not a {type(source).__name__}.")
    return _of_run(source, where, figure)


def parameter(source: Any, site: str | Site, figure: str) -> tuple[Site, Tensor]:
    """Return one parameter: ``conv1`` and ``conv1:output`` mean ``conv1:param[weight]``.

    Args:
        source: a model, or a run.
        site: which.
        figure: name of the figure, for messages.

    Raises:
        SiteError: there is none.
    """
    wanted = site if isinstance(site, Site) else Site.parse(site)
    if wanted.port != "param" or not wanted.leaf:
        wanted = Site(wanted.path, "param", "weight")
    params = parameters(source, None if hasattr(source, "select") else "*:param", figure)
    known = {one: value for one, value in params.items() if one.port == "param"}
    if wanted not in known:
        near = did_you_mean(str(wanted), [str(one) for one in known])
        raise SiteError(f"There is no parameter at {str(wanted)!r}{near}")
    return wanted, known[wanted]


def _of_model(model: Any, where: Where) -> dict[Site, Tensor]:
    modules, _ = modules_of(model)
    by_site: dict[Site, Tensor] = {}
    for tap in make_plan(model, where).taps:  # type: ignore[arg-type]
        chosen = tap.filters.get("param")
        names = state_names(modules[tap.path])["param"] if chosen is not None else []
        for name in names:
            if chosen is not None and chosen.accepts(name):
                param = modules[tap.path]._parameters[name]
                assert param is not None  # A name of its state.
                by_site[Site(tap.path, "param", name)] = param.detach()
    if not by_site:
        raise SiteError(f"No parameter fits {where!r}. Parameters are selected by '*:param'.")
    return by_site


def _of_run(run: Run, where: Where, figure: str) -> dict[Site, Tensor]:
    sites = [site for site in run.select(where) if site.kind.holder or site.port != "param"]
    found, reason = {}, None
    for site in sites:
        try:
            found[site] = run[site]
        except RunError as error:  # Measured, and no value was kept.
            reason = error
    if not found:
        raise RunError(
            f"This run kept no values of parameters, only numbers of them. Give the model, "
            f"tt.plot.{figure}(model), or watch '*:param' without to=tt.Stats() alone."
        ) from reason
    return found


def as_float64(value: Tensor) -> Array:
    """Elements as ``float64``, magnitudes of complex ones."""
    dense = value.detach().cpu()
    dense = dense.to_dense() if not _is_strided(dense) else dense
    return (dense.abs() if dense.is_complex() else dense).double().numpy()


def _is_strided(value: Tensor) -> bool:
    return str(value.layout) == "torch.strided"


def kind_words(value: Tensor) -> str:
    """Return ``float32[16, 3, 3, 3]``."""
    return typed(str(value.dtype).removeprefix("torch."), tuple(value.shape))

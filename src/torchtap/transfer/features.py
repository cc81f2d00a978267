"""Features from the middle of a model, as a module to build on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from torchtap.core.did_you_mean import did_you_mean
from torchtap.core.doors import require
from torchtap.core.errors import CaptureError, EditError, InputError
from torchtap.core.module_paths import Where, mode_of, modules_of
from torchtap.core.plan import Plan, make_plan
from torchtap.core.preserved import set_mode
from torchtap.core.printed import Printed
from torchtap.core.printed_page import Grid, Line, Page
from torchtap.core.site import Site
from torchtap.core.tensors import kind_of
from torchtap.core.text import plural
from torchtap.hooks.uncompiled import uncompiled
from torchtap.transfer.extractor import LAST, Extractor
from torchtap.transfer.freeze import Freeze, freeze

Modules = dict[str, nn.Module]

_PORTS = ("input", "output")


class SiteDict(Printed, dict[str, Tensor]):
    """Tensors by site text; a path alone means its output, and a ``Site`` works too.

    Printed, it shows shapes and not numbers.

    Example:
        >>> import torch
        >>> found = SiteDict({"fc:output": torch.ones(1)})
        >>> found
        1 feature
          fc:output  float32[1]
        >>> found["fc"], found["fc:output"]
        (tensor([1.]), tensor([1.]))
    """

    def __missing__(self, key: object) -> Tensor:
        text = str(key if isinstance(key, Site) else Site.parse(str(key)))
        if text in self:
            return self[text]
        raise KeyError(f"{key!s}{did_you_mean(text, list(self))}")

    def _page(self) -> Page:
        return show_features(self)


@dataclass(frozen=True, slots=True)
class _State:
    """The state of a model that a freeze changes, by path."""

    modes: dict[str, bool | None]
    required: dict[str, bool]

    @classmethod
    def of(cls, model: nn.Module) -> _State:
        """Return the state of a model as it is now."""
        modes = {path: mode_of(module) for path, module in model.named_modules()}
        return cls(modes, {name: one.requires_grad for name, one in model.named_parameters()})

    def set_modes(self, model: nn.Module) -> None:
        for path, module in model.named_modules():
            set_mode(module, self.modes.get(path, mode_of(module)))

    def set_required(self, model: nn.Module) -> None:
        for name, param in model.named_parameters():
            param.requires_grad_(self.required.get(name, param.requires_grad))


class Features(nn.Module):
    """The result of ``tt.features``: call it as the model, get ``{site: tensor}``.

    Attributes:
        model: the model, as a child; nothing is left on it between calls.

    Example:
        >>> import torch, torchtap as tt
        >>> body = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> features = tt.features(body, "1", frozen=True)
        >>> head = torch.nn.Linear(3, 1)
        >>> head(features(torch.ones(4, 2))["1"]).shape
        torch.Size([4, 1])
        >>> features.close()  # The body can be trained again.
    """

    def __init__(
        self, model: nn.Module, where: Where, *, call: int, frozen: bool, stop: bool
    ) -> None:
        super().__init__()
        self._where = where
        self._call = call
        self._stop = stop
        self._plan: Plan | None = None
        self._freeze: Freeze | None = None
        self._was_closed = False
        self.model = model
        self._before = _State.of(model)
        self._planned()
        self.training = mode_of(model) is not False
        if frozen:
            self._hold()

    def forward(self, *args: Any, **kwargs: Any) -> SiteDict:
        """Run the model as far as needed.

        Returns:
            site text -> tensor, in the order asked for; differentiable.

        Raises:
            CaptureError: a site was not reached, or has no graph in a reentrant checkpoint.
        """
        plan, modules = self._planned()
        extractor = Extractor(plan, self._call, may_stop=self._may_stop)
        with uncompiled():  # Compiled code would ignore hooks.
            extractor.run(self.model, modules, args, kwargs)
        by_site = {str(site): extractor.found[site] for site in _in_order(plan, extractor)}
        self._check(plan, extractor)
        return SiteDict(by_site)

    def train(self, mode: bool = True) -> Features:
        """Set the mode as ``nn.Module.train`` does; a frozen model stays in eval mode."""
        if self._freeze is None:
            super().train(mode)
        else:
            self.training = mode
        return self

    def close(self) -> None:
        """Give a frozen model back as it was: what requires grad, and the modes.

        The features go on, of the model as it is from here on: no longer held still.
        """
        if self._freeze is not None:
            self._freeze.close()
            self._freeze = None
            self._was_closed = True
            self._before.set_modes(self.model)

    def _hold(self) -> None:
        self._freeze = freeze(self.model)
        self.model.eval()

    def extra_repr(self) -> str:
        """Return the sites, for ``repr``."""
        state = ", frozen" if self._freeze is not None else ""
        state = ", no longer frozen" if self._was_closed else state
        return f"{', '.join(self._planned()[0].where)}{state}"

    def __repr__(self) -> str:
        # The whole model would hide what this is; features.model shows it.
        return f"Features({self.extra_repr()}) of {type(self.model).__name__}"

    def _planned(self) -> tuple[Plan, Modules]:
        """Return the plan and its modules by path, anew where the model has other modules now."""
        plan = self._plan
        if plan is not None:
            modules = {tap.path: tap.module() for tap in plan.taps}
            if all(_at(self.model, path) is module for path, module in modules.items()):
                return plan, cast(Modules, modules)
        self._plan = _make_plan(self.model, self._where)
        self._may_stop = self._stop and _may_stop(self.model)
        return self._plan, modules_of(self.model)[0]

    def __getstate__(self) -> dict[str, Any]:
        # A plan refers to modules, and a freeze to tensors.
        return {**self.__dict__, "_plan": None, "_freeze": self._freeze is not None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_freeze": None})  # type: ignore[no-untyped-call]
        if state["_freeze"]:  # A copy holds its own model, and gives it back as that was.
            self._before.set_required(self.model)
            self._hold()

    def _check(self, plan: Plan, extractor: Extractor) -> None:
        for planned in plan.taps:
            for port in planned.ports:
                count = extractor.counts[planned.path, port]
                if not any(s.path == planned.path and s.port == port for s in extractor.found):
                    raise CaptureError(_why_not(Site(planned.path, port), count, self._call))
        for pattern in plan.unmatched:
            if not any(pattern.matches_module(site.path) for site in extractor.found):
                raise CaptureError(
                    f"There is no module {pattern.path!r}, and no tt.mark of that name was reached"
                    f"{plan.hint(pattern, extractor.marks)}"
                )


def features(
    model: nn.Module, where: Where, *, call: int = 0, frozen: bool = False, stop: bool = True
) -> Features:
    """Take features out of the middle of a model.

    Args:
        model: any module; nothing is left on it between calls.
        where: patterns, modules or classes as for ``tt.watch``, ports ``output`` (default) and
            ``input``; names of ``tt.mark`` too.
        call: which call of a module within the forward, from 0; -1 for the last, which needs the
            whole forward.
        frozen: the model's parameters do not require grad and it stays in eval mode, also after
            ``train()`` of what is built on it; until :meth:`Features.close`. A copy holds its
            own model, until it is closed itself.
        stop: leave the forward when the last feature is there. Not done under DDP and FSDP, whose
            wrappers must run to the end.

    Returns:
        an ``nn.Module``: called like the model, it returns a dict from site text
        (``layer1:output``; the path alone works too) to tensors, in the order asked for. They are
        in the graph, so they can be differentiated, and never overwritten by what runs later.

    Raises:
        SiteError: a pattern fits nothing.
        CaptureError: (when called) a site was not reached; or it is inside a reentrant checkpoint,
            which makes no graph, where one is wanted.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> extract = tt.features(model, ["1", "0"])
        >>> {site: tuple(one.shape) for site, one in extract(torch.ones(4, 2)).items()}
        {'1:output': (4, 3), '0:output': (4, 3)}
    """
    require("tt.features", model)
    if not isinstance(call, int) or call < LAST:
        raise InputError(f"call is {call!r}; expected a number from 0, or -1 for the last.")
    return Features(model, where, call=call, frozen=frozen, stop=stop)


def _make_plan(model: nn.Module, where: Where) -> Plan:
    plan = make_plan(model, where)
    for planned in plan.taps:
        if isinstance(planned.module(), torch.jit.ScriptModule):
            raise EditError(
                f"Module {planned.path or '.'!r} is a ScriptModule, which takes no hooks. Take the "
                f"features of the module that it was scripted from, or of one around it."
            )
        for port in planned.ports:
            if port not in _PORTS:
                raise EditError(
                    f"{Site(planned.path, port)} is no feature; outputs and inputs are. Gradients "
                    f"are recorded by tt.watch."
                )
    return plan


def _at(model: nn.Module, path: str) -> nn.Module | None:
    """Return the module at a path, if it can be found without looking through wrappers."""
    module: nn.Module | None = model
    for name in path.split(".") if path else ():
        inner = {} if module is None else dict(module._modules.items())  # Some are no dicts.
        module = inner.get(name)
    return module


def _may_stop(model: nn.Module) -> bool:
    if isinstance(model, DistributedDataParallel | DataParallel):
        return False
    return not any(type(module).__name__.startswith("FSDP") for module in model.modules())


def _in_order(plan: Plan, extractor: Extractor) -> list[Site]:
    """In the order of the request; what one pattern selects, in the order of modules."""
    paths = {planned.path: place for place, planned in enumerate(plan.taps)}
    modules = {path: place for place, path in enumerate(plan.types)}

    def rank(site: Site) -> tuple[int, int, int]:
        asked = [
            place
            for place, pattern in enumerate(plan.patterns)
            if not pattern.negate and pattern.matches(site, plan.types.get(site.path))
        ]
        first = asked[0] if asked else len(plan.patterns)
        return first, paths.get(site.path, modules.get(site.path, len(modules))), 0

    return sorted(extractor.found, key=rank)


def _why_not(site: Site, count: int, call: int) -> str:
    if not count:
        return f"{site} was not reached: the module was not called in this forward."
    if call >= count:
        return f"{site} has no call {call}: the module was called {count} times in this forward."
    return f"{site} holds no tensor that fits."


def show_features(found: Mapping[str, Tensor]) -> Page:
    """Return one line per feature: where, and what kind of tensor."""
    rows = [(site, kind_of(tensor)) for site, tensor in found.items()]
    return Page(Line(plural(len(found), "feature")), Grid(rows, indent="  "))

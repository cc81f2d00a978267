"""The front door of class activation maps."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.core.doors import require
from torchtap.core.errors import InputError
from torchtap.core.module_paths import Where, walked_once
from torchtap.core.site import Site
from torchtap.core.tensors import kind_of
from torchtap.explain.cams.activations import gradients_at, values_at
from torchtap.explain.cams.cancelled_sums import SIZES, widest_eps, without_cancelled
from torchtap.explain.cams.formulas import (
    CAMS,
    GRADIENT_METHODS,
    RECTIFIED,
    eigencam,
    weighed,
    xgradcam,
)
from torchtap.explain.cams.forwards import Budget, ablationcam, scorecam
from torchtap.explain.cams.last_linear import class_weights
from torchtap.explain.cams.layer_choice import asked_layers, last_layer, layers_with_maps
from torchtap.explain.cams.layer_notes import LAST, Activation
from torchtap.explain.cams.map_layout import (
    CHANNELS_FIRST,
    WINDOWS,
    Fit,
    Layout,
    Layouts,
    Wish,
    no_map,
)
from torchtap.explain.cams.which_input import told_apart
from torchtap.explain.chosen_rows import row_numbers
from torchtap.explain.doubled_batch_probe import are_rows_at_site
from torchtap.explain.extents import Extent
from torchtap.explain.maps.map import Map
from torchtap.explain.maps.map_values import resized
from torchtap.explain.recipe import Recipe
from torchtap.explain.subject import Subject
from torchtap.explain.target import Given, Target
from torchtap.explain.unknown_names import refuse_method, refuse_unknown

METHODS = CAMS


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a class activation map.

    Attributes:
        method: one of :data:`METHODS`.
        sites: the layers; empty for the last with a map.
        relu: whether negative values become 0; ``None`` for what the method's paper does.
        stack: several layers stay apart.
        call: which call of a layer.
        wish: what the caller says of the layout.
        budget: of the methods with many forwards.
    """

    method: str
    sites: tuple[Site, ...]
    relu: bool | None
    stack: bool
    call: int
    wish: Wish
    budget: Budget

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise refuse_method(self.method, "tt.cam")
        if isinstance(self.call, bool) or not isinstance(self.call, int) or self.call < LAST:
            raise InputError(
                f"call is {self.call!r}; expected a number from 0, or -1 for the last."
            )

    @property
    def is_rectified(self) -> bool:
        """Return whether the map ends with a ReLU."""
        return self.method in RECTIFIED if self.relu is None else self.relu


def cam(
    model: nn.Module,
    *inputs: Any,
    layer: Where | Site | None = None,
    target: Given = None,
    method: str = "gradcam",
    relu: bool | None = None,
    stack: bool = False,
    call: int = LAST,
    grid: tuple[int, ...] | None = None,
    layout: str | None = None,
    over: str | None = None,
    batch_size: int = 32,
    max_evals: int | None = None,
    progress: bool | None = None,
    **kwargs: Any,
) -> Map:
    """Make a class activation map: where in a layer the evidence for a score lies.

    The value and the gradient at the layer are those that ``tt.watch`` gives, so what overwrites
    them later changes nothing. The model, ``.grad``, buffers, random numbers and hooks stay as they
    are, and grad mode is on whatever it is outside.

    Args:
        model: any module, in the mode in which it is; wrapped ones (DDP, ``torch.compile``) are
            looked through and run uncompiled.
        inputs: what it is called with. A list of pictures ``[C, H, W]`` of one size, of which the
            model returns a dict for each, as detectors do, has a row for each picture.
        layer: a path, a pattern, a module, a class, a ``tt.mark``, or a list; several are averaged.
            By default the last layer whose map the score depends on at more than one place.
            ``map.layer`` and ``map.notes`` name it.
        target: class number, a list or tensor of one for each row, an index of all dimensions after
            the rows (``(position, class)`` of ``[B, T, C]``, ``(class, y, x)`` of ``[B, C, H, W]``)
            or a list of such, weights of the logits, a function of the output, a site of the model;
            ``None`` for the class with the largest logit. Logits are explained, not probabilities.
        method: by value and gradient at the layer: ``gradcam``, ``gradcam++``, ``hirescam``,
            ``xgradcam``, ``layercam``; by its value: ``cam`` (weights of the last ``nn.Linear``,
            where the score is the mean over the map), ``eigencam`` (no class); by one forward for
            each channel: ``scorecam``, ``ablationcam``.
        relu: set negative values to 0. By default as the method's paper defines its map: done by
            ``gradcam``, ``gradcam++``, ``layercam``, ``scorecam`` and ``ablationcam``.
        stack: keep the maps of several layers apart, ``float[B, K, *grid]``. Smaller ones are
            resized to the largest (linear, ``align_corners=False``), as for an average.
        call: which call of a layer that is called several times, from 0; -1 for the last.
        grid: size of the map of tokens, where it is not found: ``grid=(14, 14)``. Tokens in excess
            stand in front.
        layout: ``channels_first``, ``channels_last``, ``tokens`` or ``windows`` (of Swin), where
            the types of the modules do not tell.
        over: name of the input that the map lies over, of a model with several. By default the one
            that has the map's dimensions, and that the layer depends on; where several do, the
            model is run once more for each.
        batch_size: most rows of one forward of ``scorecam`` and ``ablationcam``.
        max_evals: most channels that these two try, those with the largest activation first.
        progress: show it on stderr, after two seconds; by default if that is a terminal. An
            interruption (Ctrl-C) gives the map of the channels that were tried, and says so.
        kwargs: keywords of the model.

    Returns:
        a :class:`torchtap.Map` with raw ``values`` ``float[B, H, W]``, ``[B, L]`` or
        ``[B, D, H, W]`` at the resolution of the layer, float32, or float64 where the layer is.
        NaN in the layer stays NaN and is said in ``notes``.

    Raises:
        SiteError: ``layer`` names nothing.
        InputError: the layer gives no map (the message names those that do) or did not run; the
            target does not fit; there is no gradient; the model is not of the form that ``cam``
            needs.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(inplace=True),
        ...     torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 10),
        ... )
        >>> found = tt.cam(model, torch.rand(2, 3, 8, 8), layer="0", target=7)
        >>> found.values.shape, found.layer, found.target
        (torch.Size([2, 6, 6]), '0', (7, 7))
    """
    require("tt.cam", model)
    if kwargs:
        refuse_unknown(model, kwargs, "argument of tt.cam", _ARGUMENTS)
    with walked_once(model):
        subject = Subject(model, inputs, kwargs)
        sites = () if layer is None else tuple(asked_layers(model, layer))
        wish, budget = Wish(layout, grid, over), Budget(batch_size, max_evals, progress)
        settings = Settings(
            method=method, sites=sites, relu=relu, stack=stack, call=call, wish=wish, budget=budget
        )
        return made(settings, subject, Target(target))


_ARGUMENTS = tuple(
    one.name for one in inspect.signature(cam).parameters.values() if one.kind is one.KEYWORD_ONLY
)


def made(settings: Settings, subject: Subject, target: Target) -> Map:
    """Make the map of a subject.

    Args:
        settings: what was asked for.
        subject: the model and its inputs.
        target: what is explained.
    """
    subject.refuse_inference()
    subject = subject.with_rows()
    with subject.held():
        layouts = Layouts(subject, settings.wish)
        notes = list(subject.notes)
        activations: list[Activation] = []
        if not settings.sites:
            last = last_layer(subject, target, layouts, call=settings.call)
            settings = replace(settings, sites=(last.site,), call=last.call)
            notes.append(
                f"layer {last.site.path!r} ({last.kind}) was chosen: the last with a map that the "
                f"score depends on"
            )
            if last.activation is not None and _is_enough(settings, last.activation):
                activations, scores = [last.activation], last.scores
        if not activations:
            activations, scores = _found(settings, subject, target)
        return _Making(settings, subject, target, layouts, notes).map(activations, scores)


def _is_enough(settings: Settings, one: Activation) -> bool:
    return settings.method not in GRADIENT_METHODS or one.gradient is not None


def _found(settings: Settings, subject: Subject, target: Target) -> tuple[list[Activation], Tensor]:
    """Return the layers' values, with gradients where the method needs them, and the scores."""
    find = gradients_at if settings.method in GRADIENT_METHODS else values_at
    return find(subject, target, settings.sites, call=settings.call)


class _Making:
    """One map while it is made.

    Args:
        settings: with layers.
        subject: held.
        target: what is explained.
        layouts: tells which dimensions are what.
        notes: what is known so far.
    """

    def __init__(
        self,
        settings: Settings,
        subject: Subject,
        target: Target,
        layouts: Layouts,
        notes: list[str],
    ) -> None:
        self._settings = settings
        self._subject = subject
        self._target = target
        self._layouts = layouts
        self._notes = notes

    def map(self, found: Sequence[Activation], scores: Tensor) -> Map:
        """Make the map of what the layers returned."""
        settings = self._settings
        fits = [self._fit(one) for one in found]
        over = _one_extent(fits)
        several = [self._of_layer(one, fit, scores) for one, fit in zip(found, fits, strict=True)]
        values = _joined(several, self._notes, stack=settings.stack)
        self._note_values(values)
        sites = tuple(one.site for one in found)
        make = partial(made, replace(settings, sites=sites))
        return Map(
            values=values.cpu(),
            method=settings.method,
            layer=", ".join(_name(site) for site in sites),
            target=self._target.classes,
            target_text=self._target.text,
            scores=scores.float().cpu(),
            notes=(*self._target.notes, *self._notes),
            size=() if over is None else over.size,
            again=Recipe(self._subject, self._target, make, "" if over is None else over.name),
        )

    # ------------------------------------------------------------------ one layer

    def _of_layer(self, one: Activation, fit: Fit, scores: Tensor) -> Tensor:
        """Make the map of a layer, ``float[B, *grid]``."""
        layout = fit.layout
        self._refuse_other_rows(one, layout, scores)
        if layout.name not in (CHANNELS_FIRST, "channels_last"):
            self._notes.append(f"layer {_name(one.site)!r}: {layout}")
        if one.others:
            self._note_others(one)
        if one.num_calls > 1:
            self._notes.append(
                f"layer {_name(one.site)!r} was called {one.num_calls} times; this is call "
                f"{one.call}"
            )
        value = _wide(layout.maps(one.value))
        if self._settings.method == "gradcam++" and bool((value < 0).any()):
            self._notes.append(
                f"layer {_name(one.site)!r} has negative values; the weights of gradcam++ were "
                f"derived for what comes after a ReLU"
            )
        value_map = self._signed(one, fit, value, scores)
        return value_map.relu() if self._settings.is_rectified else value_map

    def _refuse_other_rows(self, one: Activation, layout: Layout, scores: Tensor) -> None:
        value = one.value
        if layout.name == WINDOWS or len(scores) == 1 or one.keeps_rows:
            return
        if not are_rows_at_site(self._subject, self._target, one.site, value, scores):
            raise InputError(
                f"Layer {_name(one.site)!r} returned {kind_of(value)}, whose dimension 0 does not "
                f"count the rows of the {len(scores)} scores. "
                f"Sequences with the steps first, as of nn.LSTM(batch_first=False), give no map: "
                f"use tt.attribute(at={_name(one.site)!r}), or batch_first=True."
            )

    def _signed(self, one: Activation, fit: Fit, value: Tensor, scores: Tensor) -> Tensor:
        method, layout = self._settings.method, fit.layout
        if method in GRADIENT_METHODS:
            assert one.gradient is not None
            gradient = _wide(layout.maps(one.gradient))
            eps = widest_eps((one.value.dtype, one.gradient.dtype, scores.dtype))
            is_xgradcam = method == "xgradcam"
            formula = partial(xgradcam, eps=eps) if is_xgradcam else GRADIENT_METHODS[method]
            signed = formula(value, gradient)
            if method not in SIZES:
                return signed
            size = SIZES[method](value, gradient)
            signed, notes = without_cancelled(signed, size, eps, _name(one.site))
            self._notes += notes
            return signed
        if method == "eigencam":
            return eigencam(value)
        if method == "cam":
            weights = class_weights(self._subject, self._target, value, scores, _name(one.site))
            return weighed(value, weights)
        weights, notes = self._weights(one, fit, value)
        self._notes += notes
        return weighed(value, weights)

    def _weights(self, one: Activation, fit: Fit, value: Tensor) -> tuple[Tensor, tuple[str, ...]]:
        """Return the weights of the channels, found by forwards."""
        layout, over = fit.layout, fit.extent
        subject, target, budget = self._subject, self._target, self._settings.budget
        with torch.no_grad():
            if self._settings.method == "ablationcam":
                return ablationcam(
                    subject=subject,
                    target=target,
                    value=value,
                    site=one.site,
                    call=one.call,
                    channel_dim=layout.channel_dim,
                    budget=budget,
                )
            if over is None:
                raise InputError(
                    f"scorecam masks the input with maps of {len(layout.grid)} dimensions, and no "
                    f"input fits: {', '.join(map(kind_of, subject.inputs.values()))}. "
                    f"Use ablationcam or gradcam."
                )
            return scorecam(subject, target, value, over, budget)

    def _fit(self, one: Activation) -> Fit:
        """Return how the value of a layer lies over the inputs."""
        fits = self._layouts.fits(one.site.path, one.value)
        if len(fits) == 1:
            return fits[0]
        if fits:
            fit, note = told_apart(self._subject, self._target, one, fits)
            self._notes += [note] if note else []
            return fit
        reason = self._layouts.of(one.site.path, one.value)
        names = layers_with_maps(self._subject, self._target, self._layouts)
        raise InputError(f"{no_map(one.site.path, one.value, str(reason))} {names}")

    # ------------------------------------------------------------------ what is to be said

    def _note_others(self, one: Activation) -> None:
        """Note that the layer has returned other values, and how each is asked for."""
        shown = ", ".join(
            f"{str(replace(one.site, leaf=leaf))!r} ({kind})" for leaf, kind in one.others[:4]
        )
        more = ", ..." if len(one.others) > 4 else ""
        self._notes.append(
            f"layer {one.site.path or '.'!r} returned {1 + len(one.others)} values, and the map is "
            f"of {one.site} ({kind_of(one.value)}); layer= takes another: {shown}{more}"
        )

    def _note_values(self, values: Tensor) -> None:
        bad = int((~torch.isfinite(values)).sum())
        if bad:
            self._notes.append(f"{bad} of {values.numel()} values of the map are NaN or infinite")
        is_zero = (values == 0).flatten(1).all(1)
        if self._settings.is_rectified and bool(is_zero.any()):
            self._notes.append(
                f"the map of row {row_numbers(is_zero)} is 0 everywhere: nothing was positive "
                f"before the final ReLU. relu=False gives the signed map"
            )


def _one_extent(fits: Sequence[Fit]) -> Extent | None:
    """Return the extent that the maps of several layers lie over."""
    names = dict.fromkeys(fit.extent.name for fit in fits if fit.extent is not None)
    if len(names) > 1:
        shown = ", ".join(map(repr, names))
        raise InputError(
            f"The layers lie over different inputs ({shown}). Make one map of each kind."
        )
    return fits[0].extent


def _joined(several: Sequence[Tensor], notes: list[str], *, stack: bool) -> Tensor:
    """Return the maps of several layers as one: their mean, or side by side."""
    if len(several) == 1:
        return several[0][:, None] if stack else several[0]
    if len({one.dim() for one in several}) > 1:
        raise InputError(
            f"The layers give maps of different dimensions: {', '.join(map(kind_of, several))}. "
            f"Make one map of each kind."
        )
    size = max((one.shape[1:] for one in several), key=math.prod)
    if any(one.shape[1:] != size for one in several):
        shown = " x ".join(map(str, size))
        notes.append(f"the maps of the layers were resized to the largest, {shown}")
    same = [one if one.shape[1:] == size else resized(one[:, None], size)[:, 0] for one in several]
    return torch.stack(same, 1) if stack else torch.stack(same).mean(0)


def _wide(maps: Tensor) -> Tensor:
    """Return maps in float32 at least."""
    return maps if maps.dtype == torch.float64 else maps.float()


def _name(site: Site) -> str:
    return str(site) if site.leaf else site.path or "."

"""The front door of attribution: which elements of a value decided the output, and by how much."""

from __future__ import annotations

from typing import Any

from torch import nn

from torchtap.core.doors import require
from torchtap.core.module_paths import walked_once
from torchtap.core.text import count
from torchtap.explain.attributions.attribution_result import AttributionResult
from torchtap.explain.attributions.explained_input import ExplainedInput
from torchtap.explain.attributions.method_request import MethodRequest, request_of
from torchtap.explain.attributions.perturbation import per_batch
from torchtap.explain.attributions.score_rounding import without_rounding
from torchtap.explain.attributions.variable import Variable, variable_of
from torchtap.explain.extents import are_channels_last
from torchtap.explain.maps.map import Map
from torchtap.explain.maps.map_values import is_channels_last
from torchtap.explain.recipe import Recipe
from torchtap.explain.subject import Subject
from torchtap.explain.target import Given, Target


def attribute(
    model: nn.Module,
    *inputs: Any,
    target: Given = None,
    method: str = "integrated_gradients",
    at: Any = None,
    **kwargs: Any,
) -> Map:
    """Tell which elements of the input, or of a value inside, decided the output.

    Args:
        model: any module, in the mode in which it is. It is left as it was found: parameters,
            ``.grad``, buffers, random numbers, modes and hooks.
        inputs: what it is called with, nested as it may be; a list of pictures as of ``tt.cam``.
        target: what is explained, one number of each row: a class for all rows, a list or an
            integer tensor with one for each, a tuple that indexes all dimensions after the rows
            (``(position, class)`` of ``[B, T, C]``, ``(class, y, x)`` of ``[B, C, H, W]``) or a
            list of such, a floating tensor that weighs the logits, a function of the output, a
            site of the model (the sum of its elements), or ``None`` for the class with the largest
            logit.
        method: one of those below.
        at: the value that is explained. By default the first floating tensor among the inputs;
            another one by its name, ``at=".:input[1]"`` or ``at=".:input[mask]"``, while all others
            are held as they are. Or any site of the model: the output of a module
            (``at="layer1"``), its input (``at="layer1:input"``), a ``tt.mark``. Gradients need a
            floating value: tokens are explained at their embedding.
        kwargs: settings of the method, named as in captum. All else is passed to the model; what
            has the name of a setting is passed to it by position.

    Returns:
        a map with values in the shape of the value that is explained, signed, float32 (float64
        where that is). NaN in the model's gradients is NaN in the map, and is said in its notes.

    Methods and their settings:

    - ``gradient``, ``input_x_gradient``: none. Saliency is the magnitude of the former.
    - ``integrated_gradients``: ``baselines`` (a number or a tensor that broadcasts; 0),
      ``n_steps`` (50), ``rule`` (``gausslegendre``, ``riemann_middle``, ``riemann_trapezoid``,
      ``riemann_left``, ``riemann_right``), ``tolerance``: steps are added until the completeness
      gap of each row (``map.gap``, in units of the score) is not larger, in the parts of the way
      that are not complete.
    - ``smoothgrad``, ``smoothgrad_sq``, ``vargrad``: mean, mean square and variance of the maps of
      noisy copies: ``of`` (the method that makes them, ``gradient``; its settings are taken too),
      ``n_samples`` (25), ``stdevs`` (of the noise; 15 percent of the range of each row), ``seed``.
    - ``guided_backprop``, ``deconvolution``: none. They change what rectifiers hand back, whatever
      these are called in the model, and are refused where one cannot be seen, or there is none.
    - ``lrp`` (``epsilon``, 1e-9) and ``deeplift`` (``baselines``): relevance propagation by the
      epsilon rule, and the rescale rule. Refused where an operation on the way has no rule, by its
      name (attention, softmax, layer norm; maxima for ``deeplift``).
    - ``occlusion``: ``sliding_window_shapes`` (without the rows; an eighth of a picture, all
      channels; one token), ``strides`` (half of a picture's window, else 1), ``baselines`` (0).
    - ``feature_permutation``: ``feature_mask`` (integers that broadcast to the value; elements of
      one number are one feature), ``n_samples`` (1), ``seed``, ``perm_func(value, mask)``.
    - ``shapley``: ``baselines`` (0), ``feature_mask``, ``n_samples`` (25 orders; where there are no
      more, all are taken, and the values are exact), ``seed``.

    The last three need no gradients, and explain integers too. Formulas and their sources stand at
    the functions of these names in ``torchtap.explain``.

    Methods that run the model often have further settings: ``batch_size`` (most rows of one
    forward, 16; or ``perturbations_per_eval`` copies of the inputs), ``max_evals`` (most runs on a
    copy of the inputs), ``progress`` (shown on stderr after two seconds; by default if that is a
    terminal). They can be interrupted, and give what there is by then (NaN where there is nothing),
    as ``notes`` tell. Where the model mixes rows, which is tried first, each run has its own
    forward. Random methods draw from numbers of their own: ``seed`` is a number (0), or a
    ``torch.Generator``.

    ``call`` says which call of the module at a site, from 0, where it is called several times.

    Raises:
        InputError: an argument does not fit; the value has no gradient; a setting is not one of
            the method's.
        SiteError: ``at`` fits nothing.
        CaptureError: the site was not reached.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> _ = model.weight.data.copy_(torch.tensor([[3.0, -1.0]]))
        >>> found = tt.attribute(model, torch.tensor([[1.0, 2.0]]), target=0)
        >>> found.values.round(decimals=4)
        tensor([[ 3., -2.]])
    """
    require("tt.attribute", model)
    request = request_of(model, method, kwargs)
    with walked_once(model):
        return _attributed(request, Subject(model, inputs, request.kwargs), Target(target), at)


def _attributed(request: MethodRequest, subject: Subject, target: Target, at: Any) -> Map:
    if not request.integers:
        subject.refuse_inference()
    subject = subject.with_rows()
    opened = variable_of(subject, target, at, request.call, integers=request.integers)
    with subject.held(), opened as (variable, explained):
        found, scores = request.make(variable), variable.base_scores
        values, small = without_rounding(found.values.detach(), scores, request.values)

    def made_again(subject: Subject, target: Target) -> Map:
        # By its path: the model may be a copy, with other modules.
        same = at if explained.site is None else str(explained.site)
        return _attributed(request, subject, target, same)

    return Map(
        values=values.cpu(),
        method=request.method,
        layer=explained.layer,
        target=target.classes,
        target_text=target.text,
        scores=scores.detach().float().cpu(),
        notes=(
            *subject.notes,
            *target.notes,
            *explained.notes,
            *_rows(found, variable),
            *_odd(found, variable),
            *small,
        ),
        gap=None if found.gap is None else found.gap.float().cpu(),
        size=_size(subject, variable, explained),
        again=Recipe(subject, target, made_again, explained.name, explained.site, request.call),
    )


def _rows(found: AttributionResult, variable: Variable) -> tuple[str, ...]:
    """Return the notes of a method, and that the rows have no scores of their own."""
    if variable.is_per_row:
        return found.notes
    return tuple(dict.fromkeys([*found.notes, *per_batch(variable)]))


def _odd(found: AttributionResult, variable: Variable) -> tuple[str, ...]:
    notes = []
    scores = int((~variable.base_scores.isfinite()).sum())
    if scores:
        notes.append(f"{count(scores)} of {count(len(variable.base_scores))} scores are not finite")
    values = int((~found.values.isfinite()).sum())
    if values:
        notes.append(f"{count(values)} of {count(found.values.numel())} values are not finite")
    return tuple(notes)


def _size(subject: Subject, variable: Variable, explained: ExplainedInput) -> tuple[int, ...]:
    """Return the sizes that are space: of pictures and volumes, and of tokens; see ``Map.size``."""
    shape = tuple(variable.value.shape)
    if explained.site is None and len(shape) > 2:
        is_last = len(shape) == 3 or is_channels_last(shape)
        return () if is_last and are_channels_last(subject.modules, shape) else shape[2:]
    if is_channels_last(shape):
        return ()  # Space is not last.
    if len(shape) > 3:
        return shape[2:]
    return shape[1:] if len(shape) == 2 and not variable.value.is_floating_point() else ()

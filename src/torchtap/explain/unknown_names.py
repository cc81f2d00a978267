"""Errors of names that are not known: methods, also as other libraries call them, and keywords."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence

from torch import nn

from torchtap.core.did_you_mean import did_you_mean
from torchtap.core.errors import InputError
from torchtap.explain.attributions.method_table import METHODS, NOISY
from torchtap.explain.cams.formulas import CAMS

_ATTRIBUTIONS = (*METHODS, *NOISY)
_ELSEWHERE = {
    "saliency": "gradient",
    "vanillagradient": "gradient",
    "gradients": "gradient",
    "grad": "gradient",
    "gradientxinput": "input_x_gradient",
    "gradxinput": "input_x_gradient",
    "inputxgrad": "input_x_gradient",
    "ig": "integrated_gradients",
    "intgrad": "integrated_gradients",
    "integratedgradient": "integrated_gradients",
    "gbp": "guided_backprop",
    "guided": "guided_backprop",
    "guidedbackpropagation": "guided_backprop",
    "deconv": "deconvolution",
    "deconvnet": "deconvolution",
    "layerwiserelevancepropagation": "lrp",
    "epsilonlrp": "lrp",
    "shap": "shapley",
    "shapleyvalues": "shapley",
    "shapleyvaluesampling": "shapley",
    "permutation": "feature_permutation",
    "slidingwindow": "occlusion",
    "noisetunnel": "smoothgrad",
    "smoothgradsquare": "smoothgrad_sq",
    "gradcampp": "gradcam++",
    "gradcamplusplus": "gradcam++",
    "classactivationmap": "cam",
}


def refuse_method(given: object, door: str) -> InputError:
    """Return the error of a name that is no method of a door, ``tt.cam`` or ``tt.attribute``."""
    own, others = (CAMS, _ATTRIBUTIONS) if door == "tt.cam" else (_ATTRIBUTIONS, CAMS)
    meant = _meant(given)
    hint = "."
    if meant in own:
        hint = f"; that is {meant!r} here."
    elif meant in others:
        other = "tt.attribute" if door == "tt.cam" else "tt.cam"
        hint = f"; {other} has it, as method={meant!r}."
    elif isinstance(given, str):
        hint = did_you_mean(given, own)
    return InputError(f"method is {given!r}{hint} Expected one of {', '.join(own)}.")


def _meant(given: object) -> str:
    word = "".join(one for one in str(given).lower() if one.isalnum() or one == "+")
    names = {name.replace("_", ""): name for name in (*_ATTRIBUTIONS, *CAMS)}
    return names.get(word) or _ELSEWHERE.get(word, "")


def refuse_unknown(model: nn.Module, given: Collection[str], what: str, own: Sequence[str]) -> None:
    """Raise if a keyword is no argument of the model.

    Args:
        model: that would get it.
        given: names.
        what: what a keyword may be otherwise, as ``setting of 'occlusion'``.
        own: the names of these.

    Raises:
        InputError: it is none; the message says which there are.
    """
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (AttributeError, TypeError, ValueError):  # No module, or compiled code.
        return
    if model._forward_pre_hooks_with_kwargs or any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in parameters
    ):
        return  # Hooks may take keywords away.
    taken = {parameter.name for parameter in parameters}
    for name in given:
        if name not in taken:
            raise InputError(
                f"{name} is no {what}, and no argument of {type(model).__name__}"
                f"{did_you_mean(name, [*own, *taken])} There are {', '.join(own) or 'none'}."
            )

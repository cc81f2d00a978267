"""Names that methods have elsewhere, for the error of a name that is not known."""

from __future__ import annotations

from torchtap.core.errors import InputError
from torchtap.core.site import did_you_mean

ATTRIBUTIONS = (
    "gradient",
    "input_x_gradient",
    "integrated_gradients",
    "guided_backprop",
    "deconvolution",
    "lrp",
    "deeplift",
    "occlusion",
    "feature_permutation",
    "shapley",
    "smoothgrad",
    "smoothgrad_sq",
    "vargrad",
)
CAMS = (
    "cam",
    "gradcam",
    "gradcam++",
    "hirescam",
    "xgradcam",
    "layercam",
    "eigencam",
    "scorecam",
    "ablationcam",
)
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
    """The error of a name that is no method of a door, ``tt.cam`` or ``tt.attribute``."""
    own, others = (CAMS, ATTRIBUTIONS) if door == "tt.cam" else (ATTRIBUTIONS, CAMS)
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
    names = {name.replace("_", ""): name for name in (*ATTRIBUTIONS, *CAMS)}
    return names.get(word) or _ELSEWHERE.get(word, "")

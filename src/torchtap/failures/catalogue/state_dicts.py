"""States that do not fit the module that they are loaded into."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from torchtap.failures.catalogue.creation import first_argument
from torchtap.failures.failure import Failure
from torchtap.failures.situation_row import Situation, SituationRow, first_of

_SIZES = re.compile(
    r"size mismatch for ([\w.]+): copying a param with shape torch\.Size\((.*?)\) from "
    r"checkpoint, the shape in current model is torch\.Size\((.*?)\)"
)


def _state_dict(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Return what does not fit: a prefix of all names, else shapes, else names."""
    text = failure.text
    missing, unexpected = (
        re.findall(r'"([^"]+)"', text.partition(f"{kind} key(s) in state_dict:")[2].split("\n")[0])
        for kind in ("Missing", "Unexpected")
    )
    sizes = _SIZES.findall(text)
    first, there, here = sizes[0] if sizes else ((missing or [""])[0], "", "")
    module = first.rpartition(".")[0]
    owner = dict(failure.names.modules()).get(module) if module else None
    kinds = (("missing", missing), ("unknown", unexpected))
    fronts = _fronts(missing, unexpected)
    nested = _nested(failure, missing, unexpected)
    common = _common(failure, missing)
    others = _others(failure, missing)
    last = {one.rpartition(".")[0] for one, _, _ in sizes}
    return {
        **_prefix(missing, unexpected),
        "inside": fronts[0] if len(fronts) == 1 else "",
        "several": " or ".join(map(repr, fronts)) if len(fronts) > 1 else "",
        "rest": ", ".join(one for one in unexpected if not one.startswith(tuple(fronts)))[:80],
        "piece": _piece(missing, unexpected),
        **_renamed(missing, unexpected),
        "is_meta": not missing and not unexpected and not sizes and "copy out of meta" in text,
        "sizes": len(sizes),
        "is_last": len(last) == 1,
        "is_spread": len(last) > 1,
        **_normed(missing, unexpected),
        "common": common,
        "is_held": bool(nested) and not common,
        "name": first_argument(failure, "state"),
        "resized": next(iter(last), "") or "it",
        "first": first,
        "there": there,
        "here": here,
        "missing": _names(missing),
        "unknown": _names(unexpected),
        "unexpected_names": ", ".join(unexpected[:5]),
        "only_missing": bool(missing) and not unexpected,
        "only_unknown": bool(unexpected) and not missing,
        "nested": nested,
        "others": others,
        "alone": not others,
        "details": tuple((label, ", ".join(names[:4])) for label, names in kinds if names),
        "where": failure.names.module(owner),
    }


def _common(failure: Failure, missing: Sequence[str]) -> int:
    """How many names the state and the module have in common."""
    frames = [one for one in failure.frames if one.code.co_name == "load_state_dict"]
    module = frames[-1].owner if frames else None
    own = len(module.state_dict()) if isinstance(module, nn.Module) else len(missing)
    return max(own - len(missing), 0)


_NORMS = (
    ("g", "v", "torch.nn.utils.weight_norm", "torch.nn.utils.remove_weight_norm"),
    ("orig", "u", "torch.nn.utils.spectral_norm", "torch.nn.utils.remove_spectral_norm"),
    ("orig", "mask", "torch.nn.utils.prune", "torch.nn.utils.prune.remove"),
)


def _normed(missing: Sequence[str], unexpected: Sequence[str]) -> Mapping[str, str]:
    """Say which norm or pruning split a parameter, in the state or in the module alone."""
    words = dict.fromkeys(("split", "joined", "by", "undo"), "")
    for names, others, word in ((unexpected, missing, "split"), (missing, unexpected, "joined")):
        plain, known = set(others), set(names)
        for first, second, by, undo in _NORMS:
            end = f"_{first}"
            whole = [one.removesuffix(end) for one in names if one.endswith(end)]
            fitting = [one for one in whole if one in plain and f"{one}_{second}" in known]
            if fitting:
                return {**words, word: fitting[0], "by": by, "undo": undo}
        front = [one.replace("parametrizations.", "").removesuffix(".original0") for one in names]
        fitting = [one for one in front if one.removesuffix(".original") in plain]
        if fitting and any("parametrizations." in one for one in names):
            name = fitting[0].removesuffix(".original")
            by = "torch.nn.utils.parametrize"
            undo = "torch.nn.utils.parametrize.remove_parametrizations"
            return {**words, word: name, "by": by, "undo": undo}
    return words


def _names(names: Sequence[str]) -> str:
    return "1 name is" if len(names) == 1 else f"{len(names)} names are"


def _others(failure: Failure, missing: Sequence[str]) -> str:
    """Return the keys of the states inside that fit, where several do; else empty."""
    state = failure.operand("state_dict").value
    held = state.items() if isinstance(state, dict) else ()
    keys = [key for key, one in held if isinstance(one, dict) and set(missing) <= set(one)]
    return " or ".join(map(repr, keys)) if missing and len(keys) > 1 else ""


def _nested(failure: Failure, missing: Sequence[str], unexpected: Sequence[str]) -> str:
    """The key under which the state has another one; empty if it has none."""
    state = failure.operand("state_dict").value
    held = state if isinstance(state, dict) else {}
    inner = {key: one for key, one in held.items() if isinstance(one, dict)}
    for key, one in inner.items():
        if any(name in one for name in missing):
            return str(key)
    states = [k for k, one in inner.items() if any(isinstance(v, Tensor) for v in one.values())]
    usual = [one for one in ("state_dict", "model", "model_state_dict") if one in unexpected]
    return str(next(iter([*states, *usual]), ""))


def _prefix(missing: Sequence[str], unexpected: Sequence[str]) -> Mapping[str, str]:
    """Return the prefix of all names: ``more`` if the state has it, ``less`` if it lacks it."""
    if not missing or len(missing) != len(unexpected):
        return {"more": "", "less": ""}
    short, long = sorted((sorted(missing), sorted(unexpected)), key=lambda one: len(one[0]))
    front = long[0].removesuffix(short[0])
    if front == long[0] or any(b != front + a for a, b in zip(short, long, strict=True)):
        front = ""
    is_more = sorted(unexpected) == long
    return {"more": front if is_more else "", "less": "" if is_more else front}


def _fronts(missing: Sequence[str], unexpected: Sequence[str]) -> list[str]:
    """The prefixes under which a larger state has all names that are missing."""
    first, known = missing[0] if missing else "", set(unexpected)
    if not missing or len(unexpected) <= len(missing):
        return []
    fronts = dict.fromkeys(
        one.removesuffix(first) for one in unexpected if one.endswith(f".{first}")
    )
    return [front for front in fronts if all(front + one in known for one in missing)][:4]


def _piece(missing: Sequence[str], unexpected: Sequence[str]) -> str:
    """A part inside of names that the state has more, such as ``module.`` or ``_orig_mod.``."""
    known = set(unexpected)
    for one in unexpected if missing else ():
        for part in re.findall(r"\w+\.", one):
            taken = {name.replace(part, "", 1) for name in known if part in name}
            if taken >= set(missing):
                return str(part)
    return ""


def _renamed(missing: Sequence[str], unexpected: Sequence[str]) -> Mapping[str, str]:
    """The name of a part in the state and in the module, where they differ by one name."""
    fronts = [
        {name.rpartition(".")[0]: name.rpartition(".")[2] for name in names}
        for names in (unexpected, missing)
    ]
    is_pair = len(missing) == len(unexpected) and all(len(one) == 1 for one in fronts)
    ends = [{name.rpartition(".")[2] for name in names} for names in (unexpected, missing)]
    if not is_pair or ends[0] != ends[1]:
        return {"old": "", "new": ""}
    return {"old": next(iter(fronts[0])), "new": next(iter(fronts[1]))}


_FIT = "The state does not fit {kind}: "
_NESTED = ("nested", "Load what stands inside: state[{nested!r}].")
_AS_SAVED = "If all weights of the file are wanted: build the model as it was saved."

SITUATIONS: dict[str, Situation] = {
    "state dict": first_of(
        SituationRow(
            "{name} is no state of {kind}, but holds one: its names are {unexpected_names}.",
            ("others", "Load the one that is meant of those inside, {others}: {name_it}[...]."),
            ("alone", "Load what stands inside: {name_it}[{nested!r}]."),
            when="is_held",
        ),
        SituationRow(
            _FIT + "its {split} was saved in parts, as {by} makes them, and the module has it "
            "whole.",
            "Apply the same to the module before the state is loaded, as where it was saved.",
            "Or take it off before saving, where the file is made: {undo}(module, name).",
            when="split",
        ),
        SituationRow(
            _FIT + "its {joined} was saved whole, and the module has it in parts, as {by} makes "
            "them.",
            "Load the state first, and apply {by} to the module afterwards.",
            when="joined",
        ),
        SituationRow(
            _FIT + "all its names begin with {more!r}.",
            _NESTED,
            "Take it off: {{key.removeprefix({more!r}): value for key, value in state.items()}}.",
            when="more",
        ),
        SituationRow(
            _FIT + "all its names do not begin with {less!r}.",
            _NESTED,
            "Put it in front: {{{less!r} + key: value for key, value in state.items()}}.",
            when="less",
        ),
        SituationRow(
            _FIT + "all names that are missing begin with {inside!r} there, among others.",
            _NESTED,
            "If this part is wanted, without the rest ({rest}): "
            "{{key.removeprefix({inside!r}): value for key, value in "
            "state.items() if key.startswith({inside!r})}}.",
            "If the rest is needed, too: build the model as it was saved.",
            when="inside",
        ),
        SituationRow(
            _FIT + "all names that are missing stand in it several times, behind {several}.",
            _NESTED,
            "Choose the part that is wanted, such as the average of weights, and take it: "
            "{{key.removeprefix(front): value for key, value in state.items() if "
            "key.startswith(front)}}, where front is {several}.",
            when="several",
        ),
        SituationRow(
            _FIT + "its names have {piece!r} inside, which those of the module do not have.",
            _NESTED,
            "Take it out: {{key.replace({piece!r}, '', 1): value for key, value in "
            "state.items()}}.",
            "Or wrap that part as it was wrapped when it was saved, before the state is loaded.",
            when="piece",
        ),
        SituationRow(
            "Tensors of the module or the state are on the meta device: a shape, and no values "
            "that could be copied.",
            "Put the tensors of the state in its place: load_state_dict(state, assign=True).",
            "Or make both with values, outside of torch.device('meta').",
            when="is_meta",
        ),
        SituationRow(
            _FIT + "{sizes} of its tensors have other shapes, {first} first: {there} for {here}.",
            _NESTED,
            (
                "is_last",
                "If this layer is to give others than were trained, leave it out and train it "
                "anew: pop its tensors from the state and give strict=False.",
            ),
            "If the model is to be as it was saved: build it so, {first} has the shape {there}.",
            (
                "is_spread",
                "If others are to train anew: pop them from the state and give strict=False.",
            ),
            when="sizes",
        ),
        SituationRow(
            _FIT + "{missing} missing and {unknown} not known: it has {old} where the module has "
            "{new}.",
            _NESTED,
            "If they are the same part under another name: {{key.replace({old!r}, {new!r}): value "
            "for key, value in state.items()}}.",
            "If {new} is another part, and to be trained anew: strict=False.",
            _AS_SAVED,
            when="old",
        ),
        SituationRow(
            _FIT + "{missing} missing in it.",
            _NESTED,
            "If the file is of a smaller model, and these are to be trained anew: strict=False "
            "leaves them as they are.",
            "If they should be in the file: build the model as it was saved.",
            when="only_missing",
        ),
        SituationRow(
            _FIT + "{unknown} not known.",
            _NESTED,
            _AS_SAVED,
            "If these are not needed here: strict=False leaves them out.",
            when="only_unknown",
        ),
        SituationRow(
            _FIT + "{missing} missing and {unknown} not known.",
            _NESTED,
            "If the file is of this model: build it as it was saved, with the same options.",
            (
                "common",
                "If only the {common} names that both have are wanted: strict=False; the rest "
                "keeps its first values.",
            ),
        ),
        facts=_state_dict,
    )
}

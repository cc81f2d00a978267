"""Samples that a DataLoader cannot put together into a batch."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from torchtap.core.source_files import is_of_library
from torchtap.failures.failure import Failure
from torchtap.failures.parsed_source import written
from torchtap.failures.situation_row import Situation, SituationRow, first_of

_AS_LISTS = (
    "Keep a list of each part, without putting them together: "
    "DataLoader(..., collate_fn=lambda batch: tuple(zip(*batch)))."
)
_PADDED = (
    "If they are sequences of different lengths (texts, signals): give collate_fn to the "
    "DataLoader (data_collator to a Trainer) that pads: "
    "torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)."
)
_REST = (
    "If it is the rest at the end of a text or signal that is cut into pieces of {longest}: leave "
    "it out, for start in range(0, len(x) - {longest} + 1, step)."
)
_MOST = 64
_DATA = os.path.join("torch", "utils", "data")
_FETCH = os.path.join(_DATA, "_utils", "fetch.py")
_CALL = "self.collate_fn(data)"
"""The line of PyTorch's, in the text that a worker hands on."""
_FILE = re.compile(r'File "([^"]+)", line \d+')


def is_collated(failure: Failure) -> bool:
    """Return whether a DataLoader was putting samples together."""
    files = (one.file for one in failure.frames if one.is_torch)
    is_loaded = "collate" in failure.text or any(_DATA in one for one in files)
    is_sample = is_of_program(failure) and not _samples(failure) and _CALL not in failure.text
    return is_loaded and not is_sample


def is_of_program(failure: Failure) -> bool:
    """Return whether code of the program ran that a loader asked: a collate_fn, or a data set.

    A worker hands the files on in the text of the message.
    """
    files = _FILE.findall(failure.text) or [one.file for one in failure.frames]
    asked = [at for at, one in enumerate(files) if one.endswith(_FETCH)]
    return bool(asked) and any(not is_of_library(one) for one in files[asked[-1] :])


def _samples(failure: Failure) -> list[Any]:
    """The samples of the batch; none where a worker had them."""
    for frame in failure.frames:
        held = frame.frame.f_locals.get("data")
        if frame.is_torch and frame.file.endswith("fetch.py") and type(held) is list:
            return held[:_MOST]
    return []


def _tensors_in(sample: Any) -> Iterator[Tensor]:
    if isinstance(sample, Tensor):
        yield sample
    elif type(sample) in (tuple, list, dict):
        for one in sample.values() if type(sample) is dict else sample:
            yield from _tensors_in(one)


def _stack(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The kind of difference between two samples, from their shapes."""
    wanted, given = (
        [int(one) for one in re.findall(r"\d+", found[key])] for key in ("wanted", "given")
    )
    is_own = is_of_program(failure)
    is_rows = len(wanted) == len(given) < 3 and wanted[1:] == given[1:]
    if not is_collated(failure) or (is_own and is_rows):
        return _stacked(failure, wanted, given)
    low, high = sorted((wanted, given), key=len)
    is_dims = len(low) != len(high)
    differs = [at for at, (a, b) in enumerate(zip(low, high, strict=False)) if a != b]
    around = max(
        (one.dim() for sample in _samples(failure) for one in _tensors_in(sample)), default=0
    )
    is_part = len(low) == 2 and differs == [0] and around > 2
    is_long = not is_dims and len(low) == 2 and differs == [1] and around < 3
    # A spectrogram differs in its time alone; so may pictures of one height.
    shortest, longest = min(low + high, default=0), max(low + high, default=0)
    is_rest = len(low) == 1 and shortest < longest and max(wanted) > max(given)
    is_last = is_rest and _is_last_shorter(failure)
    is_spectrum = not is_dims and len(low) == 3 and differs == [2] and low[0] < 3
    return {
        "is_dims": is_dims,
        "low": low,
        "high": high,
        "lacking": _lacking(low, high),
        "is_last": is_last,
        "is_rest": is_rest and not is_last,
        "longest": longest,
        "is_pictures": not is_dims and len(low) > 1 and differs != [0] and not is_long,
        "is_spectrum": is_spectrum,
        "is_picture": not is_spectrum,
        "is_long": is_long,
        "is_boxes": not is_dims and is_part,
        "is_colors": differs == [0] and len(low) == len(high) == 3 and {low[0], high[0]} == {1, 3},
        "size": tuple(max(pair) for pair in zip(low[-2:], high[-2:], strict=True))
        if not is_dims
        else (),
        "is_collated": not is_own,
        "by": "the collate_fn of the program" if is_own else "the DataLoader",
        **(_stacked(failure, wanted, given) if is_own else {}),
    }


def _is_last_shorter(failure: Failure) -> bool:
    """Return whether all samples but the last one, of several, have one shape."""
    kept = [[tuple(one.shape) for one in _tensors_in(sample)] for sample in _samples(failure)]
    return len(kept) > 2 and all(one == kept[0] for one in kept[:-1])


def _stacked(failure: Failure, wanted: list[int], given: list[int]) -> Mapping[str, Any]:
    """Return how the program's own torch.stack pads rows whose number alone differs."""
    frame = failure.user
    node = None if frame is None else frame.expression
    is_rows = len(wanted) == len(given) and wanted[1:] == given[1:]
    text = written(node.args[0]) if isinstance(node, ast.Call) and node.args else ""
    padded = f"torch.nn.utils.rnn.pad_sequence({text}, batch_first=True)"
    is_named = is_rows and text.isidentifier()
    held = [] if frame is None or not is_named else frame.value_of(ast.Name(text, ast.Load()))
    sizes = [len(one) for one in held if isinstance(one, Tensor) and one.dim()] if is_rows else []
    is_last = len(sizes) > 2 and len(set(sizes[:-1])) == 1 and sizes[-1] < sizes[0]
    is_pictures = len(wanted) == len(given) == 3 and {wanted[0], given[0]} <= {1, 3, 4}
    sizes_of_two = [max(pair) for pair in zip(wanted, given, strict=False)]
    return {
        "joined": f"torch.cat({text})" if is_last else "",
        "is_rows": padded if is_named and not is_pictures else "",
        "is_any": not is_named and not is_pictures,
        "is_other": not is_last,
        "resized": str(tuple(sizes_of_two[1:])) if is_pictures and wanted[1:] != given[1:] else "",
        "is_grey": is_pictures and {wanted[0], given[0]} == {1, 3},
    }


def _lacking(low: list[int], high: list[int]) -> str:
    """How a sample gets the dimension that it lacks in front."""
    if len(high) != len(low) + 1 or high[1:] != low:
        return ""
    rest = ", ".join(["-1"] * len(low))
    return "x.unsqueeze(0)" if high[0] == 1 else f"x.expand({high[0]}, {rest})"


def _none(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The part of the samples that is None, where no sample is None itself."""
    samples = list(_samples(failure))
    is_some = any(one is None for one in samples) and not all(one is None for one in samples)
    is_nested = bool(samples) and samples[0] is not None and not is_some
    known = {"is_some": is_some, "is_nested": is_nested}
    for sample in samples:
        if sample is None:
            break
        held = sample if type(sample) in (tuple, list, dict) else ()
        pairs = dict(enumerate(held)) if type(held) is not dict else held
        for key, value in pairs.items():
            if value is None:
                return {"part": repr(key), **known}
    return {"part": "", "is_none": not is_some and not known["is_nested"], **known}


def _lists(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Return how lists of numbers are padded, by the kind of the samples."""
    first = next(iter(_samples(failure)), None)
    pad, tensors = "torch.nn.utils.rnn.pad_sequence", "torch.tensor({}) for one in batch"
    is_dict = isinstance(first, dict)
    of_keys = (
        f"{{key: {pad}([{tensors.format('one[key]')}], batch_first=True) for key in batch[0]}}"
    )
    of_lists = f"{pad}([{tensors.format('one')}], batch_first=True)"
    is_plain = isinstance(first, list) and all(isinstance(one, int | float) for one in first)
    collated = of_keys if is_dict else of_lists if is_plain else ""
    if is_of_program(failure):  # A collate_fn in its place would drop what it does.
        collated, is_dict = "", False
    return {
        "padded": f"DataLoader(..., collate_fn=lambda batch: {collated})" if collated else "",
        "is_dict": is_dict,
        "is_tuple": not is_dict and not is_of_program(failure),
    }


def _sample(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    kind = found["kind"]
    is_picture = kind.startswith("PIL.")
    return {
        "short": kind.rpartition(".")[2],
        "is_picture": is_picture,
        "is_other": not is_picture,
    }


SITUATIONS: dict[str, Situation] = {
    "stack": first_of(
        SituationRow(
            "The samples of a batch have different numbers of dimensions: {wanted} at 0 and "
            "{given} at {at}, and {by} stacks them.",
            (
                "lacking",
                "Give those of {low} the dimension that they lack, in the data set: {lacking}.",
            ),
            "Bring all samples to as many dimensions in the data set: of pictures, "
            ".convert('RGB') gives all three channels.",
            when="is_dims",
        ),
        SituationRow(
            "The samples of a batch have different sizes: {wanted} at 0 and {given} at {at}, and "
            "{by} stacks them.",
            (
                "is_spectrum",
                "If they are spectrograms of different lengths, pad all to the longest, in a "
                "collate_fn: F.pad(x, (0, longest - x.shape[-1])).",
            ),
            "If they are pictures, resize all to one size in the data set: Resize({size}) of "
            "torchvision, with both sides, as one number keeps their ratio; or F.interpolate("
            "x[None], size={size})[0]; masks of classes with mode='nearest'.",
            "If their scale is to stay, pad all to one size: F.pad(x, (left, right, top, bottom)).",
            when="is_pictures",
        ),
        SituationRow(
            "The samples of a batch have different lengths: {wanted} at 0 and {given} at {at}, and "
            "{by} stacks them.",
            "Pad all to the longest, in a collate_fn or in the data set: "
            "F.pad(x, (0, longest - x.shape[-1])).",
            "Cut all to the shortest, if the ends are not needed: x[:, :shortest].",
            when="is_long",
        ),
        SituationRow(
            "The samples of a batch have different numbers of channels: {wanted} at 0 and {given} "
            "at {at}, and {by} stacks them.",
            "Bring all pictures to one number of channels in the data set: .convert('L') for grey "
            "ones, .convert('RGB') for three.",
            when="is_colors",
        ),
        SituationRow(
            "The samples of a batch have different numbers of rows: {wanted} at 0 and {given} at "
            "{at}, and {by} stacks them.",
            _AS_LISTS,
            "Pad the rows, and mark those that are padding: torch.nn.utils.rnn.pad_sequence.",
            when="is_boxes",
        ),
        SituationRow(
            "The samples of a batch have different shapes: {wanted} at 0 and {given} at {at}, and "
            "{by} stacks them.",
            ("is_last", _REST),
            _PADDED,
            ("is_rest", _REST),
            "If all are to have one size: bring them to it in the data set, by crop, resize or pad "
            "(padding='max_length' of a tokenizer).",
            "If one of them is wrong: look at that sample, and at what reads it.",
            when="is_collated",
        ),
        SituationRow(
            "torch.stack takes tensors of one shape, and got {wanted} at 0 and {given} at {at}.",
            (
                "joined",
                "If each is what one batch gave, of which the last is smaller, put them one behind "
                "the other: {joined}.",
            ),
            (
                "is_rows",
                "If each is one sample of a batch, fill all up to the longest, and mark what is "
                "padding: {is_rows}.",
            ),
            (
                "is_grey",
                "If they are pictures, some of them grey, give all three channels: .convert('RGB') "
                "where they are read, or x.expand(3, -1, -1).",
            ),
            (
                "resized",
                "If they are pictures, bring them to one size: F.interpolate(x[None], "
                "size={resized})[0], or Resize({resized}) of torchvision where they are read.",
            ),
            (
                "is_any",
                "If each is one sample of a batch, bring them to one shape first: cut or pad them, "
                "torch.nn.utils.rnn.pad_sequence(..., batch_first=True).",
            ),
            (
                "is_other",
                "If they are to stand one behind the other, in a dimension that they have: "
                "torch.cat.",
            ),
            about="tensors",
        ),
        facts=_stack,
    ),
    "storage of a batch": SituationRow(
        "The samples of a batch have different shapes, and a worker of the DataLoader cannot stack "
        "them in memory that is shared.",
        _PADDED,
        "Bring all samples to one shape in the data set: crop, resize or pad; with num_workers=0 "
        "the error names the shapes.",
    ),
    "lists in a batch": SituationRow(
        "The samples of a batch hold lists of different lengths, and the DataLoader puts them "
        "together element by element.",
        ("padded", "If they are numbers, pad them in a collate_fn: {padded}."),
        (
            "is_dict",
            "If they are to stay lists: DataLoader(..., collate_fn=lambda batch: {{key: [one[key] "
            "for one in batch] for key in batch[0]}}).",
        ),
        ("is_tuple", _AS_LISTS),
        "Pad the lists to one length in the data set.",
        facts=_lists,
    ),
    "None in a batch": first_of(
        SituationRow(
            "Part {part} of the samples is None, and the DataLoader cannot put None together.",
            "Give a value in its place, or leave {part} out of the samples: for a label that is "
            "missing, torch.tensor(-1).",
            "Put the parts together yourself: DataLoader(..., collate_fn=...).",
            when="part",
        ),
        SituationRow(
            "A sample of the batch is None, or has None in it: the data set returned no value for "
            "it.",
            (
                "is_some",
                "Leave such samples out: DataLoader(..., collate_fn=lambda batch: "
                "torch.utils.data.default_collate([one for one in batch if one is not None])).",
            ),
            (
                "is_nested",
                "Give a value in its place in the sample, such as '' for a path, or leave that "
                "part out of the sample.",
            ),
            (
                "is_none",
                "Return the sample from __getitem__ of the data set: a function without return "
                "gives None.",
            ),
            ("is_some", "Return a value from __getitem__ of the data set on every path."),
        ),
        facts=_none,
    ),
    "sample of a batch": SituationRow(
        "The data set returned {short}, and the DataLoader puts together tensors, arrays, numbers, "
        "strings, dicts, tuples and lists alone.",
        (
            "is_picture",
            "Make a tensor of each picture in the data set: ToTensor() of torchvision, or "
            "torch.from_numpy(numpy.array(picture)).",
        ),
        (
            "is_other",
            "Return a dict or tuple of tensors from the data set: vars(sample) in place of sample.",
        ),
        (
            "is_other",
            "Keep the samples in a list: DataLoader(..., collate_fn=lambda batch: batch).",
        ),
        facts=_sample,
    ),
}

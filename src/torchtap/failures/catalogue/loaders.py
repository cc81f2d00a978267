"""Data sets, samplers and loaders that refuse what they are given."""

from __future__ import annotations

import ast
import builtins
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from torchtap.failures.failure import Failure
from torchtap.failures.parsed_source import function_tree, written
from torchtap.failures.situation_row import Situation, SituationRow, first_of


def _of_worker(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say of which kind an error is that a worker handed over as text."""
    said = found[0].strip().splitlines()[-1]
    kind = type(failure.error).__name__
    is_key = isinstance(failure.error, KeyError)
    is_place = is_key and said.lstrip("-").isdigit()
    is_none = "NoneType" in said
    return {
        "kind": kind,
        "said": said if not is_key else f"no key {said}",
        "is_index": isinstance(failure.error, IndexError),
        "is_place": is_place,
        "is_name": is_key and not is_place,
        "is_picture": is_none and ("shape" in said or "subscriptable" in said),
        "is_none": is_none,
    }


def _of_loader(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say which object holds the attribute that was asked of a loader or a subset."""
    frame = failure.frames[-1]
    node = getattr(frame.expression, "value", None)
    held: Any = frame.value_of(node) if isinstance(node, ast.expr) else None
    is_loader = found["kind"] == "DataLoader"
    data = getattr(held, "dataset", None)
    name = written(node, frame.file) if isinstance(node, ast.Name) else ""
    has_it = data is None or found["name"] in dir(data)
    return {
        "loader": name or "loader",
        "subset": name or "subset",
        "joined": name or "joined",
        "is_subset": found["kind"] == "Subset",
        "is_joined": found["kind"] == "ConcatDataset",
        "is_loader": is_loader and has_it,
        "is_batch": is_loader and not has_it,
    }


def _iterator(failure: Failure) -> str:
    """The iterator that next was called on, as it is written."""
    frame = failure.user
    node = None if frame is None else frame.expression
    args = node.args if isinstance(node, ast.Call) else []
    name = written(args[0], frame.file) if args and frame is not None else ""
    return name if name.isidentifier() else "iterator"


def _number(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    try:
        number = float(found["given"])
    except ValueError:
        number = 0.0
    value = failure.operand(found["what"]).value
    is_text = isinstance(value, str)
    whole = int(number) if number >= 1 else ""
    return {
        "shown": f"the text {value!r}" if is_text else found["given"],
        "text": f"{found['what']}=int({value!r})" if is_text and whole else "",
        "whole": "" if is_text else whole,
        "is_none": number < 1,
    }


def _length(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    held = [one for frame in failure.frames for one in frame.frame.f_locals.values()]
    held += [getattr(one, key, None) for one in held for key in ("dataset", "data_source")]
    fitting = [one for one in held if type(one).__name__ == found["kind"]]
    is_stream = any(isinstance(one, IterableDataset) for one in fitting)
    loaders = [one.owner for one in failure.frames if isinstance(one.owner, DataLoader)]
    part, given = next(
        ((part, one) for one in loaders for part, one in _parts(one, found["kind"])), ("", None)
    )
    if not part and any(type(one).__module__ == "builtins" for one in fitting):
        part = "dataset"
    is_own = bool(fitting) and type(fitting[0]).__module__ != "builtins"
    if not fitting:
        is_own = found["kind"] not in dir(builtins)
    is_count = type(given) is int
    return {
        "is_stream": is_stream,
        "is_map": not is_stream and is_own,
        "part": part if not is_own else "",
        "given": given if is_count else "",
        "is_batches": part == "batch_sampler" and is_count,
        "is_samples": part == "sampler",
        "is_lists": part == "batch_sampler" and not is_count,
        "is_class": getattr(given, "__name__", "data set") if isinstance(given, type) else "",
        "is_data": part == "dataset" and not isinstance(given, type),
        "is_other": not is_stream and not is_own and not part,
    }


def _parts(loader: DataLoader[Any], kind: str) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a loader, asked for a length, that are of a kind; the innermost first."""
    for part in ("batch_sampler", "sampler", "dataset"):
        held = getattr(loader, part, None)
        if type(held).__name__ == kind:
            yield part, held


def _arrays(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    frame = failure.user
    node = None if frame is None else frame.expression
    args = node.args if isinstance(node, ast.Call) else []
    texts = [written(one, frame.file) for one in args] if frame is not None else []
    return {"way": ", ".join(f"torch.as_tensor({one})" for one in texts) or "tensors"}


def _texts(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    return {"what": "texts" if found["kind"].startswith("<U") else "objects"}


def _key(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    return {"key": found["key"], "is_of_sample": failure.frames[-1].file.endswith("collate.py")}


def _labelled(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """Say what __getitem__ asked for a number: a dict, a table of pandas, or another one."""
    frame = failure.user or failure.frames[-1]
    node = frame.expression
    held: Any = frame.value_of(node.value) if isinstance(node, ast.Subscript) else None
    text = written(node.value, frame.file) if isinstance(node, ast.Subscript) else "what it holds"
    is_table = type(held).__module__.startswith("pandas") or any(
        f"{os.sep}pandas{os.sep}" in one.file for one in failure.frames
    )
    is_dict = isinstance(held, dict)
    return {
        "held": text,
        "key": failure.text,
        "is_table": is_table,
        "is_dict": is_dict,
        "is_other": not is_table and not is_dict,
    }


def _beyond(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    """The number of the sample, the length that the data set says, and what has fewer."""
    frames = [one for one in failure.frames if one.code.co_name == "__getitem__"]
    frame = frames[-1] if frames else failure.frames[-1]
    last = failure.frames[-1]
    node = last.expression
    held: Any = last.value_of(node.value) if isinstance(node, ast.Subscript) else None
    text = written(node.value, last.file) if isinstance(node, ast.Subscript) else "what it holds"
    sized = type(held) in (list, tuple) or isinstance(held, torch.Tensor)
    names = frame.code.co_varnames[1:2]
    index = frame.frame.f_locals.get(names[0]) if names else None
    data = frame.owner
    code = getattr(getattr(type(data), "__len__", None), "__code__", None)
    tree = None if code is None else function_tree(code, code.co_firstlineno)
    said = [one for one in ast.walk(tree) if isinstance(one, ast.Return)] if tree else []
    value = ast.unparse(said[0].value) if len(said) == 1 and said[0].value else "its length"
    return {
        "index": f"sample {index}" if isinstance(index, int) else "a sample",
        "kind": type(data).__name__,
        "held": text,
        "many": f"has {len(held)}" if sized else "has fewer",
        "said": value,
    }


SITUATIONS: dict[str, Situation] = {
    "error in a worker": SituationRow(
        "The data set raised {kind} in a worker of the DataLoader: {said}.",
        (
            "is_index",
            "If __len__ counts more than the lists of the data set hold: return the length of the "
            "list that __getitem__ takes its element of.",
        ),
        (
            "is_index",
            "If a list of that sample is too short, as an empty folder or a line with fewer "
            "parts: check how it was filled.",
        ),
        (
            "is_place",
            "If a table of pandas was asked: take the row by its place, .iloc[index], or give it "
            "new labels after a filter, .reset_index(drop=True).",
        ),
        (
            "is_place",
            "If a dict was asked, each key of which is a sample: held[list(held)[index]].",
        ),
        (
            "is_name",
            "If the sample has no such entry: check the names of files and columns that it is made "
            "of; of a dict, held.get(key) gives None for it.",
        ),
        (
            "is_picture",
            "If a picture was read: cv2.imread gives None where the file is not there; check the "
            "path.",
        ),
        (
            "is_none",
            "If it is an option, such as a transform: use it only if it is not None, or give it "
            "where the data set is made.",
        ),
        "To see the sample: with num_workers=0 the error is raised in this process, and its note "
        "names the values.",
        facts=_of_worker,
    ),
    "end of a loader": SituationRow(
        "{name} has given all its batches: an iterator ends after one round.",
        "If another round is to begin: make the iterator anew, {name} = iter(loader), where "
        "StopIteration is caught.",
        "If one round is meant: for batch in loader, which ends by itself.",
        facts=lambda failure, found: {"name": _iterator(failure)},
    ),
    "next of an iterator": SituationRow(
        "The iterator of a DataLoader has no next(), as those of Python 2 had.",
        "Write next(iterator) for iterator.next().",
    ),
    "attribute of a subset": SituationRow(
        "{kind} has no attribute {name!r}: it only holds the data sets that it was made of.",
        (
            "is_subset",
            "Read it of the whole, and of its samples: {subset}.dataset.{name}, with the "
            "numbers {subset}.indices.",
        ),
        ("is_joined", "Read it of each: [one.{name} for one in {joined}.datasets]."),
        ("is_loader", "Read it of the data set: {loader}.dataset.{name}."),
        (
            "is_batch",
            "If it is of the samples: of a batch, for x in {loader}: x.{name}, where x is a part "
            "of it; or of the data set that the loader was made of.",
        ),
        facts=_of_loader,
    ),
    "key of a data set": SituationRow(
        "The DataLoader asks a data set for the samples 0 to len - 1, and {held} has no key {key}.",
        ("is_table", "Take the row by its place: {held_it}.iloc[index]; its labels are others."),
        (
            "is_dict",
            "If each key of it is a sample: {held_it}[list({held_it})[index]].",
        ),
        (
            "is_dict",
            "If each key is a column of all samples: take the element, {held_it}[column][index].",
        ),
        ("is_other", "Take it by its place, and not by a label, in __getitem__."),
        facts=_labelled,
    ),
    "samples beyond the data": SituationRow(
        "The DataLoader asked for {index}, and {held} {many}: __len__ of {kind} says how many "
        "samples there are, and returns {said}.",
        "If {held} is what it counts: return len({held}) from __len__.",
        "If there should be as many: check how {held} was filled, and the other lists of the data "
        "set.",
        facts=_beyond,
    ),
    "number of a loader": SituationRow(
        "{what} is a whole number of 1 or more, and got {shown}.",
        ("text", "Make a number of it: {text}."),
        ("whole", "Make it whole: {what}={whole}, by int(...) or //."),
        ("is_none", "Give 1 or more; check what it was computed from."),
        facts=_number,
    ),
    "order of a stream": SituationRow(
        "The samples of an IterableDataset come in the order in which it yields them, and {what} "
        "was given.",
        "Leave {what} out, and mix the samples where they are yielded.",
    ),
    "data set without a length": first_of(
        SituationRow(
            "The {part} of the DataLoader is of type {kind}, which has no length, and the number "
            "of its samples is needed.",
            (
                "is_batches",
                "A batch_sampler yields the numbers of each batch; if batches of {given} are "
                "meant: batch_size={given} in its place.",
            ),
            (
                "is_batches",
                "To keep a sampler: sampler=sampler, batch_size={given}; or "
                "torch.utils.data.BatchSampler(sampler, {given}, drop_last=False) as the "
                "batch_sampler.",
            ),
            (
                "is_samples",
                "Give an object as the sampler that yields the numbers of samples and has a "
                "__len__; or leave it out, with shuffle=True for a random order.",
            ),
            (
                "is_lists",
                "Give an object as the batch_sampler that yields lists of numbers and has a "
                "__len__: torch.utils.data.BatchSampler(sampler, batch_size, drop_last=False).",
            ),
            ("is_class", "It is the class itself: make the object, {is_class}(...)."),
            ("is_data", "Give a data set, or a list of the samples; of an iterator: list(...)."),
            when="part",
        ),
        SituationRow(
            "{kind} has no length, and the number of its samples is needed.",
            ("is_stream", "Count the batches as they come: an IterableDataset need not know them."),
            ("is_stream", "If the number is known, define __len__(self) in {kind}."),
            ("is_map", "Define __len__(self) in {kind}: return the number of samples."),
            (
                "is_other",
                "Check what was given as the data set and the sampler: {kind} is neither.",
            ),
        ),
        facts=_length,
    ),
    "data set without samples": SituationRow(
        "The data set has no __getitem__, which returns the sample of a number.",
        "Define __getitem__(self, index) in the class, at the level of its other methods.",
    ),
    "workers that are none": SituationRow(
        "{what} is about worker processes, and there are none with num_workers=0.",
        "Leave {what} out, or give num_workers=1 or more.",
    ),
    "two batches of a loader": SituationRow(
        "A batch_sampler makes whole batches, and batch_size, shuffle, sampler or drop_last was "
        "given besides.",
        "Leave these out, or give them in place of the batch_sampler.",
    ),
    "array of texts": SituationRow(
        "A sample holds an array of {what}, which no tensor can hold.",
        "Return texts as they are, str(...) or a list by .tolist(): they are put into lists.",
        "If they are names of classes, return their numbers.",
        "Give the DataLoader a collate_fn that leaves them as they are.",
        facts=_texts,
    ),
    "arrays of a data set": SituationRow(
        "TensorDataset takes tensors, and was given arrays.",
        "Convert them: TensorDataset({way}).",
        facts=_arrays,
    ),
    "data sets that are none": SituationRow(
        "No data sets were given to be joined: the list is empty.",
        "Check what it was made of, such as a pattern of file names or folders.",
    ),
    "key of a sample": SituationRow(
        "The first sample of the batch has the key {key!r}, and another one lacks it.",
        "Return the same keys for every sample, a value that stands for none where it is missing.",
        "Or give the DataLoader a collate_fn that puts together the keys that all have.",
        facts=_key,
    ),
    "rank out of range": SituationRow(
        "The rank of a DistributedSampler is from 0 to {last}, and got {given}.",
        "Give the number of this process and that of all: rank=torch.distributed.get_rank(), "
        "num_replicas=torch.distributed.get_world_size().",
    ),
}

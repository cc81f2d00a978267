"""Data sets, samplers and loaders that refuse what they are given."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from torch.utils.data import IterableDataset

from torchtap.failures.failure import Failure
from torchtap.failures.parsed_source import written
from torchtap.failures.situation_row import Situation, SituationRow


def _number(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    try:
        number = float(found["given"])
    except ValueError:
        number = 0.0
    return {"whole": int(number) if number >= 1 else "", "is_none": number < 1}


def _length(failure: Failure, found: re.Match[str]) -> Mapping[str, Any]:
    held = [one for frame in failure.frames for one in frame.frame.f_locals.values()]
    held += [getattr(one, "dataset", None) for one in held]
    fitting = [one for one in held if type(one).__name__ == found["kind"]]
    is_stream = any(isinstance(one, IterableDataset) for one in fitting)
    return {"is_stream": is_stream, "is_map": not is_stream}


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


SITUATIONS: dict[str, Situation] = {
    "number of a loader": SituationRow(
        "{what} is a whole number of 1 or more, and got {given}.",
        ("whole", "Make it whole: {what}={whole}, by int(...) or //."),
        ("is_none", "Give 1 or more; check what it was computed from."),
        facts=_number,
    ),
    "order of a stream": SituationRow(
        "The samples of an IterableDataset come in the order in which it yields them, and {what} "
        "was given.",
        "Leave {what} out, and mix the samples where they are yielded.",
    ),
    "data set without a length": SituationRow(
        "{kind} has no length, and the number of its samples is needed.",
        ("is_stream", "Count the batches as they come: an IterableDataset need not know them."),
        ("is_stream", "If the number is known, define __len__(self) in {kind}."),
        ("is_map", "Define __len__(self) in {kind}: return the number of samples."),
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

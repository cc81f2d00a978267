"""Parse the words of a command: a model, a batch, a run, a place to write to."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torchtap.cli.failures import explained
from torchtap.cli.output import complain, say_unwrapped
from torchtap.core.errors import InputError, MissingExtraError
from torchtap.core.record import steps_there
from torchtap.runs.file_name import is_of_another_kind

if TYPE_CHECKING:
    from torch import nn

    from torchtap.cli.batch import Batch
    from torchtap.runs.run import Run
    from torchtap.runs.store.disk import Disk
    from torchtap.stats.catalogue.slices import Slices
    from torchtap.stats.statistics import Statistics


def built_model(target: str, options: dict[str, Any]) -> nn.Module:
    import torch

    from torchtap.cli.model import load_model, load_weights

    torch.manual_seed(options["seed"])
    model = load_model(target, args=options["args"])
    if options["weights"] is not None:
        loaded = load_weights(model, options["weights"])
        if loaded:
            complain(say_unwrapped(options["weights"], loaded))
    return model.train() if options["train"] else model.eval()


def picture_options(options: dict[str, Any]) -> dict[str, Any]:
    from torchtap.cli.batch import IMAGENET_MEAN, IMAGENET_STD

    return {
        "size": options["size"],
        "mean": _numbers("--mean", options["mean"]) or IMAGENET_MEAN,
        "std": _numbers("--std", options["std"]) or IMAGENET_STD,
    }


def stats_of(wanted: bool) -> Any:
    if not wanted:
        return None
    import torchtap as tt

    return tt.Stats()


@contextlib.contextmanager
def process_group() -> Iterator[None]:
    """Under ``torchrun`` the ranks know of each other; nothing is sent between them."""
    from torch import distributed

    is_launched = "WORLD_SIZE" in os.environ and int(os.environ["WORLD_SIZE"]) > 1
    if not is_launched or distributed.is_initialized():
        yield
        return
    distributed.init_process_group("gloo")
    try:
        yield
        distributed.barrier()  # The first rank lists what all have written.
    finally:
        distributed.destroy_process_group()


def model_and_batch(target: str, options: dict[str, Any]) -> tuple[nn.Module, Batch]:
    from torchtap.cli.batch import load_batch

    model = built_model(target, options)
    batch = load_batch(
        image=options["image"],
        file=options["file"],
        shape=options["shape"],
        **picture_options(options),
        dtype=options["dtype"],
        high=options["high"],
        seed=options["seed"],
    )
    return model, batch


def record_model(
    target: str,
    where: Sequence[str],
    options: dict[str, Any],
    *,
    to: Path | None = None,
    resume: bool = False,
) -> Run:
    """Watch a model on one batch, in memory or, with ``to``, into the folder of a run."""
    import torch

    import torchtap as tt
    from torchtap.cli.loss_option import load_loss

    loss = None if options["loss"] is None else load_loss(options["loss"])
    model, batch = model_and_batch(target, options)
    wanted = list(where) or ["*" if loss is None else "*:output,grad_output"]
    with contextlib.ExitStack() as stack:
        sink = None if to is None else stack.enter_context(_new_attempt(to, resume=resume))
        with tt.watch(model, wanted, to=sink) as watching, torch.set_grad_enabled(loss is not None):
            with explained(target, model, batch, options):
                output = batch.run(model)
            if loss is not None:
                torch.autograd.backward(loss(output))
        if sink is not None:
            refuse_nothing(watching.run, options)
    return watching.run


def refuse_nothing(recorded: Run, options: dict[str, Any]) -> None:
    """Raise ``InputError`` for a run in which nothing is."""
    if not recorded.sites:
        why = recorded.absent[0] if recorded.absent else "the model returned no tensor"
        hint = "" if options["loss"] else " Gradients need --loss."
        raise InputError(f"Nothing was recorded: {why}.{hint}")


@contextlib.contextmanager
def _new_attempt(path: Path, *, resume: bool) -> Iterator[Disk]:
    """The sink of a folder; where recording fails, what it has made is taken away again."""
    from torchtap.runs.store.disk import Disk

    disk = Disk(path, resume=resume)
    try:
        yield disk
    except BaseException:  # The model may raise anything, Ctrl-C may come: it is told as it is.
        discard_attempt(disk)
        raise


def discard_attempt(disk: Disk) -> None:
    """Take the folder of an attempt away, and the run's if nothing else is in it."""
    from torchtap.runs.store.layout import RUN_FILE, ranks_in

    if disk.folder is None:
        return
    with contextlib.suppress(OSError):
        shutil.rmtree(disk.folder)
        disk.folder.parent.rmdir()
        if not ranks_in(disk.path):
            (disk.path / RUN_FILE).unlink()
            disk.path.rmdir()


def open_saved(path: str) -> Run:
    from torchtap.runs.open_run import open_run

    return open_run(existing_run(path))


def existing_run(path: str) -> Path:
    """Return the path of a run that is there, in a file or in a folder."""
    from torchtap.cli.model import existing_file

    return Path(path) if Path(path).is_dir() else existing_file(path)


def rank_paths(path: Path) -> list[Path]:
    """Return the folders of the ranks in a folder of a run; of anything else itself."""
    from torchtap.runs.store.layout import ranks_in

    return [*ranks_in(path).values()] or [path] if path.is_dir() else [path]


def refuse_unknown_steps(path: str, opened: Run, steps: Sequence[int]) -> None:
    """Raise ``InputError`` for a step that the run does not have."""
    known = opened.steps
    for step in steps:
        if step not in known:
            raise InputError(f"{path} has no step {step}. {steps_there(known, step)}")


def step_of(path: str, opened: Run, text: str) -> int | range | Literal["all"]:
    """Return one step of a run, some together (``20-29``), or all."""
    if text == "all":
        return "all"
    first, dash, last = text.partition("-")
    if not (first.isdecimal() and (last.isdecimal() or not dash)):
        raise InputError(f"--step is {text!r}; expected a number, two with a dash (20-29), or all.")
    if not dash:
        refuse_unknown_steps(path, opened, [int(first)])
        return int(first)
    steps = range(int(first), int(last) + 1)
    if not steps:
        raise InputError(f"--step is {text!r}; expected the smaller number first.")
    if not set(steps) & set(opened.steps):
        raise InputError(f"{path} has no step from {first} to {last}. {steps_there(opened.steps)}")
    return steps


def is_run(source: str) -> bool:
    return source.endswith(".safetensors") or ":" not in source


def _numbers(name: str, text: str | None) -> list[float]:
    try:
        return [] if text is None else [float(word) for word in text.split(",")]
    except ValueError:
        raise InputError(f"{name} is {text!r}; expected numbers with commas.") from None


def slices_of(found: Statistics, name: str, site: str) -> Slices:
    """Return what ``tt.stats.along`` found at a site, under a name."""
    from torchtap.stats.catalogue.slices import Slices

    there = [other for other, one in found.extra.items() if isinstance(one, Slices)]
    # Raises, and says why, where it is missing.
    result = found.extra[name] if name in found.extra or not there else None
    if isinstance(result, Slices):
        return result
    raise InputError(
        f"--slices is {name!r}, which is nothing that tt.stats.along found at {site}. "
        + (f"There is {', '.join(map(repr, there))}." if there else "There is nothing of the kind.")
    )


def order_of(slices: Slices, sort: str | None, names: Sequence[str]) -> list[int]:
    """Places of the slices, by a column; NaN comes last."""
    import math

    numbers = slices.as_dict()
    known = [*numbers, "slice"]
    for name in [*names, *([sort.removeprefix("-")] if sort else [])]:
        if name not in known:
            from torchtap.core.did_you_mean import did_you_mean

            raise InputError(
                f"Slices have no column {name!r}{did_you_mean(name, known)} There are: "
                f"{', '.join(known)}."
            )
    places = list(range(len(slices.rows)))
    if not sort:
        return places
    sign = 1.0 if sort.startswith("-") else -1.0
    values = {"slice": [float(place) for place in places], **numbers}[sort.removeprefix("-")]
    return sorted(places, key=lambda place: (math.isnan(values[place]), sign * values[place]))


def channels_of(text: str | None) -> int | list[int] | None:
    if text is None:
        return None
    words = [word.strip() for word in text.rstrip(",").split(",")]
    if not all(word.isdecimal() for word in words):
        raise InputError(f"--channels is {text!r}; expected a count, or numbers with commas.")
    return [int(word) for word in words] if "," in text else int(words[0])


def classes_of(text: str | None) -> int | list[int] | None:
    """Return the class of ``--target``, or one of each row; ``None`` for the winner."""
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    if not all(word.removeprefix("-").isdecimal() for word in words):
        raise InputError(f"--target is {text!r}; expected a class number, or several with commas.")
    return [int(word) for word in words] if "," in text else int(words[0])


def refuse_target(out: str, endings: Sequence[str], option: str = "--out") -> None:
    """Refuse a place that cannot be written before an hour of work goes there."""
    path = Path(out)
    if path.is_dir():
        raise InputError(f"{option} is {out}, a folder; expected a file.")
    if path.suffix.lower() not in endings:
        raise InputError(f"{option} is {out}; expected a name that ends in {' or '.join(endings)}.")


def run_target(to: str) -> tuple[Path, bool]:
    """Return where a run goes, and whether that is one file: a name that ends in .safetensors.

    Any other name is that of a folder, but for those that end as files of another kind do.

    Raises:
        InputError: no run can be written there.
    """
    path = Path(to)
    if path.suffix.lower() == ".safetensors":
        if path.is_dir():
            raise InputError(f"--to is {to}, a folder; expected a file.")
        return path, True
    if is_of_another_kind(path) or (path.exists() and not path.is_dir()):
        raise InputError(
            f"--to is {to}; expected a name that ends in .safetensors, for a file, or the name of "
            f"a folder, such as {path.stem or 'run'}."
        )
    return path, False


def refuse_folder(path: Path, *, resume: bool, rank: int = 0) -> None:
    """Refuse a folder in which no run can be written, before anything runs.

    Raises:
        InputError: there is something else, or a run and ``resume`` is false.
        MissingExtraError: pyarrow is not installed.
    """
    from torchtap.runs.store.layout import attempts_in, is_run_folder, rank_folder

    if importlib.util.find_spec("pyarrow") is None:
        raise MissingExtraError(
            "A run in a folder needs pyarrow. Install it: pip install 'torchtap[store]'. A file "
            "needs none: --to run.safetensors."
        )
    if not path.is_dir():
        return
    if any(path.iterdir()) and not is_run_folder(path):
        raise InputError(
            f"--to is {path}, a folder that holds something else than a run; give a new one."
        )
    own = rank_folder(path, rank)
    if not resume and own.is_dir() and attempts_in(own):
        raise InputError(
            f"--to is {path}, which holds a run already. Go on with it by --resume, or give "
            f"another folder."
        )


@contextlib.contextmanager
def writing(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}.") from error

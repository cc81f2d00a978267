"""The commands that explain what a model has decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from torchtap.cli.failures import explained
from torchtap.cli.options import batch_options, json_option, model_options
from torchtap.cli.output import print_json, print_page, print_written
from torchtap.cli.parsing import classes_of, model_and_batch, refuse_target, writing
from torchtap.core.errors import InputError
from torchtap.core.progress import Progress

if TYPE_CHECKING:
    from torch import nn

    import torchtap as tt
    from torchtap.cli.batch import Batch

Command = TypeVar("Command", bound=Callable[..., Any])
DEMO = "demo"
"""In place of MODEL: EfficientNet-Lite0, with its cat unless there is another input."""
_ALARM = 1


def explain_options(command: Command) -> Command:
    """Add the options that ``cam`` and ``attribute`` both take."""
    for option in (
        json_option,
        batch_options,
        model_options,
        click.option("--check", "is_checked", is_flag=True, help="Say how far to trust the map."),
        click.option("--names", metavar="FILE", help="Class names, one a line; or: imagenet."),
        click.option(
            "--set", "given", multiple=True, metavar="KEY=VALUE", help="A setting of the method."
        ),
        click.option(
            "--target", metavar="CLASS", help="Class number, or A,B,...; by default the winner."
        ),
        click.option("-o", "--out", default="map.png", show_default=True, metavar="FILE"),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("model")
@click.option("--layer", multiple=True, metavar="PATH", help="By default the last with a map.")
@click.option("--method", default="gradcam", show_default=True, metavar="NAME")
@explain_options
def cam(model: str, layer: tuple[str, ...], method: str, **options: Any) -> int:
    """Draw where in a layer the evidence for a class lies.

    MODEL may be: demo. Writes a picture (.png), the raw values (.npy) or all of it (.safetensors).
    """

    def make(built: nn.Module, batch: Batch, target: Any, settings: dict[str, Any]) -> tt.Map:
        import torchtap as tt

        chosen = list(layer) or None
        several = {"layer": chosen, "method": method, "target": target, **settings}
        return tt.cam(built, *batch.args, **several, **batch.kwargs)

    return _explain(model, make, options)


@click.command()
@click.argument("model")
@click.option("--at", metavar="SITE", help="Where; by default the input.")
@click.option("--method", default="integrated_gradients", show_default=True, metavar="NAME")
@explain_options
def attribute(model: str, at: str | None, method: str, **options: Any) -> int:
    """Draw how much each element of the input speaks for a class.

    MODEL may be: demo. Writes a picture (.png), the raw values (.npy) or all of it (.safetensors).
    """

    def make(built: nn.Module, batch: Batch, target: Any, settings: dict[str, Any]) -> tt.Map:
        import torchtap as tt

        several = {"at": at, "method": method, "target": target, **settings}
        return tt.attribute(built, *batch.args, **several, **batch.kwargs)

    return _explain(model, make, options)


def _explain(model: str, make: Callable[..., tt.Map], options: dict[str, Any]) -> int:
    from torchtap.cli.model import parse_args

    out, as_json, is_checked = (options.pop(one) for one in ("out", "as_json", "is_checked"))
    target, names = classes_of(options.pop("target")), options.pop("names")
    settings = parse_args(options.pop("given"), option="--set")
    refuse_target(out, (".png", ".npy", ".safetensors"))
    with Progress("building the model"):
        built, batch, picture, known = _subject(model, options)
    with explained(model, built, batch, options):
        found = make(built, batch, target, settings)  # With progress of its own.
    found = _named(found, names, known)
    checked = found.check() if is_checked else None
    written = _write(found, checked, picture, out)
    if as_json:
        print_json({**_body(found), "check": checked and checked.as_dict(), "files": written})
    else:
        print_page(found)
        if checked is not None:
            print_page(replace(checked, map=found))
        print_written(written)
    return _ALARM if all(found.faults) else 0


def _subject(model: str, options: dict[str, Any]) -> tuple[nn.Module, Batch, Any, list[str]]:
    """Return the model, its batch, the picture where there is one, and the names of its classes."""
    from torchtap.cli.batch import read_image, square

    if model == DEMO:
        from torchtap.cli.batch import Batch
        from torchtap.cli.demo import class_names, demo_batch, load_demo

        for option in ("file", "shape", "mean", "std", "weights"):
            if options[option] is not None:
                raise InputError(
                    f"{DEMO} is run on a picture as it was trained: give --image only."
                )
        built = load_demo()
        tensor, picture = demo_batch(options["image"])
        return built, Batch((tensor,)), picture, class_names()
    built, batch = model_and_batch(model, options)
    picture = None
    if options["image"] is not None:
        picture = square(read_image(options["image"]), options["size"])
    return built, batch, picture, []


def _named(found: tt.Map, names: str | None, known: list[str]) -> tt.Map:
    from torchtap.cli.demo import class_names
    from torchtap.cli.model import existing_file

    if names == "imagenet":
        known = class_names()
    elif names is not None:
        try:
            known = existing_file(names).read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise InputError(f"{names} is no text of UTF-8; expected one name a line.") from error
    return found.with_names(known) if known else found


def _write(found: tt.Map, checked: tt.Check | None, picture: Any, out: str) -> list[str]:
    with writing(out):
        written = [str(found.save(out, picture if out.lower().endswith(".png") else None))]
    if checked is not None:
        beside = Path(out).with_suffix(".check.png")
        with writing(beside):
            checked.to_figure().savefig(beside)
        written.append(str(beside))
    return written


def _body(found: tt.Map) -> dict[str, Any]:
    """Return a map for JSON, without its values."""
    import torch

    rows = []
    for row, one in enumerate(found):
        values = one.values.double()
        finite = values[torch.isfinite(values)]
        rows.append(
            {
                "target": None if found.target is None else found.target[row],
                "name": found.names[row] if found.names else None,
                "score": float(found.scores[row]),
                "min": float(finite.min()) if finite.numel() else None,
                "max": float(finite.max()) if finite.numel() else None,
                "sum": float(finite.sum()),
                "not_finite": values.numel() - finite.numel(),
                "gap": None if found.gap is None else float(found.gap[row]),
                "fault": found.faults[row] or None,
            }
        )
    return {
        "method": found.method,
        "layer": found.layer,
        "target": found.target_text,
        "shape": list(found.values.shape),
        "size": list(found.size),
        "rows": rows,
        "notes": list(found.notes),
    }

"""The command line: words to calls, values to text and an exit code.

Exit codes: 0 fine, 1 alarm or difference, 2 usage or bad input. Heavy imports stand inside the
commands, so that ``--help`` and ``ls`` answer without waiting for torch.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from torchtap import __version__
from torchtap.errors import InputError, TorchtapError

if TYPE_CHECKING:
    from torch import nn

    from torchtap.load import Batch
    from torchtap.store.run import Run

FINE, BAD_INPUT, INTERRUPTED = 0, 2, 130
_QUIET_SECONDS = 2.0
_PICTURES = (".png", ".svg", ".pdf", ".jpg", ".jpeg", ".webp")
_Command = TypeVar("_Command", bound=Callable[..., Any])


def main() -> None:
    """Entry point of ``torchtap``."""
    # OpenMP's threads spin while they wait. On a machine that is busy with something else (a
    # training, say) that made the demo ten times slower; without, it costs nothing measurable.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    sys.exit(run())


def run(words: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Prints, and never raises for bad input."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # A captured stream may be of another kind.
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = cli.main(
            args=None if words is None else list(words),
            prog_name="torchtap",
            standalone_mode=False,
        )
        sys.stdout.flush()
        return code if isinstance(code, int) else FINE
    except click.ClickException as error:
        error.show()
        return BAD_INPUT
    except TorchtapError as error:
        _complain(str(error))
        return BAD_INPUT
    except (click.Abort, KeyboardInterrupt):
        _complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read has heard enough; Python must not complain about it on the way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE
    except Exception:  # noqa: BLE001 - the user's own model or loss: theirs to see in full
        traceback.print_exc()
        _complain("the code that was asked to run raised the above")
        return BAD_INPUT


# ---------------------------------------------------------------------- options in common


def _model_options(command: _Command) -> _Command:
    return _decorate(
        command,
        click.option("--arg", "args", multiple=True, metavar="KEY=VALUE", help="For MODEL."),
        click.option(
            "--weights", metavar="FILE", help="safetensors, or a pickle of tensors alone."
        ),
        click.option("--train", is_flag=True, help="Leave training mode on; else eval()."),
        click.option("--seed", default=0, show_default=True, help="For weights and --shape."),
    )


def _batch_options(command: _Command) -> _Command:
    return _decorate(
        command,
        click.option("--image", metavar="FILE", help="A picture: middle square, resized."),
        click.option("--input", "file", metavar="FILE", help="A .npy or .safetensors file."),
        click.option("--shape", metavar="N,C,H,W", help="Random numbers of this shape."),
        click.option("--size", default=224, show_default=True, help="Pixels for --image."),
        click.option("--mean", metavar="R,G,B", help="For --image; ImageNet's by default."),
        click.option("--std", metavar="R,G,B", help="For --image; ImageNet's by default."),
        click.option("--dtype", default="float32", show_default=True, help="For --shape."),
        click.option("--high", type=int, metavar="N", help="For --shape of whole numbers: 0..N-1."),
    )


def _loss_option(command: _Command) -> _Command:
    text = "mean, logit:CLASS or package.module:callable; turns the backward on."
    return click.option("--loss", metavar="LOSS", help=text)(command)


def _json_option(command: _Command) -> _Command:
    text = "Print JSON instead of a table."
    return click.option("--json", "as_json", is_flag=True, help=text)(command)


def _all_option(command: _Command) -> _Command:
    return click.option("--all", "every", is_flag=True, help="Leave no line out.")(command)


def _decorate(command: _Command, *options: Callable[[Any], Any]) -> _Command:
    for option in reversed(options):
        command = option(command)
    return command


# ---------------------------------------------------------------------- commands


@click.group(
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
    epilog="MODEL is package.module:callable or file.py:callable, found from the current folder "
    "too. WHERE is [!]PATH[@TYPE][:PORTS[[LEAF]]], e.g. 'layer*@Conv2d:output,grad_output'.",
)
@click.version_option(__version__, prog_name="torchtap", message="%(prog)s %(version)s")
def cli() -> None:
    """See everything that flows through a PyTorch model."""


@cli.command()
@click.option("--out", default="torchtap-demo", show_default=True, metavar="DIR", help="Where to.")
@_json_option
def demo(out: str, as_json: bool) -> None:
    """Watch EfficientNet-Lite0 look at a cat, forward and backward."""
    folder = Path(out)
    with _working("running EfficientNet-Lite0"):
        from torchtap.demo import SITES, run_demo
        from torchtap.store.modules import module_rows
        from torchtap.view.figures import feature_maps_overview

        found = run_demo()
        caption = "\n".join(f"{g.probability:.3f}  {g.index} {g.name}" for g in found.guesses)
        title = f"{found.model} sees: {found.guesses[0].name}"
        figure = feature_maps_overview(
            found.run, SITES, picture=found.picture, caption=caption, title=title
        )
        rows = module_rows(found.run)
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            saved = found.run.save(folder / "run.safetensors")
            figure.savefig(folder / "feature_maps.png")
    written = [str(saved), str(folder / "feature_maps.png")]
    if as_json:
        guesses = [
            {"class": g.index, "name": g.name, "probability": g.probability} for g in found.guesses
        ]
        modules = [row.as_dict() for row in rows]
        _print_json(
            {"model": found.model, "classes": guesses, "modules": modules, "files": written}
        )
        return
    from torchtap.view.text import show_guesses, show_module_rows

    color = _wants_color()
    click.echo(show_guesses(found.model, found.guesses, color=color) + "\n")
    click.echo(show_module_rows(rows, color=color))
    _print_written(written)


@cli.command()
@click.argument("model")
@click.argument("where", nargs=-1)
@click.option("-o", "--out", default="run.safetensors", show_default=True, metavar="FILE")
@_model_options
@_batch_options
@_loss_option
@_json_option
@_all_option
def record(
    model: str, where: tuple[str, ...], out: str, as_json: bool, every: bool, **options: Any
) -> None:
    """Run MODEL on one batch and save what flows at WHERE.

    WHERE is '*' (every module's output) unless it is given, with --loss also the gradients.
    """
    _target(out, (".safetensors",))
    with _working("running the model"):
        recorded = _recorded(model, where, options)
        if not recorded.sites:
            why = recorded.absent[0] if recorded.absent else "the model returned no tensor"
            hint = "" if options["loss"] else " Gradients need --loss."
            raise InputError(f"Nothing was recorded: {why}.{hint}")
        with _writing(out):
            recorded.save(out)
    from torchtap.store.listing import list_run
    from torchtap.view.text import show_listing

    listing = list_run(recorded)
    if as_json:
        _print_json({**listing.as_dict(), "files": [out]})
        return
    click.echo(show_listing(listing, limit=None if every else 40, color=_wants_color()))
    _print_written([out])


@cli.command()
@click.argument("model")
@click.option("--depth", type=click.IntRange(min=0), help="Show modules down to here.")
@_model_options
@_batch_options
@_json_option
def summary(model: str, depth: int | None, as_json: bool, **options: Any) -> None:
    """Shapes, parameters, mult-adds and activation bytes of MODEL."""
    with _working("running the model"):
        from torchtap.summarizing import summary as summarize

        built, batch = _model_and_batch(model, options)
        found = summarize(built, *batch.args, depth=depth, **batch.kwargs)
    if as_json:
        _print_json(found.as_dict())
        return
    from torchtap.view.text import show_summary

    click.echo(show_summary(found, color=_wants_color()))


@cli.command()
@click.argument("source", metavar="MODEL_OR_RUN")
@click.argument("sites", nargs=-1, metavar="[SITE]...")
@click.option("-o", "--out", default="maps.png", show_default=True, metavar="FILE")
@click.option("--sample", default=0, show_default=True, help="Which of the batch.")
@click.option("--channels", metavar="N or A,B,...", help="How many, or which (A, for one).")
@click.option("--step", type=int, help="Which step; the last by default.")
@click.option("--call", type=int, help="Which call; the last by default.")
@click.option("--layout", help="Name the dimensions, e.g. NHWC, CHW or NCL.")
@click.option("--each", is_flag=True, help="Scale each map by itself.")
@click.option("--clip", default=0.0, show_default=True, help="Share beyond the last colour.")
@_model_options
@_batch_options
@_loss_option
@_json_option
def maps(source: str, sites: tuple[str, ...], out: str, as_json: bool, **options: Any) -> None:
    """Draw the feature maps at SITE.

    By default those of the first convolution. From a saved run, or from MODEL on one batch.
    Several SITEs stand side by side.
    """
    _target(out, _PICTURES)
    how = {name: options.pop(name) for name in ("sample", "step", "call", "layout", "clip")}
    how["scale"] = "each" if options.pop("each") else "shared"
    how["channels"] = _channels(options.pop("channels"))
    with _working("drawing"):
        from torchtap.view.figures import default_site, feature_maps, feature_maps_overview

        opened = _open(source) if _is_run(source) else _recorded(source, sites, options)
        chosen = [str(opened.record(site).site) for site in sites] or [str(default_site(opened))]
        if len(chosen) > 1:
            figure = feature_maps_overview(opened, chosen, sample=how["sample"], clip=how["clip"])
        else:
            figure = feature_maps(opened, chosen[0], **how)
        with _writing(out):
            figure.savefig(out)
    if as_json:
        _print_json({"sites": chosen, "files": [out]})
        return
    _print_written([out])


@cli.command()
@click.argument("path", metavar="RUN")
@_json_option
@_all_option
def ls(path: str, as_json: bool, every: bool) -> None:
    """List the sites of a saved RUN, from the file's header alone."""
    from torchtap.load import existing_file
    from torchtap.store.listing import list_file
    from torchtap.view.text import show_listing

    listing = list_file(existing_file(path))
    if as_json:
        _print_json(listing.as_dict())
        return
    click.echo(show_listing(listing, limit=None if every else 40, color=_wants_color()))


@cli.command()
@click.argument("path", metavar="RUN")
@click.argument("where", nargs=-1)
@click.option("--modules", is_flag=True, help="One line per module: output beside gradient.")
@click.option("--step", "steps", type=int, multiple=True, help="Only this step (repeatable).")
@_json_option
@_all_option
def show(
    path: str,
    where: tuple[str, ...],
    modules: bool,
    steps: tuple[int, ...],
    as_json: bool,
    every: bool,
) -> None:
    """Statistics of a saved RUN at WHERE, of the last step there."""
    with _working("reading the run"):
        opened = _open(path)
        unknown = [step for step in steps if step not in opened.steps]
        if unknown:
            raise InputError(f"{path} has no step {unknown[0]}. Its steps are {opened.steps}.")
        table = opened.table(list(where) or None, steps=steps or None)
    limit = None if every else 40
    if modules:
        from torchtap.store.modules import pivot
        from torchtap.view.text import show_module_rows

        rows = pivot(table)
        text = show_module_rows(rows, limit=limit, color=_wants_color())
        values = [row.as_dict() for row in rows]
    else:
        from torchtap.view.text import show_table

        text = show_table(table, limit=limit, color=_wants_color())
        values = table.as_dicts()
    if as_json:
        _print_json(values)
    else:
        click.echo(text)


@cli.command()
@click.argument("path", metavar="RUN")
@click.argument("where", nargs=-1)
@click.option("--sort", metavar="KEY", help="Largest first by this column, -KEY for smallest.")
@click.option("--columns", metavar="A,B,...", help="Which; --columns ? lists them.")
@click.option("--step", type=int, help="Which step; the last of each site by default.")
@_json_option
@_all_option
def stats(
    path: str,
    where: tuple[str, ...],
    sort: str | None,
    columns: str | None,
    step: int | None,
    as_json: bool,
    every: bool,
) -> None:
    """Statistics of a saved RUN at WHERE: what was measured, or the kept values measured now.

    Columns to choose from and to sort by are listed with --columns '?'.
    """
    from torchtap.view.columns import COLUMNS, DEFAULT_COLUMNS

    if columns == "?":
        click.echo("\n".join(COLUMNS))
        return
    names = list(DEFAULT_COLUMNS) if columns is None else _known(columns.split(","), COLUMNS)
    sortable = [name for name, column in COLUMNS.items() if column.key is not None]
    key = None if sort is None else COLUMNS[_known([sort.lstrip("-")], sortable)[0]].key
    if sort is not None and sort.lstrip("-") not in names:
        names.insert(0, sort.lstrip("-"))
    with _working("measuring the run"):
        opened = _open(path)
        if step is not None and step not in opened.steps:
            raise InputError(f"{path} has no step {step}. Its steps are {opened.steps}.")
        table = opened.table(list(where) or None, steps=step, histogram=True)
    if key is not None and sort is not None:
        table = table.sorted(key, largest_first=not sort.startswith("-"))
    if as_json:
        keys = {name: column.key for name, column in COLUMNS.items() if column.key is not None}
        numbers = [{name: key(row.stats) for name, key in keys.items()} for row in table]
        _print_json([{**a, **b} for a, b in zip(table.as_dicts(), numbers, strict=True)])
        return
    from torchtap.view.statistics import show_stats_table

    limit = None if every else 40
    click.echo(show_stats_table(table, names, limit=limit, color=_wants_color()))


# ---------------------------------------------------------------------- from words to values


def _model_and_batch(target: str, options: dict[str, Any]) -> tuple[nn.Module, Batch]:
    import torch

    from torchtap.load import IMAGENET_MEAN, IMAGENET_STD, load_batch, load_model

    torch.manual_seed(options["seed"])
    model = load_model(target, args=options["args"], weights=options["weights"])
    batch = load_batch(
        image=options["image"],
        file=options["file"],
        shape=options["shape"],
        size=options["size"],
        mean=_numbers("--mean", options["mean"]) or IMAGENET_MEAN,
        std=_numbers("--std", options["std"]) or IMAGENET_STD,
        dtype=options["dtype"],
        high=options["high"],
        seed=options["seed"],
    )
    return model.train() if options["train"] else model.eval(), batch


def _recorded(target: str, where: Sequence[str], options: dict[str, Any]) -> Run:
    import torch

    from torchtap.load import load_loss
    from torchtap.watching import watch

    loss = None if options["loss"] is None else load_loss(options["loss"])
    model, batch = _model_and_batch(target, options)
    wanted = list(where) or ["*" if loss is None else "*:output,grad_output"]
    with watch(model, wanted) as watching, torch.set_grad_enabled(loss is not None):
        output = batch.run(model)
        if loss is not None:
            torch.autograd.backward(loss(output))
    return watching.run


def _open(path: str) -> Run:
    from torchtap.load import existing_file
    from torchtap.store.file import open_run

    return open_run(existing_file(path))


def _is_run(source: str) -> bool:
    return source.endswith(".safetensors") or ":" not in source


def _numbers(name: str, text: str | None) -> list[float]:
    try:
        return [] if text is None else [float(word) for word in text.split(",")]
    except ValueError:
        raise InputError(f"{name} is {text!r}; expected numbers with commas.") from None


def _known(words: Sequence[str], columns: Collection[str]) -> list[str]:
    from torchtap.site import did_you_mean

    for word in words:
        if word not in columns:
            near = did_you_mean(word, list(columns))
            raise InputError(f"There is no column {word!r}{near} --columns '?' lists them.")
    return list(words)


def _channels(text: str | None) -> int | list[int] | None:
    if text is None:
        return None
    words = [word.strip() for word in text.rstrip(",").split(",")]
    if not all(word.isdecimal() for word in words):
        raise InputError(f"--channels is {text!r}; expected a count, or numbers with commas.")
    return [int(word) for word in words] if "," in text else int(words[0])


def _target(out: str, endings: Sequence[str]) -> None:
    """Refuse a place that cannot be written before an hour of work goes there."""
    path = Path(out)
    if path.is_dir():
        raise InputError(f"--out is {out}, a folder; expected a file.")
    if path.suffix.lower() not in endings:
        raise InputError(f"--out is {out}; expected a name that ends in {' or '.join(endings)}.")


@contextlib.contextmanager
def _writing(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}.") from error


# ---------------------------------------------------------------------- printing


def _wants_color() -> bool:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain


def _print_json(value: Any) -> None:
    click.echo(json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False))


def _finite(value: Any) -> Any:
    """JSON knows neither NaN nor Inf: both become null, and their counts stand beside them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value


def _print_written(files: Sequence[str]) -> None:
    click.echo("\n" + "\n".join(f"wrote {file}" for file in files))


def _complain(text: str) -> None:
    click.echo(f"torchtap: {text}", err=True)


@contextlib.contextmanager
def _working(doing: str) -> Iterator[None]:
    """Say on a terminal that work is going on, once it takes longer than two seconds."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    start = time.monotonic()

    def tick() -> None:
        said = False
        wait = _QUIET_SECONDS
        while not done.wait(wait):
            said, wait = True, 0.5
            seconds = int(time.monotonic() - start)
            click.echo(f"\r\x1b[2Ktorchtap: {doing}, {seconds} s", err=True, nl=False)
        if said:
            click.echo("\r\x1b[2K", err=True, nl=False)

    ticker = threading.Thread(target=tick, daemon=True)
    ticker.start()
    try:
        yield
    finally:
        done.set()
        ticker.join()


if __name__ == "__main__":
    main()

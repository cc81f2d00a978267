"""The commands that run a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchtap.cli.failures import explained
from torchtap.cli.options import (
    all_option,
    batch_options,
    earlier_spelling,
    graph_loss_option,
    json_option,
    loss_option,
    model_options,
    run_option,
)
from torchtap.cli.output import complain, print_json, print_page, print_written, print_written_into
from torchtap.cli.parsing import (
    built_model,
    channels_of,
    is_run,
    model_and_batch,
    open_saved,
    picture_options,
    process_group,
    record_model,
    refuse_folder,
    refuse_nothing,
    refuse_target,
    run_target,
    stats_of,
    writing,
)
from torchtap.core.errors import InputError
from torchtap.core.progress import Progress

if TYPE_CHECKING:
    import torchtap as tt
    from torchtap.core.planned_size import PlannedSize

_PICTURES = (".png", ".svg", ".pdf", ".jpg", ".jpeg", ".webp")
_DEMO_FILES = {
    "run.safetensors": "every output and gradient, which `torchtap ls` lists",
    "feature_maps.png": "what three places of the model see",
    "explained.png": "what decided",
    "report.html": "all of it on one page, for a browser",
}


@click.command()
@click.option(
    "-o", "--out", default="torchtap-demo", show_default=True, metavar="DIR", help="Where to."
)
@json_option
def demo(out: str, as_json: bool) -> None:
    """Watch EfficientNet-Lite0 look at a cat, forward and backward."""
    folder = Path(out)
    with Progress("running EfficientNet-Lite0"):
        import torchtap as tt
        from torchtap.cli.demo import SITES, run_demo
        from torchtap.cli.demo_sheet import explain_demo
        from torchtap.runs.tables.module_table import module_rows

        found = run_demo()
        caption = "\n".join(f"{g.probability:.3f}  {g.index} {g.name}" for g in found.guesses)
        title = f"{found.model} sees: {found.guesses[0].name}"
        figure = tt.plot.feature_maps_overview(
            found.run, SITES, picture=found.picture, caption=caption, title=title
        )
        rows = module_rows(found.run.table())
        maps = explain_demo(found)
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            found.run.save(folder / "run.safetensors")
            figure.savefig(folder / "feature_maps.png")
            maps.figure.savefig(folder / "explained.png")
            explained = [(one, found.picture) for one in (*maps.cams, maps.pixels)]
            tt.report(found.run, folder / "report.html", title=title, maps=explained)
    if as_json:
        guesses = [
            {"class": g.index, "name": g.name, "probability": g.probability} for g in found.guesses
        ]
        modules = [row.as_dict() for row in rows]
        names = [str(folder / name) for name in _DEMO_FILES]
        print_json({"model": found.model, "classes": guesses, "modules": modules, "files": names})
        return
    from torchtap.cli.output import show_guesses
    from torchtap.runs.show import show_module_rows

    print_page(show_guesses(found.model, found.guesses))
    print_page(show_module_rows(rows))
    print_written_into(folder, _DEMO_FILES)


@click.command()
@click.argument("model")
@click.argument("where", nargs=-1)
@run_option(
    "A file that ends in .safetensors, or a folder.  [default: run.safetensors; with --data run]"
)
@earlier_spelling("out", "-o", "--out")
@click.option("--where", "patterns", multiple=True, metavar="WHERE", help="Further patterns.")
@click.option("--data", metavar="DATA", help="A whole data set in place of one batch.")
@click.option("--batch-size", default=32, show_default=True, help="For --data, over all ranks.")
@click.option("--workers", default=0, show_default=True, help="Processes that load --data.")
@click.option("--resume", is_flag=True, help="Go on with a run of --data that stopped.")
@click.option("--stats", is_flag=True, help="With --data: measure, too.")
@model_options
@batch_options
@loss_option
@json_option
@all_option
def record(
    model: str,
    where: tuple[str, ...],
    to: str | None,
    out: str | None,
    patterns: tuple[str, ...],
    as_json: bool,
    every: bool,
    **options: Any,
) -> None:
    """Run MODEL on a batch or a data set, and save what flows.

    WHERE is '*' (every module's output) unless it is given. With --loss the gradients of these
    outputs are saved, too.

    DATA is a folder of pictures, a .npy or .parquet file with a row for each sample, or
    package.module:name of a data set. It is recorded into the folder of a run, batch by batch;
    after any stop --resume goes on where it was. Under torchrun the ranks share each batch.
    """
    where = (*where, *patterns)
    how = {name: options.pop(name) for name in ("data", "batch_size", "workers", "resume", "stats")}
    if how["data"] is not None:
        _record_data(model, where, to or out or "run", how, options, as_json=as_json, every=every)
        return
    target = to or out or "run.safetensors"
    path, is_file = run_target(target)
    if not is_file:
        refuse_folder(path, resume=how["resume"])
    elif how["resume"]:
        raise InputError(f"--resume is for a run in a folder, and --to is {target}, a file.")
    with Progress("running the model"), writing(target):
        recorded = record_model(
            model, where, options, to=None if is_file else path, resume=how["resume"]
        )
        if is_file:
            refuse_nothing(recorded, options)
            recorded.save(path)
    from torchtap.runs.run import inventory_of_run
    from torchtap.runs.show import show_inventory

    inventory = inventory_of_run(recorded)
    if as_json:
        print_json({**inventory.as_dict(), "files": [target]})
        return
    print_page(show_inventory(inventory, limit=None if every else 40))
    print_written([target])


def _record_data(
    model: str,
    where: tuple[str, ...],
    out: str,
    how: dict[str, Any],
    options: dict[str, Any],
    *,
    as_json: bool,
    every: bool,
) -> None:
    from torchtap.cli.data import load_data
    from torchtap.core.distributed import own_rank
    from torchtap.runs.inventory import inventory_of_file
    from torchtap.runs.show import show_inventory
    from torchtap.studies.data_recording import record_telling

    if run_target(out)[1]:
        raise InputError(
            f"--to is {out}, a file; a data set is recorded into a folder: --to {Path(out).stem}."
        )
    if options["loss"] is not None:
        raise InputError("--loss is for one batch; a data set is recorded without gradients.")
    built = built_model(model, options)
    pictures = picture_options(options)
    data = load_data(how["data"], pictures)
    with process_group():
        is_first, num_ranks = own_rank()[0] == 0, own_rank()[1]
        record_telling(
            lambda size: complain(_said(out, size, num_ranks)) if is_first else None,
            built,
            data,
            list(where) or "*",
            to=out,
            batch_size=how["batch_size"],
            workers=how["workers"],
            stats=stats_of(how["stats"]),
            resume=how["resume"],
        )
    if not is_first:
        return
    inventory = inventory_of_file(out)
    if as_json:
        print_json({**inventory.as_dict(), "files": [out]})
        return
    print_page(show_inventory(inventory, limit=None if every else 40))
    print_written([out])


def _said(out: str, size: PlannedSize, num_ranks: int) -> str:
    return f"{out} takes {size}{' on each rank' if num_ranks > 1 else ''}"


@click.command()
@click.argument("model")
@click.option("--depth", type=click.IntRange(min=0), help="Show modules down to here.")
@click.option("--saved", is_flag=True, help="Show what is kept for backward instead.")
@model_options
@batch_options
@json_option
def summary(model: str, depth: int | None, saved: bool, as_json: bool, **options: Any) -> None:
    """Print shapes, parameters, mult-adds and memory of MODEL."""
    table: Any
    with Progress("running the model"):
        import torchtap as tt

        built, batch = model_and_batch(model, options)
        with explained(model, built, batch, options):
            if saved:
                table = tt.saved_report(built, *batch.args, depth=depth, **batch.kwargs)
            else:
                table = tt.summary(built, *batch.args, depth=depth, **batch.kwargs)
    if as_json:
        print_json(table.as_dict())
        return
    print_page(table)


@click.command()
@click.argument("source", metavar="MODEL_OR_RUN")
@click.option("--autograd", is_flag=True, help="What backward would walk, not the modules.")
@click.option("--depth", type=click.IntRange(min=0), help="In the picture: open modules to here.")
@click.option(
    "-o", "--out", metavar="FILE", help="Where to: .svg, .html, .png, .pdf, .dot, .md or .json."
)
@click.option("--dark", is_flag=True, help="On a dark page; SVG follows the reader's system.")
@model_options
@batch_options
@graph_loss_option
@json_option
def graph(
    source: str,
    autograd: bool,
    depth: int | None,
    out: str | None,
    dark: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Draw the graph of MODEL on one batch, or of a saved run.

    The graph shows which module calls which, and the tensors between them. --autograd draws the
    autograd graph of the output, or of --loss. Exit code 1 says that the forward raised; the graph
    then ends there.
    """
    import torchtap as tt

    if out is not None:
        refuse_target(out, tt.Graph.endings)
    with Progress("following the model"):
        drawn_graph = _graph_of(source, options, autograd=autograd)
        if out is not None:
            with writing(out):
                drawn_graph.save(out, depth=depth, theme="dark" if dark else "auto")
    files = [] if out is None else [out]
    if as_json:
        print_json({**drawn_graph.as_dict(), "files": files})
    else:
        print_page(drawn_graph)
        if files:
            print_written(files)
    return 1 if drawn_graph.error else 0


def _graph_of(source: str, options: dict[str, Any], *, autograd: bool) -> tt.Graph:
    import torchtap as tt
    from torchtap.cli.loss_option import load_loss

    if is_run(source):
        if autograd:
            raise InputError(f"{source} is a run, which holds no autograd graph; give a MODEL.")
        return tt.graph(open_saved(source))
    built, batch = model_and_batch(source, options)
    loss = load_loss(options["loss"]) if options["loss"] else None
    is_of_gradients = autograd or loss is not None
    with explained(source, built, batch, options):
        return tt.graph(built, *batch.args, autograd=is_of_gradients, loss=loss, **batch.kwargs)


@click.command()
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
@model_options
@batch_options
@loss_option
@json_option
def maps(source: str, sites: tuple[str, ...], out: str, as_json: bool, **options: Any) -> None:
    """Draw the feature maps at SITE.

    By default those of the first convolution. From a saved run, or from MODEL on one batch.
    Several SITEs stand side by side.
    """
    refuse_target(out, _PICTURES)
    how = {name: options.pop(name) for name in ("sample", "step", "call", "layout", "clip")}
    how["scale"] = "each" if options.pop("each") else "shared"
    how["channels"] = channels_of(options.pop("channels"))
    with Progress("drawing"):
        import torchtap as tt

        opened = open_saved(source) if is_run(source) else record_model(source, sites, options)
        chosen = [str(opened.record(site).site) for site in sites] or [
            str(tt.plot.default_site(opened))
        ]
        if len(chosen) > 1:
            figure = tt.plot.feature_maps_overview(
                opened, chosen, sample=how["sample"], clip=how["clip"]
            )
        else:
            figure = tt.plot.feature_maps(opened, chosen[0], **how)
        with writing(out):
            figure.savefig(out)
    if as_json:
        print_json({"sites": chosen, "files": [out]})
        return
    print_written([out])

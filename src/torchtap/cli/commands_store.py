"""The commands for runs in folders."""

from __future__ import annotations

from pathlib import Path

import click

from torchtap.cli.options import json_option
from torchtap.cli.output import print_json, print_page, print_written
from torchtap.core.errors import InputError
from torchtap.core.progress import Progress


@click.command()
@click.argument("path", metavar="RUN")
@click.argument("where", nargs=-1)
@click.option(
    "--format",
    "--to",
    "kind",
    metavar="npz|safetensors|csv|parquet|tensorboard",
    help="By default what FILE ends in.",
)
@click.option("-o", "--out", metavar="FILE", help="Where to; beside RUN by default.")
@click.option("--names", metavar="NAME,...", help="Of the statistics, for tensorboard.")
@click.option("--every", type=int, metavar="N", help="One step of so many, for tensorboard.")
@json_option
def export(
    path: str,
    where: tuple[str, ...],
    kind: str | None,
    out: str | None,
    names: str | None,
    every: int | None,
    as_json: bool,
) -> None:
    """Write the values or the statistics of a RUN in another format.

    Values: npz has an array for each, named SITE_STEP.CALL.BACKWARD.PHASE; safetensors has a tensor
    for each site, with its values joined along dim 0. Statistics: csv and parquet have a row for
    each site and step; tensorboard is a folder of event files, with a series for each site and
    statistic.
    """
    from torchtap.cli.parsing import open_saved, refuse_target, writing

    kind = kind or (Path(out).suffix.removeprefix(".") if out else "")
    if not kind:
        raise InputError(
            "Give --format npz, safetensors, csv, parquet or tensorboard, or an --out that ends in "
            "one of the first four."
        )
    if kind == "tensorboard":
        _export_events(path, where, out, names, every, as_json=as_json)
        return
    if names or every:
        raise InputError(f"--names and --every are for --to tensorboard, not for {kind}.")
    target = out or f"{path.rstrip('/').removesuffix('.safetensors')}.{kind}"
    with Progress("writing"):
        from torchtap.runs.export import export_run

        run = open_saved(path)
        if kind in ("npz", "safetensors", "csv", "parquet"):
            refuse_target(target, (f".{kind}",))
        if Path(target).resolve() == Path(path).resolve():
            raise InputError(f"--out is {target}, which is the run itself; give another file.")
        with writing(target):
            written = export_run(run, kind, Path(target), list(where) or None)
    files = [str(one) for one in written]
    if as_json:
        print_json({"files": files})
    else:
        print_written(files)


def _export_events(
    path: str,
    where: tuple[str, ...],
    out: str | None,
    names: str | None,
    every: int | None,
    *,
    as_json: bool,
) -> None:
    """Write the statistics of a run into a folder that TensorBoard reads."""
    import shutil

    from torchtap.cli.parsing import open_saved, writing

    folder = Path(out or f"{path.rstrip('/').removesuffix('.safetensors')}.tensorboard")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out is {folder}, a file; expected a folder.")
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(
            f"--out is {folder}, which is not empty: TensorBoard would join the series of both. "
            f"Give another folder."
        )
    with Progress("writing"):
        from torchtap.integrations.statistics_log import NUMBERS
        from torchtap.integrations.tensorboard_log import TensorBoardLog

        run = open_saved(path)
        half = folder.with_name(f".{folder.name}.part")
        log = TensorBoardLog(
            half,
            names=names.split(",") if names else NUMBERS,
            every=1 if every is None else every,
        )
        with writing(folder):
            try:
                log.write(run, list(where) or None)
                folder.mkdir(parents=True, exist_ok=True)
                half.replace(folder)
            finally:
                shutil.rmtree(half, ignore_errors=True)
    files = [str(one) for one in sorted(folder.iterdir())]
    if as_json:
        print_json({"files": files})
    else:
        print_written(files)


@click.command()
@click.argument("path", metavar="RUN")
@json_option
def doctor(path: str, as_json: bool) -> int:
    """Verify every checksum of a RUN, in a folder or in a file.

    Exit code 1 says that RUN is not whole: a value that was committed is damaged, missing, or could
    not be written; or a file has no checksums, like files of earlier versions. The run of a process
    that was killed is whole if all that it committed is there.
    """
    from torchtap.cli.parsing import existing_run
    from torchtap.runs.single_file.file_doctor import FileDiagnosis, examine_file
    from torchtap.runs.store.folder_doctor import Diagnosis, examine

    with Progress("comparing checksums"):
        run = existing_run(path)
        examined: Diagnosis | FileDiagnosis = examine(run) if run.is_dir() else examine_file(run)
    if as_json:
        print_json(examined.as_dict())
    else:
        print_page(examined)
    return 0 if examined.is_whole else 1

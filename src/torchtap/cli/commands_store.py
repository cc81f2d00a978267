"""The commands for runs in folders."""

from __future__ import annotations

from pathlib import Path

import click

from torchtap.cli.options import earlier_spelling, json_option
from torchtap.cli.output import print_json, print_page, print_written
from torchtap.core.errors import InputError
from torchtap.core.progress import Progress


@click.command()
@click.argument("path", metavar="RUN")
@click.argument("where", nargs=-1)
@click.option(
    "--format", "kind", metavar="npz|safetensors|csv|parquet", help="By default what FILE ends in."
)
@earlier_spelling("earlier_kind", "--to")
@click.option("-o", "--out", metavar="FILE", help="Where to; beside RUN by default.")
@json_option
def export(
    path: str,
    where: tuple[str, ...],
    kind: str | None,
    earlier_kind: str | None,
    out: str | None,
    as_json: bool,
) -> None:
    """Write a RUN in another format: its values (npz, safetensors), or statistics (csv, parquet).

    npz has an array for each value, named SITE_STEP.CALL.BACKWARD.PHASE, safetensors a tensor for
    each site, with its values joined along dim 0; csv and parquet a row for each site and step.
    """
    from torchtap.cli.parsing import open_saved, refuse_target, writing

    kind = kind or earlier_kind or (Path(out).suffix.removeprefix(".") if out else "")
    if not kind:
        raise InputError(
            "Give --format npz, safetensors, csv or parquet, or an --out that ends in one of them."
        )
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


@click.command()
@click.argument("path", metavar="RUN")
@json_option
def doctor(path: str, as_json: bool) -> int:
    """Compare every checksum of a RUN in a folder or a file, and say what is whole.

    Exit code 1 says that something is not: what was committed is damaged, missing, or could not be
    written; or that a file has no checksums, as those of earlier versions, so that nobody knows.
    A run whose process was killed is whole if all that it committed is there.
    """
    from torchtap.cli.parsing import existing_run
    from torchtap.runs.single_file.doctor import FileDiagnosis, examine_file
    from torchtap.runs.store.doctor import Diagnosis, examine

    with Progress("comparing checksums"):
        run = existing_run(path)
        found: Diagnosis | FileDiagnosis = examine(run) if run.is_dir() else examine_file(run)
    if as_json:
        print_json(found.as_dict())
    else:
        print_page(found)
    return 0 if found.is_whole else 1

"""The commands that say what is wrong with a training, a pair of runs, a call, an installation."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click

from torchtap.cli.options import batch_options, json_option, model_options
from torchtap.cli.output import print_json, print_page
from torchtap.core.errors import CompareError
from torchtap.core.progress import Progress

if TYPE_CHECKING:
    import torchtap as tt


@click.command()
@click.argument("reference", metavar="A")
@click.argument("candidate", metavar="B")
@click.option(
    "--map",
    "renamed",
    multiple=True,
    metavar="PATH=OTHER",
    help=r"A path of A and what it is in B, or expressions: 'h\.(\d+)=layers.\1'.",
)
@click.option("--tolerance", type=float, metavar="T", help="In place of what rounding explains.")
@click.option("--other-arg", "other_args", multiple=True, metavar="KEY=VALUE", help="For B alone.")
@click.option("--other-weights", metavar="FILE", help="For B; else --weights is for both.")
@model_options
@batch_options
@json_option
def compare(
    reference: str,
    candidate: str,
    renamed: tuple[str, ...],
    tolerance: float | None,
    as_json: bool,
    **options: Any,
) -> int:  # fmt: skip
    """Find where two runs, or two models on one batch, first differ.

    A and B are saved runs, or models as package.module:callable, which are called with the batch of
    --shape, --input or --image. The output names the cause of the first difference. Exit code 1
    says that something differs beyond rounding.
    """
    from torchtap.cli.parsing import is_run, open_saved

    pairs = [_pair(text) for text in renamed]
    are_runs = is_run(reference), is_run(candidate)
    if are_runs[0] != are_runs[1]:
        raise CompareError(
            f"{reference} is a {'run' if are_runs[0] else 'model'} and {candidate} is none; give "
            f"two runs or two models."
        )
    with Progress("comparing"):
        if are_runs[0]:
            import torchtap as tt

            for path in (reference, candidate):
                open_saved(path)  # Says what is near, where there is no such file.
            comparison = tt.compare(reference, candidate, map=pairs, tolerance=tolerance)
        else:
            comparison = _of_models(reference, candidate, pairs, tolerance, options)
    if as_json:
        print_json(comparison.to_dict())
    else:
        print_page(comparison)
    return 0 if comparison else 1


def _pair(text: str) -> tuple[str, str]:
    path, equals, other = text.rpartition("=")
    if not equals or not path:
        raise CompareError(f"--map is {text!r}; expected PATH=OTHER, such as 'h.0=layers.0'.")
    return path, other


def _of_models(
    reference: str,
    candidate: str,
    pairs: list[tuple[str, str]],
    tolerance: float | None,
    options: dict[str, Any],
) -> tt.Comparison:
    import torchtap as tt
    from torchtap.cli.failures import explained
    from torchtap.cli.parsing import built_model, model_and_batch

    one, batch = model_and_batch(reference, options)
    others = {**options, "args": options["other_args"] or options["args"]}
    others["weights"] = options["other_weights"] or options["weights"]
    two = built_model(candidate, others)
    with contextlib.ExitStack() as stack:
        for target, model in ((reference, one), (candidate, two)):
            stack.enter_context(explained(target, model, batch, options))
        return tt.compare(one, two, *batch.args, map=pairs, tolerance=tolerance, **batch.kwargs)


@click.command()
@click.argument("path", metavar="RUN")
@click.option(
    "--since", type=click.IntRange(min=0), metavar="STEP", help="Look at steps from this one on."
)
@json_option
def diagnose(path: str, since: int | None, as_json: bool) -> int:
    """Find faults in the training of a saved RUN, with evidence.

    Each diagnosis says what to try. The rules need the most from a run of:

    \b
    torchtap run --where '*:*,param,param_grad,update' --to RUN train.py

    Exit code 1 says that there is an alarm.
    """
    with Progress("looking"):
        import torchtap as tt
        from torchtap.cli.parsing import open_saved

        diagnosis = tt.diagnose(open_saved(path), since=since)
    if as_json:
        print_json(diagnosis.as_dict())
    else:
        print_page(diagnosis)
    return 1 if diagnosis.alarms else 0


@click.command()
@click.argument("case", metavar="CASE")
@json_option
def replay(case: str, as_json: bool) -> int:
    """Repeat a saved call of a module and compare it bit for bit.

    CASE is a folder of call.save(), or a script of call.export(). The module's class is imported,
    from the current folder too. Exit code 1 says that something differs.
    """
    with Progress("replaying"):
        from torchtap.cli.model import importable_here
        from torchtap.diagnosis.calls.replay import replayed

        with importable_here():
            replayed_call = replayed(case)
    if as_json:
        print_json(replayed_call.to_dict())
    else:
        print_page(replayed_call)
    return 0 if replayed_call else 1


@click.command()
@click.option("--no-compiler", is_flag=True, help="Leave out the compiled model.")
@json_option
def selfcheck(no_compiler: bool, as_json: bool) -> int:
    """Check that torchtap is right with this PyTorch and Python.

    The check runs the laws of torchtap over a dozen small models and tries each private name of
    PyTorch. It takes some seconds. Put its output into a report of a bug. Exit code 1 says that
    something does not hold.
    """
    with Progress("checking"):
        import torchtap as tt

        checked = tt.selfcheck(compiler=not no_compiler)
    if as_json:
        print_json(checked.to_dict())
    else:
        print_page(checked)
    return 0 if checked else 1

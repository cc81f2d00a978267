"""How often diagnosis is right: rules, locate, guard and compare, on what was broken on purpose.

    python benchmarks/diagnosis.py [tuning] [held_out] [second] [third] [faults] [differences]

Prints a table of each part and what was missed. What is measured lies in `tests/diagnosis/corpus`.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

import torchtap as tt

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "diagnosis" / "corpus"))
from differing_models import SITUATIONS, Situation, wrong as wrong_comparison
from differing_models.strangers import SITUATIONS as STRANGERS
from faulty_steps import FAULTS, FINE, Planted, wrong as wrong_origin
from trainings import cases
from trainings.scoring import Scored, scored


def share(hits: int, of: int) -> str:
    """A share in the form ``31/32 (97 %)``."""
    return f"{hits}/{of} ({hits / of:.0%})" if of else "-"


def rules(half: str) -> str:
    """The table of one set of the trainings, and its misses."""
    rows = [scored(case) for case in cases(half)]
    broken = [row for row in rows if row.case.is_broken]
    healthy = [row for row in rows if not row.case.is_broken]
    right = [row for row in broken if row.is_right]
    placed = [row for row in right if row.case.places]
    table = [
        "| set | broken | alarm | finding | right first | place | healthy | alarm | finding |",
        "|---|---|---|---|---|---|---|---|---|",
        f"| {half} | {len(broken)} | {share(sum(r.alarms > 0 for r in broken), len(broken))} "
        f"| {share(sum(bool(r.findings) for r in broken), len(broken))} "
        f"| {share(len(right), len(broken))} "
        f"| {share(sum(r.is_placed for r in placed), len(placed))} | {len(healthy)} "
        f"| {share(sum(r.alarms > 0 for r in healthy), len(healthy))} "
        f"| {share(sum(bool(r.findings) for r in healthy), len(healthy))} |",
    ]
    return "\n".join(table) + "\n\n" + misses(rows)


def misses(rows: list[Scored]) -> str:
    """Everything that is not right, a line each."""
    lines = []
    for row in rows:
        if row.case.is_broken and not row.is_right:
            lines.append(f"- not right first{'' if row.alarms else ', no alarm'}: {row}")
        elif row.is_right and row.case.places and not row.is_placed:
            lines.append(f"- another place: {row}")
        elif not row.case.is_broken and row.findings:
            lines.append(f"- healthy, {'alarm' if row.alarms else 'a note'}: {row}")
    return "\n".join(lines)


def located(planted: Planted) -> tt.Origin | None:
    """By the step function."""
    made = planted.build()
    return tt.locate(made.model, made.step, *made.batch)


def guarded(planted: Planted) -> tt.Origin | None:
    """By a guard around the step."""
    made = planted.build()
    with tt.guard(made.model, on=lambda origin: None) as guard:
        made.step(*made.batch)
    return guard.origin


def faults() -> str:
    """Planted faults: all by locate, those of the model by the guard alone."""
    lines, table = [], ["| by | planted | all right | fine steps left alone |", "|---|---|---|---|"]
    inside = [planted for planted in FAULTS if planted.seen_by_guard]
    sides: list[tuple[str, Callable[[Planted], tt.Origin | None], list[Planted]]] = [
        ("locate", located, FAULTS),
        ("guard alone", guarded, inside),
    ]
    for name, find, some in sides:
        found = {planted.name: wrong_origin(planted, find(planted)) for planted in some}
        fine = [planted.name for planted in FINE if find(planted) is None]
        right = sum(not why for why in found.values())
        fines = share(len(fine), len(FINE))
        table.append(f"| {name} | {len(some)} | {share(right, len(some))} | {fines} |")
        lines += [f"- {name}, {fault}: {'; '.join(why)}" for fault, why in found.items() if why]
    return "\n".join(table) + "\n\n" + "\n".join(lines)


def differences() -> str:
    """Planted differences, and pairs that do not differ."""
    found = {each.name: _compared(each) for each in (*SITUATIONS, *STRANGERS)}
    groups = {
        "one planted difference": [s for s in SITUATIONS if s.paths],
        "nothing differs": [s for s in SITUATIONS if not s.paths],
        "one difference, tiny models of transformers": [s for s in STRANGERS if s.paths],
        "nothing differs, tiny models of transformers": [s for s in STRANGERS if not s.paths],
    }
    table = ["| what | situations | right first |", "|---|---|---|"]
    for what, some in groups.items():
        right = sum(not found[each.name] for each in some)
        table.append(f"| {what} | {len(some)} | {share(right, len(some))} |")
    lines = [f"- {name}: {'; '.join(why)}" for name, why in found.items() if why]
    return "\n".join(table) + "\n\n" + "\n".join(lines)


def _compared(situation: Situation) -> list[str]:
    two = situation.build()
    torch.manual_seed(0)
    try:
        comparison = tt.compare(two.a, two.b, *two.inputs, map=situation.map)
    except tt.TorchtapError as error:
        return [f"raised {type(error).__name__}"]
    return wrong_comparison(situation, comparison)


PARTS: dict[str, Callable[[], str]] = {
    "tuning": lambda: rules("tuning"),
    "held_out": lambda: rules("held_out"),
    "second": lambda: rules("second"),
    "third": lambda: rules("third"),
    "faults": faults,
    "differences": differences,
}


def main() -> None:
    """Print the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", choices=[*PARTS], default=[*PARTS])
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for part in parser.parse_args().parts:
        print(f"## {part}\n\n{PARTS[part]()}\n", flush=True)


if __name__ == "__main__":
    main()

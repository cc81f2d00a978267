"""Runs one cell of the matrix and says what is wrong with it."""

from __future__ import annotations

import re
from typing import Any

import torch
from checks import (
    differences,
    far_apart,
    told,
    unexpected,
    unlisted,
    wrong_records,
    wrong_statistics,
)
from probe import Made, Probe, run
from row import WORKS, Row

import torchtap as tt

_RUNS: dict[tuple[str, str], Made] = {}


def wrong(row: Row, column: str) -> list[str]:
    """Everything that is otherwise than expected in a cell; empty where all is right."""
    expected = row.cell("together" if column == "alone" else column)
    if column == "alone":  # What communicates unasked would wait for the others.
        column = "together" if torch.distributed.get_rank() == 0 else "plain"
    if column == "plain" and expected.kind == "said":
        expected = WORKS
    try:
        made = _run(row, column)
    except tt.TorchtapError as error:
        return _not_said(str(error), expected) or _left_behind(row)
    except Exception as error:
        if expected.kind != "refused":
            raise
        return [] if re.search(expected.pattern, str(error), re.DOTALL) else [f"raised {error!r}"]
    if expected.kind == "refused":
        return ["PyTorch refused nothing"]
    found = _against_plain(row, column, made) + _against_truth(row, column, made)
    if expected.kind == "said" and not told(made, expected.pattern):
        found.append(f"not said: {expected.pattern}; but: {sorted(set(made.told))}")
    allowed = (*row.absent, expected.pattern) if expected.pattern else row.absent
    return found + [f"unexpected reason: {one}" for one in unexpected(made.told, allowed)]


def _run(row: Row, column: str) -> Made:
    if row.compiles:
        torch.compiler.reset()
    is_eager = column in ("truth", "edited")
    probe = Probe(column, edited=row.edited, where=row.where, is_eager=is_eager)
    return run(row.train, probe)


def plain(row: Row, column: str = "plain") -> Made:
    """The training by plain PyTorch."""
    key = (row.name, column)
    if key not in _RUNS:
        _RUNS[key] = _run(row, column)
    return _RUNS[key]


def _against_plain(row: Row, column: str, made: Made) -> list[str]:
    reference = plain(row, "edited" if column == "edit" else "plain")
    if column == "edit" and row.compiles:
        found = far_apart(reference, made, row.tolerance)
        found += differences(Made(tables=plain(row).tables), Made(tables=made.tables))
    else:
        found = differences(reference, made)
        if column == "edit" and not found and not differences(plain(row), made):
            found = ["the edit changed nothing"]
    if not row.warns:
        found += [f"warned: {text}" for text in made.warned - reference.warned]
    return [f"as without us? {name}" for name in found]


def _against_truth(row: Row, column: str, made: Made) -> list[str]:
    tool, found = made.tool, []
    if "watch" in tool or "stats" in tool:
        truth = plain(row, "truth").tool["truth"]
        how: Any = truth, row.tolerance, row.is_reentrant
    if "watch" in tool:
        found += unlisted(tool["watch"]) + wrong_records(tool["watch"], *how)
    if "stats" in tool:
        found += unlisted(tool["stats"]) + wrong_statistics(tool["stats"], *how)
    if "edit" in tool and not sum(tool["edit"].fired.values()):
        found.append("the edit never fired")
    is_moved = row.cell(column).kind == "said"
    if "offload" in tool and not (tool["offload"].report().packed_nbytes or is_moved):
        found.append("nothing was offloaded")
    if "verification" in tool and not tool["verification"]:
        found += [] if is_moved else [f"not verified: {tool['verification']}"]
    return found


def _not_said(text: str, expected: Any) -> list[str]:
    if expected.kind == "said" and re.search(expected.pattern, text, re.DOTALL):
        return []
    return [f"an error of ours: {text}"]


def _left_behind(row: Row) -> list[str]:
    """An error of ours leaves no hook."""
    return [] if tt.hooks.saved_pairs.top() is None else ["saved-tensor hooks are left"]

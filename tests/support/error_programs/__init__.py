"""Small programs that PyTorch refuses, each with what the note must say and a way out, applied.

The tests run all of them, and ``docs/reference/errors/`` is made from them:
``python tests/support/error_programs/page.py``.
"""

from __future__ import annotations

from error_programs import autograd, checks, in_place, kinds, outside, plain, shapes, training
from error_programs.program import Program

PROGRAMS: dict[str, list[Program]] = {
    "Backward": autograd.PROGRAMS,
    "In place": in_place.PROGRAMS,
    "Shapes": shapes.PROGRAMS,
    "Dtypes, devices, losses, indices": kinds.PROGRAMS,
    "Hooks, modules, training": training.PROGRAMS,
    "Attention": outside.ATTENTION,
    "Sequences": outside.SEQUENCES,
    "Pictures": outside.PICTURES,
    "Optimizers": outside.OPTIMIZERS,
    "Compilers": outside.COMPILERS,
    "Values": outside.VALUES,
    "Tensors that are made": checks.MADE,
    "Arguments that are refused": checks.REFUSED,
    "Objects of Python": plain.PROGRAMS,
}
EVERY = [program for programs in PROGRAMS.values() for program in programs]

"""Pairs of calls of both sides: by path, by a mapping, then by likeness."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchtap.diagnosis.comparison.renaming import Renaming
from torchtap.diagnosis.comparison.step_calls import Call

_SAME_PARAMETERS, _SAME_SIZES, _NO_PARAMETERS, _SAME_OUTPUT, _SAME_TYPE = 4.0, 1.0, 0.3, 1.0, 1.0
_SAME_INDEX = 0.25
"""The likeness of ``2`` and ``2``: one more module before it would shift a place in a list."""
_MOST_CELLS = 4_000_000
"""Pairs of calls that are scored; beyond, calls without a partner by path stay alone."""


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A call of the reference and the call of the candidate that stands for it.

    Attributes:
        one: of the reference.
        two: of the candidate.
        how: ``path``, ``map``, or ``like`` where neither told.
    """

    one: Call
    two: Call
    how: str


def align(ones: Sequence[Call], twos: Sequence[Call], renaming: Renaming) -> list[Pair]:
    """Pairs of calls, in the order of the reference.

    Equal path (as ``map`` has it) and number come first. What is left over is aligned in the order
    of the calls by the algorithm of Needleman and Wunsch (1970), with a score of how alike two
    calls are. Between calls that are aligned by path nothing crosses over.
    """
    pairs = _by_path(ones, twos, renaming)
    paired = {id(call) for pair in pairs for call in (pair.one, pair.two)}
    left = [call for call in ones if id(call) not in paired]
    right = [call for call in twos if id(call) not in paired]
    if left and right and len(left) * len(right) <= _MOST_CELLS:
        pairs += [Pair(left[i], right[j], "like") for i, j in _aligned(left, right, pairs)]
    return sorted(pairs, key=lambda pair: pair.one.place)


def _by_path(ones: Sequence[Call], twos: Sequence[Call], renaming: Renaming) -> list[Pair]:
    """Pairs of equal path and number, those of a mapping first, as someone asked for them."""
    known = {(call.path, call.number, call.phase): call for call in twos}
    pairs = []
    renamed = {call.path: renaming.of(call.path) for call in ones}
    moved = _moved(ones, twos)
    # False sorts before True: those that ``map`` names first.
    for call in sorted(ones, key=lambda call: renamed[call.path] == call.path):
        path = renamed[call.path]
        other = known.get((path, call.number, call.phase))
        is_mapped = path != call.path
        if other is None or (not is_mapped and {call.path, other.path} & moved):
            continue
        if is_mapped or (_may_be_one(call, other) and not _wraps(call, other, ones, twos)):
            del known[other.path, other.number, other.phase]
            pairs.append(Pair(call, other, "map" if is_mapped else "path"))
    return pairs


def _may_be_one(one: Call, two: Call) -> bool:
    """Return whether calls of one path are of one module: an index may have shifted."""
    if not one.path or one.traits.type == two.traits.type:
        return True
    if one.traits.sizes and one.traits.sizes == two.traits.sizes:
        return True
    is_index = one.path.rpartition(".")[2].isdecimal()
    return one.is_leaf and two.is_leaf and one.sizes == two.sizes and not is_index


def _wraps(one: Call, two: Call, ones: Sequence[Call], twos: Sequence[Call]) -> bool:
    """Return whether one is a leaf, and the other stands around a leaf that is more like it."""
    if one.is_leaf == two.is_leaf or one.traits.type == two.traits.type:
        return False
    leaf, whole, calls = (one, two, twos) if one.is_leaf else (two, one, ones)
    return any(
        whole.holds(call) and call.is_leaf and call.traits.sizes == leaf.traits.sizes
        for call in calls
    )


def _moved(ones: Sequence[Call], twos: Sequence[Call]) -> set[str]:
    """Paths whose parameters stand at another path of the other side, where one side has more.

    Where a block is missing the numbers of all later ones have shifted.
    """
    if len(ones) == len(twos):
        return set()
    homes = [_unique_norms(calls) for calls in (ones, twos)]
    return {
        path
        for norms in homes[0].keys() & homes[1].keys()
        if homes[0][norms] != homes[1][norms] and homes[0][norms] and homes[1][norms]
        for path in (homes[0][norms], homes[1][norms])
    }


def _unique_norms(calls: Sequence[Call]) -> dict[object, str]:
    """Norms of parameters that modules of one path alone have -> that path."""
    owners: dict[object, set[str]] = {}
    for call in calls:
        if call.traits.norms:
            owners.setdefault(call.traits.norms, set()).add(call.path)
    return {norms: min(paths) for norms, paths in owners.items() if len(paths) == 1}


def _aligned(
    ones: Sequence[Call], twos: Sequence[Call], fixed: Sequence[Pair]
) -> list[tuple[int, int]]:
    """Return pairs of places with the highest sum of scores that do not cross."""
    score = _scores(ones, twos, fixed)
    rows, columns = len(ones), len(twos)
    best = [[0.0] * (columns + 1) for _ in range(rows + 1)]
    # From the end, so that the walk below goes forward.
    for i in range(rows - 1, -1, -1):
        for j in range(columns - 1, -1, -1):
            # Calls that are not alike at all are never paired; leaving one out costs nothing.
            both = best[i + 1][j + 1] + score[i][j] if score[i][j] > 0 else -1.0
            best[i][j] = max(both, best[i + 1][j], best[i][j + 1])
    pairs, i, j = [], 0, 0
    while i < rows and j < columns:
        if score[i][j] > 0 and best[i][j] == best[i + 1][j + 1] + score[i][j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs


def _scores(ones: Sequence[Call], twos: Sequence[Call], fixed: Sequence[Pair]) -> list[list[float]]:
    """Return how alike calls are; 0 where their parents are aligned, and not with each other."""
    homes = {id(pair.one): pair.two for pair in fixed}
    partners = {id(pair.two): pair.one for pair in fixed}
    above_one, above_two = (
        _parents(ones, [*(p.one for p in fixed), *ones]),
        _parents(twos, [*(p.two for p in fixed), *twos]),
    )
    likeness = _likeness()

    def score(one: Call, two: Call) -> float:
        parent, other = above_one.get(id(one)), above_two.get(id(two))
        expected = None if parent is None else homes.get(id(parent))
        back = None if other is None else partners.get(id(other))
        if expected is not None and not expected.holds(two):
            return 0.0
        if back is not None and not back.holds(one):
            return 0.0
        return alike(one, two, likeness)

    return [[score(one, two) for two in twos] for one in ones]


def _parents(calls: Sequence[Call], every: Sequence[Call]) -> dict[int, Call]:
    """Return the innermost call around each call, of those in ``every``."""
    parents: dict[int, Call] = {}
    for call in calls:
        around = [one for one in every if one.holds(call)]
        if around:
            # The longest path is that of the innermost, since each path around is a beginning of
            # it.
            parents[id(call)] = max(around, key=lambda one: len(one.path))
    return parents


def _likeness() -> Callable[[str, str], float]:
    known: dict[tuple[str, str], float] = {}

    def likeness(one: str, two: str) -> float:
        key = one.rpartition(".")[2].lower(), two.rpartition(".")[2].lower()
        if key not in known:
            is_index = key[0].isdecimal() and key[1].isdecimal()
            ratio = difflib.SequenceMatcher(None, *key).ratio()
            known[key] = _SAME_INDEX * (key[0] == key[1]) if is_index else ratio
        return known[key]

    return likeness


def alike(one: Call, two: Call, likeness: Callable[[str, str], float]) -> float:
    """How alike two calls are: by parameters, sizes of outputs, class and last name; 0 if not."""
    if one.is_leaf != two.is_leaf or one.phase != two.phase:
        return 0.0
    if (one.path == "") != (two.path == ""):
        return 0.0
    mine, other = one.traits, two.traits
    if mine.norms and mine.norms == other.norms:
        likeness_of_both = _SAME_PARAMETERS
    elif mine.sizes == other.sizes:
        likeness_of_both = _SAME_SIZES if mine.sizes else _NO_PARAMETERS
    elif one.is_leaf or sum(mine.sizes) != sum(other.sizes):
        return 0.0
    else:  # The parts of one weight may be weights of their own.
        likeness_of_both = _NO_PARAMETERS
    if not one.sizes or sorted(one.sizes)[-1:] != sorted(two.sizes)[-1:]:
        return 0.0
    likeness_of_both += _SAME_OUTPUT + _SAME_TYPE * (mine.type == other.type)
    return likeness_of_both + likeness(one.path, two.path)

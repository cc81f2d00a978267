"""Statistics in a run that is saved or opened: what a file holds of them, and what stands for them.

A file has no code. For a statistic of ``tt.stats`` it names the class and holds states; for one
that packs its states it holds these as named tensors; of any other one the results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

import torchtap.stats.catalogue.built_in  # noqa: F401 - registers classes
from torchtap.core.did_you_mean import did_you_mean
from torchtap.core.errors import InputError, RunError
from torchtap.core.text import class_of, typed
from torchtap.stats.catalogue import protocol
from torchtap.stats.catalogue.kinds import is_named_statistic, parts_of, statistic_class
from torchtap.stats.catalogue.protocol import Statistic, can_pack
from torchtap.stats.catalogue.results import Missing

_NO_CODE = (
    "the runs of the ranks were saved, and a file holds the result of a statistic of your own and "
    "not its merge. Read it from each rank: tt.open(FILE).stats(SITE).extra."
)


class NotWrittenError(Exception):
    """A state that a file cannot hold; its argument says why."""


@dataclass(frozen=True, slots=True)
class Description:
    """A statistic as a file describes it.

    Attributes:
        kind: name of its class, of those of ``tt.stats``; ``None`` of others.
        arguments: to make it of again; of others the name alone.
        packed_by: name of the class that packed its states; empty where the file has results.
    """

    kind: str | None
    arguments: Sequence[Any]
    packed_by: str = ""


# ---------------------------------------------------------------------- written


def described(one: Statistic) -> Description:
    """Describe a statistic, so that it can be made again or be given when the run is opened."""
    if is_named_statistic(one):
        return Description(type(one).__name__, parts_of(one))
    if not can_pack(one):
        return Description(None, [str(one.name)])
    packed_by = getattr(one, "packed_by", type(one).__name__)
    return Description(None, [str(one.name)], packed_by)


def written(one: Statistic, state: Any) -> Any:
    """Return what a file holds of a state: the state itself, its packed parts, or the result.

    Raises:
        NotWrittenError: its code raised, or gave what are no named tensors.
    """
    if isinstance(state, Missing) or is_named_statistic(one):
        return state
    if not can_pack(one):
        return _result_of(one, state)
    try:
        parts = one.pack(state)  # type: ignore[attr-defined]
        # Copies: the statistic may go on with this memory, or hand it out again.
        if isinstance(parts, Mapping) and not _odd_part(parts):
            return {name: part.detach().clone() for name, part in parts.items()}
    except Exception as error:  # Code of the user's: the rest of the run is saved.
        raise NotWrittenError(f"its pack raised {said(error)}. {_LOST}") from error
    odd = _odd_part(parts) if isinstance(parts, Mapping) else class_of(parts)
    raise NotWrittenError(
        f"its pack returned {odd}; expected a mapping of texts to tensors. {_LOST}"
    )


def unwritable(one: Statistic, found: str) -> str:
    """Say why a file cannot hold what :func:`written` gave, or a part of it, ``found``."""
    if can_pack(one):
        return f"its pack returned a {found}, which a file cannot hold. {_LOST}"
    return (
        f"its result is a {found}, which a file without pickle cannot hold. Let finish() return "
        f"numbers, texts, tensors, arrays, or lists, tuples, sets and dicts of them."
    )


_LOST = "The run was saved without this state; the run in memory has it."


def _result_of(one: Statistic, state: Any) -> Any:
    try:
        return one.finish(state)
    except Exception as error:  # Code of the user's: the rest of the run is saved.
        raise NotWrittenError(f"its finish raised {said(error)}. {_LOST}") from error


def _odd_part(parts: Mapping[Any, Any]) -> str:
    """Describe the first part that is no tensor with a name; empty where all are."""
    for name, part in parts.items():
        if not isinstance(name, str):
            return f"a part named {name!r}"
        if not isinstance(part, Tensor):
            return f"{class_of(part)} as part {name!r}"
    return ""


def said(error: BaseException) -> str:
    """Describe an exception of the user's code in a sentence."""
    return f"{type(error).__name__}: {error}".rstrip(". :") if str(error) else type(error).__name__


# ---------------------------------------------------------------------- read again


def made_again(described: Description, own: Sequence[Statistic] = ()) -> Statistic:
    """Make the statistic of a file again, or what stands for it.

    Args:
        described: what the file says of it.
        own: statistics that were given when the run was opened.
    """
    if described.kind is not None:
        known: Statistic = (statistic_class(described.kind) or Finished)(*described.arguments)
        return known
    [name] = described.arguments
    if not described.packed_by:
        return Finished(name)
    given = next((one for one in own if str(one.name) == name and can_pack(one)), None)
    return Packed(name, described.packed_by) if given is None else Reopened(given)


def state_of(one: Statistic, held: Any) -> Any:
    """Return the state of a statistic of :func:`made_again`, of what a file holds."""
    if isinstance(held, Missing) or is_named_statistic(one) or not can_pack(one):
        return held
    return one.unpack(held)  # type: ignore[attr-defined]


def refuse_unknown(
    given: Sequence[Statistic], known: Sequence[Statistic] | None, where: str
) -> None:
    """Refuse statistics that a run was to be opened with, and that it does not have so.

    Args:
        given: to ``tt.open``.
        known: those of the run, as :func:`made_again` makes them; ``None`` where that is not
            known yet, as of an attempt that was not closed, or of a run that measured nothing.
        where: of which run, for messages.

    Raises:
        InputError: the run has none of that name, or one that is not read by the given class.
    """
    if known is None:
        return
    for one in given:
        same = [other for other in known if str(other.name) == str(one.name)]
        if not same:
            names = [str(other.name) for other in known]
            there = f"it has {', '.join(map(repr, names))}" if names else "it has none"
            raise InputError(
                f"tt.open got {class_of(one)} named {one.name!r}, and {where} has no statistic of "
                f"that name{did_you_mean(str(one.name), names)} Expected one of those that it was "
                f"measured with: {there}."
            )
        packed = next((other for other in same if isinstance(other, Packed)), None)
        if packed is not None:
            raise InputError(
                f"tt.open got {class_of(one)} for the packed states of {one.name!r} in {where}, "
                f"and it has no pack and unpack. Expected a statistic as {packed.packed_by}, which "
                f"has both."
            )
        other = same[0]
        if is_named_statistic(other) and type(other) is not type(one):
            raise InputError(
                f"tt.open got {class_of(one)} for {one.name!r} in {where}, which is "
                f"{class_of(other)} of tt.stats. Leave it out: that is read without it."
            )


class _OfSavedRun:
    """A statistic that measures no more."""

    __slots__ = ()

    def init(self) -> Any:
        """Return what there is of no tensor."""
        return Missing("nothing was measured.")

    def update(self: Statistic, state: Any, tensor: Tensor) -> Any:
        """Refuse: a saved run measures no more."""
        raise RunError(f"{self.name!r} is of a saved run, which measures no more.")


@dataclass(frozen=True, slots=True)
class Finished(_OfSavedRun):
    """A user's statistic in a saved run: its results are known, and not its functions.

    The result stands here for the state.
    """

    name: str
    needs_places: ClassVar[bool] = False

    def merge(self, one: Any, two: Any) -> Missing:
        """Say that its merge is not in the file."""
        return Missing(
            "the run was saved, and the file holds its result in each step and over all of them. "
            "Merging some takes the statistic's own code: ask the run for this window before it "
            "is saved, or measure with one that has pack and unpack, see tt.Statistic."
        )

    def finish(self, state: Any) -> Any:
        """Return the result."""
        return state

    def merge_ranks(self, one: Any, two: Any) -> Missing:
        """Say that its merge is in no file of a rank."""
        return Missing(_NO_CODE)


class PackedParts(dict[str, Tensor]):
    """Named tensors that a statistic packed its state into; its class turns them into the result.

    Args:
        parts: name -> tensor.
        packed_by: name of the class.
    """

    def __init__(self, parts: Mapping[str, Tensor], packed_by: str) -> None:
        super().__init__(parts)
        self.packed_by = packed_by

    def in_words(self) -> str:
        """Say that it is packed, as a table shows it."""
        return f"packed by {self.packed_by}"

    def __repr__(self) -> str:
        return f"packed by {self.packed_by} ({_said_parts(self)}). {_way_out(self.packed_by)}"


@dataclass(frozen=True, slots=True)
class Packed(_OfSavedRun):
    """A statistic of packed states that no class was given for: its parts are read by their names.

    Attributes:
        name: of the statistic.
        packed_by: name of its class.
    """

    name: str
    packed_by: str
    needs_places: ClassVar[bool] = False

    def merge(self, one: Any, two: Any) -> Missing:
        """Say that its merge is not in the file."""
        return Missing(
            f"the file holds the states of each step and of all of them, packed by "
            f"{self.packed_by}, and merging some takes its code. {_way_out(self.packed_by)}"
        )

    def finish(self, state: Mapping[str, Tensor]) -> PackedParts:
        """Return the parts themselves."""
        return PackedParts(state, self.packed_by)

    def pack(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the parts themselves, so that they stay packed in a run that is saved again."""
        return state

    def unpack(self, parts: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the parts themselves."""
        return parts


@dataclass(frozen=True, slots=True, eq=False)
class Reopened(_OfSavedRun):
    """A statistic of a user's own in an opened run: what its code raises is said in its place.

    Attributes:
        original: the one that was given to ``tt.open``.
    """

    original: Any

    @property
    def name(self) -> str:
        """Return the name of the statistic."""
        return str(self.original.name)

    @property
    def packed_by(self) -> str:
        """Return the name of the class that packs its states."""
        return type(self.original).__name__

    @property
    def needs_places(self) -> bool:
        """Return whether it depends on where in its tensor a value stands."""
        return protocol.needs_places(self.original)

    @property
    def ranks_by_step(self) -> bool:
        """Return whether states of ranks can be merged step by step only."""
        return protocol.ranks_by_step(self.original)

    def init(self) -> Any:
        """Return the state of nothing."""
        return self.original.init()

    def merge(self, one: Any, two: Any) -> Any:
        """Merge two states, or say what that raised."""
        return self._tried("merge", lambda: self.original.merge(one, two), one)

    def merge_ranks(self, one: Any, two: Any) -> Any:
        """Merge the states of two ranks, or say what that raised."""
        return self._tried("merge", lambda: protocol.merge_ranks(self.original, one, two), one)

    def merge_shards(self, one: Any, two: Any, dim: int | None, num_dims: int | None) -> Any:
        """Merge the states of two shards, or say what that raised."""
        merge = protocol.merge_shards
        return self._tried("merge", lambda: merge(self.original, one, two, dim, num_dims), one)

    def finish(self, state: Any) -> Any:
        """Return the result, or say what that raised."""
        return self._tried("finish", lambda: self.original.finish(state), state)

    def pack(self, state: Any) -> Any:
        """Return the state as named tensors."""
        return self.original.pack(state)

    def unpack(self, parts: Mapping[str, Tensor]) -> Any:
        """Return the state of named tensors, or say what that raised."""
        return self._tried("unpack", lambda: self.original.unpack(parts), parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reopened) and protocol.are_alike(self, other)

    def __hash__(self) -> int:
        return hash(self.name)

    def _tried(self, part: str, call: Callable[[], Any], given: Any) -> Any:
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - code of the user's; all else can be read.
            what = _said_parts(given) if part == "unpack" else class_of(given)
            return Missing(
                f"{part} of {self.packed_by} raised {said(error)}; it was given {what}. Mend it, "
                f"or read the parts as tensors: tt.open(PATH) without statistics=."
            )


def _said_parts(parts: Mapping[str, Tensor]) -> str:
    every = (
        f"{name} {typed(str(part.dtype).removeprefix('torch.'), tuple(part.shape))}"
        for name, part in parts.items()
    )
    return ", ".join(every) or "no parts"


def _way_out(packed_by: str) -> str:
    return f"Open the run with its class: tt.open(PATH, statistics=[{packed_by}(...)])."

"""One value kept, and its key."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from records import record

import torchtap as tt
from torchtap.core.record import RECOMPUTE

made = partial(record, leaf="0", step=4, call=1)


def test_a_key_is_step_site_and_call() -> None:
    key = made().key
    assert (key.step, key.site, key.call) == (4, tt.Site("fc", "output", "0"), 1)
    assert key == tt.Key(4, tt.Site("fc", "output", "0"), 1)


def test_a_value_that_was_not_overwritten_is_returned() -> None:
    value = torch.ones(2)
    kept = made(value=value, version=value._version)
    assert kept.value is value
    assert not kept.overwritten


def test_a_value_that_was_overwritten_is_not_returned() -> None:
    value = torch.ones(2)
    kept = made(value=value, version=value._version)
    value.add_(1)
    assert kept.overwritten
    with pytest.raises(tt.OverwrittenError, match=r"fc:output\[0\] \(step 4, call 1\)"):
        kept.value  # noqa: B018 - it is the property that raises


def test_a_copy_of_its_own_may_be_written_into() -> None:
    value = torch.ones(2)
    kept = made(value=value)
    value.add_(1)
    assert kept.value is value


def test_a_write_through_another_view_is_noticed() -> None:
    base = torch.ones(4)
    view = base[:2].detach()
    kept = made(value=view, version=view._version)
    base[3] = 7
    assert kept.overwritten


@pytest.mark.parametrize(
    ("kept", "text"),
    [
        (made(), "<Record fc:output[0] step 4 call 1 float32[2, 3]>"),
        (made(value=torch.tensor(1)), "<Record fc:output[0] step 4 call 1 int64[]>"),
        (
            made(phase=RECOMPUTE, labels=("total",)),
            "<Record fc:output[0] step 4 call 1, recompute, total float32[2, 3]>",
        ),
    ],
)
def test_a_record_shows_site_step_call_and_kind(kept: tt.Record, text: str) -> None:
    assert repr(kept) == text


def test_records_are_the_same_only_if_they_are_one() -> None:
    value = torch.ones(2)
    first, second = made(value=value), made(value=value)
    assert first == first
    assert first != second
    assert len({first, second}) == 2


def test_an_absence_reads_as_site_and_reason() -> None:
    assert str(tt.Absence(tt.Site("fc"), "it was not seen")) == "fc:output: it was not seen"


def test_what_has_the_three_methods_is_a_sink() -> None:
    class Whole:
        def take(self, record: tt.Record) -> None: ...
        def close_step(self, step: int) -> None: ...
        def close(self) -> None: ...

    class Part:
        def take(self, record: tt.Record) -> None: ...

    assert isinstance(Whole(), tt.Sink)
    assert not isinstance(Part(), tt.Sink)
    assert isinstance(tt.Memory(), tt.Sink)

"""Numbers and columns as text."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from torchtap.core import text as cells
from torchtap.core.printed_page import Grid, Page


def columns(rows: Any, headers: Any, align: str, *, width: int = 100, color: bool = False) -> str:
    page = Page(Grid(rows, headers, align, elastic={0: 12}))
    return page.text(width=width, color=color)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (1.0, "1"),
        (0.38463297, "0.3846"),
        (-11.84661, "-11.85"),
        (1234.56, "1,235"),
        (9999.4, "9,999"),
        (9999.6, "1e4"),
        (12345.678, "1.235e4"),
        (0.001, "0.001"),
        (0.00099996, "0.001"),
        (0.00099, "9.9e-4"),
        (-3.748327e-6, "-3.748e-6"),
        (5e-324, "4.941e-324"),
        (1e300, "1e300"),
        (math.nan, "NaN"),
        (math.inf, "Inf"),
        (-math.inf, "-Inf"),
    ],
)
def test_a_number_has_four_digits_and_is_scientific_outside_the_middle(
    value: Any, text: str
) -> None:
    assert cells.number(value) == text


def test_only_an_exact_zero_is_written_as_zero() -> None:
    assert cells.number(1e-300) != "0"
    assert cells.share(1, 10**9) == "<0.1%"
    assert cells.share(10**9 - 1, 10**9) == ">99.9%"
    assert cells.share(0, 5) == "0"
    assert cells.share(5, 5) == "100%"


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (1024, "1 KiB"), (1605632, "1.531 MiB"), (5 << 40, "5 TiB")],
)
def test_bytes_are_in_binary_units(nbytes: Any, text: str) -> None:
    assert cells.size(nbytes) == text


def test_a_table_too_wide_is_elided_in_the_middle_of_its_first_column() -> None:
    path = "encoder." + "blocks.11." * 20 + "attn.out_proj"
    text = columns([(path, "1,024")], ("site", "bytes"), "lr", width=60)
    body = text.split("\n")[1]
    assert len(body) <= 60
    assert body.startswith("encoder")
    assert "…" in body
    assert "attn.out_proj" in body
    assert body.endswith("1,024")


def test_a_table_that_fits_is_not_elided() -> None:
    text = columns([("conv1", "1,024"), ("fc", "12")], ("site", "bytes"), "lr")
    assert text == "site   bytes\nconv1  1,024\nfc        12"


def test_wide_characters_keep_the_columns_straight() -> None:
    text = columns([("模型", "1"), ("ab", "22")], ("site", "n"), "lr")
    head, wide, narrow = text.split("\n")
    assert cells.breadth(wide) == cells.breadth(narrow) == cells.breadth(head)


def test_colour_changes_nothing_but_colour() -> None:
    plain = columns([("a", cells.Cell("1 NaN", "bad"))], ("site", "NaN/Inf"), "lr")
    painted = columns([("a", cells.Cell("1 NaN", "bad"))], ("site", "NaN/Inf"), "lr", color=True)
    assert "\x1b" not in plain
    assert "\x1b[" in painted
    assert re.sub(r"\x1b\[[\d;]*m", "", painted) == plain


def test_texts_that_would_be_cut_alike_stay_apart() -> None:
    names = [f"bert.encoder.layer.{n}.attention.output.dense" for n in range(3)]
    assert len({cells.elide(name, 20) for name in names}) == 1, (
        "the case is one where they are alike"
    )
    assert cells.elide_apart([*names, "fc"], 20) == [
        "…0.atten…utput.dense",
        "…1.atten…utput.dense",
        "…2.atten…utput.dense",
        "fc",
    ]

"""Sizes and counts as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.base.errors import UsageError
from synth.base.units import SUFFIXES, as_bytes, parse_bytes, parse_whole, show_bytes, show_words


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("65536", 65536),
        ("16GiB", 16 * 2**30),
        ("64M", 64 * 10**6),
        ("64MB", 64 * 10**6),
        ("1.5G", 1_500_000_000),
        ("0.5kib", 512),
        (" 8 GiB ", 8 * 2**30),
        ("1B", 1),
        ("1e9", 10**9),
        ("1.5E+3", 1500),
        ("2T", 2 * 10**12),
        ("99999999999999999999", 99999999999999999999),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1", "1e-9", "1.5e0", "1e9K", "1,5G", "1_000", "16 GB GB", "0x10", "1.G", "١", "inf"]
)
def test_texts_that_are_no_size(text: str) -> None:
    with pytest.raises(UsageError) as fault:
        parse_bytes(text)
    assert str(fault.value) == (
        f"{text!r} is not a size in bytes; write a number with K, M, G, T, KiB, MiB, GiB or TiB, e.g. 16GiB"
    )


@pytest.mark.parametrize("text", ["0", "0e5", "0GiB", "0.1", "0.0001K"])
def test_less_than_a_byte(text: str) -> None:
    with pytest.raises(UsageError, match=r"is less than one byte; write a larger size$"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "number"), [("8", 8), ("1e3", 1000), ("1.5e+1", 15), (" 2.0 ", 2), ("-1", -1)]
)
def test_whole_numbers(text: str, number: int) -> None:
    assert parse_whole(text) == number


@pytest.mark.parametrize(
    "text", ["", "four", "1.5", "1e-3", "1.25e1", "1_000", "inf", "١", "1e999", "9" * 21]
)
def test_texts_that_are_no_whole_number(text: str) -> None:
    with pytest.raises(UsageError) as fault:
        parse_whole(text)
    assert str(fault.value) == f"{text!r} is not a whole number; write one like 1000 or 1e3"


def test_sizes_from_python() -> None:
    assert [as_bytes(size) for size in (None, 5, 1e9, "1KiB")] == [None, 5, 10**9, 1024]
    for wrong in (1.5, True, [], float("nan")):
        with pytest.raises(UsageError, match=r"^memory is .*; give bytes as a whole number, or text such as"):
            as_bytes(wrong)


@given(st.integers(1, 10**20 - 1), st.sampled_from(sorted(SUFFIXES)))
def test_whole_numbers_are_exact(number: int, suffix: str) -> None:
    assert parse_bytes(f"{number}{suffix}") == number * SUFFIXES[suffix]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (659456, "644 KiB"),
        (2**40, "1 TiB"),
        (2**50, "1024 TiB"),
    ],
)
def test_sizes_shown(size: int, text: str) -> None:
    assert show_bytes(size) == text


def test_words_shown() -> None:
    assert [show_words(n) for n in (0, 999, 1000, 1234567, 2.5e3)] == [
        "0",
        "999",
        "1 000",
        "1 234 567",
        "2 500",
    ]

"""Sizes and counts as people write them: `16GiB`, `64M`, `1e3`."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from decimal import ROUND_CEILING, Decimal

from synth.base.errors import UsageError

SUFFIXES = {
    "": 1,
    "B": 1,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


def parse_bytes(text: str) -> int:
    """Bytes from text like `65536`, `16GiB` or `1.5G`. Raises `UsageError`."""
    match = re.fullmatch(r"\s*([0-9]{1,20}(?:\.[0-9]{1,9})?)(e\+?[0-9]{1,2}|\s*[A-Za-z]{0,3})\s*", text, re.I)
    number, suffix = (match[1], match[2].strip().upper()) if match else ("", "?")
    if "E" in suffix and Decimal(number + suffix) % 1 == 0:  # 1e9
        size = int(Decimal(number + suffix))
    elif suffix not in SUFFIXES:
        raise UsageError(
            f"{text!r} is not a size in bytes; "
            f"write a number with K, M, G, T, KiB, MiB, GiB or TiB, e.g. 16GiB"
        )
    else:
        size = int(float(number) * SUFFIXES[suffix]) if "." in number else int(number) * SUFFIXES[suffix]
    if size < 1:
        raise UsageError(f"{text!r} is less than one byte; write a larger size")
    return size


def as_bytes(size: object) -> int | None:
    """Bytes from an argument of the Python API: text, a whole number, or None. Raises `UsageError`."""
    if isinstance(size, str):
        return parse_bytes(size)
    if isinstance(size, float) and size.is_integer():
        return int(size)
    if size is None or (isinstance(size, int) and not isinstance(size, bool)):
        return size
    raise UsageError(f"memory is {size!r}; give bytes as a whole number, or text such as '16GiB'")


def parse_whole(text: str) -> int:
    """A whole number from text like `1000` or `1e3`. Raises `UsageError`."""
    match = re.fullmatch(r"\s*[+-]?[0-9]{1,20}(\.[0-9]{1,9})?([eE]\+?[0-9]{1,2})?\s*", text)
    number = Decimal(text.strip()) if match else Decimal("0.5")
    if number != number.to_integral_value():
        raise UsageError(f"{text[:40]!r} is not a whole number; write one like 1000 or 1e3")
    return int(number)


def whole(text: str) -> int:
    """`parse_whole` as the type of an argparse flag, so that argparse names the flag in its message."""
    try:
        return parse_whole(text)
    except UsageError as fault:
        raise ArgumentTypeError(str(fault)) from fault


def show_bytes(size: int) -> str:
    """Bytes as text for people, in binary units: `1.5 MiB`."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{size} B" if unit == "B" else f"{value:.4g} {unit}"


def in_unit_of(given: str, text: str) -> str:
    """A message whose sizes, like `204800 bytes`, have the unit in which a size was given, like `200KiB`.

    given: what followed `--memory`; of a range its end. Without a unit there, the message stays as it is.
    """
    unit = re.search(r"([KMGT]I?B?|B)\s*$", given.rpartition(":")[2].strip(), re.I)
    if unit is None or unit[1].upper() == "B":
        return text
    each = SUFFIXES[unit[1].upper()]

    def shown(size: re.Match[str]) -> str:
        digits = Decimal(10) ** (Decimal(size[1]) / each).adjusted() / 1000  # four of them, rounded up
        value = (Decimal(size[1]) / each / digits).to_integral_value(ROUND_CEILING) * digits
        return f"{value.normalize():f}{unit[1]}"

    return re.sub(r"\b([1-9][0-9]*) bytes\b", shown, text)


def show_words(words: float) -> str:
    """Words as text for people, with separated thousands: `1 234 567`."""
    return f"{round(words):,}".replace(",", " ")

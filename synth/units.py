"""Sizes and counts as people write them: `16GiB`, `64M`, `1:4096`."""

from __future__ import annotations

import re

from synth.errors import UsageError

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
    match = re.fullmatch(r"\s*([0-9]{1,20}(?:\.[0-9]{1,9})?)\s*([A-Za-z]{0,3})\s*", text)
    if not match or match[2].upper() not in SUFFIXES:
        raise UsageError(
            f"{text!r} is no size in bytes; write a number with K, M, G, T, KiB, MiB, GiB or TiB, e.g. 16GiB"
        )
    size = (
        int(float(match[1]) * SUFFIXES[match[2].upper()])
        if "." in match[1]
        else int(match[1]) * SUFFIXES[match[2].upper()]
    )
    if size < 1:
        raise UsageError(f"{text!r} is less than one byte; write a larger size")
    return size


def show_bytes(size: int) -> str:
    """For people, in binary units: `1.5 MiB`."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{size} B" if unit == "B" else f"{value:.4g} {unit}"


def show_words(words: float) -> str:
    """For people, with thousands separated: `1 234 567`."""
    return f"{round(words):,}".replace(",", " ")

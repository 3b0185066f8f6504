"""A bound of calls: kept, exceeded, and exceeded where the block hides it."""

from __future__ import annotations

import contextlib
import sys

import pytest
from counted_work import at_most


@at_most(calls=40)
def few() -> None:
    for _ in range(10):
        "a".upper().lower()


@at_most(calls=20)
def more() -> None:
    for _ in range(10):
        "a".upper().lower()


@at_most(calls=1000)
def endless() -> None:
    while True:
        len("a")


@at_most(calls=5)
def hidden() -> None:
    with contextlib.suppress(AssertionError):
        endless()


def test_calls_beyond_the_bound_are_refused() -> None:
    few()
    with pytest.raises(AssertionError, match="more than 20 calls"):
        more()
    assert sys.getprofile() is None


def test_a_block_without_end_ends() -> None:
    with pytest.raises(AssertionError, match="more than 1000 calls"):
        endless()


def test_a_block_cannot_hide_it() -> None:
    with pytest.raises(AssertionError, match="more than 5 calls"):
        hidden()

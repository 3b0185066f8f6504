"""Messages go through the logger "synth": to standard error, or to what the user has set up."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from synth.runtime.grid.log import LOG


@contextmanager
def no_handlers() -> Iterator[None]:
    """As in a program that sets up no logging; pytest does."""
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    try:
        yield
    finally:
        root.handlers = before


def test_a_message_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    with no_handlers():
        LOG.info("layer: gathered")
        LOG.debug("not asked for")
    out, said = capsys.readouterr()
    assert (out, said) == ("", "layer: gathered\n")


def test_a_user_who_logs_gets_it_in_place_of_that(capsys: pytest.CaptureFixture[str]) -> None:
    found = list[str]()

    class Mine(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(f"{record.name} {record.levelname} {record.getMessage()}")

    with no_handlers():
        logging.getLogger().addHandler(Mine())
        LOG.warning("layer: gathered")
    assert found == ["synth WARNING layer: gathered"]
    assert capsys.readouterr().err == ""

"""How many cases a test tries: fewer in a quick run, all with --slow."""

from __future__ import annotations

import os

ALL = "SYNTH_TEST_ALL"  # set by --slow, before the tests are imported


def tried(quick: int, every: int) -> int:
    """Cases without --slow, and with it."""
    return every if os.environ.get(ALL) else quick

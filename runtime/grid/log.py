"""The logger of the package: `logging.getLogger("synth")`."""

from __future__ import annotations

import logging
import sys

LOG = logging.getLogger("synth")


def first_line(error: BaseException) -> str:
    """The first line of what an error says, or its name."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class _Stderr(logging.Handler):
    """Prints records where the user has set up no logging."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        if not logging.getLogger().handlers:
            print(self.format(record), file=sys.stderr, flush=True)


if not LOG.handlers:
    LOG.addHandler(_Stderr())
    LOG.setLevel(logging.INFO)

"""One rank of the benchmark suite, as the fork server of the tests starts it."""

from __future__ import annotations

import sys

from benchmarks.suite.rank import main


def start() -> None:
    """Runs the job; the flags that `run_ranks` adds are those of emitted programs."""
    del sys.argv[sys.argv.index("--report") :]
    main()

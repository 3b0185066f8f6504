"""`synth calibrate --procs P`: a machine file from measurements on the machine at hand.

The fits are those of `machine.measured`.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from synth.base.errors import RunError, UsageError
from synth.machine.measured import machine_text

MOST_RANKS = 64  # on one machine


def calibrate_machine(
    procs: int | None, name: str, repeat: int, timeout: float, seconds: float
) -> str | None:
    """The text of a machine file; None on all ranks but the first.

    With `procs` as many ranks are started here; without, this process is one rank of a run that torchrun or
    srun started. repeat: rounds of measurements; more follow until their medians hold still, for `seconds` at
    most. Raises `UsageError` for a single rank and `RunError` where a rank fails.
    """
    from synth.runtime.grid.launched_job import launched

    if procs is None:
        if launched()[1] < 2:
            raise UsageError("calibrate needs a network file, or --procs P with at least 2 ranks to measure")
        from synth.runtime.program.benchmark import measured

        found = measured(repeat, timeout, seconds)
        return None if found is None else machine_text(found, name)
    if not 2 <= procs <= MOST_RANKS:
        raise UsageError(
            f"--procs {procs}: a machine is measured with 2 to {MOST_RANKS} ranks; "
            "start more with torchrun or srun, without --procs"
        )
    print(f"synth: measuring collectives and kernels on {procs} ranks", file=sys.stderr, flush=True)
    return machine_text(_here(procs, repeat, timeout, seconds), name)


def _here(procs: int, repeat: int, timeout: float, seconds: float) -> dict[str, Any]:
    from synth.launch.launcher import run_folder, started
    from synth.runtime.program import benchmark as measure

    with run_folder("synth-calibrate-") as folder:
        out = folder.path / "found.json"
        flags = ["--out", str(out), "--repeat", str(repeat), "--timeout", str(timeout)]
        flags += ["--seconds", str(seconds)]
        ended = started(["-m", measure.__name__], procs, flags, math.inf, folder=folder, patience=timeout)
        if ended.code != 0 or not out.exists():
            raise RunError(
                f"the calibration on {procs} ranks ended with code {ended.code}: {ended.last_words()}"
            )
        found: dict[str, Any] = json.loads(out.read_text())
    return found

"""Whether this machine can hold and start so many ranks."""

from __future__ import annotations

from synth.base.errors import UsageError
from synth.base.free_memory import available_bytes
from synth.base.units import show_bytes
from synth.runtime.grid.launched_job import usable_cores

TORCH_BYTES = 150 * 10**6  # that only one rank uses: torch 2 without CUDA, measured
LOAD_SECONDS = 1.7  # of processor time in which a rank loads torch, measured
PATIENCE = 20.0  # seconds of loading that need no warning


def require_memory(ranks: int, bytes_each: int) -> None:
    """Raises `UsageError` if the ranks cannot be held in memory. bytes_each: of the plan, per rank."""
    free, each = available_bytes(), TORCH_BYTES + bytes_each
    if free is None or ranks * each <= free:
        return
    most = free // each
    fewer = f"take at most {most}, or " if most else ""
    raise UsageError(
        f"{ranks} ranks need {show_bytes(ranks * each)} of memory, {show_bytes(TORCH_BYTES)} each for torch"
        f" and {show_bytes(bytes_each)} for the plan, but {show_bytes(free)} are available here; {fewer}write"
        " the program with `synth emit --sbatch` and start it on a cluster"
    )


def crawl(ranks: int) -> str:
    """A warning for ranks that share few cores; "" if none is due."""
    cores = usable_cores()
    seconds = ranks * LOAD_SECONDS / cores
    if ranks <= cores or seconds < PATIENCE:
        return ""
    return (
        f"warning: {ranks} ranks share {cores} core{'s' * (cores > 1)}: they take about {seconds:.0f} s to"
        " load torch, and wait for each other in every exchange; times say nothing, so take fewer ranks, or"
        " `synth simulate` for values and words"
    )

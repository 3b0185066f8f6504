"""`synth run`: emits the program of a plan, runs it on ranks of this machine, and checks the outcome.

Three checks. The program compares its own shards and words on every rank (`--check`). This module compares
the assembled shards with one-process torch, and the words that every rank counted with the plan. A
difference is a `CheckError` that names rank, tensor and step. A run that does not end by itself with a result
is a `RunError`. No process and no file is left behind in any case.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synth.base.errors import CheckError, RunError
from synth.base.units import show_bytes, show_words
from synth.codegen.render import render
from synth.launch.launcher import Ended, run_folder, started
from synth.layer.axes import AXES
from synth.planning.plan import Plan
from synth.simulation.interpreter import simulate

STARTUP = 60.0  # seconds that starting the ranks may take, in addition to the timeout
PER_RANK = 5.0  # seconds more for each rank
# glibc returns freed buffers above 32 MiB to the system at once, and the next buffer gets new, zeroed pages:
# convolutions of large activations take up to 1.7 times as long. These variables turn that off. The process
# then never shrinks, and fragmentation can make it larger.
KEEP_FREED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}


@dataclass(frozen=True)
class Outcome:
    """The result of a run that agreed with its plan. Seconds are those of the slowest rank."""

    plan: Plan
    seconds: float
    times: list[float]  # of the timed repetitions
    words: list[dict[str, int]]  # rank -> words received: in, ker, out, halo, total
    difference: float = 0.0  # the largest from a value of one-process torch

    @property
    def median(self) -> float:
        """Seconds of the median repetition."""
        return statistics.median(self.times) if self.times else self.seconds

    def __str__(self) -> str:
        plan, most = self.plan, max(each["total"] for each in self.words)
        size = plan.nest.word_bytes
        idle = plan.procs - plan.used_procs
        return "\n".join(
            [
                f"plan {plan.id} on {plan.used_procs} ranks, grid {plan.grid.shown()}"
                + (f", {idle} idle" if idle else ""),
                f"values  {self._values}",
                f"words   on every rank as planned; at most {show_words(most)} = {show_bytes(most * size)}",
                f"time    {self._timed}",
            ]
        )

    @property
    def _values(self) -> str:
        if not self.difference:
            return "equal to one-process torch, word for word"
        near = f"at most {self.difference:.1g} away, less than 0.5 is allowed"
        return f"equal to one-process torch once rounded to whole numbers ({near})"

    @property
    def _timed(self) -> str:
        runs = len(self.times)
        if not runs:
            return f"{self.seconds:.4f} s on the slowest rank, in one untimed run"
        rate = 2 * self.plan.layer.nest.work * len(self.plan.pass_plans) / self.median / 1e9
        text = f"median {self.median:.4f} s of {runs} run{'s' * (runs > 1)}"
        return f"{text} on the slowest rank, {rate:.2f} GFlop/s"

    def to_json(self) -> dict[str, Any]:
        """The outcome as JSON data."""
        return {
            "schema": "synth.run/1",
            "plan": self.plan.id,
            "procs": self.plan.procs,
            "used_procs": self.plan.used_procs,
            "seconds": self.seconds,
            "times": self.times,
            "median_seconds": self.median,
            "words_per_rank": self.words,
            "values_agree": True,
            "largest_difference": self.difference,
            "words_agree": True,
        }


def run(
    plan: Plan, timeout: float = 60.0, repetitions: int = 3, tune: bool = False, device: str = "auto"
) -> Outcome:
    """Emits, runs and checks the program of a plan.

    timeout: seconds that a rank may wait for another.
    repetitions: timed runs after the checked one.
    device: "cuda" lets ranks share GPUs, "cpu" uses none, "auto" uses GPUs if each rank has one of its own.
    tune: whether to time the forms of the local kernel and use the best; ranks then keep the memory that they
        free (`KEEP_FREED`).
    Raises `RunError` when the run fails or hangs and `CheckError` when values or words disagree.
    """
    with run_folder("synth-run-") as folder:
        program = folder.path / "program.py"
        _write(program, render(plan, command="synth run"))
        reports = folder.path / "reports"
        flags = ["--check", "--report", str(reports), "--save", "--timeout", str(timeout), "--device", device]
        flags += ["--bench", str(repetitions)] if repetitions else []
        flags += ["--tune"] if tune else []
        limit = timeout + STARTUP + PER_RANK * plan.procs
        defaults = KEEP_FREED if tune else None
        ended = started([str(program)], plan.procs, flags, limit, defaults, folder, timeout)
        found = [_report(reports, rank) for rank in range(plan.used_procs)]
        if any(report is None for report in found):
            raise RunError(_failure(plan, ended, found))
        done = [report for report in found if report is not None]
        _check_words(plan, [report["words"] for report in done])
        difference = _check_values(plan, reports)
        if ended.code != 0:
            raise CheckError(_failure(plan, ended, found))
    names = {"In": "in", "Ker": "ker", "Out": "out", "halo": "halo", "total": "total"}
    words = [{names[name]: count for name, count in report["words"].items()} for report in done]
    return Outcome(plan, max(report["seconds"] for report in done), done[0]["times"], words, difference)


def _write(program: Path, text: str) -> None:
    try:
        program.write_text(text, encoding="utf-8")
    except OSError as fault:
        raise RunError(f"{program}: cannot be written ({fault.strerror}); check space and rights") from fault


def _report(folder: Path, rank: int) -> dict[str, Any] | None:
    """What a rank counted; None unless it has written that and its shard."""
    if not Path(folder, f"rank-{rank:05d}.pt").exists():
        return None
    try:
        report: dict[str, Any] = json.loads(Path(folder, f"rank-{rank:05d}.json").read_text())
    except (OSError, ValueError):
        return None
    return report


def _failure(plan: Plan, ended: Ended, found: list[dict[str, Any] | None]) -> str:
    """One sentence that names the ranks without a result and quotes the output."""
    missing = [rank for rank, report in enumerate(found) if report is None]
    ranks = ", ".join(f"{rank} ({_place(plan, rank)})" for rank in missing[:4])
    who = f"ranks {ranks} left no result" if missing else "a check failed"
    who = "no rank left a result" if len(missing) == len(found) else who
    return f"the run of plan {plan.id} ended with code {ended.code}: {who}; it said: {ended.last_words()}"


def _place(plan: Plan, rank: int) -> str:
    """The grid coordinate of a rank along the split axes, as programs print it."""
    at = plan.distribution.at(rank)
    return " ".join(f"{axis}={getattr(at, axis)}" for axis in AXES if getattr(plan.grid, axis) > 1)


def _check_words(plan: Plan, counted: list[dict[str, int]]) -> None:
    """Compares the counted words of every rank and tensor with the plan. Raises `CheckError`."""
    planned = plan.received
    for rank, words in enumerate(counted):
        at = plan.distribution.at(rank)
        for name, expected in planned.at(at).items():
            key = name.capitalize() if name in ("in", "ker", "out") else name
            if words[key] != expected:
                raise CheckError(
                    f"rank {rank} ({at.shown()}) received {words[key]} words of {key}, but {expected} are "
                    f"planned{_first_step(plan, rank, key)}"
                )


def _first_step(plan: Plan, rank: int, tensor: str) -> str:
    """The steps in which the plan has a rank receive words of a tensor."""
    steps = [
        f"{schedule.pass_plan.pass_} {phase} step {step}: {words[rank]}"
        for schedule in plan.schedules
        for (phase, step, name), words in simulate(schedule).steps.items()
        if name == tensor and words[rank]
    ]
    return f" (by step: {'; '.join(steps[:8])})" if steps else ""


def _check_values(plan: Plan, folder: Path) -> float:
    """Compares the shards of all ranks with the layer in one process, element by element.

    Half types must be equal, because their sample values have exact results. Other types may be rounded by
    less than one half (Winograd, vendor kernels), because exact results are whole numbers. Returns the
    largest difference; raises `CheckError`.
    """
    import torch

    from synth.launch.reference import expected

    whole = expected(plan)
    seen = {name: torch.zeros(right.shape, dtype=torch.uint8) for name, right in whole.items()}
    rounded, largest = plan.layer.dtype not in ("float16", "bfloat16"), 0.0
    for rank in range(plan.used_procs):
        shares = torch.load(Path(folder, f"rank-{rank:05d}.pt"), weights_only=True)
        for name, right in whole.items():
            box, values = shares[name]["box"], shares[name]["values"]
            place = tuple(slice(low, high) for low, high in box)
            seen[name][place] += 1
            values = values.to(right.dtype)
            wrong = _wrong(values, right[place], rounded)
            if values.numel():
                largest = max(largest, float((values - right[place]).abs().nan_to_num().max()))
            if wrong.any():
                first = [int(i) + low for i, (low, _) in zip(wrong.nonzero()[0], box, strict=True)]
                at = plan.distribution.at(rank).shown()
                raise CheckError(
                    f"rank {rank} ({at}) computed {int(wrong.sum())} words of {name} wrong, "
                    f"the first at {first}"
                )
    for name, times in seen.items():
        if not bool((times == 1).all()):
            raise CheckError(
                f"the shards of {name} cover some words {int(times.max())} times, or miss some words"
            )
    return largest


def _wrong(values: Any, right: Any, rounded: bool) -> Any:
    """Where values are wrong, NaN included; `rounded` values may be near the exact whole numbers.

    Where NaN is expected, in the filler of residue classes, nothing is wrong.
    """
    wrong = ~((values - right).abs() < 0.5) if rounded else values != right
    return wrong & ~right.isnan()

"""The command line of an emitted program: run it, check it, time it, write a report."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist

from synth.runtime.grid.boxes import Box
from synth.runtime.grid.launched_job import reason_of, say
from synth.runtime.grid.process_grid import place_at
from synth.runtime.grid.word_counter import TrafficCounter
from synth.runtime.kernels.autotune import TRIALS
from synth.runtime.kernels.context import Context
from synth.runtime.program.check import expected_words, value_fault, word_faults
from synth.runtime.program.report import save_shards, write_report
from synth.runtime.program.world import World, stop, wait_for_all

Tensors = torch.Tensor | tuple[torch.Tensor, ...]


class PlanSummary(NamedTuple):
    """Constants of an emitted program that describe its plan."""

    name: str
    plan: str
    dtype: torch.dtype
    flops: int  # of the whole layer; a multiply-add counts as two
    most: dict[str, int]  # planned words received, of the rank that receives most
    words: dict[int, dict[str, int]]  # the same by rank; see `expected_words`


class Result(NamedTuple):
    """A box of a tensor that a rank computes; `expected()` computes it with torch."""

    name: str
    box: Box
    expected: Callable[[], torch.Tensor]


class RankJob(NamedTuple):
    """What a rank computes: `run(context)` returns its box of every result."""

    run: Callable[[Context], Tensors]
    results: list[Result]


def parse_arguments(
    about: str | None, argv: list[str] | None = None
) -> argparse.Namespace:
    """The flags of an emitted program. `about` is its docstring."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--check",
        action="store_true",
        help="compare with torch and the plan",
    )
    add("--bench", type=int, default=0, metavar="N", help="time N runs")
    add(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="cuda: ranks may share GPUs, over gloo; auto: one GPU per rank, or none",
    )
    add("--tune", action="store_true", help="time variants of the local kernel first")
    add("--report", metavar="DIR", help="write rank-00000.json and so on into DIR")
    add("--save", action="store_true", help="with --report: the results, too")
    add(
        "--timeout",
        type=float,
        default=60,
        metavar="S",
        help="seconds to wait for other ranks",
    )
    args = parser.parse_args(argv)
    if args.bench < 0 or not 0 < args.timeout < 1e9:
        parser.error("--bench and --timeout must be positive")
    if args.save and not args.report:
        parser.error("--save needs --report DIR")
    return args


def run_program(
    args: argparse.Namespace,
    world: World,
    summary: PlanSummary,
    job: RankJob | None = None,
) -> int:
    """Run the job of this rank (None: it has none) as the flags say, then leave.

    Returns the exit code: 0, or 5 if any rank found a fault. An exception ends the
    process with code 6.
    """
    world.context.tuner.enabled = args.tune
    context = world.context.counting(TrafficCounter(finite=args.check))
    try:
        if job is None:  # the others do it as they make their groups
            world.context.process_groups.meet()
        code = _run(args, world, context, summary, job)
        stop(world)
    except Exception as error:
        break_off(world, context, error)
    return code


def _run(
    args: argparse.Namespace,
    world: World,
    context: Context,
    summary: PlanSummary,
    job: RankJob | None,
) -> int:
    traffic = context.traffic
    for _ in range(TRIALS if args.tune and args.bench else 0):
        timed(job, world)  # so that the check is of the kernels that are timed
    values, seconds = timed(job, world, context)
    for each, value in zip(job.results if job else [], values, strict=True):
        traffic.require_finite(each.name, value, "at the end")
    traffic.enter("the check")
    faults = check(world, summary, job, values, traffic) if args.check else []
    times = bench(args.bench, job, world)
    follow(world, traffic, "the gathering of the outcomes")
    outcome = {
        "words": traffic.received(),
        "seconds": seconds,
        "times": times,
        "faults": faults,
    }
    outcomes: list[Any] = [None] * world.size
    dist.all_gather_object(outcomes, outcome)
    most = {name: max(o["words"][name] for o in outcomes) for name in summary.most}
    traffic.enter("the writing of the report")
    if args.report:
        leave_report(args, world, summary, outcome, traffic)
    if args.save and job is not None:
        pairs = zip(job.results, values, strict=True)
        made = {each.name: (each.box, value) for each, value in pairs}
        save_shards(args.report, world.rank, made)
    for fault in faults:
        say(f"rank {world.rank} ({place_at(world.at)}): {fault}", sys.stderr)
    traffic.enter("the barrier at the end")
    wait_for_all(world)
    bad = sum(bool(o["faults"]) for o in outcomes)
    if world.rank == 0:
        slowest = max(o["seconds"] for o in outcomes)
        print_summary(args, world, summary, most, slowest, times, bad)
    return 5 if bad or (args.check and most != summary.most) else 0


def timed(
    job: RankJob | None, world: World, context: Context | None = None
) -> tuple[tuple[torch.Tensor, ...], float]:
    """This rank's results and the seconds they took; all ranks begin together.

    context: counts what arrives; None for a counter that nobody reads.
    """
    context = context or world.context.counting(TrafficCounter())
    follow(world, context.traffic, "the barrier before a run")
    wait_for_all(world)
    begin = time.perf_counter()
    made = () if job is None else job.run(context)
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
    seconds = time.perf_counter() - begin
    return (made,) if isinstance(made, torch.Tensor) else made, seconds


def follow(world: World, traffic: TrafficCounter, stage: str) -> None:
    """Begin a stage; from now on the failure detector reports this counter."""
    traffic.enter(stage)
    if world.watch:
        traffic.started = max(traffic.started, world.watch.traffic.started + 1)
        world.watch.traffic = traffic


def bench(runs: int, job: RankJob | None, world: World) -> list[float]:
    """Seconds of the slowest rank in each of some runs."""
    times = [timed(job, world)[1] for _ in range(runs)]
    if times:
        slowest = torch.tensor(times, dtype=torch.float64, device=world.device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        times = slowest.tolist()
    return times


def check(
    world: World,
    summary: PlanSummary,
    job: RankJob | None,
    values: tuple[torch.Tensor, ...],
    traffic: TrafficCounter,
) -> list[str]:
    """What is wrong with the values and the words of this rank, a sentence each."""
    if job is None:
        return []
    faults = [
        value_fault(each.name, value, each.expected(), each.box)
        for each, value in zip(job.results, values, strict=True)
    ]
    planned = expected_words(summary.words, world.rank)
    return [*filter(None, faults), *word_faults(traffic.received(), planned)]


def leave_report(
    args: argparse.Namespace,
    world: World,
    summary: PlanSummary,
    outcome: dict[str, Any],
    traffic: TrafficCounter,
) -> None:
    """Write this rank's JSON report: what it did, what it received and when."""
    steps = [[*key, received] for key, received in sorted(traffic.steps.items())]
    checked = None if not args.check else not outcome["faults"]
    report = {"plan": summary.plan, "rank": world.rank, "at": world.at, **outcome}
    write_report(args.report, world.rank, {**report, "check": checked, "steps": steps})


def print_summary(
    args: argparse.Namespace,
    world: World,
    summary: PlanSummary,
    most: dict[str, int],
    seconds: float,
    times: list[float],
    bad: int,
) -> None:
    """Print the lines of rank 0. `most` are the measured words, `bad` the bad ranks."""
    shown = " ".join(f"{name} {words}" for name, words in most.items())
    say(
        f"{summary.name}: {world.size} ranks, {seconds:.4f} s;"
        f" words received per rank, at most: {shown}"
    )
    if times:
        median = statistics.median(times)
        rate = summary.flops / median / 1e9
        say(
            f"bench: {len(times)} runs, slowest rank: median {median:.6f} s,"
            f" min {min(times):.6f} s, {rate:.3f} GFlop/s; at most"
            f" {most['total']} words, {most['total'] * summary.dtype.itemsize} bytes"
            " received per rank and run"
        )
    for line in world.context.tuner.report():
        say(f"kernel on rank 0: {line}")
    if not args.check:
        return
    if bad:
        say(f"check: failed on {bad} of {world.size} ranks", sys.stderr)
    elif most != summary.most:
        say(f"check: words differ from the plan's, {summary.most}", sys.stderr)
    else:
        say("check: every shard and every word count is as it should be")


def break_off(world: World, context: Context, error: Exception) -> NoReturn:
    """Print which rank failed, where it was and who is lost, and exit at once."""
    if world.watch:
        world.watch.end(reason_of(error))
    where = f"rank {world.rank} ({place_at(world.at)})"
    what = f"failed, last started {context.traffic.latest}: {reason_of(error)}"
    say(f"{where}: {what}", sys.stderr)
    os._exit(6)

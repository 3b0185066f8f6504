"""One rank of a line: torchrun starts it with a job file and a folder for the results.

First, on fast links, values are compared, and bytes are counted in a separate step. Then rounds are timed. In
each round every contender runs one step, in an order that rotates and reverses. A step lasts from the first
rank's start to the last rank's end, on the clock that all processes of a machine share. Peers that are much
slower in the first rounds, looked at twice, do not run in the others, nor in profiles, so that the possibly
fastest peers run in more rounds.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.suite.contenders.contender import NotApplicableError, Run, Whole
from benchmarks.suite.contenders.ours import Block, ours
from benchmarks.suite.contenders.peers import PEERS
from benchmarks.suite.hosts import while_fast
from benchmarks.suite.profiles import PARTS, shares
from benchmarks.suite.sockets import traffic
from synth.layer.layer import Layer
from synth.planning.plan import Plan
from synth.runtime.kernels.autotune import TRIALS

LOCAL, WIRE = "local kernel", "wire"  # measured beside the contenders, for the efficiency
PROBE = 1 << 23  # bytes that a rank sends to measure the bandwidth
FIRST = 2  # rounds of all contenders; one where fewer are asked for
FAR = 1.5  # times the fastest peer: who takes longer in the first rounds is left out of the others
HOPELESS = 3.0  # times the fastest peer: who takes longer is not looked at again
Step = Callable[[], object]


@dataclass
class Job:
    """A layer on some ranks. plans: work -> label -> plan of ours. seconds: of rounds after the first."""

    layer: Layer
    whole: str  # file of the whole tensors
    plans: dict[str, dict[str, Plan]]
    peers: list[str]
    seconds: float
    rounds: tuple[int, int]  # at least, at most
    profiled: int


def entered(job: Job, work: str, whole: Whole) -> tuple[dict[str, Run], dict[str, str], Block]:
    """Contenders ready to run, the reasons of those that cannot, and the local work of our first plan."""
    training, blocks = work == "training", list[Block]()
    runs, refused = dict[str, Run](), dict[str, str]()
    for label, plan in job.plans[work].items():
        contender, block = ours(job.layer, whole, plan, label)
        runs[label] = Run(contender, whole, training)
        blocks.append(block)
    for name in job.peers:
        try:
            made = PEERS[name](job.layer, whole, training)
            runs[made.name] = Run(made, whole, training)
        except NotApplicableError as error:
            refused[name] = str(error)
    return runs, refused, blocks[0]


def compare(runs: dict[str, Run], whole: Whole) -> None:
    """Checks that all contenders hold torch's values. Raises `SystemExit` with the error, on every rank."""
    for run in runs.values():
        wrong: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(wrong, run.wrong(whole))
        run.forget()
        errors = [f"rank {rank}: {what}" for rank, what in enumerate(wrong) if what]
        if errors:
            raise SystemExit("; ".join(errors))


def tune(runs: dict[str, Run]) -> None:
    """Run steps until all variants of the tuned kernels are timed, every rank on its own block."""
    for run in runs.values():
        for _ in range(TRIALS if run.contender.tuned else 0):
            run.step()
            run.forget()


def counted(step: Step) -> tuple[int, int]:
    """Bytes (sent, received) of one step of this rank, without those of the barriers around it."""
    readings = []
    for job in (lambda: None, step):
        dist.barrier()
        before = traffic()
        job()
        dist.barrier()
        readings.append(traffic().since(before))
    empty, full = readings
    return full.sent - empty.sent, full.received - empty.received


def rounds_for(least: int, most: int, seconds: float, spent: float) -> int:
    """How many rounds of `spent` seconds fit into `seconds`; the same on every rank."""
    rounds = torch.tensor(max(least, min(most, int(seconds / max(spent, 1e-6)))))
    dist.broadcast(rounds, 0)
    return int(rounds)


def profiled(run: Run, times: int) -> dict[str, float]:
    """Fractions of the time, averaged over some steps."""
    taken = []
    for _ in range(times):
        dist.barrier()
        taken.append(shares(run.step))
        run.forget()
    return {part: sum(each[part] for each in taken) / times for part in PARTS} if times else {}


Times = dict[str, list[tuple[float, float]]]  # name -> (start, end) on this rank, per round


def timed(steps: dict[str, Step], runs: dict[str, Run], rounds: int) -> Times:
    """Timed rounds of some steps. Gradients are freed in between, outside the times."""
    names = list(steps)
    times: Times = {name: [] for name in names}
    for turn in range(rounds):
        first = turn // 2 % len(names)
        order = names[first:] + names[:first]
        for name in order if turn % 2 == 0 else reversed(order):
            dist.barrier()
            begin = time.perf_counter()
            steps[name]()
            times[name].append((begin, time.perf_counter()))
            if name in runs:
                runs[name].forget()
    return times


def seconds_of(times: Times) -> dict[str, float]:
    """Name -> the least seconds of a step on the slowest rank; the same on every rank."""
    least = [min(end - begin for begin, end in spans) for spans in times.values()]
    slowest = torch.tensor(least, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return dict(zip(times, slowest.tolist(), strict=True))


def first_rounds(
    steps: dict[str, Step],
    runs: dict[str, Run],
    rounds: int,
    peers: Sequence[str],
    rivals: Sequence[str],
    fastest: float = math.inf,
) -> tuple[Times, dict[str, float], float]:
    """(times, least seconds of every step, the least of rivals) of the first rounds.

    A peer that seems far slower than the fastest rival is looked at again: its first rounds may have found
    memory that the others had just given back. fastest: seconds of rivals that ran before.
    """
    times = timed(steps, runs, rounds)
    seconds = seconds_of(times)
    fastest = min([fastest, *(seconds[name] for name in rivals)])
    again = {name: steps[name] for name in peers if FAR < seconds[name] / fastest <= HOPELESS}
    if again:
        second = timed(again, runs, 1 + rounds)
        times |= {name: spans[1:] for name, spans in second.items()}
        seconds = seconds_of(times)
        fastest = min([fastest, *(seconds[name] for name in rivals)])
    return times, seconds, fastest


def all_rounds(job: Job, work: str, steps: dict[str, Step], runs: dict[str, Run]) -> Times:
    """The first rounds of all contenders, then rounds of ours and of the possibly fastest peers."""
    first = min(FIRST, job.rounds[0])
    peers = [name for name in runs if name not in job.plans[work]]
    rivals = [name for name in peers if work == "training" or not runs[name].contender.copied]
    times, seconds, fastest = first_rounds(steps, runs, first, peers, rivals)
    far = {name for name in peers if seconds[name] > FAR * fastest}
    left = {name: step for name, step in steps.items() if name not in far}
    spent = sum(seconds[name] for name in left)
    least_rounds, most_rounds = (rounds - first for rounds in job.rounds)
    more = timed(left, runs, rounds_for(least_rounds, most_rounds, job.seconds, spent))
    return {name: spans + more.get(name, []) for name, spans in times.items()}


def wire() -> Step:
    """All ranks send to all others at once."""
    size = PROBE // 4 // dist.get_world_size() * dist.get_world_size()
    sent, received = torch.ones(size), torch.empty(size)
    return lambda: dist.all_to_all_single(received, sent)


def measure(job: Job, work: str, whole: Whole) -> dict[str, Any]:
    """Everything that this rank measures of a line."""
    with while_fast(dist.barrier):
        runs, refused, block = entered(job, work, whole)
        compare(runs, whole)
        tune(runs)
        moved = {}
        for name, run in runs.items():
            moved[name] = counted(run.step)
            run.forget()
        extra: dict[str, Step] = {LOCAL: lambda: block.step(work == "training"), WIRE: wire()}
        for step in extra.values():  # to warm up
            step()
    times = all_rounds(job, work, {name: run.step for name, run in runs.items()} | extra, runs)
    most = len(times[LOCAL])
    few = job.profiled if most > job.rounds[0] else min(job.profiled, 1)  # heavy lines take long enough
    shown = {name: few if len(times[name]) == most else 0 for name in runs}
    return {
        "times": times,
        "traffic": moved,
        "profiles": {name: profiled(run, shown[name]) for name, run in runs.items()},
        "refused": refused,
        "copied": {name: run.contender.copied for name, run in runs.items()},
    }


def main() -> None:
    """Measures every line of a job; rank 0 writes `<work>.json`, a list over the ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("job", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    job: Job = pickle.loads(args.job.read_bytes())
    whole = torch.load(job.whole, mmap=True)
    for work in job.plans:
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, measure(job, work, whole))
        if dist.get_rank() == 0:
            (args.folder / f"{work}.json").write_text(json.dumps(found))
    leave()


def leave() -> None:
    """End all process groups: one that lives on aborts the exit if its threads free a tensor."""
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

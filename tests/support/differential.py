"""Differential testing: random problems are planned, interpreted for all ranks, and compared with torch.

    export PYTHONPATH=tests/support/problems:tests/support/on_ranks
    python tests/support/differential.py --count 20000 --seed 0 --jobs 2
    python tests/support/differential.py --count 0 --ranks 200

Compared are all values, the words of every rank and tensor with the plan's formula, and the most words
that any rank holds with what is planned and with the limit; with `--ranks`, the emitted programs on real
gloo ranks as well. Problem number i of a seed is always the same. Problems that fail are added to a corpus
(`tests/data/differential.jsonl`), which `test_differential.py` tries again in every run.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from program_batch import run_programs
from ranks import fork_server
from rich.progress import track
from seeded_problems import random_problem

from synth.base.errors import CheckError, InfeasibleError
from synth.launch.reference import expected, shapes
from synth.layer.passes import WRITES, role_name
from synth.layer.residue_classes import into_classes
from synth.planning.plan import Plan
from synth.simulation.interpreter import simulate
from synth.simulation.verify import verify

CORPUS = Path(__file__).parents[1] / "data" / "differential.jsonl"


def checked(made: Plan) -> None:
    """Raises `CheckError` where the interpreted plan differs from torch or from what it says of itself."""
    right = expected(made)
    received: collections.Counter[tuple[str, int]] = collections.Counter()
    for schedule in made.schedules:
        verify(schedule, made.limit_words)
        pass_plan = schedule.pass_plan
        role = role_name(pass_plan.pass_, WRITES[pass_plan.pass_])
        outcome = simulate(schedule, *(stored(made, tensor) for tensor in pass_plan.reads))
        whole = right[role].numpy().ravel()
        real = ~np.isnan(whole)  # filler of residue classes has no value
        if outcome.out is None or not np.array_equal(outcome.out.ravel()[real], whole[real]):
            raise CheckError(f"{role} differs from torch's")
        if max(outcome.peak) > made.used_words:
            raise CheckError(f"a rank holds {max(outcome.peak)} words, {made.used_words} are planned")
        for name, words in outcome.received.items():
            received.update({(name, rank): n for rank, n in enumerate(words)})
    for rank in made.distribution.ranks:
        planned = made.received.at(made.distribution.at(rank))
        counted = {name: received[name, rank] for name in planned}
        if counted != planned:
            raise CheckError(f"rank {rank} receives {counted}, planned are {planned}")
    if made.limit_words is not None and made.used_words > made.limit_words:
        raise CheckError(f"{made.used_words} words are planned, {made.limit_words} allowed")
    if made.bound.words > made.words["total"]:
        raise CheckError(f"{made.words['total']} words are planned, at least {made.bound.words} move")


def stored(made: Plan, tensor: Any) -> Any:
    """The sample values of a tensor in storage order, of In only the rows that are read, as float64."""
    import torch

    from synth.runtime.program.sample_data import sample

    shape = shapes(made.layer)[tensor]
    places = [list(range(n)) for n in shape]
    if tensor == "In" and made.layer.kind != "matmul":
        axes = made.layer.spatial_axes
        for dim, axis in enumerate(axes, len(shape) - len(axes)):
            window = made.layer.nest.windows[axis]
            places[dim] = [window.source(row) for row in range(window.size)]
    name = "dOut" if tensor == "Out" else tensor
    values = sample(name, shape, places, torch.float64, torch.device("cpu"))
    return into_classes(made.nest, tensor, values.numpy().reshape(made.layer.nest.shapes[tensor]))


@dataclass(frozen=True)
class Verdict:
    """What became of a problem; `kind` sorts the summary, `fault` is empty where all agrees."""

    number: int
    kind: str
    fault: str = ""


def judged(seed: int, number: int) -> Verdict:
    """One problem, planned and checked; a refusal that names what would do is no fault."""
    problem = random_problem(seed, number)
    kind = f"{problem.layer['kind']} {problem.pass_}"
    try:
        checked(problem.planned())
    except InfeasibleError:
        return Verdict(number, "refused: no such grid")
    except Exception as fault:  # of any kind: the problem is reported and tried again later
        return Verdict(number, kind, f"{type(fault).__name__}: {fault}")
    return Verdict(number, kind)


def _judged(task: tuple[int, int]) -> Verdict:
    return judged(*task)


def _alone() -> None:
    import torch

    torch.set_num_threads(1)


def verdicts(seed: int, numbers: range, jobs: int) -> Iterator[Verdict]:
    """The verdicts of many problems, in any order."""
    tasks = ((seed, number) for number in numbers)
    with fork_server().Pool(jobs, _alone) as pool:
        yield from pool.imap_unordered(_judged, tasks, chunksize=20)


def on_ranks(seed: int, count: int, folder: Path) -> Iterator[Verdict]:
    """Emitted programs of many problems, each on as many real ranks as it was planned for."""
    by_procs: dict[int, list[tuple[int, Plan]]] = {}
    number = 0
    while sum(map(len, by_procs.values())) < count:
        number += 1
        try:
            made = random_problem(seed, -number, 6).planned()
        except InfeasibleError:
            continue
        by_procs.setdefault(made.procs, []).append((number, made))
    for procs, plans in sorted(by_procs.items()):
        faults = run_programs([made for _, made in plans], procs, folder / str(procs))
        for (number, made), fault in zip(plans, faults, strict=True):
            yield Verdict(-number, f"{made.layer.kind} {made.pass_} on {procs} ranks", fault)


def remember(seed: int, failed: list[Verdict]) -> None:
    """Add the problems that failed to the corpus."""
    with CORPUS.open("a", encoding="utf-8") as file:
        for verdict in failed:
            most = 12 if verdict.number >= 0 else 6
            file.write(json.dumps(asdict(random_problem(seed, verdict.number, most))) + "\n")


def main() -> int:
    """Try the problems, print a summary; 1 where any failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=20_000, help="problems to interpret")
    parser.add_argument("--ranks", type=int, default=0, help="problems to run on real ranks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first problem")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    begin, found = time.monotonic(), list[Verdict]()
    numbers = range(args.first, args.first + args.count)
    if numbers:
        found += track(verdicts(args.seed, numbers, args.jobs), "problems", total=len(numbers))
    if args.ranks:
        with tempfile.TemporaryDirectory(prefix="synth-differential-") as folder:
            found += track(on_ranks(args.seed, args.ranks, Path(folder)), "on ranks", total=args.ranks)
    for kind, count in sorted(collections.Counter(each.kind for each in found).items()):
        print(f"{count:7}  {kind}")
    failed = [each for each in found if each.fault]
    for each in failed:
        print(f"problem {each.number} of seed {args.seed}: {each.fault}", file=sys.stderr)
    remember(args.seed, failed)
    print(f"{len(found)} problems, {len(failed)} failures, {time.monotonic() - begin:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""What one rank measures of a network.

First, on fast links: contenders are made, losses compared, and bytes counted. Then every contender runs one
timed step. Peers that take more than `FAR` times as long as the fastest one do not run again, nor our plans
for words, whose bytes are of interest. The others run in rounds, in an order that rotates and reverses.
"""

from __future__ import annotations

import copy
import gc
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import synth
from benchmarks.suite.contenders.contender import NotApplicableError
from benchmarks.suite.hosts import while_fast
from benchmarks.suite.models.contenders import LIMITS, LOCAL, MINE, OURS, Contender, Made, contenders
from benchmarks.suite.models.networks import MODELS
from benchmarks.suite.rank import FAR, Step, Times, counted, first_rounds, leave, rounds_for, timed

CLOSE = 1e-3  # of the loss on one process


def run(name: str, seconds: float, rounds: tuple[int, int], peers: Sequence[str], into: str) -> None:
    """The program of a rank; rank 0 writes a list over the ranks."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, measure(name, seconds, rounds, peers))
    if dist.get_rank() == 0:
        Path(into).write_text(json.dumps(found))
    leave()


def measure(name: str, seconds: float, rounds: tuple[int, int], peers: Sequence[str]) -> dict[str, Any]:
    """Everything that this rank measures of a network. Raises `SystemExit` if our loss is wrong.

    seconds: of the rounds after the first. rounds: the least and the most. peers: names of those that run,
    beside ours; none for all.
    """
    case = MODELS[name]
    if not case.inference:  # for all plans that follow, on links as they are
        synth.parallelize(nn.Conv2d(4, 4, 3), (8, 4, 8, 8))
    torch.manual_seed(0)
    model, batch = case.make(), torch.randn(case.shape)
    loss, words = _on_one_process(model, batch)
    made = contenders(case, model, batch, words)
    asked = peers or [each.name for each in made if each.name not in LIMITS]
    made = [each for each in made if each.whole or each.name in asked]
    measuring = _Measuring(loss, rounds)
    groups = [[each] for each in made] if case.alone else [made]
    for group in groups:
        measuring.run(group, seconds / len(groups))
    return measuring.found | {"statistics": {each.name: each.statistics for each in made}}


def _on_one_process(model: nn.Module, batch: torch.Tensor) -> tuple[float, int]:
    """(the mean of squares of the output, its words), from rank 0 to all ranks."""
    found = [0.0, 0]
    if dist.get_rank() == 0:
        with torch.no_grad():
            out = copy.deepcopy(model)(batch)  # running statistics stay the same on all ranks
        found = [float(out.square().mean()), out.numel()]
    dist.broadcast_object_list(found, 0)
    return found[0], int(found[1])


class _Measuring:
    """The measured numbers of a network, group by group of contenders that share the memory.

    loss: on one process, in training mode: with the statistics of the whole batch.
    """

    def __init__(self, loss: float, rounds: tuple[int, int]) -> None:
        self.loss, self.rounds, self.fastest = loss, rounds, float("inf")
        self.found: dict[str, Any] = {key: {} for key in ("times", "processor", "traffic", "held", "refused")}

    def run(self, group: Sequence[Contender], seconds: float) -> None:
        """Measure some contenders in turns."""
        with while_fast(dist.barrier):
            running = self._started(group)
        if not running:
            return
        spent: dict[str, list[float]] = {name: [] for name in running}
        steps = {name: _clocked(made.step, spent[name]) for name, made in running.items()}
        peers = [name for name in steps if name not in MINE]
        times, least, self.fastest = first_rounds(steps, {}, 1, peers, peers, self.fastest)
        near = {
            name: step
            for name, step in steps.items()
            if name in (OURS, LOCAL) or (name in peers and least[name] <= FAR * self.fastest)
        }
        a_round = sum(least[name] for name in near)
        more: Times = {}
        if near:
            low, high = (each - 1 for each in self.rounds)
            more = timed(near, {}, rounds_for(low, high, seconds, a_round))
        for name in running:
            self.found["times"][name] = times[name] + more.get(name, [])
            self.found["processor"][name] = statistics.median(spent[name])
        del running, steps, near
        gc.collect()

    def _started(self, group: Sequence[Contender]) -> dict[str, Made]:
        """The contenders that can run, after one step, with what they move and hold."""
        running = dict[str, Made]()
        for each in group:
            try:
                made = each.make()
            except NotApplicableError as reason:
                self.found["refused"][each.name] = str(reason)
                continue
            self._compare(each, made)
            made.step()  # makes momenta
            self.found["traffic"][each.name] = counted(made.step)
            self.found["held"][each.name] = made.held()
            running[each.name] = made
        return running

    def _compare(self, contender: Contender, made: Made) -> None:
        """Raises `SystemExit` for another loss than on one process, where the statistics are the same."""
        if contender.statistics == "local":
            return
        total = made.loss().detach()
        if not contender.whole:
            dist.all_reduce(total)
        if abs(float(total) - self.loss) > CLOSE * abs(self.loss):
            raise SystemExit(f"{contender.name}: the loss is {float(total)}, on one process {self.loss}")


def _clocked(step: Step, spent: list[float]) -> Step:
    """A step that notes the seconds of processor time of this process, all threads."""

    def run() -> None:
        begin = time.process_time()
        step()
        spent.append(time.process_time() - begin)

    return run

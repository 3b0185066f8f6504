"""Two forms of one network beside each other on ranks: passes in pairs, their ratios, and a table of these.

Passes alternate, in an order that changes every time. A ratio is that of one pair; the interval is that of
the median, with 95 % confidence.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.machine import describe
from benchmarks.suite.table import markdown

FEWEST, MOST = 5, 60  # pairs


def step_of(net: nn.Module, batch: torch.Tensor, inference: bool) -> Callable[[], None]:
    """A forward pass, or a training step."""
    if inference:

        def forward() -> None:
            with torch.no_grad():
                net(batch)

        return forward
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)

    def train() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(net(batch).square().mean())
        optimizer.step()

    return train


def pairs(
    steps: list[Callable[[], None]],
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
    of: dist.ReduceOp.RedOpType = dist.ReduceOp.MAX,
) -> list[list[float]]:
    """What a clock says of both, pair by pair. of: of the numbers of all ranks."""
    found, begin = list[list[float]](), time.perf_counter()
    while len(found) < FEWEST or (len(found) < MOST and _later(begin, seconds)):
        pair = torch.zeros(2, dtype=torch.float64)
        for which in (0, 1) if len(found) % 2 else (1, 0):
            dist.barrier()
            start = clock()
            steps[which]()
            pair[which] = clock() - start
        dist.all_reduce(pair, of)
        found.append(pair.tolist())
    return found


def _later(begin: float, seconds: float) -> bool:
    """Whether there is time left, by the clock of the first rank."""
    left = torch.tensor(seconds - (time.perf_counter() - begin))
    dist.broadcast(left, 0)
    return float(left) > 0


def interval(ratios: list[float]) -> tuple[float, float]:
    """Where the median is with 95 % confidence: order statistics of a binomial distribution."""
    ordered, size = sorted(ratios), len(ratios)
    outside, place = 0.0, 0
    while place < size // 2:
        outside += 2 * math.comb(size, place) / 2**size
        if outside > 0.05:
            break
        place += 1
    return ordered[max(0, place - 1)], ordered[size - max(1, place)]


def cells(found: list[list[float]], none: str) -> tuple[list[str], float | None]:
    """The cells of a line: both medians, the median of the ratios and its interval; and the ratio.

    none: what is said in place of a ratio where there are no pairs.
    """
    if not found:
        return ["", "", none, ""], None
    ratios = [one / other for one, other in found]
    seconds = [statistics.median(each) for each in zip(*found, strict=True)]
    low, high = interval(ratios)
    middle = statistics.median(ratios)
    return [*(f"{each:.3f}" for each in seconds), f"{middle:.3f}", f"{low:.3f} to {high:.3f}"], middle


def page(title: str, about: str, heads: list[str], rows: list[list[str]], *more: str) -> str:
    """The page of results. about: the text of the script, of which the first lines name it."""
    text = " ".join(about.split("\n\n", 2)[2].split())
    head = f"{describe()}, torch {torch.__version__.partition('+')[0]}, gloo, one thread per rank."
    parts = [f"# {title}", head, text, "\n".join(markdown(heads, rows)), *more]
    return "\n\n".join(parts) + "\n"


def parser(about: str, names: Iterable[str], procs: list[int]) -> argparse.ArgumentParser:
    """The arguments of both scripts. names: of networks. procs: the usual numbers of ranks."""
    made = argparse.ArgumentParser(description=about.splitlines()[0])
    made.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    made.add_argument("--procs", type=int, nargs="+", default=procs)
    made.add_argument("--seconds", type=float, default=20.0, help="of pairs, at least five and at most 60")
    made.add_argument("-o", "--output", type=Path)
    made.add_argument("--into", help=argparse.SUPPRESS)  # what a rank is started with
    return made

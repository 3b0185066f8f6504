"""Some random networks on 2 ranks, beside one process; and what the fuzzer makes of a fault."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from processes import Processes

from benchmarks.judges.cases import EQUAL, WRONG
from benchmarks.network_fuzz.draw import drawn
from benchmarks.network_fuzz.shrink import shrunk
from benchmarks.network_fuzz.trial import Run, compared

SEEDS = 0, 1, 2, 5, 6, 18


@pytest.mark.ranks
def test_some_networks_are_equal(processes: Processes) -> None:
    seeds = map(str, SEEDS)
    command = [sys.executable, "-m", "benchmarks.network_fuzz", "--ranks", "2", "--seeds", *seeds]
    started = processes.start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said, _ = started.communicate(timeout=280)
    assert started.returncode == 0, said
    assert said.startswith(f"{len(SEEDS)} equal"), said


def test_a_number_is_one_network() -> None:
    assert drawn(3) == drawn(3)
    assert len({drawn(n).source for n in SEEDS}) == len(SEEDS)


def test_a_fault_is_seen_and_a_small_network_has_it() -> None:
    """One process stands for ranks that compute another tanh."""
    case = next(each for each in map(drawn, range(99)) if ".tanh()" in each.source and _runs(each))

    def fails(smaller: object) -> bool:
        try:
            right = Run(smaller).run()  # type: ignore[arg-type]
            plain, torch.Tensor.tanh = torch.Tensor.tanh, lambda v: plain(v) * 1.01  # type: ignore[assignment,method-assign]
            try:
                ours = Run(smaller).run()  # type: ignore[arg-type]
            finally:
                torch.Tensor.tanh = plain  # type: ignore[method-assign]
        except Exception:
            return False
        return bool(compared(smaller, ours, right)["verdict"] == WRONG)  # type: ignore[arg-type]

    assert compared(case, Run(case).run(), Run(case).run()) == {"verdict": EQUAL}
    assert fails(case)
    least = shrunk(case, fails, tries=60)
    assert fails(least)
    assert ".tanh()" in least.source
    assert len(least.forward) < len(case.forward)
    assert not fails(replace(least, forward=tuple(line.replace(".tanh()", "") for line in least.forward)))


def _runs(case: object) -> bool:
    try:
        Run(case).run()  # type: ignore[arg-type]
    except Exception:
        return False
    return True

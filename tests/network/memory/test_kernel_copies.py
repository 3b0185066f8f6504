"""What torch's convolutions copy on a CPU: the plan beside torch's allocator, for every instruction set."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from processes import Processes

from synth.layer.passes import Pass
from synth.network.memory.kernel_copies import KernelCall
from synth.network.memory.matrix_columns import windows_at_once
from synth.network.request import NetworkRequest
from synth.runtime.grid.rules.convolution_call import ConvolutionCall
from synth.runtime.grid.rules.processors import SETS, USUAL, Processor, processor_of, this_processor

SCRIPT = Path(__file__).parents[2] / "support/measured_copies.py"
PASSES: tuple[Pass, ...] = ("forward", "backward-data", "backward-filter")
APART = 0.03
BOUNDS = (
    "SSE41",
    "AVX",
    "AVX2",
    "AVX2_VNNI",
    "AVX512_CORE",
    "AVX512_CORE_VNNI",
    "AVX512_CORE_BF16",
    "DEFAULT",
)
# samples, channels, filters, rows, taps, stride, padding, dilation, groups
CASES: dict[str, tuple[Any, ...]] = {
    "stem": (8, 3, 64, (56, 56), 7, 2, 3, 1, 1),
    "few rows": (4, 256, 256, (7, 7), 3, 1, 1, 1, 1),
    "odd channels": (2, 20, 36, (30, 30), 3, 1, 1, 1, 1),
    "thin": (2, 4, 64, (32, 32), 3, 1, 1, 1, 1),
    "head": (2, 64, 3, (32, 32), 3, 1, 1, 1, 1),
    "five taps": (2, 32, 48, (40, 40), 5, 1, 2, 1, 1),
    "pointwise": (4, 128, 512, (14, 14), 1, 1, 0, 1, 1),
    "pointwise, many": (16, 64, 128, (14, 14), 1, 1, 0, 1, 1),
    "projection": (8, 256, 256, (14, 14), 1, 2, 0, 1, 1),
    "strided": (4, 16, 32, (98, 98), 3, 4, 0, 1, 1),
    "grouped": (4, 64, 64, (28, 28), 3, 1, 1, 1, 8),
    "odd groups": (2, 24, 36, (28, 28), 3, 1, 1, 1, 4),
    "depthwise": (4, 64, 64, (33, 33), 3, 1, 1, 1, 64),
    "dilated": (1, 32, 32, (64, 64), 3, 1, 2, 2, 1),
    "dilated far": (1, 64, 64, (96, 96), 3, 1, 4, 4, 1),
    "dilated, many rows": (1, 128, 64, (48, 48), 3, 1, 12, 12, 1),
    "dilated groups": (2, 32, 32, (40, 40), 3, 1, 2, 2, 4),
    "dilated depthwise": (4, 64, 64, (33, 33), 3, 1, 2, 2, 64),
    "signal": (4, 64, 64, (2000,), 3, 1, 2, 2, 1),
    "dilated signal": (4, 64, 64, (4000,), 3, 1, 8, 8, 1),
    "volume": (4, 32, 64, (8, 8, 8), 3, 1, 1, 1, 1),
    "one volume": (1, 32, 32, (24, 24, 24), 3, 1, 1, 1, 1),
    "small volume": (1, 8, 16, (8, 8, 8), 3, 1, 1, 1, 1),
    "thin volume": (2, 4, 16, (20, 20, 20), 3, 1, 1, 1, 1),
    "strided volume": (2, 16, 32, (20, 20, 20), 3, 2, 1, 1, 1),
}


def kernel_call(case: tuple[Any, ...], pass_: Pass) -> KernelCall:
    """A call of the whole layer."""
    samples, channels, filters, rows, taps, stride, padding, dilation, groups = case
    dims, area = len(rows), taps ** len(rows)
    made = tuple((n + 2 * padding - dilation * (taps - 1) - 1) // stride + 1 for n in rows)
    window = SimpleNamespace(kernel=taps, stride=stride, divisor=1, dilation=dilation, padding=padding)
    windows = dict.fromkeys("dhw"[3 - dims :], window)
    nest: Any = SimpleNamespace(windows=windows, taps=area, extents=SimpleNamespace(g=groups), word_bytes=4)
    words = (
        samples * channels * math.prod(rows),
        filters * channels // groups * area,
        samples * filters * math.prod(made),
    )
    in_, ker, out = (np.array([float(each)]) for each in words)
    each = [(n,) * dims for n in (taps, dilation, stride)]
    call = ConvolutionCall(samples, channels, filters, tuple(rows), made, *each, groups)
    first = words[0] // (rows[-1] if dims == 3 else 1)
    per_group = channels // groups, filters // groups
    return KernelCall(nest, pass_, dims, samples, *per_group, in_, ker, out, first, call)


def planned(case: tuple[Any, ...], pass_: Pass, processor: Processor) -> float:
    """Words that a call copies, with the operand that tells a gradient its shape."""
    call = kernel_call(case, pass_)
    told = {"forward": 0 * call.in_, "backward-data": call.in_, "backward-filter": call.ker}[pass_]
    if call.is_reversed(processor) or (pass_ == "backward-data" and call.is_onednns):
        told = 0 * told
    return float((call.copies(processor) + told)[0])


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.one_in(10)
def test_copies_are_those_of_the_instruction_set(bound: str, processes: Processes) -> None:
    here, bounded = this_processor(), Path("/proc/cpuinfo")
    if here is None or not bounded.exists():
        pytest.skip("the processor is not known")
    caches = {1: here.level1, 2: here.level2}
    processor = processor_of(bounded.read_text(), caches, {"ONEDNN_MAX_CPU_ISA": bound})
    if processor is None or SETS.index(processor.isa) > SETS.index(here.isa):
        pytest.skip(f"this run is bound to {here.isa}")
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": bound, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), json.dumps(list(CASES.values()))]
    process = processes.start(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    said, _ = process.communicate(timeout=300)
    wrong = []
    for (name, case), measured in zip(CASES.items(), json.loads(said), strict=True):
        call = kernel_call(case, "forward")
        held = float((call.in_ + call.ker + call.out)[0])
        for pass_, words in zip(PASSES, measured, strict=True):
            expected = planned(case, pass_, processor)
            if abs(expected - words) > APART * (held + words):
                wrong.append((name, pass_, words, expected))
    assert not wrong, processor


def test_windows_are_copied_some_at_a_time() -> None:
    """What oneDNN 3.12 allocates with a second cache of 2 MiB."""
    sizes = {
        "avx2": (1, 128, 64, (48, 48), (48, 48), (3, 3), (12, 12), (1, 1)),
        "sse41": (2, 64, 3, (32, 32), (32, 32), (3, 3), (1, 1), (1, 1)),
    }
    found = [
        windows_at_once(ConvolutionCall(*call), Processor(isa, 49152, 2**21)) for isa, call in sizes.items()
    ]
    assert found == [385920, 294912]


def test_where_no_processor_is_known_the_plan_holds_for_any() -> None:
    assert NetworkRequest(4).computed_on == USUAL
    one = USUAL[-1]
    assert NetworkRequest(4, processors=(one,)).computed_on == (one,)

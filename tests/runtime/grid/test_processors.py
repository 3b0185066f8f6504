"""The processor of this machine, as oneDNN uses it."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from processes import Processes

from synth.runtime.grid.rules.processors import KIB, Processor, processor_of, this_processor

CAPABLE = "sse4_1 avx avx2 avx_vnni avx512f avx512bw avx512vl avx512dq avx512_vnni avx512_bf16"
CACHES = {1: 48 * KIB, 2: 2048 * KIB}


def known(flags: str = CAPABLE, **environment: str) -> str:
    found = processor_of(f"processor : 0\nflags\t\t: fpu {flags} rdtscp\n", CACHES, environment)
    return "" if found is None else found.isa


@pytest.mark.parametrize(
    ("bound", "isa"),
    [
        ("SSE41", "sse41"),
        ("AVX", "avx"),
        *((name, "avx2") for name in ("AVX2", "avx2", "AVX2_VNNI", "AVX2_VNNI_2")),
        *((f"AVX512_CORE{more}", "avx512") for more in ("", "_VNNI", "_BF16", "_FP16", "_AMX")),
        *((name, "avx512") for name in ("DEFAULT", "ALL", "AVX10_1_512", "no set", "")),
    ],
)
def test_the_environment_bounds_the_set(bound: str, isa: str) -> None:
    assert known(ONEDNN_MAX_CPU_ISA=bound) == isa
    assert known(DNNL_MAX_CPU_ISA=bound) == isa


def test_flags_decide_without_a_bound() -> None:
    assert known() == "avx512"
    assert known(CAPABLE.replace("avx512bw", "")) == "avx2"
    assert known("sse4_1 avx", ONEDNN_MAX_CPU_ISA="AVX512_CORE") == "avx"
    assert known("neon") == ""
    assert processor_of("", {}, {}) is None
    assert processor_of("flags : avx2", {}, {}) == Processor("avx2", 32 * KIB, 512 * KIB)
    assert str(processor_of("flags : avx2", CACHES, {})) == "avx2 48KiB 2048KiB"


@pytest.mark.skipif(this_processor() is None, reason="/proc/cpuinfo has no flags of x86")
def test_onednn_says_the_same_of_this_machine(processes: Processes) -> None:
    program = "import torch; x = torch.ones(1, 16, 8, 8)\nwith torch.backends.mkldnn.verbose(1):\n"
    program += "    torch.mkldnn_convolution(x, torch.ones(16, 16, 3, 3), None, [0, 0], [1, 1], [1, 1], 1)"
    here = this_processor()
    assert here is not None
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = processes.start([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE)
    said, _ = process.communicate(timeout=120)
    text = said.decode() if isinstance(said, bytes) else said
    assert re.search(r",convolution,jit:(\w+),", text), text
    taken = re.findall(r",convolution,jit:([a-z0-9]+)", text)
    assert set(taken) == {here.isa}, text

"""Processors, as oneDNN tells them apart: the instruction set, and a core's caches.

oneDNN chooses the routine of a convolution by these. The choice decides what is copied
(`synth.runtime.grid.rules.onednn_rules`). In float32 the extensions of AVX2 and AVX-512
(VNNI, bfloat16, float16, AMX) make no difference.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import NamedTuple

SETS = "sse41", "avx", "avx2", "avx512"  # ascending
FLAGS = {  # of /proc/cpuinfo, which oneDNN requires
    "sse41": {"sse4_1"},
    "avx": {"avx"},
    "avx2": {"avx2"},
    "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq"},
}
KIB = 1024


class Processor(NamedTuple):
    """An instruction set of `SETS`, and bytes of a core's first and second cache."""

    isa: str
    level1: int
    level2: int

    def __str__(self) -> str:
        """As machine files have it, such as "avx512 48KiB 2048KiB"."""
        return f"{self.isa} {self.level1 // KIB}KiB {self.level2 // KIB}KiB"

    @classmethod
    def usual_of(cls, isa: str) -> tuple[Processor, ...]:
        """Those with an instruction set and usual caches."""
        found = [each for each in USUAL if each.isa == isa] or USUAL
        return tuple(dict.fromkeys(each._replace(isa=isa) for each in found))


# What servers and desktops of x86 have had since 2013. A plan for unknown processors
# holds for all of these. Without AVX2 oneDNN copies more.
USUAL = tuple(
    Processor(isa, level1 * KIB, level2 * KIB)
    for isa, level1, level2 in (
        ("avx2", 32, 256),
        ("avx2", 32, 512),
        ("avx2", 48, 2048),
        ("avx512", 32, 1024),
        ("avx512", 48, 2048),
    )
)


@cache
def this_processor() -> Processor | None:
    """The processor of this machine, as oneDNN uses it; None if it is not known.

    The environment variable ONEDNN_MAX_CPU_ISA bounds the instruction set. oneDNN reads
    it when it first computes.
    """
    return processor_of(_read("/proc/cpuinfo"), _caches(), os.environ)


def processor_of(
    cpuinfo: str, caches: Mapping[int, int], environment: Mapping[str, str]
) -> Processor | None:
    """The processor that the text of /proc/cpuinfo describes; None if it has no flags.

    caches: bytes of a core, by level. One that is not known has the size that oneDNN
    assumes.
    """
    lines = (line.partition(":") for line in cpuinfo.splitlines())
    flags = next(
        (set(said.split()) for word, _, said in lines if word.strip() == "flags"), set()
    )
    found = [isa for isa in SETS if FLAGS[isa] <= flags]
    bound = environment.get("ONEDNN_MAX_CPU_ISA") or environment.get("DNNL_MAX_CPU_ISA")
    most = _set_of(bound or "")
    usable = [isa for isa in found if SETS.index(isa) <= SETS.index(most)]
    if not usable:
        return None
    level1, level2 = caches.get(1, 32 * KIB), caches.get(2, 512 * KIB)
    return Processor(usable[-1], level1, level2)


def _set_of(name: str) -> str:
    """The set of a value of ONEDNN_MAX_CPU_ISA, such as AVX512_CORE_VNNI."""
    name = name.lower()
    if name.startswith("avx2"):
        return "avx2"
    return name if name in SETS else SETS[-1]


def _caches() -> dict[int, int]:
    """Bytes of a core's share of its caches of data, by level."""
    found, folder = dict[int, int](), "/sys/devices/system/cpu/cpu0"
    threads = _count(_read(f"{folder}/topology/thread_siblings_list"))
    with suppress(ValueError, KeyError):
        for index in range(4):
            entry = f"{folder}/cache/index{index}"
            level, kind, size, shared = (
                _read(f"{entry}/{name}").strip()
                for name in ("level", "type", "size", "shared_cpu_list")
            )
            if kind in ("Data", "Unified"):
                unit = {"K": KIB, "M": KIB * KIB}[size[-1]]
                cores = max(1, _count(shared) // threads)
                found[int(level)] = int(size[:-1]) * unit // cores
    return found


def _count(places: str) -> int:
    """The number of processors in a list such as "0-3,8"; 1 for ""."""
    spans = [each.partition("-") for each in places.strip().split(",") if each]
    return sum(int(high or low) - int(low) + 1 for low, _, high in spans) or 1


def _read(path: str) -> str:
    with suppress(OSError), open(path, encoding="utf-8") as file:
        return file.read()
    return ""

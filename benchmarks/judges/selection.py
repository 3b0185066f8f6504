"""Which cases are run: for every name and cut some samples, with tensors that come from elsewhere in each."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from benchmarks.judges.cases import BASES, CUTS, Case
from benchmarks.judges.databases import infos, samples
from benchmarks.judges.embedded import INSIDE, OUTSIDE
from benchmarks.judges.grids import layers
from benchmarks.judges.prepared import prepared

CALLS = {"modules": ("pos", "named"), "operators": ("pos", "method", "in place")}
CALLS["outputs"] = CALLS["operators"]


@dataclass(frozen=True)
class Selection:
    """What is asked for. names: parts of them. each: samples of a name and cut. every: of so many, one."""

    bases: Sequence[str] = BASES
    names: Sequence[str] = ()
    cuts: Sequence[str] = CUTS
    dtypes: Sequence[str] = ("float64",)
    each: int = 1
    every: int = 1

    def groups(self) -> Iterator[tuple[str, str, str]]:
        """Base, name and dtype of all that is asked for."""
        for base in self.bases:
            known = layers() if base == "layers" else infos("modules" if base == "modules" else "operators")
            for name in known:
                if self.wants(name):
                    yield from ((base, name, dtype) for dtype in self.dtypes)

    def wants(self, name: str) -> bool:
        return not self.names or any(each in name for each in self.names)

    def takes(self, case: Case) -> bool:
        """Whether a case is of what is asked for."""
        places = (case.base in self.bases, case.dtype in self.dtypes, self.wants(case.name))
        return all(places) and (case.base == "layers" or case.cut in self.cuts)

    def cases(self, base: str, name: str, dtype: str) -> list[Case]:
        """The cases of a name that torch runs in one process."""
        if base == "layers":
            found = enumerate(layers()[name])
            made = (Case(base, name, n, dtype, each.cut, after=False, ranks=each.ranks) for n, each in found)
            return [case for case in made if self._chosen(str(case))]
        cuts = [cut for cut in self.cuts if self._chosen(f"{base} {name} {dtype} {cut}")]
        return [case for cut in cuts for case in self._of_cut(base, name, dtype, cut)]

    def _chosen(self, text: str) -> bool:
        return zlib.crc32(text.encode()) % self.every == 0

    def _of_cut(self, base: str, name: str, dtype: str, cut: str) -> Iterator[Case]:
        """`each` cases, of samples that lie far apart and differ from those of other cuts."""
        count = len(samples(base, name, dtype))
        made = 0
        for number in _spread(count, zlib.crc32(f"{name} {cut}".encode())):
            if made == self.each:
                return
            turn = zlib.crc32(f"{base} {name} {cut} {number}".encode())
            further = OUTSIDE if base == "outputs" else INSIDE
            case = Case(
                base,
                name,
                number,
                dtype,
                cut,
                further[turn % len(further)],
                CALLS[base][turn // 7 % len(CALLS[base])],
                turn // 21 % 3 != 0 and base != "outputs",
                turn // 63 % 5 != 0 or base != "modules",
            )
            for each in (case, replace(case, call="pos"), replace(case, call="pos", further="buffer")):
                with suppress(Exception):
                    prepared(each)
                    made += 1
                    yield each
                    break


def exists(case: Case) -> bool:
    """Whether the databases and grids still have the sample of a case."""
    if case.base == "layers":
        return case.sample < len(layers().get(case.name, ()))
    known = infos("modules" if case.base == "modules" else "operators")
    return case.name in known and case.sample < len(samples(case.base, case.name, case.dtype))


def _spread(count: int, start: int) -> Iterator[int]:
    """All numbers below `count`, each far from the one before."""
    step = max(1, round(count * 0.382))
    while _common(step, count) > 1:
        step += 1
    yield from ((start + n * step) % count for n in range(count))


def _common(one: int, other: int) -> int:
    while other:
        one, other = other, one % other
    return one

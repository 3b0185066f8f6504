"""The universal bound against its definition, evaluated the slow way: every segment count, every element."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_problems import layers, nests

from synth.base.errors import UsageError
from synth.bounds import universal as bounds
from synth.bounds.holder_brascamp_lieb import weighted_work
from synth.bounds.universal import sequential_bound, universal_bound, water_fill, words_bound
from synth.layer.axes import SPATIAL
from synth.layer.layer import Layer
from synth.layer.nest import Nest
from synth.layer.window import Window


def slowly(sizes: tuple[float, ...], mass: float, cap: int, procs: int, memory: float, piece: int) -> float:
    """The best of all segment counts."""
    return max(
        water_fill(sizes, mass**3 / min(-(-cap // n), piece)) / procs - (n - 1) * memory
        for n in range(1, cap + 1)
    )


@given(
    st.tuples(*[st.integers(1, 5000)] * 3),
    st.integers(1, 400),
    st.integers(1, 30),
    st.floats(0.1, 200),
    st.integers(1, 400),
)
def test_the_best_number_of_segments_is_found_or_one_beside(
    sizes: tuple[int, int, int], cap: int, procs: int, memory: float, piece: int
) -> None:
    mass = float(cap * procs)
    best = slowly(sizes, mass, cap, procs, memory, min(piece, cap))
    words, n, x = words_bound(sizes, mass, cap, procs, memory, min(piece, cap))
    assert best - memory <= words * (1 + 1e-9) + 1e-6  # one segment beside the best, at most
    assert words <= best * (1 + 1e-9) + 1e-6
    assert sum(x) - (n - 1) * memory == pytest.approx(words, rel=1e-9, abs=1e-6)
    alone = words_bound(sizes, mass, cap, procs)
    assert alone[:2] == (pytest.approx(water_fill(sizes, mass**3 / cap) / procs), 1)


@given(nests(), st.integers(1, 6), st.integers(1, 60), st.integers(0, 3))
def test_the_universal_bound_is_its_definition(nest: Nest, procs: int, memory: int, more: int) -> None:
    least = max(1, -(-nest.real_work // procs))
    cap = min(least + more, max(1, nest.real_work))
    mass, sizes = weighted_work(nest, 2 / 3), tuple(map(float, owned_sizes(nest)))
    piece = max(1, nest.real_work // nest.extents.g)
    if nest.real_work and cap <= 3000:
        expected = slowly(sizes, mass, cap, procs, memory, min(cap, piece)) - sum(sizes) / procs
        found = universal_bound(nest, procs, memory, least + more)
        slack = 1e-6 * nest.total_words
        assert max(0.0, expected - memory) - slack <= found.words <= max(0.0, expected) + slack
        assert 1 <= found.segments <= cap
        assert (found.most_work, found.procs, found.accounting) == (cap, procs, "received")
        assert found.resident == pytest.approx(sum(sizes) / procs)
        assert found.kappa == pytest.approx(nest.taps * (mass / nest.real_work) ** 1.5)


def owned_sizes(nest: Nest) -> tuple[int, int, int]:
    """Words of Out and Ker, and of the rows of In that some output reads, padding or not."""
    n = nest.extents
    rows = [touched(nest.windows[axis], getattr(n, axis))[1] for axis in SPATIAL]
    return nest.words["Out"], n.b * n.g * n.c * math.prod(rows), nest.words["Ker"]


def touched(window: Window, out: int) -> tuple[int, int, int]:
    """The same one by one: (output position, tap) pairs whose row is there."""
    met = [
        (position, row, tap)
        for position in range(out)
        for tap in range(window.kernel)
        if 0 <= (row := window.stride * position + window.dilation * tap - window.padding) < window.size
    ]
    positions, rows, taps = zip(*met, strict=True) if met else ((), (), ())
    return len(set(positions)), len(set(rows)), len(set(taps))


@given(layers())
def test_operands_that_take_part_are_counted_one_by_one(layer: Layer) -> None:
    nest, n = layer.nest, layer.nest.extents
    each = {axis: touched(nest.windows[axis], getattr(n, axis)) for axis in SPATIAL}
    for axis in SPATIAL:
        assert bounds._touched(nest.windows[axis], getattr(n, axis)) == each[axis]
    outs, rows, taps = (math.prod(each[axis][i] for axis in SPATIAL) for i in range(3))
    sizes = (n.b * n.g * n.k * outs, n.b * n.g * n.c * rows, n.g * n.k * n.c * taps)
    assert bounds._sizes(nest, "accessed") == tuple(max(1, size) for size in sizes)
    assert bounds._sizes(nest, "received") == owned_sizes(nest)


def test_accessed_words_charge_what_is_owned() -> None:
    nest = Layer.conv2d([2, 3, 6, 6], 4, 3).nest
    accessed = universal_bound(nest, 3, None, None, "accessed")
    assert (accessed.resident, accessed.accounting) == (0.0, "accessed")
    received = universal_bound(nest, 3)
    assert accessed.words == pytest.approx(received.words + received.resident)


def test_sequential_bound_by_hand() -> None:
    """2·√(4·9·1)·100·0.5/√16 - 2·16."""
    assert sequential_bound(100, 0.5, 16, (4, 9, 1)) == pytest.approx(2 * 6 * 100 * 0.5 / 4 - 32)
    assert sequential_bound(100, 1, 25) == pytest.approx(2 * 100 / 5 - 50)


@given(st.floats(0.01, 1e4), st.integers(1, 10**6))
def test_sequential_bound_follows_from_segments_of_equal_work(y: float, limit_words: int) -> None:
    """docs/bounds.md (5): 3·n^(1/3)·W^(2/3) - (n+1)·M words move, for every n."""
    weight = y * limit_words**1.5
    near = max(1, round(y))
    proved = 3 * near ** (1 / 3) * weight ** (2 / 3) - (near + 1) * limit_words
    assert sequential_bound(weight, 1.0, limit_words) <= max(0.0, proved) + 1e-9 * abs(proved)


def test_refusals_name_the_numbers() -> None:
    nest = Layer.matmul(2, 3, 4).nest
    with pytest.raises(UsageError) as fault:
        universal_bound(nest, 0)
    assert str(fault.value) == "A bound needs at least 1 process, not 0."
    with pytest.raises(UsageError) as fault:
        universal_bound(nest, 5, most_work=4)
    assert str(fault.value) == (
        "5 processes of at most 4 multiply-adds cannot do 24; allow at least 5 in each."
    )
    assert universal_bound(nest, 5, most_work=5).most_work == 5

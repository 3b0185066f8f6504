"""The universal bound: its constants, its optimisation, what it may never exceed."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from example_nests import conv, matmul
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis_problems import image_nests, windows

from synth.base.errors import UsageError
from synth.bounds.holder_brascamp_lieb import hbl_constant, kappa2, residues, weighted_work
from synth.bounds.universal import (
    matmul_memory_independent,
    sequential_bound,
    universal_bound,
    water_fill,
    water_fill_point,
    words_bound,
)
from synth.layer.axes import PerAxis
from synth.layer.nest import Nest
from synth.layer.window import Window

positive = st.floats(0.01, 1e6)


@settings(derandomize=True, deadline=None)
@given(
    st.lists(positive, min_size=3, max_size=3), st.floats(1e-3, 1e15), st.lists(st.floats(0.5, 2), min_size=3)
)
def test_water_fill_is_feasible_and_least(floors: list[float], volume: float, factors: list[float]) -> None:
    x = water_fill_point(floors, volume)
    assert all(value >= floor for value, floor in zip(x, floors, strict=True))
    assert math.prod(x) >= volume * (1 - 1e-9)
    other = [max(v * f, floor) for v, f, floor in zip(x, factors, floors, strict=False)]
    if math.prod(other) >= volume:
        assert water_fill(floors, volume) <= sum(other) * (1 + 1e-9)


def test_water_fill_regimes() -> None:
    assert water_fill((3, 2, 1), 5) == 6
    assert water_fill((1, 1, 1), 27) == pytest.approx(9)
    assert water_fill((10, 1, 1), 90) == pytest.approx(10 + 2 * 3)
    assert water_fill((10, 5, 1), 100) == pytest.approx(10 + 5 + 2)


def estimated(n: int, taps: int) -> float:
    """C(N, R) from below, by numpy: alternating maximisation from five random kernels."""
    rng = np.random.default_rng(0)
    shifts = [np.eye(n, n + taps - 1, r) for r in range(taps)]
    best = 0.0
    for _ in range(5):
        h = rng.random(taps)
        for _ in range(40):
            h /= np.linalg.norm(h)
            u, s, v = np.linalg.svd(sum(weight * shift for weight, shift in zip(h, shifts, strict=True)))
            h = np.array([u[:, 0] @ shift @ v[0] for shift in shifts])
        best = max(best, float(s[0]))
    return best


@pytest.mark.parametrize(("n", "taps"), [(2, 2), (9, 2), (3, 3), (5, 3), (30, 3), (4, 4), (9, 4), (40, 4)])
def test_constants_bound_every_kernel_and_are_attained(n: int, taps: int) -> None:
    best = estimated(n, taps)
    assert best * (1 - 1e-12) <= hbl_constant(n, taps) <= best * (1 + 1e-6)
    rng = np.random.default_rng(1)
    for _ in range(300):
        h = rng.normal(size=taps)
        matrix = sum(h[r] / np.linalg.norm(h) * np.eye(n, n + taps - 1, r) for r in range(taps))
        assert np.linalg.norm(matrix, 2) <= hbl_constant(n, taps)


def test_constants_are_symmetric_and_grow() -> None:
    for few in (1, 2, 3, 4):
        values = [hbl_constant(n, few) for n in range(few, 60)]
        assert all(a <= b * (1 + 1e-7) for a, b in itertools.pairwise(values))
        assert values[-1] <= math.sqrt(few)
    assert hbl_constant(3, 9) == hbl_constant(9, 3)
    assert hbl_constant(9, 9) == 3.0  # not certified: √9
    assert hbl_constant(2, 5) == math.sqrt(1 + math.cos(math.pi / 6))
    assert estimated(7, 5) == pytest.approx(1.998319, rel=1e-6)
    with pytest.raises(ValueError, match="at least one"):
        hbl_constant(0, 3)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(windows(10), st.data())
def test_geometric_inequality_on_random_work(window: Window, data: st.DataObject) -> None:
    """Σ over classes of F/C <= √(O·I·K) for any set of real (position, tap) pairs."""
    pairs = [
        (x, tap, row)
        for x in range(window.out)
        for tap in range(window.kernel)
        if 0 <= (row := window.stride * x + window.dilation * tap - window.padding) < window.size
    ]
    assume(pairs)
    chosen = (
        data.draw(st.sets(st.sampled_from(pairs), min_size=1)) if data.draw(st.booleans()) else set(pairs)
    )
    constant = {tap: c for c, taps in residues(window) for tap in taps}
    left = sum(1 / constant[tap] for _, tap, _ in chosen)
    right = math.prod(len({pair[i] for pair in chosen}) for i in range(3))
    assert left <= math.sqrt(right) * (1 + 1e-9)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(image_nests(groups=3))
def test_weights(nest: Nest) -> None:
    assert weighted_work(nest, 0) == pytest.approx(nest.real_work)
    one, two_thirds = weighted_work(nest, 1), weighted_work(nest, 2 / 3)
    assert one <= two_thirds * (1 + 1e-12) <= nest.real_work * (1 + 1e-9)
    if nest.real_work == nest.work:  # no padding
        assert one == pytest.approx(nest.work * kappa2(nest) / nest.taps)
        if nest.strides == 1:  # one residue class: no mix of taps is worse than another
            assert universal_bound(nest, 3).kappa == pytest.approx(kappa2(nest))


@settings(derandomize=True, deadline=None, max_examples=100)
@given(image_nests(groups=3), st.integers(1, 500), st.floats(1, 1e5), st.floats(1, 20), st.floats(1, 3))
def test_more_memory_and_less_balance_never_raise_the_bound(
    nest: Nest, procs: int, memory: float, factor: float, slack: float
) -> None:
    for accounting in ("received", "accessed"):
        tight = universal_bound(nest, procs, memory, accounting=accounting)  # type: ignore[arg-type]
        loose = universal_bound(nest, procs, memory * factor, accounting=accounting)  # type: ignore[arg-type]
        free = universal_bound(nest, procs, accounting=accounting)  # type: ignore[arg-type]
        assert free.words <= tight.words * (1 + 1e-9) + 1e-9
        assert loose.words <= tight.words * (1 + 1e-3) + 1e-9
        most = int(slack * tight.most_work)
        uneven = universal_bound(nest, procs, memory, most, accounting)  # type: ignore[arg-type]
        assert uneven.words <= tight.words * (1 + 1e-3) + 1e-9


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.floats(1, 1e5), st.floats(1, 1e5), st.floats(1, 1e5), st.integers(10**3, 10**7), st.floats(1, 1e4))
@example(1.0, 1.0, 1.0, 10**6, 10.0)
def test_best_number_of_segments(a: float, b: float, c: float, cap: int, memory: float) -> None:
    mass = float(8 * cap)
    words, _, _ = words_bound((a, b, c), mass, cap, 8, memory)
    for n in {*range(1, 200), *(int(1.3**i) for i in range(20, 70))}:
        if n <= cap:
            here = water_fill((a, b, c), mass**3 / -(-cap // n)) / 8 - (n - 1) * memory
            assert here <= words + 1e-3 * abs(words)


def test_bound_is_below_every_assignment_of_a_tiny_layer() -> None:
    """All 2-process partitions of a 1-d layer's work: accessed words of the busier process."""
    window = Window.reduced(3, 2, 1, 1, 0)
    nest = Nest(PerAxis(k=2, w=window.out), Window(1), Window(1), window)
    points = [(k, x, s) for k in range(2) for x in range(window.out) for s in range(2)]

    def touched(part: tuple[tuple[int, int, int], ...]) -> int:
        outs, ins, kers = (
            {(k, x) for k, x, _ in part},
            {x + s for _, x, s in part},
            {(k, s) for k, _, s in part},
        )
        return len(outs) + len(ins) + len(kers)

    for most in range(4, 9):
        bound = universal_bound(nest, 2, most_work=most, accounting="accessed").words
        for size in range(8 - most, 5):
            for part in itertools.combinations(points, size):
                rest = tuple(p for p in points if p not in part)
                assert bound <= (touched(part) + touched(rest)) / 2 + 1e-9


def test_unequal_shares_weaken_the_bound() -> None:
    nest = conv([32, 256, 256, 14, 14, 3, 3, 1, 1])
    fair = universal_bound(nest, 64)
    uneven = universal_bound(nest, 64, most_work=2 * fair.most_work)
    assert uneven.words < fair.words
    assert uneven.x[0] == pytest.approx(fair.x[0] / 2 ** (1 / 3))  # in the 3D regime


def test_groups_count_as_separate_pieces() -> None:
    one = conv([8, 64, 64, 7, 7, 3, 3, 1, 1])
    eight = Nest(one.extents.with_("g", 8), one.d, one.h, one.w)
    assert universal_bound(eight, 8, accounting="accessed").words == pytest.approx(
        universal_bound(one, 1, accounting="accessed").words
    )
    assert universal_bound(eight, 2, accounting="accessed").words == pytest.approx(
        4 * universal_bound(one, 1, accounting="accessed").words
    )


def test_padding_is_not_data() -> None:
    window = Window.reduced(1, 3, 1, 1, 1)  # one row, a 3-tap kernel: two taps only ever meet zeros
    nest = Nest(PerAxis(w=window.out), Window(1), Window(1), window)
    assert universal_bound(nest, 1, accounting="accessed").words == pytest.approx(3)
    assert universal_bound(nest, 1).words == 0.0
    nothing = Window.reduced(1, 1, 2, 1, 1)
    silent = Nest(PerAxis(w=nothing.out), Window(1), Window(1), nothing)
    assert universal_bound(silent, 3, 5).words == 0.0


def test_matmul_special_cases() -> None:
    for m, n, k, procs in ((64, 64, 64, 8), (1000, 10, 7, 3), (300, 200, 5, 40)):
        expected = matmul_memory_independent(m, n, k, procs)
        assert universal_bound(matmul(m, n, k), procs).words == pytest.approx(expected, rel=1e-3)
    assert sequential_bound(10**9, 1, 10**4) == 2 * 10**9 / 100 - 2 * 10**4


def test_errors() -> None:
    nest = matmul(8, 8, 8)
    with pytest.raises(UsageError, match="at least 1"):
        universal_bound(nest, 0)
    with pytest.raises(UsageError, match="allow at least 128 in each"):
        universal_bound(nest, 4, most_work=100)
    assert "words received per process" in str(universal_bound(nest, 4))

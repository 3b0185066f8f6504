"""Cost models of collectives: against the printed equations, against step sums, and against each other."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.papers.printed_numbers import swcaffe
from synth.layer.axes import ROW_MAJOR, PerAxis
from synth.machine.collectives import ALGORITHMS, Group, best, cost
from synth.machine.hierarchy import Compute, Level, Machine
from synth.machine.rank_groups import ORDERS, distinct_orders, group_of, split_over


def machine(q: int, alpha: float, beta1: float, beta2: float, gamma: float = 0.0) -> Machine:
    levels = Level("inner", q, alpha, beta1), Level("outer", None, alpha, beta2)
    return Machine("m", levels, Compute(1e12, gamma=gamma))


def test_swcaffe_equations_at_the_published_point() -> None:
    """n = 232.6 MB, p = 1024, q = 256, 12 GB/s, a quarter of it across: 126 ms become 39 ms."""
    beta = 1 / 12e9
    times = swcaffe(1024, 256, 2e-6, beta, 4 * beta, 232.6e6)
    assert times["all-reduce"] * 1e3 == pytest.approx(126, abs=1)
    assert times["new all-reduce"] * 1e3 == pytest.approx(39, abs=1)
    assert times["all-reduce"] / times["new all-reduce"] == pytest.approx(3.2, abs=0.05)


@given(st.integers(1, 6), st.integers(0, 6), st.floats(0, 1e-4), st.floats(1e-12, 1e-9), st.floats(0, 1e-10))
def test_step_sums_are_the_equations(inner: int, outer: int, alpha: float, beta: float, gamma: float) -> None:
    """Recursive and round-robin, step by step, are Eq. 2 to 6 when p and q are powers of two."""
    p, q, size = 2 ** (inner + outer), 2**inner, 1e7
    where = machine(q, alpha, beta, 4 * beta, gamma)
    group = Group((q, p))
    printed = swcaffe(p, q, alpha, beta, 4 * beta, size, gamma)
    for op, old, new in (
        ("all_reduce", "all-reduce", "new all-reduce"),
        ("reduce_scatter", "reduce-scatter", "new reduce-scatter"),
        ("all_gather", "all-gather", "new all-gather"),
    ):
        assert cost(where, op, size, group, "recursive").seconds == pytest.approx(printed[old])  # type: ignore[arg-type]
        assert cost(where, op, size, group, "round-robin").seconds == pytest.approx(printed[new])  # type: ignore[arg-type]


def test_ring_is_the_textbook_ring() -> None:
    where = machine(4, 1e-6, 1e-10, 1e-10)
    p, size = 12, 1.2e6
    ring = cost(where, "all_reduce", size, Group((4, p)), "ring").seconds
    assert ring == pytest.approx(2 * (p - 1) * (1e-6 + size / p * 1e-10))


@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from(ALGORITHMS))
def test_every_algorithm_moves_the_volume(units: int, inside: int, name: str) -> None:
    """What a rank sends in an all-gather: (p-1)/p of the buffer, wherever the steps run (trees send more)."""
    where, p = machine(inside, 0.0, 1e-10, 1e-10), units * inside
    made = cost(where, "all_gather", 1e6, Group((inside, p)), name)
    volume = 1e6 * (p - 1) / p
    if name == "ring":
        assert max(made.bytes_at) == pytest.approx(volume)
    elif name == "tree":
        assert sum(made.bytes_at) >= volume
    else:
        assert sum(made.bytes_at) == pytest.approx(volume)
        assert made.seconds == pytest.approx(volume * 1e-10)


def test_small_messages_take_few_steps_and_large_ones_the_ring_or_the_hierarchy() -> None:
    where, group = machine(8, 1e-5, 1e-11, 1e-10), Group((8, 256))
    small, large = (best(where, "all_reduce", size, group) for size in (64, 1e9))
    assert small.algorithm in ("recursive", "round-robin", "tree")
    assert large.seconds <= min(cost(where, "all_reduce", 1e9, group, name).seconds for name in ALGORITHMS)
    assert best(where, "all_reduce", 1e9, Group((1, 1))).seconds == 0


def test_links_are_shared_by_the_flows_that_cross() -> None:
    crowded = Machine("m", (Level("node", 4, 0, 1e-11), Level("net", None, 0, 1e-10, links=2)), Compute(1e12))
    alone = group_of(crowded, PerAxis(b=4), ROW_MAJOR, ("b",))
    across = group_of(crowded, PerAxis(b=4, k=4), ROW_MAJOR, ("b",))
    assert alone.units() == [(0, 4)]
    assert across.units() == [(1, 4)]
    made = cost(crowded, "all_gather", 1e6, across, "ring")
    assert made.seconds == pytest.approx(3 * 1e6 / 4 * 1e-10 * 4 / 2)  # 4 groups, 2 links


def test_order_says_which_axes_are_inside_a_node() -> None:
    where, grid = machine(4, 0, 1, 1), PerAxis(b=8, k=4)
    inside = {order: group_of(where, grid, order, ("k",)).inside for order in distinct_orders(grid, ORDERS)}
    assert inside[ROW_MAJOR] == (4, 4)
    assert (1, 4) in inside.values()
    assert group_of(where, PerAxis(b=6, k=3), ROW_MAJOR, ("k",)).inside == (
        2,
        3,
    )  # straddling nodes
    assert split_over(where, 100).size == 100


@given(st.integers(2, 300), st.sampled_from([1e3, 1e6, 1e9]))
def test_no_algorithm_beats_the_bandwidth_bound(p: int, size: float) -> None:
    where = machine(4, 1e-6, 1e-11, 1e-10)
    group = split_over(where, p)
    for name in ALGORITHMS:
        least = size * (p - 1) / p * 1e-11
        assert cost(where, "all_gather", size, group, name).seconds >= least
    assert math.isfinite(best(where, "broadcast", size, group).seconds)

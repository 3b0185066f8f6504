"""Exact choices: shortest path, elimination, mixed-integer program and brute force agree."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.network.solve import evaluate, solve


def _random(seed: int, nodes: int, chain: bool) -> tuple[list[np.ndarray], dict[tuple[int, int], np.ndarray]]:
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 4, nodes)
    costs = [random.integers(0, 20, n).astype(float) for n in sizes]
    edges = set(itertools.pairwise(range(nodes)))
    if not chain:
        edges |= {(a, b) for a in range(nodes) for b in range(a + 2, nodes) if random.random() < 0.3}
        edges |= {(nodes - 1, 0)}  # a pair given the other way round
    return costs, {
        (a, b): random.integers(0, 20, (sizes[a], sizes[b])).astype(float) for a, b in sorted(edges)
    }


def _brute(costs: list[np.ndarray], pairs: dict[tuple[int, int], np.ndarray]) -> float:
    return min(evaluate(costs, pairs, each) for each in itertools.product(*(range(len(c)) for c in costs)))


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(2, 6), st.booleans())
def test_elimination_and_path_are_exact(seed: int, nodes: int, chain: bool) -> None:
    costs, pairs = _random(seed, nodes, chain)
    best = _brute(costs, pairs)
    found = solve(costs, pairs, "elimination")
    assert (found.cost, found.gap) == (best, 0.0)
    auto = solve(costs, pairs)
    assert auto.cost == best
    if chain:
        assert auto.method == "shortest path"
        assert solve(costs, pairs, "path").cost == best


def test_a_long_chain_is_the_shortest_path() -> None:
    costs, pairs = _random(5, 400, True)
    found = solve(costs, pairs)
    assert found.cost == solve(costs, pairs, "path").cost == evaluate(costs, pairs, found.chosen)


def test_many_nodes_of_one_option() -> None:
    """All of 80 nodes are joined, more than a table of numpy has dimensions; two of them have a choice."""
    random = np.random.default_rng(3)
    sizes = [3 if n in (7, 60) else 1 for n in range(80)]
    costs = [random.integers(0, 20, size).astype(float) for size in sizes]
    pairs = {
        (a, b): random.integers(0, 20, (sizes[a], sizes[b])).astype(float)
        for a, b in itertools.combinations(range(80), 2)
    }
    for joined in (pairs, {names: table for names, table in pairs.items() if {7, 60} & {*names}}):
        found = solve(costs, joined, "elimination")
        assert found.cost == _brute(costs, joined)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.filterwarnings("ignore")
def test_the_mixed_integer_program_agrees(seed: int) -> None:
    costs, pairs = _random(seed, 5, False)
    found = solve(costs, pairs, "mip")
    assert found.cost == pytest.approx(_brute(costs, pairs))
    assert found.gap <= 1e-3
    assert found.bound <= found.cost + 1e-9

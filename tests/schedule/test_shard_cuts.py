"""How slices are cut among the processes that share them."""

from __future__ import annotations

import math
from itertools import combinations, product

from hypothesis import given
from hypothesis import strategies as st

from synth.base.arithmetic import divisors
from synth.schedule.shard_cuts import member_parts, shard_cut

DIMS = ("c", "g", "b", "h")
EXTENTS = st.lists(st.integers(1, 9), min_size=4, max_size=4).map(lambda n: tuple(zip(DIMS, n, strict=True)))


def least_served(parts: dict[str, int], extents: tuple[tuple[str, int], ...]) -> int:
    return math.prod(extent // parts.get(dim, 1) for dim, extent in extents)


def best_of(members: int, extents: tuple[tuple[str, int], ...], dims: int) -> int:
    """The most words that the least-served member can have when at most `dims` dimensions are cut."""
    best = 0
    for chosen in combinations(DIMS, dims):
        for parts in product(divisors(members), repeat=dims):
            if math.prod(parts) == members:
                best = max(best, least_served(dict(zip(chosen, parts, strict=True)), extents))
    return best


@given(st.integers(1, 5000))
def test_divisors(number: int) -> None:
    assert list(divisors(number)) == [d for d in range(1, number + 1) if number % d == 0]


@given(st.integers(1, 48), EXTENTS)
def test_the_least_served_member_gets_the_most(members: int, extents: tuple[tuple[str, int], ...]) -> None:
    share = shard_cut(members, extents)
    assert math.prod(parts for _, parts in share) == members
    assert len({dim for dim, _ in share}) == len(share) <= 3
    assert least_served(dict(share), extents) == (
        best_of(members, extents, 2) or best_of(members, extents, 3)
    )


def test_the_paper_cuts_c_and_so_does_a_share_where_it_can() -> None:
    assert shard_cut(8, (("c", 64), ("b", 8))) == (("c", 8),)
    assert shard_cut(8, (("c", 3), ("b", 8))) == (("b", 8),)
    assert shard_cut(6, (("c", 3), ("b", 2), ("h", 1))) == (("c", 3), ("b", 2))
    assert shard_cut(1, (("c", 3),)) == ()


@given(st.integers(1, 48), EXTENTS)
def test_members_and_parts_are_in_bijection(members: int, extents: tuple[tuple[str, int], ...]) -> None:
    share = shard_cut(members, extents)
    seen = [tuple(sorted(member_parts(share, index).items())) for index in range(members)]
    assert len(set(seen)) == members
    for parts in seen:
        assert all(0 <= part < count and dict(share)[dim] == count for dim, (count, part) in parts)

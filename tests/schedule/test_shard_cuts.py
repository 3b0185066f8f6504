"""How slices are cut among the processes that share them."""

from __future__ import annotations

import math
from itertools import combinations, product

from hypothesis import given
from hypothesis import strategies as st

import synth
from synth.base.arithmetic import divisors
from synth.layer.layer import Layer
from synth.schedule.shard_cuts import member_parts, shard_cut

DIMS = ("c", "g", "b", "h")
EXTENTS = st.lists(st.integers(1, 9), min_size=4, max_size=4).map(lambda n: tuple(zip(DIMS, n, strict=True)))
Slice = tuple[tuple[str, int], ...]


def least_served(parts: dict[str, int], extents: tuple[tuple[str, int], ...]) -> int:
    return math.prod(extent // parts.get(dim, 1) for dim, extent in extents)


def cut_of(members: int, extents: Slice) -> tuple[tuple[str, int], ...]:
    """The cut of slices that are all equal."""
    return shard_cut(members, tuple((dim, extent, extent) for dim, extent in extents))


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
    share = cut_of(members, extents)
    assert math.prod(parts for _, parts in share) == members
    assert len({dim for dim, _ in share}) == len(share) <= 3
    assert least_served(dict(share), extents) == (
        best_of(members, extents, 2) or best_of(members, extents, 3)
    )


def test_the_paper_cuts_c_and_so_does_a_share_where_it_can() -> None:
    assert cut_of(8, (("c", 64), ("b", 8))) == (("c", 8),)
    assert cut_of(8, (("c", 3), ("b", 8))) == (("b", 8),)
    assert cut_of(6, (("c", 3), ("b", 2), ("h", 1))) == (("c", 3), ("b", 2))
    assert cut_of(1, (("c", 3),)) == ()


def test_every_slice_counts_and_not_the_smallest_alone() -> None:
    """ResNet 1x1 2048 -> 512 at 32 samples on 3 x 5 processes: 10 samples divide by 5, 11 do not."""
    assert shard_cut(5, (("k", 512, 512), ("b", 11, 10))) == (("k", 5),)
    layer = Layer.conv2d([32, 2048, 7, 7], 512, 1)
    assert synth.plan(layer, procs=15).words["total"] == 361_878  # 419,328 with Out cut along samples


@given(st.integers(1, 48), EXTENTS)
def test_members_and_parts_are_in_bijection(members: int, extents: tuple[tuple[str, int], ...]) -> None:
    share = cut_of(members, extents)
    seen = [tuple(sorted(member_parts(share, index).items())) for index in range(members)]
    assert len(set(seen)) == members
    for parts in seen:
        assert all(0 <= part < count and dict(share)[dim] == count for dim, (count, part) in parts)

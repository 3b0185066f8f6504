"""Normalizations on ranks: values of one process, few rounds, and no more words than are planned."""

from __future__ import annotations

import itertools

import pytest
import torch
from norm_ranks import GATHER
from rank_pool import RankPool, pool_of

from synth.runtime.comm.layout import Layout
from synth.runtime.comm.process_groups import ProcessGroups
from synth.runtime.comm.shared_parts import SharedParts, sharing
from synth.runtime.grid.boxes import Box, cut
from synth.runtime.grid.ranks import AbsentRanks
from synth.runtime.layers.norms.rule_norms import norm_step

Parts = tuple[int, ...]  # of each dimension
MAP = (2, 12, 4, 6)


def boxes(whole: tuple[int, ...], parts: Parts) -> tuple[Box, ...]:
    """A grid of boxes over some dimensions."""
    each = [[cut((0, n), p, i) for i in range(p)] for n, p in zip(whole, parts, strict=True)]
    return tuple(itertools.product(*each))


ranks = pool_of(__file__, "norm_ranks.py", 4)


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("kind", "whole", "parts", "most", "rounds"),
    [
        ("group", MAP, (1, 1, 2, 2), 1024, 1),
        ("group", MAP, (1, 1, 2, 2), 0, 2),
        ("group", MAP, (1, 4, 1, 1), 1024, 0),  # a rank has its groups whole
        ("group", MAP, (1, 2, 2, 1), 1024, 1),
        ("group", (2, 12, 4, 6), (4, 1, 1, 1), 1024, 0),  # two ranks have no samples
        ("group", (1, 12, 3, 2), (1, 1, 4, 1), 1024, 1),  # a rank has no rows
        ("instance", MAP, (2, 1, 1, 2), 0, 1),  # two ranks own half of the values each
        ("layer", (2, 5, 12), (1, 1, 4), 1024, 1),
        ("layer", (2, 5, 12), (1, 1, 4), 0, 2),
        ("layer", (2, 6, 12), (1, 2, 2), 1024, 1),
    ],
    ids=str,
)
def test_a_norm_is_one_exchange_and_that_of_one_process(
    kind: str, whole: tuple[int, ...], parts: Parts, most: int, rounds: int, ranks: RankPool
) -> None:
    for found in ranks.call("normalized", kind, whole, boxes(whole, parts), most):
        assert max(found["errors"]) < 1e-9
        assert found["forward"][0] == found["forward"][1]
        kinds = {"all_to_all_single", GATHER, "start_messages"}
        assert len(found["calls"]) == rounds
        assert kinds.issuperset(found["calls"])


@pytest.mark.ranks
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("whole", "parts"),
    [
        ((1, 12, 1, 4), (1, 1, 1, 4)),  # a rank has one position of one sample
        ((1, 12, 4, 1), (1, 1, 4, 1)),
        ((1, 12, 2, 2), (1, 1, 2, 2)),
        ((4, 12, 1, 2), (2, 1, 1, 2)),
        ((2, 12, 1, 2), (2, 2, 1, 1)),
        ((1, 12, 1, 8), (1, 1, 1, 4)),
        ((1, 12, 2, 1), (1, 4, 1, 1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["group", "one group", "instance", "batch"])
@pytest.mark.one_in(4)
def test_one_sample_group_or_position_on_a_rank(
    kind: str, whole: tuple[int, ...], parts: Parts, dtype: torch.dtype, ranks: RankPool
) -> None:
    bound = {torch.float64: 1e-10, torch.float32: 1e-3, torch.bfloat16: 0.2}[dtype]
    for found in ranks.call("gradients", kind, whole, boxes(whole, parts), dtype):
        assert {"weight", "bias", "shard", "values"} <= set(found)
        assert max(found.values()) < bound, found


@pytest.mark.ranks
def test_groups_whose_channels_several_ranks_share(ranks: RankPool) -> None:
    """Channels are cut inside of groups of three: a rank has parts of one group or of two."""
    cuts, whole = [(0, 2), (2, 5), (5, 8), (8, 12)], (1, 12, 4, 6)
    for found in ranks.call("normalized", "group", whole, tuple(((0, 1), c, (0, 4), (0, 6)) for c in cuts)):
        assert max(found["errors"]) < 1e-9
        assert found["forward"][0] == found["forward"][1] > 0
        assert found["calls"] == ["start_messages"]


def test_few_words_go_in_one_round_and_many_in_two() -> None:
    def words(groups: int, procs: int) -> tuple[bool, int]:
        absent = AbsentRanks.numbered(procs)
        held = Layout((1, groups), (((0, 1), (0, groups)),) * procs, absent)
        parts = SharedParts(held, ProcessGroups(absent), lambda _: None)
        return parts.one_round, max(parts.words())

    assert words(32, 4) == (True, 3 * 32)
    assert words(32, 64) == (False, 32 + 62)  # an all-reduce: an owned share is half a group
    assert words(2048, 4) == (False, 2048 + 2 * 512)


def test_only_ranks_with_parts_of_a_group_exchange() -> None:
    absent = AbsentRanks.numbered(8)
    held = Layout((4, 8), boxes((4, 8), (4, 1)) * 2, absent)
    assert sharing(held) == (0, 4)


def test_a_mean_far_above_the_deviation_keeps_its_digits() -> None:
    """Moments of parts are combined without squares of the mean."""
    absent = AbsentRanks.numbered(1)
    whole = (1, 4, 64, 64)
    layout = Layout(whole, (tuple((0, n) for n in whole),), absent)
    plain = torch.nn.GroupNorm(2, 4, affine=False)
    norm = norm_step("groupnorm", plain, layout, ProcessGroups(absent), lambda _: None)
    x = torch.randn(whole) + 1e3
    wanted = torch.nn.functional.group_norm(x.double(), 2)
    assert float((norm(x) - wanted).abs().max()) < 1e-3

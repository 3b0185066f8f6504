"""What networks hold on four real ranks, measured by torch's allocator, is what their plans say."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from memory_ranks import LAYERS
from rank_pool import RankPool, pool_of

APART = 0.05
CASES = [
    *("decoder ", "resnet ", "unet ", "cosmoflow ", "maxima ", "checkpoints ", "nested "),
    *("decoder hk", "resnet c", "cosmoflow dk"),
]
MARKED = [
    pytest.param(case, marks=[pytest.mark.slow] * (case in ("resnet c", "unet ", "nested ")))
    for case in CASES
]


ranks = pool_of(__file__, "memory_ranks.py", 4)


@pytest.mark.ranks
@pytest.mark.parametrize("case", MARKED)
@pytest.mark.one_in(7)
def test_the_peak_of_every_rank_is_planned(case: str, ranks: RankPool) -> None:
    name, axes = case.split(" ")
    if name == "unet" and find_spec("monai") is None:
        pytest.skip("monai is absent; pip install -e '.[models]'")
    for found in ranks.call("measure", name, axes):
        for pass_, (measured, planned) in found.items():
            assert abs(planned / measured - 1) < APART, (pass_, measured, planned)


@pytest.mark.ranks
@pytest.mark.parametrize(
    "case", ["decoder step", "skips step", "volumes step", "strides step", "decoder", "volumes"]
)
@pytest.mark.one_in(6)
def test_the_peak_with_margins_is_planned(case: str, ranks: RankPool) -> None:
    name, *training = case.split(" ")
    for found in ranks.call("measure_margins", name, bool(training)):
        assert found.pop("margins") == (True, True)
        for pass_, (measured, planned) in found.items():
            small = name == "strides" and pass_ == "forward"  # whose copies of a transposed layer are few
            assert 1 - APART < planned / measured < (1.2 if small else 1 + APART), (pass_, measured, planned)


@pytest.mark.ranks
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.one_in(8)
def test_what_the_rank_that_holds_most_of_a_layer_holds_is_planned(layer: str, ranks: RankPool) -> None:
    found = ranks.call("measure_layer", layer)
    for pass_ in found[0]:
        measured, planned = (max(bytes_) for bytes_ in zip(*(each[pass_] for each in found), strict=True))
        assert abs(planned / measured - 1) < APART, (pass_, measured, planned)


@pytest.mark.ranks
def test_a_decoder_needs_a_fifth_of_one_process(ranks: RankPool) -> None:
    for ratio in ranks.call("beside_one_process"):
        assert 0.18 < ratio < 0.23


@pytest.mark.ranks
def test_a_whole_mask_is_freed_before_attention(ranks: RankPool) -> None:
    for ratio, far in ranks.call("beside_mask"):
        assert ratio < 1.6  # a quarter of it, and the scores of two heads twice; 2.5 with all of it
        assert far < 1e-5


@pytest.mark.ranks
def test_buffers_with_a_halo_are_freed_after_each_layer(ranks: RankPool) -> None:
    for after, after_fault, far in ranks.call("rooms_left"):
        assert after == after_fault == 0
        assert far < 1e-4

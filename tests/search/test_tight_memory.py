"""Answers within a tight limit: soon, and the same whatever else is known."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_problems import distributions, small_nests

from synth.layer.axes import TENSORS
from synth.layer.layer import Layer
from synth.planning.derive import plan
from synth.schedule.distribution import Distribution
from synth.search.pass_tilings import choose_tiling
from synth.search.training_step import choose_training_tilings

GUARD = 20  # seconds of processor time on a busy machine; two on a quiet one


def test_a_volume_in_training_within_two_mebibytes() -> None:
    """It took minutes while each choice of reused tensors was tiled on its own."""
    layer = Layer.conv3d((1, 512, 18, 64, 64), 512, 3, padding=(0, 1, 1), dtype="bfloat16")
    start = time.process_time()
    made = plan(layer, 128, 2**21, pass_="training")
    assert time.process_time() - start < GUARD
    assert made.used_bytes <= 2**21
    assert made.words["total"] == 8_841_472


@pytest.mark.slow
def test_a_dilated_signal_within_half_as_much_again_as_it_needs() -> None:
    layer = Layer.conv1d((1, 64, 16384), 64, 2, dilation=512)
    start = time.process_time()
    made = plan(layer, 64, int(1.5 * layer.nest.total_words / 64) * 4)
    assert time.process_time() - start < GUARD
    assert made.words["total"] == 8064


@settings(max_examples=30)
@given(distributions(small_nests(4)), st.floats(0, 1))
def test_a_tiling_is_found_if_it_moves_as_many_words_as_may_be(d: Distribution, share: float) -> None:
    for choose in (choose_tiling, choose_training_tilings):
        ample, least = choose(d, TENSORS, None), choose(d, TENSORS, 1)[1]
        assert ample[0] is not None
        limit = least + int(share * max(0, ample[0].used_words - least))
        best, _ = choose(d, TENSORS, limit)
        assert best is not None
        same, _ = choose(d, TENSORS, limit, most_words=best.words)
        assert same == best
        assert choose(d, TENSORS, limit, most_words=best.words - 1)[0] is None

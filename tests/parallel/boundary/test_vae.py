"""An autoencoder on ranks stands in a pipeline: encode and decode give what one process gives."""

from __future__ import annotations

import pytest
from rank_pool import RankPool, pool_of

pytestmark = pytest.mark.ranks


ranks = pool_of(__file__, "vae_ranks.py", 2)


@pytest.mark.parametrize("outputs", ["whole", "partitioned"])
@pytest.mark.one_in(2)
def test_what_a_pipeline_reads(outputs: str, ranks: RankPool) -> None:
    for distances in ranks.call("pipeline", outputs):
        assert max(distances.values()) < 1e-6, distances  # the model itself rounds to float32


def test_a_model_without_encode_is_refused(ranks: RankPool) -> None:
    for said in ranks.call("refused"):
        assert said == ("Conv2d has no method encode and no decode; give an autoencoder, or use parallelize")


def test_gradients_of_whole_outputs(ranks: RankPool) -> None:
    assert max(ranks.call("gradients")) < 1e-12

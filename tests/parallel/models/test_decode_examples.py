"""The decoders of examples/, small: an image and a causal film on four ranks are those of one process."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from rank_pool import RankPool

DECODE = Path(__file__).parents[3] / "examples/decode.py"
STREAM = DECODE.with_name("film_stream.py")
WIDTHS, CASES = (8, 8, 16, 16), {"image": (9, 7), "video": (3, 7, 5)}  # uneven on four ranks


MEMORY = {"image": "520KB", "video": None}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    with RankPool(DECODE, 4, tmp_path_factory.mktemp("ranks")) as pool:
        yield pool


@pytest.mark.ranks
@pytest.mark.parametrize("kind", CASES)
@pytest.mark.slow
def test_decoders_equal_one_process(kind: str, ranks: RankPool) -> None:
    # cut by input rows a layer moves fewer words and holds more sums; the limit asks for less memory instead
    first, *others = ranks.call("measured", kind, CASES[kind], WIDTHS, 1, MEMORY[kind])
    assert all(other == first for other in others)
    assert first["error"] < 1e-5 * first["largest"]
    assert first["tile error"] > 1e-2 * first["largest"]  # tiles have statistics and attention of their own
    assert first["planned words"] == first["words"] < first["gathered words"]
    assert first["held"] < 0.6 * first["alone"]  # 0.35 where activations are much larger than weights


@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_decoders_of_diffusers(kind: str, ranks: RankPool) -> None:
    if find_spec("diffusers") is None:
        pytest.skip("diffusers is absent; pip install diffusers")
    for found in ranks.call("measured", kind, CASES[kind], WIDTHS, 1, None, True):
        assert found["error"] < 1e-5 * found["largest"]


@pytest.mark.parametrize("path", [DECODE, STREAM], ids=["decode", "film_stream"])
def test_what_a_user_writes_is_short(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    text = source[source.index("def decoded(") :].split("\n\n\n")[0]
    assert "parallelize(" in text
    assert len(text.splitlines()) <= 10


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    with RankPool(STREAM, 2, tmp_path_factory.mktemp("two")) as pool:
        yield pool


@pytest.mark.ranks
def test_a_film_as_a_stream(two: RankPool) -> None:
    """Chunks are the whole film; each moves as many words, and holds as many bytes, as the one before."""
    for found in two.call("measured", (6, 5), 5, 1, (4, 4, 4)):
        assert max(found["error"], found["chunks, one process"]) < 1e-5 * found["largest"]
        assert len({*found["words"][2:]}) == 1
        assert max(found["bytes"][3:]) < 1.2 * found["bytes"][2]  # a thread of gloo may keep a message


@pytest.mark.ranks
@pytest.mark.slow
def test_the_stream_of_diffusers(two: RankPool) -> None:
    if find_spec("diffusers") is None:
        pytest.skip("diffusers is absent; pip install diffusers")
    for found in two.call("measured", (6, 5), 4, 1, (4, 4, 4), True):
        assert found["error"] < 1e-5 * found["largest"]

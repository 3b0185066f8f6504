"""The examples of training and segmentation in small form: four real ranks give what one process gives."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from rank_pool import RankPool, pool_of

import synth
from examples import audio, unet3d

ranks = pool_of(__file__, "training_example_ranks.py", 4)


@pytest.mark.ranks
@pytest.mark.parametrize("checkpoints", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.one_in(2)
def test_a_unet_of_volumes_trains_as_in_one_process(checkpoints: bool, ranks: RankPool) -> None:
    for each in ranks.call("volumes", checkpoints):
        assert each["error"] < 1e-8
        assert each["words"] > 0
        assert each["losses"][-1] < each["losses"][0]


@pytest.mark.ranks
@pytest.mark.slow
def test_the_tutorial_trains_as_in_one_process(ranks: RankPool) -> None:
    printed = Path("docs/tutorial.md").read_text(encoding="utf-8").split("\nlosses ")[1].split("\n")[0]
    for losses, alone in ranks.call("ten_steps"):
        assert losses == pytest.approx(alone, abs=2e-3)  # float32, ten steps of SGD
        assert losses == pytest.approx([float(each) for each in printed.split()], abs=2e-3)


@pytest.mark.ranks
@pytest.mark.slow
def test_a_weather_unet_on_a_mesh_trains_as_in_one_process(ranks: RankPool) -> None:
    found = ranks.call("forecasts")
    for each in found:
        assert each["error"] < 1e-8
        assert each["words"] > 0
    assert found[0]["losses"] == found[1]["losses"] != found[2]["losses"]  # replicas have their own batches


@pytest.mark.ranks
@pytest.mark.slow
def test_an_audio_model_on_packed_documents_trains_as_in_one_process(ranks: RankPool) -> None:
    for found in ranks.call("sounds"):
        assert found["error"] < 1e-8
        assert found["words"][0] == found["words"][1] > 0
        assert not found["leaks"]
        assert (found["gathered"], found["scans"]) == (0, 1)


@pytest.mark.parametrize("length", [1024, pytest.param(65536, marks=pytest.mark.slow)])
def test_words_of_the_audio_model_do_not_depend_on_the_positions(length: int) -> None:
    words = audio.planned(length, 8, length // 64).words.most
    text = Path("examples/README.md").read_text(encoding="utf-8")
    assert f"{words:,} words received per rank and step on 8 ranks" in text


def test_words_of_the_unet_are_those_of_the_table() -> None:
    words = synth.plan_model(unet3d.UNet3d(base=8), (2, 1, 32, 32, 32), 4, objective="words").words.step
    text = Path("examples/README.md").read_text(encoding="utf-8")
    assert f"{words[0]:,} words received per step by rank 0" in text


@pytest.mark.skipif(find_spec("monai") is None, reason="monai is absent; pip install -e '.[models]'")
def test_words_of_the_network_of_monai_are_those_of_the_table() -> None:
    from examples import segment_monai

    plan = synth.plan_model(segment_monai.model_of(), (1, 1, 96, 80, 72), 4, mode="inference")
    text = Path("examples/README.md").read_text(encoding="utf-8")
    assert f"{plan.words.most:,} words received by the busiest rank" in text


@pytest.mark.ranks
@pytest.mark.skipif(find_spec("monai") is None, reason="monai is absent; pip install -e '.[models]'")
def test_a_network_of_monai_segments_as_in_one_process(ranks: RankPool) -> None:
    assert ranks.call("segments") == [0.0] * 4


@pytest.mark.ranks
@pytest.mark.parametrize("cut", ["columns", "samples and rows", "classes"])
def test_losses_of_volumes_that_are_cut_anyhow(cut: str, ranks: RankPool) -> None:
    for errors in ranks.call("losses_of_volumes", cut):
        assert max(errors) < 1e-12


def test_a_plan_of_the_unet_moves_fewer_words_than_cuts_of_space() -> None:
    plan, space = unet3d.compare(32, 16)
    assert plan.lower_bound <= plan.cost < 0.2 * space.cost
    assert plan.memory.most < space.memory.most


@pytest.mark.slow
@pytest.mark.parametrize(
    ("extent", "words", "of_space", "held"),
    [(256, 20.4, 42.2, 0.23), (512, 48.1, 54.1, 1.57), (2048, 286.4, 286.4, 88.44)],
)
def test_figures_of_the_readme(extent: int, words: float, of_space: float, held: float) -> None:
    plan, space = unet3d.compare(extent, 512)
    assert plan.cost / 1e6 == pytest.approx(words, abs=0.05)
    assert space.cost / 1e6 == pytest.approx(of_space, abs=0.05)
    assert plan.memory.most * 4 / 2**30 == pytest.approx(held, abs=0.01)
    text = Path("examples/README.md").read_text(encoding="utf-8")
    assert f"| {extent}³ | {words} | {of_space} |" in text

"""Plans for time: measured numbers that are kept, copies of weights, what decides between copy and cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rank_pool import RankPool, exact

from synth.base.errors import UsageError
from synth.machine.file import parse_machine
from synth.machine.measured import machine_text
from synth.network.file import parse_network
from synth.network.planner.planner import plan_network
from synth.network.planner.request import NetworkRequest
from synth.parallel.fast_plan import WeightCosts, copied_weights, objective_of
from synth.parallel.machine_here import _read

pytestmark = pytest.mark.ranks

NET = """network: two
input: [8, 16, 16, 16]
layers:
  - conv2d: {out_channels: 16, kernel: 3, padding: 1}
  - conv2d: {out_channels: 256, kernel: 3, padding: 1}
  - conv2d: {out_channels: 256, kernel: 3, padding: 1}
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    with RankPool(
        Path(__file__).with_name("fast_plan_ranks.py"), 4, tmp_path_factory.mktemp("ranks")
    ) as made:
        yield made


@pytest.mark.parametrize(("axes", "words"), [("b", 216), ("bhw", 216), ("ck", 216 // 4)])
def test_copies_of_weights_train_as_in_one_process(ranks: RankPool, axes: str, words: int) -> None:
    found = ranks.call("copied", axes)
    assert [each.pop("words") for each in found] == [words] * 4
    assert not any(each.pop("moved") for each in found)
    exact(found, "loss", "state")


def test_the_machine_is_measured_once(ranks: RankPool, tmp_path: Path) -> None:
    found = ranks.call("fastest", str(tmp_path))
    exact([each["errors"] for each in found], "loss", "state")
    (name,) = found[0]["kept"]
    assert name.startswith("synth/")
    assert "gloo_cpu_float64_4-ranks" in name
    assert all(each["numbers"] == found[0]["numbers"] for each in found)
    machine = parse_machine(machine_text(found[0]["numbers"], "here"), "here")
    assert machine.compute.rate > 1e6
    assert "measuring this machine on 4 ranks" in ranks.said()


def test_a_local_normalization_of_whole_samples_is_that_of_torch(ranks: RankPool) -> None:
    exact(ranks.call("normalized", (8, 3, 5, 5)), "error")


def found(latency: float, bandwidth: float) -> dict[str, Any]:
    """Numbers of four ranks: collectives of 1 ns per byte, all-reduces of 2, after a latency."""
    sizes = 2**12, 2**16, 2**22
    kernels = [{"flops": n, "channels": c, "seconds": n / 1e10} for n in (10**8, 10**9) for c in (16, 64)]
    return {
        **{"ranks": 4, "local": 4, "backend": "gloo", "device": "cpu", "memory": 2**34, "call": 1e-6},
        **{"bandwidth": bandwidth, "gamma": 1e-11, "overlap": 0.0, "kernels": kernels},
        "collectives": [
            {"level": "node", "members": 4, "op": op, "bytes": size, "seconds": latency + 1e-9 * size}
            for op in ("all_gather", "reduce_scatter")
            for size in sizes
        ],
        "all_reduce": [{"bytes": size, "seconds": latency + 2e-9 * size} for size in sizes],
    }


def test_costs_of_a_cut_and_of_a_copied_weight() -> None:
    costs = WeightCosts(found(1e-3, 8e9))
    assert costs.gathered(2**16, 4) == pytest.approx(2 * (1e-3 + 1e-9 * 2**16) + 2**14 / 1e9)
    assert costs.gathered(2**16, 2) < costs.gathered(2**16, 4)
    one_word = (1e-3 + 2e-9 * 2**22) / 2**22  # of an all-reduce of the largest size
    assert costs.copied(2**16, 4) == pytest.approx(2**16 * (one_word + 1e-9))


@pytest.mark.parametrize(
    ("latency", "bandwidth", "few"),
    [(1e-2, 1e12, False), (1e-5, 1e7, True)],
    ids=["slow messages", "slow memory"],
)
def test_weights_are_copied_where_messages_are_slow(latency: float, bandwidth: float, few: bool) -> None:
    numbers = found(latency, bandwidth)
    plan = plan_network(parse_network(NET, "two.yaml"), NetworkRequest(4, training=True, axes="b"))
    machine = parse_machine(machine_text(numbers, "here"), "here")
    saved, copied = copied_weights(plan, machine, WeightCosts(numbers))
    assert (len(copied), saved == 0) == ((0, True) if few else (3, False))
    small = replace(machine, limit_bytes=80 * 2**20)  # a tenth of it holds four copies of the second weight
    _, copied = copied_weights(plan, small, WeightCosts(numbers))
    assert len(copied) == (0 if few else 2)


def test_the_objective_is_time_or_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SYNTH_OBJECTIVE")
    assert objective_of(None) == "time"
    monkeypatch.setenv("SYNTH_OBJECTIVE", "words")
    assert objective_of(None) == "words"
    assert objective_of("time") == "time"
    with pytest.raises(UsageError, match="objective is 'speed'; it must be time or words"):
        objective_of("speed")
    monkeypatch.setenv("SYNTH_OBJECTIVE", "fast")
    with pytest.raises(UsageError, match="environment variable SYNTH_OBJECTIVE is 'fast'"):
        objective_of(None)


@pytest.mark.parametrize("text", ["", "[]", '{"ranks": 4}', "\x00"])
def test_a_file_that_is_no_measurement_is_not_used(text: str, tmp_path: Path) -> None:
    path = tmp_path / "here.json"
    assert _read(path) is None
    path.write_text(text)
    assert _read(path) is None

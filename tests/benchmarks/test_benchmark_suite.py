"""The benchmark suite: every contender has torch's values; sockets count what is planned."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks

from benchmarks.suite.contenders.contender import NotApplicableError
from benchmarks.suite.contenders.kernels import operations, write_whole
from benchmarks.suite.contenders.ours import OURS, TUNED
from benchmarks.suite.contenders.peers import PEERS
from benchmarks.suite.contenders.products import best_grid
from benchmarks.suite.contenders.spatial import best_parts
from benchmarks.suite.hosts import HERE, Hosts, HostsError, network, while_fast
from benchmarks.suite.launch import BenchmarkRequest, planned
from benchmarks.suite.overlap import plans as overlap_plans
from benchmarks.suite.profiles import part_of
from benchmarks.suite.rank import Job
from benchmarks.suite.results import page
from benchmarks.suite.summary import Line, Row, Spread, predicted, summarised
from benchmarks.suite.table import totals, why
from synth.layer.axes import ROW_MAJOR
from synth.layer.layer import Layer
from synth.machine.file import load_machine
from synth.machine.layer_time import LayerTimer
from synth.planning.plan import Plan
from synth.schedule.memory import Footprints

IMAGE = Layer.conv2d((8, 16, 12, 10), 24, 3, padding=1, name="image")
VOLUME = Layer.conv3d((1, 8, 8, 9, 8), 16, 3, padding=1, name="volume")
MATRIX = Layer.matmul(64, 32, 48, name="matrix")
PRODUCTS = {"DTensor column", "DTensor row", "SUMMA"}
SAMPLES = {"DDP", "FSDP2", "DTensor batch"}
ASKED = BenchmarkRequest(("training", "forward"), tuple(PEERS), 0.1, (2, 2), profiled=1, objective="words")
SENT = 8_000_000  # bytes
TALK = f"""
import socket, sys, time
if int(sys.argv[1]):
    for attempt in range(100):
        try:
            with socket.create_connection(("10.77.0.1", 5555)) as other:
                other.sendall(bytes(int(sys.argv[1])))
            break
        except OSError:
            time.sleep(0.1)
else:
    with socket.create_server(("10.77.0.1", 5555)) as here:
        other, _ = here.accept()
        begin, got = time.perf_counter(), 0
        while got < {SENT}:
            got += len(other.recv(1 << 20))
        print(time.perf_counter() - begin)
"""
HEADERS = 20_000  # bytes that gloo may add in one step of these small layers


def measured(
    folder: Path, layer: Layer, procs: int, ours: dict[str, dict[str, Plan]], peers: list[str]
) -> dict[str, list[dict[str, Any]]]:
    """What the ranks wrote, by work."""
    write_whole(layer, folder / "whole")
    profiled = int(layer is VOLUME)  # starting the profiler takes longer than a step
    job = Job(layer, str(folder / "whole"), ours, peers, ASKED.seconds, ASKED.rounds, profiled)
    (folder / "job").write_bytes(pickle.dumps(job))
    program = "from benchmark_suite_ranks import start\n\nstart()\n"
    outcome = run_ranks(program, procs, folder, str(folder / "job"), str(folder))
    assert set(outcome.codes) == {0}, "\n".join(outcome.output)
    return {work: json.loads((folder / f"{work}.json").read_text()) for work in ours}


def all_lines(folder: Path, layer: Layer, procs: int) -> list[Line]:
    """All contenders on a layer."""
    ours = {work: planned(layer, procs, work, ASKED) for work in ASKED.works}
    plans = {work: dict.fromkeys((OURS, TUNED), plan) for work, plan in ours.items()}
    found = measured(folder, layer, procs, plans, list(PEERS))
    return [summarised(plan, operations(layer), "words", None, found[work]) for work, plan in ours.items()]


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("layer", "procs", "left_out"),
    [(IMAGE, 4, PRODUCTS), (VOLUME, 4, PRODUCTS | SAMPLES), (MATRIX, 4, {"spatial"})],
    ids=lambda value: value.name if isinstance(value, Layer) else "",
)
@pytest.mark.one_in(3)
def test_contenders_have_the_same_values(
    layer: Layer, procs: int, left_out: set[str], tmp_path: Path
) -> None:
    lines = all_lines(tmp_path, layer, procs)  # ranks with other values end with an error
    for line in lines:
        assert set(line.refused) == left_out
        names = {"SUMMA" if row.name.startswith("SUMMA") else row.name for row in line.rows}
        assert names == {OURS, TUNED, *PEERS} - left_out
        assert line.planned <= line.rows[0].received <= line.planned + HEADERS
        assert all(row.seconds.low > 0 for row in line.rows)
        if layer is VOLUME:
            assert [sum(row.profile.values()) for row in line.rows] == pytest.approx([1.0] * len(line.rows))
            assert all(row.profile["kernel"] > 0 for row in line.rows)
    training, forward = ({row.name: row for row in line.rows} for line in lines)
    if layer is IMAGE:  # weights of 3456 words, of which a ring all-reduce brings 2·3/4 to each rank
        weights = 4 * 16 * 24 * 9
        assert 1.5 * weights <= training["DDP"].received <= 1.5 * weights + HEADERS
        assert forward["DDP"].received < 1000  # messages of a barrier to come
        assert 0.75 * weights <= forward["FSDP2"].received <= 0.75 * weights + HEADERS
        assert forward["DDP"].copied == ("Ker",)
        assert lines[1].best is not None
        assert not lines[1].best.copied
    text = page(lines, "some machine", ASKED)
    assert f"| {layer.name} | 4 | training | ours, {lines[0].grid} |" in text


@pytest.mark.ranks
def test_panels_move_the_same_words(tmp_path: Path) -> None:
    made = overlap_plans(MATRIX, 4)
    ranks = measured(tmp_path, MATRIX, 4, {"forward": made}, [])["forward"]
    line = summarised(made["1 panel"], operations(MATRIX), "given grid", None, ranks)
    assert [row.name for row in line.rows] == ["1 panel", "2 panels", "4 panels", "8 panels", "16 panels"]
    for row in line.rows:
        assert line.planned <= row.received <= line.planned + HEADERS


@pytest.mark.ranks
def test_wrong_values_are_reported(tmp_path: Path) -> None:
    """A contender that computes something else ends the run, with its name."""
    import torch

    write_whole(MATRIX, tmp_path / "whole")
    whole = torch.load(tmp_path / "whole")
    whole["dKer"][3, 5] += 1000
    torch.save(whole, tmp_path / "whole")
    plan = planned(MATRIX, 2, "training", ASKED)
    job = Job(MATRIX, str(tmp_path / "whole"), {"training": {"ours": plan}}, ["DDP"], 0.1, (2, 2), 0)
    (tmp_path / "job").write_bytes(pickle.dumps(job))
    program = "from benchmark_suite_ranks import start\n\nstart()\n"
    outcome = run_ranks(program, 2, tmp_path, str(tmp_path / "job"), str(tmp_path))
    assert 0 not in outcome.codes
    assert any("ours: dKer is off by 1e+03" in said for said in outcome.output)


def test_products_by_onednn_are_kernels_in_profiles() -> None:
    assert part_of("mkldnn::_linear_pointwise") == part_of("aten::mm") == "kernel"
    assert part_of("aten::copy_") == "copies"


def test_a_line_that_falls_short_says_why() -> None:
    def row(name: str, seconds: float, moved: int, waiting: float, copied: tuple[str, ...] = ()) -> Row:
        shares = {"kernel": 1 - waiting, "copies": 0.0, "waiting": waiting, "rest": 0.0}
        spreads = Spread.of([seconds]), Spread.of([seconds / 2])
        return Row(name, *spreads, moved, moved // 2, copied, shares, seconds)

    rows = (
        row(OURS, 2.0, 4_000_000, 0.6),
        row(TUNED, 1.0, 4_000_000, 0.6),
        row("filter", 1.0, 3_000_000, 0.5),
        row("DDP", 0.5, 0, 0, ("Ker",)),
    )
    line = Line("some", 4, "forward", "b=4", "words", 10**9, 1_000_000, 5, rows, {}, 0.5, 1e9, 0.25, 2.2)
    assert [rival.name for rival in line.rivals] == ["filter"]  # copies cost nothing in a forward pass
    assert line.short() == [
        "filter takes 0.50 of our time, 1.00 with tuned kernels",
        "2.00 of the planned bytes are received",
        "filter moves 0.75 of our bytes",
        "the local kernels alone would take 0.25 of our time, one after the other 0.25",
    ]
    assert why([line])[-1] == "  Ours loses most in waiting: +0.700 s."
    assert line.error == pytest.approx(0.1)
    training = replace(line, work="training", efficiency=0.9)
    assert training.best is rows[3]
    assert totals([training, line]) == [
        "training: the best peer takes 0.25 of our time in the geometric mean of 1 lines, 0.25 at least; "
        "on 0 it is 0.95 or more.",
        "training, tuned: the best peer takes 0.50 of our time in the geometric mean of 1 lines, "
        "0.50 at least; "
        "on 0 it is 0.95 or more.",
        "forward: the best peer takes 0.50 of our time in the geometric mean of 1 lines, 0.50 at least; "
        "on 0 it is 0.95 or more.",
        "forward, tuned: the best peer takes 1.00 of our time in the geometric mean of 1 lines, "
        "1.00 at least; "
        "on 1 it is 0.95 or more.",
        "The time model is off by 10% of the measured time on average.",
    ]


def test_time_model_of_a_line() -> None:
    """A plan made for a machine has its time; for a plan made for words the time is that of its schedule."""
    lassen = load_machine("lassen")
    timed = planned(IMAGE, 4, "training", replace(ASKED, objective="time", machine="lassen"))
    assert timed.timed is not None
    assert predicted(timed, lassen) == timed.timed[1].seconds
    words = planned(IMAGE, 4, "forward", ASKED)
    (pass_plan,) = words.pass_plans
    timer = LayerTimer(
        lassen, Footprints(words.distribution), ROW_MAJOR, saved=frozenset(), sequence=words.passes
    )
    assert predicted(words, lassen) == timer.passed("forward", pass_plan.stationary, pass_plan.panels).total
    assert predicted(words, None) is None


@pytest.mark.parametrize("work", ["training", "forward"])
def test_the_fewest_words_on_the_fastest_schedule(work: str) -> None:
    words = planned(IMAGE, 8, work, ASKED)
    both = planned(IMAGE, 8, work, replace(ASKED, objective="both", machine="lassen"))
    assert both.grid == words.grid
    assert both.words["total"] == words.words["total"]
    assert both.timed is not None


def test_machine_file_for_some_ranks() -> None:
    assert replace(ASKED, machine="here-{procs}.yaml").machine_for(8) == "here-8.yaml"


@pytest.mark.parametrize(
    ("layer", "procs", "parts"),
    [
        (Layer.conv2d((1, 1, 7, 7), 1, 3, padding=1), 4, (2, 2)),
        (Layer.conv2d((1, 1, 7, 7), 1, 3, padding=1), 8, (2, 4)),
        (Layer.conv3d((1, 1, 64, 64, 64), 1, 3, padding=1), 8, (2, 2, 2)),
        (Layer.conv2d((1, 1, 64, 4), 1, 3, padding=1), 4, (4, 1)),
    ],
)
def test_spatial_cut_has_the_smallest_halo(layer: Layer, procs: int, parts: tuple[int, ...]) -> None:
    assert best_parts(layer, procs) == parts


def test_spatial_cut_that_does_not_exist() -> None:
    with pytest.raises(NotApplicableError, match=r"rows \(4, 4\) cannot be cut into 32 parts"):
        best_parts(Layer.conv2d((1, 1, 4, 4), 1, 3, padding=1), 32)


def test_summa_grid_gathers_the_fewest_words() -> None:
    assert best_grid((2048, 2048, 2048), 8) == (2, 4)
    assert best_grid((32768, 512, 512), 8) == (4, 2)
    with pytest.raises(NotApplicableError, match="7 ranks make no grid"):
        best_grid((64, 64, 64), 7)


def test_a_network_of_hosts_shapes_what_passes() -> None:
    """Two hosts see each other, and what one sends takes the time of its link."""
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("hosts need root and iproute2")
    try:
        with network(2, "400mbit") as hosts:
            talk = [
                subprocess.Popen([*enter, sys.executable, "-c", TALK, str(size)], stdout=subprocess.PIPE)
                for enter, size in zip(hosts.enter, (0, SENT), strict=True)
            ]
            told = [process.communicate(timeout=300)[0] for process in talk]
    except HostsError as error:
        pytest.skip(f"no hosts here: {error}")
    assert 8 * SENT / 400e6 * 0.9 < float(told[0]) < 100
    assert not subprocess.run(["ip", "netns", "list"], capture_output=True, check=True).stdout.count(
        f"synth-{os.getpid()}".encode()
    )


def test_links_are_fast_for_what_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All links of the network, in both directions; then they have their bandwidth again."""
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("hosts need root and iproute2")
    monkeypatch.setenv("RANK", "0")
    met = list[int]()
    try:
        with network(2, "60mbit") as hosts:
            monkeypatch.setenv(*hosts.environment[1])
            switch = f"synth-{os.getpid()}"
            with while_fast(lambda: met.append(1)):
                assert rates(switch) == ["10Gbit"] * 4
            assert rates(switch) == ["60Mbit"] * 4
    except HostsError as error:
        pytest.skip(f"no hosts here: {error}")
    assert len(met) == 3


def rates(switch: str) -> list[str]:
    """The bandwidths of the links of two hosts, at the switch and at the hosts."""
    found = []
    for place in (switch, f"{switch}-0", f"{switch}-1"):
        said = subprocess.run(
            ["tc", "-n", place, "qdisc", "show"], capture_output=True, text=True, check=True
        )
        found += re.findall(r"qdisc tbf .* rate (\w+)", said.stdout)
    return found


def test_without_a_network_there_are_no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SYNTH_BENCHMARK_NETWORK", raising=False)
    with while_fast(lambda: None):
        pass


def test_ranks_are_spread_evenly_over_hosts() -> None:
    hosts = Hosts((("enter", "one"), ("enter", "two")), (), "1gbit")
    first, second = hosts.torchrun("python", 8)
    assert first[:2] == ["enter", "one"]
    assert second[second.index("--nproc-per-node") + 1] == "4"
    assert second[-2:] == ["--node-rank", "1"]
    with pytest.raises(HostsError, match="7 ranks on 2 hosts: as many belong on each"):
        hosts.torchrun("python", 7)
    (alone,) = HERE.torchrun("python", 7)
    assert "--standalone" in alone


@pytest.mark.parametrize(("count", "rate"), [(1, "1gbit"), (4, "fast"), (4, "0gbit"), (4, "1gbit; true")])
def test_a_network_that_cannot_be(count: int, rate: str) -> None:
    with (
        pytest.raises(HostsError, match=r"hosts: a network has 2 to 200|write it like 1gbit"),
        network(count, rate),
    ):
        raise AssertionError

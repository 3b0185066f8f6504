"""`synth calibrate --procs`: the fits, the machine file, and an interrupted calibration."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from fair_clock import FairClock
from hypothesis import given
from hypothesis import strategies as st
from processes import Processes, command_lines

from synth.cli.main import main
from synth.layer.axes import PerAxis
from synth.layer.nest import Nest
from synth.layer.window import Window
from synth.machine.collectives import Group, best, cost
from synth.machine.file import load_machine, parse_machine
from synth.machine.fit import fitted, fitted_by_ratio, unseen
from synth.machine.hierarchy import LARGE, Compute
from synth.machine.layer_time import compute_seconds
from synth.machine.many_groups import ManyGroups
from synth.machine.measured import LevelTimes, machine_text
from synth.machine.rank_groups import ORDERS
from synth.runtime.program.machine_jobs import measured_groups

FOUND = {
    "ranks": 8,
    "local": 4,
    "backend": "gloo",
    "device": "cpu",
    "memory": 2**34,
    "call": 1e-5,
    "bandwidth": 1e10,
    "gamma": 1e-10,
    "fresh": 4e-10,
    "tap": 3e-9,
    "crowd": 1.5,
    "pieces": 0,
    "overlap": 0.25,
    "errors": {"call": 0.01, "bandwidth": 0.02, "gamma": 0.03, "fresh": 0.1, "overlap": 0.2},
}

ONCE = ["calibrate", "--procs", "2", "--repeat", "1", "--seconds", "0"]


@given(st.floats(1e-7, 1e-2), st.floats(1e-12, 1e-7))
def test_an_exact_line_is_found(fixed: float, slope: float) -> None:
    points = [(a, b, a * fixed + b * slope) for a, b in ((1, 1e3), (1, 1e5), (3, 1e6), (7, 2e7))]
    line = fitted(points)
    assert line.factors == pytest.approx((fixed, slope), rel=1e-4)
    assert line.error < 1e-6


def test_no_factor_is_negative() -> None:
    line = fitted([(1, 1e3, 1e-3), (1, 1e6, 0.5e-3)])  # the larger one was faster
    assert line.factors[0] > 0
    assert line.factors[1] == 0


def test_few_channels_are_never_faster_than_many() -> None:
    """Noise may say so; then plans would cut channels for nothing."""
    kernels = [
        {"layer": channels, "flops": n, "bytes": 0, "weights": 0, "channels": channels, "seconds": n / rate}
        for channels, rate in ((64, 5e10), (16, 8e10))
        for n in (1e6, 1e8, 1e9)
    ]
    entry = {"level": "node", "members": 4, "op": "all_gather", "bytes": 2**20, "seconds": 1e-3}
    text = machine_text({**FOUND, "collectives": [entry], "kernels": kernels}, "m")
    compute = parse_machine(text, "m.yaml").compute
    assert compute.rate_of(16) == compute.rate_of(64)


def test_the_file_says_the_processors_of_all_ranks() -> None:
    kernel = {"layer": 1, "flops": 1e9, "bytes": 0, "weights": 0, "channels": 64, "seconds": 0.1}
    entry = {"level": "node", "members": 4, "op": "all_gather", "bytes": 2**20, "seconds": 1e-3}
    found = {**FOUND, "collectives": [entry], "kernels": [kernel]}
    names = ["avx2 32KiB 512KiB", "avx512 48KiB 2048KiB"]
    for number in range(3):
        text = machine_text({**found, "processors": names[:number]}, "m")
        assert list(map(str, parse_machine(text, "m.yaml").processors)) == names[:number]


def test_channels_that_do_not_fill_a_vector_take_as_long_as_those_that_do() -> None:
    facts = {"bytes": 0, "weights": 0}
    kernels = [
        {**facts, "layer": channels, "flops": n, "channels": channels, "seconds": FOUND["call"] + n / rate}
        for channels, rate in ((64, 8e10), (16, 6e10), (4, 2e10))
        for n in (1e6, 1e8, 1e9)
    ]
    entry = {"level": "node", "members": 4, "op": "all_gather", "bytes": 2**20, "seconds": 1e-3}
    text = machine_text({**FOUND, "collectives": [entry], "kernels": kernels}, "m")
    compute = parse_machine(text, "m.yaml").compute
    seconds = {few: few / compute.rate_of(few) for few in range(1, 8)}
    assert all(seconds[few] == pytest.approx(seconds[4], rel=1e-2) for few in range(1, 8))
    assert compute.rate_of(8) == compute.rate_of(31) == pytest.approx(6e10, rel=1e-2)


def test_the_machine_predicts_what_was_measured() -> None:
    """Times made with the model come back from the machine file that is fitted to them."""
    alpha, beta = {"node": 2e-6, "system": 3e-5}, {"node": 1e-10, "system": 1e-9}
    rate, narrow, stream, weights = 5e10, 2e10, 4e9, 2e9
    entries = []
    for name, members in (("node", 4), ("system", 2)):
        for size in (2**12, 2**16, 2**22):
            seconds = (members - 1) * (alpha[name] + size / members * beta[name])
            summing = FOUND["gamma"] * size * (members - 1) / members
            for op, more in (("all_gather", 0.0), ("reduce_scatter", summing)):
                each = {"level": name, "members": members, "op": op, "bytes": size, "seconds": seconds + more}
                entries.append(each)
    kernels = [
        {
            "layer": channels,
            "flops": n,
            "bytes": size,
            "weights": ker,
            "channels": channels,
            "seconds": 1e-5 + n / each + size / stream + ker / weights,
        }
        for channels, each in ((32, rate), (64, rate), (31, narrow))
        for n, size, ker in ((1e6, 1e6, 1e5), (1e8, 1e6, 2e6), (1e9, 8e6, 1e6), (1e7, 3e5, 3e6))
    ]
    machine = parse_machine(
        machine_text({**FOUND, "collectives": entries, "kernels": kernels}, "m"), "m.yaml"
    )
    assert [each.ranks for each in machine.levels] == [4, 8]
    group = Group((4, 4))
    for entry in entries[:6]:
        op = "all_gather" if entry["op"] == "all_gather" else "reduce_scatter"
        found = cost(machine, op, entry["bytes"], group, "ring").seconds
        assert found == pytest.approx(entry["seconds"], rel=1e-2)
    for k, each in ((64, rate), (16, narrow)):
        nest = Nest(PerAxis(b=64, c=64, k=k), *[Window(1)] * 3)
        seconds = 1e-5 + 2 * 64 * 64 * k / each + 4 * (64 * 64 + 64 * k) / stream + 4 * 64 * k / weights
        assert compute_seconds(machine, nest, nest.extents, True) == pytest.approx(seconds, rel=1e-2)
    assert machine.overlap == 0.25
    assert LevelTimes(entries[:6], FOUND["gamma"]).line.error < 1e-6
    errors = machine.errors
    assert errors["kernels"] == pytest.approx(0.0, abs=1e-3)
    assert errors["collectives of system"] == pytest.approx(0.0, abs=1e-3)
    assert [errors[name] for name in ("bandwidth", "gamma", "overlap")] == [0.02, 0.03, 0.2]


def test_pairs_tell_the_latency_of_any_group_from_that_of_messages() -> None:
    """A base, where groups of two sizes were measured; exchanges of messages have it, too."""
    base, alpha, beta = 2e-3, 3e-4, 7e-10
    entries = [
        {
            "level": "node",
            "members": members,
            "op": "all_gather",
            "bytes": size,
            "seconds": base + (members - 1) * (alpha + size / members * beta),
        }
        for members, sizes in ((4, (2**12, 2**16, 2**22)), (2, (2**12, 2**20)))
        for size in sizes
    ]
    kernel = {"layer": 64, "flops": 1e8, "bytes": 0, "weights": 0, "channels": 64, "seconds": 1e-2}
    found = {**FOUND, "ranks": 4, "collectives": entries, "kernels": [kernel] * 4}
    machine = parse_machine(machine_text(found, "m"), "m.yaml")
    for entry in entries:
        group = Group((entry["members"],))
        seconds = cost(machine, "all_gather", entry["bytes"], group, "ring").seconds
        assert seconds == pytest.approx(entry["seconds"], rel=1e-2)
    groups = ManyGroups(machine, np.array([PerAxis(k=2)]), [ORDERS[0]])
    halo = groups.messages(np.array([1e6]), groups.of(("k",)), np.array([2]))
    assert halo == pytest.approx([base + 2 * alpha + 1e6 * beta], rel=1e-2)
    alone = [each for each in entries if each["members"] == 4]
    assert LevelTimes(alone, 0.0).line.factors[1] == 0
    assert LevelTimes(alone, 0.0).line.factors[0] == pytest.approx(alpha + base / 3, rel=1e-2)


def test_a_level_with_groups_of_one_size_has_the_base_of_the_other() -> None:
    """A collective waits for a core once, whatever the links; else messages between pairs would cost more."""
    base, links = 2e-3, {"node": (8e-4, 2e-9), "system": (7e-4, 1e-8)}
    entries = [
        {
            "level": level,
            "members": members,
            "op": "all_gather",
            "bytes": size,
            "seconds": base + (members - 1) * (links[level][0] + size / members * links[level][1]),
        }
        for level, members in (("node", 2), ("system", 4), ("system", 2))
        for size in (2**12, 2**16, 2**20)
    ]
    kernel = {"layer": 64, "flops": 1e8, "bytes": 0, "weights": 0, "channels": 64, "seconds": 1e-2}
    found = {**FOUND, "local": 2, "ranks": 8, "collectives": entries, "kernels": [kernel] * 4}
    machine = parse_machine(machine_text(found, "m"), "m.yaml")
    for level in machine.levels:
        assert (level.alpha, level.beta) == pytest.approx(links[level.name], rel=1e-2)
        assert level.base == pytest.approx(base, rel=1e-2)
    seconds = cost(machine, "all_gather", 2.0**20, Group((2, 8), (1.0, 2.0)), "ring").seconds
    assert seconds == pytest.approx(base + 7 * (7e-4 + 2**17 * 1e-8), rel=2e-2)
    pairs = [each for each in entries if each["level"] == "node"]
    assert LevelTimes(pairs, 0.0).line.factors[:2] == pytest.approx((base + 8e-4, 0), rel=1e-2)
    quick = [{**each, "seconds": 1e-3} for each in pairs]  # no latency is negative
    alpha, less, *_ = LevelTimes(quick, 0.0, 0, base).line.factors
    assert alpha == 0
    assert less < base


@pytest.mark.parametrize(("local", "nodes"), [(1, 2), (2, 1), (4, 1), (1, 4), (2, 4), (6, 3), (3, 6)])
def test_groups_of_two_sizes_are_measured_where_there_are_any(local: int, nodes: int) -> None:
    grid, groups = measured_groups(local, nodes)
    sizes = {name: math.prod(grid[axis] for axis in axes) for name, axes in groups.items()}
    assert math.prod(grid.values()) == local * nodes
    assert {name: sizes.get(name, 1) for name in ("node", "system")} == {"node": local, "system": nodes}
    assert sizes.get("pairs of a node", 0) == (2 if local in (4, 6) else 0)
    assert sizes.get("pairs of nodes", 0) == (2 if nodes in (4, 6) else 0)


@pytest.mark.parametrize("more", [1.5, 0.8])
def test_short_pieces_have_a_beta_of_their_own_where_it_is_larger(more: float) -> None:
    alpha, beta, below, entries = 1e-4, 1e-8, 2**18, []
    for size in (2**12, 2**16, 2**18, 2**20, 2**22):
        share = size / 4
        seconds = 3 * (alpha + share * beta * (more if share < below else 1))
        entries.append({"level": "node", "members": 4, "op": "all_gather", "bytes": size, "seconds": seconds})
    line = LevelTimes(entries, 0.0, below).line
    assert len(line.factors) == (4 if more > 1 else 3)
    if more < 1:
        return
    assert line.factors == pytest.approx((alpha, 0, beta, more * beta), rel=1e-3)
    kernel = {"layer": 64, "flops": 1e9, "bytes": 1e6, "weights": 1e5, "channels": 64, "seconds": 0.1}
    found = {**FOUND, "ranks": 4, "pieces": below, "collectives": entries, "kernels": [kernel] * 4}
    machine = parse_machine(machine_text(found, "m"), "m.yaml")
    groups = ManyGroups(machine, np.array([PerAxis(b=4)]), [ORDERS[0]])
    for size, pieces in ((2**12, 1), (2**19, 1), (2**20, 1), (2**20, 2), (2**22, 1)):
        each, group = float(size), groups.of(("b",))
        alone = pieces * best(machine, "all_gather", each / pieces, group.distinct[0]).seconds
        share = size / 4 / pieces
        by_hand = 3 * pieces * (alpha + share * beta * (more if share < below else 1))
        assert alone == pytest.approx(by_hand, rel=1e-2)
        assert groups.seconds("all_gather", group.loads(np.array([each])), pieces) == pytest.approx(alone)
    whole = groups.seconds("all_reduce", groups.of(("b",)).loads(np.array([2.0**19])))
    assert whole == pytest.approx(6 * (alpha + 2**17 * beta), rel=1e-2)  # messages, no pieces


def test_noise_of_one_size_is_not_taken_for_another_beta() -> None:
    """Else sizes that were not measured are predicted worse, and the latency may come out as 0."""
    alpha, beta, below, entries = 1e-4, 1e-9, 2**16, []
    for size in (2**12, 2**16, 2**18, 2**19, 2**20, 2**22):
        for op, noise in (("all_gather", 1.0), ("reduce_scatter", 20.0 if size == 2**16 else 1.0)):
            seconds = noise * (alpha + size / 2 * beta)
            entries.append({"level": "node", "members": 2, "op": op, "bytes": size, "seconds": seconds})
    assert LevelTimes(entries, 0.0, below).line.factors == pytest.approx((alpha, 0, beta), rel=0.3)


def test_collectives_that_noise_hides_are_not_fitted() -> None:
    alpha, beta = 1e-4, 1e-9
    kernel = {"layer": 64, "flops": 1e8, "bytes": 0, "weights": 0, "channels": 64, "seconds": 1e-2}
    facts = {"level": "node", "members": 2, "op": "all_gather"}
    entries = [
        {**facts, "bytes": size, "lost": lost, "seconds": 1e-6 if lost else alpha + size / 2 * beta}
        for size in (2**12, 2**16, 2**20)
        for lost in (False, True)
    ]
    for some, latency in ((entries, alpha), (entries[1::2], 1e-6)):  # unless noise hides all
        found = {**FOUND, "ranks": 4, "collectives": some, "kernels": [kernel] * 4}
        (node,) = parse_machine(machine_text(found, "m"), "m.yaml").levels
        assert node.alpha == pytest.approx(latency, rel=1e-2)


def test_points_that_are_far_off_do_not_change_a_fit() -> None:
    points = [(1.0, n, 1e-4 + n * 1e-9) for n in (1e3, 1e4, 1e5, 1e6, 1e7, 1e8)]
    points[2] = (*points[2][:2], 3 * points[2][2])
    line = fitted(points)
    assert line.factors == pytest.approx((1e-4, 1e-9), rel=0.03)
    assert line.error > 0.05


def test_the_error_of_a_factor_is_that_of_repeated_measurements() -> None:
    """Factors of fits to noisy times scatter by the error that a fit states."""
    draw, found = np.random.default_rng(0), []
    for _ in range(200):
        noise = 1 + 0.1 * draw.standard_normal(20)
        sizes = np.geomspace(1e3, 1e8, 20)
        found.append(fitted([(1.0, n, (1e-4 + n * 1e-9) * e) for n, e in zip(sizes, noise, strict=True)]))
    for place in (0, 1):
        scatter = np.std([each.factors[place] for each in found]) / np.mean(
            [each.factors[place] for each in found]
        )
        assert np.median([each.errors[place] for each in found]) == pytest.approx(scatter, rel=0.3)


def test_where_a_model_is_too_simple_too_much_is_as_bad_as_too_little() -> None:
    points = [(1.0, 1.0), (1.0, 9.0)]
    assert fitted_by_ratio(points).factors == pytest.approx((3.0,))
    line = fitted_by_ratio(
        [(n, 0.0, m, 2e-9 * n + 3e-9 * m) for n, m in ((1e3, 1e6), (1e6, 1e3), (1e7, 1e7))]
    )
    assert line.factors == pytest.approx((2e-9, 0.0, 3e-9), rel=1e-4)
    assert line.error < 1e-4
    none = fitted_by_ratio([(n, 1.0, 2e-9 * n) for n in (1e3, 1e6, 1e7)])
    assert none.factors[0] == pytest.approx(2e-9, rel=1e-3)


def test_points_are_predicted_by_fits_that_have_not_seen_them() -> None:
    alike = [(n, n * 1e-9) for n in (1.0, 2.0, 3.0)]
    kinds = ["one", "one", "other"]
    assert unseen(alike, kinds) < 1e-9
    assert unseen([*alike[:2], (3.0, 6e-9)], kinds) == pytest.approx((1 + 1 + 0.5) / 3)
    assert np.isnan(unseen(alike, ["one"] * 3))


def test_large_new_tensors_take_time_for_their_pages() -> None:
    compute = Compute(1e9, fresh=4e-10)
    assert compute.new(LARGE - 1.0) == 0
    assert compute.new(float(LARGE)) == pytest.approx(LARGE * 4e-10)
    assert compute.moving(float(LARGE), 0.0, 8.0) == pytest.approx(1.5 * LARGE * 4e-10)


@pytest.mark.ranks
@pytest.mark.slow
def test_two_ranks_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "here.yaml"
    assert main([*ONCE, "-o", str(out)]) == 0, capsys.readouterr().err
    machine = load_machine(out)
    assert machine.name == "here"
    assert [(each.name, each.ranks) for each in machine.levels] == [("node", 2)]
    node = machine.levels[0]
    assert node.alpha + node.beta > 0
    assert 1e8 < machine.compute.rate < 1e14
    assert "Mean error of the fits" in out.read_text()
    assert {"rate", "bandwidth", "kernels", "collectives of node"} <= machine.errors.keys()
    for name, number in (("alpha", node.alpha), ("beta", node.beta)):  # noise of one round may leave none
        assert (f"{name} of node" in machine.errors) == (number > 0)
    assert [path.name for path in tmp_path.iterdir()] == ["here.yaml"]


@pytest.mark.ranks
def test_an_interrupted_calibration_leaves_the_old_file(tmp_path: Path, processes: Processes) -> None:
    out = tmp_path / "here.yaml"
    out.write_text("old")
    command = [sys.executable, "-m", "synth", "calibrate", "--procs", "2", "-o", str(out)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = processes.start([*command, "--repeat", "100000"], env=environment, stderr=subprocess.PIPE)
    begin = FairClock()
    while len(command_lines(f"{tmp_path}/synth-calibrate-")) < 2:  # both ranks
        assert process.poll() is None
        assert begin.seconds() < 100
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == 130
    assert out.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["here.yaml"]
    assert not command_lines(str(tmp_path / "synth-calibrate-"))


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ([], "needs a network file, or --procs P with at least 2 ranks"),
        (["--procs", "1"], "--procs 1: a machine is measured with 2 to 64 ranks"),
        (["--procs", "2", "--repeat", "0"], "--repeat 0"),
        (["--procs", "2", "--seconds", "-1"], "--seconds -1: it must be at least 0"),
        (["--procs", "2", "net.yaml"], "leave one of them out"),
    ],
)
def test_wrong_flags_are_refused(flags: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", *flags]) == 2
    assert why in capsys.readouterr().err

"""Certificates of networks that compute words again: two checkers accept them, and refuse changed ones."""

from __future__ import annotations

import copy
import json
import re
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.base.errors import CheckError, InfeasibleError
from synth.bounds.certificate_check import digest
from synth.bounds.least_inputs import Axis, Windows, image_points
from synth.cli.main import main
from synth.network.file import parse_network
from synth.network.plan.recomputation import recomputing_words
from synth.network.planner.network_certificates import certificate
from synth.network.planner.planner import plan_network
from synth.network.planner.recomputation_certificate import check, claim
from synth.network.request import NetworkRequest
from tests.network.test_recomputation_bound import NETWORKS
from tests.support.effort import tried
from tests.support.problems.small_network_files import small_network
from tests.support.scripts import loaded

CHECKER = Path(__file__).parents[2] / "artifact/check_recomputation.py"
REFUSED = (CheckError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError)


@pytest.fixture(scope="module")
def alone() -> ModuleType:
    """The checker of the artifact, which shares no code with synth."""
    return loaded(CHECKER)


def request_of(procs: int, recompute: float = 0.1) -> NetworkRequest:
    return NetworkRequest(procs, resident_weights=True, recompute=recompute)


@cache
def made(name: str, procs: int) -> str:
    return json.dumps(certificate(parse_network(NETWORKS[name], name), request_of(procs)))


@pytest.mark.parametrize("procs", [4, 9])
@pytest.mark.parametrize("name", list(NETWORKS))
@pytest.mark.one_in(3)
def test_two_checkers_accept_what_the_report_prints(name: str, procs: int, alone: ModuleType) -> None:
    data = json.loads(made(name, procs))
    assert check(data)[-1] == f"so {data['claim']}"
    assert alone.check(data) == data["claim"]
    assert data["words"] == recomputing_words(
        plan_network(parse_network(NETWORKS[name], name), request_of(procs))
    )


def test_two_checkers_accept_those_of_random_networks(alone: ModuleType) -> None:
    some = 0
    for seed in range(tried(6, 200)):
        network, procs = parse_network(small_network(seed), "one"), (2, 3, 4, 6, 8, 16)[seed % 6]
        data = certificate(network, request_of(procs, (0.05, 0.1, 0.5, 1.0)[seed % 4]))
        check(data)
        alone.check(data)
        some += data["words"] > 0
    assert some


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize(
    "axes",
    [
        (Axis(40, 3, 1, 1),),
        (Axis(40, 5, 0, 2),),
        (Axis(30, 3, 1, 1), Axis(20, 5, 2, 2)),
        (Axis(30, 3, 0, 0), Axis(20, 4, 2, 1)),
        (Axis(12, 3, 1, 1), Axis(9, 3, 1, 1), Axis(20, 3, 1, 1)),
        (Axis(12, 3, 0, 0), Axis(9, 3, 1, 1), Axis(20, 3, 1, 1)),
        (Axis(12, 5, 2, 0), Axis(9, 3, 1, 1), Axis(20, 4, 1, 2)),
        (Axis(1, 3, 1, 1), Axis(1, 3, 1, 1), Axis(2, 3, 1, 1)),
    ],
    ids=str,
)
def test_points_of_boxes_are_proved_twice(axes: tuple[Axis, ...], images: int, alone: ModuleType) -> None:
    """More inputs at any inner point are refused, but where the function may be larger."""
    box = alone.Box([tuple(axis) for axis in axes])
    points = list(zip(*image_points(Windows(axes, images)), strict=True))
    assert box.proves(points, images > 1)
    for place in range(1, len(points)):
        x, y = points[place]
        wrong = [*points[:place], (x, y + 10 * x + 10), *points[place + 1 :]]
        assert not box.proves(wrong, images > 1)


@settings(max_examples=tried(40, 800), deadline=None)
@given(st.data())
def test_any_change_is_refused(alone: ModuleType, data: st.DataObject) -> None:
    """Any field, to any value near by or of another type. What is accepted claims no more than was proved."""
    right = json.loads(made("u", 4))
    forged = copy.deepcopy(right)
    value, path = forged, list[Any]()
    while isinstance(value, (dict, list)) and value:
        keys: Any = sorted(value) if isinstance(value, dict) else range(len(value))
        path.append(data.draw(st.sampled_from(keys)))
        value = value[path[-1]]
    at = forged
    for key in path[:-1]:
        at = at[key]
    near: list[Any] = [None, True, 0, -1, 1.0, "", "1/3", [], {}, "input"]
    if type(value) is int:
        near += [value - 1, value + 1, 2 * value, str(value)]
    if isinstance(value, bool):
        near += [not value]
    if isinstance(value, str):
        more = data.draw(st.integers(-(10**6), 10**6))
        near += [value + "0", value + "/1", " " + value]
        near += [str(Fraction(value) + Fraction(more, 4096))] if re.fullmatch(r"\d+(/\d+)?", value) else []
    at[path[-1]] = data.draw(st.sampled_from([each for each in near if repr(each) != repr(value)]))
    if path[-1] != "claim" and isinstance(forged.get("procs"), int):
        forged["claim"] = claim(forged)
    if path[-1] != "digest":
        forged["digest"] = digest(forged)
    for checker in (check, alone.check):
        try:
            checker(forged)
        except (*REFUSED, alone.Wrong):
            continue
        # other names, prices, and assumptions that are stated prove as much or less
        assert path[-1] in ("network", "name", "price", "most", "words", "split", "problem", "procs", 0)
        assert path[-1] in ("network", "name") or forged["words"] <= right["words"]


def test_the_command_line_writes_and_checks_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], alone: ModuleType
) -> None:
    network, bound, plan = tmp_path / "u.yaml", tmp_path / "bound.json", tmp_path / "plan.json"
    network.write_text(NETWORKS["u"])
    asked = ["plan", str(network), "--procs", "4", "--pass", "forward", "--recompute", "10%"]
    assert main([*asked, "--certify", "-o", str(bound)]) == 0
    assert main([*asked, "--json", "-o", str(plan)]) == 0
    assert main(["certify", str(bound), "--plan", str(plan)]) == 0
    assert "computes words again" not in capsys.readouterr().err
    assert alone.main([str(bound)]) == 0
    wrong = json.loads(bound.read_text())
    wrong["words"] += 1
    bound.write_text(json.dumps(wrong))
    assert alone.main([str(bound)]) == 1
    assert main(["certify", str(bound)]) != 0
    assert alone.main([]) == alone.main([str(tmp_path / "none.json")]) == 2
    assert main(["plan", str(network), "--procs", "8", "-o", str(plan), "--json"]) == 0


def test_training_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="pass is training"):
        certificate(parse_network(NETWORKS["u"], "u"), NetworkRequest(4, training=True, recompute=0.1))

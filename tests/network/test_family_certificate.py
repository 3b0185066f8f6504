"""Certificates of the bound of a network: counted twice, never above a plan, no false number is accepted."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from effort import tried as tried_
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts import loaded
from test_family_optimum import BRANCHES, CHAIN, RESIDUAL, planner_of, tried

from synth.base.errors import CheckError, InfeasibleError, InputError
from synth.cli.main import main
from synth.network.file import load_network, parse_network
from synth.network.plan.universal import universal_words
from synth.network.planner.family_certificate import (
    _class_of,
    check,
    digest,
    family_certificate,
)
from synth.network.planner.network_certificates import check_file
from synth.network.planner.planner import plan_network
from synth.network.planner.surface_certificate import check as check_surface
from synth.network.planner.surface_certificate import claim as any_claim
from synth.network.request import NetworkRequest

ROOT = Path(__file__).parents[2]
CHECKER = ROOT / "artifact/check_network.py"
VOLUME = """
network: volume
input: [1, 2, 9, 8, 7]
layers:
  - {name: a, conv3d: {out_channels: 4, kernel: 3, padding: 1, bias: true}}
  - {name: s, conv3d: {out_channels: 4, kernel: 1, stride: 2}}
  - {name: g, conv3d: {out_channels: 6, kernel: [1, 3, 2], stride: [1, 3, 1], groups: 2}}
  - {name: t, conv3d: {out_channels: 2, kernel: 3, dilation: [1, 1, 2], padding: 2}, from: [a]}
"""
NETWORKS = {"chain": CHAIN, "residual": RESIDUAL, "branches": BRANCHES, "volume": VOLUME}
Change = Callable[[dict[str, Any]], object]


def request_of(procs: int, mode: str) -> NetworkRequest:
    return NetworkRequest(procs, training=mode == "training", resident_weights=mode == "inference")


@pytest.fixture(scope="module")
def alone() -> ModuleType:
    """The checker of the artifact, which shares no code with synth."""
    return loaded(CHECKER)


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("procs", [3, pytest.param(4, marks=pytest.mark.slow), 6])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.one_in(4)
def test_two_checkers_accept_it_and_it_is_near_the_plan(
    name: str, procs: int, mode: str, alone: ModuleType
) -> None:
    network, request = parse_network(NETWORKS[name], name), request_of(procs, mode)
    data = family_certificate(network, request)
    assert check(data)[-1] == f"so {data['claim']}"
    assert alone.check(json.loads(json.dumps(data))) == data["claim"]
    plan = plan_network(network, request)
    assert 0.9 * plan.cost <= data["words"] <= plan.cost


def test_no_choice_is_cheaper() -> None:
    """All choices of a small network, one by one."""
    network = parse_network(CHAIN, "chain")
    assert family_certificate(network, request_of(4, "training"))["words"] <= tried(
        planner_of(network, procs=4, training=True)
    )


@pytest.mark.parametrize("mode", ["inference", pytest.param("training", marks=pytest.mark.slow)])
def test_volumes_on_sixteen_processes(mode: str, alone: ModuleType) -> None:
    """The bound is the cost: no plan of the family receives fewer words."""
    network = load_network(ROOT / "examples/networks/cosmoflow.yaml")
    data = family_certificate(network, request_of(16, mode))
    assert data["words"] == plan_network(network, request_of(16, mode)).cost > 0
    check(data)
    alone.check(data)


def _raised(key: str, more: int = 1) -> Change:
    return lambda data: data.update({key: data[key] + more})


def _option(data: dict[str, Any]) -> None:
    """More words of the cheapest option of a class whose words are known."""
    for each in data["classes"]:
        for option in each["options"]:
            option[-1] += 1


CHANGES: dict[str, Change] = {
    "words": _raised("words"),
    "procs": _raised("procs"),
    "balance": lambda data: data.update(balance="0.5"),
    "mode": lambda data: data.update(mode="inference"),
    "options": _option,
    "least": lambda data: [each.update(least=each["least"] + 10**6) for each in data["classes"]],
    "an option": lambda data: data["classes"][0]["options"].pop(0),
    "potentials": lambda data: data["potentials"][0].update(
        of_source=[n + 1 for n in data["potentials"][0]["of_source"]]
    ),
    "twice": lambda data: data["potentials"].append(data["potentials"][0]),
    "edges": lambda data: data["edges"].clear(),
    "back": lambda data: [each.update(back=False) for each in data["edges"]],
    "layers": lambda data: data["layers"].pop(),
    "a field": lambda data: data.update(more=1),
    "problem": lambda data: data["classes"][0]["problem"].update(out_channels=4),
    "more of a problem": lambda data: data["classes"][0]["problem"].update(dtype="float32"),
    "fewer words": lambda data: data.update(words=1),
    "claim": lambda data: data.update(claim="no plan receives fewer than 1 word"),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.one_in(4)
def test_a_changed_number_is_refused_by_both(name: str, alone: ModuleType) -> None:
    data = copy.deepcopy(_certificate())
    CHANGES[name](data)
    data["digest"] = digest(data)
    for checker in (check, alone.check):
        with pytest.raises((CheckError, alone.Wrong, LookupError, ValueError, TypeError)):
            checker(data)


IMAGE = """
network: image
input: [1, 16, 64, 64]
layers:
  - {name: a, conv2d: {out_channels: 16, kernel: 3, padding: 1}}
  - {name: p, pool: {kernel: 3, stride: 2, padding: 1}}
  - {name: b, conv2d: {out_channels: 4, kernel: 5, padding: 2}}
  - {name: c, conv2d: {out_channels: 16, kernel: 3, dilation: 2, padding: 2}}
  - {name: d, conv2d: {out_channels: 16, kernel: [4, 3], padding: 1, groups: 4}}
  - {name: u, conv2d: {out_channels: 16, kernel: 4, stride: 2, padding: 1, transposed: true}}
"""


@cache
def _of_any(procs: int = 16, mode: str = "inference") -> str:
    return json.dumps(family_certificate(parse_network(IMAGE, "image"), request_of(procs, mode)))


@pytest.mark.parametrize("procs", [4, 16])
@pytest.mark.one_in(2)
def test_halos_of_any_schedule_are_proved_twice(procs: int, alone: ModuleType) -> None:
    data = json.loads(_of_any(procs))
    assert check(data)[-2] == f"so {data['any_schedule']['claim']}"
    alone.check(data)
    plan = plan_network(parse_network(IMAGE, "image"), request_of(procs, "inference"))
    assert data["any_schedule"]["words"] == str(universal_words(plan))
    proved = [each["words"] > 0 for each in data["any_schedule"]["layers"]]
    assert sum(proved) >= (2 if procs == 4 else 4)


def test_a_training_step_moves_halos_in_two_passes(alone: ModuleType) -> None:
    """Of activations and of their gradients; poolings and the first layer have one pass between layers."""
    trained, once = (json.loads(_of_any(16, mode)) for mode in ("training", "inference"))
    assert check(trained)[-2] == f"so {trained['any_schedule']['claim']}"
    assert alone.check(trained) == trained["claim"]
    kinds = [trained["classes"][each["class"]] for each in trained["layers"]]
    pairs = list(zip(kinds, trained["any_schedule"]["layers"], once["any_schedule"]["layers"], strict=True))
    alike = [(kind, own, one) for kind, own, one in pairs if own["most_work"] == one["most_work"]]
    assert len(alike) >= 3
    for kind, own, one in alike:
        assert own["words"] == (1 + (kind["weighted"] and kind["gradient"])) * one["words"]
    plan = plan_network(parse_network(IMAGE, "image"), request_of(16, "training"))
    assert 0 < Fraction(trained["any_schedule"]["words"]) <= universal_words(plan)
    for change in ({"any_schedule": None}, {"any_schedule": once["any_schedule"]}):
        other = {**trained, **change}
        other["digest"] = digest(other)
        if change["any_schedule"] is None:  # as files of older versions have it
            assert alone.check(other) == check(other)[-1].removeprefix("so ")
            continue
        for checker in (check, alone.check):
            with pytest.raises((CheckError, alone.Wrong)):
                checker(other)


@settings(max_examples=tried_(60, 600), deadline=None)
@given(st.data())
def test_any_change_of_it_is_refused(alone: ModuleType, data: st.DataObject) -> None:
    """Any field, to any value near by or of another type. What is accepted claims no more than was proved."""
    whole = json.loads(_of_any())
    right, forged = whole["any_schedule"], json.loads(_of_any())["any_schedule"]
    value, path = forged, []
    while isinstance(value, (dict, list)) and value:
        keys: Any = sorted(value) if isinstance(value, dict) else range(len(value))
        path.append(data.draw(st.sampled_from(keys)))
        value = value[path[-1]]
    at = forged
    for key in path[:-1]:
        at = at[key]
    near: list[Any] = [None, True, 0, -1, 1.0, "", "1/3", [], {}]
    if type(value) is int:
        near += [value - 1, value + 1, 2 * value, float(value), str(value)]
    if isinstance(value, str):
        more = data.draw(st.integers(-(10**6), 10**6))
        near += [value + "0", value + "/1", " " + value, value.replace("1", "2")]
        near += [str(Fraction(value) + Fraction(more, 4096))] if value[:1].isdigit() else []
    at[path[-1]] = data.draw(st.sampled_from([each for each in near if repr(each) != repr(value)]))
    of = [each["class"] for each in whole["layers"]]
    kinds = [_class_of(each) for each in whole["classes"]]
    layers = [alone.Layer(each, False) for each in whole["classes"]]
    for checker in (
        lambda: check_surface(forged, "image", kinds, of, 16),
        lambda: alone.check_any(forged, "image", [layers[number] for number in of], 16),
    ):
        try:
            checker()
        except (CheckError, alone.Wrong, LookupError, ValueError, TypeError, ArithmeticError, AttributeError):
            continue
        # another cut proves the same words, or a process may do other work
        assert (forged["claim"], forged["words"]) == (right["claim"], right["words"])
        assert "cut" in path or path[-1] == "most_work"


@pytest.mark.parametrize("field", ["most_work", "words"])
@pytest.mark.one_in(2)
def test_more_words_with_all_sums_anew_are_refused(field: str, alone: ModuleType) -> None:
    for place in range(6):
        data = json.loads(_of_any())
        of_any = data["any_schedule"]
        if not of_any["layers"][place]["words"] and field == "most_work":
            continue
        of_any["layers"][place][field] += 1 if field == "words" else -of_any["layers"][place][field] // 2
        of_any["words"] = str(Fraction(sum(each["words"] for each in of_any["layers"]), 16))
        of_any["claim"] = any_claim("image", 16, of_any["words"])
        data["digest"] = digest(data)
        for checker in (check, alone.check):
            with pytest.raises((CheckError, alone.Wrong)):
                checker(data)


def _certificate() -> dict[str, Any]:
    network = parse_network(RESIDUAL, "residual")
    return family_certificate(network, request_of(6, "training"))


def test_an_edit_without_a_new_digest_is_refused(tmp_path: Path) -> None:
    data = _certificate()
    path = tmp_path / "bound.json"
    path.write_text(json.dumps(data).replace("residual", "other"))
    with pytest.raises(CheckError, match="the digest is that of the other fields"):
        check_file(str(path))
    path.write_text(json.dumps({**data, "classes": 3}))
    with pytest.raises(InputError, match="is not a complete certificate"):
        check_file(str(path))


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        ("{conv2d: {out_channels: 4, kernel: 3, dilation: 2, stride: 2}}", "has stride and dilation above 1"),
        ("{conv2d: {out_channels: 4, kernel: 1, stride: 2, transposed: true}}", "to which no input row adds"),
    ],
)
def test_what_it_does_not_cover_is_refused_by_name(layer: str, said: str) -> None:
    network = parse_network(f"network: n\ninput: [1, 2, 9, 9]\nlayers:\n  - {layer}\n", "n")
    with pytest.raises(InfeasibleError, match=said):
        family_certificate(network, request_of(2, "training"))
    with pytest.raises(InfeasibleError, match="at most 1024; take fewer"):
        family_certificate(parse_network(CHAIN, "chain"), request_of(2048, "training"))


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net, bound, plan, other = (
        tmp_path / name for name in ("net.yaml", "bound.json", "plan.json", "other.json")
    )
    net.write_text(CHAIN)
    asked = ["plan", str(net), "--procs", "4", "--pass", "training"]
    assert main([*asked, "--certify", "-o", str(bound)]) == 0
    assert main([*asked, "--json", "-o", str(plan)]) == 0
    assert main([*asked[:3], "2", "--json", "-o", str(other)]) == 0
    assert main(["certify", str(bound), "--plan", str(plan)]) == 0
    out = capsys.readouterr().out
    assert "so no plan of chain of this family receives fewer than" in out
    assert out.endswith(f"the plan {plan} has these layers, P and passes; it costs 1572 words\n")
    assert main(["certify", str(bound), "--plan", str(other)]) == 5
    assert "procs is 4 in it and 2 in the plan" in capsys.readouterr().err
    assert main(["certify", str(bound), "--proved"]) == 2
    assert main([*asked, "--certify", "--memory", "1GiB"]) == 4
    assert "is given; leave it out" in capsys.readouterr().err
    for paths, code, said in (
        ([bound], 0, "proved: no plan"),
        ([plan], 1, "WRONG"),
        ([], 2, "name"),
    ):
        command = [sys.executable, "-I", "-S", str(CHECKER), *map(str, paths)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == code
        assert said in done.stdout + done.stderr

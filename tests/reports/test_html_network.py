"""The HTML report of a network plan: self-contained, small, and only of a file that adds up."""

from __future__ import annotations

import copy
import itertools
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_html_browser import FLAGS

from synth.base.errors import InputError
from synth.base.units import show_bytes
from synth.cli.main import main
from synth.machine.file import load_machine
from synth.network.file import load_network
from synth.network.plan.plan_json import is_network_plan, parse_network_plan, to_json
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.prediction.replay import Replay, replay
from synth.reports.html.html_network import folded_graph, html_network, singles
from synth.reports.html.network_strip import bars, folded, stages, strip
from synth.reports.html.replay_chart import joined, timeline

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    network = load_network("examples/networks/resnet50.yaml")
    made: dict[str, Any] = json.loads(json.dumps(to_json(plan_network(network, NetworkRequest(64)))))
    return made


def test_self_contained_and_small(data: dict[str, Any]) -> None:
    page = html_network(data)
    assert len(page.encode()) < 300_000
    assert not re.search(r"""(src|href)=["'](?!data:)|@import|url\((?!#)|https?://""", page)
    assert "default-src 'none'" in page
    assert html_network(parse_network_plan(json.dumps(data), "n.json")) == page


def test_every_layer_edge_and_single_is_there(data: dict[str, Any]) -> None:
    page = html_network(data)
    _, whole = re.findall(r'<svg class="layers".*?</svg>', page, re.DOTALL)  # the first is folded
    assert whole.count('class="layer"') == len(data["layers"])
    assert whole.count('data-edge="') == len(data["redistributions"])
    free = sum(edge["words"] == 0 for edge in data["redistributions"])
    assert whole.count('class="edge free"') == free > 0
    assert {row["name"] for row in singles(data)} == {"this plan", *(s["name"] for s in data["singles"])}
    assert f"{round(data['cost']):,}".replace(",", " ") in page


def test_blocks_that_repeat_are_drawn_once(data: dict[str, Any]) -> None:
    graph = folded_graph(data)
    assert sorted(name for row in graph["layers"] for name in row["names"]) == sorted(
        layer["name"] for layer in data["layers"]
    )
    repeated = {row["name"]: row["times"] for row in graph["layers"] if row["times"] > 1}
    assert repeated["conv4_a.1"] == repeated["conv4_c.1"] == 5
    assert len(graph["layers"]) < len(data["layers"])
    assert [row["y"] for row in graph["layers"]] == sorted({row["y"] for row in graph["layers"]})
    drawn = {(graph["layers"][e["from"]]["name"], graph["layers"][e["to"]]["name"]) for e in graph["edges"]}
    assert ("conv4_c.1", "conv5_reduce") in drawn  # from the last of the five
    assert all(e["from"] < e["to"] for e in graph["edges"])


def test_blocks_that_differ_are_not_folded() -> None:
    chain = [(i, i + 1, 7) for i in range(7)]
    assert folded("xabababy", chain) == [(range(1), 1), (range(1, 3), 3), (range(7, 8), 1)]
    chain[4] = (4, 5, 8)  # into the first row of a block, which may receive anything
    assert (range(1, 3), 3) in folded("xabababy", chain)
    chain[3] = (3, 4, 8)
    assert (range(1, 3), 3) not in folded("xabababy", chain)
    assert folded("ab", [(0, 1, 7)]) == [(range(1), 1), (range(1, 2), 1)]
    assert folded("aaaa", []) == [(range(1), 4)]


def test_the_strip_has_stages_and_what_moves_between_them(data: dict[str, Any]) -> None:
    found = stages(data)
    names = ["conv1", "pool1", "conv2", "conv3", "conv4", "conv5", "fc"]
    assert [stage.name for stage in found] == names
    assert [i for stage in found for i in stage.layers] == list(range(len(data["layers"])))
    made = strip(data)
    (into,) = (e["words"] for e in data["redistributions"] if e["to"] == "fc")
    assert made["joints"][-1]["bytes"] == show_bytes(into * data["word_bytes"])
    assert made["joints"][0]["thick"] == 0
    assert max(joint["thick"] for joint in made["joints"]) == 36
    assert made["boxes"][0]["lines"] == ["samples ÷ 32", "width ÷ 2"]


def test_many_stages_are_joined(data: dict[str, Any]) -> None:
    layers = [{**data["layers"][0], "name": f"layer{i}"} for i in range(40)]
    for i, layer in enumerate(layers):
        layer["grid"] = {**layer["grid"], "b": 1 + i % 2}
    moved = [{"from": f"layer{i}", "to": f"layer{i + 1}", "words": i} for i in range(39)]
    found = stages({**data, "layers": layers, "redistributions": moved})
    assert len(found) == 8
    assert found[0].name == "layer0 – layer32"  # the joints with the most words stay


def test_bars_of_this_plan_and_data_parallelism(data: dict[str, Any]) -> None:
    mine, parallel, best = bars(data)
    assert (mine["name"], mine["times"]) == ("this plan", "")
    assert parallel["cost"] == "cannot use 64 processes evenly at conv1"
    assert best["name"] == "stationary-w everywhere"
    assert (best["to"], best["times"]) == (100, f"{1 / data['ratio']:.2f} times")
    usable = [{**s, "cost": 2 * data["cost"]} if s["name"] == "data" else s for s in data["singles"]]
    mine, parallel = bars({**data, "singles": usable})
    assert (mine["to"], parallel["to"], parallel["times"]) == (50, 100, "2.00 times")


def test_names_are_text(data: dict[str, Any]) -> None:
    page = html_network({**data, "name": "</script><script>alert(1)</script>"})
    assert "<script>alert" not in page


def _changed(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(data: Any) -> None:
        *steps, last = (int(p) if p.isdigit() else p for p in path.split("/"))
        for step in steps:
            data = data[step]
        data[last] = value

    return change


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema", "synth.network-plan/2"),
        ("cost", 1.0),
        ("ratio", 0.5),
        ("best_single", "data"),
        ("lower_bound", 1e12),
        ("memory_words", 7),
        ("memory_words", 10**400),  # fits no float
        ("procs", 63),
        ("procs", True),
        ("pass", ["forward"]),
        ("layers", []),
        ("layers", [1]),
        ("layers/0/grid", {"b": 64}),
        ("layers/0/grid/b", 17),
        ("layers/0/order", "bgdhwck"),
        ("layers/0/stationary", "none"),
        ("layers/0/cost", 1e9),
        ("layers/1/name", "conv1"),
        ("redistributions/0/to", "nowhere"),
        ("redistributions/0/to", {}),
        ("redistributions/0/from", 1),
        ("layers/0/name", "\ud800"),
        ("redistributions/0/words", 5),
        ("redistributions/1", None),
        ("singles/3/cost", -1),
        ("gap", "0"),
    ],
)
def test_tampered_and_foreign_files_are_refused(data: dict[str, Any], path: str, value: object) -> None:
    edited = copy.deepcopy(data)
    _changed(path, value)(edited)
    with pytest.raises(InputError, match=r"^n\.json: [^\n]*; write the plan anew"):
        parse_network_plan(json.dumps(edited), "n.json")


def test_command_line(data: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, page = tmp_path / "n.json", tmp_path / "n.html"
    file.write_text(json.dumps(data))
    assert is_network_plan(file.read_text())
    assert main(["report", str(file), "-o", str(page)]) == 0
    assert page.read_text(encoding="utf-8") == html_network(data)
    file.write_text(json.dumps({**data, "cost": 3}))
    assert main(["report", str(file)]) == 3
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("training", [False, True])
def test_other_requests_are_read_back(training: bool) -> None:
    from synth.machine.file import load_machine

    network = load_network("examples/networks/vgg16.yaml")
    asked = NetworkRequest(4, "time", training, machine=load_machine("lassen"))
    made = to_json(plan_network(network, asked))
    assert " ms" in html_network(parse_network_plan(json.dumps(made), "n.json"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if not (CHROMIUM and DRIVER):
        pytest.skip("no Chromium here; apt-get install chromium chromium-driver")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_chosen_layer_lights_up_its_edges(browser: Any, data: dict[str, Any], tmp_path: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    file = tmp_path / "n.html"
    file.write_text(html_network(data), encoding="utf-8")
    browser.get(file.as_uri())
    names = [layer["name"] for layer in data["layers"]]

    def lit() -> set[int]:
        found = browser.find_elements("css selector", ".layers:not([hidden]) .edge.lit")
        return {int(each.get_attribute("data-edge")) for each in found}

    def edges(name: str) -> set[int]:
        rows = enumerate(data["redistributions"])
        return {i for i, edge in rows if name in (edge["from"], edge["to"])}

    short = folded_graph(data)
    assert len(browser.find_elements("css selector", ".layers:not([hidden]) .layer")) == len(short["layers"])
    at = [row["name"] for row in short["layers"]].index("conv4_b.1")
    browser.find_element("css selector", f'[data-layer="{at}"] .called').click()
    assert "5 times: conv4_b.1, conv4_b.2" in browser.find_element("id", "detail").text
    browser.find_element("id", "unfold").click()
    assert len(browser.find_elements("css selector", ".layers:not([hidden]) .layer")) == len(names)
    assert lit() == edges("conv4_b.1")  # the layer that was chosen
    at = names.index("conv4_reduce")
    browser.find_element("css selector", f'.layers:not([hidden]) [data-layer="{at}"] .called').click()
    assert lit() == edges("conv4_reduce")
    text = browser.find_element("id", "detail").text
    assert "conv4_reduce" in text
    assert "75 264 words" in text
    svg = browser.find_element("css selector", ".layers:not([hidden])")
    svg.send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert lit() == edges("conv4_reduce")
    svg.send_keys(Keys.ENTER)
    assert lit() == edges(names[at + 2])
    before = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    browser.find_element("id", "theme").click()
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") != before
    assert browser.get_log("browser") == []


# -- the timeline of a replay -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def replayed() -> Replay:
    network = load_network("examples/networks/tutorial.yaml")
    machine = load_machine("lassen")
    request = NetworkRequest(4, "time", training=True, machine=machine)
    return replay(plan_network(network, request))


def test_the_page_of_a_replay_has_its_timeline(replayed: Replay) -> None:
    page = html_network(to_json(replayed.plan), replayed)
    assert not re.search(r"""(src|href)=["'](?!data:)|@import|url\((?!#)|https?://""", page)
    assert 'id="replay"' in page
    assert 'id="replay"' not in html_network(to_json(replayed.plan))
    assert f"{replayed.seconds * 1e3:.4g} ms = computing" in page


def test_the_boxes_of_a_timeline_are_the_tasks(replayed: Replay) -> None:
    """At a scale at which no box is joined, each task that takes time is a box from its start to its end."""
    for kind, (stream, rank) in enumerate(itertools.product(("compute", "network"), range(2))):
        tasks = [t for t in replayed.tasks if t.stream == stream and t.seconds[rank] > 0]
        boxes = joined(tasks, rank, scale=1e12)
        assert [(b.start, b.end) for b in boxes] == sorted((t.start[rank], t.end[rank]) for t in tasks), kind
    picture = timeline(replayed)
    assert [row["label"] for row in picture["rows"]] == [
        "largest block: compute",
        "largest block: network",
        "smallest block: compute",
        "smallest block: network",
    ]
    for row in picture["rows"]:
        ends = [(box["x"], box["x"] + box["wide"]) for box in row["boxes"]]
        assert all(one[1] <= other[0] + 1 for one, other in itertools.pairwise(ends))
        assert ends[-1][1] <= picture["wide"]
    computed = sum(box["wide"] for box in picture["rows"][0]["boxes"]) / (picture["wide"] - 180)
    assert computed == pytest.approx(replayed.computing / replayed.seconds, rel=0.1)


def test_replay_writes_all_outputs_or_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["replay", "examples/networks/tutorial.yaml", "--procs", "4", "--machine", "lassen", "--json"]
    page, trace = tmp_path / "replay.html", tmp_path / "trace.json"
    assert main([*words, "--report", str(page), "--trace", str(trace)]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "synth.replay/1"
    assert 'id="replay"' in page.read_text()
    assert json.loads(trace.read_text())["traceEvents"]
    page.unlink()
    assert main([*words, "--report", str(page), "--trace", str(tmp_path / "absent" / "trace.json")]) == 2
    assert not page.exists()

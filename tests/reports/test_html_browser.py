"""The HTML report in a real browser: what lights up, what plays, and that the console is silent."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from synth.layer.axes import TENSORS
from synth.planning.derive import plan as plan_layer
from synth.planning.plan import Plan
from synth.reports.html.html_layer import html_report

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1360,1700",
)

pytestmark = [
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER), reason="no Chromium here; apt-get install chromium chromium-driver"
    ),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


BY_OUTPUT = {"h": "out", "w": "out"}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    return {
        "even": plan_layer("examples/conv.yaml", 64),
        "halo": plan_layer("examples/small.yaml", 8, grid={"h": 2, "w": 2, "k": 2}, rows=BY_OUTPUT),
        "returned": plan_layer(
            "examples/small.yaml", 8, grid={"h": 2, "w": 2, "c": 2}, rows={"h": "in", "w": "out"}
        ),
        "back": plan_layer("examples/small.yaml", 4, grid={"h": 4}, rows=BY_OUTPUT, pass_="backward-data"),
        "uneven": plan_layer("examples/resnet50/conv1_7x7.yaml", 24, grid={"h": 3, "b": 4, "k": 2}),
        "ker": plan_layer("examples/conv.yaml", 16, stationary="ker"),
    }


def opened(browser: Any, plan: Plan, folder: Path) -> None:
    file = folder / "report.html"
    file.write_text(html_report(plan), encoding="utf-8")
    browser.get(file.as_uri())


def silent(browser: Any) -> None:
    assert browser.get_log("browser") == []


def lit(browser: Any, kind: str) -> set[int]:
    cells = browser.find_elements("css selector", f"#grid g.{kind}")
    return {int(cell.get_attribute("data-rank")) for cell in cells}


def group(plan: Plan, tensor: Any, rank: int) -> set[int]:
    d = plan.distribution
    return {d.rank(at) for at in d.group(tensor, d.at(rank))} - {rank}


def test_a_click_lights_up_the_partners(browser: Any, plans: dict[str, Plan], tmp_path: Path) -> None:
    plan = plans["even"]
    opened(browser, plan, tmp_path)
    browser.find_element("css selector", '#grid g[data-rank="21"] rect').click()
    assert lit(browser, "self") == {21}
    for tensor in TENSORS:
        assert lit(browser, tensor) == group(plan, tensor, 21)
        shown = browser.find_element("css selector", f'[data-group="{tensor}"]').text
        assert int(shown) == len(group(plan, tensor, 21))
        assert browser.find_elements("css selector", f'#tensors [data-own="{tensor}"]')
    total = int(plan.received.total.reshape(-1)[21])
    text = browser.find_element("id", "total").text
    assert int("".join(c for c in text if c.isdigit())) == total
    silent(browser)


def test_the_page_cuts_blocks_as_the_planner_does(
    browser: Any, plans: dict[str, Plan], tmp_path: Path
) -> None:
    for plan in plans.values():
        opened(browser, plan, tmp_path)
        d = plan.distribution
        received = plan.received.total.reshape(-1)
        for rank in {0, 1, plan.used_procs // 2, plan.used_procs - 1}:
            at = d.at(rank)
            for tensor in TENSORS:
                for what, box in (
                    ("owned", d.owned(tensor, at)),
                    ("needed", d.needed(tensor, at)),
                    ("carried", d.carried(tensor, at)),
                ):
                    seen = browser.execute_script(f"return synth.{what}('{tensor}', {rank})")
                    assert [tuple(side) for side in seen] == list(box), (what, tensor, rank)
            # the steps of the timeline add up to the words of the plan, to the word
            assert browser.execute_script(f"return synth.sum({rank})") == int(received[rank])
        silent(browser)


def test_halo_neighbours_light_up(browser: Any, plans: dict[str, Plan], tmp_path: Path) -> None:
    plan = plans["halo"]
    opened(browser, plan, tmp_path)
    sources = {
        move.source
        for each in plan.schedule.rounds()
        for move in each.moves
        if move.kind == "halo" and 0 in move.targets
    }
    assert sources
    assert lit(browser, "near") == sources - {0}
    silent(browser)


def test_the_timeline_steps_and_plays(browser: Any, plans: dict[str, Plan], tmp_path: Path) -> None:
    plan = plans["even"]
    opened(browser, plan, tmp_path)

    def text() -> str:
        return str(browser.find_element("id", "what").text)

    def senders(tensor: str) -> int:
        path = browser.find_element("css selector", f'[data-sends="{tensor}"]').get_attribute("d") or ""
        return path.count("M")

    assert text().startswith("step 1 of 4: In is broadcast along k")
    first = next(r for r in plan.schedule.rounds() if r.phase == "loop")
    for tensor in ("In", "Ker"):
        assert senders(tensor) == len({m.source for m in first.moves if m.tensor == tensor})
    browser.find_element("id", "next").click()
    assert text().startswith("step 2 of 4")
    browser.find_element("id", "back").click()
    browser.find_element("id", "back").click()
    assert text().startswith("reduce: partial sums of Out")
    assert senders("In") == 0
    assert browser.find_elements("css selector", '#tensors [data-move="Out"]')
    browser.find_element("id", "play").click()
    assert "pause" in browser.find_element("id", "play").text
    until = time.monotonic() + 60
    while not text().startswith("step 1 of 4") and time.monotonic() < until:
        time.sleep(0.05)
    assert text().startswith("step 1 of 4")
    browser.find_element("id", "play").click()
    assert "play" in browser.find_element("id", "play").text
    silent(browser)


def test_by_keyboard_and_in_the_dark(browser: Any, plans: dict[str, Plan], tmp_path: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    opened(browser, plans["even"], tmp_path)
    grid = browser.find_element("id", "grid")
    grid.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    columns = int(browser.execute_script("return document.querySelectorAll('#grid g').length")) // 8
    assert lit(browser, "self") == {1 + columns}
    grid.send_keys(Keys.HOME, Keys.ARROW_LEFT)
    assert lit(browser, "self") == {0}
    before = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    browser.find_element("id", "theme").click()
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") != before
    silent(browser)


@pytest.mark.parametrize("procs", [64, 4096])
@pytest.mark.one_in(2)
def test_shows_every_process_of_a_large_grid(browser: Any, procs: int, tmp_path: Path) -> None:
    opened(browser, plan_layer("examples/conv.yaml", procs), tmp_path)
    assert len(browser.find_elements("css selector", "#grid g")) == procs
    asked = browser.execute_script("return performance.getEntriesByType('resource').length")
    assert asked == 0  # one file, whatever the number of processes
    silent(browser)

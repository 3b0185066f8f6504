"""The public names: documented, seen by `dir`, for layers and networks, in notebooks, without extras."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import synth
from synth.base.extras import EXTRA_OF, PURPOSE

ROOT = Path(__file__).parents[2]
NETWORK = """\
input: [8, 4, 16, 16]
layers:
  - {name: a, conv2d: {out_channels: 8, kernel: 3, padding: 1}}
  - {name: b<i>, conv2d: {out_channels: 8, kernel: 3, padding: 1}}
"""


@pytest.fixture
def network(tmp_path: Path) -> Path:
    file = tmp_path / "net.yaml"
    file.write_text(NETWORK)
    return file


def test_dir_shows_the_public_names() -> None:
    assert [name for name in dir(synth) if not name.startswith("__")] == sorted(
        name for name in synth.__all__ if not name.startswith("__")
    )
    assert synth.__all__ == sorted(synth.__all__)
    assert set(synth.__all__) == {*synth._HOMES, "__version__"}
    with pytest.raises(AttributeError, match="no attribute 'plam'"):
        synth.plam  # noqa: B018


@pytest.mark.parametrize("name", sorted(set(synth.__all__) - {"__version__"}))
def test_every_public_name_is_documented(name: str) -> None:
    value = getattr(synth, name)
    said = inspect.getdoc(value) or ""
    assert len(said) > 40, said
    assert value.__doc__, f"the docstring of {name} is inherited"
    if inspect.isclass(value):
        for key, member in vars(value).items():
            if not key.startswith("_") and (callable(member) or isinstance(member, property)):
                assert inspect.getdoc(member), f"{name}.{key}"


def test_errors_of_a_call_are_public(network: Path) -> None:
    with pytest.raises(synth.InfeasibleError) as fault:
        synth.plan(ROOT / "examples/small.yaml", procs=4, memory=64)
    assert isinstance(fault.value, synth.SynthError)
    with pytest.raises(synth.InputError):
        synth.plan(ROOT / "absent.yaml", procs=4)
    with pytest.raises(synth.UsageError, match=r"grid=\{'b': 2\} is for one layer"):
        synth.plan(network, procs=4, grid={"b": 2})
    with pytest.raises(synth.UsageError, match="pass_='backward-data' is for one layer"):
        synth.plan(network, procs=4, pass_="backward-data")


def test_networks_are_planned_and_read_like_layers(network: Path, tmp_path: Path) -> None:
    plan = synth.plan(network, procs=4, memory="16MiB", pass_="training")
    assert plan.cost == synth.plan(synth.load_network(network), 4, 16 << 20, pass_="training").cost
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan.to_json()))
    read = synth.read_plan(file)
    assert isinstance(read, synth.NetworkPlanFile)
    assert (read.cost, read.procs, read.used_bytes) == (plan.cost, 4, plan.used_bytes)
    assert read.grids == {
        node.name: placed.grid for node, placed in zip(plan.network.planned, plan.placed_grids, strict=True)
    }
    assert str(plan).split(",")[:3] == str(read).split(",")[:3]
    layer = synth.plan(ROOT / "examples/small.yaml", procs=4)
    file.write_text(json.dumps(layer.to_json()))
    assert synth.read_plan(file) == layer


class Balanced(HTMLParser):
    """Fails where tags do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.seen.add(tag)
        assert not any((value or "").startswith("http") for _, value in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)


def test_notebooks_show_plans_and_bounds(network: Path) -> None:
    layer = synth.plan(ROOT / "examples/small.yaml", procs=4)
    nets = synth.plan(network, procs=4)
    bounds = synth.lower_bounds(ROOT / "examples/small.yaml", [2, 4], "1MiB", relaxations=False)
    for value, said in ((layer, layer.id), (nets, "b&lt;i&gt;"), (bounds, "1 MiB")):
        shown = value._repr_html_()
        assert said in shown
        assert len(shown) < 20_000
        assert {"div", "table"} <= Balanced(shown).seen
        assert "<script" not in shown
    assert "svg" in Balanced(layer._repr_html_()).seen
    assert f"{layer.words['total']:,}".replace(",", " ") in layer._repr_html_()


def test_bounds_from_python_are_those_of_the_command() -> None:
    study = synth.lower_bounds(synth.Layer.matmul(64, 64, 64), "2:8", relaxations=False)
    assert [point.procs for point in study.points] == [2, 4, 8]
    assert all(point.received.plan and point.received.ratio >= 1 for point in study.points)
    with pytest.raises(synth.UsageError, match="procs is 0"):
        synth.lower_bounds(synth.Layer.matmul(64, 64, 64), [0])


ABSENT = """
import sys
for name in {absent!r}:
    sys.modules[name] = None
import synth
from synth.cli.main import main
for argv in {commands!r}:
    assert main(argv.split()) == 0, argv
plan = synth.plan("examples/small.yaml", procs=4)
assert plan._repr_html_() and synth.report(plan) and synth.compare(plan)
for attempt, extra in (
    (lambda: synth.parallelize, "torch"),
    (lambda: synth.tune, "torch"),
    (lambda: synth.lower_bounds("examples/small.yaml", 4), "solver"),
    (lambda: main(["plan", "examples/small.yaml", "--procs", "4", "--explain"]), "explain"),
    (lambda: main(["run", "examples/small.yaml", "--procs", "4"]), "torch"),
    (lambda: main(["import", "a:b", "--input", "1,2,3,4"]), "torch"),
    (lambda: main(["plot", "/dev/null", "-o", "x.svg"]), None),
):
    try:
        assert attempt() != 0
    except synth.MissingExtraError as fault:
        assert isinstance(fault, ImportError)
        assert str(fault).endswith(f"run pip install 'synth-conv[{{extra}}]'"), fault
"""


def test_planning_needs_no_extra(network: Path) -> None:
    commands = [
        "plan examples/small.yaml --procs 4 --certify -o /dev/null",
        f"plan {network} --procs 4",
        "bounds examples/small.yaml --procs 4 --bounds-only",
        "simulate examples/small.yaml --procs 4",
        "emit examples/small.yaml --procs 4 -o /dev/null",
    ]
    code = ABSENT.format(absent=sorted(EXTRA_OF), commands=commands)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    for extra in ("torch", "explain"):
        assert f"run pip install 'synth-conv[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert set(EXTRA_OF.values()) == set(PURPOSE)

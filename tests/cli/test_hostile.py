"""Hostile layer files, plan files and command lines: one sentence and an exit code for each.

No traceback, no hang, no memory blow-up; and no name becomes code of an emitted program.
docs/robustness.md lists the classes of input that are tried here.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import io
import json
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from allowed import refused
from counted_work import at_most
from effort import tried
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.cli.main import main
from synth.codegen.render import render
from synth.layer.layer import Layer
from synth.layer.validate import LayerError
from synth.planning.derive import plan

CODES = {0, 2, 3, 4}  # done, usage, wrong input, infeasible: what planning may end with
CALLS = 3_000_000  # of functions: above what any case takes, 720 000, and far below a hang
MEMORY = 300 << 10  # KiB that one case may add to the peak

CONV = "conv2d:\n  input: [2, 4, 6, 6]\n  out_channels: 4\n  kernel: [3, 3]\n"
FILES = {
    "empty": "",
    "blank": "\n \n",
    "comment": "# nothing\n",
    "nul": CONV + "name: a\0b\n",
    "bom twice": "\ufeff\ufeff" + CONV,
    "alias bomb": "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n",
    "itself": "conv2d: &a\n  input: *a\n",
    "merge key": "conv2d:\n  <<: {input: [2, 4, 6, 6]}\n",
    "deep lists": "conv2d: " + "[" * 50_000 + "]" * 50_000,
    "deep mappings": "{a: " * 20_000,
    "deep by indentation": "".join(" " * i + "a:\n" for i in range(1000)),
    "many values": "conv2d: [" + "1," * 200_000 + "]",
    "long line": "conv2d: " + "a" * 900_000,
    "too long": "#" * (1 << 21),
    "huge integer": CONV.replace("out_channels: 4", "out_channels: " + "9" * 5000),
    "over 2**40": CONV.replace("out_channels: 4", "out_channels: 1099511627777"),
    "huge padding": CONV + "  padding: 1099511627776\n",
    "not a number": CONV.replace("out_channels: 4", "out_channels: .nan"),
    "infinite": CONV.replace("out_channels: 4", "out_channels: -.inf"),
    "base 60": CONV.replace("out_channels: 4", "out_channels: 1:30"),
    "octal": CONV.replace("out_channels: 4", "out_channels: 010"),
    "hexadecimal": CONV.replace("out_channels: 4", "out_channels: 0x10"),
    "underscores": CONV.replace("out_channels: 4", "out_channels: 1_000"),
    "other digits": CONV.replace("out_channels: 4", "out_channels: \u0664"),
    "lookalike key": CONV.replace("kernel", "k\u0435rnel"),
    "lookalike kind": CONV.replace("conv2d", "\u0441onv2d"),
    "duplicate key": CONV + "  out_channels: 8\n",
    "two kinds": CONV + CONV.replace("conv2d", "conv1d"),
    "two documents": CONV + "---\n" + CONV,
    "python tag": "!!python/object/apply:os.system [touch here]\n",
    "code in a key": "__import__('os').system('true'): 1\n",
    "binary tag": "conv2d: !!binary aGVsbG8=\n",
    "directive": "%YAML 9.9\n---\n" + CONV,
    "zero stride": CONV + "  stride: 0\n",
    "negative groups": CONV + "  groups: -1\n",
    "date": CONV.replace("out_channels: 4", "out_channels: 2026-01-01"),
    "json": json.dumps({"conv2d": {"input": [2, 4, 6, 6], "out_channels": 4, "kernel": 3}}),
}  # fmt: skip
NAMES = [
    '"""\nimport os\n"""',
    '""" + __import__("os").system("true") + """',
    "'; import os; '",
    "\\",
    '\\"',
    "{{ 7 * 7 }}{% for x in y %}",
    "{0.__class__}%s%(x)s",
    "../../etc/passwd",
    "/dev/null",
    "$(touch x)`touch x`; rm -rf /",
    "a\u202eb",
    "a\u200bb",
    "\u043fame",
    "# noqa\r\nimport os",
    "name\x0cimport os",
    "x\u2028import os",
    "-o",
    "con",
    "import",
    "a" * 64,
    "a" * 65,
    "\U0001f600",
    "# coding: latin-1",
]
UNREADABLE = {  # files: exit code 3
    "no such file": ["plan", "missing.yaml", "--procs", "4"],
    "a directory": ["plan", ".", "--procs", "4"],
    "a device": ["plan", "/dev/zero", "--procs", "4"],
    "an endless plan": ["emit", "--plan", "/dev/zero"],
    "a nul in a path": ["plan", "a\0b", "--procs", "4"],
    "a nul in a plan's path": ["emit", "--plan", "a\0b.json"],
    "a long path": ["plan", "a" * 5000, "--procs", "4"],
    "a long plan's path": ["emit", "--plan", "a" * 5000],
    "a lone surrogate": ["plan", "a\udcff.yaml", "--procs", "4"],
}
MISUSED = {  # arguments: exit code 2; "@" stands for a good layer file
    "no command": ["--procs"],
    "unknown": ["plam"],
    "procs 0": ["plan", "@", "--procs", "0"],
    "procs -1": ["plan", "@", "--procs", "-1"],
    "procs nan": ["plan", "@", "--procs", "nan"],
    "procs huge": ["plan", "@", "--procs", "9" * 400],
    "procs very huge": ["plan", "@", "--procs", "9" * 5000],
    "procs other digits": ["plan", "@", "--procs", "\u0664"],
    "memory": ["plan", "@", "--procs", "4", "--memory", "1e999GiB"],
    "memory nan": ["plan", "@", "--procs", "4", "--memory", "nanGiB"],
    "memory long": ["plan", "@", "--procs", "4", "--memory", "9" * 5000 + "GiB"],
    "memory tiny": ["plan", "@", "--procs", "4", "--memory", "1"],
    "balance nan": ["plan", "@", "--procs", "4", "--balance", "nan"],
    "balance inf": ["plan", "@", "--procs", "4", "--balance", "inf"],
    "balance negative": ["plan", "@", "--procs", "4", "--balance", "-1"],
    "grid": ["plan", "@", "--procs", "4", "--grid", "b=,=2"],
    "grid axis": ["plan", "@", "--procs", "4", "--grid", "__class__=2"],
    "grid twice": ["plan", "@", "--procs", "4", "--grid", "b=2,b=2"],
    "grid huge": ["plan", "@", "--procs", "4", "--grid", "b=" + "9" * 18],
    "strategy": ["plan", "@", "--procs", "4", "--strategy", "../../x"],
    "output to nowhere": ["plan", "@", "--procs", "4", "-o", "/nowhere/x"],
    "output is a directory": ["plan", "@", "--procs", "4", "-o", "/"],
    "output nul": ["plan", "@", "--procs", "4", "-o", "a\0b"],
    "output empty": ["plan", "@", "--procs", "4", "-o", ""],
    "bounds range": ["bounds", "@", "--procs", "4096:1"],
    "bounds memory": ["bounds", "@", "--procs", "4", "--memory", "1GiB:1KiB"],
    "walltime": ["emit", "@", "--procs", "4", "--sbatch", "/dev/null", "-o", "x.py", "--walltime", "$(x)"],
    "ranks per node": [
        "emit",
        "@",
        "--procs",
        "4",
        "--sbatch",
        "/dev/null",
        "-o",
        "x.py",
        "--ranks-per-node",
        "-1",
    ],
    "run without time": ["run", "@", "--procs", "4", "--timeout", "nan"],
    "run with no time": ["run", "@", "--procs", "4", "--timeout", "0"],
    "run backwards": ["run", "@", "--procs", "4", "--bench", "-1"],
    "run on too many": ["run", "@", "--procs", "1000000"],
}


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Checks that the block takes little work and memory."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with at_most(CALLS):
        yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < MEMORY


def told(*argv: str) -> tuple[int, str]:
    """Exit code and complaint of a command; a complaint is one printable line."""
    out, err = io.StringIO(), io.StringIO()
    with bounded(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(argv)
        except SystemExit as left:  # --help and --version of argparse
            code = int(left.code or 0)
    said = err.getvalue()
    assert code in CODES, said
    assert bool(code) == said.startswith("synth: "), said
    assert said.removesuffix("\n").isprintable(), said
    assert "Traceback" not in said
    return code, said


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("hostile")
    (made / "good.yaml").write_text(CONV)
    return made


@pytest.mark.parametrize("name", FILES)
def test_layer_files(name: str, folder: Path) -> None:
    """All but two are wrong input (3): a second byte order mark is dropped, and JSON is YAML."""
    path = folder / "layer.yaml"
    path.write_bytes(FILES[name].encode())
    code, said = told("plan", str(path), "--procs", "4")
    assert code == (0 if name in ("bom twice", "json") else 3), said


@pytest.mark.parametrize("argv", UNREADABLE.values(), ids=UNREADABLE)
def test_files_that_cannot_be_read(argv: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert told(*argv)[0] == 3


@pytest.mark.parametrize("argv", MISUSED.values(), ids=MISUSED)
def test_arguments(argv: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused as wrong usage (2), and no file is written."""
    monkeypatch.chdir(folder)
    before = sorted(path.name for path in folder.iterdir())
    assert told(*[str(folder / "good.yaml") if each == "@" else each for each in argv])[0] == 2
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_large_prime_number_of_processes(folder: Path) -> None:
    assert told("plan", str(folder / "good.yaml"), "--procs", "1000003")[0] == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.one_in(4)
def test_a_name_is_never_code(name: str) -> None:
    """What a program imports and calls is the same under any name."""
    try:
        layer = Layer.conv2d((2, 4, 6, 6), 4, 3, padding=1, name=name)
    except LayerError:
        return
    for standalone in (False, True):
        text = render(plan(layer, 4), standalone)
        assert refused(text, standalone) == []
        tree, plain = ast.parse(text), ast.parse(render(plan(replace(layer, name="x"), 4), standalone))
        assert [type(node) for node in ast.walk(tree)] == [type(node) for node in ast.walk(plain)]


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), st.just(10**400)
)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner))
PLAN: dict[str, Any] = plan(Layer.conv2d((2, 4, 6, 6), 4, 3, padding=1), 4).to_json()


def edit_a_plan(folder: Path, data: st.DataObject) -> None:
    """Change one value in a plan file: the file is refused, or emits a program."""
    made: Any = copy.deepcopy(PLAN)
    place: Any = made
    key = data.draw(st.sampled_from(sorted(place)))
    while isinstance(place[key], dict) and place[key] and data.draw(st.booleans()):
        place = place[key]
        key = data.draw(st.sampled_from(sorted(place)))
    place[key] = data.draw(VALUES)
    path = folder / "plan.json"
    path.write_text(json.dumps(made))
    assert told("emit", "--plan", str(path))[0] in (0, 3)


TOKENS = st.sampled_from(
    ["conv2d:", "conv3d: ", "input: ", "kernel: ", "name: ", "matmul: ", "einsum: ",
     "extents: ", "ab,bc->ac\n", "[1, 4, 9, 9]", "9" * 30, "{", "}",
     "[", "]", ": ", ", ", "\n", "\n  ", "- ", "-1", "1:30", ".nan", "'", '"', "&a ", "*a", "!!int ", "#",
     "|\n", "out_channels: 4\n"]
)  # fmt: skip


def write_a_layer(folder: Path, data: st.DataObject) -> None:
    """Tokens of layer files in any order, or any bytes."""
    made = data.draw(st.lists(TOKENS, max_size=40).map("".join).map(str.encode) | st.binary(max_size=60))
    path = folder / "layer.yaml"
    path.write_bytes(made)
    assert told("plan", str(path), "--procs", "4")[0] in (0, 3, 4)


@settings(max_examples=tried(15, 40))
@given(st.data())
def test_edited_plans(folder: Path, data: st.DataObject) -> None:
    edit_a_plan(folder, data)


@settings(max_examples=tried(30, 60))
@given(st.data())
def test_any_layer_file(folder: Path, data: st.DataObject) -> None:
    write_a_layer(folder, data)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(max_examples=3000)
@given(st.data())
def test_many_files(folder: Path, data: st.DataObject) -> None:
    edit_a_plan(folder, data)
    write_a_layer(folder, data)

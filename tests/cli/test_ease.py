"""What makes the commands easy: examples, pipes, remedies, notes that can be silenced, narrow terminals."""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import SMALL, Captured, told

from synth.base.errors import (
    CheckError,
    InfeasibleError,
    InputError,
    MissingExtraError,
    RunError,
    UsageError,
)
from synth.base.units import in_unit_of
from synth.cli.main import COMMANDS, commands, main, parser
from synth.cli.output import folded
from synth.cli.setup import schema

ROOT = Path(__file__).resolve().parents[2]
A100 = "synth/machine/data/a100.yaml"
OF_SYNTH = {
    "plan.json": "plan/1",
    "plans.json": "network-plan/1",
    "bound.json": "certificate/2",
    "words.json": "bounds/1",
    "run.json": "run/1",
}
NETWORK = "input: [8, 4, 16, 16]\nlayers:\n  - {name: a, conv2d: {out_channels: 8, kernel: 3, padding: 1}}\n"


@pytest.fixture(autouse=True)
def _in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def loaded(path: Path) -> dict[str, Any]:
    """The data of a file, read as YAML 1.2 reads numbers such as 1e-5."""
    text = re.sub(r"(?<![\d.])(\d+)e", r"\1.0e", path.read_text())
    data: dict[str, Any] = yaml.safe_load(re.sub(r"(?<=\de)(?=\d)", "+", text))
    return data


def piped(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_synth_alone_prints_help(capsys: Captured) -> None:
    code, out, err = told(capsys)
    assert (code, err) == (0, "")
    assert out == parser().format_help()
    assert "examples:\n  synth plan " in out


def test_every_command_has_examples_that_can_be_typed(capsys: Captured) -> None:
    made = commands(parser())
    assert len(made) == len(COMMANDS)
    for name, command in made.items():
        lines = re.findall(r"^  (synth .*)", command.format_help(), re.MULTILINE)
        assert lines, name
        for line in lines:
            words = shlex.split(line.partition(" > ")[0])
            assert words[:2] == ["synth", name]
            parser().parse_args(words[1:])
        assert command.description


def test_network_files_are_named_where_they_are_accepted() -> None:
    helps = {name: " ".join(command.format_help().split()) for name, command in commands(parser()).items()}
    for name in ("plan", "predict", "replay", "calibrate"):
        assert "network file (YAML)" in helps[name], name
    assert "a layer's or network's plan file" in helps["report"]


def test_a_dash_is_stdin_and_stdout(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Path(SMALL).read_text()
    piped(monkeypatch, layer)
    code, plan, err = told(capsys, "plan", "-", "--procs", "4", "--json", "-o", "-")
    assert (code, err) == (0, "")
    assert plan.startswith('{\n "schema": "synth.plan/1"')
    for command in (["simulate", "-", "--count", "--json"], ["emit", "-"], ["report", "-"]):
        piped(monkeypatch, plan)
        code, out, err = told(capsys, *command)
        assert (code, err) == (0, ""), command
        assert json.loads(plan)["id"] in out
    piped(monkeypatch, layer)
    code, out, _ = told(capsys, "bounds", "-", "--procs", "4", "--bounds-only", "--json")
    assert [point["procs"] for point in json.loads(out)["points"]] == [4]
    piped(monkeypatch, NETWORK)
    code, out, _ = told(capsys, "plan", "-", "--procs", "4", "--json")
    assert json.loads(out)["schema"] == "synth.network-plan/1"
    piped(monkeypatch, "conv2d: 3\n")
    assert told(capsys, "plan", "-", "--procs", "4")[2].startswith("synth: -:1:9: ")
    piped(monkeypatch, "x" * (1 << 21))
    assert "has more than" in told(capsys, "plan", "-", "--procs", "4")[2]


def test_a_certificate_comes_through_a_pipe(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    _, text, _ = told(capsys, "plan", SMALL, "--procs", "4", "--certify")
    piped(monkeypatch, text)
    assert told(capsys, "certify", "-")[0] == 0


def test_sizes_have_the_unit_that_was_given() -> None:
    text = "fits 204800 bytes; 205000 bytes would do (--memory 205000), 0 bytes"
    assert in_unit_of("200KiB", text) == "fits 200KiB; 200.2KiB would do (--memory 205000), 0 bytes"
    assert in_unit_of("1:204.8 kB", text).startswith("fits 204.8kB; 205kB would")
    assert in_unit_of("204800", text) == text
    assert in_unit_of("2e5", text) == text
    assert in_unit_of("1MiB", "2097153 bytes") == "2.001MiB"


def test_strategies_in_any_case_and_a_warning_where_ranks_idle(capsys: Captured) -> None:
    code, out, err = told(capsys, "plan", "examples/conv.yaml", "--procs", "64", "--strategy", "DATA")
    assert code == 0
    assert err == (
        "synth: warning: strategy data leaves 32 of 64 processes idle on conv4_x; "
        "take fewer processes, or another strategy\n"
    )
    assert "forward, data parallelism, Out stationary, 32 of 64 processes, 32 idle" in out
    quiet = told(capsys, "plan", "examples/conv.yaml", "--procs", "64", "--strategy", "data", "--quiet")
    assert quiet == (0, out, "")
    assert told(capsys, "plan", "examples/conv.yaml", "--procs", "16", "--strategy", "Data")[2] == ""


@pytest.mark.parametrize(
    ("grid", "name"),
    [
        ("b=4,k=1,h=1", "data parallelism"),
        ("h=4,b=1,k=1", "spatial partitioning"),
        ("h=2,b=2,k=1", "data+spatial partitioning"),
        ("k=4,b=1,h=1", "filter parallelism"),
        ("b=2,k=2,h=1", "2D algorithm"),
    ],
)
def test_grids_are_called_what_people_call_them(capsys: Captured, grid: str, name: str) -> None:
    _, out, _ = told(capsys, "plan", "examples/conv.yaml", "--procs", "4", "--grid", f"{grid},c=1,w=1")
    assert f"forward, {name}, " in out


def test_verbose_says_what_was_done(capsys: Captured, tmp_path: Path) -> None:
    code, _, err = told(capsys, "plan", SMALL, "--procs", "4", "-v")
    assert code == 0
    assert re.fullmatch(r"synth: plan \w+ in [\d.]+ s of processor time since the start\n", err)
    file = tmp_path / "net.yaml"
    file.write_text(NETWORK)
    assert "1 layers, 1 of them different" in told(capsys, "plan", str(file), "--procs", "2", "--verbose")[2]
    assert told(capsys, "plan", str(file), "--procs", "2")[2] == ""


def test_network_plans_are_shown_by_report(capsys: Captured, tmp_path: Path) -> None:
    file, plan = tmp_path / "net.yaml", tmp_path / "plan.json"
    file.write_text(NETWORK)
    assert told(capsys, "plan", str(file), "--procs", "2", "--json", "-o", str(plan))[0] == 0
    for argv in (["simulate", str(plan)], ["plot", str(plan), "-o", str(tmp_path / "p.svg")]):
        code, _, err = told(capsys, *argv)
        assert code == 3
        assert "show it with `synth report`" in err


def test_narrow_terminals(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    _, wide, _ = told(capsys, "plan", SMALL, "--procs", "4")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    _, narrow, _ = told(capsys, "plan", SMALL, "--procs", "4")
    assert max(map(len, wide.splitlines())) > 60
    assert max(map(len, narrow.splitlines())) <= 60
    assert narrow.split() == wide.split()
    _, data, _ = told(capsys, "plan", SMALL, "--procs", "4", "--json")
    assert json.loads(data)
    assert folded("a " * 30, 3) == folded("a " * 30, 20)


@pytest.mark.parametrize("kind", schema.FILES)
def test_a_schema_for_every_kind_of_file(kind: str, capsys: Captured, tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    code, out, _ = told(capsys, "schema", kind)
    assert code == 0
    checked = jsonschema.Draft202012Validator(json.loads(out))
    checked.check_schema(json.loads(out))
    if kind in ("plan", "network-plan"):
        file = tmp_path / "net.yaml"
        file.write_text(NETWORK)
        _, text, _ = told(capsys, "plan", SMALL if kind == "plan" else str(file), "--procs", "2", "--json")
        data = json.loads(text)
    else:
        path = {"layer": SMALL, "network": "examples/networks/vgg16.yaml", "machine": A100}[kind]
        if kind == "machine":
            for each in Path(path).parent.glob("*.yaml"):
                checked.validate(loaded(each))
        data = loaded(Path(path))
    wrong = {key: value for key, value in data.items() if key not in ("grid", "layers", "conv2d", "levels")}
    assert list(checked.iter_errors(wrong))


def test_schemas_beside_the_examples_are_current(capsys: Captured) -> None:
    for kind in ("layer", "network"):
        text = Path(f"examples/schemas/{kind}.json").read_text()
        assert text == told(capsys, "schema", kind)[1], (
            f"run `synth schema {kind} > examples/schemas/{kind}.json`"
        )
    for path in Path("examples").rglob("*.yaml"):
        first = path.read_text().partition("\n")[0]
        if first.startswith("# synth import"):
            continue  # as the command wrote it
        assert first.startswith("# yaml-language-server: $schema="), path
        named = (path.parent / first.partition("$schema=")[2]).resolve()
        assert named == (ROOT / "examples/schemas" / named.name)
        assert named.stem == ("network" if path.parent.name == "networks" else "layer")


def test_completion_of_commands_flags_and_files(capsys: Captured) -> None:
    pytest.importorskip("shtab")
    code, out, _ = told(capsys, "completion", "bash")
    assert code == 0
    assert subprocess.run(["bash", "-n"], input=out, text=True, check=False).returncode == 0
    script = (
        f"{out}\nCOMP_WORDS=(synth pl); COMP_CWORD=1; _shtab_synth synth pl synth; echo ${{COMPREPLY[@]}}"
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["plan", "plot"]
    assert "--exact-procs" in out
    assert "_shtab_synth_plan_pos_0_COMPGEN=_shtab_compgen_files" in out
    assert told(capsys, "completion", "zsh")[1].startswith("#compdef synth")
    assert "complete -c synth" in told(capsys, "completion", "fish")[1]


def test_an_unknown_option_is_told_before_one_that_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, said = told(capsys, "plan", "--proc", "4", "--memry=1GiB")
    assert code == 2
    assert (
        said == "synth: unrecognized arguments: --memry=1GiB; did you mean --memory?; see synth plan --help\n"
    )
    assert "synth plan needs a layer file, or --from FILE" in told(capsys, "plan", "--proc", "4")[2]


def test_exit_codes_are_those_of_the_table() -> None:
    text = Path("docs/faults.md").read_text(encoding="utf-8").partition("## Exit codes\n")[2]
    rows = {int(code): names for code, names in re.findall(r"^\| (\d+) \| .* \| (.*) \|$", text, re.M)}
    classes = (UsageError, InputError, InfeasibleError, CheckError, RunError, MissingExtraError)
    for each in classes:
        assert f"`{each.__name__}`" in rows[each.exit_code]
    assert set(rows) == {0, *(each.exit_code for each in classes)}


def test_certify_and_errata_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bound = tmp_path / "bound.json"
    assert main(["plan", SMALL, "--procs", "4", "--certify", "-o", str(bound)]) == 0
    lines = told(capsys, "certify", str(bound))[1].splitlines()
    made = json.loads(told(capsys, "certify", str(bound), "--json")[1])
    assert (made["schema"], made["file"]) == ("synth.certified/1", str(bound))
    assert " ".join(made["checked"]).split() == " ".join(lines).split()
    found = json.loads(told(capsys, "errata", "--json")[1])
    assert found["schema"] == "synth.errata/1"
    assert len(found["errata"]) > 10
    assert set(found["errata"][0]) == {"where", "fault", "example", "printed", "right"}


@pytest.mark.parametrize(
    ("command", "told_that"),
    [
        (f"predict {SMALL} --procs 4 --machine lassen", "3:1: the file holds a layer, not a network"),
        (f"replay {SMALL} --procs 4 --machine lassen", "3:1: the file holds a layer, not a network"),
        ("bounds NET --procs 4", "2:1: the file holds a network, not a layer"),
        ("run NET --procs 4", "2:1: the file holds a network, not a layer"),
        (f"emit {A100} --procs 4", "the file holds a machine, not a layer; name it after --machine"),
        ("plan NET --procs 4 --objective time --machine NET", "2:1: the file holds a network, not a machine"),
        (f"predict NET --procs 4 --machine {SMALL}", "3:1: the file holds a layer, not a machine"),
        (f"simulate --plan {SMALL}", "the file holds a layer, not the plan of a layer; plan it with"),
        ("emit --plan NET", "the file holds a network, not the plan of a layer; plan it with"),
        (f"certify {A100}", "the file holds a machine, not a certificate of a lower bound; name it after"),
        ("plan plan.json --procs 4 --machine plan.json", "plan.json has its own processes"),
        ("bounds plan.json --procs 4", "the file holds the plan of a layer, not a layer; emit it with"),
        (
            f"plan {SMALL} --procs 4 --objective time --machine plan.json",
            "the plan of a layer, not a machine",
        ),
        ("certify plan.json", "the file holds the plan of a layer, not a certificate"),
        ("predict NET --procs 4 --machine lassen --profile plan.json", "not a profile of times per layer"),
        (
            "report bound.json",
            "the file holds a certificate of a lower bound, not the plan of a layer; check it",
        ),
        (
            "plan bound.json --procs 4",
            "a certificate of a lower bound, not the plan of a layer; check it with",
        ),
        ("emit plans.json", "the file holds the plan of a network, not the plan of a layer; show it with"),
        (
            "predict plans.json --procs 4 --machine lassen",
            "the file holds the plan of a network, not a network",
        ),
        (
            "plan words.json --procs 4",
            "`synth bounds` printed, not the plan of a layer; no command reads it; ",
        ),
        (
            "plot run.json -o x.svg",
            "the outcome of `synth run`, not the plan of a layer; no command reads it; ",
        ),
        (
            "plan table.csv --procs 4",
            "the file holds a profile of times per layer, not a layer; name it after",
        ),
        ("emit program.py", "the file holds an emitted program, not a layer; start it with torchrun"),
    ],
)
def test_a_file_of_another_kind_is_called_by_its_name(
    command: str, told_that: str, capsys: Captured, tmp_path: Path
) -> None:
    (tmp_path / "net.yaml").write_text(NETWORK)
    for name, kind in OF_SYNTH.items():
        (tmp_path / name).write_text(json.dumps({"schema": f"synth.{kind}"}))
    (tmp_path / "table.csv").write_text("layer,forward_s,backward_s,update_s\n")
    (tmp_path / "program.py").write_text('"""layer: conv.\n\nEmitted by `synth emit conv.yaml`.\n"""\n')
    words = [str(tmp_path / each) if (tmp_path / each).exists() else each for each in command.split()]
    code, _, err = told(capsys, *(str(tmp_path / "net.yaml") if each == "NET" else each for each in words))
    assert code == (2 if "has its own" in told_that else 3)
    assert told_that in err
    assert err.count("\n") == 1

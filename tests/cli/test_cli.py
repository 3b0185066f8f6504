"""The command line: exit codes, one line per complaint, results on stdout alone, whole files or none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import synth.layer.layer as layer_module
from synth.base.units import in_unit_of, parse_bytes
from synth.cli.main import main
from synth.layer.layer import load_layer
from synth.planning import derive as pipeline
from synth.planning.plan_file import parse_plan
from synth.planning.request import STAGES
from synth.reports.text import report, stage_text

ROOT = Path(__file__).resolve().parents[2]
SMALL = "examples/small.yaml"
CONV = "examples/conv.yaml"
NETWORK = "examples/networks/cosmoflow.yaml"

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def told(capsys: Captured, *argv: str) -> tuple[int, str, str]:
    code = main(list(argv))
    out, err = capsys.readouterr()
    return code, out, err


# -- results --------------------------------------------------------------------------------------------


def test_plan_prints_the_report(capsys: Captured) -> None:
    code, out, err = told(capsys, "plan", SMALL, "--procs", "4")
    assert (code, err) == (0, "")
    assert out == report(pipeline.plan(load_layer(SMALL), 4))


def test_plan_json_is_one_object_and_nothing_else(capsys: Captured) -> None:
    code, out, err = told(capsys, "plan", SMALL, "--procs", "4", "--json")
    assert (code, err) == (0, "")
    assert parse_plan(out, "stdout") == pipeline.plan(load_layer(SMALL), 4)
    assert out.endswith("}\n")


def test_relax_adds_the_relaxation(capsys: Captured) -> None:
    _, out, _ = told(capsys, "plan", SMALL, "--procs", "4", "--json", "--relax")
    data = json.loads(out)
    assert 0 < data["relaxation"]["cost"] <= data["words"]["total"] * (1 + 1e-6)
    _, out, _ = told(capsys, "plan", SMALL, "--procs", "4", "--relax")
    assert "relaxation (geometric program): " in out


def test_plan_to_a_file_and_back(capsys: Captured, tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    assert told(capsys, "plan", SMALL, "--procs", "4", "--json", "-o", path) == (0, "", "")
    code, out, err = told(capsys, "simulate", path, "--json")
    assert (code, err) == (0, "")
    data = json.loads(out)
    plan = json.loads(Path(path).read_text())
    assert data["schema"] == "synth.simulation/1"
    assert data["plan"] == plan["id"]
    assert data["words"] == plan["words"]
    assert data["values_checked"] is True
    assert max(data["peak_words_per_rank"]) <= plan["memory"]["words"]
    code, out, _ = told(capsys, "simulate", path, "--count")
    assert code == 0
    assert "counted only, no values" in out


@pytest.mark.parametrize("stage", STAGES)
def test_the_derivation_stops_where_asked(capsys: Captured, stage: str) -> None:
    code, out, _ = told(capsys, "plan", SMALL, "--procs", "4", "--stop-after", stage)
    assert code == 0
    assert out == stage_text(pipeline.plan(load_layer(SMALL), 4), stage).rstrip("\n") + "\n"


def test_flags_reach_the_plan(capsys: Captured) -> None:
    flags = [
        "--memory",
        "1MiB",
        "--grid",
        "b=2, k=2",
        "--balance",
        "0.5",
        "--stationary",
        "ker",
        "--exact-procs",
    ]
    code, out, _ = told(capsys, "plan", SMALL, "--procs", "8", "--json", *flags)
    data = json.loads(out)
    assert code == 0
    assert (data["grid"]["b"], data["grid"]["k"], data["used_procs"]) == (2, 2, 8)
    assert (data["stationary"], data["memory"]["limit_bytes"]) == ("ker", 2**20)
    assert data["balance"]["allowed"] == 0.5
    assert data["balance"]["exact_procs"] is True
    code, out, _ = told(capsys, "plan", SMALL, "--procs", "4", "--json", "--pass", "training")
    assert json.loads(out)["pass"] == "training"
    code, out, _ = told(
        capsys, "plan", SMALL, "--procs", "4", "--json", "--pass", "training", "--gradients", "ker"
    )
    assert [each["pass"] for each in json.loads(out)["passes"]] == ["forward", "backward-filter"]


def test_schema_and_doctor(capsys: Captured) -> None:
    code, out, err = told(capsys, "schema")
    assert (code, err) == (0, "")
    assert json.loads(out)["$schema"]
    code, out, err = told(capsys, "doctor", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["well"] is True


def test_numbers_like_1e3(capsys: Captured) -> None:
    plain = told(capsys, "plan", CONV, "--procs", "10", "--memory", "1000000000")
    assert plain[0] == 0
    assert told(capsys, "plan", CONV, "--procs", "1e1", "--memory", "1e9") == plain
    code, out, _ = told(
        capsys, "bounds", CONV, "--procs", "1e1", "--memory", "1e9", "--bounds-only", "--json"
    )
    assert code == 0
    assert [point["procs"] for point in json.loads(out)["points"]] == [10]


# -- complaints -----------------------------------------------------------------------------------------

COMPLAINTS: list[tuple[list[str], int, str]] = [
    (["plan", CONV], 2, "the following arguments are required: --procs; see synth plan --help"),
    (
        ["plan", CONV, "--procs", "four"],
        2,
        "argument --procs: 'four' is not a whole number; write one like 1000 or 1e3; see synth plan --help",
    ),
    (["plan", CONV, "--procs", "0"], 2, "procs is 0; it must be a whole number from 1 to 1073741824"),
    (["plan", CONV, "--procs", "0e3"], 2, "procs is 0; it must be a whole number from 1 to 1073741824"),
    (
        ["plan", CONV, "--procs", "4", "--memory", "1e-9"],
        2,
        "'1e-9' is not a size in bytes; write a number with K, M, G, T, KiB, MiB, GiB or TiB, e.g. 16GiB",
    ),
    (
        ["plan", CONV, "--procs", "4", "--prcos"],
        2,
        "unrecognized arguments: --prcos; did you mean --procs?; see synth plan --help",
    ),
    (
        ["plan", CONV, "--procs", "4", "--memory", "lots"],
        2,
        "'lots' is not a size in bytes; write a number with K, M, G, T, KiB, MiB, GiB or TiB, e.g. 16GiB",
    ),
    (
        ["plan", CONV, "--procs", "4", "--grid", "b=2,b=2"],
        2,
        "--grid 'b=2,b=2' is not like b=4,k=2; name each axis once, with a count",
    ),
    (
        ["plan", CONV, "--procs", "4", "--grid", "b"],
        2,
        "--grid 'b' is not like b=4,k=2; name each axis once, with a count",
    ),
    (
        ["plan", CONV, "--procs", "4", "--grid", "q=2"],
        2,
        "grid has no axis 'q'; the axes are b, g, d, h, w, c, k",
    ),
    (
        ["plan", CONV, "--procs", "4", "--balance", "nan"],
        2,
        "balance is nan; it must be between 0 (no extra work) and 10",
    ),
    (
        ["plan", CONV, "--procs", "4", "--pass", "training", "--gradients", "out"],
        2,
        "gradients is ['out']; it must name in, ker or both",
    ),
    (
        ["plan", CONV, "--procs", "4", "--gradients", "ker"],
        2,
        "gradients ker are those of a training step, not of pass forward; "
        "leave them out or ask for pass training",
    ),
    (
        ["plan", NETWORK, "--procs", "4", "--pass", "training", "--gradients", "in"],
        2,
        "--gradients in says nothing about a network; with --pass training, ker leaves out "
        "the gradient of its input",
    ),
    (["simulate"], 2, "synth simulate needs a layer file, or --plan FILE"),
    (["simulate", CONV], 2, "synth simulate examples/conv.yaml needs --procs P"),
    (
        ["emit", "--plan", "p.json", "--procs", "3"],
        2,
        "the plan p.json has its own processes; leave out --procs 3",
    ),
    (
        ["run", "p.json", "--memory", "1KiB"],
        2,
        "the plan p.json has its own memory; leave out --memory 1KiB",
    ),
    (
        ["simulate", CONV, "--plan", "p.json"],
        2,
        "the plan p.json has its own layer; leave out examples/conv.yaml, or --plan",
    ),
    (
        ["simulate", "none.json"],
        3,
        "none.json: no such file, or not a plain one; name a plan file",
    ),
    (
        ["plan", CONV, "--procs", "7", "--grid", "b=8"],
        4,
        "no grid of at most 7 processes exists with b=8; take at least 8 processes or free a part of --grid",
    ),
    (
        ["plan", CONV, "--procs", "65537", "--exact-procs"],
        4,
        "no grid of exactly 65537 processes exists for Nb=32 Nh=14 Nw=14 Nc=256 Nk=256 Nr=3 Ns=3; "
        "allow idle processes (leave out --exact-procs) or take another number",
    ),
]


@pytest.mark.parametrize(("argv", "code", "message"), COMPLAINTS, ids=[" ".join(c[0]) for c in COMPLAINTS])
def test_one_line_and_an_exit_code(capsys: Captured, argv: list[str], code: int, message: str) -> None:
    assert told(capsys, *argv) == (code, "", f"synth: {message}\n")


@pytest.mark.parametrize(
    ("argv", "begins"),
    [
        (["--quick"], "synth: unrecognized arguments: --quick; see synth --help"),
        (["pln"], "synth: argument COMMAND: invalid choice: 'pln'"),
        (
            ["plan", CONV, "--procs", "4", "--objective", "speed"],
            "synth: argument --objective: invalid choice:",
        ),
        (
            ["plan", CONV, "--procs", "4", "--stop-after", "x"],
            "synth: argument --stop-after: invalid choice:",
        ),
    ],
)
def test_unknown_choices(capsys: Captured, argv: list[str], begins: str) -> None:
    code, out, err = told(capsys, *argv)
    assert (code, out) == (2, "")
    assert err.startswith(begins)
    assert err.count("\n") == 1
    if argv == ["pln"]:
        assert "; did you mean plan?; see synth --help" in err


def test_a_wrong_layer_file_is_named_with_its_place(capsys: Captured, tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("conv2d:\n  input: [1, 1, 5, 5]\n  out_channels: 1\n  kernel: [9, 3]\n")
    code, out, err = told(capsys, "plan", str(path), "--procs", "4")
    assert (code, out) == (3, "")
    assert err.startswith(f"synth: {path}:4:12: ")
    assert err.count("\n") == 1


def test_the_memory_that_is_named_works_and_less_does_not(capsys: Captured) -> None:
    code, out, err = told(capsys, "plan", SMALL, "--procs", "4", "--memory", "1K")
    assert (code, out) == (4, "")
    least = int(err.rsplit("--memory ", 1)[1].rstrip(")\n"))
    rounded = in_unit_of("1K", f"{least} bytes")
    assert 0 <= parse_bytes(rounded) - least < least / 1000
    assert err == (
        "synth: no plan for 4 processes fits 1K per process; "
        f"the least memory that fits is {rounded} (--memory {least})\n"
    )
    assert told(capsys, "plan", SMALL, "--procs", "4", "--memory", str(least), "--json")[0] == 0
    assert told(capsys, "plan", SMALL, "--procs", "4", "--memory", str(least - 4))[0] == 4
    assert told(capsys, "plan", SMALL, "--procs", "4", "--memory", str(least - 1))[0] == 4


def test_a_failed_check_is_code_5(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    from synth.simulation import simulate as simulated

    right = simulated.reference
    monkeypatch.setattr(simulated, "reference", lambda *given: right(*given) + 1)
    code, out, err = told(capsys, "simulate", SMALL, "--procs", "4")
    assert (code, out) == (5, "")
    assert err.endswith("computes other values\n")


def test_nothing_is_half_written(capsys: Captured, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    code, out, _ = told(capsys, "plan", SMALL, "--procs", "4", "--memory", "1K", "-o", str(path))
    assert (code, out, os.listdir(tmp_path)) == (4, "", [])
    away = tmp_path / "none" / "plan.json"
    code, out, err = told(capsys, "plan", SMALL, "--procs", "4", "-o", str(away))
    assert (code, out) == (2, "")
    assert (
        err
        == f"synth: {away}: cannot be written (No such file or directory); check the folder and its rights\n"
    )


def test_an_interrupt_is_130(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "derive", interrupted)
    assert told(capsys, "plan", SMALL, "--procs", "4") == (130, "", "synth: interrupted\n")


def test_faults_of_our_own_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> dict[str, object]:
        raise ZeroDivisionError

    monkeypatch.setattr(layer_module, "layer_file_schema", broken)
    with pytest.raises(ZeroDivisionError):
        main(["schema"])


# -- as a process ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("argv", [["plan", CONV, "--procs", "64"], ["schema"]])
def test_a_reader_that_leaves_is_no_fault(argv: list[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "synth", *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    told = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), told) == (0, b"")


def test_help_names_every_command() -> None:
    text = subprocess.run(
        [sys.executable, "-m", "synth", "--help"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    for command in ("plan", "emit", "run", "simulate", "schema", "doctor"):
        assert f"    {command} " in text


def test_emit_writes_program_and_batch_script(tmp_path: Path) -> None:
    program, script = tmp_path / "conv.py", tmp_path / "job.sbatch"
    layer = str(Path(__file__).parents[2] / "examples" / "small.yaml")
    assert main(["emit", layer, "--procs", "16", "-o", str(program), "--sbatch", str(script)]) == 0
    assert "srun" in script.read_text()
    assert "--ntasks-per-node=8" in script.read_text()
    assert str(tmp_path) not in script.read_text()
    compile(program.read_text(), "conv.py", "exec")
    assert main(["emit", layer, "--procs", "4", "--sbatch", str(script), "--ranks-per-node", "0"]) == 2


def test_the_version(capsys: Captured) -> None:
    import tomllib

    import synth

    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert synth.__version__ == version
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"synth {version}\n"


@pytest.mark.parametrize("installed", [True, False])
def test_the_version_with_and_without_an_installation(tmp_path: Path, installed: bool) -> None:
    """A copy of the package alone, beside its metadata or beside its pyproject.toml."""
    (tmp_path / "synth").mkdir()
    shutil.copy(ROOT / "synth" / "__init__.py", tmp_path / "synth")
    if installed:
        metadata = tmp_path / "synth_conv-7.8.9.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text("Metadata-Version: 2.1\nName: synth-conv\nVersion: 7.8.9\n")
    else:
        (tmp_path / "pyproject.toml").write_text('[project]\nname = "synth-conv"\nversion = "7.8.9"\n')
    command = [sys.executable, "-c", "import synth; print(synth.__version__)"]
    here = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=here)
    assert done.stdout == "7.8.9\n"


def test_a_program_names_its_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    shutil.copy(ROOT / SMALL, tmp_path / "sub" / "small.yaml")
    monkeypatch.chdir(tmp_path)
    assert main(["emit", "sub/small.yaml", "--procs", "4", "-o", "sub/e.py"]) == 0
    relative = Path("sub/e.py").read_text()
    assert "Emitted by `synth emit sub/small.yaml --procs 4 -o sub/e.py` (plan" in relative
    assert "Run    torchrun --nproc-per-node=4 e.py --check\n" in relative
    assert main(["emit", str(tmp_path / "sub/small.yaml"), "--procs", "4", "-o", str(tmp_path / "e.py")]) == 0
    absolute = Path("e.py").read_text()
    assert str(tmp_path) not in absolute
    assert "Emitted by `synth emit small.yaml --procs 4 -o e.py` (plan" in absolute


def test_a_program_on_stdout_has_no_name(capsys: Captured) -> None:
    _, out, _ = told(capsys, "emit", SMALL, "--procs", "4", "--standalone")
    assert "Emitted by `synth emit examples/small.yaml --procs 4 --standalone` (plan" in out
    assert "torchrun --nproc-per-node=4 PROGRAM.py --check" in out


def test_flags_are_explained(capsys: Captured) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "by Eq. 10 of the paper (Li et al., SPAA'21)" in text
    assert "the tensor that stays in memory for the whole loop" in text
    assert "training: all passes on one grid" in text


def test_doctor_looks_for_all_that_is_needed() -> None:
    import re
    import tomllib

    from synth.launch.doctor import NEEDED, OPTIONAL

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [re.split("[<>=]", each)[0] for each in project["dependencies"]] == list(NEEDED)
    extras = project["optional-dependencies"]
    asked = [
        (re.split("[<>=]", each)[0], extra)
        for extra in sorted(set(OPTIONAL.values()))
        for each in extras[extra]
    ]
    assert asked == list(OPTIONAL.items())

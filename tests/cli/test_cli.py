"""The command line: results on stdout alone, and processes; `test_complaints` has what is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import CONV, SMALL, Captured, told

from synth.cli.main import main
from synth.layer.layer import load_layer
from synth.planning import derive as pipeline
from synth.planning.plan_file import parse_plan
from synth.planning.request import STAGES
from synth.reports.text import report, stage_text

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


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
    wrong = ["--sbatch", str(script), "-o", str(program), "--ranks-per-node", "0"]
    assert main(["emit", layer, "--procs", "4", *wrong]) == 2


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

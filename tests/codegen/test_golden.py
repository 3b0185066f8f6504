"""Golden programs: emitted text is read and reviewed as code. `pytest --update-golden` rewrites it."""

from __future__ import annotations

import ast
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from cases import CASES

from synth.cli.main import main
from synth.codegen.sbatch import render_sbatch
from synth.planning.algorithm import algorithm_name
from synth.planning.plan import Plan
from synth.planning.plan_file import read_plan
from synth.planning.plan_json import exact_json

GOLDEN = Path(__file__).parents[1] / "golden"
GRID = "--grid h=2,c=2,k=2"
OUT = "--rows h=out"  # blocks are cut by output rows
BACK = "--panels 2 --pass backward-data --stationary in"
PROGRAMS = {  # file -> the arguments of `synth emit` that write it, in the folder of the golden programs
    "conv_2p5d.py": "layers/deep.yaml --procs 16 --memory 5KiB",
    "conv_3d.py": "layers/small.yaml --procs 8 --panels 4",
    "conv_halo.py": f"layers/small.yaml --procs 8 {GRID} --panels 4",
    "conv_strided_tiles.py": "--plan plans/strided_tiles.json",
    "conv_ker_stationary.py": "--plan plans/ker_stationary.json",
    "conv_in_stationary.py": "layers/small.yaml --procs 8 --stationary in --panels 4",
    "conv_grouped.py": f"layers/grouped.yaml --procs 8 --grid g=2,h=2,k=2 --panels 3 {OUT}",
    "conv_input_rows.py": "layers/uneven.yaml --procs 8 --grid h=2,w=2,k=2 --rows h=in,w=out",
    "conv_classes.py": "layers/atrous.yaml --procs 4 --grid b=2,h=2 --classes h=3,w=2 --rows h=out",
    "conv_spatial.py": "layers/wide.yaml --procs 4 --grid h=4",
    "conv3d_volume.py": "layers/volume.yaml --procs 8 --grid d=2,h=2,k=2 --panels 2 --rows d=out,h=out",
    "lean_halo.py": f"layers/small.yaml --procs 8 {GRID} --panels 4 --lean",
    "lean_training.py": "--plan plans/training_tiles.json --lean",
    "matmul_idle.py": "layers/matrix.yaml --procs 7 --grid b=3,k=2 --panels 2",
    "matmul_3d.py": "layers/matrix.yaml --procs 8 --panels 2",
    "matmul_rotated.py": "layers/nine.yaml --procs 9 --grid b=3,k=3 --panels 3",
    "backward_data.py": f"layers/uneven.yaml --procs 8 {GRID} {BACK} {OUT}",
    "backward_filter.py": "--plan plans/backward_filter.json",
    "training_3d.py": f"layers/uneven.yaml --procs 8 {GRID} --pass training {OUT}",
    "training_tiles.py": "--plan plans/training_tiles.json",
    "training_streams.py": "--plan plans/training_streams.json",
    "training_rotated.py": "--plan plans/training_rotated.json",
    "training_input_rows.py": f"layers/uneven.yaml --procs 8 {GRID} --rows h=in --pass training",
    "training_transposed.py": f"layers/up.yaml --procs 8 {GRID} --pass training {OUT}",
    "training_first_layer.py": f"layers/uneven.yaml --procs 8 {GRID} --gradients ker --pass training",
    "module_3d.py": f"layers/uneven.yaml --procs 8 {GRID} --pass training --module {OUT}",
    "module_streams.py": "--plan plans/training_streams.json --module",
    "module_transposed.py": f"layers/up.yaml --procs 8 {GRID} --pass training --module {OUT}",
    "module_first_layer.py": f"layers/uneven.yaml --procs 8 {GRID} --gradients ker --pass training --module",
}
PLANS = {  # plans that no flags ask for: file -> case
    "strided_tiles.json": "strided_shared",
    "ker_stationary.json": "ker_stationary_sums",
    "backward_filter.json": "filter_3d",
    "training_tiles.json": "training_tiles",
    "training_streams.json": "training_streams",
    "training_rotated.json": "training_rotated",
}
COMMAND = re.compile(r"^Emitted by `(synth emit .*)` \(plan [0-9a-f]{12}\)\.$", re.MULTILINE)
REMEDY = "if this is meant: pytest --update-golden, then read the diff"


def named(plan: Plan) -> Plan:
    """The plan with the name that planning gives its algorithm."""
    return replace(plan, algorithm=algorithm_name(plan.layer, plan.procs, plan.distribution, plan.pass_plans))


@pytest.fixture(scope="module")
def plans(request: pytest.FixtureRequest) -> Path:
    """The folder of the plans, written anew if golden files are."""
    folder = GOLDEN / "plans"
    for file, case in PLANS.items() if request.config.getoption("--update-golden") else ():
        plan = named(CASES[case])
        text = json.dumps({**exact_json(plan), "algorithm": plan.algorithm}, indent=1) + "\n"
        (folder / file).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plans: Path) -> Path:
    """The working directory: the layers and plans of the golden programs, and no program."""
    for inputs in ("layers", "plans"):
        (tmp_path / inputs).symlink_to(plans.parent / inputs)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("file", PROGRAMS)
def test_program(file: str, folder: Path, update_golden: bool) -> None:
    """The command writes the file, and the command in the file's header writes it again."""
    assert main(["emit", *PROGRAMS[file].split(), "-o", file]) == 0
    text = (folder / file).read_text(encoding="utf-8")
    if update_golden:
        (GOLDEN / file).write_text(text, encoding="utf-8")
    golden = (GOLDEN / file).read_text(encoding="utf-8")
    assert text == golden, REMEDY
    assert replayed(folder / file) == golden


def replayed(program: Path) -> str:
    """What the command in the header of a program writes in its place."""
    found = COMMAND.search(program.read_text(encoding="utf-8"))
    assert found is not None
    _, *command = shlex.split(found[1])
    program.unlink()
    assert main(command) == 0
    return program.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "arguments",
    [
        "--procs 8 --objective time --machine lassen",
        "--procs 8 --classes h=1",
        "--procs 8 --objective paper --standalone",
        "--procs 7 --balance 0.5 --memory 30000 --order b,h,k,c",
        "--procs 6 --exact-procs --strategy 2.5D --stationary out",
        "--procs 4 --pass training --gradients in --objective time --machine lassen --module",
    ],
)
def test_every_flag_is_in_the_header(arguments: str, folder: Path) -> None:
    assert main(["emit", "layers/uneven.yaml", *arguments.split(), "-o", "program.py"]) == 0
    text = (folder / "program.py").read_text(encoding="utf-8")
    assert replayed(folder / "program.py") == text


@pytest.mark.parametrize("file", PLANS)
def test_a_plan_file_is_of_a_case(file: str, plans: Path) -> None:
    assert read_plan(plans / file) == named(CASES[PLANS[file]]), REMEDY


def test_every_file_is_of_a_command() -> None:
    assert {path.name for path in GOLDEN.glob("*.py")} == PROGRAMS.keys()
    assert {path.name for path in (GOLDEN / "plans").glob("*.json")} == PLANS.keys()
    used = " ".join(PROGRAMS.values())
    assert [path.name for path in GOLDEN.glob("*/*") if path.name not in used] == []


def test_the_first_one_is_2_5d() -> None:
    """Memory between the 2D and the 3D case: channels are split, but less than free memory would pay for."""
    header = ast.get_docstring(ast.parse((GOLDEN / "conv_2p5d.py").read_text(encoding="utf-8")))
    assert header is not None
    assert "\nForm   2.5D: Out stationary, In and Ker streamed in 16 panels along c\n" in header
    assert " a grid b=2 x c=2 x k=4." in header


def test_sbatch(update_golden: bool) -> None:
    path = GOLDEN / "job.sbatch"
    text = render_sbatch(
        CASES["summa_3d"], "conv 2p5d.py", 4, cpus_per_task=2, gpus_per_task=1, partition="gpu"
    )
    if update_golden:
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, REMEDY

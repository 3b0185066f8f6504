"""Every command's `--json` is as its schema says: no field is missing, and none is unknown."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from synth.cli.main import commands, main, parser
from synth.cli.output import json_text
from synth.cli.setup.calibrate import data_of
from synth.cli.setup.output_schemas import OUTPUTS as STRUCTS
from synth.cli.setup.schema import OUTPUTS, schema_of

ROOT = Path(__file__).parents[2]
SMALL, NET = str(ROOT / "examples/small.yaml"), str(ROOT / "examples/networks/tutorial.yaml")
PRINTED = {  # kind -> command lines
    "simulation": ["simulate plan.json --json"],
    "bounds": [
        f"bounds {SMALL} --procs 2:4 --memory 128KiB --json",
        f"bounds {SMALL} --procs 2 --json --bounds-only",
        "bounds product.yaml --procs 8 --json",
    ],
    "symbolic_bound": [f"bounds {SMALL} --symbolic --json"],
    "predictions": [f"predict {NET} --procs 4 --machine lassen --json"],
    "replay": [f"replay {NET} --procs 4 --machine lassen --json"],
    "doctor": ["doctor --json"],
    "certificate": [
        f"plan {SMALL} --procs 4 --certify",
        f"plan {SMALL} --procs 4 --memory 128KiB --certify",
        f"plan {NET} --procs 4 --certify",
    ],
    "certified": ["certify bound.json --json", "certify family.json --json"],
    "errata": ["errata --json"],
    "plan": [f"plan {SMALL} --procs 4 --json", f"plan {SMALL} --procs 4 --pass training --json"],
    "network-plan": [f"plan {NET} --procs 4 --json"],
    "diff": ["diff plan.json other.json --json", "diff net.json step.json --json"],
    "imported": ["import small_model:build --input 2,3,8,8 --json"],
    "checked": ["check small_model:build --input 2,3,8,8 --json"],
    "calibration": [f"calibrate {NET} --repeat 1 --json"],
    "explanation": ["explain plan.json --json", "explain step.json --json", "explain other.json --json"],
}
MADE = {
    "plan.json": f"plan {SMALL} --procs 4 --json",
    "other.json": f"plan {SMALL} --procs 8 --pass training --memory 200KiB --json",
    "net.json": f"plan {NET} --procs 4 --json",
    "step.json": f"plan {NET} --procs 4 --pass training --objective time --machine lassen --json",
    "bound.json": f"plan {SMALL} --procs 4 --certify",
    "family.json": f"plan {NET} --procs 4 --certify",
}
MODEL = """
import torch

class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return torch.renorm(self.conv(x), 2, 0, 1.0)

build = Small
"""
LONG = {"bounds", "symbolic_bound", "doctor", "calibration"}  # they load torch, sympy or a solver
# what starts ranks is checked in tests of `run`; a single prediction is an entry of several
APART = {"run", "prediction"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plans")
    (folder / "product.yaml").write_text("matmul: {input: [64, 48, 32]}\n")
    (folder / "small_model.py").write_text(MODEL)
    for name, command in MADE.items():
        assert main([*command.split(), "-o", str(folder / name)]) == 0
    return folder


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind in LONG)) for kind in PRINTED]
)
@pytest.mark.one_in(2)
def test_what_is_printed_is_as_the_schema_says(
    kind: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    schema = schema_of(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    for line in PRINTED[kind]:
        assert main(line.split()) == 0
        data = json.loads(capsys.readouterr().out)
        jsonschema.validate(data, schema)
        if kind in OUTPUTS:  # and nothing else is allowed
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate({**data, "unknown": 1}, schema)


def test_an_imported_network_says_what_every_rank_gathers(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert main(["import", "small_model:build", "--input", "2,3,8,8", "--json", "-o", "made.yaml"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["file"], data["text"]) == ("made.yaml", Path("made.yaml").read_text())
    ((words,),) = [[each["words"] for each in data["gathered"]]]
    assert words == 2 * 4 * 6 * 6
    assert 0 < data["gathered_share"] < 1
    assert main(["plan", "made.yaml", "--procs", "2"]) == 0


def test_a_measured_machine_is_as_its_schema_says() -> None:
    text = (ROOT / "synth/machine/data/lassen.yaml").read_text()
    data = {"schema": "synth.calibration/1", "file": None} | data_of("machine", text)
    jsonschema.validate(json.loads(json_text(data)), schema_of("calibration"))
    jsonschema.validate(data["machine"], schema_of("machine"))


def test_every_output_has_a_schema() -> None:
    assert STRUCTS.keys() == set(OUTPUTS)
    assert set(OUTPUTS) - APART <= PRINTED.keys()
    lines = " ".join(line for lines in PRINTED.values() for line in lines)
    for name, command in commands(parser()).items():
        if "--json" in command._option_string_actions and name != "run":
            assert f"{name} " in lines, f"{name} --json has no schema"


@pytest.mark.slow
@pytest.mark.ranks
def test_a_run_is_as_its_schema_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(folder / "plan.json"), "--json"]) == 0
    jsonschema.validate(json.loads(capsys.readouterr().out), schema_of("run"))

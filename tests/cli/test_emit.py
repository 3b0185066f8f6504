"""`synth emit`: the command in the header of a program writes the same file, byte for byte."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
from pathlib import Path

import pytest

from synth.cli.main import main
from synth.planning.plan_file import read_plan

ROOT = Path(__file__).resolve().parents[2]

REQUESTS = [
    [],
    ["--objective", "time", "--machine", "lassen"],
    ["--objective", "time", "--machine", "machine.yaml", "--pass", "training"],
    ["--machine", "machine.yaml", "--memory", "80kB"],
    ["--memory", "64KiB"],
    ["--memory", "1e6"],
    ["--grid", "b=2, k=2"],
    ["--grid", "c=2,k=4", "--order", "k, c"],
    ["--pass", "training", "--gradients", "ker"],
    ["--pass", "training", "--gradients", "ker,in"],
    ["--pass", "backward-data"],
    ["--strategy", "2.5D", "--balance", "10"],
    ["--strategy", "data+filter", "--stationary", "ker"],
    ["--stationary", "out", "--panels", "3"],
    ["--exact-procs", "--balance", "0.12345678901"],
    ["--objective", "paper"],
]
FORMS = [
    [],
    ["--standalone"],
    ["--lean"],
    ["-o", "a folder/lean.py", "--lean", "--pass", "training", "--grid", "h=2,k=2"],
    ["-o", "conv_dist.py"],
    ["-o", "a folder/conv dist.py", "--standalone"],
    ["-o", "module.py", "--module", "--pass", "training"],
    ["-o", "both.py", "--module", "--standalone", "--pass", "training", "--order", "k,b,h,w,c"],
]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(ROOT / "examples" / "small.yaml", tmp_path / "small.yaml")
    shutil.copy(ROOT / "examples" / "small.yaml", tmp_path / "a layer's.yaml")
    shutil.copy(ROOT / "synth" / "machine" / "data" / "lassen.yaml", tmp_path / "machine.yaml")
    (tmp_path / "a folder").mkdir()
    monkeypatch.chdir(tmp_path)


def emitted(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    """The text that a command writes, to a file or to stdout."""
    assert main(words) == 0
    out = capsys.readouterr().out
    return Path(words[words.index("-o") + 1]).read_text() if "-o" in words else out


def command_in(program: str) -> list[str]:
    """The words of the command in the header of a program, after `synth`."""
    header = ast.get_docstring(ast.parse(program))
    found = re.search(r"^Emitted by `(.*?)` \(plan", header or "", re.MULTILINE | re.DOTALL)
    assert found
    name, *words = shlex.split(" ".join(found[1].split("\n")))
    assert name == "synth"
    return words


@pytest.mark.parametrize("flags", [*REQUESTS, *FORMS], ids=" ".join)
def test_the_command_of_the_header_writes_the_same_program(
    capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    text = emitted(capsys, ["emit", "small.yaml", "--procs", "8", *flags])
    words = command_in(text)
    for name in Path.cwd().glob("**/*.py"):
        name.unlink()
    assert emitted(capsys, words) == text


@pytest.mark.parametrize("named", [["--plan", "plan.json"], ["plan.json"]])
def test_the_command_of_a_plan_file(capsys: pytest.CaptureFixture[str], named: list[str]) -> None:
    assert main(["plan", "small.yaml", "--procs", "8", "--memory", "64KiB", "--json", "-o", "plan.json"]) == 0
    text = emitted(capsys, ["emit", *named])
    assert command_in(text) == ["emit", "--plan", "plan.json"]
    assert emitted(capsys, command_in(text)) == text
    assert f"(plan {read_plan('plan.json').id})" in text


def test_absolute_paths_become_names(capsys: pytest.CaptureFixture[str]) -> None:
    here = Path.cwd()
    flags = ["--machine", str(here / "machine.yaml"), "--objective", "time", "-o", str(here / "e.py")]
    text = emitted(capsys, ["emit", str(here / "a layer's.yaml"), "--procs", "4", *flags])
    assert str(here) not in text
    assert emitted(capsys, command_in(text)) == text


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--standalone"], "needs torch alone as it is; leave out --standalone, or --lean"),
        (["--module", "--pass", "training"], "no torch.nn.Module; leave out --module, or --lean"),
        (["--sbatch", "job.sbatch", "-o", "x.py"], "SLURM does not set; leave out --sbatch, or --lean"),
    ],
)
def test_lean_is_a_form_of_its_own(capsys: pytest.CaptureFixture[str], flags: list[str], said: str) -> None:
    assert main(["emit", "small.yaml", "--procs", "4", "--lean", *flags]) == 2
    assert said in capsys.readouterr().err
    assert list(Path.cwd().glob("*.sbatch")) == []


def test_lean_names_what_it_cannot_do(capsys: pytest.CaptureFixture[str]) -> None:
    text = Path("small.yaml").read_text().replace("conv2d:\n", "conv2d:\n  dtype: bfloat16\n")
    Path("half.yaml").write_text(text)
    assert main(["emit", "half.yaml", "--procs", "4", "--lean"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "plan the layer in float32, or leave out --lean" in said


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--walltime", "01:00:00"], "--walltime 01:00:00 is for the script of SLURM; add --sbatch FILE"),
        (["--ranks-per-node", "0"], "--ranks-per-node 0 is for the script of SLURM; add --sbatch FILE"),
        (["--sbatch", "job.sbatch"], "--sbatch job.sbatch starts the file of the program; name that file"),
    ],
)
def test_a_script_has_its_program_and_its_options_have_a_script(
    capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    assert main(["emit", "small.yaml", "--procs", "4", *flags]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"synth: {said}")
    assert err.count("\n") == 1
    assert not Path("job.sbatch").exists()


def test_help_says_what_options_need(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["emit", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "needs --pass training" in text
    assert "(default 00:10:00, ten minutes)" in text
    assert "write an sbatch file for SLURM, too; needs -o" in text

"""Complaints of the command line: one line on stderr, an exit code, whole files or none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command_line import CONV, NETWORK, SMALL, Captured, told

import synth.layer.layer as layer_module
from synth.base.units import in_unit_of, parse_bytes
from synth.cli.main import main
from synth.planning import derive as pipeline

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


COMPLAINTS: list[tuple[list[str], int, str]] = [
    (["plan", CONV], 2, f"synth plan {CONV} needs --procs P"),
    (["plan", "--procs", "4"], 2, "synth plan needs a layer file, or --from FILE"),
    (
        ["plan", CONV, "--from", "plan.json"],
        2,
        f"the plan plan.json has its own layer; leave out {CONV}, or --from",
    ),
    (
        ["plan", "--from", "plan.json", "--procs", "8"],
        2,
        "the plan plan.json has its own processes; leave out --procs 8",
    ),
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
        "--grid: 'b=2' is no count of an axis; write axes like b=4, each once",
    ),
    (
        ["plan", CONV, "--procs", "4", "--grid", "b"],
        2,
        "--grid: 'b' is no count of an axis; write axes like b=4, each once",
    ),
    (
        ["plan", CONV, "--procs", "4", "--grid", "q=2"],
        2,
        "--grid: 'q=2' is no count of an axis; write axes like b=4, each once",
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
        "none.json: cannot be read (No such file or directory); name a readable plan file",
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

"""The machine-checked bound: no gaps in its files, a page that names what they prove, a build."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

FILES = {path.stem: path for path in sorted(Path("proof").glob("*.v"))}
PAGE = Path("docs/proof.md")
STATEMENT = re.compile(r"^\s*(?:Lemma|Theorem|Corollary|Example)\s+(\w+)", re.M)
GAP = re.compile(
    r"\b(Admitted|admit|give_up|Abort|Axioms?|Parameters?|Conjecture|Declare\s+\w+|Unset\s+\w+\s+Checking|bypass_check)\b"
)


def code(text: str) -> str:
    """The text of a file of Coq without its comments."""
    parts, depth = [], 0
    for part in re.split(r"(\(\*|\*\))", text):
        depth += (part == "(*") - (part == "*)")
        parts.append(part if depth == 0 and part not in ("(*", "*)") else " ")
    assert depth == 0
    return "".join(parts)


def listed() -> list[str]:
    """The files of the project, in the order in which they are compiled."""
    lines = Path("proof/_CoqProject").read_text(encoding="utf-8").splitlines()
    return [line.removesuffix(".v") for line in lines if line.endswith(".v")]


def outside_sections(text: str) -> list[str]:
    """Names that a file assumes outside any section: they would hold for all of it, as axioms do."""
    depth, found = 0, []
    for line in code(text).splitlines():
        if re.match(r"\s*Section\s", line):
            depth += 1
        elif re.match(r"\s*End\s", line):
            depth -= 1
        elif depth == 0 and (match := re.match(r"\s*(?:Variables?|Hypothes[ie]s|Context)\b(.*)", line)):
            found.append(match.group(1).strip())
    return found


def test_files_have_no_gaps_and_no_axioms() -> None:
    assert len(FILES) >= 8
    for path in FILES.values():
        text = path.read_text(encoding="utf-8")
        assert GAP.findall(code(text)) == [], path
        assert outside_sections(text) == [], path


@pytest.mark.parametrize(
    "line", ["Admitted.", "Axiom a : False.", "  admit.", "Parameter n : nat.", "Unset Guard Checking."]
)
def test_a_gap_is_found(line: str) -> None:
    assert GAP.search(code(f"(* a comment *) {line}"))
    assert not GAP.search(code(f"(* {line} (* nested *) *) Qed."))


def test_a_variable_outside_sections_is_found() -> None:
    assert outside_sections("Variable n : nat.\nSection S.\nVariable m : nat.\nEnd S.") == ["n : nat."]


def test_the_project_compiles_every_file_once() -> None:
    assert sorted([*listed(), "Assumptions"]) == list(FILES)


def test_what_is_proved_assumes_only_what_is_compiled_before_it() -> None:
    order = listed()
    for name in order:
        text = FILES[name].read_text(encoding="utf-8")
        used = [
            each
            for line in re.findall(r"^From Synth Require Import (.*)\.$", text, re.M)
            for each in line.split()
        ]
        assert all(order.index(each) < order.index(name) for each in used), name


def test_the_page_names_lemmas_that_the_files_prove() -> None:
    """Rows of the page's table name lemmas and files; theorems whose assumptions are printed have one."""
    proved = {
        stem: set(STATEMENT.findall(code(path.read_text(encoding="utf-8")))) for stem, path in FILES.items()
    }
    table = PAGE.read_text(encoding="utf-8").split("## Each lemma")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| ([\w, ]+) \|", table, re.M)
    assert len(rows) > 10
    for names, files in rows:
        for name in re.findall(r"`(\w+)`", names):
            assert any(name in proved[file] for file in files.split(", ")), (name, files)
    named = {name for names, _ in rows for name in re.findall(r"`(\w+)`", names)}
    printed = re.findall(
        r"^Print Assumptions (\w+)\.$", FILES["Assumptions"].read_text(encoding="utf-8"), re.M
    )
    assert len(printed) >= 10
    assert set(printed) <= named


def test_the_page_has_all_conditions_of_an_execution() -> None:
    text = code(FILES["Execution"].read_text(encoding="utf-8"))
    record = text.split("Record execution")[1].split("}.")[0]
    conditions = set(re.findall(r"^\s*(\w+) : forall", record, re.M))
    page = PAGE.read_text(encoding="utf-8").split("| condition |")[1].split("\n\n")[0]
    assert conditions
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.M)) == conditions


@pytest.mark.slow
def test_the_proofs_are_checked_and_rest_on_no_axiom() -> None:
    if shutil.which("coqc") is None:
        pytest.skip("coq is not installed: apt-get install coq libcoq-mathcomp-algebra libcoq-mathcomp-zify")
    run = subprocess.run(["make", "proof-quick"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "no theorem rests on an axiom"

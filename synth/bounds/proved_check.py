"""Checks certificates with the checker that is proved in `proof/Certificate.v`, and run by Coq.

The numbers of a file `bound.json` become terms of Coq. Coq counts the layer and checks the chain by itself:
of this package, only the translation of the layer and of P, memory and most work has to be trusted.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

from synth.base.errors import CheckError, InputError, UsageError
from synth.bounds.certificate_check import TENSORS, loops
from synth.bounds.constant_proof import Step, constant_proof

SOURCES = Path(__file__).resolve().parents[1] / "proof"
PACKAGES = "coq libcoq-mathcomp-algebra libcoq-mathcomp-zify"
OPTIONS = ("-q", "-w", "-notation-overridden")
HEAD = """From mathcomp Require Import all_ssreflect.
From Coq Require Import NArith.
From Synth Require Import Constants Certificate.
Local Open Scope N_scope.
"""
THEOREMS = ("certified_forward", "certified_backward_data", "certified_backward_weight")
CLAIM = """
Definition p := {problem}.
Definition c := {certificate}.
Definition ws := {proofs}.
Compute check p c ws.
Lemma accepted : check p c ws. Proof. by vm_compute. Qed.
Definition claims := ({theorems}).
Print Assumptions claims.
"""


def prove(data: dict[str, Any], path: str) -> list[str]:
    """Proves the claim of a certificate's JSON data, and returns what was proved, as lines.

    `certificate_check.check` must have accepted the data. `path` is for messages. Raises `CheckError` if the
    proved checker refuses it, `InputError` for constants without a proof, `UsageError` if Coq or its
    libraries are not installed, or the proofs cannot be compiled in the user's cache folder.
    """
    for each in data["constants"]:
        outputs, taps, square = each["outputs"], each["taps"], Fraction(each["square"])
        if constant_proof(outputs, taps, square) is None:
            raise InputError(
                f"{path}: no proof of C({outputs},{taps})² <= {float(square):.9f} was found, which is below "
                f"min({outputs}, {taps}); write it with `synth plan --certify --constants simple`"
            )
    applied = ", ".join(f"fun P mem => @{name} p c ws P mem accepted" for name in THEOREMS)
    text = CLAIM.format(
        problem=_problem(data), certificate=_certificate(data), proofs=_proofs(data), theorems=applied
    )
    done = _coq(HEAD + text)
    if "= false" in done.stdout:
        raise CheckError(f"{path}: the proved checker refuses this certificate; write it again")
    if done.returncode or "Closed under the global context" not in done.stdout:
        raise CheckError(f"{path}: Coq did not accept the proof ({_last(done.stderr)}); report this")
    return [
        f"proved by {_version()}, without axioms: theorems {', '.join(THEOREMS)} of proof/Certificate.v",
        f"in every execution, as docs/proof.md defines it, a process receives {data['words']} words or more",
    ]


def verdicts(certificates: Iterable[dict[str, Any]]) -> list[bool]:
    """Whether the proved checker accepts each certificate: `check` is `squares_proved` and `follows`.

    Raises `UsageError` as `prove` does.
    """
    certificates = list(certificates)
    squares = [f"Compute squares_proved {_constants(data)} {_proofs(data)}." for data in certificates]
    once = list(dict.fromkeys(squares))  # layers share constants
    lines = once + [f"Compute follows ({_problem(data)}) ({_certificate(data)})." for data in certificates]
    done = _coq(HEAD + "\n".join(lines) + "\n")
    found = [word == "true" for word in re.findall(r"= (true|false)", done.stdout)]
    if done.returncode or len(found) != len(lines):
        raise CheckError(f"Coq gave no verdict on statement {len(found)} ({_last(done.stderr)})")
    proved = dict(zip(once, found, strict=False))
    return [proved[square] and follows for square, follows in zip(squares, found[len(once) :], strict=True)]


def _problem(data: dict[str, Any]) -> str:
    """The layer, processes, memory and most work of a certificate, as a term of Coq."""
    samples, groups, filters, channels, dims = loops(data["problem"])
    axes = "; ".join(
        f"Axis {size} {kernel} {stride} {dilation} {before} {after}"
        for size, kernel, stride, before, dilation, after in dims
    )
    memory = "None" if data["memory_words"] is None else f"(Some {data['memory_words']}%num)"
    layer = f"Layer {samples} {groups} {filters} {channels} [:: {axes}]"
    return f"Problem ({layer}) {data['procs']} {memory} {data['most_work']}"


def _certificate(data: dict[str, Any]) -> str:
    """The other numbers of a certificate, as a term of Coq."""
    parts = [*(str(data["sizes"][tensor]) for tensor in TENSORS), str(data["multiply_adds"])]
    parts += [_constants(data), str(data["segments"])]
    parts += [_fraction(data["x"][tensor]) for tensor in TENSORS] + [_fraction(data["nu"])]
    parts += [_fraction(data["multipliers"][tensor]) for tensor in TENSORS] + [_fraction(data["words"])]
    return f"Certificate {' '.join(parts)}"


def _constants(data: dict[str, Any]) -> str:
    """The constants of a certificate, as a list of Coq."""
    constants = "; ".join(
        f"Ceiling {each['outputs']} {each['taps']} {_fraction(each['square'])} {_fraction(each['weight'])}"
        for each in data["constants"]
    )
    return f"[:: {constants}]"


def _proofs(data: dict[str, Any]) -> str:
    """The proofs of the constants, as a list of Coq; an empty one where none is needed or found."""
    proofs = (constant_proof(*_shape(each)) or [] for each in data["constants"])
    return f"[:: {'; '.join(_numbers(map(_direction, proof)) for proof in proofs)}]"


def _shape(constant: dict[str, Any]) -> tuple[int, int, Fraction]:
    return constant["outputs"], constant["taps"], Fraction(constant["square"])


def _direction(step: Step) -> str:
    (outer, inner), own, mixed = step
    return f"Direction ({outer}, {inner}) {_numbers(own)} {_numbers(mixed)}"


def _numbers(parts: Iterable[object]) -> str:
    return f"[:: {'; '.join(map(str, parts))}]"


def _fraction(text: str) -> str:
    value = Fraction(text)
    return f"(Fraction {value.numerator} {value.denominator})"


def _coq(text: str) -> subprocess.CompletedProcess[str]:
    """What Coq prints for a file that uses the compiled proofs."""
    library = _compiled()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "goal.v").write_text(text, encoding="utf-8")
        return _run([*OPTIONS, "-R", str(library), "Synth", "goal.v"], folder)


def _compiled() -> Path:
    """The folder of the compiled proofs, in the user's cache; a minute where they are not there yet."""
    names = re.findall(r"^(\w+)\.v$", (SOURCES / "_CoqProject").read_text(encoding="utf-8"), re.M)
    names = names[: names.index("Certificate") + 1]  # the checker, and what it rests on
    digest = hashlib.sha256(_version().encode())
    for name in names:
        digest.update((SOURCES / f"{name}.v").read_bytes())
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(cache, "synth", f"proof-{digest.hexdigest()[:16]}")
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=folder.parent))
    except OSError as fault:
        raise UsageError(
            f"the proofs cannot be compiled in {folder.parent} ({fault.strerror}); set XDG_CACHE_HOME to a "
            "folder that can be written"
        ) from fault
    try:
        for name in names:
            shutil.copy(SOURCES / f"{name}.v", fresh)
            done = _run([*OPTIONS, "-R", ".", "Synth", f"{name}.v"], str(fresh))
            if done.returncode:
                raise UsageError(
                    f"proof/{name}.v does not compile with {_version()} ({_last(done.stderr)}); it needs the "
                    f"Debian packages {PACKAGES}"
                )
        if not folder.is_dir():  # another process may have been faster
            fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


def _version() -> str:
    """The name and version of Coq. Raises `UsageError` where it is not installed."""
    done = _run(["--print-version"], None)
    return f"Coq {done.stdout.split()[0]}"


def _run(arguments: list[str], folder: str | None) -> subprocess.CompletedProcess[str]:
    """A run of coqc."""
    try:
        return subprocess.run(
            ["coqc", *arguments], cwd=folder, capture_output=True, text=True, check=False, encoding="utf-8"
        )
    except OSError as fault:
        raise UsageError(
            f"--proved needs the proof assistant Coq, but coqc cannot be started ({fault.strerror}); install "
            f"the Debian packages {PACKAGES}, or leave out --proved"
        ) from fault


def _last(text: str) -> str:
    """The last line of a message of Coq."""
    return (text.strip().splitlines() or ["no message"])[-1]

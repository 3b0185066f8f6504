"""What a file holds that was given in place of another one, and which command takes it."""

from __future__ import annotations

import re

from synth.base.errors import InputError
from synth.base.yaml_positions import KIND_OF_KEY, WHAT_TO_DO, shown

LOOKED_AT = 4096  # characters in which a file of synth says what it is
# kind, as the schema of a JSON file names it -> what it is called, and who takes it
KINDS: dict[str, tuple[str, str]] = {
    "layer": ("a layer", WHAT_TO_DO["layer"]),
    "network": ("a network", WHAT_TO_DO["network"]),
    "machine": ("a machine", WHAT_TO_DO["machine"]),
    "plan": (
        "the plan of a layer",
        "emit it with `synth emit`, run it with `synth run`, show it with `synth report`",
    ),
    "network-plan": (
        "the plan of a network",
        "show it with `synth report`, run it with `synth.parallelize(model, shape, plan=...)`",
    ),
    "certificate": ("a certificate of a lower bound", "check it with `synth certify`"),
    "network-certificate": (
        "a certificate of the bound of a network",
        "check it with `synth certify`",
    ),
    "recomputation-certificate": (
        "a certificate of the bound of a network that computes words again",
        "check it with `synth certify`",
    ),
    "profile": ("a profile of times per layer", "name it after --profile of `synth predict`"),
    "program": ("an emitted program", "start it with torchrun"),
    "script": ("a script for SLURM", "submit it with sbatch"),
    "page": ("an HTML page", "open it in a browser"),
    "bounds": ("the bounds that `synth bounds` printed", ""),
    "symbolic_bound": ("the formulas that `synth bounds --symbolic` printed", ""),
    "simulation": ("the outcome of `synth simulate`", ""),
    "run": ("the outcome of `synth run`", ""),
    "prediction": ("the outcome of `synth predict`", ""),
    "predictions": ("the outcome of `synth predict`", ""),
    "replay": ("the outcome of `synth replay`", ""),
    "doctor": ("the outcome of `synth doctor`", ""),
    "measured": ("what `synth.parallelize` measured of a machine", ""),
}
# what makes a file of the kind that is wanted
MAKES = {
    "layer": "name a layer file (YAML)",
    "network": "name a network file (YAML)",
    "machine": "name a machine file (YAML), or a shipped machine",
    "plan": "write a plan with `synth plan --json -o plan.json`",
    "network-plan": "write a plan with `synth plan --json -o plan.json`",
    "certificate": "write one with `synth plan --certify`",
    "profile": "write one with `synth calibrate NET`",
}
YAML_KINDS = ("layer", "network", "machine")
_SCHEMA = re.compile(r'"schema"\s*:\s*"synth\.([a-z_-]+)/')
_WORDS = "|".join(KIND_OF_KEY)
_JSON_KEY, _YAML_KEY = re.compile(rf'"({_WORDS})"\s*:'), re.compile(rf"^({_WORDS})\s*:", re.MULTILINE)
_STARTS = (
    (r"layer,forward_s,", "profile"),
    (r"procs,memory_bytes,", "bounds"),
    (r'(?s)""".*\nEmitted by `synth', "program"),
    (r"(?s)#!.*\n#SBATCH ", "script"),
    (r"(?i)<!doctype html", "page"),
)


def kind_of(text: str) -> str:
    """The kind of a file by its text, a key of `KINDS`; "" if it is of none."""
    head = text[:LOOKED_AT].lstrip()
    if head[:1] in ("{", "["):
        if found := _SCHEMA.search(head):
            return found[1] if found[1] in KINDS else ""
        key = _JSON_KEY.search(head)
        return KIND_OF_KEY[key[1]] if key else ""
    for pattern, kind in _STARTS:
        if re.match(pattern, head):
            return kind
    key = _YAML_KEY.search(text)
    return KIND_OF_KEY[key[1]] if key else ""


def refuse_other_file(text: str, name: str, *wanted: str) -> None:
    """Raises `InputError` for a file of another kind than one of `wanted`, with what takes it.

    The reader of YAML itself refuses layers, networks and machines for each other, with line and column.
    """
    kind = kind_of(text)
    if kind in ("", *wanted) or (kind in YAML_KINDS and wanted[0] in YAML_KINDS):
        return
    held, taken = KINDS[kind]
    meant = " or ".join(KINDS[each][0] for each in wanted)
    remedy = taken or f"no command reads it; {MAKES[wanted[0]]}"
    raise InputError(f"{shown(name, 4096)}: the file holds {held}, not {meant}; {remedy}")

"""What the fuzzer feeds: valid files with a few edits, and command lines put together from all flags.

A case is a command line and the files that it finds in its folder. The edits are of the kinds that hurt
readers: other numbers, spellings that YAML and JSON read in their own way, lookalike letters, aliases,
depth, keys twice, names that look like code or like paths.
"""

from __future__ import annotations

import copy
import functools
import json
import re
from typing import Any, NamedTuple

from hypothesis import strategies as st

from synth.layer.layer import Layer
from synth.network.file import parse_network
from synth.network.plan.plan_json import to_json as network_json
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.planning.derive import plan


class Case(NamedTuple):
    """A command line and the files it may read, by name."""

    argv: list[str]
    files: dict[str, str]


LAYERS = (
    "conv2d:\n  input: [2, 4, 6, 6]\n  out_channels: 4\n  kernel: [3, 3]\n  padding: 1\nname: a\n",
    "conv3d:\n  input: [1, 2, 4, 5, 6]\n  out_channels: 3\n  kernel: 2\n  stride: [2, 1, 1]\n  groups: 1\n",
    "conv1d: {input: [3, 4, 17], out_channels: 8, kernel: 5, dilation: 2, groups: 4, dtype: float16}\n",
    "matmul: {m: 6, n: 10, k: 4, dtype: bfloat16}\nname: product\n",
    "matmul:\n  input: [12, 8, 5]\n",
    'einsum: "hqd,hkd->hqk"\nextents: {h: 2, q: 5, k: 7, d: 4}\ndtype: float64\n',
)
NETWORKS = (
    "network: small\ninput: [4, 3, 8, 8]\nlayers:\n"
    "  - {name: one, conv2d: {out_channels: 4, kernel: 3, padding: 1}}\n  - batchnorm:\n  - relu:\n"
    "  - {name: way, conv2d: {out_channels: 4, kernel: 1}, from: one}\n"
    "  - {name: sum, add: {}, from: [way, one]}\n  - {pool: {kernel: 2, stride: 2}}\n  - flatten:\n"
    "  - {linear: {out_features: 5}}\n",
    "input: [2, 2, 6, 6]\ndtype: float16\nlayers:\n  - repeat: 2\n    layers:\n"
    "      - {name: a, conv2d: {out_channels: 2, kernel: 3, padding: 1}}\n"
    "      - {name: s, add: {}, from: [a, entry]}\n  - globalpool:\n",
)
MACHINES = (
    "machine: two\nsource: by hand\nlevels:\n  - {name: node, ranks: 4, alpha: 9e-6, beta: 2e-11}\n"
    "  - {name: system, alpha: 3e-5, beta: 8e-11, links: 2, contention: 2, small: [[1024, 1e-9]]}\n"
    "compute: {rate: 7e12, bandwidth: 7.5e11, overhead: 1e-6, narrow: [[9, 2e12]]}\n"
    "memory: 16GiB\noverlap: 0.5\n",
    "levels: [{name: all, alpha: 1e-6, beta: 1e-10}]\ncompute: {rate: 1e12}\nalgorithms: [ring]\n",
)
PROFILE = "layer,forward_s,backward_s,update_s\none,1e-3,2e-3,1e-5\nway,1e-4,2e-4,1e-6\nlinear1,1e-5,1e-5,0\n"

NUMBERS = (
    *("0", "-1", "1", "2", "3", "7", "61", "1000000", "1099511627776", "1099511627777", "9" * 25),
    *("9" * 5000, "1.5", "1e3", "1e308", "1e999", "-0", "0.1", ".nan", ".inf", "-.inf", "NaN", "Infinity"),
    *("1:30", "1_000", "010", "0x10", "0b1", "0o7", "+4", "\u0664", "\uff14", "\u00b2", "1,5", "4.0"),
)
TEXTS = (
    *('""', "''", "null", "~", "true", "no", "y", "2026-01-01", "[]", "{}", "[1]", "[[1]]", "{a: 1}", "- 1"),
    *("&a", "*a", "&a [*a, *a]", "<<: *a", "<<", "!!python/object/apply:os.system [x]", "!!int", "!x"),
    *("|", ">", "\\", "\0"),
    *("---", "...", "%YAML 1.2", "#", ":", ": ", "?", ",", "[", "]", "{", "}", "\t", "\n", "\n\n  "),
    *("\u2028", "\u202e", "\u200b", "\ufeff", "\x85", "\x1b[2J", "k\u0435rnel", "\u0441onv2d", "\ud7ff", "é"),
    *("../../etc/passwd", "/etc/passwd", "a/b", "..", "-o", "$(x)", "`x`", "{{ 7 * 7 }}", "{0.__class__}"),
    *('"""', "'''", '""" + __import__("os").system("x") + """', "import os", "'; x; '", "\\N{DIGIT ONE}"),
    *("input", "kernel", "stride", "padding", "groups", "dilation", "dtype", "name", "layers", "repeat"),
    *("conv1d", "conv2d", "conv3d", "matmul", "linear", "pool", "add", "levels", "ranks", "alpha", "memory"),
    *("float32", "float64", "float16", "int8", "16GiB", "1KiB", "0", "a" * 65, "from"),
    *("x" * 5000, "[" * 5000, "{a: " * 999),
)  # fmt: skip
TOKEN = re.compile(r"[\w.]+|\s+|.", re.S)
LEAVES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 2, -1, 3, 61, 2**40, 2**63, 10**400, 0.5, 4.0, -0.0, 1e308, "", "in", "a/b"),
    *("../x", "out", "b", "g", "x" * 5000, "a\u202eb", "</script><b>", "\0", "\u0664", [], {}, [[]], [1]),
    *({"": 0}, "3", "NaN", "1/2", "-1/1", "1/0", "9" * 5000, [0] * 1000, {"b": 1}, [["b", 1]]),
)  # fmt: skip


def whole(most: int = 2**40) -> st.SearchStrategy[int]:
    """Whole numbers of any length up to `most`."""
    return st.one_of(st.integers(1, 16), st.integers(-2, 64), st.integers(1, 5000), st.integers(1, most))


@st.composite
def edited(draw: st.DrawFn, texts: tuple[str, ...]) -> str:
    """One of some texts with up to four tokens replaced, repeated, removed or added."""
    tokens = TOKEN.findall(draw(st.sampled_from(texts)))
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 2, 3, 4]))):
        numbers = [i for i, token in enumerate(tokens) if token.isdecimal()]
        if numbers and draw(st.integers(0, 2)):
            place = draw(st.sampled_from(numbers))
            tokens[place] = draw(whole().map(str) | whole().map(str) | st.sampled_from(NUMBERS))
            continue
        place = draw(st.integers(0, max(0, len(tokens) - 1)))
        other = draw(
            st.sampled_from(NUMBERS) | st.sampled_from(TEXTS) | whole().map(str) | st.text(max_size=4)
        )
        match draw(st.sampled_from(["replace", "replace", "insert", "remove", "repeat", "swap"])):
            case "replace":
                tokens[place : place + 1] = [other]
            case "insert":
                tokens.insert(place, other)
            case "remove":
                del tokens[place : place + draw(st.integers(1, 6))]
            case "repeat":
                end = place + draw(st.integers(1, 12))
                tokens[place:place] = tokens[place:end] * draw(st.sampled_from([1, 1, 2, 50]))
            case "swap":
                end = draw(st.integers(0, max(0, len(tokens) - 1)))
                if tokens:
                    tokens[place], tokens[end] = tokens[end], tokens[place]
    return "".join(tokens)


@st.composite
def edited_json(draw: st.DrawFn, data: Any) -> str:
    """A JSON text in which up to three values are others, gone or new; now and then edited as a text, too."""
    data = copy.deepcopy(data)
    for _ in range(draw(st.integers(0, 3))):
        within, key = data, None
        while isinstance(within, dict | list) and within:
            keys = sorted(within) if isinstance(within, dict) else list(range(len(within)))
            key = draw(st.sampled_from(keys))
            if not isinstance(within[key], dict | list) or not draw(st.integers(0, 3)):
                break
            within = within[key]
        if key is None or not isinstance(within, dict | list) or not within:
            continue
        value = copy.deepcopy(draw(st.sampled_from(LEAVES) | whole()))
        match draw(st.sampled_from(["replace", "replace", "near", "remove", "add"])):
            case "replace":
                within[key] = value
            case "near":
                old = within[key]
                within[key] = old + draw(st.sampled_from([-1, 1])) if isinstance(old, int | float) else value
            case "remove":
                del within[key]
            case "add":
                if isinstance(within, dict):
                    within[draw(st.text(max_size=3))] = value
                else:
                    within.append(value)
    text = json.dumps(data)
    return draw(edited((text,))) if not draw(st.integers(0, 4)) else text


@functools.cache
def planned(pass_: str = "forward") -> Any:
    """Plan files."""
    return plan(Layer.conv2d((2, 4, 6, 6), 4, 3), 4, pass_=pass_).to_json()


@functools.cache
def planned_network() -> Any:
    """A network plan file."""
    return network_json(
        plan_network(
            parse_network(NETWORKS[0], "net.yaml"), NetworkRequest(4, "words", False, None, None, 0.1)
        )
    )


@functools.cache
def certified() -> Any:
    """A certificate."""
    from synth.analysis.certificate import plan_certificate

    return plan_certificate(plan(Layer.conv2d((2, 4, 6, 6), 4, 3), 4))


def flag(name: str, *values: str) -> st.SearchStrategy[list[str]]:
    """A flag with one of some values, or with any number or text."""
    wild = st.sampled_from(NUMBERS) | st.sampled_from(TEXTS) | st.text(max_size=5) | whole().map(str)
    given = st.one_of(st.sampled_from(values), st.sampled_from(values), wild)
    return given.map(lambda value: [name, value])


def switch(*names: str) -> st.SearchStrategy[list[str]]:
    """One of some flags without a value."""
    return st.sampled_from([[name] for name in names])


SMALL = ("--procs", "4")
PROCS = st.one_of(st.integers(1, 9), st.integers(1, 9), whole(2**21)).map(lambda p: ["--procs", str(p)])
PLANNING = [
    flag("--memory", "1KiB", "1MiB", "600", "nanGiB", "1e3", "-1KiB", "16 GiB"),
    flag("--objective", "words", "time", "paper"),
    flag("--machine", "a100", "two.yaml", "../a100", "/dev/zero"),
    flag("--stationary", "out", "in", "ker"),
    flag("--grid", "b=2", "b=2,k=2", "h=4", "x=1", "b=0", "b=", "=,", "b=2,b=2"),
    flag("--balance", "0", "1", "10", "nan", "1e308"),
    flag("--pass", "training", "backward-data", "backward-filter"),
    flag("--gradients", "ker", "in", "in,ker", "out", "", "ker,ker"),
    flag("--strategy", "data", "spatial", "2.5D", "3D", "SUMMA"),
    switch("--exact-procs"),
]
OUTPUT = flag("-o", "out.txt", "/nowhere/x", "/dev/null", "/dev/full", "box/x", "a\0b", "/", "")
MACHINE = st.sampled_from([["--machine", "a100"], ["--machine", "two.yaml"]])
NEEDED: dict[str, list[st.SearchStrategy[list[str]]]] = {
    "plan": [PROCS],
    "emit": [PROCS],
    "simulate": [PROCS, st.just(["--count"])],
    "bounds": [flag("--procs", "1:9", "1,2,3", "4:1", "1:1000", "9"), st.just(["--bounds-only"])],
    "replay": [PROCS, MACHINE],
    "predict": [PROCS, MACHINE],
}
ENDS: dict[str, list[st.SearchStrategy[list[str]]]] = {
    "plan": [*PLANNING, switch("--json", "--certify", "--explain", "--relax"), OUTPUT,
             flag("--explain", "latex", "text"), flag("--stop-after", "nest", "grid", "schedule"),
             flag("--solver", "path", "mip", "elimination"), flag("--from", "l.yaml", "absent.json", "-")],
    "emit": [*PLANNING, switch("--standalone", "--module", "--lean"), OUTPUT, flag("--walltime", "00:10:00"),
             flag("--sbatch", "job.sbatch", "/dev/null"), flag("--ranks-per-node", "1", "4")],
    "simulate": [*PLANNING, switch("--json")],
    "bounds": [flag("--memory", "1KiB:1MiB"), flag("--points", "3"), flag("--balance", "0.5"),
               switch("--json", "--csv"), switch("--exact-procs"), OUTPUT],
    "replay": [*PLANNING[:2], PLANNING[5], flag("--trace", "t.json"), switch("--json")],
    "predict": [flag("--strategy", "data", "spatial", "filter", "pipeline"),
                flag("--batch", "8"), flag("--groups", "2"), flag("--segments", "4"), flag("--flows", "2"),
                flag("--reuse", "0.5"), switch("--json")],
    "schema": [], "errata": [], "doctor": [switch("--json")], "certify": [], "report": [OUTPUT],
    "explain": [OUTPUT, switch("--json")], "diff": [OUTPUT, switch("--json")],
}  # fmt: skip


def line(command: str, *files: str) -> st.SearchStrategy[list[str]]:
    """A command line: the command, files, then some of its flags in any order."""
    needed, extra = NEEDED.get(command, []), ENDS[command]
    some = st.lists(st.sampled_from(range(len(extra))), max_size=3, unique=True) if extra else st.just([])
    flags = some.flatmap(lambda chosen: st.tuples(*needed, *(extra[i] for i in chosen)))
    return flags.map(lambda parts: [command, *files, *(word for part in parts for word in part)])


def _case(argv: st.SearchStrategy[list[str]], **files: st.SearchStrategy[str]) -> st.SearchStrategy[Case]:
    named = {name.replace("_", "."): text for name, text in files.items()}
    return st.builds(Case, argv, st.fixed_dictionaries(named))


def _lines(*commands: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    return st.one_of(*(line(*each) for each in commands))


def _fixed(*words: str) -> st.SearchStrategy[list[str]]:
    return st.just(list(words))


KINDS: dict[str, st.SearchStrategy[Case]] = {
    "layer": _case(
        st.sampled_from(
            [
                *(
                    ["plan", "l.yaml", *SMALL, *more]
                    for more in ([], ["--json"], ["--certify"], ["--explain"])
                ),
                ["plan", "l.yaml", *SMALL, "--pass", "training"],
                *(["emit", "l.yaml", *SMALL, *more] for more in ([], ["--standalone", "-o", "p.py"])),
                ["emit", "l.yaml", *SMALL, "--lean"],
                ["simulate", "l.yaml", *SMALL, "--count"],
                ["bounds", "l.yaml", *SMALL, "--bounds-only"],
            ]
        ),
        l_yaml=edited(LAYERS),
    ),
    "network": _case(
        st.sampled_from(
            [
                ["plan", "n.yaml", *SMALL],
                ["plan", "n.yaml", *SMALL, "--json", "--pass", "training"],
                ["predict", "n.yaml", *SMALL, "--machine", "a100"],
                ["replay", "n.yaml", *SMALL, "--machine", "a100", "--trace", "t.json"],
            ]
        ),
        n_yaml=edited(NETWORKS),
    ),
    "machine": _case(
        st.sampled_from(
            [
                ["plan", "l.yaml", *SMALL, "--objective", "time", "--machine", "m.yaml"],
                ["predict", "n.yaml", *SMALL, "--machine", "m.yaml"],
                ["replay", "n.yaml", *SMALL, "--machine", "m.yaml"],
            ]
        ),
        m_yaml=edited(MACHINES),
        l_yaml=st.just(LAYERS[0]),
        n_yaml=st.just(NETWORKS[0]),
    ),
    "profile": _case(
        _fixed("predict", "n.yaml", *SMALL, "--machine", "a100", "--profile", "p.csv"),
        p_csv=edited((PROFILE,)),
        n_yaml=st.just(NETWORKS[0]),
    ),
    "plan": _case(
        st.sampled_from(
            [
                ["emit", "--plan", "p.json"],
                ["emit", "--plan", "p.json", "--standalone", "--sbatch", "job.sbatch", "-o", "x.py"],
                ["emit", "p.json", "--module"],
                ["simulate", "p.json", "--count"],
                ["report", "p.json"],
                ["emit", "p.json", "--lean"],
                ["plan", "--from", "p.json", "--stop-after", "grid"],
                ["plan", "--from", "p.json", "--json"],
                ["explain", "p.json", "--json"],
                ["diff", "p.json", "p.json"],
            ]
        ),
        p_json=st.deferred(lambda: edited_json(planned()) | edited_json(planned("training"))),
    ),
    "network plan": _case(
        st.sampled_from(
            [["report", "p.json", "-o", "r.html"], ["explain", "p.json"], ["diff", "p.json", "p.json"]]
        ),
        p_json=st.deferred(lambda: edited_json(planned_network())),
    ),
    "certificate": _case(_fixed("certify", "c.json"), c_json=st.deferred(lambda: edited_json(certified()))),
    "arguments": _case(
        _lines(
            *((command, "l.yaml") for command in ("plan", "emit", "simulate", "bounds")),
            *((command, "n.yaml") for command in ("plan", "replay", "predict")),
            *((command, "two.yaml") for command in ("plan", "report", "certify", "explain")),
            *((command,) for command in ("plan", "emit", "schema", "errata", "doctor", "diff")),
            ("diff", "l.yaml", "two.yaml"),
        ),
        l_yaml=st.sampled_from(LAYERS),
        n_yaml=st.sampled_from(NETWORKS),
        two_yaml=st.just(MACHINES[0]),
    ),
}

"""The text of programs: formatted, clean, deterministic, closed, and safe against names."""

from __future__ import annotations

import ast
import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from allowed import refused
from cases import CASES
from effort import tried
from hypothesis import given
from hypothesis import strategies as st
from seeded_problems import random_plan

import synth
from synth.base.errors import UsageError
from synth.codegen import inline_runtime
from synth.codegen import program as ir
from synth.codegen.lean import render_lean
from synth.codegen.lower import lower
from synth.codegen.module import imported
from synth.codegen.render import render
from synth.codegen.sbatch import render_sbatch
from synth.layer.axes import PerAxis
from synth.layer.layer import Layer
from synth.planning.plan import Plan
from synth.schedule.pass_plan import PassPlan


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many programs: all cases in both forms, and random plans."""
    folder = tmp_path_factory.mktemp("programs")
    for name, plan in CASES.items():
        (folder / f"{name}.py").write_text(render(plan))
        if not plan.classes and plan.nest.dtype != "bfloat16":
            (folder / f"{name}_lean.py").write_text(render_lean(plan))
    for name in ("summa_3d", "strided_shared", "matrix_ker", "ker_stationary_sums", "alone", "idle"):
        (folder / f"{name}_alone.py").write_text(render(CASES[name], standalone=True))
    for name in ("training_3d", "training_tiles", "training_matrix", "training_grouped"):
        (folder / f"{name}_module.py").write_text(render(CASES[name], module=True))
        (folder / f"{name}_module_alone.py").write_text(render(CASES[name], True, module=True))
        (folder / f"{name}_alone.py").write_text(render(CASES[name], True))
    for seed, task in enumerate(("backward-data", "backward-filter", "training") * 20):
        (folder / f"random_{task}_{seed}.py").write_text(render(random_plan(random.Random(seed), task)))
    for seed in range(120):
        (folder / f"random_{seed}.py").write_text(render(random_plan(random.Random(seed)), seed % 6 == 0))
    quoted = replace(CASES["data"].layer, name='it\'s a "layer" with \\N{x} \\')
    (folder / "quoted.py").write_text(
        render(replace(CASES["data"], layer=quoted), command='synth emit "a\\b.yaml"')
    )
    return folder


def test_text_is_a_fixed_point_of_ruff_format(folder: Path) -> None:
    done = ruff("format", "--isolated", "--diff", str(folder))
    assert done.returncode == 0, done.stdout[:4000]


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_header_has_the_plan_as_a_line_that_gives_it_again(name: str) -> None:
    made = CASES[name]
    header = ast.get_docstring(ast.parse(render(made)))
    assert header is not None
    line = re.search(r'^Plan +--as "([^"]*)"', header, re.M)
    assert line is not None
    gradients = tuple(tensor.lower() for tensor in made.gradients)
    given = {"pass_": made.pass_, "as_": line[1], **({"gradients": gradients} if made.later else {})}
    again = synth.plan(made.layer, made.procs, made.limit_bytes, **given)
    assert isinstance(again, Plan)
    assert again.id == made.id


def test_text_is_clean(folder: Path) -> None:
    done = ruff("check", "--isolated", "--select", "E4,E7,E9,E501,F,B,RET,SIM,UP", str(folder))
    assert done.returncode == 0, done.stdout[:4000]


def ruff(*arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ruff", *arguments, "--no-cache"]
    return subprocess.run(command, input=given, text=True, capture_output=True, check=False)


def test_all_names_are_defined(folder: Path) -> None:
    """What a standalone program uses of the runtime is in its text."""
    done = ruff("check", "--isolated", "--select", "F821,F822,F823", str(folder))
    assert done.returncode == 0, done.stdout[:4000]


def test_imports_and_calls_are_of_a_list(folder: Path) -> None:
    files = sorted([*folder.glob("*.py"), *Path("tests/golden").glob("*.py")])
    for path in files[:: tried(4, 1)]:
        text = path.read_text()
        assert refused(text, standalone="from synth.runtime." not in text) == [], path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import subprocess", "imports subprocess"),
        ("import os.path as p, ctypes", "imports ctypes"),
        ("from torch.utils import cpp_extension", "imports from torch.utils"),
        ("from . import x", "imports from None"),
        ("from synth.runtime.program.cli import stop", "imports from synth.runtime.program.cli"),
        ("exec('x')", "names exec"),
        ("f = __import__", "names __import__"),
        ("getattr(x, 'a' + 'b')", "reaches for a name that it makes up"),
        ("getattr(x, '__class__')", "reaches for __class__"),
        ("().__class__.__bases__", "reaches for __bases__"),
        ("os.system('x')", "uses os.system"),
        ("torch.load('x')", "uses torch.load"),
        ("torch.ops.load_library('x')", "reaches for load_library"),
        ("sys._getframe()", "uses sys._getframe"),
    ],
)
def test_the_list_refuses(text: str, said: str) -> None:
    assert said in refused(text, standalone=True)


# -- standalone programs ----------------------------------------------------------------------------------

ALONE = ("summa_3d", "idle", "strided_shared", "training_tiles", "training_streams", "cannon")


def _definitions(tree: ast.Module) -> dict[str, str]:
    """Name -> the definition without its place, of functions, classes and aliases."""
    found = {}
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found[name] = ast.dump(node)
            case ast.Assign(targets=[ast.Name(id=name)]):
                found[name] = ast.dump(node)
    return found


@pytest.mark.parametrize("case", ALONE)
@pytest.mark.one_in(2)
def test_a_standalone_program_is_the_program_and_the_sources_that_it_uses(case: str) -> None:
    """Algorithm, helpers and self-check are those of the program that imports; the rest equals its source."""
    alone = _definitions(ast.parse(render(CASES[case], standalone=True)))
    imports = _definitions(ast.parse(render(CASES[case])))
    assert imports.items() <= alone.items()
    sources: dict[str, str] = {}
    for module in inline_runtime.MODULES:
        sources |= _definitions(ast.parse(files("synth.runtime").joinpath(f"{module}.py").read_text()))
    inlined = alone.keys() - imports.keys()
    assert {name: alone[name] for name in inlined} == {name: sources[name] for name in inlined}


@pytest.mark.parametrize("case", ALONE)
@pytest.mark.one_in(2)
def test_a_standalone_program_lacks_nothing_and_has_nothing_unused(case: str) -> None:
    text = render(CASES[case], standalone=True)
    tree = ast.parse(text)
    done = ruff("check", "--isolated", "--select", "F", "-", given=text)
    assert done.returncode == 0, done.stdout
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert defined <= read
    modules = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert not any(str(module).startswith("synth") for module in modules)
    program = imported(text, "alone")  # what import needs is defined before it is used
    assert callable(program.main)


def test_what_is_used_is_inlined_and_nothing_else() -> None:
    assert "fetch_rows" in _definitions(ast.parse(render(CASES["summa_3d"], standalone=True)))
    assert "fetch_rows" not in _definitions(ast.parse(render(CASES["alone"], standalone=True)))


def test_two_definitions_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A standalone program has them side by side, so that one would hide the other."""
    for module in ("one", "other"):
        (tmp_path / f"{module}.py").write_text("def cut():\n    return 1\n")
    monkeypatch.setattr(inline_runtime, "MODULES", ("one", "other"))
    monkeypatch.setattr(inline_runtime, "files", lambda _: tmp_path)
    inline_runtime.runtime_library.cache_clear()
    with pytest.raises(ValueError, match="cut is defined in one and in other"):
        inline_runtime.runtime_library()
    inline_runtime.runtime_library.cache_clear()


# -- the order of a text ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["summa_3d", "strided_shared", "back_3d", "filter_3d", "training_tiles"])
@pytest.mark.one_in(2)
def test_the_algorithm_comes_first_and_the_self_check_last(case: str) -> None:
    plan = CASES[case]
    for standalone in (False, True):
        names = list(_definitions(ast.parse(render(plan, standalone))))
        first = plan.passes[0].replace("-", "_") if plan.later else "run"
        index = min(place for place, name in enumerate(names) if name.startswith("owned_"))
        order = [names.index(first), names.index("work"), index, names.index("FLOPS"), names.index("main")]
        assert order == sorted(order)
        functions = [name for name in names if name.islower()]
        assert standalone or functions[0] == first


def test_a_backward_program_names_its_gradients() -> None:
    data, filter_ = render(CASES["back_3d"]), render(CASES["filter_3d"])
    assert "dIn[b,c,h+r-1,w+s-1] += dOut[b,k,h,w] * Ker[k,c,r,s]" in data
    assert "dKer[k,c,r,s] += dOut[b,k,h,w] * In[b,c,h+r-1,w+s-1]" in filter_
    for text, names in ((data, ("din", "ker", "dout")), (filter_, ("in", "dker", "dout"))):
        functions = {name for name in _definitions(ast.parse(text)) if name.startswith("owned_")}
        assert functions == {f"owned_{name}" for name in names}


def test_traffic_is_counted_where_groups_are_bound() -> None:
    """No line of a loop counts: what it calls knows the counter."""
    for plan in CASES.values():
        for node in ast.walk(ast.parse(render(plan))):
            if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and node.target.id == "step":
                called = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
                assert not called & {"counted", "counter", "count"}


def test_same_plan_same_bytes() -> None:
    """Two processes whose sets have other orders emit the same texts."""
    script = (
        "from cases import CASES; from synth.codegen.render import render\n"
        "for name in ('strided', 'training_streams', 'training_first'):\n"
        "    print(render(CASES[name]), render(CASES[name], standalone=True))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1


def _kinds(plan: Plan) -> set[type]:
    def kinds(nodes: tuple[ir.Node, ...]) -> set[type]:
        found = {type(node) for node in nodes}
        for node in nodes:
            found |= kinds(getattr(node, "body", ()))
        return found

    functions = lower(plan, "synth emit").functions
    return set().union(*(kinds(paragraph) for function in functions for paragraph in function.body))


def test_the_cases_reach_every_statement() -> None:
    reached = {kind for plan in CASES.values() for kind in _kinds(plan)}
    assert reached == set(ir.Node.__args__)  # type: ignore[attr-defined]


@given(st.text())
def test_a_name_is_never_code(name: str) -> None:
    plan = Plan(replace_name(CASES["alone"].layer, name), 1, PerAxis(), PassPlan())
    try:
        text = render(plan, command=f"synth emit {name}")
    except UsageError:
        assert not name.isprintable()
        return
    tree, plain = ast.parse(text), ast.parse(render(CASES["alone"]))
    assert [type(node) for node in ast.walk(tree)] == [type(node) for node in ast.walk(plain)]
    constants = {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert ast.literal_eval(constants["NAME"]) == name
    assert ast.get_docstring(tree, clean=False).startswith(f"{name}: conv2d forward")  # type: ignore[union-attr]


def replace_name(layer: Layer, name: str) -> Layer:
    """A layer whose name went around the rules for names."""
    copy = replace(layer)
    object.__setattr__(copy, "name", name)
    return copy


def test_a_name_with_a_line_break_is_refused() -> None:
    plan = replace(CASES["alone"], layer=replace_name(CASES["alone"].layer, 'x"""\nimport os'))
    with pytest.raises(UsageError, match=r"the name of the layer .* has characters that cannot be printed"):
        render(plan)


def test_many_different_ranks_are_not_listed() -> None:
    layer = Layer.conv2d((1, 2, 300, 2), 2, 3, padding=1)
    text = render(Plan(layer, 151, PerAxis(h=151), PassPlan()))
    assert "WORDS = {}  # too many different ranks to list" in text or text.count("    0: {") == 1
    assert len(text) < 20_000


def test_sbatch_refuses_what_slurm_would_misread() -> None:
    plan = CASES["summa"]
    with pytest.raises(UsageError, match="time 'soon' is no time limit; write minutes"):
        render_sbatch(plan, "conv.py", 4, time="soon")
    with pytest.raises(UsageError, match="partition 'a b' is no Slurm name"):
        render_sbatch(plan, "conv.py", 4, partition="a b")
    with pytest.raises(UsageError, match="ntasks-per-node is 0; take at least 1"):
        render_sbatch(plan, "conv.py", 0)


def test_sbatch_is_a_shell_script(tmp_path: Path) -> None:
    script = tmp_path / "job.sbatch"
    script.write_text(render_sbatch(CASES["summa"], "it's; rm -rf $HOME.py", 4))
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "python 'it'\"'\"'s; rm -rf $HOME.py' \"$@\"" in script.read_text()

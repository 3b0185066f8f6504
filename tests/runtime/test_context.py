"""Two networks in one process, on real ranks: they share no state."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from ranks import run_ranks

import synth.runtime

PROGRAM = "from context_ranks import main\n\nmain()\n"


@pytest.mark.ranks
@pytest.mark.parametrize("function", ["interleaved", "pending", "tuned"])
def test_two_networks(function: str, tmp_path: Path) -> None:
    outcome = run_ranks(PROGRAM, 4, tmp_path, function, "")
    assert set(outcome.codes) == {0}, "\n".join(outcome.output)


def test_no_module_of_the_runtime_has_mutable_state() -> None:
    """No container is assigned in the body of a class, and none but constants in that of a module."""
    folder = Path(synth.runtime.__file__).parent
    found = []
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_text())
        bodies = [tree.body, *(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
        for node in (node for body in bodies for node in body):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                constant = (
                    isinstance(target, ast.Name) and target.id.isupper() and not target.id.startswith("_")
                )
                if _mutable(node.value) and not constant:
                    found.append(f"{path.name}: {ast.unparse(target)}")
        found += [f"{path.name}: global" for node in ast.walk(tree) if isinstance(node, ast.Global)]
    assert not found


def _mutable(value: ast.expr) -> bool:
    """Whether an expression makes a container that its module could fill."""
    if isinstance(value, ast.Call):
        made = value.func.value if isinstance(value.func, ast.Subscript) else value.func
        return isinstance(made, ast.Name) and made.id in ("dict", "list", "set", "defaultdict")
    return isinstance(value, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp)

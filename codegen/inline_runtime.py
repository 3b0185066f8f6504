"""The runtime functions that a text uses: imported from the package, or inlined into the text.

The names that a text reads and does not define say which functions these are. The helper functions of the
program itself are chosen in the same way.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files

from synth.codegen.line_breaks import WIDTH

MODULES = (
    "grid/boxes",
    "grid/rules/library_rules",
    "grid/rules/processors",
    "grid/rules/convolution_call",
    "grid/rules/onednn_rules",
    "grid/residue_classes",
    "grid/torch_version",
    "grid/spans",
    "grid/word_counter",
    "grid/process_grid",
    "grid/forks",
    "grid/ranks",
    "grid/seals",
    "grid/rank_tree",
    "grid/hosts",
    "grid/transport",
    "comm/buffer_pool",
    "comm/precision",
    "comm/host_memory",
    "comm/host_links",
    "comm/process_groups",
    "comm/messages",
    "comm/ghost_rows",
    "comm/halo_exchange",
    "comm/panel_pieces",
    "grid/rules/shared_rounds",
    "comm/collectives",
    "grid/launched_job",
    "grid/local_processes",
    "grid/heartbeats",
    "grid/liveness",
    "grid/meeting",
    "kernels/autocast",
    "kernels/matrix_product",
    "kernels/frame",
    "kernels/autotune",
    "kernels/context",
    "kernels/winograd",
    "kernels/routines",
    "kernels/conv",
    "program/world",
    "program/sample_data",
    "program/check",
    "program/class_samples",
    "program/report",
    "program/cli",
    "grid/scatter_gather",
    "grid/dtensor_placements",
    "comm/gradient_buckets",
    "comm/layout",
    "comm/exchanges",
    "comm/adjoint",
    "comm/redistribute",
    "comm/prefetch",
    "layers/layer_program",
    "layers/layer_io",
    "layers/class_rows",
    "layers/finite_check",
    "layers/layer_parameters",
    "layers/one_call",
    "layers/distributed_layer",
)
COMMON = {  # names of other packages -> how a program imports them
    "sys": "import sys",
    "partial": "from functools import partial",
    "once_differentiable": "from torch.autograd.function import once_differentiable",
    "torch": "import torch",
    "dist": "import torch.distributed as dist",
    "F": "import torch.nn.functional as F",
}
RULE = "# What follows is the same in every program: set-up, sample values, checks, reports.\n"


@dataclass(frozen=True)
class Parts:
    """The parts of a text in reading order."""

    constants: str  # evaluated at import, as `check` is
    algorithm: str  # functions and classes
    check: str  # constants of the self-check
    end: str  # functions that read them, and the entry point

    @property
    def whole(self) -> str:
        """All parts."""
        return f"{self.constants}\n\n\n{self.algorithm}\n\n\n{self.check}\n\n\n{self.end}"


@dataclass(frozen=True)
class Definition:
    """One function, class or alias of the runtime."""

    name: str
    module: str
    source: str
    uses: frozenset[str]  # names that it reads and does not define
    spaced: bool  # two blank lines around it


@dataclass(frozen=True)
class Library:
    """All definitions of the runtime in reading order, and how its modules import other packages."""

    definitions: dict[str, Definition]
    imports: dict[str, str]

    def needed(self, names: frozenset[str]) -> list[Definition]:
        """The definitions behind some names and all that those use, in reading order."""
        found: set[str] = set()
        waiting = [name for name in names if name in self.definitions]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += [use for use in self.definitions[name].uses if use in self.definitions]
        return [definition for name, definition in self.definitions.items() if name in found]


def imported(text: Parts) -> str:
    """The text with the imports that it needs."""
    library, names = runtime_library(), names_of_text(text.whole)
    by_module: dict[str, list[str]] = {}
    for name in sorted(names & library.definitions.keys()):
        by_module.setdefault(library.definitions[name].module, []).append(name)
    ours = [
        _from(f"synth.runtime.{module.replace('/', '.')}", found)
        for module, found in sorted(by_module.items())
    ]
    others = [COMMON[name] for name in COMMON if name in names]
    return f"{_imports([*others, *ours])}\n{text.whole}"


def inlined(text: Parts) -> str:
    """The text with the runtime functions that it uses inside it.

    Definitions that a constant needs come first, all others between the algorithm and the self-check.
    """
    library = runtime_library()
    names = names_of_text(text.whole)
    first = library.needed(free_names(ast.parse(f"{text.constants}\n{text.check}")))
    later = [definition for definition in library.needed(names) if definition not in first]
    used = names.union(*(definition.uses for definition in [*first, *later]))
    others = [line for name, line in {**library.imports, **COMMON}.items() if name in used]
    imports = _imports(["from __future__ import annotations", *others])
    pieces = [
        imports,
        _sources(first),
        text.constants,
        text.algorithm,
        RULE,
        _sources(later),
        text.check,
        text.end,
    ]
    return "\n\n".join(piece.strip("\n") + "\n" for piece in pieces if piece)


def used_functions(text: str, users: Iterable[str], always: tuple[str, ...]) -> list[str]:
    """The functions of a text that `users` need, and those whose names begin as in `always`."""
    lines = text.splitlines()
    nodes = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    functions = {node.name: (node, "\n".join(lines[node.lineno - 1 : node.end_lineno])) for node in nodes}
    waiting = [name for name in functions if name.startswith(always)]
    waiting += names_of_text("\n\n\n".join(users))
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in functions and name not in found:
            found.add(name)
            waiting += names_of_text(functions[name][1])
    return [source for name, (_, source) in functions.items() if name in found]


def free_names(tree: ast.Module) -> frozenset[str]:
    """Names that a module reads, in annotations too, and binds nowhere."""
    return _free(*_names(tree))


def names_of_text(text: str) -> frozenset[str]:
    """`free_names` of a text, each definition of which is read once: programs of one network share most."""
    try:
        found = [_names_of_part(part) for part in text.split("\n\n\n")]
    except SyntaxError:  # blank lines inside of a definition
        return free_names(ast.parse(text))
    return _free(*(frozenset().union(*each) for each in zip(*found, strict=True)))


@lru_cache(maxsize=4096)
def _names_of_part(text: str) -> tuple[frozenset[str], frozenset[str]]:
    return _names(ast.parse(text))


def _free(read: frozenset[str], bound: frozenset[str]) -> frozenset[str]:
    return read - bound - frozenset(dir(builtins))


def _names(tree: ast.Module) -> tuple[frozenset[str], frozenset[str]]:
    """Names that a module reads, and those that it binds anywhere."""
    read, bound = set[str](), set[str]()
    waiting: list[ast.AST] = [tree]
    while waiting:  # `ast.walk` takes three times as long
        node = waiting.pop()
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                read.add(name)
            case ast.Name(id=name):
                bound.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                bound.add(name)
            case ast.ExceptHandler(name=str(name)):
                bound.add(name)
        for value in vars(node).values():
            if isinstance(value, list):
                waiting += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST):
                waiting.append(value)
    return frozenset(read), frozenset(bound)


@cache
def runtime_library() -> Library:
    """The definitions of all modules. Raises `ValueError` if two have the same name."""
    definitions: dict[str, Definition] = {}
    imports: dict[str, str] = {}
    for module in MODULES:
        text = files("synth.runtime").joinpath(f"{module}.py").read_text(encoding="utf-8")
        lines = text.splitlines()
        for node in ast.parse(text).body:
            match node:
                case ast.Import() | ast.ImportFrom():
                    imports |= _others(node)
                case (
                    ast.FunctionDef(name=name)
                    | ast.ClassDef(name=name)
                    | ast.Assign(targets=[ast.Name(id=name)])
                    | ast.AnnAssign(target=ast.Name(id=name))
                ):
                    uses = free_names(ast.Module([node], [])) - {name}
                    above = getattr(node, "decorator_list", [])
                    first = min([node.lineno, *(each.lineno for each in above)])
                    source = "\n".join(lines[first - 1 : node.end_lineno])
                    spaced = not isinstance(node, ast.Assign | ast.AnnAssign)
                    if name in definitions:  # one of them would hide the other
                        raise ValueError(f"{name} is defined in {definitions[name].module} and in {module}")
                    definitions[name] = Definition(name, module, source, uses, spaced)
    return Library(definitions, dict(sorted(imports.items(), key=lambda item: item[1])))


def _others(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    """Name -> the line that imports it from outside the runtime."""
    if isinstance(node, ast.Import):
        return {
            alias.asname or alias.name: f"import {alias.name}"
            + (f" as {alias.asname}" if alias.asname else "")
            for alias in node.names
        }
    if node.module == "__future__" or (node.module or "").startswith("synth.runtime"):
        return {}
    return {alias.name: f"from {node.module} import {alias.name}" for alias in node.names}


def _imports(lines: list[str]) -> str:
    """Import lines in three blocks: the future and the standard library, torch, the runtime."""
    future = [line for line in lines if "__future__" in line]
    torch = [line for line in lines if line.split()[1].startswith("torch")]
    ours = [line for line in lines if line.startswith("from synth.runtime")]
    rest = [line for line in lines if line not in (*future, *torch, *ours)]
    blocks = [future, _merged(rest), _merged(torch), ours]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _merged(lines: list[str]) -> list[str]:
    """One `from` line per module, after the plain imports."""
    plain = sorted({line for line in lines if line.startswith("import")})
    names: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith("from"):
            _, module, _, name = line.split()
            names.setdefault(module, []).append(name)
    return plain + [_from(module, sorted(set(found))) for module, found in sorted(names.items())]


def _from(module: str, names: list[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"from {module} import (", *(f"    {name}," for name in names), ")"])


def _sources(definitions: list[Definition]) -> str:
    text = ""
    for before, definition in zip([None, *definitions], definitions, strict=False):
        gap = "\n\n" if before and (before.spaced or definition.spaced) else ""
        text += gap + definition.source + "\n"
    return text

"""What an emitted program may import, call and reach for: a list, held against its syntax tree."""

from __future__ import annotations

import ast

MODULES = {
    *(
        "__future__",
        "argparse",
        "atexit",
        "collections",
        "collections.abc",
        "contextlib",
        "contextvars",
        "dataclasses",
        "datetime",
        "functools",
        "hashlib",
        "hmac",
        "itertools",
        "io",
        "json",
        "math",
    ),
    *(
        "math",
        "os",
        "select",
        "signal",
        "socket",
        "statistics",
        "sys",
        "threading",
        "time",
        "typing",
        "weakref",
    ),
    *("mmap", "secrets", "struct"),  # memory that two ranks of a host share
    *("torch", "torch.distributed", "torch.nn", "torch.nn.functional", "torch.autograd.function"),
    *("torch.distributed.device_mesh", "torch.distributed.rendezvous", "torch.distributed.tensor"),
}
RUNTIME = "synth.runtime."  # and its modules, unless the program stands alone
FROM_OS = {  # no starting of programs, no walk through the file system
    *("environ", "getpid", "getppid", "kill", "_exit", "pipe", "set_blocking", "read", "write", "path"),
    *("makedirs", "replace", "unlink", "open", "fdopen", "link", "O_WRONLY", "uname", "cpu_count"),
    *("memfd_create", "ftruncate", "close", "getuid"),  # memory without a file, for a rank of one user
    "register_at_fork",  # a child leaves the connections of a rank alone
}
FROM_SYS = {"argv", "excepthook", "exit", "modules", "stderr", "stdout"}
NO_CALLS = {
    *(
        "eval",
        "exec",
        "compile",
        "__import__",
        "globals",
        "locals",
        "vars",
        "setattr",
        "delattr",
        "breakpoint",
    ),
    *("input", "hasattr"),
}
NO_NAMES = {
    "__builtins__",
    "__loader__",
    "__spec__",
    "builtins",
    "importlib",
    "ctypes",
    "pickle",
    "subprocess",
}
DUNDERS = {"__init__", "__name__", "__doc__", "__version__"}
NO_ATTRIBUTES = {"load", "hub", "jit", "utils", "compile"}  # of torch: what reads, builds or runs other code


def refused(text: str, standalone: bool) -> list[str]:
    """What a program does that it must not, a few words each; a program is fine when there is nothing."""
    return [fault for node in ast.walk(ast.parse(text)) for fault in _faults(node, standalone)]


def _faults(node: ast.AST, standalone: bool) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [f"imports {each.name}" for each in names if not _allowed(each.name, standalone)]
        case ast.ImportFrom(module=module, level=level):
            known = level == 0 and module is not None and _allowed(module, standalone)
            return [] if known else [f"imports from {module}"]
        case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(name)), *_]):
            return [f"reaches for {name}"] if name.startswith("_") else []
        case ast.Call(func=ast.Name(id="getattr")):
            return ["reaches for a name that it makes up"]
        case ast.Name(id=name) if name in NO_CALLS | NO_NAMES:
            return [f"names {name}"]
        case ast.Attribute(attr=name) if name == "load_library" or (
            name.startswith("__") and name not in DUNDERS
        ):
            return [f"reaches for {name}"]
        case ast.Attribute(value=ast.Name(id="os"), attr=name) if name not in FROM_OS:
            return [f"uses os.{name}"]
        case ast.Attribute(value=ast.Name(id="sys"), attr=name) if name not in FROM_SYS:
            return [f"uses sys.{name}"]
        case ast.Attribute(value=ast.Name(id="torch"), attr=name) if name in NO_ATTRIBUTES:
            return [f"uses torch.{name}"]
    return []


def _allowed(module: str, standalone: bool) -> bool:
    return module in MODULES or (not standalone and module.startswith(RUNTIME))

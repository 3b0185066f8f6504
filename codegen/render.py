"""Program → text: place what `lower` decided, then add the imports that the text turns out to need."""

from __future__ import annotations

import re
from functools import cache
from textwrap import indent
from typing import Any

import jinja2

from synth.codegen import inline_runtime
from synth.codegen.line_breaks import fit
from synth.codegen.lower import lower
from synth.codegen.program import Fetch, Finish, Function, Node, Steps, When
from synth.planning.plan import Plan

ALWAYS = ("work", "owned_")  # index functions that a program shows even if it does not call them


def render(
    plan: Plan,
    standalone: bool = False,
    command: str = "synth emit",
    module: bool = False,
    name: str = "PROGRAM.py",
    described: bool = True,
) -> str:
    """The text of the program of a plan; the same plan, command and name of its file give the same bytes.

    The schedule is that of Li et al., SPAA'21, generalised to all three stationary tensors (synth.schedule).
    A standalone program contains the runtime functions that it uses and needs torch alone. With `module`
    the text ends in `layer()`, a `torch.nn.Module`, instead of a command line. `described` texts begin with
    the planned words and memory, for readers. Raises `UsageError` when
    the name of the layer, the command or the file cannot stand in a text, or a module is asked of a single
    pass without resident Ker.
    """
    program = lower(plan, command, module, name, described)
    algorithm = [_function(function) for function in program.functions]
    algorithm += [template("layer.py.j2", layer=program.layer)] if program.layer else []
    algorithm += [template("forward.py.j2", layer=program.forward)] if program.forward else []
    algorithm += [template("step.py.j2", p=program)] if program.layer and not module else []
    end = template("module.py.j2" if module else "main.py.j2", p=program)
    helpers = inline_runtime.used_functions(template("helpers.py.j2", p=program), [*algorithm, end], ALWAYS)
    text = inline_runtime.Parts(
        constants="\n".join(program.constants),
        algorithm="\n\n\n".join(part.strip("\n") for part in [*algorithm, *helpers]),
        check="\n".join(program.check_constants),
        end=end,
    )
    head = template("header.py.j2", p=program)
    return head + "\n" + (inline_runtime.inlined(text) if standalone else inline_runtime.imported(text))


def _function(function: Function) -> str:
    paragraphs = ("\n".join(_statement(node) for node in nodes) for nodes in function.body)
    return template("function.py.j2", f=function, body=indent("\n\n".join(paragraphs), "    "))


def _statement(node: Node) -> str:
    name = re.sub(r"(?<!^)([A-Z])", r"_\1", type(node).__name__).lower()
    macro: Any = getattr(environment().get_template("statements.py.j2").module, name)
    match node:
        case Fetch(body=body) | When(body=body) | Steps(body=body) | Finish(body=body):
            text = macro(node, "\n".join(_statement(inner) for inner in body))
        case _:
            text = macro(node)
    return str(text).strip("\n")


def template(name: str, **values: object) -> str:
    """The text of a template, its long lines broken."""
    return fit(environment().get_template(name).render(**values))


@cache
def environment() -> jinja2.Environment:
    """Templates in which everything that they name must exist."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("synth.codegen"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # the text is Python; words of the user pass through `quoting`
    )
